"""`linprobe plan`: what a budget buys, without data. `linprobe budget`: what all runs on the same rows cost."""

import json
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from linprobe.accounting import calibrate
from linprobe.accounting.book import Cap, Contents, Entry, read_book, rows_of_a_person, set_cap, spending, together
from linprobe.accounting.calibrate import check_delta
from linprobe.accounting.events import RECORD, REMOVED
from linprobe.accounting.figures import finite, rounded_up
from linprobe.accounting.row_keys import BOOK_SUFFIX, Account, RowKeys, books_folder, with_shared
from linprobe.data.dataset import DIGITS, open_features
from linprobe.data.feature_file import is_hdf5, is_pattern
from linprobe.data.feature_reader import GroupRows
from linprobe.errors import DataError, LinprobeError, Progress, UsageError, writing
from linprobe.options import DEFAULT_DELTA
from linprobe.options.requests import BudgetRequest, PlanRequest
from linprobe.reporting import plots
from linprobe.runs.figures import expected
from linprobe.runs.manifest import MANIFEST, Manifest
from linprobe.runs.run_folder import new_files, refuse_book_inside
from linprobe.training.charge import existing_book


def recommended_rate(request: PlanRequest, progress: Progress) -> dict[str, Any]:
    """The noise each sampling rate needs for one budget, also as a figure; with a number of classes, what to expect."""
    if request.plot is not None:
        plots.check_format(request.plot)
    with new_files({"--plot": request.plot}, overwrite=request.overwrite):
        expectation = {}
        if request.n_classes is not None:
            expectation = expected(request.epsilon, request.delta, request.n_rows, request.n_classes)
        rows = calibrate.plan_rates(request, progress)
        recommended, why = calibrate.recommend(rows)
        if request.plot is not None:
            title = (
                f"Noise for ε = {rounded_up(request.epsilon)} at δ = {rounded_up(request.delta)}\n"
                f"after {request.epochs:g} epochs over {request.n_rows:,} rows"
            )
            with writing(request.plot, "--plot"):
                plots.noise_against_rate(request.plot, rows, recommended, title)
        return {
            "epsilon": request.epsilon,
            "delta": request.delta,
            "n": request.n_rows,
            "epochs": request.epochs,
            "accountant": request.accountant,
            "rows": [asdict(row) for row in rows],
            "recommended": asdict(recommended),
            "why": why,
            **expectation,
        }


def book_cost(request: BudgetRequest) -> dict[str, Any]:
    """What the runs of a budget book cost together (keys: docs/budget.md). Sets the cap first, if one is given.

    Raises DataError: no feature file and no book, or a damaged one. PrivacyError: a cap raised after a run without
    `raise_cap`, or at a delta of at least 1/N.
    """
    if request.raise_cap and request.cap is None:
        raise UsageError("--raise-cap was given without --set-cap; give the new cap, for example --set-cap 8")
    account = _account(request)
    if request.cap is not None and account is not None:
        refuse_book_inside(request.book)
        contents = with_shared(read_book(account.path), account.shared())
        deltas = [entry.delta for entry in contents.counted if entry.delta is not None]
        delta = request.delta or min(deltas, default=DEFAULT_DELTA)
        _refuse_large(delta, account.keys, contents)
        set_cap(account.path, Cap(request.cap, delta, len(contents.counted)), may_raise=request.raise_cap)
    return _described(account, request.delta)


def _refuse_large(delta: float, keys: RowKeys | None, contents: Contents) -> None:
    """PrivacyError for a delta of 1/N or more: N of a book's rows, or people if no run is by record, by its keys."""
    if keys is not None:
        by_record = any(entry.unit == RECORD and entry.private for entry in contents.counted)
        units = keys.rows if by_record or not len(keys.owners) else keys.owners
        if delta * len(units) >= 1:
            check_delta(delta, len(units))


def _account(request: BudgetRequest) -> Account | None:
    """The book of the request; to set a cap, a new one if need be."""
    source = request.source
    if is_hdf5(source) or is_pattern(source) or (str(source) == DIGITS and not source.exists()):
        if request.book is not None:
            return Account.at(request.book)
        with open_features(source, whole=False) as features:
            # evaluations on private test rows have a book of their own, and count too
            held_out = [GroupRows(features, "test")] if features.description.private_test else []
            return existing_book(features, make=request.cap is not None, protected=held_out)
    if not source.is_file():
        wrong = "is no file" if source.exists() else "does not exist"
        raise DataError(f"{source} {wrong}; give the feature file of a run, or a budget book")
    if request.book is not None:
        raise DataError(f"{source} is not a feature file, and --book is for one; give the book alone")
    return Account.at(source)


def _described(account: Account | None, delta: float | None) -> dict[str, Any]:
    path, own, shared, kinds, not_compared = None, Contents(), [], [], 0
    if account is not None:
        path, own, shared = account.path, read_book(account.path), account.shared()
        not_compared = len(account.not_compared())
        kinds = [] if account.keys is None else account.keys.kinds
    contents = with_shared(own, shared)
    spent = spending(contents.counted, delta)
    places = [path] * len(own.entries) + [other.path for other in shared for _ in other.contents.entries]
    by_rows = rows_of_a_person([entry for entry in contents.counted if entry.private], spent.delta)
    return {
        "book": None if path is None else str(path),
        **spent.as_dict(),
        "epsilon_by_rows": {str(rows): finite(epsilon) for rows, epsilon in by_rows.items()},
        **_stated(contents.cap, {"cap": "epsilon", "cap_delta": "delta", "cap_runs": "runs"}),
        **_stated(own.first_cap, {"cap_raised_from": "epsilon"}),
        "entries": [
            _stated_entry(entry, place)
            for entry, place in zip(contents.entries.values(), places, strict=True)
            if entry.counts
        ],
        "shared": [
            {
                "book": str(other.path),
                "runs": len(other.contents.counted),
                **_stated(other.contents.cap, {"cap": "epsilon", "cap_delta": "delta"}),
                **other.common,
            }
            for other in shared
            if other.contents.counted or other.contents.cap is not None
        ],
        "compared": kinds,
        "not_compared": not_compared,
        "not_recorded": [] if account is None else _not_recorded(account.path, own),
    }


def _stated(cap: Cap | None, keys: dict[str, str]) -> dict[str, Any]:
    return {key: None if cap is None else getattr(cap, name) for key, name in keys.items()}


def _stated_entry(entry: Entry, book: Path | None) -> dict[str, Any]:
    named = ("run", "name", "method", "created", "unit", "private", "cap", "ended_early")
    epsilon = None
    if entry.private and entry.delta is not None:
        epsilon = finite(together([entry], entry.delta, REMOVED[entry.unit])[0])
    stated = {name: getattr(entry, name) for name in named}
    return {**stated, "epsilon": epsilon, "delta": entry.delta, "book": str(book)}


def _not_recorded(path: Path, own: Contents) -> list[str]:
    """Run folders beside a book's that spent something and are in no book, or with releases that it lacks, by path."""
    spent, lacking, folders = {}, [], {Path(entry.name).parent for entry in own.entries.values()}
    for folder in folders:
        for manifest in folder.glob(f"*/{MANIFEST}"):
            with suppress(LinprobeError, OSError, ValueError, AttributeError):
                content = manifest.read_bytes()
                stated = json.loads(content)
                run = stated.get("run_id") or stated.get("private_commitment")
                if run is not None and stated.get("epsilon") != 0:
                    spent[str(manifest.parent)] = run
                if run in own.entries and own.lacking(run, Manifest.read(content).recorded):
                    lacking.append(str(manifest.parent))
    known = set(own.entries)
    for folder in {books_folder(), path.parent, *folders}:
        for other in folder.glob(f"*{BOOK_SUFFIX}") if not known.issuperset(spent.values()) else ():
            with suppress(LinprobeError):  # another JSON file
                known |= read_book(other).entries.keys()
    return sorted([*lacking, *(folder for folder, run in spent.items() if run not in known)])
