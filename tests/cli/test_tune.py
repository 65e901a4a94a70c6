"""`linprobe tune`: one budget for the choice and the run, nothing about other runs, and wrong requests."""

from __future__ import annotations

import json
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from linprobe.accounting.accountants import GAUSSIAN
from linprobe.accounting.ledger import read_ledger, read_selection
from linprobe.accounting.selection import selection_epsilon
from linprobe.data.blocks import ArraySource
from linprobe.errors import DivergedError, ParameterError
from linprobe.gradients.loss import Scale
from linprobe.mechanisms import correct_predictions as mechanism
from linprobe.mechanisms.correct_predictions import correct_counts
from linprobe.methods import adadps
from linprobe.runs.figures import count_private
from linprobe.training import execute as execution
from linprobe.training import train as training
from linprobe.training import tune as tune_command
from tests.cli.outcomes import Cli, result_of, weights_of, write_sealed

GRID = ["--method", "noisy-gd", "--steps", "3", "--grid", "score_noise=0.3,1", "--grid", "clip_norm=0.1,0.5"]
SHRINK = ["--method", "adamix", "--steps", "3", "--shrink", "0,0.5,1"]
FILES = ["history.csv", "ledger.jsonl", "manifest.json", "model.npz", "per_record.npz", "test_figures.json"]


@pytest.fixture(scope="module")
def selected(tmp_path_factory: pytest.TempPathFactory, features_file: Path) -> Path:
    """A run that private selection chose. Do not change it."""
    from linprobe.cli import run

    out = tmp_path_factory.mktemp("selected") / "run"
    assert run(["tune", str(features_file), *GRID, "--eps", "2", "--out", str(out)]) == 0
    return out


def test_shrinkage_is_one_more_release_of_an_ordinary_run(cli: Cli, features_file: Path) -> None:
    result = result_of(cli("tune", features_file, *SHRINK, "--eps", "1", "--out", "run", "--json"))
    assert 0.999 < result["epsilon"] <= 1
    assert "seconds" not in result
    events = read_ledger(Path("run/ledger.jsonl"))
    assert [event.purpose for event in events] == ["gradient"] * 3 + ["selection"]
    assert events[-1].sensitivity == pytest.approx(np.sqrt(3) / 2)
    tuning = result["tuning"]
    assert tuning["factors"] == [0.0, 0.5, 1.0]
    assert tuning["shrink"] == tuning["factors"][int(np.argmax(tuning["counts"]))]
    checked = result_of(cli("verify", "run", "--features", features_file, "--json"))
    assert checked["epsilon"] == pytest.approx(checked["epsilon_cross_check"], rel=2e-3)
    report = result_of(cli("pdp-report", "run", "--json"))
    assert report["max"] <= result["epsilon"]
    assert report["quantiles"]["0.01"] > 0.1  # every record pays for the counts in full
    assert cli("release", "run", "--out", "pub").status == 0
    for page in ("README.md", "claim.yaml"):
        assert "chosen on these rows by noisy counts of correct predictions" in Path("pub", page).read_text()


def test_the_best_count_chooses_the_weights(cli: Cli, features_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    candidates = []

    def prefer_the_second(weights: Any, bias: Any, *rows: Any) -> tuple[int, int]:
        candidates.append(weights)
        return (400 if len(candidates) == 2 else 0), 400

    monkeypatch.setattr(execution, "count_private", prefer_the_second)
    result = result_of(cli("tune", features_file, *SHRINK, "--eps", "9", "--out", "run", "--json"))
    assert result["tuning"]["shrink"] == 0.5
    assert np.array_equal(weights_of(Path("run")), candidates[1])
    assert np.allclose(candidates[1], (candidates[0] + candidates[2]) / 2, atol=1e-5)


@pytest.mark.parametrize("n_models", [1, 4])
def test_an_empty_place_changes_the_counts_by_at_most_the_sensitivity(n_models: int) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((30, 5)).astype(np.float32), rng.integers(0, 3, 30)
    models = [(rng.standard_normal((5, 3)).astype(np.float32), np.float32([1, 0, 0])) for _ in range(n_models)]

    def counts(rows: Any) -> Any:
        return correct_counts([count_private(*model, ArraySource(rows, y), None) for model in models], 30)

    whole = counts(x)
    for place in range(30):
        without = x.copy()
        without[place] = 0  # a model has an opinion on a zero row too: its bias
        change = np.linalg.norm(whole.value - counts(without).value)
        assert 0 < change <= whole.sensitivity


def test_the_selection_costs_what_was_asked_and_verifies(cli: Cli, selected: Path, features_file: Path) -> None:
    event = read_selection(selected / "ledger.jsonl")
    assert event is not None
    manifest = json.loads((selected / "manifest.json").read_text())
    assert 0.998 * 2 < manifest["epsilon"] <= 2
    assert manifest["epsilon"] == selection_epsilon(event, 1e-5, GAUSSIAN)
    assert event.mean_repetitions == 4
    checked = result_of(cli("verify", selected, "--features", features_file, "--json"))
    assert checked["epsilon"] == manifest["epsilon"] < checked["epsilon_cross_check"]
    assert cli("verify", selected).stdout == "verified\n"
    assert cli("verify", selected, "--max-eps", "1.5").status == 4
    assert manifest["tuning"]["settings"][manifest["tuning"]["chosen"]]["score_noise"] in (0.3, 1)


def test_other_commands_know_a_selected_run(
    cli: Cli, refused: Callable[..., None], selected: Path, features_file: Path
) -> None:
    assert cli("evaluate", selected).status == 0
    assert cli("predict", selected, features_file).status == 0
    assert cli("report", selected, "--html", "page.html").status == 0
    assert "Private selection among 4 settings" in Path("page.html").read_text()
    attack = result_of(cli("attack", selected, "--json"))
    assert 0 < attack["tpr_limit_at_fpr"]["0.01"] < 1
    refused(cli("attack", selected, "--lira"), 2, ["tuned"])
    refused(cli("pdp-report", selected), 2, ["private selection"])
    refused(cli("pdp-report", selected, "--publish-epsilon", "1"), 2, ["private selection"])
    words = ["--method", "noisy-gd", "--eps", "4", "--init", selected, "--out", "next"]
    refused(cli("train", features_file, *words), 4, ["private selection"])


def test_a_release_states_the_selection(cli: Cli, selected: Path) -> None:
    assert cli("release", selected, "--out", "pub").status == 0
    card = Path("pub/README.md").read_text()
    assert "private selection of the best of a geometric number of runs" in card
    assert "3 of purpose 'gradient'" in card
    assert "nothing was released" not in card
    assert "without these rows" not in card + Path("pub/claim.yaml").read_text()
    assert cli("verify", "pub").status == 0


def _trace(cli: Cli, features: Path, out: str, monkeypatch: pytest.MonkeyPatch, runs: int) -> dict[str, Any]:
    """All that a selection with a given number of runs leaves, but for the figures of the chosen run."""
    monkeypatch.setattr(mechanism, "geometric", lambda mean: runs)
    Path(out).mkdir()
    outcome = cli("tune", features, *GRID, "--eps", "2", "--out", f"{out}/run", "--json", "--book", f"{out}.book")
    folder = Path(out) / "run"
    manifest = json.loads((folder / "manifest.json").read_text())
    return {
        "stderr": outcome.stderr.replace(out, ""),
        "keys": [sorted(manifest), sorted(result_of(outcome)), sorted(manifest["tuning"])],
        "around": sorted(path.name for path in Path(out).iterdir()),
        "files": sorted(path.name for path in folder.iterdir()),
        "ledger": (folder / "ledger.jsonl").read_text(),
        "history": len((folder / "history.csv").read_text().splitlines()),
        "modes": [stat.S_IMODE(path.stat().st_mode) for path in sorted(folder.iterdir())],
    }


def test_nothing_tells_how_many_runs_there_were(
    cli: Cli, features_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one, many = (_trace(cli, features_file, name, monkeypatch, runs) for name, runs in (("one", 1), ("many", 6)))
    assert one == many
    assert one["files"] == FILES
    assert one["around"] == ["run"]


def test_files_carry_the_time_of_the_end(cli: Cli, features_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train, ends = tune_command.execute, []

    def slow(*arguments: Any, **named: Any) -> Any:
        trained = train(*arguments, **named)
        time.sleep(0.05)
        ends.append(time.time() - 0.02)  # the clock of files is coarse
        return trained

    monkeypatch.setattr(tune_command, "execute", slow)
    above = Path("above")
    above.mkdir()
    assert cli("tune", features_file, *GRID, "--eps", "2", "--out", "above/new/er/run").status == 0
    assert min(path.stat().st_mtime for path in [above, *above.rglob("*")]) >= ends[-1]


def test_a_run_that_diverges_loses_in_silence(cli: Cli, features_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mechanism, "geometric", lambda mean: 12)
    train = tune_command.execute

    def diverging(plan: Any, *arguments: Any, **named: Any) -> Any:
        if plan.settings.options.score_noise == 1:
            np.float32(1e38) * np.float32(1e38)  # warns of an overflow
            raise DivergedError("training diverged")
        return train(plan, *arguments, **named)

    monkeypatch.setattr(tune_command, "execute", diverging)
    outcome = cli("tune", features_file, *GRID, "--eps", "2", "--out", "run", "--json")
    assert "diverged" not in outcome.stderr
    assert "overflow" not in outcome.stderr
    tuning = result_of(outcome)["tuning"]
    assert tuning["settings"][tuning["chosen"]]["score_noise"] == 0.3


def test_a_refusal_after_a_release_counts_as_divergence_and_tells_no_figure(
    cli: Cli, features_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = []

    def third_refused(scale: Any) -> Scale:
        steps.append(scale)
        if len(steps) == 3:
            raise ParameterError("scale is from 1e-06 to 2.12")
        return Scale(scale)

    monkeypatch.setattr(adadps, "Scale", third_refused)
    words = ["--method", "adadps", "--eps", "3", "--q", "1", "--steps", "5", "--public-shots", "2"]
    outcome = cli("train", features_file, *words, "--out", "run")
    assert outcome.status == 1
    assert "training diverged" in outcome.stderr
    assert "2.12" not in outcome.stderr
    assert len(Path("run.diverged/ledger.jsonl").read_text().splitlines()) == 2
    steps.clear()
    monkeypatch.setattr(mechanism, "geometric", lambda mean: 3)
    tuned = cli("tune", features_file, *words, "--grid", "score_noise=0.3,1", "--out", "tuned")
    assert tuned.status == 0
    assert "adadps: 392 private rows, 8 public rows" in tuned.stderr


@pytest.mark.parametrize("command", ["train", "tune"])
def test_ctrl_c_after_a_run_has_its_name_says_that_it_counts(
    cli: Cli, features_file: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr(training, "tell", mock.Mock(side_effect=KeyboardInterrupt))
    words = GRID if command == "tune" else ["--method", "noisy-gd", "--steps", "2"]
    outcome = cli(command, features_file, *words, "--eps", "2", "--out", "run")
    assert outcome.status == 130
    assert "run run is complete, and counts" in outcome.stderr
    assert cli("verify", "run").status == 0


def test_a_selected_divergence_is_charged(cli: Cli, features_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def diverging(*_: Any, **__: Any) -> Any:
        raise DivergedError("training diverged")

    monkeypatch.setattr(tune_command, "execute", diverging)
    outcome = cli("tune", features_file, *GRID, "--eps", "2", "--out", "run")
    assert outcome.status == 1
    assert "selected run diverged" in outcome.stderr
    assert not Path("run").exists()
    assert sorted(path.name for path in Path("run.diverged").iterdir()) == ["diverged.json", "ledger.jsonl"]
    assert read_selection(Path("run.diverged/ledger.jsonl")) is not None


def test_the_charge_is_on_disk_before_the_first_run(
    cli: Cli, features_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []

    def look(*_: Any, **__: Any) -> Any:
        found.extend(read_selection(path) for path in tmp_path.glob(".run.*.partial/ledger.jsonl"))
        raise DivergedError("training diverged")

    monkeypatch.setattr(tune_command, "execute", look)
    cli("tune", features_file, *GRID, "--eps", "2", "--out", "run")
    assert found
    assert None not in found


@pytest.mark.parametrize("edit", ["epsilon", "repetitions", "ledger", "releases"])
def test_an_edited_selection_is_refused(cli: Cli, selected: Path, tmp_path: Path, edit: str) -> None:
    import shutil

    folder = Path(shutil.copytree(selected, tmp_path / "run"))
    manifest = json.loads((folder / "manifest.json").read_text())
    line = json.loads((folder / "ledger.jsonl").read_text())
    if edit == "epsilon":
        manifest["guarantee"] = manifest["guarantee"].replace(f"({manifest['epsilon']:.3g}"[:3], "(1")
        manifest["epsilon"] = 1.0
    if edit == "repetitions":
        manifest["selection"]["mean_repetitions"] = 2
    if edit == "releases":
        manifest["steps"] = 2
    if edit == "ledger":
        line["runs"][0][0]["noise_multiplier"] *= 2
        (folder / "ledger.jsonl").write_text(json.dumps(line) + "\n")
    write_sealed(folder, manifest)
    assert cli("verify", "run").status == 4


WRONG: dict[str, tuple[list[str], int, list[str]]] = {
    "nothing to choose": ([], 2, ["nothing to choose"]),
    "no budget": (["--grid", "score_noise=1,2", "--method", "noisy-gd"], 2, ["privacy budget"]),
    "no such option": (["--eps", "1", "--grid", "speed=1,2"], 2, ["speed"]),
    "a misspelt option": (["--eps", "1", "--grid", "stps=1,2"], 2, ["sigma, steps, centre", "did you mean steps?"]),
    "the accountant": (["--eps", "1", "--grid", "accountant=rdp,pld"], 2, ["grid has accountant", "beside the grid"]),
    "option of another method": (["--eps", "1", "--method", "ngd", "--grid", "radius=1,2"], 2, ["radius", "ngd"]),
    "the budget": (["--eps", "1", "--method", "ngd", "--grid", "eps=1,2"], 2, ["grid has eps", "beside the grid"]),
    "no values": (["--eps", "1", "--grid", "score_noise"], 2, ["OPTION=VALUE"]),
    "a value twice": (["--eps", "1", "--grid", "score_noise=1,1"], 2, ["once"]),
    "a number twice": (["--eps", "1", "--grid", "score_noise=1,1.0"], 2, ["score_noise=1.0 twice", "once"]),
    "an option twice": (["--eps", "1", "--grid", "score_noise=1,2", "--grid", "score-noise=3,4"], 2, ["once"]),
    "one setting": (["--eps", "1", "--grid", "score_noise=1"], 2, ["the grid has 1 setting;"]),
    "no number": (["--eps", "1", "--grid", "score_noise=a,b"], 2, ["score_noise", "number"]),
    "outside its range": (["--eps", "1", "--grid", "score_noise=-1,1"], 2, ["score-noise"]),
    "given as well": (["--eps", "1", "--score-noise", "1", "--grid", "score_noise=1,2"], 2, ["leave one out"]),
    "method twice": (["--eps", "1", "--method", "ngd", "--grid", "method=ngd,noisy-gd"], 2, ["leave one out"]),
    "one factor": (["--eps", "1", "--shrink", "0.5"], 2, ["two factors"]),
    "factor above 1": (["--eps", "1", "--shrink", "0.5,1.5"], 2, ["0 to 1"]),
    "no factor": (["--eps", "1", "--shrink", "a,b"], 2, ["numbers with commas"]),
    "one repetition": (["--eps", "1", "--grid", "score_noise=1,2", "--repetitions", "1"], 2, ["2 to 1000"]),
    "repetitions of nothing": (["--eps", "1", "--shrink", "0,1", "--repetitions", "3"], 2, ["--repetitions"]),
    "zero first weights": (["--eps", "1", "--method", "noisy-gd", "--init", "zero", "--shrink", "0,1"], 2, ["zero"]),
    "no first weights": (["--eps", "1", "--method", "dp-ls", "--shrink", "0,1"], 2, ["zero weights"]),
    "no budget to spend": (["--eps", "1", "--grid", "method=noisy-gd,only-public"], 2, ["only-public"]),
    "per-record": (["--eps", "1", "--grid", "score_noise=1,2", "--per-record"], 2, ["--per-record"]),
    "large delta": (["--eps", "1", "--delta", "0.1", "--grid", "score_noise=1,2"], 4, ["delta"]),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_request_is_one_line_and_leaves_nothing(cli: Cli, features_file: Path, tmp_path: Path, name: str) -> None:
    words, status, told = WRONG[name]
    outcome = cli("tune", features_file, *words, "--out", "run")
    last = outcome.stderr.splitlines()[-1]
    assert (outcome.status, outcome.stdout) == (status, "")
    assert last.startswith("linprobe: error: ")
    assert all(word in last for word in told), last
    assert list(tmp_path.iterdir()) == []


def test_shrinkage_needs_first_weights(cli: Cli, refused: Callable[..., None], private_file: Path) -> None:
    words = ["--method", "noisy-gd", "--eps", "1", "--shrink", "0,1", "--out", "run"]
    refused(cli("tune", private_file, *words), 2, ["starts from zero weights"])


def test_methods_can_be_chosen(cli: Cli, features_file: Path) -> None:
    words = ["--grid", "method=noisy-gd,ngd", "--steps", "3", "--eps", "2", "--shrink", "0.5,1"]
    result = result_of(cli("tune", features_file, *words, "--out", "run", "--json"))
    chosen = result["tuning"]["settings"][result["tuning"]["chosen"]]
    assert result["method"] == chosen["method"]
    assert result["tuning"]["factors"] == [0.5, 1.0]
    assert cli("verify", "run").status == 0


def test_tuned_rows_are_compared_at_the_same_total_epsilon(cli: Cli, features_file: Path) -> None:
    rows = "noisy-gd:steps=2:score-noise=0.3/1:repetitions=2,noisy-gd:steps=2:shrink=0/1"
    words = ["--methods", rows, "--eps", "2", "--seeds", "1", "--no-baselines", "--jobs", "1", "--out", "cmp"]
    compared = result_of(cli("compare", features_file, *words, "--json"))
    assert Path().stat().st_mtime_ns >= Path("cmp").stat().st_mtime_ns  # not the time at which cmp was made
    assert [row["method"] for row in compared["summary"]] == rows.split(",")
    assert all(1.99 < run["epsilon_spent"] <= 2 for run in compared["runs"])
    made = list(Path("cmp/runs").iterdir())
    assert {len(json.loads((run / "manifest.json").read_text())["created"]) for run in made} == {len("YYYY-MM-DD")}
    early = [Path("cmp/.lock"), Path("cmp/private_commitment.json")]  # from the first to the last, the selection ran
    assert len({path.stat().st_mtime_ns for run in made for path in (*early, run, *run.iterdir())}) == 1
    composed = compared["composed"]
    assert composed["private_runs"] == 2
    assert 3.5 < composed["epsilon"] < 4  # by Renyi divergences; the sum of both would be above 4
    assert cli("compare", features_file, "--methods", "noisy-gd:shrink=0/2", "--eps", "1").status == 2
