"""Training on a file larger than the memory limit: peak memory, seconds per step, and share of the disk's read rate.

    python benchmarks/streaming/run.py [--gigabytes 3] [--cap 1.0] [--folder DIR] [--json FILE]

Draws a feature file and trains `noisy-gd` for a few steps, in a process whose address space is limited to --cap GiB
(RLIMIT_AS, which also counts memory that is not resident) and in one without a limit; both must write the same model,
bit for bit. The reader is compared with a plain loop of 4 MiB reads over the same file, with its pages dropped from the
page cache before (cold) or not (warm). Training within the limit on a second file, with half the records, gives the
memory per record from the difference of the peaks: of training, and of the process with its per-record file. The files
are removed afterwards.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from linprobe.data.blocks import BLOCK_ROWS, LazyBlock, Preprocessing
from linprobe.data.feature_file import FeatureFile
from linprobe.data.feature_reader import Description
from linprobe.data.feature_writer import FeatureWriter
from linprobe.data.rows import StreamedRows
from linprobe.errors import Silent
from linprobe.options.requests import TrainRequest
from linprobe.training.train import train_run

CLASSES, STEPS, TEST_ROWS = 10, 3, 2000
WIDTH = 1024
READ_BYTES = 4 << 20
REPEATS = 5


def write(path: Path, n_rows: int, width: int) -> None:
    """A feature file of random rows."""

    def blocks(n: int) -> Iterator[Any]:
        generator = np.random.default_rng(n)
        for start in range(0, n, BLOCK_ROWS):
            yield generator.standard_normal((min(BLOCK_ROWS, n - start), width), dtype=np.float32)

    with FeatureWriter(path, Description(class_names=tuple(f"c{label}" for label in range(CLASSES)))) as writer:
        for group, n in (("train", n_rows), ("test", TEST_ROWS)):
            ids = (f"{group}/{row:09d}" for row in range(n))
            writer.write_group(group, n, width, blocks(n), np.arange(n) % CLASSES, ids)


class Watch(Silent):
    """Records the end of each step, and the peak memory at that time."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.peak = 0

    def start(self, total: int, what: str = "training") -> None:
        """Record the start of the first step; other stretches of work have no `total`."""
        if total:
            self.ends.append(time.perf_counter())

    def step(self, count: int = 1) -> None:
        """Record the end of a step."""
        self.ends.append(time.perf_counter())
        self.peak = peak_bytes()


def peak_bytes() -> int:
    """Peak resident memory of this process in bytes."""
    found = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(found[1]) << 10 if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def child(features: Path, out: Path, cap: int) -> dict[str, Any]:
    """One run in this process, with its address space limited to `cap` bytes; 0 for no limit."""
    passes = []
    real = StreamedRows._whole

    def counted(rows: StreamedRows) -> Iterator[LazyBlock]:
        passes.append(rows)
        return real(rows)

    StreamedRows._whole = counted  # type: ignore[method-assign]
    if cap:
        resource.setrlimit(resource.RLIMIT_AS, (cap, cap))
    before, watch = peak_bytes(), Watch()
    train_run(
        TrainRequest(
            method="noisy-gd",
            features=features,
            epsilon=3.0,
            delta=1e-9,
            steps=STEPS,
            out=out,
            noise_seed=1,
            insecure_seed=True,
        ),
        watch,
    )
    seconds = np.diff(watch.ends)
    return {
        "streamed": bool(passes),
        "bytes_before_training": before,
        "peak_bytes_in_training": watch.peak,
        "peak_bytes_in_all": peak_bytes(),
        "seconds_a_step": [round(float(second), 3) for second in seconds],
    }


def run_child(features: Path, out: Path, cap: int) -> dict[str, Any]:
    """`child` in a new process."""
    command = [sys.executable, __file__, "--child", str(features), str(out), str(cap)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def rate(path: Path, read: Callable[[], int], cold: bool) -> float:
    """Gigabytes per second, the best of `REPEATS`."""
    best = 0.0
    for _ in range(REPEATS):
        if cold:
            with path.open("rb") as stream:
                os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        started = time.perf_counter()
        size = read()
        best = max(best, size / (time.perf_counter() - started) / 1e9)
    return best


def reading(path: Path) -> dict[str, Any]:
    """Read rates of a plain loop and of the reader of rows, and the ratio of the two."""

    def plain() -> int:
        buffer, total = bytearray(READ_BYTES), 0
        with path.open("rb", buffering=0) as stream:
            while count := stream.readinto(buffer):
                total += count
        return total

    with FeatureFile(path) as features:
        rows = StreamedRows(
            lambda: features.blocks("train"), features.sizes["train"], features.n_features, Preprocessing()
        )

        def rows_read() -> int:
            return sum(4 * features.n_features * BLOCK_ROWS for _ in rows.lazy_blocks())

        rates = {
            f"{what}_{state}": rate(path, read, state == "cold")
            for state in ("cold", "warm")
            for what, read in (("plain", plain), ("rows", rows_read))
        }
    shares = {f"share_{state}": rates[f"rows_{state}"] / rates[f"plain_{state}"] for state in ("cold", "warm")}
    return {name: round(value, 3) for name, value in (rates | shares).items()}


def measure(folder: Path, n_rows: int, cap: int, *, limited_only: bool = False) -> dict[str, Any]:
    """All measurements on one file, or only its run within the limit."""
    path = folder / f"{n_rows}.h5"
    write(path, n_rows, WIDTH)
    out = [folder / f"limited-{n_rows}", folder / f"free-{n_rows}"]
    result = {"records": n_rows, "features": WIDTH, "file_bytes": path.stat().st_size}
    try:
        result["limited"] = run_child(path, out[0], cap)
        if limited_only:
            return result
        result["free"] = run_child(path, out[1], 0)
        models = [(run / "model.npz").read_bytes() for run in out]
        return {**result, "same_model": models[0] == models[1], "gigabytes_a_second": reading(path)}
    finally:
        path.unlink()


def main() -> None:
    """Measure, print, and write JSON if --json is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=3.0)
    parser.add_argument("--cap", type=float, default=1.0, help="GiB of address space")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        features, out, cap = given.child
        print(json.dumps(child(Path(features), Path(out), int(cap))))
        return
    cap = int(given.cap * 2**30)
    n_rows = int(given.gigabytes * 1e9) // (4 * WIDTH)
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        many = measure(Path(folder), n_rows, cap)
        few = measure(Path(folder), n_rows // 2, cap, limited_only=True)
    more = many["records"] - few["records"]
    results = {
        "what": f"{STEPS} steps of noisy-gd, {CLASSES} classes, address space of {given.cap:g} GiB",
        "processors": len(os.sched_getaffinity(0)),
        "bytes_a_record": {
            name: round((many["limited"][name] - few["limited"][name]) / more, 1)
            for name in ("peak_bytes_in_training", "peak_bytes_in_all")
        },
        "files": [many, few],
    }
    text = json.dumps(results, indent=1)
    print(text)
    if given.json:
        given.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
