"""Owners of images: from a CSV or a pattern; the rows of a person are adjacent in the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from linprobe.data.feature_file import FeatureFile
from linprobe.data.owners import owner_bounds
from linprobe.errors import DataError, UsageError
from tests.extraction.samples import ids_of, run_extract


def owners_of(file: Path, group: str = "train") -> dict[str, str]:
    """Owner by id; the rows of an owner are adjacent."""
    with FeatureFile(file) as features:
        owner_bounds(features.owner_batches(group), group)
        return dict(zip(features.ids(group), features.owners(group), strict=True))


def test_a_pattern_names_the_owner_and_rows_stay_with_their_ids(images: Path, tmp_path: Path) -> None:
    plain, owned = tmp_path / "plain.h5", tmp_path / "owned.h5"
    run_extract(images, plain)
    run_extract(images, owned, owner_regex=r"([0-9])\.[a-z]+$")
    found = owners_of(owned)
    assert {name: name.rpartition(".")[0][-1] for name in ids_of(plain, "train")} == found
    assert len(set(found.values())) == 7
    with FeatureFile(plain) as first, FeatureFile(owned) as second:
        assert not first.has_owners("train")
        assert second.has_owners("test")
        here, there = (dict(zip(f.ids("train"), f.rows("train", slice(None)), strict=True)) for f in (first, second))
        labels = [dict(zip(f.ids("train"), f.labels("train"), strict=True)) for f in (first, second)]
    assert labels[0] == labels[1]
    assert all((here[name] == there[name]).all() for name in here)


def test_a_file_names_the_owner(images: Path, tmp_path: Path) -> None:
    run_extract(images, tmp_path / "plain.h5")
    names = [*ids_of(tmp_path / "plain.h5", "train"), *ids_of(tmp_path / "plain.h5", "test")]
    lines = ["owner,id", *(f"person {place % 4},{name}" for place, name in enumerate(names))]
    (tmp_path / "owners.csv").write_text("\n".join(lines))
    run_extract(images, tmp_path / "owned.h5", owners=tmp_path / "owners.csv")
    assert set(owners_of(tmp_path / "owned.h5").values()) == {f"person {place}" for place in range(4)}
    # other owners are other settings
    (tmp_path / "owners.csv").write_text("\n".join([line.replace("person", "pupil") for line in lines]))
    with pytest.raises(UsageError, match="fingerprint"):
        run_extract(images, tmp_path / "owned.h5", owners=tmp_path / "owners.csv")


def test_owners_that_are_not_known_are_refused(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "owned.h5"
    (tmp_path / "owners.csv").write_text("id,owner\nnobody,ann\n")
    with pytest.raises(DataError, match="gives no owner for 21 of 21 train images"):
        run_extract(images, out, owners=tmp_path / "owners.csv")
    with pytest.raises(UsageError, match="one of the two"):
        run_extract(images, out, owners=tmp_path / "owners.csv", owner_regex="x")
    with pytest.raises(UsageError, match="regular expression"):
        run_extract(images, out, owner_regex="(")
    (tmp_path / "owners.csv").write_text("name,owner\n")
    with pytest.raises(DataError, match="columns id and owner"):
        run_extract(images, out, owners=tmp_path / "owners.csv")
    assert not out.exists()
