"""Orthogonal projections of the feature axis, held by whichever of U and its complement is smaller."""

from __future__ import annotations

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from linprobe.probe import Weights


class OrthonormalSubspace:
    """The span of U, or everything orthogonal to U.

    Args:
        basis: U, shape (n_features, k), orthonormal columns, float64.
        complement: if true, the subspace is the orthogonal complement of the span.
    """

    def __init__(self, basis: Weights, *, complement: bool) -> None:
        self._basis = basis
        self._narrow = np.ascontiguousarray(basis, dtype=np.float32)
        self._complement = complement

    def project(self, matrix: Weights) -> Weights:
        """The part of `matrix` (n_features, m) inside the subspace, same shape."""
        inside = self._basis @ (self._basis.T @ matrix)
        return matrix - inside if self._complement else inside

    def row_norms(self, x: NDArray[np.float32], norms: NDArray[np.float64]) -> NDArray[np.float64]:
        """Length inside the subspace of rows x (b, n_features) with full norms (b,), never above them."""
        coordinates = x @ self._narrow
        squared: NDArray[np.float64] = np.einsum("ij,ij->i", coordinates, coordinates, dtype=np.float64)
        if self._complement:
            squared = norms**2 - squared
        return np.minimum(norms, np.sqrt(np.maximum(squared, 0.0)))


def top_left_subspace(matrix: Weights, dim: int, max_rank: int) -> OrthonormalSubspace | None:
    """Top-`dim` left singular vectors of `matrix` (n_features, m); None when that is the whole space.

    `max_rank` is the rank of `matrix` in exact arithmetic, which rounding hides. Beyond it the remaining directions are
    arbitrary: coordinate axes made orthogonal to its range.
    """
    n_features = matrix.shape[0]
    if dim >= n_features:
        return None
    left: Weights
    left, singular, _ = scipy.linalg.svd(matrix, full_matrices=False)
    rank = int((singular > singular[:1].max(initial=0.0) * n_features * np.finfo(np.float32).eps).sum())
    rank = min(rank, max_rank)
    left = left[:, :rank]
    if dim <= rank:
        return OrthonormalSubspace(left[:, :dim], complement=False)
    # Householder QR keeps the range first and makes the axes orthogonal to it, whatever their own rank
    axes = np.eye(n_features)
    if dim <= n_features // 2:
        wide = np.concatenate([left, axes[:, : dim - rank]], axis=1)
        return OrthonormalSubspace(scipy.linalg.qr(wide, mode="economic")[0], complement=False)
    wide = np.concatenate([left, axes[:, dim:]], axis=1)
    return OrthonormalSubspace(scipy.linalg.qr(wide, mode="economic")[0][:, rank:], complement=True)
