"""Weights of rows: factors on their losses, by class, by row, or both.

A gradient is clipped after its weight, so no weight lets a row, or a person, add more. But a weight computed from the
labels of others would tell about them: weights come from the user, who states that they are public, from public rows,
or, for the rows of a person, from the classes of these rows alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linprobe.atomic_files import given_text, no_repeated_keys
from linprobe.errors import DataError, ParameterError, reading
from linprobe.parallel.array_api import Indices, Reals

OF_PUBLIC = "public"  # in place of weights: one over the number of public rows of a class
BALANCED = "balanced"  # the same: scores for equal classes, from noisy class counts (`linprobe.methods.class_counts`)
WORDS = {"class weight": f"{BALANCED}, {OF_PUBLIC}", "prior": "train, uniform"}  # in place of numbers
MOST_WEIGHT = 1e6
MOST_POWER = 0.75  # of the number of rows of a person of one class


@dataclass(frozen=True)
class RowWeights:
    """Factors `by_class`, shape (n_classes,), the largest 1, and `by_row`, (n_rows,), 0 or more; None for ones."""

    by_class: Reals
    by_row: Reals | None = None

    def of(self, start: int, y: Indices) -> Reals:
        weights = self.by_class[y] if y.ndim == 1 else np.ones(len(y))
        return weights if self.by_row is None else weights * self.by_row[start : start + len(y)]

    def shard(self, start: int, stop: int) -> RowWeights:
        return self if self.by_row is None else RowWeights(self.by_class, self.by_row[start:stop])

    def with_more(self, n_rows: int) -> RowWeights:
        """The same, and for `n_rows` rows more the factors of their classes alone."""
        return self if self.by_row is None else RowWeights(self.by_class, np.append(self.by_row, np.ones(n_rows)))


def weights_in_people(bounds: Indices, y: NDArray[Any], weights: Reals | None) -> Reals | None:
    """Weights of rows, (n,), times k^(-3/4 max(0, 2 pi - 1)) for a person with k rows, pi = sum_c (k_c / k)^2.

    Gradients of rows of one class add up, so the sum of a person of one class is always clipped, however well the model
    fits it; rows of several classes (pi up to 1/2) keep their weight. The factor of a person comes from the person's
    own rows, before clipping, so it changes no sensitivity. Rows with several labels keep their weights.

    Args:
        bounds: rows of person u are bounds[u] to bounds[u + 1]. y: classes of the rows, (n,), or labels.
    """
    sizes = np.diff(bounds)
    if y.ndim > 1 or y.dtype.kind == "f" or not (sizes > 1).any():
        return weights
    owner, n_classes = np.repeat(np.arange(len(sizes)), sizes), int(y.max()) + 1
    pairs, counts = np.unique(owner * n_classes + y, return_counts=True)
    people = pairs // n_classes
    same = np.bincount(people, (counts / sizes[people]) ** 2, minlength=len(sizes))
    factors = np.maximum(sizes, 1.0) ** (-MOST_POWER * np.maximum(0.0, 2 * same - 1))
    return factors[owner] if weights is None else weights * factors[owner]


def sample_weights(given: Any, n_rows: int) -> Reals:
    """Weights by row, (n_rows,); if all are below 1, divided by the largest, as noise drowns small gradients."""
    try:
        weights = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        weights = np.empty(0)
    outside = np.flatnonzero(~((weights >= 0) & (weights <= MOST_WEIGHT)))
    if weights.shape != (n_rows,):
        found = f"shape {weights.shape} for {n_rows} rows"
    elif len(outside):
        found = f"{weights[outside[0]]:g} at row {outside[0]}"
    elif not weights.any():
        found = "only zero sample weights"
    else:
        return np.asarray(weights / min(1.0, weights.max()))
    raise DataError(f"sample_weight has {found}; allowed: public numbers from 0 to {MOST_WEIGHT:g} a row, not all 0")


def class_weights(
    given: str | Mapping[Any, float], names: Sequence[Any], public: Indices | None, what: str = "class weight"
) -> Reals:
    """Weights (n_classes,), divided by the largest, else 1: by name, `public`, LABEL=WEIGHT,..., or a file."""
    if isinstance(given, str) and given == OF_PUBLIC:
        counts = np.zeros(len(names)) if public is None else np.bincount(public, minlength=len(names))
        if not counts.all():
            missing = names[int(np.argmin(counts))]
            raise DataError(
                f"class weight is {OF_PUBLIC!r}, and class {str(missing)!r} has no public rows that the method leaves "
                "unprotected; allowed: such rows of every class, or weights that you state"
            )
        return np.asarray(counts.min() / counts, dtype=np.float64)
    weight_of = _by_name(_parsed(given, what), names, what)
    unknown = [name for name in weight_of if name not in names]
    if unknown:
        raise ParameterError(
            f"{what} names {str(unknown[0])!r}; allowed: {', '.join(str(name) for name in names[:10])}"
            f"{', ...' if len(names) > 10 else ''}"
        )
    try:
        weights = np.array([float(weight_of.get(name, 1.0)) for name in names])
    except OverflowError:
        given, weights = "a number of more than 308 digits", np.full(len(names), math.nan)
    except (TypeError, ValueError):
        weights = np.full(len(names), math.nan)
    if not (np.isfinite(weights).all() and weights.min() >= 0 and weights.max() > 0):
        raise ParameterError(f"{what} is {given!r}; allowed: finite numbers of 0 or more, one of them above 0")
    return np.asarray(weights / weights.max(), dtype=np.float64)


def _by_name(given: Mapping[Any, Any], names: Sequence[Any], what: str) -> dict[Any, Any]:
    """Weights by the names of the classes; 0 is the class '0' of a file. ParameterError: a class twice."""
    spelled, weight_of = {str(name): name for name in names}, {}
    for key, weight in given.items():
        name = key if key in names else spelled.get(str(key), key)
        if name in weight_of:
            raise ParameterError(f"{what} names {str(key)!r} twice; allowed: each class once; leave one out")
        weight_of[name] = weight
    return weight_of


def shares_given(given: str, names: Sequence[str]) -> Reals:
    """Class shares (n_classes,) that add up to 1, `LABEL=SHARE,...` or a JSON file; each class must be named."""
    named = _parsed(given, "prior")
    shares = class_weights(named, names, None, "prior")
    if len(named) < len(names) or not shares.all():
        raise ParameterError(f"prior is {given!r}; allowed: a share above 0 of each of the {len(names)} classes")
    return np.asarray(shares / shares.sum())


def _parsed(text: str | Mapping[Any, float], what: str) -> Mapping[Any, Any]:
    if isinstance(text, Mapping):
        return text
    if not isinstance(text, str):
        raise ParameterError(f"{what} is {text!r}; allowed: a dictionary of class names and numbers, or text")
    if text.endswith((".json", "}")):  # or the object itself, as a config file has it
        with reading(f"{what} {text}", "give a JSON object of numbers, each class once"):
            given = text if text.endswith("}") else given_text(Path(text))
            found = json.loads(given, object_pairs_hook=no_repeated_keys)
        if not isinstance(found, dict):
            raise DataError(f"{what} {text} holds no JSON object; give one of class names and numbers")
        return found
    pairs = [word.rpartition("=") for word in text.split(",")]
    if not all(name and equals and weight for name, equals, weight in pairs) or len({p[0] for p in pairs}) < len(pairs):
        raise ParameterError(f"{what} is {text!r}; allowed: {WORDS[what]}, LABEL=NUMBER,..., each once, or a JSON file")
    return {name: weight for name, _, weight in pairs}
