"""`linprobe compare`: methods side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from linprobe.cli._shared import Json
from linprobe.errors import ParameterError


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @app.command()
    def compare(
        features: Annotated[
            str | None,
            typer.Argument(metavar="[FEATURES|-]", help="Feature file; - reads its path; none: digits."),
        ] = None,
        methods: Annotated[
            str,
            typer.Option(metavar="M,M,...", help="Methods; settings follow a colon: dope-sgd:ensemble=5:steps=100."),
        ] = "adamix,noisy-gd",
        eps: Annotated[
            str, typer.Option(metavar="E,E,...", help="Target epsilons, each above 0, at most 100.")
        ] = "1,3",
        delta: Annotated[float, typer.Option(help="Target delta of each run, below 1/N_private.")] = 1e-5,
        seeds: Annotated[int, typer.Option(help="Runs of each kind; a seed chooses public shots.")] = 5,
        public_shots: Annotated[
            str, typer.Option(metavar="K,K,...", help="Public rows per class, taken out of the training rows.")
        ] = "",
        public: Annotated[
            list[str] | None,
            typer.Option(metavar="FILE|none", help="Feature file with public rows; again for one more, none for none."),
        ] = None,
        baselines: Annotated[
            bool, typer.Option("--baselines/--no-baselines", help="Add only-public and non-private.")
        ] = True,
        attack: Annotated[
            bool, typer.Option("--attack", help="Attack every run too; tables and figures of it are private.")
        ] = False,
        jobs: Annotated[int | None, typer.Option(help="Processes. [default: one a processor, at most 8]")] = None,
        out: Annotated[
            Path | None,
            typer.Option(help="Folder; an unfinished comparison there goes on. [default: comparisons/NAME]"),
        ] = None,
        as_json: Json = False,
    ) -> None:
        """Train methods at several epsilons and seeds; print the folder with tables, figures and runs.

        Every run is a release of the private rows; the line under the table says what all of them cost together.
        Choosing among runs by test accuracy is a practice of research, not a private one.
        """
        from linprobe.atomic_files import path_from
        from linprobe.cli import _terminal
        from linprobe.cli._shared import print_json
        from linprobe.commands import compare as command
        from linprobe.commands._row_sources import DIGITS
        from linprobe.reporting.comparison_table import comparison_table

        source = None if features is None else path_from(features)
        request = command.CompareRequest(
            methods=[command.MethodRow.parse(word) for word in _words(methods)],
            epsilons=_numbers("eps", eps, float),
            out=out or Path("comparisons") / (DIGITS if source is None else source.stem),
            features=source,
            delta=delta,
            seeds=seeds,
            shots=_numbers("public shots", public_shots, int),
            public=[None if word == command.NO_FILE else Path(word) for word in public or ()],
            baselines=baselines,
            attack=attack,
            jobs=jobs,
        )
        with _terminal.TerminalProgress() as progress:
            compared = command.compare(request, progress)
        if as_json:
            print_json(compared)
            return
        header, rows = comparison_table(compared["summary"], "[bold]{}[/bold]")
        _terminal.table(f"test accuracy, %, of {seeds} runs each", rows, header=header)
        _terminal.note(command.footer(compared["composed"]))
        typer.echo(compared["out"])


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _numbers(what: str, text: str, kind: Any) -> list[Any]:
    try:
        numbers = [kind(word) for word in _words(text)]
    except ValueError:
        raise ParameterError(
            f"{what} is {text!r}; allowed: {'whole ' if kind is int else ''}numbers with commas between, as 1,3"
        ) from None
    return list(dict.fromkeys(numbers))
