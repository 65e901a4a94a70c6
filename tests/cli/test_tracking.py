"""`train --log-to`: which facts of a run a tracker gets, and what is refused."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from linprobe.reporting import tracking

WORDS = ("--method", "noisy-gd", "--eps", "1.5", "--steps", "3", "--out", "run")


@pytest.fixture
def trackers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Stand-ins for MLflow and Weights & Biases that keep what they get."""
    got: dict[str, Any] = {"settings": {}, "figures": {}, "steps": []}

    @contextmanager
    def start_run(run_name: str):
        got["name"] = run_name
        yield

    def log_metrics(values: dict[str, float], step: int | None = None) -> None:
        got["figures"].update(values) if step is None else got["steps"].append((step, dict(values)))

    @contextmanager
    def init(project: str, name: str, config: dict[str, Any]):
        got.update(name=name, project=project, settings=config)
        yield SimpleNamespace(
            log=lambda values, step: got["steps"].append((step, values)),
            summary=SimpleNamespace(update=got["figures"].update),
        )

    for name, members in {
        "mlflow": {"start_run": start_run, "log_params": got["settings"].update, "log_metrics": log_metrics},
        "wandb": {"init": init},
    }.items():
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    return got


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_tracker_gets_the_settings_the_guarantee_and_public_facts_only(
    cli, trackers: dict[str, Any], features_file: Path, name: str
) -> None:
    outcome = cli("train", features_file, *WORDS, "--log-to", name)
    assert outcome.status == 0, outcome.stderr
    assert trackers["name"] == "run"
    assert trackers["settings"]["method"] == "noisy-gd"
    assert trackers["settings"]["steps"] == 3
    assert set(trackers["figures"]) <= set(tracking.FIGURES)
    assert trackers["figures"]["epsilon"] == pytest.approx(1.5)
    assert "test_accuracy" in trackers["figures"]
    assert [step for step, _ in trackers["steps"]] == [1, 2, 3]
    assert all(set(values) <= {"clip_norm", "learning_rate"} for _, values in trackers["steps"])


def test_tensorboard_writes_its_folder_outside_the_run(cli, features_file: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    assert cli("train", features_file, *WORDS, "--log-to", "tensorboard").status == 0
    assert list((tmp_path / "tensorboard" / "run").glob("events.*"))
    assert cli("verify", "run").status == 0


def test_a_tracker_that_fails_leaves_the_run_complete(
    cli, trackers: dict[str, Any], features_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(run_name: str) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(sys.modules["mlflow"], "start_run", fail)
    outcome = cli("train", features_file, *WORDS, "--log-to", "mlflow")
    assert outcome.status == 0
    assert "mlflow did not take the run (ConnectionError: no route)" in outcome.stderr
    assert cli("verify", "run").status == 0


def test_what_has_no_guarantee_is_refused(cli, refused, features_file: Path, trackers: dict[str, Any]) -> None:
    train = ("train", features_file, "--log-to", "wandb", "--out", "run")
    refused(cli(*train, "--method", "non-private"), 2, ["wandb", "non-private", "no guarantee"])
    refused(cli(*train, *WORDS[:4], "--noise-seed", "1", "--insecure-seed"), 2, ["no guarantee"])
    refused(cli("tune", features_file, "--eps", "1", "--shrink", "0,1", "--log-to", "wandb"), 2, ["secret", "tune"])
