"""Rows with several labels, from import to report: what is stated, checked and refused."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import linprobe
from linprobe.cli import run as run_command
from linprobe.data.feature_file import FeatureFile
from linprobe.errors import DataError
from tests.cli.outcomes import write_sealed

G = np.random.default_rng(5)
CENTRES = 2 * G.normal(size=(3, 6))
NAMES = ["oedema", "effusion", "pneumonia"]
TRAIN = ["--method", "noisy-gd", "--eps", "8", "--delta", "1e-4", "--steps", "20"]


def drawn(n: int, seed: int) -> tuple[Any, Any]:
    """Rows (n, 6), and three labels a row, the third of which 15 % of the rows have."""
    rng = np.random.default_rng(seed)
    y = (rng.random((n, 3)) < [0.5, 0.4, 0.15]).astype(np.uint8)
    return (y @ CENTRES + rng.normal(size=(n, 6))).astype(np.float32), y


GROUPS = {group: drawn(n, place) for place, (group, n) in enumerate((("train", 300), ("test", 120), ("public", 40)))}


def arrays() -> dict[str, Any]:
    made: dict[str, Any] = {f"{kind}_{group}": rows[i] for group, rows in GROUPS.items() for i, kind in enumerate("Xy")}
    return {**made, "class_names": np.array(NAMES)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`rows.npz`, its feature file `rows.h5`, and a run `run` of noisy-gd. Do not change it."""
    here = tmp_path_factory.mktemp("labels")
    np.savez(here / "rows.npz", **arrays())
    for words in (
        ["import", here / "rows.npz", "--out", here / "rows.h5"],
        ["train", here / "rows.h5", *TRAIN, "--out", here / "run"],
    ):
        assert run_command([str(word) for word in words]) == 0
    return here


def manifest_of(run: Path) -> dict[str, Any]:
    return dict(json.loads((run / "manifest.json").read_text()))


def test_a_run_states_its_task_and_the_figures_that_labels_have(cli: Callable[..., Any], folder: Path) -> None:
    manifest = manifest_of(folder / "run")
    assert (manifest["task"], manifest["class_names"], manifest["n_classes"]) == ("multilabel", NAMES, 3)
    assert manifest["test_macro_auroc"] > 0.8
    assert manifest["test_label_accuracy"] > 0.7
    assert 0 < manifest["test_macro_average_precision"] < 1
    only_of_classes = ("test_accuracy", "test_balanced_accuracy", "test_calibration_error", "test_accuracy_per_class")
    assert [manifest[key] for key in only_of_classes] == [None] * 4
    outcome = cli("evaluate", folder / "run", folder / "rows.h5", "--json")
    figures = json.loads(outcome.stdout)
    assert list(figures["per_label"]) == NAMES
    assert figures["macro_auroc"] == manifest["test_macro_auroc"]
    assert "test_accuracy" not in figures
    assert cli("evaluate", folder / "run", folder / "rows.h5").stdout == f"{figures['macro_auroc']:.4f}\n"
    assert "multilabel" in cli("info", folder / "rows.h5").stdout


def test_verify_derives_all_of_it_and_refuses_an_edit(cli: Callable[..., Any], folder: Path, tmp_path: Path) -> None:
    outcome = cli("verify", folder / "run", "--features", folder / "rows.h5", "--json")
    found = json.loads(outcome.stdout)
    assert found["verified"], found["refused"]
    stated = {"task", "class_names", "test_macro_auroc", "test_label_accuracy", "test_macro_average_precision"}
    assert not stated & set(found["stated_not_checked"])
    for key, value, word in (
        ("task", "multiclass", "test_label_accuracy"),
        ("test_label_accuracy", 0.99, "label_accuracy"),
        ("test_accuracy", 0.9, "test_accuracy"),
        ("method", "dp-ls", "dp-ls"),
    ):
        copy = Path(shutil.copytree(folder / "run", tmp_path / f"edited {key}"))
        manifest = {**manifest_of(copy), key: value}
        if key == "method":
            from linprobe.methods import METHODS

            manifest["paper"] = METHODS[value].paper
        write_sealed(copy, manifest)
        refused = cli("verify", copy, "--json")
        assert refused.status == 4
        assert word in json.loads(refused.stdout)["refused"]


def test_every_row_gets_its_labels(cli: Callable[..., Any], folder: Path) -> None:
    from linprobe import load_run

    outcome = cli("predict", folder / "run", folder / "rows.h5", "--probabilities")
    header, *rows = csv.reader(io.StringIO(outcome.stdout))
    assert header == ["id", *NAMES, *(f"p_{name}" for name in NAMES)]
    probe, x = load_run(folder / "run"), arrays()["X_test"]
    np.testing.assert_array_equal([list(map(int, row[1:4])) for row in rows], probe.predict(x))
    np.testing.assert_allclose([list(map(float, row[4:])) for row in rows], probe.predict_proba(x), atol=1e-6)
    assert probe.multilabel_
    short = cli("predict", folder / "run", folder / "rows.h5").stdout.splitlines()
    assert short[0] == "id," + ",".join(NAMES)


def test_report_and_release_speak_of_labels(cli: Callable[..., Any], folder: Path, tmp_path: Path) -> None:
    assert cli("report", folder / "run", "--html", "page.html").status == 0
    page = (tmp_path / "page.html").read_text()
    assert "average precision" in page
    assert '<th scope="col">predicted</th>' in page
    assert "Balanced accuracy" not in page
    assert cli("pdp-report", folder / "run").status == 0
    assert cli("release", folder / "run", "--out", "released").status == 0
    assert "Macro AUROC" in (tmp_path / "released" / "README.md").read_text()
    assert "a 0 or 1 for each of 3 labels" in (tmp_path / "released" / "claim.yaml").read_text()


@pytest.mark.parametrize("method", ["adamix", "dp-sgd", "only-public"])
def test_other_methods_train_on_several_labels(method: str, cli: Callable[..., Any], folder: Path) -> None:
    spends = [] if method == "only-public" else [*TRAIN[2:6], "--steps", "5"]
    words = ["--method", method, *spends, *(["--sampling-rate", "1"] if method == "dp-sgd" else []), "--out", "run"]
    outcome = cli("train", folder / "rows.h5", *words, "--json")
    assert outcome.status == 0, outcome
    assert json.loads(outcome.stdout)["test_macro_auroc"] > 0.75
    assert cli("verify", "run", "--features", folder / "rows.h5").status == 0


def test_what_needs_one_class_a_row_is_refused_in_one_line(
    cli: Callable[..., Any], refused: Callable[..., None], folder: Path
) -> None:
    rows, run = folder / "rows.h5", folder / "run"
    train = ["train", rows, *TRAIN, "--out", "x"]
    refused(cli(*train[:2], "--method", "dp-ls", "--eps", "1", "--out", "x"), 2, ["dp-ls", "noisy-gd, adamix, dp-sgd"])
    refused(cli(*train, "--public-shots", "2"), 2, ["--public-shots", "several labels"])
    refused(cli(*train, "--class-weight", "oedema=1"), 2, ["--class-weight", "several labels"])
    refused(cli(*train, "--output", "vote"), 2, ["vote", "several labels"])
    refused(cli(*train, "--init", run), 2, ["init", "several labels"])
    refused(cli("train", rows, "--method", "dp-sgd", "--eps", "1", "--loss", "squared", "--out", "x"), 2, ["loss"])
    words = ["train", rows, "--method", "adamix", "--eps", "1", "--variant", "theory", "--out", "x"]
    refused(cli(*words), 2, ["theory", "several labels"])
    refused(cli("compare", rows, "--methods", "noisy-gd", "--eps", "1", "--out", "c"), 2, ["compare", "several labels"])
    refused(cli("tune", rows, *TRAIN[:4], "--shrink", "0,1", "--out", "t"), 2, ["tune", "several labels"])
    refused(cli("attack", run, "--features", rows), 2, ["attack", "several labels"])
    refused(cli("evaluate", run, rows, "--calibrate", rows), 2, ["--calibrate"])


def test_tables_name_their_columns_of_labels(
    cli: Callable[..., Any], refused: Callable[..., None], tmp_path: Path
) -> None:
    x, y = drawn(40, 9)

    def write(name: str, cells: Any, header: list[str]) -> None:
        with (tmp_path / name).open("w", newline="") as stream:
            csv.writer(stream).writerows([header, *cells])

    mixed = [[y[i, 2], *x[i].tolist(), y[i, 0], y[i, 1]] for i in range(40)]
    features = [f"f{place}" for place in range(6)]
    write("train.csv", mixed, ["pneumonia", *features, "oedema", "effusion"])
    write("test.csv", [[*(-x[i]).tolist(), *y[i]] for i in range(40)], [*features, *NAMES])
    words = ["import", "train.csv", "test.csv", "--out", "t.h5", "--label-column"]
    assert cli(*words, ",".join(NAMES)).status == 0
    with FeatureFile(tmp_path / "t.h5") as read:
        assert read.description.class_names == tuple(NAMES)
        for group, rows in (("train", x), ("test", -x)):
            np.testing.assert_array_equal(read.labels(group), y)
            np.testing.assert_allclose(read.rows(group, slice(None)), rows, rtol=1e-6)
    refused(cli(*words, "oedema,fever", "--overwrite"), 2, ["fever", "--label-column"])
    mixed[3][0] = -1
    write("train.csv", mixed, ["pneumonia", *features, "oedema", "effusion"])
    refused(cli(*words, ",".join(NAMES), "--overwrite"), 3, ["-1", "row 3", "pneumonia", "0 and 1"])


@pytest.mark.parametrize("case", ["public", "one row has two labels", "private"])
def test_one_hot_labels_of_public_test_rows_are_noted(cli: Callable[..., Any], tmp_path: Path, case: str) -> None:
    one_hot = {f"y_{group}": np.eye(3)[np.arange(len(rows)) % 3] for group, (rows, _) in GROUPS.items()}
    if case == "one row has two labels":
        one_hot["y_test"][5] = 1, 1, 0
    np.savez(tmp_path / "rows.npz", **{**arrays(), **one_hot})
    words = ["--private-test"] if case == "private" else []
    imported = cli("import", "rows.npz", "--out", "rows.h5", *words)
    assert imported.status == 0, imported
    assert ("every row of y_test has 1 of 3 labels" in imported.stderr) == (case == "public")
    assert ("y.argmax(axis=1)" in imported.stderr) == (case == "public")


def test_labels_that_fit_nothing_are_refused(
    cli: Callable[..., Any], refused: Callable[..., None], tmp_path: Path, folder: Path
) -> None:
    good = arrays()
    changes: list[tuple[dict[str, Any], int, list[str]]] = [
        ({"y_test": good["y_test"][:, :2]}, 3, ["y_test", "one width"]),
        ({"y_test": good["y_test"][:, 0]}, 3, ["y_test", "one width"]),
        ({"class_names": np.array(["a", "b"])}, 3, ["2 class names", "3 labels"]),
        ({key: good[key][:, :1] for key in good if key.startswith("y_")}, 3, ["has 1 label a row", "(rows,)"]),
        ({"y_train": good["y_train"] * 0.5}, 3, ["0.5", "0 and 1"]),
    ]
    for change, status, words in changes:
        np.savez(tmp_path / "bad.npz", **{**good, **change})
        refused(cli("import", "bad.npz", "--out", "bad.h5"), status, words)
    del good["class_names"]
    np.savez(tmp_path / "unnamed.npz", **good)
    assert cli("import", "unnamed.npz", "--out", "unnamed.h5", "--private-test").status == 0
    train = ["train", "unnamed.h5", *TRAIN, "--test-epsilon", "1", "--out", "x"]
    refused(cli(*train), 2, ["--test-epsilon", "several labels"])
    assert cli(*train[:-4], "--out", "x").status == 0
    outcome = cli("evaluate", "x")
    refused(outcome, 4, ["private", "give another file"])
    assert "--test-epsilon" not in outcome.stderr  # which is refused for such rows
    for value, word in ((2, "other than 0 and 1"), (None, "task")):
        edited = Path(shutil.copy(folder / "rows.h5", tmp_path / "edited.h5"))
        with h5py.File(edited, "a") as file:
            if value is None:
                file.attrs["task"] = "multiclass"
            else:
                file["train/y"][7, 1] = value
        refused(cli("info", edited), 3, ["train", word if value else "shape"])


def test_people_with_several_labels_are_protected(cli: Callable[..., Any], tmp_path: Path) -> None:
    np.savez(tmp_path / "people.npz", **arrays(), owner_train=np.arange(300) // 3)
    assert cli("import", "people.npz", "--out", "p.h5").status == 0
    outcome = cli("train", "p.h5", *TRAIN, "--unit", "owner", "--out", "run", "--json")
    assert outcome.status == 0, outcome
    assert json.loads(outcome.stdout)["n_units"] == 100
    assert cli("verify", "run", "--features", "p.h5").status == 0


@pytest.mark.parametrize(("names", "all_classes"), [(["id", "a", "b"], False), (["a", "p_a", "b"], True)])
def test_predictions_with_two_columns_of_one_name_are_refused(
    cli: Callable[..., Any], refused: Callable[..., None], names: list[str], all_classes: bool
) -> None:
    np.savez("named.npz", **{**arrays(), "class_names": np.array(names)})
    assert cli("import", "named.npz", "--out", "named.h5").status == 0
    assert cli("train", "named.h5", *TRAIN, "--out", "named").status == 0
    with pytest.raises(DataError, match=f"have two columns '{'p_a' if all_classes else 'id'}'"):
        linprobe.predict("named", "named.h5", all_classes=all_classes)
    for words in ((), ("--json",), ("--out", "rows.csv")):
        flags = ("--probabilities",) * all_classes
        refused(cli("predict", "named", "named.h5", *flags, *words), 3, ["two columns", "load_run"])
    assert not Path("rows.csv").exists()


def test_a_run_of_another_task_starts_no_run(
    cli: Callable[..., Any], refused: Callable[..., None], folder: Path
) -> None:
    y = np.arange(90) % 3
    np.savez("one.npz", X_train=CENTRES[y], y_train=y, class_names=np.array(["0", "1", "2"]))
    assert cli("import", "one.npz", "--out", "one.h5").status == 0
    words = ("train", "one.h5", *TRAIN, "--init", folder / "run", "--out", "other", "--public-shots", "0")
    refused(cli(*words), 3, ["several labels a row", "one class"])
