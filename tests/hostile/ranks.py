"""One of two ranks dies at each collective call: `python -m tests.hostile.ranks [--every N] [--only WORD]`.

The rank kills itself as it enters a call in which the ranks meet: the connection, a barrier, a broadcast, a sum, a
gather. Nobody tells the other rank, as torchrun would. Afterwards: it has ended within `LONGEST` with one line and
a status that is not 0; an output under its final name is complete; the budget book covers what the ledgers say; the
command works when it is run again in one process. Prints every failure, and the counts of each command.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

from tests.hostile.case import preload
from tests.hostile.crashes import EXTRACT, SECONDS_TO_END, alive, done, make_inputs, uncovered
from tests.processes import ended, free_port, start_copy

CONNECTION = timedelta(seconds=30)  # in place of five minutes
LONGEST = CONNECTION.total_seconds() + 2 * SECONDS_TO_END  # a start, the connection, an end
TRAIN = ("train", "../many.h5", "--eps", "3", "--steps", "4", "--out", "o", "--method")
COMMANDS = {
    "train, all rows": (*TRAIN, "noisy-gd"),
    "train with checkpoints": (*TRAIN, "noisy-gd", "--checkpoint", "0"),
    "train on samples": (*TRAIN, "dp-sgd", "--sampling-rate", "0.2", "--accountant", "rdp"),
    "extract": EXTRACT,
}


def _member(words: tuple[str, ...], folder: Path, rank: int, port: str, dies: int | None) -> Callable[[], int]:
    """The work of a rank. It dies at call number `dies`; it writes the number of its calls if it ends."""

    def work() -> int:
        os.setsid()
        os.chdir(folder)
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "XDG_STATE_HOME": str(folder / "state")}
        log = os.open(folder / f"log-{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        from linprobe.cli import run
        from linprobe.parallel import torch_group

        meet, calls = torch_group._guarded, [0]
        torch_group.CONNECTION = CONNECTION

        def counted(call: Callable[[], object]) -> object:
            if calls[0] == dies:
                os.kill(os.getpid(), signal.SIGKILL)
            calls[0] += 1
            return meet(call)

        torch_group._guarded = counted
        status = run(list(words))
        (folder / f"calls-{rank}").write_text(str(calls[0]))
        return status

    return work


def attempt(words: tuple[str, ...], folder: Path, victim: int, dies: int | None) -> tuple[int | None, str]:
    """Exit status of the rank that is not the victim, None if it did not end in time, and what it said."""
    port = free_port()
    children = [start_copy(_member(words, folder, rank, port, dies if rank == victim else None)) for rank in (0, 1)]
    os.waitpid(children[victim], 0)
    until, other = time.monotonic() + LONGEST, children[1 - victim]
    status: int | None = None
    while time.monotonic() < until and status is None:
        gone, code = os.waitpid(other, os.WNOHANG)
        status = os.waitstatus_to_exitcode(code) if gone else None
        time.sleep(0.02)
    if status is None:
        os.kill(other, signal.SIGKILL)
        os.waitpid(other, 0)
    for child in children:
        for left in alive(child):
            os.kill(left, signal.SIGKILL)
    return status, (folder / f"log-{1 - victim}").read_text()


def wrong(words: tuple[str, ...], folder: Path, status: int | None, said: str) -> Iterator[str]:
    """What is wrong after a rank died."""
    lines = [line for line in said.splitlines() if line.strip()]
    if status is None:
        yield f"the other rank was at work after {LONGEST:g} seconds"
    elif status == 0:
        yield "the other rank ended with status 0"
    elif not lines or not lines[-1].startswith("linprobe: error: ") or "--debug to see" in lines[-1]:
        yield "no error of one line"
    if "Traceback" in said or said.count("linprobe: error: ") > 1:
        yield "more than one line"
    yield from uncovered(folder)
    out = folder / words[words.index("--out") + 1]
    if out.is_dir() and not (out / "manifest.json").exists():
        yield "a folder without its manifest has its final name"
    if not out.exists() and (again := done(words, folder)):
        yield f"status {again} when run again"
    yield from uncovered(folder)


def play(name: str, words: tuple[str, ...], top: Path, every: int) -> Counter[str]:
    """Both ranks at every call; prints what is wrong."""
    total, folder = Counter[str](), top / "work"

    def fresh() -> Path:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder

    status, said = attempt(words, fresh(), 0, None)
    if status or not (folder / "calls-0").exists():
        raise RuntimeError(f"{name} fails with both ranks: {said[-400:]}")
    counts = [int((folder / f"calls-{rank}").read_text()) for rank in (0, 1)]
    total["calls"] = sum(counts)
    for victim, count in enumerate(counts):
        for dies in range(0, count, every):
            status, said = attempt(words, fresh(), victim, dies)
            failures = [*wrong(words, folder, status, said)]
            total["tried"] += 1
            total["failed"] += bool(failures)
            if failures:
                last = (said.splitlines() or [""])[-1][:200]
                print(f"{name} | rank {victim} at {dies} | {status} | {'; '.join(failures)} | {last!r}", flush=True)
    print(f"{name:<24}" + "".join(f" {word} {total[word]:>4}" for word in ("calls", "tried", "failed")), flush=True)
    return total


def main() -> int:
    """Exit status 1 if a death did harm."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.ranks", description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="try one call in so many")
    parser.add_argument("--only", default="", help="commands whose name holds this")
    given = parser.parse_args()
    preload()
    failed = 0
    with tempfile.TemporaryDirectory(prefix="linprobe-ranks-") as name:
        top = Path(name)
        if ended(start_copy(lambda: make_inputs(top))):
            return 1
        for title, words in COMMANDS.items():
            if given.only in title:
                failed += play(title, words, top, given.every)["failed"]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
