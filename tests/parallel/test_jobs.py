"""Parallel calls in worker processes."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import numpy as np
import pytest

from linprobe.parallel.threads import unordered

ROWS = np.zeros((1 << 10, 1 << 8))  # more than joblib sends through a pipe


def _mode_of_folder(rows: np.ndarray) -> int:
    assert isinstance(rows, np.memmap)
    return stat.S_IMODE(Path(str(rows.filename)).parent.stat().st_mode)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such modes")
def test_rows_shared_with_workers_lie_in_a_folder_for_the_user_alone() -> None:
    assert set(unordered(_mode_of_folder, [(ROWS,), (ROWS,)], 2)) == {0o700}
