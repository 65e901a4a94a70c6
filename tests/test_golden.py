"""Seeded runs give the weights, ledgers and per-record files that they gave before the redesign, bit for bit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.golden import write_features

SCRIPT = Path(__file__).with_name("golden.py")
HASHES = json.loads(Path(__file__).with_name("golden.json").read_text())


@pytest.mark.parametrize("native", ["0", "1"])
@pytest.mark.parametrize("processes", [1, 2])
def test_seeded_runs_are_what_they_were(processes: int, native: str, tmp_path: Path) -> None:
    write_features(tmp_path / "golden.h5")
    launcher = [sys.executable]
    if processes > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    environment = {**os.environ, "LINPROBE_NATIVE": native, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*launcher, SCRIPT, tmp_path], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == HASHES[f"{processes} processes, native {native}"]
