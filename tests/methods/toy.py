"""Toy: a method with one new option, declared outside linprobe.

    1  W <- init
    2  for t = 1..T:  G <- sum_i clip_tau(g_i(W)) + N(0, sigma^2 tau^2 I)
    3                 W <- W - eta (G + lambda (W - W_ref)), eta halved if asked
    4  return the last iterate, or a mean or vote of the last n

Guarantee: sqrt(T)/sigma - Gaussian DP under zero-out adjacency.
"""

from typing import Literal

from linprobe.methods import Method, Problem, Run, register
from linprobe.methods._base import Fitted, Iterates, descended, starting_point
from linprobe.methods._descent import step_size
from linprobe.options import PRIVATE, ROWS, ClipNorm, Start, Steps, TextScale
from linprobe.options.declaration import Options, option


class ToyOptions(TextScale, Steps, ClipNorm, Start, Options, method="toy", takes=(*PRIVATE, *ROWS)):
    """Options of `toy`."""

    toy_option: Literal["whole", "halved"] = option("whole", "Length of a step")


def fit(problem: Problem, options: ToyOptions, run: Run) -> Fitted:
    """Train; shapes and guarantee as the module's docstring says."""
    eta = step_size(options, problem, run.schedule, informed=False)(options.clip_norm)
    eta = eta / 2 if options.toy_option == "halved" else eta
    start, reference = starting_point(problem, options)
    iterates = Iterates(start, run.schedule.n_steps, options.output, options.ensemble)
    for _ in run.steps(iterates):
        gradient = run.gradient(problem.private_rows, iterates.weights, options.clip_norm)
        weights = descended(iterates.weights, eta, [gradient], options.weight_decay, reference)
        iterates.move(weights, clip_norm=options.clip_norm, learning_rate=eta)
    return Fitted(iterates.result(), iterates.history, start=iterates.start)


METHOD = Method(summary="steps whole or halved", paper="this file", options=ToyOptions, fit=fit, needs=("private",))
register(METHOD)
