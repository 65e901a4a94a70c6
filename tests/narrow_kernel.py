"""Copies of the kernel for processors without the widest vectors."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from linprobe import native

SOURCE = Path(__file__).parents[1] / "linprobe/native/clipped_sum.c"
needs_compiler = pytest.mark.skipif(
    not SOURCE.exists() or shutil.which("cc") is None, reason="no C compiler, or no source"
)


def narrow_kernel(widest: int, folder: Path) -> ctypes.CDLL | None:
    """The kernel with vectors of at most `widest` floats, compiled in `folder`."""
    library = folder / f"widest{widest}.so"
    command = ["cc", "-O1", "-std=gnu11", f"-DWIDEST={widest}", "-fPIC", "-shared", str(SOURCE), "-o", str(library)]
    subprocess.run([*command, "-lm"], check=True)
    return native.load(library)
