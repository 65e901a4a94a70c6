"""A group of threads: the calls of a group, and an end when a member fails."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linprobe.errors import LinprobeError
from linprobe.parallel import torch_group
from linprobe.parallel.process_group import ALONE, Group, in_group
from tests.processes import ended, free_port, start_copy


def test_calls_do_what_a_group_promises() -> None:
    def member(group: Group) -> Any:
        own = np.array([10.0**group.rank, 1e16 * (-1) ** group.rank])
        total = group.all_reduce(own)
        first = group.broadcast(np.full(2, group.rank))
        own[:] = total[:] = 0  # what others got does not change
        group.barrier()
        return total, first, group.broadcast_text(f"rank {group.rank}"), group.gather(np.array([group.rank]))

    results = in_group(3, member)
    assert [list(first) for _, first, _, _ in results] == [[0, 0]] * 3
    assert [text for _, _, text, _ in results] == ["rank 0"] * 3
    assert [list(parts) for _, _, _, parts in results] == [[0, 1, 2], [1], [2]]


def test_parts_are_added_in_rank_order() -> None:
    values = [1.0, 1e16, -1e16]
    totals = in_group(3, lambda group: group.all_reduce(np.array(values[group.rank])))
    assert [float(total) for total in totals] == [(1.0 + 1e16) - 1e16] * 3


def test_a_group_of_one_is_no_thread() -> None:
    assert in_group(1, lambda group: group) == [ALONE]


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_the_error_of_a_member_ends_all(failing: int) -> None:
    def member(group: Group) -> None:
        if group.rank == failing:
            raise ValueError(f"rank {group.rank} failed")
        group.barrier()

    with pytest.raises(ValueError, match=f"rank {failing} failed"):
        in_group(3, member)


@pytest.mark.parametrize("at_once", [1, 2, 8])
def test_processes_add_parts_in_rank_order_however_many_arrive_at_once(tmp_path: Path, at_once: int) -> None:
    import torch.distributed as dist

    parts = [np.array([1.0, 0.5]), np.array([1e16, 1.0]), np.array([-1e16, 2.0]), np.array([3.0, 4.0])]

    def member(rank: int) -> int:
        torch_group.AT_ONCE = at_once
        dist.init_process_group(
            "gloo", store=dist.FileStore(str(tmp_path / "store"), 4), rank=rank, world_size=len(parts)
        )
        total = torch_group.TorchGroup(rank, len(parts)).all_reduce(parts[rank])
        return 0 if total.tolist() == [((1.0 + 1e16) - 1e16) + 3.0, 7.5] else 1

    children = [start_copy(lambda rank=rank: member(rank)) for rank in range(len(parts))]  # type: ignore[misc]
    assert [ended(child) for child in children] == [0] * len(parts)


def _environment(monkeypatch: pytest.MonkeyPatch, connection: float) -> None:
    monkeypatch.setattr(torch_group, "CONNECTION", timedelta(seconds=connection))
    for name, value in {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}.items():
        monkeypatch.setenv(name, value)


def test_a_process_that_no_other_one_joins_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def member() -> int:
        with pytest.raises(
            LinprobeError, match=r"another process is gone .*; see its own error; .* start all of them again"
        ):
            torch_group.group().__enter__()
        return 0

    children = []
    for rank in "01":
        _environment(monkeypatch, 0.2)  # with a port of its own
        monkeypatch.setenv("RANK", rank)
        children.append(start_copy(member))
    assert [ended(child) for child in children] == [0, 0]


@pytest.mark.nightly
def test_a_connected_process_may_be_slower_than_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    _environment(monkeypatch, 8)

    def member(rank: int) -> int:
        monkeypatch.setenv("RANK", str(rank))
        with torch_group.group() as joined:
            calls = (joined.barrier, lambda: joined.all_reduce(np.ones(2)), lambda: joined.gather(np.ones(2)))
            for call in calls:
                time.sleep(9 * rank)
                call()
        return 0

    children = [start_copy(lambda rank=rank: member(rank)) for rank in (0, 1)]  # type: ignore[misc]
    assert [ended(child) for child in children] == [0, 0]
