"""`linprobe compare --dry-run`: what a comparison would read, spend and write, without spending or writing anything."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import Any

from linprobe.data.row_checks import check_rows
from linprobe.evaluation.compare import OpenedComparison, opened_comparison, opened_rows, warnings_of_comparison
from linprobe.evaluation.comparison_folder import check_stated
from linprobe.evaluation.comparison_plan import Planned
from linprobe.options.requests import CompareRequest
from linprobe.plans.plan import plan_facts, plan_run
from linprobe.plans.settings import make_settings
from linprobe.plans.tuning import selection_of, settings_of
from linprobe.plans.words import (
    DryRun,
    bytes_in_words,
    counted,
    listed,
    plan_in_words,
    time_line,
    together_facts,
    together_line,
    written,
)
from linprobe.progress import Progress
from linprobe.training.charge import BookFinder, preview
from linprobe.training.dry_run import Preview, preview_of_run, preview_of_selection, rows_facts, rows_lines
from linprobe.training.train import Ready


def dry_run_of_comparison(request: CompareRequest, progress: Progress) -> DryRun:
    """Check a request of `compare` as far as that is possible without a release.

    Runs that differ in their seed alone are taken to cost what the first of them costs.

    Returns: as `rows_facts` of the first run, without method and why; rows (one object for each method, setting and
        epsilon with missing runs: method, shots, public, epsilon, runs, plans); finished, missing and not_private
        (numbers of runs); together (runs, epsilon, delta and epsilon_by_unit of all runs of the budget book with the
        missing ones);
        out, book (None if there is none yet); seconds (of the steps of `timed` runs); warnings.

    Raises:
        LinprobeError: as `compare`, before its first run.
    """
    with opened_comparison(request) as found:
        request = found.request
        check_stated(request.folder, found.of)
        progress.start(len(found.planned), "planning")
        groups: dict[Any, list[Planned]] = {}
        for run in found.planned:
            progress.step()
            if not run.folder.exists():
                groups.setdefault((run.row, run.setting, run.request.epsilon), []).append(run)
        with ExitStack() as stack:
            previews = [_preview(found, runs[0], stack) for runs in groups.values()]
            first = _ready(found, found.planned[0], stack)
            about = rows_facts(first, first.dataset())
        warnings = warnings_of_comparison([run for runs in groups.values() for run in runs], found)
        for warning in warnings:
            progress.note(warning)
        numbers = [len(runs) for runs in groups.values()]
        entries = [one.entry for one, number in zip(previews, numbers, strict=True) for _ in range(number)]
        spending = [entry for entry in entries if entry.private and entry.counts]
        finder = BookFinder(request.book, make=False)
        check_rows(found.reader, commitments=finder.commitments)
        book = finder.path()
        spent = preview(book, spending)
        timed = [(one.seconds, number) for one, number in zip(previews, numbers, strict=True) if one.seconds]
        facts = {
            **{name: value for name, value in about.items() if name not in ("method", "why")},
            "rows": [_row(runs, one) for runs, one in zip(groups.values(), previews, strict=True)],
            "finished": len(found.planned) - sum(numbers),
            "missing": sum(numbers),
            "not_private": sum(not entry.private for entry in entries),
            "together": together_facts(spent),
            "out": str(request.folder),
            "book": None if book is None else str(book),
            "seconds": sum(seconds * number for seconds, number in timed),
            "timed": sum(number for _, number in timed),
            "warnings": warnings,
        }
        lines = [
            *rows_lines(about)[1:],
            ("trains", f"{counted(facts['missing'], 'run')}; {facts['finished']} of the comparison exist already"),
            *listed("spends", [text for row in facts["rows"] for text in _row_lines(row)]),
            *together_line(spent, least=1),
        ]
        if facts["not_private"]:
            lines.append(("", f"{counted(facts['not_private'], 'run')} without privacy, which no epsilon covers"))
        where = "in memory, once for each process" if facts["in_memory"] else "streamed"
        lines.append(("memory", f"{bytes_in_words(facts['memory_bytes'])} for the private rows, {where}"))
        if timed:
            lines += time_line(facts["seconds"], f"the steps of {counted(facts['timed'], 'run')} one after another")
        return DryRun(facts, [*lines, *written(f"{request.folder}: a folder for each run, tables, figures", book=book)])


def _ready(found: OpenedComparison, run: Planned, stack: ExitStack) -> Ready:
    other = None if run.request.public is None else opened_rows(stack, found.others.get(run.setting.public))
    return Ready(run.request, found.reader, other)


def _preview(found: OpenedComparison, run: Planned, stack: ExitStack) -> Preview:
    ready = _ready(found, run, stack)
    dataset = ready.dataset()
    dataset.check()
    if run.tuning is None:
        return preview_of_run(run.request, plan_run(make_settings(run.request, ready.method), dataset), dataset)
    candidates = settings_of(run.request, run.tuning)
    if run.tuning.grid:
        return preview_of_selection(
            run.request, run.tuning, selection_of(dataset, run.request, run.tuning, candidates), dataset
        )
    return preview_of_run(run.request, plan_run(replace(candidates[0], shrink=run.tuning.shrink), dataset), dataset)


def _row(runs: list[Planned], previewed: Preview) -> dict[str, Any]:
    return {
        "method": runs[0].row,
        **asdict(runs[0].setting),
        "epsilon": runs[0].request.epsilon,
        "runs": len(runs),
        "plans": [
            {**plan_facts(budget), "text": plan_in_words(budget)} for several in previewed.budgets for budget in several
        ],
    }


def _row_lines(row: dict[str, Any]) -> list[str]:
    """One line for each row of a comparison that spends."""
    if row["epsilon"] is None:
        return []
    public = "" if not row["public"] else f", public {row['public']}"
    shots = "" if row["shots"] is None else f", {counted(row['shots'], 'public shot')}"
    each = f"{counted(row['runs'], 'run')}, epsilon {row['epsilon']:g}{public}{shots}"
    return [f"{row['method']}: {each}: {' or '.join(dict.fromkeys(plan['text'] for plan in row['plans']))}"]
