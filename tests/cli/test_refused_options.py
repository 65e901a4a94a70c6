"""An option that does not fit public facts is refused before anything is charged, by every command that trains."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linprobe.api.estimators import NoisyGD
from linprobe.errors import ParameterError, UsageError
from linprobe.mechanisms import correct_predictions
from linprobe.methods import METHODS, Fitted, Method
from tests.cli.outcomes import Cli

COUNTS = ("--class-counts", "yes")
ALONE = ("--public-shots", "0", *COUNTS)
STEPS = "1 to the number of steps, "
CASES = {
    "text without text weights": (("noisy-gd", "--init", "text"), "the feature file has no text/weights"),
    "public without public rows": (("noisy-gd", "--init", "public", *ALONE), "no public rows were given"),
    "votes of too many iterates": (("noisy-gd", "--output", "vote", "--ensemble", "500", *COUNTS), f"{STEPS}50"),
    "if the private mean is short": (
        ("noisy-gd", "--ensemble", "51", "--public-shots", "0", "--condition", "mean"),
        f"{STEPS}50",
    ),
    "a mean of too many iterates": (("noisy-gd", "--ensemble", "500", "--class-weight", "balanced"), f"{STEPS}50"),
    "an ensemble of the last": (("noisy-gd", "--output", "last", "--ensemble", "5", *COUNTS), "does nothing"),
    "schedule": (("noisy-gd", "--schedule", "theory", "--score-noise", "2", *COUNTS), "schedule theory"),
    "an inexact intercept": (
        ("noisy-gd", "--intercept", "0.3", "--precision", "bfloat16", "--public-shots", "0", "--condition", "mean"),
        "nearest allowed: 0.30078125",
    ),
    "horizon": (("mirror-descent", "--horizon", "3", *COUNTS), "at least the number of steps, 200"),
    "alpha": (("mirror-descent", "--horizon", "300", "--alpha", "0.5", *COUNTS), "one of the two"),
    "exact": (("mirror-descent", "--update", "exact", "--optimizer", "adam", *COUNTS), "allowed: sgd, momentum"),
    "public batch": (("dope-sgd", "--public-batch", "5000", *COUNTS), "1 to the number of public rows, 20"),
    "one row a class": (
        ("dope-sgd", "--augment-public", "9", "--public-shots", "1", *COUNTS),
        "a class with two public rows",
    ),
    "draws beyond the memory": (
        ("dope-sgd", "--augment-public", "1000000000", *COUNTS),
        "1000000000 rows need 476.8 GiB",
    ),
    "a ridge that rounding hides": (("mirror-descent", "--update", "exact", "--ridge", "1e-16", *COUNTS), "1e-06 to"),
    "a radius at which weights diverge": (
        ("adamix", "--variant", "theory", "--radius", "1e9", *COUNTS),
        "at most 1e+08",
    ),
    "a mean that leaves nothing": (("dpsgd-f", "--feature-epsilon-share", "0.99", *COUNTS), "at most 0.98"),
    "history of sgd": (("dope-sgd", "--origin", "history", "--optimizer", "sgd", *COUNTS), "momentum or adam"),
    "momentum of sgd": (("dp-sgd", "--optimizer", "sgd", "--momentum", "0.5", *COUNTS), "optimizer sgd"),
    "practical": (("adamix", "--radius", "0.5", *COUNTS), "variant practical"),
    "theory": (("adamix", "--variant", "theory", "--clip-floor", "0.5", *COUNTS), "variant theory"),
    "a public centre": (("dpsgd-f", "--centre", "public", *ALONE), "no public rows were given"),
    "theory of dpsgd-f": (("dpsgd-f", "--variant", "theory", "--clip-norm", "0.5", *COUNTS), "variant theory"),
}


def untouched(books: Path, folder: Path) -> bool:
    """Whether there is no line of a budget book, and no file of a run."""
    return not list(books.glob("*.jsonl")) and not [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("dry", [(), ("--dry-run",)], ids=["train", "dry run"])
@pytest.mark.parametrize(("words", "reason"), CASES.values(), ids=CASES)
def test_it_is_refused_before_the_charge(
    cli: Cli, refused: Any, own_books: Path, tmp_path: Path, words: tuple[str, ...], reason: str, dry: tuple[str, ...]
) -> None:
    outcome = cli("train", "--eps", "1", "--method", *words, "--out", "run", *dry)
    refused(outcome, 2, [reason], notes=4)
    assert untouched(own_books, tmp_path)


@pytest.mark.parametrize("name", ["dp-ls", "dp-fc", "dp-newton"])
def test_matrices_beyond_the_memory_are_refused_before_the_charge(
    cli: Cli, refused: Any, own_books: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("linprobe.parallel.available_memory.available", lambda: 2000)
    for dry in ((), ("--dry-run",)):
        outcome = cli("train", "--eps", "1", "--method", name, *COUNTS, "--out", "run", *dry)
        refused(outcome, 2, ["64 features"], notes=4)
    assert untouched(own_books, tmp_path)


@pytest.mark.parametrize("dry", [(), ("--dry-run",)], ids=["tune", "dry run"])
def test_one_wrong_setting_of_a_grid_is_refused_before_the_charge(
    cli: Cli, refused: Any, own_books: Path, tmp_path: Path, dry: tuple[str, ...]
) -> None:
    grid = ("--grid", "ensemble=1,500", "--repetitions", "10")
    refused(cli("tune", "--eps", "1", "--method", "noisy-gd", *grid, "--out", "run", *dry), 2, [f"{STEPS}50"], notes=4)
    assert untouched(own_books, tmp_path)


@pytest.mark.parametrize("dry", [(), ("--dry-run",)], ids=["compare", "dry run"])
def test_one_wrong_row_of_a_comparison_is_refused_before_its_first_run(
    cli: Cli, refused: Any, own_books: Path, tmp_path: Path, dry: tuple[str, ...]
) -> None:
    rows = ("--methods", "noisy-gd,adamix:ensemble=500", "--eps", "1", "--seeds", "1", "--jobs", "1")
    refused(cli("compare", *rows, "--no-baselines", "--out", "all", *dry), 2, [f"{STEPS}50"], notes=4)
    assert untouched(own_books, tmp_path)


def test_an_estimator_refuses_it_before_a_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("linprobe.api.estimators.execute", lambda *_: pytest.fail("executed"))
    x, y = np.eye(8, dtype=np.float32)[np.arange(400) % 8], np.arange(400) % 2
    with pytest.raises(ParameterError, match=f"{STEPS}50"):
        NoisyGD(epsilon=1, classes=[0, 1], ensemble=51, class_counts="yes").fit(x, y)
    with pytest.raises(UsageError, match="no public rows were given"):
        NoisyGD(epsilon=1, classes=[0, 1], init="public", class_counts="yes").fit(x, y)


@pytest.fixture
def unforeseen(monkeypatch: pytest.MonkeyPatch) -> Method:
    """noisy-gd that refuses an option only when it trains."""

    def fit(*_: Any) -> Any:
        raise ParameterError("clip-norm is 7.25 in a row")

    method = replace(METHODS["noisy-gd"], fit=fit)
    monkeypatch.setitem(METHODS, "noisy-gd", method)
    return method


def test_a_refusal_after_a_release_ends_the_run_as_divergence_does(
    cli: Cli, refused: Any, own_books: Path, tmp_path: Path, unforeseen: Method
) -> None:
    outcome = cli("train", "--eps", "1", "--method", unforeseen.name, *COUNTS, "--out", "run")
    refused(outcome, 1, ["after a release, noisy-gd refused an option", "ledger is kept in run.diverged"], notes=4)
    assert "the run ended early; what it had released costs epsilon" in outcome.stderr
    assert "7.25" not in outcome.stderr
    (book,) = own_books.glob("*.jsonl")
    last = json.loads(book.read_text().splitlines()[-1])
    assert (last["entry"], [release["purpose"] for release in last["releases"]]) == ("made", ["class counts"])
    assert [path.name for path in tmp_path.iterdir()] == ["run.diverged"]


def test_a_method_without_a_release_is_named(cli: Cli, refused: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted = Fitted(np.zeros((64, 10)), start=np.zeros((64, 10)))
    monkeypatch.setitem(METHODS, "ngd", replace(METHODS["ngd"], fit=lambda *_: fitted))
    outcome = cli("train", "--eps", "1", "--method", "ngd", "--intercept", "0", "--out", "run")
    refused(outcome, 4, ["method 'ngd' released 0 of 50 planned sums; nothing was written"], notes=4)


def test_a_refusal_before_a_release_stays_a_usage_error(cli: Cli, refused: Any, unforeseen: Method) -> None:
    refused(cli("train", "--eps", "1", "--method", unforeseen.name, "--out", "run"), 2, ["clip-norm is 7.25"], notes=4)


def test_a_refusal_within_a_choice_does_not_tell_which_setting_was_drawn(
    cli: Cli, refused: Any, unforeseen: Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(correct_predictions, "geometric", lambda mean: 2)
    grid = ("--grid", "score_noise=1,2", "--out", "run")
    refused(cli("tune", "--eps", "1", "--method", unforeseen.name, *grid), 1, ["the selected run diverged"], notes=5)


def test_a_grid_with_noise_is_refused_for_the_steps_of_its_runs_alone(cli: Cli) -> None:
    grid = ("--grid", "ensemble=1,2", "--sigma", "40", "--dry-run", "--json")
    outcome = cli("tune", "--eps", "2", "--method", "noisy-gd", *grid)
    assert outcome.status == 0, outcome
    assert min(plan["steps"] for plan in json.loads(outcome.stdout)["plans"]) >= 2
