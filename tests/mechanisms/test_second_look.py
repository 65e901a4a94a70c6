"""Exact rounding: the cell of value + std Z is right for every word, down to the ends of the tails."""

import math
from fractions import Fraction

import numpy as np
import pytest
from flint import arb, ctx, fmpq
from scipy.special import ndtri

from linprobe.mechanisms.noise import DEEP, GRID_BITS, UNSURE, NoiseSource, grid_step, normals, split
from linprobe.mechanisms.second_look import EXTRA_BITS, nearest_cell

STD = 1.7
GRID = grid_step(STD)


def cell(word: int, extra: int = 1 << (EXTRA_BITS - 1), value: float = 0.0) -> int:
    return int(nearest_cell(value, STD, GRID, word, lambda: extra))


def probability_of(k: int, value: float = 0.0) -> float:
    """Of the cell k of value + std Z."""
    ctx.prec = 256
    ends = [(Fraction(GRID) * (2 * k + side) / 2 - Fraction(value)) / Fraction(STD) for side in (-1, 1)]
    low, high = ((arb(fmpq(end.numerator, end.denominator)) / arb(2).sqrt()).erfc() / 2 for end in ends)
    return float(low - high)


def tail_in_units(boundary: Fraction) -> int:
    """Phi(-|boundary|), in units of the last further bit of U, rounded down."""
    with ctx.workprec(1024):
        tail = (arb(fmpq(abs(boundary.numerator), boundary.denominator)) / arb(2).sqrt()).erfc() / 2
        return int((tail * arb(2) ** (64 + EXTRA_BITS)).floor().unique_fmpz())


def test_the_first_look_is_right_where_it_is_sure() -> None:
    source = NoiseSource(11)
    values = np.random.default_rng(2).normal(size=4000) * np.logspace(-6, 9, 4000)
    found = source.add_noise(values, STD)
    words = source.words(0, len(values))
    for place in range(len(values)):
        exact = source.cell(0, place, int(words[place]), float(values[place]), STD, GRID)
        assert found[place] == exact * GRID


def test_the_bound_of_the_first_look_holds_with_a_factor_to_spare() -> None:
    ctx.prec = 256
    generator = np.random.default_rng(3)
    words = generator.integers(DEEP << 1, 2**64, 20_000, dtype=np.uint64)
    words[:5000] >>= generator.integers(0, 20, 5000, dtype=np.uint64)
    words = words[words >> np.uint64(1) >= DEEP]
    z = normals(words >> np.uint64(1), words)
    worst = 0.0
    for word, found in zip(words.tolist(), z.tolist(), strict=True):
        tail = (arb(abs(found)) / arb(2).sqrt()).erfc() / 2
        for u in ((word >> 1), (word >> 1) + 1):  # both ends of what the further bits may be
            off = abs(float(tail - arb(u) * arb(2) ** -64))
            worst = max(worst, off * math.sqrt(2 * math.pi) * math.exp(found**2 / 2))
    assert worst * 2.0 ** (GRID_BITS + 1) < UNSURE / 4


@pytest.mark.parametrize("sigmas", [7, 8, 9])
@pytest.mark.parametrize("sign", [0, 1])
def test_no_cell_in_the_tails_is_empty(sigmas: int, sign: int) -> None:
    """The leading word cannot tell these cells apart. Further bits can, and every cell has its share."""
    first = round((sigmas if sign else -sigmas) * STD / GRID)
    for k in range(first - 3, first + 4):
        ends = [Fraction(GRID) * (2 * k + side) / 2 / Fraction(STD) for side in (-1, 1)]
        tails = sorted(tail_in_units(end) for end in ends)
        assert tails[1] - tails[0] > 1, "an empty cell"
        middle = (tails[0] + tails[1]) // 2
        for u in (tails[0] + 2, middle, tails[1] - 2):
            word, extra = u >> EXTRA_BITS << 1 | sign, u % (1 << EXTRA_BITS)
            assert cell(word, extra) == k
        share = (tails[1] - tails[0]) / 2.0 ** (64 + EXTRA_BITS)
        assert share == pytest.approx(probability_of(k), rel=1e-9)


def test_the_ends_of_the_range_have_a_cell() -> None:
    deepest = cell(1, 3 << 200)
    assert 18 < deepest * GRID / STD < 24
    assert cell(0, 3 << 200) == -deepest
    assert cell(2**64 - 1, (1 << EXTRA_BITS) - 1) == 0


def test_further_bits_are_asked_for_only_where_they_tell_and_belong_to_one_number() -> None:
    source = NoiseSource(3)
    found = {source.further_bits(draw, index) for draw in (0, 1, 2**40) for index in (0, 1, 2**32, 2**32 + 1, 2**34)}
    assert len(found) == 15
    assert all(0 <= bits < 1 << EXTRA_BITS for bits in found)
    stream = source.words(0, 64).tobytes()
    assert found.isdisjoint({int.from_bytes(stream[start : start + 64], "big") for start in range(0, 449, 64)})


def test_a_value_moves_its_cell_by_whole_steps_and_far_from_zero_too() -> None:
    source = NoiseSource(1)
    words = [int(word) for word in source.words(0, 50)]
    for far in (1, 2**30, -(2**45)):
        for word in words:
            assert cell(word, value=far * GRID) == cell(word) + far


def test_a_boundary_is_decided_by_the_last_bits() -> None:
    """A word whose interval of U holds a boundary: one more bit or 500 more decide, and both sides come up."""
    k = 5000
    exact = tail_in_units(Fraction(GRID) * (2 * k + 1) / 2 / Fraction(STD))
    word = exact >> EXTRA_BITS << 1 | 1
    assert cell(word, exact % (1 << EXTRA_BITS) - 2**20) == k + 1
    assert cell(word, exact % (1 << EXTRA_BITS) + 2**20) == k
    with pytest.raises(ArithmeticError, match="more than 575 random bits"):
        cell(word, exact % (1 << EXTRA_BITS))


def test_whole_steps_and_remainders_are_exact() -> None:
    values = np.random.default_rng(5).normal(size=2000) * np.logspace(-12, 12, 2000)
    whole, rest = split(values, GRID)
    for value, steps, remainder in zip(values.tolist(), whole.tolist(), rest.tolist(), strict=True):
        assert Fraction(value) == (Fraction(steps) + Fraction(remainder)) * Fraction(GRID)
    assert np.abs(rest).max() <= 0.5


def test_the_guess_may_be_wrong_and_the_cell_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    right = cell(3 << 60 | 1)
    for factor in (1 - 1e-5, 1 + 1e-5):
        monkeypatch.setattr("scipy.special.ndtri", lambda u, factor=factor: ndtri(u) * factor)
        assert cell(3 << 60 | 1) == right
