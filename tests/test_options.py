"""Declarations of options are complete and consistent; checks and hints derived from them."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pytest

from linprobe.api.estimators import ESTIMATORS
from linprobe.cli._command import train_flags
from linprobe.errors import ParameterError, UsageError
from linprobe.methods import METHODS
from linprobe.options import (
    METHOD_OPTIONS,
    TRAIN,
    AdaMixOptions,
    DopeSGDOptions,
    DPSGDFOptions,
    DPSGDOptions,
    NoisyGDOptions,
)
from linprobe.options.declaration import (
    Option,
    Options,
    arguments_of,
    declared,
    hint,
    make_options,
    methods_on_gpu,
    option,
    refuse_on_gpu,
)


def of(name: str) -> Option:
    return declared(NoisyGDOptions)[name]


@pytest.mark.parametrize("method", METHOD_OPTIONS)
def test_every_default_is_allowed_and_every_option_explained(method: str) -> None:
    for one in arguments_of(METHOD_OPTIONS[method]).values():
        if one.name != "epsilon":
            one.check(one.default)
        assert one.sentence, one.name
        assert one.sentence.endswith("."), one.name


def test_every_declared_method_is_there_and_no_other() -> None:
    assert list(METHODS) == list(METHOD_OPTIONS) == list(ESTIMATORS)


def test_no_two_flags_have_one_spelling() -> None:
    spellings = [spelling for flag in train_flags() for spelling in flag.option.spellings if not flag.option.argument]
    assert len(set(spellings)) == len(spellings)
    assert {one.parameter for group in TRAIN for one in declared(group).values()} <= {
        flag.option.parameter for flag in train_flags()
    }


def test_a_changed_default_keeps_everything_else() -> None:
    ours, theirs = declared(DPSGDFOptions)["clip_norm"], declared(DPSGDOptions)["clip_norm"]
    assert (ours.default, theirs.default) == (0.1, 0.5)
    assert ours.allowed == theirs.allowed
    assert DPSGDFOptions().clip_norm == 0.1


def test_a_field_without_a_declaration_is_refused() -> None:
    @dataclass(frozen=True)
    class Bare:
        size: int = 3

    with pytest.raises(TypeError, match=r"Bare\.size has no declaration"):
        declared(Bare)


@pytest.mark.parametrize("value", [0, -1.0, 101, math.nan, math.inf])
def test_a_number_outside_its_range_is_refused(value: Any) -> None:
    with pytest.raises(ParameterError, match=r"clip-norm is .*; allowed: above 1e-09, at most 100"):
        of("clip_norm").check(value)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("clip_norm", "0.5", "'0.5', which is text; allowed: a number"),
        ("clip_norm", None, "None, of type NoneType; allowed: a number"),
        ("clip_norm", True, "True, of type bool; allowed: a number"),
        ("clip_norm", np.array([0.5]), r"an array of shape \(1,\); allowed: a number"),
        ("init", 5, "5, of type int; allowed: auto, zero, public, text, or a run folder"),
        ("init", None, "None, of type NoneType; allowed: auto, zero, public, text, or a run folder"),
        ("output", np.array([1, 2]), r"an array of shape \(2,\); allowed: last, average, weighted, ema, vote"),
        ("clip_norm", 10**400, r"beyond 1e308; allowed: above 1e-09, at most 100"),
        ("ensemble", 2.5, "2.5, of type float; allowed: a whole number"),
    ],
)
def test_a_value_of_another_type_is_refused(name: str, value: Any, text: str) -> None:
    with pytest.raises(ParameterError, match=f"{of(name).flag} is {text}$"):
        of(name).check(value)


@pytest.mark.parametrize("value", [1e-8, 1, np.float32(0.5), np.int64(2), 100])
def test_any_number_in_the_range_is_allowed(value: Any) -> None:
    of("clip_norm").check(value)


def test_a_word_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(ParameterError, match=r"init is 'one'; allowed: auto, zero, public, text, or a run folder$"):
        of("init").check("one")
    of("radius").check(None)
    with pytest.raises(ParameterError, match="output is None, of type NoneType; allowed: last"):
        of("output").check(None)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("eps", "epsilon"),
        ("sigma", "noise_multiplier"),
        ("steps", "n_steps"),
        ("clipnorm", "clip_norm"),
        ("learning_rates", "learning_rate"),
        ("noise_seed", "insecure_seed"),
    ],
)
def test_misspelled_arguments_are_recognised(given: str, meant: str) -> None:
    assert hint(given, arguments_of(NoisyGDOptions)) == f"; did you mean {meant}?"
    with pytest.raises(TypeError, match=rf"NoisyGD has no argument {given}; .*did you mean {meant}\?") as caught:
        ESTIMATORS["noisy-gd"](**{"epsilon": 3, given: 1})
    assert isinstance(caught.value, UsageError)


def test_an_option_that_is_another_methods_is_no_misspelling() -> None:
    with pytest.raises(UsageError, match=r"clip-quantile does nothing for noisy-gd; its options are: [a-z, -]*$"):
        make_options(NoisyGDOptions, {"clip_quantile": 0.5})
    with pytest.raises(UsageError, match=r"clipnorm does nothing for noisy-gd; .*did you mean clip-norm\?"):
        make_options(NoisyGDOptions, {"clipnorm": 0.5})


def test_what_works_on_a_gpu_is_declared() -> None:
    whole = ["noisy-gd", "adamix", "ngd", "fully-private"]
    sums = ["ppgd", "dp-sgd", "mirror-descent", "dope-sgd", "prototypes"]
    assert sorted(methods_on_gpu()) == sorted(whole + sums)
    refuse_on_gpu(AdaMixOptions(), "cuda")
    with pytest.raises(UsageError, match="method dpsgd-f trains on device cpu, not 'cuda'; on a GPU: noisy-gd, adamix"):
        refuse_on_gpu(DPSGDFOptions(), "cuda")
    for changed in (AdaMixOptions(variant="theory"), DopeSGDOptions(extended=0.5)):
        with pytest.raises(UsageError, match=r"on device 'cuda'; allowed: (practical|0\.0)"):
            refuse_on_gpu(changed, "cuda")


def test_classes_without_a_method_are_not_registered() -> None:
    class Shared(Options):
        width: int | None = option(None, "Width.", least=1)

    assert Shared not in METHOD_OPTIONS.values()
    assert [one.name for one in fields(Shared)] == ["width"]
    assert declared(Shared)["width"].allowed == "1 or more"
