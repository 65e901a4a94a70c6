"""Calls in several processes, processors shared out among them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

MOST_JOBS = 8  # by default: each holds rows of its own


def unordered(call: Callable[..., Any], arguments: Iterable[tuple[Any, ...]], jobs: int | None) -> Iterator[Any]:
    """What `call` returns for each of `arguments`, as it is done; in order and in this process where `jobs` is 1.

    Large arrays reach the processes as one memory map, which only the user can read.

    Args:
        jobs: processes; None for as many as there are processors, at most `MOST_JOBS`.
    """
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    wanted = list(arguments)
    jobs = min(jobs or min(processors, MOST_JOBS), len(wanted))
    if jobs <= 1:
        for given in wanted:
            yield call(*given)
        return
    from joblib import Parallel, delayed, parallel_config

    with parallel_config(backend="loky", inner_max_num_threads=max(1, processors // jobs)):
        yield from Parallel(n_jobs=jobs, return_as="generator_unordered")(delayed(call)(*given) for given in wanted)
