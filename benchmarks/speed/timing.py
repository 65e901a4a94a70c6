"""Shortest wall times of several contenders, and the machine they were taken on."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from random import Random
from typing import Any

from threadpoolctl import threadpool_info

FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "bf16", "sve")
PACKAGES = ("numpy", "scipy", "torch", "opacus", "jax", "jaxlib", "jax-privacy")
PAUSE = 0.05  # seconds, in which threads of the contender before stop waiting for work


class Repeated:
    """A call that takes so many steps in a row, as training does."""

    def __init__(self, call: Callable[[], object], count: int) -> None:
        self._call, self.count = call, count

    def __call__(self) -> object:
        """Take them."""
        return self._call()


def shortest(
    contenders: Mapping[Any, Callable[[], object]], rounds: int, budget: float = float("inf"), least: float = 0.0
) -> dict[Any, float]:
    """Shortest wall time of a step of each contender, seconds.

    Each runs once a round, so that a slow minute hits all, in another order each time, as what went before can cost a
    contender a tenth of its time.
    The first round warms up where there are more. A contender that has taken `budget` seconds sits the others out, and
    those that have not taken `least` seconds by then go on among themselves, for at most five times as many rounds.
    """
    taken: dict[Any, list[float]] = {name: [] for name in contenders}
    orders = Random(0)
    for number in range(6 * rounds):
        for name in orders.sample(list(contenders), len(contenders)):
            if sum(taken[name]) > (budget if number < rounds else least):
                continue
            time.sleep(PAUSE)
            start = time.perf_counter()
            contenders[name]()
            taken[name].append(time.perf_counter() - start)
    return {name: min(times) / getattr(contenders[name], "count", 1) for name, times in taken.items()}


def flags() -> list[str]:
    """Which of the instruction sets in `FLAGS` the processor names; empty where the system does not tell."""
    known: set[str] = set()
    for line in _read("/proc/cpuinfo").splitlines():
        if line.startswith(("flags", "Features")):
            known.update(line.split(":", 1)[1].split())
    return [flag for flag in FLAGS if flag in known]


def machine() -> dict[str, Any]:
    """Processor, memory, and the versions of what computes; sizes in bytes."""
    names = [line.split(":", 1)[1] for line in _read("/proc/cpuinfo").splitlines() if line.startswith("model name")]
    return {
        "processor": names[0].strip() if names else platform.processor() or platform.machine(),
        "flags": flags(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "caches": _caches(),
        "python": platform.python_version(),
        **{package: version for package in PACKAGES if (version := _version(package))},
        "threads": [
            {key: library[key] for key in ("internal_api", "version", "architecture", "num_threads") if key in library}
            for library in threadpool_info()
        ],
    }


def _caches() -> dict[str, str]:
    """Sizes of the first core's caches, by level and type."""
    folders = sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"))
    return {
        f"L{_read(folder / 'level').strip()} {_read(folder / 'type').strip()}": _read(folder / "size").strip()
        for folder in folders
    }


def _read(path: str | Path) -> str:
    return Path(path).read_text(encoding="utf-8") if Path(path).is_file() else ""


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
