"""Users, clocks, stopped processes and many readers: `python -m tests.hostile.surroundings [--only WORD]`.

- `two users`: one user runs every command under several umasks; another one tries to read each file. Needs root.
- `read-only home`: a user whose home is not writable. Needs root.
- `clock back`: every look at the clock is an hour earlier than the last one. Needs gcc.
- `stopped`: SIGSTOP in the middle of a command, SIGCONT a second later.
- `200 predicts`: 20 at once, ten times, and all print the same.
- `old book`: a folder of books that is brought back from a copy; after the next run, `budget` says which run it lacks.

Prints every failure, and the counts of each family: tried, failed.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.hostile.case import preload
from tests.hostile.crashes import COMPARE, EXTRACT, FULL, TUNE, start, uncovered
from tests.hostile.crashes import make_inputs as make_inputs_of_crashes
from tests.hostile.faults import COMMANDS, compiled, make_inputs
from tests.processes import ended, start_copy

OWNER, STRANGER = 65001, 65002
UMASKS = (0o022, 0o000, 0o002, 0o077, 0o777)
PRIVATE_FILES = ("per_record.npz", "checkpoint.npz", "private_commitment.json", ".h5", ".rows", "key", "private.csv")
MORE = {
    "non-private": ("train", "../f.h5", "--method", "non-private", "--out", "private-model"),
    "compare": (
        "compare",
        "../f.h5",
        "--methods",
        "noisy-gd",
        "--eps",
        "1",
        "--seeds",
        "1",
        "--jobs",
        "1",
        "--out",
        "c",
    ),
    "csv": ("pdp-report", "../run", "--csv", "private.csv"),
    "predict to a file": ("predict", "../run", "../f.h5", "--out", "predicted.private.csv"),
}
READING = (
    ("info", "../run"),
    ("verify", "../run"),
    ("predict", "../run", "../f.h5"),
    ("plan", "--n", "1000", "--eps", "1"),
)


def outcome(words: tuple[str, ...], folder: Path) -> tuple[int, str]:
    """Exit status and output of a command in this process."""
    from linprobe.cli import run

    os.chdir(folder)
    with (folder / "log").open("w") as log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        status = run(list(words))
    return status, (folder / "log").read_text()


def every_command(top: Path, word: str) -> int:
    """Run every command, each in a folder of its own named `word` and a number; the number of those that failed."""
    os.environ["XDG_STATE_HOME"] = str(top / "state")
    failed = 0
    for number, (name, words) in enumerate({**COMMANDS, **MORE}.items()):
        if name == "extract" and word == "work" and os.getuid():
            continue  # it looks for modules, which another user may not find
        place = top / f"{word}-{number}"
        place.mkdir(mode=0o755)
        with contextlib.suppress(OSError):
            shutil.rmtree(top / "run.published-1")
        status, said = outcome(words, place)
        if status:
            failed += 1
            print(f"{name}: status {status}: {said[-200:]!r}", file=sys.__stderr__)
    return failed


def warmed(top: Path) -> None:
    """Import what every command imports: another user may not read the modules."""
    make_inputs(top)
    every_command(top, "warm")
    for words in READING:
        outcome(words, top / "warm-0")


def owned(top: Path, uid: int) -> None:
    """Give everything below a folder to a user, and become this user for good."""
    for path in (top, *top.rglob("*")):
        os.chown(path, uid, uid, follow_symlinks=False)
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)


def two_users(top: Path) -> Iterator[str]:
    """What another user can read."""
    for mask in UMASKS:
        place = top / f"umask-{mask:o}"

        def work(place: Path = place, mask: int = mask) -> int:
            place.mkdir()
            warmed(place)
            owned(place, OWNER)
            os.umask(mask)
            from linprobe.__main__ import keep_private

            keep_private()
            return every_command(place, "work")

        if status := ended(start_copy(work)):
            yield f"umask {mask:o}: {status} commands failed"
        found = readable(place)
        for path in found:
            if path.endswith(PRIVATE_FILES) or "private-model" in path or "state" in path.split("/"):
                yield f"umask {mask:o}: another user reads {path}"
        yield f"#{len(found)}"


def readable(place: Path) -> list[str]:
    """The files below a folder that another user, who is in the group of the owner, can read."""
    report = place.parent / "read"

    def look() -> int:
        with report.open("w") as stream:
            os.setgroups([OWNER])
            os.setgid(STRANGER)
            os.setuid(STRANGER)
            for folder, _, names in os.walk(place):
                for path in (Path(folder, name) for name in names if "/warm" not in folder):
                    with contextlib.suppress(OSError), path.open("rb"):
                        stream.write(f"{path.relative_to(place)}\n")
        return 0

    ended(start_copy(look))
    return report.read_text().splitlines()


def read_only_home(top: Path) -> Iterator[str]:
    """Commands of a user with a home that is not writable."""

    def work() -> int:
        warmed(top)
        (top / "work").mkdir()
        home = top / "home"
        home.mkdir()
        owned(top, OWNER)
        home.chmod(0o555)
        os.environ.pop("XDG_STATE_HOME")
        os.environ["HOME"] = str(home)
        failed = 0
        for words in READING:
            status, said = outcome(words, top / "work")
            failed += report(status, 0, words, said)
        status, said = outcome(COMMANDS["train"], top / "work")
        failed += report(status, 1, COMMANDS["train"], said, "nothing was spent")
        status, said = outcome((*COMMANDS["train"], "--book", "book.jsonl"), top / "work")
        return failed + report(status, 0, ("train with --book",), said)

    if failed := ended(start_copy(work)):
        yield f"{failed} commands failed"
    yield f"#{len(READING) + 2}"


def report(status: int, wanted: int, words: tuple[str, ...], said: str, phrase: str = "") -> int:
    """1 if the outcome is not what was wanted, which is printed."""
    lines = said.splitlines()
    if status == wanted and phrase in said and "Traceback" not in said:
        return 0
    print(f"{words[0]}: status {status}, wanted {wanted}: {lines[-1:]}", file=sys.__stderr__)
    return 1


def clock_back(top: Path) -> Iterator[str]:
    """Every command while the clock goes back."""

    def work() -> int:
        make_inputs(top)
        ctypes.CDLL(os.environ["LD_PRELOAD"]).go_back(3600)
        failed = every_command(top, "work")
        ctypes.CDLL(os.environ["LD_PRELOAD"]).go_back(0)
        return failed

    if failed := ended(start_copy(work)):
        yield f"{failed} commands failed"
    yield from uncovered(top)
    yield f"#{len({**COMMANDS, **MORE})}"


def stopped(top: Path) -> Iterator[str]:
    """Commands that are stopped for a second at a random moment."""
    if ended(start_copy(lambda: make_inputs_of_crashes(top))):
        raise RuntimeError("no inputs")
    tried = 0
    for words in (FULL, EXTRACT, COMPARE, TUNE):
        for _ in range(3):
            folder = top / "work"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            (child,) = start(words, folder)
            time.sleep(random.uniform(0.05, 2))
            with contextlib.suppress(OSError):
                os.killpg(child, signal.SIGSTOP)
                time.sleep(1)
                os.killpg(child, signal.SIGCONT)
            tried += 1
            if status := ended(child):
                yield f"{words[0]}: status {status}: {(folder / 'log').read_text()[-200:]!r}"
            yield from uncovered(folder)
    yield f"#{tried}"


def predicts(top: Path) -> Iterator[str]:
    """200 predictions, 20 at once."""
    if ended(start_copy(lambda: make_inputs(top))):
        raise RuntimeError("no inputs")

    def work(number: int) -> Callable[[], int]:
        def act() -> int:
            (top / str(number)).mkdir()
            return outcome(COMMANDS["predict"], top / str(number))[0]

        return act

    for first in range(0, 200, 20):
        children = [start_copy(work(number)) for number in range(first, first + 20)]
        if failed := sum(ended(child) != 0 for child in children):
            yield f"{failed} of 20 failed"
    if len({(top / str(number) / "log").read_bytes() for number in range(200)}) != 1:
        yield "they do not all print the same"
    yield "#200"


def old_book(top: Path) -> Iterator[str]:
    """The budget after a run on books that were brought back from a copy."""

    def work() -> int:
        make_inputs(top)
        folder, books = top / "work", top / "state" / "linprobe"
        folder.mkdir()
        shutil.copytree(books, top / "copy")
        words = ("train", "../f.h5", "--method", "noisy-gd", "--eps", "3", "--steps", "5", "--out")
        outcome((*words, "spent"), folder)
        shutil.rmtree(books)
        shutil.copytree(top / "copy", books)
        outcome((*words, "next"), folder)
        status, said = outcome(("budget", "../f.h5"), folder)
        return report(status, 0, ("budget",), said, "runs missing from the budget books,")

    if ended(start_copy(work)):
        yield "budget does not say what the book lacks"
    yield "#1"


FAMILIES = {
    "old book": old_book,
    "two users": two_users,
    "read-only home": read_only_home,
    "clock back": clock_back,
    "stopped": stopped,
    "200 predicts": predicts,
}


def main() -> int:
    """Exit status 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.surroundings", description=__doc__)
    parser.add_argument("--only", default="", help="families whose name holds this")
    given = parser.parse_args()
    total = 0
    with tempfile.TemporaryDirectory(prefix="linprobe-surroundings-") as name:
        Path(name).chmod(0o755)
        if "faults.so" not in os.environ.get("LD_PRELOAD", ""):
            os.environ["LD_PRELOAD"] = str(compiled(Path(name)))
            return os.spawnv(
                os.P_WAIT, sys.executable, [sys.executable, "-m", "tests.hostile.surroundings", *sys.argv[1:]]
            )
        preload()
        for family, play in FAMILIES.items():
            if given.only not in family or (family in ("two users", "read-only home") and os.getuid() != 0):
                continue
            top = Path(name) / family.replace(" ", "-")
            top.mkdir()
            said = list(play(top))
            failures = [line for line in said if not line.startswith("#")]
            tried = sum(int(line[1:]) for line in said if line.startswith("#"))
            total += len(failures)
            for line in failures:
                print(f"{family} | {line}", flush=True)
            print(f"{family:<16} tried {tried:>4} failed {len(failures):>4}", flush=True)
            shutil.rmtree(top, ignore_errors=True)
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())
