"""Inputs that people have: CSV with names of columns, Parquet, Arrow, data sets on disk, labels of every kind."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linprobe.data.array_import import Columns, import_arrays, read_arrays, read_csv
from linprobe.data.feature_file import FeatureFile
from linprobe.errors import DataError, LinprobeError
from linprobe.progress import Silent
from tests.conftest import Outcome

Cli = Callable[..., Outcome]
Refused = Callable[..., None]
ROWS = np.random.default_rng(0).standard_normal((8, 3)).astype(np.float32)
NAMES = ["ant", "bee"]
WORDS = np.array(NAMES)[np.arange(8) % 2]


def write_csv(
    path: Path, labels: Any, rows: Any = ROWS, header: tuple[str, ...] = ("key", "kind"), mark: str = ""
) -> Path:
    with path.open("w", newline="", encoding="utf-8") as stream:
        stream.write(mark)
        writer = csv.writer(stream)
        writer.writerow([*header, "f0", "f1", "f2"])
        for number, (row, label) in enumerate(zip(rows, labels, strict=True)):
            writer.writerow([f"p{number}", label, *row])
    return path


def imported(sources: list[Path], columns: Columns | None = None, classes: list[str] | None = None) -> dict[str, Any]:
    """The training rows of a feature file made of the sources."""
    out = sources[0].with_suffix(".made.h5")
    import_arrays(sources, out, classes, columns=columns or Columns())
    with FeatureFile(out) as features:
        return {
            "x": features.rows("train", slice(None)),
            "y": features.labels("train").tolist(),
            "id": features.ids("train"),
            "names": features.description.class_names,
        }


def test_columns_of_a_csv_have_any_name_and_a_mark_is_skipped(cli: Cli, tmp_path: Path) -> None:
    for group, rows in (("train", ROWS), ("test", -ROWS)):
        write_csv(tmp_path / f"{group}.csv", WORDS, rows, mark="\ufeff")
    words = ("--label-column", "kind", "--id-column", "key")
    outcome = cli("import", "train.csv", "test.csv", *words, "--out", "f.h5")
    assert outcome.status == 0, outcome
    with FeatureFile(tmp_path / "f.h5") as features:
        np.testing.assert_array_equal(features.rows("train", slice(None)), ROWS)
        assert features.labels("train").tolist() == [0, 1] * 4
        assert features.ids("train") == [f"p{number}" for number in range(8)]
        assert features.description.class_names == ("ant", "bee")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kind,f0\nant,1\nbee,n/a\n", ["train.csv line 3", "'f0'", "'n/a'"]),
        ("kind,f0\nant,1\n\nbee,\n", ["line 4", "''"]),
        ("kind,f0\nant,1\nbee,1e300\n", ["line 3", "'f0'", "1e+300", "float32"]),
        ("kind,f0\nant,1\nbee,1,2\n", ["line 3", "3 columns", "2"]),
        ("label,f0\nant,1\n", ["'kind'", "'label', 'f0'", "--label-column"]),
        ("kind,kind,f0\nant,ant,1\n", ["2 columns 'kind'"]),
        ("kind\nant\n", ["no column of features"]),
        ("kind,f0\n", ["no line after its header"]),
        ('kind,f0\n"ant\nbee",1\nbee,x\n', ["line 4", "'x'"]),
    ],
)
def test_a_bad_line_of_a_csv_is_named(tmp_path: Path, text: str, words: list[str]) -> None:
    (tmp_path / "train.csv").write_text(text)
    with pytest.raises(DataError) as caught:
        read_arrays([tmp_path / "train.csv"], Columns("kind"))
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_reading_a_csv_is_counted_line_by_line(tmp_path: Path) -> None:
    counted: list[int] = []

    class Counts(Silent):
        def start(self, total: int, what: str = "training") -> None:
            counted.append(-total)

        def step(self, count: int = 1) -> None:
            counted.append(count)

    rows = np.tile(ROWS, (640, 1))
    path = write_csv(tmp_path / "train.csv", ["1"] * 5120, rows)
    arrays = read_arrays([path], Columns("kind", "key"), Counts())
    np.testing.assert_array_equal(arrays["X_train"], rows)
    assert counted == [-5120, 2048, 2048, 1024]


@pytest.mark.parametrize("lists", [False, True])
def test_parquet_tables_give_what_the_csv_gives(tmp_path: Path, lists: bool) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns: dict[str, Any] = {
        "key": [f"p{number}" for number in range(8)],
        "kind": arrow.array(WORDS).dictionary_encode(),
    }
    columns |= {"row": list(ROWS)} if lists else {f"f{place}": ROWS[:, place] for place in range(3)}
    path = tmp_path / "train.parquet"
    parquet.write_table(arrow.table(columns), path)
    named = Columns("kind", "key")
    found = imported([path], named, NAMES)
    (tmp_path / "csv").mkdir()
    expected = imported([write_csv(tmp_path / "csv" / "train.csv", WORDS)], named, NAMES)
    np.testing.assert_array_equal(found.pop("x"), expected.pop("x"))
    assert found == expected


def test_wrong_columns_of_a_table_are_named(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for columns, words in (
        ({"label": [1, 2], "f0": ["a", "b"]}, ["'f0'", "string", "--id-column"]),
        ({"label": [1, 2], "f0": [0.5, None]}, ["'f0'", "1 empty cells", "row 1"]),
        ({"label": [1, None], "f0": [0.5, 1.0]}, ["'label'", "row 1"]),
        ({"label": [1, 2], "f0": [[1.0], [1.0, 2.0]]}, ["'f0'", "lengths [1, 2]"]),
        ({"f0": [0.5, 1.0]}, ["'label'", "--label-column"]),
    ):
        parquet.write_table(arrow.table(columns), tmp_path / "train.parquet")
        with pytest.raises(DataError) as caught:
            read_arrays([tmp_path / "train.parquet"])
        assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_missing_pyarrow_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.parquet").touch()
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(LinprobeError, match=r"linprobe\[arrow\]"):
        read_arrays([tmp_path / "train.parquet"])


def npz(folder: Path, train: Any, test: Any = None, **more: Any) -> Path:
    arrays = {"X_train": ROWS, "y_train": np.asarray(train), **more}
    if test is not None:
        arrays |= {"X_test": -ROWS, "y_test": np.asarray(test)}
    np.savez(folder / "a.npz", **arrays)
    return folder / "a.npz"


@pytest.mark.parametrize(
    ("labels", "names", "indices"),
    [
        ([1, 2, 3, 1] * 2, ("1", "2", "3"), [0, 1, 2, 0] * 2),
        ([10.0, 20.0] * 4, ("10", "20"), [0, 1] * 4),
        ([-1, 1] * 4, ("-1", "1"), [0, 1] * 4),
        (["3", "1"] * 4, ("1", "3"), [1, 0] * 4),
        (["2.0", "10."] * 4, ("2", "10"), [0, 1] * 4),
        (["2.5", "1.0"] * 4, ("1.0", "2.5"), [1, 0] * 4),
        (["no", "1"] * 4, ("1", "no"), [1, 0] * 4),
        ([0, 2, 1, 2] * 2, ("0", "1", "2"), [0, 2, 1, 2] * 2),
    ],
)
def test_labels_need_not_begin_at_zero(tmp_path: Path, labels: Any, names: tuple[str, ...], indices: list[int]) -> None:
    """No class is invented: labels 1 to 3 are three classes."""
    found = imported([npz(tmp_path, labels, labels)])
    assert (found["names"], found["y"]) == (names, indices)


def test_whole_numbers_are_matched_by_name_if_the_names_are_numbers(tmp_path: Path) -> None:
    assert imported([npz(tmp_path, [1, 2] * 4)], classes=["2", "1"])["y"] == [1, 0] * 4
    assert imported([npz(tmp_path, [1, 0] * 4)], classes=["ant", "bee"])["y"] == [1, 0] * 4


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([1, 2, 2, 1] * 2, ["y_train", "label 2", "row 1", "0 to 1", "ant, bee", "subtract 1"]),
        ([0, 1.5] * 4, ["y_train", "label 1.5", "row 1", "whole numbers"]),
        ([0, float("nan")] * 4, ["y_train", "row 1"]),
        (["ant", "cat"] * 4, ["y_train", "'cat'", "row 1", "ant, bee"]),
    ],
)
def test_wrong_labels_are_named_with_their_row(tmp_path: Path, labels: Any, words: list[str]) -> None:
    with pytest.raises(DataError) as caught:
        imported([npz(tmp_path, labels)], classes=NAMES)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_object_arrays_are_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"Python objects.*astype\('float32'\).*dtype=str"):
        read_arrays([npz(tmp_path, np.array(["a", 1] * 4, dtype=object))])


def test_columns_of_one_name_are_all_features(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("label,a,a\n0,1,2\n1,3,4\n")
    np.testing.assert_array_equal(read_csv(tmp_path / "train.csv", Columns())["X_train"], [[1, 2], [3, 4]])
