"""Images in array files (.npz, .npy, .pt, read as `linprobe import` reads them) and torchvision data sets."""

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

from linprobe.data.array_import import read_arrays
from linprobe.data.labels import class_list, label_indices, settle_labels
from linprobe.data.record_ids import CONTENT, FILE_NAMES, GIVEN, ContentIds
from linprobe.errors import DataError, UsageError, first_line
from linprobe.extraction.sources.base import (
    ImageSource,
    Members,
    OwnerOf,
    Strings,
    UnreadableImage,
    checked_labels,
    file_stamp,
    readable,
    split,
)

AT_ONCE = 256  # images hashed at a time
_BOOLEAN = ({"train": True}, {"train": False})
_SPLIT = ({"split": "train"}, {"split": "test"})
_TRAINVAL = ({"split": "trainval"}, {"split": "test"})
_LABELS = ("targets", "_labels", "labels", "y")
_NAMES = ("classes", "categories")
_FILES = ("_image_files", "_images", "_samples", "samples")


class ArrayMembers:
    """Images in a uint8 array of shape (rows, height, width) or (rows, height, width, 3)."""

    def __init__(
        self, sources: Sequence[Path], group: str, arrays: dict[str, NDArray[Any]], labels: NDArray[np.int64]
    ) -> None:
        self.sources, self.group, self.labels = tuple(sources), group, labels
        x = arrays[f"X_{group}"]
        if x.dtype != np.uint8 or x.ndim not in (3, 4) or (x.ndim == 4 and x.shape[3] not in (3, 4)):
            raise DataError(
                f"X_{group} has shape {x.shape} and type {x.dtype}; allowed: uint8 images (rows, height, width) or "
                "(rows, height, width, 3); convert them, or use `linprobe import` for features"
            )
        ids = arrays.get(f"id_{group}")
        if ids is not None and len(ids) != len(x):
            raise DataError(f"id_{group} has {len(ids)} entries for {len(x)} rows; allowed: one per row")
        self.ids = Strings(str(name).encode() for name in (_content_ids(group, x, labels) if ids is None else ids))
        self._images: NDArray[np.uint8] | None = x
        self._n_rows = len(x)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_images": None}  # each worker process opens the file itself

    def __len__(self) -> int:
        return self._n_rows

    def id(self, row: int) -> str:
        """The id in the file, or one made from the image's content if the file has none."""
        return readable(self.ids[row])

    def read(self, row: int) -> NDArray[np.uint8]:
        """Pixels of the image, uint8, shape (height, width) or (height, width, 3)."""
        if self._images is None:
            self._images = read_arrays(self.sources)[f"X_{self.group}"]
        return np.asarray(self._images[row])

    def fingerprint(self) -> str:
        """SHA-256 of the files' names, sizes and modification times, and the labels."""
        sha = hashlib.sha256(self.labels.tobytes())
        for source in self.sources:
            for path in sorted(source.iterdir()) if source.is_dir() else [source]:
                sha.update(file_stamp(path))
        return sha.hexdigest()


def _content_ids(group: str, x: NDArray[np.uint8], labels: NDArray[np.int64]) -> list[str]:
    ids = ContentIds(group)
    for start in range(0, len(x), AT_ONCE):
        ids.add(x[start : start + AT_ONCE], labels[start : start + AT_ONCE])
    return ids.names


def array_source(path: Path, classes: Sequence[str] | None) -> ImageSource:
    """Images from X_train, y_train, X_test, y_test and optionally X_public, y_public.

    Raises:
        DataError: a missing array, or a wrong shape, type or label.
    """
    arrays = _image_arrays(path)
    if classes is None and "class_names" in arrays:
        classes = [str(name) for name in arrays["class_names"]]
    arrays = settle_labels(arrays, classes)
    names, names_from = class_list(arrays, classes)
    groups: dict[str, Members] = {}
    for group in ("train", "test", "public"):
        if f"X_{group}" in arrays:
            labels = checked_labels(label_indices(arrays[f"y_{group}"], names, f"y_{group}"), names, group)
            groups[group] = ArrayMembers([path], group, arrays, labels)
    return ImageSource(path.name, names, names_from, groups, ids_from=GIVEN if "id_train" in arrays else CONTENT)


def _image_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a file. DataError unless train and test images are there, with one label per image."""
    arrays = read_arrays([path])
    if any(key.startswith("owner_") for key in arrays):
        raise UsageError(
            f"{path} holds owners of images, which extract takes from --owners FILE.csv or --owner-regex; leave the "
            "arrays owner_* out and give one of the two"
        )
    for key in ("X_train", "y_train", "X_test", "y_test"):
        if key not in arrays:
            raise DataError(f"{path} holds no {key}; needed: X_train, y_train, X_test, y_test")
    for group in ("train", "test", "public"):
        x, y = arrays.get(f"X_{group}"), arrays.get(f"y_{group}")
        if x is not None and (y is None or y.ndim != 1 or len(y) != len(x)):
            shape = None if y is None else y.shape
            raise DataError(f"X_{group} has shape {x.shape} and y_{group} {shape}; allowed: one label per image")
    return arrays


@dataclass(frozen=True)
class TorchvisionDataset:
    """Class name and constructor arguments of a torchvision data set; `test` is None if it has no test split."""

    kind: str
    train: dict[str, Any] = field(default_factory=dict)
    test: dict[str, Any] | None = None
    n_classes: int | None = None  # only if torchvision has no list of class names


DATASETS = {
    "cifar10": TorchvisionDataset("CIFAR10", *_BOOLEAN),
    "cifar100": TorchvisionDataset("CIFAR100", *_BOOLEAN),
    "mnist": TorchvisionDataset("MNIST", *_BOOLEAN),
    "fashion-mnist": TorchvisionDataset("FashionMNIST", *_BOOLEAN),
    "kmnist": TorchvisionDataset("KMNIST", *_BOOLEAN),
    "svhn": TorchvisionDataset("SVHN", *_SPLIT, n_classes=10),
    "stl10": TorchvisionDataset("STL10", *_SPLIT),
    "flowers102": TorchvisionDataset("Flowers102", *_SPLIT, n_classes=102),
    "oxford-pets": TorchvisionDataset("OxfordIIITPet", *_TRAINVAL),
    "dtd": TorchvisionDataset("DTD", *_SPLIT),
    "food101": TorchvisionDataset("Food101", *_SPLIT),
    "fgvc-aircraft": TorchvisionDataset("FGVCAircraft", *_TRAINVAL),
    "gtsrb": TorchvisionDataset("GTSRB", *_SPLIT, n_classes=43),
    "country211": TorchvisionDataset("Country211", *_SPLIT),
    "caltech101": TorchvisionDataset("Caltech101"),
    "caltech256": TorchvisionDataset("Caltech256"),
    "eurosat": TorchvisionDataset("EuroSAT"),
    "sun397": TorchvisionDataset("SUN397"),
}


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


def _open(name: str, entry: TorchvisionDataset, arguments: dict[str, Any], root: Path, download: bool) -> Any:
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
