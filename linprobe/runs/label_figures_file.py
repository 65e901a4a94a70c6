"""`test_figures.json` of a run on rows with several labels: its keys, and what they must agree on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from linprobe.runs.manifest_keys import COUNT, SHARE, WHOLE, by_name, list_of, none_or, record

INTERVAL = none_or(list_of(SHARE))
OF_LABEL = record(
    n=WHOLE,
    predicted=WHOLE,
    accuracy=SHARE,
    accuracy_interval=INTERVAL,
    auroc=none_or(SHARE),
    average_precision=none_or(SHARE),
    recall=none_or(SHARE),
    recall_interval=INTERVAL,
    precision=none_or(SHARE),
    precision_interval=INTERVAL,
)
FIGURES_OF_LABELS = record(
    test_rows=COUNT,
    macro_auroc=none_or(SHARE),
    macro_average_precision=none_or(SHARE),
    label_accuracy=SHARE,
    commonest_accuracy=SHARE,
    per_label=by_name(OF_LABEL),
)
STATED_OF_LABELS = {  # keys of the manifest, and of the file
    "n_test": "test_rows",
    "test_macro_auroc": "macro_auroc",
    "test_macro_average_precision": "macro_average_precision",
    "test_label_accuracy": "label_accuracy",
}
MEANS = {"macro_auroc": "auroc", "macro_average_precision": "average_precision", "label_accuracy": "accuracy"}
ROUNDING = 1e-9


def label_contradictions(figures: Mapping[str, Any], manifest: Mapping[str, Any]) -> Iterator[str]:
    """What the figures of labels contradict: each other, or the class names of the manifest."""
    of_label, n_rows = list(figures["per_label"].values()), figures["test_rows"]
    if list(figures["per_label"]) != manifest["class_names"]:
        yield "the labels are not those of the manifest"
    for mean, name in MEANS.items():
        found = [one[name] for one in of_label if one[name] is not None]
        expected = sum(found) / len(found) if found else None
        if (expected is None) != (figures[mean] is None) or not math.isclose(
            expected or 0, figures[mean] or 0, abs_tol=ROUNDING
        ):
            yield f"{mean} is {figures[mean]}, and the labels give {expected}"
    commonest = sum(max(one["n"], n_rows - one["n"]) for one in of_label) / n_rows / len(of_label)
    if not math.isclose(commonest, figures["commonest_accuracy"], abs_tol=ROUNDING):
        yield f"commonest_accuracy is {figures['commonest_accuracy']}, and the labels give {commonest:.9g}"
    for one in of_label:
        if max(one["n"], one["predicted"]) > n_rows:
            yield "a label has more rows than there are"
        if any((one[name] is None) == (0 < one["n"] < n_rows) for name in ("auroc", "average_precision")):
            yield "a label lacks an AUROC, or has one without two kinds of rows"
        hits = one["n"] * (one["recall"] or 0)
        if not math.isclose(hits, one["predicted"] * (one["precision"] or 0), abs_tol=ROUNDING * n_rows):
            yield "a recall contradicts a precision"
        wrong = one["n"] + one["predicted"] - 2 * hits
        if not math.isclose(one["accuracy"], 1 - wrong / n_rows, abs_tol=ROUNDING):
            yield "an accuracy contradicts recall and precision"
        if any(len(one[f"{name}_interval"] or (0, 0)) != 2 for name in ("accuracy", "recall", "precision")):
            yield "an interval has not two ends"
        if any((one[f"{name}_interval"] is None) != (one[name] is None) for name in ("recall", "precision")):
            yield "a share has no interval, or an interval no share"
