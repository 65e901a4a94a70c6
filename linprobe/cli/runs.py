"""Commands that use runs: verify, report, release, export, pdp-report, refine, evaluate, predict, attack and audit."""

import sys
from functools import partial
from typing import Any

import typer

from linprobe.accounting.figures import NOUNS, gaussian_words, limit_percent, rounded_down, rounded_up
from linprobe.atomic_files import replace_when_complete
from linprobe.cli import _terminal
from linprobe.cli._command import command
from linprobe.cli.training import accuracy_rows
from linprobe.errors import PrivacyError, counted, writing
from linprobe.options import requests


@command(requests.VerifyRequest)
def _verify(request: requests.VerifyRequest) -> None:
    from linprobe.runs.check import verify_run

    result = verify_run(request)
    if request.as_json:
        _terminal.print_json(result)
    if result["refused"] is not None:
        raise PrivacyError(result["refused"])
    if request.as_json:
        return
    signed = "" if result["signature"] is None else f"; signature {result['signature']}"
    asked = {"autodp": result["epsilon_autodp"], "dp-accounting": result["epsilon_dp_accounting"]}
    opinions = "".join(f", {name} {rounded_up(found)}" for name, found in asked.items() if found is not None)
    checks = f"cross-check at most {rounded_up(result['epsilon_cross_check'])}{opinions}"
    _terminal.note(
        f"epsilon {rounded_up(result['epsilon'])} ({checks}) at delta {rounded_up(result['delta'])}, "
        f"{gaussian_words(result['gdp_mu'], result['zcdp_rho'])}; {result['releases']} "
        f"{'release' if result['releases'] == 1 else 'releases'}; data "
        f"{result['data']}{signed}"
    )
    _terminal.note(f"per-record file: {result['per_record']}")
    if result["not_covered"]:
        _terminal.note(f"covered by no digest and no signature: {', '.join(result['not_covered'])}")
    _note_stated(result["stated_not_checked"])
    typer.echo("verified")


def _note_stated(names: list[str]) -> None:
    about = {"n_private": "whom it protects", "method": "how it was made", "test_accuracy": "how accurate it is"}
    stated = ["that an unchanged linprobe made the run", *(words for key, words in about.items() if key in names)]
    _terminal.note(
        f"stated, not checked: {', '.join(stated)}, and that there were no other runs on these rows; --verbose lists "
        f"the {counted(len(names), 'key')} and files"
    )
    for condition in (name for name in names if "(" in name):
        _terminal.note(f"stated, not checked: {condition}")
    _terminal.note(f"stated, not checked: {', '.join(names)}", detail=True)


@command(requests.ReportRequest)
def _report(request: requests.ReportRequest) -> None:
    from linprobe.reporting.page import report

    _terminal.note(report(request))
    _terminal.print_made("page", request.html)


@command(requests.ReleaseRequest)
def _release(request: requests.ReleaseRequest) -> None:
    from linprobe.reporting import release_pages as commands

    released, total = commands.release(request)
    _terminal.note(total)
    if request.as_json:
        _terminal.print_made("release", released["release"], released)
        return
    _terminal.note(f"{', '.join(released['files'])}; read {request.out / 'README.md'} before you publish it")
    _terminal.print_made("release", released["release"])


@command(requests.ExportRequest)
def _export(request: requests.ExportRequest) -> None:
    from linprobe.evaluation import export as commands

    note = commands.export(request, _terminal.TerminalProgress())
    if note["private"] == "true":
        _terminal.note(f"{note['method']}: {note['guarantee']}")
    _terminal.print_made("file", request.out)


@command(requests.PdpReportRequest)
def _pdp_report(request: requests.PdpReportRequest) -> None:
    from linprobe.evaluation import pdp_report as commands

    if request.dry_run:
        _terminal.print_dry_run(lambda _: commands.dry_run_of_report(request), as_json=request.as_json)
        return
    result = commands.pdp_report(request, _terminal.TerminalProgress())
    report = result.report
    made = [f"{path} is complete" for path in (request.csv, request.plot) if path is not None]
    _terminal.note(report["note"])
    epsilon, bound = report["epsilon"], "{} at delta {}"
    if epsilon is None:
        _terminal.note("NOT PRIVATE: the noise came from a seed you gave; no figure here holds unless it is secret")
        epsilon, bound = report["epsilon_if_seed_were_secret"], f"none; {bound} if the seed were secret"
    else:
        bound += f", {gaussian_words(report['gdp_mu'], report['zcdp_rho'])}"
    if result.published is not None:
        after = result.published["run"]
        _terminal.note(
            f"published a histogram for epsilon {rounded_up(request.publish_epsilon)} in {result.published['file']}; "
            f"give {after}, which states epsilon {rounded_up(result.published['epsilon_of_run_now'])}, in place of "
            f"{request.run}"
        )
        if result.not_stated is not None:
            _terminal.note(result.not_stated)
        report = {**report, "published": result.published}
        made.append(f"run {after} is complete and states the cost of the histogram")
    with _terminal.printing(" and ".join(made), f"the report, which linprobe pdp-report {request.run} prints again,"):
        if request.as_json:
            _terminal.print_private_json(report)
            return
        _terminal.keep_stdout_private()
        typer.echo(f"{'people' if report['unit'] == 'owner' else 'records':<18}{report['records']}")
        typer.echo(f"worst case bound  {bound.format(rounded_up(epsilon), rounded_up(report['delta']))}")
        typer.echo(f"largest           {rounded_up(report['max'])}")
        typer.echo(f"mean              {rounded_up(report['mean'])}")
        for level, value in report["quantiles"].items():
            typer.echo(f"quantile {level:<8} {rounded_up(value)}")
        typer.echo(f"below epsilon / 2 {100 * report['share_below_half']:.1f} %")
        typer.echo(f"sorted            {result.sparkline}")


@command(requests.RefineRequest)
def _refine(request: requests.RefineRequest) -> None:
    from linprobe.evaluation import refine as commands

    with _terminal.TerminalProgress() as progress:
        outcome = commands.refine_run(request, progress)
    if request.as_json:
        _terminal.print_made("run", outcome["run"], outcome)
        return
    accuracy = outcome["test_accuracy"]
    measured = "" if outcome["strength"] else ", which leaves the weights as they were"
    measured += "" if accuracy is None else f"; test accuracy {accuracy:.4f}"
    _terminal.note(
        f"{counted(outcome['rows'], 'row')} without labels, strength {outcome['strength']:.2f}{measured}; epsilon "
        f"{rounded_up(outcome['epsilon'])} as before"
    )
    _terminal.print_made("run", outcome["run"])


@command(requests.EvaluateRequest)
def _evaluate(request: requests.EvaluateRequest) -> None:
    from linprobe.evaluation.predict import dry_run_of_evaluation, evaluate_test_rows
    from linprobe.reporting.metric_tables import tables_of

    if request.dry_run and request.epsilon is not None:
        _terminal.print_dry_run(partial(dry_run_of_evaluation, request), as_json=request.as_json)
        return
    with _terminal.TerminalProgress() as progress:
        result = evaluate_test_rows(request, progress)
    if request.epsilon is not None:
        _print_noisy(result, as_json=request.as_json)
        return
    if request.as_json:
        _terminal.print_json(result)
        return
    tables = tables_of(result)
    _terminal.table(counted(result["test_rows"], "test row"), tables.overall)
    _terminal.table(f"{tables.by}, with 95 % intervals", tables.shown, header=tables.header)
    if (left_out := len(tables.rows) - len(tables.shown)) > 0:
        _terminal.note(f"{left_out} more classes are in --json")
    typer.echo("-" if tables.headline is None else f"{tables.headline:.4f}")


def _print_noisy(result: dict[str, Any], *, as_json: bool) -> None:
    from linprobe.runs.figures import hidden_classes

    accuracy = f"{result['test_accuracy']:.4f}"
    made = f"test accuracy {accuracy} ± {result['test_accuracy_std']:.4f} is released, and its epsilon is spent"
    if as_json:
        with _terminal.printing(made, "the JSON object"):
            _terminal.print_json(result)
        return
    by_class = result.get("test_accuracy_per_class", {})
    recalls = [(f"recall of {name}", f"{value:.4f}") for name, value in by_class.items() if value is not None]
    _terminal.table(
        f"{result['n_test']} private test {NOUNS[result['unit']]}, epsilon {rounded_up(result['epsilon'])} at delta "
        f"{rounded_up(result['delta'])}",
        [*accuracy_rows(result), *recalls],
    )
    if (hidden := hidden_classes(by_class, result["test_accuracy_std"])) is not None:
        _terminal.note(hidden)
    with _terminal.printing(made, "the accuracy"):
        typer.echo(accuracy)


@command(requests.PredictRequest)
def _predict(request: requests.PredictRequest) -> None:
    from linprobe.evaluation.predict import predict_rows, write_predictions
    from linprobe.runs.run_folder import inputs_of, new_files

    rows = predict_rows(request, _terminal.TerminalProgress())
    if request.out is None:
        if request.as_json:
            _terminal.print_private_json({"columns": next(rows), "rows": list(rows)})
        else:
            _terminal.keep_stdout_private()
            write_predictions(rows, sys.stdout)
        return
    inputs = (request.features, request.calibrate, *inputs_of(request.run))
    with (
        new_files({"--out": request.out}, inputs=inputs, overwrite=request.overwrite),
        writing(f"file {request.out}"),
        replace_when_complete(request.out, "w", private=True) as stream,
    ):
        write_predictions(rows, stream)
    _terminal.print_made("file", request.out, {"file": str(request.out)} if request.as_json else None)


@command(requests.AttackRequest)
def _attack(request: requests.AttackRequest) -> None:
    from linprobe.evaluation.attack import attack

    with _terminal.TerminalProgress() as progress:
        result = attack(request, progress)
    _terminal.note(result["private_output"])
    of = f", {result['shadows']} shadow probes" if request.lira else ""
    interval = "" if result["auc_low"] is None else f" ({result['auc_low']:.4f} to {result['auc_high']:.4f}, 95 %)"
    limits = result["tpr_limit_at_fpr"] or {}
    made = "" if request.out is None else f"{request.out} is complete"
    with _terminal.printing(made, "the figures"):
        if request.as_json:
            _terminal.print_private_json(result)
            return
        _terminal.keep_stdout_private()
        typer.echo(f"attack            {result['attack']}{of}")
        typer.echo(f"{result['compared']:<18}{result['members']} members, {result['non_members']} non-members")
        typer.echo(f"AUC               {result['auc']:.4f}{interval}")
        for rate, found in result["tpr_at_fpr"].items():
            limit = f", at most {limit_percent(limits[rate])} % by the guarantee" if limits else ""
            few = f"not measurable with {result['non_members']} non-members"
            measured = few if found is None else f"{100 * found:.2f} %"
            typer.echo(f"TPR at FPR {f'{100 * float(rate):g} %':<6} {measured}{limit}")


@command(requests.AuditRequest)
def _audit(request: requests.AuditRequest) -> None:
    from linprobe.evaluation.audit import NAMES, audit, check_audit

    with _terminal.TerminalProgress() as progress:
        audited = audit(request, progress)
    if request.as_json:
        _terminal.print_json(audited)
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
        _terminal.note(f"clipped sums by {audited['products']}; not covered: {', '.join(audited['not_covered'])}")
        typer.echo(rounded_down(audited["epsilon_lower_bound"]))
    check_audit(audited)


def _largest(audited: dict[str, Any], path: str) -> dict[str, Any]:
    """The test of the steps on a path with the largest bound."""
    steps = (test for test in audited["tests"] if test["path"] == path and test["name"] not in audited["others"])
    return max(steps, key=lambda test: float(test["epsilon_lower_bound"]))


def _row(test: dict[str, Any]) -> tuple[str, ...]:
    return (
        test["name"],
        test["path"],
        rounded_down(test["epsilon_lower_bound"]),
        rounded_down(test.get("mu_lower_bound")),
        f"{test['correct']} of {test['guesses']}" if "guesses" in test else "-",
    )
