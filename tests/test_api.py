"""The functions of `linprobe` refuse what the commands refuse; examples of functions and estimators run."""

from __future__ import annotations

import doctest
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

import linprobe
from linprobe.errors import ArgumentError, LinprobeError
from tests.conftest import mostly_nightly

NOT_CALLED = {"PrivacyWarning", "__version__"}
EXAMPLES = [
    test
    for name in linprobe.__all__
    if name not in NOT_CALLED
    for test in doctest.DocTestFinder().find(getattr(linprobe, name), name, module=False)
    if test.examples
]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def by_day(example: doctest.DocTest) -> bool:
    """Functions, and estimators of methods that need different rows; the examples of the others are alike."""
    name = example.name.rpartition(".")[2]
    return name.islower() or name in {"NoisyGD", "AdaMix", "DPSGD", "DPNewton", "ZeroShot"}


@pytest.mark.parametrize("example", mostly_nightly(EXAMPLES, by_day), ids=lambda test: test.name.rpartition(".")[2])
def test_an_example_runs_as_it_says(example: doctest.DocTest) -> None:
    example.globs |= {"linprobe": linprobe, "np": np, "load_digits": load_digits}
    assert doctest.DocTestRunner().run(example).failed == 0


def test_every_function_and_estimator_has_an_example() -> None:
    assert {test.name.rpartition(".")[2] for test in EXAMPLES} == set(linprobe.__all__) - NOT_CALLED


def test_an_option_of_the_method_and_one_of_the_run() -> None:
    planned = linprobe.plan(method="noisy-gd", epsilon=1, clip_norm=0.25, steps=7)
    assert planned["plans"][0]["steps"] == 7


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: linprobe.plan(method="noisy-gd", epsilon=1, clip_norms=2), "clip-norms"),
        (lambda: linprobe.budget(caps=2), "caps"),
        (lambda: linprobe.compare(methods=["noisy-gd"], epsilons=[1], out="c", seed=2), "seed"),
        (lambda: linprobe.train(method="noisy-gd"), "--eps"),
        (lambda: linprobe.tune(method="noisy-gd", epsilon=1), "nothing to choose"),
        (lambda: linprobe.tune(epsilon=1, shrink=[0, 1], unlabelled=Path("u.h5")), "no rows without labels"),
    ],
)
def test_what_is_not_allowed_is_refused(call, text: str) -> None:
    with pytest.raises(LinprobeError, match=text):
        call()
    assert issubclass(ArgumentError, LinprobeError)
    assert list(Path().iterdir()) == []


def test_a_constructor_is_named_in_the_public_module() -> None:  # or the reference of the site cannot be built
    made = [getattr(linprobe, name).__init__ for name in linprobe.__all__ if hasattr(getattr(linprobe, name), "fit")]
    assert len(made) > 10
    assert all(init.__module__ == "linprobe" for init in made if init.__qualname__ != "LinearProbe.__init__")
