"""Parallel calls in worker processes, which share the processors."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from linprobe.parallel.threads import n_processors

WATCH_SECONDS = 0.5
MOST_JOBS = 8  # default limit: each process keeps its own copy of the rows


def unordered(call: Callable[..., Any], arguments: Iterable[tuple[Any, ...]], jobs: int | None) -> Iterator[Any]:
    """Results of `call(*given)` for each `given` of `arguments`, in order of completion.

    Large arrays are shared with the processes through a memory map that only the user can read.

    Args:
        jobs: number of processes; None for one per processor, at most `MOST_JOBS`. With 1, calls run in this process,
            in order.
    """
    processors = n_processors()
    wanted = list(arguments)
    jobs = min(jobs or min(processors, MOST_JOBS), len(wanted))
    if jobs <= 1:
        for given in wanted:
            yield call(*given)
        return
    from joblib import Parallel, delayed, parallel_config

    watched = {"initializer": _watch_parent, "initargs": (os.getpid(),)}
    with parallel_config(backend="loky", inner_max_num_threads=max(1, processors // jobs), **watched):
        calls = (delayed(call)(*given) for given in wanted)
        before = os.umask(0o077)  # joblib makes the folder of the memory maps open to all
        try:
            results = Parallel(n_jobs=jobs, return_as="generator_unordered")(calls)
        finally:
            os.umask(before)
        yield from results


def _watch_parent(parent: int) -> None:
    """End this worker when its parent was killed, even before it has got a call."""
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(WATCH_SECONDS)
    os._exit(1)
