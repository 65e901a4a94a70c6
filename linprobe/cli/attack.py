"""`linprobe attack`: membership inference against a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from linprobe.cli._shared import Overwrite, PrivateJson, RunArgument, print_private_json, printing


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @app.command()
    def attack(
        run: RunArgument,
        features: Annotated[Path | None, typer.Option(help="Feature file. [default: the run's]")] = None,
        public: Annotated[
            Path | None, typer.Option(help="With --lira: feature file of public rows. [default: the run's]")
        ] = None,
        as_json: PrivateJson = False,
        plot: Annotated[Path | None, typer.Option(help="Draw the ROC curve, .png or .svg. Private.")] = None,
        out: Annotated[Path | None, typer.Option(help="Write the JSON object to a file. Private.")] = None,
        overwrite: Overwrite = False,
        lira: Annotated[
            bool, typer.Option("--lira", help="Run the likelihood-ratio attack with shadow probes instead.")
        ] = False,
        shadows: Annotated[int | None, typer.Option(help="With --lira: number of shadow probes. [default: 64]")] = None,
        jobs: Annotated[
            int | None, typer.Option(help="With --lira: number of processes. [default: one per processor, at most 8]")
        ] = None,
        resamples: Annotated[int, typer.Option(help="Bootstrap resamples for the interval; 0 for none.")] = 1000,
    ) -> None:
        """Run a membership inference attack on a run.

        The attack tells private rows from test rows by their scores; of a run with --unit owner, private people from
        test people. Its results are private.
        """
        from linprobe.accounting.figures import limit_percent
        from linprobe.cli import _terminal
        from linprobe.evaluation.attack import AttackRequest, attack

        request = AttackRequest(
            run=run,
            features=features,
            public=public,
            lira=lira,
            shadows=shadows,
            jobs=jobs,
            resamples=resamples,
            plot=plot,
            out=out,
            overwrite=overwrite,
        )
        with _terminal.TerminalProgress() as progress:
            result = attack(request, progress)
        _terminal.note(result["private_output"])
        of = f", {result['shadows']} shadow probes" if lira else ""
        interval = "" if result["auc_low"] is None else f" ({result['auc_low']:.4f} to {result['auc_high']:.4f}, 95 %)"
        limits = result["tpr_limit_at_fpr"] or {}
        with printing(" and ".join(f"{path} is complete" for path in (out, plot) if path is not None), "the figures"):
            if as_json:
                print_private_json(result)
                return
            typer.echo(f"attack            {result['attack']}{of}")
            typer.echo(f"{result['compared']:<18}{result['members']} members, {result['non_members']} non-members")
            typer.echo(f"AUC               {result['auc']:.4f}{interval}")
            for rate, found in result["tpr_at_fpr"].items():
                limit = f", at most {limit_percent(limits[rate])} % by the guarantee" if limits else ""
                typer.echo(f"TPR at FPR {f'{100 * float(rate):g} %':<6} {100 * found:.2f} %{limit}")
