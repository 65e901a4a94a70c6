"""The audit of people finds code that clips rows, and passes the real code, on every path."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from linprobe.data.blocks import ArraySource
from linprobe.data.dataset import Dataset
from linprobe.data.rows import Rows
from linprobe.errors import ParameterError, Silent
from linprobe.evaluation.audit import HOST_PATHS, Path, audit, check_audit
from linprobe.methods import METHODS
from linprobe.options.requests import AuditRequest
from linprobe.parallel.process_group import Group, in_group
from tests.conftest import mostly_nightly
from tests.evaluation.test_audit import audited_samples, caught, claim_on_samples
from tests.evaluation.test_audit_paths import rows_on
from tests.planted import clip_by_row

PEOPLE = np.resize([1, 2, 3], 30)  # rows of each person among the toy rows
SIZES = np.resize([1, 3, 2, 20], 200)
SPENDING = [name for name, method in METHODS.items() if method.spends]


def audited(method: str, **given: Any) -> dict[str, Any]:
    asked = {"epsilon": 3.0, "runs": 12, "canaries": 60, "confidence": 0.95, "unit": "owner"}
    few = 2 if method == "dp-newton" else 10  # its steps solve a system for every class
    steps = {} if METHODS[method].one_step else {"steps": few}
    return audit(AuditRequest(method=method, **{**asked, **steps, **given}), Silent(), insecure_seed=5)


@pytest.mark.parametrize(
    "method",
    mostly_nightly(
        [name for name in SPENDING if not METHODS[name].samples],
        lambda name: name not in ("ngd", "ppgd", "dp-newton"),  # whose sums are those of adamix and dp-fc
    ),
)
def test_the_real_code_passes(method: str) -> None:
    found = audited(method, canaries=20)
    check_audit(found)
    assert found["unit"] == "owner"
    assert found["paths"] == [str(path) for path in HOST_PATHS]


def test_real_samples_of_people_pass() -> None:
    assert not caught(audited_samples(people=PEOPLE), claim_on_samples())


def test_clipping_by_rows_is_found_on_every_path(monkeypatch: pytest.MonkeyPatch) -> None:
    clip_by_row(monkeypatch)
    found = audited("noisy-gd", runs=18, canaries=100)
    assert caught(found["tests"], found["epsilon"]) == set(found["paths"])


def test_clipping_by_rows_is_found_on_every_path_of_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    clip_by_row(monkeypatch)
    assert caught(audited_samples(18, 60, people=PEOPLE), claim_on_samples()) == {str(path) for path in HOST_PATHS}


def test_a_sum_over_all_people_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = Rows.sample
    monkeypatch.setattr(Rows, "sample", lambda self, mask, rate, **how: sample(self, mask | True, rate, **how))
    assert caught(audited_samples(people=PEOPLE), claim_on_samples())


@pytest.mark.parametrize("path", HOST_PATHS, ids=str)
def test_absent_people_have_no_rows(path: Path) -> None:
    bounds = np.r_[0, np.cumsum(SIZES)]
    x = np.eye(len(SIZES), dtype=np.float32).repeat(SIZES, axis=0)
    present = np.random.default_rng(0).random(len(SIZES)) < 0.5
    labels = np.arange(len(x)) % 2
    dataset = Dataset(ArraySource(x, labels), 2, bounds=bounds, present=present)

    def member(group: Group) -> Any:
        rows = rows_on(path, dataset, group)
        assert rows.n_rows == len(SIZES)
        blocks = list(rows.blocks())
        return rows.first, np.concatenate([np.diff(block.bounds) for block in blocks]), sum(b.x.sum(0) for b in blocks)

    found = in_group(path.n_ranks, member)
    assert np.array_equal(np.concatenate([sizes for _, sizes, _ in found]), SIZES * present)
    assert np.allclose(sum(total for _, _, total in found), SIZES * present)


def test_an_unknown_unit_is_refused() -> None:
    with pytest.raises(ParameterError, match="record, owner"):
        audited("noisy-gd", unit="family")
