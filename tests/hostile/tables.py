"""Hostile Parquet tables for `import`."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from tests.hostile.arrays import PARTS, Planted, cut
from tests.hostile.case import USAGE, Case
from tests.hostile.features import mutated

N, MANY = 20, 20_000_000
FOLDER = (("import", ".", "--out", "o.h5"),)


def _columns(**changes: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {
        "label": [str(row % 3) for row in range(N)],
        "a": rng.standard_normal(N),
        "rows": [[float(row), 1.0] for row in range(N)],
        "id": [f"r{row}" for row in range(N)],
    }
    return {name: value for name, value in (columns | changes).items() if value is not None}


def _parquet(name: str = "train.parquet", **changes: Any) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        import pyarrow
        import pyarrow.parquet

        for group in ("train", "test"):
            pyarrow.parquet.write_table(pyarrow.table(_columns()), folder / f"{group}.parquet")
        pyarrow.parquet.write_table(pyarrow.table(_columns(**changes)), folder / name)

    return make


def _repeated(**changes: Any) -> Callable[[Path], None]:
    """Columns of one value in MANY rows, which Parquet stores in a few bytes."""

    def make(folder: Path) -> None:
        import pyarrow
        import pyarrow.parquet

        values = {"label": 0, "a": 0.0} | changes
        made = {
            name: pyarrow.DictionaryArray.from_arrays(np.zeros(MANY, np.int8), pyarrow.array([value]))
            for name, value in values.items()
        }
        pyarrow.parquet.write_table(pyarrow.table(made), folder / "train.parquet")

    return make


def _zigzag(number: int, length: int = 0) -> bytes:
    """A number as Thrift writes it, in so many bytes if a length is given."""
    rest, written = 2 * number, bytearray()
    while rest > 127 or len(written) + 1 < length:
        written.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*written, rest])


def _forged_footer(folder: Path) -> None:
    """A Parquet file whose footer declares 100 bytes, where a page has 150 million."""
    import pyarrow
    import pyarrow.parquet

    path = folder / "train.parquet"
    table = pyarrow.table({"label": ["x" * 150_000_000, *"ab" * N], "a": np.zeros(2 * N + 1)})
    pyarrow.parquet.write_table(table, path, compression="zstd", use_dictionary=False, write_statistics=False)
    group, content = pyarrow.parquet.read_metadata(path).row_group(0), path.read_bytes()
    end = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    footer = content[end:]
    for size in (group.column(0).total_uncompressed_size, group.total_byte_size):
        footer = footer.replace(_zigzag(size), _zigzag(100, len(_zigzag(size))))
    path.write_bytes(content[:end] + footer)


def _described(field: dict[str, bytes], table: dict[str, bytes]) -> Callable[[Path], None]:
    """A table whose column `a`, or itself, has metadata for the reader."""

    def make(folder: Path) -> None:
        import pyarrow
        import pyarrow.parquet

        _parquet()(folder)
        found = pyarrow.parquet.read_table(folder / "train.parquet")
        place = found.schema.get_field_index("a")
        schema = found.schema.set(place, found.schema.field(place).with_metadata(field)).with_metadata(table)
        pyarrow.parquet.write_table(found.cast(schema), folder / "train.parquet")

    return make


def _deep(levels: int) -> Any:
    value: Any = 1.0
    for _ in range(levels):
        value = {"deeper": [value]}
    return value


PARQUET: dict[str, Callable[[Path], None]] = {
    "a forged footer": _forged_footer,
    "ids of nothing": _parquet(id=[None] * N),
    "labels of nothing": _parquet(label=[None] * N),
    f"{MANY} rows of one value": _repeated(),
    f"{MANY} texts": _repeated(label="x"),
    "a text of 10^6 characters in each row": _parquet(label=["x" * 10**6] * N),
    "an id of 10^6 characters": _parquet(id=["x" * 10**6, *(f"r{row}" for row in range(1, N))]),
    "labels that are lists": _parquet(label=[[1, 2]] * N),
    "labels that are objects": _parquet(label=[{"a": 1}] * N),
    "ids that are lists": _parquet(id=[[1]] * N),
    "lists of other lengths": _parquet(rows=[[0.0] * (row % 3 + 1) for row in range(N)]),
    "lists of lists": _parquet(rows=[[[0.0]]] * N),
    "empty cells": _parquet(label=[None, *(str(row % 3) for row in range(1, N))]),
    "no features": _parquet(a=None, rows=None),
    "no rows": _parquet(**{name: [] for name in _columns()}),
    "times": _parquet(a=np.zeros(N, "datetime64[s]")),
    "a name of control characters": _parquet(**{"\x1b[31mred": ["word"] * N}),
    "text for Parquet": lambda folder: (folder / "train.parquet").write_text("PAR1 hello PAR1"),
    "nothing": lambda folder: (folder / "train.parquet").write_bytes(b""),
    "objects in lists, 30 deep": _parquet(rows=[_deep(15)] * N),
    "rows that are objects": _parquet(rows=[{"x": 1.0, "y": 2.0}] * N),
    "decimals": _parquet(a=[Decimal("1.5")] * N),
    "a test table of other columns": _parquet("test.parquet", rows=None, b=np.zeros(N)),
    "a test table of other types": _parquet("test.parquet", a=["word"] * N),
    "NaN and infinity": _parquet(a=np.array([np.nan, np.inf] * (N // 2))),
    "an extension with planted code": _described(
        {"ARROW:extension:name": b"arrow.py_extension_type", "ARROW:extension:metadata": pickle.dumps(Planted())}, {}
    ),
    "metadata of pandas that is no JSON": _described({}, {"pandas": b"{"}),
}
PARQUET_READABLE = {
    "decimals",
    "an extension with planted code",
    "metadata of pandas that is no JSON",
    "a test table of other types",
}


def cases(mutations: int) -> Iterator[Case]:
    """Made files, then changed bytes; none without pyarrow."""
    if find_spec("pyarrow") is None:
        return
    either = frozenset({0, USAGE, 3})  # a changed byte may rename a column
    for number, (name, make) in enumerate(PARQUET.items()):
        wanted = frozenset({0, 3} if name in PARQUET_READABLE else {3})
        yield Case(f"table: {name}", make, FOLDER, wanted, quick=number not in (0, 3, 4))
    for part in range(1, PARTS):
        yield Case(f"table: {part} of {PARTS} parts", cut(_parquet(), "train.parquet", part), FOLDER)
    for number in range(mutations):
        yield Case(
            f"table: mutation {number} of Parquet", _mutation(_parquet(), "train.parquet", number), FOLDER, either
        )


def _mutation(make: Callable[[Path], None], name: str, number: int) -> Callable[[Path], None]:
    def made(folder: Path) -> None:
        make(folder)
        (folder / name).write_bytes(mutated((folder / name).read_bytes(), number))

    return made
