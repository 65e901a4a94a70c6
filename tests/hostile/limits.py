"""Commands that run out of something: `python -m tests.hostile.limits`.

Limits on the size of a file, on open files, on address space and on writable memory, and file systems of few bytes
where they can be mounted. A command either succeeds, or ends with one line that names what ran out; then it has left
nothing half-written, except a training run with a checkpoint and an extraction, which can be continued. Prints every
failure, and the counts of each limit: tried, refused, failed.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from linprobe.runs.run_folder import CHECKPOINT
from tests.conftest import write_features
from tests.hostile.case import preload
from tests.hostile.crashes import uncovered
from tests.processes import start_copy

TRAIN = ("train", "../f.h5", "--method", "noisy-gd", "--eps", "3", "--out", "o")
COMMANDS: dict[str, tuple[str, ...]] = {
    "train": (*TRAIN, "--steps", "300"),
    "train with checkpoints": (*TRAIN, "--steps", "20", "--checkpoint", "0"),
    "tune": ("tune", *TRAIN[1:], "--steps", "5", "--grid", "clip_norm=0.1,1"),
    "import": ("import", "../a.npz", "--out", "o"),
    "extract": ("extract", "../a.npz", "--backbone", "pixels", "--out", "o"),
    "pdp-report": ("pdp-report", "../run", "--csv", "o"),
    "report": ("report", "../run", "--html", "o.html"),
    "release": ("release", "../run", "--out", "o"),
}
CAUSES = {
    "file size": ("File too large", "ulimit -f"),
    "open files": ("open files",),
    "memory": ("memory", "allocate"),
    "data": ("memory", "allocate"),
    "disk": ("No space left",),
}
OF_MEMORY = {"memory": resource.RLIMIT_AS, "data": resource.RLIMIT_DATA}
VALUES = {
    "file size": (0, 100, 1000, 4000, 16_000, 64_000, 256_000, 1_000_000),
    "open files": (4, 6, 8, 10, 12, 16, 24, 48),
    "memory": tuple(size << 20 for size in (64, 256, 512, 768, 832, 896, 1024, 2048)),
    "data": tuple(size << 20 for size in (16, 64, 128, 256, 272, 288, 320, 512)),
    "disk": (4096, 8192, 16_384, 32_768, 65_536, 131_072, 262_144, 1 << 20),
}


def _limit(kind: str, value: int) -> None:
    if kind == "file size":
        resource.setrlimit(resource.RLIMIT_FSIZE, (value, resource.RLIM_INFINITY))
    elif kind == "open files":
        held, (_, most) = len(list(Path("/proc/self/fd").iterdir())), resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (held + value - 4, most))


def started(words: tuple[str, ...], folder: Path, kind: int, most: int) -> tuple[int, str]:
    """As `attempt`, in a new process under a limit that `resource` knows by the number `kind`."""
    ended = subprocess.run(
        [sys.executable, "-m", "linprobe", *words],
        cwd=folder,
        env={**os.environ, "XDG_STATE_HOME": str(folder.parent / "state"), "PYTHONPATH": os.pathsep.join(sys.path)},
        preexec_fn=lambda: resource.setrlimit(kind, (most, most)),
        capture_output=True,
        text=True,
        check=False,
    )
    return ended.returncode, ended.stderr


def attempt(words: tuple[str, ...], folder: Path, kind: str, value: int) -> tuple[int, str]:
    """Exit status and stderr of a command in `folder` under a limit. Its budget book lies outside."""
    if kind in OF_MEMORY:
        return started(words, folder, OF_MEMORY[kind], value)
    log, copied = folder.parent / "log", folder.parent / "copied"
    copied.unlink(missing_ok=True)

    def work() -> int:
        os.chdir(folder)
        os.environ["XDG_STATE_HOME"] = str(folder.parent / "state")
        errors = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        reader, writer = os.pipe()
        if os.fork() == 0:  # copies stderr to the log, as the limit on files would stop this process
            os.chdir("/")  # the folder may be a file system that is unmounted afterwards
            os.close(writer)
            while some := os.read(reader, 4096):
                os.write(errors, some)
            copied.touch()
            os._exit(0)
        os.close(reader)
        os.close(errors)
        os.dup2(writer, 2)
        os.close(writer)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        from linprobe.cli import run

        _limit(kind, value)
        return run(list(words))

    _, status = os.waitpid(start_copy(work), 0)
    while not copied.exists():
        time.sleep(0.01)
    return os.waitstatus_to_exitcode(status), log.read_text()


def wrong(kind: str, status: int, said: str, folder: Path) -> Iterator[str]:
    """What is wrong with an outcome."""
    lines = [line for line in said.splitlines() if line.strip()]
    left = [path.name for path in folder.iterdir() if not (path / CHECKPOINT).exists() and path.name != "o.partial"]
    if status == 0:
        return
    if status < 0:
        yield f"killed by signal {-status}"
        return
    if not lines or not lines[-1].startswith("linprobe: error: ") or "--debug to see" in lines[-1]:
        yield "no error of one line"
    elif not any(cause in lines[-1] for cause in CAUSES[kind]):
        yield "the error names another cause"
    if left:
        yield f"{left} were left"


def _mounted(folder: Path, size: int) -> bool:
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    return subprocess.run(mount, capture_output=True, check=False).returncode == 0


def play(kind: str, top: Path, only: str) -> Counter[str]:
    """All commands under all values of one limit."""
    counts: Counter[str] = Counter()
    for name, words in COMMANDS.items():
        for value in VALUES[kind] if only in name else ():
            folder = top / "work"
            folder.mkdir()
            if kind == "disk" and not _mounted(folder, value):
                print("a small file system cannot be mounted here; run as root to try it")
                folder.rmdir()
                return counts
            status, said = attempt(words, folder, kind, value)
            counts["tried"] += 1
            counts["refused"] += status != 0
            failures = [*wrong(kind, status, said, folder), *uncovered(top)]
            if failures:
                counts["failed"] += 1
                last = (said.splitlines() or [""])[-1]
                print(f"{kind} {value} | {name} | {status} | {'; '.join(failures)} | {last[:200]!r}", flush=True)
            if kind == "disk":
                subprocess.run(["umount", str(folder)], check=True)
            subprocess.run(["rm", "-rf", str(folder)], check=True)
    print(f"{kind:<12}" + "".join(f" {word} {counts[word]:>3}" for word in ("tried", "refused", "failed")), flush=True)
    return counts


def main() -> int:
    """Exit status 1 if a command failed in another way."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.limits", description=__doc__)
    parser.add_argument("--only", default="", help="commands whose name holds this")
    parser.add_argument("--limit", choices=VALUES, help="this limit alone")
    given = parser.parse_args()
    preload()
    total: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="linprobe-limits-") as name:
        top = Path(name)
        made = start_copy(lambda: make_inputs(top))
        if os.waitstatus_to_exitcode(os.waitpid(made, 0)[1]):
            return 1
        for kind in VALUES if given.limit is None else (given.limit,):
            total += play(kind, top, given.only)
    print("total       " + "".join(f" {word} {total[word]:>3}" for word in ("tried", "refused", "failed")))
    return 1 if total["failed"] else 0


def make_inputs(top: Path) -> int:
    """The files that the commands read, and a run."""
    from linprobe.cli import run

    os.chdir(top)
    os.environ["XDG_STATE_HOME"] = str(top / "state")
    write_features(top / "f.h5")
    rng = np.random.default_rng(0)
    arrays = {}
    for group in ("train", "test"):
        arrays[f"X_{group}"] = rng.integers(0, 256, (100, 16, 16, 3), dtype=np.uint8)
        arrays[f"y_{group}"] = np.arange(100) % 4
    np.savez(top / "a.npz", **arrays)
    return run(["train", "f.h5", "--method", "noisy-gd", "--eps", "3", "--steps", "5", "--out", "run"])


if __name__ == "__main__":
    sys.exit(main())
