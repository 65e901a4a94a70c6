"""Find the budget book of a data set, and charge a run to it."""

import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Self

from linprobe.accounting import book
from linprobe.accounting.book import Cap, Check, Contents, Entry, Spending, refuse_above, spending
from linprobe.accounting.events import Releases, grouped
from linprobe.accounting.figures import ONE, rounded_up
from linprobe.accounting.ledger import Ledger
from linprobe.accounting.row_keys import (
    BOOK_SUFFIX,
    KEY,
    NAMED,
    Account,
    RowKeys,
    SharedBook,
    book_with,
    books_folder,
    books_with,
    books_without_keys,
    files_of_books,
    keys_file,
    not_compared_words,
    refuse_public,
    with_shared,
)
from linprobe.atomic_files import alone, remove_torn, write_whole
from linprobe.data.dataset import DIGITS, open_features
from linprobe.data.feature_reader import BY_CHANCE, FeatureReader, GroupRows
from linprobe.data.row_checks import Commitment
from linprobe.errors import DataError, DivergedError, LinprobeError, PrivacyError, PrivacyNote, Progress, counted
from linprobe.parallel.array_api import among
from linprobe.parallel.process_group import ALONE, Group
from linprobe.runs import run_folder
from linprobe.runs.manifest import Manifest
from linprobe.runs.matching import features_of, holds_rows, private_groups
from linprobe.training.execute import Observer
from linprobe.training.plan import Plan
from linprobe.training.words import cost_of_all

KEY_BYTES = 32


class BookFinder:
    """Finds the budget book of a feature file while its training rows are read.

    The name of a default book is a keyed commitment to all training rows, including public shots, in any
    order, with any labels and times any power of 2. The key lies beside the books, so that their names tell nobody else
    whether a set of rows was used. `commitment` takes the training rows; it is None if there is no book to find.
    """

    def __init__(self, given: Path | None, *, make: bool = True) -> None:
        self._given = given
        self.commitment: Commitment | None = None
        # a book without keys, or elsewhere, does not count with default books: caps of these are checked beside it
        self._folder = keys_file(given).parent if given is not None and _has_keys(given) else books_folder()
        self._elsewhere = self._folder.resolve() != books_folder().resolve()
        needed = make if given is None else self._elsewhere
        if needed or files_of_books(self._folder, KEY) or (given is None and files_of_books(self._folder)):
            self.commitment = Commitment(_key(self._folder))

    def account(
        self,
        features: FeatureReader,
        protected: Sequence[GroupRows] = (),
        public: Sequence[GroupRows] = (),
        unit: str | None = None,
        *,
        group: str = "train",
        planned: Entry | None = None,
        exposed: Sequence[GroupRows] = (),
    ) -> Account | None:
        """The book with the keys of its rows, after the training rows of `features` were added, or another `group`.

        No key is written before a charge: until then, the rows may turn out to be those of no run. Besides the training
        rows there are `protected` ones, `public` ones from outside, and `exposed` private test rows of runs without a
        guarantee. Refuses rows that are private in one run and public in another, and a `planned` run above a cap.
        """
        path, rows, home = self._given, GroupRows(features, group), None
        if path is None:
            if self.commitment is None:
                return None
            path = self._folder / f"{self.commitment.value()}{BOOK_SUFFIX}"
        elif not _has_keys(path):
            refuse_private_in_books(public)
            if self.commitment is not None:
                _refuse_round_cap(path, self._keys(rows, [*protected, *exposed], ()))
            return Account(path, features=_stated(features.path, features.place))
        elif self._elsewhere and files_of_books(books_folder(), KEY):
            home = _joined(RowKeys(), _key(books_folder()), [rows, *protected, *exposed], public)
            _refuse_round_cap(path, home)
        keys, shown = self._keys(rows, protected, public), _joined(RowKeys(), _key(self._folder), exposed, ())

        def check() -> None:
            refuse_public(keys, self._folder, _names(public), unit)
            if home is not None:
                refuse_public(home, books_folder(), _names(public), unit)

        if planned is not None:
            under_caps(replace(Account.at(path, keys), exposed=shown), [planned])
        check()
        stated = _stated(features.path, features.place)
        return replace(Account.at(path, keys, check), features=stated, exposed=shown)

    def _keys(self, rows: GroupRows, protected: Iterable[GroupRows], public: Iterable[GroupRows]) -> RowKeys:
        """Keys of the `rows` of the book, if they were added, of the `protected` and of the `public` rows."""
        key = _key(self._folder)
        keys = RowKeys()
        if self.commitment is not None:
            keys = RowKeys.of({"rows": self.commitment.row_keys(), **rows.name_keys(key)})
        return _joined(keys, key, protected, public)


def _joined(keys: RowKeys, key: bytes, protected: Iterable[GroupRows], public: Iterable[GroupRows]) -> RowKeys:
    """The `keys`, and those of `protected` and of `public` rows, by the `key` of a folder of books."""
    for more in protected:
        keys = keys.joined(_keys_of(more, key))
    for more in public:
        keys = keys.joined(_keys_of(more, key).as_public())
    return keys


def _stated(path: Path, place: Path) -> str:
    """What entries of a book state of a feature file that was given as `path`: its `place`, or the name of the digits.

    These lie elsewhere or nowhere. No row decides it.
    """
    return DIGITS if str(path) == DIGITS and not (place.name == DIGITS and place.exists()) else str(place.resolve())


def _refuse_round_cap(given: Path, keys: RowKeys, step: str = "leave --book out") -> None:
    """PrivacyError, with the next `step`, if a default book with one of the `keys` has a cap, which others evade."""
    folder = books_folder()
    shared = [(other.path, other.contents, "for") for other in books_with(keys, folder)]
    unknown = [(*other, "perhaps for") for other in books_without_keys(folder, given)]
    for path, contents, whose in (*shared, *unknown):
        if contents.cap is not None:
            raise PrivacyError(
                f"--book is {given}, and budget book {path} has a cap, epsilon {contents.cap.epsilon:.9g}, {whose} "
                f"some of these rows; what another book has would not count under it; {step}"
            )


def _refuse_round_caps_of(run: run_folder.RunFolder, given: Path) -> None:
    """`_refuse_round_cap` for the rows of a finished run in no default book. DataError: its feature file has others."""
    folder = books_folder()
    counts_there = _has_keys(given) and keys_file(given).parent == folder.resolve()
    if counts_there or all(book.read_book(path).cap is None for path in files_of_books(folder)):
        return
    with open_features(features_of(run, None), whole=False) as features, ExitStack() as stack:
        if not holds_rows(run, features):
            raise DataError(
                f"{features.path} does not hold the private rows of run {run.folder} any more, so nothing tells "
                f"whether a cap in {folder} is for them; bring the file back"
            )
        hidden = (rows for rows, _ in private_groups(run, features, stack))
        keys = _joined(RowKeys(), _key(folder), hidden, ())
    _refuse_round_cap(given, keys, "publish from a run in that book")


def _keys_of(rows: GroupRows, key: bytes) -> RowKeys:
    added = Commitment(key)
    for x, _ in rows.blocks():
        added.add(x)
    return RowKeys.of({"rows": added.row_keys(), **rows.name_keys(key)})


def _has_keys(path: Path) -> bool:
    """Whether a book has row keys beside it, or states that it has."""
    return bool(book.read_book(path).keys) or keys_file(path).exists()


def _names(public: Iterable[GroupRows]) -> str:
    return " and ".join(f"rows of group {part.group} of {part.features.path}" for part in public)


def refuse_private_in_books(public: Sequence[GroupRows]) -> None:
    """PrivacyError if rows that are used as public are private in a default book; writes nothing."""
    folder = books_folder()
    if public and files_of_books(folder, KEY):
        refuse_public(_joined(RowKeys(), _key(folder), (), public), folder, _names(public))


def record_public(run: str, public: GroupRows) -> None:
    """Add rows that a command used as public to the keys of the run's default book. DataError, LinprobeError."""
    path = book_with(run)
    if path is not None and keys_file(path).exists():
        keys = _keys_of(public, _key(books_folder())).as_public()
        with Account.at(path, keys, lambda: refuse_public(keys, path.parent, _names([public]))).charging():
            pass


def refuse_protected_test_rows(features: FeatureReader) -> None:
    """PrivacyError if public test rows, except a few by chance, are private in a default budget book.

    A test row may have a key of a training row of its file: the check of the file told them apart, or accepted a few.
    """
    folder = books_folder()
    if "test" not in features.sizes or features.description.private_test or not files_of_books(folder, KEY):
        return
    test, key = GroupRows(features, "test"), _key(folder)
    keys, spare = _keys_of(test, key), test.n_rows // BY_CHANCE
    if features.description.shares_owners:
        keys = replace(keys, owners=keys.owners[:0])
    refuse = partial(refuse_public, folder=folder, whose=_names([test]))
    try:
        refuse(keys.as_public(), spare=spare)
    except PrivacyError:  # perhaps for rows of this file, or for several keys of one row
        own = replace(_keys_of(GroupRows(features, "train"), key), owners=keys.owners[:0])
        for kind, of_a_row in (("rows", 1), ("images", 2), ("owners", 1)):
            found = getattr(keys, kind)
            refuse(RowKeys(public=found[~among(found, getattr(own, kind))]), spare=of_a_row * spare)


def existing_book(
    features: FeatureReader,
    given: Path | None = None,
    *,
    make: bool = False,
    group: str = "train",
    unit: str | None = None,
    protected: Sequence[GroupRows] = (),
) -> Account | None:
    """The budget book of a feature file, whose rows are read; with `make`, also what it lacks: key and keys of rows."""
    finder = BookFinder(given, make=make)
    if finder.commitment is not None:
        for x, _ in features.blocks(group):
            finder.commitment.add(x)
    account = finder.account(features, protected, unit=unit, group=group)
    if given is None and group == "train" and account is not None and account.keys is not None:
        _give_keys_to_old(replace(account.keys, public=RowKeys().public), features)
    if account is None or not (make or (account.path.exists() and not keys_file(account.path).exists())):
        return account
    with account.charging() as written:
        return written


def _give_keys_to_old(keys: RowKeys, features: FeatureReader) -> None:
    """Write `keys` beside the default book that 0.2.0 made for the training rows, which it named as they are."""
    folder = books_folder()
    unknown = [path for path, _ in books_without_keys(folder)]
    if unknown:
        as_given = Commitment(_key(folder), scaled=False)
        for x, _ in features.blocks("train"):
            as_given.add(x)
        old = folder / f"{as_given.value()}{BOOK_SUFFIX}"
        if old in unknown:
            with Account(old, keys).charging():
                pass


def _key(folder: Path) -> bytes:
    path = folder / KEY
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            with alone(folder):
                _make_key(path)
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise book.no_books(f"budget books in {folder}", error) from None
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
    if files_of_books(path.parent):
        raise DataError(
            f"{path.parent} holds budget books without their key; restore {path} from a copy, or give --book FILE"
        )
    remove_torn(path)
    write_whole(path, secrets.token_hex(KEY_BYTES), private=True)


class RunCharge(Observer):
    """Charges one training run to its budget book before a private row is used, and shows its progress.

    As a context manager it states that the run is finished, or if the block fails, what the run had released. The whole
    plan goes on to count if the run was resumed, as its folder may be an earlier copy, whose ledger is too short; and
    if the run passed a cap by its own figure alone, as the time of its end may depend on results.
    """

    def __init__(
        self,
        account: Account | None,
        folder: Path,
        out: Path,
        ledger: Ledger,
        cap: float | None,  # of all runs in the book, at this run's delta and unit
        progress: Progress,
        group: Group = ALONE,
    ) -> None:
        self._resumed = (folder / run_folder.CHECKPOINT).is_file()
        self._account, self._ledger, self._cap, self._progress = account, ledger, cap, progress
        self._name = str(out.absolute())
        # the process may change to another folder before the end; notes name the book as it was given
        self._placed = None if account is None else replace(account, path=account.path.absolute())
        self.run = "" if group.rank > 0 else run_folder.run_id(folder)
        self._charged: tuple[Check, Contents, Entry] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """State how the run ended. If an early end cannot be written, the whole plan counts."""
        if self._charged is None or self._account is None or self._placed is None:
            return
        if kind is None:
            book.finish(self._placed.path, self.run)
            return
        check, others, entry = self._charged
        if entry.private:
            with suppress(LinprobeError, OSError):
                made = grouped(self._ledger.events)
                keeps_plan = self._resumed or bool(made)
                with suppress(PrivacyError):
                    check(others, replace(others.as_counted(entry), ended_early=True))
                    keeps_plan = self._resumed
                if not keeps_plan:
                    book.settle(self._placed.path, self.run, made)
                if issubclass(kind, KeyboardInterrupt | DivergedError | OSError):
                    why = "it was resumed" if self._resumed else "nothing may follow it under its cap"
                    ended = book.read_book(self._placed.path).entries[self.run]
                    _note_end(self._progress, self._account.path, ended, why)

    def start(self, n_steps: int, what: str = "training") -> None:
        self._progress.start(n_steps, what)

    def step(self) -> None:
        self._progress.step()

    def budget(self, plan: Plan) -> None:
        """Write what the run is going to release, before a private row is used; again if the plan changes."""
        again = self._charged is not None
        account = self._placed if again else self._account
        if not self.run or account is None or not plan.charged:
            return  # another rank writes, or no private row is used
        cap, features = self._cap, account.features
        planned = [one.entry(self.run, self._name) for one in plan.possible]
        entry, *others = (replace(one, cap=cap, features=features) for one in planned)
        check, before = _charge(account, entry, self._progress, others, again=again)
        self._charged = check, before, entry


def charge_complete(account: Account, entry: Entry, *, histogram: bool = False) -> None:
    """Charge what a book lacks of a complete run, and state that it is finished. Raises as `RunCharge.budget`."""
    contents = book.read_book(account.path)
    if entry.run not in contents.entries or contents.lacking(entry.run, entry.releases):
        with account.charging() as held:
            check = _check_caps(held, held.shared(), histogram=histogram)
            book.add(account.path, replace(entry, features=account.features), [], check)
    book.finish(account.path, entry.run)


def charge_entry(account: Account | None, entry: Entry, progress: Progress) -> Path:
    """Charge a complete entry, say what it and earlier ones cost; returns the book. Raises as `RunCharge.budget`."""
    assert account is not None  # noqa: S101 - what spends has a book
    _charge(account, replace(entry, features=account.features), progress)
    return account.path


def _charge(
    account: Account, entry: Entry, progress: Progress, others: Sequence[Entry] = (), *, again: bool = False
) -> tuple[Check, Contents]:
    """Charge an entry, or it `again`, or `others` in its place: the check of the caps, and what the book had held."""
    with account.charging() as held:
        shared = held.shared()
        check = _check_caps(account, shared)

        def check_all(contents: Contents, charged: Entry) -> None:
            for one in (charged, *map(contents.as_counted, others)):
                check(contents, one)
            _note(progress, account.path, contents, entry, shared)  # a warning may be an error: nothing is spent then

        return check, book.charge(account.path, entry, None if again else check_all)


@contextmanager
def charged_selection(
    account: Account | None, folder: Path, out: Path, entry: Entry, cap: float | None, progress: Progress
) -> Iterator[str]:
    """Charge a private selection to its budget book, before its first run. It counts in full however it ends.

    The line has no time, and the book gets the time of the end, as the files of the run do: the time between both would
    tell the number of runs. Yields the id of the run.
    """
    run = run_folder.run_id(folder)
    entry = replace(entry, run=run, name=str(out.absolute()), created=None, cap=cap)
    path = charge_entry(account, entry, progress).absolute()
    try:
        yield run
    except (KeyboardInterrupt, OSError, LinprobeError):
        progress.note(
            f"the choice counts in full, {spending([entry]).in_words}: how many "
            "runs it had made is secret; linprobe tune cannot resume it"
        )
        raise
    finally:
        for place in (path, keys_file(path), path.parent / KEY, path.parent):
            with suppress(OSError):
                os.utime(place)


def preview(account: Account | None, entries: Sequence[Entry]) -> Spending:
    """The cost of `entries` with the runs of a book and those that share its rows. PrivacyError: above a cap."""
    return spending(under_caps(account, entries).counted)


def under_caps(account: Account | None, entries: Sequence[Entry]) -> Contents:
    """What books that count together would hold after `entries`. Arguments and errors as of `preview`."""
    if account is None:
        contents, shared, check = Contents(), [], _check_caps(None, ())
    else:
        contents, shared = book.read_book(account.path), account.shared()
        check = _check_caps(account, shared)
    for entry in entries:
        counted, others = contents.as_counted(entry), contents.without(entry.run)
        if account is not None and entry.run in contents.entries:  # a run that is resumed
            book.refuse_another(account.path, contents.entries[entry.run], entry)
        check(others, counted)
        contents = replace(others, entries={**others.entries, f"{len(others.entries)} planned": counted})
    return with_shared(contents, shared)


def _check_caps(account: Account | None, shared: Sequence[SharedBook], *, histogram: bool = False) -> Check:
    """Refuse an entry above a cap of its book, of a book that shares rows, or its own; or if a book may share rows."""
    path, unknown = (Path(), []) if account is None else (account.path, account.not_compared())

    def check(others: Contents, entry: Entry) -> None:
        own = None if histogram or entry.cap is None else Cap(entry.cap, entry.delta or 0.0)
        _refuse_unknown(unknown, [own, others.cap, *(other.contents.cap for other in shared)])
        finished = replace(entry, further=entry.further[:-1]) if histogram else None
        together = with_shared(others, shared)
        if others.cap is not None:
            refuse_above(others.cap, together, entry, finished)
        if own is not None:
            refuse_above(own, together, entry, unit=entry.unit)
        for other in shared:
            if other.contents.cap is not None:
                theirs = [one for one in Account.at(other.path).shared() if keys_file(one.path) != keys_file(path)]
                together = with_shared(other.contents, [*theirs, SharedBook(path, others, {})])
                refuse_above(other.contents.cap, together, entry, finished, whose=f"the rows of {other.path}")

    return check


def _refuse_unknown(unknown: Sequence[tuple[Path, Contents]], caps: Iterable[Cap | None]) -> None:
    """PrivacyError if there is one of `caps`, or of `unknown` books, as their runs may be on the same rows."""
    cap = next((cap for cap in (*caps, *(contents.cap for _, contents in unknown)) if cap is not None), None)
    if not unknown or cap is None:
        return
    runs = [(path, [*contents.entries.values()][-1:]) for path, contents in unknown]
    named = [f"{path}{''.join(f' with run {run.name}' for run in last)}" for path, last in runs[:NAMED]]
    raise PrivacyError(
        f"cap is epsilon {cap.epsilon:.9g}, and {counted(len(unknown), 'budget book')} without row keys may have runs "
        f"on these rows ({', '.join(named)}); allowed under a cap: books that can be compared; nothing was spent; run "
        "linprobe budget on their feature files, or if a file is gone, move its book to another folder, where its runs "
        "do not count"
    )


def note_not_compared(account: Account | None, progress: Progress) -> None:
    """Note that earlier runs of books without keys may be on the same rows, and are not counted."""
    unknown = [] if account is None else account.not_compared()
    if unknown:
        progress.note(PrivacyNote(not_compared_words(len(unknown))))


def _note(progress: Progress, path: Path, others: Contents, entry: Entry, shared: Sequence[SharedBook]) -> None:
    together = with_shared(others, shared).counted
    if not together or not entry.private:
        return
    spent = spending([*together, others.as_counted(entry)])
    where = "these rows" if len(together) == len(others.counted) else "these rows, or on files that share some of them,"
    runs = "this run costs" if spent.runs == 1 else f"{spent.runs} runs on {where} together cost"
    progress.note(PrivacyNote(f"{runs} {cost_of_all(spent)} (budget book {path})"))
    promised = entry.cap, entry.delta, entry.unit
    kept = all((one.cap, one.delta, one.unit) == promised for one in together if one.private)
    if entry.cap is not None and others.cap is None and not kept:
        progress.note(
            f"--cap {entry.cap:g} at delta {rounded_up(entry.delta)} for {ONE[entry.unit]} was not the cap of "
            "every earlier run, so it promises nothing for runs chosen after results; set a cap for all runs with "
            "linprobe budget --set-cap before the first run"
        )


def _note_end(progress: Progress, path: Path, entry: Entry, why: str) -> None:
    """Say what a run that ended early costs, as its book states it; and `why`, if its whole plan counts."""
    if not entry.counts:
        progress.note("the run ended before it released anything, so nothing was spent")
        return
    counted = "what it had released" if entry.ended_early else f"{why}, so its whole plan"
    cost = spending([entry]).in_words
    progress.note(PrivacyNote(f"the run ended early; {counted} costs {cost}, and counts (budget book {path})"))


def charge_histogram(run: run_folder.RunFolder, histogram: Releases, given: Path | None) -> str | None:
    """Charge a histogram of a finished run to the book of the run, or to `given`, which gets all that the run released.

    Returns: what all histograms cost with the run, if the book has more of them than the manifest states with this one.
    """
    path, entry = _book_with_entry(run, given)
    account = Account.at(path)
    with account.charging() as held:
        charged = book.add(path, entry, [histogram], _check_caps(held, held.shared(), histogram=True))
    others = sum(release.count for release in charged.further) - len(run.manifest.published) - 1
    if others < 1:
        return None
    return (
        f"budget book {path} has {others} more of this run, made from another copy of it or not finished; all together "
        f"cost {spending([charged]).in_words}, of which this manifest states its own part"
    )


def charge_published(run: run_folder.RunFolder, released: tuple[Releases, ...], given: Path | None) -> None:
    """Charge what the book of a run lacks of `released`, with a further histogram. Raises as `charge_histogram`."""
    path, entry = _book_with_entry(run, given)
    charge_complete(Account.at(path), replace(entry, releases=released), histogram=True)


def preview_histogram(run: run_folder.RunFolder, histogram: Releases, given: Path | None) -> tuple[Path, Spending]:
    """The book that `charge_histogram` would charge, and its runs' cost with the histogram; raises as it does."""
    path, entry = _book_with_entry(run, given)
    contents, account = book.read_book(path), Account.at(path)
    others, after, shared = contents.without(entry.run), contents.after(entry, [histogram]), account.shared()
    _check_caps(account, shared, histogram=True)(others, after)
    return path, spending([*with_shared(others, shared).counted, after])


def _book_with_entry(run: run_folder.RunFolder, given: Path | None) -> tuple[Path, Entry]:
    """The budget book of a finished run, and the entry of the run in a book that does not know it."""
    manifest = run.manifest
    known = book_with(manifest.book_id)
    if given is not None and known is not None and given.resolve() != known.resolve():
        raise PrivacyError(
            f"run {run.folder} is in budget book {known}, and --book is {given}, not counted with it; leave --book out"
        )
    path = given or known
    if path is None:
        raise LinprobeError(
            f"run {run.folder} is in no budget book of {books_folder()}, so its histogram cannot be charged; give "
            "--book FILE; a new book gets the whole run"
        )
    if known is None:
        _refuse_round_caps_of(run, path)
    return path, entry_of(run.folder, manifest)


def entry_of(run: Path, manifest: Manifest) -> Entry:
    """The entry of a finished run in a book that does not know it."""
    return Entry(
        run=manifest.book_id,
        name=str(run.absolute()),
        method=manifest.method,
        unit=manifest.unit,
        private=manifest.private,
        delta=manifest.delta,
        releases=manifest.recorded,
        selection=manifest.selection,
        features=_stated(Path(manifest.features), Path(manifest.features)),
    )
