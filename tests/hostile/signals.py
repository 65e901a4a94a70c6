"""Stop commands at random moments: `python -m tests.hostile.signals [--times 10] [--only WORD]`.

SIGINT (Ctrl-C), SIGTERM and SIGHUP must end a command alike: exit status 130, one line that says so, nothing
half-written, no process left, and no release that the budget book does not cover. Prints every failure, and the counts
of each command: signals, signals that came after the end, failures.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from linprobe import __main__ as program
from tests.hostile import crashes
from tests.hostile.case import preload
from tests.processes import start_copy

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
INTERRUPTED = 130
TRAIN = ("train", "../f.h5", "--method", "noisy-gd", "--eps", "3", "--steps", "200", "--out", "o")
SAMPLED = (*TRAIN[:2], "--method", "dp-sgd", *TRAIN[4:], "--sampling-rate", "0.2", "--accountant", "rdp")
COMMANDS: dict[str, tuple[str, ...]] = {
    "train": TRAIN,
    "train on samples": SAMPLED,
    "train with checkpoints": crashes.FULL,
    "extract": crashes.EXTRACT,
    "compare": crashes.COMPARE,
    "tune": crashes.TUNE,
    "publish": crashes.PUBLISH,
    "import": ("import", "../train.csv", "--classes", "../classes", "--out", "o.h5"),
}
SAID = "linprobe: error: stopped by Ctrl-C or a signal; nothing half-written was left under a final name\n"
UNFINISHED = {"extract": "o.h5.partial"}  # the same command continues
KEPT = {"log", "state"}  # the budget books and what was said


def start(words: tuple[str, ...], folder: Path) -> int:
    """The id of a process that runs a command in `folder`, in a session of its own."""

    def work() -> int:
        os.setsid()
        os.chdir(folder)
        os.environ["XDG_STATE_HOME"] = str(folder / "state")
        signal.signal(signal.SIGINT, signal.default_int_handler)
        log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.argv = ["linprobe", *words]
        try:
            program.main()
        except SystemExit as ended:
            return int(ended.code or 0)
        return 0

    return start_new(words, folder) if words[0] == "compare" else start_copy(work)


def start_new(words: tuple[str, ...], folder: Path) -> int:
    """`start` in a new interpreter: a copy ends without the exit functions, which joblib needs."""
    with (folder / "log").open("w") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "linprobe", *words],
            cwd=folder,
            env={**os.environ, "XDG_STATE_HOME": str(folder / "state"), "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
        ).pid


def stop(words: tuple[str, ...], folder: Path, after: float, number: int) -> tuple[int, list[int]]:
    """Exit status of a command that gets a signal after a time, and the processes that it leaves behind."""
    child = start(words, folder)
    until = time.monotonic() + after
    while not (folder / "log").exists() or time.monotonic() < until:
        time.sleep(0.001)
    os.kill(child, number)
    _, status = os.waitpid(child, 0)
    end = time.monotonic() + crashes.SECONDS_TO_END
    while (left := crashes.alive(child)) and time.monotonic() < end:
        time.sleep(0.05)
    for process in left:
        os.kill(process, signal.SIGKILL)
    return os.waitstatus_to_exitcode(status), left


def wrong(name: str, status: int, folder: Path) -> Iterator[str]:
    """What is wrong with a command that was stopped before its end."""
    said = (folder / "log").read_text()
    if status > 0 and status != INTERRUPTED:
        yield f"ended with {status}"
    if "Traceback" in said or (status > 0 and not said.endswith(SAID)):
        yield "did not say so in its last line"
    for path in sorted(folder.iterdir()):
        if path.name in KEPT or (path / "checkpoint.npz").exists() or path.name == UNFINISHED.get(name):
            continue
        if path.name == "o.h5" and not crashes.done(("info", "o.h5"), folder):
            continue  # stopped between the last step and the end
        if path.name in ("o", "o.published-1"):
            torn = [found.name for found in path.rglob("*.partial") if name != "publish"]
            runs = [manifest.parent for manifest in path.rglob("manifest.json")]
            if not torn and (runs or name == "compare"):
                continue
        yield f"{path.name} was left"
    for manifest in folder.rglob("manifest.json"):
        if json.loads(manifest.read_text())["private"] and crashes.done(("verify", str(manifest.parent)), folder):
            yield f"{manifest.parent.name} does not verify"


def play(name: str, words: tuple[str, ...], times: int, top: Path) -> Counter[str]:
    """All signals to one command; prints what is wrong."""
    counts: Counter[str] = Counter()
    folder = top / "trial"
    lasts = 0.0
    for attempt in range(2 + times * len(SIGNALS)):
        folder.mkdir()
        if name == "publish":
            crashes.done(TRAIN, folder)
            (folder / "log").unlink()
        if attempt < 2:  # how long the command takes, once the first attempt has loaded what it needs
            started = time.monotonic()
            if os.waitpid(start(words, folder), 0)[1]:
                raise RuntimeError(f"{name}: the command fails: {(folder / 'log').read_text()[-500:]}")
            lasts = time.monotonic() - started
            shutil.rmtree(folder)
            continue
        number = SIGNALS[attempt % len(SIGNALS)]
        status, left = stop(words, folder, random.uniform(0.3 if name == "compare" else 0, 1) * lasts, number)
        counts["signals"] += 1
        counts["late"] += status == 0 or status == -number  # Python has begun to end, or has not begun
        said = [f"{len(left)} processes were left"] * bool(left) + list(crashes.uncovered(folder))
        said += [] if status == 0 else list(wrong(name, status, folder))
        if said:
            counts["failed"] += 1
            log = (folder / "log").read_text()[-300:]
            print(f"{name} | {number.name} | {'; '.join(said)} | {log!r}", flush=True)
        shutil.rmtree(folder)
    print(f"{name:<32}" + "".join(f" {word} {counts[word]:>3}" for word in ("signals", "late", "failed")), flush=True)
    return counts


def main() -> int:
    """Exit status 1 if a command ended in another way."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.signals", description=__doc__)
    parser.add_argument("--times", type=int, default=10, help="of each signal, for each command")
    parser.add_argument("--only", default="", help="commands whose name holds this")
    given = parser.parse_args()
    preload()
    total: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="linprobe-signals-") as folder:
        top = Path(folder)
        if os.waitpid(start_copy(lambda: crashes.make_inputs(top)), 0)[1]:
            return 1
        (top / "train.csv").write_text("label,a\n" + "".join(f"{row % 3},{row}\n" for row in range(200_000)))
        (top / "classes").write_text("0\n1\n2\n")
        for name, words in COMMANDS.items():
            if given.only in name:
                total += play(name, words, given.times, top)
    print(f"{'total':<32}" + "".join(f" {word} {total[word]:>3}" for word in ("signals", "late", "failed")))
    return 1 if total["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
