"""Faults at every call of the operating system: `python -m tests.hostile.faults [--every N] [--only WORD]`.

A library that is compiled here (gcc) and preloaded counts the calls of each kind that concern the files of a command.
One after another, one of them fails, does half of its work, or kills the process. Afterwards: the error is one line
that names the cause, does not blame a good file and shows no traceback; the budget book covers what the ledgers say;
nobody else can read private files; and the command works when it is run again. Prints every failure, and the counts of
each command: calls, faults tried, refused, killed, failed.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import os
import posix
import random
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tests.conftest import CLASS_NAMES, gaussian_rows
from tests.hostile.case import preload
from tests.hostile.crashes import uncovered
from tests.hostile.limits import COMMANDS as WRITERS
from tests.hostile.limits import make_inputs as make_inputs_of_limits
from tests.processes import ended, start_copy

SOURCE = Path(__file__).with_name("faults.c")
KINDS = ("open", "read", "write", "sync", "rename", "truncate", "lock", "map")  # in the order of faults.c
KILL, SHORT = 0, -1
FAULTS = {
    "open": (errno.EIO, errno.EACCES, errno.EMFILE, KILL),
    "read": (errno.EIO, SHORT, KILL),
    "write": (errno.ENOSPC, errno.EIO, SHORT, KILL),
    "sync": (errno.EIO, KILL),
    "rename": (errno.EIO, errno.EACCES, KILL),
    "truncate": (errno.EIO, KILL),
    "lock": (errno.ENOLCK, KILL),
    "map": (errno.ENOMEM, KILL),
}
COMMANDS = {
    **WRITERS,
    "verify": ("verify", "../run", "--features", "../f.h5"),
    "predict": ("predict", "../run", "../f.h5"),
    "budget": ("budget", "../f.h5"),
    "export": ("export", "../run", "--out", "o.safetensors"),
    "publish": ("pdp-report", "../run", "--publish-epsilon", "0.5"),
    "refine": ("refine", "../run", "../u.h5", "--out", "o"),
    "evaluate": ("evaluate", "../run", "../later.h5", "--epsilon", "0.5"),
    "attack": ("attack", "../run", "--features", "../f.h5", "--out", "o"),
    "info": ("info", "../f.h5"),
    "compare": ("compare", "../f.h5", "--methods", "noisy-gd,prototypes", "--eps", "1", "--seeds", "1", "--out", "o"),
}
IN_A_WORKER = "in a process of compare"
COMPARE = (
    *("compare", "../f.h5", "--methods", "noisy-gd,prototypes", "--eps", "1", "--seeds", "2"),
    *("--jobs", "2", "--out", "o"),
)
PLACES = (0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89)  # of the calls of a worker
PRIVATE = ("per_record", ".h5", "checkpoint", "jsonl.rows", "key")
BLAME = ("make it again", "make the file again", "is not an HDF5", "restore it")
UNNAMED = "--debug to see"


def make_inputs(top: Path) -> int:
    """The files that the commands read, and a run."""
    from linprobe.cli import run

    status = make_inputs_of_limits(top)
    np.savez(top / "u.npz", X=np.random.default_rng(1).normal(size=(40, 10)))
    (x, y), (x_test, y_test) = gaussian_rows("shown", 40), gaussian_rows("later", 120)
    names = np.array(CLASS_NAMES)
    np.savez(top / "later.npz", X_train=x, y_train=y, X_test=x_test, y_test=y_test, class_names=names)
    status = status or run(["import", "later.npz", "--out", "later.h5", "--private-test"])
    return status or run(["import", "u.npz", "--out", "u.h5"])


def compiled(folder: Path) -> Path:
    """The library, compiled."""
    library = folder / "faults.so"
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"], check=True)
    return library


def attempt(
    words: tuple[str, ...],
    folder: Path,
    kind: int = -1,
    place: int = 0,
    fault: int = 0,
    *,
    worker: bool = False,
    beside: str = "",
) -> tuple[int, str]:
    """Exit status and stderr of a command in `folder` with one fault; none for `kind` -1.

    With `worker` the first process that the command starts and that comes to the call has the fault; it makes the file
    `fired` beside the folder.

    The counts of calls are in the file `calls` beside the folder if the command ended. `beside`: a word in the names of
    such files, for commands at the same time.
    """
    top = folder.parent
    log, calls = top.parent / f"log{beside}", top.parent / f"calls{beside}"

    def work() -> int:
        os.chdir(folder)
        os.environ["XDG_STATE_HOME"] = str(top / "state")
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.fsync = posix.fsync  # which tests.conftest switches off
        from linprobe.__main__ import keep_private
        from linprobe.cli import run

        keep_private()
        library = ctypes.CDLL(os.environ["LD_PRELOAD"])
        if worker:
            os.environ["LINPROBE_FAULT"] = f"{kind} {place} {fault} {top} {top.parent / 'fired'}"
            os.environ["PYTHONWARNINGS"] = "ignore"  # of the pool of processes: this copy ends without its clean-up
        else:
            library.arm(str(top).encode(), kind, ctypes.c_long(place), fault)
        status = run(list(words))
        counts = [library.calls(each) for each in range(len(KINDS))]
        library.arm(b"", -1, ctypes.c_long(0), 0)
        calls.write_text(" ".join(map(str, counts)))
        return status

    status = ended(start_copy(work))
    return status, log.read_text()


def wrong(kind: str, fault: int, status: int, said: str, top: Path, *, worker: bool = False) -> Iterator[str]:
    """What is wrong after a fault, in the process of the command or in one that it started (`worker`)."""
    lines = [line for line in said.splitlines() if line.strip()]
    if "Traceback" in said:
        yield "a traceback"
    if fault == KILL and not worker:
        if status not in (-signal.SIGKILL, 0):
            yield f"status {status} of a killed process"
    elif status < 0:
        yield f"killed by signal {-status}"
    elif status:
        last = lines[-1] if lines else ""
        if not last.startswith("linprobe: error: ") or UNNAMED in last:
            yield "no error of one line"
        elif (
            fault > 0
            and os.strerror(fault) not in last
            and not (kind == "lock" or fault in (errno.ENOMEM, errno.EMFILE))
        ):
            yield "the error names another cause"
        if fault > 0 and any(words in last for words in BLAME):
            yield "the error blames a good file"
        if fault == SHORT:
            yield "a short call is no error"
    yield from open_to_others(top)
    yield from uncovered(top)


def open_to_others(top: Path) -> Iterator[str]:
    """Private files that others can read."""
    for path in top.rglob("*"):
        if path.is_file() and any(word in path.name for word in PRIVATE):
            readable = stat.S_IMODE(path.stat().st_mode) & 0o077
            closed = any(
                stat.S_IMODE(parent.stat().st_mode) & 0o077 == 0 for parent in path.parents if top in parent.parents
            )
            if readable and not closed:
                yield f"others can read {path.relative_to(top)}"


def again(words: tuple[str, ...], folder: Path) -> Iterator[str]:
    """What is wrong when the command is run once more, unless it has made its output."""
    made = [path for path in folder.iterdir() if path.name[0] == "o" and not path.name.endswith(".partial")]
    if (made and words is not COMPARE) or (folder.parent / "run.published-1").exists():
        return
    status, said = attempt(words, folder)
    if status:
        yield f"status {status} when run again: {(said.splitlines() or [''])[-1][:160]!r}"


def cases(counts: list[int], every: int, draw: random.Random) -> Iterator[tuple[int, int, int]]:
    """Kind, place and fault of every call; a sample of one in `every`."""
    for kind, count in enumerate(counts):
        for place in range(count):
            for fault in FAULTS[KINDS[kind]]:
                if draw.random() * every < 1:
                    yield kind, place, fault


def cases_of_workers(every: int, draw: random.Random) -> Iterator[tuple[int, int, int]]:
    """As `cases`, at `PLACES` of each kind."""
    for kind, name in enumerate(KINDS):
        for place in PLACES:
            for fault in FAULTS[name]:
                if draw.random() * every < 1:
                    yield kind, place, fault


def play(name: str, words: tuple[str, ...], inputs: Path, every: int, draw: random.Random) -> Counter[str]:
    """All faults of one command; prints what is wrong."""
    trials, total = inputs.parent / "trial", Counter[str]()
    top = trials / "top"

    def fresh() -> Path:
        shutil.rmtree(trials, ignore_errors=True)
        trials.mkdir()
        shutil.copytree(inputs, top)
        (top / "work").mkdir()
        return top / "work"

    folder = fresh()
    status, said = attempt(words, folder)
    if status:
        raise RuntimeError(f"{name} fails without a fault: {said[-400:]}")
    counts = [int(word) for word in (trials / "calls").read_text().split()]
    total["calls"], worker = sum(counts), name == IN_A_WORKER
    for kind, place, fault in cases_of_workers(every, draw) if worker else cases(counts, every, draw):
        folder = fresh()
        status, said = attempt(words, folder, kind, place, fault, worker=worker)
        if worker and not (trials / "fired").exists():
            continue  # no worker makes so many of these calls
        failures = [*wrong(KINDS[kind], fault, status, said, top, worker=worker)]
        failures += [*again(words, folder), *uncovered(top)]
        total["tried"] += 1
        total["refused"] += status > 0
        total["killed"] += status < 0
        if failures:
            total["failed"] += 1
            what = {KILL: "kill", SHORT: "short"}.get(fault) or errno.errorcode[fault]
            last = (said.splitlines() or [""])[-1][:200]
            print(f"{name} | {KINDS[kind]} {place} {what} | {status} | {'; '.join(failures)} | {last!r}", flush=True)
    shown = ("calls", "tried", "refused", "killed", "failed")
    print(f"{name:<24}" + "".join(f" {word} {total[word]:>4}" for word in shown), flush=True)
    return total


def main() -> int:
    """Exit status 1 if a fault did harm."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.faults", description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="try one fault in so many")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--only", default="", help="commands whose name holds this")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="linprobe-faults-") as name:
        if "faults.so" not in os.environ.get("LD_PRELOAD", ""):
            environment = {**os.environ, "LD_PRELOAD": str(compiled(Path(name)))}
            return subprocess.run(
                [sys.executable, "-m", "tests.hostile.faults", *sys.argv[1:]], env=environment, check=False
            ).returncode
        chosen = {title: words for title, words in {**COMMANDS, IN_A_WORKER: COMPARE}.items() if given.only in title}
        preload(images=any(words[0] == "extract" for words in chosen.values()))
        inputs = Path(name) / "inputs"
        inputs.mkdir()
        if ended(start_copy(lambda: make_inputs(inputs))):
            return 1
        total, draw = Counter[str](), random.Random(given.seed)
        for title, words in chosen.items():
            total += play(title, words, inputs, given.every, draw)
    print(
        f"{'total':<24}"
        + "".join(f" {word} {total[word]:>4}" for word in ("calls", "tried", "refused", "killed", "failed"))
    )
    return 1 if total["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
