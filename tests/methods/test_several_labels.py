"""Methods that train on rows with several labels: neighbours, and what they learn without noise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from linprobe.data.rows import ArrayRows
from linprobe.gradients.loss import minimise
from linprobe.methods import METHODS, Method, Problem
from tests.methods.test_contract import N, RepeatedSampler, SpyMechanism, fit, problem

SEVERAL = [method for method in METHODS.values() if method.several_labels]
RELEASING = [
    *((method, {}) for method in SEVERAL if method.spends),
    (METHODS["adamix"], {"subspace": "gradient"}),
    (METHODS["dp-sgd"], {"optimizer": "adam"}),
]
releasing = pytest.mark.parametrize(
    ("method", "options"), RELEASING, ids=[f"{m.name}{''.join(o.values())}" for m, o in RELEASING]
)


def labelled(drop: int | None = None) -> Problem:
    """The rows of the contract with two labels or none for each, 4 in all; `drop` empties a place."""

    def marked(rows: ArrayRows) -> ArrayRows:
        y = rows.y
        marks = np.stack([y == 0, y < 2, y != 3, y % 2 == 0], axis=1).astype(np.uint8)
        return ArrayRows(rows.x, marks)

    given = problem(drop=drop)
    return replace(given, private=marked(given.private), public=marked(given.public), several_labels=True)


@releasing
def test_neighbours_differ_by_at_most_sensitivity_at_every_step(method: Method, options: dict) -> None:
    spy = SpyMechanism()
    fit(method, options, labelled(), spy)
    for dropped in (0, 17, N - 1):
        other = SpyMechanism(replay=spy.values)
        if not method.samples:
            fit(method, options, labelled(drop=dropped), other)
        else:
            fit(method, options, labelled(), other, sampler=RepeatedSampler(out=dropped))
        moved = [
            np.linalg.norm(ours - theirs) / event.sensitivity
            for event, ours, theirs in zip(spy.events, spy.sums, other.sums, strict=True)
        ]
        assert max(moved) <= 1
        if not method.samples:  # what the record is charged covers what it moved
            assert spy.contributed.squared_mu[dropped] >= sum((share / 5) ** 2 for share in moved) * (1 - 1e-9)


def test_without_noise_a_run_comes_near_the_least_loss() -> None:
    data, options = labelled(), {"clip_norm": 100, "learning_rate": 0.05, "weight_decay": 1.0, "output": "last"}
    zeros = np.zeros((data.n_features, data.n_classes))
    least = minimise(data.private_rows, zeros, weight_decay=1.0, reference=zeros, loss="sigmoid")
    found = fit(METHODS["noisy-gd"], {**options, "init": "zero"}, data, SpyMechanism(), sigma=0.0).weights
    assert 0 < np.linalg.norm(found - least) < 0.9 * np.linalg.norm(least)
    baseline = fit(METHODS["only-public"], {}, data, SpyMechanism()).weights
    scores = data.private_rows.x @ baseline  # type: ignore[attr-defined]
    assert ((scores > 0) == data.private_rows.y).mean() > 0.85  # type: ignore[attr-defined]


def test_the_rank_of_a_gradient_is_the_number_of_labels() -> None:
    assert labelled().gradient_rank == 4
    assert problem().gradient_rank == 3
