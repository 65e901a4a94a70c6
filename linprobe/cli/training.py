"""`linprobe train`, `tune` and `compare`: runs, and what they print."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from linprobe.cli import _terminal
from linprobe.cli._builder import command
from linprobe.cli._printing import print_dry_run, print_made
from linprobe.commands.figures import guarantee_rows, rows_in_words
from linprobe.options.requests import CompareFlags, TrainFlags, TuneFlags


@command(TrainFlags)
def train(flags: TrainFlags) -> None:
    """Train, or say what would happen; print the run folder."""
    from linprobe.commands.train import TrainRequest
    from linprobe.commands.train import train as run
    from linprobe.parallel import torch_group

    request = TrainRequest(**flags.given)
    if flags.dry_run:
        from linprobe.commands.dry_run import dry_run

        with _terminal.TerminalProgress() as progress:
            found = dry_run(request, progress)
        print_dry_run(found, as_json=flags.as_json)
        return
    with torch_group.group() as group:
        if group.rank > 0:
            run(request, group=group)
            return
        with _terminal.TerminalProgress() as progress:
            outcome = run(request, progress, group)
    if flags.as_json:
        print_made("run", outcome["run"], outcome)
        return
    figures = {
        "test accuracy": outcome["test_accuracy"],
        "balanced accuracy": outcome["test_balanced_accuracy"],
        "std of that noise": outcome["test_balanced_accuracy_std"],
        "macro AUROC": outcome["test_macro_auroc"] if outcome["task"] == "multilabel" else None,
        "accuracy of labels": outcome.get("test_label_accuracy"),
        "std of its noise": outcome["test_accuracy_std"],
    }
    _terminal.table(
        rows_in_words(outcome),
        [
            *((name, _terminal.figure(value, ".4f")) for name, value in figures.items() if value is not None),
            *guarantee_rows(outcome),
            ("steps", _terminal.figure(outcome["steps"], "d")),
            ("noise multiplier", _terminal.figure(outcome["noise_multiplier"])),
            ("seconds", _terminal.figure(outcome["seconds"], ".2f")),
        ],
    )
    print_made("run", outcome["run"])


@command(TuneFlags)
def tune(flags: TuneFlags) -> None:
    """Tune, or say what would happen; print the run folder."""
    from linprobe.commands.train import TrainRequest
    from linprobe.commands.tune import Tuning
    from linprobe.commands.tune import tune as run

    tuning = Tuning.parse(flags.grid, flags.shrink, flags.repetitions, flags.given["method"])
    request = TrainRequest(**flags.given)
    if flags.dry_run:
        from linprobe.commands.dry_run import dry_run_of_tune

        with _terminal.TerminalProgress() as progress:
            found = dry_run_of_tune(request, tuning, progress)
        print_dry_run(found, as_json=flags.as_json)
        return
    with _terminal.TerminalProgress() as progress:
        outcome = run(request, tuning, progress)
    if flags.as_json:
        print_made("run", outcome["run"], outcome)
        return
    chosen = outcome["tuning"]
    accuracy = outcome["test_accuracy"]
    setting = chosen["settings"][chosen["chosen"]] if "chosen" in chosen else {}
    _terminal.table(
        rows_in_words(outcome),
        [
            *((f"chosen {name}", str(value)) for name, value in setting.items()),
            *([("chosen shrink", _terminal.figure(chosen["shrink"]))] if len(chosen["factors"]) > 1 else []),
            *([] if accuracy is None else [("test accuracy", _terminal.figure(accuracy, ".4f"))]),
            *guarantee_rows(outcome),
        ],
    )
    print_made("run", outcome["run"])


@command(CompareFlags)
def compare(flags: CompareFlags) -> None:
    """Compare, or say what would happen; print the folder of the comparison."""
    from linprobe.commands._row_sources import DIGITS
    from linprobe.commands.compare import NO_FILE, CompareRequest, MethodRow
    from linprobe.commands.compare import compare as run

    request = CompareRequest(
        methods=[MethodRow.parse(word) for word in flags.methods],
        epsilons=_distinct(flags.epsilons),
        out=flags.out or Path("comparisons") / (DIGITS if flags.features is None else flags.features.stem),
        features=flags.features,
        delta=flags.delta,
        seeds=flags.seeds,
        shots=_distinct(flags.shots),
        public=[None if word == NO_FILE else Path(word) for word in flags.public],
        baselines=flags.baselines,
        attack=flags.attack,
        jobs=flags.jobs,
        book=flags.book,
        unit=flags.unit,
    )
    if flags.dry_run:
        from linprobe.commands.dry_run_comparison import dry_run_of_comparison

        with _terminal.TerminalProgress() as progress:
            found = dry_run_of_comparison(request, progress)
        print_dry_run(found, as_json=flags.as_json)
        return
    with _terminal.TerminalProgress() as progress:
        compared = run(request, progress)
    if flags.as_json:
        print_made("comparison", compared["out"], compared)
        return
    _show_comparison(compared, flags.seeds)
    print_made("comparison", compared["out"])


def _distinct(values: tuple[Any, ...]) -> list[Any]:
    return list(dict.fromkeys(values))


def _show_comparison(compared: dict[str, Any], seeds: int) -> None:
    from linprobe.commands.compare import balance_matters, comparison_table, footer, no_better

    header, rows = comparison_table(compared["summary"], "[bold]{}[/bold]")
    _terminal.table(f"test accuracy, %, of {seeds} runs each", rows, header=header)
    if balance_matters(compared["summary"]):
        header, rows = comparison_table(compared["summary"], "[bold]{}[/bold]", balanced=True)
        _terminal.table(f"balanced accuracy, %, of {seeds} runs each", rows, header=header)
    warning = no_better(compared)
    if warning is not None:
        _terminal.note(warning)
    _terminal.note(footer(compared["composed"]))
