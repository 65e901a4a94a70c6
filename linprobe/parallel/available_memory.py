"""The memory that this process may still use: the minimum of several limits of the system. Signs that it ran out.

OpenBLAS hangs, or ends the process, if it cannot allocate its buffers, so `check_limit` takes them first.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

from linprobe.errors import LinprobeError

UNKNOWN = 4 << 30
GROUPS_V2 = ("sys/fs/cgroup", "memory.max", "memory.current", ("inactive_file", "active_file"))
GROUPS_V1 = (
    "sys/fs/cgroup/memory",
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    ("total_inactive_file", "total_active_file"),
)
RAN_OUT = "memory ran out; free some, raise the limit on it (ulimit -v), or use fewer rows at once"
START = 512 << 20  # bytes of address space for Python and the libraries
A_PROCESSOR = 96 << 20  # bytes of address space for the threads of two copies of OpenBLAS
SQUARE = 256  # rows of a matrix for which OpenBLAS needs its work space
WORDS = ("failed to map segment", "annot allocate memory", "can't allocate memory", "can't start new thread")


def available(root: Path = Path("/")) -> int:
    """Available memory in bytes: the minimum over the machine, the control groups and the limit on address space.

    Args:
        root: folder of `proc` and `sys`.
    Returns: `UNKNOWN` if the system reports none of them.
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


def check_limit() -> None:
    """Under a limit on address space, take the work space of OpenBLAS now, so that it does not fail later.

    Raises LinprobeError: the limit leaves too little to start.
    """
    soft = address_limit()
    if soft is None:
        return
    from linprobe.parallel.threads import n_processors

    processors = n_processors()
    needed = START + A_PROCESSOR * processors
    try:
        mmap.mmap(-1, needed).close()
    except OSError:
        raise LinprobeError(
            f"memory is limited to {soft >> 20} MiB (ulimit -v); linprobe needs {needed >> 20} MiB beside Python to "
            f"start on {processors} processors; raise the limit"
        ) from None
    import numpy as np
    import scipy.linalg

    unit = np.eye(SQUARE)
    scipy.linalg.cholesky(scipy.linalg.blas.dgemm(1.0, unit, unit @ unit))


def is_lack(error: BaseException) -> bool:
    """Whether another library's error says that memory ran out."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    return any(word in str(error) for word in WORDS)
