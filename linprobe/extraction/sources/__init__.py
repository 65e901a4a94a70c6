"""Open the SOURCE argument: an image folder, or images in array files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from linprobe.data.array_import import SUFFIXES
from linprobe.errors import DataError, UsageError
from linprobe.extraction.sources.arrays import array_source
from linprobe.extraction.sources.base import ImageSource, OwnerOf, Subset, subset
from linprobe.extraction.sources.folders import FolderMembers, class_folders, folder_source, list_folder, refuse_linked


def with_public(source: ImageSource, folder: Path, origin: Path) -> ImageSource:
    """The source plus the images in `folder/CLASS/...` as its public group; classes are matched by name.

    Args:
        origin: path of the source; must not overlap `folder`.

    Raises:
        UsageError: the source has a public group already, or the two folders overlap. DataError: no folder, or no
        class in common. PrivacyError: a public file is a link to a private one.
    """
    if "public" in source.groups:
        raise UsageError(f"public is {folder}, but {source.name} has public images of its own; leave out --public")
    if not folder.is_dir():
        raise DataError(f"public folder {folder} does not exist; give --public a folder of class folders")
    if origin.is_dir():
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
    public: Path | None = None,
) -> ImageSource:
    """Open the images of the SOURCE argument of `linprobe extract`.

    Args:
        classes: class names in label order; None to take them from the source.
        test_fraction: share of the images to use for testing, if the source has no test group.
        owner_of: the person of an image; all images of a person are on one side of the split.
        public: folder of public images.

    Raises:
        UsageError: options that do not fit the source. DataError: a missing, damaged or unsuitable source.
        PrivacyError: a private image is public too, or appears twice through links.
    """
    path = located(source)
    if classes is not None and (len(classes) < 2 or len(set(classes)) != len(classes)):
        raise DataError(f"the class list names {len(classes)} classes; allowed: at least 2, all different")
    if path.suffix in SUFFIXES or (path.is_dir() and any(path.glob("X_*.np[yz]"))):
        if test_fraction is not None:
            raise UsageError(f"--test-fraction does nothing for {path}, which has a test group; leave it out")
        opened = array_source(path, classes)
    else:
        opened = folder_source(path, classes, test_fraction, owner_of)
    if len(opened.class_names) < 2:
        raise DataError(
            f"{source} has {len(opened.class_names)} classes; allowed: at least 2; declare them with --classes"
        )
    return opened if public is None else with_public(opened, public, path)


def located(source: str) -> Path:
    """The path of SOURCE, a file or a folder. Reads no image.

    Raises:
        DataError: there is none, or it is a file of another kind.
    """
    path = Path(source)
    kinds = f"a folder of images, or arrays in {', '.join(SUFFIXES)}"
    if not path.exists():
        raise DataError(f"{source} does not exist; allowed: {kinds}")
    if not path.is_dir() and not path.is_file():
        raise DataError(f"{source} is no regular file; allowed: {kinds}")
    if path.is_file() and path.suffix not in SUFFIXES:
        raise DataError(f"{source} is no folder and no array file; allowed: {kinds}; unpack archives first")
    return path
