"""Damping of steps that overshoot."""

import numpy as np

from linprobe.methods._base import DampedIterates

G = np.ones((3, 2))


def factors(gradients: list[np.ndarray], noise: float) -> list[float]:
    iterates = DampedIterates(np.zeros((3, 2)), len(gradients), "last")
    return [iterates.damped(gradient, noise) for gradient in gradients]


def test_a_reversed_gradient_halves_the_step_and_agreement_restores_it() -> None:
    np.testing.assert_allclose(factors([G, -G, -G, -G, -G, -G, G], 0.1), [1, 0.5, 0.6, 0.72, 0.864, 1, 0.5])


def test_reversals_that_noise_explains_change_nothing() -> None:
    assert factors([G, -G, G], 1.0) == [1, 1, 1]


def test_noise_alone_hardly_ever_changes_the_step() -> None:
    g = np.random.default_rng(0)
    changed = 0
    for _ in range(40):
        changed += sum(factor < 1 for factor in factors(list(g.normal(size=(50, 3, 2))), 1.0))
    assert changed <= 20


def test_a_restored_state_continues_alike() -> None:
    whole = DampedIterates(np.zeros((3, 2)), 4, "last")
    for gradient in (G, -G):
        whole.damped(gradient, 0.1)
        whole.move(gradient)
    state = {name: np.array(value) if not isinstance(value, list) else value for name, value in whole.state().items()}
    state["history"] = np.array('[{"step": 1}, {"step": 2}]')
    again = DampedIterates(np.zeros((3, 2)), 4, "last")
    again.restore(state)
    assert again.damped(-G, 0.1) == whole.damped(-G, 0.1) == 0.6
