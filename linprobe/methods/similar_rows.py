"""How many private rows have unlabelled rows nearby: one noisy count, which tells whether these are of the same kind.

    1  z(x) <- (x - m) / ||x - m||,   m the mean of the unit rows of U
    2  a(x) <- the k-th largest cosine of z(x) to other rows of U;   t <- the `FAR_SHARE` quantile of a on U
       r    <- the largest distance of a row of U to the mean of the others
    3  s_i  <- 1 if a(x_i) >= t and ||x_i - m|| <= r, else 0;   for a person, the mean over the person's rows
    4  n~   <- sum_i s_i + N(0, sigma^2),   share <- (n~ - sigma) / N

About 1 - `FAR_SHARE` of private rows of the same kind count, and hardly any row of another kind if the rows of U lie in
groups. If they lie in all directions, as isotropic noise does, most rows of every kind count. Rows of classes that U
lacks do not count. U is thinned evenly to `MOST_ROWS` rows; k is `NEIGHBOUR`, less for few rows.

If U has few rows, cosines are not enough: seen from the mean of U, all rows of another kind lie in one direction, and
some row of U may lie there too. But rows of another kind are far from m. A row of the same kind is as far from the mean
of n rows of U as a row of U is from the mean of the others, so about one such row in n + 1 is further away than r.

Lines 1 and 2 read public rows. s_i depends on x_i and public rows alone: cosines come from `SteadyProducts`, so their
rounding depends on no other private row and no place. An empty place adds 0. The share of a person is rounded down to
a multiple of `SHARE_STEP`, which float64 adds without rounding. So the sensitivity is 1 under zero-out of one row, or
of one person with all rows. Line 4 is a lower bound at one standard deviation: where noise hides the answer, U counts
as rows of another kind.

Guarantee: 1/sigma - Gaussian DP under zero-out of one unit.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np

from linprobe.data.blocks import Block, normalise_rows, row_norms
from linprobe.data.rows import Rows
from linprobe.gradients.clipped_sum import Reduce
from linprobe.gradients.rounding import SMALLEST_MARGIN, SteadyProducts
from linprobe.mechanisms.gaussian import ClippedSum, relative_contributions
from linprobe.methods._base import Run
from linprobe.methods.class_counts import shares_of_units
from linprobe.parallel.array_api import Floats, Mask, Reals, Singles
from linprobe.parallel.process_group import ALONE
from linprobe.parallel.threads import n_threads, share

SIMILAR_ROWS = "similar rows"
MOST_ROWS, NEIGHBOUR, FAR_SHARE = 1000, 3, 0.1
SURE = 3.0
SAME_KIND = 0.5  # from this share on, private rows may be centred on the mean of U


@dataclass(frozen=True)
class SimilarRows:
    """The released count n~, and the standard deviation of its noise."""

    count: float
    std: float

    def share(self, n_units: int) -> float:
        """Line 4: the share of private units near unlabelled rows, at least."""
        return (self.count - self.std) / n_units


@dataclass(frozen=True)
class NearShots:
    """How many of the public shots, which are training rows, are near unlabelled rows."""

    near: int
    of: int

    @property
    def most(self) -> float:
        """The share and its standard error, so that a few rows do not rule out rows of the same kind; at most 1."""
        return min(1.0, self._share + math.sqrt(self._share * (1 - self._share) / self.of))

    @property
    def least(self) -> float:
        """The lower end of Wilson's interval (1927) at `SURE` standard deviations: a share that a few rows prove."""
        z = SURE**2 / self.of
        half = math.sqrt(z * self._share * (1 - self._share) + z * z / 4)
        return (self._share + z / 2 - half) / (1 + z)

    @property
    def _share(self) -> float:
        return min(self.near, self.of) / self.of


class Surroundings:
    """Lines 1, 2 for the raw rows of U (n, n_features): `mean` m, and the `squared_norm` of unit rows around it."""

    def __init__(self, rows: Floats) -> None:
        unit = normalise_rows(np.asarray(rows, dtype=np.float32))
        self.mean: Reals = unit.mean(axis=0, dtype=np.float64)
        directions, distances = self._from_mean(unit)
        self.squared_norm = float((distances**2).mean())
        self._furthest = float(distances.max()) * len(unit) / (len(unit) - 1)
        n = min(len(unit), MOST_ROWS)
        some = directions[np.arange(n) * len(unit) // n]
        self._products = SteadyProducts(np.ascontiguousarray(some.T))
        self._k = min(NEIGHBOUR, n - 1)
        cosines = self._products.of(some)
        np.fill_diagonal(cosines, -np.inf)
        self._least = float(np.quantile(self._nearness(cosines), FAR_SHARE))

    def _from_mean(self, unit: Singles) -> tuple[Singles, Reals]:
        """z(x) and ||x - m|| of unit rows."""
        offsets = unit - self.mean.astype(np.float32)
        distances = row_norms(offsets)
        return normalise_rows(offsets, distances), distances

    def _nearness(self, cosines: Reals) -> Reals:
        return np.partition(cosines, -self._k, axis=1)[:, -self._k]

    def near(self, unit: Singles) -> Mask:
        """Line 3 for unit rows (b, n_features)."""
        directions, distances = self._from_mean(unit)
        nearness = self._nearness(self._products.of(directions))
        return np.asarray((nearness >= self._least) & (distances <= self._furthest))

    def shots_near(self, blocks: Iterable[tuple[Floats, Any]]) -> NearShots:
        """How many public rows, raw (b, n_features) with labels, line 3 finds near. No release."""
        near = np.concatenate([self.near(normalise_rows(np.asarray(x, dtype=np.float32))) for x, _ in blocks])
        return NearShots(int(near.sum()), len(near))


def similar_count(rows: Rows, around: Surroundings, *, all_reduce: Reduce = ALONE.all_reduce) -> ClippedSum:
    """The number of private units near unlabelled rows, (1, 1), without noise; `rows` are unit rows without bias."""
    total, contributions, lock = np.zeros(1), np.zeros(rows.n_local), Lock()

    def take(block: Block) -> None:
        shares = shares_of_units(block, around.near(block.x).astype(np.float64)[:, None])[:, 0]
        here = slice(block.start, block.start + len(shares))
        contributions[here] = relative_contributions(shares, 1.0, SMALLEST_MARGIN)
        with lock:
            total[0] += shares.sum()  # whole numbers of `SHARE_STEP`: exact in any order

    share(rows.lazy_blocks(), [take] * n_threads())
    return ClippedSum(all_reduce(total)[:, None], 1.0, contributions)


def released_similar(rows: Rows, around: Surroundings, run: Run) -> SimilarRows:
    """Line 4 for all units of all processes."""
    released = run.released(similar_count(rows, around, all_reduce=run.group.all_reduce), SIMILAR_ROWS)
    return SimilarRows(float(released[0, 0]), run.schedule.others[SIMILAR_ROWS])
