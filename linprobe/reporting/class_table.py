"""The table of a model's figures by class, for the terminal and the reviewer's page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HEADER = ("class", "rows", "recall, %", "answers", "precision, %", "AUROC")
FEW_CLASSES = 20  # with more classes, the ten of lowest recall and the ten of highest
Rows = list[tuple[str, ...]]


def overall_rows(figures: Mapping[str, Any]) -> Rows:
    """Names and texts of the figures of all test rows together, from what `class_figures` returns."""
    auroc = figures["macro_auroc"]
    rows, classes = figures["test_rows"], sum(one["n"] > 0 for one in figures["per_class"].values())
    commonest = f"{figures['commonest_share']:.4f}, {round(rows * figures['commonest_share']):,} of {rows:,} rows"
    return [
        ("accuracy", f"{figures['test_accuracy']:.4f}, {round(rows * figures['test_accuracy']):,} of {rows:,} rows"),
        ("balanced accuracy", f"{figures['balanced_accuracy']:.4f}, mean of {classes:,} classes"),
        ("macro AUROC", "-" if auroc is None else f"{auroc:.4f}, mean of {classes:,} classes"),
        ("calibration error", f"{figures['calibration_error']:.4f}, over {rows:,} rows"),
        ("share of the commonest class", f"{commonest} ({figures['commonest_class']})"),
    ]


def class_rows(figures: Mapping[str, Any]) -> Rows:
    """A row under `HEADER` for each class, in label order; a dash for what is not defined."""
    return [_row(name, one) for name, one in figures["per_class"].items()]


def ranked_rows(figures: Mapping[str, Any]) -> tuple[Rows, Rows]:
    """Rows of the ten classes of lowest recall, lowest first, and of the ten of highest recall, highest first."""
    present = [(name, one) for name, one in figures["per_class"].items() if one["n"]]
    rising = [_row(name, one) for name, one in sorted(present, key=lambda pair: pair[1]["recall"])]
    return rising[:10], rising[:-11:-1]


def class_table(figures: Mapping[str, Any]) -> tuple[tuple[str, ...], Rows, int]:
    """Header and rows of a short table, and the number of classes that it leaves out."""
    rows = class_rows(figures)
    if len(rows) > FEW_CLASSES:
        lowest, highest = ranked_rows(figures)
        shown = list(dict.fromkeys([*lowest, *reversed(highest)]))
        return HEADER, shown, len(rows) - len(shown)
    return HEADER, rows, 0


def _row(name: str, one: Mapping[str, Any]) -> tuple[str, ...]:
    recall, precision = (share_text(one[what], one[f"{what}_interval"]) for what in ("recall", "precision"))
    auroc = "-" if one["auroc"] is None else f"{one['auroc']:.3f}"
    return name, f"{one['n']:,}", recall, f"{one['predicted']:,}", precision, auroc


def share_text(value: float | None, interval: list[float] | None) -> str:
    """A share and its interval in per cent."""
    if value is None or interval is None:
        return "-"
    return f"{100 * value:.1f} ({100 * interval[0]:.1f} to {100 * interval[1]:.1f})"
