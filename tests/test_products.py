"""Both ways of taking the products of a step, against float64."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from linprobe import products
from linprobe.products import NATIVE_CLASSES, NATIVE_FEATURES, SUM_ROWS, Products

RNG = np.random.default_rng(5)
ROUNDING = 2.0**-24
WAYS = [
    "blas",
    pytest.param("native", marks=pytest.mark.skipif(products.LIBRARY is None, reason="the kernel is not built")),
]
ROWS = [0, 1, 5, 63, 64, 65, 127, 128, 129, 1000, 1024]
CLASSES = [1, 2, 3, 4, 5, 6, 7, 10, 13, 16, 17, 33, 64, 100]
FEATURES = [1, 12, 13, 64, 255, 1024, 1025, 2048]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every shape goes the way named, but for those that the kernel has no room for."""
    if request.param == "blas":
        monkeypatch.setattr(products, "LIBRARY", None)
    monkeypatch.setattr(products, "NATIVE_CLASSES", 64)
    monkeypatch.setattr(products, "NATIVE_FEATURES", 1)
    return str(request.param)


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape, dtype=np.float32)


def check(x: Any, weights: Any, r: Any) -> None:
    """Each entry within the bound for sums of its terms, in whatever order: a rounding per term."""
    taken = Products(weights)
    scores, wide = taken.scores(x), weights.astype(np.float64)
    assert scores.dtype == np.float32
    assert scores.shape == (len(x), len(weights))
    assert (np.abs(scores - x @ wide.T) <= (x.shape[1] + 2) * ROUNDING * (np.abs(x) @ np.abs(wide).T)).all()
    for _ in range(2):  # the second call must not see the first
        total = taken.sum(r, x)
        assert total.dtype == np.float64
        assert total.shape == weights.shape
        wide_r = r.astype(np.float64)
        bound = (SUM_ROWS + 2) * ROUNDING * (np.abs(wide_r).T @ np.abs(x))
        assert (np.abs(total - wide_r.T @ x) <= bound).all()


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("n_classes", CLASSES)
def test_products_match_float64_for_every_number_of_rows(n_classes: int) -> None:
    for n_rows in ROWS:
        check(normal(n_rows, 77), normal(n_classes, 77), normal(n_rows, n_classes))


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("n_features", FEATURES)
def test_products_match_float64_for_every_width(n_features: int) -> None:
    for n_classes in CLASSES:
        check(normal(131, n_features), normal(n_classes, n_features), normal(131, n_classes))


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("offset", range(16))
def test_rows_may_begin_anywhere_in_memory(offset: int) -> None:
    x = normal(40 * 300 + 16)[offset : offset + 40 * 300].reshape(40, 300)
    check(x, normal(10, 300), normal(40, 10))


@pytest.mark.usefixtures("way")
def test_factors_and_rows_need_not_lie_together() -> None:
    x, r = normal(400, 150), normal(400, 20)
    weights = normal(10, 150)
    check(x[100:300], weights, r[100:300, 5:15])
    check(x[::2], weights, r[::2, ::2])
    check(x[::-1], weights, r[::-1, :10])
    check(np.asfortranarray(x), weights, np.asfortranarray(r[:, :10]))
    check(x, np.asfortranarray(weights), np.broadcast_to(r[:1, :10], (400, 10)))
    check(x.astype(np.float64), weights, r[:, :10].astype(np.float64))


@pytest.mark.usefixtures("way")
def test_a_row_with_zero_factors_adds_nothing() -> None:
    """An empty place and a row that is clipped to nothing are one and the same, bit by bit."""
    x, r = normal(300, 200), normal(300, 10)
    r[137] = 0
    emptied = x.copy()
    emptied[137] = 0
    taken = Products(normal(10, 200))
    before = taken.sum(r, x).copy()
    assert (taken.sum(r, emptied) == before).all()


@pytest.mark.usefixtures("way")
def test_at_most_sum_rows_are_summed_in_float32() -> None:
    """2^24 swallows ones in float32: a run of it and ones loses those of its own run only."""
    x, r = np.ones((4 * SUM_ROWS, 130), np.float32), np.ones((4 * SUM_ROWS, 3), np.float32)
    x[0] = 2.0**24
    lost = 2.0**24 + len(x) - 1 - Products(normal(3, 130)).sum(r, x)
    assert lost.min() > 0  # so that the bound below is about float32 at all
    assert lost.max() <= SUM_ROWS


def test_the_kernel_takes_few_classes_of_many_features(monkeypatch: pytest.MonkeyPatch) -> None:
    library = object()
    monkeypatch.setattr(products, "LIBRARY", library)
    taken = {
        (n_classes, n_features): Products(normal(n_classes, n_features))._library is library
        for n_classes in (1, NATIVE_CLASSES, NATIVE_CLASSES + 1)
        for n_features in (NATIVE_FEATURES - 1, NATIVE_FEATURES)
    }
    assert [shape for shape, native in taken.items() if native] == [
        (1, NATIVE_FEATURES),
        (NATIVE_CLASSES, NATIVE_FEATURES),
    ]


@pytest.mark.skipif(products.LIBRARY is None, reason="the kernel is not built")
@pytest.mark.parametrize(("value", "native"), [("0", False), ("1", True), (None, True)])
def test_the_environment_turns_the_kernel_off(value: str | None, native: bool) -> None:
    environment = {name: text for name, text in os.environ.items() if name != "LINPROBE_NATIVE"}
    if value is not None:
        environment["LINPROBE_NATIVE"] = value
    shown = subprocess.run(
        [sys.executable, "-c", "from linprobe import products; print(products.LIBRARY is not None)"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert shown.strip() == str(native)
