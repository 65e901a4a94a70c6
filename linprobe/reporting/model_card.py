"""The pages of a run: `README.md`, a model card with the sections of Hugging Face's template, and `claim.yaml`.

They are filled from the manifest. The text of the card is in `model_card.md.jinja`. Every value is escaped, as class
and file names come from the user.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from linprobe.accounting.figures import rounded_up
from linprobe.errors import printable
from linprobe.reporting import privacy_points
from linprobe.reporting.registry_claim import NOT_STATED, Publisher, registry_claim
from linprobe.reporting.templates import templates
from linprobe.runs.run_files import CARD, CLAIM
from linprobe.runs.task import MULTILABEL, task_of

DAY = len("YYYY-MM-DD")  # characters of a time that are its day
MOST_CLASSES = 20  # listed with their accuracy, the lowest first


def pages(manifest: dict[str, Any], publisher: Publisher, *, signed: bool) -> dict[str, str]:
    """The texts of the pages by name; none for a run that is not private.

    Args:
        manifest: with the digests of all other files. signed: whether it is going to be signed.
    """
    if not manifest["private"]:
        return {}
    return {CARD: model_card(manifest, publisher, signed=signed), CLAIM: registry_claim(manifest, publisher)}


def pages_of_run(name: str, signed: bool, manifest: dict[str, Any]) -> dict[str, str]:
    """`pages` of a run that has no publisher yet; `name` is that of its folder."""
    return pages(manifest, Publisher(printable(name), manifest["created"][:DAY]), signed=signed)


def model_card(manifest: dict[str, Any], publisher: Publisher, *, signed: bool) -> str:
    """The card as Markdown, for a run that is private; arguments as of `pages`."""
    extraction = manifest.get("extraction") or {}
    accuracies = sorted(
        (manifest["test_accuracy_per_class"] or {}).items(), key=lambda item: (item[1] is None, item[1] or 0.0)
    )
    options = {name: value for name, value in manifest["options"].items() if name not in ("epsilon", "delta")}
    if options.get("init"):
        options["init"] = Path(options["init"]).name  # a folder could say something of the owner's machine
    return _cards.get_template(
        "model_card.md.jinja"
    ).render(
        manifest=manifest,
        cross_check=manifest.get("cross_check"),  # a run that released nothing has none
        publisher=publisher,
        signed=signed,
        not_stated=NOT_STATED,
        extraction={"backbone": "", "weights": "", "weights_digest": "", **extraction},
        preprocessing=json.dumps(extraction.get("preprocessing") or "not stated", sort_keys=True),
        unit=privacy_points.unit_of(manifest),
        data=privacy_points.data_of(manifest),
        composition=privacy_points.composition_of(manifest),
        unprotected=privacy_points.unprotected_of(manifest),
        points=privacy_points.points(manifest),
        options=options,
        per_class=accuracies[:MOST_CLASSES],
        several_labels=task_of(manifest) == MULTILABEL,
        macro_auroc=manifest.get("test_macro_auroc"),
        balanced_std=manifest.get("test_balanced_accuracy_std"),
    )


class _Quoted(str):
    """Text that is escaped already."""


def _escaped(value: Any) -> Any:
    """One line of Markdown in which the value's own characters have no meaning."""
    if isinstance(value, _Quoted) or not isinstance(value, str | list | dict):
        return value
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", " ".join(text.split()))


def _quoted(value: str) -> _Quoted:
    """A string of JSON, which is YAML too."""
    return _Quoted(json.dumps(value))


_cards = templates(finalize=_escaped, html=False)  # Markdown
_cards.filters |= {
    "up": rounded_up,
    "quoted": _quoted,
    "as_is": _Quoted,  # for text that cannot hold a user's characters
    "percent": lambda value: f"{100 * value:.2f} %",
}
