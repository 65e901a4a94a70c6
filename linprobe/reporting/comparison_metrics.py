"""Summaries of runs: mean and spread over seeds, the best row, and the boost over training on public rows only.

Figures of merit: Golatkar et al. 2022 (AdaMix), section 4: test error against epsilon, and the performance boost.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Setting:
    """The source of public rows.

    Attributes:
        public: name of a public file, empty without one.
        shots: public rows per class, taken out of the training rows; None if not given.
    """

    public: str = ""
    shots: int | None = None

    def __str__(self) -> str:
        shots = "" if self.shots is None else f"{self.shots} shots"
        return ", ".join(part for part in (self.public, shots) if part)


@dataclass(frozen=True, slots=True)
class Result:
    """One run.

    Attributes:
        row: name of the table row: the method and its options.
        spends: whether the run spent its target epsilon. If not, `epsilon` is None, and it is for every epsilon.
        accuracy, balanced: accuracy and balanced accuracy on the test rows.
        auc: of the threshold membership attack, private; None without an attack.
    """

    row: str
    setting: Setting
    epsilon: float | None
    seed: int
    spends: bool
    accuracy: float
    balanced: float
    auc: float | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """Runs that differ only in their seed: mean and sample standard deviation (None for a single run), number.

    Attributes:
        mean, std, best: of accuracy. balanced_mean, balanced_std, balanced_best: the same of balanced accuracy.
        auc, auc_std: of the threshold membership attack, private.
    """

    row: str
    setting: Setting
    epsilon: float | None
    mean: float
    std: float | None
    runs: int
    balanced_mean: float
    balanced_std: float | None
    best: bool = False
    balanced_best: bool = False
    auc: float | None = None
    auc_std: float | None = None


def beats(mean: float, std: float | None, rivals: Iterable[tuple[float, float | None]]) -> bool:
    """Whether a mean minus its standard deviation is above the mean plus standard deviation of every rival.

    A single run has no spread, and a row without rivals beats none: neither is ever the best.
    """
    others = list(rivals)
    if std is None or not others:
        return False
    return all(spread is not None and mean - std > other + spread for other, spread in others)


def summarise(results: Iterable[Result]) -> list[Summary]:
    """One summary for each row, setting and epsilon, in order of appearance.

    Among rows that spend the same epsilon in the same setting, `best` is the one that `beats` the others, if any does.
    """
    groups: dict[tuple[str, Setting, float | None], list[Result]] = defaultdict(list)
    for result in results:
        groups[result.row, result.setting, result.epsilon].append(result)
    means = {key: _figures([one.accuracy for one in group]) for key, group in groups.items()}
    balanced = {key: _figures([one.balanced for one in group]) for key, group in groups.items()}
    spending = [key for key, group in groups.items() if group[0].spends]
    summaries = []
    for key, group in groups.items():
        row, setting, epsilon = key
        rivals = [other for other in spending if other[1:] == key[1:] and other != key] if group[0].spends else []
        aucs = [result.auc for result in group if result.auc is not None]
        summaries.append(
            Summary(
                row=row,
                setting=setting,
                epsilon=epsilon,
                mean=means[key][0],
                std=means[key][1],
                runs=len(group),
                balanced_mean=balanced[key][0],
                balanced_std=balanced[key][1],
                best=beats(*means[key], (means[other] for other in rivals)),
                balanced_best=beats(*balanced[key], (balanced[other] for other in rivals)),
                auc=statistics.fmean(aucs) if aucs else None,
                auc_std=_figures(aucs)[1] if aucs else None,
            )
        )
    return summaries


def _figures(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean and the sample standard deviation, None for a single value."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def boost(error_public: float, error_private: float, error_paragon: float) -> float | None:
    """(err_public - err_paragon) / (err_private - err_paragon): 1 for a private run no better than public rows alone,
    larger the closer it is to the non-private paragon; None if it reaches the paragon.
    """
    gap = error_private - error_paragon
    return (error_public - error_paragon) / gap if gap > 0 else None


def boosts(summaries: Sequence[Summary], public: str, paragon: str) -> dict[tuple[str, Setting, float], float | None]:
    """Boost of every row that spends, in settings that also have the rows `public` and `paragon`."""
    errors = {(summary.row, summary.setting): 1 - summary.mean for summary in summaries if summary.epsilon is None}
    return {
        (summary.row, summary.setting, summary.epsilon): boost(
            errors[public, summary.setting], 1 - summary.mean, errors[paragon, summary.setting]
        )
        for summary in summaries
        if summary.epsilon is not None and (public, summary.setting) in errors and (paragon, summary.setting) in errors
    }
