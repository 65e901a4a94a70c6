"""The person each image belongs to, from a CSV or a pattern. The images of a person become adjacent."""

from __future__ import annotations

import csv
import hashlib
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linprobe.data.owners import by_owner, refuse_both_sides
from linprobe.errors import DataError, UsageError, first_line
from linprobe.extraction.sources.base import ImageSource, Members, OwnerOf

COLUMNS = ("id", "owner")


class OwnedMembers:
    """The images of one group, in the order of their owners.

    Args:
        members: the images. owners: the person of each image, shape (rows,).

    Attributes:
        owners: in the new order.
    """

    def __init__(self, members: Members, owners: NDArray[np.str_]) -> None:
        self._members, self._order = members, by_owner(owners)
        self.owners = owners[self._order]

    @property
    def labels(self) -> NDArray[np.int64]:
        """Class indices, shape (rows,)."""
        return self._members.labels[self._order]

    def __len__(self) -> int:
        return len(self._members)

    def id(self, row: int) -> str:
        """Stable name of a row."""
        return self._members.id(int(self._order[row]))

    def read(self, row: int) -> Any:
        """What the image's source returns."""
        return self._members.read(int(self._order[row]))

    def fingerprint(self) -> str:
        """SHA-256 that changes when the images or their owners change."""
        owners = hashlib.sha256("\0".join(self.owners.tolist()).encode()).hexdigest()
        return hashlib.sha256(f"{self._members.fingerprint()} {owners}".encode()).hexdigest()


@dataclass(frozen=True)
class Owners:
    """The person each image belongs to.

    Attributes:
        of: the owner of the image with an id, None if nobody is named. named_by: the file or pattern, for messages.
    """

    of: OwnerOf
    named_by: str


def owners_from(file: Path | None, pattern: str | None) -> Owners | None:
    """The owners that a file or a pattern names; None if neither is given.

    Args:
        file: CSV with the columns `id` and `owner`. pattern: regular expression; its first group, or else the whole
            match, in an image's id is the owner.

    Raises:
        UsageError: both are given, or a wrong pattern. DataError: an unreadable file.
    """
    if file is not None and pattern is not None:
        raise UsageError("--owners and --owner-regex were given; allowed: one of the two")
    if file is not None:
        return _from_file(file)
    return None if pattern is None else _from_pattern(pattern)


def with_owners(source: ImageSource, owners: Owners | None) -> ImageSource:
    """The source with an owner for each image; unchanged for None.

    Raises:
        DataError: an image without an owner, or a person with test images and other images.
    """
    if owners is None:
        return source
    groups: dict[str, OwnedMembers] = {}
    for name, members in source.groups.items():
        ids = [members.id(row) for row in range(len(members))]
        named = [owners.of(one) for one in ids]
        missing = [one for one, owner in zip(ids, named, strict=True) if not owner]
        if missing:
            raise DataError(
                f"{owners.named_by} gives no owner for {len(missing)} of {len(ids)} {name} images, first "
                f"{missing[0]!r}; allowed: an owner for every image"
            )
        groups[name] = OwnedMembers(members, np.array(named, dtype=np.str_))
    if "test" in groups:
        others = (owner for name, members in groups.items() if name != "test" for owner in members.owners.tolist())
        refuse_both_sides(groups["test"].owners.tolist(), others, source.name)
    return replace(source, groups=dict(groups))


def _from_pattern(pattern: str) -> Owners:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise UsageError(f"owner-regex is {pattern!r} ({error}); allowed: a regular expression") from None

    def owner(name: str) -> str | None:
        found = compiled.search(name)
        return None if found is None else found[1 if compiled.groups else 0]

    return Owners(owner, f"owner-regex {pattern!r}")


def _from_file(file: Path) -> Owners:
    try:
        if file.exists() and not file.is_file():
            raise ValueError("it is not a regular file")
        with file.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.DictReader(stream)
            if not set(COLUMNS) <= set(reader.fieldnames or ()):
                raise ValueError(f"its first line has not the columns {' and '.join(COLUMNS)}")
            owners = {line["id"]: line["owner"] for line in reader}
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(
            f"owners {file} cannot be read ({first_line(error)}); give a CSV with the columns id and owner"
        ) from None
    return Owners(owners.get, f"owners {file}")
