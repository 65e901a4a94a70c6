"""Commands in processes of their own: pipes, signals, output on stdout and stderr, and checks for a reviewer."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linprobe.__main__ import main
from linprobe.cli import _terminal, program
from linprobe.methods import METHODS
from linprobe.options import SAMPLING_RATE
from linprobe.training import train as train_command
from tests.cli.outcomes import NOISY, Cli, result_of, weights_of
from tests.conftest import gaussian_rows, one_of_each_kind
from tests.processes import PATIENCE, ended, start_copy

BUDGET_KEYS = {
    "epsilon",
    "delta",
    "epsilon_target",
    "noise_multiplier",
    "sampling_rate",
    "steps",
    "gdp_mu",
    "seed_kind",
}
TRAIN_KEYS = BUDGET_KEYS | {
    "run",
    "method",
    "n_private",
    "n_public",
    "n_features",
    "n_classes",
    "test_accuracy",
    "test_balanced_accuracy",
    "seconds",
}
EPSILON_WITHOUT_NOISE = {"only-public": 0.0, "zero-shot": 0.0, "non-private": None}
COMMANDS = list(program().commands)


# pipes and processes


def test_reader_that_goes_away_is_no_error(shell: Cli) -> None:
    outcome = shell(script="linprobe methods | head -1; echo ${PIPESTATUS[0]}")
    assert outcome.stdout.splitlines()[0].startswith("noisy-gd ")
    assert outcome.stdout.splitlines()[-1] == "0"
    assert outcome.stderr == ""


def test_reader_that_goes_away_early_is_no_error(shell: Cli, trained_run: Path, features_file: Path) -> None:
    script = f"linprobe predict {trained_run} {features_file} | true; echo ${{PIPESTATUS[0]}}"
    outcome = shell(script=script)
    assert (outcome.stdout, outcome.stderr) == ("0\n", f"120 rows of the group test of {features_file}\n")


def test_import_train_and_report_work_as_one_pipeline(shell: Cli, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(300) % 3
    rows = (4 * np.eye(3, 8)[labels] + 1 + rng.standard_normal((300, 8))).astype(np.float32)
    np.savez(tmp_path / "a.npz", X_train=rows[:200], y_train=labels[:200], X_test=rows[200:], y_test=labels[200:])
    outcome = shell(
        script="linprobe import a.npz --out f.h5 | linprobe train - --method noisy-gd --eps 3 "
        "| tee run.txt | linprobe pdp-report - --json"
    )
    report = result_of(outcome)
    assert report["records"] == 200
    run = tmp_path / (tmp_path / "run.txt").read_text().strip()
    assert run.parent == tmp_path / "runs"
    assert run.name.startswith("noisy-gd-eps3-")
    assert (run / "manifest.json").is_file()


def test_closed_streams_are_no_error(shell: Cli) -> None:
    train = "linprobe train --method noisy-gd --eps 3 --steps 2 --no-per-record --out run"
    outcome = shell(script=f"{{ {train}; }} <&- 2>&-; echo $?; {{ linprobe methods; }} >&-; echo $?")
    assert (outcome.stdout, outcome.stderr) == ("run\n0\n0\n", "")


def test_a_closed_standard_input_is_empty(shell: Cli, refused: Callable[..., None]) -> None:
    refused(shell(script="linprobe info - <&-"), 2, ["standard input, which is empty"])


def test_module_and_version(shell: Cli) -> None:
    from linprobe import __version__

    outcome = shell("--version")
    assert (outcome.status, outcome.stdout, outcome.stderr) == (0, f"{__version__}\n", "")


def test_shell_completion_completes_commands_and_options(shell: Cli) -> None:
    for words, position, expected in (("linprobe tr", 1, "train"), ("linprobe train --public-", 2, "--public-shots")):
        outcome = shell(
            env={"_LINPROBE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(position)},
        )
        assert outcome.status == 0, outcome
        assert expected in outcome.stdout.split()
    source = shell(env={"_LINPROBE_COMPLETE": "source_bash"})
    assert "complete_bash" in source.stdout


def _start_long_training(features_file: Path, tmp_path: Path) -> int:
    """A copy of this process in the middle of `linprobe train`, at its tenth release or later; its process id.

    The copy prints into files, and does not say how far it is, however slow it is.
    """

    def work() -> int:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        for descriptor, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(tmp_path / name, os.O_WRONLY | os.O_CREAT), descriptor)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        os.chdir(tmp_path)
        _terminal.LONG = math.inf
        sys.argv = ["linprobe", "train", str(features_file), *NOISY, "--steps", "500000", "--out", "run"]
        try:
            main()
        except SystemExit as done:
            return int(str(done.code))
        return 0

    child = start_copy(work)
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        ledgers = list(tmp_path.glob(".run.*.partial/ledger.jsonl"))
        if ledgers and ledgers[0].read_text().count("\n") >= 10:
            return child
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    raise AssertionError(f"training did not get under way: {ended(child)}, {_printed(tmp_path)}")


def _printed(tmp_path: Path) -> tuple[str, str]:
    """What a copy has printed on stdout and stderr; its files are removed."""
    paths = [tmp_path / name for name in ("stdout", "stderr")]
    stdout, stderr = (path.read_text() for path in paths)
    for path in paths:
        path.unlink()
    return stdout, stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_training_says_so_and_leaves_nothing(features_file: Path, tmp_path: Path, number: int) -> None:
    child = _start_long_training(features_file, tmp_path)
    os.kill(child, number)
    assert ended(child) == 130
    stdout, stderr = _printed(tmp_path)
    assert stdout == ""
    spent, resume, error = [line for line in stderr.splitlines() if line]
    assert error == "linprobe: error: stopped by Ctrl-C or a signal; nothing half-written was left under a final name"
    assert re.match(
        r"the run ended early; what it had released costs epsilon [\d.e-]+ at delta 1e-05 for a record", spent
    )
    assert resume.startswith("no checkpoint was written, so --resume cannot continue this run")
    assert list(tmp_path.iterdir()) == []


def test_killed_training_leaves_its_ledger_under_another_name(features_file: Path, tmp_path: Path) -> None:
    child = _start_long_training(features_file, tmp_path)
    os.kill(child, signal.SIGKILL)
    assert ended(child) == -signal.SIGKILL
    _printed(tmp_path)
    assert not (tmp_path / "run").exists()
    partial, lock_file = sorted(tmp_path.iterdir())
    assert lock_file.name == ".run.lock"  # blocks nobody: the system has released the lock
    assert re.fullmatch(r"\.run\.[0-9a-f]{8}\.partial", partial.name)
    lines = (partial / "ledger.jsonl").read_text().splitlines()
    assert all(json.loads(line)["purpose"] == "gradient" for line in lines[:-1])
    assert len(lines) >= 10


# what is printed where


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(cli: Cli, command: str) -> None:
    outcome = cli(command, "--help")
    assert outcome.status == 0
    assert f"linprobe {command}" in outcome.stdout
    assert outcome.stderr == ""


def test_no_command_at_all_shows_the_help(cli: Cli) -> None:
    outcome = cli()
    printed = outcome.stdout + outcome.stderr
    assert "linprobe: error: Usage" not in printed
    assert all(re.search(rf"^\W*{command} ", printed, re.MULTILINE) for command in COMMANDS)


def test_help_lists_every_command(cli: Cli) -> None:
    outcome = cli("--help")
    assert outcome.status == 0
    assert all(re.search(rf"^\W*{command} ", outcome.stdout, re.MULTILINE) for command in COMMANDS)


def test_methods_lists_every_method_with_paper_and_needs(cli: Cli) -> None:
    listed = json.loads(cli("methods", "--json").stdout)
    assert {entry["method"] for entry in listed} == set(METHODS)
    text = cli("methods").stdout
    for entry in listed:
        assert entry["method"] in text
        assert entry["paper"] in text
        assert ", ".join(entry["needs"]) in text


def test_training_prints_only_the_run_folder_on_stdout(cli: Cli, features_file: Path) -> None:
    outcome = cli("train", features_file, *NOISY, "--out", "run")
    assert (outcome.status, outcome.stdout) == (0, "run\n")
    assert "test accuracy" in outcome.stderr


@pytest.mark.parametrize("method", one_of_each_kind(METHODS))
def test_training_json_has_every_key_and_says_what_it_cost(cli: Cli, method: str, features_file: Path) -> None:
    budget = ["--eps", "3"] if METHODS[method].spends else []
    outcome = cli("train", features_file, "--method", method, *budget, "--out", "run", "--json")
    result = result_of(outcome)
    assert set(result) >= TRAIN_KEYS
    noted = outcome.stderr.splitlines()
    assert [note.partition(":")[0] for note in noted] == ["NOT PRIVATE"] * (method == "non-private")
    assert (result["method"], result["n_features"], result["n_classes"]) == (method, 10, 4)
    if METHODS[method].spends:
        assert 2.99 < result["epsilon"] <= 3
        cold = method == "fully-private"  # around a private mean, as no rows are public
        rate = SAMPLING_RATE if METHODS[method].samples else 1.0
        steps = 400 if cold else METHODS[method].default_steps
        assert (result["seed_kind"], result["sampling_rate"], result["steps"]) == ("os", rate, steps)
    else:
        assert result["epsilon"] == EPSILON_WITHOUT_NOISE[method]
    assert (result["n_private"], result["n_public"]) == ((412, 0) if method == "fully-private" else (400, 12))
    assert cli("verify", "run").status == (0 if METHODS[method].private else 4)


def test_evaluation_gives_the_accuracy_training_gave(cli: Cli, trained_run: Path, features_file: Path) -> None:
    stated = json.loads((trained_run / "manifest.json").read_text())["test_accuracy"]
    assert stated > 0.9
    result = result_of(cli("evaluate", trained_run, "--json"))
    assert result["test_accuracy"] == stated
    manifest = json.loads((trained_run / "manifest.json").read_text())
    assert result["balanced_accuracy"] == manifest["test_balanced_accuracy"]
    assert result["balanced_accuracy"] == pytest.approx(
        np.mean([one["recall"] for one in result["per_class"].values()])
    )
    assert result["macro_auroc"] == manifest["test_macro_auroc"]
    assert 0.9 < result["macro_auroc"] <= 1
    assert np.sum(result["confusion_matrix"]) == 120
    held = json.loads((trained_run / "test_figures.json").read_text())
    assert held == {key: value for key, value in result.items() if key not in ("run", "temperature")}
    assert result["test_rows"] == 120
    assert set(result["per_class"]) == {"ant", "bee", "cat", "dog"}
    assert cli("evaluate", "-", features_file, stdin=f"{trained_run}\n").stdout == f"{stated:.4f}\n"
    pattern = features_file.with_name(f"{features_file.name[:-4]}?.h5")  # of the one file that the run was trained on
    assert cli("evaluate", trained_run, pattern).stdout == f"{stated:.4f}\n"


def test_a_model_no_better_than_the_commonest_class_is_named(
    cli: Cli, make_features: Callable[..., Path], tmp_path: Path
) -> None:
    import h5py

    path = make_features(tmp_path / "rare.h5", class_names=("[/a]", "b", "c", "d"))
    with h5py.File(path, "r+") as file:
        file["test/y"][:] = np.where(np.arange(120) < 100, 0, (file["test/y"][:] + 1) % 4)  # no class is found
    trained = cli("train", path, "--method", "only-public", "--out", "run")
    evaluated = cli("evaluate", "run")
    grid = ["--method", "noisy-gd", "--steps", "9", "--eps", "50", "--grid", "score_noise=0.3,1"]
    tuned = cli("tune", path, *grid, "--out", "tuned")
    for outcome in (trained, evaluated, tuned):
        assert outcome.status == 0, outcome
        (line,) = [line for line in outcome.stderr.splitlines() if "is not above" in line]
        assert "the accuracy of always predicting the majority class '[/a]'" in line
    assert "[/a]" in evaluated.stderr.split("by class")[1]  # a bracket in a name is no markup
    compared = cli("compare", path, "--methods", "only-public", "--eps", "", "--jobs", "1", "--out", "cmp")
    assert compared.status == 0, compared
    assert "always predicting '[/a]', for: only-public, non-private" in compared.stderr
    assert "balanced accuracy, %" in compared.stderr
    assert "Balanced accuracy" in (tmp_path / "cmp/table.md").read_text()
    assert cli("report", "run", "--html", "page.html").status == 0
    assert "Warning: <bdi>test accuracy" in (tmp_path / "page.html").read_text()


def _predicted(outcome: Any) -> list[dict[str, str]]:
    assert outcome.status == 0, outcome
    assert re.fullmatch(r"\d+ rows of [^\n]+\n", outcome.stderr)
    return list(csv.DictReader(io.StringIO(outcome.stdout)))


def test_predictions_are_the_same_from_every_kind_of_source(
    cli: Cli, trained_run: Path, features_file: Path, tmp_path: Path
) -> None:
    import h5py

    with h5py.File(features_file) as file:
        rows, labels = file["test/x"][:], file["test/y"][:]
    np.save(tmp_path / "rows.npy", rows)
    from_file = _predicted(cli("predict", trained_run, features_file))
    from_pipe = _predicted(cli("predict", trained_run, "-", stdin=f"{features_file}\n"))
    from_array = _predicted(cli("predict", trained_run, "rows.npy"))
    assert list(from_file[0]) == ["id", "label", "score"]
    assert from_pipe == from_file
    as_json = json.loads(cli("predict", trained_run, features_file, "--json").stdout)
    assert as_json["columns"] == list(from_file[0])
    assert [[*row[:2], f"{row[2]:.6f}"] for row in as_json["rows"]] == [list(row.values()) for row in from_file]
    outcome = cli("predict", trained_run, features_file, "--json", "--out", "labels.csv")
    assert json.loads(outcome.stdout) == {"file": "labels.csv"}
    assert [row["id"] for row in from_file] == [f"test/{index:04d}" for index in range(120)]
    assert [row["id"] for row in from_array] == [str(index) for index in range(120)]
    assert [(row["label"], row["score"]) for row in from_array] == [(row["label"], row["score"]) for row in from_file]
    names = np.array(["ant", "bee", "cat", "dog"])[labels]
    accuracy = np.mean([row["label"] == name for row, name in zip(from_file, names, strict=True)])
    assert accuracy == result_of(cli("evaluate", trained_run, "--json"))["test_accuracy"]
    assert all(0.25 <= float(row["score"]) <= 1 for row in from_file)
    assert len(_predicted(cli("predict", trained_run, features_file, "--group", "public"))) == 12


def test_probabilities_have_a_column_for_every_class(cli: Cli, trained_run: Path, features_file: Path) -> None:
    plain = _predicted(cli("predict", trained_run, features_file))
    rows = _predicted(cli("predict", trained_run, features_file, "--probabilities"))
    assert list(rows[0]) == ["id", "label", "score", "p_ant", "p_bee", "p_cat", "p_dog"]
    for row, alone in zip(rows, plain, strict=True):
        shares = {name: float(row[f"p_{name}"]) for name in ("ant", "bee", "cat", "dog")}
        assert sum(shares.values()) == pytest.approx(1, abs=3e-6)
        assert (row["label"], row["score"]) == (alone["label"], alone["score"])
        assert shares[row["label"]] == max(shares.values()) == float(row["score"])


def test_a_temperature_from_public_rows_lowers_the_calibration_error(
    cli: Cli,
    refused: Callable[..., None],
    trained_run: Path,
    features_file: Path,
    private_file: Path,
    make_features: Callable[..., Path],
    tmp_path: Path,
) -> None:
    public = make_features(tmp_path / "other.h5")
    before = result_of(cli("evaluate", trained_run, "--json"))
    outcome = cli("evaluate", trained_run, "--calibrate", public, "--json")
    after = result_of(outcome)
    assert "temperature" in outcome.stderr
    assert before["temperature"] == 1 != after["temperature"]
    assert after["calibration_error"] < before["calibration_error"]
    assert after["confusion_matrix"] == before["confusion_matrix"]
    calibrated = cli("predict", trained_run, features_file, "--probabilities", "--calibrate", public)
    assert f"temperature {after['temperature']:.4g}, from 12 public rows" in calibrated.stderr
    refused(cli("predict", trained_run, features_file, "--calibrate", private_file), 3, ["no public rows"])
    assert cli("train", features_file, "--method", "only-public", "--out", "run").status == 0
    assert "the run was trained with these" in cli("evaluate", "run", "--calibrate", features_file).stderr


def test_votes_have_shares_and_no_temperature(cli: Cli, refused: Callable[..., None], features_file: Path) -> None:
    words = ["train", features_file, *NOISY, "--steps", "4", "--output", "vote", "--ensemble", "4", "--out", "run"]
    assert cli(*words).status == 0
    rows = _predicted(cli("predict", "run", features_file, "--probabilities"))
    assert {float(row["p_ant"]) for row in rows} <= {0.0, 0.25, 0.5, 0.75, 1.0}
    refused(cli("predict", "run", features_file, "--calibrate", features_file), 2, ["votes", "--calibrate"])


def test_info_describes_a_file_and_a_run(cli: Cli, trained_run: Path, features_file: Path) -> None:
    described = result_of(cli("info", features_file, "--json"))
    assert described["rows"] == {"train": 400, "test": 120, "public": 12}
    assert (described["n_features"], described["n_classes"], described["text_weights"]) == (10, 4, True)
    manifest = result_of(cli("info", trained_run, "--json"))
    assert manifest == json.loads((trained_run / "manifest.json").read_text())
    for path, keys in ((features_file, described), (trained_run, manifest)):
        lines = cli("info", path).stdout.splitlines()
        assert [line.split()[0] for line in lines] == list(keys)


def test_public_classes_of_another_file_are_matched_by_name(
    cli: Cli, private_file: Path, make_features: Callable[..., Path], tmp_path: Path
) -> None:
    same = make_features(tmp_path / "same.h5")
    shuffled = make_features(tmp_path / "other.h5", class_names=("dog", "cat", "ant", "bee"), order=(2, 3, 1, 0))
    for public in (same, shuffled):
        command = ["train", private_file, "--eps", "3", "--public", public, "--noise-seed", "1", "--insecure-seed"]
        assert result_of(cli(*command, "--out", public.stem, "--json"))["n_public"] == 12
    assert np.allclose(weights_of(tmp_path / "same"), weights_of(tmp_path / "other"), rtol=1e-4, atol=1e-4)


def test_public_shots_join_those_of_another_file(
    cli: Cli, private_file: Path, make_features: Callable[..., Path], tmp_path: Path
) -> None:
    other = make_features(tmp_path / "other.h5")
    command = ["train", private_file, "--eps", "3", "--public", other, "--public-shots", "2", "--out", "run", "--json"]
    result = result_of(cli(*command))
    assert (result["n_public"], result["n_private"]) == (12 + 2 * 4, 400 - 2 * 4)
    assert cli("verify", "run", "--features", private_file).status == 0


def test_the_second_of_two_trains_into_one_folder_is_refused_before_it_reads_or_spends(
    cli: Callable[..., Any],
    features_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refused: Callable[..., None],
) -> None:
    words = ["--method", "noisy-gd", "--eps", "3", "--steps", "1", "--out", "deep/run"]
    seconds, train = [], train_command.execute

    def meanwhile(*arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(train_command, "execute", train)
        before = sorted((tmp_path / "deep").iterdir())
        seconds.append(cli("train", features_file, *words))
        seconds.append(cli("train", "no-such-file.h5", *words))  # refused before any file is opened
        assert sorted((tmp_path / "deep").iterdir()) == before
        return train(*arguments, **named)

    monkeypatch.setattr(train_command, "execute", meanwhile)
    assert cli("train", features_file, *words).status == 0
    for second in seconds:
        refused(second, 2, ["deep/run", "another process", "nothing was read or spent", "another name"])
    assert sorted(path.name for path in (tmp_path / "deep").iterdir()) == ["run"]


def test_a_lock_file_left_by_a_killed_train_blocks_nobody(
    cli: Callable[..., Any], features_file: Path, tmp_path: Path
) -> None:
    (tmp_path / ".run.lock").touch()
    assert cli("train", features_file, "--method", "only-public", "--out", "run").status == 0
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_folder_that_appears_while_training_leaves_the_finished_run(
    cli: Callable[..., Any], features_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meanwhile(*arguments: Any, **named: Any) -> Any:
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "file").touch()
        return train(*arguments, **named)

    train = train_command.execute
    monkeypatch.setattr(train_command, "execute", meanwhile)
    outcome = cli("train", features_file, "--method", "noisy-gd", "--eps", "3", "--steps", "1", "--out", "run")
    assert outcome.status == 2
    kept = re.search(r"this run is complete; rename (\S+)$", outcome.stderr.strip())
    assert kept is not None, outcome.stderr
    assert cli("verify", kept[1]).status == 0


def test_ctrl_c_while_a_class_is_made_is_an_interrupt(
    cli: Callable[..., Any], features_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Field:
        def __set_name__(self, owner: type, name: str) -> None:
            raise KeyboardInterrupt  # which Python 3.11 hides in a RuntimeError

    monkeypatch.setattr(train_command, "execute", lambda *arguments, **named: type("Model", (), {"field": Field()}))
    outcome = cli("train", features_file, "--method", "noisy-gd", "--eps", "3", "--out", "run")
    assert outcome.status == 130
    assert "RuntimeError" not in outcome.stderr
    assert "stopped by Ctrl-C" in outcome.stderr
    assert not (tmp_path / "run").exists()


def test_train_and_compare_warn_of_a_large_delta(cli: Callable[..., Any], features_file: Path) -> None:
    outcome = cli("train", features_file, "--method", "noisy-gd", "--eps", "3", "--delta", "1e-3", "--steps", "1")
    assert outcome.status == 0
    warning = "delta 0.001 is 0.4/N for 400 private rows"
    assert [line.startswith(warning) for line in outcome.stderr.splitlines()].count(True) == 1
    words = ["compare", features_file, "--methods", "noisy-gd", "--eps", "3", "--delta", "1e-3", "--jobs", "1"]
    assert cli(*words, "--no-baselines", "--out", "compared").stderr.count(warning) == 1


def test_a_file_without_test_rows_is_imported_and_trained_on(
    cli: Callable[..., Any], tmp_path: Path, refused: Callable[..., None]
) -> None:
    rows, labels = gaussian_rows("train", 200)
    np.savez(tmp_path / "private.npz", X_train=rows, y_train=labels, class_names=np.array(list("abcd")))
    imported = cli("import", "private.npz", "--out", "private.h5")
    assert imported.status == 0
    assert "200 train rows" in imported.stderr
    assert "no test rows" in imported.stderr
    words = ["train", "private.h5", "--eps", "3", "--public-shots", "2", "--steps", "2", "--out"]
    outcome = cli(*words, "run")
    assert outcome.status == 0
    assert "accuracy" not in outcome.stderr
    assert json.loads(cli(*words, "other", "--json").stdout)["test_accuracy"] is None
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert (manifest["test_accuracy"], manifest["test_accuracy_per_class"], manifest["n_test"]) == (None, None, 0)
    assert cli("verify", "run", "--features", "private.h5").status == 0
    assert cli("info", "private.h5").status == 0
    assert cli("pdp-report", "run").status == 0
    assert cli("report", "run", "--html", "page.html").status == 0
    assert "no accuracy was measured" in (tmp_path / "page.html").read_text()
    refused(cli("evaluate", "run"), 3, ["private.h5", "no test rows", "accuracy"])
    refused(cli("attack", "run"), 3, ["private.h5", "no test rows"])
    refused(cli("predict", "run", "private.h5"), 2, ["'test'", "train"])
    refused(cli("compare", "private.h5", "--methods", "noisy-gd", "--eps", "1", "--out", "c"), 3, ["no test rows"])


@pytest.mark.parametrize(
    ("more", "method", "why"),
    [
        ((), "adamix", "some labelled rows are public"),
        (("--public-shots", "0"), "noisy-gd", "no row is public and there are text weights"),
    ],
)
def test_train_chooses_a_method_from_public_facts_and_says_which(
    cli: Cli, features_file: Path, more, method, why
) -> None:
    outcome = cli("train", features_file, "--eps", "3", "--steps", "3", "--json", *more)
    assert json.loads(outcome.stdout)["method"] == method
    assert f"method {method}: {why}" in outcome.stderr


def test_train_without_public_rows_or_text_centres_on_a_private_mean(cli: Cli, private_file: Path) -> None:
    outcome = cli("train", private_file, "--eps", "3", "--steps", "3", "--json")
    assert json.loads(outcome.stdout)["method"] == "noisy-gd"
    assert "no row is public; noisy-gd can centre rows on a private mean" in outcome.stderr


def test_a_note_on_a_short_mean_is_for_runs_that_would_have_centred_on_it(cli: Cli, tmp_path: Path) -> None:
    g = np.random.default_rng(0)
    x, y = g.normal(size=(1000, 8)).astype(np.float32), np.arange(1000) % 4
    np.savez(tmp_path / "x.npz", X_train=x[:900], y_train=y[:900], X_test=x[900:], y_test=y[900:])
    cli("import", tmp_path / "x.npz", "--out", "x.h5")
    run = ("train", "x.h5", "--eps", 3, "--steps", 2)
    assert "private mean is shorter" in cli(*run, "--method", "noisy-gd").stderr
    assert "private mean" not in cli(*run, "--method", "dpsgd-f").stderr  # which translates rows by any mean
