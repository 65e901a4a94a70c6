"""Folders and arrays become groups of images: ids are relative paths in sorted order, classes are declared."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linprobe.errors import DataError, LinprobeError, UsageError
from linprobe.extraction.sources import open_source
from linprobe.extraction.sources.base import Strings, UnreadableImage
from tests.extraction.samples import CLASSES, classes_of, listed, photo, write_images


def refusal(error: type[LinprobeError], *arguments: Any, **options: Any) -> str:
    with pytest.raises(error) as caught:
        open_source(*arguments, **options)
    return str(caught.value)


def test_ids_are_the_relative_paths_in_sorted_order(tmp_path: Path) -> None:
    for name in ("10.png", "2.png", "B.png", "a.png"):
        for group in ("train", "test"):
            for number, class_name in enumerate(("bee", "ant")):
                folder = tmp_path / "s" / group / class_name
                folder.mkdir(parents=True, exist_ok=True)
                photo(number).save(folder / name)
    source = open_source(str(tmp_path / "s"))
    expected = [f"{name}/{file}" for name in ("ant", "bee") for file in ("10.png", "2.png", "B.png", "a.png")]
    for group in ("train", "test"):
        assert listed(source, group) == [f"{group}/{path}" for path in expected]
        assert classes_of(source, group) == ["ant"] * 4 + ["bee"] * 4
    assert source.name == "s"
    assert source.class_names_from == "folder names"


def test_every_row_reads_its_own_file(images: Path) -> None:
    members = open_source(str(images)).groups["train"]
    for row in range(len(members)):
        assert members.read(row) == (images / members.id(row)).read_bytes()


@pytest.mark.parametrize("name", ["test", "val", "validation", "valid"])
def test_the_test_folder_may_have_any_of_its_usual_names(tmp_path: Path, name: str) -> None:
    source = open_source(str(write_images(tmp_path, {"train": 2, name: 1})))
    assert listed(source, "test") == [f"{name}/{item}/000.png" for item in CLASSES]
    assert list(source.groups) == ["train", "test"]


def test_a_public_folder_is_the_public_group(tmp_path: Path) -> None:
    source = open_source(str(write_images(tmp_path, {"train": 2, "test": 1, "public": 1})))
    assert listed(source, "public") == [f"public/{item}/000.png" for item in CLASSES]
    assert len(source.groups["train"]) == 6


def test_images_in_subfolders_belong_to_the_class_above(tmp_path: Path) -> None:
    write_images(tmp_path, {"train": 1, "test": 1})
    (tmp_path / "train" / "bee" / "more").mkdir()
    photo(9).save(tmp_path / "train" / "bee" / "more" / "x.png")
    source = open_source(str(tmp_path))
    ids = ["train/ant/000.png", "train/bee/000.png", "train/bee/more/x.png", "train/cat/000.png"]
    assert listed(source, "train") == ids
    assert classes_of(source, "train") == ["ant", "bee", "bee", "cat"]


def test_hidden_files_and_folders_are_ignored(images: Path, tmp_path: Path) -> None:
    write_images(tmp_path, {"train": 1, "test": 1})
    for place in (
        ".DS_Store",
        ".hidden.png",
        "train/.hidden.png",
        "train/ant/.hidden.png",
        "train/.cache/x.png",
        "test/bee/.d/y.png",
    ):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_bytes(b"not an image")
    source = open_source(str(tmp_path))
    assert [len(members) for members in source.groups.values()] == [3, 3]
    assert source.class_names == CLASSES


def test_links_that_go_round_in_a_circle_end(tmp_path: Path) -> None:
    write_images(tmp_path, {"train": 2, "test": 1})
    (tmp_path / "train" / "ant" / "again").symlink_to(tmp_path / "train" / "ant")
    assert len(open_source(str(tmp_path)).groups["train"]) == 6


def test_file_names_that_are_no_text_are_read_and_have_a_readable_id(tmp_path: Path) -> None:
    write_images(tmp_path, {"train": 1, "test": 1})
    path = os.fsencode(tmp_path / "train" / "ant") + b"/\xff\xfe.png"
    with open(path, "wb") as stream:  # noqa: PTH123 - a path of bytes
        stream.write(b"content")
    members = open_source(str(tmp_path)).groups["train"]
    assert members.id(1) == "train/ant/\\xff\\xfe.png"
    assert members.read(1) == b"content"


@pytest.mark.parametrize("what", ["folder", "FIFO", "dangling link", "deleted"])
def test_what_is_no_file_is_unreadable_and_never_waits(tmp_path: Path, what: str) -> None:
    write_images(tmp_path, {"train": 2, "test": 1})
    path = tmp_path / "train" / "ant" / "001.png"
    if what == "deleted":
        members = open_source(str(tmp_path)).groups["train"]
        path.unlink()
    else:
        path.unlink()
        if what == "FIFO":
            os.mkfifo(path)
        elif what == "dangling link":
            path.symlink_to("nowhere")
        else:
            path.touch()
        members = open_source(str(tmp_path)).groups["train"]
        if what == "folder":
            path.unlink()
            path.mkdir()
    assert members.id(1) == "train/ant/001.png"
    found: list[str] = []

    def read() -> None:
        try:
            members.read(1)
        except UnreadableImage as error:
            found.append(str(error))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(10)
    assert found in (["not a regular file"], ["No such file or directory"]), found


def test_classes_come_from_the_test_folders_and_never_from_the_private_ones(tmp_path: Path) -> None:
    write_images(tmp_path, {"test": 1})
    write_images(tmp_path, {"train": 1}, ("ant",))
    source = open_source(str(tmp_path))
    assert source.class_names == CLASSES
    write_images(tmp_path, {"train": 1}, ("wasp",))
    text = refusal(DataError, str(tmp_path))
    assert all(word in text for word in ("train", "1 folder outside", "'wasp'", "ant, bee, cat", "--classes")), text


def test_a_class_list_decides_names_and_order_and_may_name_more(images: Path) -> None:
    source = open_source(str(images), classes=["cat", "dog", "ant", "bee"])
    assert source.class_names == ("cat", "dog", "ant", "bee")
    assert source.class_names_from == "declared"
    assert source.groups["train"].labels.tolist() == [2] * 7 + [3] * 7 + [0] * 7
    assert "'cat'" in refusal(DataError, str(images), classes=["ant", "bee"])


def test_a_public_class_that_is_not_declared_is_refused_inside_the_source(tmp_path: Path) -> None:
    write_images(tmp_path, {"train": 1, "test": 1, "public": 1})
    write_images(tmp_path, {"public": 1}, ("wasp",))
    assert "'wasp'" in refusal(DataError, str(tmp_path))


@pytest.mark.parametrize(("place", "levels"), [("train", 2), ("test", 2), (".", 2), (".", 1)])
def test_an_image_outside_the_class_folders_is_refused_with_its_path(tmp_path: Path, place: str, levels: int) -> None:
    fraction = 0.5 if levels == 1 else None
    write_images(tmp_path, {"": 3} if levels == 1 else {"train": 1, "test": 1})
    (tmp_path / place / "stray.JPG").write_bytes(b"")
    (tmp_path / place / "notes.txt").write_text("this one may stay")
    text = refusal(DataError, str(tmp_path), test_fraction=fraction)
    assert str(tmp_path / place / "stray.JPG") in text
    assert "class folder" in text


@pytest.mark.parametrize("level", ["", "train"])
def test_a_fraction_splits_every_image_to_one_side(tmp_path: Path, level: str) -> None:
    write_images(tmp_path, {level: 60}, ("ant", "bee"), size=(2, 2))
    for name in ("Thumbs.db", "desktop.ini", ".DS_Store"):
        (tmp_path / level / "ant" / name).write_bytes(b"no image")
    source = open_source(str(tmp_path), test_fraction=0.25)
    train, test = listed(source, "train"), listed(source, "test")
    prefix = f"{level}/" if level else ""
    assert sorted(train + test) == [f"{prefix}{name}/{n:03d}.png" for name in ("ant", "bee") for n in range(60)]
    assert 12 <= len(test) <= 48
    assert train == sorted(train)
    assert test == sorted(test)
    assert classes_of(source, "test") == [name.split("/")[-2] for name in test]


def test_a_new_image_moves_no_other_to_the_other_side(tmp_path: Path) -> None:
    write_images(tmp_path, {"": 40}, ("ant", "bee"), size=(2, 2))
    before = open_source(str(tmp_path), test_fraction=0.5)
    for number in range(20):
        photo(number, 2, 2).save(tmp_path / "ant" / f"0{number:02d}a.png")
        photo(number, 2, 2).save(tmp_path / "bee" / f"new{number}.png")
    (tmp_path / "bee" / "007.png").unlink()
    after = open_source(str(tmp_path), test_fraction=0.5)
    assert len(listed(after, "train")) > len(listed(before, "train"))
    for group in ("train", "test"):
        assert set(listed(before, group)) - {"bee/007.png"} <= set(listed(after, group))


def test_a_larger_fraction_only_adds_test_images(tmp_path: Path) -> None:
    write_images(tmp_path, {"": 40}, ("ant", "bee"), size=(2, 2))
    small, large = (set(listed(open_source(str(tmp_path), test_fraction=part), "test")) for part in (0.2, 0.6))
    assert small < large


def test_a_fraction_that_leaves_a_side_empty_is_refused(tmp_path: Path) -> None:
    write_images(tmp_path, {"": 2}, ("ant", "bee"), size=(2, 2))
    assert "0 of 4 rows" in refusal(DataError, str(tmp_path), test_fraction=1e-9)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.5, 7.0, float("nan")])
def test_a_fraction_outside_its_range_is_refused(tmp_path: Path, fraction: float) -> None:
    write_images(tmp_path, {"": 2}, size=(2, 2))
    assert "above 0 and below 1" in refusal(UsageError, str(tmp_path), test_fraction=fraction)


def _empty(folder: Path) -> None:
    folder.mkdir()


def _one_class(folder: Path) -> None:
    write_images(folder, {"train": 1, "test": 1}, ("ant",))


def _no_test(folder: Path) -> None:
    write_images(folder, {"train": 1})


def _one_level(folder: Path) -> None:
    write_images(folder, {"": 1})


def _both(folder: Path) -> None:
    write_images(folder, {"train": 1, "test": 1})


def _no_images(folder: Path) -> None:
    write_images(folder, {"train": 1})
    for name in CLASSES:
        (folder / "test" / name).mkdir(parents=True)


def _link_to_nothing(group: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        write_images(folder, {"train": 1, "test": 1})
        (folder / group).symlink_to(folder / "not mounted")

    return make


def _public_without_classes(folder: Path) -> None:
    write_images(folder, {"train": 1, "test": 1})
    (folder / "public").mkdir()
    photo(0).save(folder / "public" / "a.png")


def _other_groups(folder: Path) -> None:
    write_images(folder, {"Training": 1, "Testing": 1})


BAD_FOLDERS: dict[str, tuple[Callable[[Path], None], dict[str, Any], type[LinprobeError], list[str]]] = {
    "nothing there": (lambda folder: None, {}, DataError, ["does not exist", "folder", ".npz"]),
    "an empty folder": (_empty, {}, DataError, ["no class folders", "train/CLASS/IMAGE"]),
    "one class": (_one_class, {}, DataError, ["1 class;", "2 or more"]),
    "no test folder": (_no_test, {}, UsageError, ["no test", "--test-fraction"]),
    "test folder and fraction": (_both, {"test_fraction": 0.5}, UsageError, ["test", "0.5", "not both"]),
    "one level without fraction": (_one_level, {}, UsageError, ["one level", "3 folders", "--test-fraction"]),
    "no test images": (_no_images, {}, DataError, ["test", "no images"]),
    "repeated classes": (_both, {"classes": [*CLASSES, "ant"]}, DataError, ["the class 'ant' twice"]),
    "a class that is a link to nothing": (_link_to_nothing("train/dog"), {}, DataError, ["train/dog", "link"]),
    "public images behind a link to nothing": (_link_to_nothing("public"), {}, DataError, ["public", "link"]),
    "public images in no class": (
        _public_without_classes,
        {},
        DataError,
        ["public/a.png", "no class folder", "--unlabelled"],
    ),
    "groups of other names": (_other_groups, {"test_fraction": 0.5}, DataError, ["'Training'", "train", "rename"]),
    "one declared class": (_one_class, {"classes": ["ant"]}, DataError, ["1 class;"]),
}


@pytest.mark.parametrize("case", BAD_FOLDERS)
def test_a_folder_that_does_not_fit_is_refused_with_the_way_out(tmp_path: Path, case: str) -> None:
    make, options, error, words = BAD_FOLDERS[case]
    make(tmp_path / "photos")
    text = refusal(error, str(tmp_path / "photos"), **options)
    assert all(word in text for word in ["photos", *words] if "classes" not in options), text
    assert all(word in text for word in words), text


def fingerprint(folder: Path) -> str:
    return open_source(str(folder)).groups["train"].fingerprint()


def test_a_folder_that_cannot_be_listed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """os.walk would leave its images out without a word."""
    write_images(tmp_path, {"train": 1, "test": 1})
    (tmp_path / "train" / "bee" / "more").mkdir()
    listed_by = os.scandir

    def scandir(path: Any) -> Any:
        if Path(path).name == "more":
            raise PermissionError(13, "Permission denied", str(path))
        return listed_by(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert "train/bee/more cannot be read" in refusal(LinprobeError, str(tmp_path))


def test_the_fingerprint_changes_with_names_sizes_and_times(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "s", {"train": 2, "test": 1})
    seen = {fingerprint(folder)}
    assert fingerprint(folder) in seen
    path = folder / "train" / "ant" / "001.png"

    def check_new() -> None:
        now = fingerprint(folder)
        assert now not in seen
        seen.add(now)

    os.utime(path, (1, 1))
    check_new()
    path.write_bytes(path.read_bytes() + b" ")
    os.utime(path, (1, 1))
    check_new()
    path.rename(path.with_name("002.png"))
    check_new()
    (folder / "train" / "bee" / "new.png").write_bytes(b"")
    check_new()


RNG = np.random.default_rng(0)
TRAIN, TEST = (RNG.integers(0, 256, (rows, 6, 5, 3), dtype=np.uint8) for rows in (9, 6))
Y_TRAIN, Y_TEST = np.arange(9) % 3, np.arange(6) % 3


def arrays(**changes: Any) -> dict[str, Any]:
    whole = {"X_train": TRAIN, "y_train": Y_TRAIN, "X_test": TEST, "y_test": Y_TEST, **changes}
    return {key: value for key, value in whole.items() if value is not None}


def as_npz(folder: Path, **changes: Any) -> Path:
    np.savez(folder / "images.npz", **arrays(**changes))
    return folder / "images.npz"


def as_npy_folder(folder: Path, **changes: Any) -> Path:
    (folder / "arrays").mkdir()
    for key, value in arrays(**changes).items():
        np.save(folder / "arrays" / f"{key}.npy", value)
    return folder / "arrays"


@pytest.mark.parametrize("make", [as_npz, as_npy_folder])
@pytest.mark.parametrize("channels", [None, 3, 4])
def test_arrays_of_images_keep_rows_labels_and_order(tmp_path: Path, make: Any, channels: int | None) -> None:
    train = {None: TRAIN[..., 0], 3: TRAIN, 4: np.concatenate([TRAIN, TRAIN[..., :1]], axis=3)}[channels]
    source = open_source(str(make(tmp_path, X_train=train, X_public=TEST[:2], y_public=Y_TEST[:2])))
    members = source.groups["train"]
    assert all(np.array_equal(members.read(row), train[row]) for row in range(9))
    assert members.labels.tolist() == Y_TRAIN.tolist()
    (tmp_path / "fewer").mkdir()
    fewer = open_source(str(make(tmp_path / "fewer", X_train=train[1:], y_train=Y_TRAIN[1:])))
    assert listed(fewer, "train") == listed(source, "train")[1:]  # ids do not depend on places
    assert len(set(listed(source, "train"))) == 9
    assert source.ids_from == "content"
    assert [len(part) for part in source.groups.values()] == [9, 6, 2]
    assert source.class_names == ("0", "1", "2")


def test_arrays_keep_given_ids_and_class_names(tmp_path: Path) -> None:
    ids = np.array([f"photo {row}" for row in range(9)])
    names = np.array(["ant", "bee", "cat"])
    source = open_source(str(as_npz(tmp_path, id_train=ids, class_names=names)))
    assert listed(source, "train") == ids.tolist()
    assert source.class_names == CLASSES
    assert open_source(str(as_npz(tmp_path)), classes=["x", "y", "z", "unused"]).class_names == (
        "x",
        "y",
        "z",
        "unused",
    )


def test_declared_classes_do_not_rename_those_of_arrays(tmp_path: Path) -> None:
    text = refusal(
        DataError, str(as_npz(tmp_path, class_names=np.array(["ant", "bee", "cat"]))), classes=["cat", "bee", "ant"]
    )
    assert "ant, bee, cat" in text
    assert "leave out --classes" in text


BAD_ARRAYS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "no test labels": ({"y_test": None}, ["y_test"]),
    "features": ({"X_train": RNG.random((9, 5))}, ["X_train", "(9, 5)", "linprobe import"]),
    "fractions": ({"X_train": RNG.random((9, 6, 5, 3))}, ["float64", "uint8"]),
    "channels first": ({"X_train": TRAIN.transpose(0, 3, 1, 2)}, ["(9, 3, 6, 5)"]),
    "fewer labels": ({"y_train": Y_TRAIN[:-1]}, ["y_train", "8", "9"]),
    "fewer ids": ({"id_train": np.array(["a", "b"])}, ["id_train", "2", "9"]),
    "a label too high": ({"y_train": Y_TRAIN + 1}, ["train", "label 3", "0, 1, 2"]),
}


@pytest.mark.parametrize("case", BAD_ARRAYS)
def test_arrays_that_are_no_images_are_refused(tmp_path: Path, case: str) -> None:
    changes, words = BAD_ARRAYS[case]
    text = refusal(DataError, str(as_npz(tmp_path, **changes)))
    assert all(word in text for word in words), text


def test_private_test_labels_make_no_class_list(tmp_path: Path) -> None:
    text = refusal(DataError, str(as_npz(tmp_path)), private_test=True)
    assert "test labels are private" in text
    source = open_source(str(as_npz(tmp_path, class_names=CLASSES)), private_test=True)
    assert source.class_names == CLASSES


def test_a_test_fraction_for_arrays_is_refused(tmp_path: Path) -> None:
    assert "--test-fraction" in refusal(UsageError, str(as_npz(tmp_path)), test_fraction=0.5)


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(b"")
    assert ".npz" in refusal(DataError, str(tmp_path / "photo.jpg"))


def test_packed_strings_are_the_strings() -> None:
    values = [b"", b"a", b"\xff\x00", "ü".encode(), b""]
    packed = Strings(iter(values))
    assert [packed[row] for row in range(len(packed))] == values
