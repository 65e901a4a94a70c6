"""The memory that this process may still use: the minimum of several limits of the system."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

UNKNOWN = 4 << 30
GROUPS_V2 = ("sys/fs/cgroup", "memory.max", "memory.current", ("inactive_file", "active_file"))
GROUPS_V1 = (
    "sys/fs/cgroup/memory",
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    ("total_inactive_file", "total_active_file"),
)


def available(root: Path = Path("/")) -> int:
    """Available memory in bytes: the minimum over the machine, the control groups and the limit on address space.

    Args:
        root: folder of `proc` and `sys`.

    Returns:
        `UNKNOWN` if the system reports none of them.
    """
    limits = (*_machine(root), *_control_groups(root), *_address_space(root))
    return max(0, min(limits, default=UNKNOWN))


def suffices(n_bytes: int) -> bool:
    """Whether `n_bytes` is at most half of the available memory."""
    return n_bytes <= available() // 2


def _fields(path: Path) -> dict[str, int]:
    """Numbers by name, from lines `name number` or `name: number unit`; empty if the file cannot be read."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    fields = (line.replace(":", " ").split() for line in lines)
    return {words[0]: int(words[1]) for words in fields if len(words) > 1 and words[1].isdigit()}


def _number(path: Path) -> int | None:
    """The number in a file; None for `max`, or if the file cannot be read."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _machine(root: Path) -> Iterator[int]:
    kibibytes = _fields(root / "proc/meminfo").get("MemAvailable")
    if kibibytes is not None:
        yield kibibytes << 10


def _control_groups(root: Path) -> Iterator[int]:
    """Bytes left in each control group of this process and its parents; cached file pages count as free."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        place, limit_name, usage_name, cached = GROUPS_V1 if controllers else GROUPS_V2
        base = root / place
        folder = base / path.strip("/")
        for group in (folder, *folder.parents):
            limit, usage = _number(group / limit_name), _number(group / usage_name)
            if limit is not None and usage is not None:
                statistics = _fields(group / "memory.stat")
                yield limit - usage + sum(statistics.get(name, 0) for name in cached)
            if group == base:
                break


def address_limit() -> int | None:
    """The limit on the address space of this process, in bytes; None without one."""
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft


def _address_space(root: Path) -> Iterator[int]:
    soft = address_limit()
    if soft is None:
        return
    try:
        pages = int((root / "proc/self/statm").read_text().split()[0])
    except OSError:
        pages = 0
    yield soft - pages * os.sysconf("SC_PAGE_SIZE")
