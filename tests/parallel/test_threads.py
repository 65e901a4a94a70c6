"""Threads that share a pass over rows: the schedule does not change the result, and every error ends the pass."""

from __future__ import annotations

import _thread
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from linprobe.data.blocks import ArraySource, LazyBlock, Precision, Preprocessing
from linprobe.data.rows import ArrayRows, Rows, prepare
from linprobe.gradients import backend as host
from linprobe.gradients.clipped_sum import clipped_sum
from linprobe.gradients.loss import PLAIN, Origin, loss_gradient_and_norms
from linprobe.mechanisms.noise import NoiseSource, PoissonSampler
from linprobe.parallel import available_memory
from linprobe.parallel import threads as threads_module
from linprobe.parallel.threads import behind, blas_held_to_one_thread, in_order, in_slices, n_threads, share

N, D, C = 10_300, 24, 5  # ten whole blocks and a shorter one
RNG = np.random.default_rng(3)
RAW = RNG.standard_normal((N, D)).astype(np.float32)
LABELS = np.arange(N) % C
WEIGHTS = RNG.standard_normal((D, C))
PATIENCE = 20.0


def pieces_of(n: int, work: Callable[[int], int] = int) -> Iterator[Callable[[], int]]:
    """`n` calls; call i returns `work(i)`."""
    return (partial(work, number) for number in range(n))


def in_time(call: Callable[[], Any]) -> Any:
    """The result of `call`; the test fails if it takes longer than `PATIENCE` seconds."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(("returned", call()))
        except BaseException as error:
            outcome.append(("raised", error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert outcome, "still not ended"
    return outcome[0]


@pytest.mark.parametrize("n_consumers", [1, 2, 4])
@pytest.mark.parametrize("n", [0, 1, 3, 200])
def test_every_piece_is_taken_once(n: int, n_consumers: int) -> None:
    taken: list[list[int]] = [[] for _ in range(n_consumers)]
    share(pieces_of(n), [mine.append for mine in taken])
    assert sorted(number for mine in taken for number in mine) == list(range(n))
    assert all(mine == sorted(mine) for mine in taken)


@pytest.mark.parametrize("n", [1, 2, 9])
def test_the_caller_takes_the_first_piece_of_every_thread(n: int) -> None:
    drawn_by: list[int] = []

    def pieces() -> Iterator[Callable[[], int]]:
        for number in range(n):
            drawn_by.append(threading.get_ident())
            yield partial(int, number)

    share(pieces(), [lambda number: time.sleep(0.001)] * 3)
    assert len(drawn_by) == n
    assert set(drawn_by[:3]) == {threading.get_ident()}


@pytest.mark.parametrize("n", [0, 1, 7, 8, 50])
def test_slices_cover_every_number_once(n: int) -> None:
    taken: list[slice] = []
    in_slices(n, 7, taken.append)
    assert len(taken) == max(1, -(-n // 7))
    assert sorted(number for part in taken for number in range(part.start, part.stop)) == list(range(n))


@pytest.mark.parametrize("n", [0, 1, 2, 3, 50])
def test_results_come_in_the_order_of_the_pieces(n: int) -> None:
    def slow_when_even(number: int) -> int:
        time.sleep(0.003 * (number % 2 == 0))
        return number

    for threads in (1, 3):
        found = list(in_order(pieces_of(n, slow_when_even), lambda number: number**2, threads))
        assert found == [k**2 for k in range(n)]


def failing(at: int) -> Callable[[int], int]:
    def fail(number: int) -> int:
        if number == at:
            raise ValueError(f"piece {number}")
        return number

    return fail


def failing_iterator(n: int) -> Iterator[Callable[[], int]]:
    yield from pieces_of(n)
    raise ValueError("no more can be read")


@pytest.mark.parametrize("where", ["piece", "taker", "iterator"])
@pytest.mark.parametrize("n_consumers", [1, 3])
def test_an_error_anywhere_ends_the_pass_and_reaches_the_caller(where: str, n_consumers: int) -> None:
    called = []

    def take(number: int) -> None:
        called.append(number)
        if where == "taker":
            failing(7)(number)

    def work(number: int) -> int:
        time.sleep(0.001)
        return failing(7)(number) if where == "piece" else number

    def whole() -> None:
        share(failing_iterator(8) if where == "iterator" else pieces_of(1000, work), [take] * n_consumers)

    how, error = in_time(whole)
    assert (how, type(error)) == ("raised", ValueError)
    assert len(called) < 100
    share(pieces_of(20), [called.append] * n_consumers)
    assert called[-20:].count(19) == 1


@pytest.mark.parametrize("where", ["piece", "work", "iterator"])
@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_in_order_reaches_the_caller(where: str, threads: int) -> None:
    def whole() -> list[int]:
        pieces = failing_iterator(8) if where == "iterator" else pieces_of(30, failing(7) if where == "piece" else int)
        return list(in_order(pieces, failing(7) if where == "work" else int, threads))

    how, error = in_time(whole)
    assert (how, type(error)) == ("raised", ValueError)
    assert list(in_order(pieces_of(5), int, threads)) == list(range(5))


def test_calls_behind_are_made_in_order_and_no_more_than_asked_for_wait() -> None:
    made, waiting, most = list[int](), set[int](), 0

    def slow(number: int) -> None:
        time.sleep(0.001)
        made.append(number)
        waiting.discard(number)

    with behind(slow, 3) as later:
        for number in range(30):
            waiting.add(number)
            later(number)
            most = max(most, len(waiting))
    assert made == list(range(30))
    assert 1 < most <= 3


@pytest.mark.parametrize("n_calls", [8, 30])
def test_an_error_of_a_call_behind_reaches_the_caller(n_calls: int) -> None:
    """From a later call, or at the end of the block."""

    def whole() -> None:
        with behind(failing(7), 4) as later:
            for number in range(n_calls):
                later(number)

    how, error = in_time(whole)
    assert (how, type(error)) == ("raised", ValueError)


@pytest.fixture
def _ctrl_c_is_heard() -> Iterator[None]:
    """As in a terminal: whoever starts pytest in the background has it ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_ctrl_c_is_heard")
def test_ctrl_c_while_others_work_ends_the_pass() -> None:
    began = time.monotonic()
    timer = threading.Timer(0.2, _thread.interrupt_main)

    def slow(number: int) -> int:
        time.sleep(0.01)
        return number

    taken: list[int] = []
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        share(pieces_of(3_000, slow), [taken.append] * 3)
    assert time.monotonic() - began < PATIENCE / 2
    n_taken = len(taken)
    time.sleep(0.1)
    assert len(taken) == n_taken


def blas_threads() -> set[int]:
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


@pytest.fixture
def free_blas(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """BLAS with two threads, as in a process that does not hold it."""
    monkeypatch.setattr(threads_module, "_outer", [])
    with threadpool_limits(2, "blas"):
        yield


def test_blas_has_one_thread_inside_and_what_it_had_outside(free_blas: None) -> None:
    before, seen = blas_threads(), []
    assert before == {2}
    share(pieces_of(4), [lambda _: seen.append(blas_threads())] * 2)
    assert list(in_order(pieces_of(4), lambda _: blas_threads(), 2)) == [{1}] * 4
    with blas_held_to_one_thread():
        threads = n_threads()
        share(pieces_of(1), [lambda _: seen.append(blas_threads())])
        assert blas_threads() == {1}
        assert n_threads() == threads
    assert seen == [{1}] * 5
    assert blas_threads() == before
    with pytest.raises(ValueError, match="piece 2"):
        share(pieces_of(4, failing(2)), [int, int])
    assert blas_threads() == before


def test_the_last_thread_that_holds_blas_gives_its_threads_back(free_blas: None) -> None:
    began, ended = threading.Event(), threading.Event()
    seen: list[set[int]] = []

    def first() -> None:
        with blas_held_to_one_thread():
            began.set()
            assert ended.wait(PATIENCE)
        seen.append(blas_threads())
        other.join(PATIENCE)
        seen.append(blas_threads())  # while the thread that set the limit is alive

    def second() -> None:
        assert began.wait(PATIENCE)
        with blas_held_to_one_thread():
            ended.set()
            deadline = time.monotonic() + PATIENCE
            while not seen and time.monotonic() < deadline:
                time.sleep(0.001)

    threads = [threading.Thread(target=call) for call in (first, second)]
    other = threads[1]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert seen == [{1}, {2}]
    assert blas_threads() == {2}


def test_a_library_that_is_loaded_inside_has_one_thread_too() -> None:
    """SciPy has a BLAS of its own, which a step loads on first use."""
    script = """
from linprobe.parallel.threads import blas_held_to_one_thread, blas_module
from tests.parallel.test_threads import blas_threads
import numpy, threadpoolctl
with threadpoolctl.threadpool_limits(2, "blas"), blas_held_to_one_thread():
    blas_module("scipy.linalg").inv(numpy.eye(3))
    print(len(threadpoolctl.threadpool_info()) > 1, blas_threads())
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.stdout == "True {1}\n", done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_copy_of_a_process_that_has_used_its_threads_makes_its_own() -> None:
    script = """
import os
from tests.parallel.test_threads import pieces_of
from linprobe.parallel.threads import share
share(pieces_of(50), [int, int])
child = os.fork()
if child == 0:
    share(pieces_of(50), [int, int])
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.stdout == "7\n", done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_copy_of_a_process_that_is_in_a_fit_can_fit() -> None:
    script = """
import os, signal, threading, time
import numpy as np
from linprobe.accounting.fits import FITS
none, inside = np.empty(0, np.uint64), threading.Event()
def fit():
    with FITS.lock:
        inside.set()
        time.sleep(0.3)
threading.Thread(target=fit).start()
inside.wait()
child = os.fork()
if child == 0:
    signal.alarm(10)
    FITS.crossed(none, none)
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.stdout == "7\n", done.stderr


def scrambled(rows: Rows, seed: int) -> Rows:
    """The same rows, whose blocks come in another order."""

    def lazy_blocks() -> Iterator[LazyBlock]:
        blocks = list(rows.lazy_blocks())
        random.Random(seed).shuffle(blocks)
        return iter(blocks)

    return rows._view(lazy_blocks=lazy_blocks)


PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16", "float16")
GEOMETRIES = {"plain": PLAIN, "origin": Origin(0.05 * RNG.standard_normal((D, C)))}


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("sample", ["all", "observed", "unobserved"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_clipped_sum_is_the_same_for_any_threads_and_any_order(
    precision: Precision, sample: str, geometry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: Rows = prepare(ArraySource(RAW, LABELS), Preprocessing(), precision)
    if sample != "all":
        joined = PoissonSampler(NoiseSource(1), 0.3).draw(N)
        rows = rows.sample(joined, 0.3, observed=sample == "observed")
    found = []
    monkeypatch.setattr(host, "WORK_PER_THREAD", 1)
    for threads in (1, 2, 4):
        monkeypatch.setattr(host, "n_threads", lambda threads=threads: threads)
        for given in (rows, scrambled(rows, threads)):
            found.append(clipped_sum(given, WEIGHTS, 0.4, geometry=GEOMETRIES[geometry]))
    assert found[0].contributions.size == (0 if sample == "unobserved" else N)
    for other in found[1:]:
        assert np.array_equal(other.value, found[0].value)
        assert np.array_equal(other.contributions, found[0].contributions)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("sample", ["all", "observed", "unobserved"])
def test_a_clipped_sum_is_the_same_where_rows_do_not_fit_in_memory(
    precision: Precision, sample: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run may resume, or its processes run, with more or less memory than before."""
    found = []
    for available in (1 << 40, 0):
        monkeypatch.setattr(available_memory, "available", lambda available=available: available)
        rows: Rows = prepare(ArraySource(RAW, LABELS), Preprocessing(), precision)
        assert isinstance(rows, ArrayRows) == bool(available)
        if sample != "all":
            joined = PoissonSampler(NoiseSource(1), 0.3).draw(N)
            rows = rows.sample(joined, 0.3, observed=sample == "observed")
        found.append(clipped_sum(rows, WEIGHTS, 0.4).value)
    assert np.array_equal(*found)


def test_public_sums_do_not_depend_on_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, found = ArrayRows(RAW, LABELS), []
    monkeypatch.setattr(host, "WORK_PER_THREAD", 1)
    for threads in (1, 2, 4):
        monkeypatch.setattr(host, "n_threads", lambda threads=threads: threads)
        loss, gradient, norms = loss_gradient_and_norms(rows, WEIGHTS)
        found.append((loss, gradient, np.concatenate(norms)))
    for loss, gradient, norms in found[1:]:
        assert loss == found[0][0]
        assert np.array_equal(gradient, found[0][1])
        assert np.array_equal(norms, found[0][2])
