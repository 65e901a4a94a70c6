"""`linprobe tune --unit owner`: a person pays for the choice like for a step, whatever the number of rows."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linprobe.accounting.book import read_book
from linprobe.accounting.figures import rounded_up
from linprobe.data.blocks import ArraySource
from linprobe.mechanisms.correct_predictions import correct_counts
from linprobe.runs.figures import count_private
from linprobe.runs.run_folder import read_run
from tests.cli.outcomes import Cli, result_of, write_sealed
from tests.cli.test_owners import PEOPLE, write_owned

SIZES = np.array([1, 2, 3, 40, 1, 7])
GRID = ["--method", "noisy-gd", "--grid", "clip_norm=0.3,0.5", "--steps", "3", "--repetitions", "2", "--init", "zero"]
SHRINK = ["--method", "noisy-gd", "--shrink", "0,0.5,1", "--steps", "3"]
PRIVATE = ["--unit", "owner", "--eps", "3", "--json"]


@pytest.fixture(scope="module")
def owned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 training rows of 120 people. Do not change it."""
    return write_owned(tmp_path_factory.mktemp("owned") / "owned.h5")


@pytest.mark.parametrize("n_models", [1, 4])
def test_a_person_changes_the_counts_by_at_most_the_sensitivity(n_models: int) -> None:
    rng = np.random.default_rng(0)
    bounds = np.concatenate([[0], np.cumsum(SIZES)])
    n = int(bounds[-1])
    x, y = rng.standard_normal((n, 5)).astype(np.float32), rng.integers(0, 3, n)
    models = [(rng.standard_normal((5, 3)).astype(np.float32), np.float32([1, 0, 0])) for _ in range(n_models)]

    def counts(keep: Any, sizes: Any) -> Any:
        part = np.concatenate([[0], np.cumsum(sizes)])
        return correct_counts([count_private(*model, ArraySource(x[keep], y[keep]), part) for model in models], 6)

    whole, alone = counts(np.ones(n, dtype=bool), SIZES), []
    for person, size in enumerate(SIZES):
        mine = (bounds[person] <= np.arange(n)) & (np.arange(n) < bounds[person + 1])
        change = whole.value - counts(~mine, np.delete(SIZES, person)).value
        assert np.linalg.norm(change) <= whole.sensitivity
        alone.append(counts(mine, [size]).value)
        np.testing.assert_array_equal(change, alone[-1])  # nobody else counts otherwise
        blank = x.copy()
        blank[mine] = 0
        empty = correct_counts([count_private(*model, ArraySource(blank, y), bounds) for model in models], 6)
        np.testing.assert_array_equal(whole.value - empty.value, alone[-1])
    assert max(np.abs(one).max() for one in alone) == 0.5


@pytest.mark.parametrize("words", [GRID, SHRINK, [*GRID[:-2], "--shrink", "0,1"]])
def test_the_choice_protects_people(cli: Cli, owned: Path, words: list[str]) -> None:
    result = result_of(cli("tune", owned, *words, *PRIVATE, "--out", "run"))
    assert (result["unit"], result["n_units"]) == ("owner", PEOPLE)
    assert result["epsilon"] <= 3
    manifest = read_run(Path("run")).manifest
    assert "people, each with all of their private rows" in manifest.guarantee
    assert cli("verify", "run", "--features", owned).status == 0
    assert cli("attack", "run", "--resamples", 0).status == 0
    assert cli("report", "run", "--html", "page.html").status == 0
    (entry,) = read_book(Path(result_of(cli("budget", owned, "--json"))["book"])).counted
    assert entry.unit == "owner"


@pytest.mark.parametrize(("key", "value"), [("unit", "record"), ("n_units", 400), ("unit", "family")])
def test_a_selection_with_another_unit_does_not_verify(cli: Cli, owned: Path, key: str, value: Any) -> None:
    result_of(cli("tune", owned, *GRID, *PRIVATE, "--out", "run"))
    manifest = json.loads(Path("run/manifest.json").read_text())
    write_sealed(Path("run"), {**manifest, key: value})
    assert cli("verify", "run").status == 4


def test_what_does_not_protect_people_is_refused_before_the_first_run(
    cli: Cli, refused: Callable[..., None], owned: Path
) -> None:
    words = ["--method", "adamix", "--grid", "centre=none,public", "--variant", "theory", "--unit", "owner"]
    refused(cli("tune", owned, *words, "--eps", "3", "--out", "run"), 2, ["unit"])
    assert not Path("run").exists()


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_a_choice_by_record_says_what_it_costs_people_with_several_rows(cli: Cli, owned: Path, dry: list[str]) -> None:
    done = cli("tune", owned, "--eps", "3", *GRID, "--unit", "record", "--out", "chosen", *dry)
    assert done.status == 0, done.stderr
    note = next(line for line in done.stderr.splitlines() if "protects single rows" in line)
    if not dry:
        costs = json.loads(cli("budget", owned, "--json").stdout)["epsilon_by_rows"]
        assert re.findall(r"([\d.]+) with (\d+) rows", note) == [(rounded_up(costs[rows]), rows) for rows in costs]
