"""Whose image each image is, from a CSV or a pattern. The images of a person become adjacent."""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linprobe.data.owners import by_owner
from linprobe.errors import DataError, UsageError, first_line
from linprobe.extraction.sources.base import ImageSource, Members

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


def with_owners(source: ImageSource, file: Path | None, pattern: str | None) -> ImageSource:
    """The source with an owner for each image; unchanged if neither a file nor a pattern is given.

    Args:
        file: CSV with the columns `id` and `owner`. pattern: regular expression; its first group, or else the whole
            match, in an image's id is the owner.

    Raises:
        UsageError: both are given, or a wrong pattern. DataError: an unreadable file, or an image without an owner.
    """
    if file is not None and pattern is not None:
        raise UsageError("--owners and --owner-regex were given; allowed: one of the two")
    if file is None and pattern is None:
        return source
    owner_of, told = _from_file(file) if file is not None else _from_pattern(str(pattern))
    groups: dict[str, Members] = {}
    for name, members in source.groups.items():
        ids = [members.id(row) for row in range(len(members))]
        owners = [owner_of(one) for one in ids]
        missing = [one for one, owner in zip(ids, owners, strict=True) if not owner]
        if missing:
            raise DataError(
                f"{told} gives no owner for {len(missing)} of {len(ids)} {name} images, first {missing[0]!r}; allowed: "
                "an owner for every image"
            )
        groups[name] = OwnedMembers(members, np.array(owners, dtype=np.str_))
    return replace(source, groups=groups)


def _from_pattern(pattern: str) -> tuple[Callable[[str], str | None], str]:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise UsageError(f"owner-regex is {pattern!r} ({error}); allowed: a regular expression") from None

    def owner(name: str) -> str | None:
        found = compiled.search(name)
        return None if found is None else found[1 if compiled.groups else 0]

    return owner, f"owner-regex {pattern!r}"


def _from_file(file: Path) -> tuple[Callable[[str], str | None], str]:
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
    return owners.get, f"owners {file}"
