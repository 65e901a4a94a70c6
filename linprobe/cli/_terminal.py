"""What commands print: results on stdout; notes, tables and progress on stderr. The only file that imports rich."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO, cast

import typer

from linprobe.accounting.figures import NOUN, rounded_up
from linprobe.atomic_files import PRIVATE_MODE, json_text
from linprobe.errors import LinprobeError, counted, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from linprobe.training.words import DryRun

LONG = 2.0  # seconds
SAMPLED = "none: Poisson samples or private selection"
BESIDE = 3  # border and padding of a column
LEAST_NAME = 16  # of a column of names: longer ones are folded where the terminal is narrow
_quiet = _verbose = False


class Watched:
    """A text stream with the last `error` of a write; `lossy` drops what cannot be written: a paid run goes on."""

    def __init__(self, stream: TextIO, *, lossy: bool) -> None:
        self._stream, self._lossy = stream, lossy
        self.error: OSError | None = None

    def write(self, text: str) -> int:
        self._attempt(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._attempt(self._stream.flush)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _attempt(self, call: Callable[[], object]) -> None:
        try:
            call()
        except OSError as error:
            self.error = error
            if not self._lossy:
                raise


@contextmanager
def watched() -> Iterator[Watched]:
    """Inside the block, a stderr that cannot be written ends nothing. Yields stdout, watched."""
    stdout, stderr = sys.stdout, sys.stderr
    out = Watched(stdout, lossy=False)
    sys.stdout, sys.stderr = cast(TextIO, out), cast(TextIO, Watched(stderr, lossy=True))
    try:
        yield out
    finally:
        sys.stdout, sys.stderr = stdout, stderr
        drop_unwritten(stderr)


def drop_unwritten(stream: TextIO) -> None:
    """Drop what `stream` holds, if it cannot be written. Python would try again at exit, and fail."""
    try:
        stream.flush()
    except (OSError, ValueError):  # ValueError: it is closed
        with suppress(OSError, ValueError):  # it may be no file
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def note(text: str, *, always: bool = False, detail: bool = False) -> None:
    """Print one line on stderr, unless the command is quiet; `always` in any case, a `detail` only with --verbose."""
    if always or not (_quiet or (detail and not _verbose)):
        print(printable(text), file=sys.stderr)


@contextmanager
def as_asked(*, quiet: bool, verbose: bool) -> Iterator[None]:
    """Print errors only inside the block, if `quiet`; longer tables if `verbose`."""
    global _quiet, _verbose
    before, _quiet, _verbose = (_quiet, _verbose), quiet, verbose
    try:
        yield
    finally:
        _quiet, _verbose = before


def print_json(value: Any) -> None:
    typer.echo(json_text(value), nl=False)


@contextmanager
def printing(made: str, what: str = "its name") -> Iterator[None]:
    """Print a result inside the block, where `made` says what is complete and where, and `what` goes to stdout.

    Raises LinprobeError: stdout cannot be written, and nothing else is missing. BrokenPipeError: its reader has left.
    """
    try:
        yield
        sys.stdout.flush()
    except (OSError, ValueError) as error:  # ValueError: an encoding without some letter
        if not made:
            raise
        reason = getattr(error, "strerror", None) or str(error)
        text = f"{made}; only {what} could not be printed ({reason}); use it as it is"
        if isinstance(error, BrokenPipeError):
            note(f"linprobe: {text}", always=True)
            raise
        drop_unwritten(sys.stdout)
        raise LinprobeError(text) from None


def print_made(what: str, place: object, facts: Any = None, *, private: bool = False) -> None:
    """Print the place of a complete output of the kind `what`, or with `facts` these as JSON. Raises as `printing`."""
    with printing(f"the {what} is complete in {place}", "its name" if facts is None else "its JSON object"):
        if facts is None:
            typer.echo(str(place))
        else:
            (print_private_json if private else print_json)(facts)


def print_dry_run(check: Callable[[TerminalProgress], DryRun], *, as_json: bool) -> None:
    """Make a dry run, and print its facts as JSON, or its lines. They count private rows, and runs that share some."""
    with TerminalProgress() as progress:
        found = check(progress)
    keep_stdout_private()
    if as_json:
        print_json(found.facts)
        return
    for about, text in found.lines:
        typer.echo(printable(f"{about:<10} {text}"))


def keep_stdout_private() -> None:
    """Give a file that stdout was redirected to mode 0600, as private figures follow."""
    with suppress(OSError, ValueError):
        if stat.S_ISREG(os.fstat(sys.stdout.fileno()).st_mode):
            os.fchmod(sys.stdout.fileno(), PRIVATE_MODE)


def print_private_json(value: Any) -> None:
    keep_stdout_private()
    print_json(value)


def _console() -> Console:
    from rich.console import Console

    return Console(file=sys.stderr, highlight=False, soft_wrap=True, markup=False)


class TerminalProgress:
    """Notes as lines, steps as a progress bar. Not on a terminal, a long command gets one line in place of the bar."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._task: Any = None
        self._what, self._total, self._done, self._told = "", 0, 0, False
        self._first: tuple[int, float] | None = None

    def note(self, text: str) -> None:
        note(text)

    def start(self, total: int, what: str = "training") -> None:
        """Show the bar, of unknown length if `total` is 0."""
        self._what, self._total, self._done, self._first = what, total, 0, None
        if _quiet or not sys.stderr.isatty():
            return
        if self._bar is not None:
            self._bar.stop()
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=_console(), transient=True)
        self._bar.start()
        self._task = self._bar.add_task(what, total=total or None)

    def step(self, count: int = 1) -> None:
        self._done += count
        self._first = self._first or (self._done, time.monotonic())  # the first step may load and compile
        done, seconds = self._done - self._first[0], time.monotonic() - self._first[1]
        if self._bar is not None:
            self._bar.advance(self._task, count)
        elif not self._told and seconds >= LONG and self._done < self._total and not sys.stderr.isatty():
            self._told = True
            left = seconds / done * (self._total - self._done)
            note(f"{self._what}: {self._done} of {self._total} done, about {left:.0f} s left")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


def table(title: str, rows: Sequence[tuple[str, ...]], header: tuple[str, ...] = ("", "")) -> None:
    """Print a table, unless the command is quiet: names, then columns of values. No figure is cut."""
    if _quiet:
        return
    from rich.cells import cell_len
    from rich.table import Table

    console, shown = _console(), [tuple(map(printable, row)) for row in rows]
    grid = Table(title=title, show_header=any(header), title_justify="left")
    columns = list(zip(header, *shown, strict=True))
    width = sum(max(map(cell_len, column)) + BESIDE for column in columns) + 1
    for place, (name, *cells) in enumerate(columns):
        words = " ".join([name, *cells]).split()
        least = max(map(len, words), default=0) if any(header) else 0
        grid.add_column(
            "\n".join(name.split()) if any(header) and width > console.width else name,
            justify="right" if place else "left",
            overflow="fold",
            min_width=least if place else min(least, LEAST_NAME),
        )
    if shown and width <= console.width:  # nothing is folded: one cell of many lines a column takes a third of the time
        shown = [tuple(map("\n".join, zip(*shown, strict=True)))]
    for row in shown:
        grid.add_row(*row)
    console.print(grid)


def figure(value: float | None, form: str = ".4g") -> str:
    return "-" if value is None else format(value, form)


def guarantee_rows(claim: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and texts of epsilon and delta of a run, and of mu and rho with --verbose; dashes without an epsilon."""
    if claim["epsilon"] is None:
        return [("epsilon", "-"), ("delta", rounded_up(claim["delta"]))]
    rows = [(name, rounded_up(claim[name])) for name in ("epsilon", "delta")]
    if not _verbose:
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
    private = counted(outcome["n_units"], f"private {NOUN[outcome['unit']]}")
    return f"{outcome['method']}: {private}, {counted(outcome['n_public'], 'public row')}"
