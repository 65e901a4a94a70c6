"""The bytes of `model.npz`: those of every Python are read, and none besides weights and bias."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from linprobe.data import array_files
from linprobe.data.array_files import Arrays, float_archive, is_float_archive, read_archive
from linprobe.errors import DataError
from tests.npz_layouts import of_layout, with_headers

LATER = Path(__file__).with_name("python-3.11.7.npz").read_bytes()
EARLIER = Path(__file__).with_name("python-3.11.2.npz").read_bytes()
LAYOUTS = {
    "3.11.7": LATER,
    "3.11.2": EARLIER,
    "3.11.7 on Windows": of_layout(LATER, windows=True),
    "3.11.2 on Windows": of_layout(EARLIER, windows=True),
}
ARRAYS = {
    "weights": np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3),
    "bias": np.array([0.5, 0, -0.25], dtype=np.float32),
}


def _read(content: bytes) -> Arrays:
    return read_archive(Path("model.npz"), None, io.BytesIO(content))


def _accepted(content: bytes) -> bool:
    """As a run folder reads its model."""
    try:
        arrays = _read(content)
    except DataError:
        return False
    return list(arrays) == ["weights", "bias"] and is_float_archive(content, arrays)


def test_the_archive_is_that_of_python_3_11_7_whatever_runs() -> None:
    assert b"".join(float_archive(ARRAYS)) == LATER
    assert of_layout(LATER, earlier=True) == EARLIER


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_read(layout: str) -> None:
    arrays = _read(LAYOUTS[layout])
    assert {name: array.tobytes() for name, array in arrays.items()} == {
        name: array.tobytes() for name, array in ARRAYS.items()
    }
    assert _accepted(LAYOUTS[layout])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_byte_can_be_changed(layout: str) -> None:
    """A byte of data, too: its checksum no longer fits. Case and system are the bits that readers overlook."""
    content = LAYOUTS[layout]
    for place in range(len(content)):
        for bits in (1, 3, 0x20, 0xFF):
            assert not _accepted(content[:place] + bytes([content[place] ^ bits]) + content[place + 1 :]), place


def _with_spaces(content: bytes) -> bytes:
    """Longer headers of the arrays, in an archive that fits them."""
    return with_headers(content, lambda _, header: header[:-1] + 64 * b" " + b"\n")


def _with_comment(content: bytes) -> bytes:
    stream = io.BytesIO(content)
    with zipfile.ZipFile(stream, "a") as archive:
        archive.comment = b"rows"
    return stream.getvalue()


def _deflated(_: bytes) -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, **ARRAYS)  # type: ignore[arg-type]
    return stream.getvalue()


HIDDEN: dict[str, Callable[[bytes], bytes]] = {
    "spaces in the headers of arrays": _with_spaces,
    "a comment": _with_comment,
    "bytes before": lambda content: b"rows" + content,
    "bytes after": lambda content: content + b"rows",
    "compression": _deflated,
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("hidden", HIDDEN)
def test_nothing_is_hidden(layout: str, hidden: str) -> None:
    assert not _accepted(HIDDEN[hidden](LAYOUTS[layout]))


@pytest.mark.parametrize("most_plain", [array_files.MOST_PLAIN, 300, 1000, 10_000])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(10, 4), (1, 1), (7, 1), (1, 9), (3, 10, 4), (100, 20)])
def test_what_numpy_saves_is_read(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], order: str, most_plain: int
) -> None:
    """Also beyond the size from which `zipfile` lists members in ZIP64 fields, here a small one."""
    monkeypatch.setattr(array_files, "MOST_PLAIN", most_plain)
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", most_plain)
    weights = np.asarray(np.random.default_rng(0).normal(size=shape), np.float32, order=order)  # type: ignore[call-overload]
    arrays = {"weights": weights, "bias": np.zeros((*shape[:-2], shape[-1]), np.float32)}
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    assert _accepted(stream.getvalue())
