"""The feature file: a round trip through disk, reading in blocks, and refusal of damaged files with the reason."""

from __future__ import annotations

import json
import shutil
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from linprobe.data import feature_file
from linprobe.data.blocks import BLOCK_ROWS
from linprobe.data.feature_file import SCHEMA_VERSION, FeatureFile
from linprobe.data.feature_reader import Description
from linprobe.data.feature_writer import FeatureWriter
from linprobe.data.row_checks import check_rows
from linprobe.errors import DataError, LinprobeError

NAMES = ("ünï", "b c", '"quoted"')


def write(
    path: Path,
    rows: Any,
    labels: Any = None,
    ids: Any = None,
    *,
    names: tuple[str, ...] = NAMES,
    block: int = 10_000,
    dtype: type = np.float32,
) -> Path:
    """A file whose train group holds `rows`; its test rows are larger by 100."""
    labels = np.arange(len(rows)) % len(names) if labels is None else labels
    ids = [f"r{row}" for row in range(len(rows))] if ids is None else ids
    with FeatureWriter(path, Description(class_names=names)) as writer:
        for group, more in (("train", 0), ("test", 100)):
            parts = (rows[start : start + block] + rows.dtype.type(more) for start in range(0, len(rows), block))
            writer.write_group(group, len(rows), rows.shape[1], parts, labels, ids, dtype)
    return path


@pytest.mark.parametrize("group", ["train", "test", "public"])
def test_rows_without_labels_are_in_a_file_of_their_own(tmp_path: Path, group: str) -> None:
    path = tmp_path / "new.h5"
    with FeatureWriter(path, Description(class_names=NAMES)) as writer:
        writer.write_group("rows", 3, 4, [np.ones((3, 4))], None, "abc")
    with h5py.File(path, "a") as file:
        file.copy("rows", group)
        file[group]["y"] = np.arange(3)
    with pytest.raises(DataError, match=f"holds the groups {group}, rows; allowed: rows alone"):
        FeatureFile(path)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    n_rows=st.integers(1, 40),
    width=st.integers(1, 9),
    block=st.integers(1, 50),
    dtype=st.sampled_from([np.float16, np.float32]),
    ids=st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), min_size=40, unique=True),
    seed=st.integers(0, 2**32 - 1),
)
def test_what_is_written_is_read_back(
    tmp_path: Path, n_rows: int, width: int, block: int, dtype: Any, ids: list[str], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((n_rows, width)).astype(dtype)
    labels = rng.integers(0, len(NAMES), n_rows)
    path = write(tmp_path / "f.h5", rows, labels, ids[:n_rows], block=block, dtype=dtype)
    with FeatureFile(path) as features, pytest.MonkeyPatch.context() as patched:
        patched.setattr("linprobe.data.feature_reader.BLOCK_ROWS", block)
        check_rows(features)
        read = list(features.blocks("train"))
        assert np.array_equal(np.concatenate([x for x, _ in read]), rows)
        assert read[0][0].dtype == dtype
        assert np.array_equal(np.concatenate([y for _, y in read]), labels)
        assert features.ids("train") == ids[:n_rows]
        assert features.description.class_names == NAMES
        assert features.sizes == {"train": n_rows, "test": n_rows}
        assert features.n_features == width


def test_description_and_text_weights_are_read_back(tmp_path: Path) -> None:
    description = Description(
        class_names=("a", "b"), backbone="rn50", weights="w", weights_digest="d", preprocessing="p", source="s"
    )
    text = np.arange(6, dtype=np.float32).reshape(3, 2)
    with FeatureWriter(tmp_path / "f.h5", description) as writer:
        for group, scale in (("train", 1), ("test", 2)):
            writer.write_group(group, 2, 3, [scale * np.eye(2, 3)], np.array([0, 1]), ["x", "y"])
        writer.write_text_weights(text)
    with FeatureFile(tmp_path / "f.h5") as features:
        assert features.description == description
        assert np.array_equal(features.text_weights(), text)


def test_ten_thousand_class_names_fit(tmp_path: Path) -> None:
    names = tuple(f"a rather long class name, number {index}" for index in range(10_000))
    with FeatureFile(write(tmp_path / "f.h5", np.eye(2), names=names)) as features:
        assert features.description.class_names == names


@pytest.mark.parametrize("block_rows", [1, 7, 119, 120, 500])
def test_blocks_put_together_are_the_group_whatever_their_size(
    features_file: Path, block_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("linprobe.data.feature_reader.BLOCK_ROWS", block_rows)
    keep = np.random.default_rng(0).random(120) < 0.4
    with FeatureFile(features_file) as features, h5py.File(features_file) as raw:
        for mask in (None, keep):
            blocks = list(features.blocks("test", mask))
            assert all(0 < len(x) <= block_rows for x, _ in blocks)
            chosen = slice(None) if mask is None else mask
            assert np.array_equal(np.concatenate([x for x, _ in blocks]), raw["test/x"][chosen])
            assert np.array_equal(np.concatenate([y for _, y in blocks]), raw["test/y"][chosen])


def test_ids_are_read_once_and_those_of_other_rows_again(features_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads, read = [], feature_file.texts
    monkeypatch.setattr(feature_file, "texts", lambda *given: reads.append(given[-1]) or read(*given))
    with FeatureFile(features_file) as features, h5py.File(features_file) as raw:
        for group in ("train", "test"):
            ids = [name.decode() for name in raw[f"{group}/id"]]
            assert features.ids(group) == ids
            assert [name for batch in features.batches("id", group) for name in batch] == ids
            assert features.ids(group, slice(3, 9)) == ids[3:9]
            assert features.ids(group) == ids
    assert reads == 2 * [slice(None), slice(3, 9), slice(None)]


def test_reading_holds_a_block_not_the_group(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((20_000, 128)).astype(np.float32)
    path = write(tmp_path / "f.h5", rows)
    with FeatureFile(path) as features:
        tracemalloc.start()
        try:
            sizes = [len(x) for x, _ in features.blocks("train")]
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert sum(sizes) == len(rows)
    assert max(sizes) <= BLOCK_ROWS
    assert peak < rows.nbytes / 3


def _other_row(rows: Any, labels: Any, ids: list[str], names: tuple[str, ...]) -> Any:
    rows = rows.copy()
    rows[3, 1] = np.nextafter(rows[3, 1], np.float32(9))
    return rows, labels, ids, names


def _other_label(rows: Any, labels: Any, ids: list[str], names: tuple[str, ...]) -> Any:
    return rows, np.where(np.arange(len(labels)) == 5, (labels + 1) % 3, labels), ids, names


def _other_id(rows: Any, labels: Any, ids: list[str], names: tuple[str, ...]) -> Any:
    return rows, labels, [*ids[:-1], "other"], names


def _other_name(rows: Any, labels: Any, ids: list[str], names: tuple[str, ...]) -> Any:
    return rows, labels, ids, (*names[:-1], "other")


def _other_order(rows: Any, labels: Any, ids: list[str], names: tuple[str, ...]) -> Any:
    return rows[::-1], labels[::-1], ids[::-1], names


@pytest.mark.parametrize("change", [_other_row, _other_label, _other_id, _other_name, _other_order])
def test_digest_changes_with(tmp_path: Path, change: Callable[..., Any]) -> None:
    whole = np.random.default_rng(1).standard_normal((10, 4)).astype(np.float32)
    before = (whole, np.arange(10) % 3, [f"r{row}" for row in range(10)], NAMES)
    digests = []
    for name, (rows, labels, ids, names) in (("a", before), ("b", before), ("c", change(*before))):
        with FeatureFile(write(tmp_path / f"{name}.h5", rows, labels, ids, names=names)) as features:
            digests.append(features.digest("train"))
    assert digests[0] == digests[1]
    assert digests[0] != digests[2]


def test_digest_of_kept_rows_is_that_of_a_file_of_only_those(tmp_path: Path) -> None:
    rows = np.random.default_rng(1).standard_normal((30, 4)).astype(np.float32)
    labels, keep = np.arange(30) % 3, np.arange(30) % 4 != 1
    ids = [f"r{row}" for row in range(30)]
    kept_ids = [name for name, kept in zip(ids, keep, strict=True) if kept]
    with (
        FeatureFile(write(tmp_path / "a.h5", rows, labels, ids)) as whole,
        FeatureFile(write(tmp_path / "b.h5", rows[keep], labels[keep], kept_ids)) as part,
    ):
        assert whole.digest("train", keep) == part.digest("train")
        assert whole.digest("train", ~keep) != part.digest("train")


def _replace(file: h5py.File, name: str, value: Any) -> None:
    del file[name]
    file[name] = value


def _drop(name: str) -> Callable[[h5py.File], None]:
    return lambda file: file.__delitem__(name)


def _attribute(name: str, value: Any) -> Callable[[h5py.File], None]:
    return lambda file: file.attrs.__setitem__(name, value)


def _set(name: str, value: Any) -> Callable[[h5py.File], None]:
    return lambda file: _replace(file, name, value)


def _label(value: int) -> Callable[[h5py.File], None]:
    return lambda file: file["train/y"].__setitem__(7, value)


DAMAGE: dict[str, tuple[Callable[[h5py.File], Any], list[str]]] = {
    "incomplete": (_attribute("complete", False), ["incomplete"]),
    "complete missing": (lambda file: file.attrs.__delitem__("complete"), ["incomplete"]),
    "newer schema": (_attribute("schema_version", SCHEMA_VERSION + 1), ["schema", str(SCHEMA_VERSION + 1), "upgrade"]),
    "schema 0": (_attribute("schema_version", 0), ["schema version 0", "make the file again, or upgrade"]),
    "no schema": (lambda file: file.attrs.__delitem__("schema_version"), ["schema_version"]),
    "schema is text": (_attribute("schema_version", "one"), ["schema"]),
    "no class names": (lambda file: file.attrs.__delitem__("class_names"), ["class_names"]),
    "class names not JSON": (_attribute("class_names", "ant, bee"), ["class_names"]),
    "class names one text": (_attribute("class_names", '"ants"'), ["class"]),
    "empty class list": (_attribute("class_names", "[]"), ["0 classes", "at least 2"]),
    "one class": (_attribute("class_names", '["ant"]'), ["1 class;", "at least 2"]),
    "repeated class": (_attribute("class_names", '["a", "b", "b", "c"]'), ["class name 'b' twice"]),
    "no train group": (_drop("train"), ["no group 'train'"]),
    "train is no group": (_set("train", np.zeros((3, 2))), ["train"]),
    "no labels": (_drop("train/y"), ["'train'", "'y'"]),
    "no ids": (_drop("public/id"), ["'public'", "'id'"]),
    "x is a vector": (_set("test/x", np.zeros(120, np.float32)), ["test/x", "(120,)"]),
    "x has no columns": (_set("test/x", np.zeros((120, 0), np.float32)), ["test/x", "(120, 0)"]),
    "x is float64": (_set("test/x", np.zeros((120, 10))), ["test/x", "float64"]),
    "owner is a group": (lambda file: file.create_group("train/owner"), ["train/owner is no data set"]),
    "x is a group": (lambda file: (file.__delitem__("test/x"), file.create_group("test/x")), ["test"]),
    "fewer labels": (_set("train/y", np.zeros(399, int)), ["400 rows", "399 labels"]),
    "labels are one number": (_set("train/y", 3), ["train", "labels"]),
    "labels are fractions": (_set("train/y", np.full(400, 0.5)), ["train", "labels"]),
    "more ids": (_set("train/id", [f"r{row}" for row in range(401)]), ["401 ids"]),
    "ids are numbers": (_set("train/id", np.arange(400)), ["train", "id"]),
    "label above": (_label(4), ["1 label outside the 4 declared classes", "row 7", "label 4"]),
    "label below": (_label(-1), ["row 7", "label -1"]),
    "another width": (_set("test/x", np.zeros((120, 11), np.float32)), ["[10, 11]", "one width"]),
    "text of another shape": (_set("text/weights", np.zeros((4, 10), np.float32)), ["text/weights", "(4, 10)"]),
    "repeated ids": (lambda file: file["train/id"].__setitem__(9, "train/0000"), ["1 repeated id,"]),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_file_is_refused_with_the_reason(editable: Path, damage: str) -> None:
    change, words = DAMAGE[damage]
    with h5py.File(editable, "r+") as file:
        change(file)

    def read_all() -> None:
        with FeatureFile(editable) as features:
            check_rows(features)

    with pytest.raises(DataError) as caught:
        read_all()
    assert all(word in str(caught.value) for word in ["edited.h5", *words]), str(caught.value)


@pytest.mark.parametrize(
    "fields", [(15, 7, 8, 0, 7, 127, 2), (23, 15, 8, 0, 15, 127, 3), (7, 2, 5, 0, 2, 15, 1)], ids=["bf16", "24", "fp8"]
)
def test_rows_stored_in_another_type_than_they_are_read_are_refused(editable: Path, fields: tuple[int, ...]) -> None:
    """HDF5 turns such numbers into float32; their bytes, which are read directly, are other numbers."""
    kind = h5py.h5t.IEEE_F32LE.copy()
    *places, bias, size = fields
    kind.set_fields(*places)
    kind.set_precision(8 * size)
    kind.set_ebias(bias)
    kind.set_size(size)
    with h5py.File(editable, "r+") as file:
        rows = file["public/x"][:]
        del file["public/x"]
        space = h5py.h5s.create_simple(rows.shape)
        h5py.h5d.create(file["public"].id, b"x", kind, space).write(h5py.h5s.ALL, h5py.h5s.ALL, rows)
    with pytest.raises(DataError, match=f"public/x is stored in another type, of {size} bytes, that HDF5 turns into"):
        FeatureFile(editable)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_rows_that_are_not_finite_are_counted_and_the_first_five_named(editable: Path, value: float) -> None:
    bad = [2, 30, 31, 200, 201, 377, 399]
    with h5py.File(editable, "r+") as file:
        for row in bad:
            file["train/x"][row, row % 10] = value
    with FeatureFile(editable) as features, pytest.raises(DataError, match="7 rows with NaN") as caught:
        check_rows(features)
    assert "[2, 30, 31, 200, 201]" in str(caught.value)


@pytest.mark.parametrize("value", [3.4e38, 1e-45])
def test_rows_whose_squares_leave_float32_are_finite(editable: Path, value: float) -> None:
    with h5py.File(editable, "r+") as file:
        file["train/x"][3] = value
    with FeatureFile(editable) as features:
        check_rows(features)
        assert features.checked


def test_text_weights_that_are_not_finite_are_refused(editable: Path) -> None:
    with h5py.File(editable, "r+") as file:
        file["text/weights"][3, 1] = np.nan
    with FeatureFile(editable) as features, pytest.raises(DataError, match="text/weights"):
        check_rows(features)


@pytest.mark.filterwarnings("error")
def test_text_weights_beyond_float32_are_refused_as_such(editable: Path) -> None:
    with h5py.File(editable, "r+") as file:
        weights = file["text/weights"][:].astype(np.float64)
        weights[3, 1] = -1e300
        _replace(file, "text/weights", weights)
    with (
        FeatureFile(editable) as features,
        pytest.raises(DataError, match=r"text/weights holds 1e\+300, beyond float32"),
    ):
        features.text_weights()


def test_missing_foreign_and_truncated_files_are_told_apart(tmp_path: Path, features_file: Path) -> None:
    foreign, truncated = tmp_path / "foreign.h5", tmp_path / "truncated.h5"
    foreign.write_text("id,label\n")
    truncated.write_bytes(features_file.read_bytes()[:-1000])
    for path, words in (
        (tmp_path / "none.h5", "does not exist"),
        (foreign, "not an HDF5 file"),
        (truncated, "is truncated"),
    ):
        with pytest.raises(DataError, match=words):
            FeatureFile(path)


FAULTS = {
    "[Errno 5] Unable to synchronously open file (file read failed: time = Tue Nov 24 11:56:54 2026\n, errno = 5, "
    "error message = 'Input/output error', buf = 0x7fff11e22098)": ["Input/output error", "check the disk"],
    "[Errno 11] Unable to synchronously open file (unable to lock file, errno = 11)": ["another process is writing it"],
    "Unable to synchronously open file (unable to lock file, errno = 37)": ["HDF5_USE_FILE_LOCKING=FALSE"],
    "Can't synchronously open file (open failed, errno = 13)": ["Permission denied", "make it readable"],
}


@pytest.mark.parametrize("message", FAULTS)
def test_a_fault_of_the_system_names_its_cause_and_does_not_blame_the_file(
    features_file: Path, monkeypatch: pytest.MonkeyPatch, message: str
) -> None:
    def fails(*_: object) -> None:
        raise OSError(message)

    with FeatureFile(features_file) as features, monkeypatch.context() as patched:
        patched.setattr(h5py.Dataset, "__getitem__", fails)
        patched.setattr(h5py, "File", fails)
        for call in (lambda: features.labels("train"), lambda: FeatureFile(features_file)):
            with pytest.raises(LinprobeError) as caught:
                call()
            assert caught.value.exit_status == 1
            for words in (*FAULTS[message], str(features_file)):
                assert words in str(caught.value)
            for words in ("make it again", "make the file again", "0x", "time =", "\n"):
                assert words not in str(caught.value).replace(str(features_file), "")


def test_a_file_that_its_writer_did_not_close_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "f.h5"
    with h5py.File(path, "w", libver="latest") as file:
        file.swmr_mode = True
        file.flush()
        (tmp_path / "copy.h5").write_bytes(path.read_bytes())
    with pytest.raises(DataError, match="is being written, or its writer was killed"):
        FeatureFile(tmp_path / "copy.h5")


def test_an_unknown_filter_is_named_and_loads_no_library(editable: Path) -> None:
    assert h5py.h5pl.size() == 0
    with h5py.File(editable, "r+") as file:
        rows = file["train/x"][:]
        del file["train/x"]
        file.create_dataset("train/x", data=rows, chunks=True, compression="gzip")
    content = editable.read_bytes()
    place = content.index(b"deflate") - 8  # the message of the filter: its number before its name
    assert content[place : place + 2] == b"\x01\x00"
    editable.write_bytes(content[:place] + b"\x0f\x7d" + content[place + 2 :])
    with pytest.raises(DataError, match=r"filter 32015 \(deflate\), which needs a plug-in"):
        FeatureFile(editable)


def test_damaged_rows_are_refused_while_scanning(tmp_path: Path) -> None:
    path = tmp_path / "f.h5"
    with FeatureWriter(path, Description(class_names=("a", "b"))) as writer:
        for group, scale in (("train", 1), ("test", 2)):
            writer.write_group(group, 4, 2, [scale * np.eye(4, 2)], np.array([0, 1, 0, 1]), list("abcd"))
    with h5py.File(path, "r+") as file:
        del file["train/x"]
        checked = file.create_dataset("train/x", data=np.full((4, 2), 0.7, np.float32), chunks=(4, 2), fletcher32=True)
        offset = checked.id.get_chunk_info(0).byte_offset
    with path.open("r+b") as stream:
        stream.seek(offset)
        stream.write(b"\1\2\3")
    with FeatureFile(path) as features, pytest.raises(DataError, match="train/x cannot be read"):
        check_rows(features)


def _failing_blocks(error: BaseException) -> Iterator[Any]:
    yield np.eye(2, 3)
    raise error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("no space"), ValueError("bad")])
def test_interrupted_writing_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "f.h5"

    def attempt() -> None:
        with FeatureWriter(path, Description(class_names=("a", "b"))) as writer:
            writer.write_group("train", 9, 3, _failing_blocks(error), np.zeros(9, int), list("abcdefghi"))

    with pytest.raises(type(error)):
        attempt()
    assert list(tmp_path.iterdir()) == []


def test_a_source_name_that_is_no_text_is_stored_readably(tmp_path: Path) -> None:
    with FeatureWriter(tmp_path / "f.h5", Description(class_names=("a", "b"), source="name \udcff.npz")) as writer:
        for group, scale in (("train", 1), ("test", 2)):
            writer.write_group(group, 2, 2, [scale * np.eye(2)], np.array([0, 1]), ["r0", "r1"])
    with FeatureFile(tmp_path / "f.h5") as features:
        assert features.description.source == "name ?.npz"


def test_refused_writing_keeps_the_file_that_was_there(tmp_path: Path, features_file: Path) -> None:
    path = Path(shutil.copy(features_file, tmp_path / "f.h5"))
    before = path.read_bytes()
    with pytest.raises(DataError, match=r"f\.h5.*1 row with NaN"):
        write(path, np.array([[1.0, np.nan], [1.0, 2.0]]))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_fewer_rows_than_promised_are_refused(tmp_path: Path) -> None:
    def attempt() -> None:
        with FeatureWriter(tmp_path / "f.h5", Description(class_names=("a", "b"))) as writer:
            for group in ("train", "test"):
                writer.write_group(group, 3, 2, [np.eye(2)], np.zeros(3, int), ["x", "y", "z"])

    with pytest.raises(DataError, match="rows"):
        attempt()
    assert list(tmp_path.iterdir()) == []


def test_class_names_are_stored_as_one_json_list(features_file: Path) -> None:
    with h5py.File(features_file) as file:
        assert json.loads(file.attrs["class_names"]) == ["ant", "bee", "cat", "dog"]
        assert file["train/x"].chunks[1] == file["train/x"].shape[1]
