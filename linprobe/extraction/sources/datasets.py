"""torchvision data sets by name. Nothing is downloaded unless requested."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import urllib.error
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linprobe.data.record_ids import CONTENT, FILE_NAMES, ContentIds
from linprobe.errors import DataError, UsageError, first_line
from linprobe.extraction.decoding import UnreadableImage
from linprobe.extraction.sources.base import ImageSource, Members, OwnerOf, Strings, checked_labels, readable, split


@dataclass(frozen=True)
class Entry:
    """Class name and constructor arguments of a torchvision data set; `test` is None if it has no test split."""

    kind: str
    train: dict[str, Any] = field(default_factory=dict)
    test: dict[str, Any] | None = None
    n_classes: int | None = None  # only if torchvision has no list of class names


_BOOLEAN = ({"train": True}, {"train": False})
_SPLIT = ({"split": "train"}, {"split": "test"})
_TRAINVAL = ({"split": "trainval"}, {"split": "test"})
DATASETS = {
    "cifar10": Entry("CIFAR10", *_BOOLEAN),
    "cifar100": Entry("CIFAR100", *_BOOLEAN),
    "mnist": Entry("MNIST", *_BOOLEAN),
    "fashion-mnist": Entry("FashionMNIST", *_BOOLEAN),
    "kmnist": Entry("KMNIST", *_BOOLEAN),
    "svhn": Entry("SVHN", *_SPLIT, n_classes=10),
    "stl10": Entry("STL10", *_SPLIT),
    "flowers102": Entry("Flowers102", *_SPLIT, n_classes=102),
    "oxford-pets": Entry("OxfordIIITPet", *_TRAINVAL),
    "dtd": Entry("DTD", *_SPLIT),
    "food101": Entry("Food101", *_SPLIT),
    "fgvc-aircraft": Entry("FGVCAircraft", *_TRAINVAL),
    "gtsrb": Entry("GTSRB", *_SPLIT, n_classes=43),
    "country211": Entry("Country211", *_SPLIT),
    "caltech101": Entry("Caltech101"),
    "caltech256": Entry("Caltech256"),
    "eurosat": Entry("EuroSAT"),
    "sun397": Entry("SUN397"),
}
_LABELS = ("targets", "_labels", "labels", "y")
_NAMES = ("classes", "categories")
_FILES = ("_image_files", "_images", "_samples", "samples")


class DatasetMembers:
    """One split of a torchvision data set; `half` is its name in ids.

    Attributes:
        ids_from: `file names` where the data set lists files, else `content`.
    """

    def __init__(self, name: str, half: str, dataset: Any) -> None:
        self.name, self.half, self.dataset = name, half, dataset
        found = next((getattr(dataset, key) for key in _LABELS if hasattr(dataset, key)), None)
        if found is None:
            found = [label for _, label in dataset._samples]
        self.labels: NDArray[np.int64] = np.asarray(found, dtype=np.int64)
        files = _file_names(dataset)
        self.ids_from = CONTENT if files is None else FILE_NAMES
        prefix = f"{name}/{half}"
        ids = self._content_ids(prefix) if files is None else [f"{prefix}/{file}" for file in files]
        self._ids = Strings(name.encode(errors="backslashreplace") for name in ids)

    def __len__(self) -> int:
        return len(self.dataset)

    def id(self, row: int) -> str:
        """`NAME/SPLIT/FILE`, or `NAME/SPLIT/DIGEST` of the pixels where the images are not single files."""
        return readable(self._ids[row])

    def _content_ids(self, prefix: str) -> list[str]:
        ids, pixels = ContentIds(prefix), getattr(self.dataset, "data", None)
        for row in range(len(self)):
            image = np.asarray(self.read(row) if pixels is None else pixels[row])
            ids.add(image[None], self.labels[row : row + 1])
        return ids.names

    def read(self, row: int) -> Any:
        """The decoded image. Raises UnreadableImage."""
        try:
            return self.dataset[row][0]
        except (OSError, ValueError, SyntaxError) as error:
            raise UnreadableImage(str(error)) from None

    def fingerprint(self) -> str:
        """SHA-256 of the name, the number of images and their labels."""
        return hashlib.sha256(f"{self.name}/{self.half}\0{len(self)}\0".encode() + self.labels.tobytes()).hexdigest()


def _file_names(dataset: Any) -> list[str] | None:
    """Path of each image relative to the data set's root, or what names its file; None if images are not files."""
    for key in _FILES:
        if hasattr(dataset, key):
            paths = [entry[0] if isinstance(entry, tuple) else entry for entry in getattr(dataset, key)]
            return [Path(os.path.relpath(path, dataset.root)).as_posix() for path in paths]
    if hasattr(dataset, "index"):  # Caltech: files are numbered in the folder of their category
        numbers = zip(dataset.y, dataset.index, strict=True)
        return [f"{dataset.categories[label]}/{number:04d}" for label, number in numbers]
    return None


def dataset_source(
    name: str,
    root: Path,
    download: bool,
    classes: Sequence[str] | None,
    fraction: float | None,
    owner_of: OwnerOf | None,
) -> ImageSource:
    """The data set `name` under `root`. Class names come from the data set unless declared.

    Raises:
        UsageError: a test fraction for a data set with a test split, or none for one without. DataError: the data set
        is not under `root`.
    """
    entry = DATASETS[name]
    if (entry.test is None) != (fraction is not None):
        if entry.test is None:
            raise UsageError(f"{name} has no test half and no test fraction was given; give --test-fraction F")
        raise UsageError(f"{name} has a test half and test fraction is {fraction}; leave out --test-fraction")
    train = _open(name, entry, entry.train, root, download)
    groups: dict[str, Members]
    if entry.test is None:
        members = DatasetMembers(name, "all", train)
        groups = split(members, fraction or 0, owner_of)
    else:
        test = _open(name, entry, entry.test, root, download)
        members = DatasetMembers(name, "train", train)
        groups = {"train": members, "test": DatasetMembers(name, "test", test)}
    listed = next((getattr(train, key) for key in _NAMES if isinstance(getattr(train, key, None), list | tuple)), None)
    if listed is None:
        listed = [str(label) for label in range(entry.n_classes or 0)]
    names = tuple(classes or (str(item) for item in listed))
    for group, part in groups.items():
        checked_labels(part.labels, names, f"{name} {group}")
    return ImageSource(name, names, "declared", groups, ids_from=members.ids_from)


def _open(name: str, entry: Entry, arguments: dict[str, Any], root: Path, download: bool) -> Any:
    if not download and not root.is_dir():  # torchvision would create the folder
        raise DataError(f"data set {name} is not under {root}, which does not exist; give --root FOLDER, or --download")
    try:
        with contextlib.redirect_stdout(sys.stderr):  # some data sets print while they download
            import torchvision  # its import takes seconds, and DATASETS does not need it

            return getattr(torchvision.datasets, entry.kind)(root=root, download=download, **arguments)
    except (RuntimeError, OSError, urllib.error.URLError) as error:
        reason = first_line(error)
        step = "check the network, or put it there by hand" if download else "give --root FOLDER, or --download"
        raise DataError(f"data set {name} is not under {root} ({reason[:160]}); {step}") from None
    except ImportError as error:
        raise DataError(f"data set {name} needs another package ({error}); install it with pip") from None
