"""No command loses a file: outputs are not replaced unasked, have one writer, and are private where their rows are."""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linprobe.cli import run
from linprobe.data.feature_writer import FeatureWriter
from linprobe.extraction.partial import Partial, locked
from linprobe.runs.run_folder import claimed
from tests.cli.outcomes import Cli
from tests.processes import ended, start_copy

Refused = Callable[..., None]
QUICK = ["--methods", "noisy-gd:steps=2", "--eps", "1", "--seeds", "1", "--jobs", "1"]


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(60, 4)), np.arange(60) % 3
    np.savez(tmp_path / "a.npz", X_train=rows[:40], y_train=labels[:40], X_test=rows[40:], y_test=labels[40:])
    return tmp_path / "a.npz"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_import_replaces_a_file_only_on_request(cli: Cli, refused: Refused, arrays: Path) -> None:
    assert cli("import", arrays, "--out", "a.h5").status == 0
    before = Path("a.h5").read_bytes()
    refused(cli("import", arrays, "--out", "a.h5"), 2, ["a.h5 already exists", "--overwrite"])
    assert Path("a.h5").read_bytes() == before
    for content in (b"", before[:-9]):
        Path("a.h5").write_bytes(content)
        assert cli("import", arrays, "--out", "a.h5", "--overwrite").status == 0
        assert Path("a.h5").read_bytes() == before


def test_what_a_killed_import_left_is_removed_by_the_next_one(cli: Cli, arrays: Path) -> None:
    """And nothing that another process may still write, to another output."""
    others = {".a.h5.csv.0123abcd.partial", ".b.h5.0123abcd.partial"}
    for name in others:
        Path(name).touch()

    def killed() -> int:
        write = FeatureWriter.write_group

        def dying(*words: Any, **options: Any) -> None:
            write(*words, **options)
            os.kill(os.getpid(), signal.SIGKILL)

        FeatureWriter.write_group = dying  # type: ignore[method-assign]
        return run(["import", str(arrays), "--out", "a.h5"])

    assert ended(start_copy(killed)) == -signal.SIGKILL
    left = {path.name for path in Path().glob(".*.partial")} - others
    assert len(left) == 1
    with claimed(Path("a.h5")):  # a living process holds the name
        assert cli("import", arrays, "--out", "a.h5").status == 2
        assert left < {path.name for path in Path().glob(".*.partial")}
    assert cli("import", arrays, "--out", "a.h5").status == 0
    assert {path.name for path in Path().glob(".*.partial")} == others


def test_a_lock_file_that_cannot_be_removed_stays_beside_the_complete_file(
    cli: Cli, arrays: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink = Path.unlink

    def fails(path: Path, **how: bool) -> None:
        if path.suffix == ".lock":
            raise OSError(errno.EACCES, "Permission denied", str(path))
        unlink(path, **how)

    monkeypatch.setattr(Path, "unlink", fails)
    for again in ((), ("--overwrite",)):
        assert cli("import", arrays, "--out", "a.h5", *again).status == 0


def test_no_command_replaces_its_own_input(cli: Cli, refused: Refused, arrays: Path, trained_run: Path) -> None:
    before = arrays.read_bytes()
    refused(cli("import", arrays, "--out", arrays, "--overwrite"), 2, ["replace an input"])
    os.link(arrays, "link.npz")
    refused(cli("import", arrays, "--out", "link.npz", "--overwrite"), 2, ["replace an input"])
    assert arrays.read_bytes() == before
    words = ("pdp-report", trained_run, "--csv", "x.png", "--plot", "./x.png")
    refused(cli(*words), 2, ["x.png"])


def test_an_array_in_a_folder_that_is_imported_is_kept(cli: Cli, refused: Refused, arrays: Path) -> None:
    Path("folder").mkdir()
    for name, array in np.load(arrays).items():
        np.save(f"folder/{name}.npy", array)
    before = Path("folder/y_test.npy").read_bytes()
    refused(cli("import", "folder", "--out", "folder/y_test.npy", "--overwrite"), 2, ["no feature file"])
    assert Path("folder/y_test.npy").read_bytes() == before


@pytest.mark.parametrize("command", ["attack {} --out", "pdp-report {} --csv", "export {} --to safetensors --out"])
def test_a_run_and_its_rows_are_kept(
    cli: Cli, refused: Refused, trained_run: Path, features_file: Path, command: str, tmp_path: Path
) -> None:
    before = features_file.read_bytes(), (trained_run / "history.csv").read_bytes()
    words = command.format(trained_run).split()
    for kept in (features_file, trained_run / "history.csv"):
        refused(cli(*words, kept, "--overwrite"), 2, ["replace an input"])
    refused(cli(*words, trained_run / "new"), 2, ["would lie in the run folder", "another place"])
    assert (features_file.read_bytes(), (trained_run / "history.csv").read_bytes()) == before
    assert cli("verify", trained_run).status == 0


def test_no_output_lies_in_a_run_folder(cli: Cli, refused: Refused, trained_run: Path, features_file: Path) -> None:
    refused(cli("release", trained_run, "--out", trained_run / "a" / "b"), 2, ["would lie in the run folder"])
    words = ("train", features_file, "--method", "non-private")
    refused(cli(*words, "--out", trained_run / "again"), 2, ["would lie in the run folder"])


def test_no_output_is_a_link_that_leads_nowhere(
    cli: Cli, refused: Refused, trained_run: Path, features_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    for words in (
        ("train", features_file, "--eps", 1, "--method", "noisy-gd", "--book", "new.jsonl"),
        ("compare", features_file, *QUICK, "--book", "new.jsonl"),
        ("release", trained_run),
        ("export", trained_run, "--to", "safetensors", "--overwrite"),
    ):
        refused(cli(*words, "--out", "link"), 2, ["link", "nowhere, which does not exist", "another name"])
    refused(cli("train", features_file, "--eps", 1, "--out", "link/run"), 1, ["link is no folder"])
    assert not (tmp_path / "new.jsonl").exists()


def test_no_budget_book_lies_in_a_run_folder(
    cli: Cli, refused: Refused, trained_run: Path, features_file: Path, tmp_path: Path
) -> None:
    trained = ("train", features_file, "--eps", 1, "--method", "noisy-gd", "--out", "new", "--book")
    for words in (
        (*trained, "new/book.jsonl"),
        (*trained, "new"),
        (*trained, trained_run / "book.jsonl"),
        ("compare", features_file, *QUICK, "--out", "new", "--book", "new/runs/book.jsonl"),
        ("pdp-report", trained_run, "--publish-epsilon", 1, "--book", f"{trained_run}.published-1/book.jsonl"),
        ("budget", features_file, "--set-cap", 1, "--book", trained_run / "book.jsonl"),
    ):
        refused(cli(*words), 2, ["budget book", "would lie in", "give"])
    assert not (tmp_path / "new").exists()
    assert cli("verify", trained_run).status == 0


@pytest.mark.parametrize("words", [["train", "--eps", 1], ["budget", "--set-cap", 1]], ids=["train", "budget"])
def test_a_budget_book_in_a_closed_folder_is_named_with_its_option(
    cli: Cli, refused: Refused, features_file: Path, monkeypatch: pytest.MonkeyPatch, words: list[object]
) -> None:
    is_file = Path.is_file

    def closed(path: Path, **options: bool) -> bool:  # root may search every folder
        if path.parent.name == "theirs":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return is_file(path, **options)

    monkeypatch.setattr(Path, "is_file", closed)
    told = ["budget book theirs/book cannot be used (Permission denied)", "give --book a writable place"]
    refused(cli(words[0], features_file, *words[1:], "--book", "theirs/book"), 1, told)


def test_no_output_is_called_like_standard_output(
    cli: Cli, refused: Refused, trained_run: Path, features_file: Path
) -> None:
    for words in (["train", features_file, "--method", "non-private"], ["export", trained_run, "--to", "safetensors"]):
        refused(cli(*words, "--out", "-"), 2, ["not standard output", "another name"])


def test_a_feature_file_is_no_budget_book(cli: Cli, refused: Refused, features_file: Path) -> None:
    before = features_file.read_bytes()
    words = ("train", features_file, "--method", "noisy-gd", "--eps", "3", "--delta", "1e-4", "--book", features_file)
    refused(cli(*words), 3, ["is no budget book"])
    assert features_file.read_bytes() == before


@pytest.mark.parametrize(
    "words",
    [
        ("pdp-report", "{run}", "--csv", "old.csv"),
        ("pdp-report", "{run}", "--plot", "old.png"),
        ("attack", "{run}", "--features", "{whole}", "--out", "old.json"),
        ("report", "{run}", "--html", "old.html"),
        ("plan", "--eps", "3", "--n", "100", "--delta", "1e-3", "--q", "1", "--plot", "old.png"),
    ],
)
def test_outputs_are_replaced_only_on_request(
    cli: Cli, refused: Refused, trained_run: Path, features_file: Path, words: tuple[str, ...]
) -> None:
    out = Path(words[-1])
    out.write_text("old")
    filled = [word.format(run=trained_run, whole=features_file) for word in words]
    refused(cli(*filled), 2, [f"{out} already exists", "--overwrite"])
    assert out.read_text() == "old"
    outcome = cli(*filled, "--overwrite")
    assert outcome.status == 0, outcome
    assert out.read_bytes() != b"old"


def test_the_second_writer_is_refused_before_it_reads_a_row(cli: Cli, refused: Refused, tmp_path: Path) -> None:
    with claimed(tmp_path / "a.h5", "feature file", overwrite=False):
        refused(cli("import", "nothing-there.npz", "--out", "a.h5"), 2, ["a.h5", "another process"])
    refused(cli("import", "nothing-there.npz", "--out", "a.h5"), 3, ["nothing-there.npz"])
    assert list(tmp_path.iterdir()) == []


def test_missing_folders_are_made_and_empty_ones_removed(cli: Cli, refused: Refused, arrays: Path) -> None:
    refused(cli("import", "none.npz", "--out", "new/deep/a.h5"), 3, ["none.npz"])
    assert not Path("new").exists()
    assert cli("import", arrays, "--out", "new/deep/a.h5").stdout == "new/deep/a.h5\n"
    assert sorted(path.name for path in Path("new/deep").iterdir()) == ["a.h5"]


def test_feature_files_are_private(cli: Cli, arrays: Path) -> None:
    assert cli("import", arrays, "--out", "a.h5").status == 0
    assert mode(Path("a.h5")) == 0o600
    Path("a.h5").chmod(0o644)
    assert cli("import", arrays, "--out", "a.h5", "--overwrite").status == 0
    assert mode(Path("a.h5")) == 0o600


def test_everything_of_an_unfinished_extraction_is_private(tmp_path: Path) -> None:
    folder = tmp_path / "a.h5.partial"
    sizes, dtype = {"train": 4}, np.dtype(np.float16)
    with locked(folder):
        Partial(folder, sizes, 3, dtype).begin({"backbone": "pixels"})
        with Partial(folder, sizes, 3, dtype) as partial:
            partial.skip("train", 0, "train/one.png", "damaged")
        assert mode(folder) == 0o700
        written = [path for path in folder.iterdir() if path.name != "lock"]
        assert {path.suffix for path in written} == {".rows", ".keys", ".status", ".jsonl", ".json"}
        assert {mode(path) for path in written} == {0o600}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["budget", "{features}", "--json"], 0o600),
        (["compare", "{features}", *QUICK, "--attack", "--out", "one", "--json"], 0o600),
        (["compare", "{features}", *QUICK, "--out", "two", "--json"], 0o666),
        (["budget", "{features}"], 0o600),
        (["attack", "{run}", "--resamples", "0"], 0o600),
        (["pdp-report", "{run}"], 0o600),
        (["predict", "{run}", "{features}", "--group", "train"], 0o600),
        (["predict", "{run}", "{features}", "--group", "train", "--json"], 0o600),
        (["train", "{features}", "--eps", "3", "--dry-run"], 0o600),
        (["compare", "{features}", *QUICK, "--dry-run", "--json"], 0o600),
        (["info", "{features}"], 0o666),
        (["info", "people.h5"], 0o600),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else oct(value),
)
def test_private_output_in_a_file_is_for_the_user_alone(
    features_file: Path,
    trained_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    expected: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    if "people.h5" in words:
        rows, labels = np.eye(8, dtype=np.float32), np.arange(8) % 2
        arrays = {"X_train": rows, "y_train": labels, "owner_train": np.arange(8) // 2, "class_names": ["a", "b"]}
        np.savez("people.npz", **arrays)
        assert run(["import", "people.npz", "--out", "people.h5", "--quiet"]) == 0

    def command() -> int:
        os.umask(0)
        os.dup2(os.open("out", os.O_WRONLY | os.O_CREAT, 0o666), 1)
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
        return run([word.format(features=features_file, run=trained_run) for word in words])

    assert ended(start_copy(command)) == 0
    content = Path("out").read_text()
    assert json.loads(content) if "--json" in words else content
    assert mode(Path("out")) == expected


def test_a_model_without_a_guarantee_is_for_the_user_alone(cli: Cli, features_file: Path) -> None:
    assert cli("train", features_file, "--method", "non-private", "--out", "run").status == 0
    assert mode(Path("run/model.npz")) == 0o600
