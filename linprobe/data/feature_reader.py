"""The contents of a feature file, on disk or in memory, and how its rows were made."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from linprobe import __version__
from linprobe.data.blocks import BLOCK_ROWS, RawBlocks
from linprobe.data.labels import APART, GIVEN, MULTICLASS, MULTILABEL, OWNER, SHARED, Bounds, one_spelling, owner_bounds
from linprobe.errors import DataError, UsageError
from linprobe.parallel.array_api import Floats, Indices, Mask, Singles

RECORDS_AT_ONCE = 1 << 16
ALL = slice(None)
PRIVATE = "private"
COMPARED = ("backbone", "weights_digest", "arguments", "tensor", "preprocessing", "image_size", "extraction_digest")
WEIGHTS_SUFFIXES = (".pt", ".pth", ".safetensors")  # of files that `extract --weights` takes
UNSTATED = {"views": 1}  # what an entry of the preprocessing is where it is not stated
ALWAYS_COMPARED = ("backbone", "weights_digest", "columns")
TABLES = (".csv", ".parquet")
FLATTENED = "flattened pixels of shape "  # begins the preprocessing of imported images
SHOWN = 80  # characters of a value in a message
PIXELS, SOURCE = "pixels", "source"  # kinds of digests of an image
IMAGE_KEY_BYTES = 16  # of the digest of an image
BY_CHANCE = 1000  # one row in BY_CHANCE may be in both groups: a photograph that a collection holds twice


@dataclass(frozen=True)
class EqualRows:
    """Test rows that equal training rows: what was `found`, how many are `allowed` by chance, whether these are few."""

    found: str
    allowed: int
    few: bool

    @property
    def note(self) -> str:
        if self.few:
            return f"{self.found}; a row in both has no more protection than a test row; remove it from one group"
        return f"{self.found}; commands that score test rows refuse this file; remove these rows from one group"

    def refuse_many(self) -> None:
        if not self.few:
            raise DataError(
                f"{self.found}; allowed: {self.allowed}, one in {BY_CHANCE:,} of the smaller group; accuracy on "
                "training rows would give them away; remove them from one group"
            )


@dataclass(frozen=True)
class Description:
    """Class names and provenance of a feature file; texts are empty if unknown."""

    class_names: tuple[str, ...]  # in label order; declared, never taken from private labels
    backbone: str = ""
    weights: str = ""
    weights_digest: str = ""
    preprocessing: str = ""
    normalisation: str = "none"
    source: str = ""
    tensor: str = ""  # of the network, that is a row
    extraction: str = ""  # settings of `linprobe extract`, as JSON
    extraction_digest: str = ""  # SHA-256 of network, weights, tensor and preprocessing, equal for comparable rows
    class_names_from: str = "declared"
    ids_from: str = GIVEN  # or `file names`, or `content`
    test_rows: str = "public"  # or `private`: their accuracy is released with noise only
    task: str = MULTICLASS
    test_owners: str = APART  # or `shared`: the user declared that people have rows in test and in another group
    columns: str = ""  # of a table of features, as `tables.column_order` gives them
    tool_version: str = __version__

    @property
    def private_test(self) -> bool:
        return self.test_rows == PRIVATE

    @property
    def shares_owners(self) -> bool:
        return self.test_owners == SHARED

    @property
    def several_labels(self) -> bool:
        return self.task == MULTILABEL


def keys_among(keys: NDArray[np.uint8], others: Iterable[NDArray[np.uint8]]) -> Mask:
    """Which image keys, of shape (n, bytes), are among those of others; a key of zeros is of no image."""
    known = {key for each in others for key in _as_bytes(each)} - {bytes(keys.shape[1])}
    return np.fromiter((key in known for key in _as_bytes(keys)), dtype=bool, count=len(keys))


def _as_bytes(keys: NDArray[np.uint8]) -> list[bytes]:
    return list(np.ascontiguousarray(keys).view(f"V{keys.shape[1]}").ravel().tolist())


class FeatureReader(ABC):
    """The contents of a feature file, on disk or in memory."""

    path: Path  # for messages
    place: Path  # absolute, also where another process opens it again
    description: Description
    sizes: dict[str, int]  # number of rows of each group
    n_features: int
    owned: Collection[str]  # groups in which each row has an owner, the person it belongs to
    equal: EqualRows | None = None  # test rows that equal training rows, as `check_rows` finds them
    checked: bool = False  # by `check_rows`

    def __init__(self, place: Path) -> None:
        self.place = place.absolute()
        self._digests: dict[tuple[str, bytes], str] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """For other processes, which open the file again, and take over what is known of its rows."""
        known = {name: getattr(self, name) for name in ("path", "equal", "checked", "_digests")}
        return _opened_again, (type(self), self.place, self.identity(), known)

    @abstractmethod
    def identity(self) -> Any:
        """What tells each file, as it was opened, from another at its path, even of the same size and time."""

    @abstractmethod
    def rows(self, group: str, part: slice, kept: Mask | None = None) -> Floats:
        """Raw rows of a group, shape (b, n_features); of `part`, those where `kept` is true, if it is given."""

    @abstractmethod
    def labels(self, group: str, part: slice = ALL) -> NDArray[Any]:
        """Class indices (b,) of a group, NO_LABEL if unlabelled; or several labels a row, uint8 (b, n_classes)."""

    @abstractmethod
    def _texts(self, group: str, kind: str, part: slice) -> list[str]:
        """A text for each row of a group: its `id`, or its `owner`."""

    def ids(self, group: str, part: slice = ALL) -> list[str]:
        return self._texts(group, "id", part)

    def has_owners(self, group: str) -> bool:
        return group in self.owned

    def owners(self, group: str, part: slice = ALL) -> list[str]:
        """The owner of each row of a group that `has_owners`, in row order. Private for private rows."""
        return self._texts(group, OWNER, part)

    @abstractmethod
    def text_weights(self) -> Singles | None:
        """Text weights of the classes, shape (n_features, n_classes), or None."""

    @abstractmethod
    def image_keys(self, group: str, kind: str = PIXELS) -> NDArray[np.uint8] | None:
        """Private digests of images' pixels, or of `SOURCE`, before the transform, (n_rows, bytes); None without."""

    def changed(self) -> DataError:
        return DataError(f"{self.path} was written to after it was opened; stop what writes to it, then run again")

    def close(self) -> None:  # noqa: B027
        """Close the file, where there is one."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def blocks(self, group: str, keep: Mask | None = None) -> Iterator[tuple[Floats, Indices]]:
        """Blocks of rows `x` (b, n_features) and labels `y` of a group, in order; only of `keep` (n_rows,) if given."""
        labels_start, labels = 0, np.empty(0, dtype=np.int64)
        for start in range(0, self.sizes[group], BLOCK_ROWS):
            part = slice(start, min(start + BLOCK_ROWS, self.sizes[group]))
            if keep is not None and not keep[part].any():
                continue
            if part.stop > labels_start + len(labels):
                labels_start, labels = start, self.labels(group, slice(start, start + RECORDS_AT_ONCE))
            kept = None if keep is None or keep[part].all() else keep[part]
            here = labels[part.start - labels_start : part.stop - labels_start]
            yield self.rows(group, part, kept), here if kept is None else here[kept]

    def batches(self, kind: str, group: str, keep: Mask | None = None) -> Iterator[list[str]]:
        """Each `id` or `owner` of a group, in row order, in batches; only where `keep` (n_rows,) is true."""
        for start in range(0, self.sizes[group], RECORDS_AT_ONCE):
            part = slice(start, start + RECORDS_AT_ONCE)
            if keep is None:
                yield self._texts(group, kind, part)
            elif keep[part].any():
                yield list(compress(self._texts(group, kind, part), keep[part]))

    def digest(self, group: str, keep: Mask | None = None, *, by_blocks: bool = False) -> str:
        """SHA-256 of class names, ids, owners, labels and rows of a group, computed once; `by_blocks`: as 0.2 did."""
        known = (group, _mask_digest(keep))
        if by_blocks or known not in self._digests:
            digest = GroupDigest(self, group, keep, by_blocks=by_blocks)
            for rows, labels in self.blocks(group, keep):
                digest.add(rows, labels)
            if by_blocks:
                return digest.value()
            digest.keep()
        return self._digests[known]

    def has_digest(self, group: str, keep: Mask | None = None) -> bool:
        return (group, _mask_digest(keep)) in self._digests


def _opened_again(kind: Any, place: Path, identity: Any, known: dict[str, Any]) -> FeatureReader:
    features: FeatureReader = kind(place)
    vars(features).update(known)
    if features.identity() != identity:
        raise features.changed()
    return features


class GroupDigest:
    """A digest of a group, of blocks as they are read. Rows of a mask are hashed as a file of these rows alone is."""

    def __init__(self, features: FeatureReader, group: str, keep: Mask | None, *, by_blocks: bool = False) -> None:
        self._features, self._known = features, (group, _mask_digest(keep))
        self._left, self._by_blocks = features.sizes[group] if keep is None else int(keep.sum()), by_blocks
        self._room, self._labels = 0, list[bytes]()  # rows that are missing in a block, and the labels of the others
        self._sha = hashlib.sha256(json.dumps(features.description.class_names).encode())
        separator = ""
        for ids in features.batches("id", group, keep):
            self._sha.update((separator + "\0".join(ids)).encode())
            separator = "\0"
        for owners in features.batches(OWNER, group, keep) if features.has_owners(group) else ():
            self._sha.update("".join(f"\0{len(owner)}:{owner}" for owner in owners).encode())

    def add(self, rows: Floats, labels: Indices, kept: Mask | None = None) -> None:
        """Add the next block of rows (b, n_features) and their labels, or those of them that are `kept`."""
        for first, last in ((0, len(rows)),) if kept is None else runs_of(kept).tolist():
            self._add(rows[first:last], labels[first:last])

    def _add(self, rows: Floats, labels: Indices) -> None:
        start = 0
        while start < len(rows):
            if not self._room:
                self._room = min(BLOCK_ROWS, len(rows) if self._by_blocks else self._left)
                shape = self._room, *rows.shape[1:]
                # as NumPy prints the type of rows that h5py reads; it prints the same type of other rows otherwise
                self._sha.update(f"({shape}, dtype('{rows.dtype.str}'))".encode())
            part = slice(start, start + self._room)
            self._sha.update(np.ascontiguousarray(rows[part]).data)
            self._labels.append(labels[part].astype("<i8").tobytes())
            added = len(rows[part])
            start, self._room, self._left = start + added, self._room - added, self._left - added
            if not self._room:
                self._sha.update(b"".join(self._labels))
                self._labels = []

    def value(self) -> str:
        return self._sha.hexdigest()

    def keep(self) -> None:
        self._features._digests[self._known] = self.value()


def runs_of(mask: Mask) -> Indices:
    """Where each run of true entries of a mask (n,) begins and ends, shape (n_runs, 2)."""
    return np.flatnonzero(np.diff(mask, prepend=False, append=False)).reshape(-1, 2)


def _mask_digest(keep: Mask | None) -> bytes:
    return b"" if keep is None else hashlib.sha256(np.packbits(keep).data).digest()


def name_keys(names: Iterable[bytes], key: bytes, kind: str) -> NDArray[np.uint64]:
    """8 keyed bytes for each of the `names`, shape (n,). Equal names of another `kind` have other keys."""
    form = kind.encode()
    digests = b"".join(hashlib.blake2b(name, key=key, digest_size=8, person=form).digest() for name in names)
    return np.frombuffer(digests, dtype=np.uint64)


def people_by_group(features: FeatureReader) -> dict[str, int]:
    named = [group for group in features.sizes if features.has_owners(group)]
    return {group: len(set(features.owners(group))) for group in named}


class GroupRows:
    """The rows of one group of a feature file, streamed: the rows where `keep` is true, labels mapped by `relabel`."""

    def __init__(
        self, features: FeatureReader, group: str, keep: Mask | None = None, relabel: Indices | None = None
    ) -> None:
        self.features, self.group, self.keep, self.relabel = features, group, keep, relabel
        self.n_rows = features.sizes[group] if keep is None else int(keep.sum())
        self.n_features = features.n_features

    def blocks(self) -> RawBlocks:
        for x, y in self.features.blocks(self.group, self.keep):
            yield x, y if self.relabel is None else self.relabel[y]

    def ids(self) -> list[str]:
        return [name for batch in self.features.batches("id", self.group, self.keep) for name in batch]

    def owners(self) -> Iterator[str]:
        """The owners in the order of the rows, if the group has owners. Private for private rows."""
        return (name for batch in self.features.batches(OWNER, self.group, self.keep) for name in batch)

    def people(self) -> tuple[Bounds, list[str]]:
        return owner_bounds(self.owners(), f"group {self.group} of {self.features.path}")

    def shard(self, start: int, stop: int) -> GroupRows:
        """Rows `start` to `stop` of these rows, `stop` excluded. Raises UsageError: an empty or too long range."""
        if not 0 <= start < stop <= self.n_rows:
            raise UsageError(f"rows {start} to {stop} were requested; allowed: 0 <= start < stop <= {self.n_rows}")
        if stop - start == self.n_rows:
            return self
        chosen = np.zeros(self.features.sizes[self.group], dtype=bool)
        chosen[slice(start, stop) if self.keep is None else np.flatnonzero(self.keep)[start:stop]] = True
        return GroupRows(self.features, self.group, chosen, self.relabel)

    def image_keys(self, kind: str = PIXELS) -> NDArray[np.uint8] | None:
        """Digests of the images, shape (n_rows, bytes); None if the file has none. Private."""
        keys = self.features.image_keys(self.group, kind)
        return keys if keys is None or self.keep is None else keys[self.keep]

    def name_keys(self, key: bytes) -> dict[str, NDArray[np.uint64]]:
        """Keyed digests of the `images` and the `owners` of these rows, without those that the file does not have."""
        found: dict[str, NDArray[np.uint64]] = {}
        images = [
            name_keys((row.tobytes() for row in digests if row.any()), key, kind)
            for kind in (PIXELS, SOURCE)
            if (digests := self.image_keys(kind)) is not None
        ]
        if images:
            found["images"] = np.concatenate(images)
        if self.features.has_owners(self.group):
            people = dict.fromkeys(map(one_spelling, self.owners()))
            found["owners"] = name_keys(map(str.encode, people), key, "owner")
        return found

    def digest(self, *, by_blocks: bool = False) -> str:
        return self.features.digest(self.group, self.keep, by_blocks=by_blocks)


def extraction_of(description: Description) -> dict[str, Any]:
    """How the rows of a feature file were made, JSON-ready; None or empty where the file does not say."""
    settings = _object(description.extraction) or {}
    return {
        "extraction_digest": description.extraction_digest,
        "backbone": description.backbone,
        "weights": description.weights,
        "weights_digest": description.weights_digest,
        "arguments": settings.get("arguments"),
        "tensor": description.tensor,
        **({"layer": settings["layer"]} if "layer" in settings else {}),
        "preprocessing": _object(description.preprocessing) or description.preprocessing,
        "image_size": settings.get("image_size"),
        "normalisation": description.normalisation,
        "precision": settings.get("precision"),
        "dtype": settings.get("dtype"),
        **({"columns": description.columns} if description.columns else {}),
    }


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def is_known(extraction: Mapping[str, Any]) -> bool:
    return bool(extraction.get("extraction_digest"))


def weights_from_file(weights: str) -> bool:
    return Path(weights).suffix in WEIGHTS_SUFFIXES


def first_difference(mine: dict[str, Any], theirs: dict[str, Any]) -> tuple[str, str, str] | None:
    """Name and both values of the first difference of how rows were made, of what both state; None without one."""
    if is_known(mine) and is_known(theirs):
        if mine["extraction_digest"] == theirs["extraction_digest"]:
            return None
        names: tuple[str, ...] = COMPARED
    else:
        names = tuple(name for name in ALWAYS_COMPARED if mine.get(name) and theirs.get(name))
        if all(str(made.get("preprocessing")).startswith(FLATTENED) for made in (mine, theirs)):
            names += ("preprocessing",)
    for name in names:
        here, there = mine.get(name), theirs.get(name)
        if here == there:
            continue
        if isinstance(here, dict) and isinstance(there, dict):
            inner = next(key for key in sorted({*here, *there}) if here.get(key) != there.get(key))
            left_out = UNSTATED.get(inner)
            return f"{name} {inner}", shown(here.get(inner, left_out)), shown(there.get(inner, left_out))
        return name, shown(here), shown(there)
    return None


def order_note(made: Mapping[str, Any], whose: object, features: FeatureReader) -> str | None:
    """A note if the columns of one table are recorded, or of none of 0.2, so that nothing compares their order."""
    here = extraction_of(features.description)
    if is_known(made) or is_known(here):
        return None
    unsaid = [str(name) for name, one in ((features.path, here), (whose, made)) if not one.get("columns")]
    old = features.description.tool_version.startswith("0.2.")
    if not unsaid or (len(unsaid) == 2 and not (old and features.description.source.endswith(TABLES))):
        return None
    step = "import the table again" if old and unsaid != [str(whose)] else "check that it is the same"
    return f"columns are not recorded in {' and '.join(unsaid)}, so their order is not compared; {step}"


def shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."


def test_people(features: FeatureReader, unit: str | None) -> Bounds | None:
    """Where each person's private test rows begin, (n_people + 1,); None for rows, or public. DataError: apart."""
    if unit != OWNER or not features.description.private_test or not features.has_owners("test"):
        return None
    return GroupRows(features, "test").people()[0]
