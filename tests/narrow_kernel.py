"""Copies of the kernel for processors without the widest vectors."""

import atexit
import ctypes
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

from linprobe import native

SOURCE = Path(__file__).parents[1] / "linprobe/native/clipped_sum.c"
needs_compiler = pytest.mark.skipif(
    not SOURCE.exists() or shutil.which("cc") is None, reason="no C compiler, or no source"
)


def narrow_kernel(widest: int) -> ctypes.CDLL | None:
    """The kernel with vectors of at most `widest` floats."""
    return native.load(_compiled(widest))


@cache
def _compiled(widest: int) -> Path:
    """The library, compiled once in this process."""
    folder = tempfile.mkdtemp(prefix="linprobe-narrow-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    library = Path(folder) / f"widest{widest}.so"
    command = ["cc", "-O1", "-std=gnu11", f"-DWIDEST={widest}", "-fPIC", "-shared", str(SOURCE), "-o", str(library)]
    subprocess.run([*command, "-lm"], check=True)
    return library
