"""What computes the products of a step: the protocol of the host (`host.py`, `kernel.py`) and of a GPU (`gpu.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

from linprobe.data.rows import Blocks, Rows
from linprobe.gradients.rounding import ExactSum
from linprobe.mechanisms.gaussian import Noise
from linprobe.mechanisms.noise import NoiseSource
from linprobe.parallel.array_api import Array


class ClippedBlock(NamedTuple):
    """A block after it was clipped and summed.

    Attributes:
        r_norms: norms of the residuals, shape (b,). factors: clip factors, shape (b,).
        scores: scores of the parts asked for, shape (b, n) each.
    """

    r_norms: Array
    factors: Array
    scores: list[Array]


class Products(Protocol):
    """Products of rows (b, n_features) with one matrix of float32 weights (n_classes, n_features).

    Buffers are reused between calls, so each thread needs its own.

    Attributes:
        clips: whether `add_clipped` exists here: one call that scores, clips and sums.
    """

    n_classes: int
    n_features: int
    clips: bool

    def zeros(self) -> Array:
        """The empty sum, shape (n_classes, n_features), float64, in the memory layout that `add` needs."""

    def scores(self, x: Array) -> Array:
        """x W^T, shape (b, n_classes), float32. The caller may overwrite it."""

    def add(self, total: ExactSum, r: Array, x: Array, joined: NDArray[Any] | None = None) -> None:
        """Add sum_i r_i x_i^T to `total`, over the rows that `joined` (b,) marks, or over all; r (b, n_classes)."""

    def add_clipped(
        self, total: ExactSum, x: Array, y: Array, lengths: Array, bound: float, parts: Sequence[Part] = ()
    ) -> ClippedBlock:
        """`add` of softmax residuals r_i for classes y (b,), times c_i = min(1, bound / (length_i ||r_i||)).

        `lengths` (b,) are the norms of the rows. Scores of `parts` are computed in the same pass.
        """


@dataclass(frozen=True)
class Part:
    """Products with a range of the features.

    Attributes:
        first: the first feature. products: weights for that feature and the ones after it.
    """

    first: int
    products: Products

    def scores(self, x: Array) -> Array:
        """Scores of rows that have all features, shape (b, n_classes of `products`)."""
        return self.products.scores(x[:, self.first : self.first + self.products.n_features])


class Backend(Protocol):
    """Where rows, weights and noise are during training."""

    def put(self, array: NDArray[Any]) -> Array:
        """`array` on this backend: itself on the host, a copy on a GPU."""

    def zeros(self, *shape: int) -> Array:
        """Zeros, float64."""

    def place(self, rows: Rows) -> Rows:
        """`rows` on this backend.

        Raises:
            UsageError: rows that this backend cannot hold.
        """

    def noise(self, source: NoiseSource) -> Noise:
        """Noise from the stream of `source`, made on this backend."""

    def products(self, weights: Array) -> Products:
        """Products with `weights` (n_classes, n_features), float32, for one thread."""

    def n_threads(self, rows: Blocks, weights: Array) -> int:
        """How many threads a pass over `rows` is worth."""
