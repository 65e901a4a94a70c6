"""Hostile array files: .npz, .npy, .pt and .csv, for `import`, `extract` and `predict`."""

from __future__ import annotations

import io
import os
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.hostile.case import USAGE, Case
from tests.hostile.features import mutated

N, WIDTH = 20, 4
IMPORT = (("import", "a.npz", "--out", "o.h5"),)
EXTRACT = (("extract", "a.npz", "--backbone", "pixels", "--out", "e.h5"),)
IMPORT_PT = (("import", "a.pt", "--out", "o.h5"),)
FOLDER = (("import", ".", "--out", "o.h5"),)


def _arrays(**changes: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for group in ("train", "test"):
        arrays[f"X_{group}"] = rng.standard_normal((N, WIDTH)).astype(np.float32)
        arrays[f"y_{group}"] = np.arange(N) % 3
    return {name: value for name, value in (arrays | changes).items() if value is not None}


def _npz(compressed: bool = False, **changes: Any) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        save = np.savez_compressed if compressed else np.savez
        save(folder / "a.npz", **_arrays(**changes))

    return make


def _header(shape: str, dtype: str = "'<f4'", fortran: str = "False") -> bytes:
    text = f"{{'descr': {dtype}, 'fortran_order': {fortran}, 'shape': {shape}, }}".encode()
    text += b" " * (64 - (len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def _zip_bomb(folder: Path, size: int, header: bytes, name: str = "X_train.npy") -> None:
    """A member of `size` zeros after a header, made from one compressed block that is repeated."""
    compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
    start = compressor.compress(header) + compressor.flush(zlib.Z_FULL_FLUSH)
    block = compressor.compress(bytes(1 << 20)) + compressor.flush(zlib.Z_FULL_FLUSH)
    body = start + block * (size >> 20) + compressor.flush()
    total = len(header) + (size >> 20 << 20)
    word = name.encode()
    local = struct.pack("<4s5H3I2H", b"PK\3\4", 20, 0, 8, 0, 33, 0, len(body), total, len(word), 0) + word
    central = struct.pack(
        "<4s6H3I5H2I", b"PK\1\2", 20, 20, 0, 8, 0, 33, 0, len(body), total, len(word), 0, 0, 0, 0, 0, 0
    )
    central += word
    with zipfile.ZipFile(folder / "rest.zip", "w") as rest:
        for key, value in _arrays(X_train=None).items():
            stream = io.BytesIO()
            np.save(stream, value)
            rest.writestr(f"{key}.npy", stream.getvalue())
    others = (folder / "rest.zip").read_bytes()
    (folder / "rest.zip").unlink()
    entries, shift = b"", len(local) + len(body)
    end = others.rfind(b"PK\5\6")
    n_entries, length, place = struct.unpack("<HII", others[end + 10 : end + 20])
    directory, at = others[place : place + length], 0
    while at < length:
        sizes = struct.unpack("<3H", directory[at + 28 : at + 34])
        stop = at + 46 + sum(sizes)
        offset = struct.unpack("<I", directory[at + 42 : at + 46])[0] + shift
        entries += directory[at : at + 42] + struct.pack("<I", offset) + directory[at + 46 : stop]
        at = stop
    content = local + body + others[:place]
    tail = struct.pack(
        "<4s4H2IH", b"PK\5\6", 0, 0, n_entries + 1, n_entries + 1, len(central) + len(entries), len(content), 0
    )
    (folder / "a.npz").write_bytes(content + central + entries + tail)


def _bomb(shape: str, size: int, dtype: str = "'<f4'") -> Callable[[Path], None]:
    return lambda folder: _zip_bomb(folder, size, _header(shape, dtype))


def _member(name: str, content: bytes) -> Callable[[Path], None]:
    """An archive in which one member has the given bytes."""

    def make(folder: Path) -> None:
        with zipfile.ZipFile(folder / "a.npz", "w") as archive:
            for key, value in _arrays().items():
                stream = io.BytesIO()
                np.save(stream, value)
                archive.writestr(f"{key}.npy", content if key == name else stream.getvalue())

    return make


def _object(value: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.array(value, dtype=object), allow_pickle=True)
    return stream.getvalue()


class Planted:
    """Unpickling this would make a file."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch planted",)


NPZ: dict[str, Callable[[Path], None]] = {
    "4 GB of zeros": _bomb("(1000000, 1000)", 4_000_000_000),
    "4 GB of zeros declared as few": _bomb("(20, 4)", 4_000_000_000),
    "a shape of 10^18": _member("X_train", _header("(1000000000, 1000000000)")),
    "a shape of 10^40": _member("X_train", _header(f"({10**40}, 1)")),
    "a negative shape": _member("X_train", _header("(-5, -4)") + bytes(80)),
    "a shape of no numbers": _member("X_train", _header("(10**18, 0)") + bytes(80)),
    "a shape that is no tuple": _member("X_train", _header("'a'") + bytes(80)),
    "a deep header": _member("X_train", _header("(" * 5000 + ")" * 5000) + bytes(80)),
    "an unknown type": _member("X_train", _header("(20, 4)", "'<q9'") + bytes(320)),
    "a type of 10^9 bytes": _member("X_train", _header("(20, 4)", "'|S1000000000'")),
    "a type of no bytes": _member("X_train", _header("(20, 4)", "'|V0'")),
    "objects": _member("X_train", _object([[Planted()] * 4] * N)),
    "objects as labels": _member("y_train", _object([Planted()] * N)),
    "no magic": _member("X_train", b"hello"),
    "an empty member": _member("y_train", b""),
    "version 9 of the format": _member("X_train", b"\x93NUMPY\x09\x00" + bytes(100)),
    "a pickle as a member": _member("X_train", pickle.dumps(Planted())),
    "a label of 1e8": _npz(y_test=np.full(N, 10**8)),
    "a label of 2^62": _npz(y_test=np.full(N, 2**62)),
    "a label of 2^64 - 1": _npz(y_test=np.full(N, 2**64 - 1, dtype=np.uint64)),
    "a label of -1": _npz(y_test=np.full(N, -1)),
    "training labels of 2^64 - 1": _npz(y_train=np.full(N, 2**64 - 1, dtype=np.uint64)),
    "labels as complex numbers": _npz(y_train=np.full(N, 1j)),
    "labels as dates": _npz(y_train=np.full(N, "2020-01-01", dtype="M8[D]"), y_test=np.full(N, 1, dtype="m8[s]")),
    "labels as records": _npz(y_train=np.zeros(N, dtype=[("a", int)])),
    "labels as a square": _npz(y_train=np.zeros((N, 2), dtype=int)),
    "a single label": _npz(y_test=np.array(3)),
    "labels of NaN": _npz(y_test=np.full(N, np.nan)),
    "labels of infinity": _npz(y_test=np.full(N, np.inf)),
    "labels of 1e30": _npz(y_test=np.full(N, 1e30)),
    "labels as bytes": _npz(y_train=np.full(N, b"\xff"), y_test=np.full(N, b"\xff")),
    "labels as numbers of 100 digits": _npz(y_train=np.full(N, "9" * 100), y_test=np.full(N, "9" * 100)),
    "labels as numbers of 5000 digits": _npz(y_train=np.full(N, "9" * 5000), y_test=np.full(N, "9" * 5000)),
    "one label": _npz(y_train=np.zeros(N, dtype=int), y_test=np.zeros(N, dtype=int)),
    "no test rows": _npz(X_test=np.zeros((0, WIDTH), dtype=np.float32), y_test=np.zeros(0, dtype=int)),
    "no rows": _npz(X_train=np.zeros((0, WIDTH), dtype=np.float32), y_train=np.zeros(0, dtype=int)),
    "no features": _npz(X_train=np.zeros((N, 0), dtype=np.float32)),
    "a single number": _npz(X_train=np.array(1.0)),
    "one axis": _npz(X_train=np.zeros(N)),
    "complex numbers": _npz(X_train=np.zeros((N, WIDTH), dtype=complex)),
    "dates": _npz(X_train=np.zeros((N, WIDTH), dtype="M8[D]")),
    "records": _npz(X_train=np.zeros((N, WIDTH), dtype=[("a", "f4")])),
    "void": _npz(X_train=np.zeros((N, WIDTH), dtype="V4")),
    "text": _npz(X_train=np.full((N, WIDTH), "a")),
    "infinity": _npz(X_train=np.full((N, WIDTH), np.inf, dtype=np.float32)),
    "numbers above float32": _npz(X_train=np.full((N, WIDTH), 1e300)),
    "other widths": _npz(X_test=np.zeros((N, WIDTH + 1), dtype=np.float32)),
    "fewer labels": _npz(y_train=np.zeros(N - 1, dtype=int)),
    "no labels": _npz(y_train=None),
    "a million classes": _npz(class_names=np.arange(10**6)),
    "a class name of 10^6 letters": _npz(class_names=np.array(["a" * 10**6, "b", "c"])),
    "class names as a square": _npz(class_names=np.array([["a", "b"], ["c", "d"]])),
    "a single class name": _npz(class_names=np.array("abc")),
    "class names all equal": _npz(class_names=np.array(["a", "a", "a"])),
    "class names of nothing": _npz(class_names=np.zeros(0)),
    "ids all equal": _npz(id_train=np.full(N, "a")),
    "ids as a square": _npz(id_train=np.zeros((N, 2))),
    "a single id": _npz(id_train=np.array("a")),
    "an id of 10^6 letters": _npz(id_train=np.array(["a" * 10**6, *map(str, range(N - 1))])),
    "ids that cannot be encoded": _npz(id_train=np.array([f"\ud800{row}" for row in range(N)])),
    "class names that cannot be encoded": _npz(class_names=np.array(["\ud800", "b", "c"])),
    "an encrypted member": lambda folder: _flag(folder, 1),
    "a member of an unknown compression": lambda folder: _method(folder, 99),
    "a member twice": lambda folder: _twice(folder),
    "an empty archive": lambda folder: zipfile.ZipFile(folder / "a.npz", "w").close(),
    "a FIFO": lambda folder: os.mkfifo(folder / "a.npz"),
    "a link to /dev/zero": lambda folder: (folder / "a.npz").symlink_to("/dev/zero"),
    "a folder": lambda folder: (folder / "a.npz").mkdir(),
}  # fmt: skip
ALLOWED = {"ids all equal": {3}, "a member twice": {0, 3}, "class names as a square": {3}}
READABLE = {"one label", "labels as bytes"}


def _patched(folder: Path, change: Callable[[bytearray, int, int], None]) -> None:
    _npz()(folder)
    content = bytearray((folder / "a.npz").read_bytes())
    central = content.find(b"PK\1\2")
    change(content, 0, central)
    (folder / "a.npz").write_bytes(content)


def _flag(folder: Path, flag: int) -> None:
    def change(content: bytearray, local: int, central: int) -> None:
        content[local + 6] |= flag
        content[central + 8] |= flag

    _patched(folder, change)


def _method(folder: Path, method: int) -> None:
    def change(content: bytearray, local: int, central: int) -> None:
        content[local + 8] = content[central + 10] = method

    _patched(folder, change)


def _twice(folder: Path) -> None:
    import warnings

    _npz()(folder)
    stream = io.BytesIO()
    np.save(stream, np.zeros((N, WIDTH), dtype=np.float32))
    with warnings.catch_warnings(), zipfile.ZipFile(folder / "a.npz", "a") as archive:
        warnings.simplefilter("ignore")
        archive.writestr("X_train.npy", stream.getvalue())


def _pt(make_value: Callable[[Any], Any], legacy: bool = False) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        import torch

        torch.save(make_value(torch), folder / "a.pt", _use_new_zipfile_serialization=not legacy)

    return make


def _tensors(torch: Any, **changes: Any) -> dict[str, Any]:
    whole = {name: torch.from_numpy(value) for name, value in _arrays().items()}
    return {name: value for name, value in (whole | changes).items() if value is not None}


PT: dict[str, Callable[[Path], None]] = {
    "a tensor of 10^12 numbers in 4 bytes": _pt(
        lambda torch: _tensors(torch, X_train=torch.zeros(1).expand(10**6, 10**6))
    ),
    "a label of 1e8": _pt(lambda torch: _tensors(torch, y_test=torch.full((N,), 10**8))),
    "a sparse tensor": _pt(lambda torch: _tensors(torch, X_train=torch.eye(N).to_sparse())),
    "a quantized tensor": _pt(
        lambda torch: _tensors(torch, X_train=torch.quantize_per_tensor(torch.zeros(N, 4), 1.0, 0, torch.quint8))
    ),
    "a tensor without storage": _pt(lambda torch: _tensors(torch, X_train=torch.zeros(N, 4, device="meta"))),
    "a complex tensor": _pt(lambda torch: _tensors(torch, X_train=torch.zeros(N, 4, dtype=torch.complex64))),
    "a conjugate": _pt(lambda torch: _tensors(torch, X_train=torch.zeros(N, 4, dtype=torch.complex64).conj())),
    "a tensor of float8": _pt(lambda torch: _tensors(torch, X_train=torch.zeros(N, 4).to(torch.float8_e5m2))),
    "a tensor with a gradient": _pt(lambda torch: _tensors(torch, X_train=torch.zeros(N, 4, requires_grad=True))),
    "a list of other things": _pt(lambda torch: ["a", {"b": 3}]),
    "a word as rows": _pt(lambda torch: _tensors(torch, X_train="word")),
    "nothing as rows": _pt(lambda torch: _tensors(torch, X_train={})),
    "lists of other lengths": _pt(lambda torch: _tensors(torch, X_train=[[1.0], [1.0, 2.0]])),
    "numbers as keys": _pt(lambda torch: {1: 2}),
    "a planted pickle": lambda folder: (folder / "a.pt").write_bytes(pickle.dumps(Planted())) and None,
    "a planted pickle of the old kind": _pt(lambda torch: Planted(), legacy=True),
    "a planted pickle of the new kind": _pt(lambda torch: {"X_train": Planted()}),
    "lists 5000 deep": lambda folder: (
        (folder / "a.pt").write_bytes(b"\x80\x02" + b"]" * 5000 + b"a" * 4999 + b".") and None
    ),
    "rows that are one number": _pt(
        lambda torch: _tensors(torch, X_train=torch.zeros(1).as_strided((N, WIDTH), (0, 0)))
    ),
    "labels of another length": _pt(lambda torch: _tensors(torch, y_train=torch.zeros(N - 1, dtype=torch.int64))),
    "rows of integers": _pt(lambda torch: _tensors(torch, X_train=torch.full((N, WIDTH), 2**62))),
    "nothing": lambda folder: (folder / "a.pt").write_bytes(b"") and None,
    "a folder": lambda folder: (folder / "a.pt").mkdir(),
}
PARTS = 25  # of a file that is cut between two of them
PT_READABLE = {"rows that are one number", "rows of integers", "a tensor with a gradient", "a tensor of float8"}

CSV = {
    "a field of 10 MB": "label,a,b\n0," + "1" * 10_000_000 + ",2\n",
    "a million columns": "label," + ",".join(f"c{place}" for place in range(10**6)) + "\n0\n",
    "words as numbers": "label,a,b\n0,one,2\n1,3,4\n",
    "NaN": "label,a,b\n0,nan,2\n1,3,4\n",
    "underscores": "label,a,b\n0,1_0,2\n1,3,4\n",
    "NUL": "label,a,b\n0,\0,2\n1,3,4\n",
    "an open quote": 'label,a,b\n0,"1,2\n1,3,4\n',
    "another number of columns": "label,a,b\n0,1\n1,3,4,5\n",
    "no label": "a,b\n1,2\n",
    "two labels": "label,label,a\n0,1,2\n1,0,3\n",
    "no rows": "label,a,b\n",
    "no features": "label\n0\n1\n",
    "nothing": "",
    "control characters": "label,a\n\x1b[31mred,1\n\x1b]0;title\x07,2\n",
    "a label of 1e8": "label,a,b\n0,1,2\n100000000,3,4\n",
    "a label of 5000 digits": f"label,a,b\n0,1,2\n{'9' * 5000},3,4\n",
    "a BOM": "\ufefflabel,a,b\n0,1,2\n1,3,4\n",
}
CSV_READABLE = {"a BOM", "control characters"}


def _csv(text: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        for group in ("train", "test"):
            (folder / f"{group}.csv").write_text(text, encoding="utf-8")

    return make


def _npy(name: str, content: bytes) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        for key, value in _arrays().items():
            np.save(folder / f"{key}.npy", value)
        (folder / name).write_bytes(content)

    return make


NPY = {
    "a shape of 10^18": _header("(1000000000, 1000000000)"),
    "a shape above the file": _header("(1000, 4)") + bytes(320),
    "a negative shape": _header("(-5, -4)") + bytes(80),
    "10^18 rows of no features": _header("(1000000000000000000, 0)"),
    "a type of no bytes": _header("(20, 4)", "'|V0'"),
    "an empty text type": _header("(20,)", "'<U0'"),
    "records": _header("(20, 4)", "[('a', '<f4')]") + bytes(320),
    "nested records": _header("(20, 4)", "[('a', [('b', '<f4', (10,)), ('c', 'O')])]") + bytes(10_000),
    "nothing": b"",
}


def cases(mutations: int) -> Iterator[Case]:
    """Made files, then changed bytes."""
    for number, (name, make) in enumerate(NPZ.items()):
        wanted = {0, 3} if name in READABLE else ALLOWED.get(name, {3})
        yield Case(f"npz: {name}", make, IMPORT, frozenset(wanted), number % 3 == 0)
        yield Case(f"npz: {name}, as images", make, EXTRACT, frozenset({3}), quick=False)
    for name, make in PT.items():
        yield Case(f"pt: {name}", make, IMPORT_PT, frozenset({0, 3} if name in PT_READABLE else {3}), quick=True)
    for part in range(1, PARTS):
        yield Case(f"pt: {part} of {PARTS} parts", cut(_pt(_tensors), "a.pt", part), IMPORT_PT)
        yield Case(
            f"pt: {part} of {PARTS} parts, the old kind", cut(_pt(_tensors, legacy=True), "a.pt", part), IMPORT_PT
        )
    for name, text in CSV.items():
        wanted = {USAGE} if name == "no label" else {0, 3} if name in CSV_READABLE else {3}
        yield Case(f"csv: {name}", _csv(text), FOLDER, frozenset(wanted), quick=True)
    for name, content in NPY.items():
        yield Case(f"npy: {name}", _npy("X_train.npy", content), FOLDER, quick=True)
        yield Case(f"npy: {name}, as labels", _npy("y_test.npy", content), FOLDER, quick=False)
        yield Case(f"npy: {name}, for predict", _npy("X_train.npy", content), (("predict", "{run}", "X_train.npy"),))
    either = frozenset({0, 3})
    for number in range(mutations):
        yield Case(f"npz: mutation {number}", _mutation("a.npz", number), IMPORT, either, number < 4)
        yield Case(f"pt: mutation {number}", _mutation("a.pt", number), IMPORT_PT, either, number < 4)
        yield Case(f"npy: mutation {number}", _mutation("X_train.npy", number), FOLDER, either, number < 2)
        yield Case(f"csv: mutation {number}", _mutation("train.csv", number), FOLDER, either, number < 2)


def _mutation(name: str, number: int) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        if name == "a.npz":
            _npz(compressed=bool(number % 2))(folder)
        elif name == "a.pt":
            _pt(_tensors, legacy=number % 3 == 2)(folder)
        elif name == "train.csv":
            _csv("label,id,a,b\n" + "".join(f"{row % 3},r{row},{row}.5,{row}\n" for row in range(N)))(folder)
        else:
            _npy("other.txt", b"")(folder)
        path = folder / name
        path.write_bytes(mutated(path.read_bytes(), number))

    return make


def cut(make: Callable[[Path], None], name: str, part: int) -> Callable[[Path], None]:
    """A file that ends after `part` of its `PARTS` parts."""

    def made(folder: Path) -> None:
        make(folder)
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) * part // PARTS])

    return made
