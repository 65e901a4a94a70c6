"""The pages of a run: `README.md`, a model card with the sections of Hugging Face's template, and `claim.yaml`.

`claim.yaml` is an entry for the registry of DP deployments: its layout is `schemas/deployments-schema.yaml` of
github.com/opendp/deployments-registry-data, tier 3, whose schema allows no other keys.

Both are filled from the manifest, and answer the points of NIST SP 800-226 (2025) on evaluating differential privacy
guarantees; `docs/privacy.md` gives the reasons. The text of the card is in `model_card.md.jinja`. Every value is
escaped, as class and file names come from the user.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from linprobe.accounting.events import OWNER, Releases
from linprobe.accounting.figures import gaussian_words, rounded_up
from linprobe.data.labels import MULTICLASS, MULTILABEL
from linprobe.errors import printable
from linprobe.runs.manifest import CARD, CLAIM, LEDGER, MODEL, Manifest

DAY = len("YYYY-MM-DD")  # characters of a time that are its day
MOST_CLASSES = 20  # listed with their accuracy, the lowest first
NOT_STATED = "not stated by the publisher"
LABELS_OF = {MULTICLASS: "one of {} labels", MULTILABEL: "a 0 or 1 for each of {} labels"}
FLOATING_POINT = (
    "covered: every released number is the rounding of the sum plus a real Gaussian, and rounding cannot raise the "
    "share of one record in a sum above its clip norm. The proof rests on a measured bound on the error of one function"
)
TIMING = (
    "not covered: the time of a training run may depend on the private rows; only the owner of the rows may time it"
)
RANDOMNESS = "ChaCha20 with a fresh 256-bit key from the operating system for every run, and a new nonce for every draw"
TUNING = (
    "the defaults of linprobe were set without these rows. Other runs on the same rows, also those that were tried and "
    "dropped, are not in this figure: they add to it"
)
ACCESS = (
    "the rows, the feature file and each record's own loss stay with the owner, in files that only the owner can read; "
    "linprobe neither encrypts them nor logs who reads them. They are not in this folder"
)
TRUST = (
    "central: the owner of the rows runs linprobe and is trusted with them. Nobody else is, not even someone who "
    "sees this folder and knows all other records"
)
COLLECTION = (
    "the guarantee begins at the file of features; it does not cover how rows were collected, nor a network that was "
    "itself trained on private images"
)


@dataclass(frozen=True)
class Publisher:
    """What the publisher says of a release; the manifest does not know it.

    Attributes:
        name: of the model. curators: who publishes it. use: what it is for. region: where the data come from, or whose
            law applies. licence: a licence id, such as cc-by-4.0. published: date, YYYY-MM-DD.
    """

    name: str
    published: str
    curators: Sequence[str] = ()
    use: str | None = None
    region: str | None = None
    licence: str | None = None


def pages(manifest: Manifest, publisher: Publisher, *, signed: bool) -> dict[str, str]:
    """The texts of the pages by name; none for a run that is not private.

    Args:
        manifest: with the digests of all other files. signed: whether it is going to be signed.
    """
    if not manifest.private:
        return {}
    return {CARD: model_card(manifest, publisher, signed=signed), CLAIM: registry_claim(manifest, publisher)}


def pages_of_run(name: str, signed: bool, manifest: Manifest) -> dict[str, str]:
    """`pages` of a run that has no publisher yet; `name` is its folder's name."""
    return pages(manifest, Publisher(printable(name), manifest.created[:DAY]), signed=signed)


def model_card(manifest: Manifest, publisher: Publisher, *, signed: bool) -> str:
    """The card as Markdown, for a run that is private; arguments as of `pages`."""
    extraction = manifest.extraction or {}
    accuracies = sorted(
        (manifest.test_accuracy_per_class or {}).items(), key=lambda item: (item[1] is None, item[1] or 0.0)
    )
    options = {name: value for name, value in manifest.options.items() if name not in ("epsilon", "delta")}
    if options.get("init"):
        options["init"] = Path(options["init"]).name  # a folder could say something of the owner's machine
    return _cards.get_template("model_card.md.jinja").render(
        manifest=manifest,
        publisher=publisher,
        signed=signed,
        not_stated=NOT_STATED,
        extraction={"backbone": "", "weights": "", "weights_digest": "", **extraction},
        preprocessing=json.dumps(extraction.get("preprocessing") or "not stated", sort_keys=True),
        unit=unit_text(manifest),
        data=data_text(manifest),
        composition=composition_text(manifest),
        unprotected=unprotected_text(manifest),
        points=points(manifest),
        options=options,
        per_class=accuracies[:MOST_CLASSES],
        several_labels=manifest.several_labels,
    )


def unit_text(manifest: Manifest) -> str:
    """The unit of privacy, in words."""
    if manifest.unit == OWNER:
        return "one person: all private rows of that person together"
    return "one record: one row of features, made from one image where the rows come from images"


def data_text(manifest: Manifest) -> str:
    """The private rows that were used, in words; the number of rows of people is private."""
    if manifest.unit == OWNER:
        return f"the private rows of {manifest.n_private} people"
    return f"{manifest.n_private} private rows"


def composition_text(manifest: Manifest) -> str:
    """What was composed, and by which accountants."""
    event = manifest.selection
    if event is not None:
        runs = ", or ".join(dict.fromkeys(_listed(run) for run in event.runs))
        return (
            f"private selection of the best of a geometric number of runs, {event.mean_repetitions} on average. One "
            f"accountant ({manifest.accountant}) bounds the selection as a whole, with the runs that were dropped; "
            f"the Gaussian releases of one run are {runs}. A second one ({manifest.cross_check}) checks it"
        )
    if not manifest.releases:
        return "nothing was released from private rows"
    return (
        f"one accountant ({manifest.accountant}) composes all Gaussian releases of the run: "
        f"{_listed(manifest.releases)}. A second one ({manifest.cross_check}) checks it"
    )


def _listed(releases: Sequence[Releases]) -> str:
    return "; ".join(
        f"{release.count} of purpose {release.purpose!r} with noise multiplier {release.noise_multiplier:g} and "
        f"sampling rate {release.sampling_rate:g}"
        for release in releases
    )


def tuning_text(manifest: Manifest) -> str:
    """What the figures cover of the choice of options."""
    if manifest.selection is not None:
        chosen = "options were chosen on these rows by private selection, whose cost is in this figure"
        return f"{chosen}. Other runs on the same rows are not: they add to it"
    return TUNING


def parameters_text(manifest: Manifest) -> str:
    """Epsilon, delta and, where they exist, mu and rho, rounded up."""
    figures = gaussian_words(manifest.gdp_mu, manifest.zcdp_rho)
    return f"epsilon {rounded_up(manifest.epsilon)}, delta {rounded_up(manifest.delta)}; {figures}"


def unprotected_text(manifest: Manifest) -> str:
    """What the guarantee does not cover, in words."""
    return "; ".join(manifest.public)


def points(manifest: Manifest) -> Sequence[tuple[str, str]]:
    """Title and answer of each point, for a verified run that is private."""
    per_class = "the accuracy of every class is in this card" if manifest.test_accuracy_per_class else "not measured"
    return (
        ("Privacy parameters and variant", f"approximate differential privacy: {parameters_text(manifest)}"),
        ("Unit of privacy", f"{unit_text(manifest)}; {manifest.adjacency}"),
        ("Total budget and composition", f"{composition_text(manifest)}. Runs in other folders add to it"),
        ("Mechanism", f"{manifest.mechanism}; {RANDOMNESS}"),
        ("Trust model", TRUST),
        ("Data collection", COLLECTION),
        ("Side channels: floating point", FLOATING_POINT),
        ("Side channels: time", TIMING),
        ("Side channels: messages", "not covered: what the owner saw on the terminal is not part of this folder"),
        ("Security and access", ACCESS),
        ("Utility", "noise and clipping lower accuracy; the figures are in this card"),
        ("Bias", f"small classes lose most, because noise does not shrink with a class; {per_class}"),
        ("Tuning of hyper-parameters", tuning_text(manifest)),
        ("What is not protected", unprotected_text(manifest)),
        ("Inference about groups", "what is true of many records, such as the look of a class, is learnt, by purpose"),
    )


def registry_claim(manifest: Manifest, publisher: Publisher) -> str:
    """The entry as YAML text, for a run that is private."""
    return "\n".join(_lines(_entry(manifest, publisher))) + "\n"


def _entry(manifest: Manifest, publisher: Publisher) -> dict[str, Any]:
    epsilon, delta = manifest.bound
    parameters = {"epsilon": float(epsilon), "delta": float(delta)}
    if manifest.zcdp_rho is not None:
        parameters["rho"] = float(manifest.zcdp_rho)
    curators = list(publisher.curators) or [NOT_STATED]
    return {
        "url_slug": re.sub("[^a-z0-9]+", "-", publisher.name.lower()).strip("-") or "model",
        "status": "Draft",
        "tier": 3,
        "deployment": {
            "basic": {
                "name": publisher.name,
                "data_curators": curators,
                "intended_use": publisher.use or NOT_STATED,
                "data_product_type": "Machine learning model",
                "data_product_region": publisher.region or NOT_STATED,
                "description": _description(manifest),
                "publication_date": publisher.published,
            },
            "dp_variant": {
                "variant_name": "Approximate DP",
                "data_domain": f"any values of {data_text(manifest)}: {manifest.n_features} finite numbers in "
                f"each row, with {LABELS_OF[manifest.task].format(manifest.n_classes)}",
                "unprotected_quantities": unprotected_text(manifest),
            },
            "privacy_loss": {
                "privacy_unit": unit_text(manifest),
                "privacy_unit_details": manifest.adjacency,
                "privacy_parameters": parameters,
                "privacy_parameters_details": parameters_text(manifest),
            },
            "deployment_model": {
                "model_name": "Central",
                "actors": TRUST,
                "release_type": "One release",
                "release_type_details": "this run alone; " + tuning_text(manifest),
                "data_source_type": "Static",
                "access_type": "Non-interactive",
                "access_type_details": "the weights are published; nobody queries the rows",
            },
            "accounting": {
                "post_processing": "the iterates of training are averaged, or vote, and are folded into one linear map",
                "composition": composition_text(manifest),
            },
            "implementation": {
                "preprocessing_and_hyperparameter_tuning": "each row is divided by its own length; "
                + tuning_text(manifest),
                "mechanisms": "\n".join(f"- {line}" for line in _mechanisms(manifest)),
                "justification": f"{manifest.method}, {manifest.paper}; the bounds on one record are proved "
                "in the documentation of linprobe and tested on neighbouring data sets",
            },
            "administrative": {
                "notes": f"SHA-256 of {MODEL}: {manifest.files[MODEL]}; of {LEDGER}: {manifest.files[LEDGER]}; "
                "check the folder with `linprobe verify`",
                "registry_authors": curators,
            },
        },
    }


def _description(manifest: Manifest) -> str:
    rows = manifest.extraction["backbone"] if manifest.extraction else manifest.backbone
    kind = "classes" if manifest.task == MULTICLASS else "labels, of which a row may have several,"
    return (
        f"A linear classifier of {manifest.n_classes} {kind} on {manifest.n_features} features"
        f"{f' of {rows}' if rows else ''}, trained with {manifest.method}. {manifest.guarantee}"
    )


def _mechanisms(manifest: Manifest) -> Sequence[str]:
    versions = manifest.software
    return (
        f"mechanism: {manifest.mechanism}; {RANDOMNESS}",
        f"implementation: linprobe {versions['linprobe']}, Python {versions['python']}, NumPy {versions['numpy']}",
        f"floating point: {FLOATING_POINT}",
        f"timing: {TIMING}",
        f"platform: computed on {manifest.device} in {manifest.precision}; memory and swap of the owner's "
        "machine are not covered",
        f"access: {ACCESS}",
    )


def _lines(value: Any, indent: str = "") -> Iterator[str]:
    """YAML of nested mappings, lists of scalars, and scalars."""
    for name, item in value.items():
        if isinstance(item, Mapping):
            yield f"{indent}{name}:"
            yield from _lines(item, f"{indent}  ")
        elif isinstance(item, list):
            yield f"{indent}{name}:"
            yield from (f"{indent}  - {_scalar(one)}" for one in item)
        else:
            yield f"{indent}{name}: {_scalar(item)}"


def _scalar(value: Any) -> str:
    """A JSON string or number, which is YAML too; YAML 1.1 wants a point in a number with an exponent."""
    text = json.dumps(value, ensure_ascii=False)
    return text.replace("e", ".0e") if isinstance(value, float) and "e" in text and "." not in text else text


def templates(*, finalize: Callable[[Any], Any], html: bool) -> Environment:
    """An environment of the templates beside this file. A name in a template without a value is an error.

    Args:
        finalize: called with every value that a template prints.
        html: whether values are escaped for HTML, and the line break at the end is dropped.
    """
    return Environment(
        loader=PackageLoader("linprobe.reporting", "."),
        autoescape=html,
        finalize=finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=not html,
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
