"""Which budget books count together: books of files that share a protected row, image or person.

A file beside each default book has a key, an 8-byte keyed hash, for each row, image and person that its runs protect.
A total composes the runs of all books that share a key with it (`docs/proofs/adaptive.md`, lemma 3). Equal rows have
equal keys, so nothing in common is missed; different ones have with a probability of 2^-64, which makes the total too
large and never too small.

The keys of a book only grow, and are on the disk before the line of the run that needs them. The book states their
digest, so that keys that are lost or old are refused. The file also has keys of what a run of the book used as public.
A row that is private in one book and public in another is refused: no epsilon covers it.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from linprobe.accounting.book import DIGEST_BYTES, Contents, Entry, no_books, read_book, state_keys
from linprobe.accounting.events import OWNER, TEST_ACCURACY
from linprobe.atomic_files import alone, open_regular, remove_torn, sync_folder, write_whole
from linprobe.errors import DataError, LinprobeError, PrivacyError, counted, read_fault, writing
from linprobe.parallel.array_api import among, distinct

Keys = NDArray[np.uint64]
KINDS = ("rows", "images", "owners")
ALL_KINDS = (*KINDS, "public")
BOOK_SUFFIX, SUFFIX = ".jsonl", ".rows"
KEY = "key"  # of a folder of default books
FILE_FORMAT = 1
LONGEST_HEADER = 200  # bytes
STORED = np.dtype("<u8")
PRIVATE_IN_ALL = ", for rows that were private in all of them"  # public shots of a run may be private in another
NAMED = 2  # runs of a book, the last ones, in a message
ATTEMPTS, PAUSE = 12, 0.01  # to read a book and its keys between two writes; seconds


def _no_keys() -> Keys:
    return np.empty(0, dtype=np.uint64)


@dataclass(frozen=True)
class RowKeys:
    """Keys of all that the runs of a book protect, or used as public; each array is sorted, without repetitions."""

    rows: Keys = field(default_factory=_no_keys)  # of feature rows, up to a power of 2
    images: Keys = field(default_factory=_no_keys)  # of the pixels behind the rows
    owners: Keys = field(default_factory=_no_keys)  # of the people
    public: Keys = field(default_factory=_no_keys)  # of what a run used as public

    @classmethod
    def of(cls, keys: Mapping[str, Keys]) -> RowKeys:
        """Keys by kind, in any order and with repetitions."""
        return cls(**{kind: distinct(keys[kind]) for kind in ALL_KINDS if kind in keys})

    def joined(self, other: RowKeys) -> RowKeys:
        found = {}
        for kind in ALL_KINDS:
            own, theirs = getattr(self, kind), getattr(other, kind)
            found[kind] = own if np.array_equal(own, theirs) else distinct(np.concatenate([own, theirs]))
        return RowKeys(**found)

    def as_public(self) -> RowKeys:
        return RowKeys(public=distinct(np.concatenate([getattr(self, kind) for kind in KINDS])))

    def private(self, unit: str) -> Keys:
        """Keys of what a run with this unit protects and no run used as public."""
        kinds = [self.rows, self.images, *([self.owners] if unit == OWNER else [])]
        every = distinct(np.concatenate(kinds))
        return every[~among(every, self.public)]

    @property
    def kinds(self) -> list[str]:
        return [kind for kind in KINDS if len(getattr(self, kind))]

    @property
    def content(self) -> bytes:
        return b"".join(getattr(self, kind).astype(STORED).tobytes() for kind in ALL_KINDS)


def keys_file(book: Path) -> Path:
    """The file of keys beside a book; of a link, beside the book that it leads to."""
    return book.resolve().with_suffix(SUFFIX)


def read_keys(path: Path) -> RowKeys:
    """The keys in a file. Raises DataError: a damaged file. LinprobeError: one that the system cannot read."""
    try:
        with open_regular(path) as stream:
            header = json.loads(stream.readline(LONGEST_HEADER))
            content = stream.read()
        sizes = [header[kind] for kind in ALL_KINDS]
        if header["keys"] != FILE_FORMAT or any(type(size) is not int or size < 0 for size in sizes):
            raise ValueError("it is no file of keys of this version")
        if len(content) != STORED.itemsize * sum(sizes) or _digest(content) != header["digest"]:
            raise ValueError("its content is not what its first line states")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        if (fault := read_fault(f"row keys {path}", error)) is not None:
            raise fault from None
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise _unusable(path, f"cannot be read ({reason[:120]})") from None
    parts = np.split(np.frombuffer(content, dtype=STORED).astype(np.uint64), np.cumsum(sizes)[:-1])
    return RowKeys(*parts)


def _unusable(path: Path, why: str) -> DataError:
    return DataError(
        f"row keys {path} {why}; without them runs on the same rows cannot be found; restore the file from a copy, or "
        "remove it and open its feature file again with linprobe budget, which makes keys of private rows anew, but "
        "not of public ones"
    )


def read_with_keys(book: Path, new: RowKeys | None = None) -> tuple[Contents, RowKeys | None]:
    """The contents of a book and the keys beside it, or None, or `new` ones for a missing file if the book states them.

    DataError: damage, keys other than the book states, or keys beside a book that states none.
    """
    path = keys_file(book)
    for attempt in range(ATTEMPTS):  # another process may write both meanwhile
        contents = read_book(book)
        stated, known = contents.keys or ("",), read_keys(path) if path.exists() else None
        if ("" if known is None else _digest(known.content)) in stated:
            return contents, known
        if known is None and new is not None and _digest(new.content) in stated:
            return contents, new
        time.sleep(PAUSE * attempt)
    if not contents.keys:
        raise DataError(
            f"row keys {path} are there without their budget book, or without its lines, so the runs on their rows are "
            "not known; restore the book from a copy, or remove both"
        )
    raise _unusable(path, "is not there" if known is None else "has not the keys that its budget book states")


def _write_keys(path: Path, keys: RowKeys) -> None:
    sizes = {kind: len(getattr(keys, kind)) for kind in ALL_KINDS}
    header = {"keys": FILE_FORMAT, **sizes, "digest": _digest(keys.content)}
    with writing(f"row keys {path}", "--book", "cannot be written, so nothing was spent"):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(path, json.dumps(header).encode() + b"\n" + keys.content, private=True)
        sync_folder(path.parent)


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).hexdigest()


def refuse_public(new: RowKeys, folder: Path, whose: str, unit: str | None = None, *, spare: int = 0) -> None:
    """Raise PrivacyError if a public row of `new` is private in a book of `folder`, or a private one is public there.

    `whose` are the public rows; `unit` is of the run, None if it promises nothing; `spare` public rows may be private.
    """
    for path, contents, theirs in keyed_books(folder) if unit is not None or len(new.public) else ():
        private = [entry for entry in contents.counted if entry.private]
        units = {entry.unit for entry in private} if len(new.public) else set()
        hidden = [new.public[among(new.public, theirs.private(one))] for one in units]
        both = unit is not None and len(theirs.public)
        shown = theirs.public[among(theirs.public, new.private(unit or ""))] if both else ()
        n_hidden = max(map(len, hidden), default=0)
        if n_hidden > spare or len(shown):
            met, step = f"some of the {whose}, or of their images or people, are private in", "give other rows"
            found = _with_test_rows(private) or private
            if n_hidden <= spare:
                met, step = "some of the private rows, images or people were public in", "remove them"
                found = contents.counted
            runs = ", ".join(entry.name for entry in found[-NAMED:])
            raise PrivacyError(
                f"{met} {runs} (budget book {path}); a row that one run uses as public has no guarantee; {step}, or if "
                f"they are public, move {path.name} and its row keys to another folder: its promise is void"
            )


def _with_test_rows(entries: Iterable[Entry]) -> list[Entry]:
    return [entry for entry in entries if any(part.purpose == TEST_ACCURACY for part in entry.releases)]


def keyed_books(folder: Path, but: Path | None = None) -> list[tuple[Path, Contents, RowKeys]]:
    """The books of a folder with their row keys, by name, without the one of `but`. DataError: damage, a link."""
    found = []
    books = {
        path.with_suffix(BOOK_SUFFIX) for end in (BOOK_SUFFIX, SUFFIX) for path in files_of_books(folder, f"*{end}")
    }
    for path in sorted(books):
        if path.is_symlink():
            if path.resolve().parent != folder.resolve():
                raise DataError(
                    f"budget book {path} is a link to {path.resolve()}, so runs on the same rows are not found by "
                    "their keys; allowed: links within the folder; move the book and its row keys back"
                )
        elif keys_file(path) != but:
            contents, keys = read_with_keys(path)
            if keys is not None:
                found.append((path, contents, keys))
    return found


def books_without_keys(folder: Path, but: Path | None = None) -> list[tuple[Path, Contents]]:
    """The books of a folder, except `but`, with runs or a cap whose rows are known as whole files only: of 0.2."""
    paths = [path for path in files_of_books(folder) if not path.is_symlink() and not keys_file(path).exists()]
    books = [(path, read_book(path)) for path in paths if but is None or path.resolve() != but.resolve()]
    return [(path, contents) for path, contents in books if contents.counted or contents.cap is not None]


def not_compared_words(number: int) -> str:
    books = f"{counted(number, 'budget book')} without row keys"
    return f"not compared: {books}, whose runs may be on these rows; run linprobe budget on their files"


@dataclass(frozen=True)
class SharedBook:
    """Another book whose runs count, too; `common` is the number of keys of each kind that both books have."""

    path: Path
    contents: Contents
    common: dict[str, int]


def books_with(keys: RowKeys, folder: Path, but: Path | None = None) -> list[SharedBook]:
    """The books of a folder with one of the `keys`, by name; `but` as in `keyed_books`. DataError: a damaged one."""
    found = []
    for path, contents, theirs in keyed_books(folder, but):
        pairs = {kind: (getattr(theirs, kind), getattr(keys, kind)) for kind in KINDS}
        common = {kind: int(np.count_nonzero(among(*pair))) for kind, pair in pairs.items()}
        if any(common.values()):
            found.append(SharedBook(path, contents, common))
    return found


@dataclass(frozen=True)
class Account:
    """A budget book and the keys of its rows. Every charge makes its `check` again, as other runs may have begun."""

    path: Path
    keys: RowKeys | None = None  # None for a book given by hand, which counts by itself
    check: Callable[[], None] | None = field(default=None, compare=False)
    features: str | None = None
    exposed: RowKeys = field(default_factory=RowKeys)  # rows that a run without a guarantee releases; none is written

    @classmethod
    def at(cls, path: Path, keys: RowKeys | None = None, check: Callable[[], None] | None = None) -> Account:
        """The account of a book, with `keys` and those beside it. Raises DataError: damaged, old or lost files."""
        known = read_with_keys(path, keys)[1]
        return cls(path, keys if known is None else known if keys is None else known.joined(keys), check)

    @contextmanager
    def charging(self) -> Iterator[Account]:
        """Write the keys to the disk, and let no other process charge a book of this folder inside the block."""
        if self.keys is None:
            yield self
            return
        beside = keys_file(self.path)
        beside.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with alone(beside.parent):
            if self.check is not None:
                self.check()
            stated, known = read_with_keys(self.path, self.keys)
            keys = self.keys if known is None else known.joined(self.keys)
            digest = _digest(keys.content)
            remove_torn(beside)
            if (digest,) != stated.keys[-1:]:
                state_keys(self.path, digest)
            if not beside.exists() or known is None or digest != _digest(known.content):
                _write_keys(beside, keys)
            yield replace(self, keys=keys)

    def shared(self) -> list[SharedBook]:
        """The other books of the folder that have a key in common with this one. Raises DataError: as `books_with`."""
        own = keys_file(self.path)
        return [] if self.keys is None else books_with(self.keys.joined(self.exposed), own.parent, but=own)

    def not_compared(self) -> list[tuple[Path, Contents]]:
        """The books of the folder whose runs may be on these rows, without keys; none for a book given by hand."""
        folder = keys_file(self.path).parent
        if self.keys is None and not (folder / KEY).exists():
            return []
        return books_without_keys(folder, None if self.keys is None else self.path)


def with_shared(contents: Contents, shared: Iterable[SharedBook]) -> Contents:
    """The entries of a book and of the books that count together with it, under the cap of the book."""
    entries = {f"{book.path.name} {run}": entry for book in shared for run, entry in book.contents.entries.items()}
    return replace(contents, entries={**contents.entries, **entries})


def books_folder() -> Path:
    """The folder of the budget books: `linprobe` in $XDG_STATE_HOME, by default ~/.local/state."""
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not state.is_absolute():
        with suppress(RuntimeError):  # no home folder is known
            state = Path(os.environ.get("HOME", Path.home())) / ".local/state"
    if not state.is_absolute():
        raise LinprobeError(
            "the budget book has no place without a home folder; set XDG_STATE_HOME, or give --book FILE"
        )
    return state / "linprobe"


def files_of_books(folder: Path, names: str = f"*{BOOK_SUFFIX}") -> list[Path]:
    """The files of a folder with such names, sorted; none without one. LinprobeError: it cannot be listed."""
    try:
        return sorted(path for path in folder.iterdir() if path.match(names))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise no_books(f"budget books in {folder}", error) from None


def recorded_runs() -> dict[str, tuple[Path, Entry]]:
    """The default budget book with each run, and its entry there. DataError: damaged, or two books with one run."""
    found: dict[str, tuple[Path, Entry]] = {}
    for path in files_of_books(books_folder()):
        for run, entry in read_book(path).entries.items():
            known = found.setdefault(run, (path, entry))[0]
            if known.resolve() != path.resolve():
                raise DataError(
                    f"budget books {known} and {path} both have run {run[:16]} ({entry.name}), so one is a copy of the "
                    "other; allowed: one book for each run; move the copy and its row keys to another folder, and keep "
                    "the book with more lines"
                )
    return found


def book_with(run: str) -> Path | None:
    """The default budget book with an entry of the run; None if none has it. Raises DataError: as `recorded_runs`."""
    return recorded_runs().get(run, (None,))[0]
