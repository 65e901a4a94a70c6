"""A lack of something is named, and leaves nothing half-written; `python -m tests.hostile.limits` tries more."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

import pytest

from linprobe.cli import run
from linprobe.runs.run_folder import new_run_folder
from tests.hostile.case import status_figure
from tests.processes import ended, start_copy

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits and /proc are those of Linux")


@pytest.mark.parametrize("free", range(4))
def test_a_run_folder_that_lacks_open_files_is_removed(tmp_path: Path, free: int) -> None:
    def work() -> int:
        unused = [os.open(os.devnull, os.O_RDONLY) for _ in range(free + 1)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (unused[-1], resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        for descriptor in unused:
            os.close(descriptor)
        try:
            with new_run_folder(tmp_path / "run") as folder:
                held = [(folder / name).open("w") for name in ("ledger.jsonl", "model.npz", "history.csv")]
                return len(held)
        except OSError:
            return 100

    assert ended(start_copy(work)) == 100
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("limit", "used"), [(resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData")])
def test_a_limit_on_memory_that_is_too_low_to_start_is_named(
    limit: int, used: str, capfd: pytest.CaptureFixture[str]
) -> None:
    def work() -> int:
        most = 1024 * status_figure(used) + (48 << 20)
        resource.setrlimit(limit, (most, most))
        return run(["methods"])

    assert ended(start_copy(work)) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("linprobe: error: memory is limited to ")
    assert line.endswith("; raise the limit")
