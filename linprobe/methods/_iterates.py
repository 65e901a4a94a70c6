"""The state of an iterative method: everything it needs to resume, except rows and noise."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from linprobe.gradients.loss import Weights
from linprobe.methods._output import IterateOutput
from linprobe.options import Output
from linprobe.parallel.array_api import by_rows, namespace, on_host


class Iterates:
    """The iterate W_t, the output computed from W_1..W_T, and public facts of each step.

    Args:
        start: W_1, shape (n_features, n_classes).
        n_steps: T.
        output, ensemble: as in `IterateOutput`.

    Attributes:
        weights: W_t. history: one dictionary per step.
    """

    def __init__(self, start: Weights, n_steps: int, output: Output, ensemble: int | None = None) -> None:
        self.weights = self._start = start
        self.history: list[dict[str, float]] = []
        self._output = IterateOutput(output, n_steps, ensemble)

    def move(self, after: Weights, **facts: float) -> None:
        """Replace W_t with `after`, which is W_{t+1}; add `facts` to the history."""
        t = len(self.history) + 1
        self._output.add(t, self.weights, after)
        self.weights = after
        self.history.append({"step": t, **facts})

    @property
    def start(self) -> Weights:
        """W_1, on the host; synchronises with the device."""
        return on_host(self._start)

    def result(self) -> Weights:
        """The released weights, shape (n_features, n_classes), or (ensemble, n_features, n_classes) for votes."""
        return self._output.result()

    def state(self) -> dict[str, Any]:
        """The whole state, for a checkpoint: arrays, and the history as a list."""
        return {"weights": self.weights, "history": list(self.history), **self._output.state()}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore a `state`."""
        self.weights = state["weights"]
        self.history = json.loads(str(state["history"]))
        self._output.restore(state)


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
