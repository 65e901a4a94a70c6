"""Every part of an audit passes the real code and catches a planted fault: in the noise, or in what a record adds."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from linprobe.accounting.events import HISTOGRAM, TEST_ACCURACY
from linprobe.accounting.figures import epsilon_of, largest_mu
from linprobe.errors import PrivacyError, Silent
from linprobe.evaluation.audit import HOST_PATHS, PARTS, audit, check_audit
from linprobe.gradients import second_order
from linprobe.mechanisms.correct_predictions import SENSITIVITY
from linprobe.mechanisms.score_histogram import TEST_AUROC
from linprobe.methods import class_counts, dp_newton
from linprobe.methods._directions import COVARIANCE
from linprobe.methods.class_counts import CLASS_COUNTS
from linprobe.options.requests import AuditRequest
from linprobe.runs.release_rules import SELECTION
from tests.conftest import mostly_nightly
from tests.evaluation.test_audit import GaussianMechanism, Quiet, audited, caught

PATHS = {str(path) for path in HOST_PATHS}
SURE = 1 - 1e-8  # `tune` draws from the system's entropy: at this confidence one audit of correct noise in 10^8 fails
SECOND_ORDER = ["dp-ls", "dp-fc", "dp-newton"]


def quiet(*purposes: str, share: float = 0.1) -> type[GaussianMechanism]:
    """A mechanism that adds a share of the noise to releases of some purposes; to all for none named."""

    class Some(Quiet):
        def share(self, purpose: str) -> float:
            return share if purpose in purposes or not purposes else 1.0

    return Some


def audited_part(part: str, mechanism: Any = GaussianMechanism, **asked: Any) -> dict[str, Any]:
    """An audit of noisy-gd at epsilon 3 in few steps."""
    asked = {"method": "noisy-gd", "runs": 24, "canaries": 60, "confidence": 0.95, "steps": 3, **asked}
    request = AuditRequest(**{"epsilon": 3.0, "part": part, **asked})
    return audit(request, Silent(), mechanism=mechanism, insecure_seed=5)


def refused(result: dict[str, Any], words: str) -> None:
    with pytest.raises(PrivacyError, match=words):
        check_audit(result)


def small(method: str, **given: Any) -> dict[str, Any]:
    steps = {} if method == "dp-ls" else {"steps": 2}
    return audited(method, 3.0, **{"runs": 12, "canaries": 40, **steps, **given})


@pytest.mark.parametrize("method", mostly_nightly(SECOND_ORDER, "dp-fc".__eq__))
def test_stated_noise_passes(method: str) -> None:
    result = small(method, runs=18)
    check_audit(result)
    assert 0.15 * 3 < result["epsilon_lower_bound"] <= 3
    assert list(result["others"]) == ([] if method == "dp-newton" else [COVARIANCE])


@pytest.mark.parametrize("method", mostly_nightly(SECOND_ORDER, "dp-newton".__eq__))
def test_a_tenth_of_the_noise_is_caught_on_every_path(method: str) -> None:
    result = small(method, mechanism=quiet())
    assert caught(result["tests"], 3.0) == PATHS
    refused(result, "epsilon of dp-")


@pytest.mark.parametrize("method", mostly_nightly(SECOND_ORDER[:2], "dp-fc".__eq__))
def test_a_tenth_of_the_noise_on_the_covariance_alone_is_caught(method: str) -> None:
    result = small(method, mechanism=quiet(COVARIANCE))
    assert result["epsilon_lower_bound"] < 3
    refused(result, "epsilon of the covariance")


@pytest.mark.parametrize("method", mostly_nightly(SECOND_ORDER[:2], "dp-fc".__eq__))
def test_a_covariance_of_people_that_clips_rows_is_caught(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = second_order.outer_product_norms
    monkeypatch.setattr(second_order, "outer_product_norms", lambda block, x: real(block, x) / 10)
    refused(small(method, unit="owner", runs=48, canaries=80), "epsilon of the covariance")


def test_hessians_left_out_of_the_clip_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = second_order._Summands.lengths
    monkeypatch.setattr(
        second_order._Summands, "lengths", lambda self: real(self._replace(curvature=self.curvature * 0))
    )
    newton_sum = dp_newton.newton_sum
    monkeypatch.setattr(dp_newton, "newton_sum", lambda x, w, tau, s, **how: newton_sum(x, w, tau, 30 * s, **how))
    assert caught(small("dp-newton", runs=18)["tests"], 3.0) == PATHS


def test_counts_pass_and_each_has_its_claim() -> None:
    result = audited_part("counts")
    check_audit(result)
    assert {CLASS_COUNTS, TEST_ACCURACY, TEST_AUROC} <= set(result["others"])
    mu = [largest_mu(result["others"][purpose]["epsilon"], 1e-5) for purpose in (TEST_ACCURACY, TEST_AUROC)]
    assert epsilon_of(math.hypot(*mu), 1e-5) == pytest.approx(0.75, rel=1e-4)
    assert mu[0] == pytest.approx(math.sqrt(3) * mu[1], rel=1e-3)
    assert "part counts" not in result["not_covered"]


@pytest.mark.parametrize(("purpose", "share"), [(CLASS_COUNTS, 0.1), (TEST_ACCURACY, 0.1), (TEST_AUROC, 0.01)])
def test_a_share_of_the_noise_on_one_count_is_caught(purpose: str, share: float) -> None:
    result = audited_part("counts", quiet(purpose, share=share))
    for name, claim in result["others"].items():
        assert (claim["epsilon_lower_bound"] > claim["epsilon"]) == (name == purpose)
    refused(result, f"epsilon of the {purpose}")


def test_rows_of_people_counted_whole_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A person with 3 rows adds 3 to a class count."""
    real = class_counts.unit_means

    def sums(block: Any, values: Any) -> Any:
        return real(block, values) * np.diff(block.bounds)[:, None]

    monkeypatch.setattr(class_counts, "unit_means", sums)
    monkeypatch.setattr(class_counts, "relative_contributions", lambda norms, *_: np.minimum(norms, 1))
    refused(audited_part("counts", unit="owner"), "epsilon of the class counts")


def test_test_rows_counted_many_times_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    from linprobe.runs import figures

    real = figures.held_out_counts

    def counted(cells: Any) -> Any:
        return replace(real(10 * cells), sensitivity=SENSITIVITY)

    monkeypatch.setattr(figures, "held_out_counts", counted)
    refused(audited_part("counts"), "epsilon of the test accuracy")


def test_the_histogram_passes() -> None:
    result = audited_part("histogram", runs=30)
    check_audit(result)
    assert 0.4 * 3 < result["epsilon_lower_bound"] <= 3
    assert all(path.endswith(", observed") for path in result["paths"])


def test_a_tenth_of_the_noise_on_the_histogram_is_caught() -> None:
    result = audited_part("histogram", quiet(HISTOGRAM), runs=12)
    assert caught(result["tests"], 3.0) == set(result["paths"])
    refused(result, "epsilon of noisy-gd")


def test_a_record_in_four_bins_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    from linprobe.training import execute

    real = execute.histogram_counts

    def fourfold(epsilons: Any, budget: float) -> Any:
        return 4 * real(epsilons, budget)

    for module in ("linprobe.training.execute", "linprobe.evaluation.audit"):  # the adversary knows the fault
        monkeypatch.setattr(f"{module}.histogram_counts", fourfold)
    refused(audited_part("histogram"), "epsilon of noisy-gd")


def test_the_choice_passes() -> None:
    result = audited_part("tune", runs=40, confidence=SURE)
    check_audit(result)
    assert result["others"][SELECTION]["epsilon"] == result["epsilon"] <= 3
    assert result["paths"] == ["memory, unobserved"]
    assert result["epsilon_lower_bound"] > 0


def test_a_tenth_of_the_noise_in_the_chosen_run_is_caught() -> None:
    refused(audited_part("tune", quiet(), confidence=SURE), "epsilon of noisy-gd")


def test_counts_without_noise_that_choose_a_run_are_caught() -> None:
    result = audited_part("tune", quiet(SELECTION, share=0.001), confidence=SURE)
    assert result["epsilon_lower_bound"] < result["epsilon"]
    refused(result, "epsilon of the choice")


@pytest.mark.parametrize("part", ["counts", "tune", "histogram"])
def test_people_pass(part: str) -> None:
    result = audited_part(part, unit="owner", confidence=SURE, runs=12)
    check_audit(result)
    assert result["unit"] == "owner"
    assert [f"part {other}" for other in PARTS if other != part] == [
        words for words in result["not_covered"] if words.startswith("part ")
    ]
