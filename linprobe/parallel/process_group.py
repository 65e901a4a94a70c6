"""The processes of one command: rank, size, and the collective operations that methods and extraction use."""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import NDArray


class Group(Protocol):
    """A group of processes. Every process makes the same calls in the same order.

    Attributes:
        rank: number of this process. size: number of processes.
        local_rank, local_size: the same among the processes on this machine.

    Raises from every call:
        ConnectionAbortedError: another process has ended.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int

    def barrier(self) -> None:
        """Wait until every process has made this call."""

    def all_reduce(self, part: NDArray[Any]) -> NDArray[Any]:
        """Sum of the parts of all processes, added in rank order; every process gets the same bits."""

    def broadcast(self, array: NDArray[Any]) -> NDArray[Any]:
        """The array of rank 0. Arrays must have the same shape and dtype in all processes."""

    def broadcast_text(self, text: str) -> str:
        """The text of rank 0."""

    def gather(self, part: NDArray[Any]) -> NDArray[Any]:
        """At rank 0 all parts, concatenated along the first axis in rank order; elsewhere the process's own part."""


class Alone:
    """A group of one process."""

    rank = 0
    size = 1
    local_rank = 0
    local_size = 1

    def barrier(self) -> None:
        """Return at once."""

    def all_reduce(self, part: NDArray[Any]) -> NDArray[Any]:
        """The part itself."""
        return part

    def broadcast(self, array: NDArray[Any]) -> NDArray[Any]:
        """The array itself."""
        return array

    def broadcast_text(self, text: str) -> str:
        """The text itself."""
        return text

    def gather(self, part: NDArray[Any]) -> NDArray[Any]:
        """The part itself."""
        return part


ALONE = Alone()
