"""`linprobe compare --unit owner`: every run protects people, and the total cost is that of a person."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from linprobe.accounting.accountants import GAUSSIAN
from linprobe.accounting.events import grouped
from linprobe.accounting.ledger import read_ledger
from tests.cli.outcomes import Cli, result_of
from tests.cli.test_owners import PEOPLE, write_owned

METHODS = "noisy-gd:steps=3,adamix:steps=3,noisy-gd:steps=3:shrink=0/1"


@pytest.fixture(scope="module")
def owned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 training rows of 120 people. Do not change it."""
    return write_owned(tmp_path_factory.mktemp("owned") / "owned.h5")


def test_every_run_protects_people_and_takes_the_same_public_people(cli: Cli, owned: Path) -> None:
    words = ["--methods", METHODS, "--eps", "3", "--seeds", "1", "--public-shots", "2", "--jobs", "1", "--attack"]
    outcome = cli("compare", owned, *words, "--unit", "owner", "--out", "cmp", "--json")
    compared = result_of(outcome)
    assert len(compared["runs"]) == 5
    manifests = [json.loads(Path(run["run"], "manifest.json").read_text()) for run in compared["runs"]]
    assert {manifest["unit"] for manifest in manifests} == {"owner"}
    assert len({manifest["n_public"] for manifest in manifests}) == 1
    assert {manifest["n_units"] for manifest in manifests if manifest["private"]} == {manifests[0]["n_units"]}
    assert manifests[0]["n_public"] >= 8
    assert manifests[0]["n_units"] < PEOPLE
    spent = [event for run in compared["runs"][:3] for event in read_ledger(Path(run["run"], "ledger.jsonl"))]
    assert compared["composed"]["unit"] == "owner"
    assert compared["composed"]["epsilon"] == pytest.approx(GAUSSIAN.epsilon(grouped(spent), 1e-5))
    assert len(compared["attacks"]) == 5
    assert (
        "for a person private in all of them" in cli("compare", owned, *words, "--unit", "owner", "--out", "cmp").stderr
    )


def test_units_are_not_mixed_and_owners_are_needed(
    cli: Cli, refused: Callable[..., None], owned: Path, features_file: Path
) -> None:
    quick = ["--methods", "noisy-gd:steps=2", "--eps", "3", "--seeds", "1", "--jobs", "1", "--no-baselines"]
    assert cli("compare", owned, *quick, "--unit", "record", "--out", "cmp").status == 0
    refused(cli("compare", owned, *quick, "--unit", "owner", "--out", "cmp"), 2, ["unit record", "unit owner", "--out"])
    refused(cli("compare", features_file, *quick, "--unit", "owner", "--out", "new"), 2, ["does not name the owners"])
    refused(cli("compare", owned, *quick, "--unit", "family", "--out", "new"), 2, ["record, owner"])
    assert not Path("new").exists()
