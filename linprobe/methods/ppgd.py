"""PPGD: a private model first, then a public-private one pulled towards it.

Wang and Zhou, "Differentially Private Learning with Small Public Data", AAAI 2020, as used by
Golatkar et al. 2022 (section 2).

    1  W_1 <- 0
    2  for t = 1..T:
    3      tau_t <- || average public gradient at W_t ||, at least a floor
    4      G     <- sum_i clip_{tau_t}(g_i(W_t)) + N(0, sigma^2 tau_t^2 I)
    5      W     <- W - eta_t (G + lambda W)
    6  W_pri <- the last iterate, or a mean or vote of the last n
    7  return argmin_W  public loss(W) + lambda / 2 ||W - W_pri||^2, for each voter      (post-processing: free)
       or W_pri if a class has no public row, whose loss would move all rows to the other classes (not in the paper)

Symbols as in noisy_gd.py. Guarantee: sqrt(T)/sigma - Gaussian DP of the private rows under zero-out adjacency.
"""

import numpy as np

from linprobe.gradients.loss import loss_and_gradient, minimise
from linprobe.methods._base import Fitted, Iterates, Method, Problem, Run
from linprobe.methods._descent import step_size
from linprobe.options import PPGDOptions


def fit(problem: Problem, options: PPGDOptions, run: Run) -> Fitted:
    schedule, public = run.schedule, problem.public_rows
    zeros = np.zeros((problem.n_features, problem.n_classes))
    iterates = Iterates(zeros, schedule.n_steps, options.output, options.ensemble)
    eta_of = step_size(options, problem, schedule, informed=True)
    for _ in run.steps(iterates):
        weights = iterates.weights
        public_loss, public_gradient = loss_and_gradient(public, weights)
        tau = max(options.clip_floor, float(np.linalg.norm(public_gradient)) / public.n_rows)
        gradient = run.gradient(problem.private_rows, weights, tau)
        eta = eta_of(tau)
        weights = weights - eta * (gradient + options.weight_decay * weights)
        iterates.move(weights, clip_norm=tau, learning_rate=eta, public_loss=public_loss / public.n_rows)
    private = iterates.result()
    if len({label for block in public.blocks() for label in block.y.tolist()}) < problem.n_classes:
        return Fitted(private, iterates.history)
    voters = [
        minimise(public, voter, weight_decay=options.weight_decay, reference=voter)
        for voter in private.reshape(-1, *zeros.shape)
    ]
    return Fitted(np.stack(voters).reshape(private.shape), iterates.history)


METHOD = Method(
    summary="a private model, then public training pulled towards it",
    paper="Wang and Zhou 2020, as used by Golatkar et al. 2022",
    options=PPGDOptions,
    fit=fit,
    needs=("private", "public"),
    weighs=True,
)
