"""`--class-counts` and `--class-weight balanced`: run folder, verify, and predictions for other class shares."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linprobe.cli import run
from linprobe.runs.run_folder import read_run
from tests.cli.outcomes import NOISY, Cli, result_of, write_sealed

COUNTED = [*NOISY, "--steps", "50", "--public-shots", "0"]
LIRA = ["--lira", "--shadows", "4", "--jobs", "1", "--resamples", "0"]


@pytest.fixture(scope="module")
def rare_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 4,000 training rows of two classes that overlap, one of them 4 %."""
    folder = tmp_path_factory.mktemp("rare")
    g = np.random.default_rng(0)
    y = (np.arange(6000) % 25 == 0).astype(int)
    x = (g.normal(size=(6000, 64)) + 2.5 * y[:, None] * np.eye(64)[0]).astype(np.float32)
    halves = {"X_train": x[:4000], "y_train": y[:4000], "X_test": x[4000:], "y_test": y[4000:]}
    np.savez(folder / "rare.npz", **halves, class_names=["well", "ill"])
    assert run(["import", str(folder / "rare.npz"), "--out", str(folder / "rare.h5")]) == 0
    return folder / "rare.h5"


@pytest.fixture
def rare(rare_file: Path, tmp_path: Path) -> Path:
    """A copy of the file."""
    return Path(shutil.copy(rare_file, tmp_path))


def labels_of(outcome: Any) -> list[str]:
    assert outcome.status == 0, outcome
    return [row["label"] for row in csv.DictReader(outcome.stdout.splitlines())]


def test_one_run_serves_both_uses(cli: Cli, rare: Path) -> None:
    trained = cli("train", rare, *COUNTED, "--class-weight", "balanced", "--out", "run")
    assert trained.status == 0, trained
    assert "is not above" not in trained.stderr  # less accurate than always "well", and clearly better by class
    run = read_run(Path("run"))
    manifest, shares = run.manifest, run.class_shares
    assert shares is not None
    assert manifest.class_counts is not None
    assert manifest.class_prior == "uniform"
    assert abs(manifest.class_counts.by_class["ill"] - 160) < 6 * manifest.class_counts.std
    assert shares[1] == pytest.approx(0.04, abs=0.02)
    assert cli("verify", "run", "--features", rare, "--max-eps", "3").status == 0
    figures = result_of(cli("evaluate", "run", "--json"))
    plain, balanced = figures["by_prior"]["train"], figures["by_prior"]["uniform"]
    assert balanced["balanced_accuracy"] == figures["balanced_accuracy"] == manifest.test_balanced_accuracy
    # by 0.10 and 0.03 on average, with standard deviations of 0.025 and 0.005
    assert balanced["balanced_accuracy"] > plain["balanced_accuracy"]
    assert plain["test_accuracy"] > balanced["test_accuracy"]
    named = "for equal classes"
    assert named in cli("evaluate", "run").stderr
    again = result_of(cli("evaluate", "run", "--json", "--prior", "train"))
    assert (again["test_accuracy"], again["balanced_accuracy"]) == tuple(plain.values())
    assert labels_of(cli("predict", "run", rare)) == labels_of(cli("predict", "run", rare, "--prior", "uniform"))
    Path("equal.json").write_text(json.dumps({"well": 1, "ill": 1}))
    found = {
        prior: labels_of(cli("predict", "run", rare, "--prior", prior)).count("ill")
        for prior in ("train", "well=3,ill=1", "equal.json", "ill=9,well=1")
    }
    assert found["train"] < found["well=3,ill=1"] < found["equal.json"] < found["ill=9,well=1"]
    assert result_of(cli("attack", "run", "--json", *LIRA))["attack"] == "lira"
    losses = result_of(cli("pdp-report", "run", "--json"))
    assert losses["max"] <= 3
    assert cli("release", "run", "--out", "released").status == 0
    assert cli("report", "run", "--html", "page.html").status == 0
    for page in ("released/README.md", "page.html"):
        assert "for equally common classes" in Path(page).read_text(encoding="utf-8")


def test_a_run_with_counts_is_for_the_shares_of_training(cli: Cli, rare: Path) -> None:
    assert cli("train", rare, *COUNTED, "--class-counts", "yes", "--out", "run").status == 0
    manifest = read_run(Path("run")).manifest
    assert (manifest.class_prior, manifest.class_weights) == ("train", None)
    assert labels_of(cli("predict", "run", rare)) == labels_of(cli("predict", "run", rare, "--prior", "train"))
    assert cli("train", "--config", "run/config.toml", "--out", "again").status == 0
    assert read_run(Path("again")).manifest.class_counts is not None


def test_the_dry_run_states_the_release(cli: Cli, rare: Path) -> None:
    planned = cli("train", rare, *COUNTED, "--class-weight", "balanced", "--dry-run")
    assert "1 release for class counts" in planned.stdout
    facts = result_of(cli("train", rare, *COUNTED, "--class-counts", "yes", "--dry-run", "--json"))
    assert cli("train", rare, *COUNTED, "--class-counts", "yes", "--out", "run").status == 0
    made = [asdict(release) for release in read_run(Path("run")).manifest.releases or ()]
    by_purpose = [sorted(plan["releases"], key=lambda one: one["purpose"]) for plan in facts["plans"]]
    assert sorted(made, key=lambda one: one["purpose"]) in by_purpose


@pytest.mark.parametrize("choice", [["--grid", "clip_norm=0.1,1"], ["--shrink", "0,1", "--public-shots", "2"]])
def test_tuned_runs_are_balanced_too(cli: Cli, rare: Path, choice: list[str]) -> None:
    method = "adamix" if "--shrink" in choice else "noisy-gd"
    words = ["--method", method, "--steps", "5", "--eps", "3", "--class-weight", "balanced", *choice, "--out", "run"]
    outcome = cli("tune", rare, *words)
    assert outcome.status == 0, outcome
    run = read_run(Path("run"))
    assert (run.manifest.class_prior, run.class_shares is None) == ("uniform", False)
    assert cli("verify", "run").status == 0
    assert "by_prior" in result_of(cli("evaluate", "run", "--json"))


def test_multilabel_runs_state_counts_by_label(cli: Cli, tmp_path: Path) -> None:
    g = np.random.default_rng(0)
    marks = (g.random((400, 3)) < (0.1, 0.5, 0.9)).astype(int)
    x = (g.normal(size=(400, 6)) + marks @ g.normal(size=(3, 6))).astype(np.float32)
    np.savez(
        tmp_path / "m.npz",
        X_train=x[:300],
        y_train=marks[:300],
        X_test=x[300:],
        y_test=marks[300:],
        class_names=["a", "b", "c"],
    )
    assert cli("import", "m.npz", "--out", "m.h5").status == 0
    assert cli("train", "m.h5", *COUNTED[:-2], "--class-counts", "yes", "--out", "run").status == 0
    manifest = read_run(Path("run")).manifest
    counts = manifest.class_counts
    assert counts is not None
    release = next(one for one in manifest.releases or () if one.purpose == "class counts")
    assert counts.std == pytest.approx(3**0.5 * release.noise_multiplier)
    assert abs(counts.by_class["c"] - marks[:300, 2].sum()) < 6 * counts.std
    assert cli("verify", "run").status == 0
    outcome = cli("predict", "run", "m.h5", "--prior", "uniform")
    assert outcome.status == 2
    assert "no class counts that move its scores" in outcome.stderr


def edits() -> Iterator[tuple[str, Callable[[dict[str, Any]], dict[str, Any]], str]]:
    """Edits of a manifest with class counts that `verify` must refuse."""
    counts = {"by_class": {"well": 1.0, "ill": 1.0}, "std": 1.0}
    yield "no counts", lambda made: {"class_counts": None}, "need each other"
    yield "other noise", lambda made: {"class_counts": {**made["class_counts"], "std": 1.0}}, "another noise"
    yield "other classes", lambda made: {"class_counts": {**counts, "by_class": {"a": 1.0, "b": 1.0}}}, "class_names"
    yield "another prior", lambda made: {"class_prior": "rare"}, "train, uniform"


@pytest.mark.parametrize(("edit", "told"), [case[1:] for case in edits()], ids=[case[0] for case in edits()])
def test_edited_counts_are_refused(
    cli: Cli, refused: Callable[..., None], rare: Path, edit: Callable[[dict[str, Any]], dict[str, Any]], told: str
) -> None:
    assert cli("train", rare, *COUNTED, "--class-weight", "balanced", "--out", "run").status == 0
    made = json.loads(Path("run/manifest.json").read_text())
    write_sealed(Path("run"), {**made, **edit(made)})
    refused(cli("verify", "run"), 4, [told])


def test_counts_without_their_release_are_refused(cli: Cli, refused: Callable[..., None], rare: Path) -> None:
    assert cli("train", rare, *COUNTED, "--out", "run").status == 0
    made = json.loads(Path("run/manifest.json").read_text())
    assert not {"class_counts", "class_prior"} & set(made)
    assert "by_prior" not in result_of(cli("evaluate", "run", "--json"))
    write_sealed(Path("run"), {**made, "class_prior": "uniform"})
    refused(cli("verify", "run"), 4, ["class_prior", "class counts"])
    counts = {"by_class": {"well": 3840.0, "ill": 160.0}, "std": 3.0}
    write_sealed(Path("run"), {**made, "class_counts": counts})
    refused(cli("verify", "run"), 4, ["class_counts", "class counts"])


def test_an_interrupted_run_resumes_with_its_counts(
    cli: Cli, refused: Callable[..., None], features_file: Path, interrupted_at_the_third_step: None
) -> None:
    words = ["train", features_file, *NOISY, "--steps", "5", "--checkpoint", "0", "--out", "run"]
    cli(*words, "--class-weight", "balanced")
    refused(cli(*words, "--resume"), 2, ["class counts"], notes=1)
    assert cli(*words, "--resume", "--class-weight", "balanced").status == 0
    assert cli("verify", "run").status == 0
    purposes = [json.loads(line)["purpose"] for line in Path("run/ledger.jsonl").read_text().splitlines()]
    assert purposes.count("class counts") == 1
    assert read_run(Path("run")).class_shares is not None


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--prior", "cow=1"], ["'cow'", "well, ill"]),
        (["--prior", "well=1"], ["each of the 2 classes"]),
        (["--prior", "well=1,ill=0"], ["above 0"]),
        (["--prior", "equal"], ["train, uniform", "LABEL=NUMBER"]),
    ],
)
def test_wrong_priors_are_refused(
    cli: Cli, refused: Callable[..., None], rare: Path, words: list[str], told: list[str]
) -> None:
    assert cli("train", rare, *COUNTED, "--class-counts", "yes", "--out", "run").status == 0
    refused(cli("predict", "run", rare, *words), 2, told)
    refused(cli("evaluate", "run", *words), 2, told)


@pytest.mark.parametrize(
    "words",
    [
        [*COUNTED],
        [*COUNTED, "--class-counts", "yes", "--class-weight", "well=0.1,ill=1"],
        ["--method", "prototypes", "--eps", "3", "--class-counts", "yes"],
    ],
)
def test_a_prior_needs_counts_and_log_odds(
    cli: Cli, refused: Callable[..., None], rare: Path, words: list[str]
) -> None:
    assert cli("train", rare, *words, "--out", "run").status == 0
    refused(cli("predict", "run", rare, "--prior", "uniform"), 2, ["--class-counts", "--prior"])


@pytest.mark.parametrize("words", [["--class-counts", "yes"], ["--class-weight", "balanced"]])
def test_a_method_without_noise_releases_no_counts(
    cli: Cli, refused: Callable[..., None], rare: Path, words: list[str]
) -> None:
    refused(cli("train", rare, "--method", "non-private", "--out", "run", *words), 2, ["non-private", "--class-counts"])
