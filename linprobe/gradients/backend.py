"""The protocol of a back end, which the host (`host.py`, `kernel.py`) and the GPU (`gpu.py`) implement."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

from linprobe.data.blocks import Block, Blocks, Rows
from linprobe.data.precision import StoredRows
from linprobe.gradients.rounding import ExactSum, Sample
from linprobe.mechanisms.gaussian import NoiseGenerator
from linprobe.mechanisms.noise import NoiseSource
from linprobe.parallel.array_api import Array


class ClippedBlock(NamedTuple):
    """Intermediate results of clipping a block.

    Attributes:
        r_norms: norms of the residuals, shape (b,).
        factors: clip factors, shape (b,).
        scores: scores of each part given, shape (b, n_classes of the part).
    """

    r_norms: Array
    factors: Array
    scores: list[Array]


class Products(Protocol):
    """Products of rows (b, n_features) with one matrix of float32 weights (n_classes, n_features).

    Buffers are reused between calls, so each thread needs its own.
    """

    n_classes: int
    n_features: int

    def for_thread(self) -> Products:
        """The same products with their own buffers."""

    def zeros(self) -> Array:
        """The empty sum, shape (n_classes, n_features), float64, in the memory layout that `add` needs."""

    def scores(self, x: Array) -> Array:
        """x W^T, shape (b, n_classes), float32. The caller may overwrite it."""

    def add(self, total: ExactSum, r: Array, x: Array, sample: Sample | None = None) -> None:
        """Add sum_i r_i x_i^T to `total`, for r (b, n_classes), over the rows of `sample`, or all."""


class ClippingProducts(Products):
    """Products that score, clip and sum in one call.

    The scores and factor of a row and what is added of it have the same bits whatever its place and the other rows are.
    """

    @abstractmethod
    def add_clipped(
        self,
        total: ExactSum,
        x: Array | StoredRows,
        y: Array,
        lengths: Array,
        bound: float,
        parts: Sequence[Part] = (),
        *,
        sample: Sample | None = None,
    ) -> ClippedBlock:
        """Add sum_i c_i r_i x_i^T to `total`, for softmax residuals r_i and c_i = min(1, bound / (length_i ||r_i||)).

        Args:
            total: sum with one `shift` for all entries.
            x: rows, shape (b, n_features), in any storage type. y: class indices, shape (b,).
            lengths: norms of the rows, shape (b,). bound: largest norm of a clipped gradient.
            parts: further scores to compute in the same pass.
            sample: the rows to add; None for all. All are scored and clipped.

        Raises:
            ValueError: shapes that do not fit. IndexError: a class index out of range.
        """

    @abstractmethod
    def chosen(self, x: Array | StoredRows, y: Array, lengths: Array, bound: float, sample: Sample) -> Any:
        """The rows of `sample`, checked, for `add_chosen` of any products like these.

        Arguments and errors as in `add_clipped`. No row outside the sample is read.
        """

    @abstractmethod
    def add_chosen(self, total: ExactSum, chosen: Any) -> None:
        """Add the clipped gradients of `chosen` rows to `total`. What is added of a row depends on no other row."""

    @abstractmethod
    def add_units(
        self, total: ExactSum, block: Block, bound: float, most: float, cells: NDArray[Any] | None = None
    ) -> tuple[Array, Array]:
        """Add sum_u c_u S_u over the people of a block, or of its sample, to `total`.

        S_u is the sum of x_j r_j^T over the rows of person u, for softmax residuals times the weights of rows. Its
        factor is c_u = min(1, bound / max(||S_u||, sum_j ||x_j|| ||r_j|| / most)). What is added of a person depends on
        nobody else, up to the rounding of float32 sums of at most `SUM_ROWS` rows.

        Args:
            cells: no float32 sum crosses these places of people, increasing, the last is n_units. Given if the rows
                of people outside the sample are not to be read.

        Returns: c_u and ||S_u||, shape (n_units,), of people outside the sample too without `cells`. People with more
            than `linprobe.data.unit_rows.PAIRED_ROWS` rows are left out, with zeros.

        Raises:
            ValueError: shapes that do not fit. IndexError: a class index out of range.
        """


@dataclass(frozen=True)
class Part:
    """Products with a range of features.

    Attributes:
        first: the first feature of the range.
        products: weights of the features in the range.
    """

    first: int
    products: Products

    def scores(self, x: Array) -> Array:
        """Scores of rows x (b, all features), shape (b, n_classes of `products`)."""
        return self.products.scores(x[:, self.first : self.first + self.products.n_features])


class Backend(Protocol):
    """Where training keeps rows, weights and noise, and computes with them."""

    def put(self, array: NDArray[Any]) -> Array:
        """`array` on this backend: itself on the host, a copy on a GPU."""

    def zeros(self, *shape: int) -> Array:
        """Zeros, float64."""

    def place(self, rows: Rows) -> Rows:
        """`rows` on this backend.

        Raises:
            UsageError: rows that this backend does not support.
        """

    def noise(self, source: NoiseSource) -> NoiseGenerator:
        """Noise from the stream of `source`, generated on this backend."""

    def products(self, weights: Array) -> Products:
        """Products with `weights` (n_classes, n_features), float32, for one thread."""

    def n_threads(self, rows: Blocks, weights: Array) -> int:
        """Number of threads for a pass over `rows`."""
