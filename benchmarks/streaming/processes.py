"""Training on a file far larger than memory, by one process and by several under torchrun, and resumed in the middle.

    python benchmarks/streaming/processes.py [--gigabytes 20] [--more 0.75] [--processes 1 2 4] [--folder DIR]
        [--json FILE]

Writes a feature file of random rows of 2,048 features, and trains `noisy-gd` for a few steps with per-record losses.
The file must be larger than half of the free memory. Each process may take --more GiB than it has when its libraries
are loaded (RLIMIT_DATA, which also counts memory that is not touched). `peak_bytes` is the largest resident memory of a
process, libraries included. A step reads the whole file. Its rate is compared with that of a loop of 16 MiB reads,
timed before and after each run with the file's pages dropped from the page cache; a run leaves those in the cache that
the system keeps. One run is killed after its second step and resumed by the first number of processes. All models
must be the same, bit for bit. The file is removed afterwards.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from run import peak_bytes

from linprobe.data.blocks import BLOCK_ROWS
from linprobe.data.feature_reader import Description
from linprobe.data.feature_writer import FeatureWriter
from linprobe.errors import Silent
from linprobe.options.requests import TrainRequest
from linprobe.training.train import train_run

CLASSES, STEPS, TEST_ROWS, WIDTH = 10, 3, 2000, 2048
READ_BYTES = 16 << 20


def write(path: Path, n_rows: int) -> None:
    """A feature file: a block of random rows, and the same block with its columns in other orders."""
    generator = np.random.default_rng(0)
    first = generator.standard_normal((BLOCK_ROWS, WIDTH), dtype=np.float32)

    def blocks() -> Iterator[Any]:
        for start in range(0, n_rows, BLOCK_ROWS):
            yield first[: n_rows - start, generator.permutation(WIDTH)]

    with FeatureWriter(path, Description(class_names=tuple(f"c{label}" for label in range(CLASSES)))) as writer:
        ids = (f"train/{row:09d}" for row in range(n_rows))
        writer.write_group("train", n_rows, WIDTH, blocks(), np.arange(n_rows) % CLASSES, ids)
        test = generator.standard_normal((TEST_ROWS, WIDTH), dtype=np.float32)
        names = [f"test/{row}" for row in range(TEST_ROWS)]
        writer.write_group("test", TEST_ROWS, WIDTH, [test], np.arange(TEST_ROWS) % CLASSES, names)


def forget(path: Path) -> None:
    """Drop the pages of a file from the page cache."""
    with path.open("rb") as stream:
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class Watch(Silent):
    """Times steps, with `path` dropped from the page cache before each, and kills this process after `last` of them."""

    def __init__(self, path: Path, last: int) -> None:
        self.seconds: list[float] = []
        self.path, self.last, self.began = path, last, 0.0

    def start(self, total: int, what: str = "training") -> None:
        """The first step begins."""
        forget(self.path)
        self.began = time.perf_counter()

    def step(self, count: int = 1) -> None:
        """A step has ended."""
        self.seconds.append(round(time.perf_counter() - self.began, 2))
        if len(self.seconds) == self.last:
            os.kill(os.getpid(), signal.SIGKILL)
        self.start(0)


def child(features: Path, out: Path, data: int, last: int) -> None:
    """One run, or one process of a run under torchrun; the first process prints what it measured."""
    from linprobe.parallel import torch_group

    began, watch = time.perf_counter(), Watch(features, last)
    given = {"epsilon": 3.0, "delta": 1e-9, "steps": STEPS, "noise_seed": 1, "insecure_seed": True}
    request = TrainRequest(method="noisy-gd", features=features, out=out, checkpoint_every=0.0, resume=True, **given)
    with torch_group.group() as group:
        limit = _private_bytes() + data
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        train_run(request, watch, group)
        peaks = group.all_reduce(np.eye(group.size)[group.rank] * peak_bytes())
        if group.rank == 0:
            seconds = round(time.perf_counter() - began, 1)
            print(json.dumps({"seconds": seconds, "seconds_a_step": watch.seconds, "peak_bytes": int(peaks.max())}))


def _private_bytes() -> int:
    """What RLIMIT_DATA limits, now."""
    found = re.search(r"VmData:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(found[1]) << 10 if found else 0


def run(features: Path, out: Path, processes: int, data: int, last: int = 0) -> dict[str, Any] | None:
    """`child` in so many new processes; None if it was to be killed."""
    command = [sys.executable]
    if processes > 1:
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command += [__file__, "--child", str(features), str(out), str(data), str(last)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"} if processes > 1 else os.environ
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if last and done.returncode == -signal.SIGKILL:
        return None
    if done.returncode or last:
        raise SystemExit(done.stderr)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def sequential_seconds(path: Path) -> float:
    """Seconds in which a plain loop reads the file from the disk."""
    buffer = bytearray(READ_BYTES)
    forget(path)
    with path.open("rb", buffering=0) as stream:
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        began = time.perf_counter()
        while stream.readinto(buffer):
            pass
        return time.perf_counter() - began


def measured(path: Path, folder: Path, processes: int, data: int) -> dict[str, Any]:
    """A run, and its share of the rate at which a loop reads the file before and after it."""
    before = sequential_seconds(path)
    found = run(path, folder / f"run-{processes}", processes, data)
    after = sequential_seconds(path)
    plain = (before + after) / 2
    share = round(plain / min(found["seconds_a_step"]), 3)
    return {"processes": processes, **found, "sequential_seconds": [round(before, 2), round(after, 2)], "share": share}


def main() -> None:
    """Measure, print, and write JSON if --json is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=20.0)
    parser.add_argument("--more", type=float, default=0.75, help="GiB that a process may take after its start")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        features, out, data, last = given.child
        child(Path(features), Path(out), int(data), int(last))
        return
    data, n_rows = int(given.more * 2**30), int(given.gigabytes * 1e9) // (4 * WIDTH)
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name)
        os.environ["XDG_STATE_HOME"] = str(folder / "state")
        path = folder / "features.h5"
        began = time.perf_counter()
        write(path, n_rows)
        results: dict[str, Any] = {
            "what": f"{STEPS} steps of noisy-gd, {CLASSES} classes; each process may take {given.more:g} GiB more",
            "processors": len(os.sched_getaffinity(0)),
            "load": round(os.getloadavg()[0], 1),
            "records": n_rows,
            "features": WIDTH,
            "file_bytes": path.stat().st_size,
            "seconds_to_write": round(time.perf_counter() - began, 1),
            "runs": [],
        }
        print(json.dumps(results), flush=True)
        for processes in given.processes:
            results["runs"].append(measured(path, folder, processes, data))
            print(json.dumps(results["runs"][-1]), flush=True)
        killed = folder / "killed"
        run(path, killed, 1, data, last=2)
        results["resumed"] = run(path, killed, given.processes[0], data)
        outs = [killed, *(folder / f"run-{processes}" for processes in given.processes)]
        models = [np.load(out / "model.npz") for out in outs]
        results["same_model"] = all(
            np.array_equal(model[name], models[0][name]) for model in models for name in models[0].files
        )
    print(json.dumps({key: results[key] for key in ("resumed", "same_model")}))
    if given.json:
        given.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
