"""Relations: every pair is converted by its rule or refused, and converted releases cover what neighbours do."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.special import ndtr

from linprobe.accounting.events import OWNER, RECORD, REMOVED, Relation, Releases, converted, neighbours_between
from linprobe.errors import PrivacyError

K = 3
WANTED = [REMOVED[RECORD], REMOVED[OWNER], Relation(OWNER, K)]
# columns: record, person, person with at most 3 rows. None: refused
TABLE = {RECORD: (1, None, K), OWNER: (2, 1, 1)}
PAIRS = [(unit, wanted, number) for unit, row in TABLE.items() for wanted, number in zip(WANTED, row, strict=True)]
FULL, SAMPLED = Releases("gradient", 4.0, 1.0, 7), Releases("gradient", 4.0, 0.25, 7)


@pytest.mark.parametrize(("unit", "wanted", "number"), PAIRS, ids=[f"{pair[0]} to {pair[1]}" for pair in PAIRS])
def test_every_pair_is_converted_or_refused(unit: str, wanted: Relation, number: int | None) -> None:
    assert neighbours_between(unit, wanted) == number
    if number is None:
        with pytest.raises(
            PrivacyError, match=f"with one {REMOVED[unit]} bounds nothing for one {wanted}; allowed: "
        ) as error:
            converted([FULL], unit, wanted)
        assert "\n" not in str(error.value)
        return
    full, sampled = converted([FULL, SAMPLED], unit, wanted)
    assert (full.sampling_rate, full.count) == (1, 7)
    assert 4 / number * (1 - 1e-15) <= full.noise_multiplier <= 4 / number
    assert sampled.noise_multiplier == full.noise_multiplier
    if number == 1:
        assert (full, sampled) == (FULL, SAMPLED)
    elif unit == RECORD:
        assert sampled.sampling_rate == pytest.approx(1 - 0.75**number, rel=1e-13)
    else:
        assert sampled.sampling_rate == 1


@pytest.mark.parametrize("rate", [1e-12, 1e-3, 0.15, 0.9, 1 - 2**-53])
@pytest.mark.parametrize("rows", [2, 3, 5, 10])
def test_the_rate_of_several_rows_is_rounded_up(rate: float, rows: int) -> None:
    (release,) = converted([Releases("", 3.0, rate, 1)], RECORD, Relation(OWNER, rows))
    exact = 1 - (1 - Fraction(rate)) ** rows
    assert exact <= Fraction(release.sampling_rate) <= min(1, exact * (1 + Fraction(1, 10**13)))
    assert 0 < release.noise_multiplier * rows <= 3


GRID = np.linspace(-60, 60, 24001)


def density(means: dict[float, float], sigma: float) -> np.ndarray:
    """Probabilities of the cells of a grid under a mixture of Gaussians: mean to weight."""
    edges = np.append(GRID, 60.005)
    cells = sum(weight * np.diff(ndtr((edges - mean) / sigma)) for mean, weight in means.items())
    return np.asarray(cells)


def excess(one: np.ndarray, other: np.ndarray, epsilon: float) -> float:
    return float(np.maximum(one - math.exp(epsilon) * other, 0).sum())


@pytest.mark.parametrize("rate", [0.1, 0.5])
@pytest.mark.parametrize("signs", [(1, 1, 1), (1, 1, -1), (1, -0.5, 0.2)])
def test_rows_that_join_on_their_own_are_covered_by_the_converted_release(
    rate: float, signs: tuple[float, ...]
) -> None:
    rows, sigma = len(signs), 2.0
    mixture: dict[float, float] = {}
    for joined in itertools.product((0, 1), repeat=rows):
        mean = sum(sign * here for sign, here in zip(signs, joined, strict=True))
        mixture[mean] = mixture.get(mean, 0) + math.prod(rate if here else 1 - rate for here in joined)
    (release,) = converted([Releases("", sigma, rate, 1)], RECORD, Relation(OWNER, rows))
    with_rows, without = density(mixture, sigma), density({0: 1}, sigma)
    bound = density({0: 1 - release.sampling_rate, 1: release.sampling_rate}, release.noise_multiplier)
    empty = density({0: 1}, release.noise_multiplier)
    for epsilon in (0, 0.1, 0.5, 1, 2):
        assert excess(with_rows, without, epsilon) <= excess(bound, empty, epsilon) + 1e-6
        assert excess(without, with_rows, epsilon) <= excess(empty, bound, epsilon) + 1e-6


def test_one_row_of_a_sampled_person_is_covered_by_half_the_noise_without_sampling() -> None:
    sigma, rate = 2.0, 0.3
    one, other = density({0: 1 - rate, 1: rate}, sigma), density({0: 1 - rate, -1: rate}, sigma)
    (release,) = converted([Releases("", sigma, rate, 1)], OWNER, REMOVED[RECORD])
    assert release.sampling_rate == 1
    bound, empty = density({1: 1}, release.noise_multiplier), density({0: 1}, release.noise_multiplier)
    for epsilon in (0, 0.1, 0.5, 1, 2):
        assert excess(one, other, epsilon) <= excess(bound, empty, epsilon) + 1e-6
