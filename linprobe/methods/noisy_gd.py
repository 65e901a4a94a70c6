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

Guarantee: sqrt(T)/sigma - Gaussian DP under add/remove. (Proposition 2 prints rho = T^2 / (2 sigma^2); by Lemma 8 it is
T / (2 sigma^2).)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from linprobe.errors import ParameterError
from linprobe.methods._base import (
    Fitted,
    Init,
    Method,
    Problem,
    Run,
    initial_weights,
    learning_rate,
    project_to_ball,
    reference_weights,
    refuse_idle,
)
from linprobe.methods._iterates import Iterates
from linprobe.methods._output import Output


@dataclass(frozen=True, kw_only=True)
class NoisyGDOptions:
    """Options of `noisy-gd`.

    Attributes:
        init: W_1: `auto` (public optimum, else text, else zero), `zero`, `public`, `text`, or an earlier run.
        clip_norm: tau, L2 bound on one record's gradient.
        schedule: `constant` eta, or the `theory`'s eta_t = 2 / (lambda (t + 1)).
        learning_rate: constant eta on the SUM of gradients; None derives it from `score_noise`.
        score_noise: std, in nats, that the noise of the whole run adds to a unit row's class score.
        weight_decay: lambda, on the sum. reference: what it pulls towards, `init` or `zero`.
        radius: B; None for no constraint.
        output: `last` iterate, `average` of the last ones, `weighted` (Theorem 3), `ema` or `vote`.
        ensemble: how many iterates are averaged or vote; None is a tenth of the steps.
        text_scale: beta for `init=text`.
    """

    init: Init = "auto"
    clip_norm: float = 0.5
    schedule: Literal["constant", "theory"] = "constant"
    learning_rate: float | None = None
    score_noise: float = 1.0
    weight_decay: float = 1e-2
    reference: Literal["init", "zero"] = "init"
    radius: float | None = None
    output: Output = "average"
    ensemble: int | None = None
    text_scale: float = 100.0


def fit(problem: Problem, options: NoisyGDOptions, run: Run) -> Fitted:
    """Train; shapes and guarantee as the module's docstring says."""
    schedule = run.schedule
    if options.schedule not in ("constant", "theory"):
        raise ParameterError(f"schedule is {options.schedule!r}; allowed: constant, theory")
    if options.schedule == "theory":
        refuse_idle(options, ("learning_rate", "score_noise"), "schedule theory")
    weights = initial_weights(
        problem,
        init=options.init,
        weight_decay=options.weight_decay,
        text_scale=options.text_scale,
        backend=run.backend,
    )
    reference = reference_weights(options.reference, weights)
    iterates = Iterates(weights, schedule.n_steps, options.output, options.ensemble)
    for t in run.steps(iterates):
        weights = iterates.weights
        gradient = run.gradient(problem.private_rows, weights, options.clip_norm)
        if options.schedule == "theory":
            eta = 2 / (options.weight_decay * (t + 1))
        else:
            eta = learning_rate(options.learning_rate, options.score_noise, schedule, options.clip_norm)
        weights = weights - eta * (gradient + options.weight_decay * (weights - reference))
        weights = project_to_ball(weights, reference, options.radius)
        iterates.move(weights, clip_norm=options.clip_norm, learning_rate=eta)
    return Fitted(iterates.result(), iterates.history)


METHOD = Method(
    name="noisy-gd",
    summary="full-batch gradient descent on clipped, noised sums",
    paper="Golatkar et al. 2022 (AdaMix), Algorithm 1",
    options=NoisyGDOptions,
    fit=fit,
    needs=("private",),
    on_device=True,
)
