"""`--dry-run` of train and tune: what a run would read, spend and write, without spending or writing anything."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from timeit import repeat
from typing import Any

import numpy as np

from linprobe.accounting.book import Entry, Spending
from linprobe.accounting.calibrate import Budget
from linprobe.accounting.figures import NOUN, rounded_up
from linprobe.accounting.ledger import Ledger
from linprobe.accounting.row_keys import Account
from linprobe.data.blocks import STORAGE, ArraySource, Precision, Preprocessing, normalise_rows
from linprobe.data.dataset import DIGITS, Dataset
from linprobe.data.rows import prepare
from linprobe.errors import Progress, UsageError, counted
from linprobe.gradients.clipped_sum import clipped_sum
from linprobe.mechanisms.noise import NoiseSource
from linprobe.methods import find_method
from linprobe.options.requests import TrainRequest
from linprobe.parallel import available_memory
from linprobe.runs import run_folder
from linprobe.runs.manifest import MANIFEST
from linprobe.training import words
from linprobe.training.charge import preview
from linprobe.training.checkpoint import Checkpoints, run_identity
from linprobe.training.execute import Runtime, choose_backend
from linprobe.training.plan import Plan, make_settings, plan_facts, plan_run
from linprobe.training.train import Ready, checked_rows, opened, with_method
from linprobe.training.tune import Selection, Tuning, candidates_of, selection_note, selection_of, tunable_rows

TIMED_ROWS = 8192
CLIP_NORM = 0.5  # of the timed step


def dry_run(request: TrainRequest, progress: Progress) -> words.DryRun:
    """Check a request of `train` as far as that is possible without a release: the rows are read. Raises as `train`."""
    request, choice = with_method(request)
    settings = make_settings(request, find_method(str(request.method)))
    with opened(request, choice, progress) as ready:
        dataset = ready.dataset()
        return _one_run(ready, dataset, plan_run(ready.with_test(settings), dataset), progress)


def dry_run_of_tune(request: TrainRequest, tuning: Tuning, progress: Progress) -> words.DryRun:
    """Check a request of `tune` as far as possible without a release; the seconds are for the mean number of runs."""
    request, choice, candidates = candidates_of(request, tuning)
    with opened(request, choice, progress) as ready:
        dataset = tunable_rows(ready, tuning, candidates)
        if not tuning.grid:
            settings = ready.with_test(replace(candidates[0], shrink=tuning.shrink))
            return _one_run(ready, dataset, plan_run(settings, dataset), progress)
        tuned = selection_of(dataset, ready.request, tuning, candidates)
        return _one_selection(ready, dataset, tuning, tuned, progress)


def _one_selection(
    ready: Ready, dataset: Dataset, tuning: Tuning, tuned: Selection, progress: Progress
) -> words.DryRun:
    request, mean = ready.request, tuning.mean_repetitions
    seen = previewed(request, tuned, dataset)
    warnings = ready.warnings(tuned.plans[0], dataset, seen.entries[0])
    account = checked_rows(ready, tuned.plans[0], dataset, warnings, progress, make=False)
    spent = preview(account, seen.entries)
    warnings.append(selection_note(tuned, mean))  # not before a refusal
    progress.note(warnings[-1])
    plans = [
        {"setting": chosen, **plan_facts(budget)}
        for chosen, several in zip(tuning.settings, seen.budgets, strict=True)
        for budget in several
    ]
    facts = {
        "epsilon_target": request.epsilon,
        "delta": tuned.delta,
        "settings": len(tuned.plans),
        "mean_runs": mean,
        "epsilon_of_a_run": tuned.epsilon,
        "plans": plans,
    }
    spends = [
        f"epsilon {rounded_up(request.epsilon)} at delta {rounded_up(tuned.delta)} for the whole choice, however many "
        "runs",
        f"{counted(len(tuned.plans), 'setting')}, {mean} runs on average, "
        f"each epsilon {rounded_up(tuned.epsilon, 4)} at delta {rounded_up(tuned.delta / mean, 4)}",
        *dict.fromkeys(words.plan_in_words(budget) for several in seen.budgets for budget in several),
    ]
    return _stated(ready, dataset, seen, facts, words.listed("spends", spends), account, spent, warnings)


def _one_run(ready: Ready, dataset: Dataset, plan: Plan, progress: Progress) -> words.DryRun:
    request, settings, budgets = ready.request, plan.settings, plan.budgets
    seen, warnings = previewed(request, plan, dataset), ready.warnings(plan, dataset)
    account = checked_rows(ready, plan, dataset, warnings, progress, make=False)
    run, name = _resumed(request, plan, dataset, account), str(Path(request.out or "").absolute())
    spent = None
    for one in reversed(plan.possible if plan.charged else ()):  # the plan that is charged first comes last
        spent = preview(account, [replace(one.entry(run, name), cap=request.cap)])
    facts = {
        "epsilon_target": settings.epsilon,
        "delta": settings.delta,
        "plans": [plan_facts(budget) for budget in budgets],
        "centre": plan.centre,
    }
    lines: words.Lines = []
    if plan.centre_unlabelled:
        near = "if most private rows are near these and the mean is not short"
        lines.append(("centres", f"rows on the mean of the rows without labels, {near}"))
    if budgets:
        lines.append(("spends", f"epsilon {rounded_up(settings.epsilon)} at delta {rounded_up(settings.delta)}"))
    for index, text in enumerate(dict.fromkeys(map(words.plan_in_words, budgets))):
        lines.append(("or", f"{text}, if the private mean is short") if index else ("", text))
    return _stated(ready, dataset, seen, facts, lines, account, spent, warnings)


def _stated(
    ready: Ready,
    dataset: Dataset,
    seen: Preview,
    facts: dict[str, Any],
    spends: words.Lines,
    account: Account | None,
    spent: Spending | None,
    warnings: Sequence[str],
) -> words.DryRun:
    """What a command reads, spends by `facts` and lines, and writes. `spent` is None for a run that no book counts."""
    out, book, seconds = str(ready.request.out), None if account is None else account.path, seen.seconds
    expectation = ready.expectation(dataset)
    expect = None if expectation is None else str(expectation["expect"])
    timed = f"the steps of {facts['mean_runs']} runs" if "mean_runs" in facts else "the steps"
    facts = {
        **rows_facts(ready, dataset),
        **facts,
        "together": words.together_facts(spent if spent is not None and spent.runs else None),
        "expect": expect,
        "out": out,
        "book": None if book is None else str(book),
        "seconds": seconds,
        "warnings": list(warnings),
    }
    where = "in memory" if facts["in_memory"] else "streamed"
    lines = [
        *rows_lines(facts),
        *spends,
        *words.together_line(spent),
        *([] if expect is None or expect in warnings else [("expect", expect.removeprefix("expect "))]),
        ("memory", f"{words.bytes_in_words(facts['memory_bytes'])} for the private rows, {where}"),
        *([] if seconds is None else words.time_line(seconds, timed)),
        *(words.listed("writes", [out]) if spent is None else words.written(out, book=book)),
    ]
    return words.DryRun(facts, lines)


def _resumed(request: TrainRequest, plan: Plan, dataset: Dataset, account: Account | None) -> str:
    """The id of the run that --resume would go on with, or "". UsageError: several, complete; as `Checkpoints`."""
    folder = run_folder.unfinished_folder(Path(request.out or "")) if request.resume else None
    if folder is not None and (folder / MANIFEST).is_file():
        raise UsageError(f"--resume has nothing to do: run {folder} is complete; leave out --dry-run to name it")
    if folder is None or not (folder / run_folder.CHECKPOINT).is_file():
        return ""
    identity = run_identity(plan.settings, dataset, request, choose_backend(request.device).arithmetic)
    Checkpoints(folder, Ledger(), identity, dataset, account, math.inf).check()
    return run_folder.run_id(folder)


@dataclass(frozen=True)
class Preview:
    """What a run or a private selection would do; `entries` as the book would state it, first the one charged."""

    budgets: tuple[tuple[Budget, ...], ...]
    entries: tuple[Entry, ...]
    seconds: float | None


def previewed(request: TrainRequest, plan: Plan | Selection, dataset: Dataset) -> Preview:
    """What one run, or one private selection, would do. Raises UsageError: as `Runtime.check_plan`."""
    plans, mean = ([plan], 1) if isinstance(plan, Plan) else (plan.plans, plan.event.mean_repetitions)
    for one in plans:
        Runtime(request.precision, request.device).check_plan(one)
    timed = [_seconds(request, one, dataset) for one in plans]
    measured = [seconds for seconds in timed if seconds is not None]
    seconds = mean * fmean(measured) if len(measured) == len(timed) else None
    entries = tuple(replace(one, cap=request.cap) for one in possible_entries(plan))
    return Preview(tuple(one.budgets for one in plans), entries, seconds)


def possible_entries(plan: Plan | Selection) -> tuple[Entry, ...]:
    return tuple(one.entry() for one in (plan.possible if isinstance(plan, Plan) else (plan,)))


def rows_facts(ready: Ready, dataset: Dataset) -> dict[str, Any]:
    """What a run reads. `not_protected` are people or rows that public shots made public, in words."""
    request, choice, rows = ready.request, ready.choice, dataset.trained
    reads = "private" in ready.method.needs
    memory = rows.n_rows * rows.n_features * np.dtype(STORAGE[request.precision]).itemsize if reads else 0
    return {
        "method": ready.method.name,
        "why": None if choice is None else f"{choice.when}; {choice.why}",
        "features": DIGITS if request.features is None else str(request.features),
        "private_rows": dataset.private.n_rows if reads else 0,
        "unit": dataset.unit,
        "n_units": dataset.n_units if reads else 0,
        "public_rows": 0 if dataset.public is None else dataset.public.n_rows,
        "not_protected": dataset.public_collection,
        "unlabelled_rows": 0 if dataset.unlabelled is None else dataset.unlabelled.n_rows,
        "test_rows": ready.features.sizes.get("test", 0),
        "test_people": None if dataset.test_bounds is None else len(dataset.test_bounds) - 1,
        "n_features": rows.n_features,
        "n_classes": dataset.n_classes,
        "memory_bytes": memory,
        "in_memory": available_memory.suffices(memory),
    }


def rows_lines(facts: dict[str, Any]) -> words.Lines:
    unlabelled, people = facts["unlabelled_rows"], facts["test_people"]
    tested = "" if people is None else f", {counted(people, 'test person')}"
    private, public, test = (counted(facts[f"{kind}_rows"], f"{kind} row") for kind in ("private", "public", "test"))
    return [
        ("method", facts["method"] if facts["why"] is None else f"{facts['method']}: {facts['why']}"),
        ("reads", f"{facts['features']}: {private} of {counted(facts['n_features'], 'feature')}"),
        ("", f"{public}, {test}, {counted(facts['n_classes'], 'class')}"),
        *([("", f"{counted(unlabelled, 'public row')} without labels")] if unlabelled else []),
        ("protects", f"{counted(facts['n_units'], NOUN[facts['unit']])}{tested}"),
        *([] if facts["not_protected"] is None else [("", f"NOT {facts['not_protected']}, made public")]),
    ]


def _seconds(request: TrainRequest, plan: Plan, dataset: Dataset) -> float | None:
    """Seconds of the steps' gradients and noise on the host, about; None elsewhere, or for costlier steps."""
    if not plan.budgets or request.device != "cpu" or plan.method.n_steps is not None:
        return None
    budget, rows = max(plan.budgets, key=lambda budget: budget.n_steps), dataset.trained
    n_timed, per_record = min(rows.n_rows, TIMED_ROWS), plan.settings.per_record
    gradient, noise = _one_step(n_timed, rows.n_features, dataset.n_classes, request.precision, per_record)
    read = rows.n_rows if per_record else rows.n_rows * budget.sampling_rate
    return (gradient * read / n_timed + noise) * budget.n_steps


@cache
def _one_step(
    n_rows: int, n_features: int, n_classes: int, precision: Precision, per_record: bool
) -> tuple[float, float]:
    """Seconds of the clipped sum of `n_rows` random rows, and of its noise; other processes may slow single calls."""
    rng = np.random.Generator(np.random.PCG64(0))
    x = normalise_rows(rng.standard_normal((n_rows, n_features), dtype=np.float32))
    rows = prepare(ArraySource(x, rng.integers(0, n_classes, n_rows)), Preprocessing(), precision)
    weights = np.zeros((n_features, n_classes))
    gradient = partial(clipped_sum, rows, weights, CLIP_NORM, per_record=per_record)
    return min(repeat(gradient, number=1)), min(repeat(partial(NoiseSource().add_noise, weights, 1.0), number=1))
