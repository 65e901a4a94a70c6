"""Refinement: public rows without labels correct the weights of a finished probe. Post-processing, so it costs nothing.

The rows U lie in groups, and the noise in the weights does not depend on the groups. Labels spread over the graph of
their neighbours, each class keeps its share of the rows, and one linear correction V is fitted to the result:

    x = (u - mean) / mean norm, L = class scores of the probe on U, P = softmax(2 L)
    pi = class shares: (1 - h) mean of P + h / n_classes, h the part of their spread that noise explains,
         at most 3/4, and at most the part of the rows that has no clear class
    A  = cubed cosines of the 5 nearest neighbours in U, symmetric, A_ij / sqrt(d_i d_j)
    Z  = mass(P);  4 times:  Y = spread(Z),  Z = mass(softmax(1.5 log Y + L))
    V  = argmin mean cross-entropy of L + x V against Z, + ridge / 2 |V|^2;  scores become L + strength x V

A second pass takes these scores as L, finds pi, Z and V for them, and adds (c strength)^2 b x V, where

    b = (n / n_classes - 3) / 7, between 0 and 1: of few rows, a second pass repeats the errors of the first

    spread(Z): 20 rounds of Y <- a A Y + (1 - a) Z, Y_0 = Z     mass(Z): columns to sum n pi, rows to sum 1, 5 rounds
    a = 0.9 up to 65 rows per class, 0.8 from 100, and 0.9 for a run without private rows: of many rows of a class,
        the nearest ones say enough, and the next of other classes blur it

Rows that are predicted together get the classes Z of the first pass. Their class shares may differ from the shares in
training, and a class may be missing. So there mass(Z) multiplies a column by (n pi / its sum)^0.2 only. L is weighted
by the mean of the largest softmax(L), at least by 1/2: scores of a noisy run say less than the neighbours. Noise moves
rows to other classes, and so makes shares unequal. Missing classes make shares unequal too, but move few rows. So Z is
made anew with

    exponent 0.2 (1 + e),    pi (1 - e / 2) + e / 2 pi_0    pi_0: shares in training by noisy counts, or equal ones
    e = c times (sqrt(m) / d - 4.1) / 1.2, the latter between 0 and 1
    m = part of the rows whose class by Z is not the class by L
    d = KL(mean Z, pi_0) / log n_classes
    c = min(1, (n_classes - 1) / 9): of few classes, noise finds few wrong ones

With one row per class, no row has a neighbour of its own class, so there strength *= (n / n_classes - 1) / 2, between 0
and 1.

The rows of U may lie in groups that are not classes. Then the scores change inside the groups, from neighbour to
neighbour, more than noise makes them change. So for all rows, predicted together or not,

    h  = sum_c L_c' A L_c / sum_c |L_c|^2        L centred by rows and by columns
    h0 = sum_ij A_ij <x_i, x_j> / sum_i |x_i|^2        the same for the scores of random weights
    strength *= (h / h0 - 0.95) / 0.05, between 0 and 1

Sources: label propagation (Zhou, Bousquet, Lal, Weston, Schölkopf 2004, "Learning with Local and Global Consistency");
class mass (Zhu, Ghahramani, Lafferty 2003), balanced by the iteration of Sinkhorn and Knopp (1967); self-training of a
linear head on soft labels; h: autocorrelation over neighbours (Moran 1950, "Notes on continuous stochastic
phenomena"). The strength follows from public facts:

    r = n_classes / (N mu): noise over signal of the sum of a class, N private units, mu = signal over noise of the run
    strength = min(1, c^2 r / 0.03)
    strength *= 2 - s / t, between 0 and 1        s: part of the scores that all rows of U share
    t = min(0.23, 0.05 + 1.6 r); 0.5 for a run on rows that were not centred

so a run with little noise stays as it is: unlabelled rows could only blur its weights. If the rows of U are like the
training rows, their scores differ from row to row. If most rows of U get the same scores, they are of another kind, and
the strength is small.

New weights have to predict other rows than U. So they change only if the class shares q of U are like the shares in
training:

    strength *= (exp(-sum q log(q / pi_0)) - 0.7) / 0.15, between 0 and 1

with q the mean of Z at the exponent 0.2.
Rows of another kind, or of few of the classes, are predicted in few classes. Few rows say little about other rows:

    strength *= n / 300, at most 1

Public shots come from the training rows. So if the run has any, the share of them near U tells more
(`linprobe.methods.similar_rows`), with bounds for their number:

    strength *= (most - 0.6) / 0.15, between 0 and 1
    strength is at least min(1, c^2 r / 0.03) (least - 0.6) / 0.15, whatever s and q are

A method that reads no private row has no lower bound, and without shots all labelled public rows count as such.

Training with U on private rows also releases a noisy number of private rows near U. The share of these rows
takes the place of the share of the public shots, and of the factors of s and q. It then releases how many private rows
more the new weights label right (`linprobe.mechanisms.correct_predictions`); if that tells of harm, the strength is 0.
The nearest rows correct noise only if they differ from the row, so that the noise in their scores does. So the expected
gain falls with the mean cosine of a row and its 5 nearest ones:

    m = 0.02 (1 - 2 f)        f = (cosine - 0.85) / 0.05, between 0 and 1

Without that release, strength *= 1 - f for a run on private rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linprobe.accounting.events import HISTOGRAM, TEST_ACCURACY, Releases
from linprobe.data.blocks import Source, normalise_rows
from linprobe.errors import UsageError
from linprobe.mechanisms.correct_predictions import GAIN, USUAL_GAIN, NoisyGain
from linprobe.mechanisms.score_histogram import TEST_AUROC
from linprobe.methods import Method
from linprobe.methods.class_counts import CLASS_COUNTS
from linprobe.methods.similar_rows import SIMILAR_ROWS, NearShots
from linprobe.parallel.threads import blas_held_to_one_thread, blas_module
from linprobe.runs.figures import class_scores, softmax

NEIGHBOURS, POWER = 5, 3
SPREAD_ROUNDS, MASS_ROUNDS, OUTER_ROUNDS = 20, 5, 4
SPREAD, SPREAD_OF_MANY, SOME_ROWS, MANY_ROWS = 0.9, 0.8, 65, 100  # a, and the rows per class that decide it
FIRST_SHARPNESS, NEXT_SHARPNESS = 2.0, 1.5
LEAST_RIDGE, PRIOR_ROWS = 1e-4, 0.2  # the ridge is PRIOR_ROWS / n for few rows
FULL_NOISE, ENOUGH_ROWS = 0.03, 300  # r and rows from which refinement has its full strength
SHARE_ERROR = 11.0  # error of a class share in units of 1 / (N mu): of counts that cost 1 % of mu^2 or so
MOST_UNIFORM = 0.75
MANY_CLASSES = 10  # from which the strength does not depend on their number
PULL_TOGETHER, LEAST_WEIGHT = 0.2, 0.5
FEW, ENOUGH = 1, 3  # rows per class that are predicted together: no refinement, and all of it
FEW_AGAIN, ENOUGH_AGAIN = 3, 10  # rows per class: no second pass, and all of it
DIFFERENT, ALIKE = 0.85, 0.9  # mean cosines for m = 0.02 and -0.02
MISSING, NOISY = 4.1, 5.3  # sqrt(m) / d: classes are missing, and noise alone explains the shares
OTHER_SHARES, LIKE_SHARES = 0.7, 0.85  # exp(-divergence) of predicted shares: no refinement, and all of it
NO_CLASSES, OF_CLASSES = 0.95, 1.0  # h / h0: no refinement, and all of it
SAME_SCORES, SAME_SCORES_PER_NOISE, MOST_SAME_SCORES, SAME_UNCENTRED = 0.05, 1.6, 0.23, 0.5
OTHER_KIND, ONE_KIND = 0.6, 0.75  # shares of private rows or shots near unlabelled ones: no refinement, and all of it
MOST_ROWS, MOST_SCORES, BLOCK_SCORES = 20_000, 20_000_000, 1 << 23
ITERATIONS = 60
AT_ONCE = 256  # columns
LEAST_ROWS = 2
SHORTEST, TINY = 1e-6, 1e-12
NOT_OF_WEIGHTS = (TEST_ACCURACY, TEST_AUROC, HISTOGRAM, CLASS_COUNTS, SIMILAR_ROWS, GAIN)

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Known:
    """What is public about the noise of a run: private units, and signal over noise of all releases behind the weights.

    `similar` is a lower bound on the share of private units near unlabelled rows, `near_shots` counts public shots near
    them, and `class_shares` are pi_0 of the private rows, by noisy counts; each is None without its release or rows.
    """

    n_units: int
    mu: float
    centred: bool = True
    similar: float | None = None
    near_shots: NearShots | None = None
    class_shares: NDArray[np.float64] | None = None

    def noise(self, n_classes: int) -> float:
        """r: noise over signal of the sum of a class."""
        return n_classes / (self.n_units * self.mu) if self.n_units and self.mu else math.inf


def mu_of_weights(releases: Iterable[Releases]) -> float:
    """mu of the releases of a ledger that the weights depend on, as in `Known`."""
    of_weights = (one for one in releases if one.purpose not in NOT_OF_WEIGHTS)
    return math.sqrt(sum(one.count * (one.sampling_rate / one.noise_multiplier) ** 2 for one in of_weights))


@dataclass(frozen=True)
class Refined:
    """A refined probe for L2-normalised raw rows, float32, and `scores` (n, n_classes) of the unlabelled rows.

    `expected_gain`: the share of rows by which accuracy is expected to rise, before private rows are asked.
    """

    weights: NDArray[np.float32]
    bias: NDArray[np.float32]
    scores: Matrix
    strength: float
    near_shots: NearShots | None = None
    expected_gain: float = USUAL_GAIN

    def after(
        self, gain: NoisyGain | None, n_units: int, weights: NDArray[np.float32], bias: NDArray[np.float32]
    ) -> Refined:
        """This refinement, or the `weights` and `bias` before it if a `gain` on `n_units` units says that it harms."""
        if gain is None or not gain.harms(n_units):
            return self
        return replace(self, weights=weights, bias=bias, strength=0.0)


def unrefinable(method: Method, *, votes: bool, several_labels: bool) -> str | None:
    """Why rows without labels cannot refine a probe; None if they can."""
    if not method.private:
        return f"method {method.name} adds no noise, which is what they correct"
    if several_labels:
        return "its rows have several labels each, and the rule needs one class a row"
    return "it votes, and the rule needs one set of weights" if votes else None


@blas_held_to_one_thread()
def refined_weights(
    rows: NDArray[np.floating],
    weights: NDArray[np.float32],
    bias: NDArray[np.float32],
    known: Known,
    class_shares: Sequence[float] | NDArray[np.float64] | None = None,
    *,
    shift: NDArray[np.float64] | float = 0.0,
    together: bool = False,
) -> Refined:
    """Refine a probe on unlabelled public rows. Reads no other row; the same on every call on one machine.

    Guarantee: post-processing. The result is a function of public rows, of released weights and of public facts, so it
    has the guarantee of the run, under the same adjacency.

    Args:
        rows: raw, (n, n_features), as `gathered` reads them. class_shares: of `rows`, (n_classes,), if known.
        shift: what `bias` was moved by for other class shares, (n_classes,) or 0. The rule reads the bias before it.
        together: for predictions of these rows; their classes may lack, or have other shares than in training.
    Raises UsageError: shares that are no distribution.
    """
    unit = normalise_rows(np.asarray(rows, dtype=np.float32))
    scores = class_scores(unit, weights, bias) - shift
    mean = unit.mean(axis=0, dtype=np.float64)
    centred = (unit - mean.astype(np.float32)).astype(np.float32)
    norm = float(np.linalg.norm(centred, axis=1).mean())
    n_classes = len(bias)
    given = None if class_shares is None else _checked_shares(class_shares, n_classes)
    counted = known.class_shares if given is None else given
    expected = np.full(n_classes, 1 / n_classes) if counted is None else counted

    def alike() -> float:
        return _between(graph().nearness, DIFFERENT, ALIKE)

    @cache
    def graph() -> _Graph:
        many = _between(len(unit) / n_classes, SOME_ROWS, MANY_ROWS) if math.isfinite(known.noise(n_classes)) else 0.0
        return _Graph(*_neighbours(normalise_rows(centred)), SPREAD + (SPREAD_OF_MANY - SPREAD) * many)

    def like_shares() -> float:
        own = _propagated(graph(), scores, _shares(scores, known), PULL_TOGETHER).mean(axis=0)
        return _like_shares(own, expected)

    def likely(current: Matrix) -> Matrix:
        shares = _shares(current, known) if given is None else given
        return _joint(graph(), current, shares, expected) if together else _propagated(graph(), current, shares, 1.0)

    strength = 0.0
    if len(unit) >= LEAST_ROWS and norm > SHORTEST:
        if together:
            strength = _between(len(unit) / n_classes, FEW, ENOUGH) * _strength(scores, known)
        else:
            strength = min(1.0, len(unit) / ENOUGH_ROWS) * _strength(scores, known, like_shares, alike)
        strength = strength and strength * _of_classes(graph().neighbours, centred, scores)
    if not strength:
        return Refined(weights, bias, scores + shift, strength, known.near_shots)
    again = 0.0
    if not together:
        again = (_many(n_classes) * strength) ** 2 * _between(len(unit) / n_classes, FEW_AGAIN, ENOUGH_AGAIN)
    update, blended = _passes(centred / np.float32(norm), scores, likely, (strength, again))
    update /= norm
    bias = (bias - mean @ update).astype(np.float32)
    gain = USUAL_GAIN * (1 - 2 * alike())
    weights = (weights + update).astype(np.float32)
    return Refined(weights, bias, blended + shift, strength, known.near_shots, gain)


def gathered(
    blocks: Iterable[NDArray[np.floating]], n_rows: int, n_features: int, n_classes: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Raw rows for `refined_weights`, (n_used, n_features), all or evenly spaced, and their places, (n_used,)."""
    most = min(MOST_ROWS, max(LEAST_ROWS, MOST_SCORES // n_classes))
    n = min(n_rows, most)
    places = np.arange(n, dtype=np.int64) * n_rows // n
    found, start, done = np.empty((n, n_features), np.float32), 0, 0
    for x in blocks:
        stop = int(np.searchsorted(places, start + len(x)))
        found[done:stop] = x[places[done:stop] - start]
        start, done = start + len(x), stop
    return found, places


def unlabelled_rows(source: Source, n_classes: int) -> NDArray[np.float32]:
    return gathered((x for x, _ in source.blocks()), source.n_rows, source.n_features, n_classes)[0]


def _passes(
    x: NDArray[np.float32], scores: Matrix, likely: Callable[[Matrix], Matrix], strengths: Iterable[float]
) -> tuple[Matrix, Matrix]:
    """The sum of strength V (n_features, n_classes) over passes, 0 for none, and scores drawn to log Z (`likely`)."""
    update, current, blended = np.zeros((x.shape[1], scores.shape[1])), scores, scores
    for strength in filter(None, strengths):
        wanted = likely(current)
        change = strength * _fitted(x, current, wanted)
        blended = (1 - strength) * blended + strength * np.log(wanted.clip(TINY))
        current = current + x @ change.astype(np.float32)
        update += change
    return update, blended


@dataclass(frozen=True)
class _Graph:
    """A of n rows, sparse, (n, n), the mean cosine of a row and its nearest ones, and a."""

    neighbours: Any
    nearness: float
    a: float

    def spread(self, likely: Matrix) -> Matrix:
        around = likely
        for _ in range(SPREAD_ROUNDS):
            around = self.a * (self.neighbours @ around) + (1 - self.a) * likely
        return around


def _joint(graph: _Graph, scores: Matrix, shares: NDArray[np.float64], expected: NDArray[np.float64]) -> Matrix:
    """Z of rows that are predicted together, (n, n_classes). `shares` are pi, `expected` are pi_0."""
    weight = max(LEAST_WEIGHT, float(softmax(scores).max(axis=1).mean()))
    likely = _propagated(graph, scores, shares, PULL_TOGETHER, weight)
    moved = float((likely.argmax(axis=1) != scores.argmax(axis=1)).mean())
    unlike = _divergence(likely.mean(axis=0), expected) / math.log(len(shares))
    alike = _many(len(shares)) * _between(math.sqrt(moved) / max(unlike, TINY), MISSING, NOISY)
    if not alike:
        return likely
    nearer = (1 - alike / 2) * shares + alike / 2 * expected
    return _propagated(graph, scores, nearer, PULL_TOGETHER * (1 + alike), weight)


def _propagated(graph: _Graph, scores: Matrix, shares: NDArray[np.float64], pull: float, weight: float = 1.0) -> Matrix:
    """Z, (n, n_classes); `pull` is the exponent of the factors that move classes towards their shares."""
    likely = _mass(softmax(FIRST_SHARPNESS * scores), shares, pull)
    for _ in range(OUTER_ROUNDS):
        around = graph.spread(likely)
        around = around / around.sum(axis=1, keepdims=True).clip(TINY)
        likely = _mass(softmax(NEXT_SHARPNESS * np.log(around.clip(TINY)) + weight * scores), shares, pull)
    return likely


def _between(value: float, none: float, whole: float) -> float:
    return min(1.0, max(0.0, (value - none) / (whole - none)))


def part_by_share(share: float | None) -> float:
    """Factor of the strength, from 0 to 1, by the share of rows near unlabelled ones; 1 if none was counted."""
    return 1.0 if share is None else _between(share, OTHER_KIND, ONE_KIND)


def _many(n_classes: int) -> float:
    return min(1.0, (n_classes - 1) / (MANY_CLASSES - 1))


def _strength(
    scores: Matrix,
    known: Known,
    like_shares: Callable[[], float] = lambda: 1.0,
    alike: Callable[[], float] = lambda: 0.0,
) -> float:
    n_classes, shots = scores.shape[1], known.near_shots
    noise = known.noise(n_classes)
    full = min(1.0, _many(n_classes) ** 2 * noise / FULL_NOISE)
    if known.similar is not None:
        return full * part_by_share(known.similar)
    proved = 0.0 if shots is None or not math.isfinite(noise) else full * part_by_share(shots.least)
    if shots is not None:
        full *= part_by_share(shots.most)
    centred = scores - scores.mean(axis=1, keepdims=True)
    same = float((centred.mean(axis=0) ** 2).sum() / max((centred**2).sum(axis=1).mean(), TINY))
    allowed = min(MOST_SAME_SCORES, SAME_SCORES + SAME_SCORES_PER_NOISE * noise) if known.centred else SAME_UNCENTRED
    seen = full * min(1.0, max(0.0, 2 - same / allowed))
    strength = max(proved, seen * like_shares()) if seen > proved else proved
    return strength * (1 - alike()) if strength and math.isfinite(noise) else strength


def _of_classes(neighbours: Any, centred: NDArray[np.float32], scores: Matrix) -> float:
    """Factor of the strength, from 0 to 1: whether neighbours agree on `scores` as much as on noise."""
    of_rows = scores - scores.mean(axis=1, keepdims=True)
    h, h0 = _agreement(neighbours, of_rows - of_rows.mean(axis=0)), _agreement(neighbours, centred)
    return _between(h / max(h0, TINY), NO_CLASSES, OF_CLASSES)


def _agreement(neighbours: Any, x: NDArray[np.floating]) -> float:
    """sum_ij A_ij <x_i, x_j> / sum_i |x_i|^2 of rows x (n, d)."""
    near = own = 0.0
    for start in range(0, x.shape[1], AT_ONCE):
        part = x[:, start : start + AT_ONCE].astype(np.float64)
        near += float(np.vdot(part, neighbours @ part))
        own += float(np.vdot(part, part))
    return near / max(own, TINY)


def _like_shares(own: NDArray[np.float64], expected: NDArray[np.float64]) -> float:
    return _between(math.exp(-_divergence(own, expected)), OTHER_SHARES, LIKE_SHARES)


def _divergence(own: NDArray[np.float64], expected: NDArray[np.float64]) -> float:
    return float(np.sum(own * np.log(own.clip(TINY) / expected.clip(TINY))))


def _shares(scores: Matrix, known: Known) -> NDArray[np.float64]:
    """Shares of the classes: the probe's own, drawn towards equal ones by the share of their spread that is noise."""
    n_classes = scores.shape[1]
    own = softmax(FIRST_SHARPNESS * scores).mean(axis=0)
    likely = softmax(scores)
    most = min(MOST_UNIFORM, 1 - float(likely.max(axis=1).mean()))  # rows of a clear class need no help
    spread = float(((likely.mean(axis=0) - 1 / n_classes) ** 2).mean())
    noise = (SHARE_ERROR * known.noise(n_classes) / n_classes) ** 2 * (1 - 1 / n_classes)  # of shares with sum 1
    equal = most if noise >= most * spread else noise / spread
    return np.asarray(equal / n_classes + (1 - equal) * own)


def _checked_shares(given: Sequence[float] | NDArray[np.float64], n_classes: int) -> NDArray[np.float64]:
    shares = np.asarray(given, dtype=np.float64)
    if shares.shape != (n_classes,) or not (np.isfinite(shares).all() and (shares >= 0).all() and shares.sum() > 0):
        raise UsageError(f"class shares have shape {shares.shape}; allowed: {n_classes} numbers from 0 on, not all 0")
    return np.asarray(shares / shares.sum())


def _neighbours(x: NDArray[np.float32]) -> tuple[Any, float]:
    """A: sparse, (n, n), and the mean cosine."""
    from scipy import sparse  # scipy would slow down every command

    n, k = len(x), min(NEIGHBOURS, len(x) - 1)
    near, cosines = np.empty((n, k), np.int64), np.empty((n, k), np.float64)
    at_once = max(1, BLOCK_SCORES // n)
    for start in range(0, n, at_once):
        block = x[start : start + at_once] @ x.T
        rows = np.arange(len(block))
        block[rows, start + rows] = -2  # no row is its own neighbour
        found = np.argpartition(block, -k, axis=1)[:, -k:]
        near[start : start + at_once], cosines[start : start + at_once] = found, np.take_along_axis(block, found, 1)
    places = (np.repeat(np.arange(n), k), near.ravel())
    graph = sparse.csr_matrix(((cosines.clip(0) ** POWER).ravel(), places), shape=(n, n))
    graph = graph.maximum(graph.T)
    degree = np.asarray(graph.sum(axis=1)).ravel()
    scale = sparse.diags(np.divide(1, np.sqrt(degree), out=np.zeros(n), where=degree > 0))
    return (scale @ graph @ scale).tocsr(), float(cosines.mean())


def _mass(likely: Matrix, shares: NDArray[np.float64], pull: float) -> Matrix:
    for _ in range(MASS_ROUNDS):
        likely = likely * (len(likely) * shares / likely.sum(axis=0).clip(TINY)) ** pull
        likely = likely / likely.sum(axis=1, keepdims=True).clip(TINY)
    return likely


def _fitted(x: NDArray[np.float32], scores: Matrix, likely: Matrix) -> Matrix:
    """V, (n_features, n_classes), by L-BFGS. Products are in float32, sums in float64."""
    n, shape = len(x), (x.shape[1], scores.shape[1])
    ridge = max(LEAST_RIDGE, PRIOR_ROWS / n)
    start, wanted = scores.astype(np.float32), likely.astype(np.float32)

    def objective(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        update = flat.reshape(shape)
        current = start + x @ update.astype(np.float32)
        current -= current.max(axis=1, keepdims=True)
        own = np.einsum("ic,ic->", wanted, current, dtype=np.float64)
        np.exp(current, out=current)
        sums = current.sum(axis=1, keepdims=True)
        value = float(np.log(sums).sum(dtype=np.float64) - own) / n
        current /= sums
        current -= wanted
        gradient = (x.T @ current).astype(np.float64) / n + ridge * update
        return value + ridge / 2 * float((update**2).sum()), gradient.ravel()

    options: dict[str, Any] = {"maxiter": ITERATIONS, "maxcor": 10, "gtol": 1e-6, "ftol": 1e-8}
    minimize = blas_module("scipy.optimize").minimize
    found = minimize(objective, np.zeros(shape[0] * shape[1]), jac=True, method="L-BFGS-B", options=options)
    return np.asarray(found.x, dtype=np.float64).reshape(shape)
