"""Options that every command takes: --config, --quiet; and the panels of help."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linprobe.cli import _terminal, program
from linprobe.methods import METHODS
from linprobe.options import GROUPS
from linprobe.options.declaration import REQUESTS
from tests.conftest import write_unlabelled

COMMANDS = program().commands
SCREEN = 24  # lines of a terminal


def test_a_config_file_gives_options_and_flags_win(cli, features_file: Path, tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text(
        f'\ufefffeatures = {json.dumps(str(features_file))}\nout = "run"\n[train]\nmethod = "noisy-gd"\neps = 2\n'
        'steps = 3\nno_per-record = true\nscore-noise = 0.5\n[report]\nhtml = "report.html"\n'
    )
    outcome = cli("train", "--eps", "1.5", "--config", config, "--json")
    assert outcome.status == 0, outcome.stderr
    found = json.loads(outcome.stdout)
    assert (found["run"], found["epsilon_target"], found["steps"]) == ("run", 1.5, 3)
    options = json.loads((tmp_path / "run" / "manifest.json").read_text())["options"]
    assert (options["score_noise"], options["per_record"]) == (0.5, False)


def test_a_config_file_lists_what_the_command_line_has_with_commas(cli, features_file: Path, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(
        'eps = [1, 2.5]\nmethods = ["noisy-gd", "ngd"]\nno-baselines = true\nseeds = 1\nout = "cmp"\n'
    )
    planned = cli("compare", features_file, "--config", "run.toml", "--dry-run", "--json")
    assert planned.status == 0, planned
    rows = [(row["method"], row["epsilon"]) for row in json.loads(planned.stdout)["rows"]]
    assert rows == [(method, epsilon) for method in ("noisy-gd", "ngd") for epsilon in (1, 2.5)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("epz = 3", ["sets epz", "did you mean eps"]),
        ("[trian]\neps = 3", ["[trian]", "train"]),
        ("eps = true", ["eps", "True", "one number or text"]),
        ("eps = [1, 2]", ["eps", "[1, 2]", "one number or text"]),
        ("resume = 1", ["resume", "true, false"]),
        ("eps == 3", ["not TOML", "eps = 3"]),
        ('eps = "three"', ["three", "--eps"]),
        ("eps = 1\nepsilon = 3", ["epsilon under two names"]),
        ("[train]\nsplit-seed = 1\nsplit_seed = 3", ["split_seed under two names"]),
    ],
)
def test_a_wrong_config_file_is_one_line(cli, refused, tmp_path: Path, text: str, words: list[str]) -> None:
    (tmp_path / "run.toml").write_text(text)
    refused(cli("train", "--config=run.toml"), 2, words)


def test_a_config_file_that_is_missing_or_given_twice_is_refused(cli, refused) -> None:
    refused(cli("train", "--config", "none.toml"), 2, ["none.toml", "No such file"])
    refused(cli("train", "--config"), 2, ["--config FILE"])
    refused(cli("train", "--config", "a", "--config", "b"), 2, ["a and b"])


def test_quiet_prints_errors_only(cli, features_file: Path) -> None:
    words = ("train", features_file, "--method", "noisy-gd", "--eps", "1", "--steps", "2")
    assert cli(*words, "--out", "loud").stderr
    quiet = cli("--quiet", *words, "--out", "quiet")
    assert (quiet.status, quiet.stdout, quiet.stderr) == (0, "quiet\n", "")
    wrong = cli("train", features_file, "--method", "noisy-gd", "--quiet")
    assert wrong.status == 2
    assert "give --eps" in wrong.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_examples_that_can_be_parsed(cli, name: str) -> None:
    outcome = cli(name, "--help-all")
    assert outcome.status == 0
    assert "--config FILE.toml" in outcome.stdout
    for example in REQUESTS[name].examples:
        assert f"linprobe {example}" in outcome.stdout
        first, *words = shlex.split(example.split(" > ")[0])
        assert first == name
        if "--help" not in words:
            COMMANDS[name].make_context(name, words)


def test_all_help_of_train_has_a_panel_for_each_theme(cli) -> None:
    text = cli("train", "--help-all").stdout
    assert [line for line in text.splitlines() if line.rstrip(":") in GROUPS] == [f"{group}:" for group in GROUPS]
    assert "--clip-norm" in text


@pytest.mark.parametrize("name", ["train", "tune"])
def test_help_shows_the_options_of_most_runs_privacy_first(cli, name: str) -> None:
    lines = cli(name, "--help").stdout.splitlines()
    options = [line.split()[0].strip(",") for line in lines[lines.index("Arguments:") :] if line.startswith("  -")]
    assert options[:3] == ["--eps", "--delta", "--unit"]
    assert len(options) == len(REQUESTS[name].first) + len(["--help", "--help-all"])
    assert lines.index("Privacy:") < SCREEN


def test_help_with_a_method_shows_only_its_options(cli) -> None:
    text = cli("train", "--method", "prototypes", "--help").stdout
    assert "--eps" in text
    assert "--out" in text
    for left_out in ("--clip-norm", "--steps", "--condition", "--horizon"):
        assert left_out not in text
    for name in METHODS:
        assert f"Only options that {name} takes" in " ".join(cli("train", "-m", name, "--help").stdout.split())


@pytest.mark.parametrize(
    ("method", "steps", "clip_norm"), [("dp-sgd", "200", "0.5"), ("dp-newton", "8", "1"), ("dpsgd-f", "200", "0.1")]
)
def test_help_of_a_method_has_its_own_defaults(cli, method: str, steps: str, clip_norm: str) -> None:
    text = " ".join(cli("train", "--method", method, "--help").stdout.split())
    assert f"Number of steps; the noise follows. [default: {steps}]" in text
    assert f"contribution. [default: {clip_norm}]" in text
    whole = " ".join(cli("train", "--help-all").stdout.split())
    assert "200 with Poisson sampling; 8 dp-newton]" in whole
    assert "[default: 0.5; 0.1 dpsgd-f; 1 dp" in whole


@pytest.mark.parametrize(("method", "devices"), [("dp-sgd", "cpu, cuda or cuda:N."), ("dp-newton", "cpu.")])
def test_help_of_a_method_has_its_own_devices_and_the_class_weights_of_the_command(
    cli, method: str, devices: str
) -> None:
    text = " ".join(cli("train", "--method", method, "--help").stdout.split())
    assert f"{devices} [default: cpu]" in text
    assert "LABEL=WEIGHT,..., a JSON file, or public" in text
    assert "on a GPU: noisy-gd, adamix" in " ".join(cli("train", "--help-all").stdout.split())


def test_help_shows_the_whole_description_of_every_command(cli) -> None:
    text = " ".join(cli("--help").stdout.split())
    assert "..." not in text.partition("Commands:")[2]
    assert "Print the composed epsilon of all noisy runs on a set of rows, from its budget book" in text


def test_brackets_in_a_table_are_brackets(capsys: pytest.CaptureFixture[str]) -> None:
    _terminal.table("[red] classes", [("cat[s]", "[/]")])
    printed = capsys.readouterr().err
    for text in ("[red] classes", "cat[s]", "[/]"):
        assert text in printed


def test_the_config_file_of_a_run_repeats_it(cli, features_file: Path, tmp_path: Path) -> None:
    words = ("--method", "noisy-gd", "--eps", "1.5", "--steps", "3", "--no-per-record", "--score-noise", "1e-05")
    words = (*words, "--split-seed", "2", "--public-shots", "1", "--book", "own.jsonl")
    assert cli("train", features_file, *words, "--out", "one").status == 0
    again = cli("train", "--config", tmp_path / "one" / "config.toml", "--out", "two")
    assert again.status == 0, again.stderr
    assert "2 runs on these rows together" in again.stderr
    assert json.loads(cli("budget", "own.jsonl", "--json").stdout)["runs"] == 2
    first, second = (json.loads((tmp_path / run / "manifest.json").read_text()) for run in ("one", "two"))
    for key in ("method", "epsilon", "steps", "options", "split_seed", "public_shots", "features", "n_private"):
        assert first[key] == second[key], key
    assert (tmp_path / "one" / "config.toml").read_text() == (tmp_path / "two" / "config.toml").read_text()
    assert cli("verify", "one").status == 0
    with (tmp_path / "one" / "config.toml").open("a") as stream:
        stream.write("delta = 1e-9\n")
    assert cli("verify", "one").status == 4


def test_a_long_command_says_once_on_a_pipe_how_far_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(_terminal.time, "monotonic", lambda: now[0])
    with _terminal.TerminalProgress() as progress:
        progress.start(10, "planning")
        for _ in range(10):
            now[0] += 1
            progress.step()
    assert capsys.readouterr().err == "planning: 3 of 10 done, about 7 s left\n"
    with _terminal.TerminalProgress() as progress:
        progress.start(10, "extracting")
        for seconds in (60, 1, 2, 1):  # the first step loads a network
            now[0] += seconds
            progress.step(2)
    assert capsys.readouterr().err == "extracting: 6 of 10 done, about 3 s left\n"
    with _terminal.TerminalProgress() as progress:
        progress.start(3)
        progress.step(3)
    assert capsys.readouterr().err == ""


def test_no_stretch_of_work_is_silent(
    cli, features_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[str] = []

    def start(_: Any, total: int, what: str = "training") -> None:
        starts.append(what)

    def said(*words: object) -> list[str]:
        starts.clear()
        outcome = cli(*words)
        assert outcome.status == 0, outcome.stderr
        return starts

    monkeypatch.setattr(_terminal.TerminalProgress, "start", start)
    np.savez(tmp_path / "X.npz", X=np.eye(4))
    assert said("import", "X.npz", "--out", "u.h5") == ["reading arrays", "writing rows"]
    training = ("train", features_file, "--method", "adamix", "--eps", "2", "--steps", "3", "--out", "run")
    assert said(*training, "--dry-run") == ["reading rows"]
    assert said(*training) == ["reading rows", "training", "finishing"]
    assert said("attack", "run") == ["reading rows", "scoring rows"]
    assert said("evaluate", "run", features_file) == ["reading rows"]
    assert said("refine", "run", write_unlabelled(tmp_path / "rows.h5"), "--out", "refined") == [
        "reading rows",
        "refining",
    ]
    several = ("compare", features_file, "--methods", "noisy-gd", "--no-baselines", "--eps", "2", "--seeds", "1")
    assert said(*several, "--out", "several", "--dry-run") == ["reading rows", "planning"]


def test_a_misspelt_command_is_one_sentence(cli, refused) -> None:
    outcome = cli("trian")
    refused(outcome, 2, ["No such command 'trian'", "Did you mean 'train'? See linprobe --help."])


def test_a_flag_for_what_has_none_says_how_to_give_it(cli, refused) -> None:
    refused(
        cli("refine", "run", "--unlabelled", "u.h5"), 2, ["such option: --unlabelled. Did you mean ROWS without a flag"]
    )


@pytest.mark.parametrize(
    "words",
    [
        *("evaluate run --epsilon", "train --eps", "verify run --max-eps", "budget book --set-cap", "account --sigma"),
        *("import rows.npz --out", "release run --out"),
    ],
)
def test_a_last_option_without_its_value_is_one_line(cli, refused, words: str) -> None:
    name, *_, option = words.split()
    refused(cli(*words.split()), 2, [f"'{option}' requires an argument", f"See linprobe {name} --help."])


def test_a_switch_with_a_value_is_one_line(cli, refused) -> None:
    refused(cli("verify", "run", "--json=3"), 2, ["'--json' does not take a value", "See linprobe verify --help."])
