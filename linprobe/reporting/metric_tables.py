"""Tables of a model's metrics on test rows, by class or by label: for the terminal and the reviewer's page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CLASS_HEADER = ("class", "rows", "recall, %", "answers", "precision, %", "AUROC")
LABEL_HEADER = ("label", "rows with it", "AUROC", "AP", "accuracy, %", "recall, %", "answers", "precision, %")
PRIORS = {"train": "the class shares of training", "uniform": "equal classes"}
FEW_CLASSES = 20  # with more classes, the ten of lowest recall and the ten of highest
Cells = list[tuple[str, ...]]


@dataclass(frozen=True)
class MetricTables:
    """Tables of the metrics of a model on test rows.

    Attributes:
        overall: names and texts of the metrics of all rows. header, rows: metrics by class or label.
        by: what a row of these is, in words. left_out: number of classes that the rows leave out.
        headline: the metric that a script reads.
    """

    overall: Cells
    by: str
    header: tuple[str, ...]
    rows: Cells
    left_out: int
    headline: float | None


def tables_of(metrics: Mapping[str, Any]) -> MetricTables:
    """The tables of what `linprobe.runs.figures.figures_by_task` returned."""
    overall = overall_rows(metrics)
    if "per_label" in metrics:
        return MetricTables(overall, "by label", LABEL_HEADER, label_rows(metrics), 0, metrics["macro_auroc"])
    rows, left_out = class_rows(metrics), 0
    if len(rows) > FEW_CLASSES:
        lowest, highest = ranked_rows(metrics)
        shown = list(dict.fromkeys([*lowest, *reversed(highest)]))
        rows, left_out = shown, len(rows) - len(shown)
    return MetricTables(overall, "by class", CLASS_HEADER, rows, left_out, metrics["test_accuracy"])


def overall_rows(metrics: Mapping[str, Any]) -> Cells:
    """Names and texts of the metrics of all test rows, or of all labels, together."""
    if "per_label" in metrics:
        labels = metrics["per_label"].values()
        ranked, mean = sum(one["auroc"] is not None for one in labels), f"mean of {len(labels):,} labels"
        return [
            ("macro AUROC", f"{_number(metrics['macro_auroc'])}, mean of {ranked:,} labels"),
            ("macro average precision", f"{_number(metrics['macro_average_precision'])}, mean of {ranked:,} labels"),
            ("label accuracy", f"{metrics['label_accuracy']:.4f}, {mean}"),
            ("label accuracy of the majority answers", f"{metrics['commonest_accuracy']:.4f}, {mean}"),
        ]
    auroc, rows = metrics["macro_auroc"], metrics["test_rows"]
    mean = f"mean of {sum(one['n'] > 0 for one in metrics['per_class'].values()):,} classes"
    share = f"{metrics['commonest_share']:.4f}, {round(rows * metrics['commonest_share']):,} of {rows:,} rows"
    return [
        ("accuracy", f"{metrics['test_accuracy']:.4f}, {round(rows * metrics['test_accuracy']):,} of {rows:,} rows"),
        ("balanced accuracy", f"{metrics['balanced_accuracy']:.4f}, {mean}"),
        ("macro AUROC", "-" if auroc is None else f"{auroc:.4f}, {mean}"),
        ("calibration error", f"{metrics['calibration_error']:.4f}, over {rows:,} rows"),
        ("share of the majority class", f"{share} ({metrics['commonest_class']})"),
        *(
            (f"for {PRIORS[word]}", f"accuracy {one['test_accuracy']:.4f}, balanced {one['balanced_accuracy']:.4f}")
            for word, one in (metrics.get("by_prior") or {}).items()
        ),
    ]


def class_rows(metrics: Mapping[str, Any]) -> Cells:
    """A row under `CLASS_HEADER` for each class, in label order; a dash for what is not defined."""
    return [_class_row(name, one) for name, one in metrics["per_class"].items()]


def ranked_rows(metrics: Mapping[str, Any]) -> tuple[Cells, Cells]:
    """Rows of the ten classes of lowest recall, lowest first, and of the ten of highest recall, highest first."""
    present = [(name, one) for name, one in metrics["per_class"].items() if one["n"]]
    rising = [_class_row(name, one) for name, one in sorted(present, key=lambda pair: pair[1]["recall"])]
    return rising[:10], rising[:-11:-1]


def _class_row(name: str, one: Mapping[str, Any]) -> tuple[str, ...]:
    recall, precision = (_share(one, what) for what in ("recall", "precision"))
    return name, f"{one['n']:,}", recall, f"{one['predicted']:,}", precision, _number(one["auroc"], 3)


def label_rows(metrics: Mapping[str, Any]) -> Cells:
    """A row under `LABEL_HEADER` for each label, in order; a dash for what is not defined."""
    return [
        (
            name,
            f"{one['n']:,}",
            _number(one["auroc"], 3),
            _number(one["average_precision"], 3),
            *(_share(one, what) for what in ("accuracy", "recall")),
            f"{one['predicted']:,}",
            _share(one, "precision"),
        )
        for name, one in metrics["per_label"].items()
    ]


def _share(one: Mapping[str, Any], name: str) -> str:
    """A share and its interval in per cent."""
    value, interval = one[name], one[f"{name}_interval"]
    if value is None or interval is None:
        return "-"
    return f"{100 * value:.1f} ({100 * interval[0]:.1f} to {100 * interval[1]:.1f})"


def _number(value: float | None, digits: int = 4) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
