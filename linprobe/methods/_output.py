"""The released weights as a function of the iterates: post-processing, at no privacy cost.

Last-n averages, exponential averages and majority votes: De et al. 2022 and DOPE-SGD (section 4, "ensembles");
`weighted` is the average of NoisyGD's Theorem 3.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linprobe.errors import ParameterError, UsageError
from linprobe.gradients.loss import Weights
from linprobe.options import Output
from linprobe.parallel.array_api import namespace, on_host

ENSEMBLES = ("average", "ema", "vote")
ENSEMBLE_SHARE = 0.1


class IterateOutput:
    """The released weights as a function of the iterates.

    Args:
        kind: `last`: the last iterate. `average`: the mean of the last n. `weighted`: sum_t 2t / (T(T+1)) W_t. `ema`:
            an exponential moving average with decay 1 - 2/(n+1), which spans n iterates. `vote`: the last n iterates,
            each with one vote.
        n_steps: T.
        ensemble: n; None for a tenth of the steps.

    Raises:
        UsageError: `ensemble` with `last` or `weighted`. ParameterError: `ensemble` is not from 1 to `n_steps`.
    """

    def __init__(self, kind: Output, n_steps: int, ensemble: int | None = None) -> None:
        if ensemble is not None and kind not in ENSEMBLES:
            raise UsageError(f"option ensemble {ensemble} does nothing with output {kind}; leave it out")
        size = max(1, round(ENSEMBLE_SHARE * n_steps)) if ensemble is None else int(ensemble)
        if not 1 <= size <= n_steps:
            raise ParameterError(f"ensemble is {ensemble}; allowed: 1 to the number of steps, {n_steps}")
        self._kind = kind
        self._n_steps = n_steps
        self._size = size if kind in ENSEMBLES else 1
        self._sum: Weights | float = 0.0
        self._voters: deque[Weights] = deque(maxlen=self._size)

    def add(self, t: int, before: Weights, after: Weights) -> None:
        """Add step t = 1..T, from `before` (W_t) to `after` (W_{t+1})."""
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

    def state(self) -> dict[str, NDArray[np.float64]]:
        """The output of the steps so far, for a checkpoint."""
        total = np.asarray(self._sum) if isinstance(self._sum, float) else self._sum
        return {"output": total, **{f"voter_{place}": voter for place, voter in enumerate(self._voters)}}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore a `state`."""
        self._sum = state["output"]
        self._voters.extend(state[f"voter_{place}"] for place in range(self._size) if f"voter_{place}" in state)

    def result(self) -> Weights:
        """Released weights, on the host: (n_features, n_classes), or (ensemble, n_features, n_classes) for votes."""
        if self._kind == "vote":
            return on_host(namespace(self._voters[0]).stack(list(self._voters)))
        return on_host(self._sum)
