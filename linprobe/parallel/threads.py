"""Threads for a pass over blocks of rows; one thread processes a whole block, and one may read ahead.

BLAS is limited to one thread meanwhile, so that the result for a block does not depend on the number of threads.
"""

from __future__ import annotations

import importlib
import os
import pickle
import signal
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from threading import Event, Lock, RLock
from typing import Any, TypeVar

import threadpoolctl

from linprobe.errors import LinprobeError

WATCH_SECONDS = 0.5
MOST_JOBS = 8  # default limit: each process keeps its own copy of the rows


def unordered(call: Callable[..., Any], arguments: Iterable[tuple[Any, ...]], jobs: int | None) -> Iterator[Any]:
    """Results of `call(*given)` for each `given`, in order of completion, by `jobs` processes, at most `MOST_JOBS`.

    What processes get goes through pipes, so that nothing of it outlives them.
    """
    processors = n_processors()
    wanted = list(arguments)
    jobs = min(jobs or min(processors, MOST_JOBS), len(wanted))
    if jobs <= 1:
        for given in wanted:
            yield call(*given)
        return
    from joblib import Parallel, delayed, parallel_config

    # joblib keeps workers for the next call; other arguments make new ones, with the environment of this call
    watched = {"initializer": _watch_parent, "initargs": (os.getpid(), dict(os.environ))}
    with parallel_config(backend="loky", inner_max_num_threads=max(1, processors // jobs), **watched):
        calls = (delayed(_call)(pickle.dumps((call, given))) for given in wanted)
        try:
            with _without_interrupts():
                results = Parallel(n_jobs=jobs, return_as="generator_unordered", max_nbytes=None)(calls)
            with warnings.catch_warnings():  # joblib warns of the calls that Ctrl-C cancels
                warnings.filterwarnings("ignore", module="joblib")
                yield from results
        except BrokenExecutor:
            raise LinprobeError(
                f"one of {jobs} processes was killed, as a system does that lacks memory; run the command again, with "
                "fewer --jobs if memory is short"
            ) from None


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Ctrl-C waits for the end of the block, and never reaches processes that its threads start, then or later."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # its own start would end the wait
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def interrupted_once() -> Iterator[None]:
    """A second Ctrl-C inside the block does nothing, so that the first one can remove what is unfinished."""

    def first(*_: Any) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    in_main = threading.current_thread() is threading.main_thread()  # others cannot set a handler
    if not in_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, first)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _call(pickled: bytes) -> Any:
    call, given = pickle.loads(pickled)  # here, so that an error is one of this call
    return call(*given)


def _watch_parent(parent: int, _: dict[str, str]) -> None:
    """End this worker when its parent was killed, even before it has got a call."""
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(WATCH_SECONDS)
    os._exit(1)


Item = TypeVar("Item")
Result = TypeVar("Result")


@lru_cache(maxsize=1)
def _found_with(n_modules: int) -> threadpoolctl.ThreadpoolController:
    """The libraries of the process while it has `n_modules` modules; to look for them takes milliseconds."""
    return threadpoolctl.ThreadpoolController()


def _controller() -> threadpoolctl.ThreadpoolController:
    return _found_with(len(sys.modules))


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="linprobe")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # fork does not copy threads


@dataclass
class _Hold:
    """Inside `blas_held_to_one_thread`: the threads to use, from before the limit; limits to undo; modules limited."""

    threads: int
    limits: ExitStack
    modules: set[str] = field(default_factory=set)
    holders: int = 0  # the last one undoes the limits


_outer: list[_Hold] = []
_turn = RLock()  # of whoever changes the limits, which are of the process; a generator may end inside
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_turn.acquire, after_in_parent=_turn.release, after_in_child=_turn.release)


def n_processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def n_threads() -> int:
    """Number of threads to use: the limit set for BLAS, at most one per core available to this process."""
    hold = next(iter(_outer), None)  # another thread may end it meanwhile
    if hold is not None:
        return hold.threads
    libraries = [int(library["num_threads"]) for library in _controller().info() if library["user_api"] == "blas"]
    return max(1, min([n_processors(), *libraries]))


@contextmanager
def blas_held_to_one_thread() -> Iterator[None]:
    """Limit BLAS to one thread: its results do not depend on the thread count, and cores are not oversubscribed."""
    with _turn:
        if not _outer:
            _outer.append(_limited())
        hold = _outer[0]
        hold.holders += 1
    try:
        yield
    finally:
        with _turn:
            hold.holders -= 1
            if not hold.holders:
                hold.limits.close()


def _limited() -> _Hold:
    threads = n_threads()
    with ExitStack() as limits:
        limits.callback(_outer.clear)
        _limit(limits)
        return _Hold(threads, limits.pop_all())


def _limit(limits: ExitStack) -> None:
    _let_this_thread_limit()
    limits.enter_context(_controller().limit(limits=1, user_api="blas"))
    limits.callback(_let_this_thread_limit)  # just before the limit is undone, perhaps by another thread


def _let_this_thread_limit() -> None:
    """Newer versions of threadpoolctl ignore limits on OpenBLAS from all threads but the first that set one."""
    clear = getattr(getattr(threadpoolctl, "OpenBLASController", None), "clear_controlling_thread", None)
    if clear is not None:
        clear(force=True)


def blas_module(name: str) -> Any:
    """A module with a BLAS library of its own, imported on first use, and held to one thread where BLAS is."""
    module = importlib.import_module(name)
    with _turn:
        if _outer and name not in _outer[0].modules:
            _limit(_outer[0].limits)
            _outer[0].modules.add(name)
    return module


def share(pieces: Iterator[Callable[[], Item]], consumers: Sequence[Callable[[Item], None]]) -> None:
    """Call every piece, in any order, and pass its result to a consumer in a thread; the first error is raised."""
    if len(consumers) == 1:
        with blas_held_to_one_thread():
            for only in pieces:
                consumers[0](only())
        return
    lock, stopped = Lock(), Event()

    def drain(consume: Callable[[Item], None], piece: Callable[[], Item] | None) -> None:
        try:
            while piece is not None and not stopped.is_set():
                consume(piece())
                with lock:
                    piece = None if stopped.is_set() else next(pieces, None)
        except BaseException:
            stopped.set()
            raise

    with blas_held_to_one_thread():
        firsts = [(consume, piece) for consume in consumers if (piece := next(pieces, None)) is not None]
        others = [_pool().submit(drain, *first) for first in firsts[1:]]
        try:
            if firsts:
                drain(*firsts[0])
        finally:
            failed = [other for other in others if other.exception() is not None]  # waits for all of them
        for other in failed:
            other.result()


def in_slices(n: int, size: int, work: Callable[[slice], None]) -> None:
    """Call `work` on slices of at most `size` that cover range(n), at least one; several threads share them."""
    starts = range(0, max(1, n), size)
    slices = (partial(slice, start, min(start + size, n)) for start in starts)
    share(slices, [work] * (1 if len(starts) == 1 else min(n_threads(), len(starts))))


def in_order(pieces: Iterator[Callable[[], Item]], work: Callable[[Item], Result], threads: int) -> Iterator[Result]:
    """`work(piece())` for every piece, computed by `threads` threads and yielded in the order of the pieces."""
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


@contextmanager
def behind(call: Callable[..., None], depth: int) -> Iterator[Callable[..., None]]:
    """A function that makes `call` in a thread, in order, at most `depth` unfinished; raises a call's first error."""
    unfinished: deque[Future[None]] = deque()

    def later(*given: Any) -> None:
        if len(unfinished) >= depth:
            unfinished.popleft().result()
        unfinished.append(thread.submit(call, *given))

    with ThreadPoolExecutor(1, thread_name_prefix="behind") as thread:
        yield later
        for each in unfinished:
            each.result()


def prefetched(items: Iterator[Item], depth: int) -> Iterator[Item]:
    """Yield `items` in order, read in a thread that ends with this iterator, at most `depth` >= 1 ahead."""

    def read() -> tuple[Item] | None:
        for item in items:
            return (item,)
        return None

    reader = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
    ahead: deque[Future[tuple[Item] | None]] = deque()
    try:
        ahead.extend(reader.submit(read) for _ in range(depth))
        while (item := ahead.popleft().result()) is not None:
            ahead.append(reader.submit(read))
            yield item[0]
            del item  # before the next wait, so that at most `depth` items are held here
    finally:
        reader.shutdown(cancel_futures=True)
