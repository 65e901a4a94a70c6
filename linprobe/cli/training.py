"""`linprobe train`, `tune` and `compare`: training runs. The methods declare most flags of the first two."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from linprobe.accounting.figures import rounded_down
from linprobe.cli import _terminal
from linprobe.cli._command import Flag, add_command, command, flags_of, request_of, train_flags
from linprobe.cli._terminal import guarantee_rows, print_dry_run, print_made, rows_in_words
from linprobe.errors import counted
from linprobe.options.requests import CompareRequest, DryRunOption, JsonOption, TrainRequest, TuneRequest

# a seed voids the guarantee, a checkpoint would keep what the selection must forget, and linprobe refine comes after
NOT_TUNED = ("unlabelled", "noise_seed", "insecure_seed", "checkpoint_every", "resume")
FIGURES = {
    "std of test accuracy": "test_accuracy_std",
    "balanced accuracy": "test_balanced_accuracy",
    "std of balanced accuracy": "test_balanced_accuracy_std",
    "macro AUROC": "test_macro_auroc",
    "std of macro AUROC": "test_macro_auroc_std",
    "accuracy of labels": "test_label_accuracy",
}


def _train_request(given: Mapping[str, Any]) -> TrainRequest:
    """The request of a run from the values of its flags; options of methods that are None were not given."""
    options = {name: value for name, value in given.items() if name in OF_METHODS and value is not None}
    return TrainRequest(**{name: value for name, value in given.items() if name not in OF_METHODS}, options=options)


def _with_output(flags: Iterable[Flag], groups: Iterable[type[Any]]) -> list[Flag]:
    """The flags, and further ones; `--json` and `--dry-run` are under the heading of `--out`."""
    further = [flag for group in groups for flag in flags_of(group)]
    for flag in further:
        flag.option = replace(flag.option, group=flag.option.group or "Output")
    return [*flags, *further]


TRAIN_FLAGS = train_flags()
OF_METHODS = {flag.option.parameter for flag in TRAIN_FLAGS if flag.is_of_a_method}
TUNE_FLAGS = [flag for flag in TRAIN_FLAGS if flag.option.parameter not in NOT_TUNED]


def _train(given: dict[str, Any]) -> None:
    from linprobe.parallel import torch_group
    from linprobe.training.train import train_run as run

    as_json, dry_run = given.pop("as_json"), given.pop("dry_run")
    request = _train_request(given)
    if dry_run:
        from linprobe.training.dry_run import dry_run as check

        print_dry_run(partial(check, request), as_json=as_json)
        return
    with torch_group.group() as group:
        if group.rank > 0:
            run(request, group=group)
            return
        with _terminal.TerminalProgress() as progress:
            if (alone := torch_group.tasks_without_torchrun()) is not None:
                progress.note(alone)
            outcome = run(request, progress, group)
    if as_json:
        print_made("run", outcome["run"], outcome)
        return
    _terminal.table(
        rows_in_words(outcome),
        [
            *accuracy_rows(outcome),
            *guarantee_rows(outcome),
            ("steps", _terminal.figure(outcome["steps"], "d")),
            ("noise multiplier", rounded_down(outcome["noise_multiplier"], 4)),
            ("seconds", _terminal.figure(outcome["seconds"], ".2f")),
        ],
    )
    print_made("run", outcome["run"])


def accuracy_rows(outcome: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and texts of the figures on test rows of a run or an evaluation; over people, where they are noisy."""
    by_person = outcome["unit"] == "owner" and outcome["test_accuracy_std"] is not None
    found = {"test accuracy by person" if by_person else "test accuracy": outcome["test_accuracy"]}
    found |= {name: outcome.get(key) for name, key in FIGURES.items()}
    if outcome.get("task") != "multilabel" and found["std of macro AUROC"] is None:
        del found["macro AUROC"]
    return [(name, f"{value:.4f}") for name, value in found.items() if value is not None]


def _tune(given: dict[str, Any]) -> None:
    from linprobe.training.tune import Tuning
    from linprobe.training.tune import tune_run as run

    asked = request_of(
        TuneRequest, {flag.option.parameter: given.pop(flag.option.parameter) for flag in flags_of(TuneRequest)}
    )
    tuning = Tuning.parse(asked.grid, asked.shrink, asked.repetitions, given["method"])
    request = _train_request(given)
    if asked.dry_run:
        from linprobe.training.dry_run import dry_run_of_tune

        print_dry_run(partial(dry_run_of_tune, request, tuning), as_json=asked.as_json)
        return
    with _terminal.TerminalProgress() as progress:
        outcome = run(request, tuning, progress)
    if asked.as_json:
        print_made("run", outcome["run"], outcome)
        return
    chosen = outcome["tuning"]
    setting = chosen["settings"][chosen["chosen"]] if "chosen" in chosen else {}
    _terminal.table(
        rows_in_words(outcome),
        [
            *((f"chosen {name}", str(value)) for name, value in setting.items()),
            *([("chosen shrink", _terminal.figure(chosen["shrink"]))] if len(chosen["factors"]) > 1 else []),
            *accuracy_rows(outcome),
            *guarantee_rows(outcome),
        ],
    )
    print_made("run", outcome["run"])


add_command(TrainRequest, _with_output(TRAIN_FLAGS, (JsonOption, DryRunOption)), _train)
add_command(TuneRequest, _with_output(TUNE_FLAGS, (TuneRequest,)), _tune)


@command(CompareRequest)
def _compare(request: CompareRequest) -> None:
    from linprobe.evaluation.compare import compare_methods
    from linprobe.evaluation.comparison_plan import NO_FILE
    from linprobe.reporting.comparison import comparison_tables, footer, no_better

    request = replace(request, public=[None if path == Path(NO_FILE) else path for path in request.public])
    if request.dry_run:
        from linprobe.evaluation.compare import dry_run_of_comparison

        print_dry_run(partial(dry_run_of_comparison, request), as_json=request.as_json)
        return
    with _terminal.TerminalProgress() as progress:
        compared = compare_methods(request, progress)
    if request.as_json:
        print_made("comparison", compared["out"], compared, private=request.attack)
        return
    for what, (header, rows) in comparison_tables(compared["summary"], plain=True).items():
        marked = any(cell.endswith("*") for _, *cells in rows for cell in cells)
        best = "* is clearly better than every other method that spends" if marked else "none is clearly better"
        title = f"{what}, %, {counted(request.seeds, 'run')} each; {best}"
        _terminal.table(title, rows, header=header)
    warning = no_better(compared)
    if warning is not None:
        _terminal.note(warning)
    _terminal.note(footer(compared["composed"]))
    print_made("comparison", compared["out"])
