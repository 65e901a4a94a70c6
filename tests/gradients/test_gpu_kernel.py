"""The kernel for GPUs, run on the host: its warps take turns, and wait for each other as those of a GPU do."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linprobe.data.rows import FAR
from linprobe.mechanisms.gaussian import longest_left
from tests.conftest import mostly_nightly
from tests.made_once import made_once

pytest.importorskip("torch")

from linprobe.gradients.gpu import shape_of, source

HERE, COMPILER = Path(__file__).parent, shutil.which("g++")
BOUND, SHIFT = longest_left(0.5, 2.0**-9), 1.5 * 2.0**20  # a grid that rounds most sums
N = 140  # a run of 128 rows, and a part of a second
Given = tuple[Any, ...]

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no g++ here")


class Arguments(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("x", "w", "y", "norms", "joined", "total", "r_norms", "factors")),
        ("n", ctypes.c_int),
        ("most", ctypes.c_double),
        ("shift", ctypes.c_double),
    ]


Launch = Callable[..., tuple[Any, Any, Any]]


def built(n_features: int, n_classes: int, kind: int) -> tuple[Launch, int]:
    """A function that runs the kernel, and the width of its rows."""
    shape = shape_of(n_features, n_classes)
    defined, kernel = source(shape, kind).split("/*", 1)
    parts = [defined, f'#include "{HERE}/threads_on_host.h"\n/*', kernel, f'#include "{HERE}/launch_on_host.h"\n']

    def compile_it(folder: Path) -> None:
        code = folder / "kernel.cpp"
        code.write_text("".join(parts), encoding="utf-8")
        flags = [
            "-O1",
            "-std=c++17",
            "-ffp-contract=off",
            "-w",
            "-shared",
            "-fPIC",
            "-U_FORTIFY_SOURCE",
        ]  # jumps between stacks
        subprocess.run([COMPILER, *flags, code, "-o", folder / "kernel.so"], check=True)

    library = made_once(f"kernel for {n_features} features, {n_classes} classes, kind {kind}", compile_it) / "kernel.so"
    launch = ctypes.CDLL(str(library)).launch

    def run(x: Any, w: Any, y: Any, norms: Any, joined: Any = None, n_blocks: int = 2) -> tuple[Any, Any, Any]:
        total = np.zeros((n_classes, shape.width))
        r_norms, factors = np.full((2, len(y)), -1, np.float32)
        arrays = [x, w, y, norms, joined, total, r_norms, factors]
        pointers = [None if array is None else array.ctypes.data for array in arrays]
        launch(ctypes.byref(Arguments(*pointers, len(y), BOUND, SHIFT)), n_blocks)
        return total, r_norms, factors

    return run, shape.width


def rows_of(width: int, n_features: int, n_classes: int, kind: int) -> Given:
    g = np.random.default_rng(0)
    x, w = np.zeros((N, width), np.float32), np.zeros((n_classes, width), np.float32)
    x[:, :n_features] = g.normal(size=(N, n_features)) / n_features**0.5
    w[:, :n_features] = 4 * g.normal(size=(n_classes, n_features))
    if kind:
        x = (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    return x, w, g.integers(0, n_classes, N), np.linalg.norm(x.astype(float), axis=1)


def stored(x: Any, kind: int) -> Any:
    return (x.view(np.uint32) >> 16).astype(np.uint16) if kind else x


@pytest.mark.parametrize(
    ("n_features", "n_classes", "kind"),
    mostly_nightly([(65, 10, 0), (513, 24, 1), (40, 1, 0)], lambda case: case[1] > 1),
)
def test_it_clips_and_sums_what_float64_does(n_features, n_classes, kind) -> None:
    run, width = built(n_features, n_classes, kind)
    x, w, y, norms = rows_of(width, n_features, n_classes, kind)
    joined = np.random.default_rng(1).random(N) < 0.7
    r = np.exp(x.astype(float) @ w.T.astype(float))
    r /= r.sum(axis=1, keepdims=True)
    r[np.arange(N), y] -= 1
    exact = np.linalg.norm(r, axis=1)
    with np.errstate(divide="ignore"):
        expected = np.minimum(1, BOUND / (norms * exact))
    for mask in (None, joined):
        total, r_norms, factors = run(stored(x, kind), w, y, norms, mask)
        np.testing.assert_allclose(r_norms, exact, atol=2e-6)
        np.testing.assert_allclose(factors, expected, rtol=1e-5)
        summed = (r * (expected * (1 if mask is None else mask))[:, None]).T @ x
        np.testing.assert_allclose(total, summed, atol=2e-5)
        assert np.array_equal(total, total + SHIFT - SHIFT)
        assert np.array_equal(run(stored(x, kind), w, y, norms, mask, n_blocks=1)[0], total)


def test_a_record_moves_the_sum_by_the_clip_norm_at_most_and_no_other_bit() -> None:
    run, width = built(65, 10, 0)
    x, w, y, norms = rows_of(width, 65, 10, 0)
    w = 20 * w
    whole, _, factors = run(x, w, y, norms)
    assert np.array_equal(run(x, w, y, norms, n_blocks=1)[0], whole)
    for chosen in (127, 128):
        mask = np.arange(N) != chosen
        without, _, again = run(x, w, y, norms, mask)
        assert np.array_equal(again, factors)
        assert 0 < np.linalg.norm(whole - without) <= 0.5
        empty, far = np.where(mask[:, None], x, np.float32(0)), np.where(mask, norms, FAR)
        assert np.array_equal(run(empty, w, y, far)[0], without)
