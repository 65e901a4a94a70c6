"""Inputs that people have: CSV with names of columns, Parquet, Arrow, data sets on disk, labels of every kind."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from linprobe.data import array_files
from linprobe.data.array_import import import_arrays, read_arrays
from linprobe.data.feature_file import FeatureFile
from linprobe.data.labels import id_hashes
from linprobe.data.tables import Columns
from linprobe.errors import DataError, LinprobeError, Silent, UsageError
from linprobe.options.requests import ImportRequest
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


def imported(sources: list[Path], classes: list[str] | None = None, **columns: str) -> dict[str, Any]:
    """The training rows of a feature file made of the sources."""
    out = sources[0].with_suffix(".made.h5")
    import_arrays(ImportRequest(sources=sources, out=out, **columns), classes)
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
        ("kind,f0\nant,1\nbee,1_0.5\n", ["line 3", "'f0'", "'1_0.5'", "plain decimal"]),
        ("kind,f0\nant,\u0661\u0662\nbee,1\n", ["line 2", "'f0'", "'\u0661\u0662'"]),
        ("kind,f0\nant,1\nbee\0,1\n", ["line 3", "'kind'", "NUL"]),
        ("kind,f0\nant,1\n\nbee,\n", ["line 4", "''", "leave out the line or the column"]),
        ("kind,f0\nant,1\nbee,1e300\n", ["line 3", "'f0'", "1e+300", "float32"]),
        ("kind,f0,f1\nant,1,0\nbee,1e-60,-1e-50\n", ["train.csv line 3", "1.4e-45", "float32", "scale"]),
        ("kind,f0\nant,1\nbee,1,2\n", ["line 3", "3 columns", "2"]),
        ("kind,kind,f0\nant,ant,1\n", ["line 1, column 1", "2 columns are named 'kind'"]),
        ("kind\nant\n", ["no column of features"]),
        ("kind,f0\n", ["no line after its header"]),
        ('kind,f0\n"ant\nbee",1\nbee,x\n', ["line 4", "'x'"]),
        ('f0,kind\n1,ant\n2,"bee\n3,ant\n', ["train.csv", "unexpected end"]),
        ('f0,kind\n1,ant\n2,"bee\n3,"ant\n', ["train.csv", "expected after"]),
        ("kind,f0\nK\xe4fer,1\n", ["table ", "train.csv cannot be read", "write it again, as UTF-8"]),
    ],
)
def test_a_bad_line_of_a_csv_is_named(tmp_path: Path, text: str, words: list[str]) -> None:
    (tmp_path / "train.csv").write_text(text, encoding="cp1252" if "\xe4" in text else "utf-8")
    with pytest.raises(DataError) as caught:
        read_arrays([tmp_path / "train.csv"], Columns("kind"))
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_row_of_zeros_and_a_small_number_beside_a_large_one_are_no_lost_row(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("a,b,x,y\n0,0,0,0\n1,0,1e-60,2\n")
    assert read_arrays([tmp_path / "train.csv"], Columns("a,b"))["X_train"].tolist() == [[0, 0], [0, 2]]
    (tmp_path / "train.csv").write_text("a,b,x,y\n1,0,1e-60,0\n")  # labels are no features
    with pytest.raises(DataError, match="line 2"):
        read_arrays([tmp_path / "train.csv"], Columns("a,b"))


@pytest.mark.parametrize(
    ("header", "listed"),
    [
        ("a,b,c", "its 3 columns, 'a', 'b', 'c'; name one with --label-column"),
        ("f0,f1,f2,f3,f4,f5,f6,Kind,id", "its 9 columns, 'f0', 'f1', 'f2', 'f3', 'f4', 'f5', ..., 'Kind', 'id'; did"),
        ("Kind,f0", "'Kind', 'f0'; did you mean 'Kind'? name one with --label-column"),
        ("kind;f0;f1", "its 1 column, 'kind;f0;f1'; allowed between columns: commas; write the table again"),
    ],
)
def test_columns_are_listed_where_one_is_missing(tmp_path: Path, header: str, listed: str) -> None:
    (tmp_path / "train.csv").write_text(f"{header}\n")
    with pytest.raises(UsageError) as caught:
        read_arrays([tmp_path / "train.csv"], Columns("kind"))
    assert listed in str(caught.value)


@pytest.mark.parametrize("name", ["train", "test"])
def test_the_next_step_for_a_table_that_needs_labels_works(tmp_path: Path, name: str) -> None:
    table = tmp_path / f"{name}.csv"
    table.write_text("a,b\n1,2\n")
    with pytest.raises(UsageError, match="name one with --label-column, or import it alone under another name"):
        read_arrays([table])
    assert list(read_arrays([table.rename(tmp_path / "new.csv")], group="rows")) == ["X_rows", "features"]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"id": ["p"] * 8, "kind": WORDS}, ["table.csv has 7 repeated ids, such as 'p'", "--id-column"]),
        ({"kind": ["ant", "ant "] * 4}, ["1 class name is another class name", "('ant' and 'ant ')"]),
    ],
)
def test_what_repeats_is_named(tmp_path: Path, columns: dict[str, Any], words: list[str]) -> None:
    with (tmp_path / "table.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow([*columns, "f0"])
        writer.writerows(zip(*columns.values(), range(8), strict=True))
    with pytest.raises(DataError) as caught:
        imported([tmp_path / "table.csv"], label_column="kind", test_fraction=0.6)
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
    named = {"label_column": "kind", "id_column": "key"}
    found = imported([path], NAMES, **named)
    (tmp_path / "csv").mkdir()
    expected = imported([write_csv(tmp_path / "csv" / "train.csv", WORDS)], NAMES, **named)
    np.testing.assert_array_equal(found.pop("x"), expected.pop("x"))
    assert found == expected


def test_wrong_columns_of_a_table_are_named(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for columns, words in (
        ({"label": [1, 2], "f0": ["a", "b"]}, ["'f0'", "string", "--id-column"]),
        ({"label": [1, 2], "f0": [0.5, None]}, ["'f0'", "1 empty cells", "row 1"]),
        ({"label": [1, None], "f0": [0.5, 1.0]}, ["'label'", "row 1"]),
        ({"label": [1, 2], "f0": [[1.0], [1.0, 2.0]]}, ["'f0'", "lengths [1, 2]"]),
        ({"label": ["a", "b\0"], "f0": [0.5, 1.0]}, ["'label'", "row 1", "NUL"]),
    ):
        parquet.write_table(arrow.table(columns), tmp_path / "train.parquet")
        with pytest.raises(DataError) as caught:
            read_arrays([tmp_path / "train.parquet"])
        assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_parquet_file_that_is_cut_off_while_it_is_read_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path, read_header = tmp_path / "train.parquet", array_files._thrift_struct

    def cut_off(*given: Any) -> tuple[dict[int, int], int]:
        os.truncate(path, 8)
        return read_header(*given)

    x = np.random.default_rng(0).normal(size=20_000)
    parquet.write_table(arrow.table({"label": [1] * len(x), "f0": x}), path, compression="none", use_dictionary=False)
    assert len(array_files.parquet_table(path)) == len(x)
    monkeypatch.setattr(array_files, "_thrift_struct", cut_off)
    with pytest.raises(DataError, match=r"train\.parquet"):
        read_arrays([path])


PEOPLE = ["eve", "bob", "eve", "dan", "ann", "dan", "fay", "gil"]


def one_table(path: Path, places: Sequence[int] = range(8), split: Sequence[str] | None = None) -> Path:
    """A table of the given rows, of any name, as CSV or Parquet."""
    columns: dict[str, list[Any]] = {
        "key": [f"p{place}" for place in places],
        "kind": [str(WORDS[place]) for place in places],
        "who": [PEOPLE[place] for place in places],
        **{f"f{column}": [float(ROWS[place, column]) for place in places] for column in range(3)},
        **({} if split is None else {"part": list(split)}),
    }
    if path.suffix == ".parquet":
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.table(columns), path)
        return path
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


def sides(path: Path, *words: str, cli: Cli) -> dict[str, dict[str, str]]:
    """Owner by id, or label by id without owners, of each group that `import` makes of a table."""
    outcome = cli("import", path, "--label-column", "kind", "--classes", path.parent / "names.txt", *words)
    assert outcome.status == 0, outcome
    with FeatureFile(path.parent / "f.h5") as features:
        return {group: dict(zip(features.ids(group), features.owners(group), strict=True)) for group in features.sizes}


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_one_table_is_split_by_its_owners(cli: Cli, tmp_path: Path, suffix: str) -> None:
    (tmp_path / "names.txt").write_text("ant\nbee\n")
    words = ("--id-column", "key", "--owner-column", "who", "--test-fraction", "0.5", "--out", "f.h5", "--overwrite")
    found = sides(one_table(tmp_path / f"ward{suffix}"), *words, cli=cli)
    test, train = set(found["test"].values()), set(found["train"].values())
    assert test == {name for name in PEOPLE if id_hashes([name], 0)[0] < 2**63}
    assert train == set(PEOPLE) - test
    assert {**found["train"], **found["test"]} == {f"p{place}": name for place, name in enumerate(PEOPLE)}
    # without a row of a person, every other row stays where it is
    fewer = sides(one_table(tmp_path / f"ward{suffix}", [0, *range(2, 8)]), *words, cli=cli)
    assert fewer == {group: {key: who for key, who in rows.items() if key != "p1"} for group, rows in found.items()}


def test_a_column_names_the_group_of_each_row(cli: Cli, refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("ant\nbee\n")
    words = ("--id-column", "key", "--owner-column", "who", "--split-column", "part", "--out", "f.h5")
    parts = ["train", "val", "train", "public", "public", "public", "train", "val"]
    found = sides(one_table(tmp_path / "ward.csv", split=parts), *words, cli=cli)
    assert {group: set(rows) for group, rows in found.items()} == {
        "train": {"p0", "p2", "p6"}, "test": {"p1", "p7"}, "public": {"p3", "p4", "p5"},
    }  # fmt: skip
    command = ["import", "ward.csv", "--label-column", "kind", "--classes", "names.txt", *words, "--overwrite"]
    for place, part, said in ((2, "test", "'val' in row 1"), (3, "", "'' in row 3"), (2, "val", "both sides")):
        one_table(tmp_path / "ward.csv", split=[*parts[:place], part, *parts[place + 1 :]])
        refused(cli(*command), 3, [said])
    one_table(tmp_path / "ward.csv", split=parts)
    refused(cli(*command, "--test-fraction", "0.5"), 2, ["--split-column", "--test-fraction"])
    refused(cli(*(word if word != "part" else "other" for word in command)), 2, ["'kind'", "'part'"])


def test_training_rows_alone_are_split_by_id_or_content(tmp_path: Path) -> None:
    x = np.concatenate([ROWS, ROWS])
    np.savez(tmp_path / "a.npz", X_train=x, y_train=np.tile(WORDS, 2))
    import_arrays(ImportRequest(sources=[tmp_path / "a.npz"], out=tmp_path / "a.h5", test_fraction=0.5), NAMES)
    with FeatureFile(tmp_path / "a.h5") as features:
        train, test = ({row.tobytes() for row in features.rows(group, slice(None))} for group in ("train", "test"))
        assert sum(features.sizes.values()) == 16
    assert train
    assert test
    assert not train & test  # equal rows are on one side
    np.savez(tmp_path / "d.npz", X_train=x, y_train=np.roll(np.tile(WORDS, 2), 1))
    import_arrays(ImportRequest(sources=[tmp_path / "d.npz"], out=tmp_path / "d.h5", test_fraction=0.5), NAMES)
    with FeatureFile(tmp_path / "d.h5") as features:
        assert {row.tobytes() for row in features.rows("test", slice(None))} == test  # whatever their labels
    with pytest.raises(UsageError, match="divide training rows alone"):
        import_arrays(ImportRequest(sources=[npz(tmp_path, WORDS, WORDS)], out=tmp_path / "b.h5", test_fraction=0.5))
    with pytest.raises(UsageError, match="--split-column is for one table"):
        import_arrays(
            ImportRequest(sources=[npz(tmp_path, WORDS)], out=tmp_path / "b.h5", test_fraction=0.5, split_column="part")
        )
    for wrong, words in (
        ({"id_train": np.arange(7)}, "id_train has 7 entries for 8 rows"),
        ({"y_train": WORDS[:7]}, "7,"),
    ):
        np.savez(tmp_path / "c.npz", **{"X_train": ROWS, "y_train": WORDS, **wrong})
        with pytest.raises(DataError, match=words):
            import_arrays(ImportRequest(sources=[tmp_path / "c.npz"], out=tmp_path / "c.h5", test_fraction=0.5), NAMES)


def test_the_split_of_equal_rows_does_not_depend_on_the_file(tmp_path: Path) -> None:
    def tested(source: Path) -> set[bytes]:
        import_arrays(ImportRequest(sources=[source], out=tmp_path / "f.h5", test_fraction=0.5, overwrite=True), NAMES)
        with FeatureFile(tmp_path / "f.h5") as features:
            return {row.tobytes() for row in features.rows("test", slice(None)).astype(np.float32)}

    rows = np.random.default_rng(1).standard_normal((40, 4)).astype(np.float16)
    labels = np.tile(NAMES, 20)
    found = []
    for stored in (*map(rows.astype, ("f2", "f4", "f8", ">f4")), rows.astype("f4").reshape(40, 2, 2)):
        np.savez(tmp_path / "a.npz", X_train=stored, y_train=labels)
        found.append(tested(tmp_path / "a.npz"))
    lines = [
        ",".join(["label", *"abcd"]),
        *(f"{y},{','.join(map(str, x))}" for y, x in zip(labels, rows.tolist(), strict=True)),
    ]
    (tmp_path / "all.csv").write_text("\n".join(lines))
    found.append(tested(tmp_path / "all.csv"))
    assert all(rows == found[0] for rows in found)


def test_an_id_with_nul_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", X_train=ROWS, y_train=WORDS, id_train=[f"a\0{row}" for row in range(len(ROWS))])
    with pytest.raises(DataError, match="an id of train holds NUL"):
        import_arrays(ImportRequest(sources=[tmp_path / "a.npz"], out=tmp_path / "a.h5"), NAMES)


@pytest.mark.parametrize("suffix", [".npz", ".pt", ".h5"])
def test_arrays_under_any_name_are_read(cli: Cli, refused: Refused, tmp_path: Path, suffix: str) -> None:
    arrays = {"emb": ROWS, "kind": WORDS, "who": np.array(PEOPLE), "other": np.zeros(3)}
    if suffix == ".npz":
        np.savez(tmp_path / "a.npz", **arrays)
    elif suffix == ".h5":
        with h5py.File(tmp_path / "a.h5", "w") as file:
            for name, array in arrays.items():
                file[name] = array.astype(h5py.string_dtype()) if array.dtype.kind == "U" else array
    else:
        torch = pytest.importorskip("torch")
        held = {name: array.tolist() if array.dtype.kind == "U" else array for name, array in arrays.items()}
        torch.save({**held, "emb": torch.as_tensor(ROWS), "other": torch.zeros(3)}, tmp_path / "a.pt")
    (tmp_path / "names.txt").write_text("ant\nbee\n")
    words = ["--owner-column", "who", "--test-fraction", "0.5", "--classes", "names.txt", "--out", "f.h5"]
    outcome = cli("import", f"a{suffix}", "--x", "emb", "--y", "kind", *words)
    assert outcome.status == 0, outcome
    found: dict[tuple[float, ...], tuple[int, str]] = {}
    with FeatureFile(tmp_path / "f.h5") as features:
        for group in ("train", "test"):
            labels, owners = features.labels(group).tolist(), features.owners(group)
            rows = map(tuple, features.rows(group, slice(None)).tolist())
            found |= dict(zip(rows, zip(labels, owners, strict=True), strict=True))
            assert {id_hashes([name], 0)[0] < 2**63 for name in owners} == {group == "test"}
    assert found == {tuple(ROWS[place].tolist()): (place % 2, PEOPLE[place]) for place in range(8)}
    words = ["--out", "g.h5"]
    refused(cli("import", f"a{suffix}", "--x", "emb", "--y", "labels", *words), 2, ["'labels'", "'emb'", "'kind'"])
    refused(cli("import", f"a{suffix}", "--y", "kind", *words), 2, ["--x"])
    refused(cli("import", f"a{suffix}", f"a{suffix}", "--x", "emb", *words), 2, ["2 files", "one file"])
    outcome = cli("import", f"a{suffix}", "--x", "emb", *words)
    assert outcome.status == 0, outcome
    with FeatureFile(tmp_path / "g.h5") as features:
        assert features.sizes == {"rows": 8}


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
        (np.float16([3, 1] * 4), ("1", "3"), [1, 0] * 4),
        (["3", "1"] * 4, ("1", "3"), [1, 0] * 4),
        (["2.0", "10."] * 4, ("2", "10"), [0, 1] * 4),
        (["2.5", "1.0"] * 4, ("1.0", "2.5"), [1, 0] * 4),
        (["no", "1"] * 4, ("1", "no"), [1, 0] * 4),
        (["02", "01"] * 4, ("01", "02"), [1, 0] * 4),
        (["0_1", "1_0"] * 4, ("0_1", "1_0"), [0, 1] * 4),
        ([b"bee", b"ant"] * 4, ("ant", "bee"), [1, 0] * 4),
        ([0, 2, 1, 2] * 2, ("0", "1", "2"), [0, 2, 1, 2] * 2),
    ],
)
@pytest.mark.filterwarnings("error")
def test_labels_need_not_begin_at_zero(tmp_path: Path, labels: Any, names: tuple[str, ...], indices: list[int]) -> None:
    """No class is invented: labels 1 to 3 are three classes."""
    found = imported([npz(tmp_path, labels, labels)])
    assert (found["names"], found["y"]) == (names, indices)


def test_whole_numbers_are_matched_by_name_if_the_names_are_numbers(tmp_path: Path) -> None:
    assert imported([npz(tmp_path, [1, 2] * 4)], classes=["2", "1"])["y"] == [1, 0] * 4
    assert imported([npz(tmp_path, [1, 0] * 4)], classes=["ant", "bee"])["y"] == [1, 0] * 4


@pytest.mark.parametrize(
    ("classes", "indices"),
    [(["True", "False"], [0, 1]), (["false", "true"], [1, 0]), (["TRUE", "no", "FALSE"], [0, 2]), (["a", "b"], [1, 0])],
)
def test_flags_are_matched_by_name_before_position(tmp_path: Path, classes: list[str], indices: list[int]) -> None:
    flags = np.array([True, False] * 4)
    assert imported([npz(tmp_path, flags)], classes)["y"] == indices * 4
    assert imported([npz(tmp_path, flags, class_names=np.array(classes))])["y"] == indices * 4


def test_flags_of_a_parquet_table_have_the_indices_of_the_csv(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    flags = np.array([True, False, False, True] * 2)
    for group in ("train", "test"):
        parquet.write_table(arrow.table({"label": flags, "a": ROWS[:, 0]}), tmp_path / f"{group}.parquet")
        lines = [f"{flag},{value}\n" for flag, value in zip(flags, ROWS[:, 0], strict=True)]
        (tmp_path / f"{group}.csv").write_text("".join(["label,a\n", *lines]))
    for train, test in (("csv", "csv"), ("parquet", "parquet"), ("parquet", "csv"), ("csv", "parquet")):
        sources = [tmp_path / f"train.{train}", tmp_path / f"test.{test}"]
        assert imported(sources)["y"] == flags.astype(int).tolist()
        assert imported(sources, ["True", "False"])["y"] == (~flags).astype(int).tolist()


def test_columns_of_labels_are_not_renamed(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("label,a,x\n" + "0,1,2\n" * 4)
    with pytest.raises(DataError, match="label, a, and --classes is a, label"):
        imported([tmp_path / "train.csv"], ["a", "label"], label_column="label,a")


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([1, 2, 2, 1] * 2, ["a.npz: y_train", "label 2", "row 1", "0 to 1", "ant, bee", "subtract 1"]),
        ([0, 1.5] * 4, ["y_train", "label 1.5", "row 1", "whole numbers"]),
        ([0, float("nan")] * 4, ["y_train", "row 1"]),
        (["ant", "cat"] * 4, ["y_train", "'cat'", "row 1", "ant, bee"]),
    ],
)
def test_wrong_labels_are_named_with_their_row(tmp_path: Path, labels: Any, words: list[str]) -> None:
    with pytest.raises(DataError) as caught:
        imported([npz(tmp_path, labels)], classes=NAMES)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize("classes", [["1", "2", "other"], ["01", "00"], ["1.0", "2.0"]])
def test_a_number_that_is_one_class_and_the_place_of_another_is_refused(tmp_path: Path, classes: list[str]) -> None:
    with pytest.raises(DataError, match=r"1 could be the class .* or the class at position 1"):
        imported([npz(tmp_path, [1, 0] * 4)], classes)


@pytest.mark.parametrize("label", ["nan", "<NA>", "ant ", "NA", "None", "null", ""])
def test_a_test_label_that_is_missing_or_spelled_in_another_way_makes_no_class(tmp_path: Path, label: str) -> None:
    with pytest.raises(DataError, match="y_test"):
        imported([npz(tmp_path, WORDS, np.array([*WORDS[:7], label]))])


@pytest.mark.parametrize("classes", [["ant", "bee", "ant "], ["1", "1.0"], ["\u00e9", "e\u0301"]])
def test_declared_classes_have_one_spelling(tmp_path: Path, classes: list[str]) -> None:
    with pytest.raises(DataError, match=r"class list of .*a\.npz.*spelling"):
        imported([npz(tmp_path, [0, 1] * 4)], classes)


def test_a_class_of_such_a_name_can_be_declared(tmp_path: Path) -> None:
    words = np.where(np.arange(8) % 2, "None", "tumour")
    assert imported([npz(tmp_path, words, words)], classes=["None", "tumour"])["y"] == [1, 0] * 4


def test_names_and_ids_of_bytes_become_text(tmp_path: Path) -> None:
    ids = np.array([f"p{number}".encode() for number in range(8)])
    found = imported([npz(tmp_path, WORDS.astype("S"), class_names=np.array(NAMES, "S"), id_train=ids)])
    assert (found["names"], found["y"], found["id"][7]) == (("ant", "bee"), [0, 1] * 4, "p7")


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_tables_with_other_features_and_numbers_of_rows_are_refused(tmp_path: Path, suffix: str) -> None:
    """The second feature of a row must not meet the first weight, and the place of a row is no feature."""

    def table(group: str, names: Sequence[str]) -> Path:
        path = tmp_path / f"{group}{suffix}"
        columns = {"label": WORDS, **dict(zip(names, ROWS.T, strict=True))}
        if suffix == ".parquet":
            arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
            parquet.write_table(arrow.table(columns), path)
        else:
            np.savetxt(path, np.stack(list(columns.values()), 1), "%s", ",", header=",".join(columns), comments="")
        return path

    first = table("train", "abc")
    read_arrays([first, table("test", "abc")])
    with pytest.raises(DataError, match=r"test.*feature 2 is the column 'c', and 'b'"):
        read_arrays([first, table("test", "acb")])
    for name in ("", "Unnamed: 0", "__index_level_0__"):
        with pytest.raises(DataError, match=f"the column '{name}', as pandas and R name the numbers of rows"):
            read_arrays([table("train", ("a", "b", name))])


def test_object_arrays_are_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"Python objects.*astype\('float32'\).*dtype=str"):
        read_arrays([npz(tmp_path, np.array(["a", 1] * 4, dtype=object))])


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_columns_of_one_name_are_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"train.{kind}"
    if kind == "csv":
        path.write_text("label,a,a\n0,1,2\n1,3,4\n")
    else:
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.table([[0, 1], [1, 3], [2, 4]], names=["label", "a", "a"]), path)
    with pytest.raises(DataError, match="column 2: 2 columns are named 'a'"):
        read_arrays([path])


@pytest.mark.parametrize("private", [False, True])
def test_a_column_that_leaves_the_others_no_weight_is_named_from_public_test_rows(
    cli: Cli, tmp_path: Path, private: bool
) -> None:
    words = ["--label-column", "kind", "--id-column", "key", "--test-fraction", "0.5", "--overwrite", "--out", "f.h5"]
    for factor, mean, named in ((1, 0, False), (50, 0, True), (1, 2015, True)):
        rows = np.tile(ROWS, (5, 1)) * np.float32([1, factor, 1]) + np.float32([0, mean, 0])
        write_csv(tmp_path / "all.csv", np.tile(WORDS, 5), rows)
        outcome = cli("import", "all.csv", *words, "--classes", "ant,bee", *["--private-test"] * private)
        assert outcome.status == 0
        assert ("column 'f1' has 99." in outcome.stderr) == (named and not private)
