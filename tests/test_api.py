"""The functions of `linprobe` refuse what the commands refuse; examples of functions and estimators run."""

from __future__ import annotations

import doctest
import json
import os
import tomllib
import warnings
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

import linprobe
from linprobe.accounting.book import read_book
from linprobe.cli import run as run_command
from linprobe.errors import ArgumentError, DivergedError, LinprobeError, PrivacyWarning, Silent
from linprobe.runs.run_folder import RunFolder
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
        (
            lambda: linprobe.plan(method="noisy-gd", epsilon=1, clip_norms=2),
            "no option clip_norms; did you mean clip_norm",
        ),
        (lambda: linprobe.budget(caps=2), "caps"),
        (lambda: linprobe.compare(methods=["noisy-gd"], epsilons=[1], out="c", seed=2), "seed"),
        (lambda: linprobe.train(method="noisy-gd"), "got none; give epsilon, for example epsilon=3"),
        (lambda: linprobe.train(method="adamix", eps=3), "linprobe.train has no option eps; did you mean epsilon?"),
        (lambda: linprobe.tune(method="noisy-gd", epsilon=1), "nothing to choose"),
        (lambda: linprobe.tune(epsilon=1, shrink=[0, 1], unlabelled="u.h5"), "no rows without labels"),
        (lambda: linprobe.compare(methods=["noisy-gd"], epsilons=[1], out="c", dry_run=True), "no argument dry_run"),
        (lambda: linprobe.train(method="noisy-gd", epsilon="1"), "epsilon is '1', which is text; allowed: a number"),
        (lambda: linprobe.train(method="noisy-gd", epsilon=1, steps=np.nan), "steps is nan, .*: a whole number"),
        (lambda: linprobe.train(epsilon=1, public_shots=True), "public_shots is True, .*: a whole number"),
        (
            lambda: linprobe.train(method="adamix", epsilon=1, public_shots=0),
            "give public FILE or public_shots K$",
        ),
        (lambda: linprobe.train(epsilon=1, resume="no"), "resume is 'no', .*: True or False"),
        (lambda: linprobe.train(epsilon=1, book=5), "book is 5, of type int; allowed: a path"),
        (lambda: linprobe.train(epsilon=1, device=0), "device is 0, of type int; allowed: text"),
        (lambda: linprobe.train(epsilon=1, class_weight=3), "class weight is 3; allowed: a dictionary"),
        (lambda: linprobe.train(epsilon=1, class_weight=np.ones(2)), r"class weight is \[1.0, 1.0\]; allowed: a dict"),
        (
            lambda: linprobe.train(method="dp-sgd", epsilon=1, accountant=["pld"]),
            "accountant is .*; allowed: auto, gdp",
        ),
        (
            lambda: linprobe.compare(methods=["noisy-gd"], epsilons=[1], out="c", public_shots=2),
            "public_shots is 2; .*list",
        ),
        (lambda: linprobe.compare(methods=5, epsilons=[1], out="c"), "methods is 5; allowed: a list"),
        (lambda: linprobe.compare(methods=[5], epsilons=[1], out="c"), "method is '5'; allowed: noisy-gd"),
        (lambda: linprobe.plan(5, epsilon=1), "features is 5, of type int; allowed: a path"),
        (lambda: linprobe.compare(methods="adamix", epsilons=[1], out="c"), "methods is 'adamix'; allowed: a list"),
        (lambda: linprobe.account(noise_multiplier="3", n_steps=2), "noise_multiplier is '3', which is text"),
        (lambda: linprobe.tune(epsilon=1, shrink="0.5"), "shrink is '0.5'; allowed: a list"),
        (lambda: linprobe.tune(epsilon=1, grid={"clip_norm": 0.5}), "grid has clip_norm=0.5; allowed: a list"),
        (lambda: linprobe.tune(epsilon=1, grid={"epsilon": [1, 2]}), "grid has epsilon, which is of the whole choice"),
        (lambda: linprobe.tune(epsilon=1, grid=["clip_norm"]), "grid is of type list; allowed: a dictionary"),
        (lambda: linprobe.train(epsilon=1, n_steps=2), "linprobe.train has no option n_steps; did you mean steps?"),
        (lambda: linprobe.train(epsilon=1, noise_multiplier=2), "no option noise_multiplier; did you mean sigma?"),
        (
            lambda: linprobe.train(np.zeros((3, 4)), epsilon=1),
            r"features is an array of shape \(3, 4\); allowed: a path",
        ),
        (lambda: linprobe.verify(None), "run is None; allowed: a path"),
        (lambda: linprobe.verify("run", max_eps=3), "no argument max_eps; did you mean max_epsilon?"),
        (lambda: linprobe.compare(methods=["ngd"], epsilon=1, out="c"), "no argument epsilon; did you mean epsilons?"),
        (lambda: linprobe.compare(methods=["ngd"], out="c"), "ngd needs a privacy budget and got none"),
        (lambda: linprobe.account(sigma=3, steps=2), "no argument sigma; did you mean noise_multiplier?"),
        (lambda: linprobe.account(noise_multiplier=3), "n_steps is None; allowed: a value"),
        (lambda: linprobe.train(dry_run=True), "linprobe.plan makes a dry run"),
        (lambda: linprobe.train(as_json=True), "as_json is a flag .* results are dictionaries; omit it$"),
        (lambda: linprobe.plan(as_json=True), "as_json is a flag .* results are dictionaries; omit it$"),
        (lambda: linprobe.plan(epsilon=1, class_weight={0: 2, "0": 3}), "^class weight names '0' twice"),
        (lambda: linprobe.plan(epsilon=1, class_weight={10: 2}), "^class weight names '10'; allowed: 0, 1"),
        (lambda: linprobe.tune(epsilon=1, grid={"score_noise": [1, 1.0]}), "^grid has score_noise=1.0 twice"),
        (
            lambda: linprobe.tune(epsilon=1, grid={"score-noise": [1], "score_noise": [2]}),
            "^grid has score-noise, score_noise; allowed: each option once",
        ),
        (lambda: linprobe.evaluate("a--run"), "^a--run does not exist"),
        (lambda: linprobe.budget(raise_cap=True), "^raise_cap was given without cap; .* for example cap=8$"),
        (lambda: linprobe.train(method="noisy-gd", epsilon=1, clip_norm=0), "^clip_norm is 0.0; allowed"),
        (lambda: linprobe.train(epsilon=np.nan, method="noisy-gd"), "^epsilon is nan; allowed"),
        (lambda: linprobe.verify("run", max_epsilon=np.nan), "^max_epsilon is nan; allowed"),
        (lambda: linprobe.load_run("a\0b"), r"^folder is 'a\\x00b'; allowed: a path without"),
        (lambda: linprobe.train(epsilon=1, out="a\0b"), r"^out is 'a\\x00b'; allowed: a path without"),
        (lambda: linprobe.train(epsilon=1, insecure_seed="yes", noise_seed=1), "^insecure_seed is 'yes', .*: True"),
        (lambda: linprobe.plan(epsilon=1, no_option=2), "see linprobe train --help-all$"),
        (lambda: linprobe.train(epsilon=1, resume=True), "^resume was given without out;"),
    ],
)
def test_what_is_not_allowed_is_refused(call, text: str) -> None:
    with pytest.raises(LinprobeError, match=text):
        call()
    assert issubclass(ArgumentError, LinprobeError)
    assert list(Path().iterdir()) == []


def test_numbers_of_numpy_and_text_for_paths() -> None:
    Path("runs").mkdir()
    trained = linprobe.train(
        method="noisy-gd", epsilon=np.float32(0.5), steps=np.int64(2), out="runs/one", book="book.jsonl"
    )
    assert trained["epsilon"] <= 0.5
    again = linprobe.train(
        method="noisy-gd", epsilon=1, steps=2.0, out="two", book="book.jsonl", init=Path("runs/one"),
        class_weight={3: np.float32(2), "4": np.int64(1)}, radius=None, split_seed=None,
    )  # fmt: skip
    config = tomllib.loads(Path("two/config.toml").read_text(encoding="utf-8"))
    assert (again["steps"], config["init"], config["class-weight"]) == (2, "runs/one", "3=2.0,4=1")
    book = linprobe.budget(book="book.jsonl", delta=np.float32(1e-5))
    assert book["runs"] == 2
    compared = linprobe.compare(
        methods=["noisy-gd"], epsilons=np.array([0.5]), out="compared", seeds=np.int64(1), jobs=1, book="book.jsonl"
    )
    assert compared["summary"][0]["epsilon"] == 0.5
    assert linprobe.budget(book="book.jsonl")["runs"] == 3


def test_what_runs_cost_together_and_a_seed_are_warned_of() -> None:
    asked = {"method": "noisy-gd", "epsilon": 1, "steps": 2}
    linprobe.train(**asked, out="one")
    with pytest.warns(PrivacyWarning, match="2 runs on these rows together cost epsilon 1.46"):
        linprobe.train(**asked, out="two")
    with pytest.warns(PrivacyWarning, match="NOT PRIVATE"):
        linprobe.train(**asked, out="seeded", noise_seed=1, insecure_seed=np.bool_(True))
    with warnings.catch_warnings():  # notes are shown instead
        warnings.simplefilter("error")
        linprobe.train(**asked, out="three", progress=Silent())
    with pytest.warns(PrivacyWarning, match="4 runs on these rows cost epsilon 2") as caught:
        linprobe.compare(methods=["noisy-gd"], epsilons=[1], seeds=1, baselines=False, out="compared")
    assert {one.filename for one in caught} == {__file__}  # not a line of linprobe


def test_a_warning_that_is_an_error_spends_nothing() -> None:
    asked = {"method": "noisy-gd", "epsilon": 1, "steps": 2, "public_shots": 0, "book": "book.jsonl"}
    grid = {"score_noise": [0.3, 1]}
    linprobe.train(**asked, out="one")
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivacyWarning)
        for spend in (lambda: linprobe.train(**asked, out="two"), lambda: linprobe.tune(**asked, grid=grid, out="two")):
            with pytest.raises(PrivacyWarning, match="2 runs on these rows together cost"):
                spend()
    assert linprobe.budget(book="book.jsonl")["runs"] == 1
    assert not Path("two").exists()


def test_a_warning_that_is_an_error_costs_no_evaluation() -> None:
    x, y = load_digits(return_X_y=True)
    np.savez("rows.npz", X_train=x[:900], y_train=y[:900], X_test=x[900:], y_test=y[900:])
    classes = ",".join(map(str, range(10)))
    assert run_command(["import", "rows.npz", "--private-test", "--classes", classes, "--out", "rows.h5"]) == 0
    linprobe.train("rows.h5", method="noisy-gd", epsilon=1, steps=2, out="one")
    linprobe.evaluate("one", epsilon=1, book="tests.jsonl")
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivacyWarning)
        with pytest.raises(PrivacyWarning, match="2 runs on these rows together cost"):
            linprobe.evaluate("one", epsilon=1, book="tests.jsonl")
    assert linprobe.budget(book="tests.jsonl")["runs"] == 1


def test_a_warning_that_is_an_error_comes_after_the_tables_of_a_comparison() -> None:
    asked = {"methods": ["noisy-gd:steps=2"], "epsilons": [1], "seeds": 1, "baselines": False, "jobs": 1, "out": "cmp"}
    linprobe.train(method="noisy-gd", epsilon=1, steps=2, out="one")
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivacyWarning)
        with pytest.raises(PrivacyWarning, match="2 runs on these rows cost"):
            linprobe.compare(**asked)
    assert Path("cmp/summary.csv").is_file()


def test_a_comparison_makes_a_run_once_however_often_its_numbers_are_given() -> None:
    asked = {"methods": ["noisy-gd:steps=2"], "seeds": 1, "baselines": False, "jobs": 1, "book": "book.jsonl"}
    compared = linprobe.compare(**asked, epsilons=[1, np.float64(1)], public_shots=[2, 2], out="cmp")
    assert (compared["composed"]["private_runs"], len(compared["runs"])) == (1, 1)
    assert linprobe.budget(book="book.jsonl")["runs"] == 1


class ChangesFolder(Silent):
    """Changes to another folder as soon as training begins, and may stop it there."""

    def __init__(self, *, stops: bool = False) -> None:
        self.stops = stops

    def start(self, total: int, what: str = "training") -> None:
        if what == "training" and total:
            Path("elsewhere").mkdir()
            os.chdir("elsewhere")
            if self.stops:
                raise KeyboardInterrupt


def test_a_change_of_folder_loses_no_run(tmp_path: Path) -> None:
    asked = {"method": "adamix", "epsilon": 1, "steps": 2, "book": "book.jsonl", "out": "one"}
    assert linprobe.train(**asked, progress=ChangesFolder())["run"] == "one"
    assert linprobe.tune(**asked, shrink=[0.5, 1], progress=ChangesFolder())["run"] == "one"
    with pytest.raises(KeyboardInterrupt):
        linprobe.train(**asked, progress=ChangesFolder(stops=True))
    here = tmp_path
    for left in (["book.jsonl", "elsewhere", "one"],) * 2 + (["book.jsonl", "elsewhere"], []):
        assert sorted(path.name for path in here.iterdir() if path.name != "state") == left
        if left:
            entries = read_book(here / "book.jsonl").entries.values()
            assert [(one.finished, one.ended_early) for one in entries] == [("one" in left, "one" not in left)]
        here /= "elsewhere"


class LooksAtRecorded(Silent):
    """Notes how many runs of `cmp` are recorded whenever one is done, and changes to another folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.recorded = folder, list[int]()

    def step(self, *_: object) -> None:
        self.recorded.append(len(json.loads((self.folder / "cmp/comparison.json").read_text())["recorded"]))
        os.chdir(self.folder / "elsewhere")


def test_a_run_of_a_comparison_is_recorded_before_the_next_and_in_its_folder(tmp_path: Path) -> None:
    Path("elsewhere").mkdir()
    asked = {"methods": ["noisy-gd:steps=2", "only-public"], "epsilons": [1, 2], "seeds": 1, "jobs": 1}
    looks = LooksAtRecorded(tmp_path)
    compared = linprobe.compare(**asked, baselines=False, book="book.jsonl", out="cmp", progress=looks)
    assert looks.recorded == [1, 2, 2]
    assert (compared["out"], compared["composed"]["private_runs"]) == ("cmp", 2)
    assert (tmp_path / "cmp/table.md").is_file()
    assert not list(Path.cwd().iterdir())


def test_what_a_run_that_failed_has_spent_is_warned_of() -> None:
    asked = {"method": "noisy-gd", "epsilon": 1, "steps": 9, "learning_rate": 1e9}
    with (
        pytest.warns(PrivacyWarning, match="ended early; what it had released costs epsilon"),
        pytest.raises(DivergedError),
    ):
        linprobe.train(**asked, out="one")


def test_a_constructor_is_named_in_the_public_module() -> None:  # or the reference of the site cannot be built
    made = [getattr(linprobe, name).__init__ for name in linprobe.__all__ if hasattr(getattr(linprobe, name), "fit")]
    assert len(made) > 10
    assert all(init.__module__ == "linprobe" for init in made if init.__qualname__ != "LinearProbe.__init__")


def test_a_grid_takes_the_spelling_of_a_flag_too() -> None:
    options = {"method": "noisy-gd", "epsilon": 1, "steps": 2, "out": "tuned"}
    tuned = linprobe.tune(grid={"score-noise": [0.3, 1]}, **options)
    assert [one["score_noise"] for one in tuned["tuning"]["settings"]] == [0.3, 1.0]


def test_the_config_file_states_weights_of_classes_with_commas() -> None:
    names, y = np.array(["a,b", "c=d"]), np.arange(40) % 2
    np.savez("rows.npz", X_train=np.eye(2, 4)[y] + np.arange(40)[:, None] / 99, y_train=names[y], class_names=names)
    assert run_command(["import", "rows.npz", "--out", "rows.h5"]) == 0
    options = {"method": "noisy-gd", "epsilon": 1, "delta": 1e-3, "steps": 2, "out": "one", "public_shots": 0}
    linprobe.train("rows.h5", class_weight={"a,b": 1, "c=d": 2}, **options)
    assert run_command(["train", "--config", "one/config.toml", "--out", "two"]) == 0
    assert RunFolder(Path("two")).manifest.class_weights == {"a,b": 0.5, "c=d": 1.0}
