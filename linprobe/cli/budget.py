"""`linprobe budget`: what all runs on a set of rows cost together."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from linprobe.atomic_files import path_from
from linprobe.cli._shared import PrivateJson, print_json, printing


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @app.command()
    def budget(
        source: Annotated[
            Path,
            typer.Argument(
                metavar="FEATURES|BOOK|-",
                parser=path_from,
                help="Feature file, the word digits, or a budget book; - reads its path from stdin.",
            ),
        ],
        delta: Annotated[
            float | None, typer.Option(help="Delta of the figures. [default: the largest delta of the runs]")
        ] = None,
        set_cap: Annotated[
            float | None,
            typer.Option(
                metavar="E", help="Set the cap of the book: epsilon of all runs together for every unit, at --delta."
            ),
        ] = None,
        book: Annotated[
            Path | None, typer.Option(help="Budget book of the feature file. [default: as for `linprobe train`]")
        ] = None,
        as_json: PrivateJson = False,
    ) -> None:
        """Print the epsilon of all runs on a set of rows together, as their budget book has it.

        stdout carries that epsilon, rounded up. The book is private: it tells that the rows were used, and when.
        """
        from linprobe.cli import _terminal
        from linprobe.commands.budget import NO_EPSILON, BudgetRequest, budget, rounded_up
        from linprobe.commands.figures import guarantee_rows

        found = budget(BudgetRequest(source, book, delta, set_cap))
        made = "" if set_cap is None else f"the cap is in budget book {found['book']}"
        if as_json:
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
