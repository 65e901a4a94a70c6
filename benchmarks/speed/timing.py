"""Shortest wall times of several contenders, and a description of the machine."""

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
PAUSE = 0.05  # seconds between contenders, for idle threads of the last one to stop spinning


class Repeated:
    """A call that takes `count` consecutive steps, as training does."""

    def __init__(self, call: Callable[[], object], count: int) -> None:
        self._call, self.count = call, count

    def __call__(self) -> object:
        """Take the steps."""
        return self._call()


def shortest(
    contenders: Mapping[Any, Callable[[], object]], rounds: int, budget: float = float("inf"), least: float = 0.0
) -> dict[Any, float]:
    """Shortest wall time of a step of each contender, seconds.

    Each contender runs once per round, so that a slow minute affects all of them. The order is random, as the previous
    contender can add a tenth to a time. A contender is skipped in the first `rounds` rounds once its times add up to
    `budget` seconds. Up to 5 * `rounds` further rounds time contenders whose times add up to less than `least` seconds.
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
    """The instruction sets of `FLAGS` in /proc/cpuinfo; empty on systems without it."""
    known: set[str] = set()
    for line in _read("/proc/cpuinfo").splitlines():
        if line.startswith(("flags", "Features")):
            known.update(line.split(":", 1)[1].split())
    return [flag for flag in FLAGS if flag in known]


def machine() -> dict[str, Any]:
    """Processor, memory in bytes, and versions of numerical libraries."""
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
    """Cache sizes of the first core, by level and type."""
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
