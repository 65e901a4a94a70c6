"""The page with the papers' tables matches the committed figures, which were measured with the settings of today."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from linprobe.accounting.calibrate import releases_cost
from linprobe.options.requests import AccountRequest
from linprobe.training import plan
from tests.conftest import mostly_nightly
from tests.docs.scripts import load_script

HERE = Path(__file__).parents[2]
PAGE = HERE / "docs" / "reproduction.md"
FOLDER = HERE / "benchmarks" / "paper_tables"
TABLES = load_script(FOLDER / "tables.py")
MANY_PLANS = {"large-rates", "dpsgdf-theorem3", "scattering", "dope-table3", "convergence"}
AGAIN = "its settings have changed, so measure it again: {}"


def found(name: str) -> dict[str, Any]:
    return dict(json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")))


def same(stated: dict[str, Any], today: dict[str, Any]) -> bool:
    trials = stated["trial"], today["trial"]
    rest = [{**settings, "trial": None} for settings in (stated, today)]
    return rest[0] == rest[1] and trials[0] == pytest.approx(trials[1], rel=2e-3)


def test_page_is_what_the_figures_give() -> None:
    done = subprocess.run([sys.executable, HERE / "benchmarks/paper_tables/render.py", "--check"], timeout=60)
    assert done.returncode == 0, "run python benchmarks/paper_tables/render.py"


def test_sentences_of_the_page_state_the_measured_figures() -> None:
    """Sentences are written by hand, so a table that is measured again leaves them behind."""
    mean = {
        name: {(row["method"], row["epsilon"]): 100 * row["mean"] for row in found(name)["rows"]}
        for name in ("adamix-figure4", "adamix-preset", "convergence")
    }
    text, preset, over = mean["adamix-figure4"], mean["adamix-preset"], mean["convergence"]
    gains = [text["noisy-gd from text", epsilon] - text["noisy-gd from zero", epsilon] for epsilon in (0.1, 0.25, 1)]
    tuned = preset["fully-private, learning rate 0.02", 1], preset["fully-private, learning rate 0.02", 3]
    clouds = {(row["method"], row["part"]): 100 * row["mean"] for row in found("dpsgdf-theorem3")["rows"]}
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    for words in (
        f"{gains[0]:.0f} points better than from zero at epsilon 0.1, {gains[1]:.0f} at 0.25, and equal at 1",
        f"`adamix` has {preset['adamix', 1]:.1f} ± 0.9 at epsilon 1 and {preset['adamix', 3]:.1f} ± 0.9 at 3",
        f"a learning rate of 0.02 gives {tuned[0]:.1f} and {tuned[1]:.1f}",
        f"from {over['noisy-gd', 0.1]:.0f} % (`noisy-gd`) and {over['dp-sgd', 0.1]:.0f} % (`dp-sgd`) at epsilon 0.1 to "
        f"{over['dp-sgd', 3]:.0f} % at 3",
        f"`theory` is right on {clouds['dpsgd-f, variant theory', '1000']:.1f} ±",
    ):
        assert words in page, words
    assert abs(gains[2]) < 1


def test_every_figure_of_the_page_is_there() -> None:
    images = re.findall(r"\]\((images/[^)]+)\)", PAGE.read_text(encoding="utf-8"))
    assert images
    assert all((PAGE.parent / image).is_file() for image in images)


@pytest.mark.parametrize("name", mostly_nightly(TABLES.TABLES, lambda name: name not in MANY_PLANS))
def test_a_table_was_measured_with_the_defaults_of_today(name: str) -> None:
    table, today = found(name), TABLES.digests_of(name)
    assert {key: table["settings"][key] for key in today} == today, AGAIN.format(table["command"])
    assert len({one["runs"] for one in table["rows"] if one.get("epsilon") and "runs" in one}) <= 1


# the others make runs too
BY_DAY = ("dope-figure2",)


@pytest.mark.parametrize("name", mostly_nightly(TABLES.TABLES, BY_DAY.__contains__))
def test_a_table_was_measured_with_the_algorithms_of_today(name: str) -> None:
    table = found(name)
    assert same(table["settings"], TABLES.settings_of(name)), AGAIN.format(table["command"])


@pytest.mark.parametrize("name", [name for name, table in TABLES.TABLES.items() if found(name).get("data")])
def test_a_table_was_measured_on_the_rows_that_it_names(name: str) -> None:
    data = TABLES.DATA[TABLES.TABLES[name].data]
    assert tuple(found(name)["data"]) == data.digests


def test_distances_are_of_the_rows_that_they_name() -> None:
    table = found("dpsgdf-table2")
    named = [digest for row in table["rows"] for digest in TABLES.DATA[row["data"]].digests]
    assert table["data"] == named
    assert [row["rows"] for row in table["rows"]] == [TABLES.DATA[row["data"]].n_rows for row in table["rows"]]
    for row in table["rows"]:
        assert row["mean"] <= row["largest"] <= row["diameter"] <= 2


@pytest.mark.parametrize("name", mostly_nightly(["large-rates-table2", "accounting"], "large-rates-table2".__eq__))
def test_epsilons_of_the_papers_are_recomputed(name: str) -> None:
    printed = json.loads((FOLDER / "paper.json").read_text(encoding="utf-8"))[name]["rows"]
    for row, ours in zip(printed, found(name)["rows"], strict=True):
        request = AccountRequest(
            sampling_rate=row["q"], noise_multiplier=row["sigma"], n_steps=row["steps"], delta=row["delta"]
        )
        costs = releases_cost(request)
        assert (costs["rdp"], costs["pld"]) == pytest.approx((ours["rdp"], ours["pld"]), rel=1e-6)
        assert ours["pld"] < ours["rdp"]
        if name == "large-rates-table2":
            assert abs(ours["rdp"] - row["epsilon"]) < 0.01


@pytest.mark.nightly
def test_settings_of_another_default_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    name, rows = "dpsgdf-theorem3", ("dp-sgd", "dp-sgd around a private mean", "dpsgd-f")
    table = TABLES.TABLES[name]
    monkeypatch.setitem(TABLES.TABLES, name, replace(table, methods=[row for row in table.methods if row.name in rows]))
    monkeypatch.setattr(TABLES, "TRIAL_STEPS", 5)
    TABLES.trial.cache_clear()
    today = TABLES.settings_of(name)
    monkeypatch.setattr(plan, "MEAN_SHARE", 2 * plan.MEAN_SHARE)
    TABLES.trial.cache_clear()
    changed = TABLES.settings_of(name)
    TABLES.trial.cache_clear()
    assert {key for key in today if changed[key] != today[key]} == {"plans", "constants", "trial"}
    moved = {row for row in today["trial"] if changed["trial"][row] != today["trial"][row]}
    assert moved == {"dp-sgd around a private mean"}  # dpsgd-f has a share of its own


def test_settings_of_another_algorithm_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    table = TABLES.Table(TABLES.rows("adamix", "noisy-gd"), (1,), data="digits", baselines=False)
    monkeypatch.setitem(TABLES.TABLES, "one", table)
    today = TABLES.settings_of("one")
    monkeypatch.setattr(TABLES.descent, "private_weight", lambda problem, schedule: 0.5)
    TABLES.trial.cache_clear()
    changed = TABLES.settings_of("one")
    TABLES.trial.cache_clear()
    assert same(today, today)
    assert not same(today, changed)
    assert {**changed, "trial": today["trial"]} == today
