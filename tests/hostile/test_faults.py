"""A sample of the faults that `python -m tests.hostile.faults` tries."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import mostly_nightly
from tests.hostile.faults import compiled


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("gcc") is None, reason="needs Linux and gcc")
@pytest.mark.parametrize("every", mostly_nightly((1000, 100), (1000).__eq__))
def test_a_fault_at_any_call_is_named_and_leaves_nothing_private_or_uncounted(tmp_path: Path, every: int) -> None:
    words = ["--only", "train with checkpoints", "--every", str(every)]
    command = [sys.executable, "-m", "tests.hostile.faults", *words]
    environment = {**os.environ, "LD_PRELOAD": str(compiled(tmp_path))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    tried = int(done.stdout.split()[-7])
    assert tried >= 2, done.stdout
