"""Weak scaling: seconds of a noisy step with equal shards in 1 to K processes, and the share of the all-reduce.

    python benchmarks/scaling/run.py [--processes 1 2] [--json FILE]

Starts K processes over gloo on this machine, each with one thread, and times steps of `noisy-gd` on random rows in
memory: clipped sum, all-reduce, noise, broadcast of the weights. Efficiency is the time of one process over that of K.
Cores share a memory bus and a clock, so it is below 1 even without communication. The all-reduce is also timed alone,
after a barrier. Rounds alternate over the numbers of processes; the best round counts. The machine should be idle.

    python benchmarks/scaling/run.py --latency 0 1 10 [--processes 2 4 8] [--json FILE]

Times only the all-reduce, where every message of gloo waits for so many milliseconds: each part before it is sent, and
the broadcast for each of its log2 K levels. Such a wait takes no processor time, as on a network.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from linprobe.accounting.ledger import Ledger
from linprobe.data.blocks import SHARD_ROWS, normalise_rows
from linprobe.data.rows import ArrayRows
from linprobe.gradients.clipped_sum import clipped_sum
from linprobe.mechanisms.gaussian import GaussianMechanism
from linprobe.mechanisms.noise import NoiseSource
from linprobe.parallel.process_group import Group
from linprobe.parallel.threads import blas_held_to_one_thread
from linprobe.parallel.torch_group import group

ROUNDS, STEPS, WARM_UP = 3, 8, 2
SIGMA, CLIP_NORM = 10.0, 0.5


def step_times(together: Group, rows_each: int, width: int, n_classes: int) -> dict[str, float]:
    """Median seconds of a step and of its all-reduce, in this process."""
    generator = np.random.default_rng(together.rank)
    x = normalise_rows(generator.standard_normal((rows_each, width), dtype=np.float32))
    shard = ArrayRows(x, generator.integers(n_classes, size=rows_each))
    rows = shard.as_shard(together.rank * rows_each, together.size * rows_each)
    mechanism = GaussianMechanism(NoiseSource(), Ledger().append, group=together)
    weights = np.zeros((width, n_classes))
    steps = []
    for _ in range(WARM_UP + STEPS):
        together.broadcast(np.zeros(1))
        began = time.perf_counter()
        clipped = clipped_sum(rows, weights, CLIP_NORM, all_reduce=together.all_reduce)
        released = mechanism.release(clipped, SIGMA, purpose="gradient")
        weights = together.broadcast(weights - released / rows.n_rows)
        mechanism.settle()
        steps.append(time.perf_counter() - began)
    return {"step": statistics.median(steps[WARM_UP:])}


def exchange_times(together: Group, width: int, n_classes: int) -> dict[str, float]:
    """Median seconds of an all-reduce, in this process."""
    exchanges = []
    for _ in range(WARM_UP + STEPS):
        together.all_reduce(np.zeros(1))
        began = time.perf_counter()
        together.all_reduce(np.zeros((n_classes, width)))
        exchanges.append(time.perf_counter() - began)
    return {"all_reduce": statistics.median(exchanges[WARM_UP:])}


@contextmanager
def late_messages(seconds: float, n_processes: int) -> Iterator[None]:
    """Let every message of this process take longer, without processor time."""
    import torch.distributed as dist

    send, broadcast = dist.send, dist.broadcast

    def late_send(*given: Any) -> None:
        time.sleep(seconds)
        send(*given)

    def late_broadcast(*given: Any) -> None:
        broadcast(*given)
        time.sleep(seconds * math.ceil(math.log2(n_processes)))

    dist.send, dist.broadcast = late_send, late_broadcast
    yield
    dist.send, dist.broadcast = send, broadcast


def child(rows_each: int, width: int, n_classes: int, latencies: list[float]) -> None:
    """One process of the group; rank 0 prints its times. With latencies in ms, those of the all-reduce alone."""
    with group() as together, blas_held_to_one_thread():
        times = {}
        for ms in latencies:
            with late_messages(ms / 1e3, together.size):
                times[str(ms)] = exchange_times(together, width, n_classes)["all_reduce"]
        if not latencies:
            times = exchange_times(together, width, n_classes) | step_times(together, rows_each, width, n_classes)
        if together.rank == 0:
            print(json.dumps(times))


def launch(n_processes: int, sizes: list[str]) -> dict[str, float]:
    """Run `n_processes` to their end; return the times of rank 0."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    shared = {"WORLD_SIZE": str(n_processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, __file__, "--child", *sizes],
            env={**os.environ, **shared, **threads, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(n_processes)
    ]
    outputs = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise SystemExit(f"with {n_processes} processes: exit statuses {[process.returncode for process in started]}")
    times: dict[str, float] = json.loads(outputs[0])
    return times


def latencies(given: argparse.Namespace) -> dict[str, Any]:
    """Median seconds of an all-reduce for every number of processes and every latency."""
    measured = []
    words = ["0", str(given.features), str(given.classes), "--latency", *map(str, given.latency)]
    for n_processes in given.processes:
        for ms, seconds in launch(n_processes, words).items():
            measured.append({"processes": n_processes, "ms": float(ms), "seconds_of_all_reduce": round(seconds, 5)})
    return {
        "what": "all-reduce of float64 sums, gloo on one machine, every message late by the latency",
        "features": given.features,
        "classes": given.classes,
        "measured": measured,
    }


def write(results: dict[str, Any], path: Path | None) -> None:
    """Print the results, and write them to a file if there is one."""
    text = json.dumps(results, indent=1)
    print(text)
    if path:
        path.write_text(text + "\n")


def main() -> None:
    """Measure, print, and write JSON if --json is given."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=list(range(1, min(4, cores) + 1)))
    parser.add_argument(
        "--rows", type=int, default=5 * SHARD_ROWS, help=f"rows of each process, a multiple of {SHARD_ROWS}"
    )
    parser.add_argument("--features", type=int, default=2048)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs=3, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--latency", type=float, nargs="+", help="milliseconds of every message; no steps are timed")
    given = parser.parse_args()
    if given.child:
        child(*given.child, given.latency or [])
        return
    if given.latency:
        write(latencies(given), given.json)
        return
    sizes = [str(size) for size in (given.rows, given.features, given.classes)]
    best: dict[int, dict[str, float]] = {}
    for _ in range(ROUNDS):
        for n_processes in given.processes:
            times = launch(n_processes, sizes)
            if n_processes not in best or times["step"] < best[n_processes]["step"]:
                best[n_processes] = times
    alone = best[min(best)]["step"]
    results = {
        "what": "a step of noisy-gd, equal shards, one thread per process, gloo on one machine",
        "cores": cores,
        "rows_each": given.rows,
        "features": given.features,
        "classes": given.classes,
        "measured": [
            {
                "processes": n_processes,
                "seconds_a_step": round(times["step"], 4),
                "efficiency": round(alone / times["step"], 3),
                "seconds_of_all_reduce": round(times["all_reduce"], 5),
                "share_of_all_reduce": round(times["all_reduce"] / times["step"], 4),
            }
            for n_processes, times in sorted(best.items())
        ],
    }
    write(results, given.json)


if __name__ == "__main__":
    main()
