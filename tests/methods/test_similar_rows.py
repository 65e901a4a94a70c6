"""The number of private rows near unlabelled ones: sensitivity on neighbouring data, cost, and what it tells."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

from linprobe import NoisyGD
from linprobe.accounting.figures import largest_mu
from linprobe.data import rows as rows_module
from linprobe.data.blocks import ArraySource, Precision, Preprocessing, normalise_rows
from linprobe.data.dataset import Dataset
from linprobe.data.row_weights import RowWeights
from linprobe.data.rows import Rows, prepare_shard
from linprobe.methods.private_mean import shrunk_mean
from linprobe.methods.similar_rows import SAME_KIND, SIMILAR_ROWS, NearShots, SimilarRows, Surroundings, similar_count
from linprobe.parallel.process_group import ALONE, Group, in_group
from linprobe.training.execute import execute
from linprobe.training.plan import SIMILAR_NOISE, SIMILAR_SHARE, plan_run

WIDTH, SIZES = 12, np.resize([1, 2, 7, 20], 60)  # rows of each person


def rows_around(n: int, seed: int, offset: float = 2.0, width: int = WIDTH) -> np.ndarray:
    """Rows around four directions and one that all share; another offset is another kind."""
    g = np.random.default_rng(seed)
    return (4 * np.eye(4, width)[np.arange(n) % 4] + offset + 0.7 * g.normal(size=(n, width))).astype(np.float32)


U = rows_around(300, 1)
CENTRE = U.mean(axis=0)


def prepared(
    x: np.ndarray,
    sizes: Any = None,
    *,
    streamed: bool = False,
    group: Group = ALONE,
    precision: Precision = "float32",
    weights: RowWeights | None = None,
) -> Rows:
    bounds = None if sizes is None else np.concatenate([[0], np.cumsum(sizes)])
    n = len(x) if bounds is None else bounds[-1]
    source = ArraySource(x[:n], np.zeros(n, np.int64))
    return prepare_shard(source, bounds, Preprocessing(), precision, group, weights, streamed=streamed)


def mixed(n: int) -> np.ndarray:
    return np.where(np.arange(n)[:, None] % 3 > 0, rows_around(n, 2), rows_around(n, 3, offset=-3.0))


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("of", ["rows", "people"])
def test_neighbours_differ_by_at_most_one(of: str, streamed: bool) -> None:
    around = Surroundings(U)
    rows = prepared(mixed(500), SIZES if of == "people" else None, streamed=streamed)
    counted = similar_count(rows, around)
    assert counted.sensitivity == 1
    moved = []
    for place in range(min(rows.n_local, 80)):
        without = similar_count(rows.emptied(np.arange(rows.n_local) != place), around)
        moved.append(float(np.abs(counted.value - without.value).sum()))
        assert counted.contributions[place] >= moved[-1]
        assert without.contributions[place] <= 2**-10  # the margin for rounding alone
        assert np.array_equal(np.delete(without.contributions, place), np.delete(counted.contributions, place))
    assert 0.8 < max(moved) <= 1
    assert counted.contributions.max() <= 1


@pytest.mark.parametrize("width", [WIDTH, 45, 512])  # below, between and at multiples of the segments of a norm
def test_a_row_counts_alike_at_every_place_and_beside_every_other(width: int) -> None:
    """A threshold on a sum that rounds otherwise beside other rows would move the count of these."""
    around, x = Surroundings(rows_around(300, 1, width=width)), rows_around(400, 5, width=width)
    unit = normalise_rows(x)
    one_by_one = np.concatenate([around.near(unit[row : row + 1]) for row in range(400)])
    for order in (np.arange(400), np.random.default_rng(0).permutation(400), np.arange(7, 400)):
        np.testing.assert_array_equal(normalise_rows(x[order]), unit[order])
        np.testing.assert_array_equal(around.near(unit[order]), one_by_one[order])
    assert 0 < one_by_one.sum() < 400


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_huge_and_tiny_rows_count_like_others_of_their_direction(precision: str) -> None:
    """No row makes another one count, warns, or has a place where it counts more."""
    around, x = Surroundings(U), mixed(200)
    counted = similar_count(prepared(x, precision=precision), around)
    x[:2] *= np.float32(3e38) / np.abs(x[:2]).max(axis=1, keepdims=True)
    x[2:4] *= np.float32(1e-30)
    scaled = similar_count(prepared(x, precision=precision), around)
    np.testing.assert_array_equal(scaled.value, counted.value)
    np.testing.assert_array_equal(scaled.contributions, counted.contributions)


def test_public_weights_of_rows_do_not_count() -> None:
    around, weights = Surroundings(U), RowWeights(np.array([1.0]), np.linspace(0.1, 9, SIZES.sum()))
    plain, weighted = (similar_count(prepared(mixed(500), SIZES, weights=given), around) for given in (None, weights))
    np.testing.assert_array_equal(weighted.value, plain.value)
    np.testing.assert_array_equal(weighted.contributions, plain.contributions)


def test_the_count_has_the_same_bits_in_any_number_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "SHARD_ROWS", 16)
    around, x = Surroundings(U), mixed(500)

    def counted(group: Group) -> Any:
        rows = prepared(x, SIZES, group=group)
        return similar_count(rows, around, all_reduce=group.all_reduce).value

    alone = counted(ALONE)
    assert all(np.array_equal(value, alone) for value in in_group(3, counted))


@pytest.mark.parametrize(("offset", "low", "high"), [(2.0, 0.85, 0.97), (-3.0, 0.0, 0.05)])
def test_rows_of_the_same_kind_count_and_others_do_not(offset: float, low: float, high: float) -> None:
    share = similar_count(prepared(rows_around(1000, 7, offset)), Surroundings(U)).value[0, 0] / 1000
    assert low <= share <= high


def test_rows_of_missing_classes_do_not_count() -> None:
    present = U[np.arange(300) % 4 < 2]
    share = similar_count(prepared(rows_around(1000, 7)), Surroundings(present)).value[0, 0] / 1000
    assert 0.4 < share < 0.55


@pytest.mark.parametrize("n", [2, 3, 10])
def test_few_unlabelled_rows_have_a_count(n: int) -> None:
    assert 0 <= similar_count(prepared(rows_around(100, 7)), Surroundings(U[:n])).value[0, 0] <= 100


@pytest.mark.parametrize("n", [2, 5, 10, 300])
def test_few_rows_of_another_kind_are_told_from_those_of_the_same(n: int) -> None:
    """Seen from the mean of few rows, all rows of another kind are in the direction of one of these."""
    rows = prepared(rows_around(1000, 7))
    assert similar_count(rows, Surroundings(rows_around(n, 9, offset=-3.0))).value == 0
    assert similar_count(rows, Surroundings(rows_around(n, 9))).value >= (400 if n == 2 else 800)


def test_copies_of_one_row_are_near_no_other() -> None:
    around = Surroundings(np.tile(U[:1], (50, 1)))
    assert similar_count(prepared(rows_around(1000, 7)), around).value == 0


def test_noise_that_hides_the_answer_counts_as_another_kind() -> None:
    assert SimilarRows(90.0, 60.0).share(100) < SAME_KIND < SimilarRows(90.0, 5.0).share(100)


def dataset_with(n: int, unlabelled: np.ndarray | None) -> Dataset:
    x = rows_around(n, 8)
    further = None if unlabelled is None else ArraySource(unlabelled, np.full(len(unlabelled), -1))
    return Dataset(ArraySource(x, np.arange(n) % 4), 4, unlabelled=further)


@pytest.mark.parametrize(("n", "epsilon"), [(400, 0.2), (400, 1.0), (5000, 1.0)])
def test_the_count_costs_at_most_its_share_and_no_epsilon(n: int, epsilon: float) -> None:
    settings = NoisyGD(epsilon=epsilon, classes=range(4)).settings()
    plan = plan_run(settings, dataset_with(n, U))
    release = next(one for one in plan.budget.releases if one.purpose == SIMILAR_ROWS)
    mu = largest_mu(epsilon, 1e-5)
    assert 1 / release.noise_multiplier <= math.sqrt(SIMILAR_SHARE) * mu
    assert release.noise_multiplier >= SIMILAR_NOISE * n
    assert plan.budget.accountant.epsilon(plan.budget.releases, 1e-5) <= epsilon
    without = plan_run(settings, dataset_with(n, None))
    assert SIMILAR_ROWS not in {one.purpose for one in without.budget.releases}


def test_the_centre_is_that_of_unlabelled_rows_of_the_same_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("linprobe.training.plan.MOST_NOISE", 0.1)  # the budget buys no mean
    settings = NoisyGD(epsilon=0.4, classes=range(4), n_steps=3, insecure_seed=5, per_record=False).settings()
    found = {}
    short = ArraySource(rows_around(400, 8) - CENTRE, np.arange(400) % 4)
    for name, rows in {"same": U, "other": rows_around(300, 1, offset=-3.0), "short": U - CENTRE}.items():
        dataset = dataset_with(400, rows)
        if name == "short":
            dataset = replace(dataset, private=short)
        plan = plan_run(settings, dataset)
        assert plan.centre == "unlabelled"
        found[name] = execute(plan, dataset)
    assert [found[name].centre for name in found] == ["unlabelled", "none", "none"]
    assert found["short"].similar.share(400) >= SAME_KIND
    assert found["same"].refined.strength > found["other"].refined.strength == 0
    told = plan_run(replace(settings, condition="none"), dataset_with(400, U))
    assert told.centre == "none"  # as the caller wants


def test_a_guess_takes_the_place_of_a_mean_that_noise_hides() -> None:
    guess, truth = np.full(50, 0.1), np.full(50, 0.1) + 0.01
    g = np.random.default_rng(0)
    noisy = 1000 * truth + 100 * g.normal(size=50)
    assert np.linalg.norm(shrunk_mean(noisy, 100.0, 1000, guess) - truth) < 0.2
    assert np.linalg.norm(shrunk_mean(noisy, 100.0, 1000) - truth) > 0.3
    clear = shrunk_mean(1000 * truth + 0.01 * g.normal(size=50), 0.01, 1000, -guess)
    np.testing.assert_allclose(clear, truth, atol=1e-3)
    np.testing.assert_array_equal(shrunk_mean(noisy, 1.0, 1000, -guess), shrunk_mean(noisy, 1.0, 1000))  # 0 is nearer


def test_a_guess_stays_where_noise_explains_the_distance() -> None:
    guess, noise = np.full(50, 0.1), np.random.default_rng(1).normal(size=(200, 50)) * 100
    moved = [np.abs(shrunk_mean(1000 * guess + one, 100.0, 1000, guess) - guess).max() > 0 for one in noise]
    assert np.mean(moved) < 0.05
    without = [np.abs(shrunk_mean(1000 * guess + one, 100.0, 1000) - guess).max() > 0 for one in noise]
    assert np.all(without)


def test_centred_rows_have_the_norm_of_the_unlabelled_rows() -> None:
    """Rows that are close to their mean: the noise of a private mean says little about their distance."""
    x, y = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(1).permutation(len(y))
    private, unlabelled, test = order[:220], order[220:400], order[400:]
    x = np.log1p(x)
    probe = NoisyGD(epsilon=8, per_record=False, classes=[0, 1])
    probe.fit(x[private], y[private], X_unlabelled=x[unlabelled])
    assert probe.centre_ == "private"
    assert probe.score(x[test], y[test]) > 0.87


@pytest.mark.parametrize(
    ("near", "of", "least", "most"),
    [
        (0, 20, 0.0, 0.0),
        (6, 6, 6 / 15, 1.0),
        (20, 20, 20 / 29, 1.0),
        (145, 204, 0.608, 0.743),
        (177, 204, 0.781, 0.892),
    ],
)
def test_few_shots_prove_little_and_rule_out_little(near: int, of: int, least: float, most: float) -> None:
    shots = NearShots(near, of)
    assert shots.least == pytest.approx(least, abs=0.001)
    assert shots.most == pytest.approx(most, abs=0.001)
