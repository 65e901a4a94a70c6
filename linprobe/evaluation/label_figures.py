"""Figures of a model of rows with several labels on public test rows, overall and by label.

A label is given to a row where its probability, the sigmoid of its score, is above one half.

    AUROC              probability that a row with the label has a higher score than one without; a tie counts one half
    average precision  sum over thresholds of (recall_t - recall_{t-1}) precision_t, one threshold for each score
    accuracy           share of the rows for which the label is right
    recall             share of the rows with the label that are given it
    precision          share of the rows given the label that have it

No figure counts a row as right or wrong as a whole: with many labels few rows are right in all of them. Intervals take
rows as independent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linprobe.evaluation.class_figures import SCORES_A_PASS, Blocks, auroc_of, share_of
from linprobe.evaluation.metrics import class_scores

Floats = NDArray[np.float64]
Marks = NDArray[np.bool_]


def label_figures(
    read: Callable[[], Blocks],
    n_rows: int,
    weights: NDArray[np.floating],
    bias: NDArray[np.floating],
    names: Sequence[str],
) -> dict[str, Any]:
    """AUROC, average precision, accuracy, recall and precision of each label, and their means.

    Args:
        read: starts one pass over labelled raw rows: blocks of rows (b, n_features) and labels 0 and 1 (b, n_labels). A
            pass holds `SCORES_A_PASS` scores; more labels take more passes.
        n_rows: their number, at least 1.
        weights, bias: (n_features, n_labels) and (n_labels,).

    Returns: test_rows, macro_auroc and macro_average_precision (means over the labels that some test rows have and some
        have not, else None), label_accuracy (mean over labels), commonest_accuracy (that of always giving the commoner
        answer to each label), per_label (by name: n rows with the label, predicted, accuracy, accuracy_interval, auroc,
        average_precision, recall, recall_interval, precision, precision_interval; None for a share of no rows, and for
        the AUROC and average precision of a label that no row has, or all).
    """
    width = max(1, SCORES_A_PASS // n_rows)
    found: dict[str, dict[str, Any]] = {}
    for first in range(0, len(names), width):
        columns = slice(first, first + width)
        parts = [(y[:, columns] > 0, class_scores(x, weights, bias)[:, columns]) for x, y in read()]
        marks, scores = np.concatenate([y for y, _ in parts]), np.concatenate([one for _, one in parts])
        for name, mine, score in zip(names[columns], marks.T, scores.T, strict=True):
            found[name] = _of_label(mine, score)
    ranked = [one for one in found.values() if one["auroc"] is not None]
    return {
        "test_rows": n_rows,
        "macro_auroc": _mean(ranked, "auroc"),
        "macro_average_precision": _mean(ranked, "average_precision"),
        "label_accuracy": _mean(list(found.values()), "accuracy"),
        "commonest_accuracy": float(np.mean([max(one["n"], n_rows - one["n"]) / n_rows for one in found.values()])),
        "per_label": found,
    }


def _mean(figures: Sequence[Mapping[str, Any]], name: str) -> float | None:
    return float(np.mean([one[name] for one in figures])) if figures else None


def _of_label(mine: Marks, score: Floats) -> dict[str, Any]:
    given, n = score > 0, int(mine.sum())
    both = 0 < n < len(mine)
    right, hits, predicted = int((given == mine).sum()), int((given & mine).sum()), int(given.sum())
    return {
        "n": n,
        "predicted": predicted,
        **share_of("accuracy", right, len(mine)),
        "auroc": auroc_of(mine, score) if both else None,
        "average_precision": average_precision(mine, score) if both else None,
        **share_of("recall", hits, n),
        **share_of("precision", hits, predicted),
    }


def average_precision(mine: Marks, score: Floats) -> float:
    """Average precision of scores (n,) for rows of which at least one is `mine`; rows of one score count together."""
    order = np.argsort(-score, kind="stable")
    last = np.append(np.diff(score[order]) != 0, True)  # the last row of each score
    hits = np.cumsum(mine[order])[last]
    taken = np.flatnonzero(last) + 1
    return float(np.sum(np.diff(hits, prepend=0) / hits[-1] * hits / taken))


def no_better_than_commonest_answers(figures: Mapping[str, Any]) -> str | None:
    """A warning if labels are right no more often than by always giving each label's commoner answer."""
    if figures["label_accuracy"] > figures["commonest_accuracy"]:
        return None
    return (
        f"accuracy of labels {figures['label_accuracy']:.4f} is not above {figures['commonest_accuracy']:.4f}, that of "
        "always giving each label its commoner answer; macro AUROC is "
        f"{'-' if figures['macro_auroc'] is None else format(figures['macro_auroc'], '.4f')}, by guessing 0.5"
    )
