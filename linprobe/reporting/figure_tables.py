"""The tables of figures on test rows, by task: for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from linprobe.metrics.figures import of_labels
from linprobe.reporting import class_table, label_table


@dataclass(frozen=True)
class FigureTables:
    """Tables of the figures of a model on test rows.

    Attributes:
        overall: names and texts of the figures of all rows. header, rows: figures by class or label.
        by: what a row of these is, in words. left_out: number of classes that the rows leave out.
        headline: the figure that a script reads.
    """

    overall: class_table.Rows
    by: str
    header: tuple[str, ...]
    rows: class_table.Rows
    left_out: int
    headline: float | None


def tables_of(figures: Mapping[str, Any]) -> FigureTables:
    """The tables of what `linprobe.metrics.figures.figures_by_task` returned."""
    if of_labels(figures):
        overall, rows = label_table.overall_rows(figures), label_table.label_rows(figures)
        return FigureTables(overall, "by label", label_table.HEADER, rows, 0, figures["macro_auroc"])
    header, rows, left_out = class_table.class_table(figures)
    return FigureTables(class_table.overall_rows(figures), "by class", header, rows, left_out, figures["test_accuracy"])
