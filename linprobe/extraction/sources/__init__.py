"""Open the SOURCE argument: an image folder, array file, tar archive or torchvision data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from linprobe.data.array_import import SUFFIXES
from linprobe.errors import DataError, UsageError
from linprobe.extraction.sources.archives import archive_source
from linprobe.extraction.sources.base import ImageSource, OwnerOf, Subset, subset
from linprobe.extraction.sources.datasets import DATASETS, array_source, dataset_source
from linprobe.extraction.sources.folders import FolderMembers, class_folders, folder_source, list_folder, refuse_linked


def with_public(source: ImageSource, folder: Path, origin: Path | None) -> ImageSource:
    """The source plus the images in `folder/CLASS/...` as its public group; classes are matched by name.

    Args:
        origin: path of the source, if it is one; must not overlap `folder`.

    Raises:
        UsageError: the source has a public group already, or the two folders overlap. DataError: no folder, or no
        class in common. PrivacyError: a public file is a link to a private one.
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
    return replace(source, groups={**source.groups, "public": kept}, left_out=left_out)


def open_source(
    source: str,
    *,
    classes: Sequence[str] | None = None,
    test_fraction: float | None = None,
    owner_of: OwnerOf | None = None,
    root: Path = Path("data"),
    download: bool = False,
    public: Path | None = None,
) -> ImageSource:
    """Open the images of the SOURCE argument of `linprobe extract`.

    Args:
        classes: class names in label order; None to take them from the source.
        test_fraction: share of the images to use for testing, if the source has no test group.
        owner_of: the person of an image; all images of a person are on one side of the split.
        root: folder of torchvision data sets. download: fetch a missing data set.
        public: folder of public images.

    Raises:
        UsageError: options that do not fit the source. DataError: a missing, damaged or unsuitable source.
        PrivacyError: a private image is public too, or appears twice through links.
    """
    path = located(source)
    if classes is not None and (len(classes) < 2 or len(set(classes)) != len(classes)):
        raise DataError(f"the class list names {len(classes)} classes; allowed: at least 2, all different")
    if download and path.exists():
        raise UsageError(f"--download does nothing for {source}, which is on this machine; leave it out")
    if not path.exists():
        opened = dataset_source(source, root, download, classes, test_fraction, owner_of)
    else:
        opened = _on_disk(path, classes, test_fraction, owner_of)
    if len(opened.class_names) < 2:
        raise DataError(
            f"{source} has {len(opened.class_names)} classes; allowed: at least 2; declare them with --classes"
        )
    return opened if public is None else with_public(opened, public, path if path.exists() else None)


def _on_disk(
    path: Path, classes: Sequence[str] | None, test_fraction: float | None, owner_of: OwnerOf | None
) -> ImageSource:
    """The images of archives, of array files or of a folder, whichever `path` holds; arguments as of `open_source`."""
    if shards := _shards(path):
        name = path.resolve().name if path.is_dir() else path.name
        return archive_source(shards, name, classes, test_fraction, owner_of)
    if path.suffix in SUFFIXES or (path.is_dir() and any(path.glob("X_*.np[yz]"))):
        if test_fraction is not None:
            raise UsageError(f"--test-fraction does nothing for {path}, which has a test group; leave it out")
        return array_source(path, classes)
    return folder_source(path, classes, test_fraction, owner_of)


def located(source: str) -> Path:
    """The path of SOURCE, whether a file, a folder or the name of a data set. Reads no image.

    Raises:
        DataError: neither a name nor a path, or a file of another kind.
    """
    path = Path(source)
    kinds = f"a folder, .tar, {', '.join(SUFFIXES)}"
    if not path.exists():
        if source not in DATASETS:
            raise DataError(f"{source} does not exist; allowed: {kinds}, or one of {', '.join(DATASETS)}")
    elif not path.is_dir() and not path.is_file():
        raise DataError(f"{source} is no regular file; allowed: {kinds}")
    elif path.is_file() and path.suffix not in (".tar", *SUFFIXES):
        raise DataError(f"{source} is no .tar or array file; allowed: {kinds}")
    return path


def _shards(path: Path) -> list[Path]:
    """The archive, or the archives in a folder; none if SOURCE is of another kind."""
    if path.suffix == ".tar" and path.is_file():
        return [path]
    shards = sorted(path.glob("*.tar")) if path.is_dir() else []
    if shards and class_folders(path):
        raise DataError(f"{path} holds tar archives and class folders; allowed: one of the two; move the others away")
    return shards
