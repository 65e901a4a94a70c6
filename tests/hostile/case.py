"""One hostile case, and its judgement in a process of its own under limits of memory and time."""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.processes import start_copy

BAD_DATA, USAGE, PRIVACY = 3, 2, 4
SECONDS, MEMORY = 5.0, 1 << 30  # of one command: processor time, and growth of its memory
AT_ONCE = 64  # cases in one process
PATIENCE = 60  # seconds until a command that waits for something is killed
HARMLESS = frozenset("\n\N{NO-BREAK SPACE}")


@dataclass(frozen=True)
class Case:
    """Hostile files and commands that meet them.

    Attributes:
        name: unique.
        make: writes the files into the folder it gets, the working directory of the commands.
        commands: each as words; `{run}` and `{features}` stand for a good run folder and feature file.
        wanted: exit statuses that are right.
        quick: whether the case belongs to the quick part.
    """

    name: str
    make: Callable[[Path], object]
    commands: tuple[tuple[str, ...], ...]
    wanted: frozenset[int] = frozenset({BAD_DATA})
    quick: bool = False


@dataclass(frozen=True)
class Verdict:
    """What became of one command: its exit status, and why that is wrong (empty if it is right)."""

    case: str
    command: str
    status: int | None
    failure: str
    message: str = ""


@dataclass
class Good:
    """A good feature file, a run trained on it and their budget book, which hostile cases copy and damage."""

    features: Path
    run: Path
    book: Path


def judge(cases: Iterable[Case], good: Good) -> Iterator[Verdict]:
    """Run cases in child processes of `AT_ONCE` cases each; the cases after one that killed its child start another."""
    waiting = list(cases)
    while waiting:
        some, waiting = waiting[:AT_ONCE], waiting[AT_ONCE:]
        with tempfile.TemporaryDirectory(prefix="linprobe-hostile-") as name:
            report = Path(name) / "report"
            report.touch()
            with own_books(Path(name) / "state"):  # the child inherits it
                child = start_copy(lambda some=some, name=name: _run_all(some, good, Path(name)))  # type: ignore[misc]
            _, status = os.waitpid(child, 0)
            for line in report.read_text().splitlines():
                yield Verdict(*json.loads(line))
            begun = json.loads((Path(name) / "begun").read_text())
        if status:  # killed in the middle of a command
            number = os.waitstatus_to_exitcode(status)
            why = "did not end" if number == -signal.SIGALRM else f"the process ended with {number}"
            yield Verdict(begun[0], begun[1], None, why)
            names = [case.name for case in some]
            waiting = some[names.index(begun[0]) + 1 :] + waiting


def _run_all(cases: Iterable[Case], good: Good, folder: Path) -> int:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    if "torch" in sys.modules:  # the threads of its parent are not here, and it would wait for them
        sys.modules["torch"].set_num_threads(1)
    for case in cases:
        (folder / "begun").write_text(json.dumps([case.name, "making the files"]))
        work = folder / "work"
        work.mkdir()
        os.chdir(work)
        resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        case.make(work)
        resource.setrlimit(resource.RLIMIT_DATA, (1024 * status_figure("VmData") + MEMORY, resource.RLIM_INFINITY))
        for words in case.commands:
            named = " ".join(words)
            (folder / "begun").write_text(json.dumps([case.name, named]))
            entry = _run(tuple(word.format(run=good.run, features=good.features) for word in words), case)
            with (folder / "report").open("a") as stream:
                stream.write(json.dumps([case.name, named, *entry]) + "\n")
        os.chdir(folder)
        shutil.rmtree(work, ignore_errors=True)
    return 0


def _run(words: tuple[str, ...], case: Case) -> tuple[int, str, str]:
    from linprobe.cli import run

    stdout, stderr = io.StringIO(), io.StringIO()
    before, started = status_figure("VmRSS"), time.process_time()
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    signal.alarm(PATIENCE)
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        try:
            status = run(list(words))
        except BaseException as error:
            status = 1
            print(f"uncaught {type(error).__name__}: {error}", file=sys.stderr)
    signal.alarm(0)
    seconds, grown = time.process_time() - started, 1024 * (status_figure("VmHWM") - before)
    if Path("planted").exists():
        return status, "code in a file was run", ""
    lines = stderr.getvalue().splitlines()
    last = lines[-1] if lines else ""
    return status, _failure(status, stdout.getvalue(), stderr.getvalue(), seconds, grown, case.wanted), last[:300]


def _failure(status: int, stdout: str, stderr: str, seconds: float, grown: int, wanted: frozenset[int]) -> str:
    """Why the outcome is wrong; empty if it is right."""
    raw = sorted({letter for letter in stdout + stderr if not letter.isprintable()} - HARMLESS)
    lines = stderr.splitlines()
    if status not in wanted:
        return f"exit status {status}, not {sorted(wanted)}"
    if raw:
        return f"printed {raw[:4]} raw"
    if status and (not lines or not lines[-1].startswith("linprobe: error: ") or "--debug to see" in lines[-1]):
        return "no error of one line"
    if seconds > SECONDS:
        return f"took {seconds:.1f} seconds of a processor"
    if grown > MEMORY:
        return f"took {grown >> 20} MiB"
    return ""


def status_figure(key: str) -> int:
    """A figure of /proc/self/status in KiB; 0 where there is no such file."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{key}:"):
                return int(line.split()[1])
    return 0


@contextlib.contextmanager
def good_files() -> Iterator[Good]:
    """A good feature file and a run on it, made in a child process, so that this one stays without threads."""
    from linprobe.cli import run
    from tests.conftest import write_features

    with tempfile.TemporaryDirectory(prefix="linprobe-hostile-") as name:
        folder = Path(name)

        def make() -> int:
            write_features(folder / "good.h5")
            with (
                own_books(folder / "state"),
                contextlib.redirect_stderr(io.StringIO()),
                contextlib.redirect_stdout(io.StringIO()),
            ):
                words = ["train", str(folder / "good.h5"), "--method", "noisy-gd", "--eps", "3"]
                made = run([*words, "--out", str(folder / "trained")]) or run(
                    ["pdp-report", str(folder / "trained"), "--publish-epsilon", "0.5"]
                )
                return made or (folder / "trained.published-1").rename(folder / "run") is None

        _, status = os.waitpid(start_copy(make), 0)
        if status:
            raise RuntimeError(f"the good run failed with {status}")
        yield Good(folder / "good.h5", folder / "run", next((folder / "state" / "linprobe").glob("*.jsonl")))


@contextlib.contextmanager
def own_books(folder: Path) -> Iterator[None]:
    """Keep the budget books of hostile data in `folder`."""
    before = os.environ.get("XDG_STATE_HOME")
    os.environ["XDG_STATE_HOME"] = str(folder)
    try:
        yield
    finally:
        os.environ.pop("XDG_STATE_HOME")
        if before is not None:
            os.environ["XDG_STATE_HOME"] = before


def preload(*, images: bool = True) -> None:
    """Import what the commands import: a forked child starts at once, and no case is charged for an import.

    Without `images` all but what `extract` and the estimators import, which takes seconds.
    """
    import linprobe.cli
    import linprobe.evaluation.attack
    import linprobe.evaluation.audit
    import linprobe.evaluation.compare
    import linprobe.evaluation.export
    import linprobe.evaluation.pdp_report
    import linprobe.evaluation.predict
    import linprobe.evaluation.refine
    import linprobe.reporting.page
    import linprobe.runs.check
    import linprobe.training.dry_run
    import linprobe.training.tune

    if images:
        import linprobe.api.estimators
        import linprobe.extraction.extract
        import linprobe.extraction.run  # noqa: F401
