"""Processes that train together, each on a part of the private rows."""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import NDArray


class Group(Protocol):
    """So many processes, `here` of them on this machine; this one is number `rank`.

    Every call is made by all of them, in the same order.

    Raises from every call:
        LinprobeError: another process is gone.
    """

    rank: int
    size: int
    here: int

    def all_reduce(self, part: NDArray[Any]) -> NDArray[Any]:
        """The sum of all parts, alike in every process; parts are added in the order of ranks."""

    def broadcast(self, array: NDArray[Any]) -> NDArray[Any]:
        """The array of rank 0, whatever the others give, of the same shape and type."""

    def broadcast_text(self, text: str) -> str:
        """The text of rank 0."""

    def gather(self, part: NDArray[Any]) -> NDArray[Any]:
        """All parts, one after another along the first axis, at rank 0; the own part elsewhere."""


class Alone:
    """One process with all rows."""

    rank = 0
    size = 1
    here = 1

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
