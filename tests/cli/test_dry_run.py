"""`--dry-run` says what a command then does, and leaves nothing behind."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from linprobe.data.dataset import open_features, public_shots
from linprobe.training import dry_run
from linprobe.training.words import bytes_in_words, seconds_in_words
from tests.cli.outcomes import NOISY, Cli, result_of
from tests.conftest import write_unlabelled

Refused = Callable[..., Any]


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.parametrize(
    "words",
    [
        ("--method", "adamix", "--public-shots", "1"),
        ("--method", "noisy-gd", "--public-shots", "0", "--steps", "3"),
        ("--method", "dp-sgd", "--steps", "4", "--q", "0.5", "--no-per-record"),
        ("--method", "dp-ls",),
    ],
    ids=lambda words: words[1],
)  # fmt: skip
def test_it_states_what_the_run_then_spends(cli, features_file: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    words = ("train", features_file, *words, "--eps", "2", "--out", "run", "--book", "book.jsonl")
    before = files(tmp_path)
    dry = cli(*words, "--dry-run", "--json")
    assert dry.status == 0, dry.stderr
    assert files(tmp_path) == before
    told = json.loads(dry.stdout)
    assert cli(*words).status == 0
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    plans = [plan for plan in told["plans"] if plan["releases"] == manifest["releases"]]
    assert plans, (told["plans"], manifest["releases"])
    assert plans[0]["steps"] == manifest["steps"]
    for key, name in (("n_units", "n_units"), ("public_rows", "n_public"), ("n_features", "n_features")):
        assert told[key] == manifest[name]
    assert told["together"]["epsilon"] == pytest.approx(manifest["epsilon"], rel=1e-3)
    assert told["seconds"] > 0
    assert told["expect"].startswith("expect overall accuracy ")
    assert told["expect"].removeprefix("expect ") in " ".join(
        cli(*words[:-4], "--out", "c", "--dry-run").stdout.split()
    )
    again = json.loads(cli(*words[:-4], "--out", "next", "--book", "book.jsonl", "--dry-run", "--json").stdout)
    assert again["together"]["runs"] == 2
    assert again["together"]["epsilon"] > told["together"]["epsilon"]


@pytest.mark.parametrize("words", [("--method", "non-private"), ("--eps", "1", "--noise-seed", "1", "--insecure-seed")])
def test_a_run_that_no_epsilon_covers_is_counted_and_refused_under_a_cap(
    cli, refused, features_file: Path, words: tuple[str, ...]
) -> None:
    first = ("--method", "noisy-gd", "--eps", "1", "--steps", "3", "--out", "first")
    assert cli("train", features_file, *first, "--book", "book.jsonl").status == 0
    words = ("train", features_file, *words, "--book", "book.jsonl")
    told = result_of(cli(*words, "--dry-run", "--json"))
    assert told["book"] == "book.jsonl"
    assert (told["together"]["runs"], told["together"]["not_private_runs"]) == (1, 1)
    assert cli("budget", "book.jsonl", "--set-cap", "2").status == 0
    for dry in (("--dry-run",), ()):
        refused(cli(*words, *dry), 4, ["cap is epsilon 2", "no epsilon covers a run"], notes=2)


def test_the_estimate_of_time_leaves_out_what_only_some_calls_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = [0.2, 0.2, 0.0, 0.0, 0.2]  # the first draw loads; others wait for another process
    sums, draws = iter(pauses), iter(pauses)
    monkeypatch.setattr(dry_run, "clipped_sum", lambda *_, **__: time.sleep(next(sums)))
    monkeypatch.setattr(dry_run.NoiseSource, "add_noise", lambda *_: time.sleep(next(draws)))
    assert max(dry_run._one_step.__wrapped__(4, 2, 2, "float32", False)) < 0.2


@pytest.mark.parametrize("words", [("train",), ("tune", "--grid", "clip-norm=0.3,1")])
def test_a_device_that_is_not_there_is_refused(cli, refused, features_file: Path, words: tuple[str, ...]) -> None:
    command, *others = words
    named = ("--method", "noisy-gd", "--eps", "1", "--steps", "3", "--device", "cuda:99", "--dry-run")
    refused(cli(command, features_file, *named, *others), 2, ["cuda:99"], notes=1)


def test_a_run_without_private_rows_names_no_book(cli, features_file: Path) -> None:
    words = ("train", features_file, "--method", "only-public", "--public-shots", "1", "--dry-run")
    assert "budget book" not in cli(*words).stdout
    told = result_of(cli(*words, "--json"))
    assert (told["book"], told["together"]) == (None, None)


def test_it_is_plain_lines_and_refuses_what_the_run_would_refuse(cli, refused, features_file: Path) -> None:
    words = ("train", features_file, "--method", "noisy-gd", "--eps", "2", "--book", "book.jsonl", "--dry-run")
    text = cli(*words).stdout
    for part in (
        "noisy-gd",
        "private rows",
        "epsilon 2 at delta 1e-05",
        "steps, noise multiplier",
        "about",
        "book.jsonl",
    ):
        assert part in text
    refused(cli(*words, "--cap", "1"), 4, ["cap", "1"])
    refused(cli(*words, "--delta", "0.5"), 4, ["delta"])


@pytest.mark.parametrize("words", [(), ("--dry-run",), ("--dry-run", "--book", "own.jsonl")])
def test_copies_among_private_rows_are_warned_of(cli, editable: Path, words: tuple[str, ...]) -> None:
    asked = ("train", editable, "--method", "noisy-gd", "--eps", "3", "--steps", "2", "--public-shots", "1", *words)
    said = "more than one private row in 1,000 equals another: if these are of one record or person, epsilon does not"
    assert said not in cli(*asked).stderr
    with open_features(editable) as features:
        ids, labels, names = features.ids("train"), features.labels("train"), features.description.class_names
        private = np.flatnonzero(~public_shots(ids, labels, names, 1, 0))
    with h5py.File(editable, "r+") as file:
        for place in range(4):
            file["train/x"][private[place]] = file["train/x"][private[place + 9]]
    outcome = cli(*asked)
    assert outcome.status == 0, outcome
    assert said in outcome.stderr
    assert said not in outcome.stdout


@pytest.mark.parametrize(("steps", "plans"), [([], 2), (["--steps", "5"], 1)])
def test_a_short_private_mean_is_named_where_it_changes_the_steps(
    cli, private_file: Path, steps: list[str], plans: int
) -> None:
    words = ("--method", "noisy-gd", "--condition", "mean", "--eps", "2", "--book", "book.jsonl", "--dry-run")
    lines = cli("train", private_file, *steps, *words).stdout.splitlines()
    assert sum("noise multiplier" in line for line in lines) == plans
    assert sum("if the private mean is short" in line for line in lines) == plans - 1


def test_a_run_that_noise_dominates_says_so_before_it_spends(cli: Cli, features_file: Path) -> None:
    words = ("train", features_file, "--method", "noisy-gd", "--steps", "2", "--eps", "1e-5")
    told = json.loads(cli(*words, "--dry-run", "--json").stdout)
    assert told["expect"] in told["warnings"]
    assert any("almost only noise" in text and "--delta" in text for text in told["warnings"])
    made = cli(*words, "--out", "run")
    assert all(text in made.stderr for text in told["warnings"])
    assert cli(*words, "--dry-run").stdout.count("near only-public") == 0
    larger = json.loads(cli(*words[:-1], "20", "--dry-run", "--json").stdout)
    assert larger["warnings"] == []
    assert "near non-private" in larger["expect"]


def test_losses_that_read_many_rows_beside_small_samples_are_named(
    cli: Cli, features_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("train", features_file, "--method", "dp-sgd", "--eps", "20", "--steps", "50", "--dry-run", "--json")

    def told(*more: str) -> bool:
        return any("--no-per-record" in text for text in json.loads(cli(*words, *more).stdout)["warnings"])

    assert not told("--q", "0.05")
    monkeypatch.setattr("linprobe.training.plan.MANY_READS", 1e4)
    assert told("--q", "0.05")
    assert not told("--q", "0.5")
    assert not told("--q", "0.05", "--no-per-record")


def test_what_to_expect_is_left_out_where_no_figure_covers_it(cli: Cli, features_file: Path) -> None:
    words = ("train", features_file, *NOISY, "--class-weight", "balanced", "--dry-run", "--json")
    assert json.loads(cli(*words).stdout)["expect"] is None


def test_a_method_without_privacy_is_warned_of(cli: Cli, features_file: Path) -> None:
    words = ("train", features_file, "--method", "non-private")
    (warning,) = [
        text for text in json.loads(cli(*words, "--dry-run", "--json").stdout)["warnings"] if "PRIVATE" in text
    ]
    assert warning.startswith("NOT PRIVATE")
    assert warning in cli(*words, "--out", "run").stderr
    other = json.loads(cli(*words[:-1], "only-public", "--dry-run", "--json").stdout)
    assert not any("NOT PRIVATE" in text for text in other["warnings"])


def test_a_method_without_privacy_has_no_plan(cli, features_file: Path) -> None:
    told = json.loads(cli("train", features_file, "--method", "non-private", "--dry-run", "--json").stdout)
    assert (told["plans"], told["together"], told["seconds"]) == ([], None, None)
    assert "spends" not in cli("train", features_file, "--method", "non-private", "--dry-run").stdout


def test_earlier_runs_without_privacy_are_named_beside_the_total(cli: Cli, features_file: Path) -> None:
    train = ("train", features_file, "--public-shots", "1", "--book", "book.jsonl")
    assert cli(*train, "--method", "non-private", "--out", "bare").status == 0
    words = (*train, "--method", "noisy-gd", "--steps", "3", "--eps", "2", "--out", "run")
    told = result_of(cli(*words, "--dry-run", "--json"))["together"]
    assert (told["runs"], told["not_private_runs"]) == (1, 1)
    clause = "no epsilon covers 1 run without privacy on these rows"
    for done in (cli(*words, "--dry-run").stdout, cli(*words).stderr):
        assert clause in " ".join(done.split())


@pytest.mark.parametrize(
    "words",
    [
        ("--method", "adamix", "--public-shots", "1", "--shrink", "0,0.5,1"),
        ("--method", "noisy-gd", "--grid", "score_noise=0.3,1", "--repetitions", "2"),
    ],
    ids=["shrink", "grid"],
)
def test_a_choice_costs_what_its_dry_run_says(
    cli: Cli, refused: Refused, features_file: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    words = ("tune", features_file, *words, "--steps", "3", "--eps", "2", "--out", "run", "--book", "book.jsonl")
    before = files(tmp_path)
    told = result_of(cli(*words, "--dry-run", "--json"))
    lines = cli(*words, "--dry-run")
    assert "epsilon 2 at delta 1e-05" in lines.stdout, lines
    assert files(tmp_path) == before
    assert told["seconds"] > 0
    refused(cli(*words, "--cap", "1", "--dry-run"), 4, ["cap"], notes=words.count("--shrink"))
    assert cli(*words).status == 0
    spent = result_of(cli("budget", "book.jsonl", "--json"))
    assert (told["together"]["runs"], told["together"]["epsilon"]) == (1, pytest.approx(spent["epsilon"]))


def test_a_comparison_with_unlabelled_rows_reads_them_until_its_books_are_found(
    cli: Cli, features_file: Path, tmp_path: Path
) -> None:
    rows = write_unlabelled(tmp_path / "u.h5")
    words = (
        "compare",
        features_file,
        "--methods",
        "noisy-gd:steps=3",
        "--seeds",
        "1",
        "--no-baselines",
        "--out",
        "cmp",
    )
    assert cli(*words, "--eps", "3", "--unlabelled", rows, "--jobs", "1").status == 0
    told = result_of(cli(*words, "--eps", "3,4", "--unlabelled", rows, "--dry-run", "--json"))
    assert (told["finished"], told["missing"], told["together"]["runs"]) == (1, 1, 2)


def test_a_comparison_costs_what_its_dry_run_says(cli: Cli, refused: Refused, features_file: Path) -> None:
    words = ("compare", features_file, "--methods", "noisy-gd:steps=3,adamix:shrink=0/1", "--public-shots", "1")
    words = (*words, "--eps", "1,3", "--seeds", "2", "--jobs", "1", "--out", "compared", "--book", "book.jsonl")
    before = files(Path())
    told = result_of(cli(*words, "--dry-run", "--json"))
    assert files(Path()) == before
    compared = result_of(cli(*words, "--json"))
    assert told["missing"] == len(compared["runs"]) == 2 * 2 * 2 + 2 * 2
    assert told["not_private"] == compared["composed"]["not_private_runs"]
    assert told["together"]["runs"] == compared["composed"]["private_runs"] == 8
    assert told["together"]["epsilon"] == pytest.approx(compared["composed"]["epsilon"])
    assert told["timed"] == 8
    again = cli(*words, "--dry-run")
    assert "0 runs; 12 of the comparison exist already" in again.stdout
    assert "compared" in again.stdout
    assert Path("compared/table.md").exists()  # a comparison that goes on removes the tables
    refused(cli(*words, "--delta", "1e-6", "--dry-run"), 2, ["holds a comparison"])


def test_a_histogram_costs_what_its_dry_run_says(
    cli: Cli, refused: Refused, features_file: Path, tmp_path: Path
) -> None:
    train = ("train", features_file, "--method", "noisy-gd", "--steps", "3", "--eps", "2", "--book", "book.jsonl")
    for name in ("other", "run"):
        assert cli(*train, "--out", name).status == 0
    assert cli("pdp-report", "run", "--book", "book.jsonl", "--publish-epsilon", "0.2").status == 0
    words = ("pdp-report", "run.published-1", "--publish-epsilon", "0.5", "--book", "book.jsonl", "--csv", "losses.csv")
    held = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    told = result_of(cli(*words, "--dry-run", "--json"))
    shown = cli(*words, "--dry-run").stdout
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == held
    done = result_of(cli(*words, "--json"))["published"]
    assert (told["noise_std"], told["file"]) == (done["noise_std"], done["file"])
    assert told["epsilon_after"] == pytest.approx(done["epsilon_of_run_now"])
    spent = result_of(cli("budget", "book.jsonl", "--json"))
    assert (told["together"]["runs"], told["together"]["epsilon"]) == (2, pytest.approx(spent["epsilon"]))
    changed = {path.name for path, content in held.items() if path.read_bytes() != content}
    assert changed == {"book.jsonl"}
    made = ("run.published-2: the run with published_histogram_2.json", "losses.csv: private")
    assert all(words in shown for words in (*changed, *made, "epsilon 0.5 at delta 1e-05"))
    assert told["private_files"] == ["losses.csv"]
    assert "quantiles" not in told


def test_a_dry_run_of_a_histogram_refuses_what_would_be_refused(
    cli: Cli, refused: Refused, features_file: Path
) -> None:
    train = ("train", features_file, "--method", "noisy-gd", "--steps", "3", "--eps", "2")
    assert cli(*train, "--out", "run", "--book", "book.jsonl").status == 0
    assert cli(*train, "--out", "seeded", "--noise-seed", "1", "--insecure-seed").status == 0
    words = ("--publish-epsilon", "1", "--book", "book.jsonl", "--dry-run")
    assert cli("budget", "book.jsonl", "--set-cap", "2.1", "--delta", "1e-5").status == 0
    refused(cli("pdp-report", "run", *words), 4, ["cap"])
    refused(cli("pdp-report", "seeded", *words), 4, ["not private"])
    assert "spends     nothing" in cli("pdp-report", "run", "--dry-run").stdout


def test_sizes_and_times_have_units() -> None:
    assert [bytes_in_words(count) for count in (0, 1023, 2048, 5 << 20, 3 << 30)] == [
        "0 bytes", "1023 bytes", "2 KiB", "5 MiB", "3.0 GiB",
    ]  # fmt: skip
    assert [seconds_in_words(count) for count in (0.04, 60, 600, 36000)] == ["0.0 s", "60.0 s", "10.0 min", "10.0 h"]
