"""`linprobe train`: one private training run. `linprobe.options` declares its flags."""

from __future__ import annotations

import inspect
from typing import Any

import typer

from linprobe.cli._command import given_options, train_flags, with_flags
from linprobe.cli._shared import DryRunFlag, Json, print_dry_run, print_made


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    flags, parameters = train_flags(), []
    for flag in flags:
        parameters.append(flag.parameter)
        if flag.option.name == "out":
            parameters.append(
                inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Json)
            )

    parameters.append(
        inspect.Parameter("dry_run", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=DryRunFlag)
    )

    def train(as_json: bool, dry_run: bool, **given: Any) -> None:
        """Train a probe and print the run folder.

        The guarantee is (epsilon, delta)-differential privacy under zero-out adjacency: one private record is present,
        or its place is empty; the number of places is public. With --unit owner, all private rows of one person are
        present, or none. Every run spends privacy budget. Two runs at epsilon e on
        the same private rows cost more than e together.
        """
        from linprobe.atomic_files import path_from
        from linprobe.cli import _terminal
        from linprobe.commands.figures import guarantee_rows, rows_in_words
        from linprobe.parallel import torch_group
        from linprobe.plan.settings import TrainRequest
        from linprobe.training.train import train as run

        options = given_options(given, flags)
        features = given.pop("features")
        request = TrainRequest(
            features=None if features is None else path_from(features),
            options=options,
            **given,
        )
        if dry_run:
            from linprobe.training.dry_run import dry_run as check

            with _terminal.TerminalProgress() as progress:
                found = check(request, progress)
            print_dry_run(found, as_json=as_json)
            return
        with torch_group.group() as group:
            if group.rank > 0:
                run(request, group=group)
                return
            with _terminal.TerminalProgress() as progress:
                outcome = run(request, progress, group)
        if as_json:
            print_made("run", outcome["run"], outcome)
            return
        accuracy, std = outcome["test_accuracy"], outcome["test_accuracy_std"]
        further = {
            "balanced accuracy": outcome["test_balanced_accuracy"],
            "std of that noise": outcome["test_balanced_accuracy_std"],
            "macro AUROC": outcome["test_macro_auroc"] if outcome["task"] == "multilabel" else None,
            "accuracy of labels": outcome.get("test_label_accuracy"),
        }
        _terminal.table(
            rows_in_words(outcome),
            [
                *([] if accuracy is None else [("test accuracy", _terminal.figure(accuracy, ".4f"))]),
                *((name, _terminal.figure(value, ".4f")) for name, value in further.items() if value is not None),
                *([] if std is None else [("std of its noise", _terminal.figure(std, ".4f"))]),
                *guarantee_rows(outcome),
                ("steps", _terminal.figure(outcome["steps"], "d")),
                ("noise multiplier", _terminal.figure(outcome["noise_multiplier"])),
                ("seconds", _terminal.figure(outcome["seconds"], ".2f")),
            ],
        )
        print_made("run", outcome["run"])

    app.command()(with_flags(train, parameters))
