"""Momentum of few steps around a mean: when, how much noise, and that a checkpoint keeps it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from linprobe.data.rows import ArrayRows
from linprobe.mechanisms.gaussian import GaussianMechanism
from linprobe.mechanisms.noise import NoiseSource
from linprobe.methods import METHODS, Problem, Run, Schedule, _descent
from linprobe.methods._base import Iterates
from linprobe.methods._descent import Pace
from linprobe.options import CENTRED_STEPS, ENOUGH_ROWS, AdaMixOptions, NoisyGDOptions

CLASSES = 3
SCHEDULE = Schedule(30, 12.0, 30**0.5 / 12.0)


def problem(n_rows: int = ENOUGH_ROWS * CLASSES, *, width: int = 4, **given: Any) -> Problem:
    """Rows that are zero, so that weights are noise alone."""
    rows = ArrayRows(np.zeros((n_rows, width), np.float32), np.zeros(n_rows, np.int64))
    return Problem(width, CLASSES, private=rows, **{"centred": True, **given})


def test_few_steps_are_as_stable_as_many_and_many_are_as_before() -> None:
    for n_steps in (5, 50, 200):
        beta = Pace.of(NoisyGDOptions(), problem(), replace(SCHEDULE, n_steps=n_steps)).momentum
        assert (1 + beta) / (1 - beta) * n_steps == pytest.approx(CENTRED_STEPS)
    pace = Pace.of(NoisyGDOptions(), problem(), replace(SCHEDULE, n_steps=CENTRED_STEPS))
    assert pace.momentum == 0
    np.testing.assert_array_equal(pace.factors, 1)


@pytest.mark.parametrize(
    ("n_steps", "ratio", "longer", "noise"),
    [
        (50, 5000, 1, 1),
        (100, 900, 1, 1),
        (100, 1500, 1.5, 1.5),
        (100, 4000, 2, 2),
        (100, 8000, 2, 1.25),
        (100, 1e5, 2, 0.1),
    ],
)
def test_from_zero_steps_go_further_as_the_signal_grows(
    n_steps: int, ratio: float, longer: float, noise: float
) -> None:
    data, options = problem(), NoisyGDOptions()
    schedule = Schedule(n_steps, 1.0, ratio / ENOUGH_ROWS)
    beta = Pace.of(options, data, schedule, informed=False).momentum
    assert (1 + beta) / (1 - beta) * n_steps == pytest.approx(CENTRED_STEPS * longer)
    found = _descent.score_noise(options, data, schedule, informed=False, damped=True, momentum=beta)
    assert found == pytest.approx(noise)


@pytest.mark.parametrize(
    ("n_steps", "ratio", "noise"),
    [(50, 3000, 1), (50, 8000, 1.25 / 8**0.5), (100, 1e5, 0.05), (400, 1e5, 0.1)],
)
@pytest.mark.parametrize("options", [AdaMixOptions(), NoisyGDOptions()])
def test_around_a_known_start_steps_are_shorter_as_the_last_ones_are_longer(
    n_steps: int, ratio: float, noise: float, options: Any
) -> None:
    x = np.eye(4, dtype=np.float32)[[0, 1, 0, 1]]
    data = problem(public=ArrayRows(x, np.array([0, 1, 0, 1])))
    mechanism = GaussianMechanism(NoiseSource(4), lambda event: None)
    run = Run(Schedule(n_steps, n_steps**0.5 * ENOUGH_ROWS / ratio, ratio / ENOUGH_ROWS), mechanism, lambda: None)
    step = METHODS[options.method].fit(data, options, run).history[-1]
    factor = float(Pace.of(options, data, run.schedule).factors[-1])
    eta = step["learning_rate"] * step["clip_norm"] / factor
    assert eta == pytest.approx(noise * run.schedule.nominal_mu / n_steps)


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        (NoisyGDOptions(), {"centred": False}),
        (NoisyGDOptions(), {"several_labels": True}),
        (NoisyGDOptions(), {"n_rows": ENOUGH_ROWS * CLASSES - 1}),
        (NoisyGDOptions(learning_rate=0.1), {}),
        (NoisyGDOptions(schedule="theory"), {}),
        (AdaMixOptions(variant="theory"), {}),
    ],
)
def test_no_momentum_elsewhere(options: Any, facts: dict[str, Any]) -> None:
    pace = Pace.of(options, problem(**facts), replace(SCHEDULE, n_steps=50))
    assert pace.momentum == 0
    np.testing.assert_array_equal(pace.factors, 1)


def test_noise_of_the_whole_run_in_a_score_is_the_default_of_one() -> None:
    mechanism = GaussianMechanism(NoiseSource(4), lambda event: None)
    options = NoisyGDOptions(init="zero", weight_decay=1e-9, output="last")
    run = Run(SCHEDULE, mechanism, lambda: None)
    weights = METHODS["noisy-gd"].fit(problem(width=700), options, run).weights
    assert weights.std() == pytest.approx(1.0, rel=0.06)


def test_a_step_goes_on_as_the_one_before() -> None:
    iterates = Iterates(np.zeros((2, 2)), 3, "last", momentum=0.5)
    after = np.ones((2, 2))
    np.testing.assert_array_equal(iterates.coasted(after), after)  # there is no step before the first
    iterates.move(after)
    np.testing.assert_array_equal(iterates.coasted(after), 1.5)


def test_a_restored_state_continues_alike() -> None:
    whole = Iterates(np.zeros((2, 2)), 3, "last", momentum=0.5)
    whole.move(np.ones((2, 2)))
    state = {**whole.state(), "history": np.array('[{"step": 1}]')}
    again = Iterates(np.zeros((2, 2)), 3, "last", momentum=0.5)
    again.restore({name: np.asarray(value) for name, value in state.items()})
    np.testing.assert_array_equal(again.coasted(whole.weights), whole.coasted(whole.weights))


def test_few_steps_with_momentum_learn_what_many_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    g = np.random.default_rng(2)
    y = g.integers(CLASSES, size=16 * ENOUGH_ROWS)
    x = g.normal(size=(len(y), 20)) * np.geomspace(30, 0.1, 20)
    x[:, -CLASSES:] += np.eye(CLASSES)[y]  # classes differ where rows spread little
    x = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
    data = Problem(20, CLASSES, private=ArrayRows(x, y), centred=True)

    def accuracy(n_steps: int) -> float:
        mechanism = GaussianMechanism(NoiseSource(1), lambda event: None)
        run = Run(Schedule(n_steps, n_steps**0.5 / 3.0, 3.0), mechanism, lambda: None)
        weights = METHODS["noisy-gd"].fit(data, NoisyGDOptions(), run).weights
        return float(np.mean((x @ weights).argmax(axis=1) == y))

    assert accuracy(40) > 0.98
    monkeypatch.setattr(_descent, "ENOUGH_ROWS", len(y))
    assert accuracy(40) < 0.6  # without momentum
    assert accuracy(CENTRED_STEPS) > 0.98
