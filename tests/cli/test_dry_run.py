"""`linprobe train --dry-run` says what a run then does, and leaves nothing behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


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
    again = json.loads(cli(*words[:-4], "--out", "next", "--book", "book.jsonl", "--dry-run", "--json").stdout)
    assert again["together"]["runs"] == 2
    assert again["together"]["epsilon"] > told["together"]["epsilon"]


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


def test_a_method_without_privacy_has_no_plan(cli, features_file: Path) -> None:
    told = json.loads(cli("train", features_file, "--method", "non-private", "--dry-run", "--json").stdout)
    assert (told["plans"], told["together"], told["seconds"]) == ([], None, None)
    assert "spends" not in cli("train", features_file, "--method", "non-private", "--dry-run").stdout
