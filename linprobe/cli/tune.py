"""`linprobe tune`: settings chosen on private rows, with the choice paid for. It shares most flags with `train`."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer

from linprobe.cli._command import given_options, train_flags, with_flags
from linprobe.cli._shared import DryRunFlag, Json, numbers, print_dry_run, print_made, words

# a seed voids the guarantee, and a checkpoint would keep what the selection must forget
LEFT_OUT = ("noise_seed", "insecure_seed", "checkpoint_every", "resume")
Grid = Annotated[
    list[str] | None,
    typer.Option(
        metavar="OPTION=V,V,...",
        help="Values of an option of train, or of method; repeat for more options. Every combination is a setting.",
    ),
]
Shrink = Annotated[
    str,
    typer.Option(
        metavar="C,C,...",
        help="Factors on the update of the first weights, from 0 to 1, among which noisy counts choose.",
    ),
]
Repetitions = Annotated[
    int | None,
    typer.Option(help="Mean number of runs for --grid, 2 or more. [default: number of settings, at most 5]"),
]


def _own(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    flags = [flag for flag in train_flags() if flag.option.parameter not in LEFT_OUT]
    own = [
        _own("grid", Grid, None),
        _own("shrink", Shrink, ""),
        _own("repetitions", Repetitions, None),
        _own("as_json", Json, False),
        _own("dry_run", DryRunFlag, False),
    ]

    def tune(
        grid: list[str] | None, shrink: str, repetitions: int | None, as_json: bool, dry_run: bool, **given: Any
    ) -> None:
        """Train with settings chosen on the private rows, and print the run folder.

        The guarantee is (epsilon, delta)-differential privacy of the whole choice under zero-out adjacency: one private
        record, or with --unit owner one person, is present, or the place is empty. --shrink chooses by noisy counts of
        right private rows after one run. --grid makes a secret number of runs and keeps the one with the best noisy
        count; the others leave no trace.
        """
        from linprobe.atomic_files import path_from
        from linprobe.cli import _terminal
        from linprobe.commands.figures import guarantee_rows, rows_in_words
        from linprobe.plan.settings import TrainRequest
        from linprobe.plan.tuning import Tuning
        from linprobe.training.tune import tune as run

        options = given_options(given, flags)
        features = given.pop("features")
        refusal = f"shrink is {shrink!r}; allowed: numbers with commas between, as 0,0.5,1"
        tuning = Tuning.parse(grid or (), numbers(words(shrink), float, refusal), repetitions, given["method"])
        request = TrainRequest(features=None if features is None else path_from(features), options=options, **given)
        if dry_run:
            from linprobe.training.dry_run import dry_run_of_tune

            with _terminal.TerminalProgress() as progress:
                found = dry_run_of_tune(request, tuning, progress)
            print_dry_run(found, as_json=as_json)
            return
        with _terminal.TerminalProgress() as progress:
            outcome = run(request, tuning, progress)
        if as_json:
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

    after = next(place for place, flag in enumerate(flags) if flag.option.name == "out")
    parameters = [flag.parameter for flag in flags]
    app.command()(
        with_flags(tune, [*parameters[:after], *own[:3], parameters[after], *own[3:], *parameters[after + 1 :]])
    )
