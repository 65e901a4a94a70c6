"""DP-Newton: Newton steps from one noisy release of the gradient and of each class's Hessian.

Mehta, Krichene, Thakurta, Kurakin, Cutkosky, "Differentially Private Image Classification from Features", TMLR 2023
(arXiv 2211.13403), DP-Newton, on softmax regression.

    1  W_1 <- init
    2  for t = 1..T:
    3      z_i        <- (g_i(W_t), s q_i1 x_i x_i^T, .., s q_iC x_i x_i^T),  q_ic = p_ic (1 - p_ic)
    4      (G, s H_c) <- sum_i clip_tau(z_i) + N(0, sigma^2 tau^2 I)                             (`newton_sum`)
    5      H_c        <- V max(diag(d), 0) V^T,  V diag(d) V^T = H_c
    6      W_c        <- W_c - w (1 - 1/C) (H_c + lambda I)^-1 (G_c + weight decay (W_c - W_ref,c)), each class c
    7  return the last iterate

| paper   | code                                       |  | paper | code             |
| ------- | ------------------------------------------ |  | ----- | ---------------- |
| lambda  | weight_decay + noise_ridge * noise in H_c  |  | sigma | noise_multiplier |
| s       | tau sqrt(hessian_share) / LARGEST_Q        |  | tau   | clip_norm        |

`noise in H_c` is sigma tau sqrt(2 D) / s, the spectral norm of the noise, about. ||q||^2 = sum_c p_c^2 (1 - p_c)^2 is
at most 4/27 sum_c p_c, as p (1 - p)^2 is at most 4/27: this is LARGEST_Q^2. So the Hessians of a row of length 1 take
at most `hessian_share` of the squared clip norm.

Each row of C blocks of the full Hessian has the block q_c x x^T on the diagonal, and the others sum to it. So the full
Hessian is at most twice its diagonal blocks, and with 1 - 1/C a step without noise does not diverge near the optimum.
At equal probabilities, as from zero weights, the full Hessian is C / (C - 1) times the blocks, and line 6 is its step.

w is 1 from zero weights. From a start with knowledge it is the weight of the private rows (_descent.py), so that a
small budget keeps the start.

The paper has a sigmoid for each class, releases G and the Hessians apart, and bounds the Hessians of all classes by
sqrt(C) / 4 instead of 0.385. Its features are clipped to a norm; here the summands are.

Guarantee: sqrt(T) / sigma - Gaussian DP under zero-out adjacency.
"""

import math

import numpy as np

from linprobe.gradients.second_order import lower_triangle, newton_sum, parts_of
from linprobe.methods._base import Fitted, Iterates, Method, Problem, PublicFacts, Run, check_memory, starting_point
from linprobe.methods._descent import private_weight
from linprobe.options import NEWTON_STEPS, DPNewtonOptions
from linprobe.parallel.array_api import Reals

LARGEST_Q = 2 / math.sqrt(27)
BYTES = 24  # per class and squared number of features: the sums, packed, noised, and a copy


def fit(problem: Problem, options: DPNewtonOptions, run: Run) -> Fitted:
    """Train, as the module's docstring says. UsageError: as `check_hessians`, after the rows have taken memory."""
    private, tau, n_features, n_classes = problem.private_rows, options.clip_norm, problem.n_features, problem.n_classes
    check_hessians(options, PublicFacts(run.schedule.n_steps, n_features, n_classes))
    scale = hessian_scale(options)
    noise = run.schedule.noise_multiplier * tau * math.sqrt(2 * n_features) / scale
    ridge = options.weight_decay + options.noise_ridge * noise
    weights, reference = starting_point(problem, options)
    factor = (1 - 1 / n_classes) * (private_weight(problem, run.schedule) if np.any(weights) else 1.0)
    iterates = Iterates(weights, run.schedule.n_steps, "last")
    for _ in run.steps(iterates):
        sums = newton_sum(private, iterates.weights, tau, scale, all_reduce=run.group.all_reduce)
        released = run.mechanism.release(sums, run.schedule.noise_multiplier, purpose="gradient")
        gradient, hessians = parts_of(released, n_features, n_classes)
        gradient = gradient + options.weight_decay * (iterates.weights - reference)
        directions = (
            _solved(packed / scale, ridge, column) for packed, column in zip(hessians, gradient.T, strict=True)
        )
        step = factor * np.stack(list(directions), axis=1)
        iterates.move(iterates.weights - step, clip_norm=tau, ridge=ridge)
    return Fitted(iterates.result(), iterates.history, start=iterates.start)


def hessian_scale(options: DPNewtonOptions) -> float:
    """s of the table above."""
    return options.clip_norm * math.sqrt(options.hessian_share) / LARGEST_Q


def _solved(packed: Reals, ridge: float, column: Reals) -> Reals:
    """Lines 5 and 6 for one class: (H + ridge I)^-1 column, with the eigenvalues of H at least 0."""
    values, vectors = np.linalg.eigh(lower_triangle(packed[:, None], len(column)))
    return np.asarray(vectors @ ((vectors.T @ column) / (np.maximum(values, 0.0) + ridge)))


def check_hessians(options: DPNewtonOptions, facts: PublicFacts) -> None:
    """UsageError if the Hessians need more than half of the free memory."""
    n_features, n_classes = facts.n_features, facts.n_classes
    check_memory(
        f"{n_classes} Hessians of {n_features} features",
        BYTES * n_classes * n_features**2,
        "use dp-fc, which has one such matrix for all classes",
    )


METHOD = Method(
    summary="Newton steps on noisy gradients and noisy Hessians",
    paper="Mehta et al. 2023 (DP-Newton)",
    options=DPNewtonOptions,
    fit=fit,
    needs=("private",),
    n_steps=NEWTON_STEPS,
    check=check_hessians,
)
