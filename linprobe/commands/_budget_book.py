"""Where the budget book of a data set lies, and what a training run writes into it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from linprobe.accounting import book
from linprobe.accounting.book import Cap, Check, Contents, Entry
from linprobe.accounting.calibrate import Budget
from linprobe.accounting.events import RECORD, Releases, grouped
from linprobe.accounting.figures import cost_in_words
from linprobe.accounting.ledger import Ledger
from linprobe.accounting.selection import SelectionEvent
from linprobe.accounting.spending import Spending, refuse_above, spending
from linprobe.atomic_files import alone, replace_when_complete
from linprobe.data.feature_reader import FeatureReader
from linprobe.data.row_commitment import raw_row_commitment, row_commitment
from linprobe.errors import DataError, LinprobeError
from linprobe.parallel.process_group import ALONE, Group
from linprobe.progress import Progress
from linprobe.runs import run_folder
from linprobe.training.settings import Settings

KEY, SUFFIX = "key", ".jsonl"
KEY_BYTES = 32


def books_folder() -> Path:
    """The folder of the budget books: `linprobe` in $XDG_STATE_HOME, by default ~/.local/state."""
    home = os.environ.get("XDG_STATE_HOME", "")
    try:
        return (Path(home) if Path(home).is_absolute() else Path.home() / ".local/state") / "linprobe"
    except RuntimeError:
        raise LinprobeError(
            "the budget book has no place: this user has no home folder; set XDG_STATE_HOME, or give --book FILE"
        ) from None


def book_of(features: FeatureReader, given: Path | None = None) -> Path:
    """The budget book of a feature file: `given`, or by default the one of its training rows.

    The name is a keyed commitment to all training rows, public shots among them included, in any order, with any
    labels and times any power of 2. The key lies beside the books, so that their names tell nobody else whether a set
    of rows was used. The book takes over the one of format 1, whose name is a commitment to the rows as they are.

    Raises:
        DataError: a damaged or missing key. LinprobeError: a folder that cannot be written.
    """
    if given is not None:
        return given
    folder = books_folder()
    key = _key(folder)

    def named(commitment: Callable[[bytes, Iterable[NDArray[np.floating]]], str]) -> Path:
        return folder / f"{commitment(key, (x for x, _ in features.blocks('train')))}{SUFFIX}"

    path = named(row_commitment)
    if any(book.is_old(other) for other in folder.glob(f"*{SUFFIX}")):
        old = named(raw_row_commitment)
        if book.is_old(old):
            book.take_over(path, old)
    return path


def existing_book(features: FeatureReader, given: Path | None = None) -> Path | None:
    """`book_of`, which makes no key: None if there is no book of any rows yet, and none was given."""
    if given is not None:
        return given
    folder = books_folder()
    try:
        none_yet = not (folder / KEY).exists() and not any(folder.glob(f"*{SUFFIX}"))
    except OSError as error:
        raise _unusable(folder, error) from None
    return None if none_yet else book_of(features)


def book_with(run: str, given: Path | None = None) -> Path | None:
    """The budget book with an entry of the run: `given`, or the one among the default books; None if none has it."""
    if given is not None:
        return given
    for path in sorted(books_folder().glob(f"*{SUFFIX}")):
        if run in book.read_book(path).entries:
            return path
    return None


def _key(folder: Path) -> bytes:
    """The key of the books in `folder`, made at the first call."""
    path = folder / KEY
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            with alone(folder):
                _make_key(path)
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise _unusable(folder, error) from None
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise DataError(f"{path} is not the key of budget books; restore it from a copy, or give --book FILE")
    return key


def _make_key(path: Path) -> None:
    if path.exists():  # made by another process meanwhile
        return
    if any(path.parent.glob(f"*{SUFFIX}")):
        raise DataError(
            f"{path.parent} holds budget books without their key; restore {path} from a copy, or give --book FILE with "
            "the book of these rows"
        )
    with replace_when_complete(path, "w", private=True) as stream:
        stream.write(secrets.token_hex(KEY_BYTES))


def _unusable(folder: Path, error: OSError) -> LinprobeError:
    return LinprobeError(
        f"budget books cannot be kept in {folder} ({error.strerror}), so nothing was spent; give --book FILE, or set "
        "XDG_STATE_HOME to a writable folder"
    )


class RunCharge:
    """Charges one training run to its budget book.

    As a context manager it states what the run had released, if the block fails.

    Args:
        path: of the book; called when the first charge is due, as it reads rows.
        check: called before the first charge; an error that it raises leaves the book as it is.
        folder: of the unfinished run. out: the run folder that it becomes.
        settings, ledger: of the run.
        cap: largest epsilon at the run's delta of all runs in the book, for the unit of the run; None for the cap in
            the book alone.
        progress: told in one line what this run and earlier ones cost together.
        group: processes that train together; rank 0 writes.
        unit: what the guarantee of the run protects.

    Attributes:
        run: id of the run; empty in other ranks.
    """

    def __init__(
        self,
        path: Callable[[], Path],
        check: Callable[[], None],
        folder: Path,
        out: Path,
        settings: Settings,
        ledger: Ledger,
        cap: float | None,
        progress: Progress,
        group: Group = ALONE,
        unit: str = RECORD,
    ) -> None:
        self._path, self._check, self._out = path, check, out
        self._settings, self._ledger = settings, ledger
        self._cap, self._progress, self._unit = cap, progress, unit
        self.run = "" if group.rank > 0 else run_folder.run_id(folder)
        self._charged: Path | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """If that cannot be written, the whole plan counts."""
        if kind is not None and self._charged is not None and self._private:
            with suppress(LinprobeError, OSError):
                made = grouped(self._ledger.events)
                book.settle(self._charged, self.run, made, started_from=self._first())

    @property
    def _private(self) -> bool:
        return self._settings.method.private and self._settings.insecure_seed is None

    def plan(self, budget: Budget | None) -> None:
        """Write what the run is going to release, before it reads a private row; again if the plan changes.

        Raises:
            PrivacyError: the run would exceed the cap. DataError: a damaged book. LinprobeError: one that cannot be
                written.
        """
        if not self.run or (budget is None and self._settings.method.private):
            return  # another rank writes, or no private row is used
        again = self._charged is not None
        if not again:
            self._check()
        path = self._charged or self._path()
        planned = () if budget is None or not self._private else budget.releases
        entry = Entry(
            run=self.run,
            name=str(self._out.absolute()),
            method=self._settings.method.name,
            unit=self._unit,
            private=self._private,
            delta=None if budget is None or not self._private else budget.delta,
            releases=planned,
        )
        check = None if again else _check_caps(self._cap, self._settings.delta)
        others = book.charge(path, entry, check, started_from=self._first())
        self._charged = path
        if not again:
            _note(self._progress, path, others, entry)

    def _first(self) -> str | None:
        """The id of the run with the initial weights, None without one."""
        first = self._settings.first_run
        return None if first is None else first.model.run_id


@contextmanager
def charged_selection(
    path: Path,
    folder: Path,
    out: Path,
    methods: Sequence[str],
    event: SelectionEvent,
    delta: float,
    cap: float | None,
    progress: Progress,
    unit: str,
) -> Iterator[str]:
    """Charge a private selection to the budget book at `path`, before its first run. It counts in full however it ends.

    The line has no time, and the book gets the time of the end, as the files of the run do: the time between both would
    tell the number of runs.

    Args:
        folder, out, cap, progress, unit: as in `RunCharge`. methods: of the candidates. delta: of the guarantee.

    Yields: id of the run.

    Raises:
        PrivacyError, DataError, LinprobeError: as `RunCharge.plan`.
    """
    run = run_folder.run_id(folder)
    entry = Entry(
        run=run,
        name=str(out.absolute()),
        method="/".join(dict.fromkeys(methods)),
        unit=unit,
        private=True,
        delta=delta,
        releases=(),
        selection=event,
        created=None,
    )
    others = book.charge(path, entry, _check_caps(cap, delta))
    try:
        _note(progress, path, others, entry)
        yield run
    finally:
        with suppress(OSError):
            os.utime(path)


def preview(
    features: FeatureReader, given: Path | None, entries: Sequence[Entry], cap: float | None = None
) -> tuple[Path | None, Spending]:
    """The book that runs would be charged to, and the cost of its runs with these. Nothing is charged.

    Returns: None for the book if there is none of these rows yet, and none was given.

    Raises:
        PrivacyError: the runs would exceed a cap. DataError: a damaged book.
    """
    path = existing_book(features, given)
    contents = Contents() if path is None else book.read_book(path)
    for entry in entries:
        _check_caps(cap, entry.delta or 0.0)(contents, entry)
        contents = replace(contents, entries={**contents.entries, f"{len(contents.entries)} planned": entry})
    return path, spending(contents.counted)


def _check_caps(cap: float | None, delta: float) -> Check:
    """Refuses an entry above the cap of its book for any unit, or above `cap` at `delta` for its own unit."""

    def check(others: Contents, entry: Entry) -> None:
        if others.cap is not None:
            refuse_above(others.cap, others, entry)
        if cap is not None:
            refuse_above(Cap(cap, delta), others, entry, unit=entry.unit)

    return check


def _check_histogram(others: Contents, entry: Entry) -> None:
    """Refuse an entry whose last release, a histogram, takes it above the cap of its book."""
    if others.cap is not None:
        refuse_above(others.cap, others, entry, replace(entry, further=entry.further[:-1]))


def _note(progress: Progress, path: Path, others: Contents, entry: Entry) -> None:
    """Say what a new entry and the earlier ones cost together."""
    if not others.counted or not entry.private:
        return
    spent = spending([*others.counted, entry])
    runs = "this run costs" if spent.runs == 1 else f"{spent.runs} runs on these rows together cost"
    text = f"{runs} {cost_in_words(spent.epsilon_by_unit, spent.delta)}"
    if spent.not_private_runs:
        noun = "run" if spent.not_private_runs == 1 else "runs"
        text += f", and no epsilon covers {spent.not_private_runs} {noun} without privacy on these rows"
    progress.note(f"{text} (budget book {path})")


def charge_histogram(
    run: run_folder.RunFolder, before: Sequence[Releases], histogram: Releases, given: Path | None
) -> None:
    """Charge a histogram of a finished run to the book of the run, after what the run released `before`.

    Args:
        given: the book, None for the one among the default books that has the run. A book without the run gets all
            that the run released.

    Raises:
        PrivacyError: the cap of the book. LinprobeError: no book has the run, or it cannot be written.
    """
    path, entry = _book_with_entry(run, before, given)
    book.add(path, entry, [histogram], _check_histogram)


def preview_histogram(
    run: run_folder.RunFolder, before: Sequence[Releases], histogram: Releases, given: Path | None
) -> tuple[Path, Spending]:
    """The book that `charge_histogram` would charge, and the cost of its runs with the histogram. Nothing is written.

    Raises:
        LinprobeError: as `charge_histogram`.
    """
    path, entry = _book_with_entry(run, before, given)
    contents = book.read_book(path)
    known = contents.entries.get(entry.run, entry)
    others = {name: other for name, other in contents.entries.items() if name != entry.run}
    after = replace(known, further=(*known.further, histogram))
    _check_histogram(replace(contents, entries=others), after)
    return path, spending(replace(contents, entries={**others, entry.run: after}).counted)


def _book_with_entry(run: run_folder.RunFolder, before: Sequence[Releases], given: Path | None) -> tuple[Path, Entry]:
    """The budget book of a finished run, and the entry of the run in a book that does not know it."""
    manifest = run.manifest
    path = book_with(manifest.book_id, given)
    if path is None:
        raise LinprobeError(
            f"run {run.folder} is in no budget book of {books_folder()}, so its histogram cannot be charged; give "
            "--book FILE; a new book gets the whole run"
        )
    return path, Entry(
        run=manifest.book_id,
        name=str(run.folder.absolute()),
        method=manifest.method,
        unit=manifest.unit,
        private=True,
        delta=manifest.delta,
        releases=tuple(before),
    )
