"""`linprobe plan`, `account` and `budget`: what privacy costs."""

from __future__ import annotations

import typer

from linprobe.cli._command import command
from linprobe.cli._shared import print_json, printing
from linprobe.options.requests import AccountRequest, PlanRequest


@command(PlanRequest)
def plan(request: PlanRequest) -> None:
    """Print the plan: the recommended row on stdout, all rows on stderr."""
    from linprobe.cli import _terminal
    from linprobe.commands.figures import rounded_up
    from linprobe.commands.plan import plan

    with _terminal.TerminalProgress() as progress:
        planned = plan(request, progress)
    made = "" if request.plot is None else f"{request.plot} is complete"
    if request.as_json:
        with printing(made, "the JSON object"):
            print_json(planned)
        return
    chosen = planned["recommended"]
    _terminal.table(
        f"epsilon {rounded_up(request.epsilon)}, delta {rounded_up(request.delta)}, {request.n_rows} private rows, "
        f"{request.epochs:g} epochs",
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


@command(AccountRequest)
def account(request: AccountRequest) -> None:
    """Print the epsilon by each accountant."""
    from linprobe.cli import _terminal
    from linprobe.commands.account import account
    from linprobe.commands.figures import OF_SAMPLES, gaussian_words, rounded_up

    cost = account(request.sampling_rate, request.noise_multiplier, request.steps, request.delta)
    if request.as_json:
        print_json(cost)
        return
    mu, rho = cost["gdp_mu"], cost["zcdp_rho"]
    _terminal.note(OF_SAMPLES if mu is None else gaussian_words(mu, rho))
    for name in ("gdp", "pld", "rdp"):
        if name in cost:
            typer.echo(f"{name}\t{'inf' if cost[name] is None else rounded_up(cost[name])}")
