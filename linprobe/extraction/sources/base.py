"""Image sources: groups of images in a fixed order. Each image has a stable id, a label, and an owner if declared.

Listings are packed arrays: worker processes share them, and a million paths take tens of megabytes.
"""

from __future__ import annotations

import csv
import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from linprobe.data.array_files import refuse_twice
from linprobe.data.labels import FILE_NAMES, OwnerOf, by_owner, check_owners, refuse_both_sides
from linprobe.errors import DataError, UsageError, counted, printable, reading

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".jp2", ".avif")
FOLDER_NAMES = "folder names"
MAX_BYTES = 1 << 29  # of one image file
COLUMNS = ("id", "owner")


class UnreadableImage(Exception):  # noqa: N818 - about one file, not an error of the program
    """An image cannot be decoded; the text gives the reason."""


class Members(Protocol):
    """The images of one group, by row."""

    @property
    def labels(self) -> NDArray[np.int64]:
        """Class indices, shape (rows,)."""

    def __len__(self) -> int: ...

    def id(self, row: int) -> str:
        """Stable name of a row, unique in the source."""

    def read(self, row: int) -> Any:
        """Bytes of a file, an array of pixels, or a decoded image. Raises UnreadableImage."""

    def fingerprint(self) -> str:
        """SHA-256 that changes when the images change, judged by file names, sizes and modification times."""


@dataclass(frozen=True)
class ImageSource:
    """Images by group (train, test, public), different class names in label order, `ids_from` as in `Description`."""

    name: str
    class_names: tuple[str, ...]
    class_names_from: str
    groups: dict[str, Members]
    ids_from: str = FILE_NAMES
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        count = len(self.class_names)
        if count == 1 or len(set(self.class_names)) < count:  # rows without labels need no classes
            twice = next((name for name, number in Counter(self.class_names).items() if number > 1), None)
            found = counted(count, "class") if twice is None else f"the class {twice!r} twice"
            raise DataError(f"{self.name} has {found}; allowed: 2 or more, all different; give --classes")


class Strings:
    """Many byte strings in one buffer."""

    def __init__(self, values: Iterable[bytes]) -> None:
        buffer, ends = bytearray(), [0]
        for value in values:
            buffer += value
            ends.append(len(buffer))
        self._buffer, self._ends = bytes(buffer), np.array(ends, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, row: int) -> bytes:
        return self._buffer[self._ends[row] : self._ends[row + 1]]


def readable(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace")


@dataclass(frozen=True)
class Subset:
    whole: Members
    rows: NDArray[np.int64]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)

    def id(self, row: int) -> str:
        return self.whole.id(int(self.rows[row]))

    def read(self, row: int) -> Any:
        return self.whole.read(int(self.rows[row]))

    def fingerprint(self) -> str:
        sha = hashlib.sha256(self.whole.fingerprint().encode())
        sha.update(self.rows.tobytes() + self.labels.tobytes())
        return sha.hexdigest()


@dataclass(frozen=True)
class OwnedMembers(Subset):
    """All images of a group, sorted by owner; `owners` has the person of each image, shape (rows,)."""

    owners: NDArray[np.str_]

    def fingerprint(self) -> str:
        owners = hashlib.sha256("\0".join(self.owners.tolist()).encode()).hexdigest()
        return hashlib.sha256(f"{super().fingerprint()} {owners}".encode()).hexdigest()


@dataclass(frozen=True)
class Owners:
    """The owner `of` the image with an id, None if nobody is named; `named_by`: the file or pattern, for messages."""

    of: OwnerOf
    named_by: str


def owners_from(file: Path | None, pattern: str | None) -> Owners | None:
    """The owners of a CSV file `id,owner`, or of a pattern's first group in the image's id; None for neither."""
    if file is not None and pattern is not None:
        raise UsageError("--owners and --owner-regex were given; allowed: one of the two")
    if file is not None:
        return _from_file(file)
    return None if pattern is None else _from_pattern(pattern)


def splits_by(owners: Owners | None, *, shared: bool) -> OwnerOf | None:
    """The owners that a test fraction splits by; None for a split by id, as where people may be on both sides."""
    return None if owners is None or shared else owners.of


def with_owners(source: ImageSource, owners: Owners | None, *, shared: bool = False) -> ImageSource:
    """The source with an owner for each image; DataError if one is missing, or has test and other images."""
    if owners is None:
        if shared:
            raise UsageError("--owners-on-both-sides does nothing where images have no owners; leave it out")
        return source
    ids_of = {name: [members.id(row) for row in range(len(members))] for name, members in source.groups.items()}
    known = {owners.of(one) for ids in ids_of.values() for one in ids}
    groups: dict[str, OwnedMembers] = {}
    for name, members in source.groups.items():
        ids, named = ids_of[name], [owners.of(one) for one in ids_of[name]]
        missing = [one for one, owner in zip(ids, named, strict=True) if not (owner or "").strip()]
        if missing:
            raise DataError(
                f"{owners.named_by} gives no owner for {len(missing)} of {len(ids)} {name} images, first "
                f"{missing[0]!r}; allowed: an owner for every image{_if_no_image(missing[0], source.ids_from)}"
            )
        check_owners([str(owner) for owner in named], f"{name} images of {source.name}", ids, known)
        each = np.array(named, dtype=np.str_)
        order = by_owner(each)
        groups[name] = OwnedMembers(members, order, members.labels[order], each[order])
    if "test" in groups and not shared:
        others = (owner for name, members in groups.items() if name != "test" for owner in members.owners.tolist())
        refuse_both_sides(groups["test"].owners.tolist(), others, source.name)
    return replace(source, groups=dict(groups))


def _if_no_image(name: str, ids_from: str) -> str:
    """What to do with a file that is no image by its name; empty for an image, or a name that is no file's."""
    is_image = ids_from != FILE_NAMES or name.lower().endswith(IMAGE_SUFFIXES)
    return "" if is_image else "; this file is no image by its name: move it out of the folder"


def _from_pattern(pattern: str) -> Owners:
    shown = f"owner-regex '{printable(pattern)}'"
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise UsageError(f"{shown} cannot be read ({error}); allowed: a regular expression") from None
    if not compiled.groups:
        raise UsageError(f"{shown} has no group; allowed: ( ) around the part that names the owner, as in (p[0-9]+)")

    def owner(name: str) -> str | None:
        found = compiled.search(name)
        return None if found is None else found[1]

    return Owners(owner, shown)


def _from_file(file: Path) -> Owners:
    with reading(f"owners {file}", "give a CSV with the columns id and owner, in UTF-8"):
        if file.exists() and not file.is_file():
            raise ValueError("it is not a regular file")
        with file.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.DictReader(stream, strict=True)
            if not set(COLUMNS) <= set(reader.fieldnames or ()):
                raise ValueError(f"its first line lacks the columns {' and '.join(COLUMNS)}")
            refuse_twice(reader.fieldnames or (), f"owners {file}")
            owners: dict[str, str] = {}
            for line in reader:
                if None in line or owners.setdefault(line["id"], line["owner"]) != line["owner"]:
                    fault = "more cells than columns" if None in line else "another owner for an image above"
                    raise ValueError(f"line {reader.line_num} has {fault}")
    return Owners(owners.get, f"owners {file}")
