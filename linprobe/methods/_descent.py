"""Optimisers of the methods on Poisson samples: SGD, heavy-ball momentum and Adam (Kingma and Ba 2015).

They use released gradients only. This is post-processing, at no privacy cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linprobe.gradients.loss import Weights
from linprobe.methods._base import Problem, Schedule, initial_weights, reference_weights
from linprobe.methods._iterates import Iterates
from linprobe.methods._step_size import score_noise, step_size
from linprobe.options import DescentOptions
from linprobe.options.declaration import refuse_idle
from linprobe.parallel.array_api import by_rows

ADAM_BETAS = (0.9, 0.999)
ADAM_EPSILON = 1e-12
MOMENTS = ("first_moment", "second_moment")  # in a checkpoint


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
        self._moments = [np.zeros_like(start), np.zeros_like(start)]
        self._clip_norm = options.clip_norm if clip is None else clip
        self._move = move
        momentum = {"sgd": 0.0, "momentum": options.momentum, "adam": ADAM_BETAS[0]}[options.optimizer]
        facts: dict[str, Any] = {"informed": bool(np.any(start)), "momentum": momentum, "row_norm": row_norm}
        if options.optimizer == "adam" and options.learning_rate is None:
            self.learning_rate = score_noise(options, problem, schedule, **facts) / math.sqrt(schedule.n_steps)
        else:
            self.learning_rate = step_size(options, problem, schedule, **facts)(self._clip_norm)

    def step(self, gradient: Weights, *, rate: float = 1.0, **facts: float) -> None:
        """Take a step with `gradient` / `rate`, an estimate of the summed gradient (n_features, n_classes).

        Intermediate results stay in cache. `facts` are added to the history.
        """
        after = np.empty_like(self.weights)
        kept = {"sgd": 0, "momentum": 1, "adam": 2}[self._options.optimizer]
        moments = [np.empty_like(moment) for moment in self._moments[:kept]]

        def descend(rows: slice) -> None:
            change = self.weights[rows] - self._reference[rows]
            change *= self._options.weight_decay
            change += gradient[rows] / rate
            change = self._direction(change, rows, moments)
            change *= self.learning_rate
            after[rows] = change if self._move else self.weights[rows] - change

        by_rows(after, descend)
        self._moments[:kept] = moments
        if self._move:
            after = self._move(self.weights, after)
        self.move(after, clip_norm=self._clip_norm, learning_rate=self.learning_rate, **facts)

    def _direction(self, gradient: Weights, rows: slice, moments: Sequence[Weights]) -> Weights:
        """The optimiser's direction for some rows of the gradient; writes the same rows of the new moments."""
        if self._options.optimizer == "sgd":
            return gradient
        if self._options.optimizer == "momentum":
            moments[0][rows] = self._options.momentum * self._moments[0][rows] + gradient
            return np.asarray((1 - self._options.momentum) * moments[0][rows])
        for moment, before, decay, term in zip(
            moments, self._moments, ADAM_BETAS, (gradient, gradient**2), strict=True
        ):
            moment[rows] = decay * before[rows] + (1 - decay) * term
        t = len(self.history) + 1
        first, second = (moment[rows] / (1 - decay**t) for moment, decay in zip(moments, ADAM_BETAS, strict=True))
        return np.asarray(first / (np.sqrt(second) + ADAM_EPSILON))

    def state(self) -> dict[str, Any]:
        """The whole state, for a checkpoint."""
        return {**super().state(), **dict(zip(MOMENTS, self._moments, strict=True))}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore a `state`."""
        super().restore(state)
        self._moments = [state[name] for name in MOMENTS]
