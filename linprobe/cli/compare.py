"""`linprobe compare`: methods side by side."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from linprobe.cli._command import command
from linprobe.cli._shared import print_dry_run, print_made
from linprobe.options.requests import CompareRequest


@command(CompareRequest)
def compare(request: CompareRequest) -> None:
    """Print the tables, and the folder of the comparison."""
    from linprobe.cli import _terminal
    from linprobe.evaluation.compare import compare
    from linprobe.evaluation.comparison_plan import NO_FILE
    from linprobe.reporting.comparison import balance_matters, comparison_table, footer, no_better

    request = replace(request, public=[None if path == Path(NO_FILE) else path for path in request.public])
    if request.dry_run:
        from linprobe.evaluation.dry_run_comparison import dry_run_of_comparison

        with _terminal.TerminalProgress() as progress:
            found = dry_run_of_comparison(request, progress)
        print_dry_run(found, as_json=request.as_json)
        return
    with _terminal.TerminalProgress() as progress:
        compared = compare(request, progress)
    if request.as_json:
        print_made("comparison", compared["out"], compared)
        return
    header, rows = comparison_table(compared["summary"], "[bold]{}[/bold]")
    _terminal.table(f"test accuracy, %, of {request.seeds} runs each", rows, header=header)
    if balance_matters(compared["summary"]):
        header, rows = comparison_table(compared["summary"], "[bold]{}[/bold]", balanced=True)
        _terminal.table(f"balanced accuracy, %, of {request.seeds} runs each", rows, header=header)
    warning = no_better(compared)
    if warning is not None:
        _terminal.note(warning)
    _terminal.note(footer(compared["composed"]))
    print_made("comparison", compared["out"])
