"""Helpers of the tests of extraction: images, folders, calls to `extract`, and contents of its files."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from PIL import Image

from linprobe.extraction.extract import extract
from linprobe.extraction.request import ExtractRequest
from linprobe.extraction.sources.base import ImageSource

CLASSES = ("ant", "bee", "cat")
WIDTH, HEIGHT = 26, 20
TINY_CLIP: dict[str, Any] = {
    "embed_dim": 32,
    "vision_cfg": {"layers": 1, "width": 64, "patch_size": 32, "image_size": 224},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1},
}

# 0.5 million weights. The tests hold for any network, and wrn-16-4 takes ten times longer.
SMALL: dict[str, Any] = {"backbone": "timm:test_resnet", "random_weights": True, "resize": 16, "crop": 16}


class Notes:
    """Progress that keeps its notes."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.steps = 0

    def note(self, text: str) -> None:
        self.lines.append(text)

    def start(self, total: int, what: str) -> None:
        self.total = total

    def step(self, count: int) -> None:
        self.steps += count

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


def photo(seed: int, width: int = WIDTH, height: int = HEIGHT) -> Image.Image:
    """An RGB image of random blots, one per seed."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (5, 6, 3), dtype=np.uint8)).resize((width, height))
    noise = rng.integers(-20, 21, (height, width, 3))
    return Image.fromarray(np.clip(np.asarray(coarse).astype(int) + noise, 0, 255).astype(np.uint8))


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """The bytes of an image file."""
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def write_images(
    root: Path,
    groups: Mapping[str, int],
    classes: Sequence[str] = CLASSES,
    *,
    suffix: str = ".png",
    first_seed: int = 0,
    size: tuple[int, int] = (WIDTH, HEIGHT),
) -> Path:
    """Write `root/GROUP/CLASS/000.png` and so on. `groups`: images per class; the group "" leaves that level out."""
    seed = first_seed
    for group, count in groups.items():
        for name in classes:
            folder = root / group / name
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(count):
                photo(seed, *size).save(folder / f"{number:03d}{suffix}")
                seed += 1
    return root


def damaged(root: Path, names: dict[str, bytes] | None = None) -> Path:
    """Images of which some cannot be read."""
    write_images(root, {"train": 4, "test": 2})
    half = encoded(photo(0))[:400]
    for name, content in (
        names or {"train/bee/001.png": half, "train/cat/003.png": b"", "test/ant/001.png": half}
    ).items():
        (root / name).write_bytes(content)
    return root


def run_extract(
    source: Path | str, out: Path, notes: Notes | None = None, *, backbone: str = "pixels", **options: Any
) -> dict[str, Any]:
    """Extract in this process; by default the features are pixels of 8 x 8."""
    if backbone == "pixels":
        options = {"resize": 8, "crop": 8, **options}
    request = ExtractRequest(source=str(source), backbone=backbone, out=out, device="cpu", **options)
    outcome = extract(request, notes or Notes())
    assert outcome is not None
    return outcome


def contents(path: Path) -> dict[str, Any]:
    """Every data set and attribute of an HDF5 file, by name, so that two files can be compared byte for byte."""
    found: dict[str, Any] = {}

    def visit(name: str, item: Any) -> None:
        found.update({f"{name}@{key}": str(value) for key, value in item.attrs.items()})
        if isinstance(item, h5py.Dataset):
            value = item[()]
            found[name] = (item.shape, str(item.dtype), value.tolist() if value.dtype == object else value.tobytes())

    with h5py.File(path) as file:
        visit("", file)
        file.visititems(visit)
    return found


def rows_of(path: Path, group: str = "train") -> Any:
    """The rows of a group as they are on disk."""
    with h5py.File(path) as file:
        return file[group]["x"][:]


def ids_of(path: Path, group: str = "train") -> list[str]:
    """The record ids of a group."""
    with h5py.File(path) as file:
        return list(file[group]["id"].asstr()[:])


def labels_of(path: Path, group: str = "train") -> list[int]:
    """The labels of a group."""
    with h5py.File(path) as file:
        return file[group]["y"][:].tolist()


def listed(source: ImageSource, group: str) -> list[str]:
    """Ids of a group, in order."""
    members = source.groups[group]
    return [members.id(row) for row in range(len(members))]


def classes_of(source: ImageSource, group: str) -> list[str]:
    """Class names of a group's rows, in order."""
    return [source.class_names[label] for label in source.groups[group].labels]
