"""Figures on public test rows by task: of one class a row, or of several labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linprobe.data.labels import MULTILABEL
from linprobe.evaluation.class_figures import Blocks, class_figures, no_better_than_commonest
from linprobe.evaluation.label_figures import label_figures, no_better_than_commonest_answers


def figures_by_task(
    task: str,
    read: Callable[[], Blocks],
    n_rows: int,
    weights: NDArray[np.floating],
    bias: NDArray[np.floating],
    names: Sequence[str],
    *,
    temperature: float = 1.0,
    most_passes: int | None = None,
) -> dict[str, Any]:
    """What `class_figures` returns, or for multilabel `label_figures`, without the last two arguments."""
    if task == MULTILABEL:
        return label_figures(read, n_rows, weights, bias, names)
    return class_figures(read, n_rows, weights, bias, names, temperature=temperature, most_passes=most_passes)


def no_better_than_guessing(figures: Mapping[str, Any]) -> str | None:
    """A warning if the model is right no more often than the commonest answer."""
    warn = no_better_than_commonest_answers if of_labels(figures) else no_better_than_commonest
    return warn(figures)


def of_labels(figures: Mapping[str, Any]) -> bool:
    """Whether these are figures of rows with several labels."""
    return "per_label" in figures
