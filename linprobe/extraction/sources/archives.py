"""Images in tar archives, read in place: WebDataset shards, or packed image folders.

The headers are read once to index the archive. Images are then read by offset, so any process can read any image.
"""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linprobe.data.labels import class_list, label_indices, settle_labels
from linprobe.data.record_ids import LONGEST_ID
from linprobe.errors import DataError, UsageError
from linprobe.extraction.sources.base import (
    FOLDER_NAMES,
    IMAGE_SUFFIXES,
    MAX_BYTES,
    TEST_NAMES,
    ImageSource,
    Members,
    OwnerOf,
    Strings,
    UnreadableImage,
    checked_labels,
    file_stamp,
    readable,
    subset,
    test_side,
)

GROUP_OF = {"train": "train", "public": "public"} | dict.fromkeys(TEST_NAMES, "test")
LABEL_KEYS = ("cls", "json")
MOST_LABEL = 1 << 20  # bytes of a label file; JSON may hold a caption too
LOOKED_AT = 64  # members read to recognise a WebDataset shard


@dataclass(frozen=True)
class TarMembers:
    """Files in archives, by offset.

    Attributes:
        shards: paths of the archives. shard: index into `shards`, shape (rows,).
        offset, size: position and length of the file in its archive, in bytes, shape (rows,).
    """

    shards: tuple[Path, ...]
    shard: NDArray[np.int32]
    offset: NDArray[np.int64]
    size: NDArray[np.int64]
    ids: Strings
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ids)

    def id(self, row: int) -> str:
        """Path in the archive; `SHARD/KEY.EXTENSION` in WebDataset shards."""
        return readable(self.ids[row])

    def read(self, row: int) -> bytes:
        """Bytes of the file. Raises UnreadableImage."""
        if self.size[row] > MAX_BYTES:
            raise UnreadableImage(f"{self.size[row]} bytes; allowed: {MAX_BYTES:,}")
        try:
            with self.shards[int(self.shard[row])].open("rb") as stream:
                stream.seek(int(self.offset[row]))
                content: bytes = stream.read(int(self.size[row]))
        except OSError as error:
            raise UnreadableImage(error.strerror or str(error)) from None
        if len(content) < self.size[row]:
            raise UnreadableImage("the archive ends inside the file")
        return content

    def fingerprint(self) -> str:
        """SHA-256 of the archives' names, sizes and modification times, the index and the labels."""
        sha = hashlib.sha256(self.offset.tobytes() + self.shard.tobytes() + self.labels.tobytes())
        for shard in self.shards:
            sha.update(file_stamp(shard))
        return sha.hexdigest()


@dataclass
class _Found:
    """One image in the index; `group` is None if neither its path nor its archive names a group."""

    shard: int
    offset: int
    size: int
    id: str
    group: str | None
    label: Any


def _members(shard: Path) -> Iterator[tuple[tarfile.TarInfo, tarfile.TarFile]]:
    """Visible regular files of one archive, in archive order.

    Raises:
        DataError: a link, or a truncated, damaged or unreadable archive.
    """
    try:
        n_bytes = shard.stat().st_size
        with tarfile.open(shard, "r:") as archive:
            for member in archive:
                archive.members = []  # type: ignore[attr-defined]  # tarfile would keep every member in memory
                _check_member(shard, member, n_bytes)
                if member.isreg() and not any(part.startswith(".") for part in PurePosixPath(member.name).parts):
                    yield member, archive
            end = archive.offset
        with shard.open("rb") as stream:
            # tarfile treats a damaged or missing header as the end of the archive
            stream.seek(end)
            if stream.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                raise DataError(f"archive {shard} is truncated or damaged after byte {end}; pack it again")
    except OSError as error:
        raise DataError(f"archive {shard} cannot be read ({error.strerror}); check the file") from None
    except (tarfile.TarError, ValueError, ArithmeticError, EOFError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"archive {shard} cannot be read ({error}); allowed: whole, uncompressed tar files; unpack or repair it"
        ) from None


def _check_member(shard: Path, member: tarfile.TarInfo, n_bytes: int) -> None:
    """DataError for a link, or for a name or size that an archive of `n_bytes` cannot hold."""
    if member.issym() or member.islnk() or member.issparse():
        kind = "sparse file" if member.issparse() else "link"
        raise DataError(f"archive {shard} holds the {kind} {member.name[:200]}; pack the files themselves, once each")
    if len(member.name) > LONGEST_ID:
        raise DataError(f"archive {shard} holds a name of {len(member.name)} characters; allowed: {LONGEST_ID}")
    if not 0 <= member.size <= n_bytes:
        raise DataError(f"archive {shard} declares {member.size} bytes in {member.name}; pack it again")


def _is_shard(shard: Path) -> bool:
    """Whether the first members include an image and a label file of the same key, as in WebDataset shards."""
    images: set[str] = set()
    labels: set[str] = set()
    for member, _ in islice(_members(shard), LOOKED_AT):
        _, dot, extension = PurePosixPath(member.name).name.partition(".")
        if extension.lower() in LABEL_KEYS:
            labels.add(_sample_key(member))
        elif f"{dot}{extension}".lower().endswith(IMAGE_SUFFIXES):
            images.add(_sample_key(member))
    return not images.isdisjoint(labels)


def archive_source(
    shards: Sequence[Path],
    name: str,
    classes: Sequence[str] | None,
    fraction: float | None,
    owner_of: OwnerOf | None,
) -> ImageSource:
    """Images in one or more archives.

    WebDataset shards hold `KEY.jpg` beside `KEY.cls` (a class name or number) or `KEY.json` (with `label` or `cls`).
    The word train, test, val or public in the shard's name is the group. An archive without such labels is read as an
    image folder: `.../train/CLASS/IMAGE` and `.../test/CLASS/IMAGE`, or `.../CLASS/IMAGE`.

    Raises:
        UsageError: the test fraction does not fit the groups found. DataError: damaged archives, or images without a
        group or a label.
    """
    webdataset = _is_shard(shards[0])
    if webdataset:
        found = [item for index, shard in enumerate(shards) for item in _samples(index, shard)]
    else:
        found = [item for index, shard in enumerate(shards) for item in _files(index, shard, prefixed=len(shards) > 1)]
    if not found:
        raise DataError(f"{name} holds no images; allowed: image files in class folders, or WebDataset shards")
    kinds = _groups(name, found, fraction, owner_of)
    names, names_from, labels = _labels(name, found, kinds, classes, webdataset=webdataset)
    whole = TarMembers(
        tuple(shards),
        np.array([item.shard for item in found], dtype=np.int32),
        np.array([item.offset for item in found], dtype=np.int64),
        np.array([item.size for item in found], dtype=np.int64),
        Strings(item.id.encode(errors="backslashreplace") for item in found),
        labels,
    )
    members: dict[str, Members] = {
        group: subset(whole, kinds == group) for group in ("train", "test", "public") if group in kinds
    }
    return ImageSource(name, names, names_from, members)


def _groups(name: str, found: Sequence[_Found], fraction: float | None, owner_of: OwnerOf | None) -> NDArray[np.str_]:
    """The group of every image, shape (images,): train, test or public."""
    groups = {item.group for item in found}
    if None in groups and len(groups) > 1:
        odd = next(item for item in found if item.group is None)
        raise DataError(
            f"{name}: {odd.id} has no group, but others are in {', '.join(sorted(filter(None, groups)))}; "
            "allowed: train and test"
        )
    if fraction is not None and "test" in groups:
        raise UsageError(f"{name} has a test group and test fraction {fraction}; leave out --test-fraction")
    if fraction is None and "test" not in groups:
        raise UsageError(f"{name} has no test group; give --test-fraction F, or shards named test-*.tar")
    kinds = np.array([item.group or "train" for item in found])
    if fraction is not None:
        private = kinds != "public"
        ids = (item.id for item, kept in zip(found, private, strict=True) if kept)
        kinds[private] = np.where(test_side(ids, fraction, owner_of), "test", "train")
    if "train" not in kinds:
        raise DataError(f"{name} has no train group; allowed: folders or shards named train and test")
    return kinds


def _labels(
    name: str, found: Sequence[_Found], kinds: NDArray[np.str_], classes: Sequence[str] | None, *, webdataset: bool
) -> tuple[tuple[str, ...], str, NDArray[np.int64]]:
    """Class names, their origin, and the label of every image, shape (images,)."""
    texts = np.array([item.label for item in found])
    settled = {f"y_{kind}": texts[kinds == kind] for kind in set(kinds.tolist())}
    if webdataset:
        settled = settle_labels(settled, classes)
        names, names_from = class_list(settled, classes)
    else:
        names = tuple(classes or sorted(set(texts[kinds == "test"].tolist())))
        names_from = "declared" if classes else FOLDER_NAMES
    labels = np.zeros(len(found), dtype=np.int64)
    for kind in set(kinds.tolist()):
        where = f"{name}: {kind}"
        labels[kinds == kind] = checked_labels(label_indices(settled[f"y_{kind}"], names, where), names, where)
    return names, names_from, labels


def _files(index: int, shard: Path, *, prefixed: bool) -> Iterator[_Found]:
    """Images of a packed image folder."""
    for member, _ in _members(shard):
        parts = PurePosixPath(member.name).parts
        place = next((i for i, part in enumerate(parts[:-2]) if part in GROUP_OF), None)
        if len(parts) < 2:
            if member.name.lower().endswith(IMAGE_SUFFIXES):
                raise DataError(f"{shard}: image {member.name} lies in no class folder; put it into one")
            continue
        group, label = (None, parts[-2]) if place is None else (GROUP_OF[parts[place]], parts[place + 1])
        name = f"{shard.name}/{member.name}" if prefixed else member.name
        yield _Found(index, member.offset_data, member.size, name, group, label)


def _samples(index: int, shard: Path) -> Iterator[_Found]:
    """Samples of a WebDataset shard; consecutive files with the same key are one sample."""
    group = _named_group(shard)
    for key, files in groupby(_members(shard), lambda found: _sample_key(found[0])):
        image, label = None, None
        for member, archive in files:
            extension = PurePosixPath(member.name).name.partition(".")[2].lower()
            if f".{extension}".endswith(IMAGE_SUFFIXES) and image is None:
                image = member
            elif extension in LABEL_KEYS:
                where = f"archive {shard}: {member.name}"
                if member.size > MOST_LABEL:
                    raise DataError(f"{where} has {member.size} bytes; allowed for a label: {MOST_LABEL}")
                stream = archive.extractfile(member)
                label = _label(stream.read() if stream else b"", extension, where)
        if image is None or label is None:
            raise DataError(
                f"archive {shard}: sample {key!r} has no {'image' if image is None else 'label'}; "
                "allowed: KEY.jpg (or .png, .webp) beside KEY.cls or KEY.json"
            )
        suffix = PurePosixPath(image.name).name.partition(".")[2]
        yield _Found(index, image.offset_data, image.size, f"{shard.name}/{key}.{suffix}", group, label)


def _named_group(shard: Path) -> str | None:
    """The group that a word in the shard's name gives; DataError if two words give two groups."""
    named = {GROUP_OF[word] for word in re.findall("[a-z]+", shard.stem.lower()) if word in GROUP_OF}
    if len(named) > 1:
        raise DataError(f"archive {shard} is named after {' and '.join(sorted(named))}; allowed: one group; rename it")
    return next(iter(named), None)


def _sample_key(member: tarfile.TarInfo) -> str:
    """The path of a file in a WebDataset shard, up to the first dot of its name."""
    path = PurePosixPath(member.name)
    return str(path.with_name(path.name.partition(".")[0]))


def _label(content: bytes, extension: str, where: str) -> str:
    """The label in a `.cls` or `.json` file, as text: a class name or a whole number."""
    try:
        text = content.decode().strip()
        if extension == "json":
            fields = json.loads(text)
            text = str(fields["label"] if "label" in fields else fields["cls"]).strip()
    except (ValueError, KeyError, TypeError, RecursionError):
        raise DataError(f"{where} holds no label; allowed: a class name or number, or JSON with `label`") from None
    if not text:
        raise DataError(f"{where} is empty; allowed: a class name or number")
    return text
