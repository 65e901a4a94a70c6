"""`linprobe plan`, `account`, `audit` and `budget`: privacy figures."""

from __future__ import annotations

from typing import Any

import typer

from linprobe.cli import _terminal
from linprobe.cli._builder import command
from linprobe.cli._printing import print_json, printing
from linprobe.commands.figures import OF_SAMPLES, gaussian_words, guarantee_rows, rounded_down, rounded_up
from linprobe.options.requests import AccountRequest, AuditRequest, BudgetRequest, PlanRequest


@command(PlanRequest)
def plan(request: PlanRequest) -> None:
    """Print the recommended rate, noise and steps, and the table of all rates."""
    from linprobe.commands.plan import plan as run

    with _terminal.TerminalProgress() as progress:
        planned = run(request, progress)
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
    """Print the epsilon of every accountant that applies."""
    from linprobe.commands.account import account as run

    cost = run(request)
    if request.as_json:
        print_json(cost)
        return
    mu, rho = cost["gdp_mu"], cost["zcdp_rho"]
    _terminal.note(OF_SAMPLES if mu is None else gaussian_words(mu, rho))
    for name in ("gdp", "pld", "rdp"):
        if name in cost:
            typer.echo(f"{name}\t{'inf' if cost[name] is None else rounded_up(cost[name])}")


@command(AuditRequest)
def audit(request: AuditRequest) -> None:
    """Print the lower bound on epsilon, and a table of tests."""
    from linprobe.commands.audit import audit as run
    from linprobe.commands.audit import check_audit

    with _terminal.TerminalProgress() as progress:
        audited = run(request, progress)
    if request.as_json:
        print_json(audited)
    else:
        _show_audit(request, audited)
    check_audit(audited)


def _show_audit(request: AuditRequest, audited: dict[str, Any]) -> None:
    _terminal.table(
        f"{request.method} at epsilon {rounded_up(audited['epsilon'])}, delta {rounded_up(request.delta)}; "
        f"{request.runs} runs of {request.canaries} canaries{', each a person' if request.unit == 'owner' else ''}, "
        f"confidence {request.confidence:g}",
        [_audit_row(test) for test in audited["tests"] if test["path"] == "all"]
        + [_audit_row(_largest(audited["tests"], path)) for path in audited["paths"]],
        header=("test", "runs on", "epsilon at least", "mu at least", "correct guesses"),
    )
    if audited["mean_epsilon"] is not None:
        _terminal.note(
            f"the private mean alone: epsilon at least {rounded_down(audited['mean_epsilon_lower_bound'])}, "
            f"claimed {rounded_up(audited['mean_epsilon'])}"
        )
    _terminal.note(f"products by {audited['products']}; not covered: {', '.join(audited['not_covered'])}")
    typer.echo(rounded_down(audited["epsilon_lower_bound"]))


def _largest(tests: list[dict[str, Any]], path: str) -> dict[str, Any]:
    """The test of the steps on a path with the largest bound."""
    steps = (test for test in tests if test["path"] == path and test["name"] != "mean")
    return max(steps, key=lambda test: float(test["epsilon_lower_bound"]))


def _audit_row(test: dict[str, Any]) -> tuple[str, ...]:
    return (
        test["name"],
        test["path"],
        rounded_down(test["epsilon_lower_bound"]),
        rounded_down(test.get("mu_lower_bound")),
        f"{test['correct']} of {test['guesses']}" if "guesses" in test else "-",
    )


@command(BudgetRequest)
def budget(request: BudgetRequest) -> None:
    """Print the epsilon of all runs together, and each run."""
    from linprobe.commands.budget import NO_EPSILON
    from linprobe.commands.budget import budget as run

    found = run(request)
    made = "" if request.cap is None else f"the cap is in budget book {found['book']}"
    if request.as_json:
        with printing(made, "the JSON object"):
            print_json(found)
        return
    for entry in found["entries"]:
        epsilon = "none: not private" if not entry["private"] else rounded_up(entry["epsilon"])
        at = "" if entry["delta"] is None else f" at delta {rounded_up(entry['delta'])}"
        created = entry["created"] or "private selection, time secret"
        _terminal.note(f"{created}  {entry['method']}, epsilon {epsilon}{at}, unit {entry['unit']}")
    by_unit = found["epsilon_by_unit"]
    for unit in by_unit if len(by_unit) > 1 else ():
        if by_unit[unit] is None:
            _terminal.note(NO_EPSILON[unit])
    cap = "-" if found["cap"] is None else f"{rounded_up(found['cap'])} at delta {rounded_up(found['cap_delta'])}"
    _terminal.table(
        "no budget book yet" if found["book"] is None else f"budget book {found['book']}",
        [
            ("runs", str(found["runs"])),
            ("runs that are not private", str(found["not_private_runs"])),
            ("unit of privacy", found["unit"]),
            *guarantee_rows(found),
            ("accountant", found["accountant"]),
            ("cap", cap),
        ],
    )
    with printing(made, "epsilon"):
        typer.echo(rounded_up(found["epsilon"]))
