"""The rows of one training run, from its feature files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from linprobe.accounting.events import OWNER
from linprobe.commands._row_sources import ONE_CLASS, FileSource, PublicRows, public_source
from linprobe.commands._units import PrivateUnits, private_units
from linprobe.data.feature_reader import FeatureReader
from linprobe.data.feature_scan import compare_test_rows
from linprobe.data.owners import Bounds
from linprobe.data.row_weights import RowWeights, class_weights
from linprobe.data.sources import Source, whole_blocks
from linprobe.errors import UsageError
from linprobe.evaluation.metrics import class_scores
from linprobe.mechanisms.right_counts import SHARE_STEP
from linprobe.methods import Method
from linprobe.training.engine import Sources

if TYPE_CHECKING:
    from linprobe.commands.train import TrainRequest


@dataclass(frozen=True)
class Rows:
    """The rows of a run.

    Attributes:
        sources: as the engine takes them. public: the public rows, or None. units: the private rows and their people.
        protected: private rows first, then public rows that the method protects.
        shots: public rows per class, 0 for a method that protects them, None if not given.
    """

    sources: Sources
    public: PublicRows | None
    units: PrivateUnits
    protected: Sequence[FileSource | PublicRows]
    shots: int | None

    @property
    def n_units(self) -> int:
        """Number of protected rows, or of people."""
        return self.units.n_units + sum(source.n_rows for source in self.protected[1:])


def rows_of(features: FeatureReader, other: FeatureReader | None, request: TrainRequest, method: Method) -> Rows:
    """The rows that `method` trains on; `other` contains public rows.

    Raises:
        PrivacyError: a public row equals a private one, or a person has rows of both kinds. DataError: test rows that
            equal protected ones. ParameterError, DataError: as in `class_weights`.
    """
    # a method that joins public rows protects all rows
    shots = 0 if method.joins_public and request.public_shots else request.public_shots
    people = request.unit == OWNER
    public, taken = public_source(
        features, other, shots, request.split_seed, protected=method.joins_public, people=people
    )
    units = private_units(features, taken, request.unit, request.per_owner_rows, request.split_seed, public)
    protected: list[FileSource | PublicRows] = [units.rows]
    if method.joins_public and public is not None:
        protected.append(public)
        if "test" in features.sizes:
            blocks = (x for x, _ in public.blocks())
            compare_test_rows(features, blocks, public.n_rows, f"public rows, which {method.name} protects")
    n_classes = len(features.description.class_names)
    weights, several = None, features.description.several_labels
    if request.class_weight is not None and several:
        raise UsageError(f"--class-weight weighs classes, and {ONE_CLASS.format(features.path)}; leave it out")
    if request.class_weight is not None:
        free = public is not None and not method.joins_public  # labels of protected rows must not be counted
        labels = np.concatenate([y for _, y in public.blocks()]) if public is not None and free else None
        weights = RowWeights(class_weights(request.class_weight, features.description.class_names, labels))
    sources = Sources(units.rows, n_classes, public, features.text_weights(), units.bounds, weights, several)
    return Rows(sources, public, units, protected, shots)


def count_private(
    weights: NDArray[np.float32], bias: NDArray[np.float32], rows: Source, bounds: Bounds | None
) -> tuple[float, float]:
    """Number of rows that a model labels right, and of rows that are not zero. A zero row, an empty place, counts in
    neither.

    With `bounds`, the sum over people of the share of their rows that the model labels right, and the number of people
    who have rows.
    """
    if bounds is not None:
        return _count_people(weights, bias, rows, bounds)
    right = total = 0
    for x, y in rows.blocks():
        present = np.any(x != 0, axis=1)
        # zero rows stay in the product: the rounding of a row's scores may depend on the number of rows
        hit = class_scores(x, weights, bias).argmax(axis=1) == y
        right, total = right + int((hit & present).sum()), total + int(present.sum())
    return right, total


def _count_people(
    weights: NDArray[np.float32], bias: NDArray[np.float32], rows: Source, bounds: Bounds
) -> tuple[float, float]:
    """`count_private` of people. Each is scored alone: rows of others would move the rows, and rounding with them."""
    right, total = 0.0, 0
    for x, y in whole_blocks(rows.blocks(), np.diff(bounds).tolist()):
        present = np.any(x != 0, axis=1)
        if present.any():
            hit = class_scores(x[present], weights, bias).argmax(axis=1) == y[present]
            right, total = right + math.floor(hit.mean() / SHARE_STEP) * SHARE_STEP, total + 1
    return right, total
