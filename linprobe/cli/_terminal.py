"""Notes, tables and progress for people, on stderr. The only file that imports rich, where it is needed."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from linprobe.accounting.figures import NOUNS, rounded_up
from linprobe.cli import _stderr
from linprobe.errors import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

LONG = 2.0  # seconds
SAMPLED = "none: Poisson samples or private selection"
BESIDE = 3  # border and padding of a column
LEAST_NAME = 16  # of a column of names: longer ones are folded where the terminal is narrow


def _console() -> Console:
    from rich.console import Console

    return Console(file=sys.stderr, highlight=False, soft_wrap=True, markup=False)


def note(text: str) -> None:
    """Print one line on stderr."""
    _stderr.line(text)


class TerminalProgress:
    """Notes as lines, steps as a progress bar. Not on a terminal, a long command gets one line in place of the bar."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._task: Any = None
        self._what, self._total, self._done, self._told = "", 0, 0, False
        self._started = time.monotonic()

    def note(self, text: str) -> None:
        """Print one line."""
        note(text)

    def start(self, total: int, what: str = "training") -> None:
        """Show the bar, of unknown length if `total` is 0."""
        self._what, self._total, self._done, self._started = what, total, 0, time.monotonic()
        if _stderr.is_quiet() or not sys.stderr.isatty():
            return
        if self._bar is not None:
            self._bar.stop()
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=_console(), transient=True)
        self._bar.start()
        self._task = self._bar.add_task(what, total=total or None)

    def step(self, count: int = 1) -> None:
        """Advance the bar by `count` steps."""
        self._done += count
        seconds = time.monotonic() - self._started
        if self._bar is not None:
            self._bar.advance(self._task, count)
        elif not self._told and seconds > LONG and self._done < self._total and not sys.stderr.isatty():
            self._told = True
            left = seconds * (self._total / self._done - 1)
            note(f"{self._what}: {self._done} of {self._total} done, about {left:.0f} s left")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


def table(title: str, rows: Sequence[tuple[str, ...]], header: tuple[str, ...] = ("", "")) -> None:
    """Print a table: a column of names, then columns of values; by default one column, without a header.

    Where a table with a header is too wide, its headings get a word a line. No figure is cut: what is still too wide is
    left to the terminal to wrap.
    """
    from rich.table import Table

    console, shown = _console(), [tuple(map(printable, row)) for row in rows]
    grid = Table(title=title, show_header=any(header), title_justify="left")
    columns = list(zip(header, *shown, strict=True))
    width = sum(max(map(len, column)) + BESIDE for column in columns) + 1
    for place, (name, *cells) in enumerate(columns):
        words = " ".join([name, *cells]).split()
        least = max(map(len, words), default=0) if any(header) else 0
        grid.add_column(
            "\n".join(name.split()) if any(header) and width > console.width else name,
            justify="right" if place else "left",
            overflow="fold",
            min_width=least if place else min(least, LEAST_NAME),
        )
    for row in shown:
        grid.add_row(*row)
    if not _stderr.is_quiet():
        console.print(grid)


def figure(value: float | None, form: str = ".4g") -> str:
    """A number for a table; a dash for None."""
    return "-" if value is None else format(value, form)


def guarantee_rows(claim: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and texts of epsilon and delta of a run, and of mu and rho with --verbose; dashes without an epsilon."""
    if claim["epsilon"] is None:
        return [("epsilon", "-"), ("delta", rounded_up(claim["delta"]))]
    rows = [(name, rounded_up(claim[name])) for name in ("epsilon", "delta")]
    if not _stderr.is_verbose():
        return rows
    return [
        *rows,
        *(
            (name, SAMPLED if claim[key] is None else rounded_up(claim[key]))
            for name, key in (("GDP mu", "gdp_mu"), ("zCDP rho", "zcdp_rho"))
        ),
    ]


def rows_in_words(outcome: Mapping[str, Any]) -> str:
    """The method of a run, its private rows or people, and its public rows."""
    noun = NOUNS[outcome["unit"]]
    return f"{outcome['method']}: {outcome['n_units']} private {noun}, {outcome['n_public']} public rows"
