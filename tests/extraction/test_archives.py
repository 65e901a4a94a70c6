"""Tar archives are read in place: a packed image folder, or WebDataset shards with labels of their own."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from linprobe.errors import DataError, LinprobeError, UsageError
from linprobe.extraction.sources import open_source
from linprobe.extraction.sources.base import UnreadableImage
from tests.extraction.samples import CLASSES, classes_of, contents, encoded, listed, photo, run_extract


def pack(path: Path, files: Sequence[tuple[str, bytes]], mode: str = "w") -> Path:
    """A tar archive with these files in this order."""
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content in files:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def refusal(error: type[LinprobeError], *arguments: Any, **options: Any) -> str:
    with pytest.raises(error) as caught:
        open_source(*map(str, arguments), **options)
    return str(caught.value)


def packed_folder(images: Path, path: Path) -> Path:
    with tarfile.open(path, "w") as archive:
        archive.add(images, "photos", filter=lambda member: member)
    return path


def test_a_packed_image_folder_gives_the_rows_of_the_folder(images: Path, tmp_path: Path) -> None:
    source = open_source(str(packed_folder(images, tmp_path / "a.tar")))
    folder = open_source(str(images))
    for group in ("train", "test"):
        rows = {name: row for row, name in enumerate(listed(source, group))}
        assert sorted(rows) == [f"photos/{name}" for name in listed(folder, group)]
        for row, name in enumerate(listed(folder, group)):
            mine = rows[f"photos/{name}"]
            assert source.groups[group].read(mine) == folder.groups[group].read(row)
            assert classes_of(source, group)[mine] == classes_of(folder, group)[row]
    assert source.class_names == folder.class_names
    assert source.class_names_from == "folder names"


def test_features_of_an_archive_are_those_of_the_folder(images: Path, tmp_path: Path) -> None:
    files = [(path.relative_to(images).as_posix(), path.read_bytes()) for path in sorted(images.rglob("*.png"))]
    run_extract(pack(tmp_path / "a.tar", files), tmp_path / "a.h5")
    run_extract(images, tmp_path / "b.h5")
    first, second = contents(tmp_path / "a.h5"), contents(tmp_path / "b.h5")
    for name in ("train/x", "train/y", "train/id", "test/x", "test/y", "test/id"):
        assert first[name] == second[name]


def png(seed: int) -> bytes:
    return encoded(photo(seed))


def one_level(path: Path, count: int = 30) -> Path:
    return pack(path, [(f"{name}/{n:02d}.png", png(n)) for name in ("ant", "bee") for n in range(count)])


def test_one_level_of_classes_is_split_by_a_fraction(tmp_path: Path) -> None:
    archive = one_level(tmp_path / "a.tar")
    assert "--test-fraction" in refusal(UsageError, archive)
    source = open_source(str(archive), test_fraction=0.4)
    ids = listed(source, "train") + listed(source, "test")
    assert sorted(ids) == [f"{name}/{n:02d}.png" for name in ("ant", "bee") for n in range(30)]
    assert classes_of(source, "test") == [name.split("/")[0] for name in listed(source, "test")]
    for group in ("train", "test"):
        members = source.groups[group]
        assert [members.read(row) for row in range(len(members))] == [png(int(n[-6:-4])) for n in listed(source, group)]


def test_hidden_files_and_what_is_no_file_are_left_out_of_an_archive(tmp_path: Path) -> None:
    files = [(f"{group}/{name}/0.png", png(1)) for group in ("train", "test") for name in CLASSES]
    path = pack(tmp_path / "a.tar", [*files, ("train/ant/.DS_Store", b"x"), ("README", b"about")])
    assert listed(open_source(str(path)), "train") == [f"train/{name}/0.png" for name in CLASSES]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_links_in_an_archive_are_refused(tmp_path: Path, kind: bytes) -> None:
    path = pack(tmp_path / "a.tar", [(f"{g}/{name}/0.png", png(1)) for g in ("train", "test") for name in CLASSES])
    with tarfile.open(path, "a") as archive:
        link = tarfile.TarInfo("train/ant/link.png")
        link.type, link.linkname = kind, "train/ant/0.png"
        archive.addfile(link)
    with pytest.raises(DataError, match=r"holds the link train/ant/link\.png"):
        open_source(str(path))


def test_an_archive_damaged_in_the_middle_is_refused(tmp_path: Path) -> None:
    files = [(f"{g}/{name}/{n}.png", png(1)) for g in ("train", "test") for name in CLASSES for n in range(4)]
    path = pack(tmp_path / "a.tar", files)
    whole = path.read_bytes()
    with tarfile.open(path) as archive:
        header = archive.getmembers()[9].offset
    for damaged in (whole[:header], whole[: header + 100], whole[:header] + b"x" + whole[header + 1 :]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"a\.tar"):
            open_source(str(path))


def test_a_class_that_only_private_images_have_is_not_declared_by_an_archive(tmp_path: Path) -> None:
    files = [(f"{name}/{n:02d}.png", png(n)) for name in ("ant", "bee") for n in range(30)]
    path = pack(tmp_path / "a.tar", [*files, ("secret/00.png", png(0))])
    source = open_source(str(path), classes=["ant", "bee", "secret"], test_fraction=0.3)
    assert "secret" not in classes_of(source, "test")
    with pytest.raises(DataError, match="secret"):
        open_source(str(path), test_fraction=0.3)


def samples(kind: str, labels: Sequence[Any], first: int = 0) -> list[tuple[str, bytes]]:
    """WebDataset samples: the image, then the label; other files of a sample are ignored."""
    files = []
    for number, label in enumerate(labels, first):
        text = json.dumps(label) if kind == "json" else str(label)
        files += [(f"d/{number:04d}.png", png(number)), (f"d/{number:04d}.{kind}", text.encode())]
        files.append((f"d/{number:04d}.txt", b"a caption"))
    return files


def shards(folder: Path, kind: str, train: Sequence[Any], test: Sequence[Any]) -> Path:
    folder.mkdir()
    half = len(train) // 2
    pack(folder / "flowers-train-000.tar", samples(kind, train[:half]))
    pack(folder / "flowers-train-001.tar", samples(kind, train[half:], half))
    pack(folder / "flowers-val-000.tar", samples(kind, test, 100))
    return folder


@pytest.mark.parametrize("form", ["names", "numbers", "json label", "json cls"])
def test_shards_keep_images_labels_and_order(tmp_path: Path, form: str) -> None:
    train, test = [0, 2, 1, 1, 0, 2], [2, 0, 1]
    key = form.rpartition(" ")[2]
    shown = {
        "names": lambda label: CLASSES[label] + "\n",
        "numbers": lambda label: label,
        "json label": lambda label: {key: CLASSES[label], "width": 3},
        "json cls": lambda label: {key: label},
    }[form]
    kind = "json" if "json" in form else "cls"
    source = open_source(str(shards(tmp_path / "s", kind, *([shown(x) for x in part] for part in (train, test)))))
    assert source.groups["train"].labels.tolist() == train
    assert source.groups["test"].labels.tolist() == test
    assert source.class_names == (("0", "1", "2") if form in ("numbers", "json cls") else CLASSES)
    half = [f"flowers-train-00{part}.tar/d/{3 * part + n:04d}.png" for part in (0, 1) for n in range(3)]
    assert listed(source, "train") == half
    assert [source.groups["train"].read(row) for row in range(6)] == [png(n) for n in range(6)]
    assert source.groups["test"].read(2) == png(102)


def test_ten_classes_are_counted_as_numbers_and_not_as_text(tmp_path: Path) -> None:
    labels = list(range(11))
    source = open_source(str(shards(tmp_path / "s", "cls", labels, labels)))
    assert source.groups["train"].labels.tolist() == labels


def test_one_shard_alone_is_split_by_a_fraction(tmp_path: Path) -> None:
    path = pack(tmp_path / "all.tar", samples("cls", [n % 3 for n in range(40)]))
    source = open_source(str(path), test_fraction=0.5)
    assert sorted(listed(source, "train") + listed(source, "test")) == [f"all.tar/d/{n:04d}.png" for n in range(40)]
    assert "--test-fraction" in refusal(UsageError, path)


def test_a_class_list_names_the_numbers_of_shards(tmp_path: Path) -> None:
    folder = shards(tmp_path / "s", "cls", [0, 1, 2, 0], [0, 1, 2])
    assert open_source(str(folder), classes=[*CLASSES, "dog"]).class_names == (*CLASSES, "dog")
    assert "label 2" in refusal(DataError, folder, classes=["ant", "bee"]) or "first 2" in refusal(
        DataError, folder, classes=["ant", "bee"]
    )


BAD_SHARDS: dict[str, tuple[list[tuple[str, bytes]], list[str]]] = {
    "a sample without a label": ([*samples("cls", [0, 1]), ("d/9.png", png(9))], ["'d/9'", "no label"]),
    "a sample without an image": ([*samples("cls", [0, 1]), ("d/9.cls", b"1")], ["'d/9'", "no image"]),
    "an empty label": ([*samples("cls", [0, 1]), ("d/9.png", png(9)), ("d/9.cls", b" ")], ["d/9.cls", "empty"]),
    "JSON without a label": ([("d/9.png", png(9)), ("d/9.json", b'{"id": 3}')], ["d/9.json", "no label"]),
    "no JSON": ([("d/9.png", png(9)), ("d/9.json", b"{")], ["d/9.json", "no label"]),
    "a label that is no text": ([("d/9.png", png(9)), ("d/9.cls", b"\xff")], ["d/9.cls", "no label"]),
    "no images": ([], ["no images"]),
}


@pytest.mark.parametrize("case", BAD_SHARDS)
def test_damaged_shards_are_refused_with_the_sample(tmp_path: Path, case: str) -> None:
    files, words = BAD_SHARDS[case]
    text = refusal(DataError, pack(tmp_path / "train.tar", files), test_fraction=0.5)
    assert all(word in text for word in ["train.tar", *words]), text


def test_packed_folders_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    both = [(f"{group}/{name}/0.png", png(1)) for group in ("train", "test") for name in CLASSES]
    archive = pack(tmp_path / "both.tar", both)
    assert "leave out --test-fraction" in refusal(UsageError, archive, test_fraction=0.5)
    assert "no train group" in refusal(DataError, pack(tmp_path / "b.tar", both[3:]))
    stray = pack(tmp_path / "c.tar", [*both, ("extra/dog/0.png", png(1))])
    assert "extra/dog/0.png has no group" in refusal(DataError, stray)
    assert "top.png lies in no class folder" in refusal(DataError, pack(tmp_path / "d.tar", [*both, ("top.png", b"")]))
    wasp = pack(tmp_path / "e.tar", [*both, ("train/wasp/0.png", png(1))])
    assert "wasp" in refusal(DataError, wasp)
    assert open_source(str(wasp), classes=[*CLASSES, "wasp"]).groups["train"].labels.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("kept", [0.3, 0.6, 0.9])
@pytest.mark.parametrize("kind", ["folder", "shard"])
def test_a_truncated_archive_is_refused(tmp_path: Path, kind: str, kept: float) -> None:
    labels = [n % 3 for n in range(20)]
    path = one_level(tmp_path / "a.tar") if kind == "folder" else pack(tmp_path / "a.tar", samples("cls", labels))
    open_source(str(path), test_fraction=0.5)
    path.write_bytes(path.read_bytes()[: int(kept * 20 * 1500)])
    assert "a.tar" in refusal(DataError, path, test_fraction=0.5)


@pytest.mark.parametrize("content", [b"", b"no archive" * 200])
def test_what_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.tar").write_bytes(content)
    assert "a.tar" in refusal(DataError, tmp_path / "a.tar", test_fraction=0.5)


def test_a_compressed_archive_is_refused_with_the_way_out(tmp_path: Path) -> None:
    path = pack(tmp_path / "a.tar", [("train/ant/0.png", png(1))], "w:gz")
    assert "uncompressed" in refusal(DataError, path, test_fraction=0.5)


def test_an_archive_cut_after_it_was_listed_is_unreadable_there(tmp_path: Path) -> None:
    path = one_level(tmp_path / "a.tar")
    members = open_source(str(path), test_fraction=0.5).groups["train"]
    before = members.fingerprint()
    path.write_bytes(path.read_bytes()[:4000])
    with pytest.raises(UnreadableImage, match="ends inside the file"):
        members.read(len(members) - 1)
    assert members.fingerprint() != before
