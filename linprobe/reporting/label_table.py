"""The table of a model's figures by label, for rows with several labels, on the terminal and the reviewer's page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from linprobe.reporting.class_table import Rows, share_text

HEADER = ("label", "rows with it", "AUROC", "AP", "accuracy, %", "recall, %", "answers", "precision, %")


def overall_rows(figures: Mapping[str, Any]) -> Rows:
    """Names and texts of the figures of all labels together, from what `label_figures` returns."""
    labels, ranked = figures["per_label"], sum(one["auroc"] is not None for one in figures["per_label"].values())
    return [
        ("macro AUROC", f"{_number(figures['macro_auroc'])}, mean of {ranked:,} labels"),
        ("macro average precision", f"{_number(figures['macro_average_precision'])}, mean of {ranked:,} labels"),
        ("accuracy of labels", f"{figures['label_accuracy']:.4f}, mean of {len(labels):,} labels"),
        (
            "by always giving the commoner answer",
            f"{figures['commonest_accuracy']:.4f}, mean of {len(labels):,} labels",
        ),
    ]


def label_rows(figures: Mapping[str, Any]) -> Rows:
    """A row under `HEADER` for each label, in order; a dash for what is not defined."""
    return [
        (
            name,
            f"{one['n']:,}",
            _number(one["auroc"], 3),
            _number(one["average_precision"], 3),
            *(share_text(one[what], one[f"{what}_interval"]) for what in ("accuracy", "recall")),
            f"{one['predicted']:,}",
            share_text(one["precision"], one["precision_interval"]),
        )
        for name, one in figures["per_label"].items()
    ]


def _number(value: float | None, digits: int = 4) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
