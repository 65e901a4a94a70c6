"""A sample of the faults that `python -m tests.hostile.faults` tries."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("gcc") is None, reason="needs Linux and gcc")
def test_a_fault_at_any_call_is_named_and_leaves_nothing_private_or_uncounted() -> None:
    words = ["--only", "train with checkpoints", "--every", "400"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.hostile.faults", *words], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    tried = int(done.stdout.split()[-7])
    assert tried > 2, done.stdout
