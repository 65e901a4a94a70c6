"""Arrays from .npz, .npy and .pt files that a stranger may have made: no pickles, and no more memory than they hold."""

from __future__ import annotations

import math
import pickle
import zipfile
from collections.abc import Collection
from contextlib import nullcontext
from io import SEEK_END
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from linprobe.data.limits import MOST_COMPRESSED, too_large
from linprobe.errors import DataError, reading, require

LONGEST_HEADER = 10_000  # bytes; NumPy's own limit
ZIP_MAGIC = b"PK\x03\x04"
Arrays = dict[str, NDArray[Any]]


def array_names(path: Path, opened: IO[bytes] | None = None) -> list[str]:
    """The names of the arrays in an .npz file. Raises DataError for a damaged file. `opened` as in `read_archive`."""
    with reading(f"array file {path}", "write it again"), zipfile.ZipFile(opened or path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist()]


def read_archive(path: Path, wanted: Collection[str] | None = None, opened: IO[bytes] | None = None) -> Arrays:
    """The arrays of an .npz file by name; only those `wanted`, if given. `opened` is the file, if it is open already.

    Raises:
        DataError: a damaged file, a pickle, or an array larger than its bytes in the file can stand for.
    """
    arrays: Arrays = {}
    with (
        reading(f"array file {path}", "write it again"),
        path.open("rb") if opened is None else nullcontext(opened) as file,
        zipfile.ZipFile(file) as archive,
    ):
        longest = file.seek(0, SEEK_END)
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if wanted is not None and name not in wanted:
                continue
            if name in arrays:
                raise ValueError(f"it holds {name} twice")
            if too_large(member.file_size, member.compress_size):
                raise ValueError(
                    f"{name} grows from {member.compress_size} to {member.file_size} bytes; allowed: "
                    f"{MOST_COMPRESSED} times as many"
                )
            with archive.open(member) as stream:
                _check_header(stream, member.file_size, name, longest)
            with archive.open(member) as stream:
                arrays[name] = np.lib.format.read_array(stream, allow_pickle=False)
                stream.read(1)  # at the end of a member, zipfile compares its checksum
    return arrays


def checked_arrays(path: Path, arrays: Arrays, **wanted: tuple[int, str]) -> list[NDArray[Any]]:
    """The arrays of the names wanted, each with its number of axes and kind.

    Raises:
        DataError: others in `arrays`, which were read from `path`.
    """
    for name, (axes, kind) in wanted.items():
        found = arrays.get(name)
        if found is None or found.ndim != axes or found.dtype.kind != kind:
            described = "missing" if found is None else f"of shape {found.shape} and type {found.dtype}"
            raise DataError(f"{path}: {name} is {described}; restore it from a copy")
    return [arrays[name] for name in wanted]


def open_array(path: Path) -> NDArray[Any]:
    """The array of an .npy file, mapped into memory.

    Raises:
        DataError: a damaged file, a pickle, or a shape that its size contradicts.
    """
    with reading(f"array file {path}", "write it again"):
        with path.open("rb") as stream:
            _check_header(stream, path.stat().st_size, path.name, path.stat().st_size)
        return np.load(path, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]


def _check_header(stream: IO[bytes], size: int, name: str, longest: int) -> None:
    """ValueError unless an array in the .npy format, of plain values, fills the `size` bytes of `stream` exactly.

    No axis may be longer than `longest`: an array without columns may declare any number of rows.
    """
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        shape, _, dtype = np.lib.format.read_array_header_1_0(stream, max_header_size=LONGEST_HEADER)
    elif version == (2, 0):
        shape, _, dtype = np.lib.format.read_array_header_2_0(stream, max_header_size=LONGEST_HEADER)
    else:
        raise ValueError(f"{name} has version {version} of the .npy format; allowed: (1, 0), (2, 0)")
    if dtype.hasobject:
        raise DataError(
            f"array {name} holds Python objects, not numbers or text; save features as x.astype('float32'), and labels "
            "and ids as np.array(labels, dtype=str)"
        )
    held, declared = size - stream.tell(), math.prod(shape) * dtype.itemsize
    if any(length < 0 for length in shape) or declared != held or max(shape, default=0) > max(size, longest):
        raise ValueError(f"{name} declares shape {shape} of {dtype}, {declared} bytes, and holds {held}")


def load_torch(path: Path) -> Any:
    """What torch reads from a .pt file, without running code in it. Tensors may still be larger than the file: `fits`.

    Raises:
        DataError: a damaged file, or one that holds more than tensors and plain containers.
    """
    require("torch", f"file {path}")
    import torch

    with reading(f"file {path}", "save plain tensors or model.state_dict() again"):
        with path.open("rb") as stream:
            zipped = stream.read(len(ZIP_MAGIC)) == ZIP_MAGIC
        if zipped:
            with zipfile.ZipFile(path) as archive:
                members = archive.infolist()
            if sum(member.file_size for member in members) > path.stat().st_size:
                raise ValueError("it declares more bytes than it has")
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError:  # torch's message advises to run the code in the file
            raise ValueError("it holds more than tensors, or is damaged") from None


def fits(tensor: Any, path: Path) -> bool:
    """Whether a tensor is dense, real, in memory, and not larger than the file it came from."""
    import torch

    dense = (
        tensor.layout == torch.strided and not tensor.is_meta and not tensor.is_complex() and not tensor.is_quantized
    )
    return bool(dense and tensor.numel() * tensor.element_size() <= path.stat().st_size)
