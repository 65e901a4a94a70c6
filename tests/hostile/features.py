"""Hostile feature files."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from tests.hostile.case import Case, Good

READ = (("info", "f.h5"), ("predict", "{run}", "f.h5"))
NAMES = ("ant", "bee", "cat", "dog")
WIDTH = 10


def _small(folder: Path, names: tuple[str, ...] = NAMES, n_rows: int = 20) -> h5py.File:
    """A whole feature file of few rows, open for changes."""
    rng = np.random.default_rng(0)
    file = h5py.File(folder / "f.h5", "w")
    file.attrs["schema_version"], file.attrs["complete"] = 1, True
    file.attrs["class_names"] = json.dumps(names)
    for group in ("train", "test"):
        file[f"{group}/x"] = rng.standard_normal((n_rows, WIDTH)).astype(np.float32)
        file[f"{group}/y"] = np.arange(n_rows) % len(names)
        ids = [f"{group}/{row}" for row in range(n_rows)]
        file.create_dataset(f"{group}/id", data=ids, dtype=h5py.string_dtype())
    return file


def _changed(change: Callable[[h5py.File], Any], **options: Any) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        with _small(folder, **options) as file:
            change(file)

    return make


def _replace(name: str, *arguments: Any, **options: Any) -> Callable[[Path], None]:
    def change(file: h5py.File) -> None:
        del file[name]
        file.create_dataset(name, *arguments, **options)

    return _changed(change)


def _zeros(name: str, shape: tuple[int, ...], dtype: str, chunk: tuple[int, ...]) -> Callable[[Path], None]:
    """Replace a data set by gzip chunks of zeros, each written once as compressed bytes."""

    def change(file: h5py.File) -> None:
        import zlib

        groups = ("train", "test") if name == "all" else (name.split("/")[0],)
        for group in groups:
            n_rows = shape[0]
            for part, form, kind, size in (
                ("x", shape, dtype, chunk),
                ("y", (n_rows,), "i8", (min(n_rows, 1 << 22),)),
                ("id", (n_rows,), "S8", (min(n_rows, 1 << 22),)),
            ):
                del file[f"{group}/{part}"]
                data = file.create_dataset(f"{group}/{part}", form, kind, chunks=size, compression="gzip")
                zeros = zlib.compress(bytes(int(np.prod(size)) * data.dtype.itemsize), 9)
                for start in range(0, n_rows, size[0]):
                    data.id.write_direct_chunk((start,) + (0,) * (len(form) - 1), zeros)

    return _changed(change)


def _no_storage(file: h5py.File) -> None:
    for group in ("train", "test"):
        for part in ("x", "y", "id"):
            del file[f"{group}/{part}"]
        file.create_dataset(f"{group}/x", (10**9, WIDTH), "f4", chunks=(1024, WIDTH))
        file.create_dataset(f"{group}/y", (10**9,), "i8", chunks=(1024,))
        file.create_dataset(f"{group}/id", (10**9,), h5py.string_dtype(), chunks=(1024,))


def _virtual(outside: str) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        layout = h5py.VirtualLayout(shape=(20, WIDTH), dtype="f4")
        layout[:] = h5py.VirtualSource(outside, "x", shape=(20, WIDTH))
        del file["train/x"]
        file.create_virtual_dataset("train/x", layout)

    return change


def _external(place: str) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        del file["train/x"]
        file.create_dataset("train/x", (20, WIDTH), "f4", external=[(place, 0, h5py.h5f.UNLIMITED)])

    return change


def _with_fifo(make: Callable[[Path], None]) -> Callable[[Path], None]:
    def both(folder: Path) -> None:
        import os

        os.mkfifo(folder / "fifo")
        make(folder)

    return both


def _link(name: str, link: Any) -> Callable[[Path], None]:
    def change(file: h5py.File) -> None:
        del file[name]
        file[name] = link

    return _changed(change)


def _test_is_train(parts: tuple[str, ...]) -> Callable[[Path], None]:
    """Give data sets of the training rows a second name among the test rows."""

    def change(file: h5py.File) -> None:
        for part in parts:
            del file[f"test/{part}"]
            file[f"test/{part}"] = file[f"train/{part}"]

    return _changed(change)


def _same_long_id(file: h5py.File) -> None:
    """20 ids that are 10 MB each."""
    del file["train/id"]
    file.create_dataset("train/id", data=[f"{row:09d}" + "a" * 10_000_000 for row in range(20)])


def _attribute(name: str, value: Any) -> Callable[[Path], None]:
    def change(file: h5py.File) -> None:
        file.attrs[name] = value() if callable(value) else value

    return _changed(change)


def _deep(depth: int) -> str:
    return "[" * depth + "]" * depth


MADE: dict[str, Callable[[Path], None]] = {
    "1e9 rows declared and none stored": _changed(_no_storage),
    "1e9 zeros in gzip": _zeros("all", (10**9, 1), "f2", (1 << 24, 1)),
    "1e7 wide rows of zeros in gzip": _zeros("all", (10**7, 512), "f4", (1 << 12, 512)),
    "one row of 1e9 zeros in gzip": _zeros("all", (1, 10**9), "f2", (1, 1 << 24)),
    "one chunk of 2 GB": _replace(
        "train/x", (20, WIDTH), "f4", chunks=(1 << 26, WIDTH), maxshape=(None, WIDTH), compression="gzip", data=None
    ),
    "a million class names": _attribute("class_names", lambda: json.dumps([*map(str, range(10**6))])),
    "a class name of 10 MB": _attribute("class_names", json.dumps(["a" * 10**7, "b"])),
    "deep class names": _attribute("class_names", _deep(100_000)),
    "class names of other types": _attribute("class_names", json.dumps([1, [2], {"a": 3}, None])),
    "class names as a number": _attribute("class_names", 7),
    "class names as bytes": _attribute("class_names", np.bytes_(b"\xff\xfe")),
    "class names as an array": _attribute("class_names", np.arange(10)),
    "schema version of many": _attribute("schema_version", np.arange(5)),
    "complete as an array": _attribute("complete", np.array([True, False])),
    "complete as text": _attribute("complete", "yes"),
    "schema version 0": _attribute("schema_version", 0),
    "schema version -1": _attribute("schema_version", -1),
    "backbone of 10 MB": _attribute("backbone", "a" * 10**7),
    "backbone as an array": _attribute("backbone", np.arange(3)),
    "test rows of an unknown kind": _attribute("test_rows", "both"),
    "ids of 10 MB": _changed(_same_long_id),
    "external link": _link("train/x", h5py.ExternalLink("other.h5", "x")),
    "external link at a FIFO": _with_fifo(_link("train/x", h5py.ExternalLink("fifo", "x"))),
    "external link at a FIFO as a group": _with_fifo(_link("test", h5py.ExternalLink("fifo", "x"))),
    "external link as private log": _with_fifo(
        _changed(lambda file: file.__setitem__("private_log", h5py.ExternalLink("fifo", "x")))
    ),
    "external link as text weights": _with_fifo(
        _changed(lambda file: file.__setitem__("text/weights", h5py.ExternalLink("fifo", "x")))
    ),
    "external link to a device": _link("train/x", h5py.ExternalLink("/dev/zero", "x")),
    "soft link to nothing": _link("train/x", h5py.SoftLink("/nowhere")),
    "soft link to itself": _link("train/x", h5py.SoftLink("/train/x")),
    "soft link to other rows": _link("train/x", h5py.SoftLink("/test/x")),
    "test rows that are the training rows": _test_is_train(("x",)),
    "a test group that is the training group": _test_is_train(("x", "y", "id")),
    "external storage": _changed(_external("/etc/passwd")),
    "external storage at a FIFO": _with_fifo(_changed(_external("fifo"))),
    "external storage at /dev/zero": _changed(_external("/dev/zero")),
    "virtual data set": _changed(_virtual("other.h5")),
    "virtual data set at a FIFO": _with_fifo(_changed(_virtual("fifo"))),
    "rows of numbers of 8 bytes": _replace("train/x", data=np.zeros((20, WIDTH))),
    "rows of complex numbers": _replace("train/x", data=np.zeros((20, WIDTH), dtype=complex)),
    "rows of text": _replace("train/x", data=[["a"] * WIDTH] * 20, dtype=h5py.string_dtype()),
    "rows of records": _replace("train/x", data=np.zeros(20, dtype=[("a", "f4"), ("b", "i4")])),
    "rows of arrays": _replace("train/x", (20, WIDTH), h5py.vlen_dtype(np.float32)),
    "a single number as rows": _replace("train/x", data=1.0),
    "no rows": _replace("train/x", (0, WIDTH), "f4"),
    "rows without features": _replace("train/x", (20, 0), "f4"),
    "empty space as rows": _replace("train/x", data=h5py.Empty("f4")),
    "rows in big-endian": _replace("test/x", data=np.zeros((20, WIDTH), dtype=">f8")),
    "labels of -1": _replace("train/y", data=np.full(20, -1)),
    "labels of 2^63": _replace("train/y", data=np.full(20, 2**63 + 5, dtype=np.uint64)),
    "labels as fractions": _replace("train/y", data=np.full(20, 0.5)),
    "labels as a square": _replace("train/y", data=np.zeros((20, 1), dtype=int)),
    "ids as numbers": _replace("train/id", data=np.arange(20)),
    "ids that are no UTF-8": _replace("train/id", data=[b"\xff%d" % row for row in range(20)]),
    "ids all equal": _replace("train/id", data=["a"] * 20, dtype=h5py.string_dtype()),
    "a group as rows": _changed(lambda file: (file.__delitem__("train/x"), file.create_group("train/x"))),
    "rows as group": _changed(lambda file: (file.__delitem__("train"), file.create_dataset("train", data=[1]))),
    "no training group": _changed(lambda file: file.__delitem__("train")),
    "NaN": _replace("train/x", data=np.full((20, WIDTH), np.nan, dtype=np.float32)),
    "text weights of another shape": _changed(lambda file: file.create_dataset("text/weights", data=[[1.0]])),
    "text weights as a group": _changed(lambda file: file.create_group("text/weights")),
    "text weights as text": _changed(
        lambda file: file.create_dataset("text/weights", data=[["a"] * 4] * WIDTH, dtype=h5py.string_dtype())
    ),
    "text weights of NaN": _changed(lambda file: file.create_dataset("text/weights", data=np.full((WIDTH, 4), np.nan))),
    "text weights without storage": _changed(
        lambda file: file.create_dataset("text/weights", (WIDTH, 4), "f4", chunks=(WIDTH, 4))
    ),
    "text as a data set": _changed(lambda file: file.create_dataset("text", data=[1])),
    "private log as a data set": _changed(lambda file: file.create_dataset("private_log", data=[1])),
    "no file": lambda folder: (folder / "f.h5").write_bytes(b""),  # type: ignore[dict-item, return-value]
    "only a signature": lambda folder: (folder / "f.h5").write_bytes(b"\x89HDF\r\n\x1a\n"),  # type: ignore[dict-item, return-value]
    "a folder": lambda folder: (folder / "f.h5").mkdir(),
    "a link to /dev/zero": lambda folder: (folder / "f.h5").symlink_to("/dev/zero"),
    "a link to a FIFO": _with_fifo(lambda folder: (folder / "f.h5").symlink_to(folder / "fifo")),
}
# these are files that a person may have made, and that linprobe reads
HARMLESS = {
    "complete as text",
}  # fmt: skip
NOT_PREDICTED = {"NaN", "ids all equal", "labels of -1", "ids of 10 MB", "ids that are no UTF-8"}
LATE = {"private log as a data set", "external link as private log", "one chunk of 2 GB"}  # not read by `predict`


def cases(good: Good, mutations: int) -> Iterator[Case]:
    """Made files, then `mutations` copies of the good file with changed bytes."""
    for number, (name, make) in enumerate(MADE.items()):
        wanted = frozenset({0, 3} if name in HARMLESS | LATE else {3})
        if name in NOT_PREDICTED or name.startswith("text weights"):
            # rows are not scanned before a prediction from other rows
            yield Case(f"features: {name}", make, READ[:1], wanted, number % 3 == 0)
        else:
            yield Case(f"features: {name}", make, READ, wanted, number % 3 == 0)
    whole = good.features.read_bytes()
    for number in range(mutations):
        yield Case(f"features: mutation {number}", _mutated(whole, number, "f.h5"), READ, frozenset({0, 3}), number < 3)


def _mutated(whole: bytes, number: int, name: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        (folder / name).write_bytes(mutated(whole, number))

    return make


def mutated(whole: bytes, number: int) -> bytes:
    """A copy with changed bytes; every fourth is cut short, every other has its changes near the start or the end."""
    rng, content = random.Random(number), bytearray(whole)
    if number % 4 == 3:
        return bytes(content[: rng.randrange(len(content))])
    reach = len(content) if number % 2 else min(len(content), 2048)
    for _ in range(rng.choice((1, 2, 8, 64))):
        place = rng.randrange(reach)
        if number % 4 == 2:
            place = len(content) - 1 - place
        content[place] = rng.choice((0, 0xFF, 0x7F, 0x80, rng.randrange(256)))
    return bytes(content)


def copy_of(good: Path, name: str) -> Callable[[Path], None]:
    """A copy of a good file under another name."""
    return lambda folder: shutil.copy(good, folder / name) and None
