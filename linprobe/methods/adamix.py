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
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from linprobe.gradients.loss import loss_gradient_and_norms
from linprobe.methods import adamix_theory
from linprobe.methods._base import (
    Fitted,
    Method,
    Problem,
    Run,
    initial_weights,
    reference_weights,
)
from linprobe.methods._iterates import Iterates, descended
from linprobe.methods._step_size import step_size
from linprobe.methods._subspace import Squares, top_left_subspace
from linprobe.options import AdaMixOptions
from linprobe.options.declaration import refuse_idle
from linprobe.parallel.array_api import norm, on_host


def fit(problem: Problem, options: AdaMixOptions, run: Run) -> Fitted:
    """Train; shapes and guarantee as the module's docstring says."""
    theory_only = ("radius", "strong_convexity")
    if options.variant == "theory":
        idle = [option.name for option in fields(options) if option.name not in ("variant", *theory_only)]
        refuse_idle(options, idle, "variant theory")
        return adamix_theory.fit(problem, run, radius=options.radius, strong_convexity=options.strong_convexity)
    refuse_idle(options, theory_only, "variant practical")
    schedule, public = run.schedule, problem.public_rows
    weights = initial_weights(
        problem,
        init=options.init,
        weight_decay=options.weight_decay,
        text_scale=options.text_scale,
        loss=problem.loss(),
        backend=run.backend,
    )
    reference = reference_weights(options.reference, weights)
    dim = problem.gradient_rank if options.subspace_dim is None else int(options.subspace_dim)
    subspace = None
    if options.subspace == "features":
        rows = np.concatenate([block.x for block in public.blocks()])
        subspace = top_left_subspace(rows.T.astype(np.float64), dim, public.n_rows)
    iterates = Iterates(weights, schedule.n_steps, options.output, options.ensemble)
    eta_of = step_size(options, problem, schedule, informed=bool(norm(weights) > 0))
    squares: Squares = {}
    for _ in run.steps(iterates):
        weights = iterates.weights
        public_loss, public_gradient, norms = loss_gradient_and_norms(
            public, weights, problem.loss(), backend=run.backend
        )
        quantile = np.quantile(np.concatenate([on_host(block) for block in norms]), options.clip_quantile)
        tau = max(options.clip_floor, float(quantile))
        if options.subspace == "gradient":
            subspace = top_left_subspace(public_gradient, dim, problem.gradient_rank, squares)
        gradient = run.gradient(problem.private_rows, weights, tau, subspace=subspace, loss=problem.loss())
        eta = eta_of(tau)
        weights = descended(weights, eta, [public_gradient, gradient], options.weight_decay, reference)
        iterates.move(
            weights,
            clip_norm=tau,
            learning_rate=eta,
            captured_energy=1.0 if subspace is None else subspace.energy(public_gradient),
            public_loss=public_loss / public.n_rows,
        )
    return Fitted(iterates.result(), iterates.history, start=iterates.start)


METHOD = Method(
    summary="warm start, clip norm and subspace from public rows, then noisy descent on both",
    paper="Golatkar et al. 2022 (AdaMix), Algorithms 2 and 3",
    options=AdaMixOptions,
    fit=fit,
    needs=("private", "public"),
    weighs=True,
    several_labels=True,
)
