"""The state of an iterative method: everything it needs to resume, except rows and noise.

The released weights are a function of the iterates: post-processing, at no privacy cost. Last-n averages, exponential
averages and majority votes: De et al. 2022 and DOPE-SGD (section 4, "ensembles"); `weighted` is the average of
NoisyGD's Theorem 3.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linprobe.errors import ParameterError, UsageError
from linprobe.gradients.loss import Weights
from linprobe.options import Output
from linprobe.parallel.array_api import by_rows, inner, namespace, norm, on_host

ENSEMBLES = ("average", "ema", "vote")
ENSEMBLE_SHARE = 0.1
DEVIATIONS, REVERSAL, GROWTH = 3.0, 0.1, 1.2  # of the damping


class Iterates:
    """The iterate W_t, the released weights computed from W_1..W_T, and public facts of each step.

    Args:
        start: W_1, shape (n_features, n_classes).
        n_steps: T.
        output: `last`: the last iterate. `average`: the mean of the last n. `weighted`: sum_t 2t / (T(T+1)) W_t. `ema`:
            an exponential moving average with decay 1 - 2/(n+1), which spans n iterates. `vote`: the last n iterates,
            each with one vote.
        ensemble: n; None for a tenth of the steps.
        momentum: beta of `coasted`.

    Attributes:
        weights: W_t. history: one dictionary per step.

    Raises:
        UsageError: `ensemble` with `last` or `weighted`. ParameterError: `ensemble` is not from 1 to `n_steps`.
    """

    def __init__(
        self, start: Weights, n_steps: int, output: Output, ensemble: int | None = None, momentum: float = 0.0
    ) -> None:
        if ensemble is not None and output not in ENSEMBLES:
            raise UsageError(f"option ensemble {ensemble} does nothing with output {output}; leave it out")
        size = max(1, round(ENSEMBLE_SHARE * n_steps)) if ensemble is None else int(ensemble)
        if not 1 <= size <= n_steps:
            raise ParameterError(f"ensemble is {ensemble}; allowed: 1 to the number of steps, {n_steps}")
        self.weights = self._start = self._before = start
        self._momentum = momentum
        self.history: list[dict[str, float]] = []
        self._kind, self._n_steps = output, n_steps
        self._size = size if output in ENSEMBLES else 1
        self._sum: Weights | float = 0.0
        self._voters: deque[Weights] = deque(maxlen=self._size)

    def move(self, after: Weights, **facts: float) -> None:
        """Replace W_t with `after`, which is W_{t+1}; add `facts` to the history."""
        t, before = len(self.history) + 1, self.weights
        if self._kind == "weighted":
            self._sum = self._sum + before * (2 * t / (self._n_steps * (self._n_steps + 1)))
        elif self._kind == "ema":
            share = 1.0 if t == 1 else 2 / (self._size + 1)
            self._sum = self._sum + share * (after - self._sum)
        elif t > self._n_steps - self._size:
            if self._kind == "vote":
                self._voters.append(after)
            else:
                self._sum = self._sum + after / self._size
        self._before, self.weights = before if self._momentum else self._before, after
        self.history.append({"step": t, **facts})

    def coasted(self, after: Weights) -> Weights:
        """`after` + beta (W_t - W_{t-1}): the step goes on as the one before."""
        if not self._momentum:
            return after
        moved: Weights = after + self._momentum * (self.weights - self._before)
        return moved

    @property
    def start(self) -> Weights:
        """W_1, on the host; synchronises with the device."""
        return on_host(self._start)

    def result(self) -> Weights:
        """Released weights, on the host: (n_features, n_classes), or (ensemble, n_features, n_classes) for votes."""
        if self._kind == "vote":
            return on_host(namespace(self._voters[0]).stack(list(self._voters)))
        return on_host(self._sum)

    def state(self) -> dict[str, Any]:
        """The whole state, for a checkpoint: arrays, and the history as a list."""
        total = np.asarray(self._sum) if isinstance(self._sum, float) else self._sum
        voters = {f"voter_{place}": voter for place, voter in enumerate(self._voters)}
        before = {"before": self._before} if self._momentum else {}
        return {"weights": self.weights, "history": list(self.history), "output": total, **before, **voters}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore a `state`."""
        self.weights, self._sum = state["weights"], state["output"]
        self._before = state.get("before", self._before)
        self.history = json.loads(str(state["history"]))
        self._voters.extend(state[f"voter_{place}"] for place in range(self._size) if f"voter_{place}" in state)


def descended(
    weights: Weights, eta: float, gradients: Sequence[Weights], weight_decay: float, reference: Weights
) -> Weights:
    """W - eta (sum of gradients + weight_decay (W - reference)); intermediate results stay in cache."""
    after: Weights = namespace(weights).empty_like(weights)

    def descend(rows: slice) -> None:
        step = weights[rows] - reference[rows]
        step *= weight_decay
        for gradient in gradients:
            step += gradient[rows]
        step *= -eta
        step += weights[rows]
        after[rows] = step

    by_rows(weights, descend)
    return after


class DampedIterates(Iterates):
    """Iterates with a factor f_t: smaller steps when released gradients show that steps overshoot.

    Jacobs, "Increased rates of convergence through learning rate adaptation", Neural Networks 1988, with one rate for
    all weights.

    1  f_1 <- 1
        2  for t = 2..T:  a <- <G_t, G_{t-1}>,  b <- 3 sigma tau sqrt(||G_t||^2 + ||G_{t-1}||^2)
        3                 f_t <- f_{t-1} / 2           if a < -b and a < -||G_t|| ||G_{t-1}|| / 10
        4                        min(1, 1.2 f_{t-1})   if a > b
        5                        f_{t-1}               else

    After a step that overshoots, the next gradient points backwards. b is three standard deviations of what noise adds
    to a, so noise alone hardly ever changes f. f_t is a function of releases: post-processing, at no privacy cost. f_t
    never exceeds 1, so the noise of the run stays within the score noise.

    Arguments and attributes as in `Iterates`.
    """

    def __init__(
        self, start: Weights, n_steps: int, output: Output, ensemble: int | None = None, momentum: float = 0.0
    ) -> None:
        super().__init__(start, n_steps, output, ensemble, momentum)
        self._factor = 1.0
        self._previous, self._length = 0.0 * start, 0.0

    def damped(self, gradient: Weights, noise: float) -> float:
        """f_t, after the released `gradient` with noise of standard deviation `noise` per entry."""
        longer, other = float(norm(gradient)), self._length
        turn, chance = float(inner(gradient, self._previous)), DEVIATIONS * noise * math.hypot(longer, other)
        if turn < -max(chance, REVERSAL * longer * other):
            self._factor /= 2
        elif turn > chance:
            self._factor = min(1.0, GROWTH * self._factor)
        self._previous, self._length = gradient, longer
        return self._factor

    def state(self) -> dict[str, Any]:
        return {**super().state(), "damping": np.array([self._factor]), "previous": self._previous}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        super().restore(state)
        self._factor, self._previous = float(on_host(state["damping"])[0]), state["previous"]
        self._length = float(norm(self._previous))
