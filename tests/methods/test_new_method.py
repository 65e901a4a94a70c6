"""A method with a new option, declared outside linprobe: commands, estimators and help texts include it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import contextlib, importlib.util, inspect, io, json, pickle, sys
import tests.methods.toy
import linprobe
from linprobe import cli
from sklearn.base import clone

def ran(*words):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        return cli.run(list(words)), out.getvalue(), err.getvalue()

def generator(name):
    spec = importlib.util.spec_from_file_location(name, f"{sys.argv[1]}/docs/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

train = ("train", "--method", "toy", "--eps", "3", "--steps", "3")
tables, probe = generator("generate_tables"), linprobe.Toy(epsilon=3, toy_option="halved")
json.dump({
    "trained": ran(*train, "--toy-option", "halved", "--out", "run"),
    "refused": ran(*train, "--toy-option", "third"),
    "misspelled": ran(*train, "--toy-opton", "halved"),
    "other": ran("train", "--method", "ngd", "--eps", "3", "--toy-option", "halved"),
    "listed": ran("methods"),
    "compared": ran("compare", "--methods", "toy:toy-option=halved", "--eps", "3", "--seeds", "1", "--jobs", "1",
                    "--no-baselines", "--out", "compared"),
    "cli reference": generator("generate_cli").render(),
    "Python reference": tables.classes() + tables.arguments(),
    "methods": tables.methods(),
    "signature": str(inspect.signature(linprobe.Toy)),
    "documentation": linprobe.Toy.__doc__,
    "cloned": clone(pickle.loads(pickle.dumps(probe))).get_params()["toy_option"],
}, sys.stdout)
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The output of a process that has imported the toy method."""
    folder = tmp_path_factory.mktemp("toy")
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}){PROGRAM}", ROOT],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    manifest = json.loads((folder / "run" / "manifest.json").read_text(encoding="utf-8"))
    return {**json.loads(done.stdout), "manifest": manifest}


def test_command_line_trains_it_with_its_option(found: dict[str, Any]) -> None:
    assert found["trained"][:2] == [0, "run\n"]
    assert found["manifest"]["method"] == "toy"
    assert found["manifest"]["options"]["toy_option"] == "halved"
    assert found["compared"][0] == 0, found["compared"]


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
    assert '| `toy_option` | "whole" | Length of a step | whole, halved | `Toy` |' in found["Python reference"]
    assert "| `Toy` | [toy](methods/toy.md) | - |" in found["Python reference"]


def test_its_estimator_is_one_like_the_others(found: dict[str, Any]) -> None:
    assert "toy_option='whole'" in found["signature"]
    assert "epsilon" in found["signature"]
    assert "toy_option: Length of a step: whole, halved. Default: 'whole'." in found["documentation"]
    assert found["documentation"].startswith("Toy: a method with one new option")
    assert found["cloned"] == "halved"


def test_contract_holds_for_it_and_each_word_of_its_option() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n0", "-vv", "-p", "tests.methods.toy", "-k", "toy", "test_contract.py"],
        cwd=Path(__file__).parent,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout
    for variant in ("[toy]", "[toy-toy_option=halved]"):
        assert f"test_neighbours_differ_by_at_most_sensitivity_at_every_step{variant} PASSED" in done.stdout
