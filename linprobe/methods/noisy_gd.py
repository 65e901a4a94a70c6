"""NoisyGD: full-batch gradient descent on clipped, noised sums.

Golatkar et al., "Mixed Differential Privacy in Computer Vision", CVPR 2022, Algorithm 1 and Theorem 3.

    1  W_1 <- init
    2  for t = 1..T:
    3      G   <- sum_i clip_tau(g_i(W_t)) + N(0, sigma^2 tau^2 I)
    4      W   <- W - eta_t (G + lambda (W - W_ref))
    5      W   <- nearest point with ||W - W_ref|| <= B
    6  return the last iterate, a mean or vote of the last n, or sum_t 2t/(T(T+1)) W_t

| paper | code |          | paper  | code             |
| ----- | ---- | -------- | ------ | ---------------- |
| tau   | clip_norm |     | sigma  | noise_multiplier |
| eta_t | learning_rate | | lambda | weight_decay     |
| W_ref | reference |     | B      | radius           |

Guarantee: sqrt(T)/sigma - Gaussian DP under zero-out adjacency. (Proposition 2 prints rho = T^2 / (2 sigma^2); by
Lemma 8 it is T / (2 sigma^2).)
"""

from linprobe.methods._base import (
    DampedIterates,
    Fitted,
    Method,
    Problem,
    Run,
    descended,
    project_to_ball,
    starting_point,
)
from linprobe.methods._descent import Pace, has_momentum, step_size
from linprobe.options import NoisyGDOptions
from linprobe.parallel.array_api import norm


def fit(problem: Problem, options: NoisyGDOptions, run: Run) -> Fitted:
    schedule = run.schedule
    weights, reference = starting_point(problem, options, loss=problem.loss(), backend=run.backend)
    informed = bool(norm(weights) > 0)
    pace = Pace.of(options, problem, schedule, informed=informed)
    iterates = DampedIterates(weights, schedule.n_steps, options.output, options.ensemble, pace.momentum)
    facts = {"informed": informed, "damped": True, "momentum": pace.momentum, "growth": pace.growth}
    constant = step_size(options, problem, schedule, **facts)(options.clip_norm)
    damps = not problem.centred and options.learning_rate is None and options.score_noise is None
    noise = schedule.noise_multiplier * options.clip_norm
    for t in run.steps(iterates):
        weights = iterates.weights
        gradient = run.gradient(problem.private_rows, weights, options.clip_norm, loss=problem.loss())
        if options.schedule == "theory":
            eta = 2 / (options.weight_decay * (t + 1))
        else:
            eta = float(pace.factors[t - 1]) * constant * (iterates.damped(gradient, noise) if damps else 1.0)
        weights = iterates.coasted(descended(weights, eta, [gradient], options.weight_decay, reference))
        weights = project_to_ball(weights, reference, options.radius)
        iterates.move(weights, clip_norm=options.clip_norm, learning_rate=eta)
    return Fitted(iterates.result(), iterates.history, start=iterates.start)


METHOD = Method(
    summary="full-batch gradient descent on clipped, noised sums",
    paper="Golatkar et al. 2022 (AdaMix), Algorithm 1",
    options=NoisyGDOptions,
    fit=fit,
    needs=("private",),
    weighs=True,
    several_labels=True,
    has_momentum=has_momentum,
)
