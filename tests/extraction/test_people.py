"""Owners of images: from a CSV or a pattern; the rows of a person are adjacent in the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from linprobe.data import labels
from linprobe.data.feature_file import FeatureFile
from linprobe.data.labels import owner_bounds
from linprobe.errors import DataError, UsageError
from linprobe.extraction import run
from tests.extraction.samples import Notes, ids_of, run_extract, write_images


def owners_of(file: Path, group: str = "train") -> dict[str, str]:
    """Owner by id; the rows of an owner are adjacent."""
    with FeatureFile(file) as features:
        owner_bounds(features.owners(group), group)
        return dict(zip(features.ids(group), features.owners(group), strict=True))


def test_a_pattern_names_the_owner_and_rows_stay_with_their_ids(tmp_path: Path) -> None:
    plain, owned = tmp_path / "plain.h5", tmp_path / "owned.h5"
    images = write_images(tmp_path / "photos", {"train": 7, "test": 3})
    for image in list((images / "test").glob("*/*")):
        image.rename(image.with_stem(f"{int(image.stem) + 7:03d}"))  # other people
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
    lines = ["owner,id", *(f"person {name[:2]} {place % 4},{name}" for place, name in enumerate(names))]
    (tmp_path / "owners.csv").write_text("\n".join(lines))
    run_extract(images, tmp_path / "owned.h5", owners=tmp_path / "owners.csv")
    assert set(owners_of(tmp_path / "owned.h5").values()) == {f"person tr {place}" for place in range(4)}
    # other owners are other settings
    (tmp_path / "owners.csv").write_text("\n".join([line.replace("person", "pupil") for line in lines]))
    with pytest.raises(UsageError, match="fingerprint"):
        run_extract(images, tmp_path / "owned.h5", owners=tmp_path / "owners.csv")


@pytest.mark.parametrize("killed", [False, True])
def test_two_people_who_change_places_are_other_owners(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    """The sorted names of owners stay the same, and the rows have another order."""
    plain, out = tmp_path / "plain.h5", tmp_path / "owned.h5"
    run_extract(images, plain)
    ids = ids_of(plain, "train")
    owners = {name: f"p{place // 3}" for place, name in enumerate(ids)}
    tested = dict.fromkeys(ids_of(plain, "test"), "tester")

    def made(*, overwrite: bool = False) -> None:
        lines = ["id,owner", *(f"{name},{owner}" for name, owner in (owners | tested).items())]
        (tmp_path / "owners.csv").write_text("\n".join(lines))
        run_extract(images, out, owners=tmp_path / "owners.csv", batch_size=2, overwrite=overwrite)

    if killed:
        with monkeypatch.context() as patch:
            patch.setattr(run, "assemble", interrupted)
            with pytest.raises(KeyboardInterrupt):
                made()
    else:
        made()
    owners[ids[0]], owners[ids[-1]] = owners[ids[-1]], owners[ids[0]]
    with pytest.raises(UsageError, match=r"fingerprint.*owners have changed since.*--overwrite"):
        made()
    made(overwrite=True)
    assert owners_of(out) == owners
    with FeatureFile(plain) as first, FeatureFile(out) as second:
        here, there = (dict(zip(f.ids("train"), f.rows("train", slice(None)), strict=True)) for f in (first, second))
    assert all((here[name] == there[name]).all() for name in ids)


def interrupted(_: Any) -> None:
    raise KeyboardInterrupt


def test_owners_that_are_not_known_are_refused(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "owned.h5"
    (tmp_path / "owners.csv").write_text("id,owner\nnobody,ann\n")
    with pytest.raises(DataError, match="gives no owner for 21 of 21 train images"):
        run_extract(images, out, owners=tmp_path / "owners.csv")
    with pytest.raises(UsageError, match="one of the two"):
        run_extract(images, out, owners=tmp_path / "owners.csv", owner_regex="x")
    with pytest.raises(UsageError, match="regular expression"):
        run_extract(images, out, owner_regex="(")
    with pytest.raises(UsageError, match=r"owner-regex '\\d\+' has no group"):
        run_extract(images, out, owner_regex=r"\d+")
    for second, fault in (("a.png,bob", "line 3 has another owner"), ("b.png,Doe, Jane", "line 3 has more cells")):
        (tmp_path / "owners.csv").write_text(f"id,owner\na.png,ann\n{second}\n")
        with pytest.raises(DataError, match=fault):
            run_extract(images, out, owners=tmp_path / "owners.csv")
    (tmp_path / "owners.csv").write_text("name,owner\n")
    with pytest.raises(DataError, match="columns id and owner"):
        run_extract(images, out, owners=tmp_path / "owners.csv")
    assert not out.exists()


def test_a_file_that_is_no_image_is_not_blamed_on_the_pattern(tmp_path: Path) -> None:
    images = write_images(tmp_path / "photos", {"train": 2, "test": 2})
    (images / "train" / "ant" / "notes.txt").write_text("seen by Jo")
    with pytest.raises(DataError, match=r"first 'train/ant/notes.txt'.*no image by its name"):
        run_extract(images, tmp_path / "owned.h5", owner_regex=r"([0-9]+)\.")
    with pytest.raises(DataError, match=r"an owner for every image$"):
        run_extract(images, tmp_path / "owned.h5", owner_regex=r"(x)\.")


def people_of(file: Path) -> list[set[str]]:
    """The people with training rows, and those with test rows."""
    return [set(owners_of(file, group).values()) for group in ("train", "test")]


@pytest.fixture
def visits(tmp_path: Path) -> Path:
    """One level of classes; each of 40 people has an image in every class."""
    return write_images(tmp_path / "visits", {"": 40}, size=(9, 9))


def test_a_fraction_puts_a_person_on_one_side(visits: Path, tmp_path: Path) -> None:
    run_extract(visits, tmp_path / "f.h5", owner_regex=r"([0-9]+)\.", test_fraction=0.3)
    train, test = people_of(tmp_path / "f.h5")
    assert train.isdisjoint(test)
    assert len(train) + len(test) == 40
    with FeatureFile(tmp_path / "f.h5") as features:
        assert sum(features.sizes.values()) == 120


def test_the_side_of_a_person_depends_on_the_name_alone(visits: Path, tmp_path: Path) -> None:
    words: dict[str, Any] = {"owner_regex": r"([0-9]+)\.", "test_fraction": 0.3}
    run_extract(visits, tmp_path / "all.h5", **words)
    for image in visits.glob("*/00[0-4].png"):
        image.unlink()
    (visits / "ant" / "030.png").unlink()
    run_extract(visits, tmp_path / "fewer.h5", **words)
    gone = {f"{number:03d}" for number in range(5)}
    assert people_of(tmp_path / "fewer.h5") == [names - gone for names in people_of(tmp_path / "all.h5")]


def test_the_share_of_people_is_near_the_fraction() -> None:
    names = [f"p{number}" for number in range(4000)]
    test = labels.test_side((f"{name}/{image}" for name in names for image in range(3)), 0.2, lambda one: one[:-2])
    assert abs(test.mean() - 0.2) < 0.02
    assert (test.reshape(-1, 3).sum(axis=1) % 3 == 0).all()


@pytest.mark.parametrize("group", ["train", "public"])
@pytest.mark.parametrize("private", [False, True])
def test_people_in_two_folders_are_refused_before_anything_is_computed(
    tmp_path: Path, group: str, private: bool
) -> None:
    folder = write_images(tmp_path / "photos", {"train": 5, "test": 2, "public": 2}, size=(9, 9))
    names = {"train": "x", "test": "y", "public": "z", group: "y"}
    ids = [path.relative_to(folder).as_posix() for path in sorted(folder.glob("*/*/*"))]
    lines = [f"{name},{names[name.split('/')[0]]}{name[-5]}" for name in ids]
    (tmp_path / "owners.csv").write_text("\n".join(["id,owner", *lines]))
    notes = Notes()
    with pytest.raises(DataError, match=r"photos: people with rows on both sides.*: 2; allowed: 0") as caught:
        run_extract(folder, tmp_path / "f.h5", notes, owners=tmp_path / "owners.csv", private_test=private)
    assert "y0" not in str(caught.value) + notes.text
    assert not list(tmp_path.glob("f.h5*"))
