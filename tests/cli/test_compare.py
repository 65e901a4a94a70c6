"""`compare`: tables, figures, resumption, total cost of all runs, several public files, wrong requests."""

from __future__ import annotations

import csv
import errno
import fcntl
import json
import os
import shutil
import stat
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest

from linprobe import __version__
from linprobe.accounting.accountants import GAUSSIAN
from linprobe.accounting.book import read_book, spending
from linprobe.accounting.events import grouped
from linprobe.accounting.ledger import read_ledger
from linprobe.data.dataset import open_features, public_shots
from linprobe.errors import UsageError
from linprobe.evaluation import compare
from linprobe.evaluation.compare import compare_methods
from linprobe.parallel import available_memory
from linprobe.runs import run_folder
from linprobe.runs.run_folder import RunFolder
from linprobe.training.charge import RunCharge
from linprobe.training.train import train_on
from tests.cli.outcomes import Cli, result_of
from tests.conftest import write_features

PNG = b"\x89PNG"
QUICK = ["--methods", "noisy-gd:steps=3", "--eps", "3", "--jobs", "1"]


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def folders(out: Path) -> list[str]:
    return sorted(path.name for path in (out / "runs").iterdir())


def run_called(out: Path, start: str) -> Path:
    """The one run folder whose name begins so; a digest follows."""
    (found,) = (out / "runs").glob(f"{start}-*")
    return found


def test_a_comparison_of_another_version_is_not_trained_again(
    cli: Cli, refused: Cli, features_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    assert cli("compare", features_file, *QUICK, "--out", out).status == 0
    before, spent = folders(out), cli("budget", features_file).stdout
    monkeypatch.setattr("linprobe.evaluation.comparison_plan.__version__", "9.9")
    for words in (("--dry-run",), ()):
        told = [str(run_called(out, "noisy-gd_steps=3-eps3-seed0")), __version__, "9.9", "--out", "nothing was spent"]
        refused(cli("compare", features_file, *QUICK, "--out", out, *words), 4, told)
    assert (folders(out), cli("budget", features_file).stdout) == (before, spent)
    other = ["--methods", "noisy-gd:steps=4", *QUICK[2:]]
    assert cli("compare", features_file, *other, "--out", out, "--dry-run").status == 0


@pytest.mark.parametrize("finished", [0, 1])
def test_a_comparison_that_is_stopped_says_what_is_kept(
    cli: Cli, features_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished: int
) -> None:
    calls = []

    def stopped(*given: Any) -> dict[str, Any]:
        calls.append(1)
        if len(calls) > finished:
            raise KeyboardInterrupt
        return train_on(*given)

    monkeypatch.setattr(compare, "train_on", stopped)
    outcome = cli("compare", features_file, *QUICK, "--seeds", "2", "--public-shots", "1", "--out", "cmp")
    assert outcome.status == 130, outcome
    assert ("finished runs are kept" in outcome.stderr) == (tmp_path / "cmp").exists() == bool(finished)


def test_manifests_name_the_files_as_given_even_if_they_do_not_fit_in_memory(
    cli: Cli, features_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("f.h5", "public.h5"):
        shutil.copy(features_file, name)
    with h5py.File("f.h5", "r+") as file:
        file["train/x"][:] *= -1
    monkeypatch.setattr(available_memory, "suffices", lambda _: False)
    words = ["--methods", "adamix:steps=2", "--eps", "1", "--seeds", "1", "--jobs", "1"]
    assert cli("compare", "f.h5", *words, "--public", "public.h5", "--out", "cmp").status == 0
    for run in folders(tmp_path / "cmp"):
        assert str(tmp_path) not in (tmp_path / "cmp" / "runs" / run / "manifest.json").read_text()


@pytest.mark.usefixtures("pictures")
def test_compare_makes_every_run_and_tabulates_them(cli: Cli, features_file: Path, tmp_path: Path) -> None:
    words = ["--methods", "adamix:steps=3,noisy-gd:steps=3", "--eps", "1,3", "--seeds", "2", "--public-shots", "1,2"]
    outcome = cli("compare", features_file, *words, "--jobs", "1", "--out", "cmp")
    out = tmp_path / "cmp"
    assert outcome.status == 0, outcome
    assert outcome.stdout == "cmp\n"
    for word in ("adamix:steps=3", "only-public", "non-private", "eps 1", "eps 3", "together epsilon"):
        assert word in outcome.stderr
    runs = rows_of(out / "runs.csv")
    assert len(runs) == len(folders(out)) == 2 * 2 * 2 * 2 + 2 * 2 * 2  # baselines have no epsilon
    assert {run["data"] for run in (*runs, *rows_of(out / "summary.csv"))} == {features_file.stem}
    assert {(run["shots"], run["seed"]) for run in runs} == {("1", "0"), ("1", "1"), ("2", "0"), ("2", "1")}
    for run in runs:
        manifest = json.loads((tmp_path / run["run"] / "manifest.json").read_text())
        assert float(run["test_accuracy"]) == manifest["test_accuracy"]
        if run["epsilon"]:
            assert float(run["epsilon_spent"]) <= float(run["epsilon"])
    summary = rows_of(out / "summary.csv")
    mine = [
        float(run["test_accuracy"])
        for run in runs
        if (run["method"], run["epsilon"], run["shots"]) == ("adamix:steps=3", "1.0", "1")
    ]
    chosen = next(
        one for one in summary if (one["method"], one["epsilon"], one["shots"]) == ("adamix:steps=3", "1.0", "1")
    )
    assert float(chosen["mean"]) == pytest.approx(np.mean(mine))
    assert float(chosen["std"]) == pytest.approx(np.std(mine, ddof=1))
    assert (out / "accuracy_against_epsilon.png").read_bytes().startswith(PNG)
    table = (out / "table.md").read_text(encoding="utf-8")
    assert table.startswith("Test accuracy, %, mean ± standard deviation over ")
    bold = ["best", "balanced_best"] if "Balanced" in table else ["best"]
    assert table.count("**") == 2 * [one[name] for one in summary for name in bold].count("True")


def test_the_best_figure_is_marked_in_words_not_markup(
    cli: Cli, features_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_a_best(*arguments: Any) -> dict[str, Any]:
        compared = compare_methods(*arguments)
        compared["summary"][0].update(best=True, mean=0.875, std=0.0)
        return compared

    monkeypatch.setattr("linprobe.evaluation.compare.compare_methods", with_a_best)
    words = ["--methods", "noisy-gd:steps=3", "--eps", "1", "--seeds", "2", "--no-baselines", "--jobs", "1"]
    shown = cli("compare", features_file, *words, "--out", "cmp").stderr
    assert "87.5±0.0*" in shown
    assert "* is clearly better" in shown
    assert "**" not in shown
    assert "[bold]" not in shown


def test_footer_composes_the_ledgers_of_all_runs(cli: Cli, features_file: Path, tmp_path: Path) -> None:
    words = ["--methods", "noisy-gd:steps=2,noisy-gd:steps=3", "--eps", "0.5,1", "--seeds", "2", "--jobs", "1"]
    compared = result_of(cli("compare", features_file, *words, "--out", "cmp", "--json"))
    events = [event for path in (tmp_path / "cmp/runs").glob("*/ledger.jsonl") for event in read_ledger(path)]
    assert compared["composed"]["private_runs"] == 8
    assert compared["composed"]["epsilon"] == pytest.approx(GAUSSIAN.epsilon(grouped(events), 1e-5))
    assert compared["composed"]["epsilon"] > 1
    assert compared["composed"]["not_private_runs"] == 1  # nothing varies with the seed without shots


def test_sampled_runs_are_composed_as_in_their_budget_book(cli: Cli, features_file: Path) -> None:
    words = ["--methods", "dp-sgd:steps=3:q=0.5", "--eps", "1", "--seeds", "2", "--no-baselines", "--jobs", "1"]
    refused = cli("compare", features_file, *words, "--out", "cmp")
    assert refused.status == 2  # q is the flag's short name, not the option's
    words[1] = "dp-sgd:steps=3:sampling-rate=0.5:accountant=rdp"
    compared = result_of(cli("compare", features_file, *words, "--out", "cmp", "--book", "book.jsonl", "--json"))
    assert compared["composed"]["accountant"].startswith("privacy-loss distribution")
    assert 1 < compared["composed"]["epsilon"] < 2
    assert compared["composed"]["epsilon"] == spending(read_book(Path("book.jsonl")).counted, 1e-5).epsilon


def test_a_complete_run_without_its_name_counts_where_it_is_not_asked_for(
    cli: Cli, features_file: Path, tmp_path: Path
) -> None:
    words = ["compare", features_file, "--methods", "noisy-gd:steps=3", "--jobs", "1", "--out", "cmp", "--json"]
    first = result_of(cli(*words, "--eps", "3", "--seeds", "1"))
    run = run_called(tmp_path / "cmp", "noisy-gd_steps=3-eps3-seed0")
    run.rename(run.with_name(f".{run.name}.00000000.partial"))
    again = result_of(cli(*words, "--eps", "2", "--seeds", "1"))
    assert (first["composed"]["private_runs"], again["composed"]["private_runs"]) == (1, 2)
    assert again["composed"]["epsilon"] > first["composed"]["epsilon"]


def test_runs_count_once_without_their_book_and_in_another_place(
    cli: Cli, features_file: Path, own_books: Path, tmp_path: Path
) -> None:
    words = ["compare", features_file, *QUICK, "--seeds", "1", "--no-baselines", "--json", "--out"]
    first = result_of(cli(*words, "cmp"))["composed"]
    (tmp_path / "cmp").rename(tmp_path / "moved")
    assert result_of(cli(*words, "moved"))["composed"] == first
    shutil.rmtree(own_books)
    assert result_of(cli(*words, "moved"))["composed"] == first


def test_killed_and_stopped_runs_count_as_in_their_book(
    cli: Cli, features_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*QUICK, "--seeds", "1", "--no-baselines", "--book", "book.jsonl"]
    steps = []

    def ended(last: int) -> Callable[..., None]:
        def step(_: RunCharge) -> None:
            steps.append(1)
            if len(steps) == last:
                raise KeyboardInterrupt

        return step

    def compared() -> int:
        steps.clear()
        return cli("compare", features_file, *words, "--out", "cmp").status

    with monkeypatch.context() as killed:  # nothing is tidied up
        killed.setattr(RunCharge, "step", ended(3))
        killed.setattr(RunCharge, "__exit__", lambda *_: None)
        killed.setattr(run_folder, "_remove", lambda _: None)
        killed.setattr(compare.ComparisonFolder, "discard_unfinished", lambda *_: None)
        assert compared() == 130
    for last in (2, 1):
        with monkeypatch.context() as stopped:
            stopped.setattr(RunCharge, "step", ended(last))
            assert compared() == 130
    assert not (tmp_path / "cmp/runs").exists() or not folders(tmp_path / "cmp")
    assert compared() == 0
    found = json.loads((tmp_path / "cmp/comparison.json").read_text())["composed"]
    expected = spending(read_book(tmp_path / "book.jsonl").counted, 1e-5)
    assert (found["private_runs"], found["epsilon"]) == (4, expected.epsilon)


def killed_in_a_run(cli: Cli, features: Path, words: list[str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A comparison `cmp` as a process leaves it that was killed after two releases; returns the folder of its run."""

    def ended(_: RunCharge, *__: object) -> None:
        steps.append(1)
        if len(steps) == 3:
            raise KeyboardInterrupt

    steps: list[int] = []
    with monkeypatch.context() as killed:  # nothing is tidied up
        killed.setattr(RunCharge, "step", ended)
        killed.setattr(RunCharge, "__exit__", lambda *_: None)
        killed.setattr(run_folder, "_remove", lambda _: None)
        killed.setattr(compare.ComparisonFolder, "discard_unfinished", lambda *_: None)
        assert cli("compare", features, *words, "--out", "cmp").status == 130
    stated = json.loads(Path("cmp/comparison.json").read_text())
    Path("cmp/comparison.json").write_text(json.dumps({**stated, "recorded": []}))  # no note was taken of the run
    (partial,) = Path("cmp/runs").glob(".*.partial")
    return partial


def test_a_killed_run_counts_in_a_moved_folder_and_is_missed_without_its_book(
    cli: Cli, features_file: Path, refused: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, book = [*QUICK, "--seeds", "1", "--no-baselines"], ["--book", "book.jsonl"]
    killed_in_a_run(cli, features_file, [*words, *book], monkeypatch)
    Path("cmp").rename("moved")
    words = ["compare", features_file, *words, "--out", "moved"]
    refused(cli(*words, "--book", "other.jsonl"), 4, ["neither there nor in a budget book", "--book"])
    assert not Path("other.jsonl").exists()

    def stopped(*_: object) -> None:
        raise UsageError("stopped")

    with monkeypatch.context() as patch:
        patch.setattr(compare, "train_on", stopped)
        assert cli(*words, *book).status == 2
    assert not folders(Path("moved"))  # what the killed run left was removed, and its id was kept
    found = result_of(cli(*words, *book, "--json"))["composed"]
    expected = spending(read_book(tmp_path / "book.jsonl").counted, 1e-5)
    assert (found["private_runs"], found["epsilon"]) == (2, expected.epsilon)


def test_a_killed_run_whose_id_is_damaged_is_not_left_out(
    cli: Cli, features_file: Path, refused: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*QUICK, "--seeds", "1", "--no-baselines"]
    partial = killed_in_a_run(cli, features_file, words, monkeypatch)
    (partial / "run_id").write_text("damaged")
    refused(cli("compare", features_file, *words, "--out", "cmp"), 3, ["has releases and no run id", "--out"])


@pytest.mark.parametrize("recorded", [[1, "x"], ["x", None], "abc", 5, None, {"a": 1}])
def test_damaged_ids_of_runs_are_refused(
    cli: Cli, features_file: Path, refused: Callable[..., None], recorded: Any
) -> None:
    words = ["compare", features_file, "--methods", "zero-shot", "--no-baselines", "--jobs", "1", "--out", "cmp"]
    assert cli(*words).status == 0
    stated = json.loads(Path("cmp/comparison.json").read_text())
    Path("cmp/comparison.json").write_text(json.dumps({**stated, "recorded": recorded}))
    refused(cli(*words), 3, ["cmp cannot be read", "recorded is", "--out"])


def test_a_complete_run_without_its_name_gets_it_and_is_not_paid_again(
    cli: Cli, features_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*QUICK, "--seeds", "1", "--no-baselines", "--out", "cmp"]

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(run_folder, "_name_complete", full)
        for _ in range(2):  # made, then not named
            assert cli("compare", features_file, *words).status == 1
            (unnamed,) = (tmp_path / "cmp/runs").glob(".*.partial")
            assert json.loads(cli("compare", features_file, *words, "--dry-run", "--json").stdout)["rows"] == []

    def stopped(*_: object) -> None:
        raise UsageError("stopped")

    monkeypatch.setattr(compare, "train_on", stopped)
    assert result_of(cli("compare", features_file, *words, "--json"))["composed"]["private_runs"] == 1
    assert run_called(tmp_path / "cmp", "noisy-gd_steps=3-eps3-seed0").exists()
    assert not unnamed.exists()


def test_finished_runs_are_not_made_again(cli: Cli, refused: Cli, features_file: Path, tmp_path: Path) -> None:
    cli("compare", features_file, *QUICK, "--seeds", "2", "--out", "cmp")
    before = {name: (tmp_path / "cmp/runs" / name).stat().st_mtime_ns for name in folders(tmp_path / "cmp")}
    removed = run_called(tmp_path / "cmp", "noisy-gd_steps=3-eps3-seed1")
    shutil.rmtree(removed)
    more = [word.replace("noisy-gd:steps=3", "noisy-gd:steps=3,ngd:steps=2") for word in QUICK]
    assert cli("compare", features_file, *more, "--seeds", "2", "--out", "cmp").status == 0
    after = {name: (tmp_path / "cmp/runs" / name).stat().st_mtime_ns for name in folders(tmp_path / "cmp")}
    made = sorted(name[:-9] for name in set(after) - set(before))
    assert made[:2] == ["ngd_steps=2-eps3-seed0", "ngd_steps=2-eps3-seed1"]
    assert {name for name in before if after[name] == before[name]} == set(before) - {removed.name}
    (tmp_path / "cmp/.lock").unlink()
    (tmp_path / "cmp/.lock").symlink_to(tmp_path / "elsewhere")
    refused(cli("compare", features_file, *more, "--seeds", "2", "--out", "cmp"), 2, ["lock file", "link", "elsewhere"])
    assert not (tmp_path / "elsewhere").exists()


def test_several_processes_make_and_charge_the_same_runs(cli: Cli, features_file: Path, tmp_path: Path) -> None:
    words = ["--methods", "noisy-gd:steps=3", "--eps", "1,3", "--seeds", "2", "--public-shots", "2"]
    together = result_of(cli("compare", features_file, *words, "--jobs", "2", "--out", "two", "--json"))
    spent = result_of(cli("budget", features_file, "--json"))
    assert spent["runs"] == 4
    assert spent["epsilon"] == pytest.approx(together["composed"]["epsilon"], rel=1e-9)
    alone = result_of(cli("compare", features_file, *words, "--jobs", "1", "--out", "one", "--json"))
    assert folders(tmp_path / "one") == folders(tmp_path / "two")
    assert alone["composed"] == together["composed"]
    fixed = [[run["test_accuracy"] for run in made["runs"] if run["epsilon"] is None] for made in (alone, together)]
    assert fixed[0] == fixed[1]  # baselines draw no noise
    for name in (name for name in folders(tmp_path / "two") if not name.startswith("non-private")):
        assert cli("verify", f"two/runs/{name}", "--features", features_file).status == 0


def test_public_files_are_compared(
    cli: Cli, private_file: Path, make_features: Callable[..., Path], tmp_path: Path
) -> None:
    for name, step in (("near", 1), ("far", -1)):
        path = make_features(tmp_path / f"{name}.h5", groups=("train", "test"), text=False)
        with h5py.File(path, "r+") as file:
            rows = file["train/x"][:][:, ::step]
            file["train/x"][:] = rows + 0.05 * np.random.default_rng(len(name)).standard_normal(rows.shape)
            file["train/id"][:] = [f"{name}/{row}" for row in range(len(rows))]
    words = ["--methods", "adamix:steps=3,noisy-gd:steps=3", "--eps", "1", "--seeds", "1", "--jobs", "1"]
    files = ["--public", "near.h5", "--public", "far.h5", "--public", "none"]
    refused = cli("compare", private_file, *words, *files, "--out", "cmp")
    assert refused.status == 2  # without a public file, adamix has no public rows
    assert "none" not in [path.name for path in tmp_path.iterdir()]
    words[1] = "noisy-gd:steps=3"
    compared = result_of(cli("compare", private_file, *words, *files, "--out", "cmp", "--json"))
    means = {(one["method"], one["public"]): one["mean"] for one in compared["summary"]}
    assert set(means) >= {("noisy-gd:steps=3", ""), ("only-public", "near"), ("only-public", "far")}
    assert ("only-public", "") not in means
    assert means["only-public", "near"] > means["only-public", "far"]


def test_attack_writes_private_files_only(cli: Cli, features_file: Path, tmp_path: Path) -> None:
    outcome = cli("compare", features_file, *QUICK, "--seeds", "2", "--attack", "--out", "cmp")
    assert outcome.status == 0, outcome
    assert stat.S_IMODE((tmp_path / "cmp" / "private_attacks.csv").stat().st_mode) == 0o600
    attacks = rows_of(tmp_path / "cmp/private_attacks.csv")
    assert all(0.3 < float(row["attack_auc"]) < 0.7 for row in attacks)
    for name in ("runs.csv", "summary.csv", "comparison.json", "table.md"):
        assert "auc" not in (tmp_path / "cmp" / name).read_text(encoding="utf-8")


def test_built_in_digits_are_compared(cli: Cli, tmp_path: Path) -> None:
    assert cli("compare", *QUICK, "--seeds", "1").stdout == "comparisons/digits\n"
    assert run_called(tmp_path / "comparisons/digits", "noisy-gd_steps=3-eps3-shots2-seed0").is_dir()


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--eps", "0"], 2, ["eps is 0", "above 0"]),
        (["--eps", "1,x"], 2, ["eps is '1,x'", "numbers"]),
        (["--eps", "1", "--public-shots", "1.5"], 2, ["public-shots is '1.5'", "whole numbers"]),
        (["--eps", ""], 2, ["needs a privacy budget"]),
        (["--eps", "1", "--methods", ""], 2, ["methods is empty"]),
        (["--eps", "1", "--methods", "noisy-gd,noisy-gd"], 2, ["each once"]),
        (["--eps", "1", "--methods", "noizy-gd"], 2, ["did you mean noisy-gd"]),
        (["--eps", "1", "--methods", "noisy-gd:clip"], 2, ["METHOD:OPTION=VALUE"]),
        (["--eps", "1", "--methods", "noisy-gd:subspace=none"], 2, ["subspace does nothing for noisy-gd"]),
        (["--eps", "1", "--methods", "noisy-gd:clip-norm=-1"], 2, ["clip-norm is -1"]),
        (["--eps", "1", "--methods", "noisy-gd:steps=2:steps=3"], 2, ["each option once"]),
        (["--eps", "1", "--methods", "noisy-gd:steps=nan"], 2, ["steps is 'nan'", "whole number"]),
        (["--eps", "1", "--methods", "noisy-gd:sigma=inf"], 2, ["sigma is 'inf'", "a number"]),
        (["--eps", "1", "--methods", "dp-sgd:per-record=maybe"], 2, ["per-record is 'maybe'", "true, false"]),
        (["--eps", "1", "--methods", "noisy-gd:noise-seed=3"], 2, ["noise-seed does nothing"]),
        (["--eps", "1", "--methods", "noisy-gd:stps=3"], 2, ["sigma, steps, centre", "did you mean steps?"]),
        (["--eps", "1", "--methods", "noisy-gd:centre=3"], 2, ["centre is '3'"]),
        (["--eps", "1", "--methods", "noisy-gd:init=nowhere"], 2, ["init is"]),
        (["--eps", "1", "--public", "none", "--public", "none"], 2, ["each name once"]),
        (["--eps", "1", "--seeds", "0"], 2, ["seeds is 0"]),
        (["--eps", "1", "--jobs", "0"], 2, ["jobs is 0"]),
        (["--eps", "1", "--public", "none.h5"], 3, ["does not exist"]),
        (["--eps", "1", "--public", "a/x.h5", "--public", "b/x.h5"], 2, ["each name once"]),
        (["--eps", "1", "--public-shots", "0", "--methods", "adamix"], 2, ["adamix needs public rows", "0 shots"]),
    ],
)
def test_wrong_requests_leave_nothing_behind(
    cli: Cli,
    features_file: Path,
    refused: Callable[..., None],
    tmp_path: Path,
    words: list[str],
    status: int,
    said: list[str],
) -> None:
    refused(cli("compare", features_file, *words, "--out", "cmp"), status, said, notes=1)
    assert not (tmp_path / "cmp").exists()


@pytest.mark.parametrize("words", [["--dry-run"], []])
def test_the_split_of_every_seed_is_checked_before_the_first_run(
    cli: Cli, editable: Path, refused: Callable[..., None], tmp_path: Path, words: list[str]
) -> None:
    with open_features(editable) as features:
        ids, labels, names = features.ids("train"), features.labels("train"), features.description.class_names
        first, second = (public_shots(ids, labels, names, 1, seed) for seed in (0, 1))
    with h5py.File(editable, "r+") as file:
        copied, kept = np.flatnonzero(second & ~first)[0], np.flatnonzero(~second & ~first)[0]
        file["train/x"][kept] = file["train/x"][copied]
    asked = ["compare", editable, *QUICK, "--public-shots", "1", "--out", "cmp", *words]
    refused(cli(*asked, "--seeds", "2"), 4, ["seed 1 of 0 to 1: ", "have copies among its private rows"], notes=1)
    assert not (tmp_path / "cmp").exists()
    assert cli(*asked, "--seeds", "1").status == 0


def test_folders_of_other_things_are_refused(
    cli: Cli, features_file: Path, private_file: Path, refused: Callable[..., None], tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").touch()
    refused(cli("compare", features_file, *QUICK, "--out", "mine"), 2, ["holds no comparison"])
    (tmp_path / "theirs/runs/run").mkdir(parents=True)
    refused(cli("compare", features_file, *QUICK, "--out", "theirs"), 2, ["holds no comparison"])
    assert cli("compare", features_file, *QUICK, "--seeds", "1", "--out", "cmp").status == 0
    refused(cli("compare", private_file, *QUICK, "--seeds", "1", "--out", "cmp"), 2, ["holds a comparison of"])
    refused(cli("compare", features_file, *QUICK, "--delta", "1e-6", "--out", "cmp"), 2, ["holds a comparison of"])


def test_a_comparison_killed_before_its_first_run_starts_again(
    cli: Cli, features_file: Path, refused: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    words = ["compare", features_file, *QUICK, "--seeds", "1", "--no-baselines", "--out", "cmp"]
    for name in ("held", "write_json"):
        with monkeypatch.context() as failing:
            failing.setattr(compare, name, full)
            refused(cli(*words), 1, ["cmp", "cannot be written (No space left on device)"])
        assert not (tmp_path / "cmp").exists()
    (tmp_path / "cmp/runs").mkdir(parents=True)
    for name in (".lock", "private_commitment.json", ".comparison.json.00000000.partial"):
        (tmp_path / "cmp" / name).touch()
    assert cli(*words).status == 0
    assert not list((tmp_path / "cmp").glob(".*.partial"))


def test_a_comparison_that_cannot_write_its_tables_says_what_it_cost(
    cli: Cli, features_file: Path, refused: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    words = ["compare", features_file, *QUICK, "--seeds", "1", "--no-baselines", "--out", "cmp"]
    with monkeypatch.context() as failing:
        failing.setattr(compare, "write_csv", lambda *_: full(Path("cmp/runs.csv")))
        outcome = cli(*words)
    refused(outcome, 1, ["cmp cannot be written (No space left on device)"], notes=2)
    assert "1 run of this command cost epsilon 3 " in outcome.stderr
    assert "finished runs are kept" in outcome.stderr
    assert result_of(cli(*words, "--json"))["composed"]["private_runs"] == 1
    monkeypatch.setattr(compare, "write_csv", lambda *_: full(Path("cmp/runs.csv")))
    later = cli(*words)
    refused(later, 1, ["cmp cannot be written (No space left on device)"], notes=1)
    assert "finished runs are kept" in later.stderr
    assert "of this command" not in later.stderr


def test_other_rows_under_the_same_name_are_refused(cli: Cli, editable: Path, refused: Callable[..., None]) -> None:
    assert cli("compare", editable, *QUICK, "--seeds", "1", "--out", "cmp").status == 0
    with h5py.File(editable, "r+") as file:
        file["train/x"][0] = 7.0
    refused(cli("compare", editable, *QUICK, "--seeds", "1", "--out", "cmp"), 4, ["does not hold the rows"])


def test_an_edited_run_is_refused(cli: Cli, features_file: Path, refused: Callable[..., None], tmp_path: Path) -> None:
    assert cli("compare", features_file, *QUICK, "--seeds", "1", "--out", "cmp").status == 0
    manifest = run_called(tmp_path / "cmp", "noisy-gd_steps=3-eps3-seed0") / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"epsilon_target": 3.0', '"epsilon_target": 2.0'))
    refused(cli("compare", features_file, *QUICK, "--seeds", "1", "--out", "cmp"), 4, ["was edited"])


def test_a_run_made_from_a_run_in_the_folder_counts_with_it(
    cli: Cli, features_file: Path, own_books: Path, tmp_path: Path
) -> None:
    compare = ["compare", features_file, *QUICK, "--seeds", "1", "--no-baselines", "--out", "cmp", "--json"]
    assert cli(*compare).status == 0
    run = run_called(tmp_path / "cmp", "noisy-gd_steps=3-eps3-seed0")
    assert cli("pdp-report", run, "--publish-epsilon", "0.5").status == 0
    run.with_name(f"{run.name}.published-1").rename(tmp_path / "cmp/runs/other")
    assert cli("pdp-report", run, "--publish-epsilon", "0.5").status == 0
    composed = json.loads(cli(*compare).stdout)["composed"]
    total = json.loads(cli("budget", features_file, "--json").stdout)
    assert (composed["private_runs"], composed["epsilon"]) == (1, pytest.approx(total["epsilon"], rel=1e-9))
    assert len(list(own_books.glob("*.jsonl"))) == 1


def test_a_book_that_cannot_be_read_is_refused_before_more_is_spent(
    cli: Cli, features_file: Path, refused: Callable[..., None], own_books: Path
) -> None:
    words = ["compare", features_file, *QUICK, "--seeds", "1", "--no-baselines", "--out", "cmp"]
    assert cli(*words).status == 0
    (own_books / "damaged.jsonl").write_text('{"book": 2}\n{\n')
    spent = {path: path.read_bytes() for path in own_books.iterdir()}
    refused(cli(*words, "--book", "other.jsonl"), 3, ["damaged.jsonl", "restore"])
    refused(cli(*words, "--seeds", "2"), 3, ["damaged.jsonl", "restore"])
    refused(cli(*words), 3, ["damaged.jsonl", "restore"])
    assert Path("cmp/runs.csv").is_file()
    assert {path: path.read_bytes() for path in own_books.iterdir()} == spent
    assert len(folders(Path("cmp"))) == 1


def test_a_deleted_run_still_counts(cli: Cli, features_file: Path, tmp_path: Path) -> None:
    words = ["--methods", "noisy-gd:steps=3", "--seeds", "1", "--jobs", "1", "--out", "cmp", "--json"]
    both = result_of(cli("compare", features_file, *words, "--eps", "1,2"))["composed"]
    shutil.rmtree(run_called(tmp_path / "cmp", "noisy-gd_steps=3-eps2-seed0"))
    one = result_of(cli("compare", features_file, *words, "--eps", "1", "--no-baselines"))
    assert one["composed"] == both
    assert [run["epsilon"] for run in one["runs"]] == [1.0]
    again = result_of(cli("compare", features_file, *words, "--eps", "1,2"))["composed"]
    assert again["private_runs"] == both["private_runs"] + 1
    assert again["epsilon"] > both["epsilon"]


def test_a_run_that_no_book_has_is_missed(
    cli: Cli, features_file: Path, refused: Callable[..., None], tmp_path: Path
) -> None:
    words = ["compare", features_file, *QUICK, "--no-baselines", "--out", "cmp", "--json"]
    book = ["--book", "other.jsonl"]
    both = result_of(cli(*words, "--seeds", "2", *book))["composed"]
    removed = run_called(tmp_path / "cmp", "noisy-gd_steps=3-eps3-seed1")
    shutil.rmtree(removed)
    refused(cli(*words, "--seeds", "1"), 4, ["neither there nor in a budget book", "--book"])
    assert result_of(cli(*words, "--seeds", "1", *book))["composed"] == both
    stated = tmp_path / "cmp/comparison.json"
    content = json.loads(stated.read_text())
    moved = (tmp_path / "cmp").rename(tmp_path / "moved")
    assert result_of(cli(*words[:-2], moved, "--json", "--seeds", "1", *book))["composed"] == both
    lines = [{"run_key": key, "releases": [{}], "selection": None} for key in content.pop("recorded")]
    (moved / "comparison.json").write_text(json.dumps(content))  # as an earlier version left them
    (moved / "spent.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    refused(cli(*words[:-2], moved, "--json", "--seeds", "1"), 4, ["neither there nor in a budget book"])
    assert result_of(cli(*words[:-2], moved, "--json", "--seeds", "1", *book))["composed"] == both


def test_a_stopped_comparison_keeps_what_was_charged_and_what_is_not_its_own(
    cli: Cli, features_file: Path, refused: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["compare", features_file, "--eps", "1", "--jobs", "1", "--seeds", "1", "--no-baselines", "--out", "cmp"]
    refused(cli(*words, *QUICK[:2], "--book", "cmp/book.jsonl"), 2, ["cmp/book.jsonl", "another place"])

    def stopped(*_: Any) -> None:
        Path("cmp/notes.txt").write_text("mine")
        raise UsageError("stopped")

    with monkeypatch.context() as patch:
        patch.setattr(compare, "train_on", stopped)
        assert cli(*words, *QUICK[:2]).status == 2
    assert sorted(path.name for path in Path("cmp").iterdir()) == ["notes.txt"]
    Path("cmp/notes.txt").unlink()
    assert cli(*words, "--methods", "noisy-gd:steps=30:learning-rate=1e9").status == 1
    shutil.rmtree("cmp/runs")
    recorded = json.loads(Path("cmp/comparison.json").read_text())["recorded"]
    assert len(recorded) == 1
    assert cli(*words, *QUICK[:2]).status == 0
    assert recorded[0] in json.loads(Path("cmp/comparison.json").read_text())["recorded"]


def test_a_failed_request_leaves_no_stale_result(cli: Cli, features_file: Path, tmp_path: Path) -> None:
    words = ["--seeds", "1", "--jobs", "1", "--no-baselines", "--out", "cmp", "--methods"]
    assert cli("compare", features_file, "--eps", "1", *words, "noisy-gd:steps=3").status == 0
    refused = cli("compare", features_file, "--eps", "2", *words, "noisy-gd:steps=3,noisy-gd:centre=3")
    assert refused.status == 2
    assert "unfinished" not in json.loads((tmp_path / "cmp/comparison.json").read_text())  # no run of it began
    diverging = "noisy-gd:steps=30:learning-rate=1e9"
    failed = cli("compare", features_file, "--eps", "2", *words, f"noisy-gd:steps=3,{diverging}")
    assert failed.status == 1
    assert json.loads((tmp_path / "cmp/comparison.json").read_text())["unfinished"]
    assert not list((tmp_path / "cmp").glob("*.csv"))
    assert not list((tmp_path / "cmp").glob("*.png"))
    assert [name.endswith(".diverged") for name in sorted(folders(tmp_path / "cmp"))] == [False, False, True]


def test_public_files_of_one_name_are_told_apart(
    cli: Cli, private_file: Path, make_features: Callable[..., Path], tmp_path: Path
) -> None:
    found = []
    for folder, step in (("one", 1), ("two", -1)):
        (tmp_path / folder).mkdir()
        path = make_features(tmp_path / folder / "other.h5", groups=("train", "test"), text=False)
        with h5py.File(path, "r+") as file:
            file["train/x"][:] = file["train/x"][:][:, ::step] + 0.5
            file["train/id"][:] = [f"{folder}/{row}" for row in range(len(file["train/id"]))]
        words = [*QUICK, "--seeds", "1", "--public", path, "--out", "cmp", "--json"]
        found.append(result_of(cli("compare", private_file, *words)))
    means = [{one["method"]: one["mean"] for one in made["summary"]}["only-public"] for made in found]
    assert means[0] > means[1]
    assert found[1]["composed"]["private_runs"] == 2


def test_one_compare_at_a_time(cli: Cli, features_file: Path, refused: Callable[..., None], tmp_path: Path) -> None:
    assert cli("compare", features_file, *QUICK, "--seeds", "1", "--out", "cmp").status == 0
    with (tmp_path / "cmp/.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused(cli("compare", features_file, *QUICK, "--seeds", "1", "--out", "cmp"), 2, ["another compare"])


def test_a_run_that_a_killed_compare_still_finishes_is_told_as_such(
    cli: Cli, features_file: Path, refused: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def meanwhile(*arguments: Any) -> None:
        train_on(*arguments)
        train_on(*arguments)

    words = [*QUICK, "--seeds", "1", "--no-baselines", "--out", "cmp"]
    with monkeypatch.context() as patched:
        patched.setattr(compare, "train_on", meanwhile)
        outcome = cli("compare", features_file, *words)
    refused(outcome, 2, ["was finished by a process", "earlier compare", "killed"], notes=2)
    assert "1 run of this command cost epsilon 3 " in outcome.stderr
    again = result_of(cli("compare", features_file, *words, "--json"))
    assert again["composed"]["private_runs"] == 1


def test_a_run_finished_by_somebody_else_still_counts(
    cli: Cli, features_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("compare", features_file, *QUICK, "--seeds", "1", "--no-baselines", "--out", "other")
    theirs = run_called(tmp_path / "other", "noisy-gd_steps=3-eps3-seed0")

    def meanwhile(*arguments: Any) -> None:
        train_on(*arguments)
        shutil.copytree(theirs, tmp_path / "cmp/runs" / theirs.name, dirs_exist_ok=True)

    monkeypatch.setattr(compare, "train_on", meanwhile)
    words = ["--methods", "noisy-gd:steps=2", "--eps", "3", "--jobs", "1", "--seeds", "1", "--no-baselines"]
    compared = result_of(cli("compare", features_file, *words, "--out", "cmp", "--json"))
    assert (compared["composed"]["private_runs"], len(compared["runs"])) == (2, 1)


def test_each_manifest_is_read_once_a_compare(cli: Cli, features_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: Counter[str] = Counter()

    def counted(folder: Path) -> RunFolder:
        read[folder.name] += 1
        return RunFolder(folder)

    monkeypatch.setattr(compare, "RunFolder", counted)
    words = ["--methods", "noisy-gd:steps=2", "--jobs", "1", "--seeds", "2", "--out", "cmp", "--eps"]
    for epsilons, runs in (("1", 4), ("1,2", 6)):
        read.clear()
        assert cli("compare", features_file, *words, epsilons).status == 0
        assert (len(read), set(read.values())) == (runs, {1})


def test_unprotected_runs_are_announced_before_they_are_made(cli: Cli, features_file: Path) -> None:
    outcome = cli("compare", features_file, *QUICK, "--seeds", "1", "--out", "cmp")
    assert "1 of 3 runs is not private" in outcome.stderr.splitlines()[0]
    assert "none is clearly better" in outcome.stderr  # one seed
    shutil.rmtree(next(Path("cmp/runs").glob("non-private*")))
    again = cli("compare", features_file, *QUICK, "--seeds", "1", "--out", "cmp")
    assert "1 of the 1 run left is not private" in again.stderr.splitlines()[0]
    quiet = cli("compare", features_file, *QUICK, "--seeds", "1", "--out", "other", "--no-baselines")
    assert "not private" not in quiet.stderr


def test_without_public_rows_only_the_methods_that_need_none_are_compared(
    cli: Cli, private_file: Path, features_file: Path, tmp_path: Path
) -> None:
    words = ["--eps", "3", "--seeds", "1", "--jobs", "1", "--out", "cmp"]
    planned = cli("compare", private_file, *words, "--dry-run")
    outcome = cli("compare", private_file, *words)
    assert outcome.status == planned.status == 0, outcome
    said = "left out, as there are no public rows (no public group): adamix, only-public; --public-shots K"
    assert said in planned.stderr
    assert said in outcome.stderr
    assert {row["method"] for row in rows_of(tmp_path / "cmp/runs.csv")} == {"noisy-gd", "non-private"}
    named = cli("compare", private_file, *words, "--methods", "adamix,noisy-gd")
    assert named.status == 2
    assert "method adamix needs public rows and got none (no public group)" in named.stderr
    files = ["--public", features_file, "--public", "none"]
    public = cli("compare", private_file, *words, *files, "--dry-run")
    assert public.status == 0, public
    assert "left out with --public none, as there are no public rows (no public group): adamix" in public.stderr
    shots = cli("compare", private_file, *words, "--public-shots", "2", "--dry-run", "--json")
    assert [row["method"] for row in result_of(shots)["rows"]] == ["adamix", "noisy-gd", "only-public", "non-private"]
    assert not [text for text in result_of(shots)["warnings"] if "left out" in text]


def test_a_comparison_states_when_balanced_accuracy_is_clearly_above_guessing(
    cli: Cli, features_file: Path, tmp_path: Path
) -> None:
    compared = result_of(cli("compare", features_file, *QUICK, "--seeds", "1", "--out", "cmp", "--json"))
    with h5py.File(features_file) as file:
        counts = np.bincount(file["test/y"][:])
    limit = 1 / len(counts) + 3 * np.sqrt(np.sum(1 / (4 * counts))) / len(counts)
    assert compared["balanced_limit"] == pytest.approx(limit)
    assert 0.25 < limit < 0.5
    assert json.loads((tmp_path / "cmp/comparison.json").read_text())["balanced_limit"] == compared["balanced_limit"]


def test_no_step_tells_when_private_selections_ended() -> None:
    shown: list[str] = []
    ended = iter([Path("s3"), Path("r2"), Path("s1"), Path("r1"), Path("s2")])
    watched = (shown.append(path.name) or path for path in ended)
    selections = {Path(name) for name in ("s1", "s2", "s3")}
    compare._count(watched, selections, SimpleNamespace(step=lambda: shown.append("step")))
    assert shown == ["s3", "r2", "step", "s1", "r1", "step", "s2", "step", "step", "step"]


def test_no_name_of_a_run_tells_of_public_rows_that_its_method_protects(
    cli: Callable[..., Any], refused: Callable[..., None], features_file: Path, tmp_path: Path
) -> None:
    """Its folder is bound to them by a keyed hash in a private file."""
    names, public = [], tmp_path / "web.h5"
    compare = ["compare", features_file, "--methods", "fully-private:steps=2", "--public", public, "--eps", "1"]
    compare += ["--seeds", "1", "--no-baselines", "--jobs", "1", "--out"]
    for number in range(2):
        write_features(public, groups=("train",), text=False)
        with h5py.File(public, "r+") as file:
            file["train/x"][:] = 2.5 - file["train/x"][:]
            file["train/x"][5] *= 1 - number
        assert cli(*compare, f"c{number}").status == 0
        names += [path.name for path in Path(f"c{number}/runs").iterdir()]
    assert len(names) == 2
    assert names[0] == names[1]
    assert cli(*compare, "c1").status == 0
    refused(cli(*compare, "c0"), 4, ["web does not hold the rows that c0 compares"])
