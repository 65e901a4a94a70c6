"""A method with a new option, declared outside linprobe: commands, estimators and help texts include it."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import io
import json
import os
import pickle
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sklearn.base import clone

from tests.processes import ended, start_copy

DOCS = Path(__file__).parents[2] / "docs"


def generator(name: str) -> ModuleType:
    """A script of the documentation."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ran(*words: str) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of a command."""
    from linprobe import cli

    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        return cli.run(list(words)), out.getvalue(), err.getvalue()


def in_a_copy_with_toy(folder: Path, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result of `work` in a copy of this process that imports the toy method before the rest of linprobe."""

    def write() -> int:
        for name in list(sys.modules):
            if name.split(".")[0] == "linprobe" or name.startswith("tests.methods."):
                del sys.modules[name]
        importlib.import_module("tests.methods.toy")
        os.chdir(folder)
        Path("found.json").write_text(json.dumps(work()))
        return 0

    assert ended(start_copy(write)) == 0
    return dict(json.loads((folder / "found.json").read_text()))


def use_toy() -> dict[str, Any]:
    """The toy method in every command and reference that lists methods."""
    import linprobe

    train = ("train", "--method", "toy", "--eps", "3", "--steps", "3")
    tables, probe = generator("generate_tables"), linprobe.Toy(epsilon=3, toy_option="halved")
    compared = ("--eps", "3", "--seeds", "1", "--jobs", "1", "--no-baselines", "--out", "compared")
    return {
        "trained": ran(*train, "--toy-option", "halved", "--out", "run"),
        "verified": ran("verify", "run"),
        "manifest": json.loads(Path("run/manifest.json").read_text(encoding="utf-8")),
        "refused": ran(*train, "--toy-option", "third"),
        "misspelled": ran(*train, "--toy-opton", "halved"),
        "other": ran("train", "--method", "ngd", "--eps", "3", "--toy-option", "halved"),
        "listed": ran("methods"),
        "compared": ran("compare", "--methods", "toy:toy-option=halved", *compared),
        "cli reference": generator("generate_cli").render(),
        "Python reference": tables.classes() + tables.arguments(),
        "methods": tables.methods(),
        "signature": str(inspect.signature(linprobe.Toy)),
        "documentation": linprobe.Toy.__doc__,
        "cloned": clone(pickle.loads(pickle.dumps(probe))).get_params()["toy_option"],
        "registered later": register_another(),
    }


def register_another() -> str:
    """The estimator of a copy of the toy method that is registered once there are estimators."""
    import linprobe
    from linprobe.methods import METHODS, register
    from linprobe.options.declaration import Options

    toy = METHODS["toy"].options

    class LateOptions(toy, Options, method="late", takes=toy.takes):  # type: ignore[misc,valid-type]
        """Options of `late`."""

    assert not hasattr(linprobe, "Late")
    register(replace(METHODS["toy"], options=LateOptions))
    return str(pickle.loads(pickle.dumps(linprobe.Late(epsilon=3))))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a process that has imported the toy method finds."""
    folder = tmp_path_factory.mktemp("toy")
    return {**in_a_copy_with_toy(folder, use_toy), "run": folder / "run"}


def test_command_line_trains_it_with_its_option(found: dict[str, Any]) -> None:
    assert found["trained"][:2] == [0, "run\n"]
    assert found["manifest"]["method"] == "toy"
    assert found["manifest"]["options"]["toy_option"] == "halved"
    assert found["compared"][0] == 0, found["compared"]


def test_a_run_is_verified_where_the_method_is_registered(found: dict[str, Any]) -> None:
    assert found["verified"][:2] == [0, "verified\n"], found["verified"]
    status, _, error = ran("verify", str(found["run"]))
    assert status == 4
    assert "method is 'toy', which is not registered here; import the module that registers it, or ask its" in error
    assert "trust" not in error


def test_command_line_checks_its_option(found: dict[str, Any]) -> None:
    assert found["refused"][0] == 2
    assert "toy-option is 'third'; allowed: whole, halved" in found["refused"][2]
    assert found["misspelled"][0] == 2
    assert "--toy-option" in found["misspelled"][2]
    assert "option toy-option does nothing for ngd; its options are" in found["other"][2]


def test_it_is_listed(found: dict[str, Any]) -> None:
    assert "toy            steps whole or halved" in found["listed"][1]
    assert "| [toy](toy.md) | all, every step | if given | if given | no | (epsilon, delta) |" in found["methods"]


def test_references_explain_its_option(found: dict[str, Any]) -> None:
    assert "| `--toy-option` | toy: length of a step: whole, halved. [default: whole] |  |" in found["cli reference"]
    assert '| `toy_option` | "whole" | Length of a step: whole, halved | `Toy` |' in found["Python reference"]
    assert "| `Toy` | [toy](methods/toy.md) | - |" in found["Python reference"]


def test_its_estimator_is_one_like_the_others(found: dict[str, Any]) -> None:
    assert "toy_option='whole'" in found["signature"]
    assert "epsilon" in found["signature"]
    assert "toy_option: Length of a step: whole, halved. Default: 'whole'." in found["documentation"]
    assert found["documentation"].startswith("Toy: a method with one new option")
    assert found["cloned"] == "halved"
    assert found["registered later"] == "Late(epsilon=3)"


def hold_toy_to_the_contract() -> dict[str, Any]:
    """Call every test of the contract on the toy method: with its defaults, and with each word of its option."""
    from linprobe.methods import METHODS
    from tests.methods import test_contract

    toy, held = METHODS["toy"], []
    for name, test in vars(test_contract).items():
        if name.startswith("test_") and [*inspect.signature(test).parameters] == ["method", "options"]:
            for options in ({}, *test_contract.words_of(toy)):
                test(toy, options)
                held.append([name, options])
    return {"held": held}


def test_contract_holds_for_it_and_each_word_of_its_option(tmp_path: Path) -> None:
    held = in_a_copy_with_toy(tmp_path, hold_toy_to_the_contract)["held"]
    assert len(held) >= 14
    for options in ({}, {"toy_option": "halved"}):
        assert ["test_neighbours_differ_by_at_most_sensitivity_at_every_step", options] in held
