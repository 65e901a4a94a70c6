"""Settings from named arguments: commands and estimators fill in the same defaults and refuse the same names."""

from __future__ import annotations

import pytest

from linprobe.api.estimators import ESTIMATORS
from linprobe.errors import ArgumentError, UsageError
from linprobe.methods import METHODS
from linprobe.options.requests import TrainRequest
from linprobe.training.plan import Settings
from linprobe.training.train import make_settings


@pytest.mark.parametrize("name", METHODS)
def test_commands_and_estimators_fill_in_the_same_defaults(name: str) -> None:
    method = METHODS[name]
    given = {"epsilon": 2.0} if method.spends else {}
    ours, theirs = Settings.of_given(method, given), ESTIMATORS[name](**given).settings()
    assert ours == theirs
    assert list(ours.parameters) == list(theirs.parameters)  # the order in the manifest


def test_other_arguments_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"noisy-gd has no argument eps; .*epsilon"):
        Settings.of_given(METHODS["noisy-gd"], {"epsilon": 1.0, "eps": 3})
    with pytest.raises(ArgumentError, match="needs the argument epsilon"):
        Settings.of_given(METHODS["noisy-gd"], {})


def test_a_preset_gives_no_dimension_to_a_subspace_that_is_turned_off() -> None:
    request = TrainRequest(epsilon=1.0, preset="paper", options={"subspace": "none"})
    assert make_settings(request, METHODS["adamix"]).options.subspace_dim is None
    with pytest.raises(UsageError, match="subspace-dim 3 does nothing with subspace none"):
        ESTIMATORS["adamix"](epsilon=1.0, subspace_dim=3).settings()
