"""`linprobe attack` on runs that protect people: members and others are people with all of their rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from linprobe.data.feature_reader import Description
from linprobe.data.feature_writer import FeatureWriter
from linprobe.evaluation.attack import sums_of_people
from tests.cli.outcomes import Cli, result_of

SIZES = {"train": 80, "test": 80, "public": 10}  # people
LIRA = ["--lira", "--shadows", "16", "--jobs", "1", "--resamples", "0"]
TRAINING = ["--method", "non-private", "--weight-decay", "0.1", "--centre", "none", "--unit", "owner", "--out", "run"]


@pytest.fixture(scope="module")
def noise_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows that are independent of their labels, 1 to 4 of each person; a model can only memorise them."""
    path = tmp_path_factory.mktemp("noise") / "people.h5"
    rng = np.random.default_rng(0)
    with FeatureWriter(path, Description(class_names=("a", "b"), source="drawn for a test")) as writer:
        for group, n_people in SIZES.items():
            owners = [f"{group} {u:02d}" for u in range(n_people) for _ in range(1 + u % 4)]
            rows = rng.standard_normal((len(owners), 150)).astype(np.float32)
            ids = [f"{group}/{row}" for row in range(len(owners))]
            writer.write_group(group, *rows.shape, [rows], rng.integers(2, size=len(owners)), ids, owners=owners)
    return path


def copy_of(file: Path, path: Path) -> Path:
    path.write_bytes(file.read_bytes())
    return path


def test_sums_of_people() -> None:
    assert sums_of_people(np.array([1.0, 2.0, 4.0, 8.0]), np.array([2, 0, 1, 1])).tolist() == [3, 0, 4, 8]


def test_people_whom_a_model_remembers_are_found_out_and_better_with_shadows(cli: Cli, noise_file: Path) -> None:
    assert cli("train", noise_file, *TRAINING).status == 0
    manifest = json.loads(Path("run/manifest.json").read_text())
    assert (manifest["unit"], manifest["n_units"], manifest["private"]) == ("owner", 80, False)
    threshold = result_of(cli("attack", "run", "--json"))
    lira = result_of(cli("attack", "run", "--json", *LIRA))
    assert (threshold["compared"], threshold["members"], threshold["non_members"]) == ("people", 80, 80)
    assert threshold["auc_low"] > 0.6
    assert lira["auc"] >= threshold["auc"]
    assert lira["shadows"] == 16
    assert cli("attack", "run", "--resamples", "0").stdout.splitlines()[1].split() == [
        "people", "80", "members,", "80", "non-members",
    ]  # fmt: skip


@pytest.mark.parametrize("attack", [[], LIRA])
def test_people_are_near_guessing_at_a_small_epsilon(cli: Cli, noise_file: Path, attack: list[str]) -> None:
    words = ["--method", "adamix", "--eps", "0.1", "--steps", "5", "--unit", "owner", "--out", "run"]
    assert cli("train", noise_file, *words).status == 0
    result = result_of(cli("attack", "run", "--json", *attack))
    assert (result["compared"], result["members"]) == ("people", 80)
    assert abs(result["auc"] - 0.5) < 0.18
    assert result["tpr_limit_at_fpr"]["0.01"] == pytest.approx(0.0109, abs=1e-3)


def test_without_owners_of_test_rows_rows_are_compared(
    cli: Cli, refused: Callable[..., None], noise_file: Path, tmp_path: Path
) -> None:
    bare = copy_of(noise_file, tmp_path / "bare.h5")
    with h5py.File(bare, "r+") as file:
        del file["test/owner"]
    assert cli("train", bare, *TRAINING).status == 0
    assert result_of(cli("attack", "run", "--json", "--resamples", "0"))["compared"] == "rows"
    refused(cli("attack", "run", *LIRA), 2, ["have no owners", "threshold attack"])
