"""Shared fixtures: a small feature file, a command line that runs in this process, a trained run folder."""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import hashlib
import importlib
import importlib.metadata
import io
import itertools
import json
import math
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from _pytest.runner import runtestprotocol
from _pytest.tmpdir import tmppath_result_key
from hypothesis import settings
from jsonschema import Draft202012Validator

from linprobe.accounting import accountants, fits
from linprobe.accounting.ledger import Ledger
from linprobe.api.estimators import LinearProbe
from linprobe.atomic_files import write_whole
from linprobe.cli import _terminal, run
from linprobe.data.blocks import Source
from linprobe.data.dataset import Dataset
from linprobe.data.feature_reader import Description
from linprobe.data.feature_writer import FeatureWriter
from linprobe.gradients import backend as host
from linprobe.methods import METHODS
from linprobe.parallel import available_memory
from linprobe.parallel.threads import blas_held_to_one_thread
from linprobe.runs import guarantee
from linprobe.runs.manifest import Manifest
from linprobe.training import plan as plan_settings
from linprobe.training.execute import Runtime, Trained, execute
from tests.made_once import made_once

# the second run and each of some hundred processes would compile the package and its tests again
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
gc.disable()  # until all tests are collected: collecting makes nothing but what stays

# threads of BLAS and OpenMP that wait for work take no processor from the tests beside them, or in processes of tests
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")

# no test measures time, so a busy machine must not fail one
settings.register_profile("linprobe", deadline=None, max_examples=25)
settings.register_profile("nightly", deadline=None, max_examples=250)
settings.load_profile("linprobe")

# budget books of tests lie outside the user's folder; `own_books` gives each test its own
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="linprobe-state-")
# no test needs what it wrote to outlive a power cut, or versions that change while it runs
os.fsync = lambda descriptor: None
accountants.version = guarantee.version = functools.cache(importlib.metadata.version)


def remembered(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, called once for equal arguments."""
    found: dict[str, Any] = {}

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        key = repr((args, kwargs))
        if key not in found:
            found[key] = function(*args, **kwargs)
        return found[key]

    return called


def found_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` of numbers, called once for equal arguments by all processes of a run of the suite."""
    folder = made_once("figures", lambda folder: None)

    @functools.wraps(function)
    def called(*args: Any) -> Any:
        path = folder / hashlib.sha256(repr((function.__name__, args)).encode()).hexdigest()
        with contextlib.suppress(OSError):  # absent; or a test lets files fail
            return pickle.loads(path.read_bytes())
        found = function(*args)
        with contextlib.suppress(OSError):
            write_whole(path, pickle.dumps(found))
        return found

    return called


plan_settings.calibrate = remembered(plan_settings.calibrate)
for name in ("epsilon_of_kinds", "deltas_of_kinds", "_google_on_grid"):
    setattr(accountants, name, found_once(getattr(accountants, name)))
accountants.delta_of = functools.cache(accountants.delta_of)  # asked at the same thousand places by each selection
available_memory.available = functools.cache(available_memory.available)
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)

CLASS_NAMES = ("ant", "bee", "cat", "dog")
N_FEATURES = 10
SCHEMA = Path(__file__).parents[1] / "docs" / "manifest.schema.json"
SIZES = {"train": 400, "test": 120, "public": 12}


# files with fixtures or tests of over 2 seconds, the longest first
LONG = (
    "test_edited_manifest.py",  # makes runs that others wait for
    "test_real_photographs.py",
    "test_processes.py",
    "test_tutorial.py",
    "test_hospital_page.py",
    "test_feature_readme.py",
    "test_accuracy.py",
)
# after it, each opening of a file in the process takes longer
LAST = "test_exchanged_files.py"


def pytest_collection(session: pytest.Session) -> None:
    """The second of two workers imports from the end: of a new clone, each compiles half of the tests, not all."""
    folder, worker = Path(__file__).parent, getattr(session.config, "workerinput", {}).get("workerid")
    if worker != "gw1" or [Path(one).resolve() for one in session.config.args] != [folder]:
        return
    for path in sorted(folder.rglob("test_*.py"), reverse=True):
        with contextlib.suppress(Exception, pytest.skip.Exception):  # collection meets and reports it
            importlib.import_module(".".join(path.relative_to(folder.parent).with_suffix("").parts))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests come first: no worker is left with one at the end, and none makes their fixtures a second time.

    Then come those of networks, so that one worker imports what they need.
    """
    items.sort(key=lambda item: item.path.parent.name != "extraction")
    items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else len(LONG))
    items.sort(key=lambda item: item.path.name == LAST)


def pytest_collection_finish() -> None:
    """What was imported and collected stays: no later pass of the garbage collector looks at it."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)  # most objects of a test are gone without the collector
    gc.enable()


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Workers send no reports of setups and teardowns that passed, two of three, unless an option needs them."""
    option = item.config.option
    if not hasattr(item.config, "workerinput") or option.durations is not None or option.xmlpath:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Remove the folder of a test that passed; pytest removes those of all tests at the end, in one process."""
    yield
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    if folder is not None and item.stash[tmppath_result_key].get("call"):
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module", params=["numpy", "native"])
def sums_by(request: pytest.FixtureRequest) -> Iterator[None]:
    """Clipped sums by NumPy, then by the kernel where it has room for that number of classes."""
    if request.param == "native" and host.LIBRARY is None:
        pytest.skip("the kernel is not built")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "numpy":
            patch.setattr(host, "LIBRARY", None)
        yield


def mostly_nightly(cases: Iterable[Any], kept: Callable[[Any], Any]) -> list[Any]:
    """`cases` for `parametrize`, of which those that are not kept run only in the nightly job."""
    return [case if kept(case) else _nightly(case) for case in cases]


def _nightly(case: Any) -> Any:
    return pytest.param(*(case if type(case) is tuple else (case,)), marks=pytest.mark.nightly)


def one_of_each_kind(names: Iterable[str]) -> list[Any]:
    """Methods for `parametrize`; of methods whose declarations agree, the first runs by default.

    For what is declared, and done by code that all methods share.
    """
    names = list(names)
    return mostly_nightly(names, first_of_each_kind(names).__contains__)


def first_of_each_kind(names: Iterable[str]) -> set[str]:
    """The first of the methods whose declarations agree."""
    kinds: dict[Any, str] = {}
    for name in names:
        method = METHODS[name]
        declared = (method.spends, tuple(method.needs), method.one_step, method.joins_public)
        kinds.setdefault((*declared, not method.samples), name)
    return set(kinds.values())


class Outcome(NamedTuple):
    """The outcome of a command: exit status, stdout and stderr."""

    status: int
    stdout: str
    stderr: str


def gaussian_rows(group: str, n_rows: int, width: int = N_FEATURES, classes: int = 4) -> tuple[Any, Any]:
    """Rows (n_rows, width) around one direction per class, and labels; a function of the arguments only."""
    rng = np.random.default_rng([*group.encode(), n_rows, width])
    labels = np.arange(n_rows) % classes
    rows = 1.0 + 3.0 * np.eye(classes, width)[labels] + 0.5 * rng.standard_normal((n_rows, width))
    return rows.astype(np.float32), labels


def write_features(
    path: Path,
    *,
    groups: Sequence[str] = ("train", "test", "public"),
    text: bool = True,
    width: int = N_FEATURES,
    class_names: Sequence[str] = CLASS_NAMES,
    order: Sequence[int] | None = None,
) -> Path:
    """Write a feature file; `order` lists, for each row's class, the label it is stored under."""
    description = Description(class_names=tuple(class_names), backbone="test", source="drawn for a test")
    with FeatureWriter(path, description) as writer:
        for group in groups:
            rows, labels = gaussian_rows(group, SIZES[group], width)
            stored = labels if order is None else np.asarray(order)[labels]
            ids = [f"{group}/{row:04d}" for row in range(len(rows))]
            writer.write_group(group, len(rows), width, [rows], stored, ids)
        if text:
            writer.write_text_weights(np.eye(width, len(class_names)) + 0.1)
    return path


@pytest.fixture(scope="session", autouse=True)
def _every_manifest_fits_its_schema() -> Iterator[None]:
    """Validate each manifest that a test writes in this process against the published schema, equal parts once."""
    schema, sealed = json.loads(SCHEMA.read_text(encoding="utf-8")), Manifest.sealed
    parts = {key: Draft202012Validator(part) for key, part in schema["properties"].items()}
    keys = Draft202012Validator({**schema, "properties": dict.fromkeys(parts, True)})

    @functools.cache
    def check_part(key: str, text: str) -> None:
        parts[key].validate(json.loads(text))

    def checked(manifest: Manifest, contents: Mapping[str, bytes]) -> Manifest:
        made = sealed(manifest, contents)
        found = json.loads(json.dumps(made.to_json()))
        keys.validate(found)
        for key, part in found.items():
            check_part(key, json.dumps(part))
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Manifest, "sealed", checked)
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_thread_of_blas() -> Iterator[None]:
    """Processes of the suite share the cores; passes over blocks of rows still have all threads that are free."""
    with blas_held_to_one_thread():
        yield


NUMBERS = itertools.count()


def executed(
    probe: LinearProbe,
    private: Source,
    public: Source | None = None,
    runtime: Runtime | None = None,
    ledger: Ledger | None = None,
    **others: Any,
) -> Trained:
    """The run of an estimator's settings, as a command makes it; `others` are further fields of the data set."""
    names, joined = [str(name) for name in probe.classes], probe.method.joins_public
    dataset = Dataset(private, len(names), public, joined=joined, class_names=names, **others)
    return execute(plan_settings.plan_run(probe.settings(), dataset), dataset, runtime, ledger)


def new_folder(factory: pytest.TempPathFactory, name: str) -> Path:
    """A new folder. `mktemp` reads the names of all earlier ones: 30 ms a test after 2,000 tests."""
    folder = factory.getbasetemp() / f"{name}-{next(NUMBERS)}"
    folder.mkdir()
    return folder


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A folder of this test, as of pytest."""
    return new_folder(tmp_path_factory, re.sub(r"\W", "_", request.node.name)[:30])


@pytest.fixture(autouse=True)
def own_books(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the budget books of this test, which the first book makes."""
    state = tmp_path_factory.getbasetemp() / f"state-{next(NUMBERS)}"
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    monkeypatch.setattr(fits, "FITS", fits.Fits())
    return state / "linprobe"


def write_unlabelled(path: Path, n_rows: int = 200, *, width: int = N_FEATURES, **description: Any) -> Path:
    """Write a feature file of rows without labels, around the directions of `write_features`."""
    rows, _ = gaussian_rows("unlabelled", n_rows, width)
    with FeatureWriter(path, Description(class_names=(), **{"backbone": "test", **description})) as writer:
        writer.write_group("rows", n_rows, width, [rows], None, [f"u/{row:04d}" for row in range(n_rows)])
    return path


@pytest.fixture(scope="session")
def features_file() -> Path:
    """400 train, 120 test and 12 public rows of four separable classes, with text weights. Do not change it."""
    return made_once("features", lambda folder: write_features(folder / "whole.h5")) / "whole.h5"


@pytest.fixture(scope="session")
def private_file() -> Path:
    """The same train and test rows without public rows and without text weights. Do not change it."""

    def write(folder: Path) -> None:
        write_features(folder / "private.h5", groups=("train", "test"), text=False)

    return made_once("private features", write) / "private.h5"


@pytest.fixture
def make_features() -> Callable[..., Path]:
    """`write_features`, for tests that need a different file."""
    return write_features


@pytest.fixture
def editable(features_file: Path, tmp_path: Path) -> Path:
    """A copy of the feature file that a test may damage."""
    return Path(shutil.copy(features_file, tmp_path / "edited.h5"))


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run a command in this process with the temporary folder as working directory.

    On a slow machine no command says how far it is, so that its notes do not depend on the clock.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_terminal, "LONG", math.inf)

    def run_command(*words: object, stdin: str | None = None) -> Outcome:
        if stdin is not None:
            monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        capsys.readouterr()
        status = run([str(word) for word in words])
        return Outcome(status, *capsys.readouterr())

    return run_command


@pytest.fixture
def shell(tmp_path: Path) -> Callable[..., Outcome]:
    """Run `linprobe` in a new process, or with `script` a pipeline in bash."""

    def run_process(*words: object, script: str | None = None, env: dict[str, str] | None = None) -> Outcome:
        command = [sys.executable, "-m", "linprobe", *map(str, words)]
        if script is not None:
            command = [
                "bash",
                "-o",
                "pipefail",
                "-c",
                f'linprobe() {{ "{sys.executable}" -m linprobe "$@"; }}\n{script}',
            ]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=60, env={**os.environ, **(env or {})}
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    return run_process


def check_refused(outcome: Outcome, status: int, words: Sequence[str], notes: int = 0) -> None:
    """One line on stderr that names the problem, after at most `notes` lines for people; nothing on stdout."""
    lines = [line for line in outcome.stderr.splitlines() if line.strip()]
    assert outcome.status == status, outcome
    assert "Traceback" not in outcome.stderr
    assert lines, "nothing on stderr"
    assert len(lines) <= 1 + notes, outcome.stderr
    assert lines[-1].startswith("linprobe: error: "), outcome.stderr
    assert sum("linprobe: error:" in line for line in lines) == 1
    for word in words:
        assert word in lines[-1], f"{word!r} is not in {lines[-1]!r}"
    assert "--debug to see where" not in lines[-1], f"not foreseen: {lines[-1]!r}"
    assert outcome.stdout == ""


@pytest.fixture
def refused() -> Callable[..., None]:
    """`check_refused`: exit status, one line that holds the words, no traceback."""
    return check_refused


def trained_once(name: str, features: Path, *words: str) -> Path:
    """The folder of a run that is trained once, with budget books of its own. Do not change it."""

    def train(folder: Path) -> None:
        stdout, stderr = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_STATE_HOME", str(folder / "state"))
            with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
                status = run(["train", str(features), *words, "--out", str(folder / "run")])
        if status:
            raise RuntimeError(f"training a shared run failed with {status}: {stderr.getvalue()}")

    return made_once(name, train) / "run"


def copied(trained: Path, out: Path, books: Path) -> Path:
    """A copy of a run of `trained_once`, which a test may damage or charge, with its books."""
    shutil.copytree(trained.parent / "state" / "linprobe", books)
    return Path(shutil.copytree(trained, out))


@pytest.fixture(scope="session")
def trained_run(features_file: Path) -> Path:
    """A run folder of `train --method noisy-gd --eps 3` on the small file. Do not change it."""
    return trained_once("trained", features_file, "--method", "noisy-gd", "--eps", "3")


@pytest.fixture
def run_copy(trained_run: Path, tmp_path: Path, own_books: Path) -> Path:
    """A copy of the trained run that a test may damage."""
    return copied(trained_run, tmp_path / "copied_run", own_books)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 64 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("a small tmpfs can be mounted only by root on Linux")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)
