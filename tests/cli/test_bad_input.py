"""Every bad command: its exit status, one line that names the problem, and no partial output."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from linprobe.data.dataset import public_shots
from linprobe.errors import DivergedError
from tests.conftest import CLASS_NAMES, mostly_nightly, write_features

NOISY = ["--method", "noisy-gd", "--eps", "3"]
LONG = "n" * 300
SAMPLED = ["--method", "dp-sgd", "--eps", "3"]


def _edited(source: Path, path: Path, change: Callable[[h5py.File], Any]) -> Path:
    shutil.copy(source, path)
    with h5py.File(path, "r+") as file:
        change(file)
    return path


@pytest.fixture(scope="session")
def bad_files(
    tmp_path_factory: pytest.TempPathFactory, features_file: Path, private_file: Path, trained_run: Path
) -> dict[str, Path]:
    """Files by the names that the commands below use."""
    folder = tmp_path_factory.mktemp("bad")
    for name, content in {
        "text.h5": b"label\n",
        "cut.h5": features_file.read_bytes()[:-5000],
        "text.npz": b"no",
        "empty.npy": b"",
    }.items():
        (folder / name).write_bytes(content)
    np.save(folder / "narrow.npy", np.ones((3, 4)))
    np.save(folder / "row.npy", np.ones(10))
    np.save(folder / "images.npy", np.ones((3, 2, 5)))
    write_features(folder / "trainonly.h5", groups=("train",))
    np.save(folder / "nan.npy", np.full((3, 10), np.nan))
    np.save(folder / "words.npy", np.full((3, 10), "x"))
    runs = {}
    for name, change in {
        "other_version": lambda manifest: {**manifest, "format": 99},
        "no_format": lambda manifest: {"hello": 1},
        "gutted": lambda manifest: {"format": manifest["format"]},
    }.items():
        runs[name] = shutil.copytree(trained_run, folder / name)
        manifest = json.loads((trained_run / "manifest.json").read_text())
        (runs[name] / "manifest.json").write_text(json.dumps(change(manifest)))
    runs["cut_model"] = shutil.copytree(trained_run, folder / "cut_model")
    model = runs["cut_model"] / "model.npz"
    model.write_bytes(model.read_bytes()[:-100])
    runs["cut_record"] = shutil.copytree(trained_run, folder / "cut_record")
    record = runs["cut_record"] / "per_record.npz"
    record.write_bytes(record.read_bytes()[:-100])
    runs["empty_model"] = shutil.copytree(trained_run, folder / "empty_model")
    (runs["empty_model"] / "model.npz").write_bytes(b"")
    source = features_file
    return {
        **runs,
        "folder": folder,
        "whole": source,
        "private": private_file,
        "run": trained_run,
        "nan": _edited(source, folder / "nan.h5", lambda file: file["train/x"].__setitem__((5, 1), np.nan)),
        "nan_test": _edited(source, folder / "nan_test.h5", lambda file: file["test/x"].__setitem__((5, 1), np.nan)),
        "label": _edited(source, folder / "label.h5", lambda file: file["train/y"].__setitem__(5, 4)),
        "one": _edited(source, folder / "one.h5", lambda file: file.attrs.__setitem__("class_names", '["ant"]')),
        "others": _edited(
            source, folder / "others.h5", lambda file: file.attrs.__setitem__("class_names", '["e", "f", "g", "h"]')
        ),
        "newer": _edited(source, folder / "newer.h5", lambda file: file.attrs.__setitem__("schema_version", 9)),
        "incomplete": _edited(source, folder / "incomplete.h5", lambda file: file.attrs.__setitem__("complete", False)),
    }


@pytest.fixture(scope="session")
def wide_file(tmp_path_factory: pytest.TempPathFactory, private_file: Path) -> Path:
    """The rows of the small file with one more column."""

    def widen(file: h5py.File) -> None:
        for group in ("train", "test"):
            rows = file[group]["x"][:]
            del file[group]["x"]
            file[group]["x"] = np.concatenate([rows, rows[:, :1]], axis=1)

    return _edited(private_file, tmp_path_factory.mktemp("wide") / "wide.h5", widen)


# what it is: the words of the command ({name} is a file made above), the exit status, words of the message
CASES: dict[str, tuple[list[str], int, list[str]]] = {
    "no such file": (["train", "none.h5", *NOISY], 3, ["none.h5", "does not exist"]),
    "a folder": (["train", "{folder}", *NOISY], 3, ["is not a file", "linprobe extract"]),
    "not HDF5": (["train", "{folder}/text.h5", *NOISY], 3, ["not an HDF5 file", "linprobe extract FOLDER"]),
    "truncated": (["train", "{folder}/cut.h5", *NOISY], 3, ["is truncated"]),
    "incomplete": (["train", "{incomplete}", *NOISY], 3, ["incomplete"]),
    "newer schema": (["train", "{newer}", *NOISY], 3, ["schema version 9"]),
    "NaN rows": (["train", "{nan}", *NOISY], 3, ["1 row with NaN", "[5]"]),
    "label out of range": (["train", "{label}", *NOISY], 3, ["row 5", "label 4", "0 to 3"]),
    "one class": (["train", "{one}", *NOISY], 3, ["1 class;", "at least 2"]),
    "more shots than rows": (["train", "{whole}", *NOISY, "--public-shots", "101"], 3, ["101", "fewer training rows"]),
    "all rows public": (["train", "{whole}", *NOISY, "--public-shots", "100"], 3, ["every training row"]),
    "negative shots": (["train", "{whole}", *NOISY, "--public-shots", "-1"], 2, ["-1", "0 or more"]),
    "eps 0": (["train", "{whole}", "--eps", "0"], 2, ["epsilon is 0", "above 0"]),
    "eps -1": (["train", "{whole}", "--eps", "-1"], 2, ["epsilon is -1"]),
    "eps nan": (["train", "{whole}", "--eps", "nan"], 2, ["epsilon is nan"]),
    "eps inf": (["train", "{whole}", "--eps", "inf"], 2, ["epsilon is inf"]),
    "eps 1e9": (["train", "{whole}", "--eps", "1e9"], 2, ["epsilon is 1000000000", "at most 100"]),
    "eps a word": (["train", "{whole}", "--eps", "three"], 2, ["--eps", "three", "number"]),
    "no eps": (["train", "{whole}"], 2, ["--eps"]),
    "delta of 1/N": (["train", "{whole}", *NOISY, "--delta", "0.0025"], 4, ["0.0025", "400 private rows", "1/N"]),
    "delta above 1/N": (["train", "{whole}", *NOISY, "--delta", "0.5"], 4, ["400 private rows"]),
    "delta 3": (["train", "{whole}", *NOISY, "--delta", "3"], 2, ["delta is 3", "try --delta 2e-04"]),
    "delta 0": (["train", "{whole}", *NOISY, "--delta", "0"], 2, ["delta is 0"]),
    "delta nan": (["train", "{whole}", *NOISY, "--delta", "nan"], 2, ["delta is nan"]),
    "sigma too small": (["train", "{whole}", *NOISY, "--sigma", "0.5"], 4, ["0.5", "even one step", "at least"]),
    "sigma nan": (["train", "{whole}", *NOISY, "--sigma", "nan"], 2, ["sigma is nan"]),
    "sigma below 0": (["train", "{whole}", *NOISY, "--sigma", "-2"], 2, ["sigma is -2"]),
    "sigma too large": (["train", "{whole}", *NOISY, "--sigma", "1e6"], 2, ["1e+06", "steps"]),
    "steps 0": (["train", "{whole}", *NOISY, "--steps", "0"], 2, ["steps is 0"]),
    "too many steps": (["train", "{whole}", *NOISY, "--steps", "1000001"], 2, ["1000001"]),
    "sigma and steps": (["train", "{whole}", *NOISY, "--sigma", "9", "--steps", "9"], 2, ["sigma", "steps", "one of"]),
    "unknown method": (["train", "{whole}", "--method", "adamx", "--eps", "3"], 2, ["adamx", "did you mean adamix"]),
    "unknown option": (["train", "{whole}", "--epsilons", "3"], 2, ["--epsilons"]),
    "unknown command": (["trian", "{whole}"], 2, ["trian"]),
    "option of another method": (
        ["train", "{whole}", *NOISY, "--clip-quantile", "0.5"],
        2,
        ["clip-quantile", "noisy-gd"],
    ),
    "option of noisy-gd": (["train", "{whole}", "--eps", "3", "--schedule", "theory"], 2, ["schedule", "adamix"]),
    "sigma without noise": (
        ["train", "{whole}", "--method", "only-public", "--sigma", "9"],
        2,
        ["--sigma", "only-public"],
    ),
    "steps without noise": (["train", "{whole}", "--method", "non-private", "--steps", "9"], 2, ["--steps"]),
    "centre it has not": (
        ["train", "{whole}", "--method", "fully-private", "--eps", "3", "--centre", "public"],
        2,
        ["centre"],
    ),
    "seed without noise": (
        ["train", "{whole}", "--method", "only-public", "--noise-seed", "1", "--insecure-seed"],
        2,
        ["seed"],
    ),
    "unknown centre": (["train", "{whole}", *NOISY, "--centre", "mean"], 2, ["'mean'", "auto, none, public"]),
    "unknown init": (["train", "{whole}", *NOISY, "--init", "one"], 2, ["'one'", "zero"]),
    "unknown output": (["train", "{whole}", *NOISY, "--output", "all"], 2, ["'all'", "average"]),
    "ensemble above the steps": (["train", "{whole}", *NOISY, "--output", "vote", "--ensemble", "51"], 2, ["51", "50"]),
    "ensemble of one iterate": (["train", "{whole}", *NOISY, "--output", "last", "--ensemble", "5"], 2, ["ensemble 5"]),
    "sampling rate on all rows": (["train", "{whole}", *NOISY, "--q", "0.5"], 2, ["sampling-rate", "noisy-gd"]),
    "accountant on all rows": (["train", "{whole}", *NOISY, "--accountant", "pld"], 2, ["accountant", "noisy-gd"]),
    "per-record without noise": (
        ["train", "{whole}", "--method", "only-public", "--no-per-record"],
        2,
        ["per-record", "only-public"],
    ),
    "precision unknown": (["train", "{whole}", *NOISY, "--precision", "int8"], 2, ["int8", "bfloat16"]),
    "device unknown": (["train", "{whole}", *NOISY, "--device", "tpu"], 2, ["tpu", "cpu"]),
    "device for a method on samples": (
        ["train", "{whole}", "--method", "dp-sgd", "--eps", "1", "--device", "cuda"],
        2,
        ["cuda", "cpu"],
    ),
    "checkpoint below 0": (["train", "{whole}", *NOISY, "--checkpoint", "-1"], 2, ["-1", "0 or more"]),
    "sampling rate 0 on all rows": (["train", "{whole}", *NOISY, "--q", "0"], 2, ["sampling-rate", "noisy-gd"]),
    "sampling rate with the paper's settings": (
        ["train", "{whole}", *NOISY, "--preset", "paper", "--q", "0.5"],
        2,
        ["sampling-rate", "noisy-gd"],
    ),
    "sampling rate 0": (["train", "{whole}", *SAMPLED, "--q", "0"], 2, ["sampling rate is 0"]),
    "sampling rate nan": (["train", "{whole}", *SAMPLED, "--q", "nan"], 2, ["sampling rate is nan"]),
    "sampling rate above 1": (["train", "{whole}", *SAMPLED, "--q", "1.5"], 2, ["sampling rate is 1.5"]),
    "exact accountant on samples": (["train", "{whole}", *SAMPLED, "--accountant", "gdp"], 2, ["'gdp'", "pld, rdp"]),
    "unknown accountant": (["train", "{whole}", *SAMPLED, "--accountant", "moments"], 2, ["'moments'", "pld"]),
    "dope-sgd without public rows": (
        ["train", "{whole}", "--method", "dope-sgd", "--eps", "3", "--public-shots", "0"],
        2,
        ["dope-sgd", "public rows"],
    ),
    "paper's settings for another paper": (
        ["train", "{whole}", *SAMPLED, "--preset", "paper"],
        2,
        ["preset paper", "dp-sgd"],
    ),
    "paper's settings for least squares of another paper": (
        ["train", "{whole}", "--method", "dp-newton", "--eps", "3", "--preset", "paper"],
        2,
        ["preset paper", "dp-newton", "fully-private"],
    ),
    "momentum without momentum": (
        ["train", "{whole}", *SAMPLED, "--optimizer", "adam", "--momentum", "0.5"],
        2,
        ["momentum 0.5", "adam"],
    ),
    "init from no folder": (["train", "{whole}", *NOISY, "--init", "runs/none"], 2, ["runs/none", "run folder"]),
    "init from no run": (["train", "{whole}", *NOISY, "--init", "{folder}"], 3, ["manifest.json"]),
    "init from another width": (["train", "{wide}", *NOISY, "--init", "{run}"], 3, ["(10, 4)", "(11, 4)"]),
    "init from other classes": (["train", "{others}", *NOISY, "--init", "{run}"], 3, ["init run", "no class"]),
    "init from another training space": (
        ["train", "{whole}", *NOISY, "--init", "{run}", "--centre", "none", "--intercept", "0"],
        2,
        ["bias", "--intercept"],
    ),
    "unknown preset": (["train", "{whole}", *NOISY, "--preset", "mine"], 2, ["'mine'", "paper"]),
    "clip norm 0": (["train", "{whole}", *NOISY, "--clip-norm", "0"], 2, ["clip-norm is 0"]),
    "learning rate nan": (["train", "{whole}", *NOISY, "--learning-rate", "nan"], 2, ["learning-rate is nan"]),
    "learning rate and score noise": (
        ["train", "{whole}", *SAMPLED, "--learning-rate", "0.1", "--score-noise", "1"],
        2,
        ["option score-noise 1.0 does nothing with learning-rate 0.1; leave it out"],
    ),
    "dimension of no subspace": (
        ["train", "{whole}", "--method", "adamix", "--eps", "3", "--subspace-dim", "3"],
        2,
        ["subspace-dim 3 does nothing with subspace none"],
    ),
    "text scale with public rows": (
        ["train", "{whole}", *NOISY, "--text-scale", "3"],
        2,
        ["text-scale 3.0 does nothing with init auto, which takes the public rows"],
    ),
    "text scale without text": (["train", "{private}", *NOISY, "--text-scale", "3"], 2, ["text-scale 3.0", "no text"]),
    "text scale of other weights": (
        ["train", "{whole}", *NOISY, "--init", "zero", "--text-scale", "3"],
        2,
        ["text-scale 3.0 does nothing with init zero"],
    ),
    "delta without noise": (
        ["train", "{whole}", "--method", "non-private", "--delta", "5"],
        2,
        ["--delta", "no noise"],
    ),
    "intercept below 0": (["train", "{whole}", *NOISY, "--intercept", "-1"], 2, ["intercept is -1"]),
    "intercept and centre": (
        ["train", "{whole}", *NOISY, "--intercept", "1", "--centre", "public"],
        2,
        ["intercept", "centre"],
    ),
    "adamix without public rows": (
        ["train", "{private}", "-m", "adamix", "--eps", "3"],
        2,
        ["adamix", "needs public rows"],
    ),
    "adamix with 0 shots": (
        ["train", "{whole}", "-m", "adamix", "--eps", "3", "--public-shots", "0"],
        2,
        ["needs public rows"],
    ),
    "zero-shot without text": (["train", "{private}", "--method", "zero-shot"], 2, ["needs text weights"]),
    "init text without text": (["train", "{private}", *NOISY, "--init", "text"], 2, ["text"]),
    "centre without public rows": (["train", "{private}", *NOISY, "--centre", "public"], 2, ["no public rows"]),
    "seed unconfirmed": (
        ["train", "{whole}", *NOISY, "--noise-seed", "1"],
        2,
        ["without --insecure-seed", "not private"],
    ),
    "confirmed without seed": (
        ["train", "{whole}", *NOISY, "--insecure-seed"],
        2,
        ["--insecure-seed was given without --noise-seed"],
    ),
    "public file missing": (["train", "{whole}", *NOISY, "--public", "none.h5"], 3, ["none.h5", "does not exist"]),
    "public file with other classes": (["train", "{whole}", *NOISY, "--public", "{others}"], 3, ["no class name"]),
    "public file with NaN": (["train", "{private}", *NOISY, "--public", "{nan}"], 3, ["nan.h5", "NaN"]),
    "public file of another width": (["train", "{whole}", *NOISY, "--public", "{wide}"], 3, ["11", "10", "backbone"]),
    "evaluate with other classes": (["evaluate", "{run}", "{others}"], 3, ["others.h5", "classes"]),
    "evaluate with another width": (["evaluate", "{run}", "{wide}"], 3, ["11 features", "10"]),
    "evaluate with NaN rows": (["evaluate", "{run}", "{nan_test}"], 3, ["NaN"]),
    "evaluate no run": (["evaluate", "nowhere"], 3, ["nowhere does not exist"]),
    "evaluate another version": (["evaluate", "{other_version}"], 3, ["format 99"]),
    "predict another version": (["predict", "{other_version}", "{whole}"], 3, ["format 99"]),
    "verify another version": (["verify", "{other_version}"], 3, ["format 99"]),
    "report of another version": (["pdp-report", "{other_version}"], 3, ["format 99"]),
    "info of another version": (["info", "{other_version}"], 3, ["format 99"]),
    "manifest without format": (["evaluate", "{no_format}"], 3, ["format"]),
    "manifest without the rest": (["evaluate", "{gutted}"], 3, ["manifest.json"]),
    "report of a gutted manifest": (["pdp-report", "{gutted}"], 3, ["manifest.json"]),
    "truncated model": (["evaluate", "{cut_model}"], 3, ["model.npz"]),
    "empty model": (["evaluate", "{empty_model}"], 3, ["model.npz"]),
    "truncated per-record file": (["pdp-report", "{cut_record}"], 3, ["per_record.npz"]),
    "predict no such group": (["predict", "{run}", "{private}", "--group", "public"], 2, ["'public'", "train, test"]),
    "predict no such array": (["predict", "{run}", "none.npy"], 3, ["none.npy"]),
    "predict rows for training": (
        ["predict", "{run}", "{folder}/trainonly.h5"],
        2,
        ["'test'", "train; give --group train"],
    ),
    "predict one row": (["predict", "{run}", "{folder}/row.npy"], 3, ["shape (10,)", "(rows, 10)"]),
    "predict images": (["predict", "{run}", "{folder}/images.npy"], 3, ["shape (3, 2, 5)", "(rows, 10)"]),
    "predict a narrow array": (["predict", "{run}", "{folder}/narrow.npy"], 3, ["4 features", "10"]),
    "predict an empty array file": (["predict", "{run}", "{folder}/empty.npy"], 3, ["empty.npy"]),
    "predict a group of an array": (
        ["predict", "{run}", "{folder}/narrow.npy", "--group", "test"],
        2,
        ["--group test does nothing for", "no groups"],
    ),
    "predict NaN rows": (["predict", "{run}", "{folder}/nan.npy"], 3, ["nan.npy", "NaN"]),
    "predict NaN rows of a file": (["predict", "{run}", "{nan_test}"], 3, ["NaN"]),
    "predict words": (["predict", "{run}", "{folder}/words.npy"], 3, ["words.npy"]),
    "plot as pdf": (["pdp-report", "{run}", "--plot", "curve.pdf"], 2, ["curve.pdf", ".png, .svg"]),
    "plot nowhere": (["pdp-report", "{run}", "--plot", "{whole}/curve.png"], 1, ["curve.png", "cannot be made"]),
    "csv nowhere": (["pdp-report", "{run}", "--csv", "{whole}/records.csv"], 1, ["records.csv", "cannot be made"]),
    "publish 0": (["pdp-report", "{run}", "--publish-epsilon", "0"], 2, ["epsilon is 0"]),
    "import nothing there": (["import", "none.npz", "--out", "run"], 3, ["none.npz", "does not exist"]),
    "import no archive": (["import", "{folder}/text.npz", "--out", "run"], 3, ["text.npz", "cannot be read"]),
    "import without out": (["import", "{folder}/text.npz"], 2, ["--out"]),
    "verify a name that is too long": (["verify", LONG], 3, [LONG, "is not a run folder"]),
    "evaluate a name that is too long": (["evaluate", "{run}", f"{LONG}.h5"], 3, [f"{LONG}.h5"]),
    "train on a name that is too long": (["train", f"{LONG}.h5", *NOISY], 3, [f"{LONG}.h5"]),
    "import a name that is too long": (["import", f"{LONG}.npz", "--out", "run"], 3, [f"array file {LONG}.npz"]),
    "info of nothing": (["info", "none.h5"], 3, ["none.h5", "does not exist"]),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_command_is_refused_in_one_line(
    case: str,
    cli: Callable[..., Any],
    refused: Callable[..., None],
    bad_files: dict[str, Path],
    wide_file: Path,
    tmp_path: Path,
) -> None:
    words, status, message = CASES[case]
    command = [word.format(**bad_files, wide=wide_file) for word in words]
    if words[0] == "train":
        command += ["--out", "run"]
    refused(cli(*command), status, message)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("method", ["noisy-gd", "adamix", "only-public"])
@pytest.mark.parametrize("group", ["public", "train"])
def test_copies_of_private_rows_under_other_ids_are_refused_as_public_rows(
    cli: Callable[..., Any], editable: Path, tmp_path: Path, refused: Callable[..., None], method: str, group: str
) -> None:
    with h5py.File(editable, "a") as file:
        file[f"{group}/x"][5] = file["train/x"][301]
    budget = [] if method == "only-public" else ["--eps", "3"]
    shots = [] if group == "public" else ["--public-shots", "60"]  # of 100 a class
    split = [] if group == "public" else ["--split-seed", _split_of(5, 301)]
    outcome = cli("train", editable, "--method", method, *budget, *shots, *split, "--out", "run")
    where = "the group public of" if group == "public" else "public shots of"
    refused(outcome, 4, [where, str(editable), "cannot be public", "--public"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["edited.h5"]


def _split_of(public: int, private: int) -> int:
    """A split seed that makes one row of the small file public and leaves another private, of 60 shots a class."""
    ids, labels = [f"train/{row:04d}" for row in range(400)], np.arange(400) % 4
    masks = ((seed, public_shots(ids, labels, list("abcd"), 60, seed)) for seed in range(100))
    return next(seed for seed, mask in masks if mask[public] and not mask[private])


def test_training_rows_given_as_their_own_public_rows_are_refused(
    cli: Callable[..., Any], refused: Callable[..., None], private_file: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copy(private_file, tmp_path / "copy.h5"))
    for public in (private_file, copy):
        refused(cli("train", private_file, "--eps", "3", "--public", public, "--out", "run"), 4, ["public", "private"])
    assert list(tmp_path.iterdir()) == [copy]


def test_public_rows_of_other_classes_are_left_out_with_a_note_and_other_spellings_refused(
    cli: Callable[..., Any], refused: Callable[..., None], private_file: Path, tmp_path: Path
) -> None:
    first, *others = CLASS_NAMES
    write_features(tmp_path / "near.h5", groups=("train", "public"), class_names=[f"{first.upper()} ", *others])
    command = ["train", private_file, "--method", "only-public", "--public"]
    refused(cli(*command, "near.h5", "--out", "run"), 3, [f"near.h5 has class '{first.upper()} '", f"{first!r}"])
    write_features(tmp_path / "other.h5", groups=("train", "public"), class_names=["wasp", *others])
    note = "3 of 12 public rows of other.h5 are of classes that the run does not have, such as 'wasp', and are left out"
    for dry in (["--dry-run"], ["--out", "run"]):
        assert note in cli(*command, "other.h5", *dry).stderr


def test_diverged_training_is_refused_and_its_releases_count(
    cli: Callable[..., Any], refused: Callable[..., None], features_file: Path, tmp_path: Path
) -> None:
    for name in ("run.diverged", "run.diverged-2"):
        outcome = cli("train", features_file, *NOISY, "--learning-rate", "1e9", "--out", "run")
        words = ["diverged", "--learning-rate", f"the ledger is kept in {name}"]
        refused(outcome, 1, words, notes=1 + (name != "run.diverged"))  # the second costs more with the first
        assert "the run ended early; what it had released costs epsilon" in outcome.stderr
        assert sorted(path.name for path in (tmp_path / name).iterdir()) == ["diverged.json", "ledger.jsonl"]
        note = json.loads((tmp_path / name / "diverged.json").read_text())
        lines = (tmp_path / name / "ledger.jsonl").read_text().splitlines()
        assert len(lines) == note["releases"] > 0
        assert "diverged" in note["reason"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.diverged", "run.diverged-2"]


def test_a_run_that_diverged_before_any_release_leaves_nothing(
    cli: Callable[..., Any], features_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(*_: Any, **__: Any) -> None:
        raise DivergedError("training diverged")

    monkeypatch.setattr("linprobe.training.train.execute", train)
    assert cli("train", features_file, *NOISY, "--out", "deep/run").status == 1
    assert list(tmp_path.iterdir()) == []


def test_refused_training_leaves_no_folder_for_runs(
    cli: Callable[..., Any], refused: Callable[..., None], private_file: Path, tmp_path: Path
) -> None:
    refused(cli("train", private_file, *NOISY, "--init", "text"), 2, ["text"])
    assert list(tmp_path.iterdir()) == []


def test_existing_run_folder_is_refused_and_kept(
    cli: Callable[..., Any], refused: Callable[..., None], features_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "precious").write_text("x")
    refused(cli("train", features_file, *NOISY, "--out", "run"), 2, ["run", "already exists"])
    assert [path.name for path in tmp_path.rglob("*")] == ["run", "precious"]
    outcome = cli("train", features_file, *NOISY, "--out", features_file)
    refused(outcome, 2, [f"{features_file} already exists as a file; give another name"])
    assert "remove" not in outcome.stderr


@pytest.mark.parametrize("command", ["train", "tune", "compare"])
def test_a_name_that_is_not_utf8_is_refused_before_anything_is_spent(
    cli: Callable[..., Any],
    refused: Callable[..., None],
    features_file: Path,
    own_books: Path,
    tmp_path: Path,
    command: str,
) -> None:
    name = os.fsdecode(b"f\xff.h5")
    try:
        shutil.copy(features_file, name)
    except (OSError, UnicodeEncodeError):
        pytest.skip("this system has no such names")
    words = {"compare": ["--methods", "noisy-gd", "--public-shots", "1"], "tune": [*NOISY, "--shrink", "0,1"]}
    for source, out in ((name, "out"), (features_file, os.fsdecode(b"\xff"))):
        refused(cli(command, source, *words.get(command, NOISY), "--out", out), 2, ["not UTF-8", "rename"])
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert not own_books.exists()


@pytest.mark.parametrize("length", [238, 300])
def test_a_name_that_is_too_long_is_refused_before_anything_is_spent(
    cli: Callable[..., Any],
    refused: Callable[..., None],
    features_file: Path,
    own_books: Path,
    tmp_path: Path,
    length: int,
) -> None:
    refused(cli("train", features_file, *NOISY, "--out", "r" * length), 2, [f"{length} bytes", "237", "shorter"])
    refused(cli("train", features_file, *NOISY, "--out", f"{'r' * length}/run/{'r' * 256}"), 2, ["256 bytes", "237"])
    refused(cli("train", features_file, *NOISY, "--out", f"{LONG}/run"), 2, ["name of 300 bytes", "255", "shorten"])
    assert list(tmp_path.iterdir()) == []
    assert not own_books.exists()


def test_run_folder_below_a_file_is_refused(
    cli: Callable[..., Any], refused: Callable[..., None], features_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("x")
    for words in (["train", features_file, *NOISY], ["compare", features_file]):
        refused(cli(*words, "--out", "file/run"), 1, ["file/run", "cannot be made", "file is no folder", "--out"])
    words = ("plan", "--eps", "3", "--n", "100", "--plot", "file/plot.png")
    refused(cli(*words), 1, ["file/plot.png", "file is no folder", "--plot"])
    assert [path.name for path in tmp_path.rglob("*")] == ["file"]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_run_folder_in_a_read_only_folder_is_refused(
    cli: Callable[..., Any], refused: Callable[..., None], features_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "locked").mkdir(mode=0o555)
    refused(cli("train", features_file, *NOISY, "--out", "locked/run"), 1, ["locked/run", "cannot be made"])


def test_built_in_digits_say_so_before_the_error(cli: Callable[..., Any], refused: Callable[..., None]) -> None:
    outcome = cli("train", "--eps", "3", "--public-shots", "500")
    refused(outcome, 3, ["public shots is 500"], notes=2)
    assert "digits" in outcome.stderr.splitlines()[0]


def test_report_of_a_run_without_noise_is_refused(
    cli: Callable[..., Any], refused: Callable[..., None], features_file: Path
) -> None:
    assert cli("train", features_file, "--method", "only-public", "--out", "run").status == 0
    refused(cli("pdp-report", "run"), 2, ["only-public", "noise"])


def test_evaluating_a_file_without_test_rows_is_refused(
    cli: Callable[..., Any], refused: Callable[..., None], editable: Path, trained_run: Path
) -> None:
    with h5py.File(editable, "r+") as file:
        for part in ("x", "y", "id"):
            rows = file["test"][part][:0]
            del file["test"][part]
            file["test"].create_dataset(part, data=rows, dtype=h5py.string_dtype() if part == "id" else rows.dtype)
    refused(cli("evaluate", trained_run, editable), 3, ["edited.h5", "no test rows"])


def test_empty_standard_input_is_refused(cli: Callable[..., Any], refused: Callable[..., None]) -> None:
    refused(cli("train", "-", *NOISY, stdin=""), 2, ["standard input"])
    refused(cli("pdp-report", "-", stdin="\n"), 2, ["standard input"])


def test_disk_that_fills_during_training_leaves_no_run(
    cli: Callable[..., Any], refused: Callable[..., None], small_disk: Path, features_file: Path
) -> None:
    outcome = cli("train", features_file, *NOISY, "--steps", "1000", "--out", small_disk / "run")
    refused(outcome, 1, ["(No space left on device)"], notes=1)
    assert "what it had released costs epsilon" in outcome.stderr
    assert list(small_disk.iterdir()) == []


def test_disk_that_fills_during_import_leaves_no_file(
    cli: Callable[..., Any], refused: Callable[..., None], small_disk: Path, tmp_path: Path
) -> None:
    rows, labels = np.random.default_rng(0).random((2000, 64)), np.arange(2000) % 3
    np.savez(tmp_path / "big.npz", X_train=rows, y_train=labels, X_test=rows, y_test=labels)
    refused(cli("import", "big.npz", "--out", small_disk / "f.h5"), 1, ["f.h5", "cannot be written"])
    assert list(small_disk.iterdir()) == []


def test_full_disk_leaves_no_report(
    cli: Callable[..., Any], refused: Callable[..., None], small_disk: Path, trained_run: Path
) -> None:
    (small_disk / "filler").write_bytes(bytes(60 * 1024))
    refused(cli("pdp-report", trained_run, "--csv", small_disk / "r.csv"), 1, ["r.csv", "No space left"])
    assert [path.name for path in small_disk.iterdir()] == ["filler"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("command", mostly_nightly(["methods", "methods --json"], "methods".__eq__))
def test_full_standard_output_is_one_line_and_status_1(shell: Callable[..., Any], command: str) -> None:
    outcome = shell(script=f"linprobe {command} > /dev/full")
    assert outcome.status == 1, outcome
    assert len(outcome.stderr.splitlines()) == 1, outcome.stderr
    assert "No space left" in outcome.stderr
