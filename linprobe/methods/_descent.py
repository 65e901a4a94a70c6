"""Optimisers of the methods on Poisson samples: SGD, heavy-ball momentum and Adam (Kingma and Ba 2015).

They use released gradients only. This is post-processing, at no privacy cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linprobe.gradients.loss import Weights
from linprobe.methods._base import Problem, Schedule, initial_weights, reference_weights
from linprobe.methods._iterates import Iterates
from linprobe.methods._step_size import score_noise, step_size
from linprobe.options import DescentOptions
from linprobe.options.declaration import refuse_idle

ADAM_BETAS = (0.9, 0.999)
ADAM_EPSILON = 1e-12


class Descent(Iterates):
    """Iterates with the state of an optimiser.

    Args:
        problem, options, schedule: arguments of the method.
        start: W_1; None for that of `options.init`.
        move: (W, step) -> W_{t+1}; None for W - step.
        clip: clip norm; None for that of `options`.
        row_norm: typical norm of a row, for the default score noise.

    Attributes:
        learning_rate: eta, which multiplies the estimated sum of gradients or Adam's direction.
    """

    def __init__(
        self,
        problem: Problem,
        options: DescentOptions,
        schedule: Schedule,
        *,
        start: Weights | None = None,
        move: Callable[[Weights, Weights], Weights] | None = None,
        clip: float | None = None,
        row_norm: float = 1.0,
    ) -> None:
        if options.optimizer != "momentum":
            refuse_idle(options, ("momentum",), f"optimizer {options.optimizer}")
        if start is None:
            start = initial_weights(
                problem,
                init=options.init,
                weight_decay=options.weight_decay,
                text_scale=options.text_scale,
                loss=problem.loss(options.loss),
            )
        super().__init__(start, schedule.n_steps, options.output, options.ensemble)
        self._options = options
        self._reference = reference_weights(options.reference, start)
        self._first = np.zeros_like(start)
        self._second = np.zeros_like(start)
        self._clip_norm = options.clip_norm if clip is None else clip
        self._move = np.subtract if move is None else move
        momentum = {"sgd": 0.0, "momentum": options.momentum, "adam": ADAM_BETAS[0]}[options.optimizer]
        facts: dict[str, Any] = {"informed": bool(np.any(start)), "momentum": momentum, "row_norm": row_norm}
        if options.optimizer == "adam" and options.learning_rate is None:
            self.learning_rate = score_noise(options, problem, schedule, **facts) / math.sqrt(schedule.n_steps)
        else:
            self.learning_rate = step_size(options, problem, schedule, **facts)(self._clip_norm)

    def step(self, gradient: Weights, **facts: float) -> None:
        """Take a step with an estimate of the summed gradient (n_features, n_classes); add `facts` to the history."""
        pull = self._options.weight_decay * (self.weights - self._reference)
        after = self._move(self.weights, self.learning_rate * self._direction(gradient + pull))
        self.move(after, clip_norm=self._clip_norm, learning_rate=self.learning_rate, **facts)

    def _direction(self, gradient: Weights) -> Weights:
        if self._options.optimizer == "sgd":
            return gradient
        if self._options.optimizer == "momentum":
            self._first = self._options.momentum * self._first + gradient
            return (1 - self._options.momentum) * self._first
        first, second = ADAM_BETAS
        self._first = first * self._first + (1 - first) * gradient
        self._second = second * self._second + (1 - second) * gradient**2
        t = len(self.history) + 1
        unbiased = np.sqrt(self._second / (1 - second**t)) + ADAM_EPSILON
        return np.asarray(self._first / (1 - first**t) / unbiased, dtype=np.float64)

    def state(self) -> dict[str, Any]:
        """The whole state, for a checkpoint."""
        return {**super().state(), "first_moment": self._first, "second_moment": self._second}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore a `state`."""
        super().restore(state)
        self._first, self._second = state["first_moment"], state["second_moment"]
