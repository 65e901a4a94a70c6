"""Private selection and right counts: exact draws, the best output, sensitivity, and what a toy selection leaks."""

from __future__ import annotations

import math
import secrets
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import chisquare

from linprobe.data.blocks import ArraySource
from linprobe.mechanisms import correct_predictions as module
from linprobe.mechanisms.correct_predictions import (
    VARIANCE,
    NoisyGain,
    correct_counts,
    correct_counts_sensitivity,
    gain,
    geometric,
    private_selection,
)
from linprobe.mechanisms.gaussian import ClippedSum
from linprobe.runs.figures import count_private

DRAWS = 8000


def test_number_of_runs_is_geometric() -> None:
    counts = Counter(min(geometric(3), 12) for _ in range(DRAWS))
    expected = [(2 / 3) ** (k - 1) / 3 for k in range(1, 12)] + [(2 / 3) ** 11]
    assert chisquare([counts[k] for k in range(1, 13)], DRAWS * np.array(expected)).pvalue > 1e-6


def test_best_of_all_runs_is_returned_and_settings_are_drawn_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "geometric", lambda mean: 1000)
    seen: list[tuple[float, int]] = []

    def run(setting: int) -> tuple[float, int]:
        seen.append((float(np.random.default_rng(len(seen)).random()), setting))
        return seen[-1][0], len(seen)

    assert seen[private_selection(run, 4, 2) - 1] == max(seen)
    assert len(seen) == 1000
    assert chisquare(list(Counter(setting for _, setting in seen).values())).pvalue > 1e-6


def test_wrong_arguments_are_refused() -> None:
    for n_settings, mean in ((0, 5), (3, 1)):
        with pytest.raises(ValueError, match="allowed"):
            private_selection(lambda setting: (0.0, setting), n_settings, mean)


def test_toy_selection_has_the_distribution_that_the_bound_is_proven_for() -> None:
    """Scores 0, 1, 2 with known probabilities: P(best = y) = E[F(y)^K] - E[F(y-)^K]. Neighbours stay within e^eps."""
    mean, found = 4, []
    for probabilities in ((0.5, 0.3, 0.2), (0.4, 0.35, 0.25)):
        edges = np.cumsum(probabilities) * 1000

        def run(_: int, edges: np.ndarray = edges) -> tuple[float, int]:
            score = int(np.searchsorted(edges, secrets.randbelow(1000), side="right"))
            return float(score), score

        counts = Counter(private_selection(run, 1, mean) for _ in range(DRAWS))
        below = np.concatenate([[0.0], np.cumsum(probabilities)])
        expected = np.diff(below / mean / (1 - (1 - 1 / mean) * below))
        observed = [counts[score] for score in range(3)]
        assert chisquare(observed, DRAWS * expected / expected.sum()).pvalue > 1e-6
        found.append(np.array(observed) / DRAWS)
    one_run = math.log(0.5 / 0.4)  # the largest log ratio of the two runs; Liu and Talwar: three times that
    ratios = np.abs(np.log(found[0] / found[1]))
    assert np.all(ratios <= 3 * one_run + 0.1)


@pytest.mark.parametrize("n_models", [1, 2, 5])
def test_neighbours_differ_by_at_most_the_sensitivity(n_models: int) -> None:
    rng = np.random.default_rng(0)
    right = rng.integers(0, 2, (50, n_models))
    whole = correct_counts([(count, 50) for count in right.sum(axis=0).tolist()], 50)
    for absent in range(50):
        left = np.delete(right, absent, axis=0)
        change = whole.value - correct_counts([(count, 49) for count in left.sum(axis=0).tolist()], 49).value
        assert np.linalg.norm(change) <= whole.sensitivity
        assert np.linalg.norm(change) == pytest.approx(math.sqrt(n_models) / 2)  # so each contributes in full
    assert np.array_equal(whole.contributions, np.ones(50))
    assert correct_counts_sensitivity(n_models) >= math.sqrt(n_models) / 2


@pytest.mark.parametrize("sizes", [None, [1, 1, 2, 3, 7, 20]])
def test_a_unit_changes_the_gain_by_at_most_one(sizes: list[int] | None) -> None:
    rng, n = np.random.default_rng(0), 34
    x, y = rng.standard_normal((n, 5)).astype(np.float32), rng.integers(0, 3, n)
    old, new = ((rng.standard_normal((5, 3)).astype(np.float32), np.float32([1, 0, 0])) for _ in range(2))
    ends = np.arange(n + 1) if sizes is None else np.concatenate([[0], np.cumsum(sizes)])
    bounds = None if sizes is None else ends

    def gained(rows: np.ndarray) -> ClippedSum:
        source = ArraySource(rows, y)
        return gain(count_private(*old, source, bounds), count_private(*new, source, bounds), len(ends) - 1)

    whole, changes = gained(x), []
    for first, stop in pairwise(ends):
        empty = x.copy()
        empty[first:stop] = 0
        changes.append(float(whole.value[0, 0] - gained(empty).value[0, 0]))
    assert whole.sensitivity == max(map(abs, changes)) == 1
    assert sum(changes) == whole.value[0, 0]  # nobody moves what the others add
    assert np.array_equal(whole.contributions, np.ones(len(ends) - 1))


@pytest.mark.parametrize("expected", [0.02, -0.02])
def test_a_gain_below_what_noise_explains_is_harm(expected: float) -> None:
    """The mean of the gain of 1,000 units, after a noisy count at the limit, is 0."""
    rng, n, noise = np.random.default_rng(0), 1000, 40.0
    true = n * (expected + math.sqrt(VARIANCE) * rng.normal(size=400_000))
    noisy = true + noise * rng.normal(size=len(true))
    limit = -expected * noise**2 / (VARIANCE * n)
    assert abs(true[np.abs(noisy - limit) < 3].mean()) < 1
    assert NoisyGain(limit - 0.1, noise, expected).harms(n)
    assert not NoisyGain(limit + 0.1, noise, expected).harms(n)
