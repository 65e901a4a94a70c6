"""Tables of a model's metrics on test rows, by class or by label: for the terminal and the reviewer's page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

CLASS_HEADER = ("class", "rows", "recall, %", "predicted", "precision, %", "AUROC")
LABEL_HEADER = ("label", "rows with it", "AUROC", "AP", "accuracy, %", "recall, %", "predicted", "precision, %")
PRIORS = {"train": "the class shares of training", "uniform": "equal classes"}
FEW_CLASSES = 20  # with more classes, the ten of lowest recall and the ten of highest
Cells = list[tuple[str, ...]]


@dataclass(frozen=True)
class MetricTables:
    """Tables of the metrics of a model on test rows: `overall`, and by class or label, `rows` in label order.

    With many classes, `lowest` and `highest` have the ten of lowest and highest recall. Scripts read `headline`.
    """

    overall: Cells
    by: str
    header: tuple[str, ...]
    rows: Cells
    headline: float | None
    lowest: Cells = field(default_factory=list)
    highest: Cells = field(default_factory=list)

    @property
    def shown(self) -> Cells:
        """The rows that a terminal has room for: all, or the lowest and the highest, in the order of recall."""
        return list(dict.fromkeys([*self.lowest, *reversed(self.highest)])) or self.rows


def tables_of(metrics: Mapping[str, Any]) -> MetricTables:
    """The tables of what `linprobe.runs.figures.figures_by_task` returned; a dash for what is not defined."""
    overall = _overall_rows(metrics)
    if "per_label" in metrics:
        rows = [_label_row(name, one) for name, one in metrics["per_label"].items()]
        return MetricTables(overall, "by label", LABEL_HEADER, rows, metrics["macro_auroc"])
    by_class = metrics["per_class"]
    rows = [_class_row(name, one) for name, one in by_class.items()]
    tables = MetricTables(overall, "by class", CLASS_HEADER, rows, metrics["test_accuracy"])
    if len(rows) <= FEW_CLASSES:
        return tables
    present = sorted((name for name, one in by_class.items() if one["n"]), key=lambda name: by_class[name]["recall"])
    rising = [_class_row(name, by_class[name]) for name in present]
    return replace(tables, lowest=rising[:10], highest=rising[:-11:-1])


def _overall_rows(metrics: Mapping[str, Any]) -> Cells:
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


def _class_row(name: str, one: Mapping[str, Any]) -> tuple[str, ...]:
    recall, precision = (_share(one, what) for what in ("recall", "precision"))
    return name, f"{one['n']:,}", recall, f"{one['predicted']:,}", precision, _number(one["auroc"], 3)


def _label_row(name: str, one: Mapping[str, Any]) -> tuple[str, ...]:
    ranked = (_number(one["auroc"], 3), _number(one["average_precision"], 3))
    accuracy, recall, precision = (_share(one, what) for what in ("accuracy", "recall", "precision"))
    return name, f"{one['n']:,}", *ranked, accuracy, recall, f"{one['predicted']:,}", precision


def _share(one: Mapping[str, Any], name: str) -> str:
    value, interval = one[name], one[f"{name}_interval"]
    if value is None or interval is None:
        return "-"
    return f"{100 * value:.1f} ({100 * interval[0]:.1f} to {100 * interval[1]:.1f})"


def _number(value: float | None, digits: int = 4) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
