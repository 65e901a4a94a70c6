"""Toy: a method with one new option, declared outside linprobe.

    1  W <- init
    2  for t = 1..T:  W <- W - eta (sum_i clip_tau(g_i(W)) + N(0, sigma^2 tau^2 I)), eta halved if asked
    3  return the last iterate, or a mean or vote of the last n

Guarantee: sqrt(T)/sigma - Gaussian DP under zero-out adjacency.
"""

from dataclasses import dataclass
from typing import Literal

from linprobe.methods import Method, Problem, Run, register
from linprobe.methods._base import Fitted, Iterates, initial_weights
from linprobe.methods._descent import step_size
from linprobe.options import PRIVATE, ROWS, ClipNorm, Start, Steps, TextScale
from linprobe.options.declaration import Options, option


@dataclass(frozen=True, kw_only=True)
class ToyOptions(TextScale, Steps, ClipNorm, Start, Options, method="toy", takes=(*PRIVATE, *ROWS)):
    """Options of `toy`."""

    toy_option: Literal["whole", "halved"] = option("whole", "Length of a step")


def fit(problem: Problem, options: ToyOptions, run: Run) -> Fitted:
    """Train; shapes and guarantee as the module's docstring says."""
    eta = step_size(options, problem, run.schedule, informed=False)(options.clip_norm)
    eta = eta / 2 if options.toy_option == "halved" else eta
    start = initial_weights(problem, init=options.init, weight_decay=options.weight_decay)
    iterates = Iterates(start, run.schedule.n_steps, options.output, options.ensemble)
    for _ in run.steps(iterates):
        gradient = run.gradient(problem.private_rows, iterates.weights, options.clip_norm)
        iterates.move(iterates.weights - eta * gradient, clip_norm=options.clip_norm, learning_rate=eta)
    return Fitted(iterates.result(), iterates.history)


METHOD = Method(summary="steps whole or halved", paper="this file", options=ToyOptions, fit=fit, needs=("private",))
register(METHOD)
