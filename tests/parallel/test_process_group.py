"""A group of threads: the calls of a group, and an end when a member fails."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from linprobe.parallel.process_group import ALONE, Group, in_group


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
