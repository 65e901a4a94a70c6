"""Test rows are other records than the training rows, and belong to other people."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from linprobe.data.array_import import import_arrays
from linprobe.data.feature_file import FeatureFile
from linprobe.data.feature_reader import Description
from linprobe.data.feature_writer import FeatureWriter
from linprobe.data.row_checks import check_rows
from linprobe.errors import DataError, Silent
from linprobe.options.requests import ImportRequest

RNG = np.random.default_rng(3)
N_TRAIN, N_TEST = 300, 40
TRAIN = RNG.standard_normal((N_TRAIN, 20)).astype(np.float32)
TEST = RNG.standard_normal((N_TEST, 20)).astype(np.float32)
EQUAL = "test rows equal training rows"


class Notes(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def imported(folder: Path, test: Any, train: Any = TRAIN, **more: Any) -> list[str]:
    """Import the rows; the notes."""
    arrays = {f"X_{group}": x for group, x in (("train", train), ("test", test))}
    arrays |= {f"y_{group}": np.arange(len(x)) % 2 for group, x in (("train", train), ("test", test))}
    np.savez(folder / "a.npz", **{**arrays, **more})
    notes = Notes()
    import_arrays(ImportRequest(sources=[folder / "a.npz"], out=folder / "a.h5"), ["a", "b"], progress=notes)
    return notes.notes


def score(folder: Path) -> None:
    """Do with the imported file what every command does that scores its test rows."""
    with FeatureFile(folder / "a.h5") as features:
        check_rows(features)
        if features.equal is not None:
            features.equal.refuse_many()


def with_copies(*copies: Any) -> Any:
    return np.concatenate([TEST[: N_TEST // 2], *copies, TEST[N_TEST // 2 :]])


COPIES: dict[str, Any] = {
    "the first": TRAIN[:1],
    "the last": TRAIN[-1:],
    "a multiple": 4 * TRAIN[7:8],
    "a small multiple": TRAIN[7:8] / 2**20,
    "a multiple in half precision": (TRAIN[7:8] / 255).astype(np.float16),
    "rounded to half precision": TRAIN[7:8].astype(np.float16),
    "several": TRAIN[::50],
}


@pytest.mark.parametrize("copies", COPIES)
@pytest.mark.parametrize("private", [False, True])
def test_a_copy_of_a_training_row_is_no_test_row(tmp_path: Path, copies: str, private: bool) -> None:
    test = with_copies(COPIES[copies])
    np.savez(tmp_path / "a.npz", X_train=TRAIN, y_train=np.arange(300) % 2, X_test=test, y_test=np.ones(len(test), int))
    import_arrays(ImportRequest(sources=[tmp_path / "a.npz"], out=tmp_path / "a.h5", private_test=private), ["a", "b"])
    with pytest.raises(DataError, match=rf"{len(COPIES[copies])} of {len(test)} {EQUAL}.*test rows \[20[,\]]"):
        score(tmp_path)


def test_all_training_rows_twice_are_no_test_rows(tmp_path: Path) -> None:
    imported(tmp_path, np.concatenate([TRAIN, TRAIN]))
    with pytest.raises(DataError, match=f"600 of 600 {EQUAL}"):
        score(tmp_path)


def test_the_sign_of_a_zero_makes_no_other_row(tmp_path: Path) -> None:
    zeros = np.where(TRAIN > 0.3, TRAIN, np.float32(0))
    imported(tmp_path, with_copies(np.where(zeros[:1] == 0, np.float32(-0.0), zeros[:1])), zeros)
    with pytest.raises(DataError, match=f"1 of 41 {EQUAL}"):
        score(tmp_path)


def test_equal_rows_are_found_where_half_precision_ends(tmp_path: Path) -> None:
    for scale in (1e9, 1e-9):
        few = scale * np.array([[1, 2], [3, 4], [5, 7]], dtype=np.float32)
        imported(tmp_path, few[1:] * [[1], [1.5]], few)
        with pytest.raises(DataError, match=f"1 of 2 {EQUAL}"):
            score(tmp_path)


def test_other_rows_are_test_rows(tmp_path: Path) -> None:
    close = TRAIN[:40].copy()
    close[:, 11] += 0.5
    assert imported(tmp_path, close) == []
    assert imported(tmp_path, -TRAIN) == []


def test_an_empty_place_equals_no_test_row(tmp_path: Path) -> None:
    empty = np.zeros((1, 20), dtype=np.float32)
    assert imported(tmp_path, with_copies(empty), np.concatenate([TRAIN, empty])) == []


def test_multiples_of_rows_with_few_entries_may_be_other_records(tmp_path: Path) -> None:
    ages = np.zeros((60, 2), dtype=np.float32)
    ages[:, 0] = 20 + np.arange(60)
    assert not [note for note in imported(tmp_path, ages[40:], ages[:40]) if "squared length" not in note]


def test_one_row_in_a_thousand_may_be_scored_and_two_may_not(tmp_path: Path) -> None:
    x = RNG.standard_normal((3000, 20)).astype(np.float32)
    train, test = x[:1500], x[1500:]
    test[5] = train[9]
    assert imported(tmp_path, test, train[10:]) == []
    (note,) = imported(tmp_path, test, train)
    assert f"1 of 1,500 {EQUAL}" in note
    assert "[5]" in note
    score(tmp_path)
    imported(tmp_path, test[:999], train)
    with pytest.raises(DataError, match=rf"1 of 999 {EQUAL}.*allowed: 0"):
        score(tmp_path)
    test[700] = train[800]
    imported(tmp_path, test, train)
    with pytest.raises(DataError, match=rf"2 of 1,500 {EQUAL}.*\[5, 700\]; allowed: 1,"):
        score(tmp_path)
    imported(tmp_path, np.concatenate([x, TRAIN[:10]]), TRAIN[:10])
    with pytest.raises(DataError, match=rf"10 of 3,010 {EQUAL}.*allowed: 0"):  # all of few private rows
        score(tmp_path)


def test_the_built_in_digits_hold_no_digit_twice(tmp_path: Path) -> None:
    from linprobe.data.digits import write_digits

    write_digits(tmp_path / "digits.h5")
    with FeatureFile(tmp_path / "digits.h5") as features:
        check_rows(features)
        assert features.equal is None


# bytes of the file


def contiguous(path: Path, *, chunks: bool) -> Path:
    """A feature file of square groups whose data sets are all of the same kind, stored plainly or in one chunk."""
    with h5py.File(path, "w") as file:
        file.attrs["schema_version"], file.attrs["complete"] = 1, True
        file.attrs["class_names"] = '["a", "b", "c", "d"]'
        for group, x in (("train", TRAIN), ("test", TEST), ("public", -TRAIN)):
            options: dict[str, Any] = {"chunks": (4, 4)} if chunks else {}
            file.create_dataset(f"{group}/x", data=x[:4, :4], **options)
            file[f"{group}/y"] = np.arange(4)
            file.create_dataset(f"{group}/id", data=[f"{group}{row}" for row in range(4)], dtype=h5py.string_dtype())
        file.create_dataset("text/weights", data=TEST[8:12, :4])
    return path


def hard_link(name: str, other: str) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        del file[name]
        file[name] = file[other]

    return change


LINKS: dict[str, tuple[Callable[[h5py.File], None], str]] = {
    "rows": (hard_link("test/x", "train/x"), "train/x and test/x are one data set"),
    "a group": (hard_link("test", "train"), "train/x and test/x are one data set"),
    "labels": (hard_link("test/y", "train/y"), "train/y and test/y are one data set"),
    "ids": (hard_link("public/id", "train/id"), "train/id and public/id are one data set"),
    "public rows": (hard_link("public/x", "train/x"), "train/x and public/x are one data set"),
    "text": (hard_link("text/weights", "train/x"), "train/x and text/weights are one data set"),
}


@pytest.mark.parametrize("link", LINKS)
def test_one_data_set_under_two_names_is_refused(tmp_path: Path, link: str) -> None:
    change, words = LINKS[link]
    path = contiguous(tmp_path / "f.h5", chunks=False)
    with h5py.File(path, "r+") as file:
        change(file)
    with pytest.raises(DataError, match=words):
        FeatureFile(path)


@pytest.mark.parametrize("chunks", [False, True])
@pytest.mark.parametrize("shift", [0, 8])
def test_two_data_sets_in_the_same_bytes_are_refused(tmp_path: Path, chunks: bool, shift: int) -> None:
    path = contiguous(tmp_path / "f.h5", chunks=chunks)
    with FeatureFile(path) as whole:
        check_rows(whole)
    with h5py.File(path) as file:
        places = [
            one.id.get_chunk_info(0).byte_offset if chunks else one.id.get_offset()
            for one in (file["train/x"], file["test/x"])
        ]
    mine, theirs = (struct.pack("<Q", place) for place in (places[0] + shift, places[1]))
    content = path.read_bytes()
    assert content.count(theirs) == 1
    path.write_bytes(content.replace(theirs, mine))
    with h5py.File(path) as file:
        assert np.array_equal(file["test/x"][:].ravel()[:8], TRAIN[:4, :4].ravel()[shift // 4 :][:8])
    with pytest.raises(DataError, match=r"t[a-z]+/x and t[a-z]+/x lie in the same bytes"):
        FeatureFile(path)


@pytest.mark.parametrize("chunks", [False, True])
def test_a_stated_size_that_hides_shared_bytes_is_refused(tmp_path: Path, chunks: bool) -> None:
    """Rows read from a place are as long as their shape says, whatever the file states of their bytes."""
    path = contiguous(tmp_path / "f.h5", chunks=chunks)
    with h5py.File(path) as file:
        theirs, place = (
            one.id.get_chunk_info(0).byte_offset if chunks else one.id.get_offset()
            for one in (file["train/x"], file["public/x"])
        )
    # a node of a B-tree: size, filters, offsets; a layout: place, then size
    stated, new = (
        (struct.pack("<QQ", 64, 0) + bytes(16), struct.pack("<QQ", 8, 0) + bytes(16)) if chunks else (b"", b"")
    )
    sizes = [b"" if chunks else struct.pack("<Q", size) for size in (64, 8)]
    content, old = path.read_bytes(), stated + struct.pack("<Q", place) + sizes[0]
    assert content.count(old) == 1
    path.write_bytes(content.replace(old, new + struct.pack("<Q", theirs - 32) + sizes[1]))
    with pytest.raises(DataError, match=r"public/x states 8 bytes for numbers of shape \(4, 4\); allowed: 64; make it"):
        FeatureFile(path)


def test_a_short_chunk_that_no_filter_wrote_is_refused(tmp_path: Path) -> None:
    """A mask says for each chunk which filters it went through; HDF5 would read a raw one beyond its end."""
    path = contiguous(tmp_path / "f.h5", chunks=False)
    with h5py.File(path, "a") as file:
        del file["public/x"]
        file["public"].create_dataset("x", (4, 4), "<f4", chunks=(4, 4), compression="gzip")
        file["public/x"].id.write_direct_chunk((0, 0), bytes(64), filter_mask=1)
    FeatureFile(path).close()
    with h5py.File(path, "a") as file:
        file["public/x"].id.write_direct_chunk((0, 0), bytes(8), filter_mask=1)
    with pytest.raises(DataError, match=r"public/x states 8 bytes for numbers of shape \(4, 4\); allowed: 64; make it"):
        FeatureFile(path)


# people


def owned(path: Path, **owners: list[str]) -> Path:
    """A feature file with the given owners of its groups."""
    rows = {"train": TRAIN[:6], "test": TEST[:6], "public": -TRAIN[:6]}
    with FeatureWriter(path, Description(class_names=("a", "b"))) as writer:
        for group, x in rows.items():
            labels, ids = np.arange(6) % 2, [f"{group}{row}" for row in range(6)]
            writer.write_group(group, 6, 20, [x], labels, ids, owners=owners.get(group))
    return path


@pytest.mark.parametrize("group", ["train", "public"])
def test_people_on_both_sides_are_counted_and_not_named(tmp_path: Path, group: str) -> None:
    given = {part: [f"{part} {person}" for person in (1, 1, 2, 2, 3, 3)] for part in ("train", "public", "test")}
    owned(tmp_path / "f.h5", **given)
    with pytest.raises(DataError, match="in test and in train or public: 2; allowed: 0") as caught:
        owned(tmp_path / "g.h5", **{**given, "test": [*given["test"][:3], *given[group][3:]]})
    assert not any(name in str(caught.value) for name in given[group])
    assert not (tmp_path / "g.h5").exists()


def test_people_are_compared_where_both_sides_name_them(tmp_path: Path) -> None:
    owned(tmp_path / "a.h5", train=list("aabbcc"))
    owned(tmp_path / "b.h5", test=list("aabbcc"))
    owned(tmp_path / "c.h5", train=list("aabbcc"), public=list("aabbcc"))
    with pytest.raises(DataError, match=r"train or public: 3; allowed: 0"):
        owned(tmp_path / "d.h5", test=list("aabbcc"), public=list("aabbcc"))


def test_import_refuses_people_on_both_sides(tmp_path: Path) -> None:
    people = np.arange(N_TRAIN) // 3 + 100  # in order as texts, too
    assert imported(tmp_path, TEST, owner_train=people, owner_test=np.arange(N_TEST) + 200) == []
    (tmp_path / "a.h5").unlink()
    with pytest.raises(DataError, match=r"a\.npz: people with rows on both sides.*: 1; allowed: 0"):
        imported(tmp_path, TEST, owner_train=people, owner_test=np.arange(N_TEST) + 199)
    assert not (tmp_path / "a.h5").exists()
