"""Shrinking an update: every method with initial weights returns them, and a factor moves the weights along a line."""

import numpy as np
import pytest

from linprobe.errors import UsageError
from linprobe.methods import METHODS, Method
from linprobe.methods._base import Fitted
from linprobe.options.declaration import declared
from tests.methods.test_contract import C, D, SpyMechanism, fit, problem

STARTING = [method for method in METHODS.values() if method.spends and "init" in declared(method.options)]


@pytest.mark.parametrize("method", STARTING, ids=lambda method: method.name)
def test_factor_moves_the_weights_from_the_first_to_the_last(method: Method) -> None:
    fitted: Fitted = fit(method, {}, problem(), SpyMechanism())
    assert fitted.shrunk(1) is fitted
    first, middle = fitted.shrunk(0), fitted.shrunk(0.5)
    assert first.weights.shape == (D, C)
    assert np.any(first.weights)
    assert np.allclose(middle.weights, (first.weights + fitted.weights) / 2)
    assert np.allclose(middle.bias, (np.asarray(first.bias) + fitted.bias) / 2)
    x = np.random.default_rng(0).standard_normal((5, D))
    scores = [x @ one.weights + one.bias for one in (first, middle, fitted)]
    assert np.allclose(scores[1], (scores[0] + scores[2]) / 2)


def test_votes_shrink_one_by_one() -> None:
    fitted = Fitted(np.arange(12.0).reshape(2, 2, 3), start=np.ones((2, 3)))
    assert np.array_equal(fitted.shrunk(0.5).weights, (fitted.weights + 1) / 2)


def test_without_first_weights_only_factor_one_is_allowed() -> None:
    with pytest.raises(UsageError, match="initial weights"):
        Fitted(np.ones((2, 3))).shrunk(0.5)
