"""`linprobe attack` and `audit`: what an attacker learns from a run, and a measured lower bound on epsilon."""

from __future__ import annotations

from typing import Any

import typer

from linprobe.cli import _terminal
from linprobe.cli._command import command
from linprobe.cli._terminal import print_json, print_private_json, printing
from linprobe.options.requests import AttackRequest, AuditRequest


@command(AttackRequest)
def _attack(request: AttackRequest) -> None:
    """Print how well the attack does, and the limit that the guarantee sets."""
    from linprobe.accounting.figures import limit_percent
    from linprobe.evaluation.attack import attack

    with _terminal.TerminalProgress() as progress:
        result = attack(request, progress)
    _terminal.note(result["private_output"])
    of = f", {result['shadows']} shadow probes" if request.lira else ""
    interval = "" if result["auc_low"] is None else f" ({result['auc_low']:.4f} to {result['auc_high']:.4f}, 95 %)"
    limits = result["tpr_limit_at_fpr"] or {}
    made = "" if request.out is None else f"{request.out} is complete"
    with printing(made, "the figures"):
        if request.as_json:
            print_private_json(result)
            return
        typer.echo(f"attack            {result['attack']}{of}")
        typer.echo(f"{result['compared']:<18}{result['members']} members, {result['non_members']} non-members")
        typer.echo(f"AUC               {result['auc']:.4f}{interval}")
        for rate, found in result["tpr_at_fpr"].items():
            limit = f", at most {limit_percent(limits[rate])} % by the guarantee" if limits else ""
            typer.echo(f"TPR at FPR {f'{100 * float(rate):g} %':<6} {100 * found:.2f} %{limit}")


@command(AuditRequest)
def _audit(request: AuditRequest) -> None:
    """Print the lower bound; PrivacyError if it is above the claim."""
    from linprobe.accounting.figures import rounded_down, rounded_up
    from linprobe.evaluation.audit import NAMES, audit, check_audit

    with _terminal.TerminalProgress() as progress:
        audited = audit(request, progress)
    if request.as_json:
        print_json(audited)
    else:
        people = ", each a person" if request.unit == "owner" else ""
        _terminal.table(
            f"{request.method} at epsilon {rounded_up(audited['epsilon'])}, delta {rounded_up(request.delta)}; "
            f"{request.runs} runs of {request.canaries} canaries{people}, confidence {request.confidence:g}",
            [_row(test) for test in audited["tests"] if test["path"] == "all"]
            + [_row(_largest(audited, path)) for path in audited["paths"] if len(audited["paths"]) > 1],
            header=("test", "runs on", "epsilon at least", "mu at least", "correct guesses"),
        )
        for name, claim in audited["others"].items():
            _terminal.note(
                f"the {NAMES.get(name, name)} alone: epsilon at least {rounded_down(claim['epsilon_lower_bound'])}, "
                f"claimed {rounded_up(claim['epsilon'])}"
            )
        _terminal.note(f"products by {audited['products']}; not covered: {', '.join(audited['not_covered'])}")
        typer.echo(rounded_down(audited["epsilon_lower_bound"]))
    check_audit(audited)


def _largest(audited: dict[str, Any], path: str) -> dict[str, Any]:
    """The test of the steps on a path with the largest bound."""
    steps = (test for test in audited["tests"] if test["path"] == path and test["name"] not in audited["others"])
    return max(steps, key=lambda test: float(test["epsilon_lower_bound"]))


def _row(test: dict[str, Any]) -> tuple[str, ...]:
    """A line of the table."""
    from linprobe.accounting.figures import rounded_down

    return (
        test["name"],
        test["path"],
        rounded_down(test["epsilon_lower_bound"]),
        rounded_down(test.get("mu_lower_bound")),
        f"{test['correct']} of {test['guesses']}" if "guesses" in test else "-",
    )
