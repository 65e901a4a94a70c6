"""The rows of one training run, from its feature files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from linprobe.commands._row_sources import FileSource, PublicRows, public_source
from linprobe.data.feature_file import FeatureReader
from linprobe.data.sources import Source
from linprobe.evaluation.metrics import class_scores
from linprobe.methods import Method
from linprobe.training.engine import Sources


@dataclass(frozen=True)
class Rows:
    """The rows of a run.

    Attributes:
        sources: as the engine takes them. public: the public rows, or None.
        protected: private rows first, then public rows that the method protects.
        shots: public rows per class, 0 for a method that protects them, None if not given.
    """

    sources: Sources
    public: PublicRows | None
    protected: Sequence[FileSource | PublicRows]
    shots: int | None


def rows_of(
    features: FeatureReader, other: FeatureReader | None, asked: int | None, split_seed: int, method: Method
) -> Rows:
    """The rows that `method` trains on, with `asked` public shots per class; `other` contains public rows.

    Raises:
        PrivacyError: a public row equals a private one.
    """
    # a method that joins public rows protects all rows
    shots = 0 if method.joins_public and asked else asked
    public, taken = public_source(features, other, shots, split_seed, protected=method.joins_public)
    private = FileSource(features, "train", None if taken is None else ~taken)
    protected: list[FileSource | PublicRows] = [private]
    if method.joins_public and public is not None:
        protected.append(public)
    sources = Sources(private, len(features.description.class_names), public, features.text_weights())
    return Rows(sources, public, protected, shots)


def count_private(weights: NDArray[np.float32], bias: NDArray[np.float32], rows: Source) -> tuple[int, int]:
    """Number of rows that a model labels right, and of rows that are not zero. A zero row, an empty place, counts in
    neither.
    """
    right = total = 0
    for x, y in rows.blocks():
        present = np.any(x != 0, axis=1)
        # zero rows stay in the product: the rounding of a row's scores may depend on the number of rows
        hit = class_scores(x, weights, bias).argmax(axis=1) == y
        right, total = right + int((hit & present).sum()), total + int(present.sum())
    return right, total
