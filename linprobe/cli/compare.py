"""`linprobe compare`: methods side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from linprobe.atomic_files import path_from
from linprobe.cli._shared import DryRunFlag, Json, numbers, print_dry_run, print_made, words


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @app.command()
    def compare(
        features: Annotated[
            Path | None,
            typer.Argument(
                metavar="[FEATURES|-]",
                parser=path_from,
                help="Feature file; - reads its path from stdin; without one, the built-in digits.",
            ),
        ] = None,
        methods: Annotated[
            str,
            typer.Option(
                metavar="M,M,...",
                help="Methods; settings follow a colon: dope-sgd:ensemble=5:steps=100; several values are tuned: "
                "adamix:score-noise=0.3/1/3, adamix:shrink=0/0.5/1.",
            ),
        ] = "adamix,noisy-gd",
        eps: Annotated[
            str, typer.Option(metavar="E,E,...", help="Target epsilons, each above 0, at most 100.")
        ] = "1,3",
        delta: Annotated[float, typer.Option(help="Target delta of each run, below 1/N_private.")] = 1e-5,
        seeds: Annotated[
            int, typer.Option(help="Runs of each method and epsilon; the seed chooses the public shots.")
        ] = 5,
        public_shots: Annotated[
            str, typer.Option(metavar="K,K,...", help="Public rows per class, taken out of the training rows.")
        ] = "",
        public: Annotated[
            list[str] | None,
            typer.Option(
                metavar="FILE|none",
                help="Feature file of public rows; repeat for more; the word none adds a comparison without one.",
            ),
        ] = None,
        baselines: Annotated[
            bool, typer.Option("--baselines/--no-baselines", help="Also train only-public and non-private.")
        ] = True,
        attack: Annotated[
            bool,
            typer.Option(
                "--attack", help="Also run the threshold membership attack on every run; the results are private."
            ),
        ] = False,
        jobs: Annotated[
            int | None, typer.Option(help="Number of processes. [default: one per processor, at most 8]")
        ] = None,
        out: Annotated[
            Path | None,
            typer.Option(help="Folder; an unfinished comparison in it is continued. [default: comparisons/NAME]"),
        ] = None,
        book: Annotated[
            Path | None, typer.Option(help="Budget book of the training rows. [default: as for `linprobe train`]")
        ] = None,
        unit: Annotated[
            str, typer.Option(help="record or owner: what every run protects, a row or a person with all rows.")
        ] = "record",
        as_json: Json = False,
        dry_run: DryRunFlag = False,
    ) -> None:
        """Compare methods over several epsilons and seeds.

        Prints the folder with the tables, figures and runs.

        Every run is a release of the private rows; the line under the table gives their total cost.
        Choosing among runs by test accuracy is common in research, but it is not private.
        """
        from linprobe.cli import _terminal
        from linprobe.data.dataset import DIGITS
        from linprobe.evaluation.compare import compare
        from linprobe.evaluation.comparison_plan import NO_FILE, CompareRequest, MethodRow
        from linprobe.reporting.comparison import balance_matters, comparison_table, footer, no_better

        request = CompareRequest(
            methods=[MethodRow.parse(word) for word in words(methods)],
            epsilons=_distinct("eps", eps, float),
            out=out or Path("comparisons") / (DIGITS if features is None else features.stem),
            features=features,
            delta=delta,
            seeds=seeds,
            shots=_distinct("public shots", public_shots, int),
            public=[None if word == NO_FILE else Path(word) for word in public or ()],
            baselines=baselines,
            attack=attack,
            jobs=jobs,
            book=book,
            unit=unit,
        )
        if dry_run:
            from linprobe.evaluation.dry_run_comparison import dry_run_of_comparison

            with _terminal.TerminalProgress() as progress:
                found = dry_run_of_comparison(request, progress)
            print_dry_run(found, as_json=as_json)
            return
        with _terminal.TerminalProgress() as progress:
            compared = compare(request, progress)
        if as_json:
            print_made("comparison", compared["out"], compared)
            return
        header, rows = comparison_table(compared["summary"], "[bold]{}[/bold]")
        _terminal.table(f"test accuracy, %, of {seeds} runs each", rows, header=header)
        if balance_matters(compared["summary"]):
            header, rows = comparison_table(compared["summary"], "[bold]{}[/bold]", balanced=True)
            _terminal.table(f"balanced accuracy, %, of {seeds} runs each", rows, header=header)
        warning = no_better(compared)
        if warning is not None:
            _terminal.note(warning)
        _terminal.note(footer(compared["composed"]))
        print_made("comparison", compared["out"])


def _distinct(name: str, text: str, kind: Any) -> list[Any]:
    whole = "whole " if kind is int else ""
    refusal = f"{name} is {text!r}; allowed: {whole}numbers with commas between, as 1,3"
    return list(dict.fromkeys(numbers(words(text), kind, refusal)))
