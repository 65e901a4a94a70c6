"""`linprobe plan`: sampling rate and noise for a budget."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from linprobe.cli._shared import Json, Overwrite, numbers, print_json, printing

_RATES = (
    "sampling rates are {!r}; allowed: numbers above 0 and at most 1 with commas between; "
    "give for example --q 0.01,0.1,1"
)


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @app.command()
    def plan(
        eps: Annotated[float, typer.Option(help="Target epsilon, above 0, at most 100.")],
        n: Annotated[int, typer.Option("--n", help="Number of private rows.")],
        delta: Annotated[float, typer.Option(help="Target delta, below 1/N.")] = 1e-5,
        epochs: Annotated[float, typer.Option(help="Average number of times a row is sampled.")] = 60,
        q: Annotated[
            str, typer.Option("--q", metavar="Q,Q,...", help="Sampling rates, each above 0 and at most 1.")
        ] = "0.01,0.02,0.04,0.08,0.16,0.32,0.64,1",
        accountant: Annotated[
            str, typer.Option(help="auto (gdp for q = 1, pld below), pld, rdp, gdp (for q = 1 only).")
        ] = "auto",
        plot: Annotated[Path | None, typer.Option(help="Draw noise against sampling rate, .png or .svg.")] = None,
        overwrite: Overwrite = False,
        as_json: Json = False,
    ) -> None:
        """Find a sampling rate, noise and steps for a budget.

        Compares the noise that each sampling rate needs. The command reads no data.

        stdout carries the recommended rate, noise multiplier and number of steps on one line, separated by tabs; with
        --json, every row.
        """
        from linprobe.cli import _terminal
        from linprobe.commands.figures import rounded_up
        from linprobe.commands.plan import PlanRequest, plan

        request = PlanRequest(
            epsilon=eps,
            n_rows=n,
            delta=delta,
            epochs=epochs,
            sampling_rates=numbers(q.split(","), float, _RATES.format(q)),
            accountant=accountant,
            plot=plot,
            overwrite=overwrite,
        )
        with _terminal.TerminalProgress() as progress:
            planned = plan(request, progress)
        made = "" if plot is None else f"{plot} is complete"
        if as_json:
            with printing(made, "the JSON object"):
                print_json(planned)
            return
        chosen = planned["recommended"]
        _terminal.table(
            f"epsilon {rounded_up(eps)}, delta {rounded_up(delta)}, {n} private rows, {epochs:g} epochs",
            [
                (
                    f"{row['sampling_rate']:g}{' *' if row == chosen else ''}",
                    f"{row['batch_size']:.0f}",
                    str(row["steps"]),
                    f"{row['noise_multiplier']:.4g}",
                    f"{row['noise_per_epoch']:.4g}",
                    rounded_up(row["epsilon"]),
                    row["accountant"],
                )
                for row in planned["rows"]
            ],
            header=("q", "rows per step", "steps", "noise multiplier", "noise per epoch", "epsilon", "accountant"),
        )
        _terminal.note(f"* recommended: {planned['why']}")
        with printing(made, "the plan"):
            typer.echo(f"{chosen['sampling_rate']}\t{chosen['noise_multiplier']}\t{chosen['steps']}")
