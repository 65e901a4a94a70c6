"""stdout, stderr or a log that cannot be written: complete outputs are told, and a broken stderr ends nothing."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linprobe.cli import run
from tests.conftest import Outcome

FULL = Path("/dev/full")
GD = ("--method", "noisy-gd", "--eps", "1", "--steps", "3")
DESCENT = ("train", "{features}", *GD, "--out", "made")
TUNED = ("tune", "{features}", *GD, "--shrink", "0.5,1", "--out", "made")
COMPARED = (
    *("compare", "{features}", "--methods", "noisy-gd:steps=3", "--eps", "1", "--seeds", "1", "--jobs", "1"),
    *("--no-baselines", "--out", "made"),
)
IMAGES = ("extract", "images.npz", "--backbone", "pixels", "--device", "cpu", "--out", "made")
RELEASE = ("release", "{run}", "--out", "made")
ATTACK = ("attack", "{run}", "--features", "{features}", "--resamples", "0", "--out", "made")
NAME, JSON = "only its name could not be printed", "only its JSON object could not be printed"
# a command, the file or folder that it makes, and what its error says
MADE: dict[str, tuple[tuple[str, ...], str, list[str]]] = {
    "train": (DESCENT, "made", ["the run is complete in made", NAME]),
    "train --json": ((*DESCENT, "--json"), "made", ["the run is complete in made", JSON]),
    "tune": (TUNED, "made", ["the run is complete in made", NAME]),
    "tune --json": ((*TUNED, "--json"), "made", ["the run is complete in made", JSON]),
    "compare": (COMPARED, "made", ["the comparison is complete in made", NAME]),
    "compare --json": ((*COMPARED, "--json"), "made", ["the comparison is complete in made", JSON]),
    "extract": (IMAGES, "made", ["the feature file is complete in made", NAME]),
    "extract --json": ((*IMAGES, "--json"), "made", ["the feature file is complete in made", JSON]),
    "import": (("import", "rows.npz", "--out", "made"), "made", ["the feature file is complete in made", NAME]),
    "release": (RELEASE, "made", ["the release is complete in made", NAME]),
    "release --json": ((*RELEASE, "--json"), "made", ["the release is complete in made", JSON]),
    "export": (("export", "{run}", "--to", "safetensors", "--out", "made"), "made", ["is complete in made", NAME]),
    "report": (("report", "{run}", "--html", "made.html"), "made.html", ["the page is complete in made.html", NAME]),
    "pdp-report --publish-epsilon": (
        ("pdp-report", "{run}", "--publish-epsilon", "0.5"),
        "{run}.published-1/published_histogram_1.json",
        [
            "run {run}.published-1 is complete and states the cost of the histogram",
            "linprobe pdp-report {run} prints again",
        ],
    ),
    "pdp-report --csv --json": (
        ("pdp-report", "{run}", "--csv", "made", "--json"),
        "made",
        ["made is complete", "only the report"],
    ),
    "attack": (ATTACK, "made", ["made is complete", "only the figures"]),
    "plan --plot": (
        ("plan", "--eps", "1", "--n", "900", "--epochs", "5", "--q", "1", "--plot", "made.png"),
        "made.png",
        ["made.png is complete", "only the plan"],
    ),
}
needs_full = pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")


@pytest.fixture
def given(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    features_file: Path,
    run_copy: Path,
) -> Callable[..., Outcome]:
    """Run a command in this process with other streams; `{run}` and `{features}` are a run and its feature file."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    pixels, labels = rng.integers(0, 256, (8, 4, 4, 3), dtype=np.uint8), np.arange(4) % 2
    for name, rows in (("rows", rng.random((8, 5))), ("images", pixels)):
        np.savez(f"{name}.npz", X_train=rows[:4], y_train=labels, X_test=rows[4:], y_test=labels)

    def start(words: tuple[str, ...], **streams: int) -> Outcome:
        capsys.readouterr()
        with monkeypatch.context() as patch:
            for name, descriptor in streams.items():
                patch.setattr(sys, name, os.fdopen(descriptor, "w", encoding="utf-8"))
            status = run([word.format(run=run_copy, features=features_file) for word in words])
        return Outcome(status, *capsys.readouterr())

    return start


def full() -> int:
    """A descriptor that takes no byte."""
    return os.open(FULL, os.O_WRONLY)


def unread() -> int:
    """The end of a pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer


@needs_full
@pytest.mark.parametrize("command", MADE)
def test_a_full_stdout_leaves_a_complete_output_and_says_so(
    given: Callable[..., Outcome], refused: Callable[..., None], run_copy: Path, command: str
) -> None:
    words, made, told = MADE[command]
    outcome = given(words, stdout=full())
    told = [text.format(run=run_copy) for text in told]
    refused(outcome, 1, [*told, "No space left on device", "use it as it is"], notes=99)
    last = outcome.stderr.splitlines()[-1]
    assert all(advice not in last for advice in ("again with", "another --out", "free some space"))
    assert Path(made.format(run=run_copy)).exists()


@pytest.mark.parametrize("command", ["train", "tune", "export", "pdp-report --publish-epsilon"])
def test_a_reader_that_left_is_no_error_and_what_is_complete_is_told(
    given: Callable[..., Outcome], run_copy: Path, command: str
) -> None:
    words, _, told = MADE[command]
    outcome = given((*words, "--quiet"), stdout=unread())
    assert outcome.status == 0
    assert outcome.stderr.startswith("linprobe: ")
    assert len(outcome.stderr.splitlines()) == 1
    for text in (*told, "Broken pipe", "use it as it is"):
        assert text.format(run=run_copy) in outcome.stderr


def test_a_full_stdout_costs_nothing_more_than_the_name(given: Callable[..., Outcome], features_file: Path) -> None:
    if FULL.exists():
        given(DESCENT, stdout=full())
    else:
        given(DESCENT, stdout=unread())
    assert given(("verify", "made", "--features", "{features}")).status == 0
    found = json.loads(given(("budget", "{features}", "--json")).stdout)
    assert [Path(entry["name"]).name for entry in found["entries"]].count("made") == 1


@needs_full
@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_a_noisy_accuracy_is_told_and_bought_once(
    given: Callable[..., Outcome], refused: Callable[..., None], tmp_path: Path, as_json: list[str]
) -> None:
    with np.load("rows.npz") as rows:
        x = np.random.default_rng(1).random((40, 5))
        np.savez("private.npz", **{**rows, "X_test": x, "y_test": np.arange(40) % 2})
    assert given(("import", "private.npz", "--private-test", "--classes", "0,1", "--out", "private.h5")).status == 0
    assert given(("train", "private.h5", *GD, "--delta", "1e-2", "--out", "made")).status == 0
    outcome = given(("evaluate", "made", "private.h5", "--epsilon", "1", *as_json), stdout=full())
    refused(outcome, 1, ["is released, and its epsilon is spent", "use it as it is"], notes=99)
    assert re.search(r"error: test accuracy -?\d+\.\d{4} ± \d+\.\d{4} is released", outcome.stderr)


@needs_full
def test_a_cap_that_is_set_is_told(given: Callable[..., Outcome], refused: Callable[..., None]) -> None:
    assert given((*DESCENT, "--book", "book")).status == 0
    outcome = given(("budget", "book", "--set-cap", "5"), stdout=full())
    refused(outcome, 1, ["the cap is in budget book book", "only epsilon could not be printed"], notes=99)
    assert json.loads(given(("budget", "book", "--json")).stdout)["cap"] == 5


@needs_full
@pytest.mark.parametrize("words", [("verify", "{run}"), ("plan", "--eps", "1", "--n", "900", "--q", "1", "--json")])
def test_a_command_that_makes_no_file_says_that_stdout_is_full(
    given: Callable[..., Outcome], refused: Callable[..., None], words: tuple[str, ...]
) -> None:
    outcome = given((*words, "--quiet"), stdout=full())
    refused(outcome, 1, ["stdout cannot be written (No space left on device)", "redirect"])
    assert "--out" not in outcome.stderr


@pytest.mark.parametrize("broken", [pytest.param(full, marks=needs_full), unread])
@pytest.mark.parametrize("words", [DESCENT, ("verify", "{run}"), ("report", "{run}", "--html", "made.html")])
def test_a_broken_stderr_ends_nothing(
    given: Callable[..., Outcome], words: tuple[str, ...], broken: Callable[[], int]
) -> None:
    outcome = given(words, stderr=broken())
    assert outcome.status == 0
    assert outcome.stdout in ("made\n", "verified\n", "made.html\n")


@pytest.mark.parametrize("broken", [pytest.param(full, marks=needs_full), unread])
def test_a_broken_stderr_keeps_the_exit_status_of_an_error(
    given: Callable[..., Outcome], broken: Callable[[], int]
) -> None:
    assert given(("verify", "none"), stderr=broken()).status == 3
    assert given(("--config",), stderr=broken()).status == 2


@needs_full
@pytest.mark.parametrize("unbuffered", ["", pytest.param("1", marks=pytest.mark.nightly)])
def test_processes_end_with_the_right_status(shell: Callable[..., Any], tmp_path: Path, unbuffered: str) -> None:
    """Python flushes the streams once more at its end, and would make 120 of the status."""
    np.savez(tmp_path / "rows.npz", X_train=np.eye(4), y_train=np.arange(4), X_test=np.eye(4) + 1, y_test=np.arange(4))
    made = "linprobe import rows.npz --quiet --out {0}"
    redirected = {"a": "> /dev/full", "b": "2> /dev/full", "c": "> /dev/full 2> /dev/full", "d": "2>&-"}
    script = "\n".join(f"{made.format(out)} {where}; echo {out} $?" for out, where in redirected.items())
    outcome = shell(script=f"{script}\n{made.format('e')} | head -c 0", env={"PYTHONUNBUFFERED": unbuffered})
    assert outcome.stdout.split() == ["a", "1", "b", "b", "0", "c", "1", "d", "d", "0"]
    assert outcome.status == 0
    first, last = outcome.stderr.splitlines()
    assert first.startswith("linprobe: error: the feature file is complete in a; only its name")
    assert last.startswith("linprobe: the feature file is complete in e; only its name")
    assert all((tmp_path / out).is_file() for out in "abcde")


def test_letters_that_stdout_lacks_are_told_with_what_to_set(
    features_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    named = tmp_path / "\N{GREEK SMALL LETTER ALPHA}.h5"
    named.symlink_to(features_file)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="latin-1"))
    assert run(["info", str(named)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("linprobe: error: stdout cannot be written ('latin-1' codec can't encode")
    assert line.endswith("; set PYTHONIOENCODING=utf-8, or a UTF-8 locale")
