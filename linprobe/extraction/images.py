"""Where images come from: folders, array files, tar archives, torchvision data sets. One source has up to three groups.

Every image has a stable id, a label and one place in the order; nothing is decoded here. Listings are held as packed
arrays, so that worker processes share them and a million paths take tens of megabytes.
"""

from __future__ import annotations

import hashlib
import os
import stat
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from linprobe.data.array_import import SUFFIXES, class_list, label_indices, read_arrays, settle_labels
from linprobe.data.public_shots import id_hash
from linprobe.errors import DataError, PrivacyError, UsageError
from linprobe.extraction.decoding import MAX_BYTES, UnreadableImage

TEST_NAMES = ("test", "val", "validation", "valid")
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".jp2", ".avif")
FOLDER_NAMES = "folder names"


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


class Members(Protocol):
    """The images of one group, by row."""

    @property
    def labels(self) -> NDArray[np.int64]:
        """Class indices, shape (rows,)."""

    def __len__(self) -> int: ...

    def id(self, row: int) -> str:
        """A stable name, different for every row of the source."""

    def read(self, row: int) -> Any:
        """Bytes of a file, an array of pixels, or a decoded image. Raises UnreadableImage."""

    def fingerprint(self) -> str:
        """Changes when the images do, as far as names, sizes and times of files tell."""


@dataclass(frozen=True)
class ImageSource:
    """Images by group (train, test, public) and the classes that their labels count."""

    name: str
    class_names: tuple[str, ...]
    class_names_from: str
    groups: dict[str, Members]
    left_out: int = 0  # public images of undeclared classes


@dataclass(frozen=True)
class Subset:
    """Some rows of other members, in their order; `labels` may be renumbered."""

    whole: Members
    rows: NDArray[np.int64]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)

    def id(self, row: int) -> str:
        """The id in the whole."""
        return self.whole.id(int(self.rows[row]))

    def read(self, row: int) -> Any:
        """The image in the whole."""
        return self.whole.read(int(self.rows[row]))

    def fingerprint(self) -> str:
        """Of the whole, the rows and the labels."""
        sha = hashlib.sha256(self.whole.fingerprint().encode())
        sha.update(self.rows.tobytes() + self.labels.tobytes())
        return sha.hexdigest()


def subset(whole: Members, keep: NDArray[np.bool_], labels: NDArray[np.int64] | None = None) -> Subset:
    """The rows where `keep` is true."""
    rows = np.flatnonzero(keep)
    return Subset(whole, rows, (whole.labels if labels is None else labels)[rows])


def test_side(ids: Iterable[str], fraction: float) -> NDArray[np.bool_]:
    """Which images are test images, about `fraction` of them; each one's side depends on its own id only."""
    if not 0 < fraction < 1:
        raise UsageError(f"test fraction is {fraction}; allowed: above 0 and below 1")
    test = np.array([id_hash(name, 0) < fraction * 2.0**64 for name in ids], dtype=bool)
    if test.all() or not test.any():
        raise DataError(
            f"test fraction {fraction} puts {int(test.sum())} of {len(test)} images into the test group; "
            "allowed: some, but not all; change --test-fraction"
        )
    return test


def split_by_id(whole: Members, fraction: float) -> dict[str, Members]:
    """The train and test group that `test_side` makes of one."""
    test = test_side((whole.id(row) for row in range(len(whole))), fraction)
    return {"train": subset(whole, ~test), "test": subset(whole, test)}


@dataclass(frozen=True)
class FolderMembers:
    """Files under `root`, in the order of their paths; an id is `prefix` and the path from `root`."""

    root: Path
    prefix: str
    paths: Strings
    labels: NDArray[np.int64]
    stamp: str
    inodes: NDArray[np.uint64]  # (rows, 2), which file it is whatever its name

    def __len__(self) -> int:
        return len(self.paths)

    def id(self, row: int) -> str:
        """Path from the root, with `prefix`."""
        return self.prefix + readable(self.paths[row])

    def read(self, row: int) -> bytes:
        """The bytes of the file."""
        path = self.root / os.fsdecode(self.paths[row])
        try:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):
                raise UnreadableImage("not a regular file")
            if status.st_size > MAX_BYTES:
                raise UnreadableImage(f"{status.st_size} bytes; allowed: {MAX_BYTES:,}")
            return path.read_bytes()
        except OSError as error:
            raise UnreadableImage(error.strerror or str(error)) from None

    def fingerprint(self) -> str:
        """Of the paths, sizes and times of change."""
        return self.stamp


def readable(path: bytes) -> str:
    """A file name as text, whatever bytes it has."""
    return path.decode("utf-8", "backslashreplace")


def class_folders(folder: Path) -> list[str]:
    """Names of the visible folders in `folder`, sorted.

    Raises:
        DataError: an image lies beside them, in no class.
    """
    names = []
    for entry in os.scandir(folder):
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            if not entry.name.isprintable():
                raise DataError(f"class folder {entry.name!r} in {folder} has a name that is no plain text; rename it")
            names.append(entry.name)
        elif entry.name.lower().endswith(IMAGE_SUFFIXES):
            raise DataError(f"image {entry.path} lies in no class folder; move it into one, or out of {folder}")
    return sorted(names)


def list_folder(root: Path, parts: Sequence[str], names: Sequence[str], prefix: str = "") -> FolderMembers:
    """All visible files of the class folders of `root/parts`; folders that are not in `names` are refused.

    Raises:
        DataError: a class folder that is not declared, or no file at all.
    """
    folder = root.joinpath(*parts)
    index = {name: position for position, name in enumerate(names)}
    found = class_folders(folder)
    unknown = [name for name in found if name not in index]
    if unknown:
        raise DataError(
            f"{folder} has {len(unknown)} folders that are no declared class, first {unknown[0]!r}; "
            f"allowed: {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}; declare more with --classes"
        )
    labels: list[int] = []
    inodes = array("Q")
    sha = hashlib.sha256()

    def paths() -> Iterator[bytes]:
        for name in found:
            for path in _files(folder / name):
                relative = os.fsencode(path.relative_to(root).as_posix())
                try:
                    status = path.stat()
                    sha.update(f"{status.st_size}\0{status.st_mtime_ns}\0".encode())
                    inodes.extend((status.st_dev, status.st_ino))
                except OSError:
                    sha.update(b"missing\0")
                    inodes.extend((2**64 - 1, len(labels)))
                sha.update(relative + b"\0")
                labels.append(index[name])
                yield relative

    packed = Strings(paths())
    if not labels:
        raise DataError(f"{folder} holds no images; allowed: files in one folder a class")
    files = np.array(inodes, dtype=np.uint64).reshape(-1, 2)
    return FolderMembers(root, prefix, packed, np.array(labels, dtype=np.int64), sha.hexdigest(), files)


def refuse_linked(private: FolderMembers, public: FolderMembers | None) -> None:
    """Refuse one private file under two names, or one that is public too; a private image is one record.

    Raises:
        PrivacyError: naming the first such file.
    """
    both = private.inodes if public is None else np.concatenate([private.inodes, public.inodes])
    _, first, counts = np.unique(both, axis=0, return_index=True, return_counts=True)
    repeated = first[(counts > 1) & (first < len(private))]
    if repeated.size:
        raise PrivacyError(
            f"{len(repeated)} private images are there twice through links, first {private.id(int(repeated.min()))}; "
            "a private image is one record, and never public; remove the links"
        )


def _files(folder: Path) -> Iterator[Path]:
    """Visible files under `folder`, sorted, each folder's own before its subfolders'; links to folders are followed."""
    seen = set()
    for place, folders, files in os.walk(folder, followlinks=True):
        status = Path(place).stat()
        if (status.st_dev, status.st_ino) in seen:
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if not name.startswith("."):
                yield Path(place) / name


def is_group(folder: Path) -> bool:
    """Whether a folder holds class folders, and is not itself a class that happens to be called train."""
    if not folder.is_dir():
        return False
    return any(entry.is_dir() and not entry.name.startswith(".") for entry in os.scandir(folder))


def test_folder(folder: Path) -> str | None:
    """Name of the folder that holds the test images, if there is one."""
    return next((name for name in TEST_NAMES if is_group(folder / name)), None)


def folder_source(folder: Path, classes: Sequence[str] | None, fraction: float | None) -> ImageSource:
    """`train/CLASS/...` and `test/CLASS/...`, optionally `public/CLASS/...`; or `CLASS/...` with a test fraction.

    The class list is the names of the test folders, or of all folders where there is one level, unless declared.
    """
    name = readable(os.fsencode(folder.resolve().name))
    train, test = folder / "train", test_folder(folder)
    groups: dict[str, Members]
    if is_group(train):
        if (test is None) == (fraction is None):
            raise UsageError(
                f"{folder} has the folder train, {'no test' if test is None else test}, and test fraction {fraction}; "
                "give --test-fraction F, or a test folder, and not both"
            )
        names = tuple(classes or class_folders(train if test is None else folder / test))
        private = list_folder(folder, ["train"], names)
        public = list_folder(folder, ["public"], names) if is_group(folder / "public") else None
        refuse_linked(private, public)
        if test is None:
            groups = split_by_id(private, fraction or 0)
        else:
            groups = {"train": private, "test": list_folder(folder, [test], names)}
        if public is not None:
            groups["public"] = public
    else:
        found = class_folders(folder)
        if not found:
            raise DataError(
                f"{folder} has no class folders; allowed: train/CLASS/IMAGE and test/CLASS/IMAGE, or CLASS/IMAGE"
            )
        if fraction is None:
            raise UsageError(
                f"{folder} has one level of {len(found)} folders and no test group; give --test-fraction F"
            )
        names = tuple(classes or found)
        private = list_folder(folder, [], names)
        refuse_linked(private, None)
        groups = split_by_id(private, fraction)
    return ImageSource(name, names, "declared" if classes else FOLDER_NAMES, groups)


class ArrayMembers:
    """Images in an array of shape (rows, height, width) or (rows, height, width, 3), uint8."""

    def __init__(self, sources: Sequence[Path], group: str, arrays: dict[str, NDArray[Any]]) -> None:
        self.sources, self.group = tuple(sources), group
        x = arrays[f"X_{group}"]
        if x.dtype != np.uint8 or x.ndim not in (3, 4) or (x.ndim == 4 and x.shape[3] not in (3, 4)):
            raise DataError(
                f"X_{group} has shape {x.shape} and type {x.dtype}; allowed: uint8 images (rows, height, width) or "
                "(rows, height, width, 3); convert them, or use `linprobe import` for features"
            )
        ids = arrays.get(f"id_{group}")
        self.ids = None if ids is None else Strings(str(name).encode() for name in ids)
        if self.ids is not None and len(self.ids) != len(x):
            raise DataError(f"id_{group} has {len(self.ids)} entries for {len(x)} rows; allowed: one a row")
        self._images: NDArray[np.uint8] | None = x
        self._n_rows = len(x)
        self.labels: NDArray[np.int64] = np.empty(0, dtype=np.int64)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_images": None}  # a worker opens the file itself

    def __len__(self) -> int:
        return self._n_rows

    def id(self, row: int) -> str:
        """The given id, or the group and the row's number."""
        return f"{self.group}/{row:07d}" if self.ids is None else readable(self.ids[row])

    def read(self, row: int) -> NDArray[np.uint8]:
        """The pixels."""
        if self._images is None:
            self._images = read_arrays(self.sources)[f"X_{self.group}"]
        return np.asarray(self._images[row])

    def fingerprint(self) -> str:
        """Of the files' names, sizes and times of change, and the labels."""
        sha = hashlib.sha256(self.labels.tobytes())
        for source in self.sources:
            for path in sorted(source.iterdir()) if source.is_dir() else [source]:
                status = path.stat()
                sha.update(f"{path.name}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
        return sha.hexdigest()


def array_source(path: Path, classes: Sequence[str] | None) -> ImageSource:
    """X_train, y_train, X_test, y_test and optionally public ones, as `linprobe import` reads them."""
    arrays = read_arrays([path])
    for key in ("X_train", "y_train", "X_test", "y_test"):
        if key not in arrays:
            raise DataError(f"{path} holds no {key}; needed: X_train, y_train, X_test, y_test")
    if classes is None and "class_names" in arrays:
        classes = [str(name) for name in arrays["class_names"]]
    for group in ("train", "test", "public"):
        x, y = arrays.get(f"X_{group}"), arrays.get(f"y_{group}")
        if x is not None and (y is None or y.ndim != 1 or len(y) != len(x)):
            shape = None if y is None else y.shape
            raise DataError(f"X_{group} has shape {x.shape} and y_{group} {shape}; allowed: one label an image")
    arrays = settle_labels(arrays, classes)
    names, names_from = class_list(arrays, classes)
    groups: dict[str, Members] = {}
    for group in ("train", "test", "public"):
        if f"X_{group}" in arrays:
            members = ArrayMembers([path], group, arrays)
            members.labels = checked_labels(label_indices(arrays[f"y_{group}"], names, f"y_{group}"), names, group)
            groups[group] = members
    return ImageSource(path.name, names, names_from, groups)


def checked_labels(labels: NDArray[np.int64], names: Sequence[str], where: str) -> NDArray[np.int64]:
    """The labels, all of them positions in `names`."""
    wrong = np.flatnonzero((labels < 0) | (labels >= len(names)))
    if wrong.size:
        raise DataError(
            f"{where} has {wrong.size} labels outside the {len(names)} declared classes, first {labels[wrong[0]]}; "
            f"allowed: 0 to {len(names) - 1}; declare more with --classes"
        )
    return labels


def with_public(source: ImageSource, folder: Path, origin: Path | None) -> ImageSource:
    """The source with the images of `folder/CLASS/...` as public group; classes are matched by name.

    Raises:
        UsageError: the source has a public group already, or the two folders overlap. DataError: no class in common.
    """
    if "public" in source.groups:
        raise UsageError(f"public is {folder}, but {source.name} has public images of its own; leave out --public")
    if not folder.is_dir():
        raise DataError(f"public folder {folder} does not exist; give --public a folder of class folders")
    if origin is not None and origin.is_dir():
        mine, theirs = origin.resolve(), folder.resolve()
        if mine == theirs or theirs in mine.parents or mine in theirs.parents:
            raise UsageError(
                f"public folder {folder} and {origin} overlap; a private image cannot be public too; move one"
            )
    names = class_folders(folder)
    index = {name: position for position, name in enumerate(source.class_names)}
    if not set(names) & set(index):
        raise DataError(
            f"{folder} shares no class folder with {source.name}; allowed: at least one of "
            f"{', '.join(source.class_names[:5])}"
        )
    members = list_folder(folder, [], names, prefix="public/")
    for private in source.groups.values():
        whole = private.whole if isinstance(private, Subset) else private
        if isinstance(whole, FolderMembers):
            refuse_linked(whole, members)
    renumbered = np.array([index.get(name, -1) for name in names], dtype=np.int64)[members.labels]
    kept = subset(members, renumbered >= 0, renumbered)
    left_out = len(members) - len(kept)
    return ImageSource(
        source.name, source.class_names, source.class_names_from, {**source.groups, "public": kept}, left_out
    )


def open_source(
    source: str,
    *,
    classes: Sequence[str] | None = None,
    test_fraction: float | None = None,
    root: Path = Path("data"),
    download: bool = False,
    public: Path | None = None,
) -> ImageSource:
    """The images that SOURCE names; see `linprobe extract --help`.

    Raises:
        UsageError: options that do not fit the source. DataError: it does not exist, or holds what it should not.
    """
    path = Path(source)
    if classes is not None and (len(classes) < 2 or len(set(classes)) != len(classes)):
        raise DataError(f"the class list names {len(classes)} classes; allowed: at least 2, all different")
    opened = _open(source, path, classes, test_fraction, root, download)
    if len(opened.class_names) < 2:
        raise DataError(
            f"{source} has {len(opened.class_names)} classes; allowed: at least 2; declare them with --classes"
        )
    return opened if public is None else with_public(opened, public, path if path.exists() else None)


def _open(
    source: str, path: Path, classes: Sequence[str] | None, fraction: float | None, root: Path, download: bool
) -> ImageSource:
    from linprobe.extraction import archives, datasets

    if not path.exists():
        if source in datasets.DATASETS:
            return datasets.dataset_source(source, root, download, classes, fraction)
        raise DataError(
            f"{source} does not exist; allowed: a folder, .tar, {', '.join(SUFFIXES)}, or one of "
            f"{', '.join(datasets.DATASETS)}"
        )
    if download:
        raise UsageError(f"--download does nothing for {source}, which is on this machine; leave it out")
    if path.is_dir() and any(path.glob("*.tar")):
        if class_folders(path):
            raise DataError(
                f"{path} holds tar archives and class folders; allowed: one of the two; move the others away"
            )
        return archives.archive_source(sorted(path.glob("*.tar")), path.resolve().name, classes, fraction)
    if not path.is_dir() and not path.is_file():
        raise DataError(f"{source} is no regular file; allowed: a folder, .tar, {', '.join(SUFFIXES)}")
    if path.suffix == ".tar":
        return archives.archive_source([path], path.name, classes, fraction)
    if path.suffix in SUFFIXES or (path.is_dir() and any(path.glob("X_*.np[yz]"))):
        if fraction is not None:
            raise UsageError(f"--test-fraction does nothing for {source}, which has a test group; leave it out")
        return array_source(path, classes)
    if path.is_dir():
        return folder_source(path, classes, fraction)
    raise DataError(f"{source} is no folder, .tar or array file; allowed: a folder, .tar, {', '.join(SUFFIXES)}")
