"""The first look: the kernel and NumPy give the cells of ball arithmetic, or say that they are not sure."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from flint import arb, ctx
from numpy.typing import NDArray

from linprobe import native
from linprobe.mechanisms import noise as module
from linprobe.mechanisms.noise import DEEP, GRID_BITS, UNSURE, NoiseSource, first_look, grid_step, normals
from tests.docs.scripts import load_script
from tests.narrow_kernel import narrow_kernel, needs_compiler

STD = 1.7
LEAST_NOISE = np.array([2**64 - 1, 2**64 - 2], dtype=np.uint64)  # below zero and above, in the cell of zero
CERTIFY = Path(__file__).parents[2] / "benchmarks/ndtri/certify.py"
Words = NDArray[np.uint64]
needs_kernel = pytest.mark.skipif(native.LIBRARY is None, reason="the kernel is not built")


@pytest.fixture(params=["numpy", pytest.param("kernel", marks=needs_kernel)])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each path that a number can take: without the kernel, and with it."""
    if request.param == "numpy":
        monkeypatch.setattr(module, "LIBRARY", None)


def looked(value: NDArray[np.float64], words: Words, std: float = STD) -> tuple[NDArray[np.float64], list[int]]:
    found = np.empty(len(value))
    return found, first_look(value, words, std, found).tolist()


@pytest.mark.usefixtures("path")
def test_the_first_look_is_right_where_it_is_sure() -> None:
    source, grid = NoiseSource(11), grid_step(STD)
    values = np.random.default_rng(2).normal(size=4000) * np.logspace(-12, 12, 4000)
    words = source.words(source.next_draw(), len(values))
    found, doubtful = looked(values, words)
    for place in set(range(len(values))) - set(doubtful):
        exact = source.cell(0, place, int(words[place]), float(values[place]), STD, grid)
        assert found[place] == exact * grid
    assert len(doubtful) < 3


@pytest.mark.usefixtures("path")
def test_a_released_zero_has_no_sign() -> None:
    values = np.repeat([-0.3, 0.3, -0.0, 0.0], 2) * grid_step(STD)
    found, doubtful = looked(values, np.tile(LEAST_NOISE, 4))
    assert not found.any()
    assert not np.signbit(found).any()
    assert doubtful == []


@needs_kernel
@needs_compiler
def test_every_processor_adds_the_same_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(5).normal(size=200_003) * 1e3
    found = NoiseSource(4).add_noise(values, 0.3)
    for library in (None, narrow_kernel(4), narrow_kernel(8)):
        monkeypatch.setattr(module, "LIBRARY", library)
        np.testing.assert_array_equal(found, NoiseSource(4).add_noise(values, 0.3))


def by_kernel(words: Words) -> NDArray[np.float64]:
    """Z on a grid of 2^-48: noise of standard deviation 1 on zeros."""
    assert native.LIBRARY is not None
    zeros, z, places = np.zeros(len(words)), np.empty(len(words)), np.empty(len(words), np.uint32)
    arrays = (array.ctypes.data for array in (words, zeros, z, places))
    assert native.LIBRARY.linprobe_first_look(*arrays, len(words), 2.0**48, 2.0**-48, 0.0, 0) == 0
    return z


@pytest.mark.parametrize(
    "approximation",
    [
        pytest.param(lambda words: normals(words >> np.uint64(1), words), id="scipy"),
        pytest.param(by_kernel, id="kernel", marks=needs_kernel),
    ],
)
def test_the_bound_of_the_first_look_holds_with_a_factor_to_spare(
    approximation: Callable[[Words], NDArray[np.float64]],
) -> None:
    ctx.prec = 256
    generator = np.random.default_rng(3)
    words = generator.integers(DEEP << 1, 2**64, 20_000, dtype=np.uint64)
    words[:5000] >>= generator.integers(0, 20, 5000, dtype=np.uint64)
    words = words[words >> np.uint64(1) >= DEEP]
    worst = 0.0
    for word, found in zip(words.tolist(), approximation(words).tolist(), strict=True):
        assert found > 0 if word & 1 else found < 0
        tail = (arb(abs(found)) / arb(2).sqrt()).erfc() / 2
        for u in ((word >> 1), (word >> 1) + 1):  # both ends of what the further bits may be
            off = abs(float(tail - arb(u) * arb(2) ** -64))
            worst = max(worst, off * math.sqrt(2 * math.pi) * math.exp(found**2 / 2))
    assert worst * 2.0 ** (GRID_BITS + 1) < UNSURE / 4


@pytest.mark.skipif(not CERTIFY.exists(), reason="no benchmarks here")
def test_the_inverse_normal_distribution_is_certified_on_its_whole_range(capsys: pytest.CaptureFixture[str]) -> None:
    certify = load_script(CERTIFY)
    assert certify.main() == 0
    assert "kernel: off by at most" in capsys.readouterr().out
    source = certify.SOURCE.read_text()
    for before, after in (
        ("3.3871328727963666080e0", "3.3871328727966e0"),
        ("4.63033784615654529590e0", "4.630337846157e0"),
    ):
        assert sum(certify.certify(certify.kernel(source.replace(before, after)))) > certify.NEEDED
    for before, after in (
        ("q = u[i] - 0.5", "q = u[i] - 0.4"),
        ("below = below * r + 1;", "below = below * r - 1;"),
    ):
        assert before in source
        with pytest.raises(AssertionError, match=r"noise\.h has"):
            certify.kernel(source.replace(before, after))


@pytest.mark.usefixtures("path")
def test_numbers_near_a_boundary_and_deep_in_a_tail_are_left_to_the_second_look() -> None:
    grid = grid_step(STD)
    words = np.random.default_rng(8).integers(DEEP << 1, 2**64, 3000, dtype=np.uint64)
    assert looked(np.zeros(3000), words)[1] == []
    z = normals(words >> np.uint64(1), words) * STD
    # values that put value + std Z half a step above a cell, in float64
    edge = (np.rint(z / grid) + 0.5) * grid - z
    assert len(looked(edge, words)[1]) > 2990
    assert looked(edge + grid / 4, words)[1] == []
    deep = words.copy()
    deep[[0, 255, 256, 2999]] = [DEEP * 2 - 1, 0, 1, DEEP]
    assert looked(np.zeros(3000), deep)[1] == [0, 255, 256, 2999]


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("n", [0, 1, 7, 255, 256, 257])
def test_a_number_does_not_depend_on_its_neighbours(n: int) -> None:
    words = np.random.default_rng(9).integers(0, 2**64, 300, dtype=np.uint64)
    values = np.random.default_rng(10).normal(size=300)
    np.testing.assert_array_equal(looked(values[:n], words[:n])[0], looked(values, words)[0][:n])
