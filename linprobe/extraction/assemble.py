"""Write the feature file from the rows in the partial folder."""

from __future__ import annotations

import json
import shutil

import numpy as np

from linprobe.data.feature_file import UNLABELLED
from linprobe.data.feature_reader import Description, common_keys
from linprobe.data.feature_writer import FeatureWriter
from linprobe.errors import DataError, PrivacyError
from linprobe.extraction.decoding import CONVERSIONS
from linprobe.extraction.loading import row_ids
from linprobe.extraction.partial import CONVERTED, DONE, Partial, outcome
from linprobe.extraction.people import OwnedMembers
from linprobe.extraction.plan import Plan
from linprobe.extraction.text import text_weights

TEXT = "text.npy"


def write_text(plan: Plan) -> None:
    """Encode the prompts and store the text weights in the partial folder."""
    if plan.prompts is None or plan.backbone.encode_text is None:
        return
    weights = text_weights(plan.backbone.encode_text, *plan.prompts)
    temporary = plan.folder / f"{TEXT}.new"
    with temporary.open("wb") as stream:
        np.save(stream, weights)
    temporary.replace(plan.folder / TEXT)


def assemble(plan: Plan) -> str | None:
    """Write the feature file from the partial folder, then remove the folder; returns the note of `scan`.

    Raises:
        DataError: a group without a readable image, or what `scan` refuses. PrivacyError: an image is both private
        and public.
    """
    settings = plan.public_settings
    fingerprint = plan.settings["fingerprint"]
    description = Description(
        class_names=plan.source.class_names,
        class_names_from=plan.source.class_names_from,
        ids_from=plan.source.ids_from,
        test_rows=settings.get("test_rows", "public"),
        backbone=plan.backbone.name,
        weights=plan.backbone.weights,
        weights_digest=settings["weights_digest"],
        preprocessing=plan.backbone.transform.text,
        source=plan.source.name,
        tensor=plan.backbone.tensor,
        extraction=json.dumps(settings, sort_keys=True),
        extraction_digest=plan.extraction_digest,
    )
    made = plan.folder / "made.h5"
    with Partial(plan.folder, plan.sizes, plan.width, plan.dtype) as partial:
        _refuse_shared_rows(plan, partial)
        with FeatureWriter(made, description, shown_as=plan.out) as writer:
            for group, batches in plan.batches.items():
                kept = outcome(partial.status(group)) == DONE
                if not kept.any():
                    raise DataError(f"{plan.source.name}: no {group} image can be read; allowed: at least one")
                labels = None if group == UNLABELLED else np.repeat(batches.members.labels, batches.views)[kept]
                rows, dtype = partial.rows(group), plan.dtype.type
                members, owners = batches.members, None
                if isinstance(members, OwnedMembers):
                    owners = np.repeat(members.owners, batches.views)[kept].tolist()
                ids = row_ids(batches, kept)
                writer.write_group(group, int(kept.sum()), plan.width, rows, labels, ids, dtype, owners)
            if (plan.folder / TEXT).is_file():
                writer.write_text_weights(np.load(plan.folder / TEXT))
            skipped = [(name, reason) for _, name, reason in partial.skipped()]
            keys = {group: partial.keys(group) for group in plan.batches}
            writer.write_private_log(fingerprint, json.dumps(_conversions(partial)), skipped, keys)
    made.replace(plan.out)
    shutil.rmtree(plan.folder)
    return writer.note


def _conversions(partial: Partial) -> dict[str, int]:
    """Number of images by conversion, without zeros."""
    marks = np.concatenate([partial.status(group) for group in partial.sizes])
    marks = marks[outcome(marks) == DONE] // CONVERTED
    counts = {name: int((marks >> bit & 1).sum()) for bit, name in enumerate(CONVERSIONS)}
    return {name: count for name, count in counts.items() if count}


def _refuse_shared_rows(plan: Plan, partial: Partial) -> None:
    """Refuse images that are both private and public: their pixels are equal after the transform."""
    if "public" not in plan.sizes:
        return
    if common_keys(partial.keys("train"), partial.keys("public")):
        raise PrivacyError(
            f"{plan.source.name}: some public images are private too; a private image cannot be public; "
            "take them out of the public images"
        )
