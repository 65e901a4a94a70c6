"""DP-FC: full-batch gradient descent, preconditioned by a noisy second moment of the features.

Mehta, Krichene, Thakurta, Kurakin, Cutkosky, "Differentially Private Image Classification from Features", TMLR 2023
(arXiv 2211.13403), DP-FC.

    1  A   <- sum_i x_i x_i^T + noise, eigenvalues up to the size of the noise replaced by their mean   (_directions.py)
    2  P   <- c (A + lambda I)^-1,  lambda = noise ridge (1 + sigma_A sqrt(2 D)),  c^2 = tr A / tr((A + lambda I)^-2 A)
    3  W_1 <- init
    4  for t = 1..T:
    5      G   <- sum_i clip_tau(g_i(W_t)) + N(0, sigma^2 tau^2 I)
    6      W   <- W - eta P (G + weight decay (W - W_ref))
    7  return the last iterate, or a mean or vote of the last n

| paper   | code                          |  | paper  | code             |
| ------- | ----------------------------- |  | ------ | ---------------- |
| sigma_A | schedule.others["covariance"] |  | sigma  | noise_multiplier |
| lambda  | noise_ridge                   |  | tau    | clip_norm        |
| eta     | learning_rate                 |  | W_ref  | reference        |

P acts on released sums: post-processing. With c, the noise of a step has the same mean square in the scores of the rows
as without P: x^T P P x is 1 on average for rows x with E x x^T = A / tr A. So eta follows from the score noise as in
noisy_gd.py. The paper has a sigmoid for each class and clips their gradients together; here the loss is softmax.

Guarantee: mu = sqrt(1 / sigma_A^2 + T / sigma^2) - Gaussian DP under zero-out adjacency.
"""

import math

import numpy as np

from linprobe.methods._base import Fitted, Iterates, Method, Problem, Run, starting_point
from linprobe.methods._descent import step_size
from linprobe.methods._directions import check_covariance, covariance_share, released_covariance
from linprobe.options import DPFCOptions


def fit(problem: Problem, options: DPFCOptions, run: Run) -> Fitted:
    schedule, tau = run.schedule, options.clip_norm
    covariance = released_covariance(problem, run)
    values = covariance.smoothed()
    factors = 1 / (values + options.noise_ridge * (1 + covariance.noise))
    scaled = float(np.sum(factors**2 * values))
    factors *= math.sqrt(values.sum() / scaled) if scaled > 0 else 1 / factors.max()
    weights, reference = starting_point(problem, options)
    eta = step_size(options, problem, schedule, informed=bool(np.any(weights)), preconditioned=True)(tau)
    iterates = Iterates(weights, schedule.n_steps, options.output, options.ensemble)
    for _ in run.steps(iterates):
        weights = iterates.weights
        gradient = run.gradient(problem.private_rows, weights, tau)
        direction = covariance.scaled(gradient + options.weight_decay * (weights - reference), factors)
        iterates.move(weights - eta * direction, clip_norm=tau, learning_rate=eta)
    return Fitted(iterates.result(), iterates.history, start=iterates.start)


METHOD = Method(
    summary="full-batch gradient descent preconditioned by a noisy covariance",
    paper="Mehta et al. 2023 (DP-FC)",
    options=DPFCOptions,
    fit=fit,
    needs=("private",),
    shares=covariance_share,
    check=check_covariance,
)
