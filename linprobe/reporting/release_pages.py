"""`linprobe release`: what may leave the building of a run, and nothing else.

The pages of a run, from its manifest: `README.md`, a model card with the sections of Hugging Face's template, and
`claim.yaml`, an entry for the registry of DP deployments (`schemas/deployments-schema.yaml` of
github.com/opendp/deployments-registry-data, tier 3, which allows no other keys). Both answer the points of NIST SP
800-226 (`docs/privacy.md`). Every value is escaped: class and file names come from the user.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from jinja2 import Environment, PackageLoader, StrictUndefined

from linprobe.accounting.book import EVALUATION, Contents, Entry, read_book, spending
from linprobe.accounting.events import NO_CHOICE, OWNER, Releases, hold_without_a_choice
from linprobe.accounting.figures import ONE, gaussian_words, rounded_down, rounded_up
from linprobe.accounting.row_keys import (
    PRIVATE_IN_ALL,
    Account,
    books_folder,
    not_compared_words,
    recorded_runs,
    with_shared,
)
from linprobe.atomic_files import escaped_lines, write_whole
from linprobe.errors import LinprobeError, PrivacyError, UsageError, counted, printable, writing
from linprobe.options.requests import ReleaseRequest
from linprobe.runs.check import check_signature, verified
from linprobe.runs.guarantee import PUBLIC_ROWS, TEST_ROWS
from linprobe.runs.manifest import CARD, CLAIM, DAY, MANIFEST, PAGES, SIGNATURE, VERIFY_PAGE, Manifest
from linprobe.runs.officer_page import officer_page
from linprobe.runs.run_folder import RunFolder, claimed, private_key, public_key, write_manifest

JOINERS = "\u200c\u200d"  # of Persian names and of emoji
HIDDEN = ("Cc", "Cf")  # Unicode categories of characters that a terminal or a page obeys
ADDRESS = re.compile(r":(?=//)|www(?=\.)|@", re.IGNORECASE)  # Markdown makes links of what follows
WORDS = {"name": "--name", "curators": "--curator", "use": "--use", "region": "--region", "licence": "--license"}
"""What a publisher may say, by the names of `Publisher`, and the flags."""
UNKNOWN = "the total of all runs on these rows is not known"
MOST_CLASSES = 20  # listed with their accuracy, the lowest first


@dataclass(frozen=True)
class Publisher:
    """What the publisher says of a release; the manifest does not know it.

    `region` is where the data come from, or whose law applies; `total` a line of `recorded_totals` for everybody.
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
    facts = {
        "manifest": manifest,
        "publisher": publisher,
        "unit": unit_text(manifest),
        "composition": composition_text(manifest),
        "unprotected": unprotected(manifest),
        "test_text": test_text(manifest),
    }
    slug = re.sub("[^a-z0-9]+", "-", publisher.name.lower()).strip("-") or "model"
    options = {name: value for name, value in manifest.options.items() if name not in ("epsilon", "delta")}
    if options.get("init"):
        options["init"] = Path(options["init"]).name  # a folder could say something of the owner's machine
    accuracies = (manifest.test_accuracy_per_class or {}).items()
    card = _cards.get_template("model_card.md.jinja").render(
        **facts,
        signed=signed,
        preprocessing=json.dumps((manifest.extraction or {}).get("preprocessing") or "not stated", sort_keys=True),
        options=options,
        per_class=sorted(accuracies, key=lambda item: (item[1] is None, item[1] or 0.0))[:MOST_CLASSES],
    )
    return {CARD: card, CLAIM: _entries.get_template("claim.yaml.jinja").render(**facts, slug=slug)}


def pages_of_run(name: str, signed: bool, manifest: Manifest) -> dict[str, str]:
    """`pages` of a run that has no publisher yet; `name` is its folder's name."""
    return pages(manifest, Publisher(printable(name), manifest.created[:DAY]), signed=signed)


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
        letter for letter in " ".join(text.split()) if letter in JOINERS or unicodedata.category(letter) not in HIDDEN
    )
    return ADDRESS.sub(r"\g<0><!-- -->", re.sub(r"([\\`*_\[\]<>|#~&])", r"\\\1", seen))


def _scalar(value: str | float) -> str:
    """A JSON string or number, which is YAML too; YAML 1.1 requires a decimal point in a number with an exponent."""
    text = escaped_lines(json.dumps(value, ensure_ascii=False))
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


def recorded_totals(manifest: Manifest) -> tuple[str, str]:
    """Two lines on what all runs of the default books cost together with a finished run, or why that is not known.

    Returns: a line for a page, and one that is private. The first counts the runs on the feature file of the run by its
    path, whatever rows it held, and evaluations of these runs: no row decides what is counted. The second counts the
    runs on its rows: which books have one of them can tell who is in two files, or whether two files are equal.
    """
    own = "no epsilon holds" if manifest.epsilon is None else rounded_up(manifest.epsilon)
    try:
        recorded = recorded_runs()
        if manifest.book_id not in recorded:
            text = "no budget book{} has this run, so other runs on its rows are not known; this run: {}"
            return text.format(" where this page was made", own), text.format(f" in {books_folder()}", own)
        path, entry = recorded[manifest.book_id]
        contents = read_book(path)
        if contents.lacking(manifest.book_id, manifest.recorded):
            why = f"{UNKNOWN}: the budget book lacks releases of this run, made from a copy of it; this run: {own}"
            return why, f"{why} (budget book {path})"
        line = _of_file(entry.features, recorded, manifest, own)
        account = Account.at(path)
        every, unknown = with_shared(contents, account.shared()).counted, account.not_compared()
    except LinprobeError as error:
        return f"{UNKNOWN}: a budget book cannot be read", f"{UNKNOWN}: {error}"
    more = f"; {not_compared_words(len(unknown))}" if unknown else ""
    return line, f"{_cost(every, 'these rows', manifest, own)}{more} (budget book {path}; do not publish this line)"


def _of_file(features: str | None, recorded: Mapping[str, tuple[Path, Entry]], manifest: Manifest, own: str) -> str:
    """What the runs on a feature file, and evaluations of them, cost together, of all that are `recorded`."""
    entries = {run: entry for run, (_, entry) in recorded.items()}
    if features is None or any(one.features is None for one in entries.values()):
        return f"{UNKNOWN}: a run of an older version names no feature file; this run: {own}"
    on_file = {run: one for run, one in entries.items() if one.features == features}
    on_file |= {run: one for run, one in entries.items() if one.method == EVALUATION and one.first in on_file}
    merged = Contents(Contents(entries).with_first(on_file))  # whatever the paths of the first runs
    counted_once = [  # a book has left out of a run what it counts for the first one, and counts what is left
        one
        if one.first and one.first in recorded and recorded[one.first][0] == recorded[one.run][0]
        else merged.as_counted(one)
        for one in merged.counted
    ]
    return _cost(counted_once, "this feature file", manifest, own)


def _cost(entries: Sequence[Entry], what: str, manifest: Manifest, own: str) -> str:
    spent = spending(entries)
    if manifest.epsilon is not None and (manifest.delta, manifest.unit) != (spent.delta, spent.unit):
        own += f" at delta {rounded_up(manifest.delta)} for {ONE[manifest.unit]}"
    if not spent.runs and spent.not_private_runs:
        return f"no epsilon covers the recorded runs on {what} ({spent.not_private_runs}); this run: {own}"
    runs = f"{counted(spent.runs, 'recorded run')} on {what}"
    if spent.runs > 1:  # a row may have been a public shot in one of them
        runs += PRIVATE_IN_ALL
        runs += f", if {NO_CHOICE}" if spent.gdp_mu is None else ""
    more = f", and {counted(spent.not_private_runs, 'run')} without a guarantee" if spent.not_private_runs else ""
    return f"{spent.in_words}, over {runs}{more}; this run: {own}"


def _words_of(request: ReleaseRequest) -> dict[str, Any]:
    """The publisher's words that were given, by the names of `Publisher`. Raises UsageError: words not in UTF-8."""
    given = {name: getattr(request, name) for name in WORDS}
    words = {name: tuple(value) if name == "curators" else value for name, value in given.items() if value}
    for name, value in words.items():
        try:
            "".join(value).encode()
        except UnicodeEncodeError:
            raise UsageError(f"{WORDS[name]} is {value!r}; allowed: UTF-8; check the locale of the terminal") from None
    return words


def release(request: ReleaseRequest) -> tuple[dict[str, Any], str]:
    """Write a folder with the public files of a verified, private run, a model card, a registry entry, `verify.html`.

    The manifest lists the card and the entry. If the run has both, they are copied with its signature. If it lacks
    them, or the request gives a key or words of the publisher, they are written anew, and the manifest is sealed again.
    Returns facts, and a private line on what all runs on the same rows cost together.
    """
    with claimed(request.out, "release folder"):
        run, words = RunFolder(request.run), _words_of(request)
        if request.public_key is not None:
            check_signature(run, public_key(request.public_key))
        verified(run)
        if not run.manifest.private:
            raise PrivacyError(
                f"run {request.run} is {run.manifest.guarantee}; only a private run can be released; "
                "train with a private method and without --noise-seed"
            )
        listed, signed = list(run.manifest.files), SIGNATURE in run.names
        anew = CARD not in listed or bool(words) or request.sign is not None
        key = _key(request, run, words, has_pages=CARD in listed) if anew else None
        names = [name for name in listed if name not in PAGES] if anew else [*listed, MANIFEST, *[SIGNATURE] * signed]
        copied = {name: run[name] for name in names}
        unfinished = request.out.with_name(f".{request.out.name}.{secrets.token_hex(4)}.partial")
        try:
            with writing(f"release folder {request.out}"):
                unfinished.mkdir()
                for name, content in {**copied, VERIFY_PAGE: officer_page()}.items():
                    write_whole(unfinished / name, content)
                if anew:
                    words = {"name": printable(request.out.resolve().name), **words}
                    total, _ = recorded_totals(run.manifest)
                    publisher = Publisher(**words, published=datetime.now(UTC).date().isoformat(), total=total)
                    texts = pages(run.manifest.sealed(copied), publisher, signed=key is not None)
                    write_manifest(unfinished, run.manifest, copied, key, texts)
                names = sorted(path.name for path in unfinished.iterdir())
                unfinished.rename(request.out)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    facts = {
        "release": str(request.out),
        "files": names,
        "run_id": run.manifest.book_id,
        "epsilon": run.manifest.epsilon,
        "delta": run.manifest.delta,
        "signed": SIGNATURE in names,
    }
    return facts, recorded_totals(run.manifest)[1]


def _key(request: ReleaseRequest, run: RunFolder, words: Iterable[str], *, has_pages: bool) -> Ed25519PrivateKey | None:
    """The key for a manifest that lists new pages; None for a run without a signature, if no key is given."""
    signed = SIGNATURE in run.names
    if request.sign is not None:
        key = private_key(request.sign)
        if signed:
            check_signature(run, key.public_key())
        return key
    if signed and has_pages:
        given = ", ".join(WORDS[word] for word in words)
        raise UsageError(
            f"run {request.run} is signed, and {given} would change pages that its signature covers; give --sign KEY "
            f"with the key that signed it, or leave out {given}"
        )
    if signed:
        raise UsageError(
            f"run {request.run} was signed by a version whose signature covers no {' and '.join(PAGES)}; give --sign "
            "KEY with the key that signed it"
        )
    return None
