"""What all recorded runs on the rows of a finished run cost together, for its pages and for its owner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from linprobe.accounting.book import EVALUATION, Contents, Entry, read_book, spending
from linprobe.accounting.events import NO_CHOICE
from linprobe.accounting.figures import ONE, rounded_up
from linprobe.accounting.row_keys import (
    PRIVATE_IN_ALL,
    Account,
    books_folder,
    not_compared_words,
    recorded_runs,
    with_shared,
)
from linprobe.errors import LinprobeError, counted
from linprobe.runs.manifest import Manifest

UNKNOWN = "the total of all runs on these rows is not known"


def recorded_totals(manifest: Manifest) -> tuple[str, str]:
    """Two lines on what all runs of the default books cost together with a finished run, or why that is not known.

    Returns: a line for a page, and one that is private. The first counts the runs on the feature file of the run by its
    path, whatever rows it held, and evaluations of these runs: no row decides what is counted. The second counts the
    runs on its rows: which books have one of them can tell who is in two files, or whether two files are equal.
    """
    own = "no epsilon holds" if manifest.epsilon is None else rounded_up(manifest.epsilon)
    try:
        recorded = recorded_runs()
        if manifest.book_id not in recorded:
            text = "no budget book{} has this run, so other runs on its rows are not known; this run: {}"
            return text.format(" where this page was made", own), text.format(f" in {books_folder()}", own)
        path, entry = recorded[manifest.book_id]
        contents = read_book(path)
        if contents.lacking(manifest.book_id, manifest.recorded):
            why = f"{UNKNOWN}: the budget book lacks releases of this run, made from a copy of it; this run: {own}"
            return why, f"{why} (budget book {path})"
        line = _of_file(entry.features, recorded, manifest, own)
        account = Account.at(path)
        every, unknown = with_shared(contents, account.shared()).counted, account.not_compared()
    except LinprobeError as error:
        return f"{UNKNOWN}: a budget book cannot be read", f"{UNKNOWN}: {error}"
    more = f"; {not_compared_words(len(unknown))}" if unknown else ""
    return line, f"{_cost(every, 'these rows', manifest, own)}{more} (budget book {path}; do not publish this line)"


def _of_file(features: str | None, recorded: Mapping[str, tuple[Path, Entry]], manifest: Manifest, own: str) -> str:
    """What the runs on a feature file, and evaluations of them, cost together, of all that are `recorded`."""
    entries = {run: entry for run, (_, entry) in recorded.items()}
    if features is None or any(one.features is None for one in entries.values()):
        return f"{UNKNOWN}: a run of an older version names no feature file; this run: {own}"
    on_file = {run: one for run, one in entries.items() if one.features == features}
    on_file |= {run: one for run, one in entries.items() if one.method == EVALUATION and one.first in on_file}
    merged = Contents(Contents(entries).with_first(on_file))  # whatever the paths of the first runs
    counted_once = [  # a book has left out of a run what it counts for the first one, and counts what is left
        one
        if one.first and one.first in recorded and recorded[one.first][0] == recorded[one.run][0]
        else merged.as_counted(one)
        for one in merged.counted
    ]
    return _cost(counted_once, "this feature file", manifest, own)


def _cost(entries: Sequence[Entry], what: str, manifest: Manifest, own: str) -> str:
    spent = spending(entries)
    if manifest.epsilon is not None and (manifest.delta, manifest.unit) != (spent.delta, spent.unit):
        own += f" at delta {rounded_up(manifest.delta)} for {ONE[manifest.unit]}"
    if not spent.runs and spent.not_private_runs:
        return f"no epsilon covers the recorded runs on {what} ({spent.not_private_runs}); this run: {own}"
    runs = f"{counted(spent.runs, 'recorded run')} on {what}"
    if spent.runs > 1:  # a row may have been a public shot in one of them
        runs += PRIVATE_IN_ALL
        runs += f", if {NO_CHOICE}" if spent.gdp_mu is None else ""
    more = f", and {counted(spent.not_private_runs, 'run')} without a guarantee" if spent.not_private_runs else ""
    return f"{spent.in_words}, over {runs}{more}; this run: {own}"
