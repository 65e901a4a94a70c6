"""Directions of feature space: a public subspace for projections, and a released covariance for preconditioning.

A subspace: orthogonal projections of the feature axis on the top P left singular vectors of a public gradient.

If the matrix has rank k < P, then P - k of the directions are arbitrary, and coordinate axes are the cheapest choice.
Let S be the first P - k axes, and Q an orthonormal basis of the range of the remaining rows of the matrix. Every column
of the matrix is the sum of a vector in span(S) and a vector in span(Q), so

    span(U) = span(S) + span(Q),   U U^T = I on S, Q Q^T on the other features

contains the range of the matrix. If the remaining rows have a rank below k, S gets one more axis for each missing
dimension, so that U has P dimensions.

A covariance: one noisy release of the second moment of the features, which costs a part of the budget, and its
eigenvectors.

    1  A      <- sum_i x_i x_i^T + E,  E symmetric: N(0, sigma^2) on the diagonal, N(0, sigma^2 / 2) elsewhere
    2  V diag(d) V^T <- A

The spectral norm of E is about sigma sqrt(2 D) for D features. Smaller eigenvalues of A are mostly noise, which does
not change their mean. Line 2 depends on the release only: post-processing, at no privacy cost.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from linprobe.data.blocks import Block, row_norms
from linprobe.errors import LinprobeError
from linprobe.gradients.backend import Part, products
from linprobe.gradients.loss import Weights
from linprobe.gradients.second_order import lower_triangle, second_moment
from linprobe.methods._base import Problem, PublicFacts, Run, Share, check_memory
from linprobe.parallel.array_api import Array, Reals, Singles, beside, namespace, norm, on_host, row_products
from linprobe.parallel.threads import blas_module, in_slices

COVARIANCE = "covariance"
MATRICES = 6  # square float64 matrices of n_features that the eigenvectors need at the same time
Squares = dict[tuple[int, int], Reals]
# Bounds on rounding errors of lengths and of squared lengths, at least twice the largest error found with rows built
# to maximise it. SLACK holds for up to SLACK_FEATURES features and grows in proportion to their number beyond.
SLACK = 2.0**-14
SLACK_FEATURES = 4096
SQUARED_SLACK = 2.0**-14
SMALLEST = float(np.finfo(np.float64).tiny)
COLUMNS = 128  # of a product that one thread computes
NOT_ORTHONORMAL = 2.0**-20  # of the squared length of the directions


class OrthonormalSubspace:
    """The span of the first `n_axes` coordinate axes and of orthonormal directions in the other features.

    Args:
        directions: Q, shape (n_features - n_axes, r), float64, orthonormal columns.
        n_axes: size of S.
        squares: cache of squared lengths of rows on the axes, by number of axes and start of the block, for one set
            of rows. Entries for another number of axes are removed.
        captured: fraction of the squared norm inside the subspace, of the matrix that it is made from.
    """

    def __init__(self, directions: Weights, n_axes: int, squares: Squares | None = None, captured: float = 1.0) -> None:
        self._directions, self._n_axes, self.captured = _canonical(directions), n_axes, captured
        # at least the squared spectral norm; the margin of every clip covers as much
        longest = np.abs(self._directions.T @ self._directions).sum(axis=1).max(initial=0.0)
        if not longest <= 1 + NOT_ORTHONORMAL:
            raise LinprobeError(f"the subspace's axes are not orthonormal: {longest - 1:.1e}; use --subspace none")
        self.parts = (Part(n_axes, products(self._directions.T.astype(np.float32))),)
        self._squares = {} if squares is None else squares
        for key in [key for key in self._squares if key[0] != n_axes]:
            del self._squares[key]
        self._slack = SLACK * max(1.0, len(directions) / SLACK_FEATURES)

    def coordinates(self, matrix: Array) -> Array:
        """U^T `matrix` (n_features, m): the rows of `matrix` on the axes, then its products with the directions."""
        off_axes = _product(beside(matrix, self._directions).T, matrix[self._n_axes :])
        return namespace(matrix).concatenate([matrix[: self._n_axes], off_axes])

    def embed(self, coordinates: Array) -> Array:
        """U `coordinates`, shape (n_features, m)."""
        off_axes = _product(beside(coordinates, self._directions), coordinates[self._n_axes :])
        return namespace(coordinates).concatenate([coordinates[: self._n_axes], off_axes])

    def energy(self, matrix: Weights) -> float:
        """Fraction of the squared norm of `matrix` (n_features, m) inside the subspace; 1 for a zero matrix."""
        inside = _product(beside(matrix, self._directions).T, matrix[self._n_axes :])
        whole = norm(matrix)
        return 1.0 if whole == 0 else float((norm(matrix[: self._n_axes]) / whole) ** 2 + (norm(inside) / whole) ** 2)

    def row_norms(self, block: Block, scores: Sequence[Singles] | None = None) -> Reals:
        """||U^T x|| for the rows of a block, shape (b,), rounded up but at most ||x||.

        The error of ||Q^T x|| is at most `SLACK` ||x||, and the relative error of squared lengths on S is at most
        `SQUARED_SLACK`. Both bounds are added, so that no length is understated. With up to `SLACK_FEATURES` features,
        none is overstated by more than 0.00016 ||x||. tests/methods/test_subspace.py measures both.
        """
        if not isinstance(block.x, np.ndarray):
            inside = block.x[:, self._n_axes :] @ beside(block.x, self._directions.astype(np.float32))
        else:
            (inside,) = [part.scores(block.x) for part in self.parts] if scores is None else scores
        squares: Reals = row_products(inside, inside)
        if self._n_axes:
            key = self._n_axes, block.start
            if key not in self._squares:
                self._squares[key] = (1 + SQUARED_SLACK) * self._on_axes(block)
            squares += self._squares[key]
        lengths = squares**0.5 + self._slack * block.norms
        return lengths.clip(None, block.norms)

    def _on_axes(self, block: Block) -> Reals:
        """Squared lengths of rows on S, computed from the smaller of the two parts."""
        on_axes, off_axes = block.x[:, : self._n_axes], block.x[:, self._n_axes :]
        if not isinstance(on_axes, np.ndarray):
            return row_products(on_axes, on_axes)
        if on_axes.shape[1] <= off_axes.shape[1]:
            return np.asarray(row_norms(on_axes) ** 2)
        squares = block.norms**2 - row_norms(off_axes) ** 2
        small = squares < block.norms**2 / 4
        squares[small] = row_norms(on_axes[small]) ** 2
        return np.asarray(squares)


def _product(a: Array, b: Array) -> Array:
    """a b, shape (m, n). Each thread takes some columns, so the bits do not depend on the number of threads."""
    if not isinstance(b, np.ndarray):
        return a @ b
    product = np.empty((a.shape[0], b.shape[1]))

    def fill(columns: slice) -> None:
        np.matmul(a, b[:, columns], out=product[:, columns])

    in_slices(b.shape[1], COLUMNS, fill)
    return product


def _canonical(directions: Weights) -> Weights:
    """The orthonormal basis of the same span that is lower triangular on top, with a positive diagonal.

    Noise is added to coordinates, so the released numbers depend on the basis, which rounding must not choose.
    """
    dim = directions.shape[1]
    rotation, upper = np.linalg.qr(directions[:dim].T)
    signs = np.where(np.diagonal(upper) < 0, -1.0, 1.0)
    # the product of the rotation and the rows at the top is the triangle that the decomposition gives
    return np.concatenate([upper.T * signs, _product(directions[dim:], rotation * signs)])


def _orthonormal(columns: Weights) -> Weights:
    """Orthonormal columns with the span of `columns`, which must be orthonormal up to rounding errors."""
    lower = np.linalg.cholesky(columns.T @ columns)
    return np.asarray(blas_module("scipy.linalg").solve_triangular(lower, columns.T, lower=True)).T


def _top_left(matrix: Weights, dim: int, max_rank: int) -> tuple[Weights, float]:
    """Basis of the top `dim` left singular vectors, or of the range, and their share of the squared norm."""
    tolerance = matrix.shape[0] * float(np.finfo(np.float32).eps)
    if matrix.shape[0] < matrix.shape[1]:
        matrix = np.asarray(np.linalg.qr(matrix.T, mode="r")).T
    # squaring halves the number of correct digits; more remain than the float32 tolerance needs
    squares = matrix.T @ matrix
    if dim >= max_rank:
        # `max_rank` columns that are far from linearly dependent span the whole range
        least = tolerance**2 * float(squares.trace())
        linalg = blas_module("scipy.linalg")
        factor, order, rank, _ = linalg.lapack.dpstrf(squares, tol=least)
        if rank >= max_rank:
            upper, columns = factor[:max_rank, :max_rank], matrix[:, order[:max_rank] - 1]
            return _orthonormal(np.asarray(linalg.solve_triangular(upper, columns.T, trans="T")).T), 1.0
    lengths, right = np.linalg.eigh(squares)
    singular = np.sqrt(np.maximum(lengths[::-1], 0.0))
    rank = int((singular > singular[:1].max(initial=0.0) * tolerance).sum())
    left = _product(matrix, right[:, ::-1][:, : min(rank, max_rank, dim)])
    inside = np.linalg.norm(left, axis=0)
    return _orthonormal(left / inside), min(1.0, float(inside @ inside / max(squares.trace(), SMALLEST)))


def top_left_subspace(
    matrix: Weights, dim: int, max_rank: int, squares: Squares | None = None
) -> OrthonormalSubspace | None:
    """The span of the top `dim` left singular vectors of `matrix` (n_features, m); None if it is the whole space.

    `max_rank` bounds the rank of `matrix` in exact arithmetic; rounding can raise the rank. Directions beyond it are
    coordinate axes. `squares` is a cache that successive subspaces share: see `OrthonormalSubspace`.
    """
    if dim >= matrix.shape[0]:
        return None
    matrix = on_host(matrix)
    n_axes = max(0, dim - max_rank)
    while True:
        directions, inside = _top_left(matrix[n_axes:], dim - n_axes, max_rank)
        missing = dim - n_axes - directions.shape[1]
        if not missing:
            whole = float(norm(matrix))
            captured = 1 - (1 - inside) * (float(norm(matrix[n_axes:])) / whole) ** 2 if whole else 1.0
            return OrthonormalSubspace(directions, n_axes, squares, captured)
        n_axes += missing


def covariance_share(options: Any) -> tuple[Share, ...]:
    """The part of the budget for the release: `options.covariance_epsilon_share` of epsilon."""
    return (Share(COVARIANCE, options.covariance_epsilon_share),)


@dataclass(frozen=True)
class Covariance:
    values: Reals  # eigenvalues, of either sign, (n_features,)
    vectors: Reals  # eigenvectors as columns, (n_features, n_features)
    noise: float  # spectral norm of the noise, about

    def smoothed(self) -> Reals:
        """The eigenvalues; those up to `noise` replaced by their mean, or by 0 if that is negative."""
        small = self.values <= self.noise
        return np.where(small, max(self.values[small].mean(), 0.0) if small.any() else 0.0, self.values)

    def scaled(self, matrix: Reals, factors: Reals) -> Reals:
        """V diag(factors) V^T matrix, for `matrix` (n_features, n_classes)."""
        return np.asarray(self.vectors @ (factors[:, None] * (self.vectors.T @ matrix)))


def check_covariance(options: Any, facts: PublicFacts) -> None:
    """UsageError if the covariance needs more than half of the free memory."""
    check_memory(
        f"the matrices for a covariance of {facts.n_features} features",
        8 * MATRICES * facts.n_features**2,
        "use a method without one, such as noisy-gd or prototypes",
    )


def released_covariance(problem: Problem, run: Run) -> Covariance:
    """Lines 1 and 2: one release of sensitivity 1 from all private rows. Raises UsageError: as `check_covariance`."""
    private, sigma, n_features = problem.private_rows, run.schedule.others[COVARIANCE], problem.n_features
    check_covariance(None, PublicFacts(1, n_features, problem.n_classes))
    moment = second_moment(private, all_reduce=run.group.all_reduce)
    released = run.mechanism.release(moment, sigma, purpose=COVARIANCE)
    values, vectors = np.linalg.eigh(lower_triangle(released, n_features))  # reads the lower triangle only
    return Covariance(values, vectors, sigma * math.sqrt(2 * n_features))
