"""Settings from named arguments: commands and estimators fill in the same defaults and refuse the same names."""

from __future__ import annotations

from dataclasses import replace

import pytest

from linprobe.accounting.events import GaussianEvent
from linprobe.api.estimators import ESTIMATORS
from linprobe.errors import ArgumentError, PrivacyError, UsageError
from linprobe.mechanisms.noise import SECURE
from linprobe.methods import METHODS
from linprobe.options.requests import TrainRequest
from linprobe.runs.guarantee import privacy_statement
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


def test_no_statement_is_above_its_target() -> None:
    method = METHODS["noisy-gd"]
    budget = ESTIMATORS["noisy-gd"](epsilon=1.0, n_steps=2, condition="none").settings().budget(1000)
    assert budget is not None
    events = [GaussianEvent("gradient", step, 1.0, budget.noise_multiplier, 1.0) for step in range(2)]
    facts = {"n_private": 1000, "n_public": 0, "noise_kind": SECURE, "insecure": False, "software": {}}
    epsilon = privacy_statement(method, budget, events, **facts).epsilon
    assert epsilon is not None
    assert 0.99 < epsilon <= 1
    with pytest.raises(PrivacyError, match=r"worth at most 0\.9"):
        privacy_statement(method, replace(budget, epsilon_target=0.9), events, **facts)


def test_a_preset_gives_no_dimension_to_a_subspace_that_is_turned_off() -> None:
    request = TrainRequest(epsilon=1.0, preset="paper", options={"subspace": "none"})
    assert make_settings(request, METHODS["adamix"]).options.subspace_dim is None
    with pytest.raises(UsageError, match="subspace-dim 3 does nothing with subspace none"):
        ESTIMATORS["adamix"](epsilon=1.0, subspace_dim=3).settings()


@pytest.mark.parametrize(("preset", "rate", "dimension"), [("paper", 2.5e-3, 2000), ("paper-clip", 5e-7, 500)])
def test_presets_are_the_papers_settings_for_two_backbones_and_yield_to_options(preset, rate, dimension) -> None:
    settings = make_settings(TrainRequest(epsilon=1.0, preset=preset), METHODS["adamix"])
    options = settings.options
    assert (options.learning_rate, options.subspace_dim, options.subspace) == (rate, dimension, "gradient")
    assert (settings.noise_multiplier, settings.centre) == (20.0, "none")
    changed = TrainRequest(epsilon=1.0, preset=preset, options={"learning_rate": 1e-7, "subspace_dim": 3})
    assert make_settings(changed, METHODS["adamix"]).options.learning_rate == 1e-7
    assert make_settings(changed, METHODS["adamix"]).options.subspace_dim == 3
    assert make_settings(TrainRequest(epsilon=1.0), METHODS["adamix"]).options.learning_rate is None
