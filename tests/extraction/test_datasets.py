"""torchvision data sets by name, read from disk; nothing is downloaded unless requested."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torchvision
from PIL import Image

from linprobe.errors import DataError, UsageError
from linprobe.extraction.sources import datasets, open_source
from linprobe.extraction.sources.base import UnreadableImage
from linprobe.extraction.sources.datasets import DATASETS, TorchvisionDataset
from tests.extraction.samples import ids_of, labels_of, photo, rows_of, run_extract


class Fake:
    """Looks like a torchvision data set of 4 x 4 images; image number n of a half has the grey value n."""

    classes = ("ant", "bee", "cat")

    def __init__(self, root: Path, train: bool = True, download: bool = False) -> None:
        if not (Path(root) / "fake.bin").exists() and not download:
            raise RuntimeError("Dataset not found or corrupted. You can use download=True")
        self.values = list(range(12)) if train else list(range(100, 106))
        self.targets = [value % 3 for value in self.values]

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, row: int) -> tuple[Image.Image, int]:
        image = Image.new("RGB", (4, 4), (self.values[row],) * 3)
        image.putpixel((3, 3), (255, 255, 255))  # one colour alone would be a multiple of another
        return image, self.values[row] % 3


class Unsplit(Fake):
    """The same without halves and without names, with labels under another attribute."""

    classes = None

    def __init__(self, root: Path, download: bool = False) -> None:
        super().__init__(root, True, download)
        self.y = self.targets
        del self.targets


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(torchvision.datasets, "Fake", Fake, raising=False)
    monkeypatch.setattr(torchvision.datasets, "Unsplit", Unsplit, raising=False)
    monkeypatch.setitem(DATASETS, "fake", TorchvisionDataset("Fake", *datasets._BOOLEAN))
    monkeypatch.setitem(DATASETS, "unsplit", TorchvisionDataset("Unsplit", n_classes=3))
    (tmp_path / "fake.bin").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_data_set_keeps_its_halves_labels_and_order(fake: Path) -> None:
    run_extract("fake", fake / "f.h5", root=fake, resize=4, crop=4)
    assert all(name.startswith("fake/train/") for name in ids_of(fake / "f.h5"))
    assert all(name.startswith("fake/test/") for name in ids_of(fake / "f.h5", "test"))
    assert labels_of(fake / "f.h5") == [row % 3 for row in range(12)]
    assert np.allclose(rows_of(fake / "f.h5")[:, 0], np.arange(12) / 255, atol=1e-4)
    assert np.allclose(rows_of(fake / "f.h5", "test")[:, 0], np.arange(100, 106) / 255, atol=1e-3)


def test_class_names_are_the_data_sets_own_unless_declared(fake: Path) -> None:
    assert open_source("fake", root=fake).class_names == ("ant", "bee", "cat")
    assert open_source("fake", root=fake).class_names_from == "declared"
    assert open_source("fake", root=fake, classes=["x", "y", "z"]).class_names == ("x", "y", "z")
    with pytest.raises(DataError, match="outside the 2 declared classes"):
        open_source("fake", root=fake, classes=["x", "y"])


def test_a_data_set_without_halves_is_split_by_a_fraction(fake: Path) -> None:
    source = open_source("unsplit", root=fake, test_fraction=0.5)
    ids = [members.id(row) for members in source.groups.values() for row in range(len(members))]
    assert len(set(ids)) == 12
    assert all(name.startswith("unsplit/all/") for name in ids)
    assert source.class_names == ("0", "1", "2")
    train = source.groups["train"]
    assert train.labels.tolist() == [int(np.asarray(train.read(row))[0, 0, 0]) % 3 for row in range(len(train))]


@pytest.mark.parametrize("kind", ["pixels", "files"])
def test_ids_of_a_data_set_do_not_depend_on_places(fake: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    def ids() -> dict[int, str]:
        source = open_source("fake", root=fake)
        assert source.ids_from == ("content" if kind == "pixels" else "file names")
        train = source.groups["train"]
        return {int(np.asarray(train.read(row))[0, 0, 0]): train.id(row) for row in range(len(train))}

    def fewer(self: Any, root: Path, train: bool = True, download: bool = False, without: int | None = None) -> None:
        made(self, root, train, download)
        if without is not None and train:
            self.values.remove(without), self.targets.pop(without)
        if kind == "files":
            self.root = root
            self._image_files = [Path(root) / "images" / f"{value}.png" for value in self.values]

    made = Fake.__init__
    monkeypatch.setattr(Fake, "__init__", fewer)
    before = ids()
    monkeypatch.setattr(Fake, "__init__", lambda *words, **named: fewer(*words, **named, without=3))
    assert ids() == {value: name for value, name in before.items() if value != 3}
    if kind == "files":
        assert before[5] == "fake/train/images/5.png"


def test_a_fraction_is_given_exactly_where_there_is_no_test_half(fake: Path) -> None:
    with pytest.raises(UsageError, match=r"has a test half.*leave out --test-fraction"):
        open_source("fake", root=fake, test_fraction=0.5)
    with pytest.raises(UsageError, match=r"no test half.*give --test-fraction"):
        open_source("unsplit", root=fake)


def test_nothing_is_fetched_unless_asked_for(fake: Path) -> None:
    with pytest.raises(DataError) as caught:
        open_source("fake", root=fake / "elsewhere")
    assert all(word in str(caught.value) for word in ("fake is not under", "elsewhere", "--root", "--download"))
    assert len(open_source("fake", root=fake / "elsewhere", download=True).groups["train"]) == 12


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "mnist", "fashion-mnist", "flowers102", "oxford-pets", "dtd"])
def test_a_data_set_that_is_not_there_is_refused_with_the_way_out(tmp_path: Path, offline: Path, name: str) -> None:
    with pytest.raises(DataError) as caught:
        open_source(name, root=tmp_path / "none")
    assert all(word in str(caught.value) for word in (name, str(tmp_path / "none"), "--root", "--download"))
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("name", ["caltech256", "eurosat"])
def test_a_data_set_without_halves_that_is_not_there_is_refused_too(tmp_path: Path, offline: Path, name: str) -> None:
    with pytest.raises(DataError, match="--root FOLDER, or --download"):
        open_source(name, root=tmp_path / "none", test_fraction=0.2)


@pytest.mark.parametrize("name", DATASETS)
def test_every_name_is_a_class_of_torchvision(name: str) -> None:
    assert isinstance(getattr(torchvision.datasets, DATASETS[name].kind), type)


def test_an_image_that_a_data_set_cannot_read_is_named(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Any, row: int) -> Any:
        raise OSError("cannot identify image file")

    source = open_source("fake", root=fake)
    monkeypatch.setattr(Fake, "__getitem__", broken)
    with pytest.raises(UnreadableImage, match="cannot identify"):
        source.groups["train"].read(3)


def test_a_real_cifar10_folder_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    images = np.stack([np.asarray(photo(seed, 32, 32)) for seed in range(24)])
    flat = images.transpose(0, 3, 1, 2).reshape(24, -1)
    parts = [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]
    for number, name in enumerate(parts):
        rows = range(4 * number, 4 * number + 4)
        batch = {"data": flat[4 * number : 4 * number + 4], "labels": [row % 10 for row in rows]}
        (folder / name).write_bytes(pickle.dumps(batch))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": names}))
    monkeypatch.setattr(torchvision.datasets.CIFAR10, "_check_integrity", lambda self: True)
    monkeypatch.setattr(torchvision.datasets.cifar, "check_integrity", lambda *_: True)
    source = open_source("cifar10", root=tmp_path)
    assert source.class_names == tuple(names)
    assert source.groups["train"].labels.tolist() == [row % 10 for row in range(20)]
    assert np.array_equal(np.asarray(source.groups["test"].read(2)), images[22])
