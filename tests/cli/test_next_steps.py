"""What a command says where a user stops, or goes on: predictions, places of outputs, Ctrl-C, formats by name."""

from __future__ import annotations

import csv
import errno
import os
import re
import shlex
import stat
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from linprobe.accounting.book import read_book, spending
from linprobe.errors import LinprobeError
from linprobe.options.requests import TrainRequest, VerifyRequest
from linprobe.runs.check import verify_run
from linprobe.training.train import train_run
from linprobe.training.tune import Tuning, tune_run
from tests.cli.outcomes import NOISY, Cli
from tests.docs.test_readme import write_photos
from tests.training.test_checkpoint import Stops

STEPS = 8


def test_a_file_too_many_gets_the_flag_or_the_pattern_that_takes_it(cli: Cli, refused: Any, trained_run: Path) -> None:
    refused(cli("attack", trained_run, "more.h5"), 2, ["extra argument(s) (more.h5). Did you mean --features?"])
    refused(cli("predict", trained_run, "a.h5", "b.h5"), 2, ["extra argument(s) (b.h5)", "quote the pattern"])
    assert "Did you mean" not in cli("export", trained_run, "more.h5", "--out", "a").stderr


def test_an_unreadable_file_is_told_by_the_command_with_the_next_step(
    cli: Cli, refused: Any, trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "no.h5").touch()
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    refused(cli("verify", trained_run, "--features", tmp_path / "no.h5"), 3, ["no.h5", "make", "linprobe"])


def test_a_removed_current_folder_is_named_as_the_cause(
    cli: Cli, refused: Any, features_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    refused(cli("train", features_file, "--eps", "3"), 1, ["the current folder was removed; change to a folder"])


def test_predict_says_how_many_rows_of_which_group(cli: Cli, features_file: Path, trained_run: Path) -> None:
    default, public = (cli("predict", trained_run, features_file, *words) for words in ([], ["--group", "public"]))
    assert f"120 rows of the group test of {features_file}" in default.stderr
    assert f"12 rows of the group public of {features_file}" in public.stderr
    assert [len(outcome.stdout.splitlines()) - 1 for outcome in (default, public)] == [120, 12]


def test_predict_writes_a_private_file_and_prints_its_path(
    cli: Cli, features_file: Path, trained_run: Path, tmp_path: Path
) -> None:
    printed = cli("predict", trained_run, features_file).stdout
    written = cli("predict", trained_run, features_file, "--out", "labels.csv")
    assert written.stdout == "labels.csv\n"
    assert (tmp_path / "labels.csv").read_text() == printed
    assert stat.S_IMODE((tmp_path / "labels.csv").stat().st_mode) == 0o600
    again = cli("predict", trained_run, features_file, "--out", "labels.csv")
    assert (again.status, "--overwrite" in again.stderr) == (2, True)
    assert cli("predict", trained_run, features_file, "--out", "labels.csv", "--overwrite").status == 0
    over_input = cli("predict", trained_run, features_file, "--out", features_file, "--overwrite")
    assert (over_input.status, "would replace an input" in over_input.stderr) == (2, True)


def test_predict_that_is_refused_leaves_no_file(cli: Cli, trained_run: Path, tmp_path: Path) -> None:
    (tmp_path / "new photos").mkdir()
    refused = cli("predict", trained_run, "new photos", "--out", "labels.csv")
    assert refused.status == 3
    assert list(tmp_path.iterdir()) == [tmp_path / "new photos"]


def test_a_folder_of_images_gets_the_command_that_makes_rows(cli: Cli, trained_run: Path, tmp_path: Path) -> None:
    write_photos(tmp_path)
    (tmp_path / "photos/test/dark").rename(tmp_path / "new photos")
    imported = cli("predict", trained_run, "new photos")
    assert "imported: make rows of new photos with the same network" in imported.stderr
    pixels = ["--backbone", "pixels", "--resize", "4", "--crop", "4", "--test-fraction", "0.3"]
    assert cli("extract", "photos/train", *pixels, "--out", "made.h5").status == 0
    assert cli("train", "made.h5", *NOISY, "--steps", "2", "--out", "extracted").status == 0
    known = cli("predict", "extracted", "new photos")
    assert known.status == 3
    command = re.search(r"linprobe (extract .*)$", known.stderr.strip())
    assert command is not None
    assert command[1] == "extract 'new photos' --like extracted --out 'new photos.h5'"
    assert cli(*shlex.split(command[1])).status == 0
    predicted = cli("predict", "extracted", "new photos.h5")
    assert "4 rows of the group rows of new photos.h5" in predicted.stderr


@pytest.mark.parametrize("words", [["train", *NOISY], ["compare"], ["train", *NOISY, "--dry-run"]])
def test_no_folder_is_made_in_the_root_folder_and_nothing_spent(cli: Cli, own_books: Path, words: list[str]) -> None:
    outcome = cli(*words, "--out", "/no-such-disk/deep/run")
    assert outcome.status == 1
    assert "there is no folder /no-such-disk, and linprobe makes none in /" in outcome.stderr
    assert not Path("/no-such-disk").exists()
    assert not own_books.exists()


def test_missing_folders_below_an_existing_one_are_made(cli: Cli, features_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "deep" / "run"
    assert cli("train", features_file, *NOISY, "--steps", "2", "--out", out).status == 0
    assert cli("train", features_file, *NOISY, "--steps", "2", "--out", "other/deep/run").status == 0
    assert (out / "manifest.json").is_file()


@pytest.mark.parametrize(("every", "resumes"), [(0.0, True), (60.0, False)])
def test_ctrl_c_says_what_was_spent_and_whether_the_run_can_resume(
    features_file: Path, tmp_path: Path, own_books: Path, every: float, resumes: bool
) -> None:
    watch = Stops(3)
    request = TrainRequest(
        method="noisy-gd",
        features=features_file,
        epsilon=3.0,
        steps=STEPS,
        checkpoint_every=every,
        out=tmp_path / "run",
    )
    with pytest.raises(KeyboardInterrupt):
        train_run(request, watch)
    spent = spending(list(read_book(next(own_books.glob("*.jsonl"))).entries.values())).epsilon
    assert 0 < spent < 3
    (said,) = [text for text in watch.notes if "ended early" in text]
    stated = float(re.search(r"costs epsilon ([\d.]+) at delta 1e-05 for a record", said)[1])  # type: ignore[index]
    assert spent <= stated <= spent * 1.00001
    assert any("with --resume" in text and "resumes it" in text for text in watch.notes) is resumes
    assert any("--resume cannot continue this run" in text for text in watch.notes) is not resumes


def test_ctrl_c_before_the_first_release_says_that_nothing_was_spent(
    features_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("linprobe.mechanisms.noise.NoiseSource.add_noise", interrupted)
    monkeypatch.setattr("linprobe.accounting.ledger.Ledger.append", interrupted)
    watch = Stops(-1)
    with pytest.raises(KeyboardInterrupt):
        train_run(
            TrainRequest(method="noisy-gd", features=features_file, epsilon=3.0, steps=STEPS, out=tmp_path / "run"),
            watch,
        )
    assert "the run ended before it released anything, so nothing was spent" in watch.notes


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_a_private_selection_that_ends_early_says_that_it_counts_in_full(
    features_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    monkeypatch.setattr("linprobe.training.tune.execute", mock.Mock(side_effect=error))
    watch = Stops(-1)
    request = TrainRequest(method="noisy-gd", features=features_file, epsilon=3.0, steps=STEPS, out=tmp_path / "run")
    with pytest.raises((KeyboardInterrupt, LinprobeError)):
        tune_run(request, Tuning.parse(["clip_norm=0.5,1"], [], None, "noisy-gd"), watch)
    (said,) = [text for text in watch.notes if "counts in full" in text]
    assert re.search(r"epsilon (3|2\.9\d*) at delta", said)
    assert not [text for text in watch.notes if "--resume" in text]


def test_a_complete_choice_without_its_name_can_be_renamed(
    features_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, request = (
        Stops(-1),
        TrainRequest(method="noisy-gd", features=features_file, epsilon=3.0, steps=STEPS, out=tmp_path / "run"),
    )
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", mock.Mock(side_effect=OSError(errno.EIO, "Input/output error")))
        with pytest.raises(LinprobeError) as stopped:
            tune_run(request, Tuning.parse(["clip_norm=0.5,1"], [], None, "noisy-gd"), watch)
    (left,) = tmp_path.glob(".run.*.partial")
    named = f"(Input/output error), and counts; rename {left} to {request.out}"
    assert str(stopped.value) == f"run {request.out} is complete without its name {named}"
    assert not [text for text in watch.notes if "the run is complete" in text]
    left.rename(request.out)
    assert verify_run(VerifyRequest(run=request.out))["verified"] is True


@pytest.mark.parametrize("to", ["safetensors", "onnx"])
def test_export_takes_the_format_from_the_name(cli: Cli, trained_run: Path, tmp_path: Path, to: str) -> None:
    assert cli("export", trained_run, "--out", f"p.{to}").status == 0
    assert cli("export", trained_run, "--to", to, "--out", "given").status == 0
    assert sorted((tmp_path / f"p.{to}").read_bytes()) == sorted((tmp_path / "given").read_bytes())  # any order of keys


def test_export_to_a_name_of_no_format_asks_for_one(cli: Cli, trained_run: Path, tmp_path: Path) -> None:
    outcome = cli("export", trained_run, "--out", "probe.bin")
    assert (outcome.status, list(tmp_path.iterdir())) == (2, [])
    assert "--out is probe.bin, without --to; allowed: safetensors, onnx; give --to FORMAT" in outcome.stderr


def test_report_takes_out_as_the_page(cli: Cli, trained_run: Path, tmp_path: Path) -> None:
    outcome = cli("report", trained_run, "--out", "page.html")
    assert (outcome.status, outcome.stdout) == (0, "page.html\n")
    assert (tmp_path / "page.html").read_text().lstrip().startswith("<!DOCTYPE html>")


def test_predictions_are_those_of_the_group(cli: Cli, features_file: Path, trained_run: Path) -> None:
    rows = list(csv.DictReader(cli("predict", trained_run, features_file, "--group", "train").stdout.splitlines()))
    assert {row["id"].partition("/")[0] for row in rows} == {"train"}
