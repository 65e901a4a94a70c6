"""Image folders: `train/CLASS/IMAGE` and `test/CLASS/IMAGE`, or `CLASS/IMAGE` with a test fraction."""

from __future__ import annotations

import hashlib
import os
import stat
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from linprobe.data.feature_file import NO_LABEL, UNLABELLED
from linprobe.data.labels import TEST_NAMES, OwnerOf, divided
from linprobe.errors import DataError, LinprobeError, PrivacyError, UsageError, counted, read_fault
from linprobe.extraction.sources import base

OF_WINDOWS = ("desktop.ini", "ehthumbs.db", "thumbs.db")  # files that its file manager adds to folders
MISSING = 2**64 - 1  # device of a file that is not there


@dataclass(frozen=True)
class FolderMembers:
    """Files in the order of their paths or of a table. An id is in `names`, or is the path relative to `root`."""

    root: Path
    paths: base.Strings
    labels: NDArray[np.int64]
    stamp: str
    inodes: NDArray[np.uint64]  # (rows, 2): device and inode, the same for all links to a file
    names: base.Strings | None = None

    def __len__(self) -> int:
        return len(self.paths)

    def id(self, row: int) -> str:
        return base.readable((self.paths if self.names is None else self.names)[row])

    def read(self, row: int) -> bytes:
        """Bytes of the file; a read that fails for a reason outside the file is tried once more."""
        try:
            return self._read(row)
        except LinprobeError:
            return self._read(row)

    def _read(self, row: int) -> bytes:
        path = self.root / os.fsdecode(self.paths[row])
        try:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):
                raise base.UnreadableImage("not a regular file")
            if status.st_size > base.MAX_BYTES:
                raise base.UnreadableImage(f"{status.st_size} bytes; allowed: {base.MAX_BYTES:,}")
            return path.read_bytes()
        except OSError as error:
            raise read_fault(f"image {path}", error) or base.UnreadableImage(error.strerror or str(error)) from None

    def fingerprint(self) -> str:
        return self.stamp


def class_folders(folder: Path) -> list[str]:
    """Names of the visible folders in `folder`, sorted. DataError: an image beside them, or control characters."""
    refuse_stray_images(folder)
    names = []
    for entry in os.scandir(folder):
        if entry.name.startswith(".") or not _is_folder(Path(entry.path)):
            continue
        if not entry.name.isprintable():
            raise DataError(f"class folder {entry.name!r} in {folder} has a name that is no plain text; rename it")
        names.append(entry.name)
    return sorted(names)


def _is_folder(path: Path) -> bool:
    """Whether a path is a folder. DataError for a link to nothing: what the link should show would be left out."""
    if path.is_symlink() and not path.exists():
        raise DataError(f"{path} is a link to nothing; mend the link, or remove it")
    return path.is_dir()


def refuse_stray_images(folder: Path) -> None:
    for entry in os.scandir(folder):
        if entry.name.lower().endswith(base.IMAGE_SUFFIXES) and not entry.name.startswith(".") and not entry.is_dir():
            raise DataError(f"image {entry.path} lies in no class folder; move it, or give --unlabelled, or --like RUN")


def list_folder(root: Path, parts: Sequence[str], names: Sequence[str]) -> FolderMembers:
    """All visible files in the class folders of `root/parts`. Raises DataError: a class not in `names`, or no file."""
    folder = root.joinpath(*parts)
    index = {name: position for position, name in enumerate(names)}
    found = class_folders(folder)
    unknown = [name for name in found if name not in index]
    if unknown:
        raise DataError(
            f"{folder} has {counted(len(unknown), 'folder')} outside the class list, first {unknown[0]!r}; allowed: "
            f"{', '.join(names[:5])}{', ...' if len(names) > 5 else ''}; remove others, or list them with --classes"
        )
    listed = members_of(root, ((path, index[name]) for name in found for path in _files(folder / name)))
    if not len(listed):
        raise DataError(f"{folder} holds no images; allowed: files in one folder per class")
    return listed


def members_of(root: Path, files: Iterable[tuple[Path, int]]) -> FolderMembers:
    """The given files, each with its label; paths under `root` are shortened."""
    labels: list[int] = []
    inodes = array("Q")
    sha = hashlib.sha256()

    def paths() -> Iterator[bytes]:
        for path, label in files:
            relative = os.fsencode((path.relative_to(root) if path.is_relative_to(root) else path).as_posix())
            try:
                status = path.stat()
                sha.update(f"{status.st_size}\0{status.st_mtime_ns}\0".encode())
                inodes.extend((status.st_dev, status.st_ino))
            except OSError:
                sha.update(b"missing\0")
                inodes.extend((MISSING, len(labels)))
            sha.update(relative + b"\0")
            labels.append(label)
            yield relative

    packed = base.Strings(paths())
    places = np.array(inodes, dtype=np.uint64).reshape(-1, 2)
    return FolderMembers(root, packed, np.array(labels, dtype=np.int64), sha.hexdigest(), places)


def unlabelled_source(path: Path, names: Sequence[str]) -> base.ImageSource:
    """All visible files in a folder, or one image, as the group `rows`; `names` are the classes. DataError: none."""
    if not path.exists() or not (path.is_dir() or path.name.lower().endswith(base.IMAGE_SUFFIXES)):
        what = "is no image" if path.exists() else "does not exist"
        raise DataError(f"{path} {what}; with --like or --unlabelled, give a folder of images, or one image file")
    root, files = (path, _files(path)) if path.is_dir() else (path.parent, iter([path]))
    members = members_of(root, ((file, NO_LABEL) for file in files))
    if not len(members):
        raise DataError(f"folder {path} holds no images; give a folder of images, or one image file")
    name = base.readable(os.fsencode(path.resolve().name))
    return base.ImageSource(name, tuple(names), "declared", {UNLABELLED: members})


def refuse_linked(private: FolderMembers, *others: FolderMembers, how: str = "links") -> None:
    """PrivacyError for a private file that appears under another name too: a private image is one record."""
    places = np.concatenate([members.inodes for members in (private, *others)])
    _, first, counts = np.unique(places, axis=0, return_index=True, return_counts=True)
    repeated = first[(counts > 1) & (first < len(private)) & (places[first, 0] != MISSING)]
    if repeated.size:
        raise PrivacyError(
            f"{private.id(int(repeated.min()))} is there a second time through {how}, where it would count as another "
            f"record or as public ({counted(len(repeated), 'such image')}); remove the {how}"
        )


def _files(folder: Path) -> Iterator[Path]:
    """Visible files under `folder`, sorted, files before subfolders. Links to folders are followed; no folder twice."""
    seen = set()
    for place, folders, files in os.walk(folder, onerror=_unread_folder, followlinks=True):
        status = Path(place).stat()
        if (status.st_dev, status.st_ino) in seen:
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if not name.startswith(".") and name.lower() not in OF_WINDOWS:
                yield Path(place) / name


def _unread_folder(error: OSError) -> None:
    what = f"folder {error.filename}"
    raise read_fault(what, error) or DataError(f"{what} cannot be read ({error.strerror}); restore it, or remove it")


def is_group(folder: Path) -> bool:
    """Whether a folder has visible subfolders; otherwise it is a class whose name is train or test."""
    return _is_folder(folder) and any(entry.is_dir() and not entry.name.startswith(".") for entry in os.scandir(folder))


def folder_source(
    folder: Path,
    classes: Sequence[str] | None,
    fraction: float | None,
    owner_of: OwnerOf | None,
    *,
    private_test: bool = False,
) -> base.ImageSource:
    """Images in `train/CLASS`, `test/CLASS`, perhaps `public/CLASS`, or in `CLASS`; test folders name the classes."""
    grouped = is_group(folder / "train")
    test = next((name for name in TEST_NAMES if grouped and is_group(folder / name)), None)
    _check_layout(folder, test, fraction, grouped=grouped)
    named_by = folder / (test or "train") if grouped else folder
    names = tuple(classes or class_folders(named_by))
    private = list_folder(folder, ["train"] if grouped else [], names)
    others = {} if test is None else {"test": list_folder(folder, [test], names)}
    if grouped and _is_folder(folder / "public"):
        others["public"] = list_folder(folder, ["public"], names)
    _refuse_two_names(private, others, private_test)
    groups: dict[str, base.Members] = {"train": private}
    if test is None:
        sides = divided((private.id(row) for row in range(len(private))), owner_of, None, fraction, str(folder))
        groups = {side: base.Subset(private, rows, private.labels[rows]) for side, rows in sides.items()}
    groups |= others
    name = base.readable(os.fsencode(folder.resolve().name))
    names_from = "declared" if classes else base.FOLDER_NAMES
    return base.ImageSource(name, names, names_from, groups, notes=_left_out(folder, test, grouped))


def _refuse_two_names(private: FolderMembers, others: dict[str, FolderMembers], private_test: bool) -> None:
    refuse_linked(private, *others.values())
    if private_test and "test" in others:
        refuse_linked(others["test"], *(members for name, members in others.items() if name != "test"))


def _left_out(folder: Path, test: str | None, grouped: bool) -> tuple[str, ...]:
    """A note of the folders beside train that are named like a group and are not read; empty without any."""
    like = {"train", "training", "testing", "public", *TEST_NAMES}
    read = [folder / name for name in ("train", test, "public") if name and (folder / name).exists()]
    beside = (Path(entry.path) for entry in os.scandir(folder) if grouped and entry.name.lower() in like)
    unread = sorted(path.name for path in beside if path.is_dir() and not any(map(path.samefile, read)))
    allowed = f"allowed: train, public and the first of {', '.join(TEST_NAMES)}"
    return (f"{folder}: left out: {', '.join(unread)}; {allowed}; rename them to use them",) if unread else ()


def _check_layout(folder: Path, test: str | None, fraction: float | None, *, grouped: bool) -> None:
    """DataError for a folder without class folders; UsageError unless a test folder or a fraction gives test images."""
    if grouped:
        refuse_stray_images(folder)
        if test is None and fraction is None:
            raise UsageError(f"{folder} has the folder train and no test; give --test-fraction 0.2, or a test folder")
        if test is not None and fraction is not None:
            raise UsageError(f"{folder} has the folder {test}, and test fraction is {fraction}; give one, not both")
        return
    found = class_folders(folder)
    if not found:
        raise DataError(
            f"{folder} has no class folders; allowed: train/CLASS/IMAGE and test/CLASS/IMAGE, or CLASS/IMAGE; for a "
            "table that lists images, give --table FILE"
        )
    group = next((name for name in found if name.lower() in ("train", "training") and is_group(folder / name)), None)
    if group is not None:
        raise DataError(f"{folder} has the group {group!r}; allowed: train and {' or '.join(TEST_NAMES)}; rename it")
    if fraction is None:
        raise UsageError(
            f"{folder} has one level of {counted(len(found), 'folder')} and no test group; give --test-fraction F"
        )
