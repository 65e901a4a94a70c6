"""`extract --like`: new, unlabelled images become rows exactly as the rows of a run or feature file did."""

from __future__ import annotations

import csv
import io
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import timm
import torch

from linprobe.errors import DataError, UsageError
from linprobe.extraction.extract import extract
from linprobe.extraction.request import ExtractRequest
from tests.conftest import Outcome, write_features
from tests.extraction.samples import CLASSES, Notes, contents, rows_of, run_extract

Cli = Callable[..., Outcome]
Refused = Callable[..., None]


def extract_like(source: Path, like: Path, out: Path, **options: Any) -> Notes:
    """Extract in this process with `--like`."""
    notes = Notes()
    assert extract(ExtractRequest(source=str(source), like=like, out=out, device="cpu", **options), notes) is not None
    return notes


@pytest.fixture
def new(images: Path, tmp_path: Path) -> Path:
    """The test images without their class folders, one of them in a subfolder."""
    folder = tmp_path / "new"
    (folder / "later").mkdir(parents=True)
    for path in sorted((images / "test").glob("*/*")):
        target = folder / ("later" if path.name == "002.png" else "") / f"{path.parent.name}-{path.name}"
        shutil.copy(path, target)
    return folder


@pytest.mark.parametrize(
    "options",
    [
        {"backbone": "pixels"},
        {"backbone": "pixels", "resize": 0, "crop": 0, "arguments": {"mode": "L"}},
        {"backbone": "scattering", "resize": 16, "crop": 16},
        {"backbone": "timm:test_resnet", "random_weights": True, "mean": (0.4,), "interpolation": "nearest"},
    ],
    ids=str,
)
def test_rows_equal_those_of_the_labelled_images(
    images: Path, new: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    run_extract(images, tmp_path / "f.h5", batch_size=9, dtype="float32", **options)
    extract_like(new, tmp_path / "f.h5", tmp_path / "new.h5", batch_size=9, dtype="float32")
    with h5py.File(tmp_path / "new.h5") as file:
        assert sorted(file) == ["private_log", "rows"]
        assert sorted(file["rows"]) == ["id", "x"]
        ids = file["rows/id"].asstr()[:].tolist()
    with h5py.File(tmp_path / "f.h5") as file:
        labelled = {
            name.removeprefix("test/").replace("/", "-"): row for row, name in enumerate(file["test/id"].asstr())
        }
    order = [labelled[name.removeprefix("later/")] for name in ids]
    assert sorted(order) == list(range(9))
    np.testing.assert_allclose(
        rows_of(tmp_path / "new.h5", "rows"), rows_of(tmp_path / "f.h5", "test")[order], atol=1e-5
    )
    made, like = (contents(tmp_path / name) for name in ("new.h5", "f.h5"))
    for name in (
        "backbone",
        "weights",
        "weights_digest",
        "preprocessing",
        "tensor",
        "extraction_digest",
        "class_names",
    ):
        assert made[f"@{name}"] == like[f"@{name}"]


def test_from_a_run_to_predictions_of_new_images(cli: Cli, images: Path, new: Path) -> None:
    words = ["extract", images, "--backbone", "pixels", "--resize", "8", "--crop", "8", "--out", "f.h5"]
    assert cli(*words).status == 0
    assert cli("train", "f.h5", "--method", "non-private", "--out", "run").status == 0
    made = cli("extract", new, "--like", "run")
    assert made.stdout == "features/new-pixels.h5\n"
    assert cli("extract", new, "--like", "run").stdout == made.stdout  # made already
    outcome = cli("predict", "run", "-", stdin=made.stdout)
    assert (outcome.status, outcome.stderr) == (0, "9 rows of the group rows of features/new-pixels.h5\n")
    rows = list(csv.DictReader(io.StringIO(outcome.stdout)))
    assert {row["label"] for row in rows} <= set(CLASSES)
    assert sorted(row["id"] for row in rows)[:2] == ["ant-000.png", "ant-001.png"]
    described = cli("info", made.stdout.strip())
    assert "rows 9" in described.stdout


def test_only_predict_and_info_read_rows_without_labels(cli: Cli, refused: Refused, images: Path, new: Path) -> None:
    run_extract(images, Path("f.h5"))
    extract_like(new, Path("f.h5"), Path("new.h5"))
    assert cli("train", "f.h5", "--method", "non-private", "--out", "run").status == 0
    for words in (["train", "new.h5", "--method", "non-private"], ["evaluate", "run", "new.h5"]):
        refused(cli(*words), 3, ["new.h5", "without labels"])
    refused(cli("predict", "run", "new.h5", "--group", "test"), 2, ["'test'", "rows"])


def test_weights_from_a_file_are_asked_for_and_must_be_the_same(
    cli: Cli, images: Path, new: Path, tmp_path: Path
) -> None:
    for seed in (0, 1):
        torch.manual_seed(seed)
        torch.save(timm.create_model("test_resnet").state_dict(), tmp_path / f"{seed}.pt")
    shape = {"backbone": "timm:test_resnet", "resize": 16, "crop": 16}
    run_extract(images, tmp_path / "f.h5", weights=str(tmp_path / "0.pt"), **shape)
    with pytest.raises(UsageError, match=r"the file 0\.pt; give --weights"):
        extract_like(new, tmp_path / "f.h5", tmp_path / "new.h5")
    with pytest.raises(DataError, match=r"1\.pt have digest .* made with .*0\.pt"):
        extract_like(new, tmp_path / "f.h5", tmp_path / "new.h5", weights=str(tmp_path / "1.pt"))
    shutil.copy(tmp_path / "0.pt", tmp_path / "renamed.pt")
    extract_like(new, tmp_path / "f.h5", tmp_path / "new.h5", weights=str(tmp_path / "renamed.pt"))
    assert contents(tmp_path / "new.h5")["@weights"] == "0.pt"
    assert not (tmp_path / "new.h5.partial").exists()
    assert cli("train", "f.h5", "--method", "non-private", "--out", "run").status == 0
    assert "--weights 0.pt" in cli("predict", "run", new).stderr


@pytest.mark.parametrize(
    "words",
    [("--backbone", "pixels"), ("--resize", "9"), ("--mean", "0.1"), ("--test-fraction", "0.5"), ("--private-test",)],
)
def test_options_that_the_run_settles_are_refused(
    cli: Cli, refused: Refused, images: Path, new: Path, words: tuple[str, ...]
) -> None:
    run_extract(images, Path("f.h5"))
    refused(cli("extract", new, "--like", "f.h5", *words), 2, [words[0], "--like f.h5"], notes=1)


def test_wrong_sources_and_recipes_are_refused(cli: Cli, refused: Refused, images: Path, new: Path) -> None:
    run_extract(images, Path("f.h5"))
    write_features(Path("imported.h5"))
    Path("empty").mkdir()
    Path("text.txt").write_text("no image")
    refused(cli("extract", new, "--like", "imported.h5"), 3, ["imported.h5", "does not say how"])
    refused(cli("extract", new, "--like", "none.h5"), 3, ["none.h5", "run or feature file", "linprobe train"])
    for source, words in (("none", "does not exist"), ("empty", "no images"), ("text.txt", "no image")):
        refused(cli("extract", source, "--like", "f.h5"), 3, [source, words], notes=1)


def test_the_rows_that_were_imitated_are_kept(cli: Cli, refused: Refused, images: Path, new: Path) -> None:
    run_extract(images, Path("f.h5"))
    assert cli("train", "f.h5", "--method", "non-private", "--out", "run").status == 0
    before = Path("f.h5").read_bytes()
    for like in ("f.h5", "run"):
        refused(cli("extract", new, "--like", like, "--out", "./f.h5", "--overwrite"), 2, ["replace an input"])
    assert Path("f.h5").read_bytes() == before


def test_one_image_is_a_source(images: Path, new: Path, tmp_path: Path) -> None:
    run_extract(images, tmp_path / "f.h5")
    extract_like(new / "ant-000.png", tmp_path / "f.h5", tmp_path / "one.h5")
    assert rows_of(tmp_path / "one.h5", "rows").shape == (1, 192)
