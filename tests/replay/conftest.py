"""The data sets of the replays."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linprobe import cli
from linprobe.training import execute
from tests.replay.datasets import FEATURES, KINDS, NEIGHBOURS, write
from tests.replay.people import PEOPLE, write_people

BASE = "base"
FIRST = "first"


@pytest.fixture(scope="package")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For each kind, a folder of the base and one of each neighbour; in those of `private` a run to start from."""
    folder = tmp_path_factory.mktemp("replay")
    for kind, neighbours in KINDS.items():
        for name, filled in {BASE: None, **neighbours}.items():
            write(folder / kind / name, kind, filled)
    for name, person in {BASE: None, **PEOPLE}.items():
        write_people(folder / "people" / name, person)
    for kind, neighbours, unit in (("private", NEIGHBOURS, "record"), ("people", PEOPLE, "owner")):
        first = folder / f"{FIRST} of {kind}"
        words = ["train", str(folder / kind / BASE / FEATURES), "--method", "noisy-gd", "--eps", "1", "--steps", "2"]
        assert cli.run([*words, "--unit", unit, "--out", str(first)]) == 0
        for name in (BASE, *neighbours):
            shutil.copytree(first, folder / kind / name / FIRST)
    return folder


@pytest.fixture
def other_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refinement changes the class of many rows: with its own weights, few rows of these small sets change."""
    candidate = execute._candidate

    def other(prepared: Any, unlabelled: Any, weights: Any, *given: Any) -> Any:
        moved = np.random.default_rng(5).normal(size=weights.shape) * np.abs(weights).mean() * 2
        found = candidate(prepared, unlabelled, weights, *given)
        return replace(found, weights=(weights + moved).astype(np.float32), strength=0.5)

    monkeypatch.setattr(execute, "_candidate", other)
