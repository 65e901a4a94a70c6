"""What every key of a manifest must hold, and how the parts of a run folder are called.

`KEYS` is the one list. A new key of the manifest is one line here: its name and its kind, `later(kind)` if manifests
without it stay readable. A key that is not listed is allowed, and `verify` lists it as stated, not checked.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from linprobe.data.labels import LONGEST_NAME, MOST_CLASSES, TASKS
from linprobe.runs.run_files import OPTIONAL_FILES, PAGES, RUN_FILES
from linprobe.runs.units import ADJACENCIES

LARGEST_WHOLE = 2**63 - 1
LONGEST_TEXT = 1 << 16
MOST_ENTRIES = 1 << 20
SHOWN = 60  # characters of a wrong value in an error
HISTOGRAM = "published_histogram_[1-9][0-9]{0,5}[.]json"
NAMED_FILES = (*RUN_FILES, *OPTIONAL_FILES, *PAGES)
WITH_NOISE = ("delta", "epsilon_target", "noise_multiplier", "sampling_rate", "steps", "releases", "cross_check")


@dataclass(frozen=True)
class Kind:
    """A kind of value: whether a value is of it, and what to say it must be; `needed` unless the key came later."""

    words: str
    holds: Callable[[Any], bool]
    needed: bool = True


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e300


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST_WHOLE


def later(kind: Kind) -> Kind:
    """The kind of a key that earlier manifests lack."""
    return replace(kind, needed=False)


def none_or(kind: Kind) -> Kind:
    """The kind, or null."""
    return Kind(f"{kind.words}, or null", lambda value: value is None or kind.holds(value))


def one_of(*words: str) -> Kind:
    """One of the words."""
    return Kind(", ".join(words), lambda value: isinstance(value, str) and value in words)


def text_like(pattern: str, words: str) -> Kind:
    """Text that matches a pattern."""
    return Kind(words, lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None)


def list_of(kind: Kind) -> Kind:
    """A list whose entries are of a kind."""
    return Kind(
        f"a list: {kind.words}",
        lambda value: isinstance(value, list) and len(value) <= MOST_ENTRIES and all(map(kind.holds, value)),
    )


def by_name(kind: Kind) -> Kind:
    """An object with values of a kind, under any names."""
    return Kind(
        f"an object: {kind.words}",
        lambda value: isinstance(value, dict) and len(value) <= MOST_ENTRIES and all(map(kind.holds, value.values())),
    )


def record(**kinds: Kind) -> Kind:
    """An object with exactly these keys."""
    return Kind(
        "an object with " + ", ".join(f"{key} ({kind.words})" for key, kind in kinds.items()),
        lambda value: (
            isinstance(value, dict)
            and value.keys() == kinds.keys()
            and all(kind.holds(value[key]) for key, kind in kinds.items())
        ),
    )


def with_keys(**kinds: Kind) -> Kind:
    """An object with these keys and perhaps others."""
    return Kind(
        "an object with " + ", ".join(f"{key} ({kind.words})" for key, kind in kinds.items()),
        lambda value: (
            isinstance(value, dict)
            and len(value) <= MOST_ENTRIES
            and all(key in value and kind.holds(value[key]) for key, kind in kinds.items())
        ),
    )


ANY = Kind("any value", lambda value: True)
TEXT = Kind("text", lambda value: isinstance(value, str) and len(value) <= LONGEST_TEXT)
FLAG = Kind("true or false", lambda value: isinstance(value, bool))
WHOLE = Kind("a whole number of 0 or more", _is_whole)
COUNT = Kind("a whole number of 1 or more", lambda value: _is_whole(value) and value > 0)
NUMBER = Kind("a number", _is_number)
AMOUNT = Kind("a number of 0 or more", lambda value: _is_number(value) and value >= 0)
POSITIVE = Kind("a number above 0", lambda value: _is_number(value) and value > 0)
SHARE = Kind("a number from 0 to 1", lambda value: _is_number(value) and 0 <= value <= 1)
RATE = Kind("a number above 0, at most 1", lambda value: _is_number(value) and 0 < value <= 1)
SCALAR = Kind(
    "text, a number, true, false or null",
    lambda value: value is None or isinstance(value, bool) or TEXT.holds(value) or _is_number(value),
)
DIGEST = text_like("[0-9a-f]{64}", "64 hexadecimal digits")
NAMES = Kind(
    f"2 to {MOST_CLASSES} different names of at most {LONGEST_NAME} characters",
    lambda value: (
        isinstance(value, list)
        and 2 <= len(value) <= MOST_CLASSES
        and all(isinstance(name, str) and len(name) <= LONGEST_NAME for name in value)
        and len(set(value)) == len(value)
    ),
)
HISTOGRAM_FILE = text_like(HISTOGRAM, "published_histogram_N.json")

CHOSEN = with_keys(settings=list_of(by_name(ANY)), chosen=WHOLE)  # of a run that private selection chose
RELEASE = record(purpose=TEXT, noise_multiplier=POSITIVE, sampling_rate=RATE, count=COUNT)

KEYS: Mapping[str, Kind] = {
    "format": WHOLE,
    "guarantee": TEXT,
    "private": FLAG,
    "mechanism": TEXT,
    "epsilon": none_or(AMOUNT),
    "epsilon_if_seed_were_secret": later(none_or(AMOUNT)),
    "delta": none_or(SHARE),
    "epsilon_target": none_or(AMOUNT),
    "gdp_mu": none_or(AMOUNT),
    "zcdp_rho": none_or(AMOUNT),
    "noise_multiplier": none_or(POSITIVE),
    "sampling_rate": none_or(RATE),
    "steps": none_or(WHOLE),
    "releases": none_or(list_of(RELEASE)),
    "selection": later(
        record(event=one_of("selection"), distribution=TEXT, mean_repetitions=COUNT, runs=list_of(list_of(RELEASE)))
    ),
    "tuning": later(none_or(by_name(ANY))),
    "run_id": later(text_like("[0-9a-f]{32}", "32 hexadecimal digits")),
    "accountant": none_or(TEXT),
    "cross_check": later(none_or(TEXT)),
    "accountant_versions": later(by_name(TEXT)),
    "method": TEXT,
    "paper": TEXT,
    "adjacency": TEXT,
    "public": list_of(TEXT),
    "unit": later(one_of(*ADJACENCIES)),
    "n_units": later(WHOLE),
    "n_private": WHOLE,
    "n_public": WHOLE,
    "noise_source": TEXT,
    "seed_kind": one_of("os", "insecure", "none"),
    "software": with_keys(linprobe=TEXT),
    "precision": TEXT,
    "device": TEXT,
    "created": TEXT,
    "n_features": COUNT,
    "n_classes": COUNT,
    "class_names": NAMES,
    "class_names_from": TEXT,
    "task": later(one_of(*TASKS)),
    "ids_from": later(TEXT),
    "options": by_name(SCALAR),
    "preset": TEXT,
    "centre": TEXT,
    "features": TEXT,
    "backbone": TEXT,
    "extraction": later(
        with_keys(
            **dict.fromkeys(("extraction_digest", "backbone", "weights", "weights_digest", "tensor"), TEXT),
            arguments=none_or(by_name(ANY)),
        )
    ),
    "public_from": TEXT,
    "public_shots": none_or(WHOLE),
    "public_file": none_or(TEXT),
    "per_owner_rows": later(none_or(COUNT)),
    "class_weights": later(none_or(by_name(SHARE))),
    "split_seed": Kind("a whole number", lambda value: isinstance(value, int) and _is_whole(abs(value))),
    "public_digest": later(none_or(DIGEST)),
    "test_rows": one_of("public", "private", "none"),
    "n_test": WHOLE,
    "test_accuracy": none_or(SHARE),
    "test_accuracy_std": none_or(AMOUNT),
    "test_balanced_accuracy": none_or(SHARE),
    "test_balanced_accuracy_std": later(none_or(AMOUNT)),
    "test_macro_auroc": later(none_or(SHARE)),
    "test_calibration_error": later(none_or(SHARE)),
    "test_counts": later(none_or(record(right=NUMBER, by_class=list_of(list_of(NUMBER))))),
    "test_label_accuracy": later(none_or(SHARE)),
    "test_macro_average_precision": later(none_or(SHARE)),
    "test_accuracy_per_class": none_or(by_name(none_or(SHARE))),
    "published": list_of(record(what=TEXT, epsilon=AMOUNT, noise_multiplier=POSITIVE, file=none_or(HISTOGRAM_FILE))),
    "private_commitment": none_or(DIGEST),
    "per_record_commitment": none_or(DIGEST),
    "files": by_name(DIGEST),
    "manifest_digest": DIGEST,
}


def check_keys(manifest: Mapping[str, Any]) -> None:
    """ValueError, with the key's name, if a needed key is missing or a value is of another kind."""
    missing = [key for key, kind in KEYS.items() if kind.needed and key not in manifest]
    if missing:
        raise ValueError(f"it lacks {', '.join(missing[:3])}")
    for key, kind in KEYS.items():
        if key in manifest and not kind.holds(manifest[key]):
            raise ValueError(f"{key} is {shown(manifest[key])}; allowed: {kind.words}")
    if manifest["accountant"] is not None:
        needed = [*WITH_NOISE, "epsilon" if manifest["private"] else "epsilon_if_seed_were_secret"]
        empty = [key for key in needed if manifest.get(key) is None]
        if empty:
            raise ValueError(f"{empty[0]} is null, and noise was released; allowed: its value")
    unknown = [name for name in manifest["files"] if name not in NAMED_FILES and not re.fullmatch(HISTOGRAM, name)]
    if unknown:
        raise ValueError(
            f"files lists {shown(unknown[0])}, which is no public file of a run; allowed: {', '.join(NAMED_FILES)} and "
            "published_histogram_N.json"
        )
    unlisted = [name for name in RUN_FILES if name not in manifest["files"]]
    if unlisted:
        raise ValueError(f"files has no digest of {', '.join(unlisted)}")
    if "selection" in manifest and not CHOSEN.holds(manifest.get("tuning")):
        raise ValueError(f"tuning is {shown(manifest.get('tuning'))} beside selection; allowed: {CHOSEN.words}")
    if len(manifest["class_names"]) != manifest["n_classes"]:
        raise ValueError(f"n_classes is {manifest['n_classes']} for {len(manifest['class_names'])} class_names")
    weights = manifest.get("class_weights")
    if weights is not None and list(weights) != manifest["class_names"]:
        raise ValueError("class_weights has other classes than class_names")
    if (manifest["private"] and manifest["epsilon"] is None) or not math.isfinite(manifest["epsilon"] or 0):
        raise ValueError("epsilon is null, and private is true; allowed: a number")


def shown(value: Any) -> str:
    """A value for an error, cut short."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
