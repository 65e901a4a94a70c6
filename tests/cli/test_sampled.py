"""Runs on Poisson samples, runs that vote, and runs that start from a run: their files and their verification."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linprobe.accounting.accountants import PLD, RENYI
from linprobe.accounting.events import grouped
from linprobe.accounting.ledger import read_ledger
from linprobe.data.blocks import normalise_rows
from linprobe.data.feature_file import FeatureFile
from tests.cli.outcomes import NOISY, Cli, result_of, weights_of
from tests.cli.test_verify import _edit_manifest
from tests.conftest import SIZES, copied, trained_once, write_features
from tests.hostile.runs import charged, sealed

# Renyi accounting calibrates in a tenth of the time of the default
QUICK = ["--accountant", "rdp", "--steps", "40", "--q", "0.3"]
SAMPLED = ["--method", "dp-sgd", "--eps", "3", *QUICK]


@pytest.fixture(scope="session")
def sampled_run(features_file: Path) -> Path:
    """A run of dp-sgd under the default accountant. Do not change it."""
    return trained_once("sampled", features_file, "--method", "dp-sgd", "--eps", "3")


@pytest.fixture
def sampled_copy(sampled_run: Path, tmp_path: Path, own_books: Path) -> Path:
    """A copy that a test may damage."""
    return copied(sampled_run, tmp_path / "copied_run", own_books)


@pytest.fixture(scope="session")
def cheap_run(features_file: Path) -> Path:
    """A full-batch run of epsilon 0.5 whose rows are not centred. Do not change it."""
    return trained_once("cheap", features_file, "--method", "noisy-gd", "--eps", "0.5", "--centre", "none")


def manifest_of(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "manifest.json").read_text()))


# what is recorded and verified


def test_a_sampled_run_records_its_rate_and_the_accountants_that_judged_it(cli: Cli, sampled_run: Path) -> None:
    manifest = manifest_of(sampled_run)
    (release,) = manifest["releases"]
    assert release == {
        "purpose": "gradient",
        "noise_multiplier": manifest["noise_multiplier"],
        "sampling_rate": manifest["sampling_rate"],
        "count": manifest["steps"],
    }
    assert manifest["sampling_rate"] < 1
    assert manifest["format"] == 3
    assert manifest["gdp_mu"] is manifest["zcdp_rho"] is None
    assert "privacy-loss distribution" in manifest["accountant"]
    assert "Renyi" in manifest["cross_check"]
    events = read_ledger(sampled_run / "ledger.jsonl")
    assert len(events) == manifest["steps"]
    assert manifest["epsilon"] == PLD.epsilon(grouped(events), 1e-5)
    verified = result_of(cli("verify", sampled_run, "--json"))
    assert verified["epsilon"] <= verified["epsilon_cross_check"] <= 1.3 * verified["epsilon"]


@pytest.mark.parametrize(
    ("accountant", "rate", "title"),
    [("rdp", "0.3", "Renyi"), ("gdp", "1", "Gaussian DP"), ("pld", "1", "privacy-loss")],
)
def test_the_accountant_asked_for_is_recorded_and_verified(
    cli: Cli, features_file: Path, accountant: str, rate: str, title: str
) -> None:
    command = ["--method", "dp-sgd", "--eps", "3", "--steps", "40", "--q", rate, "--accountant", accountant]
    assert cli("train", features_file, *command, "--out", "run").status == 0
    manifest = manifest_of(Path("run"))
    assert title in manifest["accountant"]
    assert manifest["epsilon"] <= 3
    assert (manifest["gdp_mu"] is None) == (rate != "1")
    assert cli("verify", "run", "--features", features_file).status == 0


FORGERIES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "rate lowered": lambda m: {"sampling_rate": m["sampling_rate"] / 2},
    "rate lowered in both places": lambda m: {
        "sampling_rate": 0.01,
        "releases": [{**m["releases"][0], "sampling_rate": 0.01}],
    },
    "releases emptied": lambda m: {"releases": []},
    "release with more noise": lambda m: {"releases": [{**m["releases"][0], "noise_multiplier": 99.0}]},
    "accountant unknown": lambda m: {"accountant": "moments"},
    "accountant of full batches": lambda m: {"accountant": "Gaussian DP (ball arithmetic)"},
    "accountant of no releases": lambda m: {"accountant": None},
    "looser accountant": lambda m: {"accountant": "Renyi DP (dp-accounting)"},
    "steps halved": lambda m: {"steps": m["steps"] // 2},
    "steps halved in both places": lambda m: {
        "steps": m["steps"] // 2,
        "releases": [{**m["releases"][0], "count": m["steps"] // 2}],
    },
    "noise raised": lambda m: {"noise_multiplier": 2 * m["noise_multiplier"]},
    "epsilon lowered": lambda m: {"epsilon": 0.99 * m["epsilon"]},
    "mu given": lambda m: {"gdp_mu": 0.1},
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_sampled_manifest_that_does_not_follow_from_the_ledger_is_refused(
    cli: Cli, refused: Cli, sampled_copy: Path, forgery: str
) -> None:
    _edit_manifest(sampled_copy, sealed=True, **FORGERIES[forgery](manifest_of(sampled_copy)))
    refused(cli("verify", sampled_copy), 4, [])


LEDGER_EDITS: dict[str, Callable[[list[dict[str, Any]]], list[dict[str, Any]]]] = {
    "one rate lowered": lambda events: [{**events[0], "sampling_rate": 0.01}, *events[1:]],
    "every rate lowered": lambda events: [{**event, "sampling_rate": 0.01} for event in events],
    "one release of all rows": lambda events: [*events, {**events[0], "purpose": "mean", "sampling_rate": 1.0}],
    "half the lines": lambda events: events[: len(events) // 2],
    "a rate of zero": lambda events: [{**events[0], "sampling_rate": 0.0}, *events[1:]],
}


@pytest.mark.parametrize("edit", LEDGER_EDITS)
def test_a_sampled_ledger_that_was_edited_is_refused_even_with_its_digest_renewed(
    cli: Cli, refused: Cli, sampled_copy: Path, edit: str
) -> None:
    path = sampled_copy / "ledger.jsonl"
    events = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(event) + "\n" for event in LEDGER_EDITS[edit](events)))
    files = manifest_of(sampled_copy)["files"]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    _edit_manifest(sampled_copy, sealed=True, files={**files, "ledger.jsonl": digest})
    refused(cli("verify", sampled_copy), 4, ["ledger"])


# the per-record report


def test_no_record_of_a_sampled_run_is_reported_above_the_run(cli: Cli, sampled_run: Path) -> None:
    outcome = cli("pdp-report", sampled_run, "--json", "--csv", "records.csv")
    report = result_of(outcome)
    assert report["records"] == 400
    assert 0 < report["max"] <= report["epsilon"] == manifest_of(sampled_run)["epsilon"]
    assert report["mean"] < 0.9 * report["epsilon"]
    assert "Poisson" in report["valid"]
    with Path("records.csv").open(newline="") as stream:
        assert len(list(csv.DictReader(stream))) == 400


def test_publishing_a_histogram_of_a_sampled_run_is_charged_and_verified(cli: Cli, sampled_copy: Path) -> None:
    spent = manifest_of(sampled_copy)["epsilon"]
    published = result_of(cli("pdp-report", sampled_copy, "--publish-epsilon", "0.5", "--json"))["published"]
    run = Path(published["run"])
    manifest = manifest_of(run)
    assert spent < manifest["epsilon"] == published["epsilon_of_run_now"] < spent + 0.5
    assert [release["purpose"] for release in manifest["releases"]] == ["gradient", "histogram"]
    assert manifest["releases"][1]["sampling_rate"] == 1
    assert abs(sum(published["noisy_counts"]) - 400) < 6 * 20**0.5 * published["noise_std"]
    verified = result_of(cli("verify", run, "--json"))
    assert verified["epsilon"] == manifest["epsilon"]
    assert result_of(cli("pdp-report", run, "--json"))["max"] <= manifest["epsilon"]


def test_a_run_that_follows_no_record_verifies_and_says_how_to_get_a_report(
    cli: Cli, refused: Cli, features_file: Path
) -> None:
    assert cli("train", features_file, *SAMPLED, "--no-per-record", "--out", "run").status == 0
    assert result_of(cli("verify", "run", "--features", features_file, "--json"))["verified"]
    refused(cli("pdp-report", "run"), 2, ["--no-per-record", "train with --per-record"])
    refused(cli("pdp-report", "run", "--publish-epsilon", "1"), 2, ["--per-record"])


# votes


@pytest.fixture(scope="session")
def voting_run(features_file: Path) -> Path:
    """A run of five voters. Do not change it."""
    return trained_once("votes", features_file, *SAMPLED, "--output", "vote", "--ensemble", "5")


def _count(x: Any, weights: Any, bias: Any) -> Any:
    """Votes for each class, shape (n, n_classes)."""
    best = np.einsum("nd,vdc->vnc", normalise_rows(x), weights) + bias[:, None]
    return (best.argmax(axis=2)[..., None] == np.arange(weights.shape[2])).sum(axis=0)


def test_a_vote_is_counted_alike_by_every_command(cli: Cli, voting_run: Path, features_file: Path) -> None:
    with np.load(voting_run / "model.npz") as model:
        weights, bias = model["weights"], model["bias"]
    assert weights.shape == (5, 10, 4)
    assert bias.shape == (5, 4)
    with FeatureFile(features_file) as features:
        x = np.concatenate([rows for rows, _ in features.blocks("test")]).astype(np.float32)
        y = features.labels("test")
    votes = _count(x, weights, bias)
    rows = list(csv.DictReader(io.StringIO(cli("predict", voting_run, features_file).stdout)))
    labels = [["ant", "bee", "cat", "dog"].index(row["label"]) for row in rows]
    np.testing.assert_array_equal(votes[np.arange(len(x)), labels], votes.max(axis=1))
    np.testing.assert_allclose([float(row["score"]) for row in rows], votes.max(axis=1) / 5, atol=1e-6)
    accuracy = float(np.mean(np.array(labels) == y))
    assert accuracy > 0.9
    assert result_of(cli("evaluate", voting_run, "--json"))["test_accuracy"] == pytest.approx(accuracy)
    assert manifest_of(voting_run)["test_accuracy"] == pytest.approx(accuracy)
    assert result_of(cli("verify", voting_run, "--json"))["verified"]
    assert result_of(cli("pdp-report", voting_run, "--json"))["records"] == 400


def test_voters_of_a_full_batch_run_cost_nothing_more(cli: Cli, features_file: Path) -> None:
    assert cli("train", features_file, *NOISY, "--output", "vote", "--out", "run").status == 0
    assert weights_of(Path("run")).shape == (5, 10, 4)
    assert len(read_ledger(Path("run/ledger.jsonl"))) == 50
    assert cli("verify", "run").status == 0


# a run that starts from a run


def test_a_second_run_inherits_the_releases_and_stays_within_its_budget(
    cli: Cli, features_file: Path, cheap_run: Path
) -> None:
    command = [*SAMPLED, "--centre", "none", "--init", cheap_run]
    outcome = cli("train", features_file, *command, "--out", "second")
    assert outcome.status == 0
    condition = "holds if no result decided the noise, the sampling rate or the number of steps of a later release"
    assert condition in outcome.stderr
    assert cli("release", "second", "--out", "pub").status == 0
    assert condition in Path("pub/README.md").read_text()
    first, second = manifest_of(cheap_run), manifest_of(Path("second"))
    inherited, steps = second["releases"]
    assert inherited == {**first["releases"][0], "purpose": "inherited"}
    assert (steps["purpose"], steps["count"]) == ("gradient", 40)
    events = read_ledger(Path("second/ledger.jsonl"))
    assert [event.step for event in events] == list(range(first["steps"] + 40))
    assert 2.99 < RENYI.epsilon(grouped(events), 1e-5) == second["epsilon"] <= 3
    checked = cli("verify", "second", "--features", features_file)
    assert checked.status == 0
    assert f"epsilon ({condition})" in checked.stderr
    assert cli("export", "second", "--out", "second.safetensors").status == 0
    assert condition.encode() in Path("second.safetensors").read_bytes()
    report = result_of(cli("pdp-report", "second", "--json"))
    # every record is charged the whole of the first run
    assert first["epsilon"] * 0.99 <= report["quantiles"]["0.01"] <= report["max"] <= second["epsilon"]
    assert cli("train", features_file, *SAMPLED, "--centre", "none", "--out", "alone").status == 0
    assert second["noise_multiplier"] > manifest_of(Path("alone"))["noise_multiplier"]


def test_a_third_run_inherits_what_the_second_did(cli: Cli, features_file: Path, cheap_run: Path) -> None:
    full = ["--method", "noisy-gd", "--centre", "none"]
    assert cli("train", features_file, *full, "--eps", "1", "--init", cheap_run, "--out", "second").status == 0
    assert cli("train", features_file, *full, "--eps", "2", "--init", "second", "--out", "third").status == 0
    third = manifest_of(Path("third"))
    assert sum(release["count"] for release in third["releases"]) == 150
    assert {release["purpose"] for release in third["releases"]} == {"inherited", "gradient"}
    assert 1.99 < third["epsilon"] <= 2
    assert cli("verify", "third").status == 0


def test_delta_is_below_one_over_the_rows_of_every_run_before(
    cli: Cli, refused: Cli, features_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = ["--method", "noisy-gd", "--centre", "none"]
    assert cli("train", features_file, *full, "--eps", "0.5", "--out", "first").status == 0
    assert "largest_n_private" not in manifest_of(Path("first"))
    monkeypatch.setitem(SIZES, "train", 200)
    half = write_features(tmp_path / "half.h5")
    assert cli("train", half, *full, "--eps", "1", "--init", "first", "--out", "second").status == 0
    third = ["train", half, *full, "--eps", "2", "--init", "second", "--out", "third"]
    refused(cli(*third, "--delta", "0.0037"), 4, ["delta is 0.0037, and", "400 private units", "below 1/N"])
    assert cli(*third).status == cli("verify", "third").status == 0
    assert manifest_of(Path("second"))["largest_n_private"] == manifest_of(Path("third"))["largest_n_private"] == 400
    sealed(Path("third"), largest_n_private=100_000)
    refused(cli("verify", "third"), 4, ["delta is 1e-05 for 100000 private units"])


@pytest.mark.parametrize(
    "space", [["--centre", "none"], ["--centre", "public"], ["--centre", "none", "--intercept", "1"]]
)
def test_a_run_that_hardly_moves_keeps_the_weights_it_started_from(
    cli: Cli, features_file: Path, space: list[str]
) -> None:
    full = ["--method", "noisy-gd", *space, "--init"]
    assert cli("train", features_file, *full, "zero", "--eps", "0.5", "--out", "first").status == 0
    still = ["--learning-rate", "1e-12", "--output", "last"]
    assert cli("train", features_file, *full, "first", "--eps", "1", *still, "--out", "second").status == 0
    with np.load("first/model.npz") as first, np.load("second/model.npz") as second:
        np.testing.assert_allclose(second["weights"], first["weights"], rtol=1e-4, atol=1e-5)
        # a bias common to all classes says nothing
        np.testing.assert_allclose(
            second["bias"] - second["bias"].mean(), first["bias"] - first["bias"].mean(), rtol=1e-4, atol=1e-4
        )


def test_a_vote_starts_a_run_as_the_mean_of_its_voters(cli: Cli, features_file: Path) -> None:
    full = ["--method", "noisy-gd", "--centre", "none", "--init"]
    votes = ["--output", "vote", "--ensemble", "3"]
    assert cli("train", features_file, *full, "zero", "--eps", "0.5", *votes, "--out", "first").status == 0
    still = ["--learning-rate", "1e-12", "--output", "last"]
    assert cli("train", features_file, *full, "first", "--eps", "1", *still, "--out", "second").status == 0
    np.testing.assert_allclose(weights_of(Path("second")), weights_of(Path("first")).mean(axis=0), atol=1e-5)


def test_a_first_run_without_releases_costs_nothing(cli: Cli, features_file: Path) -> None:
    assert cli("train", features_file, "--method", "only-public", "--out", "first").status == 0
    assert cli("train", features_file, *NOISY, "--init", "first", "--out", "second").status == 0
    assert [release["purpose"] for release in manifest_of(Path("second"))["releases"]] == ["gradient"]


def test_a_published_histogram_is_inherited_too(
    cli: Cli, features_file: Path, cheap_run: Path, own_books: Path
) -> None:
    copied(cheap_run, Path("first"), own_books)
    assert cli("pdp-report", "first", "--publish-epsilon", "0.5").status == 0
    command = ["--method", "noisy-gd", "--centre", "none", "--eps", "3", "--init", "first.published-1"]
    assert cli("train", features_file, *command, "--out", "second").status == 0
    second = manifest_of(Path("second"))
    assert [release["count"] for release in second["releases"]] == [50, 1, 50]
    assert cli("verify", "second").status == 0


def test_first_runs_that_cannot_be_built_upon_are_refused(
    cli: Cli, refused: Cli, features_file: Path, cheap_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = ["--method", "noisy-gd", "--centre", "none"]
    start = ["train", features_file, *full, "--out", "run", "--init"]
    refused(cli(*start, cheap_run, "--eps", "0.4"), 4, ["inherited releases alone", "--eps"])
    monkeypatch.setitem(SIZES, "train", 200)
    fewer = ["train", write_features(tmp_path / "half.h5"), *full, "--eps", "3", "--delta", "0.0037", "--out", "run"]
    assert cli(*fewer, "--dry-run").status == 0
    refused(cli(*fewer, "--init", cheap_run), 4, ["delta is 0.0037, and", "protects 400 private units", "below 1/N"])
    seeded = ["--eps", "1", "--noise-seed", "7", "--insecure-seed", "--out", "seeded"]
    assert cli("train", features_file, *full, *seeded).status == 0
    refused(cli(*start, "seeded", "--eps", "3"), 4, ["seeded", "not private"])
    assert cli("train", features_file, "--method", "non-private", "--out", "open").status == 0
    refused(cli(*start, "open", "--eps", "3"), 4, ["open", "not private"])
    shutil.copytree(cheap_run, "edited")
    with np.load("edited/model.npz") as model:
        np.savez("edited/model.npz", weights=2 * model["weights"], bias=model["bias"])
    refused(cli(*start, "edited", "--eps", "3"), 4, ["model.npz"])
    shutil.copytree(cheap_run, "cheaper")
    _edit_manifest(Path("cheaper"), sealed=True, releases=[])
    refused(cli(*start, "cheaper", "--eps", "3"), 4, ["releases"])
    shutil.copytree(cheap_run, "sampled")
    charged(Path("sampled"), lambda line: line.update(sampling_rate=0.01))
    refused(cli(*start, "sampled", "--eps", "3"), 4, ["init run sampled", "method noisy-gd makes it of all rows"])
    assert not Path("run").exists()


def test_a_first_run_with_other_public_rows_is_refused(cli: Cli, features_file: Path, refused: Any) -> None:
    first = cli("train", features_file, "--method", "only-public", "--public-shots", 2).stdout.strip()
    steps = ["--method", "noisy-gd", "--eps", 1, "--steps", 2, "--init", first]
    same = cli("train", features_file, *steps, "--public-shots", 2)
    assert same.status == 0, same.stderr
    for other in (["--public-shots", 2, "--split-seed", 1], ["--public-shots", 0], []):
        refused(cli("train", features_file, *steps, *other), 4, ["had public rows that are not", "--split-seed"])


def test_multiples_of_private_rows_cannot_be_public(
    cli: Cli, features_file: Path, tmp_path: Path, refused: Any
) -> None:
    with FeatureFile(features_file) as features:
        x = np.concatenate([block for block, _ in features.blocks("train")])
        names = np.array(features.description.class_names)
        arrays = {"X_train": 4 * x, "y_train": features.labels("train"), "X_test": -x[:4], "y_test": np.arange(4)}
    np.savez(tmp_path / "scaled.npz", **arrays, class_names=names)
    assert cli("import", "scaled.npz", "--out", "scaled.h5").status == 0
    words = ["train", features_file, "--method", "adamix", "--eps", 1, "--steps", 2, "--public", "scaled.h5"]
    refused(cli(*words), 4, ["holds training rows"])
