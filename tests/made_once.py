"""What the processes of one run of the suite make once and share, such as run folders and compiled kernels."""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from linprobe.atomic_files import alone

FOLDER = "LINPROBE_TEST_SHARED"  # of the environment, which the first process sets and its workers inherit
if FOLDER not in os.environ:
    # hexadecimal, as no message about a file there may seem to hold an address, such as 0x
    os.environ[FOLDER] = str(Path(tempfile.gettempdir()) / f"linprobe-shared-{secrets.token_hex(8)}")
    Path(os.environ[FOLDER]).mkdir(mode=0o700)
    atexit.register(shutil.rmtree, os.environ[FOLDER], ignore_errors=True)


def made_once(name: str, make: Callable[[Path], object]) -> Path:
    """A folder of this name, which `make` has filled in the first process that asked for it. Do not change it."""
    folder = Path(os.environ[FOLDER]) / name
    folder.mkdir(exist_ok=True)
    whole = folder.with_name(f"{name} is whole")
    with alone(folder):
        if not whole.exists():
            make(folder)
            whole.touch()
    return folder
