"""Copies of the kernel for processors without the widest vectors."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from linprobe import native
from tests.made_once import made_once

SOURCE = Path(__file__).parents[1] / "linprobe/native/clipped_sum.c"
NAME = "narrow.so"
needs_compiler = pytest.mark.skipif(
    not SOURCE.exists() or shutil.which("cc") is None, reason="no C compiler, or no source"
)


def narrow_kernel(widest: int) -> ctypes.CDLL | None:
    """The kernel with vectors of at most `widest` floats."""
    return native.load(_compiled(widest))


def _compiled(widest: int) -> Path:
    """The library, compiled once."""

    def compile_it(folder: Path) -> None:
        command = ["cc", "-Og", "-std=gnu11", f"-DWIDEST={widest}", "-fPIC", "-shared", str(SOURCE), "-lm"]
        subprocess.run([*command, "-o", folder / NAME], check=True)

    return made_once(f"kernel of {widest}", compile_it) / NAME
