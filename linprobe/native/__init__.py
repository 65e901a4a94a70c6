"""The kernel in C: built on installation if there is a C compiler, and called through ctypes.

`LIBRARY` is None if the kernel was not built, does not give its known answers, or with LINPROBE_NATIVE=0 in the
environment; NumPy replaces it then.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import os
import sysconfig
import warnings
from functools import cache
from pathlib import Path
from typing import Any

INTERFACE = 16  # of the functions in clipped_sum.c; increment when a signature changes
KNOWN_NOISE = (  # words, values, and the cells of value + Z on a grid of 2^-20; a test computes them anew
    (0x8000000000000001, 0.0, 707254),
    (0xFFFFFFFFFFFFFFFE, 0.001, 1049),
    (0xFFFFFFFFFFFFFFFF, -0.001, -1049),
    (0x123456789ABCDEF0, 1234.5, 1292574636),
    (0x0FEDCBA987654321, -1000000.3, -1048574359284),
    (0x0000200000000003, 0.0, 4994369),
    (0x4000000000000000, math.ldexp(0.4, -21), -1206229),
    (0x13333333333333FF, -7.0, -5473080),
)
PATH = Path(__file__).with_name("clipped_sum" + (sysconfig.get_config_var("EXT_SUFFIX") or ".so"))


class KernelPart(ctypes.Structure):
    _fields_ = (
        ("w", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("first", ctypes.c_size_t),
        ("d", ctypes.c_size_t),
        ("room", ctypes.c_size_t),
        ("n_classes", ctypes.c_int),
    )


class KernelRows(ctypes.Structure):
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
    """The kernel, or None: not built, turned off, made for another machine or version, or with other answers."""
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
        "halve": [address, address, size],
        "inner_products": [address] * 4,
        "clip_people": [address, size, address, count],
        "people": [*[address] * 5, count, size, real],
        "formed": [*[address] * 5, count, size, real],
        "first_look": [*[address] * 4, size, *[real] * 3, ctypes.c_uint64],
    }
    for name, arguments in signatures.items():
        function = getattr(library, f"linprobe_{name}")
        function.argtypes, function.restype = arguments, None
    library.linprobe_first_look.restype = size
    if not (_scores_as_known(library) and _sums_as_known(library) and _noise_as_known(library)):
        warnings.warn(f"{path.name} gives wrong numbers here, so NumPy computes; install linprobe again", stacklevel=2)
        return None
    return library


def _numbers(kind: Any, *numbers: float) -> Any:
    return (kind * len(numbers))(*numbers)


def _scores_as_known(library: ctypes.CDLL) -> bool:
    """Whether numbers below the normal range of float32 and float16 are kept, and float16 rounds to nearest."""
    least, out = math.ldexp(1.0, -149), _numbers(ctypes.c_float, 0.0)
    row, weights = (_numbers(ctypes.c_float, *[0.0] * 15, number) for number in (3 * least, 1.0))
    library.linprobe_scores(row, weights, out, 1, 16, 1, 16)
    wide = _numbers(ctypes.c_float, 0.0, 0.0)
    library.linprobe_widen(_numbers(ctypes.c_uint16, 1, 0x3C01), 2, wide, 2)
    half = _numbers(ctypes.c_uint16, 0, 0, 0, 0)
    ties = (math.ldexp(number, power) for number, power in ((1, -25), (3, -25), (2049, -11), (-65520, 0)))
    library.linprobe_halve(_numbers(ctypes.c_float, *ties), half, 4)
    known = [3 * least, math.ldexp(1.0, -24), 1 + math.ldexp(1.0, -10)]
    return [*out, *wide] == known and [*half] == [0, 2, 0x3C00, 0xFC00]


def _sums_as_known(library: ctypes.CDLL) -> bool:
    """Whether two rows, of which the first is clipped, add up to the sum by hand, on the grid of 2^-30."""
    n_classes, d, apart = 2, 2, 32
    x = _numbers(ctypes.c_float, 3.0, 4.0, 0.75, 1.0)
    rows = KernelRows(ctypes.addressof(x), None, None, d, 0.0, 0)
    room, weights = (ctypes.c_float * (32 * d + apart * n_classes))(), (ctypes.c_float * (16 * n_classes))()
    r_norms, factors, total = (
        (ctypes.c_double * 2)(),
        (ctypes.c_double * 2)(),
        (ctypes.c_double * (apart * n_classes))(),
    )
    clipped = _numbers(ctypes.c_int64, 0, 1), _numbers(ctypes.c_double, 5.0, 1.25), 1.0, r_norms, factors
    shape = n_classes, apart, math.ldexp(1.5, 52 - 30)
    library.linprobe_clipped_sum(ctypes.byref(rows), room, weights, *clipped, total, 2, None, 0, None, *shape, None, 0)
    # residuals (-1/2, 1/2) and (1/2, -1/2); the first gradient has norm 5 / sqrt(2) and is clipped to 1
    first, found = math.sqrt(2) / 10, [total[0], total[1], -total[apart], -total[apart + 1]]
    known = [0.375 - 3 * first, 0.5 - 4 * first]
    near = all(abs(a - b) < math.ldexp(1.0, -20) for a, b in zip(found, [*known, *known], strict=True))
    return near and all(math.ldexp(number, 30).is_integer() for number in found) and factors[1] == 1.0


def _noise_as_known(library: ctypes.CDLL) -> bool:
    """Whether the noise of some words is what ball arithmetic gives, and rounds to nearest."""
    n, out, doubtful = len(KNOWN_NOISE), (ctypes.c_double * len(KNOWN_NOISE))(), (ctypes.c_uint32 * len(KNOWN_NOISE))()
    words, values, cells = zip(*KNOWN_NOISE, strict=True)
    given = _numbers(ctypes.c_uint64, *words), _numbers(ctypes.c_double, *values), out, doubtful
    left = library.linprobe_first_look(
        *given, n, math.ldexp(1.0, 20), math.ldexp(1.0, -20), math.ldexp(1.0, -21), 1 << 43
    )
    return left == 0 and [math.ldexp(number, 20) for number in out] == list(cells)


@cache
def arithmetic_name() -> str:
    """What computes: NumPy, or the kernel with this SHA-256 and vector width. Bits of sums depend on it."""
    if LIBRARY is None:
        return "numpy"
    digest = hashlib.sha256(PATH.read_bytes()).hexdigest()
    return f"kernel {digest}, vectors of {LIBRARY.linprobe_lanes()} floats"


LIBRARY = load()
