"""Commands in copies of the test process: they start at once, where a new process imports for seconds."""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable

import pytest

PATIENCE = 120.0  # seconds that a process may take before the test fails


def start_copy(work: Callable[[], int]) -> int:
    """Fork; the copy ends with the exit status that `work` returns. Returns its process id."""
    if not hasattr(os, "fork"):
        pytest.skip("needs fork")
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return child
    gc.freeze()  # so that the collector does not write to, and so copy, the memory shared with the parent
    status = 99
    try:
        status = work()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def ended(child: int, patience: float = PATIENCE) -> int:
    """Exit status of a process once it has ended, or minus the number of the signal that killed it."""
    until = time.monotonic() + patience
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise TimeoutError(f"process {child} was still at work after {patience} seconds")
        time.sleep(0.005)


def free_port() -> str:
    """A TCP port nobody listens at."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])
