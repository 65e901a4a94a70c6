"""The kernel in C: built on installation if there is a C compiler, and called through ctypes.

`LIBRARY` is None if the kernel was not built, or with LINPROBE_NATIVE=0 in the environment; NumPy replaces it then.
"""

from __future__ import annotations

import ctypes
import os
import sysconfig
import warnings
from pathlib import Path
from typing import Any

INTERFACE = 13  # of the functions in clipped_sum.c; increment when a signature changes
PATH = Path(__file__).with_name("clipped_sum" + (sysconfig.get_config_var("EXT_SUFFIX") or ".so"))


class KernelPart(ctypes.Structure):
    """Further scores to compute in the pass of a clipped sum: `struct part` in clipped_sum.c."""

    _fields_ = (
        ("w", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("first", ctypes.c_size_t),
        ("d", ctypes.c_size_t),
        ("room", ctypes.c_size_t),
        ("n_classes", ctypes.c_int),
    )


class KernelRows(ctypes.Structure):
    """Rows as they are stored: `struct rows` in clipped_sum.c."""

    _fields_ = (
        ("x", ctypes.c_void_p),
        ("places", ctypes.c_void_p),
        ("shift", ctypes.c_void_p),
        ("d", ctypes.c_size_t),
        ("column", ctypes.c_float),
        ("stored", ctypes.c_int),
    )


class KernelPeople(ctypes.Structure):
    """People, and what their gradients are clipped with: `struct people` in clipped_sum.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("bounds", "ends", "y", "norms", "weights", "inner", "joined")),
        *((name, ctypes.c_void_p) for name in ("factors", "norms_of")),
        ("bound", ctypes.c_double),
        ("most", ctypes.c_double),
        ("n", ctypes.c_size_t),
    )


def address(array: Any) -> int | None:
    """The address of a NumPy array, which must outlive its use; None for None."""
    return None if array is None else int(array.ctypes.data)


def load(path: Path = PATH) -> ctypes.CDLL | None:
    """The kernel, or None if it was not built, was built for another machine or version, or is turned off."""
    if os.environ.get("LINPROBE_NATIVE") == "0" or not path.exists():
        return None
    try:
        library = ctypes.CDLL(str(path))
        interface = library.linprobe_interface()
    except (OSError, AttributeError):  # built for another machine, or by an old version
        interface = None
    if interface != INTERFACE:
        warnings.warn(f"{path.name} was built for another machine or version; install linprobe again", stacklevel=2)
        return None
    address, size, count, real = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_double
    clipped = [
        *[address] * 5,
        real,
        *[address] * 3,
        *[size, address, size, address],
        *[count, size, real, address, count],
    ]
    signatures = {
        "load": [address, address, size],
        "scores": [*[address] * 3, size, size, count, size],
        "sum": [*[address] * 6, size, size, count, size, size, real],
        "clipped_sum": clipped,
        "clipped_runs": clipped,
        "widen": [address, count, address, size],
        "inner_products": [address] * 4,
        "clip_people": [address, size, address, count],
        "people": [*[address] * 5, count, size, real],
        "first_look": [*[address] * 4, size, *[real] * 3, ctypes.c_uint64],
    }
    for name, arguments in signatures.items():
        function = getattr(library, f"linprobe_{name}")
        function.argtypes, function.restype = arguments, None
    library.linprobe_first_look.restype = size
    return library


LIBRARY = load()
