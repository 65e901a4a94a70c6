"""`linprobe pdp-report`: each private record's own loss."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from linprobe.cli._shared import (
    DryRunFlag,
    Overwrite,
    PrivateJson,
    RunArgument,
    print_dry_run,
    print_private_json,
    printing,
)


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @app.command("pdp-report")
    def pdp_report(
        run: RunArgument,
        as_json: PrivateJson = False,
        csv: Annotated[Path | None, typer.Option(help="Write id and epsilon of every record. Private.")] = None,
        plot: Annotated[Path | None, typer.Option(help="Draw the sorted curve, .png or .svg. Private.")] = None,
        overwrite: Overwrite = False,
        publish_epsilon: Annotated[
            float | None, typer.Option(help="Release a noisy histogram for this epsilon, as a run beside RUN.")
        ] = None,
        sign: Annotated[
            Path | None,
            typer.Option(metavar="KEY", help="With --publish-epsilon: the key of a signed run."),
        ] = None,
        book: Annotated[
            Path | None,
            typer.Option(help="With --publish-epsilon: the budget book. [default: the one that has the run]"),
        ] = None,
        dry_run: DryRunFlag = False,
    ) -> None:
        """Summarise each private record's own privacy loss. Private, except the noisy histogram."""
        from linprobe.cli import _terminal
        from linprobe.commands import pdp_report as command
        from linprobe.commands.figures import gaussian_words, rounded_up

        given: dict[str, Any] = {
            "csv": csv,
            "plot": plot,
            "publish_epsilon": publish_epsilon,
            "sign": sign,
            "book": book,
            "overwrite": overwrite,
        }
        if dry_run:
            print_dry_run(command.dry_run(run, **given), as_json=as_json)
            return
        result = command.pdp_report(run, **given)
        report = result.report
        _terminal.note(report["note"])
        epsilon, bound = report["epsilon"], "{} at delta {}"
        if epsilon is None:
            _terminal.note("NOT PRIVATE: the noise came from a seed you gave; no figure here holds unless it is secret")
            epsilon, bound = report["epsilon_if_seed_were_secret"], f"none; {bound} if the seed were secret"
        else:
            bound += f", {gaussian_words(report['gdp_mu'], report['zcdp_rho'])}"
        if result.published is not None:
            _terminal.note(
                f"published a histogram for epsilon {rounded_up(publish_epsilon)} in {result.published['file']}; give "
                f"{result.published['run']}, which states epsilon "
                f"{rounded_up(result.published['epsilon_of_run_now'])}, in place of {run}"
            )
            report = {**report, "published": result.published}
        made = [f"{path} is complete" for path in (csv, plot) if path is not None]
        if result.published is not None:
            made.append(f"run {result.published['run']} is complete and states the cost of the histogram")
        with printing(" and ".join(made), f"the report, which linprobe pdp-report {run} prints again,"):
            if as_json:
                print_private_json(report)
                return
            typer.echo(f"{'people' if report['unit'] == 'owner' else 'records':<18}{report['records']}")
            typer.echo(f"worst case bound  {bound.format(rounded_up(epsilon), rounded_up(report['delta']))}")
            typer.echo(f"largest           {rounded_up(report['max'])}")
            typer.echo(f"mean              {rounded_up(report['mean'])}")
            for level, value in report["quantiles"].items():
                typer.echo(f"quantile {level:<8} {rounded_up(value)}")
            typer.echo(f"below half budget {100 * report['share_below_half']:.1f} %")
            typer.echo(f"sorted            {result.sparkline}")
