"""Which budget books count together: those of files that have a protected row, image or person in common.

Beside a default book lies a file with 8 keyed bytes for each row, image and person that its runs protect. Two files of
such keys are compared before a run is charged. The total of a file composes its own runs and the runs of every book
that shares a key with it (`docs/proofs/adaptive.md`, lemma 3).

Equal rows, images and owners have equal keys, so nothing in common is missed. Two different rows have equal keys with a
probability of 2^-64, which makes the total too large and never too small.

The keys of a book only grow, and are on the disk before the line of the run that needs them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from linprobe.accounting.book import Contents, read_book
from linprobe.accounting.figures import cost_in_words, rounded_up
from linprobe.accounting.spending import spending
from linprobe.atomic_files import alone, open_regular, replace_when_complete, sync_folder
from linprobe.errors import DataError, LinprobeError, advice

Keys = NDArray[np.uint64]
KINDS = ("rows", "images", "owners")
BOOK_SUFFIX, SUFFIX = ".jsonl", ".rows"
FILE_FORMAT = 1
LONGEST_HEADER = 200  # bytes
FIRST_BITS = 24
STORED = np.dtype("<u8")


def _no_keys() -> Keys:
    return np.empty(0, dtype=np.uint64)


@dataclass(frozen=True)
class RowKeys:
    """Keys of all that the runs of a book protect; each array is sorted, without repetitions.

    Attributes:
        rows: of feature rows, up to a power of 2. images: of the pixels behind the rows. owners: of the people.
    """

    rows: Keys = field(default_factory=_no_keys)
    images: Keys = field(default_factory=_no_keys)
    owners: Keys = field(default_factory=_no_keys)

    @classmethod
    def of(cls, keys: Mapping[str, Keys]) -> RowKeys:
        """Keys by kind, in any order and with repetitions."""
        return cls(**{kind: np.unique(keys[kind]) for kind in KINDS if kind in keys})

    def joined(self, other: RowKeys) -> RowKeys:
        """The keys of both."""
        return RowKeys(**{kind: np.union1d(getattr(self, kind), getattr(other, kind)) for kind in KINDS})

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of keys of each kind."""
        return tuple(len(getattr(self, kind)) for kind in KINDS)

    @property
    def kinds(self) -> list[str]:
        """The kinds that have keys."""
        return [kind for kind in KINDS if len(getattr(self, kind))]


class _Known:
    """Counts which of other keys are among known ones; a table of the first bits spares most of the search."""

    def __init__(self, keys: Keys) -> None:
        bits = min(FIRST_BITS, len(keys).bit_length() + 4)  # few keys need no table of megabytes
        self._keys, self._begun, self._shift = keys, np.zeros(1 << bits, dtype=np.bool_), np.uint64(64 - bits)
        self._begun[self._first_bits(keys)] = True

    def count(self, others: Keys) -> int:
        """How many of `others` are known."""
        likely = others[self._begun[self._first_bits(others)]]
        if not len(likely):
            return 0
        places = np.minimum(np.searchsorted(self._keys, likely), len(self._keys) - 1)
        return int(np.count_nonzero(self._keys[places] == likely))

    def _first_bits(self, keys: Keys) -> NDArray[np.intp]:
        return (keys >> self._shift).astype(np.intp)


def keys_file(book: Path) -> Path:
    """The file of keys beside a book; of a link, beside the book that it leads to."""
    return book.resolve().with_suffix(SUFFIX)


def read_keys(path: Path) -> RowKeys:
    """The keys in a file.

    Raises:
        DataError: a damaged file, or one that cannot be read.
    """
    try:
        with open_regular(path) as stream:
            header = json.loads(stream.readline(LONGEST_HEADER))
            content = stream.read()
        sizes = [header[kind] for kind in KINDS]
        if header["keys"] != FILE_FORMAT or any(type(size) is not int or size < 0 for size in sizes):
            raise ValueError("it is no file of keys of this version")
        if len(content) != STORED.itemsize * sum(sizes) or _digest(content) != header["digest"]:
            raise ValueError("its content is not what its first line states")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(
            f"row keys {path} cannot be read ({reason[:120]}); without them runs on the same rows cannot be found; "
            "restore the file, or remove it and open its feature file again with linprobe budget"
        ) from None
    parts = np.split(np.frombuffer(content, dtype=STORED).astype(np.uint64), np.cumsum(sizes)[:-1])
    return RowKeys(*parts)


def _write_keys(path: Path, keys: RowKeys) -> None:
    content = b"".join(getattr(keys, kind).astype(STORED).tobytes() for kind in KINDS)
    header = {"keys": FILE_FORMAT, **dict(zip(KINDS, keys.sizes, strict=True)), "digest": _digest(content)}
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with replace_when_complete(path, private=True) as stream:
            stream.write(json.dumps(header).encode() + b"\n" + content)
        sync_folder(path.parent)
    except OSError as error:
        raise LinprobeError(
            f"row keys {path} cannot be written ({error.strerror}), so nothing was spent; {advice(error, '--book')}"
        ) from None


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


@dataclass(frozen=True)
class SharedBook:
    """Another book whose runs count, too.

    Attributes:
        common: number of keys of each kind that both books have.
    """

    path: Path
    contents: Contents
    common: dict[str, int]


@dataclass(frozen=True)
class Account:
    """A budget book and the keys of its rows.

    Attributes:
        path: of the book. keys: of the rows, together with those in the file beside the book; None for a book given by
            hand, which counts by itself whatever rows its runs have.
    """

    path: Path
    keys: RowKeys | None = None

    @classmethod
    def at(cls, path: Path, keys: RowKeys | None = None) -> Account:
        """The account of a book, with `keys` and the keys beside the book, if there are any.

        Raises:
            DataError: damaged keys.
        """
        beside = keys_file(path)
        if not beside.exists():
            return cls(path, keys)
        known = read_keys(beside)
        return cls(path, known if keys is None else known.joined(keys))

    @contextmanager
    def charging(self) -> Iterator[None]:
        """Write the keys to the disk, and let no other process charge a book of this folder inside the block.

        Raises:
            LinprobeError: they cannot be written. PrivacyError: the folder is held by another process for too long.
        """
        if self.keys is None:
            yield
            return
        beside = keys_file(self.path)
        beside.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with alone(beside.parent):
            known = read_keys(beside) if beside.exists() else RowKeys()
            keys = known.joined(self.keys)
            if not beside.exists() or keys.sizes != known.sizes:
                _write_keys(beside, keys)
            yield

    def shared(self) -> list[SharedBook]:
        """The other books of the folder that have a key in common with this one, in the order of their names.

        Raises:
            DataError: a damaged book, or damaged keys.
        """
        found: list[SharedBook] = []
        if self.keys is None:
            return found
        own, known = keys_file(self.path), {kind: _Known(getattr(self.keys, kind)) for kind in KINDS}
        for beside in sorted(own.parent.glob(f"*{SUFFIX}")):
            if beside == own:
                continue
            theirs = read_keys(beside)
            common = {kind: known[kind].count(getattr(theirs, kind)) for kind in KINDS}
            path = beside.with_suffix(BOOK_SUFFIX)
            if any(common.values()):
                found.append(SharedBook(path, read_book(path), common))
        return found

    def not_compared(self) -> int:
        """The number of other books in the folder without keys: their rows are known as whole files only."""
        if self.keys is None:
            return 0
        books = keys_file(self.path).parent.glob(f"*{BOOK_SUFFIX}")
        return sum(not keys_file(path).exists() for path in books if path.resolve() != self.path.resolve())


def with_shared(contents: Contents, shared: Iterable[SharedBook]) -> Contents:
    """The entries of a book and of the books that count together with it, under the cap of the book."""
    entries = {f"{book.path.name} {run}": entry for book in shared for run, entry in book.contents.entries.items()}
    return replace(contents, entries={**contents.entries, **entries})


def books_folder() -> Path:
    """The folder of the budget books: `linprobe` in $XDG_STATE_HOME, by default ~/.local/state."""
    home = os.environ.get("XDG_STATE_HOME", "")
    try:
        return (Path(home) if Path(home).is_absolute() else Path.home() / ".local/state") / "linprobe"
    except RuntimeError:
        raise LinprobeError(
            "the budget book has no place: this user has no home folder; set XDG_STATE_HOME, or give --book FILE"
        ) from None


def book_with(run: str, given: Path | None = None) -> Path | None:
    """The budget book with an entry of the run: `given`, or the one among the default books; None if none has it."""
    if given is not None:
        return given
    for path in sorted(books_folder().glob(f"*{BOOK_SUFFIX}")):
        if run in read_book(path).entries:
            return path
    return None


def recorded_total(run: str, epsilon: float | None, *, shared: bool) -> str:
    """One line on what all runs of the default book of a finished run cost together, or why that is not known.

    Args:
        run, epsilon: of the run. shared: count runs on other files with some of its rows, and name the book. The line
            is then private: that two files have one row in common can tell who is in both.
    """
    own = "no epsilon holds" if epsilon is None else rounded_up(epsilon)
    try:
        path = book_with(run)
        if path is None:
            where = f" in {books_folder()}" if shared else " where this page was made"
            return f"no budget book{where} has this run, so other runs on its rows are not known; this run: {own}"
        spent = spending(with_shared(read_book(path), Account.at(path).shared() if shared else ()).counted)
    except LinprobeError as error:
        return f"the total of all runs on these rows is not known: {error if shared else 'the budget book is damaged'}"
    runs = f"{spent.runs} recorded run{'' if spent.runs == 1 else 's'}"
    more = f", and {spent.not_private_runs} that no epsilon covers" if spent.not_private_runs else ""
    told = f"{cost_in_words(spent.epsilon_by_unit, spent.delta)}, over {runs} on these rows{more}; this run: {own}"
    return f"{told} (budget book {path}; do not publish this line)" if shared else told
