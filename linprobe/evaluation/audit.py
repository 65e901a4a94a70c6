"""Auditing: a measured lower bound on epsilon, to compare with the upper bound that accounting claims.

Canaries are planted records; a coin toss decides whether each one is in a run. An adversary who guesses from the
releases which canaries were in, better than (epsilon, delta) allows, proves that the implementation is not
(epsilon, delta)-DP.

    1  for r = 1..R:  toss b_ri for i = 1..m;  train on the background rows and the canaries with b_ri = 1
    2  z_rti <- <row of canary i in release t, u_i> / (sensitivity * noise multiplier)
    3  test whether z predicts b

Canary i is the unit vector of a column that is zero in every other row. Its column of a release holds only noise and
its own contribution, so m canaries are m independent trials, and R runs are n = R m. u_i is the direction of its
gradient at zero weights: mean over classes minus indicator of its label. If canary i is out, z is standard normal; if
it is in, the mean of z is about 1/sigma in every release that samples it. The adversary sees every release, as the
accountants assume.

The tests and their sources:

- `sum`, `difference` and `pattern` compare a statistic of the trials in and out by Student's t-test. If the statistic
  is normal, its noncentrality bounds mu of Gaussian DP from below (Dong, Roth, Su 2022: mu-GDP is testing N(0, 1)
  against N(mu, 1); Nasr et al. 2023, "Tight Auditing of Differentially Private Machine Learning", audit through mu).
- `one run` counts correct guesses and assumes no distribution (Steinke, Nasr, Jagielski 2023, "Privacy Auditing with
  One (1) Training Run", Theorem 5.2). R runs on disjoint records are one run on all of them, so all n trials count.

Each bound has confidence 1 - (1 - confidence) / (number of tests), so all hold together at `confidence` (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit
from scipy.stats import binom, nct

from linprobe.accounting.accountants import epsilon_of
from linprobe.accounting.events import GaussianEvent
from linprobe.data.rows import ArrayRows, LazyBlock
from linprobe.mechanisms.clipping import ClippedSum
from linprobe.mechanisms.gaussian import GaussianMechanism, Projection, Release
from linprobe.mechanisms.noise import GRID_BITS, NoiseSource
from linprobe.mechanisms.sampling import PoissonSampler
from linprobe.methods import Method, Problem, Run, Schedule
from linprobe.options import MAX_EPSILON
from linprobe.parallel.threads import blas_held_to_one_thread

LARGEST_MU = 20.0  # largest bound; far above the mu of every epsilon that can be claimed
GUESSED = 0.1  # share of the trials for which `one run` makes a guess
GRADIENT = "gradient"

MechanismFactory = Callable[[NoiseSource, Callable[[GaussianEvent], None]], GaussianMechanism]
SamplerFactory = Callable[[NoiseSource, float], PoissonSampler]


@dataclass(frozen=True)
class Trials:
    """What the adversary observes.

    Attributes:
        inside: whether each canary was in, shape (runs, canaries).
        scores: z, shape (runs, steps, canaries), in units of the claimed noise.
    """

    inside: NDArray[np.bool_]
    scores: NDArray[np.float64]


class _Present(ArrayRows):
    """Rows with empty places, as in the definition of adjacency. Use it only for sums without contributions."""

    def __init__(self, x: NDArray[np.float32], y: NDArray[np.int64], present: NDArray[np.bool_]) -> None:
        super().__init__(x, y)
        self._present = present

    def lazy_blocks(self) -> Iterator[LazyBlock]:
        """The rows that are present."""
        return super().sampled_blocks(self._present)

    def sampled_blocks(self, sampled: NDArray[np.bool_]) -> Iterator[LazyBlock]:
        """The rows that are present and where `sampled` is true."""
        return super().sampled_blocks(self._present & sampled)


class _Observer(GaussianMechanism):
    """Releases sums through another mechanism, and records the scores of the canaries in the releases.

    Args:
        inner: the mechanism under audit.
        first: feature column of the first canary. directions: u, shape (canaries, n_classes).

    Attributes:
        scores: one array (canaries,) for each gradient release.
    """

    def __init__(self, inner: GaussianMechanism, first: int, directions: NDArray[np.float64]) -> None:
        self._inner, self._directions = inner, directions
        self._columns = slice(first, first + len(directions))
        self.scores: list[NDArray[np.float64]] = []

    def release(
        self, clipped: ClippedSum, noise_multiplier: float, *, purpose: str, projection: Projection | None = None
    ) -> Release:
        """The release of `inner`."""
        released = self._inner.release(clipped, noise_multiplier, purpose=purpose, projection=projection)
        if purpose == GRADIENT:
            along = np.einsum("ic,ic->i", released.value[self._columns], self._directions)
            self.scores.append(along / (clipped.sensitivity * noise_multiplier))
        return released

    def settle(self) -> None:
        """Settle `inner`."""
        self._inner.settle()

    def ratchet(self) -> None:
        """Ratchet `inner`."""
        self._inner.ratchet()


def play(
    method: Method,
    options: Any,
    schedule: Schedule,
    background: ArrayRows,
    public: ArrayRows | None,
    n_classes: int,
    *,
    runs: int,
    canaries: int,
    on_run: Callable[[], None],
    mechanism: MechanismFactory = GaussianMechanism,
    sampler: SamplerFactory = PoissonSampler,
    insecure_seed: int | None = None,
) -> Trials:
    """Lines 1 and 2: train `runs` times with the production code and `canaries` canaries, about half of them in.

    Args:
        method, options, schedule: the audited training.
        background, public: rows in training space, the same in every run.
        on_run: called after every run.
        mechanism, sampler: audited in place of the production classes.
        insecure_seed: makes coin tosses and noise reproducible, for tests of the audit.
    """
    coins = np.random.default_rng(insecure_seed)
    labels = np.arange(canaries) % n_classes
    directions = 1 / n_classes - np.eye(n_classes)[labels]
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    first = background.n_features
    x = np.concatenate([_padded(background.x, canaries), np.eye(canaries, first + canaries, first, dtype=np.float32)])
    y = np.concatenate([background.y, labels])
    known = None if public is None else ArrayRows(_padded(public.x, canaries), public.y)
    inside = coins.random((runs, canaries)) < 0.5
    scores = np.empty((runs, schedule.n_steps, canaries))
    with blas_held_to_one_thread():
        for run in range(runs):
            present = np.concatenate([np.ones(background.n_rows, dtype=bool), inside[run]])
            problem = Problem(first + canaries, n_classes, private=_Present(x, y, present), public=known)
            source = NoiseSource(None if insecure_seed is None else insecure_seed * runs + run)
            observer = _Observer(mechanism(source, _forget), first, directions)
            taking = sampler(source, schedule.sampling_rate)
            method.fit(problem, options, Run(schedule, observer, _nothing, taking, per_record=False))
            scores[run] = observer.scores
            on_run()
    return Trials(inside, scores)


def _padded(x: NDArray[np.float32], columns: int) -> NDArray[np.float32]:
    return np.concatenate([x, np.zeros((len(x), columns), dtype=np.float32)], axis=1)


def _nothing() -> None:
    """Callback of steps that does nothing."""


def _forget(event: GaussianEvent) -> None:
    """Ledger that records nothing: the rows are digits and canaries, so no budget is spent."""


def lower_bounds(trials: Trials, delta: float, confidence: float) -> list[dict[str, Any]]:
    """Line 3: lower bounds on epsilon at `delta` by every test that applies, all valid together at `confidence`.

    Returns: one object for each test: name, epsilon_lower_bound, and either mu_lower_bound or guesses and correct.
    """
    inside, scores = trials.inside, trials.scores
    half = len(inside) // 2
    statistics = {"sum": (inside, summed(scores))}
    if scores.shape[1] > 1:
        statistics["difference"] = (inside, change(scores))
        statistics["pattern"] = (inside[half:], patterned(inside[:half], scores[:half], scores[half:]))
    each = 1 - (1 - confidence) / (len(statistics) + 1)
    bounds: list[dict[str, Any]] = []
    for name, (who, statistic) in statistics.items():
        mu = mu_lower_bound(statistic[who], statistic[~who], each)
        bounds.append({"name": name, "epsilon_lower_bound": epsilon_of(mu, delta), "mu_lower_bound": mu})
    correct, guesses = guess(inside, summed(scores))
    epsilon = one_run_bound(correct, guesses, inside.size, delta, each)
    bounds.append({"name": "one run", "epsilon_lower_bound": epsilon, "guesses": guesses, "correct": correct})
    return bounds


def summed(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """sum_t z_t / sqrt(T), shape (runs, canaries): N(0, 1) out; mean near q sqrt(T) / sigma in."""
    return np.asarray(scores.sum(axis=1) / math.sqrt(scores.shape[1]))


def change(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """log sum_t (z_{t+1} - z_t)^2, shape (runs, canaries): the change from step to step.

    With fresh noise it reveals almost nothing. Noise that is used twice cancels and leaves the canary's own gradient,
    which turns as the weights change. The mechanism's rounding grid is added as a floor.
    """
    squares = np.square(np.diff(scores, axis=1))
    return np.asarray(np.log((squares + 4.0**-GRID_BITS).sum(axis=1)))


def patterned(
    inside: NDArray[np.bool_], learnt: NDArray[np.float64], tested: NDArray[np.float64]
) -> NDArray[np.float64]:
    """sum_t w_ti z_t of the `tested` runs, shape (tested runs, canaries); N(0, 1) out.

    w_ti is the mean of z_t of canary i in minus out, over the `learnt` runs, clipped at 0 and scaled to unit length
    over t. It finds the steps in which a canary always joins.
    """
    n_in, n_out = inside.sum(axis=0), (~inside).sum(axis=0)
    sum_in = np.einsum("rtm,rm->tm", learnt, inside)
    gap = sum_in / np.maximum(n_in, 1) - (learnt.sum(axis=0) - sum_in) / np.maximum(n_out, 1)
    weights = np.maximum(gap, 0)
    weights[:, (n_in == 0) | (n_out == 0) | ~weights.any(axis=0)] = 1  # nothing learnt
    return np.asarray(np.einsum("rtm,tm->rm", tested, weights / np.linalg.norm(weights, axis=0)))


def mu_lower_bound(inside: NDArray[np.float64], outside: NDArray[np.float64], confidence: float) -> float:
    """Lower bound on mu, the difference of two normal means in units of their common standard deviation.

    With s the pooled standard deviation, t = (mean_in - mean_out) / (s sqrt(1/n_in + 1/n_out)) has the noncentral t law
    of n_in + n_out - 2 degrees of freedom and noncentrality mu / sqrt(1/n_in + 1/n_out). The bound is the mu at which
    a value of t or larger has probability 1 - confidence. It uses the measured spread, not the claimed one, so that too
    little noise is detected.

    Args:
        inside, outside: independent values, any shape. confidence: at least 1/2.

    Returns: at least 0, at most `LARGEST_MU`; 0 if a group has fewer than two values.
    """
    n_in, n_out = inside.size, outside.size
    gap = float(inside.mean() - outside.mean()) if min(n_in, n_out) > 1 else 0.0
    if gap <= 0:
        return 0.0
    freedom = n_in + n_out - 2
    spread = math.sqrt((n_in * inside.var() + n_out * outside.var()) / freedom)
    scale = math.sqrt(1 / n_in + 1 / n_out)
    # without spread the groups differ with certainty; the cap keeps t finite
    t = min(gap, LARGEST_MU * spread) / spread / scale if spread > 0 else LARGEST_MU / scale

    def excess(noncentrality: float) -> float:
        return float(nct.sf(t, freedom, noncentrality)) - (1 - confidence)

    return 0.0 if excess(0.0) >= 0 else float(brentq(excess, 0.0, t)) * scale


def guess(inside: NDArray[np.bool_], statistic: NDArray[np.float64]) -> tuple[int, int]:
    """Guess "in" for the largest values and "out" for the smallest, `GUESSED` / 2 of all each: (correct, guesses)."""
    each = max(1, round(GUESSED / 2 * statistic.size))
    order = np.argsort(statistic, axis=None)
    ordered = inside.ravel()[order]
    return int(ordered[-each:].sum() + (~ordered[:each]).sum()), 2 * each


def one_run_p_value(correct: int, guesses: int, trials: int, epsilon: float, delta: float) -> float:
    """Largest probability of `correct` or more correct guesses under any (epsilon, delta)-DP algorithm.

    Steinke, Nasr, Jagielski 2023, Theorem 5.2, for W correct of r guesses about m records, each in or out by a fair
    coin, with B binomial of r trials at e^epsilon / (1 + e^epsilon):

        P[W >= v] <= P[B >= v] + 2 m delta max_{i = 1..v} P[v > B >= v - i] / i.
    """
    law = binom(guesses, expit(epsilon))
    below = np.cumsum(law.pmf(np.arange(correct - 1, -1, -1))) / np.arange(1, correct + 1)
    return min(1.0, float(law.sf(correct - 1)) + 2 * trials * delta * float(below.max(initial=0.0)))


def one_run_bound(correct: int, guesses: int, trials: int, delta: float, confidence: float) -> float:
    """Largest epsilon, to 10^-6, at which the p-value is below 1 - confidence; 0 if there is none."""
    low, high = 0.0, MAX_EPSILON
    while high - low > 1e-6:
        middle = (low + high) / 2
        if one_run_p_value(correct, guesses, trials, middle, delta) < 1 - confidence:
            low = middle
        else:
            high = middle
    return low
