"""Relations: every pair is converted by its rule or refused, and converted releases cover what neighbours do."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.special import ndtr

from linprobe.accounting.events import OWNER, RECORD, REMOVED, Change, Relation, Releases, converted, neighbours_between
from linprobe.errors import PrivacyError

GONE, OTHER, LABEL = Change.REMOVED, Change.EXCHANGED, Change.RELABELLED
K = 3
KINDS = [(RECORD, None), (OWNER, None), (OWNER, K)]
RELATIONS = [Relation(unit, change, rows) for unit, rows in KINDS for change in Change]
# columns: record, person, person with at most 3 rows; each removed, exchanged, relabelled. -: refused
TABLE = {
    Relation(RECORD, GONE): "1 2 2  - - -  3 6 6",
    Relation(RECORD, OTHER): "- 1 1  - - -  - - 3",
    Relation(RECORD, LABEL): "- - 1  - - -  - - 3",
    Relation(OWNER, GONE): "2 2 2  1 2 2  1 2 2",
    Relation(OWNER, OTHER): "- 1 1  - 1 1  - 1 1",
    Relation(OWNER, LABEL): "- - 1  - - 1  - - 1",
    Relation(OWNER, GONE, K): "- - -  - - -  1 2 2",
    Relation(OWNER, OTHER, K): "- - -  - - -  - 1 1",
    Relation(OWNER, LABEL, K): "- - -  - - -  - - 1",
}
PAIRS = [
    (stated, wanted, None if word == "-" else int(word))
    for stated, words in TABLE.items()
    for wanted, word in zip(RELATIONS, words.split(), strict=True)
]
FULL, SAMPLED = Releases("gradient", 4.0, 1.0, 7), Releases("gradient", 4.0, 0.25, 7)


@pytest.mark.parametrize(("stated", "wanted", "number"), PAIRS, ids=[f"{pair[0]} to {pair[1]}" for pair in PAIRS])
def test_every_pair_is_converted_or_refused(stated: Relation, wanted: Relation, number: int | None) -> None:
    assert neighbours_between(stated, wanted) == number
    if number is None:
        with pytest.raises(
            PrivacyError, match=f"with one {stated} bounds nothing for one {wanted}; allowed: "
        ) as error:
            converted([FULL], stated, wanted)
        assert "\n" not in str(error.value)
        return
    full, sampled = converted([FULL, SAMPLED], stated, wanted)
    assert (full.sampling_rate, full.count) == (1, 7)
    assert 4 / number * (1 - 1e-15) <= full.noise_multiplier <= 4 / number
    assert sampled.noise_multiplier == full.noise_multiplier
    if number == 1:
        assert (full, sampled) == (FULL, SAMPLED)
    elif stated == REMOVED[RECORD] and wanted.change is GONE:
        assert sampled.sampling_rate == pytest.approx(1 - 0.75**number, rel=1e-13)
    else:
        assert sampled.sampling_rate == 1


def test_the_table_has_every_pair_of_relations() -> None:
    assert {pair[:2] for pair in PAIRS} == set(itertools.product(RELATIONS, RELATIONS))


def test_a_rule_over_two_rules_is_never_below_the_direct_rule() -> None:
    for one, two, three in itertools.product(RELATIONS, repeat=3):
        first, second = neighbours_between(one, two), neighbours_between(two, three)
        if first is not None and second is not None:
            direct = neighbours_between(one, three)
            assert direct is not None
            assert direct <= first * second


@pytest.mark.parametrize("rate", [1e-12, 1e-3, 0.15, 0.9, 1 - 2**-53])
@pytest.mark.parametrize("rows", [2, 5, 10])
def test_the_rate_of_several_rows_is_rounded_up(rate: float, rows: int) -> None:
    (release,) = converted([Releases("", 3.0, rate, 1)], REMOVED[RECORD], Relation(OWNER, rows=rows))
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
    (release,) = converted([Releases("", sigma, rate, 1)], REMOVED[RECORD], Relation(OWNER, rows=rows))
    with_rows, without = density(mixture, sigma), density({0: 1}, sigma)
    bound = density({0: 1 - release.sampling_rate, 1: release.sampling_rate}, release.noise_multiplier)
    empty = density({0: 1}, release.noise_multiplier)
    for epsilon in (0, 0.1, 0.5, 1, 2):
        assert excess(with_rows, without, epsilon) <= excess(bound, empty, epsilon) + 1e-6
        assert excess(without, with_rows, epsilon) <= excess(empty, bound, epsilon) + 1e-6


def test_one_row_of_a_sampled_person_is_covered_by_half_the_noise_without_sampling() -> None:
    sigma, rate = 2.0, 0.3
    one, other = density({0: 1 - rate, 1: rate}, sigma), density({0: 1 - rate, -1: rate}, sigma)
    (release,) = converted([Releases("", sigma, rate, 1)], REMOVED[OWNER], REMOVED[RECORD])
    assert release.sampling_rate == 1
    bound, empty = density({1: 1}, release.noise_multiplier), density({0: 1}, release.noise_multiplier)
    for epsilon in (0, 0.1, 0.5, 1, 2):
        assert excess(one, other, epsilon) <= excess(bound, empty, epsilon) + 1e-6
