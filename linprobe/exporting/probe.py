"""What every format holds: folded weights, class names, and a note on privacy, input and output."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Probe:
    """A linear probe of L2-normalised raw rows.

    Attributes:
        weights (n_features, n_classes), bias (n_classes,): float32; with the voters as first axis if the probe votes.
        class_names: in label order.
        note: statements about the probe, by name; values that are no text are JSON.
        several_labels: whether a row has several labels, named by `class_names`, in place of one class. A label applies
            where its score is above 0, with probability sigmoid(score).
    """

    weights: NDArray[np.float32]
    bias: NDArray[np.float32]
    class_names: list[str]
    note: dict[str, str]
    several_labels: bool = False

    @property
    def votes(self) -> bool:
        """Whether voters decide on the class, each with one vote."""
        return self.weights.ndim == 3

    @property
    def rows_of_weights(self) -> NDArray[np.float32]:
        """The weights in the layout of `torch.nn.Linear`: (n_classes, n_features), contiguous."""
        return np.ascontiguousarray(np.swapaxes(self.weights, -1, -2))
