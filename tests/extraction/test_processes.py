"""Several processes under torchrun make the file that one makes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from linprobe.parallel.process_group import ALONE
from linprobe.parallel.torch_group import group
from tests.extraction.samples import contents, run_extract


def test_one_process_is_a_group_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with group() as alone:
        assert alone is ALONE
        assert (alone.rank, alone.local_rank, alone.size, alone.local_size) == (0, 0, 1, 1)
        alone.barrier()


def test_two_processes_make_the_file_that_one_makes(images: Path, tmp_path: Path) -> None:
    options = ["--backbone", "wrn-16-4", "--random-weights", "--batch-size", "3", "--device", "cpu", "--resize", "16"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*launcher, "-m", "linprobe", "extract", str(images), *options, "--crop", "16", "--out", "two.h5"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["two.h5"]
    run_extract(images, tmp_path / "one.h5", backbone="wrn-16-4", random_weights=True, batch_size=3, resize=16, crop=16)
    assert contents(tmp_path / "two.h5") == contents(tmp_path / "one.h5")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.h5", "two.h5"]
