"""Runs of several methods as one table: mean and spread over seeds, the best, the boost over public rows alone.

Figures of merit: Golatkar et al. 2022 (AdaMix), section 4: test error against epsilon, and the performance boost.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Setting:
    """Where public rows come from.

    Attributes:
        public: name of a public file, empty without one. shots: public rows a class taken out of the training rows,
            None where nobody asked for any.
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
        row: what the method is called in the table, its options included.
        spends: whether the run spent the epsilon asked for; if not, `epsilon` is None and it stands at every one.
        accuracy: on the test rows. auc: of the threshold membership attack, private, None if it was not asked for.
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
    """Runs that differ in their seed only: mean, sample standard deviation (None of a single run), number."""

    row: str
    setting: Setting
    epsilon: float | None
    mean: float
    std: float | None
    runs: int
    best: bool = False
    auc: float | None = None


def summarise(results: Iterable[Result]) -> list[Summary]:
    """One summary a row, setting and epsilon, in the order in which they came; among rows that spend the same
    epsilon in the same setting the highest mean is `best`, ties all.
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
    more the closer it comes to the non-private paragon; None where it reaches it.
    """
    gap = error_private - error_paragon
    return (error_public - error_paragon) / gap if gap > 0 else None


def boosts(summaries: Sequence[Summary], public: str, paragon: str) -> dict[tuple[str, Setting, float], float | None]:
    """Boost of every row that spends, where its setting has rows called `public` and `paragon` beside it."""
    errors = {(summary.row, summary.setting): 1 - summary.mean for summary in summaries if summary.epsilon is None}
    return {
        (summary.row, summary.setting, summary.epsilon): boost(
            errors[public, summary.setting], 1 - summary.mean, errors[paragon, summary.setting]
        )
        for summary in summaries
        if summary.epsilon is not None and (public, summary.setting) in errors and (paragon, summary.setting) in errors
    }
