"""Owners of rows: import, adjacency of a person's rows, caps, public shots of whole people."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linprobe.data.array_import import import_arrays
from linprobe.data.blocks import pairs_of
from linprobe.data.dataset import Split, dataset_of, private_units, public_shots
from linprobe.data.feature_file import FeatureFile
from linprobe.data.feature_reader import GroupRows, people_by_group
from linprobe.data.labels import capped, one_spelling, owner_bounds, refuse_both_sides, refuse_spellings
from linprobe.errors import DataError, Silent, UsageError
from linprobe.options.requests import ImportRequest

OWNERS = np.array(["eve", "bob", "eve", "ann", "bob", "eve"])


def arrays(**more: Any) -> dict[str, Any]:
    """Six training rows in two classes, with their place as feature, and three test rows."""
    x = np.column_stack([np.arange(6), np.ones(6)]).astype(np.float32)
    test = x[:3] + np.array([[9, 9], [9, 10], [9, 11]], np.float32)  # no column has most of the squared length
    return {"X_train": x, "y_train": np.arange(6) % 2, "X_test": test, "y_test": np.arange(3) % 2, **more}


class Notes(Silent):
    """Progress that keeps the notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def imported(folder: Path, progress: Notes | None = None, owner: str | None = None, **more: Any) -> Path:
    np.savez(folder / "a.npz", **arrays(**more))
    import_arrays(
        ImportRequest(sources=[folder / "a.npz"], out=folder / "a.h5", owner_column=owner),
        progress=progress or Silent(),
    )
    return folder / "a.h5"


def test_import_puts_the_rows_of_an_owner_next_to_each_other(tmp_path: Path) -> None:
    given = {"owner_train": OWNERS, "id_train": np.array(list("abcdef")), "owner_test": np.array([7, 3, 7])}
    with FeatureFile(imported(tmp_path, **given)) as features:
        assert features.owners("train") == ["ann", "bob", "bob", "eve", "eve", "eve"]
        assert features.ids("train") == list("dbeacf")
        assert features.rows("train", slice(None))[:, 0].tolist() == [3, 1, 4, 0, 2, 5]
        assert features.labels("train").tolist() == [1, 1, 0, 0, 0, 1]
        assert features.owners("test") == ["3", "7", "7"]
        assert features.has_owners("train")
        loaded = pickle.loads(pickle.dumps(features))
        assert loaded.owners("train", slice(1, 3)) == ["bob", "bob"]
        assert loaded.digest("train") == features.digest("train")
        bounds, names = owner_bounds(features.owners("train"), "here")
        assert (bounds.tolist(), names) == ([0, 1, 3, 6], ["ann", "bob", "eve"])


SPELLINGS = [("eve", "eve "), ("eve", "\teve"), ("é", "e\u0301"), ("7", "7.0"), ("-7", "-7.")]


@pytest.mark.parametrize(("one", "two"), SPELLINGS)
def test_a_person_in_two_spellings_is_refused_wherever_they_meet(tmp_path: Path, one: str, two: str) -> None:
    assert one_spelling(one) == one_spelling(two) == one
    both = np.array([one, "bob", two, "ann", "bob", one])
    for given in ({"owner_train": both}, {"owner_train": np.full(6, one), "owner_test": np.full(3, two)}):
        with pytest.raises(DataError, match="1 owner is another owner in another spelling, with"):
            imported(tmp_path, **given)
    with pytest.raises(DataError, match="in another spelling"):
        owner_bounds(sorted(both.tolist()), "here")
    with pytest.raises(DataError, match="on both sides"):
        refuse_both_sides([one], [two], "here")


@pytest.mark.parametrize(("one", "two"), [("eve", "Eve"), ("7", "7.5"), ("7", "07"), ("a.0", "a"), ("a b", "a  b")])
def test_names_that_may_be_two_peoples_are_two(one: str, two: str) -> None:
    assert one_spelling(one) != one_spelling(two)
    refuse_spellings([one, two], "here")


@pytest.mark.parametrize(("one", "two"), SPELLINGS)
def test_budget_books_have_one_key_for_all_spellings(tmp_path: Path, one: str, two: str) -> None:
    keys = []
    for name in (one, two):
        with FeatureFile(imported(tmp_path, owner_train=np.full(6, name))) as features:
            keys.append(GroupRows(features, "train").name_keys(bytes(32))["owners"].tolist())
        (tmp_path / "a.h5").unlink()
    assert keys[0] == keys[1]


@pytest.mark.parametrize(
    ("empty", "said"),
    [(word, f": rows have the owner '{word.strip()}'") for word in ("", "  ", "nan", " None ", "<NA>", "NULL", "n/a")],
)
def test_an_owner_without_a_name_is_refused_before_a_file_is_written(tmp_path: Path, empty: str, said: str) -> None:
    with pytest.raises(DataError, match=f"owner_train{said}"):
        imported(tmp_path, owner_train=np.array([*OWNERS[:5], empty]))
    assert not (tmp_path / "a.h5").exists()


@pytest.mark.parametrize(
    ("given", "noted"),
    [
        ({"owner_train": OWNERS}, True),
        ({"owner_train": OWNERS, "id_train": list("abcdef")}, False),
        ({"owner_train": np.sort(OWNERS)}, False),
    ],
)
def test_a_note_says_that_rows_without_ids_moved(tmp_path: Path, given: dict[str, Any], noted: bool) -> None:
    progress = Notes()
    imported(tmp_path, progress, **given)
    assert any("sorted by person" in note and "id_train" in note for note in progress.notes) == noted


def test_owners_are_part_of_the_digest(tmp_path: Path) -> None:
    digests = set()
    for owners in (None, OWNERS, np.array(["a", "a", "b", "b", "b", "b"]), np.array(["a", "a", "a", "b", "b", "b"])):
        given = {} if owners is None else {"owner_train": np.sort(owners)}
        with FeatureFile(imported(tmp_path, **given)) as features:
            digests.add(features.digest("train"))
    assert len(digests) == 4


def test_import_names_the_arrays_that_it_does_not_read(tmp_path: Path) -> None:
    progress = Notes()
    imported(tmp_path, progress, patient_train=OWNERS, hospital=np.arange(6))
    assert len(progress.notes) == 1
    assert "patient_train, hospital" in progress.notes[0]
    assert "--owner-column" in progress.notes[0]
    progress.notes.clear()
    with FeatureFile(
        imported(tmp_path, progress, owner="patient", patient_train=OWNERS, id_train=list("abcdef"))
    ) as features:
        assert features.owners("train")[0] == "ann"
    assert progress.notes == []


@pytest.mark.parametrize("named", ["owner", "patient"])
def test_a_column_of_a_csv_names_the_owner(tmp_path: Path, named: str) -> None:
    lines = [f"label,{named},a,b", "x,eve,1,2", "y,bob,3,4", "x,eve,5,6"]
    (tmp_path / "train.csv").write_text("\n".join(lines))
    (tmp_path / "test.csv").write_text(f"label,{named},a,b\nx,ann,7,8\ny,dan,9,0")
    import_arrays(
        ImportRequest(sources=[tmp_path], out=tmp_path / "a.h5", owner_column=None if named == "owner" else named)
    )
    with FeatureFile(tmp_path / "a.h5") as features:
        assert features.owners("train") == ["bob", "eve", "eve"]
        assert features.rows("train", slice(None)).tolist() == [[3, 4], [1, 2], [5, 6]]
    with pytest.raises(UsageError, match=r"has no column 'person'.*'label'.*--owner-column"):
        import_arrays(ImportRequest(sources=[tmp_path / "train.csv"], out=tmp_path / "b.h5", owner_column="person"))


def test_rows_without_labels_keep_their_owners_and_their_order(tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("who,a\neve,1\nbob,2\neve,3\n")
    import_arrays(ImportRequest(sources=[tmp_path / "new.csv"], out=tmp_path / "a.h5", owner_column="who"))
    with FeatureFile(tmp_path / "a.h5") as features:
        assert features.owners("rows") == ["eve", "bob", "eve"]
        assert features.rows("rows", slice(None)).tolist() == [[1], [2], [3]]
        assert people_by_group(features) == {"rows": 2}
    with pytest.raises(UsageError, match=r"has no column 'person'.*--owner-column"):
        import_arrays(ImportRequest(sources=[tmp_path / "new.csv"], out=tmp_path / "b.h5", owner_column="person"))


@pytest.mark.parametrize("people", [["eve", "bob", "eve"], [7, 3, 7]])
def test_a_column_of_a_parquet_table_names_the_owner(tmp_path: Path, people: list[Any]) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = arrow.table({"label": ["x", "y", "x"], "patient": people, "a": [1.0, 3.0, 5.0]})
    parquet.write_table(table, tmp_path / "train.parquet")
    parquet.write_table(arrow.table({"label": ["x", "y"], "a": [2.0, 4.0]}), tmp_path / "test.parquet")
    import_arrays(ImportRequest(sources=[tmp_path], out=tmp_path / "a.h5", owner_column="patient"))
    with FeatureFile(tmp_path / "a.h5") as features:
        assert features.owners("train") == sorted(map(str, people))
        assert features.rows("train", slice(None)).tolist() == [[3], [1], [5]]
        assert not features.has_owners("test")
    with pytest.raises(UsageError, match=r"has no column 'person'.*'label'.*--owner-column"):
        import_arrays(ImportRequest(sources=[tmp_path], out=tmp_path / "b.h5", owner_column="person"))


def test_a_number_beyond_float32_is_named_by_its_row_in_the_source(tmp_path: Path) -> None:
    x = np.ones((6, 2))
    x[4, 1] = 1e300
    with pytest.raises(DataError, match=r"X_train holds 1e\+300 at row 4, column 1"):
        imported(tmp_path, X_train=x, owner_train=OWNERS)


@pytest.mark.parametrize("owners", [OWNERS[:5], np.ones(6), OWNERS[:, None]])
def test_owners_that_do_not_fit_are_refused(tmp_path: Path, owners: Any) -> None:
    with pytest.raises(DataError, match="owner_train has shape"):
        imported(tmp_path, owner_train=owners)
    assert not (tmp_path / "a.h5").exists()
    with pytest.raises(DataError, match="holds no patient_train"):
        imported(tmp_path, owner="patient")


def test_rows_of_an_owner_that_are_apart_are_refused() -> None:
    with pytest.raises(DataError, match="1 owner whose rows are not adjacent"):
        owner_bounds(["a", "b", "b", "a"], "here")
    with pytest.raises(DataError, match="have the owner ''"):
        owner_bounds(["a", ""], "here")
    assert owner_bounds(["a", "b", "b"], "here")[0].tolist() == [0, 1, 3]


@pytest.mark.parametrize(
    "several", ["eve;bob", "eve | ann", "['eve', 'zoe']", "(eve, zoe)", "bob,eve", "ann/eve", "eve & bob"]
)
def test_rows_that_show_several_people_are_refused_and_named(tmp_path: Path, several: str) -> None:
    owners = OWNERS.astype("U20")
    owners[[1, 4]] = several
    owners[0] = "bob"
    with pytest.raises(DataError, match="owner_train: 2 rows with several people as the owner, first 1, 4"):
        imported(tmp_path, owner_train=owners)
    assert not (tmp_path / "a.h5").exists()
    with pytest.raises(DataError, match="here: 1 row with several people"):
        owner_bounds(["ann", "bob", "eve", several], "here")


def test_an_owner_with_a_comma_is_one_person(tmp_path: Path) -> None:
    owners = np.array(["Smith, John", "Smith", "a/b", "a", "[x]", "R&D"])
    with FeatureFile(imported(tmp_path, owner_train=owners)) as features:
        assert sorted(features.owners("train")) == sorted(owners)
    with pytest.raises(DataError, match="owner_test: 1 row with several people"):  # both are owners of training rows
        imported(tmp_path, owner_train=OWNERS, owner_test=np.array(["ann,eve", "x", "y"]))


def test_a_cap_chooses_rows_by_the_ids_of_the_person_alone() -> None:
    ids = [f"r{row}" for row in range(12)]
    keep = capped(np.array([0, 7, 8, 12]), ids, 3, seed=0)
    assert [int(keep[a:b].sum()) for a, b in ((0, 7), (7, 8), (8, 12))] == [3, 1, 3]
    alone = capped(np.array([0, 4]), ids[8:], 3, seed=0)
    assert np.array_equal(keep[8:], alone)
    assert not np.array_equal(keep, capped(np.array([0, 7, 8, 12]), ids, 3, seed=1))
    with pytest.raises(UsageError, match="per-owner-rows is 0"):
        capped(np.array([0, 1]), ids[:1], 0, seed=0)


def test_a_cap_keeps_the_same_rows_of_a_person_whoever_else_has_an_equal_row(tmp_path: Path) -> None:
    """An id made from content has a number that depends on other people."""
    x = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    owners, labels = np.repeat([f"p{number:02}" for number in range(20)], 2), np.tile([0, 1], 20)
    copies, names = x[::2], np.array([f"a{number:02}" for number in range(20)])  # of one row of each, before it
    kept = []
    for path, more in ((tmp_path / "alone", 0), (tmp_path / "with", 20)):
        path.mkdir()
        arrays = {
            "X_train": np.concatenate([copies[:more], x]),
            "y_train": np.concatenate([labels[::2][:more], labels]),
            "owner_train": np.concatenate([names[:more], owners]),
        }
        np.savez(path / "x.npz", **arrays, X_test=x[:2] + 9, y_test=[0, 1], owner_test=np.array(["t", "u"]))
        import_arrays(ImportRequest(sources=[path / "x.npz"], out=path / "f.h5"))
        with FeatureFile(path / "f.h5") as features:
            private, _, people = private_units(features, None, Split(unit="owner", per_owner_rows=1))
            assert len(people) == 20 + more
            kept.append(np.flatnonzero(private.keep) - more)
    assert np.array_equal(kept[0], kept[1][kept[1] >= 0])


def test_public_shots_are_not_private(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", **arrays())
    import_arrays(ImportRequest(sources=[tmp_path / "x.npz"], out=tmp_path / "f.h5"))
    with FeatureFile(tmp_path / "f.h5") as features:
        data = dataset_of(features, split=Split(shots=1))
        assert data.private.ids() == [name for name in features.ids("train") if name not in data.free_shots.ids()]


def test_public_shots_take_whole_people() -> None:
    g = np.random.default_rng(0)
    owners = np.sort(g.integers(0, 40, 200)).astype(str)
    labels = g.integers(0, 4, 200)
    mask = public_shots([""] * 200, labels, "abcd", 3, 0, owners.tolist())
    assert set(owners[mask]).isdisjoint(owners[~mask])
    assert np.bincount(labels[mask], minlength=4).min() >= 3
    assert mask.sum() < 150
    again = public_shots([""] * 200, labels, "abcd", 3, 1, owners.tolist())
    assert not np.array_equal(mask, again)
    with pytest.raises(DataError, match="take every training row"):
        public_shots([""] * 4, np.array([0, 1, 0, 1]), "ab", 1, 0, ["p"] * 4)


def test_pairs_are_all_pairs_of_rows_of_the_same_person() -> None:
    sizes = [2, 0, 1, 20, 4]
    bounds = np.concatenate([[0], np.cumsum(sizes)])
    pairs = pairs_of(bounds)
    owner = np.repeat(np.arange(5), sizes)
    assert pairs.formed.tolist() == [3]
    assert pairs.units.tolist() == [0, 2, 4]
    assert owner[pairs.rows].tolist() == pairs.owner.tolist() == [0, 0, 2, 4, 4, 4, 4]
    found = set(zip(pairs.first.tolist(), pairs.second.tolist(), strict=True))
    assert found == {(0, 1), *((a, b) for a in range(3, 7) for b in range(a + 1, 7))}
    assert (pairs.counts.tolist(), pairs.pair_counts.tolist()) == ([2, 0, 1, 0, 4], [1, 0, 0, 0, 6])
