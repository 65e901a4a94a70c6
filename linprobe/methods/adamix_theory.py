"""AdaMix as analysed: one pass of public SGD, then NoisyGD with theory step sizes and averaging.

Golatkar et al., "Mixed Differential Privacy in Computer Vision", CVPR 2022, Algorithm 3, Theorems 3 and 4.

    1  W_1 <- 0; for each public record j = 1..N_pub:  W <- Proj_B(W - 2 / (c (j + 1)) g_j(W))
    2  W_ref <- W
    3  for t = 1..T:
    4      G <- sum_i clip_L(g_i(W_t)) + N(0, sigma^2 L^2 I)
    5      W <- Proj_B(W - 2 / (lambda (t + 1)) (G_pub(W_t) + G + lambda (W - W_ref)))
    6  return sum_t 2t / (T(T+1)) W_t

L = sqrt(2) is a Lipschitz bound for rows of unit norm, so line 4 clips no gradient and only enforces the sensitivity.
lambda = (L / B) sqrt(2 d / rho) minimises d L^2 / (lambda rho) + lambda B^2 / 2, where B bounds ||W* - W_ref||. These
terms of Theorem 3's proof do not vanish as T grows. The paper prints lambda with d and rho interchanged; its proof
gives the form used here. Guarantee: sqrt(T)/sigma - Gaussian DP under zero-out adjacency.
"""

from __future__ import annotations

import math

import numpy as np

from linprobe.data.rows import Rows
from linprobe.gradients.loss import loss_and_gradient, residuals
from linprobe.methods._base import Fitted, Problem, Run, project_to_ball, public_generator
from linprobe.methods._iterates import Iterates, descended

LIPSCHITZ = math.sqrt(2)


def one_pass_sgd(public: Rows, n_classes: int, *, strong_convexity: float, radius: float | None) -> np.ndarray:
    """Line 1: weights (n_features, n_classes) after a single pass over the public rows.

    The order is a fixed permutation, as rows sorted by class would bias the last iterate.
    """
    x = np.concatenate([block.x for block in public.blocks()])
    y = np.concatenate([block.y for block in public.blocks()])
    weights = np.zeros((public.n_features, n_classes))
    order = public_generator().permutation(len(y))
    for j, row in enumerate(order, start=1):
        one = slice(row, row + 1)
        r = residuals(x[one], y[one], weights.astype(np.float32))
        weights -= 2 / (strong_convexity * (j + 1)) * (x[one].T @ r)
        weights = project_to_ball(weights, np.zeros_like(weights), radius)
    return weights


def fit(problem: Problem, run: Run, *, radius: float | None, strong_convexity: float) -> Fitted:
    """Train on private and public rows; shapes and guarantee as the module's docstring says."""
    schedule, public = run.schedule, problem.public_rows
    reference = one_pass_sgd(public, problem.n_classes, strong_convexity=strong_convexity, radius=radius)
    bound = 2 * float(np.linalg.norm(reference)) or 1.0 if radius is None else radius
    rho = schedule.nominal_mu**2 / 2
    weight_decay = LIPSCHITZ / bound * math.sqrt(2 * reference.size / rho)
    iterates = Iterates(reference, schedule.n_steps, "weighted")
    for t in run.steps(iterates):
        weights = iterates.weights
        public_loss, public_gradient = loss_and_gradient(public, weights)
        gradient = run.gradient(problem.private_rows, weights, LIPSCHITZ)
        eta = 2 / (weight_decay * (t + 1))
        weights = descended(weights, eta, [public_gradient, gradient], weight_decay, reference)
        weights = project_to_ball(weights, reference, bound)
        iterates.move(weights, clip_norm=LIPSCHITZ, learning_rate=eta, public_loss=public_loss / public.n_rows)
    return Fitted(iterates.result(), iterates.history)
