"""Parallel calls in worker processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from multiprocessing.resource_tracker import _resource_tracker
from pathlib import Path

import numpy as np
import pytest

from linprobe.errors import DataError, LinprobeError
from linprobe.parallel.threads import interrupted_once, unordered

ROWS = np.arange(1 << 18, dtype=np.float64).reshape(1 << 10, 1 << 8)
needs_shm = pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="the system has no files in memory")


def _seen(rows: np.ndarray, place: int) -> tuple[int, float, int]:
    return place, float(rows.sum()), os.getpid()


def test_workers_see_the_rows() -> None:
    found = sorted(unordered(_seen, [(ROWS, place) for place in range(6)], 2))
    assert [(place, total) for place, total, _ in found] == [(place, ROWS.sum()) for place in range(6)]
    assert os.getpid() not in {process for _, _, process in found}


def _unread() -> None:
    raise DataError("f.h5 was written to")


class _Changed:
    def __reduce__(self) -> tuple[object, ...]:
        return _unread, ()


def test_what_a_worker_cannot_read_is_the_error_of_its_call() -> None:
    with pytest.raises(DataError, match="was written to"):
        list(unordered(_seen, [(_Changed(), place) for place in range(2)], 2))


def _kill_itself(place: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_was_killed_ends_the_command_with_one_line_that_says_so() -> None:
    with pytest.raises(LinprobeError, match=r"one of 2 processes was killed.*run the command again"):
        list(unordered(_kill_itself, [(0,), (1,)], 2))


def _wait(rows: np.ndarray, mark: str) -> None:
    Path(mark).write_text(str(rows.shape))
    time.sleep(60)


def _files() -> set[str]:
    return {str(path) for path in Path("/dev/shm").rglob("*") if path.is_file() and not path.name.startswith("sem.")}


@needs_shm
def test_nothing_is_left_when_the_parent_is_killed(tmp_path: Path) -> None:
    before, marks = _files(), [str(tmp_path / name) for name in "ab"]
    call = f"list(unordered(_wait, [(ROWS, mark) for mark in {marks}], 2))"
    code = f"from tests.parallel.test_jobs import ROWS, _wait, unordered; {call}"
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(temporary)})
    until = time.monotonic() + 60
    while not all(Path(mark).exists() for mark in marks):
        assert time.monotonic() < until
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert _files() <= before  # joblib's folder stays, empty
    assert not [path for path in temporary.rglob("*") if path.is_file()]


def _mask(_: int) -> set[signal.Signals]:
    return signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_ctrl_c_reaches_the_parent_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINPROBE_TEST_OF_JOBS", "new processes")
    _resource_tracker._stop()  # as in a new process
    assert all(signal.SIGINT in mask for mask in unordered(_mask, [(0,), (1,)], 2))
    assert signal.SIGINT not in _mask(0)


@interrupted_once()
def _cleaned_after_two(done: list[str]) -> None:
    try:
        signal.raise_signal(signal.SIGINT)
    finally:
        signal.raise_signal(signal.SIGINT)
        done.append("cleaned")


def test_a_second_ctrl_c_does_not_stop_the_cleaning() -> None:
    done: list[str] = []
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            _cleaned_after_two(done)
        assert done == ["cleaned"]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_processes_have_the_environment_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("first", "second"):
        monkeypatch.setenv("LINPROBE_TEST_OF_JOBS", value)
        assert list(unordered(os.getenv, [("LINPROBE_TEST_OF_JOBS",)] * 2, 2)) == [value, value]
