"""`linprobe account`: what sampled Gaussian releases cost."""

from __future__ import annotations

from typing import Annotated

import typer

from linprobe.cli._shared import Json, print_json


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @app.command()
    def account(
        q: Annotated[float, typer.Option("--q", help="Sampling rate, above 0, at most 1.")],
        sigma: Annotated[float, typer.Option(help="Noise multiplier, above 0.")],
        steps: Annotated[int, typer.Option(help="Number of steps, each one release.")],
        delta: Annotated[float, typer.Option(help="Delta, above 0 and below 1.")],
        as_json: Json = False,
    ) -> None:
        """Compute the epsilon of a given noise, sampling rate and steps.

        Every accountant that applies computes it, and for sums over all rows autodp gives a third opinion. The command
        reads no data.

        stdout carries one line per accountant: its name, a tab, its epsilon, rounded up. The first is the one that
        `train` reports. mu of Gaussian DP and rho of zCDP are on stderr.
        """
        from linprobe.cli import _terminal
        from linprobe.commands.account import NAMES, account
        from linprobe.commands.figures import OF_SAMPLES, gaussian_words, rounded_up

        cost = account(q, sigma, steps, delta)
        if as_json:
            print_json(cost)
            return
        mu, rho = cost["gdp_mu"], cost["zcdp_rho"]
        _terminal.note(OF_SAMPLES if mu is None else gaussian_words(mu, rho))
        for name in NAMES:
            if name in cost:
                typer.echo(f"{name}\t{'inf' if cost[name] is None else rounded_up(cost[name])}")
