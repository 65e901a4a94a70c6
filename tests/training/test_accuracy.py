"""Accuracy of the defaults on real images, as means over seeds of the public split. Every run has fresh noise."""

import os
from pathlib import Path
from statistics import mean

import pytest

from linprobe.errors import Silent
from linprobe.extraction.feature_files import import_
from linprobe.options.requests import ImportRequest, TrainRequest
from linprobe.training.train import train_run


def accuracy(folder: Path, seeds: int, **request) -> float:
    runs = [
        train_run(TrainRequest(public_shots=2, split_seed=seed, out=folder / f"{seed}", **request), Silent())
        for seed in range(seeds)
    ]
    assert all(run["epsilon"] is None or run["epsilon"] <= run["epsilon_target"] for run in runs if run["steps"])
    return mean(run["test_accuracy"] for run in runs)


def test_adamix_reaches_its_mark_on_digits(tmp_path: Path) -> None:
    assert accuracy(tmp_path, 5, method="adamix", epsilon=3.0) >= 0.925


def test_the_public_rows_alone_stay_far_below_and_all_rows_unprotected_above(tmp_path: Path) -> None:
    assert 0.70 <= accuracy(tmp_path / "public", 5, method="only-public") <= 0.82
    assert accuracy(tmp_path / "all", 1, method="non-private") >= 0.95


def test_more_privacy_costs_accuracy(tmp_path: Path) -> None:
    strict = accuracy(tmp_path / "strict", 5, method="adamix", epsilon=0.02)
    assert strict < accuracy(tmp_path / "loose", 5, method="adamix", epsilon=3.0) - 0.05


@pytest.fixture(scope="module")
def flowers(tmp_path_factory) -> Path:
    folder = os.environ.get("LINPROBE_TEST_DATA")
    arrays = Path(folder or "") / "flowers102-mobilenetv2.npz"
    if folder is None or not arrays.is_file():
        pytest.skip("LINPROBE_TEST_DATA names no folder with flowers102-mobilenetv2.npz")
    out = tmp_path_factory.mktemp("flowers") / "flowers.h5"
    import_(ImportRequest(sources=[arrays], out=out), Silent())
    return out


@pytest.mark.parametrize(("epsilon", "mark"), [(1.0, 0.68), (3.0, 0.78)])
def test_adamix_reaches_its_mark_on_flowers102(flowers, tmp_path: Path, epsilon: float, mark: float) -> None:
    # one seed: repeated runs at epsilon 1 reached 0.70 to 0.72, at epsilon 3 0.82 to 0.84, and each takes 2.5 seconds
    reached = accuracy(tmp_path / "adamix", 1, features=flowers, method="adamix", epsilon=epsilon)
    assert reached >= mark
    assert accuracy(tmp_path / "private", 1, features=flowers, method="fully-private", epsilon=epsilon) < reached
