"""Commands that read a run folder, and what they print."""

from __future__ import annotations

import csv
import itertools
import sys

import typer

from linprobe.atomic_files import plain_cell
from linprobe.cli import _terminal
from linprobe.cli._builder import command
from linprobe.cli._printing import print_dry_run, print_json, print_made, print_private_json, printing
from linprobe.errors import PrivacyError
from linprobe.options.requests import (
    AttackRequest,
    EvaluateRequest,
    ExportRequest,
    PdpReportRequest,
    PredictRequest,
    ReleaseRequest,
    ReportRequest,
    VerifyRequest,
)


@command(EvaluateRequest)
def evaluate(request: EvaluateRequest) -> None:
    """Print accuracy or macro AUROC, and tables."""
    from linprobe.commands.evaluate import evaluate as run
    from linprobe.commands.evaluate import tables_of

    result = run(request, _terminal.TerminalProgress())
    if request.as_json:
        print_json(result)
        return
    tables = tables_of(result)
    _terminal.table(f"{result['test_rows']} test rows", tables.overall)
    _terminal.table(f"{tables.by}, with 95 % intervals", tables.rows, header=tables.header)
    if tables.left_out:
        _terminal.note(f"{tables.left_out} more classes are in --json")
    typer.echo("-" if tables.headline is None else f"{tables.headline:.4f}")


@command(PredictRequest)
def predict(request: PredictRequest) -> None:
    """Print predictions as CSV."""
    from linprobe.commands.predict import predict as run

    rows = run(request, _terminal.TerminalProgress())
    writer = csv.writer(sys.stdout, lineterminator="\n")
    header, first = next(rows), next(rows, None)  # a bad file is refused here, before anything is printed
    writer.writerow(map(plain_cell, header))
    for row in () if first is None else itertools.chain([first], rows):
        writer.writerow(f"{cell:.6f}" if isinstance(cell, float) else plain_cell(str(cell)) for cell in row)


@command(PdpReportRequest)
def pdp_report(request: PdpReportRequest) -> None:
    """Print a summary of per-record losses, or say what would happen."""
    from linprobe.commands import pdp_report as made_by
    from linprobe.commands.figures import gaussian_words, rounded_up

    run = request.run
    given = {name: value for name, value in vars(request).items() if name not in ("run", "as_json", "dry_run")}
    if request.dry_run:
        print_dry_run(made_by.dry_run(run, **given), as_json=request.as_json)
        return
    result = made_by.pdp_report(run, **given)
    report = result.report
    _terminal.note(report["note"])
    epsilon, bound = report["epsilon"], "{} at delta {}"
    if epsilon is None:
        _terminal.note("NOT PRIVATE: the noise came from a seed you gave; no figure here holds unless it is secret")
        epsilon, bound = report["epsilon_if_seed_were_secret"], f"none; {bound} if the seed were secret"
    else:
        bound += f", {gaussian_words(report['gdp_mu'], report['zcdp_rho'])}"
    made = [f"{path} is complete" for path in (request.csv, request.plot) if path is not None]
    if result.recovered is not None:
        made.append(f"{run} is sealed")
        _terminal.note(
            f"recovered: {run} now states epsilon {rounded_up(result.recovered)}, with all that its ledger holds"
        )
    if result.published is not None:
        made.append(f"the histogram is complete in {result.published['file']}, and {run} states its cost")
        _terminal.note(
            f"published a histogram for epsilon {rounded_up(request.publish_epsilon)}; the run has now spent "
            f"epsilon {rounded_up(result.published['epsilon_of_run_now'])}; it is in {result.published['file']}"
        )
        report = {**report, "published": result.published}
    with printing(" and ".join(made), f"the report, which linprobe pdp-report {run} prints again,"):
        if request.as_json:
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


@command(AttackRequest)
def attack(request: AttackRequest) -> None:
    """Print the figures of an attack."""
    from linprobe.commands.attack import attack as run
    from linprobe.commands.attack import limit_percent

    with _terminal.TerminalProgress() as progress:
        result = run(request, progress)
    _terminal.note(result["private_output"])
    of = f", {result['shadows']} shadow probes" if request.lira else ""
    interval = "" if result["auc_low"] is None else f" ({result['auc_low']:.4f} to {result['auc_high']:.4f}, 95 %)"
    limits = result["tpr_limit_at_fpr"] or {}
    made = " and ".join(f"{path} is complete" for path in (request.out, request.plot) if path is not None)
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


@command(ReportRequest)
def report(request: ReportRequest) -> None:
    """Write the page and print its path."""
    from linprobe.commands.report import report as write

    write(request)
    if request.attacks:
        _terminal.note("PRIVATE: the page holds figures computed from private rows without noise; do not publish it")
    print_made("page", request.html)


@command(VerifyRequest)
def verify(request: VerifyRequest) -> None:
    """Print what was verified; PrivacyError says why it was not."""
    from linprobe.commands.figures import gaussian_words, rounded_up
    from linprobe.commands.verify import verify as run

    result = run(request)
    if request.as_json:
        print_json(result)
    if result["refused"] is not None:
        raise PrivacyError(result["refused"])
    if request.as_json:
        return
    signed = "" if result["signature"] is None else f"; signature {result['signature']}"
    _terminal.note(
        f"epsilon {rounded_up(result['epsilon'])} (cross-check {rounded_up(result['epsilon_cross_check'])}) at "
        f"delta {rounded_up(result['delta'])}, {gaussian_words(result['gdp_mu'], result['zcdp_rho'])}; "
        f"{result['releases']} releases; data {result['data']}{signed}"
    )
    _terminal.note(f"per-record file {result['per_record']}")
    if result["not_covered"]:
        _terminal.note(f"covered by no digest and no signature: {', '.join(result['not_covered'])}")
    _terminal.note(f"stated, not checked: {', '.join(result['stated_not_checked'])}")
    typer.echo("verified")


@command(ReleaseRequest)
def release(request: ReleaseRequest) -> None:
    """Make the release, or say what would happen; print its folder."""
    from linprobe.commands import release as made_by

    if request.dry_run:
        print_dry_run(made_by.dry_run(request), as_json=request.as_json)
        return
    released = made_by.release(request)
    if request.as_json:
        print_made("release", released["release"], released)
        return
    _terminal.note(f"{', '.join(released['files'])}; read {request.out / 'README.md'} before you publish it")
    print_made("release", released["release"])


@command(ExportRequest)
def export(request: ExportRequest) -> None:
    """Write the file and print its path."""
    from linprobe.commands.export import export as write

    note = write(request, _terminal.TerminalProgress())
    if note["private"] == "true":
        _terminal.note(f"{note['method']}: {note['guarantee']}")
    print_made("file", request.out)
