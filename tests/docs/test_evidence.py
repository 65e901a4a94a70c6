"""What docs/evidence.md claims about the committed figures."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean

import pytest

RESULTS = Path(__file__).parents[2] / "benchmarks" / "accuracy" / "results.json"
FROM_OTHER_STARTS = {"fully-private", "dp-ls", "prototypes", "only-public", "non-private"}
ROWS = json.loads(RESULTS.read_text(encoding="utf-8"))["results"]
ACCURACY = {(row["data"], row["shots"], row["row"], row["epsilon"]): 100 * mean(row["accuracies"]) for row in ROWS}


@pytest.mark.parametrize("data", sorted({data for data, shots, _, _ in ACCURACY if shots}))
def test_no_method_that_starts_from_public_rows_ends_below_only_public(data: str) -> None:
    start = ACCURACY[data, 2, "only-public", None]
    started = {
        key: found for key, found in ACCURACY.items() if key[:2] == (data, 2) and key[2] not in FROM_OTHER_STARTS
    }
    assert len(started) >= 60
    for key, found in started.items():
        assert found >= start - 0.05, (key, found, start)


def test_every_figure_is_of_five_seeds() -> None:
    assert {len(row["accuracies"]) for row in ROWS} == {5}
