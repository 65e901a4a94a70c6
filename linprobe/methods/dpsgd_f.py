"""DPSGD-F: move the origin of feature space to a private mean, then DP-SGD.

Sun, Suresh, Menon, "The importance of feature preprocessing for differentially private linear optimization", ICLR 2024,
Algorithm 3 (`practical`) and Algorithm 2 (`theory`).

    1  mu_hat <- 1/N (sum_i x_i + N(0, sigma_F^2 C_F^2 I)),  C_F = 1, the norm of every row; or the public mean, free
       mu_hat <- m / (m + n) mu_hat,  n = d sigma_F^2 / N^2,  m = ||mu_hat||^2 - n, at least 0 and at most 1
    2  x'_i   <- (x_i - mu_hat, tau)
    3  theta  <- DP-SGD on x' with clip C_G and what is left of the budget
    4  return w = theta[1:d],  b = theta[d+1] tau - mu_hat . w

| paper   | code           |  | paper     | code                  |
| ------- | -------------- |  | --------- | --------------------- |
| C_G     | clip_norm      |  | epsilon_F | feature_epsilon_share |
| tau     | bias_scale     |  | sigma_F   | schedule.others["mean"] |

The paper omits the factor 1/N of the noise. N is public. Guarantee: one Gaussian mechanism and the T-fold
Poisson-subsampled one of `dp-sgd`, composed by one accountant.

Variant `theory` is the preprocessing of Algorithm 2, lines 1 to 4, with quantile 0.9 in place of the rank of its Lemma
4, which small data sets do not have: an instance-optimal private mean, as in
Huang, Liang, Yi, "Instance-optimal Mean Estimation Under Differential Privacy", NeurIPS 2021, and a private quantile of
distances.

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

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from linprobe.data.blocks import SHORTEST_ROW, Block, row_norms
from linprobe.data.rows import Rows
from linprobe.gradients.clipped_sum import Reduce, row_sum
from linprobe.gradients.loss import Weights
from linprobe.mechanisms.gaussian import ClippedSum
from linprobe.methods._base import Fitted, Method, Problem, Run, Share, public_generator, starting_point
from linprobe.methods._descent import Descent
from linprobe.methods.private_mean import MEAN, released_mean, text_mean
from linprobe.options import DescentOptions, DPSGDFOptions
from linprobe.parallel.array_api import Mask

MEAN_SHARE = 0.15  # of epsilon
ROUNDS = 10
QUANTILE = 0.9
SMALLEST_RADIUS = 1e-3
THEORY_SHARES = (
    Share("median", 1 / 9, ROUNDS),
    Share("radius", 1 / 9, ROUNDS),
    Share("mean", 1 / 9),
    Share("quantile", 1 / 3, ROUNDS),
)


def resolve(options: DPSGDFOptions, has_public: bool) -> DPSGDFOptions:
    """`auto`: the public mean where there are public rows, unless a share of epsilon for the private one was given."""
    given = options.feature_epsilon_share is not None
    if options.centre != "auto" or options.variant == "theory" or given or not has_public:
        return options
    return replace(options, centre="public")


def shares(options: DPSGDFOptions) -> tuple[Share, ...]:
    """Parts of the budget for releases before the descent."""
    if options.variant == "theory":
        return THEORY_SHARES
    if options.centre == "public":
        return ()
    share = options.feature_epsilon_share
    return (Share(MEAN, MEAN_SHARE if share is None else share),)


def centre_of(problem: Problem, options: DPSGDFOptions, run: Run) -> Weights:
    """Line 1: mu_hat, shape (n_features,)."""
    if options.centre == "public":
        public = problem.public_rows
        return np.asarray(sum(block.x.sum(axis=0, dtype=np.float64) for block in public.blocks()) / public.n_rows)
    text = None if problem.public is not None else problem.text_weights
    return released_mean(problem.private_rows, run, text_mean(text))


def translated_start(problem: Problem, options: DescentOptions, shift: Weights, column: float) -> Weights:
    """W_1 for translated rows: their public optimum, or weights that give x the scores of `options.init`."""

    def translated(weights: Weights) -> Weights:
        return np.concatenate([weights, (shift @ weights)[None] / column])

    public = problem.public if options.init in ("auto", "public") else None
    if public is not None:
        public, text = public.translated(shift, column), problem.text_weights
        text = None if text is None else translated(text)
        problem = replace(problem, n_features=public.n_features, public=public, text_weights=text)
    start, _ = starting_point(problem, options, loss=problem.loss(options.loss))
    return start if public is not None else translated(start)


def descend(
    private: Rows, problem: Problem, options: DescentOptions, run: Run, *, shift: Weights, column: float, clip: float
) -> Fitted:
    """Lines 3 and 4 on translated rows; history and guarantee as in DP-SGD."""
    schedule = run.schedule
    start = translated_start(problem, options, shift, column)
    around_mean = replace(problem, centred=True)
    row_norm = math.sqrt(max(SHORTEST_ROW**2, 1 - float(shift @ shift)))  # E ||x - mu||^2 of unit rows
    descent = Descent(around_mean, options, schedule, start=start, clip=clip, row_norm=row_norm)
    for _ in run.steps(descent):
        released = run.gradient(private, descent.weights, clip, loss=problem.loss(options.loss))
        descent.step(released, rate=schedule.sampling_rate)
    weights, bias = _untranslated(descent.result(), shift, column)
    first, first_bias = _untranslated(descent.start, shift, column)
    return Fitted(weights, descent.history, bias, first, first_bias)


def _untranslated(theta: Weights, shift: Weights, column: float) -> tuple[Weights, Weights]:
    """Weights and bias for rows, from weights for translated rows."""
    weights, last = theta[..., :-1, :], theta[..., -1, :]
    return weights, last * column - np.einsum("d,...dc->...c", shift, weights)


def _rotation(n_features: int) -> tuple[Callable[[NDArray[Any]], Weights], Callable[[NDArray[Any]], Weights]]:
    """A fixed orthonormal map of the last axis, and the inverse map."""
    signs = np.where(public_generator().random(n_features) < 0.5, -1.0, 1.0)
    return (
        lambda x: np.asarray(scipy.fft.dct(x * signs, norm="ortho", axis=-1)),
        lambda x: np.asarray(scipy.fft.idct(x, norm="ortho", axis=-1)) * signs,
    )


def _count(rows: Rows, indicators: Callable[[Block], Mask], width: int, all_reduce: Reduce) -> ClippedSum:
    """Number of rows for which each indicator is true, shape (width, 1); `indicators` returns (b, width)."""
    total = np.zeros(width)
    for block in rows.blocks():
        total += indicators(block).sum(axis=0)
    sensitivity = math.nextafter(math.sqrt(width), math.inf)
    return ClippedSum(all_reduce(total)[:, None], sensitivity, np.ones(rows.n_local))


def _noisy_count(rows: Rows, run: Run, purpose: str, indicators: Callable[[Block], Mask], width: int) -> Weights:
    """Noisy number of rows for which each indicator is true, shape (width,)."""
    counts = _count(rows, indicators, width, run.group.all_reduce)
    return run.mechanism.release(counts, run.schedule.others[purpose], purpose=purpose)[:, 0]


def _radius(rows: Rows, run: Run, purpose: str, centre: Weights) -> float:
    """Lines 3 and 5: noisy `QUANTILE` quantile of the distances from `centre`."""
    low, high = 0.0, 2.0
    for _ in range(ROUNDS):
        middle = (low + high) / 2

        def within(block: Block, radius: float = middle) -> Mask:
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

        def below(block: Block, median: Weights = middle) -> Mask:
            return np.asarray(rotate(block.x) < median)

        many = _noisy_count(rows, run, "median", below, rows.n_features) >= rows.n_rows / 2
        low, high = np.where(many, low, middle), np.where(many, middle, high)
    median = rotate_back((low + high) / 2)
    radius = _radius(rows, run, "radius", median)
    total = row_sum(rows, radius, origin=median, all_reduce=run.group.all_reduce)
    released = run.mechanism.release(total, run.schedule.others["mean"], purpose="mean")
    mean = median + released[:, 0] / rows.n_rows
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


def _spread(values: NDArray[Any], mask: Mask) -> NDArray[Any]:
    """`values` where `mask` is true, along the first axis, and zeros elsewhere."""
    expanded = np.zeros((len(mask), *values.shape[1:]), values.dtype)
    expanded[mask] = values
    return expanded


def fit(problem: Problem, options: DPSGDFOptions, run: Run) -> Fitted:
    if options.variant == "theory":
        shift, column = ball(problem.private_rows, run)
        private: Rows = feature_clipped(problem.private_rows.translated(shift, column), column)
        return descend(private, problem, options, run, shift=shift, column=column, clip=2 * column)
    shift = centre_of(problem, options, run)
    private = problem.private_rows.translated(shift, options.bias_scale)
    return descend(private, problem, options, run, shift=shift, column=options.bias_scale, clip=options.clip_norm)


METHOD = Method(
    summary="rows moved to a private mean, then dp-sgd",
    paper="Sun et al. 2024 (DPSGD-F), Algorithms 2 and 3",
    options=DPSGDFOptions,
    fit=fit,
    needs=("private",),
    resolve=resolve,
    shares=shares,
    weighs=True,
)
