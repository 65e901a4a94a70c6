"""The judges of benchmarks/judges, each on a small case. Those that are not installed are skipped.

The planted faults are of kinds that Cebere et al. 2026 (arXiv 2602.17454) report in other libraries. Kinds that depend
on files, such as rows that are not finite, are in tests/replay and tests/data.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from linprobe.mechanisms.noise import NoiseSource
from tests.docs.scripts import load_script

RUN = Path(__file__).parents[2] / "benchmarks/judges/run.py"


@pytest.fixture(scope="module")
def judges() -> ModuleType:
    return load_script(RUN)


def test_epsilon_is_at_most_opendps_and_at_least_the_exact_one(judges: ModuleType) -> None:
    pytest.importorskip("opendp", reason="OpenDP is not installed: pip install opendp")
    pytest.importorskip("mpmath", reason="mpmath is not installed: pip install mpmath")
    rows = judges.accountant((0.7, 10.0), (1, 100), (1e-5, 1e-12))
    assert len(rows) == 6  # at noise 0.7, 100 releases have an epsilon above 100
    for row in rows:
        assert row["exact"] <= row["ours"] <= row["opendp"]
        assert row["ours"] <= row["exact"] * (1 + 1e-12)


@pytest.mark.parametrize(
    ("part", "method"), [("training", "dp-ls"), ("training", "noisy-gd"), ("histogram", "noisy-gd")]
)
def test_jax_privacy_finds_no_epsilon_above_the_claim(judges: ModuleType, part: str, method: str) -> None:
    pytest.importorskip("jax_privacy", reason="JAX Privacy is not installed: pip install jax-privacy")
    for found in judges.canaries(part, method, 3.0, 12, count=60).values():
        bounds = {**found["jax_privacy"], **found["linprobe"]}
        assert 0.5 < bounds.pop("auroc") < 0.9
        assert max(bounds.values()) <= found["claim"]


def test_jax_privacy_finds_a_tenth_of_the_noise(judges: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jax_privacy", reason="JAX Privacy is not installed: pip install jax-privacy")
    real = NoiseSource.add_noise
    monkeypatch.setattr(NoiseSource, "add_noise", lambda self, value, std: real(self, value, std / 10))
    found = judges.canaries("training", "dp-ls", 3.0, 12, count=60)
    for release in ("steps", "covariance"):
        bounds = found[release]["jax_privacy"]
        assert bounds.pop("auroc") > 0.95
        assert max(bounds.values()) > found[release]["claim"]


@pytest.mark.parametrize("unit", ["record", "owner"])
@pytest.mark.parametrize("method", ["noisy-gd", "dp-sgd", "dp-ls", "dp-newton"])
def test_dp_recorder_finds_nothing_in_the_real_code(judges: ModuleType, method: str, unit: str) -> None:
    pytest.importorskip("dp_recorder", reason="dp-recorder is not installed; it is on GitHub alone")
    found = judges.recorded(method, unit, neighbours=1)
    assert found["faults"] == []
    assert found["sums"] >= 2


def test_dp_recorder_finds_planted_faults(judges: ModuleType) -> None:
    pytest.importorskip("dp_recorder", reason="dp-recorder is not installed; it is on GitHub alone")
    for fault, part in judges.PLANTED.items():
        with judges.planted(fault):
            assert judges.recorded("noisy-gd", part=part, neighbours=1)["faults"], fault
