"""AdaMix: NoisyGD warm-started on public rows, with clip norm and projection from public gradients.

Golatkar et al., "Mixed Differential Privacy in Computer Vision", CVPR 2022, Algorithm 2.

    1  W_1 <- optimum on the public rows (or text weights)
    2  for t = 1..T:
    3      tau_t <- 90th percentile of the public per-example gradient norms at W_t, at least a floor
    4      U     <- top-P left singular vectors of the public gradient G_pub(W_t)
    5      G     <- U (U^T sum_i clip_{tau_t}(g_i) + N(0, sigma^2 tau_t^2 I))
    6      W     <- W - eta_t (G_pub(W_t) + G + lambda (W - W_ref))
    7  return the last iterate, or a mean or vote of the last n

| paper | code          |  | paper  | code             |
| ----- | ------------- |  | ------ | ---------------- |
| tau_t | clip_norm     |  | sigma  | noise_multiplier |
| P, U  | subspace_dim, subspace | | lambda | weight_decay |
| eta_t | learning_rate |  | W_ref  | reference        |

Guarantee: sqrt(T)/sigma - Gaussian DP of the private rows under zero-out adjacency, for every fixed public set
(Proposition 5, with rho = T/(2 sigma^2)). tau_t, U and G_pub are functions of public rows and of earlier releases only.

Variant `theory` is AdaMix as analysed (Algorithm 3, Theorems 3 and 4): one pass of public SGD, then NoisyGD with step
sizes from theory and averaging.

    1  W_1 <- 0; for each public record j = 1..N_pub:  W <- Proj_B(W - 2 / (c (j + 1)) g_j(W))
    2  W_ref <- W
    3  for t = 1..T:
    4      G <- sum_i clip_L(g_i(W_t)) + N(0, sigma^2 L^2 I)
    5      W <- Proj_B(W - 2 / (lambda (t + 1)) (G_pub(W_t) + G + lambda (W - W_ref)))
    6  return sum_t 2t / (T(T+1)) W_t

L = sqrt(2) is a Lipschitz bound for rows of unit norm, so line 4 clips no gradient and only enforces the sensitivity.
lambda = (L / B) sqrt(2 d / rho) minimises d L^2 / (lambda rho) + lambda B^2 / 2, where B bounds ||W* - W_ref||. These
terms of Theorem 3's proof do not vanish as T grows. The paper prints lambda with d and rho interchanged; its proof
gives the form used here. The guarantee is the same.
"""

import math

import numpy as np

from linprobe.data.rows import Rows
from linprobe.gradients.loss import loss_and_gradient, loss_gradient_and_norms, residuals
from linprobe.methods._base import (
    Fitted,
    Iterates,
    Method,
    Problem,
    Run,
    descended,
    project_to_ball,
    public_generator,
    starting_point,
)
from linprobe.methods._descent import Pace, has_momentum, step_size
from linprobe.methods._directions import Squares, top_left_subspace
from linprobe.options import AdaMixOptions
from linprobe.parallel.array_api import norm, on_host

LIPSCHITZ = math.sqrt(2)


def fit(problem: Problem, options: AdaMixOptions, run: Run) -> Fitted:
    if options.variant == "theory":
        return fit_theory(problem, run, radius=options.radius, strong_convexity=options.strong_convexity)
    schedule, public, loss = run.schedule, problem.public_rows, problem.loss()
    weights, reference = starting_point(problem, options, loss=loss, backend=run.backend)
    dim = problem.gradient_rank if options.subspace_dim is None else int(options.subspace_dim)
    subspace, captured = None, 1.0
    if options.subspace == "features":
        rows = np.concatenate([on_host(block.x) for block in public.blocks()])
        subspace = top_left_subspace(rows.T.astype(np.float64), dim, public.n_rows)
    pace = Pace.of(options, problem, schedule)
    iterates = Iterates(weights, schedule.n_steps, options.output, options.ensemble, pace.momentum)
    facts = {"informed": bool(norm(weights) > 0), "momentum": pace.momentum, "growth": pace.growth}
    eta_of = step_size(options, problem, schedule, **facts)
    squares: Squares = {}
    for t in run.steps(iterates):
        weights = iterates.weights
        public_loss, public_gradient, norms = loss_gradient_and_norms(public, weights, loss, backend=run.backend)
        quantile = np.quantile(np.concatenate([on_host(block) for block in norms]), options.clip_quantile)
        tau = max(options.clip_floor, float(quantile))
        if options.subspace == "gradient":
            subspace = top_left_subspace(public_gradient, dim, problem.gradient_rank, squares)
            captured = 1.0 if subspace is None else subspace.captured
        elif subspace is not None:
            captured = subspace.energy(public_gradient)
        gradient = run.gradient(problem.private_rows, weights, tau, subspace=subspace, loss=loss)
        eta = float(pace.factors[t - 1]) * eta_of(tau)
        weights = descended(weights, eta, [public_gradient, gradient], options.weight_decay, reference)
        weights = iterates.coasted(weights)
        iterates.move(
            weights, clip_norm=tau, learning_rate=eta, captured_energy=captured, public_loss=public_loss / public.n_rows
        )
    return Fitted(iterates.result(), iterates.history, start=iterates.start)


def one_pass_sgd(public: Rows, n_classes: int, *, strong_convexity: float, radius: float | None) -> np.ndarray:
    """Line 1 of `theory`: weights (n_features, n_classes) after one pass over public rows in a fixed permutation."""
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


def fit_theory(problem: Problem, run: Run, *, radius: float | None, strong_convexity: float) -> Fitted:
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


METHOD = Method(
    summary="start and clip norm from public rows, then noisy descent on public and private rows",
    paper="Golatkar et al. 2022 (AdaMix), Algorithms 2 and 3",
    options=AdaMixOptions,
    fit=fit,
    needs=("private", "public"),
    weighs=True,
    several_labels=True,
    has_momentum=has_momentum,
)
