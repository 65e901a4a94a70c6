"""Several processes make the file that one makes; tests/training/test_processes.py starts them by torchrun itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from linprobe.cli import run
from linprobe.parallel.process_group import ALONE
from linprobe.parallel.torch_group import group
from tests.extraction.samples import SMALL, contents, run_extract
from tests.processes import ended, free_port, start_copy


def test_one_process_is_a_group_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with group() as alone:
        assert alone is ALONE
        assert (alone.rank, alone.local_rank, alone.size, alone.local_size) == (0, 0, 1, 1)
        alone.barrier()


def test_two_processes_make_the_file_that_one_makes(
    images: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = [images, "--backbone", SMALL["backbone"], "--random-weights", "--batch-size", 3, "--device", "cpu"]
    command = ["extract", *map(str, words), "--resize", "16", "--crop", "16", "--out", str(tmp_path / "two.h5")]
    group = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}

    def work(rank: int) -> int:
        os.environ |= {**group, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        return run(command)

    children = [start_copy(lambda rank=rank: work(rank)) for rank in range(2)]
    statuses = [ended(child) for child in children]
    printed = capfd.readouterr()
    assert statuses == [0, 0], printed.err
    assert printed.out == f"{tmp_path / 'two.h5'}\n"
    run_extract(images, tmp_path / "one.h5", batch_size=3, **SMALL)
    assert contents(tmp_path / "two.h5") == contents(tmp_path / "one.h5")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.h5", "two.h5"]
