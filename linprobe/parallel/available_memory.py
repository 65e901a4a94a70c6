"""The memory that this process may still use: the minimum of several limits of the system. Signs that it ran out.

OpenBLAS hangs, or ends the process, if it cannot allocate its buffers, so `check_limit` takes them first.
"""

from __future__ import annotations

import errno
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
RAN_OUT = "memory ran out; free some, raise the limit on it (ulimit -v, -d), or use fewer rows at once"
START = {"-v": 512 << 20, "-d": 64 << 20}  # bytes for Python and the libraries: of address space, of writable memory
A_PROCESSOR = 96 << 20  # bytes of address space for the threads of two copies of OpenBLAS
SQUARE = 256  # rows of a matrix for which OpenBLAS needs its work space
WORDS = ("failed to map segment", "annot allocate memory", "can't allocate memory", "can't start new thread")


def available(root: Path = Path("/")) -> int:
    """Available memory in bytes, by `proc` and `sys` in `root`: the minimum over machine, control groups and limits."""
    kibibytes = _fields(root / "proc/meminfo").get("MemAvailable")
    machine = () if kibibytes is None else (kibibytes << 10,)
    left = (allowed - used for _, allowed, used in _process_limits(root))
    return max(0, min((*machine, *_control_groups(root), *left), default=UNKNOWN))


def suffices(n_bytes: int) -> bool:
    return n_bytes <= available() // 2


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _fields(path: Path) -> dict[str, int]:
    """Numbers by name, from lines `name number` or `name: number unit`; empty if the file cannot be read."""
    fields = (line.replace(":", " ").split() for line in _text(path).splitlines())
    return {words[0]: int(words[1]) for words in fields if len(words) > 1 and words[1].isdigit()}


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _control_groups(root: Path) -> Iterator[int]:
    """Bytes left in each control group of this process and its parents; cached file pages count as free."""
    for line in _text(root / "proc/self/cgroup").splitlines():
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


def _process_limits(root: Path) -> Iterator[tuple[str, int, int]]:
    """Limits on the memory of this process: the option of `ulimit`, the bytes allowed, and the bytes in use."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    pages = [int(word) for word in _text(root / "proc/self/statm").split()] or [0] * 6
    for flag, number, used in (("-v", resource.RLIMIT_AS, pages[0]), ("-d", resource.RLIMIT_DATA, pages[5])):
        soft, _ = resource.getrlimit(number)
        if soft != resource.RLIM_INFINITY:
            yield flag, soft, used * os.sysconf("SC_PAGE_SIZE")


def check_limit() -> None:
    """Under a limit on memory, take OpenBLAS's work space now, so that it cannot fail later. LinprobeError: no room."""
    limits = list(_process_limits(Path("/")))
    if not limits:
        return
    from linprobe.parallel.threads import n_processors

    processors = n_processors()
    for flag, allowed, used in limits:
        needed = START[flag] + A_PROCESSOR * processors
        if allowed - used < needed:
            raise LinprobeError(
                f"memory is limited to {allowed >> 20} MiB (ulimit {flag}), {used >> 20} MiB used; linprobe needs "
                f"{needed >> 20} MiB more to start on {processors} processors; raise the limit"
            )
    import numpy as np
    import scipy.linalg

    unit = np.eye(SQUARE)
    scipy.linalg.cholesky(scipy.linalg.blas.dgemm(1.0, unit, unit @ unit))


def is_lack(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    return any(word in str(error) for word in WORDS)
