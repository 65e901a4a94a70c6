"""`linprobe evaluate` and `predict`: what a run answers on rows."""

from __future__ import annotations

import typer

from linprobe.atomic_files import plain_cell
from linprobe.cli._command import command
from linprobe.cli._shared import print_json
from linprobe.options.requests import EvaluateRequest, PredictRequest


@command(EvaluateRequest)
def evaluate(request: EvaluateRequest) -> None:
    """Print the accuracy or macro AUROC; tables go to stderr."""
    from linprobe.cli import _terminal
    from linprobe.evaluation.evaluate import evaluate, tables_of

    result = evaluate(
        request.run,
        request.features,
        _terminal.TerminalProgress(),
        allow_other=request.allow_other_features,
        calibrate=request.calibrate,
    )
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
    """Print the predictions as CSV."""
    import csv
    import itertools
    import sys

    from linprobe.cli import _terminal
    from linprobe.evaluation.predict import predict

    rows = predict(
        request.run,
        request.features,
        request.group,
        _terminal.TerminalProgress(),
        allow_other=request.allow_other_features,
        all_classes=request.probabilities,
        calibrate=request.calibrate,
    )
    writer = csv.writer(sys.stdout, lineterminator="\n")
    header, first = next(rows), next(rows, None)  # a bad file is refused here, before anything is printed
    writer.writerow(map(plain_cell, header))
    for row in () if first is None else itertools.chain([first], rows):
        writer.writerow(f"{cell:.6f}" if isinstance(cell, float) else plain_cell(str(cell)) for cell in row)
