"""The manifest: one JSON object that a privacy reviewer can check line by line, and what proves each key and file.

`Manifest` is the one list of its keys: a new key is one field with the kind of its value, and a default keeps manifests
without it readable. Its digests detect an edit, but not a forger who rewrites everything: sign the folder for that.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, is_dataclass, replace
from functools import cache
from typing import Annotated, Any, Self, get_type_hints

from linprobe import __version__
from linprobe.accounting.events import HISTOGRAM, OF_FILE, OWNER, RECORD, UNITS, Releases
from linprobe.accounting.selection import SelectionEvent
from linprobe.atomic_files import no_repeated_keys
from linprobe.data import labels
from linprobe.data.feature_reader import weights_from_file
from linprobe.errors import DataError, PrivacyError
from linprobe.mechanisms.correct_predictions import NoisyGain
from linprobe.methods.similar_rows import SimilarRows

MANIFEST_FORMAT = 3
MANIFEST, SIGNATURE, PER_RECORD = "manifest.json", "manifest.json.sig", "per_record.npz"
RUN_FILES = ("model.npz", "ledger.jsonl", "history.csv")  # of every run
MODEL, LEDGER, HISTORY = RUN_FILES
OPTIONAL_FILES = ("test_figures.json", "config.toml", "unrefined.npz")  # public test rows, linprobe train, refinement
TEST_FIGURES, CONFIG, UNREFINED = OPTIONAL_FILES
PAGES = ("README.md", "claim.yaml")  # of a signed run, and of a release
CARD, CLAIM = PAGES
VERIFY_PAGE = "verify.html"  # of a release; the same in each, so that no manifest lists it
NAMED_FILES = (*RUN_FILES, *OPTIONAL_FILES, *PAGES)
HISTOGRAM_FILE = "^published_histogram_[1-9][0-9]{0,5}[.]json$"

TRAINED, UNIFORM = "train", "uniform"  # the class shares that the bias of a model is for
UNLABELLED_CENTRE = "unlabelled"  # the mean of unlabelled rows, in place of a private one

HOST, ARITHMETIC = "cpu", "arithmetic"  # a device, and a key of `software`

DAY = len("YYYY-MM-DD")  # characters of a time that are its day
LARGEST_WHOLE = 2**63 - 1
LARGEST = 1e300
LONGEST_TEXT = 1 << 16
MOST_ENTRIES = 1 << 20
SHOWN = 60  # characters of a wrong value in an error
SCHEMA_PAGE = "https://json-schema.org/draft/2020-12/schema"

Kind = Mapping[str, Any]
"""A kind of JSON value, as a JSON Schema. Its description says in an error what is allowed."""


def _kind(words: str, **rules: Any) -> Kind:
    return {"description": words, **rules}


def none_or(kind: Kind) -> Kind:
    return {**kind, "description": f"{kind['description']}, or null", "type": [kind["type"], "null"]}


def one_of(*words: str) -> Kind:
    return _kind(", ".join(words), type="string", enum=list(words))


def list_of(kind: Kind) -> Kind:
    return _kind(f"a list: {kind['description']}", type="array", maxItems=MOST_ENTRIES, items=kind)


def by_name(kind: Kind) -> Kind:
    words = f"an object: {kind['description']}"
    return _kind(words, type="object", maxProperties=MOST_ENTRIES, additionalProperties=kind)


def record(optional: Mapping[str, Kind] | None = None, **needed: Kind) -> Kind:
    """An object with the needed keys, perhaps the optional ones, and no others."""
    kinds = {**needed, **(optional or {})}
    words = "an object with " + ", ".join(f"{key} ({kind['description']})" for key, kind in kinds.items())
    return _kind(words, type="object", properties=kinds, required=list(needed), additionalProperties=False)


ANY = _kind("any value")
TEXT = _kind("text", type="string", maxLength=LONGEST_TEXT)
FLAG = _kind("true or false", type="boolean")
INTEGER = _kind("a whole number", type="integer", minimum=-LARGEST_WHOLE, maximum=LARGEST_WHOLE)
WHOLE = _kind("a whole number of 0 or more", type="integer", minimum=0, maximum=LARGEST_WHOLE)
COUNT = _kind("a whole number of 1 or more", type="integer", minimum=1, maximum=LARGEST_WHOLE)
NUMBER = _kind("a number", type="number", minimum=-LARGEST, maximum=LARGEST)
AMOUNT = _kind("a number of 0 or more", type="number", minimum=0, maximum=LARGEST)
POSITIVE = _kind("a number above 0", type="number", exclusiveMinimum=0, maximum=LARGEST)
SHARE = _kind("a number from 0 to 1", type="number", minimum=0, maximum=1)
RATE = _kind("a number above 0, at most 1", type="number", exclusiveMinimum=0, maximum=1)
SCALAR = {
    **TEXT,
    **NUMBER,
    **_kind("text, a number, true, false or null", type=["string", "number", "boolean", "null"]),
}
DIGEST = _kind("64 hexadecimal digits", type="string", pattern="^[0-9a-f]{64}$")
NAMES = _kind(
    f"2 to {labels.MOST_CLASSES} different names of at most {labels.LONGEST_NAME} characters",
    type="array",
    minItems=2,
    maxItems=labels.MOST_CLASSES,
    uniqueItems=True,
    items={"type": "string", "maxLength": labels.LONGEST_NAME},
)
RELEASES = list_of(record(purpose=TEXT, noise_multiplier=POSITIVE, sampling_rate=RATE, count=COUNT))
SELECTION = record(event=one_of("selection"), distribution=TEXT, mean_repetitions=COUNT, runs=list_of(RELEASES))
TUNING = record(
    {
        "factors": list_of(SHARE),
        "shrink": SHARE,
        "counts": list_of(NUMBER),
        "std": AMOUNT,
        "settings": list_of(by_name(ANY)),
        "chosen": WHOLE,
    }
)
EXTRACTION = record(
    dict.fromkeys(("preprocessing", "image_size", "normalisation", "precision", "dtype"), ANY)
    | dict.fromkeys(("layer", "columns"), TEXT),
    **dict.fromkeys(("extraction_digest", "backbone", "weights", "weights_digest", "tensor"), TEXT),
    arguments=none_or(by_name(ANY)),
)
SOFTWARE = {**by_name(TEXT), "required": ["linprobe"]}
PUBLISHED_HISTOGRAM = record(
    dict.fromkeys(("what", "noise_std", "epsilon_charged", "epsilon_of_run_now", "run", "file"), ANY),
    bin_edges=list_of(NUMBER),
    noisy_counts=list_of(INTEGER),
)
# of `test_figures.json`
METRIC, INTERVAL = none_or(SHARE), none_or(list_of(SHARE))
OF_BOTH = {  # of a class, and of a label
    **dict.fromkeys(("n", "predicted"), WHOLE),
    **dict.fromkeys(("recall", "precision", "auroc"), METRIC),
    **dict.fromkeys(("recall_interval", "precision_interval"), INTERVAL),
}
OF_CLASS = record(**OF_BOTH)
CLASS_METRICS = record(
    test_rows=COUNT,
    test_accuracy=SHARE,
    balanced_accuracy=SHARE,
    macro_auroc=METRIC,
    calibration_error=SHARE,
    commonest_class=TEXT,
    commonest_share=SHARE,
    per_class=by_name(OF_CLASS),
    confusion_matrix=none_or(list_of(list_of(WHOLE))),
    calibration=list_of(record(n=COUNT, confidence=NUMBER, accuracy=NUMBER)),
)
OF_LABEL = record(**OF_BOTH, accuracy=SHARE, accuracy_interval=INTERVAL, average_precision=METRIC)
LABEL_METRICS = record(
    test_rows=COUNT,
    macro_auroc=METRIC,
    macro_average_precision=METRIC,
    label_accuracy=SHARE,
    commonest_accuracy=SHARE,
    per_label=by_name(OF_LABEL),
)
PUBLISHED_FILE = _kind("published_histogram_N.json", type="string", pattern=HISTOGRAM_FILE)


def _keys_of(fields: type) -> dict[str, Kind]:
    """The annotated fields of a dataclass, in order, and the kinds of their values."""
    hints = get_type_hints(fields, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items() if hasattr(hint, "__metadata__")}


def object_of(fields: type) -> Kind:
    return record(**_keys_of(fields))


_PYTHON: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "null": lambda value: value is None,
}


def fits(kind: Kind, value: Any) -> bool:  # long: one line for each rule of a JSON schema
    """Whether a JSON value is of a kind. 1.0 is no whole number."""
    types = kind.get("type", ())
    if types and not any(_PYTHON[name](value) for name in ([types] if isinstance(types, str) else types)):
        return False
    if value is None or isinstance(value, bool):
        return True
    if isinstance(value, str):
        return (
            value in kind.get("enum", (value,))
            and len(value) <= kind.get("maxLength", math.inf)
            and re.fullmatch(kind.get("pattern", "(?s:.*)"), value) is not None
        )
    if isinstance(value, int | float):
        least, most = kind.get("minimum", -math.inf), kind.get("maximum", math.inf)
        return bool(least <= value <= most and value > kind.get("exclusiveMinimum", -math.inf))
    if isinstance(value, list):
        return (
            kind.get("minItems", 0) <= len(value) <= kind.get("maxItems", math.inf)
            and all(fits(kind.get("items", ANY), entry) for entry in value)
            and (not kind.get("uniqueItems") or len(set(value)) == len(value))
        )
    named, others = kind.get("properties", {}), kind.get("additionalProperties", ANY)
    return (
        len(value) <= kind.get("maxProperties", math.inf)
        and all(key in value for key in kind.get("required", ()))
        and all(others is not False or key in named for key in value)
        and all(fits(named.get(key, others), entry) for key, entry in value.items())
    )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def digest_of(content: bytes) -> str:
    """SHA-256 of the content of a file, as the manifest lists it."""
    return hashlib.sha256(content).hexdigest()


class DamagedManifestError(DataError):
    """The manifest is no JSON, lacks a key, or holds a value of another kind."""


@dataclass(frozen=True)
class Published:
    """A histogram released after training: `what` it is called in books, price, noise, file (None if it was lost)."""

    what: Annotated[str, TEXT]
    epsilon: Annotated[float, AMOUNT]
    noise_multiplier: Annotated[float, POSITIVE]
    file: Annotated[str | None, none_or(PUBLISHED_FILE)]


@dataclass(frozen=True)
class Refinement:
    """How public rows without labels changed the weights in `unrefined.npz`; `docs/run-folder.md` has the fields."""

    file: Annotated[str, TEXT]
    rows: Annotated[int, COUNT]
    digest: Annotated[str, DIGEST]
    strength: Annotated[float, SHARE]
    similar: Annotated[SimilarRows | None, none_or(record(count=NUMBER, std=POSITIVE))] = None
    gain: Annotated[NoisyGain | None, none_or(record(count=NUMBER, std=POSITIVE, expected=NUMBER))] = None
    near_shots: Annotated[dict[str, int] | None, none_or(record(near=WHOLE, of=COUNT))] = None
    run: Annotated[str | None, none_or(TEXT)] = None
    run_digest: Annotated[str | None, none_or(DIGEST)] = None


@dataclass(frozen=True)
class NoisyCounts:
    """Noisy numbers of correct predictions, `right`, and of correct and wrong ones by class, on private test rows."""

    right: Annotated[float, NUMBER]
    by_class: Annotated[list[list[float]], list_of(list_of(NUMBER))]


@dataclass(frozen=True)
class CountsByClass:
    """Noisy numbers of private rows by class (of people, their shares), and the standard deviation of the noise."""

    by_class: Annotated[dict[str, float], by_name(NUMBER)]
    std: Annotated[float, POSITIVE]


@dataclass(frozen=True, kw_only=True)
class PrivacyStatement:
    """The guarantee of a run and how it was reached. The annotated fields are the keys of the JSON object, in order.

    Keys that are `absent` are left out while they hold their default: later ones, and those of other kinds of run.
    """

    guarantee: Annotated[str, TEXT]
    private: Annotated[bool, FLAG]
    mechanism: Annotated[str, TEXT]
    epsilon: Annotated[float | None, none_or(AMOUNT)]
    epsilon_if_seed_were_secret: Annotated[float | None, none_or(AMOUNT)] = None
    delta: Annotated[float | None, none_or(SHARE)]
    epsilon_target: Annotated[float | None, none_or(AMOUNT)]
    gdp_mu: Annotated[float | None, none_or(AMOUNT)]
    zcdp_rho: Annotated[float | None, none_or(AMOUNT)]
    noise_multiplier: Annotated[float | None, none_or(POSITIVE)]
    sampling_rate: Annotated[float | None, none_or(RATE)]
    steps: Annotated[int | None, none_or(WHOLE)]
    releases: Annotated[tuple[Releases, ...] | None, none_or(RELEASES)]
    accountant: Annotated[str | None, none_or(TEXT)]
    cross_check: Annotated[str | None, none_or(TEXT)] = None
    accountant_versions: Annotated[dict[str, str] | None, by_name(TEXT)] = None
    method: Annotated[str, TEXT]
    paper: Annotated[str, TEXT]
    adjacency: Annotated[str, TEXT]
    public: Annotated[list[str], list_of(TEXT)]
    unit: Annotated[str, one_of(*UNITS)] = RECORD
    n_units: Annotated[int | None, WHOLE] = None
    n_private: Annotated[int, WHOLE]
    n_public: Annotated[int, WHOLE]
    noise_source: Annotated[str, TEXT]
    seed_kind: Annotated[str, one_of("os", "insecure", "none")]
    software: Annotated[dict[str, str], SOFTWARE]
    absent: frozenset[str] = frozenset()

    @classmethod
    @cache
    def keys(cls) -> dict[str, Kind]:
        return _keys_of(cls)

    @classmethod
    def is_later(cls, name: str) -> bool:
        """Whether earlier manifests lack a key; they mean its default."""
        return cls.__dataclass_fields__[name].default is not MISSING

    def stated(self, names: Iterable[str] | None = None) -> dict[str, Any]:
        """The JSON values of the keys that are present; with `names`, of these keys alone."""
        wanted = self.keys() if names is None else names
        return {name: _as_json(getattr(self, name)) for name in wanted if self.has(name)}

    def has(self, name: str) -> bool:
        return name not in self.absent or getattr(self, name) != self.__dataclass_fields__[name].default

    @property
    def bound(self) -> tuple[float, float]:
        """Epsilon and delta; of a run with an insecure seed, as if it were secret. Raises PrivacyError: none stated."""
        epsilon = self.epsilon if self.private else self.epsilon_if_seed_were_secret
        if epsilon is None or self.delta is None:
            raise PrivacyError(f"the run is {self.guarantee}, so it has no epsilon; train with a private method")
        return epsilon, self.delta


@dataclass(frozen=True, kw_only=True)
class RunStatement(PrivacyStatement):
    precision: Annotated[str, TEXT]
    device: Annotated[str, TEXT]
    created: Annotated[str, TEXT]
    n_features: Annotated[int, COUNT]
    n_classes: Annotated[int, COUNT]
    class_names: Annotated[list[str], NAMES]
    class_names_from: Annotated[str, TEXT]
    task: Annotated[str, one_of(*labels.TASKS)] = labels.MULTICLASS
    ids_from: Annotated[str | None, TEXT] = None
    options: Annotated[dict[str, Any], by_name(SCALAR)]
    preset: Annotated[str, TEXT]
    centre: Annotated[str, TEXT]
    features: Annotated[str, TEXT]
    backbone: Annotated[str, TEXT]
    extraction: Annotated[dict[str, Any] | None, EXTRACTION] = None
    public_from: Annotated[str, TEXT]
    public_shots: Annotated[int | None, none_or(WHOLE)]
    n_public_owners: Annotated[int | None, none_or(COUNT)] = None
    public_file: Annotated[str | None, none_or(TEXT)]
    split_seed: Annotated[int, INTEGER]
    per_owner_rows: Annotated[int | None, none_or(COUNT)] = None
    class_weights: Annotated[dict[str, float] | None, none_or(by_name(SHARE))] = None
    public_digest: Annotated[str | None, none_or(DIGEST)] = None
    class_counts: Annotated[CountsByClass | None, none_or(object_of(CountsByClass))] = None
    class_prior: Annotated[str, one_of(TRAINED, UNIFORM)] = TRAINED
    test_owners: Annotated[str, one_of(labels.APART, labels.SHARED)] = labels.APART
    largest_n_private: Annotated[int | None, none_or(COUNT)] = None


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """What a manifest states about test rows; None where nothing was measured or released."""

    test_rows: Annotated[str, one_of("public", "private", "none")]
    test_accuracy: Annotated[float | None, none_or(SHARE)]
    test_accuracy_std: Annotated[float | None, none_or(AMOUNT)]
    test_balanced_accuracy: Annotated[float | None, none_or(SHARE)]
    test_balanced_accuracy_std: Annotated[float | None, none_or(AMOUNT)] = None
    test_macro_auroc: Annotated[float | None, none_or(SHARE)] = None
    test_macro_auroc_std: Annotated[float | None, none_or(AMOUNT)] = None
    test_calibration_error: Annotated[float | None, none_or(SHARE)] = None
    test_accuracy_per_class: Annotated[dict[str, float | None] | None, none_or(by_name(none_or(SHARE)))]
    n_test: Annotated[int, WHOLE]
    test_macro_average_precision: Annotated[float | None, none_or(SHARE)] = None
    test_label_accuracy: Annotated[float | None, none_or(SHARE)] = None
    test_counts: Annotated[NoisyCounts | None, none_or(object_of(NoisyCounts))] = None
    test_scores: Annotated[list[list[list[float]]] | None, none_or(list_of(list_of(list_of(NUMBER))))] = None


OF_LABELS = ("test_label_accuracy", "test_macro_average_precision")  # keys of rows with several labels only
NOISY_TEST = ("test_macro_auroc_std", "test_counts", "test_scores")  # keys of runs with noisy test figures only
WITH_COUNTS = ("class_counts", "class_prior")  # keys of runs with class counts only
OF_SOME_RUNS = ("refined", "selection", "test_owners", "largest_n_private")
OF_CLASSES = ("test_accuracy", "test_balanced_accuracy", "test_calibration_error", "test_accuracy_per_class")
NO_NOISE = frozenset({"epsilon_if_seed_were_secret", "cross_check", "accountant_versions"})
WITH_NOISE = ("delta", "epsilon_target", "noise_multiplier", "sampling_rate", "steps", "releases", "cross_check")


@dataclass(frozen=True, kw_only=True)
class Manifest(Accuracy, RunStatement):
    """A manifest. Attributes: the keys of the JSON object, whose values `docs/run-folder.md` explains."""

    tuning: Annotated[dict[str, Any] | None, none_or(TUNING)] = None
    refined: Annotated[Refinement | None, object_of(Refinement)] = None
    published: Annotated[tuple[Published, ...], list_of(object_of(Published))]
    selection: Annotated[SelectionEvent | None, SELECTION] = None
    run_id: Annotated[str | None, _kind("32 hexadecimal digits", type="string", pattern="^[0-9a-f]{32}$")] = None
    private_commitment: Annotated[str | None, none_or(DIGEST)]
    per_record_commitment: Annotated[str | None, none_or(DIGEST)]
    files: Annotated[dict[str, str], by_name(DIGEST)]
    manifest_digest: Annotated[str, DIGEST]

    @classmethod
    def of(cls, privacy: PrivacyStatement, accuracy: Accuracy, **stated: Any) -> Self:
        """The manifest of a new run, not yet sealed; `stated` are the keys of `RunStatement` and `tuning`."""
        others = () if stated["task"] == labels.MULTILABEL else OF_LABELS
        absent = privacy.absent | {*OF_SOME_RUNS, *NOISY_TEST, *WITH_COUNTS, *others}
        parts = {**vars(privacy), **vars(accuracy), **stated, "published": (), "absent": absent}
        return cls(**parts, private_commitment=None, per_record_commitment=None, files={}, manifest_digest="")

    @classmethod
    def read(cls, content: bytes, where: object = MANIFEST) -> Self:
        """The manifest in the bytes of a file `where`. DataError: another format. DamagedManifestError: no manifest."""
        try:
            found = json.loads(
                content.decode(), object_pairs_hook=no_repeated_keys, parse_constant=_finite, parse_float=_finite
            )
            written = found.get("format")
        except (ValueError, AttributeError, RecursionError) as error:
            raise DamagedManifestError(f"{where} cannot be read ({error}); restore it from a copy") from None
        if written != MANIFEST_FORMAT:
            raise DataError(
                f"{where} has format {_shown(written)}; this linprobe ({__version__}) reads format {MANIFEST_FORMAT}; "
                "use the version that wrote it"
            )
        try:
            return cls.decoded(found)
        except ValueError as error:
            raise DamagedManifestError(f"{where}: {error}; restore it from a copy") from None

    @classmethod
    def decoded(cls, found: Mapping[str, Any]) -> Self:
        """The manifest of a JSON object. ValueError, with the name of a key, if a rule of the format is broken."""
        keys = cls.keys()
        missing = [name for name in keys if name not in found and not cls.is_later(name)]
        if missing:
            raise ValueError(f"it lacks {', '.join(missing[:3])}")
        unknown = [name for name in found if name not in keys and name != "format"]
        if unknown:
            raise ValueError(f"it holds {_shown(unknown[0])}, which is no key of format {MANIFEST_FORMAT}")
        for name, kind in keys.items():
            if name in found and not fits(kind, found[name]):
                raise ValueError(f"{name} is {_shown(found[name])}; allowed: {kind['description']}")
        _check_together(found)
        values = {name: value for name, value in found.items() if name != "format"}
        values |= {name: _DECODED[name](found[name]) for name in _DECODED.keys() & found.keys()}
        return cls(**values, absent=frozenset(keys) - values.keys())

    def to_json(self) -> dict[str, Any]:
        return {"format": MANIFEST_FORMAT, **self.stated()}

    def content_digest(self) -> str:
        """SHA-256 of the JSON object without `manifest_digest`, its keys sorted."""
        content = {key: value for key, value in self.to_json().items() if key != "manifest_digest"}
        return digest_of(json.dumps(content, sort_keys=True, ensure_ascii=False).encode())

    def sealed(self, contents: Mapping[str, bytes]) -> Self:
        """The manifest with fresh digests of the files with these contents, and of itself."""
        listed = replace(self, files={name: digest_of(content) for name, content in contents.items()})
        return replace(listed, manifest_digest=listed.content_digest())

    @property
    def book_id(self) -> str:
        """The run's name in budget books. Runs of earlier versions have their commitment, which is random too."""
        return str(self.run_id or self.private_commitment)

    @property
    def recorded(self) -> tuple[Releases, ...]:
        """The releases as budget books have them: histograms by their names, or earlier ones by digests of files."""
        named = []
        for one in self.published:
            digest = self.files.get(one.file or "", self.manifest_digest)
            name = one.what if one.what.startswith(f"{HISTOGRAM} ") else f"{OF_FILE} {digest[:16]}"
            named.append(Releases(name, one.noise_multiplier, 1.0, 1))
        return (*(one for one in self.releases or () if one.purpose != HISTOGRAM), *named)

    @property
    def several_labels(self) -> bool:
        return self.task == labels.MULTILABEL

    @property
    def is_earlier(self) -> bool:
        return ARITHMETIC not in self.software

    @property
    def most_units(self) -> int:
        """The largest number of private units among the run and, as far as it states them, the runs it started from."""
        return max(self.n_private, self.largest_n_private or 0)

    @property
    def moving_losses(self) -> str | None:
        """How losses of people were computed that may move with the rows of other people, in words; None if none do."""
        moves = "on a GPU" if self.device != HOST else "by an earlier version" if self.is_earlier else None
        return moves if self.unit == OWNER else None

    @property
    def tests_people(self) -> bool:
        """Whether the noisy counts on private test rows are of people's shares, and `n_test` of people."""
        return self.unit == OWNER and self.test_counts is not None

    @property
    def weights_file(self) -> str:
        """Name of the file with the weights of the network, which `extract --like` needs again; empty without one."""
        weights = str((self.extraction or {}).get("weights", ""))
        return weights if weights_from_file(weights) else ""

    @property
    def public_collection(self) -> str | None:
        """Whom `--public-shots` left without protection, in words; None for nobody."""
        if not self.public_shots:
            return None
        if self.unit != OWNER:
            return labels.of_collection(self.public_shots * self.n_classes)
        if self.n_public_owners is None:
            return "people of the same collection"  # earlier versions did not count them
        return labels.of_collection(None if self.public_file else self.n_public, self.n_public_owners)

    @property
    def histogram_files(self) -> list[str]:
        return [release.file for release in self.published if release.file is not None]


def _check_together(found: Mapping[str, Any]) -> None:  # long: a list of rules, each about other keys
    if found["accountant"] is not None:
        needed = [*WITH_NOISE, "epsilon" if found["private"] else "epsilon_if_seed_were_secret"]
        empty = [key for key in needed if found.get(key) is None]
        if empty:
            raise ValueError(f"{empty[0]} is null, and noise was released; allowed: its value")
    histograms = [release["file"] for release in found["published"]]
    unknown = [name for name in found["files"] if name not in (*NAMED_FILES, *histograms)]
    if unknown:
        raise ValueError(
            f"files lists {_shown(unknown[0])}, which is no public file of a run; allowed: {', '.join(NAMED_FILES)} "
            "and the histograms in published"
        )
    unlisted = [name for name in RUN_FILES if name not in found["files"]]
    if unlisted:
        raise ValueError(f"files has no digest of {', '.join(unlisted)}")
    if ("refined" in found) != (UNREFINED in found["files"]):
        raise ValueError(f"refined and the digest of {UNREFINED} stand alone; allowed: both or neither")
    if "selection" in found and not {"settings", "chosen"} <= (found.get("tuning") or {}).keys():
        raise ValueError(f"tuning is {_shown(found.get('tuning'))} beside selection; allowed: with settings and chosen")
    if len(found["class_names"]) != found["n_classes"]:
        raise ValueError(f"n_classes is {found['n_classes']} for {len(found['class_names'])} class_names")
    weights = found.get("class_weights")
    if weights is not None and list(weights) != found["class_names"]:
        raise ValueError("class_weights has other classes than class_names")
    counts = found.get("class_counts")
    if counts is not None and list(counts["by_class"]) != found["class_names"]:
        raise ValueError("class_counts has other classes than class_names")
    if found["private"] and found["epsilon"] is None:
        raise ValueError("epsilon is null, and private is true; allowed: a number")


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a manifest. Rules between keys are not in it."""
    keys = Manifest.keys()
    return {
        "$schema": SCHEMA_PAGE,
        "title": "Manifest of a linprobe run",
        "type": "object",
        "properties": {"format": {"description": "version of this layout", "const": MANIFEST_FORMAT}, **keys},
        "required": ["format", *(name for name in keys if not Manifest.is_later(name))],
        "additionalProperties": False,
    }


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:SHOWN]} is not a number of JSON")
    return value


def _as_json(value: Any) -> Any:
    if isinstance(value, SelectionEvent):
        return value.as_dict()
    if isinstance(value, tuple):
        return [asdict(release) for release in value]
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def _selection(found: dict[str, Any]) -> SelectionEvent:
    try:
        return SelectionEvent.from_dict(found)
    except ValueError as error:
        raise ValueError(f"selection: {error}") from None


_DECODED: dict[str, Callable[[Any], Any]] = {
    "releases": lambda found: None if found is None else tuple(Releases(**release) for release in found),
    "published": lambda found: tuple(Published(**release) for release in found),
    "selection": _selection,
    "refined": lambda found: Refinement(
        **{
            **found,
            "similar": found["similar"] and SimilarRows(**found["similar"]),
            "gain": found["gain"] and NoisyGain(**found["gain"]),
        }
    ),
    "test_counts": lambda found: None if found is None else NoisyCounts(**found),
    "class_counts": lambda found: None if found is None else CountsByClass(**found),
}


# keys that digests, the ledger or other keys prove; `docs/verifier.md` says how, and what rules bound the others
PROVED = frozenset({
    "format", "guarantee", "private", "mechanism", "epsilon", "epsilon_if_seed_were_secret", "delta", "gdp_mu",
    "zcdp_rho", "noise_multiplier", "sampling_rate", "steps", "releases", "accountant", "cross_check", "paper",
    "adjacency", "noise_source", "seed_kind", "n_features", "n_classes", "test_accuracy_std", "test_balanced_accuracy",
    "test_balanced_accuracy_std", "test_macro_auroc_std", "selection", "per_record_commitment", "files",
    "manifest_digest",
})  # fmt: skip
STATED_FILES = (MODEL, UNREFINED, HISTORY, TEST_FIGURES, CONFIG, *PAGES, PER_RECORD)


def stated_in(manifest: Manifest, names: frozenset[str]) -> list[str]:
    """The keys and files that a run states, a missing key as its default, and nothing in its folder proves."""
    of_kind = {
        *(() if manifest.several_labels else OF_LABELS),
        *(() if manifest.test_rows == "private" else NOISY_TEST),
        *(WITH_COUNTS if manifest.class_counts is None else ()),
        "test_owners",  # a run without it has test people apart
        "largest_n_private",  # a run without it counts no releases of another one, or states no number for it
        "refined",  # a run without it was not refined
    }
    every = Manifest.keys()
    keys = [key for key in every if key not in PROVED and (manifest.has(key) or key not in of_kind)]
    if PER_RECORD not in names and manifest.per_record_commitment is not None:
        keys.append("per_record_commitment")
    unsigned = [SIGNATURE] if SIGNATURE in names else []
    files = [name for name in STATED_FILES if name in names]
    return [*keys, *files, *unsigned, *manifest.histogram_files]
