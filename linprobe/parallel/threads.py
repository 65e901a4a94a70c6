"""Threads that share the blocks of a pass over rows, each block worked on by one of them.

BLAS gets one thread meanwhile, so that what is computed of a block does not depend on how many threads there are.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache
from threading import Event, Lock
from typing import TypeVar

from threadpoolctl import ThreadpoolController

Item = TypeVar("Item")
Result = TypeVar("Result")


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="linprobe")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads are not copied

_given: list[int] = []  # threads that BLAS had before it was held to one


def n_threads() -> int:
    """How many threads to use: as many as BLAS was given, at most one a core this process may run on."""
    if _given:
        return _given[0]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    libraries = [int(library["num_threads"]) for library in _controller().info() if library["user_api"] == "blas"]
    return max(1, min([cores, *libraries]))


@contextmanager
def blas_held_to_one_thread() -> Iterator[None]:
    """Inside, what BLAS computes does not depend on how many threads there are, and its threads do not fight ours."""
    if _given:
        yield
        return
    _given.append(n_threads())
    try:
        with _controller().limit(limits=1, user_api="blas"):
            yield
    finally:
        _given.clear()


def share(pieces: Iterator[Callable[[], Item]], takers: Sequence[Callable[[Item], None]]) -> None:
    """Call every piece and give its result to one of the takers, each of which has a thread of its own.

    Pieces are started in order and may finish in any. The first error ends the pass and is raised here.
    """
    lock, stopped = Lock(), Event()

    def drain(take: Callable[[Item], None]) -> None:
        try:
            while not stopped.is_set():
                with lock:
                    piece = next(pieces, None)
                if piece is None:
                    return
                take(piece())
        except BaseException:
            stopped.set()
            raise

    with blas_held_to_one_thread():
        others = [_pool().submit(drain, take) for take in takers[1:]]
        try:
            drain(takers[0])
        finally:
            wait(others)
        for other in others:
            other.result()


def in_order(pieces: Iterator[Callable[[], Item]], work: Callable[[Item], Result], threads: int) -> Iterator[Result]:
    """`work` on the result of every piece, by so many threads; what it returns, in the order of the pieces."""
    with blas_held_to_one_thread():
        if threads < 2:
            yield from (work(piece()) for piece in pieces)
            return
        waiting: deque[Future[Result]] = deque()
        for piece in pieces:
            if len(waiting) > threads:
                yield waiting.popleft().result()
            waiting.append(_pool().submit(lambda piece: work(piece()), piece))
        while waiting:
            yield waiting.popleft().result()
