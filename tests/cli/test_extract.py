"""`linprobe extract` on the command line: output, errors, and training on its files."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import pytest

from tests.cli.outcomes import result_of
from tests.extraction.samples import write_images

SMALL = ["--backbone", "pixels", "--resize", "8", "--crop", "8", "--device", "cpu"]


def test_the_path_alone_is_printed_and_the_rest_is_for_people(cli: Callable[..., Any], images: Path) -> None:
    outcome = cli("extract", images, *SMALL, "--out", "f.h5")
    assert outcome.status == 0, outcome
    assert outcome.stdout == "f.h5\n"
    assert "21 train, 9 test images, 3 classes; pixels" in outcome.stderr
    assert "21 train, 9 test rows, 192 features, 3 classes" in outcome.stderr
    assert "images/s on cpu in float32" in outcome.stderr
    again = cli("extract", images, *SMALL, "--out", "f.h5")
    assert (again.status, again.stdout) == (0, "f.h5\n")
    assert "exists, made with the same settings" in again.stderr
    assert "images/s" not in again.stderr


def test_an_output_that_cannot_be_made_is_refused(
    cli: Callable[..., Any], refused: Callable[..., None], images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    refused(
        cli("extract", images, *SMALL, "--out", "file/f.h5"), 1, ["file/f.h5", "file is no folder", "--out"], notes=1
    )
    refused(cli("extract", images, *SMALL, "--out", "f" * 240), 2, ["240 bytes", "237"], notes=1)

    def read_only(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("linprobe.extraction.run.locked", read_only)
    outcome = cli("extract", images, *SMALL, "--out", "f.h5")
    assert outcome.status == 1
    assert "give --out a writable place" in outcome.stderr.splitlines()[-1]


def test_json_says_what_was_done(cli: Callable[..., Any], images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[int] = []
    monkeypatch.setattr("linprobe.cli._terminal.keep_stdout_private", lambda: kept.append(1))
    owned = cli(
        "extract", images, *SMALL, "--out", "o.h5", "--owner-regex", r"([a-z]+/[0-9]+)\.", "--owners-on-both-sides"
    )
    assert "owners of rows: 21 train, 9 test; train --unit owner" in owned.stderr
    assert "owners of rows" not in cli("extract", images, *SMALL, "--out", "g.h5").stderr
    result = result_of(cli("extract", images, *SMALL, "--out", "f.h5", "--json"))
    assert (result["owners"], kept) == ({}, [])
    private = ["--out", "p.h5", "--owner-regex", r"([a-z]+/[0-9]+)\.", "--owners-on-both-sides", "--json"]
    assert result_of(cli("extract", images, *SMALL, *private))["owners"] == {"train": 21, "test": 9}
    assert kept == [1]  # numbers of rows and people
    assert result["file"] == "f.h5"
    assert result["rows"] == {"train": 21, "test": 9}
    assert (result["n_features"], result["n_classes"], result["extracted"]) == (192, 3, 30)
    assert (result["device"], result["precision"], result["skipped"]) == ("cpu", "float32", [])


def test_the_file_is_named_after_source_and_backbone(cli: Callable[..., Any], images: Path, tmp_path: Path) -> None:
    outcome = cli("extract", images, *SMALL)
    assert outcome.stdout == "features/photos-pixels.h5\n"
    assert (tmp_path / "features" / "photos-pixels.h5").is_file()


def test_options_reach_the_extraction(cli: Callable[..., Any], images: Path, tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("cat\nant\nbee\n")
    outcome = cli(
        *("extract", images, "--out", "f.h5", "--backbone", "pixels", "--backbone-arg", "mode=L", "--device", "cpu"),
        *("--resize", "9", "--crop", "7", "--mean", "0.5", "--std", "0.25", "--interpolation", "bicubic"),
        *("--classes", "classes.txt", "--dtype", "float32", "--batch-size", "3", "--workers", "1"),
        *("--precision", "float32", "--on-error", "skip"),
    )
    assert outcome.status == 0, outcome
    with h5py.File(tmp_path / "f.h5") as file:
        preprocessing = json.loads(file.attrs["preprocessing"])
        extraction = json.loads(file.attrs["extraction"])
        names = json.loads(file.attrs["class_names"])
        shape, dtype = file["train/x"].shape, file["train/x"].dtype
    assert (preprocessing["resize"], preprocessing["crop"], preprocessing["mode"]) == (9, [7, 7], "L")
    assert (preprocessing["mean"], preprocessing["std"]) == ([0.5], [0.25])
    assert preprocessing["interpolation"] == "bicubic"
    assert (extraction["batch_size"], extraction["arguments"]) == (3, {"mode": "L"})
    assert names == ["cat", "ant", "bee"]
    assert (shape, str(dtype)) == ((21, 49), "float32")


def test_values_of_backbone_arguments_are_numbers_words_or_json(cli: Callable[..., Any], images: Path) -> None:
    words = ["--random-weights", "--backbone-arg", "groups=4", "--device", "cpu", "--out", "f.h5"]
    outcome = cli("extract", images, "--backbone", "wrn-16-4", *words, "--resize", "8", "--crop", "8")
    assert outcome.status == 0, outcome
    with h5py.File("f.h5") as file:
        assert json.loads(file.attrs["extraction"])["arguments"] == {"groups": 4}


def test_skipped_images_are_told(cli: Callable[..., Any], tmp_path: Path) -> None:
    source = write_images(tmp_path / "photos", {"train": 15, "test": 1}, ("ant", "bee"))
    for number in range(12):
        (source / "train" / "bee" / f"{number:03d}.png").write_bytes(b"")
    outcome = cli("extract", source, *SMALL, "--out", "f.h5", "--on-error", "skip")
    assert outcome.status == 0, outcome
    assert "skipped train/bee/000.png: the file is empty" in outcome.stderr
    assert outcome.stderr.count("skipped train") == 10
    assert "and 2 more" in outcome.stderr


def test_random_weights_are_told_now_and_when_training(cli: Callable[..., Any], images: Path) -> None:
    network = ["--backbone", "wrn-16-4", "--random-weights", "--resize", "8", "--crop", "8", "--device", "cpu"]
    outcome = cli("extract", images, *network, "--out", "f.h5")
    assert "RANDOM WEIGHTS" in outcome.stderr
    trained = cli("train", "f.h5", "--method", "non-private")
    assert trained.status == 0, trained
    assert "f.h5 was made with RANDOM WEIGHTS" in trained.stderr
    assert "RANDOM" not in cli("train", cli("extract", images, *SMALL).stdout.strip(), "--method", "non-private").stderr


def test_a_file_without_public_rows_takes_them_from_one_made_the_same_way_only(
    cli: Callable[..., Any],
    refused: Callable[..., None],
    images: Path,
    tmp_path: Path,
) -> None:
    other = write_images(tmp_path / "other", {"train": 4, "test": 2}, first_seed=900)
    assert cli("extract", images, *SMALL, "--out", "private.h5").status == 0
    same, changed = [*SMALL, "--batch-size", "3"], [*SMALL, "--mean", "0.5"]
    assert cli("extract", other, *same, "--out", "same.h5").status == 0
    assert cli("extract", other, *changed, "--out", "changed.h5").status == 0
    command = ["train", "private.h5", "--method", "only-public", "--public"]
    assert cli(*command, "same.h5").status == 0
    refused(cli(*command, "changed.h5"), 3, ["changed.h5", "preprocessing", "allowed: the same"])
    assert cli("extract", other, *SMALL, "--backbone-arg", "mode=RGB", "--out", "argument.h5").status == 0
    refused(cli(*command, "argument.h5"), 3, ["argument.h5", 'arguments mode "RGB"'])


BAD_COMMANDS: dict[str, tuple[list[str], int, list[str]]] = {
    "unknown backbone": (["{images}", "--backbone", "magic"], 2, ["'magic'", "resnet50"]),
    "no such source": (["none"], 3, ["none does not exist"]),
    "weights that are not there": (["{images}", "--weights", "none.pt"], 3, ["none.pt does not exist"]),
    "weights to be fetched": (
        ["{images}", "--backbone", "timm:test_resnet"],
        3,
        ["timm:test_resnet", "--weights FILE", "--random-weights"],
    ),
    "weights of wrn": (["{images}", "--backbone", "wrn-16-4"], 3, ["wrn-16-4", "--weights FILE"]),
    "mean a word": (["{images}", *SMALL, "--mean", "grey"], 2, ["mean is 'grey'", "0.5,0.5,0.5"]),
    "mean of two": (["{images}", *SMALL, "--mean", "0.5,0.5"], 2, ["mean has 2 values"]),
    "std of zero": (["{images}", *SMALL, "--std", "0"], 2, ["std is", "from 1e-06"]),
    "interpolation": (["{images}", *SMALL, "--interpolation", "cubic"], 2, ["'cubic'", "bicubic"]),
    "argument without value": (["{images}", *SMALL, "--backbone-arg", "mode"], 2, ["'mode'", "KEY=VALUE"]),
    "argument without key": (["{images}", *SMALL, "--backbone-arg", "=L"], 2, ["'=L'", "KEY=VALUE"]),
    "batch size a word": (["{images}", *SMALL, "--batch-size", "many"], 2, ["'many'", "auto"]),
    "batch size below 1": (["{images}", *SMALL, "--batch-size", "-3"], 2, ["'-3'", "above 0"]),
    "batch size 0": (["{images}", *SMALL, "--batch-size", "0"], 2, ["batch-size is 0"]),
    "unknown device": (["{images}", *SMALL[:-1], "abacus"], 2, ["'abacus'", "cpu"]),
    "absent device": (["{images}", *SMALL[:-1], "cuda:99"], 2, ["cuda:99", "allowed here"]),
    "out is a folder": (["{images}", *SMALL, "--out", "."], 2, ["is a folder"]),
    "no text tower": (["{images}", *SMALL, "--templates", "openai-80"], 2, ["no text tower"]),
    "class list that is not there": (["{images}", *SMALL, "--classes", "none.txt"], 3, ["none.txt"]),
    "no test images": (["{flat}", *SMALL], 2, ["--test-fraction"]),
    "fraction of all": (["{flat}", *SMALL, "--test-fraction", "1"], 2, ["test fraction is 1"]),
    "damaged image": (["{broken}", *SMALL], 3, ["train/bee/001.png", "--on-error skip"]),
}


@pytest.mark.parametrize("case", BAD_COMMANDS)
def test_bad_command_is_refused_in_one_line_and_leaves_nothing(
    cli: Callable[..., Any],
    refused: Callable[..., None],
    images: Path,
    offline: Path,
    tmp_path: Path,
    case: str,
) -> None:
    words, status, expected = BAD_COMMANDS[case]
    folders = {"images": images, "flat": images / "train", "broken": tmp_path / "broken"}
    if case == "damaged image":
        write_images(tmp_path / "broken", {"train": 2, "test": 1})
        (tmp_path / "broken" / "train" / "bee" / "001.png").write_bytes(b"")
    out = [] if "--out" in words else ["--out", "f.h5"]
    outcome = cli("extract", *(word.format(**folders) for word in words), *out)
    refused(outcome, status, expected, notes=4)
    assert [path.name for path in tmp_path.iterdir()] == (["broken"] if case == "damaged image" else [])


def test_neither_help_nor_a_wrong_source_loads_a_network_library(tmp_path: Path) -> None:
    for name in ("ant", "bee"):
        (tmp_path / "one" / name).mkdir(parents=True)
        (tmp_path / "one" / name / "1.png").touch()
    code = (
        "import sys; from linprobe.cli import run\n"
        "of_folder = ['extract', 'one', '--out', 'f.h5']\n"
        "commands = ['--help'], ['extract', '--help'], ['extract', 'none'], ['extract', '/dev/null'], of_folder, [\n"
        "    *of_folder, '--test-fraction', '0.5', '--owners', 'none.csv']\n"
        "statuses = [run(words) for words in commands]\n"
        "heavy = {'torch', 'torchvision', 'timm', 'open_clip'} & set(sys.modules)\n"
        "print('SEEN', statuses, sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert "SEEN [0, 0, 3, 3, 2, 3] []" in done.stdout, done
    assert "none.csv" in done.stderr.splitlines()[-1]
    assert "--owner-regex" in done.stdout
    assert "/dev/null is no regular file" in done.stderr
