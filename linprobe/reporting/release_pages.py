"""The pages of a run, from its manifest: `README.md`, a model card with the sections of Hugging Face's template, and
`claim.yaml`, an entry for the registry of DP deployments (`schemas/deployments-schema.yaml` of
github.com/opendp/deployments-registry-data, tier 3, which allows no other keys). Both answer the points of NIST SP
800-226 (`docs/privacy.md`). Every value is escaped: class and file names come from the user.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from linprobe.accounting.events import NO_CHOICE, OWNER, Releases, hold_without_a_choice
from linprobe.accounting.figures import gaussian_words, rounded_down, rounded_up
from linprobe.errors import printable
from linprobe.runs.guarantee import PUBLIC_ROWS, TEST_ROWS
from linprobe.runs.manifest import CARD, CLAIM, DAY, Manifest

JOINERS = "\u200c\u200d"  # of Persian names and of emoji
ADDRESS = re.compile(r":(?=//)|www(?=\.)|@", re.IGNORECASE)  # Markdown makes links of what follows
MOST_CLASSES = 20  # listed with their accuracy, the lowest first


@dataclass(frozen=True)
class Publisher:
    """What the publisher says of a release; the manifest does not know it.

    Attributes:
        name: of the model. curators: who publishes it. use: what it is for. region: where the data come from, or whose
            law applies. licence: a licence id, such as cc-by-4.0. published: date, YYYY-MM-DD. total: what all runs on
            the feature file have cost, as a line of `recorded_totals` that may be published.
    """

    name: str
    published: str
    curators: Sequence[str] = ()
    use: str | None = None
    region: str | None = None
    licence: str | None = None
    total: str | None = None


def pages(manifest: Manifest, publisher: Publisher, *, signed: bool) -> dict[str, str]:
    """The texts of the pages by name, none without privacy, of a `manifest` with other digests, `signed` or not."""
    if not manifest.private:
        return {}
    slug = re.sub("[^a-z0-9]+", "-", publisher.name.lower()).strip("-") or "model"
    claim = _entries.get_template("claim.yaml.jinja").render(**_facts(manifest, publisher), slug=slug)
    return {CARD: model_card(manifest, publisher, signed=signed), CLAIM: claim}


def pages_of_run(name: str, signed: bool, manifest: Manifest) -> dict[str, str]:
    """`pages` of a run that has no publisher yet; `name` is its folder's name."""
    return pages(manifest, Publisher(printable(name), manifest.created[:DAY]), signed=signed)


def model_card(manifest: Manifest, publisher: Publisher, *, signed: bool) -> str:
    accuracies = sorted(
        (manifest.test_accuracy_per_class or {}).items(), key=lambda item: (item[1] is None, item[1] or 0.0)
    )
    options = {name: value for name, value in manifest.options.items() if name not in ("epsilon", "delta")}
    if options.get("init"):
        options["init"] = Path(options["init"]).name  # a folder could say something of the owner's machine
    return _cards.get_template("model_card.md.jinja").render(
        **_facts(manifest, publisher),
        signed=signed,
        preprocessing=json.dumps((manifest.extraction or {}).get("preprocessing") or "not stated", sort_keys=True),
        options=options,
        per_class=accuracies[:MOST_CLASSES],
    )


def _facts(manifest: Manifest, publisher: Publisher) -> dict[str, Any]:
    return {
        "manifest": manifest,
        "publisher": publisher,
        "unit": unit_text(manifest),
        "composition": composition_text(manifest),
        "unprotected": unprotected(manifest),
        "test_text": test_text(manifest),
    }


def unprotected(manifest: Manifest) -> list[str]:
    """What this run does not protect. The manifest lists what no run does."""
    shots = manifest.public_collection
    of_this_run = {
        PUBLIC_ROWS: (PUBLIC_ROWS if shots is None else f"{PUBLIC_ROWS}, including {shots}")
        if manifest.n_public
        else "",
        TEST_ROWS: {
            "public": "test rows and the accuracy on them",
            "private": f"number of test {'people' if manifest.unit == OWNER else 'rows'}",
        }.get(manifest.test_rows, ""),
    }
    return [text for one in manifest.public if (text := of_this_run.get(one, one))]


def test_text(manifest: Manifest) -> str:
    if manifest.test_rows != "private":
        return "public, not protected" if manifest.test_rows == "public" else "none"
    if manifest.test_counts is None:
        return "private; nothing was released about them"
    tested = "people" if manifest.unit == OWNER else "rows"
    return f"private; the accuracy on {manifest.n_test} test {tested} was released with noise, which protects them"


def unit_text(manifest: Manifest) -> str:
    if manifest.unit == OWNER:
        return "one person: all private rows of that person together"
    return "one record: one row of features, made from one image where the rows come from images"


def holds_if(manifest: Manifest) -> str | None:
    conditional = manifest.selection is None and hold_without_a_choice(manifest.releases or ())
    return NO_CHOICE if conditional else None


def composition_text(manifest: Manifest) -> str:
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
    condition = f". Epsilon holds if {NO_CHOICE}" if holds_if(manifest) else ""
    return (
        f"all Gaussian releases of the run, composed by {manifest.accountant} and checked by {manifest.cross_check}: "
        f"{_listed(manifest.releases)}{condition}"
    )


def _listed(releases: Sequence[Releases]) -> str:
    return "; ".join(
        f"{release.count} of purpose {release.purpose!r} with noise multiplier "
        f"{rounded_down(release.noise_multiplier)} and sampling rate {release.sampling_rate:g}"
        for release in releases
    )


def templates(*, finalize: Callable[[Any], Any], html: bool) -> Environment:
    """The templates beside this file; values are needed, go through `finalize`, and are escaped for `html`."""
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
    """One line of Markdown in which the value's own characters have no meaning, and no address becomes a link."""
    if isinstance(value, _Quoted) or not isinstance(value, str | list | dict):
        return value
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    seen = "".join(
        letter for letter in " ".join(text.split()) if letter in JOINERS or unicodedata.category(letter) != "Cf"
    )
    return ADDRESS.sub(r"\g<0><!-- -->", re.sub(r"([\\`*_\[\]<>|#~&])", r"\\\1", seen))


def _scalar(value: str | float) -> str:
    """A JSON string or number, which is YAML too; YAML 1.1 requires a decimal point in a number with an exponent."""
    text = json.dumps(value, ensure_ascii=False)
    return text.replace("e", ".0e") if isinstance(value, float) and "e" in text and "." not in text else text


_words = {
    "up": rounded_up,
    "gaussian": lambda manifest: gaussian_words(manifest.gdp_mu, manifest.zcdp_rho),
    "as_is": _Quoted,  # for text that cannot hold a user's characters
    "percent": lambda value: f"{100 * value:.2f} %",
}
_cards = templates(finalize=_escaped, html=False)  # Markdown
_cards.filters |= {**_words, "quoted": lambda value: _Quoted(json.dumps(value))}  # the head of the card is YAML
_entries = templates(finalize=lambda value: value, html=False)  # YAML
_entries.filters |= {**_words, "quoted": _scalar}
