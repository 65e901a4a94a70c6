"""The page on a billion rows has the tables of its script, and the formulas of the script match its simulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.docs.scripts import load_script

HERE = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def simulate() -> Any:
    """benchmarks/scale/simulate.py."""
    return load_script(HERE / "benchmarks" / "scale" / "simulate.py")


def test_tables_of_the_page_are_those_of_the_script(simulate: Any) -> None:
    page = (HERE / "docs" / "billion-rows.md").read_text(encoding="utf-8")
    missing = [table for table in simulate.tables() if table not in page]
    assert not missing, "run python benchmarks/scale/simulate.py and put these into docs/billion-rows.md"


def test_simulated_failures_are_those_of_the_formula(simulate: Any) -> None:
    for one in simulate.failures():
        assert abs(one["overhead_simulated"] - one["overhead"]) < 4 * one["overhead_error"] + 2e-4, one
        spread = (one["stopped"] * (1 - one["stopped"]) / simulate.TRIALS) ** 0.5
        assert abs(one["stopped_simulated"] - one["stopped"]) < 4 * spread + 1e-3, one


def test_youngs_interval_is_near_the_best(simulate: Any) -> None:
    work, rate = 86_400.0, 4096 / simulate.MTBF
    young = (2 * simulate.SAVING / rate) ** 0.5
    costs = {factor: simulate.expected_seconds(work, factor * young, rate) for factor in (0.5, 1.0, 2.0)}
    assert min(costs, key=costs.__getitem__) == 1.0
