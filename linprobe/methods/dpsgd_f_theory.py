"""The preprocessing of DPSGD-F as analysed: an instance-optimal private mean and a private quantile of distances.

Sun, Suresh, Menon, ICLR 2024, Algorithm 2, lines 1 to 4; the mean as in Huang, Liang, Yi, "Instance-optimal Mean
Estimation Under Differential Privacy", NeurIPS 2021.

    1  rotate rows by random signs and a cosine transform (public, orthonormal), so that no coordinate stands out
    2  m     <- private median of every coordinate, K rounds of noisy bisection of [-1, 1]: numbers of rows below the
                middle, one vector of all coordinates with sensitivity sqrt(d)
    3  rho   <- private quantile of ||x_i - m||, K rounds of noisy bisection of [0, 2]: counts of sensitivity 1
    4  mu    <- m + 1/N (sum_i clip_rho(x_i - m) + N(0, sigma^2 rho^2 I))
    5  tau   <- private quantile of ||x_i - mu||, as in 3
    6  rows  <- (x_i - mu, tau), clipped at sqrt(2) tau; their gradients are at most 2 tau long

Lines 2 to 4 get a third of epsilon, line 5 a third, and the descent the rest, as one accountant computes it. Every
release of lines 2 to 5 is a Gaussian mechanism on a sum over all rows, so their composition is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from linprobe.data.blocks import Block
from linprobe.data.preprocessing import row_norms
from linprobe.data.rows import Rows
from linprobe.gradients.clipped_sum import row_sum
from linprobe.gradients.loss import Weights
from linprobe.mechanisms.clipping import ClippedSum
from linprobe.methods._base import Run, Share, public_generator

ROUNDS = 10
QUANTILE = 0.9
SMALLEST_RADIUS = 1e-3
SHARES = (
    Share("median", 1 / 9, ROUNDS),
    Share("radius", 1 / 9, ROUNDS),
    Share("mean", 1 / 9),
    Share("quantile", 1 / 3, ROUNDS),
)


def _rotation(n_features: int) -> tuple[Callable[[NDArray[Any]], Weights], Callable[[NDArray[Any]], Weights]]:
    """A fixed orthonormal map of the last axis, and the inverse map."""
    signs = np.where(public_generator().random(n_features) < 0.5, -1.0, 1.0)
    return (
        lambda x: np.asarray(scipy.fft.dct(x * signs, norm="ortho", axis=-1)),
        lambda x: np.asarray(scipy.fft.idct(x, norm="ortho", axis=-1)) * signs,
    )


def _noisy_count(
    rows: Rows, run: Run, purpose: str, indicators: Callable[[Block], NDArray[np.bool_]], width: int
) -> Weights:
    """Noisy number of rows for which each indicator is true, shape (width,); `indicators` returns (b, width)."""
    total = np.zeros(width)
    for block in rows.blocks():
        total += indicators(block).sum(axis=0)
    counts = ClippedSum(
        run.group.all_reduce(total)[:, None], math.nextafter(math.sqrt(width), math.inf), np.ones(rows.n_local)
    )
    return run.mechanism.release(counts, run.schedule.others[purpose], purpose=purpose).value[:, 0]


def _radius(rows: Rows, run: Run, purpose: str, centre: Weights) -> float:
    """Lines 3 and 5: noisy `QUANTILE` quantile of the distances from `centre`."""
    low, high = 0.0, 2.0
    for _ in range(ROUNDS):
        middle = (low + high) / 2

        def within(block: Block, radius: float = middle) -> NDArray[np.bool_]:
            return (row_norms(block.x - centre.astype(np.float32)) <= radius)[:, None]

        enough = _noisy_count(rows, run, purpose, within, 1)[0] >= QUANTILE * rows.n_rows
        low, high = (low, middle) if enough else (middle, high)
    return max(high, SMALLEST_RADIUS)


def ball(rows: Rows, run: Run) -> tuple[Weights, float]:
    """Lines 1 to 5: centre (n_features,) and radius of a ball that contains most rows, all of unit norm."""
    rotate, rotate_back = _rotation(rows.n_features)
    low, high = np.full(rows.n_features, -1.0), np.full(rows.n_features, 1.0)
    for _ in range(ROUNDS):
        middle = (low + high) / 2

        def below(block: Block, median: Weights = middle) -> NDArray[np.bool_]:
            return np.asarray(rotate(block.x) < median)

        many = _noisy_count(rows, run, "median", below, rows.n_features) >= rows.n_rows / 2
        low, high = np.where(many, low, middle), np.where(many, middle, high)
    median = rotate_back((low + high) / 2)
    radius = _radius(rows, run, "radius", median)
    total = row_sum(rows, radius, origin=median, all_reduce=run.group.all_reduce)
    released = run.mechanism.release(total, run.schedule.others["mean"], purpose="mean")
    mean = median + released.value[:, 0] / rows.n_rows
    return mean, _radius(rows, run, "quantile", mean)


def feature_clipped(rows: Rows, tau: float) -> Rows:
    """Line 6: rows scaled down to a norm of at most sqrt(2) tau. The result for a row depends on its own norm only."""
    longest = math.sqrt(2) * tau

    def change(whole: Block) -> Block:
        block = whole if whole.sampled is None else whole.chosen(np.flatnonzero(whole.sampled))
        factors = np.minimum(1.0, longest / block.norms).astype(np.float32)
        x = block.x * factors[:, None]
        norms = row_norms(x)
        if whole.sampled is not None:
            x, norms = _spread(x, whole.sampled), _spread(norms, whole.sampled)
        return replace(whole, stored=x, norms=norms, translation=None)

    return rows.changed(change)


def _spread(values: NDArray[Any], mask: NDArray[np.bool_]) -> NDArray[Any]:
    """`values` where `mask` is true, along the first axis, and zeros elsewhere."""
    found = np.zeros((len(mask), *values.shape[1:]), values.dtype)
    found[mask] = values
    return found
