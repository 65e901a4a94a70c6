"""The statistics of membership attacks, against scikit-learn, hand calculations and known distributions."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from linprobe.evaluation.attack import complementary_halves, likelihood_ratios, log_odds, membership
from linprobe.runs.figures import class_scores


def _drawn(seed: int, members: int, others: int, shift: float = 0.5):
    rng = np.random.default_rng(seed)
    return rng.standard_normal(members) + shift, rng.standard_normal(others)


@pytest.mark.parametrize("decimals", [0, 1, 12])
def test_auc_is_that_of_scikit_learn_with_ties_too(decimals: int) -> None:
    inside, outside = (np.round(scores, decimals) for scores in _drawn(0, 300, 170))
    expected = roc_auc_score(np.arange(470) < 300, np.concatenate([inside, outside]))
    assert membership(inside, outside).auc == pytest.approx(expected, abs=1e-12)


def test_interval_covers_the_true_auc_about_as_often_as_it_says() -> None:
    truth = norm.cdf(0.5 / np.sqrt(2))
    found = [membership(*_drawn(seed, 200, 150), 100) for seed in range(100)]
    covered = np.mean([one.low <= truth <= one.high for one in found])
    assert 0.87 <= covered <= 0.99


def test_interval_shrinks_with_the_number_of_records() -> None:
    few, many = (membership(*_drawn(3, size, size), 400) for size in (100, 10_000))
    assert (few.high - few.low) / (many.high - many.low) == pytest.approx(10, rel=0.3)
    assert many.low < many.auc < many.high


def test_no_resamples_give_no_interval_and_the_same_auc() -> None:
    scores = _drawn(1, 50, 50)
    without, having = membership(*scores), membership(*scores, 100)
    assert (without.low, without.high, without.auc) == (None, None, having.auc)


def test_rates_of_a_case_done_by_hand() -> None:
    found = membership(np.array([9.0, 8, 5, 5, 1]), np.array([7.0, 5, 5, 3]))
    assert found.fpr.tolist() == [0, 0, 0, 0.25, 0.75, 1, 1]
    assert found.tpr.tolist() == [0, 0.2, 0.4, 0.4, 0.8, 0.8, 1]
    for rate, expected in ((0.001, 0.4), (0.25, 0.4), (0.74, 0.4), (0.75, 0.8), (1, 1)):
        assert found.tpr_at(rate) == expected
    assert found.auc == (4 + 4 + 2 + 2) / 20  # 9 and 8 beat four, each 5 beats one and ties with two, 1 beats none


def test_rates_of_scores_that_say_nothing_or_everything() -> None:
    same = membership(np.zeros(10), np.zeros(20))
    assert (same.auc, same.tpr_at(0.01)) == (0.5, 0)
    apart = membership(np.ones(10), np.zeros(20))
    assert (apart.auc, apart.tpr_at(0.001)) == (1, 1)


def test_a_whole_number_of_false_positives_is_allowed_however_the_rate_is_rounded() -> None:
    scores = np.arange(1000.0)
    assert all(membership(scores, scores).tpr_at(count * 0.001) == count / 1000 for count in range(1, 30))


def test_many_records_and_resamples_take_seconds() -> None:
    found = membership(*_drawn(2, 60_000, 10_000, shift=0.0), 20)
    assert found.low < 0.5 < found.high


def test_log_odds_rank_as_the_loss_of_one_model_and_of_voters() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((50, 7)).astype(np.float32), rng.integers(4, size=50)
    stack, offsets = 3 * rng.standard_normal((5, 7, 4)), rng.standard_normal((5, 4))
    probabilities = np.stack([softmax(class_scores(x, *one), axis=1) for one in zip(stack, offsets, strict=True)])
    for weights, bias, mean in ((stack[0], offsets[0], probabilities[0]), (stack, offsets, probabilities.mean(axis=0))):
        loss = -np.log(mean[np.arange(50), y])
        odds = log_odds([(x[:30], y[:30]), (x[30:], y[30:])], weights, bias)
        assert np.allclose(np.log1p(np.exp(-odds)), loss, rtol=1e-9)


def test_log_odds_tell_certain_records_apart() -> None:
    x, y = np.array([[1.0, 0], [1, 0.1]], dtype=np.float32), np.array([0, 0])
    odds = log_odds([(x, y)], np.array([[200.0, -200], [0, 0]]), np.zeros(2))
    assert odds[0] == pytest.approx(400)
    assert odds[1] < odds[0]


def test_likelihood_ratio_finds_what_a_common_threshold_cannot() -> None:
    rng = np.random.default_rng(0)
    n, joined = 1000, complementary_halves(16, 1000)
    level, gain = 5 * rng.standard_normal(n), 2.0
    shadows = level + gain * joined + rng.standard_normal(joined.shape)
    inside = np.arange(n) < 500
    target = level + gain * inside + rng.standard_normal(n)
    ratios = likelihood_ratios(target, shadows, joined)
    assert membership(target[inside], target[~inside]).auc < 0.68
    assert membership(ratios[inside], ratios[~inside]).auc == pytest.approx(norm.cdf(gain / np.sqrt(2)), abs=0.04)


def test_shadows_that_all_agree_say_nothing() -> None:
    joined = complementary_halves(4, 9)
    ratios = likelihood_ratios(np.ones(9), np.ones((4, 9)), joined)
    assert np.array_equal(ratios, np.zeros(9))


def test_every_row_is_in_half_of_the_sets() -> None:
    halves = complementary_halves(6, 11)
    assert np.all(halves.sum(axis=0) == 3)
    assert halves.sum(axis=1).tolist() == [5, 6] * 3
    assert not np.array_equal(halves[0], halves[2])
