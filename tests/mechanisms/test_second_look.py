"""Exact rounding: the cell of value + std Z is right for every word, down to the ends of the tails."""

from fractions import Fraction

import pytest
from flint import arb, ctx, fmpq
from scipy.special import ndtri

from linprobe.mechanisms.noise import EXTRA_BITS, NoiseSource, grid_step, nearest_cell

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


def test_the_guess_may_be_wrong_and_the_cell_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    right = cell(3 << 60 | 1)
    for factor in (1 - 1e-5, 1 + 1e-5):
        monkeypatch.setattr("scipy.special.ndtri", lambda u, factor=factor: ndtri(u) * factor)
        assert cell(3 << 60 | 1) == right
