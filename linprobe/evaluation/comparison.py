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
        accuracy: on the test rows. auc: of the threshold membership attack, private; None without an attack.
    """

    row: str
    setting: Setting
    epsilon: float | None
    seed: int
    spends: bool
    accuracy: float
    auc: float | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """Runs that differ only in their seed: mean, sample standard deviation (None for a single run), number."""

    row: str
    setting: Setting
    epsilon: float | None
    mean: float
    std: float | None
    runs: int
    best: bool = False
    auc: float | None = None


def summarise(results: Iterable[Result]) -> list[Summary]:
    """One summary for each row, setting and epsilon, in order of appearance.

    Among rows that spend the same epsilon in the same setting, every row with the highest mean is `best`.
    """
    groups: dict[tuple[str, Setting, float | None], list[Result]] = defaultdict(list)
    for result in results:
        groups[result.row, result.setting, result.epsilon].append(result)
    means = {key: statistics.fmean(result.accuracy for result in group) for key, group in groups.items()}
    highest: dict[tuple[Setting, float | None], float] = {}
    for (row, setting, epsilon), group in groups.items():
        if group[0].spends:
            place = (setting, epsilon)
            highest[place] = max(highest.get(place, 0.0), means[row, setting, epsilon])
    summaries = []
    for key, group in groups.items():
        row, setting, epsilon = key
        accuracies = [result.accuracy for result in group]
        aucs = [result.auc for result in group if result.auc is not None]
        summaries.append(
            Summary(
                row=row,
                setting=setting,
                epsilon=epsilon,
                mean=means[key],
                std=statistics.stdev(accuracies) if len(accuracies) > 1 else None,
                runs=len(accuracies),
                best=group[0].spends and means[key] == highest[setting, epsilon],
                auc=statistics.fmean(aucs) if aucs else None,
            )
        )
    return summaries


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
