"""Damping: smaller steps when released gradients show that steps overshoot.

Jacobs, "Increased rates of convergence through learning rate adaptation", Neural Networks 1988, with one rate for all
weights.

    1  f_1 <- 1
    2  for t = 2..T:  a <- <G_t, G_{t-1}>,  b <- 3 sigma tau sqrt(||G_t||^2 + ||G_{t-1}||^2)
    3                 f_t <- f_{t-1} / 2           if a < -b and a < -||G_t|| ||G_{t-1}|| / 10
    4                        min(1, 1.2 f_{t-1})   if a > b
    5                        f_{t-1}               else

After a step that overshoots, the next gradient points backwards. b is three standard deviations of what noise adds to
a, so noise alone hardly ever changes f. f_t is a function of releases: post-processing, at no privacy cost. f_t never
exceeds 1, so the noise of the run stays within the score noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linprobe.gradients.loss import Weights
from linprobe.methods._iterates import Iterates
from linprobe.options import Output
from linprobe.parallel.array_api import inner, norm, on_host

DEVIATIONS = 3.0
REVERSAL = 0.1
GROWTH = 1.2


class DampedIterates(Iterates):
    """Iterates with the factor f_t of the step size. Arguments and attributes as in `Iterates`."""

    def __init__(self, start: Weights, n_steps: int, output: Output, ensemble: int | None = None) -> None:
        super().__init__(start, n_steps, output, ensemble)
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
        """The whole state, for a checkpoint."""
        return {**super().state(), "damping": np.array([self._factor]), "previous": self._previous}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore a `state`."""
        super().restore(state)
        self._factor, self._previous = float(on_host(state["damping"])[0]), state["previous"]
        self._length = float(norm(self._previous))
