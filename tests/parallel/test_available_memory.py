"""Available memory: the minimum of the limits of the system, read from files made for the test."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from linprobe.parallel import available_memory

GIB = 1 << 30


def system(root: Path, files: dict[str, str]) -> Path:
    """Files of `/proc` and `/sys` under `root`."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = {"proc/meminfo": "MemTotal:       16777216 kB\nMemFree:  1 kB\nMemAvailable:    8388608 kB\n"}
V2 = {
    "proc/self/cgroup": "0::/user.slice/job\n",
    "sys/fs/cgroup/user.slice/memory.max": f"{6 * GIB}\n",
    "sys/fs/cgroup/user.slice/memory.current": f"{5 * GIB}\n",
    "sys/fs/cgroup/user.slice/memory.stat": f"anon 7\ninactive_file {GIB}\nactive_file {GIB}\n",
    "sys/fs/cgroup/user.slice/job/memory.max": "max\n",
    "sys/fs/cgroup/user.slice/job/memory.current": f"{4 * GIB}\n",
}
V1 = {
    "proc/self/cgroup": "5:devices:/\n4:cpu,memory:/job\n0::/\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{9 * GIB}\n",
    "sys/fs/cgroup/memory/job/memory.limit_in_bytes": f"{2 * GIB}\n",
    "sys/fs/cgroup/memory/job/memory.usage_in_bytes": f"{GIB}\n",
    "sys/fs/cgroup/memory/job/memory.stat": f"total_inactive_file 0\ntotal_active_file {GIB // 2}\n",
}
INSIDE_A_CONTAINER = {
    "proc/self/cgroup": "4:memory:/docker/3f\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{GIB}\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GIB // 4}\n",
}
SYSTEMS: dict[str, tuple[dict[str, str], int]] = {
    "nothing known": ({}, available_memory.UNKNOWN),
    "no such line": ({"proc/meminfo": "MemTotal: 5 kB\n"}, available_memory.UNKNOWN),
    "the machine": (MEMINFO, 8 * GIB),
    "a group further up, version 2": (MEMINFO | V2, 3 * GIB),
    "a group, version 1": (MEMINFO | V1, 3 * GIB // 2),
    "a container that sees its own group as the root": (MEMINFO | INSIDE_A_CONTAINER, 3 * GIB // 4),
    "a full group": (MEMINFO | V2 | {"sys/fs/cgroup/user.slice/memory.max": "4096\n"}, 0),
}


@pytest.fixture(autouse=True)
def _no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda what: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_tightest_limit_counts(tmp_path: Path, name: str) -> None:
    files, expected = SYSTEMS[name]
    assert available_memory.available(system(tmp_path, files)) == expected


@pytest.mark.parametrize(("limit", "used"), [("RLIMIT_AS", 1000), ("RLIMIT_DATA", 200)])
def test_a_limit_of_the_process_counts_less_what_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, used: int
) -> None:
    limits = {getattr(resource, limit): 2 * GIB}
    monkeypatch.setattr(resource, "getrlimit", lambda what: (limits.get(what, resource.RLIM_INFINITY),) * 2)
    root = system(tmp_path, MEMINFO | {"proc/self/statm": "1000 500 3 1 0 200 0\n"})
    assert available_memory.available(root) == 2 * GIB - used * resource.getpagesize()


def test_rows_fit_up_to_half_of_what_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(available_memory, "available", lambda: 1001)
    assert available_memory.suffices(500)
    assert not available_memory.suffices(501)


def test_this_machine_has_memory_left() -> None:
    assert available_memory.available() > 1 << 20
