"""Orthogonal projections of the feature axis, as cheap as the range of a public gradient is narrow.

Where P directions are asked of a matrix of rank k < P, the others are arbitrary, and coordinate axes cost least. Take
the first P axes S and an orthonormal basis L of the range, turned so that L_S = V C with orthonormal V and a diagonal
C of cosines (a singular value decomposition of the rows of L in S). With R the other rows of L,

    span(U) = (span(S) without V) + range(L),   U U^T = I_S - V V^T + L L^T,   L = [V C; R]

which has exactly P dimensions whatever the cosines are, and D x k numbers, [V; R], say all of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from linprobe.probe import Weights
from linprobe.products import Part, Products
from linprobe.rows import Block, row_norms

Squares = dict[tuple[int, int], NDArray[np.float64]]
LARGEST_SINE = 0.99
SLACK = 2.0**-16
SQUARED_SLACK = 2.0**-14
CANCELLED = 2.0**-8  # share of a square so small that it is taken again, coordinate by coordinate


class OrthonormalSubspace:
    """The span of U: the first `n_axes` coordinate axes, turned until they hold given directions.

    Args:
        columns: [V; R], shape (n_features, r), float64; V is its first `n_axes` rows.
        cosines: diagonal of C, shape (r,).
        n_axes: size of S. 0 leaves the span of R.
        squares: squared lengths on the axes of blocks met before, by number of axes and start; for one set of rows.
    """

    def __init__(
        self, columns: Weights, cosines: NDArray[np.float64], n_axes: int, squares: Squares | None = None
    ) -> None:
        self._columns, self._narrow = columns, np.ascontiguousarray(columns, dtype=np.float32)
        self.parts = (Part(0, Products(self._narrow[:n_axes].T)), Part(n_axes, Products(self._narrow[n_axes:].T)))
        self._cosines, self._n_axes = cosines, n_axes
        self._squares = {} if squares is None else squares

    def project(self, matrix: Weights) -> Weights:
        """U U^T `matrix` (n_features, m), same shape."""
        axes, others = self._columns[: self._n_axes], self._columns[self._n_axes :]
        cosines = self._cosines[:, None]
        replaced = axes.T @ matrix[: self._n_axes]
        inside = cosines * replaced + others.T @ matrix[self._n_axes :]
        on_axes = matrix[: self._n_axes] + axes @ (cosines * inside - replaced)
        return np.concatenate([on_axes, others @ inside])

    def row_norms(self, block: Block, scores: Sequence[NDArray[np.float32]] | None = None) -> NDArray[np.float64]:
        """||U^T x|| of the rows of a block, rounded up, never above their full norms.

        Lengths inside L, and on S where most of a row cancels, are in error by at most `SLACK` of x; the square on S
        without V, elsewhere, by at most `SQUARED_SLACK` of the row's on S. As much is added, so that no length is
        understated, and none is overstated by more than 0.0008 of x. tests/methods/test_subspace.py measures both.
        """
        replaced, others = [part.scores(block.x) for part in self.parts] if scores is None else scores
        inside = others + replaced * self._cosines.astype(np.float32)
        if not self._n_axes:
            return np.minimum(block.norms, np.sqrt(_squares(inside)) + SLACK * block.norms)
        key = self._n_axes, block.start
        if key not in self._squares:
            self._squares[key] = self._on_axes(block)
        whole = self._squares[key]
        kept = (1 + SQUARED_SLACK) * whole - _squares(replaced)
        cancelled = kept < CANCELLED * whole
        if cancelled.any():
            axes = self._narrow[: self._n_axes]
            kept[cancelled] = _squares(block.x[cancelled, : self._n_axes] - replaced[cancelled] @ axes.T)
        return np.minimum(block.norms, np.sqrt(_squares(inside) + kept) + SLACK * block.norms)

    def _on_axes(self, block: Block) -> NDArray[np.float64]:
        """Squared lengths of rows on S, from the smaller of the two parts."""
        on_axes, off_axes = block.x[:, : self._n_axes], block.x[:, self._n_axes :]
        if on_axes.shape[1] <= off_axes.shape[1]:
            return np.asarray(row_norms(on_axes) ** 2)
        squares = block.norms**2 - row_norms(off_axes) ** 2
        small = squares < block.norms**2 / 4
        squares[small] = row_norms(on_axes[small]) ** 2
        return np.asarray(squares)


def _squares(x: NDArray[np.floating]) -> NDArray[np.float64]:
    """Squared length of each row."""
    squared: NDArray[np.float64] = np.einsum("ij,ij->i", x, x, dtype=np.float64)
    return squared


def _top_left(matrix: Weights, dim: int, max_rank: int) -> Weights:
    """Orthonormal basis of the top `dim` left singular vectors, or of the range where that has fewer dimensions."""
    n_features = matrix.shape[0]
    if n_features < matrix.shape[1]:
        matrix = np.asarray(np.linalg.qr(matrix.T, mode="r")).T
    # squaring the matrix halves the digits, and leaves more of them than the float32 tolerance asks for
    squares, right = np.linalg.eigh(matrix.T @ matrix)
    singular = np.sqrt(np.maximum(squares[::-1], 0.0))
    rank = int((singular > singular[:1].max(initial=0.0) * n_features * np.finfo(np.float32).eps).sum())
    kept = min(rank, max_rank, dim)
    left = matrix @ right[:, ::-1][:, :kept]
    left /= np.linalg.norm(left, axis=0)
    # orthogonal up to the digits lost; the range stays
    lower = np.linalg.cholesky(left.T @ left)
    return np.asarray(scipy.linalg.solve_triangular(lower, left.T, lower=True)).T


def top_left_subspace(
    matrix: Weights, dim: int, max_rank: int, squares: Squares | None = None
) -> OrthonormalSubspace | None:
    """Top-`dim` left singular vectors of `matrix` (n_features, m); None when that is the whole space.

    `max_rank` is the rank of `matrix` in exact arithmetic, which rounding hides. Beyond it the remaining directions are
    arbitrary: the first `dim` coordinate axes, as far as they are orthogonal to its range. `squares` are kept from one
    subspace for the next: see `OrthonormalSubspace`.
    """
    n_features = matrix.shape[0]
    if dim >= n_features:
        return None
    left = _top_left(matrix, dim, max_rank)
    rank = left.shape[1]
    if dim <= rank:
        return OrthonormalSubspace(left, np.zeros(rank), 0, squares)
    if n_features - dim < rank:
        # the rest of the range lies in S and changes nothing, unless V has to be made up for a cosine of nothing
        _, sines, right = np.linalg.svd(left[dim:], full_matrices=False)
        if sines[0] < LARGEST_SINE:
            left = left @ right.T
    axes, cosines, right = np.linalg.svd(left[:dim], full_matrices=False)
    return OrthonormalSubspace(np.concatenate([axes, left[dim:] @ right.T]), cosines, dim, squares)
