"""Statistical tests of an audit (`docs/audit.md`): lower bounds on epsilon from what the adversary observed.

- `sum`, `difference` and `pattern` compare a statistic of the trials in and out by Student's t-test. If the statistic
  is normal, its noncentrality bounds mu of Gaussian DP from below (Dong, Roth, Su 2022; Nasr et al. 2023, "Tight
  Auditing of Differentially Private Machine Learning").
- `one run` assumes no distribution (Steinke, Nasr, Jagielski 2023, "Privacy Auditing with One (1) Training Run",
  Theorem 5.2). R runs on disjoint records are one run on all of them, so all n trials count.
- `one run f-DP`: Mahloujifar, Melis, Chaudhuri 2024, "Auditing f-Differential Privacy in One Run", Algorithm 3.

Every test is done on all runs together and on the runs of each path. Each bound has confidence 1 - (1 - confidence) /
(number of bounds), so all hold together at `confidence` (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit, ndtr, ndtri
from scipy.stats import binom, nct

from linprobe.accounting.figures import epsilon_of
from linprobe.mechanisms.noise import GRID_BITS
from linprobe.options import MAX_EPSILON

ALL = "all"
LARGEST_MU = 20.0  # largest bound; far above the mu of every epsilon that can be claimed
GUESSED = 0.1  # share of the trials that are guessed


@dataclass(frozen=True)
class Trials:
    """What the adversary observes: whether each canary was `inside`, (runs, canaries), and its scores in the steps.

    `scores` z have shape (runs, steps, canaries), in units of the claimed noise; `others` have those in each release
    besides the steps by purpose, (runs, canaries), where NaN is no trial.
    """

    inside: NDArray[np.bool_]
    scores: NDArray[np.float64]
    paths: tuple[str, ...]
    others: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)

    def on(self, path: str) -> Trials:
        chosen = [run for run, taken in enumerate(self.paths) if taken == path]
        others = {purpose: scores[chosen] for purpose, scores in self.others.items()}
        return Trials(self.inside[chosen], self.scores[chosen], (path,) * len(chosen), others)


def lower_bounds(trials: Trials, delta: float, confidence: float) -> list[dict[str, Any]]:
    """Lower bounds on epsilon at `delta` by every test on all runs, path `all`, and on each path, valid together at
    `confidence`; also on mu where the test bounds it, and numbers of guesses where it counts them.
    """
    paths = sorted(set(trials.paths), key=trials.paths.index)
    parts = [(ALL, trials), *((path, trials.on(path)) for path in paths if len(paths) > 1)]
    n_tests = len(parts) * ((5 if trials.scores.shape[1] > 1 else 3) + len(trials.others))
    each = 1 - (1 - confidence) / n_tests
    return [{"name": name, "path": path, **bound} for path, part in parts for name, bound in _on(part, delta, each)]


def _on(trials: Trials, delta: float, confidence: float) -> list[tuple[str, dict[str, Any]]]:
    inside, scores = trials.inside, trials.scores
    half = len(inside) // 2
    statistics = {"sum": (inside, summed(scores))}
    if scores.shape[1] > 1:
        statistics["difference"] = (inside, change(scores))
        statistics["pattern"] = (inside[half:], patterned(inside[:half], scores[:half], scores[half:]))
    bounds: list[tuple[str, dict[str, Any]]] = []
    for name, (who, statistic) in statistics.items():
        mu = mu_lower_bound(statistic[who], statistic[~who], confidence)
        bounds.append((name, {"epsilon_lower_bound": epsilon_of(mu, delta), "mu_lower_bound": mu}))
    correct, guesses = guess(inside, statistics["sum"][1])
    counted = {"guesses": guesses, "correct": correct}
    epsilon = one_run_bound(correct, guesses, inside.size, delta, confidence)
    bounds.append(("one run", {"epsilon_lower_bound": epsilon, **counted}))
    mu = one_run_mu(correct, guesses, inside.size, confidence)
    bounds.append(("one run f-DP", {"epsilon_lower_bound": epsilon_of(mu, delta), "mu_lower_bound": mu, **counted}))
    for purpose, found in trials.others.items():
        finite = np.isfinite(found)
        mu = mu_lower_bound(found[finite & inside], found[finite & ~inside], confidence)
        bounds.append((purpose, {"epsilon_lower_bound": epsilon_of(mu, delta), "mu_lower_bound": mu}))
    return bounds


def summed(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """sum_t z_t / sqrt(T), shape (runs, canaries): N(0, 1) out; mean near q sqrt(T) / sigma in."""
    return np.asarray(scores.sum(axis=1) / math.sqrt(scores.shape[1]))


def change(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """log sum_t (z_{t+1} - z_t)^2, shape (runs, canaries): the change from step to step.

    Noise that is used twice cancels and leaves the canary's own gradient, which turns as the weights change. The
    mechanism's rounding grid is added as a floor.
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
    a value of t or larger has probability 1 - confidence, at least 1/2, and at most `LARGEST_MU`; 0 if a group has
    fewer than two values. The spread is measured, not claimed, so that too little noise is detected.
    """
    n_in, n_out = inside.size, outside.size
    if n_in:  # or the means of equal values would differ by their rounding
        inside, outside = inside - inside.flat[0], outside - inside.flat[0]
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
    law = guesses, expit(epsilon)  # `binom(*law)` would write the documentation of the distribution at every call
    below = np.cumsum(binom.pmf(np.arange(correct - 1, -1, -1), *law)) / np.arange(1, correct + 1)
    return min(1.0, float(binom.sf(correct - 1, *law)) + 2 * trials * delta * float(below.max(initial=0.0)))


def one_run_bound(correct: int, guesses: int, trials: int, delta: float, confidence: float) -> float:
    """Largest epsilon, to 10^-6, at which the p-value is below 1 - confidence; 0 if there is none."""
    chance = 1 - confidence
    return _largest(lambda epsilon: one_run_p_value(correct, guesses, trials, epsilon, delta) < chance, MAX_EPSILON)


def _largest(refuted: Callable[[float], bool], most: float) -> float:
    """The largest number up to `most` that is refuted, to 10^-6; all smaller ones are. 0 if there is none."""
    low, high = 0.0, most
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def refutes_gdp(correct: int, guesses: int, trials: int, mu: float, chance: float) -> bool:
    """Whether `correct` or more correct guesses have a probability below `chance` under every mu-GDP algorithm.

    Mahloujifar, Melis, Chaudhuri 2024, Algorithm 3, for W correct of r guesses about m records, each in or out by a
    fair coin. With p_w = P[W = w], let

        R_v = sum_{w >= v} w p_w / m           (a record is guessed right, and at least v guesses are right)
        H_v = sum_{w >= v} (r - w) p_w / m     (a record is guessed wrong, and at least v guesses are right).

    Tossing the coin of one record again turns a wrong guess into a right one. So f-DP says R_v <= 1 - f(H_{v-1}), which
    is H_{v-1} >= Phi(Phi^-1(R_v) - mu) for mu-GDP. From P[W >= v] = chance, at v = `correct`, this forces least values
    of R and H down to v = 0. But R_0 + H_0 = r / m; if the least values add up to more, the chance was too large.
    """
    right, wrong, most = chance * correct / trials, chance * (guesses - correct) / trials, guesses / trials
    for v in range(correct - 1, -1, -1):
        least = float(ndtr(ndtri(right) - mu))
        if least <= wrong:  # then nothing below changes either
            return False
        right += v / (guesses - v) * (least - wrong)
        wrong = least
        if right + wrong > most:
            return True
    return False


def one_run_mu(correct: int, guesses: int, trials: int, confidence: float) -> float:
    """Largest mu, to 10^-6, that is refuted at `confidence`; 0 if there is none, at most `LARGEST_MU`."""
    return _largest(lambda mu: refutes_gdp(correct, guesses, trials, mu, 1 - confidence), LARGEST_MU)
