"""`--dry-run` of train and tune: what a run would read, spend and write, without spending or writing anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from linprobe.accounting.book import Entry
from linprobe.accounting.calibrate import Budget
from linprobe.accounting.spending import Spending
from linprobe.commands._budget_book import preview
from linprobe.commands._dry_run import (
    DryRun,
    Lines,
    bytes_in_words,
    counted,
    listed,
    plan_in_words,
    time_line,
    together_facts,
    together_line,
    written,
)
from linprobe.commands._row_sources import DIGITS, refuse_training_rows
from linprobe.commands._test_rows import test_epsilon_of
from linprobe.commands._training_rows import Rows, rows_of
from linprobe.commands.train import TrainRequest, make_settings, opened, with_method
from linprobe.commands.tune import Selection, Tuning, candidates_of, selection_of, tunable_rows
from linprobe.data.feature_reader import FeatureReader
from linprobe.data.precision import STORAGE
from linprobe.methods import find_method
from linprobe.methods.choice import Chosen
from linprobe.parallel import available_memory
from linprobe.progress import Progress
from linprobe.runs.guarantee import NOUNS
from linprobe.training import engine
from linprobe.training.estimate import seconds_of_steps
from linprobe.training.settings import Settings

ON_HOST = "cpu"


def dry_run(request: TrainRequest, progress: Progress) -> DryRun:
    """Check a request of `train` as far as that is possible without a release.

    The rows are read, as the choice of public shots, the check for copies and the name of the budget book need them.

    Returns: the facts of `rows_facts` and epsilon_target, delta, plans (one, or two if the length of a private mean
        decides between them; each with steps, noise_multiplier, sampling_rate and releases); together (runs, epsilon,
        delta and epsilon_by_unit of all runs of the budget book with this one; None if nothing is spent); out, book
        (None if there is none yet); seconds (an estimate; None on a GPU, without steps, or for steps that cost more
        than a gradient).

    Raises:
        LinprobeError: as `train`, if the run would be refused.
    """
    request, choice = with_method(request)
    method = find_method(str(request.method))
    settings = make_settings(request, method)
    with opened(request, method, progress) as (features, other, completed):
        settings = replace(
            settings, test_epsilon=test_epsilon_of(features, completed.test_epsilon, completed.delta, method)
        )
        rows = rows_of(features, other, completed, method)
        return _one_run(features, completed, settings, rows, choice)


def dry_run_of_tune(request: TrainRequest, tuning: Tuning, progress: Progress) -> DryRun:
    """Check a request of `tune` as far as that is possible without a release.

    Returns: as `dry_run`. With a grid, each plan has its `setting` too; further settings (their number), mean_runs and
        epsilon_of_a_run (at delta / mean_runs). The seconds are those of the mean number of runs.

    Raises:
        LinprobeError: as `tune`, if the choice would be refused.
    """
    request, choice, candidates = candidates_of(request, tuning)
    with opened(request, candidates[0].method, progress) as (features, other, completed):
        rows = tunable_rows(features, other, completed, tuning, candidates)
        if not tuning.grid:
            test_epsilon = test_epsilon_of(features, completed.test_epsilon, completed.delta, candidates[0].method)
            settings = replace(candidates[0], shrink=tuning.shrink, test_epsilon=test_epsilon)
            return _one_run(features, completed, settings, rows, choice)
        tuned = selection_of(rows, completed, tuning, candidates)
        refuse_training_rows(features)
        previewed = preview_of_selection(completed, tuning, tuned, rows)
        book, spent = preview(features, completed.book, [previewed.entry], completed.cap)
        mean = tuning.mean_repetitions
        plans = [
            {"setting": chosen, **plan_facts(budget)}
            for chosen, several in zip(tuning.settings, previewed.budgets, strict=True)
            for budget in several
        ]
        facts = {
            **rows_facts(features, completed, tuned.settings[0], rows, choice),
            "epsilon_target": completed.epsilon,
            "delta": tuned.delta,
            "settings": len(candidates),
            "mean_runs": mean,
            "epsilon_of_a_run": tuned.epsilon,
            "plans": plans,
            **_outputs(completed, book, spent, previewed.seconds),
        }
        lines = [
            *rows_lines(facts),
            *listed(
                "spends",
                [
                    f"epsilon {completed.epsilon:g} at delta {tuned.delta:g} for the whole choice, however many runs",
                    f"{counted(len(candidates), 'setting')}, {mean} runs on average, "
                    f"each epsilon {tuned.epsilon:.4g} at delta {tuned.delta / mean:.4g}",
                    *dict.fromkeys(plan_in_words(budget) for several in previewed.budgets for budget in several),
                ],
            ),
            *_closing(facts, spent, book, f"the steps of {mean} runs"),
        ]
        return DryRun(facts, lines)


def _one_run(
    features: FeatureReader, request: TrainRequest, settings: Settings, rows: Rows, choice: Chosen | None
) -> DryRun:
    previewed = preview_of_run(request, settings, rows)
    refuse_training_rows(features)
    budgets = previewed.budgets[0]
    book, spent = None, None
    if budgets and previewed.entry.private:
        book, spent = preview(features, request.book, [previewed.entry], request.cap)
    facts = {
        **rows_facts(features, request, settings, rows, choice),
        "epsilon_target": settings.epsilon,
        "delta": settings.delta,
        "plans": [plan_facts(budget) for budget in budgets],
        **_outputs(request, book, spent, previewed.seconds),
    }
    lines = rows_lines(facts)
    if budgets:
        lines.append(("spends", f"epsilon {settings.epsilon:g} at delta {settings.delta:g}"))
    for place, text in enumerate(dict.fromkeys(map(plan_in_words, budgets))):
        lines.append(("or", f"{text}, if the private mean is short") if place else ("", text))
    return DryRun(facts, [*lines, *_closing(facts, spent, book, "the steps")])


@dataclass(frozen=True)
class Preview:
    """What one run, or one private selection, would do.

    Attributes:
        budgets: of each setting that may be chosen. entry: as the budget book would state it.
        seconds: of its steps, for a selection those of the mean number of runs; None where no estimate is made.
    """

    budgets: tuple[tuple[Budget, ...], ...]
    entry: Entry
    seconds: float | None


def preview_of_run(request: TrainRequest, settings: Settings, rows: Rows) -> Preview:
    """One run of `settings`."""
    budgets = engine.budgets(rows.sources, settings)
    entry = Entry(
        run="",
        name="",
        method=settings.method.name,
        unit=rows.sources.unit,
        private=settings.method.private and settings.insecure_seed is None,
        delta=settings.delta if budgets else None,
        releases=budgets[0].releases if budgets else (),
    )
    return Preview((budgets,), entry, _seconds(request, settings, rows, budgets))


def preview_of_selection(request: TrainRequest, tuning: Tuning, tuned: Selection, rows: Rows) -> Preview:
    """One private selection."""
    every = tuple(engine.budgets(rows.sources, settings) for settings in tuned.settings)
    timed = [_seconds(request, settings, rows, own) for settings, own in zip(tuned.settings, every, strict=True)]
    known = [seconds for seconds in timed if seconds is not None]
    entry = Entry(
        run="",
        name="",
        method="/".join(dict.fromkeys(settings.method.name for settings in tuned.settings)),
        unit=rows.sources.unit,
        private=True,
        delta=tuned.delta,
        releases=(),
        selection=tuned.event,
    )
    return Preview(every, entry, tuning.mean_repetitions * fmean(known) if len(known) == len(timed) else None)


def rows_facts(
    features: FeatureReader, request: TrainRequest, settings: Settings, rows: Rows, choice: Chosen | None = None
) -> dict[str, Any]:
    """What a run reads.

    Returns: method, why (it was chosen, None if it was named); features, private_rows, unit, n_units, public_rows,
        test_rows, n_features, n_classes; memory_bytes of the private rows, in_memory (else they are streamed).
    """
    method, private = settings.method, rows.sources.private
    reads = "private" in method.needs
    memory = private.n_rows * private.n_features * np.dtype(STORAGE[request.precision]).itemsize if reads else 0
    return {
        "method": method.name,
        "why": None if choice is None else f"{choice.when}; {choice.why}",
        "features": DIGITS if request.features is None else str(request.features),
        "private_rows": private.n_rows if reads else 0,
        "unit": rows.sources.unit,
        "n_units": rows.n_units if reads else 0,
        "public_rows": 0 if rows.public is None else rows.public.n_rows,
        "test_rows": features.sizes.get("test", 0),
        "n_features": private.n_features,
        "n_classes": rows.sources.n_classes,
        "memory_bytes": memory,
        "in_memory": available_memory.fits(memory),
    }


def rows_lines(facts: dict[str, Any]) -> Lines:
    """`rows_facts` in words, without memory."""
    return [
        ("method", facts["method"] if facts["why"] is None else f"{facts['method']}: {facts['why']}"),
        ("reads", f"{facts['features']}: {facts['private_rows']} private rows of {facts['n_features']} features"),
        ("", f"{facts['public_rows']} public rows, {facts['test_rows']} test rows, {facts['n_classes']} classes"),
        ("protects", f"{facts['n_units']} {NOUNS[facts['unit']]}"),
    ]


def _outputs(request: TrainRequest, book: Path | None, spent: Spending | None, seconds: float | None) -> dict[str, Any]:
    return {
        "together": together_facts(spent),
        "out": str(request.out),
        "book": None if book is None else str(book),
        "seconds": seconds,
    }


def _closing(facts: dict[str, Any], spent: Spending | None, book: Path | None, timed: str) -> Lines:
    """The lines on cost together, memory, time and files."""
    where = "in memory" if facts["in_memory"] else "streamed"
    return [
        *together_line(spent),
        ("memory", f"{bytes_in_words(facts['memory_bytes'])} for the private rows, {where}"),
        *([] if facts["seconds"] is None else time_line(facts["seconds"], timed)),
        *written(facts["out"], book=book),
    ]


def plan_facts(budget: Budget) -> dict[str, Any]:
    """A budget, JSON-ready."""
    return {
        "steps": budget.n_steps,
        "noise_multiplier": budget.noise_multiplier,
        "sampling_rate": budget.sampling_rate,
        "releases": [asdict(release) for release in budget.releases],
    }


def _seconds(request: TrainRequest, settings: Settings, rows: Rows, budgets: Sequence[Budget]) -> float | None:
    if not budgets or request.device != ON_HOST or settings.method.n_steps is not None:
        return None
    sources = rows.sources
    return seconds_of_steps(
        max(budgets, key=lambda budget: budget.n_steps),
        sources.private.n_rows,
        sources.private.n_features,
        sources.n_classes,
        request.precision,
        per_record=settings.per_record,
    )
