"""One noisy release of the second moment of the features, which costs a part of the budget, and its eigenvectors.

    1  A      <- sum_i x_i x_i^T + E,  E symmetric: N(0, sigma^2) on the diagonal, N(0, sigma^2 / 2) elsewhere
    2  V diag(d) V^T <- A

The spectral norm of E is about sigma sqrt(2 D) for D features. Smaller eigenvalues of A are mostly noise, which does
not change their mean. Line 2 depends on the release only: post-processing, at no privacy cost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from linprobe.errors import UsageError
from linprobe.gradients.second_order import lower_triangle, second_moment
from linprobe.methods._base import Problem, Run, Share
from linprobe.parallel import available_memory

PURPOSE = "covariance"
MATRICES = 6  # square float64 matrices of n_features that the eigenvectors need at the same time


class PaysForCovariance(Protocol):
    """Options with the share of epsilon for the release."""

    @property
    def covariance_epsilon_share(self) -> float:
        """The share, in (0, 1)."""


def shares(options: PaysForCovariance) -> tuple[Share, ...]:
    """The part of the budget for the release."""
    return (Share(PURPOSE, options.covariance_epsilon_share),)


@dataclass(frozen=True)
class Covariance:
    """The released second moment.

    Attributes:
        values: eigenvalues, of either sign, shape (n_features,).
        vectors: eigenvectors as columns, shape (n_features, n_features).
        noise: spectral norm of the noise, about.
    """

    values: NDArray[np.float64]
    vectors: NDArray[np.float64]
    noise: float

    def smoothed(self) -> NDArray[np.float64]:
        """The eigenvalues; those up to `noise` replaced by their mean, or by 0 if that is negative."""
        small = self.values <= self.noise
        return np.where(small, max(self.values[small].mean(), 0.0) if small.any() else 0.0, self.values)

    def scaled(self, matrix: NDArray[np.float64], factors: NDArray[np.float64]) -> NDArray[np.float64]:
        """V diag(factors) V^T matrix, for `matrix` (n_features, n_classes)."""
        return np.asarray(self.vectors @ (factors[:, None] * (self.vectors.T @ matrix)))


def released_covariance(problem: Problem, run: Run) -> Covariance:
    """Lines 1 and 2: one release of sensitivity 1 from all private rows.

    Raises:
        UsageError: more features than the memory holds a covariance of.
    """
    private, sigma = problem.private_rows, run.schedule.others[PURPOSE]
    n_features = private.n_features
    largest = math.isqrt(available_memory.available() // (2 * MATRICES * 8))
    if n_features > largest:
        raise UsageError(
            f"rows have {n_features} features; allowed for a covariance in half of the free memory: at most {largest}; "
            "use a method without one, such as noisy-gd or prototypes"
        )
    moment = second_moment(private, all_reduce=run.group.all_reduce)
    released = run.mechanism.release(moment, sigma, purpose=PURPOSE).value
    values, vectors = np.linalg.eigh(lower_triangle(released, n_features))  # reads the lower triangle only
    return Covariance(values, vectors, sigma * math.sqrt(2 * n_features))
