"""Scores and predictions of folded weights on L2-normalised raw rows, streamed; metrics on test rows: overall, by
class, or by label; `test_figures.json`, which must agree with itself; and what the manifest states of them.

Weights are one set, (n_features, n_classes) with bias (n_classes,), or a stack of voters, (n_voters, n_features,
n_classes) with bias (n_voters, n_classes). Each voter has one vote; ties go to the higher summed probability.
`docs/metrics.md` and `docs/labels.md` define the metrics. Intervals take rows as independent.

Wilson, "Probable Inference, the Law of Succession, and Statistical Inference", JASA 1927: the interval of a share.
Hanley, McNeil, "The Meaning and Use of the Area under a ROC Curve", Radiology 1982.
Guo, Pleiss, Sun, Weinberger, "On Calibration of Modern Neural Networks", ICML 2017: the calibration error, and in
section 4.2 the temperature: the loss is convex in 1/T, so a line search finds its minimum. No prediction changes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import NormalDist
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from linprobe.accounting.calibrate import check_delta, check_epsilon
from linprobe.accounting.events import TEST_ACCURACY
from linprobe.accounting.figures import NOUN, largest_mu
from linprobe.data.blocks import RawBlocks, Source, concatenated, normalise_rows, whole_blocks
from linprobe.data.feature_reader import FeatureReader, GroupRows, test_people
from linprobe.data.labels import MULTILABEL, Bounds
from linprobe.errors import counted
from linprobe.mechanisms.correct_predictions import SHARE_STEP, NoisyTest, held_out_counts
from linprobe.mechanisms.gaussian import ClippedSum
from linprobe.mechanisms.score_histogram import (
    BINS,
    TEST_AUROC,
    NoisyScores,
    bins_of,
    n_histograms,
    noisy_auroc,
    score_sums,
)
from linprobe.options import DEFAULT_DELTA
from linprobe.runs.manifest import CLASS_METRICS, LABEL_METRICS, Accuracy, Manifest, NoisyCounts, fits

LEAST, MOST = 0.01, 100.0  # temperatures; rows that are all predicted correctly have no minimum above 0

Real = TypeVar("Real", np.float32, np.float64)


def softmax(scores: NDArray[Real]) -> NDArray[Real]:
    """exp(scores) of each row divided by their sum, (b, n_classes)."""
    powers = scores - scores.max(axis=1, keepdims=True)
    np.exp(powers, out=powers)
    powers /= powers.sum(axis=1, keepdims=True)
    return np.asarray(powers)


def class_scores(
    x: NDArray[np.floating], weights: NDArray[np.floating], bias: NDArray[np.floating]
) -> NDArray[np.float64]:
    """Scores of raw rows x (b, n_features), shape (b, n_classes): nats, or votes plus a tie-breaking fraction."""
    unit = normalise_rows(np.asarray(x, dtype=np.float32)).astype(weights.dtype, copy=False)
    if weights.ndim == 2:
        return np.asarray(unit @ weights + bias, dtype=np.float64)
    votes = np.zeros((len(unit), weights.shape[2]))
    rows = np.arange(len(unit))
    for one, offset in zip(weights, bias, strict=True):
        probability = softmax(unit @ one + offset)
        votes[rows, probability.argmax(axis=1)] += 1
        votes += probability / (len(weights) + 1)
    return votes


def probabilities(
    scores: NDArray[np.float64], weights: NDArray[np.floating], temperature: float = 1.0
) -> NDArray[np.float64]:
    """Class probabilities (b, n_classes) from `class_scores`: softmax of scores / temperature, or shares of votes."""
    if weights.ndim == 3:
        return np.asarray(np.floor(scores) / len(weights), dtype=np.float64)
    return softmax(scores if temperature == 1 else scores / temperature)


def label_probabilities(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probabilities of several labels a row from their scores (b, n_labels): each by itself, sigmoid(score)."""
    return np.asarray(np.exp(-np.logaddexp(0, -scores)))


def sums_of_test_rows(
    blocks: RawBlocks, weights: NDArray[np.float32], bias: NDArray[np.float32], bounds: Bounds | None = None
) -> dict[str, ClippedSum]:
    """What is released of private test rows for their accuracy and AUROC, by purpose, without zero rows (empty places).

    With `bounds`, sums over people of the shares of their rows, multiples of `SHARE_STEP`, which add without rounding.
    """
    n_classes = weights.shape[-1]
    counts, histograms = np.zeros((n_classes, 2)), np.zeros((n_histograms(n_classes), 2, BINS))
    for scores, y in _scored(blocks, weights, bias, bounds):
        for cells, own in (
            (counts, _right_and_wrong(scores, y)),
            (histograms, _score_cells(probabilities(scores, weights), y)),
        ):
            cells += own if bounds is None else np.floor(own / len(y) / SHARE_STEP) * SHARE_STEP
    return {TEST_ACCURACY: held_out_counts(counts), TEST_AUROC: score_sums(histograms)}


def _right_and_wrong(scores: NDArray[np.float64], y: NDArray[np.int64]) -> NDArray[np.float64]:
    """Numbers of correct and wrong predictions by class, shape (n_classes, 2)."""
    own, wrong = np.zeros((scores.shape[1], 2)), scores.argmax(axis=1) != y
    np.add.at(own, (y, wrong.astype(np.int64)), 1)
    return own


def _score_cells(likely: NDArray[np.float64], y: NDArray[np.int64]) -> NDArray[np.float64]:
    """Numbers of rows of a class, and of others, by bin of their probability of it, shape (H, 2, BINS)."""
    n_classes = likely.shape[1]
    histograms = np.arange(n_histograms(n_classes))
    own, other = np.zeros((len(histograms), 2, BINS)), y[:, None] != histograms + n_classes - len(histograms)
    np.add.at(own, (histograms, other.astype(np.int64), bins_of(likely)), 1)
    return own


def _scored(
    blocks: RawBlocks, weights: NDArray[np.float32], bias: NDArray[np.float32], bounds: Bounds | None
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.int64]]]:
    """Class scores and classes of the rows that are not zero, by block, or by person with `bounds`."""
    for x, y in blocks if bounds is None else _people(blocks, bounds):
        present = np.any(x != 0, axis=1)
        # zero rows stay in the product: the rounding of a row's scores may depend on the number of rows
        yield class_scores(x, weights, bias)[present], y[present]


def _people(blocks: RawBlocks, bounds: Bounds) -> RawBlocks:
    """The rows of each person who has rows, alone: rows of others would move the rows, and rounding with them."""
    for x, y in whole_blocks(blocks, np.diff(bounds).tolist()):
        present = np.any(x != 0, axis=1)
        if present.any():
            yield x[present], y[present]


def count_private(
    weights: NDArray[np.float32], bias: NDArray[np.float32], rows: Source, bounds: Bounds | None
) -> tuple[float, float]:
    """Number of correct predictions, and of rows that are not zero: an empty place counts in neither.

    With `bounds`, the sum over people of the share of their rows that are right, and the number of people with rows.
    """
    right, total = 0.0, 0
    for scores, y in _scored(rows.blocks(), weights, bias, bounds):
        hit = scores.argmax(axis=1) == y
        if bounds is None:
            right, total = right + int(hit.sum()), total + len(hit)
        else:
            right, total = right + math.floor(hit.mean() / SHARE_STEP) * SHARE_STEP, total + 1
    return right, total


def fit_temperature(blocks: RawBlocks, weights: NDArray[np.floating], bias: NDArray[np.floating]) -> float:
    """T in [`LEAST`, `MOST`] for one set of weights, from public rows (b, n_features) and classes (b,); no noise."""
    from scipy.optimize import minimize_scalar  # scipy would slow down every command
    from scipy.special import log_softmax

    scores, labels = concatenated((class_scores(x, weights, bias), y) for x, y in blocks)
    rows = np.arange(len(labels))

    def loss(log_temperature: float) -> float:
        return -float(log_softmax(scores / math.exp(log_temperature), axis=1)[rows, labels].mean())

    return math.exp(float(minimize_scalar(loss, bounds=(math.log(LEAST), math.log(MOST)), method="bounded").x))


CONFIDENCE = 0.95
CLEARLY = 3.0  # standard errors
LOW_SIGNAL = 10  # of `signal_to_noise`: below, accuracy is near that without private rows
# `signal_to_noise` below; percent of the gap from only-public, or without public rows from guessing, to the best
# accuracy measured, on six data sets (docs/planning.md)
BANDS = (
    (5, (0, 12), (3, 36)),
    (10, (8, 20), (15, 40)),
    (20, (38, 66), (53, 92)),
    (50, (72, 79), (87, 96)),
    (100, (85, 100), (97, 100)),
    (math.inf, (87, 100), (91, 100)),
)
CALIBRATION_BINS = 15
MOST_CLASSES_IN_MATRIX = 1000  # nobody reads a larger matrix, and it takes 8 MB or more
SCORES_A_PASS = 2**25  # 256 MiB of float64

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Marks = NDArray[np.bool_]


def no_better_than_guessing(figures: Mapping[str, Any], manifest: Manifest) -> str | None:
    """A warning if the model of a run is no more accurate than always predicting the majority class, or labels.

    A model for equal classes may be less accurate, and yet find every class: its balanced accuracy is `CLEARLY` better.
    """
    if "per_label" in figures:
        if figures["label_accuracy"] > figures["commonest_accuracy"]:
            return None
        return (
            f"label accuracy {figures['label_accuracy']:.4f} is not above {figures['commonest_accuracy']:.4f}, the "
            "accuracy of always predicting the majority answer of each label; macro AUROC is "
            f"{'-' if figures['macro_auroc'] is None else format(figures['macro_auroc'], '.4f')}, by guessing 0.5"
        )
    if figures["test_accuracy"] > figures["commonest_share"]:
        return None
    found = [(one["recall"], one["n"]) for one in figures["per_class"].values() if one["n"] > 0]
    present = len(found)
    error = math.sqrt(sum(max(recall * (1 - recall), 1 / n) / n for recall, n in found)) / present
    if figures["balanced_accuracy"] > 1 / present + CLEARLY * error:
        return None
    return (
        f"test accuracy {figures['test_accuracy']:.4f} is not above {figures['commonest_share']:.4f}, the accuracy "
        f"of always predicting the majority class {figures['commonest_class']!r}; balanced accuracy is "
        f"{figures['balanced_accuracy']:.4f}, and {1 / present:.4f} for the majority class"
        f"{_why_guessing(manifest)}"
    )


def signal_to_noise(epsilon: float, delta: float, n_units: int, n_classes: int) -> float:
    """g = mu N / C: how far the units of a class move a score, in standard deviations of the noise of a run."""
    return largest_mu(epsilon, delta) * n_units / n_classes


def expected(epsilon: float, delta: float, n_rows: int, n_classes: int) -> dict[str, Any]:
    """What accuracy to expect of a run on `n_rows` private rows of `n_classes` classes of about the same size: g above,
    least and largest measured percent of the gap to the best accuracy, from only-public and from guessing, and words.
    """
    g = signal_to_noise(check_epsilon(epsilon), check_delta(delta, n_rows), n_rows, n_classes)
    _, known, cold = next(band for band in BANDS if g < band[0])
    where = (
        "near only-public"
        if g < LOW_SIGNAL
        else "near non-private"
        if g >= 50
        else "between only-public and non-private"
    )
    return {
        "signal_to_noise": g,
        "percent_with_public": list(known),
        "percent_without": list(cold),
        "expect": f"expect overall accuracy {where} if classes are about equally common (a rare class may be missed): "
        f"the signal-to-noise ratio of a class is {g:.3g}; of the gap to the "
        "best accuracy measured, comparable runs on rows with a small common mean closed "
        f"{known[0]} to {known[1]} % from only-public (two public rows per class), and "
        f"{cold[0]} to {cold[1]} % from guessing (no public rows)",
    }


def _why_guessing(manifest: Manifest) -> str:
    """The likely cause of an accuracy no better than guessing, by public facts of the run; empty if none is known."""
    if (manifest.extraction or {}).get("columns"):
        return "; in a table, one large column hides the others: subtract and divide by public constants"
    epsilon, n_units, n_classes = manifest.epsilon_target, manifest.n_private, manifest.n_classes
    if not epsilon or manifest.delta is None:
        return ""
    if signal_to_noise(epsilon, manifest.delta, n_units, n_classes) >= LOW_SIGNAL:
        return ""
    are = "is" if n_units == 1 else "are"
    few = f"{counted(n_units, NOUN[manifest.unit])} {are} few for {n_classes} classes at epsilon {epsilon:g}"
    at = "" if manifest.delta == DEFAULT_DELTA else f" --delta {manifest.delta:g}"
    return f"; {few}: linprobe plan --eps {epsilon:g}{at} --n {n_units} --classes {n_classes} says what to expect"


def figures_by_task(
    task: str,
    rows: Source,
    weights: NDArray[np.floating],
    bias: NDArray[np.floating],
    names: Sequence[str],
    *,
    temperature: float = 1.0,
    most_passes: int | None = None,
) -> dict[str, Any]:
    """Accuracy, balanced accuracy, AUROC, calibration error, confusion matrix, figures by class; or `label_figures`.

    Args:
        rows: labelled raw rows.
        temperature: divides the class scores before the softmax; without effect on votes.
        most_passes: leave AUROC out if it needs more passes over the rows, of `SCORES_A_PASS` probabilities each.
    Returns: None for the share of no rows, for the AUROC of a class that no row or every row has, and for a confusion
        matrix (rows: true class) of more than `MOST_CLASSES_IN_MATRIX` classes; bins of the calibration with rows.
    """
    if task == MULTILABEL:
        return label_figures(rows, weights, bias, names)
    n_rows, n_classes, width = rows.n_rows, weights.shape[-1], max(1, SCORES_A_PASS // rows.n_rows)
    ranked = most_passes is None or -(-n_classes // width) <= most_passes

    def score(columns: slice) -> list[NDArray[Any]]:
        """Labels, predicted classes and confidences (n_rows,), and the probabilities of some classes."""
        parts = []
        for x, y in rows.blocks():
            scores = class_scores(x, weights, bias)
            share = probabilities(scores, weights, temperature)
            best = scores.argmax(axis=1)
            parts.append((y, best, share[np.arange(len(best)), best], share[:, columns]))
        return [np.concatenate(part) for part in zip(*parts, strict=True)]

    y, predicted, confidence, share = score(slice(0, width if ranked else 0))
    auroc = class_auroc(y, share, 0)
    for first in range(width, n_classes, width) if ranked else ():
        auroc += class_auroc(y, score(slice(first, first + width))[-1], first)
    ranks = [value for value in auroc if value is not None]
    n, called, right = (np.bincount(values, minlength=n_classes) for values in (y, predicted, y[predicted == y]))
    commonest = int(n.argmax())
    error, bins = calibration(confidence, predicted == y)
    small, pairs = n_classes <= MOST_CLASSES_IN_MATRIX, y * n_classes + predicted
    return {
        "test_rows": n_rows,
        "test_accuracy": int(right.sum()) / n_rows,
        "balanced_accuracy": float(np.mean(right[n > 0] / n[n > 0])),
        "macro_auroc": float(np.mean(ranks)) if ranks else None,
        "calibration_error": error,
        "commonest_class": names[commonest],
        "commonest_share": int(n[commonest]) / n_rows,
        "per_class": {
            name: {
                "n": of,
                **share_of("recall", hits, of),
                "predicted": guesses,
                **share_of("precision", hits, guesses),
                "auroc": area,
            }
            for name, hits, of, guesses, area in zip(
                names, right.tolist(), n.tolist(), called.tolist(), auroc or [None] * n_classes, strict=True
            )
        },
        "confusion_matrix": np.bincount(pairs, minlength=n_classes**2).reshape(-1, n_classes).tolist()
        if small
        else None,
        "calibration": bins,
    }


def class_auroc(y: Counts, share: Floats, first: int) -> list[float | None]:
    """AUROC of classes from `first` on, by y (n,) and their probabilities `share` (n, classes); None for one kind."""
    areas: list[float | None] = []
    for place, column in enumerate(share.T, first):
        mine = y == place
        areas.append(auroc_of(mine, column) if 0 < mine.sum() < len(y) else None)
    return areas


def auroc_of(mine: NDArray[np.bool_], score: Floats) -> float:
    """The share of pairs of a row of `mine` and another row in which the former has the higher score, from ranks."""
    own, ordered, n = score[mine], np.sort(score), int(mine.sum())
    ranks = sum(int(ordered.searchsorted(own, side).sum()) for side in ("left", "right")) + n
    return (ranks - n * (n + 1)) / (2 * n * (len(mine) - n))


def calibration(confidence: Floats, right: NDArray[np.bool_]) -> tuple[float, list[dict[str, float]]]:
    """The calibration error, and n, mean confidence and accuracy of bins with rows, from `confidence`, `right` (n,)."""
    places = np.clip(np.ceil(confidence * CALIBRATION_BINS).astype(np.int64) - 1, 0, CALIBRATION_BINS - 1)
    n, certain, hits = (
        np.bincount(places, weights=values, minlength=CALIBRATION_BINS) for values in (None, confidence, right)
    )
    error = float(np.abs(hits - certain).sum() / len(right))
    bins = [
        {"n": int(count), "confidence": float(sure / count), "accuracy": float(hit / count)}
        for count, sure, hit in zip(n, certain, hits, strict=True)
        if count
    ]
    return error, bins


def wilson(hits: int, n: int) -> tuple[float, float]:
    """Wilson's interval, at `CONFIDENCE`, of a share that `hits` of `n` independent rows have; n at least 1."""
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    middle = (hits + z**2 / 2) / (n + z**2)
    half = z / (n + z**2) * math.sqrt(hits * (n - hits) / n + z**2 / 4)
    return (0.0 if hits == 0 else middle - half), (1.0 if hits == n else middle + half)


def share_of(name: str, hits: int, n: int) -> dict[str, Any]:
    """The share and its interval under `name` and `name_interval`; None for a share of no rows."""
    if not n:
        return {name: None, f"{name}_interval": None}
    return {name: hits / n, f"{name}_interval": list(wilson(hits, n))}


def label_figures(
    rows: Source, weights: NDArray[np.floating], bias: NDArray[np.floating], names: Sequence[str]
) -> dict[str, Any]:
    """AUROC, average precision, accuracy, recall and precision of each label, and their means.

    The labels of `rows` are 0 and 1, (b, n_labels). A pass holds `SCORES_A_PASS` scores; more labels take more passes.
    `commonest_accuracy` is the label accuracy of always predicting the majority answer. None is for a share of no rows,
    and for the AUROC and average precision of a label that no row or every row has.
    """
    n_rows, width = rows.n_rows, max(1, SCORES_A_PASS // rows.n_rows)
    found: dict[str, dict[str, Any]] = {}
    for first in range(0, len(names), width):
        columns = slice(first, first + width)
        parts = [(y[:, columns] > 0, class_scores(x, weights, bias)[:, columns]) for x, y in rows.blocks()]
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


STATED_OF_CLASSES = {  # keys of the manifest, and of the file
    "n_test": "test_rows",
    "test_accuracy": "test_accuracy",
    **{f"test_{name}": name for name in ("balanced_accuracy", "macro_auroc", "calibration_error")},
}
MEANS = {"macro_auroc": "auroc", "macro_average_precision": "average_precision", "label_accuracy": "accuracy"}
STATED_OF_LABELS = {"n_test": "test_rows", **{f"test_{name}": name for name in MEANS}}
ROUNDING = 1e-9
NAMED_CLASSES = 5  # in a note


def measured_accuracy(metrics: Mapping[str, Any] | None, test_rows: str, n_test: int) -> Accuracy:
    """What a manifest states of metrics on public test rows; None for rows that were not measured."""
    nothing = dict.fromkeys(("test_accuracy", "test_accuracy_std", "test_balanced_accuracy", "test_accuracy_per_class"))
    stated: dict[str, Any] = {**nothing, "test_rows": test_rows if n_test else "none", "n_test": n_test}
    if metrics is not None and "per_label" in metrics:
        stated |= {key: metrics[name] for key, name in STATED_OF_LABELS.items()}
    elif metrics is not None:
        stated |= {key: metrics[name] for key, name in STATED_OF_CLASSES.items()}
        stated["test_accuracy_per_class"] = {name: one["recall"] for name, one in metrics["per_class"].items()}
    return Accuracy(**stated)


def noisy_accuracy(tested: NoisyTest, scores: NoisyScores | None, n_test: int, names: Sequence[str]) -> Accuracy:
    """What a manifest states of noisy counts on private test rows; without `scores`, as for few test rows, no AUROC."""
    accuracy, std = tested.accuracy(n_test)
    auroc, auroc_std = (scores and noisy_auroc(scores.cells, scores.std, tested)) or (None, None)
    balanced, balanced_std = tested.balanced or (None, None)
    return Accuracy(
        test_rows="private",
        test_accuracy=accuracy,
        test_accuracy_std=std,
        test_balanced_accuracy=balanced,
        test_balanced_accuracy_std=balanced_std,
        test_accuracy_per_class=None if balanced is None else dict(zip(names, tested.recalls, strict=True)),
        test_macro_auroc=auroc,
        test_macro_auroc_std=auroc_std,
        n_test=n_test,
        test_counts=NoisyCounts(tested.right, tested.by_class.tolist()),
        test_scores=None if scores is None else scores.cells.tolist(),
    )


def hidden_classes(recalls: Mapping[str, float | None] | None, std: float | None) -> str | None:
    """A note on classes that balanced accuracy leaves out on private test rows, by `recalls` and `std` of the noise."""
    recalls = recalls or {}
    missing = [name for name, recall in recalls.items() if recall is None]
    if not missing or std is None:
        return None
    return (
        f"balanced accuracy is the mean of {len(recalls) - len(missing)} of {len(recalls)} classes: noise hides the "
        f"test rows of {', '.join(missing[:NAMED_CLASSES])}{', ...' if len(missing) > NAMED_CLASSES else ''}"
    )


def stated_metrics(manifest: Manifest) -> dict[str, str]:
    """The keys of a manifest about its test rows, and their names in the file."""
    known = STATED_OF_LABELS if manifest.several_labels else STATED_OF_CLASSES
    return {key: name for key, name in known.items() if manifest.has(key)}


def contradictions(metrics: Any, manifest: Manifest) -> Iterator[str]:
    """What is wrong with the JSON value of `test_figures.json`, by itself or beside the manifest."""
    if not fits(LABEL_METRICS if manifest.several_labels else CLASS_METRICS, metrics):
        yield "a key is unknown or missing, or a value is wrong"
        return
    for key, name in stated_metrics(manifest).items():
        if getattr(manifest, key) != metrics[name]:
            yield f"{name} is {metrics[name]}, and the manifest's {key} {getattr(manifest, key)}"
    if manifest.several_labels:
        yield from label_contradictions(metrics, manifest.class_names)
    else:
        yield from _class_contradictions(metrics, manifest)


def _share_contradictions(one: Mapping[str, Any], **counts: tuple[int, int]) -> Iterator[str]:
    """What is wrong with shares of a class or a label, and with their intervals: each is of `hits` of `n` rows."""
    for share, (hits, n) in counts.items():
        if not 0 <= hits <= n:
            yield f"{share} is of {hits} of {n} rows"
            return
        for name, value in share_of(share, hits, n).items():
            stated, given = (np.array(figure, dtype=float) for figure in (one[name], value))  # NaN for None
            if stated.shape != given.shape or not np.allclose(stated, given, 0, ROUNDING, equal_nan=True):
                yield f"{name} is {one[name]}, and the numbers of rows give {value}"


# long: a list of rules, each about other figures
def _class_contradictions(metrics: Mapping[str, Any], manifest: Manifest) -> Iterator[str]:
    of_class, n_rows, bins = list(metrics["per_class"].values()), metrics["test_rows"], metrics["calibration"]
    if list(metrics["per_class"]) != manifest.class_names:
        yield "its classes differ from the manifest's"
    if {name: one["recall"] for name, one in metrics["per_class"].items()} != manifest.test_accuracy_per_class:
        yield "its recalls differ from the accuracies by class in the manifest"
    n, predicted = ([one[key] for one in of_class] for key in ("n", "predicted"))
    if not n_rows == sum(n) == sum(predicted) == sum(one["n"] for one in bins):
        yield "the numbers of rows do not add up"
    hits = [round(one["n"] * (one["recall"] or 0)) for one in of_class]
    for one, right in zip(of_class, hits, strict=True):
        yield from _share_contradictions(one, recall=(right, one["n"]), precision=(right, one["predicted"]))
    if not math.isclose(sum(hits) / n_rows, metrics["test_accuracy"], abs_tol=ROUNDING):
        yield f"test_accuracy is {metrics['test_accuracy']}, and the classes give {sum(hits) / n_rows:.9g}"
    commonest = manifest.class_names[n.index(max(n))], max(n) / n_rows
    if commonest != (metrics["commonest_class"], metrics["commonest_share"]):
        yield f"the commonest class is {metrics['commonest_class']!r}, and the numbers of rows give {commonest[0]!r}"
    matrix = metrics["confusion_matrix"]
    if matrix is None:
        return
    if [len(row) for row in matrix] != [len(n)] * len(n):
        yield "the confusion matrix is not square, with a row for each class"
    elif [[sum(row) for row in side] for side in (matrix, zip(*matrix, strict=True))] != [n, predicted]:
        yield "the confusion matrix contradicts the numbers of rows by class"
    elif [row[place] for place, row in enumerate(matrix)] != hits:
        yield "the confusion matrix contradicts a recall"


# long: a list of rules, each about other figures
def label_contradictions(metrics: Mapping[str, Any], names: Sequence[str]) -> Iterator[str]:
    """What the metrics of labels contradict: each other, or the names of the labels."""
    of_label, n_rows = list(metrics["per_label"].values()), metrics["test_rows"]
    if list(metrics["per_label"]) != names:
        yield "its labels differ from the manifest's"
    for mean, name in MEANS.items():
        found = [one[name] for one in of_label if one[name] is not None]
        expected = sum(found) / len(found) if found else None
        if (expected is None) != (metrics[mean] is None) or not math.isclose(
            expected or 0, metrics[mean] or 0, abs_tol=ROUNDING
        ):
            yield f"{mean} is {metrics[mean]}, and the labels give {expected}"
    majority = sum(max(one["n"], n_rows - one["n"]) for one in of_label) / n_rows / len(of_label)
    if not math.isclose(majority, metrics["commonest_accuracy"], abs_tol=ROUNDING):
        yield f"commonest_accuracy is {metrics['commonest_accuracy']}, and the labels give {majority:.9g}"
    for one in of_label:
        n, predicted, hits = one["n"], one["predicted"], round(one["n"] * (one["recall"] or 0))
        if max(n, predicted) > n_rows:
            yield "a label has more rows than there are"
        if any((one[name] is None) == (0 < n < n_rows) for name in ("auroc", "average_precision")):
            yield "a label lacks an AUROC, or has one without two kinds of rows"
        right = n_rows - n - predicted + 2 * hits
        yield from _share_contradictions(one, accuracy=(right, n_rows), recall=(hits, n), precision=(hits, predicted))


MOST_PASSES = 4  # over the test rows, for the AUROC of classes; `evaluate` has no limit
PRINTED = (  # keys of every manifest
    "test_accuracy", "test_accuracy_std", "test_balanced_accuracy", "test_balanced_accuracy_std", "test_macro_auroc",
    "test_calibration_error",
)  # fmt: skip
# of rows with several labels, and of private test rows
PRINTED_OF_SOME = ("test_label_accuracy", "test_macro_average_precision", "test_macro_auroc_std")


def figures_of(
    features: FeatureReader, weights: NDArray[np.float32], bias: NDArray[np.float32]
) -> dict[str, Any] | None:
    """Figures of the released model on public test rows; None if there are none."""
    if "test" not in features.sizes or features.description.private_test:
        return None
    rows, about = GroupRows(features, "test"), features.description
    return figures_by_task(about.task, rows, weights, bias, about.class_names, most_passes=MOST_PASSES)


def test_units(features: FeatureReader, unit: str | None) -> int:
    """The public number of test rows; of test people if they are protected, whose number of rows is private."""
    people = test_people(features, unit)
    return features.sizes.get("test", 0) if people is None else len(people) - 1
