"""Which functions may read private numbers while a method trains.

Private rows and unreleased sums may be read by a function that returns a `ClippedSum`, by the mechanism, and by
`EXEMPT`. The neighbours of the other tests do not see every other read: a number rounded to a few values, such as a
power of 2, is often equal on both.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from linprobe.data.rows import ArrayRows, Rows
from linprobe.mechanisms.gaussian import ClippedSum, GaussianMechanism
from linprobe.methods import Problem, Run

EXEMPT = {
    Rows.translated.__code__,  # keeps the norms of the new rows in a view, which has the same guard
    Run.released.__code__,  # moves a sum to the device of the mechanism
}
OF_ROWS = frozenset(("x", "y", "norms", "weights", "memory", "lazy_blocks", "_whole", "_mask"))
OF_SUMS = frozenset(("value", "contributions"))


def may_read(frame: FrameType) -> bool:
    """Whether private numbers that this call reads go to the mechanism."""
    if frame.f_code in EXEMPT or isinstance(frame.f_locals.get("self"), GaussianMechanism):
        return True
    function = frame.f_globals.get(frame.f_code.co_name)
    returned = getattr(function, "__annotations__", {}).get("return")
    return getattr(function, "__code__", None) is frame.f_code and returned in ("ClippedSum", ClippedSum)


@contextmanager
def guarded(problem: Problem, fit: Callable[..., Any]) -> Iterator[Problem]:
    """The problem, of which `fit` may read private numbers only through functions that `may_read` them.

    Raises AssertionError in `fit`: another read. It names the functions between, the innermost first.
    """

    def check(what: str) -> None:
        frame, between = sys._getframe(2), []
        while frame is not None and not may_read(frame):
            between.append(f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name}")
            if frame.f_code is fit.__code__:
                raise AssertionError(f"private {what} is read outside a function that returns a ClippedSum: {between}")
            frame = frame.f_back

    def get(self: Any, name: str) -> Any:
        if name in (OF_SUMS if type(self) is ClippedSum else OF_ROWS):
            check(f"{type(self).__name__}.{name}")
        return object.__getattribute__(self, name)

    rows = problem.private_rows
    assert isinstance(rows, ArrayRows)
    private = rows._view()
    private.__class__ = type("PrivateRows", (ArrayRows,), {"__getattribute__": get})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClippedSum, "__getattribute__", get)
        yield Problem(**{**vars(problem), "private": private})
