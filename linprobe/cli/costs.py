"""`linprobe plan`, `account` and `budget`: what privacy costs."""

from collections.abc import Iterator
from typing import Any

import typer

from linprobe.accounting.figures import NO_PERSON, OF_SAMPLES, gaussian_words, rounded_down, rounded_up
from linprobe.cli import _terminal
from linprobe.cli._command import command
from linprobe.cli._terminal import guarantee_rows, keep_stdout_private, print_json, print_private_json, printing
from linprobe.errors import counted
from linprobe.options import OWNER
from linprobe.options.requests import AccountRequest, BudgetRequest, PlanRequest


@command(PlanRequest)
def _plan(request: PlanRequest) -> None:
    from linprobe.training.costs import recommended_rate

    with _terminal.TerminalProgress() as progress:
        planned = recommended_rate(request, progress)
    made = "" if request.plot is None else f"{request.plot} is complete"
    with printing(made, "the plan"):
        if request.as_json:
            print_json(planned)
            return
        chosen = planned["recommended"]
        _terminal.table(
            f"epsilon {rounded_up(request.epsilon)}, delta {rounded_up(request.delta)}, "
            f"{counted(request.n_rows, 'private row')}, {request.epochs:g} epoch{'' if request.epochs == 1 else 's'}",
            [
                (
                    f"{row['sampling_rate']:g}{' *' if row == chosen else ''}",
                    f"{row['batch_size']:.0f}",
                    str(row["steps"]),
                    rounded_down(row["noise_multiplier"], 4),
                    rounded_down(row["noise_per_epoch"], 4),
                    rounded_up(row["epsilon"]),
                    row["accountant"],
                )
                for row in planned["rows"]
            ],
            header=("q", "rows per step", "steps", "noise multiplier", "noise per epoch", "epsilon", "accountant"),
        )
        _terminal.note(f"* recommended: {planned['why']}")
        if "expect" in planned:
            _terminal.note(planned["expect"])
        typer.echo(f"{chosen['sampling_rate']}\t{chosen['noise_multiplier']}\t{chosen['steps']}")


@command(AccountRequest)
def _account(request: AccountRequest) -> None:
    from linprobe.accounting.calibrate import NAMES, releases_cost

    cost = releases_cost(request)
    if request.as_json:
        print_json(cost)
        return
    mu, rho = cost["gdp_mu"], cost["zcdp_rho"]
    _terminal.note(OF_SAMPLES if mu is None else gaussian_words(mu, rho))
    for name in NAMES:
        if name in cost:
            typer.echo(f"{name}\t{'inf' if cost[name] is None else rounded_up(cost[name])}")


@command(BudgetRequest)
def _budget(request: BudgetRequest) -> None:
    from linprobe.training.costs import book_cost

    found = book_cost(request)
    made = "" if request.cap is None else f"the cap is in budget book {found['book']}"
    with printing(made, "epsilon"):
        if request.as_json:
            print_private_json(found)
            return
        for line in (*map(_run_line, found["entries"]), *_counted_together(found)):
            _terminal.note(line)
        # epsilon at the delta of the cap is at least that at a larger delta
        comparable = found["cap"] is not None and found["delta"] >= found["cap_delta"]
        if comparable and (found["epsilon"] or 0) >= found["cap"]:
            _terminal.note("these runs reach the cap, so every further one is refused")
        by_unit = found["epsilon_by_unit"]
        if len(by_unit) > 1:
            _terminal.note(NO_PERSON)
        by_rows = found["epsilon_by_rows"] if OWNER not in by_unit or len(by_unit) > 1 else {}
        protects = [("unit of privacy", found["unit"]), ("neighbours", f"one {found['relation']}")]
        people = [(f"epsilon of a person with {rows} rows", rounded_up(cost)) for rows, cost in by_rows.items()]
        if not found["runs"]:
            protects, people = [], []
        _terminal.table(
            "no budget book yet" if found["book"] is None else f"budget book {found['book']}",
            [
                ("runs", str(found["runs"])),
                ("runs that are not private", str(found["not_private_runs"])),
                *protects,
                *guarantee_rows(found),
                ("accountant", found["accountant"]),
                *people,
                ("cap", _cap_of(found)),
            ],
        )
        keep_stdout_private()
        typer.echo(rounded_up(found["epsilon"]))


def _cap_of(book: dict[str, Any]) -> str:
    return "-" if book["cap"] is None else f"{rounded_up(book['cap'])} at delta {rounded_up(book['cap_delta'])}"


def _run_line(entry: dict[str, Any]) -> str:
    epsilon = "none: not private" if not entry["private"] else rounded_up(entry["epsilon"])
    at = "" if entry["delta"] is None else f" at delta {rounded_up(entry['delta'])}"
    created = entry["created"] or "private selection, time secret"
    early = ", ended early: what it had released" if entry["ended_early"] else ""
    return f"{created}  {entry['method']}, epsilon {epsilon}{at}, unit {entry['unit']}{early}"


def _shared_line(other: dict[str, Any]) -> str:
    nouns = {"rows": "row", "images": "image fingerprint", "owners": "owner"}
    common = ", ".join(counted(other[kind], noun) for kind, noun in nouns.items() if other[kind])
    cap = "" if other["cap"] is None else f"; its cap, {_cap_of(other)}, holds for runs on these rows too"
    return f"counted together with {other['book']}: {counted(other['runs'], 'run')}; {common} in common{cap}"


def _counted_together(found: dict[str, Any]) -> Iterator[str]:
    """What else is in the figures, what cannot be, and what the cap promises, a line each."""
    from linprobe.accounting.row_keys import books_folder, not_compared_words

    if found["not_private_runs"]:
        bare = counted(found["not_private_runs"], "run")
        yield f"no epsilon covers {bare} without privacy on these rows; the figures are of the other runs alone"
    yield from map(_shared_line, found["shared"])
    if len(found["shared"]) > 1:
        yield (
            "the total adds up the runs of all these books, also where no row is in all of them: it is an upper bound, "
            "as row, image and owner keys are kept apart and do not tell which records several books share"
        )
    if found["book"] is None:
        yield (
            f"no book of these rows in {books_folder()}, so nothing is known to be spent; another user, XDG_STATE_HOME "
            "or --book may have one"
        )
        return
    if found["not_recorded"]:
        yield (
            f"runs missing from the budget books, or recorded in part: {', '.join(found['not_recorded'])}; the total "
            "leaves out their releases from these rows; a book restored from an old copy lacks later runs"
        )
    if found["cap_raised_from"] is not None:
        yield f"the first cap, epsilon {rounded_up(found['cap_raised_from'])}, was raised after runs were made under it"
    elif found["cap_runs"]:
        before = counted(found["cap_runs"], "run")
        yield f"the cap was set after {before}, so it does not hold for choices made from their results"
    compared = found["compared"]
    if not compared:
        yield "this book counts by itself, whatever rows its runs have, and is compared with no other book"
    else:
        names = {"images": "image fingerprints", "owners": "owner names"}
        equal = " or ".join(name for kind, name in names.items() if kind in compared)
        unless = f"unless {equal} are equal" if equal else "as the file has no image fingerprints or owners"
        changed = "scaled, with other signs or columns, or from another backbone"
        yield f"not recognised: the same rows {changed}, {unless}; give both files one --book"
    if found["not_compared"]:
        yield not_compared_words(found["not_compared"])
