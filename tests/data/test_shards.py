"""Shards: several feature files are the data set that their rows would be in one file, or are refused."""

from __future__ import annotations

import re
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from linprobe.accounting.book import read_book
from linprobe.accounting.row_keys import keys_file, read_keys
from linprobe.data.dataset import Split, dataset_of, open_features
from linprobe.data.feature_file import FeatureFile, ShardedFeatures
from linprobe.data.feature_reader import Description
from linprobe.data.feature_writer import FeatureWriter
from linprobe.errors import DataError, Silent
from linprobe.options.requests import TrainRequest
from linprobe.training.charge import existing_book
from linprobe.training.train import train_run
from tests.conftest import gaussian_rows

NAMES = ("ant", "bee", "cat")
SIZES = {"train": 700, "test": 90}
CUTS = ({"train": (0, 300)}, {"train": (300, 410), "test": (0, 40)}, {"train": (410, 700), "test": (40, 90)})
WHOLE = {"train": (0, 700), "test": (0, 90)}
WIDTH = 6
ABOUT = Description(class_names=NAMES, backbone="vit", weights_digest="a")


def write(
    path: Path,
    cuts: dict[str, tuple[int, int]],
    about: Description = ABOUT,
    *,
    owned: bool = False,
    dtype: Any = np.float32,
    width: int = WIDTH,
) -> None:
    """Some rows of the data set, two rows a person if `owned`."""
    with FeatureWriter(path, about) as writer:
        for group, (start, stop) in cuts.items():
            rows, labels = gaussian_rows(group, SIZES[group], width, len(NAMES))
            ids = [f"{group}/{row}" for row in range(start, stop)]
            people = [f"{group}/{row // 2}" for row in range(start, stop)] if owned else None
            writer.write_group(
                group, stop - start, width, [rows[start:stop]], labels[start:stop], ids, dtype, owners=people
            )


@pytest.fixture(params=[False, True], ids=["records", "people"])
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """`whole.h5`, and the same rows as `shards/*.h5`."""
    (tmp_path / "shards").mkdir()
    write(tmp_path / "whole.h5", WHOLE, owned=request.param)
    for number, cuts in enumerate(CUTS):
        write(tmp_path / "shards" / f"{number}.h5", cuts, owned=request.param)
    return tmp_path


def test_shards_hold_the_rows_of_one_file(folder: Path) -> None:
    with open_features(folder / "whole.h5") as one, open_features(folder / "shards" / "*.h5") as many:
        assert (many.sizes, many.n_features, many.description) == (one.sizes, one.n_features, one.description)
        for group, size in one.sizes.items():
            assert many.digest(group) == one.digest(group)
            assert many.has_owners(group) == one.has_owners(group)
            for part in (slice(0, size), slice(0, 0), slice(size - 3, size), slice(35, 45)):
                assert np.array_equal(many.rows(group, part), one.rows(group, part))
                assert np.array_equal(many.labels(group, part), one.labels(group, part))
                assert many.ids(group, part) == one.ids(group, part)
            keep = np.random.default_rng(1).random(size) < 0.3
            for found, expected in zip(many.blocks(group, keep), one.blocks(group, keep), strict=True):
                assert all(map(np.array_equal, found, expected))
        assert np.array_equal(many.rows("train", slice(290, 420)), one.rows("train", slice(290, 420)))


def test_processes_divide_shards_as_they_divide_one_file(folder: Path) -> None:
    with open_features(folder / "whole.h5") as one, open_features(folder / "shards" / "*.h5") as many:
        parts = [dataset_of(features, split=Split(unit="record")).private.shard(250, 500) for features in (one, many)]
        blocks = [[np.concatenate(found) for found in zip(*part.blocks(), strict=True)] for part in parts]
        assert all(np.array_equal(mine, theirs) for mine, theirs in zip(*blocks, strict=True))


def test_a_run_on_shards_is_the_run_on_one_file_and_in_one_book(folder: Path) -> None:
    books = []
    for name in ("whole.h5", "shards/*.h5"):
        with open_features(folder / name, whole=False) as features:
            unit = "owner" if features.has_owners("train") else "record"
        given = TrainRequest(
            features=folder / name, method="noisy-gd", epsilon=1.0, delta=1e-4, steps=3, noise_seed=1,
            insecure_seed=True, out=folder / f"run{len(books)}", unit=unit,
        )  # fmt: skip
        train_run(given, Silent())
        with open_features(folder / name) as features:
            books.append(existing_book(features, make=True).path)
    assert (folder / "run0" / "model.npz").read_bytes() == (folder / "run1" / "model.npz").read_bytes()
    assert books[0] == books[1]
    assert len(read_book(books[0]).entries) == 2


def test_a_shard_alone_has_row_keys_of_the_whole(folder: Path) -> None:
    keys = {}
    for name in ("shards/0.h5", "shards/*.h5"):
        given = TrainRequest(
            features=folder / name, method="noisy-gd", epsilon=1.0, delta=1e-4, steps=2, unit="record",
            out=folder / f"run{len(keys)}",
        )  # fmt: skip
        train_run(given, Silent())
        with open_features(folder / name) as features:
            keys[name] = set(read_keys(keys_file(existing_book(features, make=True).path)).rows.tolist())
    part, whole = keys.values()
    assert len(part) == CUTS[0]["train"][1]
    assert part < whole


def test_a_half_written_shard_is_not_read(folder: Path) -> None:
    (folder / "shards" / ".9.h5").write_bytes(b"not yet")
    with open_features(folder / "shards" / "*.h5") as many:
        assert many.sizes == SIZES


DIFFERENT: dict[str, tuple[Callable[[Path], None], str]] = {
    "classes": (lambda path: write(path, CUTS[2], replace(ABOUT, class_names=NAMES[::-1])), "class names"),
    "weights": (lambda path: write(path, CUTS[2], replace(ABOUT, weights_digest="b")), "weights_digest .b"),
    "no backbone": (lambda path: write(path, CUTS[2], replace(ABOUT, backbone="")), "backbone"),
    "private test rows": (lambda path: write(path, CUTS[2], replace(ABOUT, test_rows="private")), "test rows .private"),
    "precision": (lambda path: write(path, CUTS[2], dtype=np.float16), "type of numbers .float16"),
    "width": (lambda path: write(path, CUTS[2], width=5), "width 5"),
    "owners": (lambda path: write(path, CUTS[2], owned=True), "does not name the owners"),
    "repeated ids": (lambda path: write(path, {"train": (0, 9)}), "9 repeated ids"),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_shards_that_do_not_belong_together_are_refused(tmp_path: Path, name: str) -> None:
    make, reason = DIFFERENT[name]
    for number, cuts in enumerate(CUTS[:2]):
        write(tmp_path / f"{number}.h5", cuts)
    make(tmp_path / "2.h5")
    with pytest.raises(DataError, match=reason), open_features(tmp_path / "*.h5"):
        pass


def test_a_person_in_two_shards_that_do_not_touch_is_refused(tmp_path: Path) -> None:
    for number, part in enumerate([(0, 10), (20, 30), (10, 20)]):
        about = replace(ABOUT, ids_from="given")
        with FeatureWriter(tmp_path / f"{number}.h5", about) as writer:
            rows, labels = gaussian_rows("train", 40, WIDTH, len(NAMES))
            here = slice(*part)
            ids = [str(row) for row in range(*part)]
            people = [f"p{number % 2}"] * 10
            writer.write_group("train", 10, WIDTH, [rows[here]], labels[here], ids, owners=people)
    with open_features(tmp_path / "*.h5") as many, pytest.raises(DataError, match="not adjacent"):
        dataset_of(many, split=Split(unit="owner"))


def test_a_path_that_is_no_file_has_a_next_step(tmp_path: Path) -> None:
    for path, advice in (
        (tmp_path, f"the shards in it as '{tmp_path}/*.h5'"),
        (Path(), "as './*.h5'"),  # it has no parts
        (Path("s3://bucket/x.h5"), "mount the store"),
        (Path("12:30.h5"), "does not exist; make one with"),
    ):
        with pytest.raises(DataError, match=re.escape(advice)):
            FeatureFile(path)


def test_more_shards_than_files_may_be_open(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for number in range(30):
        write(tmp_path / f"{number}.h5", {"train": (number, number + 1)})
    held = len(list(Path("/dev/fd").iterdir()))
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (held + 20, hard))
        with ShardedFeatures(tmp_path / "*.h5") as shards:
            assert shards.sizes == {"train": 30}
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_pattern_without_files_says_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no file matches .*; allowed: feature files"):
        ShardedFeatures(tmp_path / "*.h5")


def test_digests_of_images_have_one_width_in_every_shard(tmp_path: Path) -> None:
    for number, width in enumerate((16, 20)):
        write(tmp_path / f"{number}.h5", CUTS[number])
        with h5py.File(tmp_path / f"{number}.h5", "r+") as file:
            rows = len(file["train/y"])
            file["private_log/train_key"] = np.ones((rows, width), dtype=np.uint8)
    with open_features(tmp_path / "*.h5") as many, pytest.raises(DataError, match=r"shape \(110, 20\).* 16 bytes"):
        many.image_keys("train")
