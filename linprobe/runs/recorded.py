"""What all recorded runs on the rows of a finished run cost together, for its pages and for its owner."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from linprobe.accounting.book import EVALUATION, Contents, Entry, read_book, spending
from linprobe.accounting.figures import ONE, rounded_up
from linprobe.accounting.row_keys import PRIVATE_IN_ALL, Account, book_with, books_folder, keyed_books, with_shared
from linprobe.data.labels import SHARED
from linprobe.errors import LinprobeError, counted
from linprobe.runs.manifest import Manifest

UNKNOWN = "the total of all runs on these rows is not known"


def recorded_totals(manifest: Manifest) -> tuple[str, str]:
    """Two lines on what all runs of the default book of a finished run cost together, or why that is not known.

    Returns: a line for a page, and one that is private: it counts runs on other files with some of the rows too, and
    that two files have one row in common can tell who is in both. Both count evaluations on test rows that the runs
    protect; where people may be on both sides, they count every evaluation of a run of the book.
    """
    own = "no epsilon holds" if manifest.epsilon is None else rounded_up(manifest.epsilon)
    try:
        path = book_with(manifest.book_id)
        if path is None:
            text = "no budget book{} has this run, so other runs on its rows are not known; this run: {}"
            return text.format(" where this page was made", own), text.format(f" in {books_folder()}", own)
        contents = read_book(path)
    except LinprobeError as error:
        return f"{UNKNOWN}: the budget book cannot be read", f"{UNKNOWN}: {error}"
    if contents.lacking(manifest.book_id, manifest.releases or ()):
        why = f"{UNKNOWN}: the budget book lacks releases of this run, made from a copy of it; this run: {own}"
        return why, f"{why} (budget book {path})"
    try:
        shared = Account.at(path).shared()
        evaluations = _evaluations(path, contents, both_sides=manifest.test_owners == SHARED)
    except LinprobeError as error:
        return _cost(contents.counted, manifest, own), f"{UNKNOWN}: {error}"
    public = [one for book in shared if book.within for one in book.contents.counted if one.method == EVALUATION]
    public += [one for one in evaluations if one not in public]
    every = with_shared(contents, shared).counted
    every += [one for one in evaluations if one not in every]
    line = _cost([*contents.counted, *public], manifest, own)
    private = _cost(every, manifest, own) if len(every) > len(contents.counted) else line
    return line, f"{private} (budget book {path}; do not publish this line)"


def _evaluations(path: Path, contents: Contents, *, both_sides: bool) -> list[Entry]:
    """Evaluations of the runs of a book, in any book of its folder, if test people may be training people.

    That is a public fact of the file, so the list tells nothing about who is on both sides.
    """
    if not both_sides:
        return []
    entries = [one for _, other, _ in keyed_books(path.parent) for one in other.counted]
    return [one for one in entries if one.method == EVALUATION and one.first in contents.entries]


def _cost(entries: Sequence[Entry], manifest: Manifest, own: str) -> str:
    """The cost of all `entries`, and of the run of `manifest`, `own`, in words."""
    spent = spending(entries)
    if manifest.epsilon is not None and (manifest.delta, manifest.unit) != (spent.delta, spent.unit):
        own += f" at delta {rounded_up(manifest.delta)} for {ONE[manifest.unit]}"
    if not spent.runs and spent.not_private_runs:
        return f"no epsilon covers the recorded runs on these rows ({spent.not_private_runs}); this run: {own}"
    runs = "1 recorded run on these rows" if spent.runs == 1 else f"{spent.runs} recorded runs on these rows"
    if spent.runs > 1:  # a row may have been a public shot in one of them
        runs += PRIVATE_IN_ALL
    more = f", and {counted(spent.not_private_runs, 'run')} without a guarantee" if spent.not_private_runs else ""
    return f"{spent.in_words}, over {runs}{more}; this run: {own}"
