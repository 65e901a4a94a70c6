"""DPSGD-F: move the origin of feature space to a private mean, then DP-SGD.

Sun, Suresh, Menon, "The importance of feature preprocessing for differentially private linear optimization", ICLR 2024,
Algorithm 3 (`practical`) and Algorithm 2 (`theory`, in dpsgd_f_theory.py).

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
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from linprobe.data.preprocessing import SHORTEST_ROW
from linprobe.data.rows import Rows
from linprobe.gradients.loss import Weights
from linprobe.methods import dpsgd_f_theory
from linprobe.methods._base import Fitted, Method, Problem, Run, Sampling, Share, initial_weights
from linprobe.methods._descent import Descent
from linprobe.methods.private_mean import MEAN, released_mean
from linprobe.options import DescentOptions, DPSGDFOptions
from linprobe.options.declaration import refuse_idle

MEAN_SHARE = 0.05  # of epsilon


def resolve(options: DPSGDFOptions, has_public: bool) -> DPSGDFOptions:
    """`auto`: the public mean where there are public rows, unless a share of epsilon for the private one was given."""
    given = options.feature_epsilon_share is not None
    if options.centre != "auto" or options.variant == "theory" or given or not has_public:
        return options
    return replace(options, centre="public")


def shares(options: DPSGDFOptions) -> tuple[Share, ...]:
    """Parts of the budget for releases before the descent."""
    if options.variant == "theory":
        return dpsgd_f_theory.SHARES
    if options.centre == "public":
        return ()
    share = options.feature_epsilon_share
    return (Share(MEAN, MEAN_SHARE if share is None else share),)


def centre_of(problem: Problem, options: DPSGDFOptions, run: Run) -> Weights:
    """Line 1: mu_hat, shape (n_features,)."""
    if options.centre == "public":
        public = problem.public_rows
        return np.asarray(sum(block.x.sum(axis=0, dtype=np.float64) for block in public.blocks()) / public.n_rows)
    return released_mean(problem.private_rows, run.mechanism, run.schedule.others[MEAN], run.group, run.backend)


def translated_start(problem: Problem, options: DescentOptions, shift: Weights, column: float) -> Weights:
    """W_1 for translated rows: their public optimum, or weights with the scores of x under those of `options.init`."""
    if problem.public is not None and options.init in ("auto", "public"):
        public = problem.public.translated(shift, column)
        moved = replace(problem, n_features=public.n_features, public=public)
        return initial_weights(
            moved, init="public", weight_decay=options.weight_decay, text_scale=1, loss=problem.loss(options.loss)
        )
    start = initial_weights(
        problem,
        init=options.init,
        weight_decay=options.weight_decay,
        text_scale=options.text_scale,
        loss=problem.loss(options.loss),
    )
    return np.concatenate([start, (shift @ start)[None] / column])


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


def fit(problem: Problem, options: DPSGDFOptions, run: Run) -> Fitted:
    """Train; shapes and guarantee as the module's docstring says."""
    if options.variant == "theory":
        refuse_idle(options, ("centre", "feature_epsilon_share", "bias_scale", "clip_norm"), "variant theory")
        shift, column = dpsgd_f_theory.ball(problem.private_rows, run)
        private: Rows = dpsgd_f_theory.feature_clipped(problem.private_rows.translated(shift, column), column)
        return descend(private, problem, options, run, shift=shift, column=column, clip=2 * column)
    if options.centre == "public":
        refuse_idle(options, ("feature_epsilon_share",), "centre public")
    shift = centre_of(problem, options, run)
    private = problem.private_rows.translated(shift, options.bias_scale)
    return descend(private, problem, options, run, shift=shift, column=options.bias_scale, clip=options.clip_norm)


METHOD = Method(
    summary="rows moved to a private mean, then dp-sgd",
    paper="Sun et al. 2024 (DPSGD-F), Algorithms 2 and 3",
    options=DPSGDFOptions,
    fit=fit,
    needs=("private",),
    centres=False,
    sampling=Sampling(),
    resolve=resolve,
    shares=shares,
    weighs=True,
)
