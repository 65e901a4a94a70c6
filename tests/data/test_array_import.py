"""Import of arrays: the feature file has the same rows, and errors name the problem."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from linprobe.cli import run
from linprobe.data import array_import
from linprobe.data.array_files import open_array
from linprobe.data.array_import import import_arrays, read_arrays
from linprobe.data.dataset import public_shots
from linprobe.data.feature_file import FeatureFile
from linprobe.data.feature_reader import extraction_of, first_difference
from linprobe.data.feature_writer import FeatureWriter
from linprobe.data.tables import Columns
from linprobe.errors import DataError, LinprobeError, Silent, UsageError
from linprobe.options.requests import ImportRequest
from tests.processes import ended, start_copy

RNG = np.random.default_rng(3)
TRAIN, TEST = (RNG.standard_normal((rows, 5)).astype(np.float32) for rows in (9, 6))
Y_TRAIN, Y_TEST = np.arange(9) % 3, np.arange(6) % 3


def arrays(**changes: Any) -> dict[str, Any]:
    """The keys of an .npz; a change to None leaves the key out."""
    whole = {"X_train": TRAIN, "y_train": Y_TRAIN, "X_test": TEST, "y_test": Y_TEST, **changes}
    return {key: value for key, value in whole.items() if value is not None}


def npz(folder: Path, **changes: Any) -> Path:
    np.savez(folder / "features.npz", **arrays(**changes))
    return folder / "features.npz"


def read(path: Path, group: str = "train") -> tuple[Any, Any, list[str], tuple[str, ...]]:
    """Rows, labels, ids and class names of a feature file's group."""
    with FeatureFile(path) as features:
        blocks = list(features.blocks(group))
        rows, labels = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
        return rows, labels, features.ids(group), features.description.class_names


def check_same(path: Path) -> None:
    for group, x, y in (("train", TRAIN, Y_TRAIN), ("test", TEST, Y_TEST)):
        rows, labels, _, names = read(path, group)
        assert np.array_equal(rows, x)
        assert np.array_equal(labels, y)
        assert names == ("0", "1", "2")


def as_npz(folder: Path) -> list[Path]:
    return [npz(folder)]


def as_npy(folder: Path) -> list[Path]:
    for key, value in arrays().items():
        np.save(folder / f"{key}.npy", value)
    return [folder / f"{key}.npy" for key in arrays()]


def as_folder(folder: Path) -> list[Path]:
    as_npy(folder)
    (folder / "notes.txt").write_text("not an array")
    return [folder]


def as_tensors(folder: Path) -> list[Path]:
    import torch

    for key, value in arrays().items():
        torch.save(torch.as_tensor(value), folder / f"{key}.pt")
    return [folder / f"{key}.pt" for key in arrays()]


def as_tensor_dictionary(folder: Path) -> list[Path]:
    import torch

    torch.save({key: torch.as_tensor(value) for key, value in arrays().items()}, folder / "all.pt")
    return [folder / "all.pt"]


def write_csv(path: Path, rows: Any, labels: Any, ids: list[str] | None = None) -> Path:
    header = ["id"] * (ids is not None) + ["f0", "f1", "label", "f2", "f3", "f4"]
    lines = [",".join(header)]
    for index, (row, label) in enumerate(zip(rows.tolist(), labels, strict=True)):
        values = [repr(value) for value in row]
        record = [] if ids is None else [ids[index]]
        lines.append(",".join([*record, *values[:2], str(label), *values[2:]]))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def as_csv(folder: Path) -> list[Path]:
    return [write_csv(folder / "train.csv", TRAIN, Y_TRAIN), write_csv(folder / "test.csv", TEST, Y_TEST)]


def groups_of(folder: Path, suffix: str, write: Callable[[Path, Any, Any], None]) -> list[Path]:
    """A file for each group, with rows and labels under names without a group."""
    for group, rows, labels in (("train", TRAIN, Y_TRAIN), ("test", TEST, Y_TEST)):
        write(folder / f"{group}{suffix}", rows, labels)
    return [folder / f"{group}{suffix}" for group in ("train", "test")]


def as_archives_of_pairs(folder: Path) -> list[Path]:
    return groups_of(folder, ".npz", lambda path, x, y: np.savez(path, features=x, labels=y))


def as_tuples(folder: Path) -> list[Path]:
    import torch

    return groups_of(folder, ".pt", lambda path, x, y: torch.save((torch.as_tensor(x), torch.as_tensor(y)), path))


def as_clip_benchmark(folder: Path) -> list[Path]:
    import torch

    for group, rows, labels in (("train", TRAIN, Y_TRAIN), ("val", TEST[:1], Y_TEST[:1]), ("test", TEST, Y_TEST)):
        torch.save(torch.as_tensor(rows), folder / f"features_{group}.pt")
        torch.save(torch.as_tensor(labels), folder / f"targets_{group}.pt")
    return [folder]


def as_hdf5(folder: Path) -> list[Path]:
    def write(path: Path, x: Any, y: Any) -> None:
        with h5py.File(path, "w") as file:
            file["features"], file["labels"] = x, y

    return groups_of(folder, ".h5", write)


@pytest.mark.parametrize(
    "kind",
    [
        as_npz,
        as_npy,
        as_folder,
        as_tensors,
        as_tensor_dictionary,
        as_csv,
        as_archives_of_pairs,
        as_tuples,
        as_clip_benchmark,
        as_hdf5,
    ],
)
def test_every_kind_of_source_keeps_rows_and_labels(tmp_path: Path, kind: Callable[[Path], list[Path]]) -> None:
    source = tmp_path / "source"
    source.mkdir()
    import_arrays(ImportRequest(sources=kind(source), out=tmp_path / "out.h5"))
    check_same(tmp_path / "out.h5")


def test_csv_keeps_its_ids_and_matches_text_labels_by_name(tmp_path: Path) -> None:
    names = np.array(["cat", "ant", "bee"])
    ids = [f"photo {row}" for row in range(9)]
    sources = [
        write_csv(tmp_path / "train.csv", TRAIN, names[Y_TRAIN], ids),
        write_csv(tmp_path / "test.csv", TEST, names[Y_TEST]),
    ]
    import_arrays(ImportRequest(sources=sources, out=tmp_path / "out.h5"))
    rows, labels, read_ids, read_names = read(tmp_path / "out.h5")
    assert np.array_equal(rows, TRAIN)
    assert read_names == ("ant", "bee", "cat")
    assert [read_names[label] for label in labels] == names[Y_TRAIN].tolist()
    assert read_ids == ids


def test_text_labels_that_look_like_numbers_in_one_file_only_are_matched_by_name(tmp_path: Path) -> None:
    names = np.array(["2", "1", "x"])
    sources = [
        write_csv(tmp_path / "train.csv", TRAIN, names[Y_TRAIN % 2]),
        write_csv(tmp_path / "test.csv", TEST, names[Y_TEST]),
    ]
    import_arrays(ImportRequest(sources=sources, out=tmp_path / "out.h5"))
    _, labels, _, read_names = read(tmp_path / "out.h5")
    assert [read_names[label] for label in labels] == names[Y_TRAIN % 2].tolist()


def test_ids_and_public_rows_of_an_archive_are_kept(tmp_path: Path) -> None:
    ids = np.array([f"record {row}" for row in range(9)])
    source = npz(tmp_path, X_public=TEST[:3], y_public=Y_TEST[:3], id_train=ids)
    import_arrays(ImportRequest(sources=[source], out=tmp_path / "out.h5"))
    assert read(tmp_path / "out.h5")[2] == ids.tolist()
    assert np.array_equal(read(tmp_path / "out.h5", "public")[0], TEST[:3])


def test_ids_are_unique_across_groups_without_any_given(tmp_path: Path) -> None:
    import_arrays(ImportRequest(sources=[npz(tmp_path, X_public=TEST, y_public=Y_TEST)], out=tmp_path / "out.h5"))
    ids = [name for group in ("train", "test", "public") for name in read(tmp_path / "out.h5", group)[2]]
    assert len(set(ids)) == len(ids) == 21


def test_deleting_a_private_row_changes_no_other_id_and_no_public_shot(tmp_path: Path) -> None:
    rows, labels = np.random.default_rng(1).standard_normal((200, 5)).astype(np.float32), np.arange(200) % 3
    rows[40] = rows[10] = rows[100]  # equal rows with labels 1, 1 and 1: numbered
    labels[[10, 40, 100]] = 1

    def imported(keep: Any) -> tuple[list[str], Any, str]:
        import_arrays(
            ImportRequest(sources=[npz(tmp_path, X_train=rows[keep], y_train=labels[keep])], out=tmp_path / "out.h5")
        )
        with FeatureFile(tmp_path / "out.h5") as features:
            assert features.description.ids_from == "content"
            ids = features.ids("train")
            mask = public_shots(ids, features.labels("train"), features.description.class_names, 6, 0)
            return ids, mask, features.digest("train", mask)

    ids, mask, digest = imported(np.ones(200, dtype=bool))
    assert len(set(ids)) == 200
    for gone in (0, 11, 12, 40, 199):
        if mask[gone]:
            continue
        keep = np.arange(200) != gone
        fewer, still, public_digest = imported(keep)
        missing = ids[gone] if gone != 40 else ids[100]  # of equal rows the last number goes
        assert sorted(fewer) == sorted(set(ids) - {missing})
        assert set(np.array(fewer)[still]) == set(np.array(ids)[mask])
        assert public_digest == digest


def test_test_rows_are_optional_if_classes_are_declared(tmp_path: Path) -> None:
    source = npz(tmp_path, X_test=None, y_test=None)
    with pytest.raises(DataError, match=r"no test labels.*declare the classes"):
        import_arrays(ImportRequest(sources=[source], out=tmp_path / "out.h5"))
    import_arrays(ImportRequest(sources=[source], out=tmp_path / "out.h5"), ["a", "b", "c"])
    with FeatureFile(tmp_path / "out.h5") as features:
        assert features.sizes == {"train": 9}
    table = write_csv(tmp_path / "train.csv", TRAIN, Y_TRAIN)
    import_arrays(ImportRequest(sources=[table], out=tmp_path / "csv.h5"), ["a", "b", "c"])


def test_kind_of_ids_is_recorded(tmp_path: Path) -> None:
    ids = np.array([f"record {row}" for row in range(9)])
    assert (
        import_arrays(ImportRequest(sources=[npz(tmp_path, id_train=ids)], out=tmp_path / "out.h5")).ids_from == "given"
    )
    assert import_arrays(ImportRequest(sources=[npz(tmp_path)], out=tmp_path / "out.h5")).ids_from == "content"
    with FeatureFile(tmp_path / "out.h5") as features:
        assert features.description.ids_from == "content"


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [(np.float16, np.float16), (np.uint8, np.float16), (np.float32, np.float32), (np.float64, np.float32)],
)
def test_stored_type_holds_every_value(tmp_path: Path, dtype: Any, stored: Any) -> None:
    rows = RNG.integers(0, 256, TRAIN.shape).astype(dtype)
    import_arrays(ImportRequest(sources=[npz(tmp_path, X_train=rows)], out=tmp_path / "out.h5"))
    read_rows = read(tmp_path / "out.h5")[0]
    assert read_rows.dtype == stored
    assert np.array_equal(read_rows, rows)


def test_images_become_flattened_pixels(tmp_path: Path) -> None:
    images = RNG.integers(0, 256, (9, 4, 3, 3)).astype(np.uint8)
    others = RNG.integers(0, 256, (6, 4, 3, 3)).astype(np.uint8)
    description = import_arrays(
        ImportRequest(sources=[npz(tmp_path, X_train=images, X_test=others)], out=tmp_path / "out.h5")
    )
    assert np.array_equal(read(tmp_path / "out.h5")[0], images.reshape(9, 36))
    assert description.backbone == "pixels"
    assert "flattened" in description.preprocessing


def test_images_state_their_shape_and_others_do_not_fit(tmp_path: Path) -> None:
    made = []
    for place, shape in enumerate([(4, 3, 2), (3, 4, 2), (1, 4, 3, 2), (24,)]):
        rows = {f"X_{group}": RNG.random((n, *shape)) for group, n in (("train", 9), ("test", 6))}
        made.append(import_arrays(ImportRequest(sources=[npz(tmp_path, **rows)], out=tmp_path / f"{place}.h5")))
    first, turned, same, flat = map(extraction_of, made)
    assert [first_difference(first, other) is None for other in (turned, same, flat)] == [False, True, True]
    earlier = extraction_of(replace(made[0], preprocessing="flattened pixels"))  # as 0.2 wrote it
    assert first_difference(earlier, turned) is None


def test_rows_with_a_value_that_float32_holds_are_kept(tmp_path: Path) -> None:
    rows = np.where(np.arange(5) == 2, TRAIN, 1e-60)
    rows[3] = 0
    import_arrays(ImportRequest(sources=[npz(tmp_path, X_train=rows)], out=tmp_path / "out.h5"))
    assert np.array_equal(read(tmp_path / "out.h5")[0], rows.astype(np.float32))


def test_many_blocks_are_written_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("linprobe.data.array_import.BLOCK_BYTES", 4 * 5 * 2)
    import_arrays(ImportRequest(sources=[npz(tmp_path)], out=tmp_path / "out.h5"))
    check_same(tmp_path / "out.h5")


def test_declared_classes_decide_names_and_order(tmp_path: Path) -> None:
    text = np.array(["z", "y", "x"])
    source = npz(tmp_path, y_train=text[Y_TRAIN], y_test=text[Y_TEST], class_names=np.array(["a", "b", "c"]))
    description = import_arrays(ImportRequest(sources=[source], out=tmp_path / "out.h5"), ["y", "z", "x", "unused"])
    assert description.class_names == ("y", "z", "x", "unused")
    assert description.class_names_from == "declared"
    assert read(tmp_path / "out.h5")[1].tolist() == [1, 0, 2] * 3


def test_classes_rename_no_positions_of_class_names(tmp_path: Path) -> None:
    source = npz(tmp_path, class_names=np.array(["a", "b", "c"]))
    with pytest.raises(DataError, match=r"a, b, c, and --classes is c, a, b.*leave out --classes"):
        import_arrays(ImportRequest(sources=[source], out=tmp_path / "out.h5"), ["c", "a", "b"])
    assert import_arrays(ImportRequest(sources=[source], out=tmp_path / "out.h5"), ["a", "b", "c"]).class_names == (
        "a",
        "b",
        "c",
    )


def test_class_names_of_an_archive_count_as_declared(tmp_path: Path) -> None:
    source = npz(tmp_path, class_names=np.array(["c", "b", "a", "d"]))
    description = import_arrays(ImportRequest(sources=[source], out=tmp_path / "out.h5"))
    assert description.class_names == ("c", "b", "a", "d")
    assert description.class_names_from == "declared"


@pytest.mark.parametrize("kind", ["numbers", "text"])
def test_class_list_comes_from_test_labels_and_never_from_train_labels(tmp_path: Path, kind: str) -> None:
    train, test = (
        (Y_TRAIN % 2, Y_TEST) if kind == "numbers" else (np.array(["a", "b", "a"] * 3), np.array(["c", "a", "b"] * 2))
    )
    description = import_arrays(
        ImportRequest(sources=[npz(tmp_path, y_train=train, y_test=test)], out=tmp_path / "out.h5")
    )
    assert len(description.class_names) == 3
    assert description.class_names_from == "test labels"
    with pytest.raises(DataError, match="outside the"):
        import_arrays(
            ImportRequest(
                sources=[npz(tmp_path, y_train=test[[0, 1, 2] * 3], y_test=train[:6])], out=tmp_path / "other.h5"
            )
        )
    assert not (tmp_path / "other.h5").exists()


@pytest.mark.parametrize("classes", [("a", "b", "c"), ("0", "1", "2")])
def test_a_label_above_int64_is_named_as_it_is(tmp_path: Path, classes: tuple[str, ...]) -> None:
    labels = Y_TRAIN.astype(np.uint64)
    labels[4] = 9223372036854775810
    with pytest.raises(DataError, match="first label 9223372036854775810 at row 4"):
        import_arrays(ImportRequest(sources=[npz(tmp_path, y_train=labels)], out=tmp_path / "out.h5"), classes)


def test_whole_numbers_stored_as_floats_are_class_indices(tmp_path: Path) -> None:
    labels = np.arange(12)
    rows = RNG.standard_normal((12, 5)).astype(np.float32)
    source = npz(tmp_path, X_train=rows, y_train=labels.astype(float), X_test=-rows, y_test=labels.astype(float))
    import_arrays(ImportRequest(sources=[source], out=tmp_path / "out.h5"))
    _, read_labels, _, names = read(tmp_path / "out.h5")
    assert read_labels.tolist() == labels.tolist()
    assert names == tuple(str(label) for label in labels)


BAD_ARCHIVES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a key is missing": ({"y_test": None}, ["y_test", "X_train, y_train, X_test, y_test"]),
    "fewer labels": ({"y_train": Y_TRAIN[:-1]}, ["X_train", "(9, 5)", "(8,)"]),
    "labels in columns": ({"y_train": np.eye(9)}, ["y_train", "(9, 9)"]),
    "rows are numbers": ({"X_train": TRAIN[:, 0]}, ["X_train", "(9,)"]),
    "public rows without labels": ({"X_public": TEST}, ["X_public", "y_public None"]),
    "another width": ({"X_test": TEST[:, :4]}, ["[4, 5]", "one width"]),
    "fewer ids": ({"id_train": np.array(["a", "b"])}, ["id_train", "2", "9"]),
    "repeated ids": ({"id_train": np.array(["a"] * 9)}, ["features.npz", "repeated ids"]),
    "one class": ({"y_train": Y_TRAIN * 0, "y_test": Y_TEST * 0}, ["features.npz", "1 class;", "at least 2"]),
    "no test rows": ({"X_test": TEST[:0], "y_test": Y_TEST[:0]}, ["test has 0 rows"]),
    "label above": ({"y_train": Y_TRAIN + 1}, ["train", "label 3", "row 2"]),
    "label below": ({"y_train": Y_TRAIN - 1}, ["train", "label -1", "row 0"]),
    "not a number": (
        {"X_train": np.where(np.arange(9)[:, None] == 4, np.nan, TRAIN)},
        ["features.npz", "rows with NaN", "row 4"],
    ),
    "beyond float32": ({"X_train": np.full((9, 5), 1e300)}, ["X_train holds 1e+300 at row 0", "3.4e+38", "float32"]),
    "below float32": ({"X_train": TRAIN * np.float64(1e-60)}, ["X_train", "row 0", "1.4e-45", "scale"]),
    "not a number, by owner": (
        {"X_train": np.where(np.arange(9)[:, None] == 4, np.inf, TRAIN), "owner_train": 9 - np.arange(9)},
        ["X_train", "row 4"],
    ),
    "images with axes in another order": (
        {"X_train": np.zeros((9, 3, 4, 5)), "X_test": np.zeros((6, 4, 5, 3))},
        ["features.npz", "X_train (9, 3, 4, 5)", "X_test (6, 4, 5, 3)", "transpose"],
    ),
    "class names in two spellings": ({"class_names": ["a", "b", "a "]}, ["features.npz", "('a' and 'a ')"]),
    "flags of three classes": ({"y_train": Y_TRAIN > 0, "class_names": ["a", "b", "c"]}, ["y_train", "3 classes"]),
    "repeated class": ({"class_names": ["a", "b", "b"]}, ["features.npz has the class name 'b' twice"]),
    "empty class name": ({"class_names": ["a", "b", ""]}, ["features.npz has an empty name"]),
    "empty label": (
        {"y_train": np.array(["a", "b", "c"] * 3), "y_test": np.array(["a", "", "c"] * 2)},
        ["features.npz: y_test has the label ''"],
    ),
    "rows are text": ({"X_train": np.full((9, 5), "x")}, ["X_train"]),
    "rows are complex": ({"X_train": TRAIN + 1j}, ["X_train"]),
}


@pytest.mark.parametrize("case", BAD_ARCHIVES)
@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
def test_bad_archive_is_refused_and_leaves_nothing(tmp_path: Path, case: str) -> None:
    changes, words = BAD_ARCHIVES[case]
    source = npz(tmp_path, **changes)
    with pytest.raises(DataError) as caught:
        import_arrays(ImportRequest(sources=[source], out=tmp_path / "out.h5"))
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert "out.h5" not in str(caught.value)
    assert list(tmp_path.iterdir()) == [source]


def _file(name: str, content: bytes | str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        path = folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def _pickled(folder: Path) -> Path:
    np.save(folder / "X_train.npy", np.array([{"a": 1}]), allow_pickle=True)
    return folder / "X_train.npy"


def _pickled_pt(folder: Path) -> Path:
    import torch

    torch.save({"X_train": Path("x")}, folder / "all.pt")
    return folder / "all.pt"


def _one_long_text_in_a_tensor_file(folder: Path) -> Path:
    import torch

    torch.save({"id_train": [*["a"] * 100_000, "b" * 10_000]}, folder / "all.pt")
    return folder / "all.pt"


def _empty_folder(folder: Path) -> Path:
    (folder / "empty").mkdir()
    return folder / "empty"


def _truncated_npz(folder: Path) -> Path:
    path = npz(folder)
    path.write_bytes(path.read_bytes()[:-200])
    return path


def _unnamed_npy(folder: Path) -> Path:
    np.save(folder / "rows.npy", TRAIN)
    return folder / "rows.npy"


BAD_SOURCES: dict[str, tuple[Callable[[Path], Path], type[LinprobeError], list[str]]] = {
    "no such file": (lambda folder: folder / "none.npz", DataError, ["does not exist", "or a folder", ".hdf5"]),
    "empty folder": (_empty_folder, DataError, ["holds no arrays", "linprobe extract"]),
    "other ending": (_file("rows.xlsx", "x"), UsageError, [".xlsx", ".npz, .npy", "or .h5, .hdf5"]),
    "table with another name": (_file("rows.parquet", "x"), UsageError, ["rows", "train.parquet"]),
    "array with another name": (_unnamed_npy, UsageError, ["rows", "X_train", "rename"]),
    "csv with another name": (_file("rows.csv", "label,f0\n1,2\n"), UsageError, ["rows", "train.csv"]),
    "not an archive": (_file("a.npz", "hello"), DataError, ["cannot be read"]),
    "empty archive": (_file("a.npz", ""), DataError, ["cannot be read"]),
    "truncated archive": (_truncated_npz, DataError, ["cannot be read"]),
    "empty array file": (_file("X_train.npy", ""), DataError, ["cannot be read"]),
    "pickled array": (_pickled, DataError, ["Python objects", "astype"]),
    "not a tensor file": (_file("X_train.pt", "hello"), DataError, ["cannot be read"]),
    "empty tensor file": (_file("X_train.pt", ""), DataError, ["cannot be read"]),
    "long text in a tensor file": (_one_long_text_in_a_tensor_file, DataError, ["10000 characters", "100001"]),
    "tensor file with code": (_pickled_pt, DataError, ["cannot be read"]),
    "csv without label": (_file("train.csv", "a,b\n1,2\n"), UsageError, ["label", "'a', 'b'"]),
    "empty csv": (_file("train.csv", ""), DataError, ["is empty", "names of the columns"]),
    "csv with a word": (_file("train.csv", "label,f0\n1,two\n"), DataError, ["line 2", "'f0'", "'two'"]),
    "csv with a short line": (_file("train.csv", "label,f0\n1\n"), DataError, ["line 2", "1 columns", "2"]),
    "csv in another encoding": (_file("train.csv", b"label,f0\n\xff,1\n"), DataError, ["cannot be read"]),
}


@pytest.mark.parametrize("case", BAD_SOURCES)
def test_bad_source_is_refused_with_its_name(tmp_path: Path, case: str) -> None:
    make, error, words = BAD_SOURCES[case]
    source = make(tmp_path)
    with pytest.raises(error) as caught:
        read_arrays([source])
    assert all(word in str(caught.value) for word in [source.name, *words]), str(caught.value)


def test_with_names_of_arrays_only_formats_that_hold_named_arrays_are_allowed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"ends in '\.npy'; allowed: with --x: \.npz, \.pt, \.h5, \.hdf5; of images"):
        read_arrays([_unnamed_npy(tmp_path)], Columns(x="a"))


def test_tensors_of_half_precision_brain_floats_are_read(tmp_path: Path) -> None:
    import torch

    tensors = {key: torch.as_tensor(value) for key, value in arrays().items()}
    torch.save({**tensors, "X_train": tensors["X_train"].bfloat16()}, tmp_path / "all.pt")
    import_arrays(ImportRequest(sources=[tmp_path / "all.pt"], out=tmp_path / "out.h5"))
    assert np.allclose(read(tmp_path / "out.h5")[0], TRAIN, rtol=2**-7)


@pytest.mark.parametrize("kind", [list, tuple])
def test_text_in_a_tensor_file_may_be_a_list(tmp_path: Path, kind: type) -> None:
    import torch

    names = ["ant", "bee", "cat"]
    content: dict[str, Any] = {"class_names": kind(names)}
    for group, count in (("train", 30), ("test", 9)):
        labels = np.arange(count) % 3
        content[f"X_{group}"] = torch.eye(3)[labels] + (torch.arange(count)[:, None] + (group == "test") / 2) / 100
        content[f"y_{group}"] = kind(names[label] for label in labels)
        content[f"id_{group}"] = kind(f"{group}-{row}" for row in range(count))
    torch.save(content, tmp_path / "all.pt")
    import_arrays(ImportRequest(sources=[tmp_path / "all.pt"], out=tmp_path / "out.h5"))
    with FeatureFile(tmp_path / "out.h5") as features:
        assert list(features.description.class_names) == names
        assert features.labels("train").tolist() == [row % 3 for row in range(30)]
        assert features.ids("train")[:2] == ["train-0", "train-1"]


def two_arrays(folder: Path, names: tuple[str, str] = ("X", "y")) -> list[Path]:
    for name, array in zip(names, (TRAIN, Y_TRAIN), strict=True):
        np.save(folder / f"{name}.npy", array)
    return [folder / f"{name}.npy" for name in names]


@pytest.mark.parametrize("names", [("X", "y"), ("features", "labels")])
def test_two_array_files_are_rows_and_labels(tmp_path: Path, names: tuple[str, str]) -> None:
    found = read_arrays(two_arrays(tmp_path, names))
    assert found.keys() == {"X_train", "y_train"}
    assert np.array_equal(found["X_train"], TRAIN)
    assert np.array_equal(found["y_train"], Y_TRAIN)
    assert read_arrays([tmp_path]).keys() == found.keys()  # their folder too


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("kind", ["<f4", ">f2", "u1"])
@pytest.mark.parametrize("shape", [(7, 4), (7, 2, 3), (7, 0), (0, 3)])
def test_rows_read_from_a_file_are_those_of_the_array(
    tmp_path: Path, order: Any, kind: str, shape: tuple[int, ...]
) -> None:
    array = np.asarray(np.random.default_rng(0).integers(0, 99, shape), dtype=kind, order=order)
    np.save(tmp_path / "X.npy", array)
    stored = open_array(tmp_path / "X.npy")
    assert (stored.shape, stored.dtype, stored.ndim, len(stored)) == (array.shape, array.dtype, array.ndim, len(array))
    numbers = np.random.default_rng(1).permutation(len(array))
    for key in (slice(None), slice(2, 5), slice(5, 99), slice(4, 2), numbers, numbers[:3], numbers[:0]):
        assert stored[key].dtype == array.dtype
        assert np.array_equal(stored[key], array[key]), key
    assert np.array_equal(np.asarray(stored), array)
    assert all(np.array_equal(stored[row], array[row]) for row in numbers)


@pytest.mark.parametrize("owned", [False, True])
@pytest.mark.parametrize("change", ["cut", "written"])
def test_rows_that_change_while_they_are_imported_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], change: str, owned: bool
) -> None:
    """In a copy of this process: the system ends one whose mapped file is cut."""
    folder = tmp_path / "arrays"
    folder.mkdir()
    people = {"owner_train": np.arange(9), "owner_test": np.arange(9, 15)}
    for key, value in (arrays() | (people if owned else {})).items():
        np.save(folder / f"{key}.npy", value)
    write = array_import._write_group

    def changing(writer: FeatureWriter, group: str, *rest: Any) -> None:
        if group == "test":
            path = folder / "X_test.npy"
            if change == "cut":
                os.truncate(path, 100)
            else:
                np.save(path, -np.load(path))
                os.utime(path, (1, 1))
        write(writer, group, *rest)

    monkeypatch.setattr(array_import, "_write_group", changing)
    assert ended(start_copy(lambda: run(["import", str(folder), "--out", str(tmp_path / "out.h5")]))) == 3
    assert f"array file {folder / 'X_test.npy'} was written to after it was opened" in capfd.readouterr().err
    assert not (tmp_path / "out.h5").exists()


def test_rows_and_labels_of_one_file_are_divided_with_their_ids_and_people(tmp_path: Path) -> None:
    people, ids = np.array([f"p{row // 2}" for row in range(9)]), np.array([f"i{row}" for row in range(9)])
    np.savez(tmp_path / "scans.npz", features=TRAIN, labels=Y_TRAIN, id=ids, owner=people)
    found = read_arrays([tmp_path / "scans.npz"])
    assert found["owner_train"].tolist() == people.tolist()
    assert found["id_train"].tolist() == ids.tolist()


def test_rows_alone_stay_rows_without_labels_and_a_note_names_the_labels_beside(tmp_path: Path) -> None:
    notes: list[str] = []

    class Notes(Silent):
        def note(self, text: str) -> None:
            notes.append(text)

    rows, labels = two_arrays(tmp_path)
    assert read_arrays([rows], progress=Notes()).keys() == {"X_rows"}
    assert notes == [f"{rows} holds rows without labels; {labels} beside it is not read: give both to read both"]


def test_validation_rows_of_a_folder_are_named_and_not_read(tmp_path: Path) -> None:
    notes: list[str] = []

    class Notes(Silent):
        def note(self, text: str) -> None:
            notes.append(text)

    read_arrays(as_clip_benchmark(tmp_path), progress=Notes())
    assert len(notes) == 1
    assert "features_val.pt, targets_val.pt, which are not read" in notes[0]


def test_an_array_of_two_files_is_refused(tmp_path: Path) -> None:
    for name in ("X_train", "features_train"):
        np.save(tmp_path / f"{name}.npy", TRAIN)
    with pytest.raises(DataError, match=r"features_train\.npy holds X_train, and so does a file before it"):
        read_arrays(sorted(tmp_path.iterdir()))


def test_files_and_folders_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    """The last one would win: all labels would be those of other classes, or rows be lost."""
    for name, listed in (("train", ["a", "b", "c"]), ("test", ["a", "b", "c"]), ("public", ["b", "a", "c"])):
        np.savez(tmp_path / f"{name}.npz", X=TRAIN, y=Y_TRAIN, class_names=listed)
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "X_train.npy", TRAIN)
        (tmp_path / name / "._X_test.npy").write_bytes(b"from a Mac")
    read_arrays([tmp_path / "train.npz", tmp_path / "test.npz"])
    for suffix, key in ((".npz", "class_names"), ("", "X_train")):
        with pytest.raises(DataError, match=f"holds {key}, and so does a file before it"):
            read_arrays([tmp_path / f"train{suffix}", tmp_path / f"public{suffix}"])


def test_arrays_with_a_group_win_over_a_pair_without_one(tmp_path: Path) -> None:
    np.savez(tmp_path / "both.npz", **arrays(), features=TEST, labels=Y_TEST)
    assert np.array_equal(read_arrays([tmp_path / "both.npz"])["X_train"], TRAIN)


def test_an_hdf5_file_without_the_names_is_told_to_name_its_arrays(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "scans.h5", "w") as file:
        file["embeddings"], file["diagnosis"] = TRAIN, Y_TRAIN
    with pytest.raises(UsageError, match="'diagnosis', 'embeddings', named with --x KEY --y KEY"):
        read_arrays([tmp_path / "scans.h5"])


@pytest.mark.parametrize("columns", [Columns(), Columns(x="features", y="labels")])
@pytest.mark.parametrize("link", [h5py.SoftLink("/nowhere"), h5py.ExternalLink("other.h5", "/x")])
def test_a_link_in_an_hdf5_file_is_refused_only_where_it_is_read(tmp_path: Path, columns: Columns, link: Any) -> None:
    with h5py.File(tmp_path / "scans.h5", "w") as file:
        file["features"], file["labels"], file["thumbnails"] = TRAIN, Y_TRAIN, link
    assert np.array_equal(read_arrays([tmp_path / "scans.h5"], columns)["X_train"], TRAIN)
    with h5py.File(tmp_path / "scans.h5", "r+") as file:
        del file["features"]
        file["features"] = link
    with pytest.raises(DataError, match="features is a link; allowed: data in the file itself"):
        read_arrays([tmp_path / "scans.h5"], columns)


def test_an_array_of_an_hdf5_file_that_is_not_read_is_named(tmp_path: Path) -> None:
    """It may say whose the rows are."""
    notes: list[str] = []

    class Notes(Silent):
        def note(self, text: str) -> None:
            notes.append(text)

    with h5py.File(tmp_path / "scans.h5", "w") as file:
        file["features"], file["labels"], file["patient"] = TRAIN, Y_TRAIN, Y_TRAIN
    assert read_arrays([tmp_path / "scans.h5"], progress=Notes()).keys() == {"X_train", "y_train"}
    assert "patient, which is not read" in notes[0]
