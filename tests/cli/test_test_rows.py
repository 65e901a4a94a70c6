"""Every command that scores test rows refuses a file whose test rows, or people, are among the training rows."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from linprobe.data.feature_reader import Description
from linprobe.data.feature_writer import FeatureWriter
from tests.cli.outcomes import NOISY, Cli, result_of
from tests.cli.test_owners import write_owned
from tests.conftest import CLASS_NAMES, N_FEATURES, gaussian_rows, mostly_nightly, write_features

Refused = Callable[..., None]
EQUAL = "test rows equal training rows"
BOTH = "people with rows on both sides"
COMMANDS: dict[str, list[str]] = {
    "train": ["train", "f.h5", "--unit", "record", *NOISY, "--steps", "2", "--out", "run"],
    "train without privacy": ["train", "f.h5", "--unit", "record", "--method", "non-private", "--out", "run"],
    "a dry run": ["train", "f.h5", "--unit", "record", *NOISY, "--dry-run"],
    "tune": [
        "tune",
        "f.h5",
        "--unit",
        "record",
        "--method",
        "noisy-gd",
        "--eps",
        "3",
        "--grid",
        "steps=2,3",
        "--out",
        "run",
    ],
    "compare": [
        "compare",
        "f.h5",
        "--unit",
        "record",
        "--methods",
        "noisy-gd:steps=2",
        "--eps",
        "3",
        "--seeds",
        "1",
        "--out",
        "run",
    ],
    "evaluate": ["evaluate", "good", "f.h5"],
    "the run's own file": ["evaluate", "good"],
    "attack": ["attack", "good", "--features", "f.h5"],
    "verify": ["verify", "good", "--features", "f.h5"],
    "info": ["info", "f.h5"],
}

BY_DAY = ("train without privacy", "tune", "evaluate", "attack", "verify")  # with rows; the others with people


@pytest.fixture
def good(cli: Cli, tmp_path: Path) -> Path:
    """A feature file with owners, `f.h5`; a run on it is in `good`."""
    path = write_owned(tmp_path / "f.h5")
    assert cli("train", "f.h5", *NOISY, "--unit", "record", "--steps", "2", "--out", "good").status == 0
    return path


def copied(path: Path, scale: float = 1.0) -> None:
    """Make two test rows copies of training rows."""
    with h5py.File(path, "r+") as file:
        for place in (3, 77):
            file["test/x"][place] = scale * file["train/x"][place + 100]


def shared(path: Path) -> None:
    """Give the last test rows to two people with training rows."""
    with h5py.File(path, "r+") as file:
        names = file["test/owner"].asstr()[:]
        names[-2:] = ["train 000", "train 007"]
        file["test/owner"][:] = names


@pytest.mark.parametrize(
    ("command", "private"),
    mostly_nightly(
        [(command, private) for command in sorted(COMMANDS.keys() - {"info"}) for private in (False, True)],
        lambda case: case[0] == "train" or (case[0] in BY_DAY and not case[1]),
    ),
)
def test_rows_on_both_sides_are_refused(cli: Cli, refused: Refused, good: Path, command: str, private: bool) -> None:
    copied(good)
    with h5py.File(good, "r+") as file:
        file.attrs["test_rows"] = "private" if private else "public"
    refused(cli(*COMMANDS[command]), 3, [f"f.h5: 2 of 120 {EQUAL}", "[3, 77]", "allowed: 0", "remove them"])
    assert not Path("run").exists()


@pytest.mark.parametrize("command", mostly_nightly(COMMANDS, lambda command: command not in BY_DAY))
def test_people_on_both_sides_are_refused(cli: Cli, refused: Refused, good: Path, command: str) -> None:
    shared(good)
    outcome = cli(*COMMANDS[command])
    refused(outcome, 3, [f"f.h5: {BOTH}", ": 2; allowed: 0", "extract --test-fraction"])
    assert "train 0" not in outcome.stderr
    assert not Path("run").exists()


@pytest.mark.parametrize("link", ["hard", "soft", "external", "virtual"])
def test_test_rows_that_are_the_private_data_set_are_refused(
    cli: Cli, refused: Refused, tmp_path: Path, link: str
) -> None:
    path = write_features(tmp_path / "f.h5")
    with h5py.File(path, "r+") as file:
        for part in ("x", "y", "id"):
            del file[f"test/{part}"]
            file[f"test/{part}"] = file[f"train/{part}"]
        if link != "hard":
            del file["test/x"]
        if link == "virtual":
            layout = h5py.VirtualLayout(shape=file["train/x"].shape, dtype="f4")
            layout[:] = h5py.VirtualSource(file["train/x"])
            file.create_virtual_dataset("test/x", layout)
        elif link != "hard":
            file["test/x"] = h5py.SoftLink("/train/x") if link == "soft" else h5py.ExternalLink("f.h5", "/train/x")
    words = {"hard": "one data set", "virtual": "lies in another file"}
    refused(cli("train", "f.h5", *NOISY, "--out", "run"), 3, [words.get(link, "is a link")])


@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_a_run_is_not_evaluated_on_its_private_rows(
    cli: Cli, refused: Refused, trained_run: Path, features_file: Path, tmp_path: Path, scale: float
) -> None:
    other = Path(shutil.copy(features_file, tmp_path / "other.h5"))
    with h5py.File(other, "r+") as file:
        private = file["train/x"][:]
        file["train/x"][:] = -private
        file["test/x"][:] = scale * private[:120]
    refused(cli("evaluate", trained_run, other), 3, [f"other.h5: 120 of 120 {EQUAL} of {features_file}"])
    moved = Path(shutil.copytree(trained_run, tmp_path / "moved"))
    manifest = moved / "manifest.json"
    manifest.write_text(manifest.read_text().replace(str(features_file), str(tmp_path / "gone.h5")))
    outcome = cli("evaluate", moved, other)
    assert outcome.status == 0
    assert "gone.h5 is not here, so rows of" in outcome.stderr
    other.write_bytes(features_file.read_bytes())
    with h5py.File(other, "r+") as file:
        file["train/x"][:] = -private
        file["test/x"][:] = -file["test/x"][:]

    def other_name(gone: Path) -> None:
        shutil.copy(features_file, gone)
        with h5py.File(gone, "r+") as file:
            file["train/id"][7] = "another"

    for write, said in (
        (lambda gone: shutil.copy(features_file, gone), False),
        (other_name, True),
        (lambda gone: write_features(gone, width=N_FEATURES + 1), True),
    ):
        (tmp_path / "gone.h5").unlink(missing_ok=True)
        write(tmp_path / "gone.h5")
        outcome = cli("evaluate", moved, other)
        assert outcome.status == 0
        assert ("gone.h5 does not hold the rows of run" in outcome.stderr) == said


PROTECTED = {
    "public": ("fully-private", "rows that the method protects"),
    "test": ("noisy-gd", "private test rows"),
}


@pytest.mark.parametrize("group", PROTECTED)
def test_other_private_rows_of_a_run_are_no_test_rows_of_another_file(
    cli: Cli, refused: Refused, features_file: Path, tmp_path: Path, group: str
) -> None:
    method, words = PROTECTED[group]
    path, other = (Path(shutil.copy(features_file, tmp_path / name)) for name in ("f.h5", "other.h5"))
    with h5py.File(path, "r+") as file, h5py.File(other, "r+") as copy:
        hidden = file[f"{group}/x"][:]
        copy["test/x"][: len(hidden)] = hidden
        copy["train/x"][:] = -copy["train/x"][:]
        del copy["public"]
        if group == "test":
            file.attrs["test_rows"] = "private"
            del file["public"]
    settings = ["--steps", "2", "--condition", "none", "--intercept", "1"]
    first = ["train", path, "--method", method, *settings, "--eps", "1", "--book", "by-hand.jsonl", "--out", "run"]
    assert cli(*first).status == 0
    said = [f"other.h5: {len(hidden)} of 120 test rows equal {words} of {path}"]
    refused(cli("evaluate", "run", other), 3, said)
    following = ["train", other, *NOISY, *settings, "--init", "run", "--out", "next"]
    for command in (following, [*following, "--dry-run"]):
        refused(cli(*command), 3, said)
    assert not Path("next").exists()


def test_a_run_whose_file_holds_other_rows_now_is_evaluated_on_it_only_if_told_to(
    cli: Cli, refused: Refused, features_file: Path, tmp_path: Path
) -> None:
    path = Path(shutil.copy(features_file, tmp_path / "f.h5"))
    assert cli("train", path, *NOISY, "--steps", "2", "--book", "by-hand.jsonl", "--out", "run").status == 0
    told = "f.h5 does not hold the rows of run run"
    for command in (["evaluate", "run"], ["evaluate", "run", path]):
        assert told not in cli(*command).stderr
    with h5py.File(path, "r+") as file:  # under the same names
        private = file["train/x"][:]
        file["train/x"][:] = -private
        file["test/x"][:] = private[:120]
    assert f"{told} any more" in cli("evaluate", "run", path).stderr
    refused(cli("evaluate", "run"), 3, [told, "give the feature file to score"])


def test_a_run_is_not_evaluated_on_the_people_it_was_trained_on(
    cli: Cli, refused: Refused, good: Path, tmp_path: Path
) -> None:
    other = Path(shutil.copy(good, tmp_path / "other.h5"))
    with h5py.File(other, "r+") as file:
        names = file["train/owner"].asstr()[:]
        file["train/owner"][:] = [f"new {name}" for name in names]
        file["test/owner"][:] = names[:120]
    refused(cli("evaluate", "good", other), 3, [f"other.h5 and training rows of f.h5: {BOTH}", ": 36; allowed: 0"])


def test_a_public_file_holds_nobody_with_test_rows(cli: Cli, refused: Refused, good: Path, tmp_path: Path) -> None:
    public = write_owned(tmp_path / "public.h5", groups=("train",))
    with h5py.File(public, "r+") as file:
        file["train/x"][:] = -file["train/x"][:]
        file["train/owner"][:] = [name.replace("train 00", "test 00") for name in file["train/owner"].asstr()[:]]
    words = ["train", good, "--method", "adamix", "--unit", "record", "--eps", "3", "--public", public, "--out", "run"]
    refused(cli(*words), 3, [f"f.h5 with public rows of {public}: {BOTH}", ": 10; allowed: 0"])


def test_public_rows_that_a_method_protects_are_no_test_rows(
    cli: Cli, refused: Refused, features_file: Path, tmp_path: Path
) -> None:
    path = Path(shutil.copy(features_file, tmp_path / "f.h5"))
    with h5py.File(path, "r+") as file:
        file["public/x"][4] = file["test/x"][9]
    words = ["train", path, "--eps", "3", "--steps", "2"]
    refused(cli(*words, "--method", "fully-private", "--out", "a"), 3, ["1 of 120 test rows equal public rows", "[9]"])
    assert cli(*words, "--method", "adamix", "--out", "b").status == 0


def test_one_row_in_a_thousand_trains_with_a_note(cli: Cli, tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).standard_normal((2000, 10)).astype(np.float32), np.arange(2000) % 4
    x[1700] = x[3]
    arrays: dict[str, Any] = {"X_train": x[:1000], "y_train": y[:1000], "X_test": x[1000:], "y_test": y[1000:]}
    np.savez("a.npz", **arrays)
    told = f"1 of 1,000 {EQUAL}, or multiples of them, first at test rows [700]"
    assert told in cli("import", "a.npz", "--out", "a.h5").stderr
    trained = cli("train", "a.h5", *NOISY, "--steps", "2", "--out", "run", "--json")
    assert told in trained.stderr
    assert result_of(trained)["test_accuracy"] is not None


def test_import_writes_equal_rows_with_a_note_and_train_names_wrong_settings_first(
    cli: Cli, refused: Refused, tmp_path: Path
) -> None:
    x, y = np.random.default_rng(0).standard_normal((400, 10)).astype(np.float32), np.arange(400) % 4
    np.savez(tmp_path / "a.npz", X_train=x, y_train=y, X_test=x, y_test=y)
    outcome = cli("import", tmp_path / "a.npz", "--out", "a.h5")
    assert outcome.status == 0
    assert "commands that score test rows refuse this file" in outcome.stderr
    assert cli("info", "a.h5").status == 0
    refused(cli("train", "a.h5", *NOISY, "--delta", "0.5"), 4, ["delta is 0.5"])
    refused(cli("train", "a.h5", "--method", "zero-shot"), 2, ["needs text weights"])
    refused(cli("train", "a.h5", *NOISY), 3, [f"400 of 400 {EQUAL}"])


def _imaged(path: Path, n_train: int, n_test: int, common: int) -> Path:
    """A file as `extract` makes it, whose first `common` test rows are other rows of the first training images."""
    keys = np.random.default_rng(0).integers(1, 256, (2, n_train + n_test, 16), dtype=np.uint8)
    with FeatureWriter(path, Description(CLASS_NAMES, backbone="test")) as writer:
        for group, n_rows in (("train", n_train), ("test", n_test)):
            rows, labels = gaussian_rows(group, n_rows)
            writer.write_group(
                group, n_rows, rows.shape[1], [rows], labels, [f"{group}/{row}" for row in range(n_rows)]
            )
    with h5py.File(path, "r+") as file:
        for kind, digests in zip(("key", "source_key"), keys, strict=True):
            test = digests[n_train:].copy()
            test[:common] = digests[:common]
            file[f"private_log/train_{kind}"], file[f"private_log/test_{kind}"] = digests[:n_train], test
    return path


@pytest.mark.parametrize("kind", ["key", "source_key"])
def test_test_rows_of_training_images_are_refused_though_the_rows_differ(
    cli: Cli, refused: Refused, tmp_path: Path, kind: str
) -> None:
    """Without a budget book nothing else knew, and the exact accuracy on them was published."""
    path = _imaged(tmp_path / "f.h5", 400, 120, 3)
    with h5py.File(path, "r+") as file:
        del file[f"private_log/test_{'source_key' if kind == 'key' else 'key'}"]
    words = [f"f.h5: 3 of 120 {EQUAL}", "or are of their images", "[0, 1, 2]", "allowed: 0"]
    refused(cli("train", path, *NOISY, "--steps", "2", "--out", "run"), 3, words)
    copy = _imaged(tmp_path / "g.h5", 400, 120, 0)
    assert cli("train", copy, *NOISY, "--steps", "2", "--out", "run", "--book", "own.jsonl").status == 0
    refused(cli("evaluate", "run", path), 3, ["3 of 120", "or are of their images"], notes=9)


def test_a_few_common_images_are_noted_in_every_run_and_never_refused_by_the_book(cli: Cli, tmp_path: Path) -> None:
    path = _imaged(tmp_path / "f.h5", 3000, 2000, 2)
    for out in ("first", "second"):
        outcome = cli("train", path, *NOISY, "--steps", "2", "--out", out)
        assert outcome.status == 0, outcome.stderr
        assert "2 of 2,000" in outcome.stderr
    assert cli("evaluate", "first").status == 0
