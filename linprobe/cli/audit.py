"""`linprobe audit`: a lower bound on epsilon, measured."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from linprobe.cli._shared import Json, print_json


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @app.command()
    def audit(
        method: Annotated[str, typer.Option("--method", "-m", help="Training method; `linprobe methods` lists them.")],
        eps: Annotated[float, typer.Option(help="Claimed epsilon, above 0, at most 100.")],
        delta: Annotated[float, typer.Option(help="Claimed delta.")] = 1e-5,
        steps: Annotated[
            int | None, typer.Option(help="Number of steps. [default: 50; 200 with Poisson sampling]")
        ] = None,
        sampling_rate: Annotated[
            float | None,
            typer.Option(
                "--sampling-rate",
                "--q",
                help="With Poisson sampling: probability that a row joins a step. [default: 0.15]",
            ),
        ] = None,
        runs: Annotated[int, typer.Option(help="Number of training runs, 12 to 10000.")] = 100,
        canaries: Annotated[int, typer.Option(help="Planted records per run, 10 to 1000.")] = 100,
        confidence: Annotated[
            float, typer.Option(help="Confidence of the lower bound, at least 0.5, below 1.")
        ] = 0.999,
        unit: Annotated[
            str, typer.Option(help="record or owner: what a canary is, a row or a person with 3 rows.")
        ] = "record",
        device: Annotated[str, typer.Option(help="cuda or cuda:N: audit training on that GPU too.")] = "cpu",
        as_json: Json = False,
    ) -> None:
        """Measure a lower bound on epsilon with planted records.

        Trains on the built-in digits with rows in memory, streamed, and divided between two ranks, each with and
        without per-record losses. stdout carries the lower bound; exit 4 if it is above the claim.
        """
        from linprobe.cli import _terminal
        from linprobe.commands.figures import rounded_down, rounded_up
        from linprobe.evaluation.audit_command import AuditRequest, audit, check_audit

        request = AuditRequest(
            method,
            eps,
            delta,
            steps=steps,
            sampling_rate=sampling_rate,
            runs=runs,
            canaries=canaries,
            confidence=confidence,
            device=device,
            unit=unit,
        )
        with _terminal.TerminalProgress() as progress:
            audited = audit(request, progress)
        if as_json:
            print_json(audited)
        else:
            _terminal.table(
                f"{method} at epsilon {rounded_up(audited['epsilon'])}, delta {rounded_up(delta)}; {runs} runs "
                f"of {canaries} canaries{', each a person' if unit == 'owner' else ''}, confidence {confidence:g}",
                [_row(test) for test in audited["tests"] if test["path"] == "all"]
                + [_row(_largest(audited["tests"], path)) for path in audited["paths"]],
                header=("test", "runs on", "epsilon at least", "mu at least", "correct guesses"),
            )
            if audited["mean_epsilon"] is not None:
                _terminal.note(
                    f"the private mean alone: epsilon at least {rounded_down(audited['mean_epsilon_lower_bound'])}, "
                    f"claimed {rounded_up(audited['mean_epsilon'])}"
                )
            _terminal.note(f"products by {audited['products']}; not covered: {', '.join(audited['not_covered'])}")
            typer.echo(rounded_down(audited["epsilon_lower_bound"]))
        check_audit(audited)


def _largest(tests: list[dict[str, Any]], path: str) -> dict[str, Any]:
    """The test of the steps on a path with the largest bound."""
    steps = (test for test in tests if test["path"] == path and test["name"] != "mean")
    return max(steps, key=lambda test: float(test["epsilon_lower_bound"]))


def _row(test: dict[str, Any]) -> tuple[str, ...]:
    """A line of the table."""
    from linprobe.commands.figures import rounded_down

    return (
        test["name"],
        test["path"],
        rounded_down(test["epsilon_lower_bound"]),
        rounded_down(test.get("mu_lower_bound")),
        f"{test['correct']} of {test['guesses']}" if "guesses" in test else "-",
    )
