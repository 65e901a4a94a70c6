"""`linprobe doctor`: findings, remedies and exit status."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from linprobe import native
from linprobe.gradients.gpu import Kernel


def findings(outcome) -> dict[str, dict[str, str]]:
    return {each["name"]: each for each in json.loads(outcome.stdout)["findings"]}


def test_every_finding_that_is_not_ok_has_a_remedy(cli) -> None:
    outcome = cli("doctor", "--json")
    assert outcome.status == 0
    found = findings(outcome)
    assert {"python", "kernel", "BLAS", "threads", "memory", "GPU", "budget books"} <= set(found)
    for each in found.values():
        assert each["state"] in ("ok", "limited")
        assert bool(each["remedy"]) == (each["state"] != "ok"), each


def test_the_text_names_the_version_and_every_finding(cli) -> None:
    names = findings(cli("doctor", "--json"))
    lines = cli("doctor").stdout.splitlines()
    assert lines[0].startswith("linprobe ")
    for name in names:
        assert any(line[4:].startswith(name) for line in lines), name


def test_a_missing_kernel_and_a_missing_extra_are_told(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "LIBRARY", None)
    monkeypatch.setenv("LINPROBE_NATIVE", "0")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    outcome = cli("doctor", "--json")
    found = findings(outcome)
    assert (outcome.status, json.loads(outcome.stdout)["state"]) == (0, "limited")
    assert "unset LINPROBE_NATIVE" in found["kernel"]["remedy"]
    assert found["extra arrow"]["found"] == "without pyarrow"
    assert found["extra arrow"]["remedy"].endswith(": pip install 'linprobe[arrow]'")


@pytest.mark.parametrize("compiles", [False, True])
def test_a_gpu_without_the_kernel_is_told(cli, monkeypatch: pytest.MonkeyPatch, compiles: bool) -> None:
    for name, value in (("is_available", True), ("device_count", 1), ("get_device_name", "H200")):
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    monkeypatch.setattr(Kernel, "of", lambda *_: object() if compiles else None)
    found = findings(cli("doctor", "--json"))
    assert (found["GPU"]["found"], found["GPU kernel"]["state"]) == ("H200", "ok" if compiles else "limited")


def test_a_torch_that_cannot_be_imported_is_a_finding(cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise OSError('libtorch.so: failed to map segment')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    outcome = cli("doctor", "--json")
    found = findings(outcome)
    assert (outcome.status, found["torch"]["state"]) == (0, "limited")
    assert found["torch"]["found"] == "cannot be imported (libtorch.so: failed to map segment)"
    assert {"extra extract", "budget books"} <= set(found)


def test_a_place_for_budget_books_that_cannot_be_written_is_broken(
    cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    outcome = cli("doctor", "--json")
    assert outcome.status == 1
    assert "XDG_STATE_HOME" in findings(outcome)["budget books"]["remedy"]
