"""The rule of refinement: what it gains, when it changes nothing, and what it depends on."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from linprobe.accounting.events import Releases
from linprobe.data.blocks import ArraySource
from linprobe.errors import UsageError
from linprobe.methods.similar_rows import NearShots
from linprobe.runs import refined_weights as refinement
from linprobe.runs.figures import class_scores
from linprobe.runs.refined_weights import Known, gathered, mu_of_weights, refined_weights

N_CLASSES, WIDTH = 5, 30
NOISY, CLEAN = Known(500, 0.05), Known(100_000, 3.0)
ALIKE = Known(500, 0.05, similar=1.0)


def rows_of(n: int, seed: int, classes: int = N_CLASSES) -> tuple[np.ndarray, np.ndarray]:
    """Rows around one direction per class."""
    g = np.random.default_rng(seed)
    labels = np.arange(n) % classes
    return (4 * np.eye(classes, WIDTH)[labels] + 0.7 * g.normal(size=(n, WIDTH))).astype(np.float32), labels


def probe_with(noise: float, seed: int = 0, classes: int = N_CLASSES) -> tuple[np.ndarray, np.ndarray]:
    """The weights of a good probe with noise."""
    g = np.random.default_rng(seed)
    weights = 10 * np.eye(WIDTH, classes) + noise * g.normal(size=(WIDTH, classes))
    return weights.astype(np.float32), (-weights.mean(axis=0) / 2).astype(np.float32)


def accuracy(model: tuple[np.ndarray, np.ndarray], rows: tuple[np.ndarray, np.ndarray]) -> float:
    return float((class_scores(rows[0], *model).argmax(axis=1) == rows[1]).mean())


def test_rows_without_labels_correct_noisy_weights() -> None:
    unlabelled, new, probe = rows_of(400, 1), rows_of(500, 2), probe_with(5.0)
    found = refined_weights(unlabelled[0], *probe, NOISY)
    assert found.strength == 1
    assert accuracy(probe, new) < 0.85
    assert accuracy((found.weights, found.bias), new) > accuracy(probe, new) + 0.05
    together = float((found.scores.argmax(axis=1) == unlabelled[1]).mean())
    assert together > accuracy(probe, unlabelled) + 0.05


@pytest.mark.parametrize(("n", "classes", "better"), [(800, 10, True), (30, 10, False), (800, 2, False)])
def test_a_second_pass_corrects_further_unless_rows_or_classes_are_few(
    n: int, classes: int, better: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlabelled, new, probe = rows_of(n, 1, classes)[0], rows_of(500, 2, classes), probe_with(8.0, classes=classes)
    known = replace(ALIKE, n_units=10)  # so noisy that only the number of rows limits the strength
    monkeypatch.setattr(refinement, "_of_classes", lambda *_: 1.0)
    twice = refined_weights(unlabelled, *probe, known)
    monkeypatch.setattr(refinement, "_between", lambda value, none, whole: float(none != refinement.FEW_AGAIN))
    once = refined_weights(unlabelled, *probe, known)
    assert once.strength == twice.strength == min(1.0, n / 300)
    gained = accuracy((twice.weights, twice.bias), new) - accuracy((once.weights, once.bias), new)
    assert gained > 0.01 if better else abs(gained) < 0.003


def test_the_same_rows_and_weights_give_the_same_bits() -> None:
    unlabelled, probe = rows_of(300, 1)[0], probe_with(8.0)
    first, second = (refined_weights(unlabelled, *probe, NOISY) for _ in range(2))
    for name in ("weights", "bias", "scores"):
        assert getattr(first, name).tobytes() == getattr(second, name).tobytes()


@pytest.mark.parametrize("noise", [0.0, 2.0, 8.0])
def test_a_run_with_little_noise_loses_nothing(noise: float) -> None:
    new, probe = rows_of(500, 2), probe_with(noise)
    found = refined_weights(rows_of(300, 1)[0], *probe, CLEAN)
    assert found.strength < 0.01
    assert accuracy((found.weights, found.bias), new) >= accuracy(probe, new) - 0.005


@pytest.mark.parametrize("n", [5, 10, 50])
def test_few_rows_do_no_harm(n: int) -> None:
    new, probe = rows_of(500, 2), probe_with(3.0)
    found = refined_weights(rows_of(n, 3)[0], *probe, NOISY)
    assert accuracy((found.weights, found.bias), new) >= accuracy(probe, new) - 0.01


def test_rows_of_another_kind_change_nothing() -> None:
    new, probe = rows_of(500, 2), probe_with(3.0)
    others = (5 * np.eye(1, WIDTH) + np.random.default_rng(4).normal(size=(300, WIDTH))).astype(np.float32)
    found = refined_weights(others, *probe, NOISY)
    assert found.strength == 0
    assert found.weights is probe[0]
    assert accuracy((found.weights, found.bias), new) == accuracy(probe, new)


@pytest.mark.parametrize("rows", [rows_of(1, 1)[0], np.ones((30, WIDTH), np.float32), np.zeros((3, WIDTH), np.float32)])
def test_rows_without_differences_change_nothing(rows: np.ndarray) -> None:
    probe = probe_with(3.0)
    found = refined_weights(rows, *probe, NOISY)
    assert found.strength == 0
    assert found.weights is probe[0]


def test_given_class_shares_are_kept() -> None:
    unlabelled, probe = rows_of(400, 1), probe_with(8.0)
    shares = np.array([0.6, 0.1, 0.1, 0.1, 0.1])
    found = refined_weights(unlabelled[0], *probe, ALIKE, shares)
    even = refined_weights(unlabelled[0], *probe, ALIKE, np.ones(N_CLASSES))
    of_first = [int((one.scores.argmax(axis=1) == 0).sum()) for one in (found, even)]
    assert 60 < of_first[1] < 100
    assert of_first[0] > of_first[1] + 40


@pytest.mark.parametrize("sizes", [(300, 60, 20, 10, 10), (150, 150, 150, 0, 0)])
def test_rows_predicted_together_may_have_other_class_shares(sizes: tuple[int, ...]) -> None:
    rows, labels = rows_of(2000, 1)
    some = np.concatenate([np.flatnonzero(labels == label)[:size] for label, size in enumerate(sizes)])
    right = np.zeros(3)
    for seed in range(6):
        probe = probe_with(4.0, seed)
        kept, free = (refined_weights(rows[some], *probe, ALIKE, together=free).scores for free in (False, True))
        plain = class_scores(rows[some], *probe)
        right += [float((scores.argmax(axis=1) == labels[some]).mean()) / 6 for scores in (plain, kept, free)]
    assert right[2] > right[0] + 0.01
    assert right[2] > right[1]


@pytest.mark.parametrize("n_classes", [20, 10])
def test_rows_predicted_together_are_pulled_to_equal_shares_unless_classes_are_missing(
    n_classes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    g = np.random.default_rng(0)
    labels = np.arange(400) % n_classes
    rows = (4 * np.eye(20, 60)[labels] + 0.9 * g.normal(size=(400, 60))).astype(np.float32)
    weights = (10 * np.eye(60, 20) + 1.5 * g.normal(size=(60, 20))).astype(np.float32)
    probe = weights, (-weights.mean(axis=0) / 2).astype(np.float32)
    chosen = refined_weights(rows, *probe, ALIKE, together=True).scores
    monkeypatch.setattr(refinement, "NOISY", math.inf)
    never = refined_weights(rows, *probe, ALIKE, together=True).scores
    right = [float((scores.argmax(axis=1) == labels).mean()) for scores in (class_scores(rows, *probe), never, chosen)]
    assert right[1] > right[0] + 0.05
    assert (right[2] > right[1]) if n_classes == 20 else np.array_equal(chosen, never)


def test_weights_change_little_by_rows_of_few_classes() -> None:
    of_all, of_two, counted = np.full(5, 0.2), np.array([0.5, 0.5, 0, 0, 0]), np.array([0.5, 0.5, 0, 0, 0])
    assert refinement._like_shares(of_all, of_all) == 1
    assert refinement._like_shares(of_two, of_all) == 0
    assert refinement._like_shares(of_two, counted) == 1
    assert refinement._like_shares(of_all, np.array([0.6, 0.1, 0.1, 0.1, 0.1])) < 0.2
    rows, labels = rows_of(600, 1)
    unlike = Known(500, 0.05, centred=False)  # most rows may have the same scores
    probe = probe_with(1.0)
    for n_classes, strength in ((5, 1.0), (3, 0.0)):
        found = refined_weights(rows[labels < n_classes], *probe, unlike)
        assert found.strength == strength
        assert (found.weights is probe[0]) == (not strength)


@pytest.mark.parametrize("together", [False, True])
def test_groups_of_rows_that_are_not_classes_change_nothing(together: bool) -> None:
    """Each row has one of 6 looks, far apart, and any class."""
    g = np.random.default_rng(1)
    classes, looks = np.eye(WIDTH)[np.arange(600) % N_CLASSES], np.eye(WIDTH)[N_CLASSES + g.integers(0, 6, 600)]
    rows = (classes + 6 * looks + 0.7 * g.normal(size=(600, WIDTH))).astype(np.float32)
    probe = probe_with(1.0)
    found = refined_weights(rows, *probe, ALIKE, together=together)
    assert found.strength == 0
    np.testing.assert_allclose(found.scores, class_scores(rows, *probe), atol=1e-4)
    assert refined_weights(rows_of(600, 1)[0], *probe, ALIKE, together=together).strength == 1


@pytest.mark.parametrize("together", [False, True])
def test_a_balanced_probe_is_refined_before_its_bias_was_shifted(together: bool) -> None:
    rows, labels = rows_of(2000, 1)
    some = np.concatenate([np.flatnonzero(labels == label)[:size] for label, size in enumerate((300, 60, 30, 20, 10))])
    weights, bias = probe_with(5.0)
    shift = -np.log(np.array([300, 60, 30, 20, 10]) / 420)
    moved = (bias + shift).astype(np.float32)
    found = refined_weights(rows[some], weights, moved, ALIKE, shift=shift, together=together)
    before = refined_weights(rows[some], weights, bias, ALIKE, together=together)
    np.testing.assert_allclose(found.weights, before.weights, atol=1e-3)
    np.testing.assert_allclose(found.bias, before.bias + shift, atol=1e-3)
    np.testing.assert_allclose(found.scores, before.scores + shift, atol=1e-2)
    kept = refined_weights(rows[some], weights, moved, ALIKE, shift=shift + 1000.0, together=together)
    np.testing.assert_allclose(kept.bias, found.bias, atol=1e-2)  # scores have no origin


def test_many_public_shots_near_the_rows_prove_that_the_rows_are_alike() -> None:
    rows, labels = rows_of(750, 1)
    few_classes, probe = rows[labels < 2], probe_with(1.0)
    for shots, strength in ((None, 0.0), (NearShots(6, 6), 0.0), (NearShots(240, 250), 1.0), (NearShots(0, 250), 0.0)):
        found = refined_weights(few_classes, *probe, Known(500, 0.05, near_shots=shots))
        assert found.strength == strength
        assert refined_weights(few_classes, *probe, Known(0, 0.0, near_shots=shots)).strength == 0


@pytest.mark.parametrize("shares", [[1.0, 1.0], [0.0] * 5, [-1.0, 1, 1, 1, 1], [math.nan, 1, 1, 1, 1]])
def test_shares_that_are_no_distribution_are_refused(shares: list[float]) -> None:
    with pytest.raises(UsageError, match="class shares"):
        refined_weights(rows_of(40, 1)[0], *probe_with(1.0), NOISY, shares)


def test_the_noise_of_a_run_follows_from_its_releases() -> None:
    steps = Releases("gradient", 20.0, 1.0, 400)
    others = [Releases(purpose, 0.1, 1.0, 1) for purpose in ("test accuracy", "histogram")]
    mu = mu_of_weights([steps, *others])
    assert mu == mu_of_weights([steps]) == pytest.approx(1.0)
    assert Known(700, mu).noise(7) == pytest.approx(0.01)
    assert Known(0, mu_of_weights([])).noise(7) == math.inf


def test_many_rows_are_thinned_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refinement, "MOST_ROWS", 40)
    rows, labels = rows_of(1000, 1)
    source = ArraySource(rows, labels)
    found, places = gathered((x for x, _ in source.blocks()), 1000, WIDTH, N_CLASSES)
    assert places.tolist() == list(range(0, 1000, 25))
    np.testing.assert_array_equal(found, rows[::25])
    whole, all_places = gathered([rows[:17], rows[17:30]], 30, WIDTH, N_CLASSES)
    assert all_places.tolist() == list(range(30))
    np.testing.assert_array_equal(whole, rows[:30])


def test_neighbours_do_not_depend_on_the_size_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    unlabelled, probe = rows_of(200, 1)[0], probe_with(8.0)
    whole = refined_weights(unlabelled, *probe, NOISY)
    monkeypatch.setattr(refinement, "BLOCK_SCORES", 200 * 7)
    parts = refined_weights(unlabelled, *probe, NOISY)
    np.testing.assert_allclose(parts.weights, whole.weights, atol=1e-3 * np.abs(whole.weights).max())


@pytest.mark.parametrize(("width", "gain"), [(WIDTH, 0.02), (2, -0.02)])
def test_rows_whose_nearest_rows_hardly_differ_are_not_expected_to_gain(
    width: int, gain: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In two dimensions, noise gives the nearest rows the same error."""
    unlabelled, probe = rows_of(400, 1)[0], probe_with(5.0)
    flat = np.ascontiguousarray(unlabelled[:, :width])
    found = refined_weights(flat, probe[0][:width], probe[1], ALIKE)
    assert found.strength > 0
    assert found.expected_gain == pytest.approx(gain)
    finished = replace(ALIKE, similar=None, near_shots=NearShots(500, 500))  # nothing asks private rows
    later = refined_weights(flat, probe[0][:width], probe[1], finished)
    assert (later.strength > 0) == (gain > 0)
    monkeypatch.setattr(refinement, "DIFFERENT", -1.0)
    monkeypatch.setattr(refinement, "ALIKE", 0.0)
    strengths = [refined_weights(unlabelled, *probe, replace(finished, n_units=n)).strength for n in (500, 0)]
    assert strengths[0] == 0 < strengths[1]
