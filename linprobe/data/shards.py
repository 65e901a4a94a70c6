"""One data set in several feature files: `shards/*.h5` in place of the path of a file.

The shards are read in the order of their names, as if their rows were in one file: the same digest, row keys, people
and shards of processes. A process reads the rows of its own part only, and so only from the files that hold them.
"""

from __future__ import annotations

import glob
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import accumulate
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from linprobe.data.feature_file import GROUPS, UNLABELLED, FeatureFile
from linprobe.data.feature_reader import ALL, FeatureReader, extraction_of, first_difference
from linprobe.errors import DataError

SHARED = ("class_names", "class_names_from", "ids_from", "normalisation", "test_rows", "task", "test_owners")
Part = TypeVar("Part")


def is_pattern(path: Path) -> bool:
    """Whether a path names shards: it has `*`, `?` or `[`, and no file has this name."""
    return glob.has_magic(str(path)) and not path.exists()


def is_there(path: Path) -> bool:
    """Whether a path is a file, or a pattern that matches one."""
    return path.is_file() or (is_pattern(path) and bool(_matching(path)))


def _matching(pattern: Path) -> list[Path]:
    # Path.glob would find hidden files too, and half-written files are hidden
    return [Path(name) for name in sorted(glob.glob(str(pattern), recursive=True))]  # noqa: PTH207


def shards_of(pattern: Path) -> list[Path]:
    """The files that match a pattern, by name. DataError if there is none."""
    paths = _matching(pattern)
    if not paths:
        raise DataError(
            f"no file matches {pattern}; allowed: feature files; make them with `linprobe extract` or `linprobe import`"
        )
    return paths


class ShardedFeatures(FeatureReader):
    """The rows of several feature files, one file after another. Use as a context manager.

    A group holds the rows of this group of every shard that has it, so that test rows may be in one shard of their own.

    Raises:
        DataError: as `FeatureFile`; or no file matches, or shards differ in classes, width, type of numbers, how rows
            were made, labels, text weights, or in whether a group has owners.
    """

    def __init__(self, pattern: Path) -> None:
        super().__init__()
        self.path = pattern
        self._open = ExitStack()
        try:
            self._shards = [self._open.enter_context(FeatureFile(path)) for path in shards_of(pattern)]
            for shard in self._shards[1:]:
                _refuse_different(self._shards[0], shard)
            self._settle()
        except BaseException:
            self._open.close()
            raise

    def _settle(self) -> None:
        first = self._shards[0]
        self.description, self.n_features = first.description, first.n_features
        groups = [name for name in (*GROUPS, UNLABELLED) if any(name in shard.sizes for shard in self._shards)]
        self._ends = {name: list(accumulate(shard.sizes.get(name, 0) for shard in self._shards)) for name in groups}
        self.sizes = {name: ends[-1] for name, ends in self._ends.items()}
        if UNLABELLED in groups and len(groups) > 1:
            raise DataError(
                f"{self.path}: some shards hold rows with labels, and some without; allowed: one of the two; name "
                "them apart"
            )
        self._with_owners = {name for name in groups if self._names_owners(name)}
        self._text = self._text_weights()

    def _having(self, group: str) -> list[FeatureFile]:
        return [shard for shard in self._shards if group in shard.sizes]

    def _names_owners(self, group: str) -> bool:
        """Whether the group has owners, in every shard or in none."""
        having = self._having(group)
        without = [shard for shard in having if not shard.has_owners(group)]
        if without and len(without) < len(having):
            raise DataError(
                f"{without[0].path} does not name the owners of its {group} rows, and other shards of {self.path} do; "
                "allowed: owners in all or in none"
            )
        return not without

    def _text_weights(self) -> NDArray[np.float32] | None:
        stated = [(shard, text) for shard in self._shards if (text := shard.text_weights()) is not None]
        for shard, text in stated[1:]:
            if not np.array_equal(text, stated[0][1]):
                raise DataError(
                    f"{shard.path} has other text weights than {stated[0][0].path}; allowed: the same in every shard"
                )
        return stated[0][1] if stated else None

    def _parts(self, group: str, part: slice) -> Iterator[tuple[FeatureFile, slice]]:
        """The shards that hold rows `part` of a group, and where these are in the shard."""
        start, stop, _ = part.indices(self.sizes[group])
        ends = self._ends[group]
        number = bisect_right(ends, start)
        while start < stop:
            first = ends[number] - self._shards[number].sizes.get(group, 0)
            until = min(stop, ends[number])
            if start < until:
                yield self._shards[number], slice(start - first, until - first)
            start, number = until, number + 1

    def _joined(self, group: str, part: slice, read: Callable[[FeatureFile, str, slice], NDArray[Any]]) -> NDArray[Any]:
        parts = list(self._parts(group, part)) or [(self._having(group)[0], slice(0, 0))]
        found = [read(shard, group, here) for shard, here in parts]
        if len(found) == 1:
            return found[0]
        joined = np.empty((sum(map(len, found)), *found[0].shape[1:]), dtype=found[0].dtype)
        return np.concatenate(found, out=joined)  # of the very dtype, whose name is in the digest

    def rows(self, group: str, part: slice) -> NDArray[np.floating]:
        return self._joined(group, part, FeatureFile.rows)

    def labels(self, group: str, part: slice = ALL) -> NDArray[Any]:
        return self._joined(group, part, FeatureFile.labels)

    def ids(self, group: str, part: slice = ALL) -> list[str]:
        return [name for shard, here in self._parts(group, part) for name in shard.ids(group, here)]

    def has_owners(self, group: str) -> bool:
        return group in self._with_owners

    def owners(self, group: str, part: slice = ALL) -> list[str]:
        return [name for shard, here in self._parts(group, part) for name in shard.owners(group, here)]

    def text_weights(self) -> NDArray[np.float32] | None:
        return self._text

    def image_keys(self, group: str) -> NDArray[np.uint8] | None:
        return self._keys(group, FeatureFile.image_keys)

    def source_keys(self, group: str) -> NDArray[np.uint8] | None:
        return self._keys(group, FeatureFile.source_keys)

    def _keys(
        self, group: str, keys: Callable[[FeatureFile, str], NDArray[np.uint8] | None]
    ) -> NDArray[np.uint8] | None:
        """Digests of all shards; zeros, which equal no image, for rows of a shard that has none."""
        having = [(shard, keys(shard, group)) for shard in self._having(group)]
        width = next((found.shape[1] for _, found in having if found is not None), None)
        if width is None:
            return None
        return np.concatenate(
            [
                np.zeros((shard.sizes[group], width), dtype=np.uint8) if found is None else found
                for shard, found in having
            ]
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()


def _refuse_different(first: FeatureFile, other: FeatureFile) -> None:
    """DataError unless two files can be shards of one data set."""
    here, there = first.description, other.description
    facts = {name: (getattr(here, name), getattr(there, name)) for name in SHARED}
    facts["width"] = first.n_features, other.n_features
    facts["type of numbers"] = _dtype(first), _dtype(other)
    for name, (mine, theirs) in facts.items():
        if mine != theirs:
            shown = [str(value) if len(str(value)) <= 60 else f"{str(value)[:60]} ..." for value in (theirs, mine)]
            raise DataError(
                f"{other.path} has {name.replace('_', ' ')} {shown[0]}, and {first.path} {shown[1]}; allowed: the same "
                "in every shard"
            )
    differs = first_difference(extraction_of(here), extraction_of(there))
    if differs is not None:
        name, mine, theirs = differs
        raise DataError(f"{other.path} has {name} {theirs}, and {first.path} {mine}; allowed: the same in every shard")


def _dtype(features: FeatureFile) -> str:
    return str(features.rows(next(iter(features.sizes)), slice(0, 0)).dtype)
