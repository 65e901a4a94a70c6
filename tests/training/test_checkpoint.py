"""Interrupted and resumed runs: same weights, same ledger, and no noise reused on other data, at every interruption."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import shutil
import signal
import stat
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import pytest
import scipy
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from linprobe import atomic_files
from linprobe.accounting.book import read_book
from linprobe.accounting.events import GaussianEvent
from linprobe.accounting.ledger import Ledger
from linprobe.cli import run
from linprobe.data.feature_file import FeatureFile
from linprobe.data.feature_reader import Description
from linprobe.data.feature_writer import FeatureWriter
from linprobe.errors import DataError, LinprobeError, PrivacyError, Silent, UsageError
from linprobe.gradients import backend
from linprobe.mechanisms import noise
from linprobe.mechanisms.gaussian import Contributed
from linprobe.mechanisms.noise import NoiseSource
from linprobe.methods import METHODS
from linprobe.options.requests import TrainRequest, VerifyRequest
from linprobe.runs import run_folder
from linprobe.runs.check import verify_run
from linprobe.runs.run_folder import CHECKPOINT, RUN_ID, CompleteError, read_run
from linprobe.training import charge, checkpoint
from linprobe.training.checkpoint import Checkpoints
from linprobe.training.dry_run import dry_run
from linprobe.training.train import train_run
from tests.conftest import Outcome, first_of_each_kind, mostly_nightly, write_unlabelled
from tests.processes import ended, start_copy

STEPS = 7
SAMPLED = {"sampling_rate": 0.3, "accountant": "rdp"}
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "noisy-gd": [
        {"schedule": "theory", "weight_decay": 5.0, "radius": 3.0},
        {"output": "vote", "ensemble": 3},
        {"output": "ema", "ensemble": 3},
        {"output": "weighted"},
        {"init": "text"},
    ],
    "adamix": [{"variant": "theory"}, {"subspace": "gradient"}, {"subspace": "features", "subspace_dim": 2}],
    "ppgd": [{"output": "vote", "ensemble": 2}],
    "dp-sgd": [{"optimizer": "adam"}, {"optimizer": "momentum", "output": "vote", "ensemble": 6}, {"loss": "squared"}],
    "dpsgd-f": [{"variant": "theory"}],
    "mirror-descent": [{"update": "exact"}],
    "dope-sgd": [{"public_batch": 5}, {"extended": 0.5}, {"origin": "history"}],
}
CASES = [
    (method.name, options)
    for method in METHODS.values()
    if method.spends and not method.one_step
    for options in ({}, *OPTIONS.get(method.name, []))
]


def case_id(value: Any) -> str:
    """Of a method, of its options, or of whether a run is interrupted often."""
    return ",".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else str(value)


FIRST = first_of_each_kind(name for name, _ in CASES)


def by_day(method: str, options: Mapping[str, Any]) -> bool:
    """Whether an interrupted run is tried by day: a method of each kind, and options that keep more than weights."""
    return not {"ema", "momentum", "history", "gradient"}.isdisjoint(options.values()) or (
        method in FIRST and not options
    )


class Stops(Silent):
    """Ends the run after `after` steps and keeps its notes."""

    def __init__(self, after: int, error: BaseException | None = None) -> None:
        self.left, self.error, self.notes = after, KeyboardInterrupt() if error is None else error, []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def step(self, count: int = 1) -> None:
        self.left -= 1
        if self.left == 0:
            raise self.error


def asked(features: Path, out: Path, method: str = "noisy-gd", **changes: Any) -> TrainRequest:
    """A run with a checkpoint after every step."""
    sampled = SAMPLED if METHODS[method].samples else {}
    given = {"epsilon": 3.0, "steps": STEPS, "checkpoint_every": 0.0, **sampled, **changes}
    return TrainRequest(method=method, features=features, out=out, **given)


def unfinished(out: Path) -> list[Path]:
    """Folders of unfinished runs of `out`."""
    return list(out.parent.glob(f".{out.name}.*.partial"))


def contents(run: Path) -> dict[str, Any]:
    """The contents that two equal runs share."""
    found: dict[str, Any] = {name: (run / name).read_bytes() for name in ("ledger.jsonl", "history.csv")}
    for name in ("model.npz", "per_record.npz"):
        with np.load(run / name) as archive:
            found |= {f"{name}/{key}": archive[key].tobytes() for key in archive.files if key != "key"}
    manifest = json.loads((run / "manifest.json").read_text())
    return found | {key: manifest[key] for key in ("epsilon", "steps", "releases", "test_accuracy")}


def check_equal(run: Path, expected: Path) -> None:
    """Both runs have the same contents, bit for bit."""
    assert sorted(path.name for path in run.iterdir()) == sorted(path.name for path in expected.iterdir())
    ours, theirs = contents(run), contents(expected)
    assert [name for name in theirs if ours[name] != theirs[name]] == []


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Make the operating system return this noise key from now on.

    Writing a checkpoint does not renew the key, so that runs with other checkpoints are equal.
    """
    monkeypatch.setattr(NoiseSource, "renewed_key", lambda self: self.key)

    def give(number: int) -> None:
        monkeypatch.setattr(noise.os, "urandom", lambda n: bytes([number]) * n)

    return give


@pytest.mark.parametrize(
    ("method", "options", "often"),
    [
        *mostly_nightly([(method, options, not options) for method, options in CASES], lambda case: by_day(*case[:2])),
        *mostly_nightly([(method, options, True) for method, options in CASES if options], lambda _: False),
    ],
    ids=case_id,
)
def test_an_interrupted_run_goes_on_to_the_same_result(
    method: str,
    options: dict[str, Any],
    often: bool,
    features_file: Path,
    tmp_path: Path,
    keys: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out, expected = tmp_path / "run", tmp_path / "expected"
    request = asked(features_file, out, method, options=options)
    keys(1)
    train_run(replace(request, out=expected), Silent())

    with pytest.raises(KeyboardInterrupt):
        train_run(request, Stops(2 if often else 4))
    if often:
        keys(2)
        rarely = replace(request, resume=True, checkpoint_every=1e9)
        with pytest.raises(KeyboardInterrupt):  # between two steps: the last one is written
            train_run(rarely, Stops(2))
        # within a step: it must be repeated, so nothing is written
        with stopped_before_the_second_noise(monkeypatch), pytest.raises(KeyboardInterrupt):
            train_run(rarely, Silent())
    keys(3)
    watch = Stops(-1)
    train_run(replace(request, resume=True), watch)
    assert watch.left == -1 - (STEPS - 4)
    check_equal(out, expected)
    assert unfinished(out) == []


@contextlib.contextmanager
def stopped_before_the_second_noise(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    real, drawn = NoiseSource.add_noise, []

    def stops_before_the_second(self: NoiseSource, value: Any, std: float) -> Any:
        drawn.append(value.shape)
        if len(drawn) == 2:
            raise KeyboardInterrupt
        return real(self, value, std)

    with monkeypatch.context() as patch:
        patch.setattr(NoiseSource, "add_noise", stops_before_the_second)
        yield


def test_a_run_of_one_step_goes_on_after_its_first_release(
    features_file: Path, tmp_path: Path, keys: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, expected = tmp_path / "run", tmp_path / "expected"
    request = asked(features_file, out, "dp-ls", steps=None)
    keys(1)
    train_run(replace(request, out=expected), Silent())
    with stopped_before_the_second_noise(monkeypatch), pytest.raises(KeyboardInterrupt):
        train_run(request, Silent())
    keys(2)
    train_run(replace(request, resume=True), Silent())
    check_equal(out, expected)
    assert unfinished(out) == []


@pytest.mark.parametrize("stopped", ["contributions", "checkpoint"])
def test_ctrl_c_between_two_states_keeps_the_earlier_one(
    stopped: str, features_file: Path, tmp_path: Path, keys: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    request = asked(features_file, tmp_path / "run", "dp-sgd")
    keys(1)
    train_run(replace(request, out=tmp_path / "expected"), Silent())
    calls = []

    def stopping(real: Callable[..., Any]) -> Callable[..., Any]:
        def stops_after_the_third(*given: Any) -> None:
            real(*given)
            calls.append(given)
            if len(calls) == 3:
                raise KeyboardInterrupt

        return stops_after_the_third

    with monkeypatch.context() as patch:
        if stopped == "contributions":
            patch.setattr(Contributed, "add", stopping(Contributed.add))
        else:
            patch.setattr(Ledger, "sync", stopping(Ledger.sync))
        with pytest.raises(KeyboardInterrupt):
            train_run(request, Silent())
    train_run(replace(request, resume=True), Silent())
    check_equal(request.out, tmp_path / "expected")


def test_ctrl_c_before_a_checkpoint_leaves_nothing_and_after_it_says_how_to_go_on(
    features_file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "new" / "run"
    early, late = Stops(2), Stops(2)
    with pytest.raises(KeyboardInterrupt):
        train_run(asked(features_file, out, checkpoint_every=1e9), early)
    spent, resume = early.notes
    assert spent.startswith("the run ended early; what it had released costs epsilon ")
    assert resume.startswith("no checkpoint was written, so --resume cannot continue this run")
    assert not out.parent.exists()
    with pytest.raises(KeyboardInterrupt):
        train_run(asked(features_file, out), late)
    assert late.notes[0].startswith("2 runs on these rows together cost ")
    assert late.notes[1].startswith("the run ended early; what it had released costs epsilon ")
    assert late.notes[2:] == [f"unfinished run kept; the same command with --resume --out {out} resumes it"]
    assert len(unfinished(out)) == 1


@pytest.mark.parametrize(
    ("cap", "method", "counts_plan"), [(3, "dp-sgd", True), (4, "dp-sgd", False), (3, "noisy-gd", False)]
)
def test_a_first_run_that_passed_its_cap_alone_counts_its_plan_however_early_it_ends(
    features_file: Path, tmp_path: Path, cap: float, method: str, counts_plan: bool
) -> None:
    watch, sampled = Stops(2), {"sampling_rate": 0.3, "accountant": "auto"} if method == "dp-sgd" else {}
    request = asked(features_file, tmp_path / "run", method, checkpoint_every=1e9, cap=cap, **sampled)
    with pytest.raises(KeyboardInterrupt):
        train_run(request, watch)
    (entry,) = read_book(next(Path(os.environ["XDG_STATE_HOME"]).rglob("*.jsonl"))).counted
    assert entry.ended_early is not counts_plan
    assert (sum(release.count for release in entry.releases) == STEPS) is counts_plan
    why = "nothing may follow it under its cap, so its whole plan" if counts_plan else "what it had released"
    assert any(note.startswith(f"the run ended early; {why} costs epsilon ") for note in watch.notes)
    later = replace(request, out=tmp_path / "later", epsilon=0.1)
    with pytest.raises(PrivacyError, match="nothing was spent") if counts_plan else contextlib.nullcontext():
        train_run(later, Silent())


def test_a_run_that_failed_for_good_leaves_nothing(features_file: Path, tmp_path: Path) -> None:
    watch = Stops(2, LinprobeError("training diverged"))
    with pytest.raises(LinprobeError, match="diverged"):
        train_run(asked(features_file, tmp_path / "run"), watch)
    assert watch.notes == []
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_keeps_the_last_checkpoint(
    features_file: Path, tmp_path: Path, keys: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    request = asked(features_file, tmp_path / "run")
    keys(1)
    train_run(replace(request, out=tmp_path / "expected"), Silent())
    real, written = np.savez, []

    def full(stream: Any, **arrays: Any) -> None:
        real(stream, **arrays)
        written.append(arrays)
        if len(written) > 3:
            raise OSError(errno.ENOSPC, "No space left on device")

    watch = Stops(-1)
    with monkeypatch.context() as patch:
        patch.setattr(np, "savez", full)
        with pytest.raises(LinprobeError, match="No space left on device"):
            train_run(request, watch)
    assert "--resume" in watch.notes[-1]
    train_run(replace(request, resume=True), Silent())
    check_equal(request.out, tmp_path / "expected")


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same folder for every test, empty: what `stopped_run` leaves, and a book, hold its name."""
    folder = tmp_path_factory.getbasetemp() / "checkpoints"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for what `stopped_run` leaves, and its book, once they are there."""
    return tmp_path_factory.mktemp("left") / "made"


@pytest.fixture
def stopped_run(
    features_file: Path, tmp_path: Path, own_books: Path, left: Path, keys: Callable[[int], None]
) -> TrainRequest:
    """A run that stopped after its third step, with its checkpoint; `expected` is the complete run."""
    request = asked(features_file, tmp_path / "run", "adamix", public_shots=2)
    if not left.exists():
        keys(1)
        train_run(replace(request, out=tmp_path / "expected"), Silent())
        with pytest.raises(KeyboardInterrupt):
            train_run(request, Stops(3))
        shutil.copytree(tmp_path, left / "folder")
        shutil.copytree(own_books, left / "books")
    else:
        shutil.copytree(left / "folder", tmp_path, dirs_exist_ok=True)
        shutil.copytree(left / "books", own_books)
    keys(2)
    return replace(request, resume=True)


def test_the_key_lies_in_a_file_for_the_owner_alone_until_the_run_is_done(
    stopped_run: TrainRequest, tmp_path: Path
) -> None:
    (partial,) = unfinished(stopped_run.out)
    assert stat.S_IMODE((partial / CHECKPOINT).stat().st_mode) == 0o600
    first, *used, current = key_chain(bytes([1]) * 32, 1 + 3)
    holders = [path.name for path in partial.iterdir() if current in path.read_bytes()]
    assert holders == [CHECKPOINT]
    # files of a process that was killed while it wrote a checkpoint
    (partial / f".{CHECKPOINT}.0123abcd.partial").write_bytes(current)
    train_run(stopped_run, Silent())
    check_equal(stopped_run.out, tmp_path / "expected")
    for key in (first, *used, current):
        assert all(key not in path.read_bytes() for path in stopped_run.out.iterdir())
    assert unfinished(stopped_run.out) == []


def key_chain(first: bytes, n: int) -> list[bytes]:
    """A key of noise and the `n` keys after it."""
    source = NoiseSource()
    source.key = first
    chain = [first]
    for _ in range(n):
        source.ratchet()
        chain.append(source.key)
    return chain


class Steps(Silent):
    """Notes the key of the noise of every step, and copies the checkpoint after every write into a folder."""

    def __init__(self, out: Path, copies: Path, patch: pytest.MonkeyPatch) -> None:
        self.out, self.copies, self.keys = out, copies, []
        real = NoiseSource.add_noise

        def noted(source: NoiseSource, value: Any, std: float) -> Any:
            self.keys.append(source.key)
            return real(source, value, std)

        patch.setattr(NoiseSource, "add_noise", noted)

    def step(self, count: int = 1) -> None:
        (partial,) = unfinished(self.out)
        if (partial / CHECKPOINT).exists():
            with np.load(partial / CHECKPOINT) as state:
                done = int(state["done"])
            if not (self.copies / str(done)).exists():
                shutil.copytree(partial, self.copies / str(done))

    def opened(self, done: int) -> list[int]:
        """Steps whose noise the copy after `done` steps opens."""
        with np.load(self.copies / str(done) / CHECKPOINT) as state:
            chain = key_chain(state["key"].tobytes(), 2 * STEPS)
        return [step for step, key in enumerate(self.keys, start=1) if key in chain]


def due_after(patch: pytest.MonkeyPatch, steps: Collection[int]) -> None:
    """Make a checkpoint due after these steps, and after no other."""
    due = Checkpoints._due

    def decided(self: Checkpoints) -> bool:
        self._every = 0.0 if int(self._latest["done"]) in steps else 1e9
        return due(self)

    patch.setattr(Checkpoints, "_due", decided)


@pytest.mark.parametrize("method", ["noisy-gd", "dp-sgd"])
def test_a_copied_checkpoint_opens_the_steps_up_to_the_next_one(
    method: str,
    features_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    request = asked(features_file, tmp_path / "run", method)
    due_after(monkeypatch, (2, 5))
    watch = Steps(request.out, tmp_path / "copies", monkeypatch)
    train_run(request, watch)
    assert sorted(path.name for path in (tmp_path / "copies").iterdir()) == ["2", "5"]
    assert watch.opened(2) == [3, 4, 5]
    assert watch.opened(5) == [6, 7]


def test_every_write_closes_the_checkpoint_before(
    features_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = asked(features_file, tmp_path / "run")
    watch = Steps(request.out, tmp_path / "copies", monkeypatch)
    train_run(request, watch)
    assert [watch.opened(done) for done in range(1, STEPS)] == [[done + 1] for done in range(1, STEPS)]


def test_two_runs_from_one_copy_part_at_their_next_checkpoint(
    features_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = asked(features_file, tmp_path / "run", "dp-sgd")
    watch = Steps(request.out, tmp_path / "copies", monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        train_run(request, Stops(2))
    watch.step()
    due_after(monkeypatch, (5,))
    found = []
    for name in ("one", "two"):
        shutil.rmtree(os.environ["XDG_STATE_HOME"])
        out = tmp_path / name / "run"
        shutil.copytree(tmp_path / "copies" / "2", out.with_name(".run.0.partial"))
        watch.keys = []
        train_run(replace(request, out=out, resume=True), Silent())
        found.append(watch.keys)
    one, two = found
    assert one[:3] == two[:3]
    assert set(one[3:]).isdisjoint(two[3:])
    assert len({*one, *two}) == 3 + 2 * 2


def test_a_copy_under_another_name_is_no_second_run_that_the_book_counts_once(
    stopped_run: TrainRequest, tmp_path: Path
) -> None:
    (partial,) = unfinished(stopped_run.out)
    shutil.copytree(partial, tmp_path / ".copy.0.partial")
    with pytest.raises(PrivacyError, match=f"{stopped_run.out} in budget book .* resumed as {tmp_path / 'copy'}"):
        train_run(replace(stopped_run, out=tmp_path / "copy"), Silent())
    train_run(stopped_run, Silent())
    check_equal(stopped_run.out, tmp_path / "expected")


def test_a_copy_that_is_resumed_lowers_no_cost_and_makes_no_second_run(
    stopped_run: TrainRequest, tmp_path: Path
) -> None:
    (partial,) = unfinished(stopped_run.out)
    shutil.copytree(partial, tmp_path / "copy")
    watch = Stops(1)
    with pytest.raises(KeyboardInterrupt):
        train_run(stopped_run, watch)
    last = tmp_path / "last"
    shutil.move(partial, last)
    shutil.copytree(tmp_path / "copy", partial)
    with pytest.raises(PrivacyError, match=r"written after 3 releases, and the last one of this run after 4, by"):
        train_run(stopped_run, Silent())
    shutil.rmtree(partial)
    shutil.move(last, partial)
    book = next(Path(os.environ["XDG_STATE_HOME"]).rglob("*.jsonl"))
    (entry,) = (one for one in read_book(book).counted if one.name == str(stopped_run.out))
    assert (entry.ended_early, sum(release.count for release in entry.releases)) == (False, STEPS)
    assert any("it was resumed, so its whole plan costs epsilon " in note for note in watch.notes)
    train_run(stopped_run, Silent())
    shutil.move(stopped_run.out, tmp_path / "finished")
    shutil.copytree(tmp_path / "copy", partial)
    with pytest.raises(PrivacyError, match="is finished in budget book"):
        train_run(stopped_run, Silent())
    assert read_book(book).entries[entry.run] == replace(entry, finished=True)


def test_an_earlier_copy_of_a_run_that_was_killed_is_refused(
    stopped_run: TrainRequest, tmp_path: Path, own_books: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its steps after the next checkpoint get noise of another key, and the book counts one run."""
    (partial,) = unfinished(stopped_run.out)
    shutil.copytree(partial, tmp_path / "copy")
    with monkeypatch.context() as patch:
        patch.setattr(charge.RunCharge, "__exit__", lambda *_: None)  # as a process that is killed
        with pytest.raises(KeyboardInterrupt):
            train_run(stopped_run, Stops(2))
    (beside,) = own_books.glob(".*.releases")
    (partial / CHECKPOINT).rename(tmp_path / "last")
    shutil.copy(tmp_path / "copy" / CHECKPOINT, partial)  # with the ledger of the run, as in a copy of hard links
    for _ in range(2):
        with pytest.raises(PrivacyError, match=r"written after 3 releases, and the last one of this run after 5, by"):
            train_run(stopped_run, Silent())
    (tmp_path / "last").replace(partial / CHECKPOINT)
    train_run(stopped_run, Silent())
    assert not beside.exists()


def test_a_run_that_was_killed_before_it_got_its_name_is_finished_for_its_book(
    stopped_run: TrainRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (partial,) = unfinished(stopped_run.out)
    shutil.copytree(partial, tmp_path / "copy")
    with monkeypatch.context() as patch:
        patch.setattr("linprobe.accounting.book.finish", lambda *_: None)
        patch.setattr(run_folder, "_name_complete", mock.Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            train_run(stopped_run, Silent())
    with pytest.raises(UsageError, match=r"run .* is complete; leave out --dry-run"):
        dry_run(stopped_run, Silent())
    with pytest.raises(UsageError, match=r"run .* was complete, and has its name now"):
        train_run(stopped_run, Silent())
    shutil.move(stopped_run.out, tmp_path / "finished")
    shutil.copytree(tmp_path / "copy", partial)
    for call in (dry_run, train_run):
        with pytest.raises(PrivacyError, match="is finished in budget book"):
            call(stopped_run, Silent())


def test_a_run_whose_plan_changes_goes_on_after_it_was_stopped_twice(tmp_path: Path) -> None:
    rows, features = np.random.default_rng(0).normal(size=(2000, 8)).astype(np.float32), tmp_path / "centred.h5"
    with FeatureWriter(features, Description(("a", "b", "c", "d"))) as writer:
        writer.write_group("train", 2000, 8, [rows], np.arange(2000) % 4, list(map(str, range(2000))))
    request = asked(features, tmp_path / "run", resume=True)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            train_run(request, Stops(2))
    (partial,) = unfinished(tmp_path / "run")
    mean, *steps = (partial / "ledger.jsonl").read_text().splitlines(keepends=True)
    (partial / "ledger.jsonl").write_text("".join([mean.replace('"sensitivity": ', '"sensitivity": 1'), *steps]))
    with pytest.raises(PrivacyError, match="event 0 of the unfinished run"):
        train_run(request, Silent())
    (partial / "ledger.jsonl").write_text("".join([mean, *steps]))
    last = Stops(-1)
    train_run(request, last)
    assert any("the private mean is shorter than 0.2" in note for note in last.notes)


def test_resume_that_begins_a_run_counts_what_it_had_released(features_file: Path, tmp_path: Path) -> None:
    watch = Stops(2)
    with pytest.raises(KeyboardInterrupt):
        train_run(asked(features_file, tmp_path / "run", checkpoint_every=1e9, resume=True), watch)
    assert any("the run ended early; what it had released costs epsilon " in note for note in watch.notes)


def test_a_seeded_run_does_not_depend_on_when_checkpoints_are_written(features_file: Path, tmp_path: Path) -> None:
    seeded = {"method": "dp-sgd", "noise_seed": 4, "insecure_seed": True}
    for name, every in (("often", 0.0), ("never", 1e9)):
        train_run(asked(features_file, tmp_path / name, checkpoint_every=every, **seeded), Silent())
    check_equal(tmp_path / "often", tmp_path / "never")


FAILING = {"write": (np, "savez"), "rename": (Path, "replace"), "folder": (checkpoint, "sync_folder")}


FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("place", "after", "error"),
    mostly_nightly(
        product(FAILING, (False, True), (FULL, KeyboardInterrupt())), lambda case: case[1] == (case[2] is FULL)
    ),
    ids=str,
)
def test_a_write_that_fails_leaves_one_noise_for_every_release(
    place: str,
    after: bool,
    error: BaseException,
    features_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether the old file stays or the new one is there, the resumed run draws no second noise for a release."""
    request = asked(features_file, tmp_path / "run", "dp-sgd")
    watch = Steps(request.out, tmp_path / "copies", monkeypatch)
    due_after(monkeypatch, (2, 5))
    owner, name = FAILING[place]
    real, calls = getattr(owner, name), []

    def fails(*given: Any, **named: Any) -> Any:
        if len(watch.keys) < 5:
            return real(*given, **named)
        if after:
            real(*given, **named)
        calls.append(given)
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fails)
        with pytest.raises((LinprobeError, KeyboardInterrupt)):
            train_run(request, Silent())
    assert calls
    assert len(watch.keys) == 5
    train_run(replace(request, resume=True), Silent())
    assert len(set(watch.keys)) == STEPS
    assert len((request.out / "ledger.jsonl").read_text().splitlines()) == STEPS


def test_a_checkpoint_holds_no_rows_and_no_pickle(stopped_run: TrainRequest) -> None:
    (partial,) = unfinished(stopped_run.out)
    with np.load(partial / CHECKPOINT, allow_pickle=False) as archive:
        state = {name: archive[name] for name in archive.files}
    n_features, n_private = 10, 392
    assert {name for name, value in state.items() if n_private in value.shape} == {"squared_mu"}
    assert all(
        value.shape in ((), (n_features, 4))
        for name, value in state.items()
        if value.dtype == np.float64 and name != "squared_mu"
    )
    with FeatureFile(stopped_run.features) as features:
        rows = features.rows("train", slice(None))
    written = (partial / CHECKPOINT).read_bytes()
    assert all(row[:4].tobytes() not in written for row in rows)
    assert all(row[:4].astype(np.float64).tobytes() not in written for row in rows)


def test_a_torn_line_was_never_spent(stopped_run: TrainRequest, tmp_path: Path) -> None:
    (partial,) = unfinished(stopped_run.out)
    whole = (partial / "ledger.jsonl").read_bytes()
    (partial / "ledger.jsonl").write_bytes(whole + whole.splitlines()[0][:25])
    train_run(stopped_run, Silent())
    check_equal(stopped_run.out, tmp_path / "expected")


def test_a_ledger_that_is_ahead_is_repeated_and_not_charged_twice(stopped_run: TrainRequest, tmp_path: Path) -> None:
    (partial,) = unfinished(stopped_run.out)
    done = (partial / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    more = (tmp_path / "expected" / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    assert len(done) == 3
    (partial / "ledger.jsonl").write_bytes(b"".join(more[:6]))
    train_run(stopped_run, Silent())
    check_equal(stopped_run.out, tmp_path / "expected")


@pytest.mark.parametrize("lines", ["missing", "other"])
def test_a_ledger_that_is_not_the_run_s_is_refused(stopped_run: TrainRequest, tmp_path: Path, lines: str) -> None:
    (partial,) = unfinished(stopped_run.out)
    ledger = partial / "ledger.jsonl"
    done = ledger.read_text().splitlines(keepends=True)
    if lines == "missing":
        ledger.write_text("".join(done[:2]))
    else:
        ledger.write_text("".join(done) + done[0].replace('"step": 0', '"step": 3').replace("gradient", "mean"))
    before = ledger.read_bytes()
    if lines == "missing":
        with pytest.raises(PrivacyError, match="the checkpoint is at event 3 and the ledger has 2"):
            train_run(stopped_run, Silent())
        with pytest.raises(UsageError, match="book"):
            train_run(replace(stopped_run, book=tmp_path / "other.book"), Silent())
        shutil.rmtree(os.environ["XDG_STATE_HOME"])
        with pytest.raises(PrivacyError, match="the checkpoint is at event 3"):
            train_run(stopped_run, Silent())
        (entry,) = read_book(next(Path(os.environ["XDG_STATE_HOME"]).rglob("*.jsonl"))).counted
        assert sum(release.count for release in entry.releases) == STEPS
    else:
        with pytest.raises(PrivacyError, match="event 3 of the unfinished run"):
            train_run(stopped_run, Silent())
    assert ledger.read_bytes() == before
    assert (partial / CHECKPOINT).exists()


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"epsilon": 2.0}, "epsilon 3.0"),
        ({"delta": 1e-6}, "delta"),
        ({"steps": 8}, "n_steps"),
        ({"options": {"clip_quantile": 0.5}}, "clip_quantile"),
        ({"split_seed": 1}, "public rows"),
        ({"public_shots": 3}, "public rows"),
        ({"precision": "float16"}, "precision"),
        ({"method": "ngd"}, "method"),
        ({"noise_seed": 1, "insecure_seed": True}, "insecure_seed"),
        ({"out": None}, "--out"),
        ({"checkpoint_every": -1.0}, "checkpoint"),
    ],
    ids=lambda given: next(iter(given)) if isinstance(given, dict) else "",
)
def test_other_settings_are_refused(stopped_run: TrainRequest, changes: dict[str, Any], word: str) -> None:
    (partial,) = unfinished(stopped_run.out)
    before = {path.name: path.read_bytes() for path in partial.iterdir()}
    with pytest.raises(UsageError, match=word):
        train_run(replace(stopped_run, **changes), Silent())
    assert {path.name: path.read_bytes() for path in partial.iterdir()} == before


@pytest.mark.parametrize(("module", "name"), [(checkpoint, "linprobe"), (np, "NumPy"), (scipy, "SciPy")])
def test_a_checkpoint_of_another_version_is_refused(
    stopped_run: TrainRequest, module: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SciPy solves for the weights of dp-newton and mirror-descent between releases."""
    monkeypatch.setattr(module, "__version__", "9.9")
    with pytest.raises(UsageError, match=rf"has {name} '\d.*' and this one '9\.9'"):
        train_run(stopped_run, Silent())
    if name == "linprobe":  # told before what another version may have as a default
        with pytest.raises(UsageError, match=r"has linprobe .* finish it with that version$"):
            train_run(replace(stopped_run, steps=STEPS + 1), Silent())


def test_a_dry_run_counts_a_resumed_run_once_and_refuses_what_its_resumption_would(
    stopped_run: TrainRequest, tmp_path: Path
) -> None:
    assert dry_run(stopped_run, Silent()).facts["together"]["runs"] == 2  # the other one is the complete run
    with pytest.raises(UsageError, match="n_steps"):
        dry_run(replace(stopped_run, steps=STEPS + 1), Silent())
    (partial,) = unfinished(stopped_run.out)
    shutil.copytree(partial, tmp_path / ".copy.1234.partial")
    with pytest.raises(PrivacyError, match="a copy gets noise of its own"):
        dry_run(replace(stopped_run, out=tmp_path / "copy"), Silent())
    train_run(stopped_run, Silent())


def test_a_checkpoint_of_another_kernel_or_vector_width_is_refused(
    stopped_run: TrainRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same noise must not meet a sum with other bits."""
    monkeypatch.setattr(backend, "arithmetic_name", lambda: "kernel 12ab, vectors of 3 floats")
    with pytest.raises(UsageError, match=r"has arithmetic .* and this one 'kernel 12ab, vectors of 3 floats'"):
        train_run(stopped_run, Silent())


def changed_copy(features: Path, folder: Path, group: str = "train", text: float = 0.0, *, what: str = "row") -> Path:
    """The same file with another row, label or id in `group`, its rows in another order, or other text weights."""
    path = folder / "changed.h5"
    with FeatureFile(features) as old, FeatureWriter(path, old.description) as new:
        for name in old.sizes:
            x, y, ids = old.rows(name, slice(None)), old.labels(name), old.ids(name)
            if name == group:
                x[-1, 0] += what == "row"
                y[-1] = (y[-1] + (what == "label")) % len(old.description.class_names)
                ids[-1] += "'" * (what == "id")
                order = np.roll(np.arange(len(x)), what == "order")
                x, y, ids = x[order], y[order], [ids[place] for place in order]
            new.write_group(name, len(x), x.shape[1], [x], y, ids)
        new.write_text_weights(old.text_weights() + text)
    return path


@pytest.mark.parametrize("what", ["row", "label", "id", "order"])
def test_the_noise_never_meets_other_private_rows(stopped_run: TrainRequest, tmp_path: Path, what: str) -> None:
    changed = changed_copy(stopped_run.features, tmp_path, what=what)
    with pytest.raises(PrivacyError, match="other private rows"):
        train_run(replace(stopped_run, features=changed), Silent())
    train_run(stopped_run, Silent())
    check_equal(stopped_run.out, tmp_path / "expected")


def test_public_rows_that_are_protected_count_as_private_ones(features_file: Path, tmp_path: Path) -> None:
    request = asked(features_file, tmp_path / "run", "fully-private")
    with pytest.raises(KeyboardInterrupt):
        train_run(request, Stops(3))
    other = changed_copy(features_file, tmp_path, "public")
    with pytest.raises(PrivacyError, match="other private rows"):
        train_run(replace(request, features=other, resume=True), Silent())


def test_other_text_weights_and_another_first_model_are_refused(
    features_file: Path, trained_run: Path, tmp_path: Path
) -> None:
    """They change the weights at which the noise of a step would be reused."""
    text = asked(features_file, tmp_path / "text", options={"init": "text"})
    first = tmp_path / "first"
    shutil.copytree(trained_run, first)
    from_run = asked(features_file, tmp_path / "run", options={"init": str(first)}, epsilon=4.0)
    train_run(replace(from_run, out=tmp_path / "expected"), Silent())
    for request in (text, from_run):
        with pytest.raises(KeyboardInterrupt):
            train_run(request, Stops(3))
    with pytest.raises(UsageError, match="text weights"):
        train_run(replace(text, features=changed_copy(features_file, tmp_path, "", 0.25), resume=True), Silent())
    shutil.rmtree(first)
    train_run(replace(asked(features_file, first), steps=50), Silent())
    with pytest.raises(UsageError, match="first model"):
        train_run(replace(from_run, resume=True), Silent())


def test_a_run_from_a_run_goes_on_with_what_it_inherits(
    features_file: Path, trained_run: Path, tmp_path: Path, keys: Callable[[int], None]
) -> None:
    request = asked(features_file, tmp_path / "run", options={"init": str(trained_run)}, epsilon=4.0)
    keys(1)
    train_run(replace(request, out=tmp_path / "expected"), Silent())
    with pytest.raises(KeyboardInterrupt):
        train_run(request, Stops(3))
    train_run(replace(request, resume=True), Silent())
    check_equal(request.out, tmp_path / "expected")


def test_the_number_of_similar_rows_is_released_once(
    features_file: Path, tmp_path: Path, keys: Callable[[int], None]
) -> None:
    """Of other rows without labels it would be another sum with the same noise."""
    request = asked(features_file, tmp_path / "run", unlabelled=write_unlabelled(tmp_path / "u.h5"))
    keys(1)
    train_run(replace(request, out=tmp_path / "expected"), Silent())
    with pytest.raises(KeyboardInterrupt):
        train_run(request, Stops(3))
    keys(2)
    for others in (write_unlabelled(tmp_path / "fewer.h5", 199), None):
        with pytest.raises(UsageError, match="unlabelled rows"):
            train_run(replace(request, unlabelled=others, resume=True), Silent())
    train_run(replace(request, resume=True), Silent())
    check_equal(request.out, tmp_path / "expected")
    made, expected = (json.loads((run / "manifest.json").read_text()) for run in (request.out, tmp_path / "expected"))
    assert made["refined"] == expected["refined"]
    assert made["refined"]["similar"]["count"] > 0


@pytest.mark.parametrize("damage", [lambda data: data[:-200], lambda data: b"", lambda data: b"PK" + data[40:]])
def test_a_damaged_checkpoint_is_refused_and_kept(stopped_run: TrainRequest, damage: Callable[[bytes], bytes]) -> None:
    (partial,) = unfinished(stopped_run.out)
    (partial / CHECKPOINT).write_bytes(damage((partial / CHECKPOINT).read_bytes()))
    with pytest.raises(DataError, match="cannot be read"):
        train_run(stopped_run, Silent())
    assert (partial / "ledger.jsonl").exists()


def test_only_one_process_goes_on_with_a_run(stopped_run: TrainRequest, tmp_path: Path) -> None:
    tried = []

    class Second(Silent):
        """Tries to resume the same run at every step, and while the result is written."""

        def step(self, count: int = 1) -> None:
            with pytest.raises(LinprobeError, match="another process"):
                train_run(stopped_run, Silent())
            tried.append(count)

    train_run(stopped_run, Second())
    assert len(tried) == STEPS - 3
    check_equal(stopped_run.out, tmp_path / "expected")
    with pytest.raises(UsageError, match="already exists"):
        train_run(stopped_run, Silent())


def test_nobody_takes_over_a_run_whose_result_is_being_written(
    stopped_run: TrainRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, tried = Path.rename, []

    def tries(self: Path, target: Path) -> Path:
        (partial,) = unfinished(stopped_run.out)
        (partial / CHECKPOINT).touch()
        with pytest.raises(LinprobeError, match="another process"):
            train_run(stopped_run, Silent())
        (partial / CHECKPOINT).unlink()
        tried.append(target)
        return real(self, target)

    monkeypatch.setattr(Path, "rename", tries)
    train_run(stopped_run, Silent())
    assert tried == [stopped_run.out]
    check_equal(stopped_run.out, tmp_path / "expected")


def test_a_whole_run_that_lacks_its_name_gets_it(stopped_run: TrainRequest, tmp_path: Path) -> None:
    """A process killed between its last calls leaves such a run."""
    (partial,) = unfinished(stopped_run.out)
    shutil.rmtree(partial)
    shutil.copytree(tmp_path / "expected", partial)
    (partial / RUN_ID).write_text(read_run(partial).manifest.book_id)
    with pytest.raises(UsageError, match=f"run {stopped_run.out} was complete, and has its name now"):
        train_run(stopped_run, Silent())
    assert not partial.exists()
    check_equal(stopped_run.out, tmp_path / "expected")
    read_run(stopped_run.out)
    assert not (stopped_run.out / RUN_ID).exists()


def test_a_whole_run_gets_its_name_from_no_other_command(
    stopped_run: TrainRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither with other options, nor as a run whose name begins alike."""
    train_run(replace(stopped_run, out=tmp_path / "run.5", resume=False), Silent())
    (partial,) = unfinished(stopped_run.out)
    shutil.rmtree(partial)
    (tmp_path / "run.5").rename(tmp_path / ".run.5.0123abcd.partial")
    train_run(stopped_run, Silent())
    stopped_run.out.rename(partial)
    with pytest.raises(UsageError, match="is complete and lacks its name, but another command made it"):
        train_run(replace(stopped_run, epsilon=1.0), Silent())
    assert (partial / "manifest.json").is_file()
    with pytest.raises(CompleteError):
        train_run(stopped_run, Silent())
    with pytest.raises(CompleteError):
        train_run(replace(stopped_run, out=tmp_path / "run.5"), Silent())


def without_its_name(request: TrainRequest) -> Path:
    """Train `request`; its folder, which is complete, but has no name."""
    train_run(replace(request, resume=False), Silent())
    return request.out.rename(request.out.with_name(f".{request.out.name}.0123abcd.partial"))


def test_a_whole_run_that_its_book_lacks_is_charged_before_it_gets_its_name(
    features_file: Path, tmp_path: Path, own_books: Path
) -> None:
    request = asked(features_file, tmp_path / "run", resume=True)
    without_its_name(request)
    (book,) = own_books.glob("*.jsonl")
    (charged,) = read_book(book).entries.values()
    lines = book.read_text().splitlines(keepends=True)
    emptied = "".join(line for line in lines if charged.run not in line)
    book.write_text(emptied)
    assert run(["budget", str(features_file), "--set-cap", "0.5", "--delta", "1e-5", "--quiet"]) == 0
    with pytest.raises(PrivacyError, match=r"cap is epsilon 0\.5"):
        train_run(request, Silent())
    assert not request.out.exists()
    book.write_text(emptied)
    with pytest.raises(CompleteError):
        train_run(request, Silent())
    (found,) = read_book(book).entries.values()
    assert (found.run, found.releases, found.finished) == (charged.run, charged.releases, True)


def test_a_whole_run_gets_its_name_on_its_own_rows_and_with_its_own_signature(
    features_file: Path, tmp_path: Path, own_books: Path
) -> None:
    shutil.copy(features_file, tmp_path / "f.h5")
    request = asked(tmp_path / "f.h5", tmp_path / "run", resume=True)
    without_its_name(request)
    key = tmp_path / "key.pem"
    key.write_bytes(Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    key.chmod(0o600)
    with pytest.raises(UsageError, match="not signed; give --sign as when it was made"):
        train_run(replace(request, sign=key), Silent())
    with FeatureFile(features_file) as file:
        x, y = next(iter(file.blocks("train")))
        names = file.description.class_names
    with FeatureWriter(tmp_path / "g.h5", Description(names)) as writer:
        writer.write_group("train", len(x), x.shape[1], [-x], y, list(map(str, range(len(x)))))
    (tmp_path / "g.h5").replace(tmp_path / "f.h5")
    with pytest.raises(PrivacyError, match="holds other rows than it used"):
        train_run(request, Silent())
    shutil.copy(features_file, tmp_path / "f.h5")
    with pytest.raises(CompleteError):
        train_run(request, Silent())


FAULTS = {
    "the book is full": ("linprobe.accounting.book.finish", OSError(errno.ENOSPC, "No space left on device")),
    "the book is damaged": ("linprobe.accounting.book.finish", DataError("damaged")),
    "Ctrl-C while the book is busy": ("linprobe.accounting.book.finish", KeyboardInterrupt()),
    "no new name": ("pathlib.Path.rename", OSError(errno.EIO, "Input/output error")),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_whole_run_survives_a_fault_and_is_paid_once(
    features_file: Path, tmp_path: Path, own_books: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    request, watch = asked(features_file, tmp_path / "run"), Stops(-1)
    where, error = FAULTS[fault]
    with monkeypatch.context() as patch:
        patch.setattr(where, mock.Mock(side_effect=error))
        with pytest.raises((KeyboardInterrupt, LinprobeError)) as stopped:
            train_run(request, watch)
        if isinstance(stopped.value, LinprobeError):
            why = "damaged" if isinstance(error, DataError) else error.strerror
            named = f"({why}), and counts; the same command with --resume --out {request.out} names it"
            assert str(stopped.value) == f"run {request.out} is complete without its name {named}"
            assert stopped.value.exit_status == (3 if isinstance(error, DataError) else 1)
            with pytest.raises(LinprobeError, match=r"damaged|is complete without its name"):
                train_run(replace(request, resume=True), watch)
    said = [note for note in watch.notes if "the run is complete in" in note and "--resume" in note]
    assert bool(said) == isinstance(stopped.value, KeyboardInterrupt)
    with pytest.raises(CompleteError):
        train_run(replace(request, resume=True), Silent())
    assert verify_run(VerifyRequest(run=request.out))["verified"] is True
    (book,) = own_books.glob("*.jsonl")
    (entry,) = read_book(book).entries.values()
    assert entry.finished


def test_without_resume_an_unfinished_run_disturbs_nothing(stopped_run: TrainRequest, tmp_path: Path) -> None:
    (partial,) = unfinished(stopped_run.out)
    before = {path.name: path.read_bytes() for path in partial.iterdir()}
    train_run(replace(stopped_run, resume=False), Silent())
    assert {path.name: path.read_bytes() for path in partial.iterdir()} == before
    assert verify_run(VerifyRequest(run=stopped_run.out, features=stopped_run.features))["verified"] is True


def test_the_run_to_go_on_with_must_be_the_only_one(stopped_run: TrainRequest) -> None:
    (partial,) = unfinished(stopped_run.out)
    shutil.copytree(partial, partial.with_name(".run.00000000.partial"))
    with pytest.raises(UsageError, match="--resume finds 2 unfinished runs"):
        train_run(stopped_run, Silent())


def test_exit_statuses_of_the_command(
    cli: Callable[..., Outcome], refused: Callable[..., None], features_file: Path, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        train_run(asked(features_file, tmp_path / "run"), Stops(3))
    words = ["train", features_file, "--method", "noisy-gd", "--steps", STEPS, "--resume"]
    refused(cli(*words, "--eps", "3"), 2, ["--out"])
    begun = cli(*words, "--eps", "3", "--out", "none")
    assert begun.status == 0
    assert "this one begins it" in begun.stderr
    refused(cli(*words, "--eps", "2", "--out", "run"), 2, ["epsilon"], notes=1)
    changed = changed_copy(features_file, tmp_path)
    words[1] = changed
    refused(cli(*words, "--eps", "3", "--out", "run"), 4, ["private rows"])
    words[1] = features_file
    (partial,) = unfinished(tmp_path / "run")
    whole = (partial / CHECKPOINT).read_bytes()
    (partial / CHECKPOINT).write_bytes(whole[:99])
    refused(cli(*words, "--eps", "3", "--out", "run"), 3, ["checkpoint"], notes=1)
    (partial / CHECKPOINT).write_bytes(whole)
    done = cli(*words, "--eps", "3", "--out", "run")
    assert (done.status, done.stdout) == (0, "run\n")
    assert cli("verify", "run", "--features", features_file).status == 0


KILLS, KILLS_BY_NIGHT = 4, 40


@contextlib.contextmanager
def fatal(at: int, drawn: Path, written: Collection[int]) -> Iterator[list[int]]:
    """SIGKILL when the process comes to point number `at`: before, within and after every write, draw and step.

    `drawn` gets a line for each noise that was generated, before it is used. Each process gets other bytes of the
    operating system. A checkpoint is due after the steps `written`.
    """
    passed = [0]

    def point() -> None:
        passed[0] += 1
        if passed[0] == at:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(owner: Any, name: str, note: bool = False) -> None:
        real = getattr(owner, name)

        def wrapped(*given: Any, **named: Any) -> Any:
            point()
            result = real(*given, **named)
            if note:
                with drawn.open("a") as stream:
                    stream.write(f"{given[0].key.hex()} {given[0].draws}\n")
            point()
            return result

        patch.setattr(owner, name, wrapped)

    with pytest.MonkeyPatch.context() as patch:
        around(Ledger, "append")
        around(NoiseSource, "add_noise", note=True)
        around(NoiseSource, "bernoulli")
        for name in ("replace", "unlink"):
            around(Path, name)
        around(atomic_files.os, "fsync")
        around(np, "savez")
        around(Contributed, "add")
        due_after(patch, written)
        patch.setattr(noise.os, "urandom", lambda n: os.getpid().to_bytes(n))
        yield passed


def kill_many(features: Path, folder: Path, method: str, kills: int, seed: int, **given: Any) -> None:
    """Train in processes killed at random points, until `kills` have been, and check what each leaves.

    Each process writes checkpoints after other steps. `given` are further arguments of the runs; runs with a seed are
    compared with one that nobody killed.
    """
    generator, expected = random.Random(seed), folder / "expected"
    with fatal(-1, folder / "drawn", range(STEPS + 1)) as passed:
        train_run(asked(features, expected, method, **given), Silent())
    n_points, killed, run = passed[0], 0, 0
    while killed < kills:
        run += 1
        out, drawn, recorded, resume = folder / f"run{run}", folder / f"drawn{run}", 0, False
        while not out.exists():
            at, written = generator.randrange(1, n_points), generator.sample(range(STEPS + 1), 3)
            book = out.with_suffix(".book")  # of its own: no time is spent on what all runs cost together
            request = asked(features, out, method, resume=resume, book=book, **given)

            def attempt(
                request: TrainRequest = request, at: int = at, drawn: Path = drawn, written: list[int] = written
            ) -> int:
                with fatal(at, drawn, written), contextlib.suppress(CompleteError):  # killed before it got its name
                    train_run(request, Silent())
                return 0

            status = ended(start_copy(attempt))
            assert status in (0, -signal.SIGKILL), f"a process ended with {status}, not by the signal"
            killed += status == -signal.SIGKILL
            if out.exists():
                break
            (partial,) = unfinished(out) or (None,)
            if partial is None:
                continue
            lines = (partial / "ledger.jsonl").read_text().splitlines() if (partial / "ledger.jsonl").exists() else []
            known = [json.loads(line) for line in lines]
            draws = set(drawn.read_text().splitlines()) if drawn.exists() else set()
            assert len(known) >= len(draws), "noise was drawn that the ledger does not know"
            assert len(known) >= recorded, "the ledger has forgotten a release"
            recorded, resume = len(known), (partial / CHECKPOINT).exists()
            if resume:
                with np.load(partial / CHECKPOINT) as state:
                    assert len(known) >= int(state["next_step"])
            else:
                shutil.rmtree(partial)
                drawn.unlink(missing_ok=True)
                recorded = 0
        draws = set(drawn.read_text().splitlines())
        assert len(draws) == len((out / "ledger.jsonl").read_text().splitlines()), "a release was made twice"
        if given:
            check_equal(out, expected)
        else:
            assert verify_run(VerifyRequest(run=out, features=features))["verified"] is True


to_be_killed = pytest.mark.parametrize("kills", mostly_nightly((KILLS, KILLS_BY_NIGHT), KILLS.__eq__))


@to_be_killed
@pytest.mark.parametrize("method", mostly_nightly(["noisy-gd", "dp-sgd"], "dp-sgd".__eq__))
def test_killed_at_any_point_a_run_goes_on_and_its_ledger_never_undercounts(
    features_file: Path, tmp_path: Path, method: str, kills: int
) -> None:
    kill_many(features_file, tmp_path, method, kills, seed=kills)


@to_be_killed
@pytest.mark.parametrize("method", mostly_nightly(["noisy-gd", "dp-sgd"], "noisy-gd".__eq__))
def test_killed_at_any_point_a_seeded_run_goes_on_to_the_same_result(
    features_file: Path, tmp_path: Path, method: str, kills: int
) -> None:
    # fewer: what a kill leaves is checked above, at other points of the same code
    kill_many(features_file, tmp_path, method, kills // 2, seed=1, noise_seed=4, insecure_seed=True)


@to_be_killed
def test_killed_at_any_point_a_run_with_rows_without_labels_goes_on_to_the_same_result(
    features_file: Path, tmp_path: Path, kills: int
) -> None:
    rows = write_unlabelled(tmp_path / "u.h5")
    kill_many(features_file, tmp_path, "noisy-gd", kills, seed=1, noise_seed=4, insecure_seed=True, unlabelled=rows)


def test_a_killed_command_goes_on(cli: Callable[..., Outcome], features_file: Path, tmp_path: Path) -> None:
    words = ["train", features_file, "--method", "noisy-gd", "--eps", 3, "--steps", 1000, "--noise-seed", 4]
    words += ["--insecure-seed", "--checkpoint", 0]

    def command() -> int:
        with (tmp_path / "stdout").open("w") as stdout, contextlib.redirect_stdout(stdout):
            return run([*map(str, words), "--out", "run"])

    child = start_copy(command)
    until = time.monotonic() + 60
    while not any((partial / CHECKPOINT).exists() for partial in unfinished(tmp_path / "run")):
        assert time.monotonic() < until
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    assert ended(child) == -signal.SIGKILL
    assert (tmp_path / "stdout").read_text() == ""
    (partial,) = unfinished(tmp_path / "run")
    with np.load(partial / CHECKPOINT) as state:
        assert 0 <= int(state["done"]) < 1000
    words[-1] = 60
    assert cli(*words, "--out", "run", "--resume").status == 0
    assert cli(*words, "--out", "expected").status == 0
    check_equal(tmp_path / "run", tmp_path / "expected")
    assert "a seed the user gave" in cli("verify", "run").stderr


def test_a_checkpoint_that_lacks_something_is_refused(stopped_run: TrainRequest) -> None:
    (partial,) = unfinished(stopped_run.out)
    with np.load(partial / CHECKPOINT) as archive:
        state = {name: archive[name] for name in archive.files if name != "draws"}
    np.savez(partial / CHECKPOINT, **state)
    with pytest.raises(DataError, match="lacks draws"):
        train_run(stopped_run, Silent())


def test_a_release_is_not_repeated_with_other_noise(tmp_path: Path) -> None:
    event = GaussianEvent("gradient", 0, 1.0, 2.0)
    first = Ledger(tmp_path / "ledger.jsonl")
    first.append(event)
    first.close()
    for other in ({"noise_multiplier": 3.0}, {"sensitivity": 2.0}, {"sampling_rate": 0.5}):
        again = Ledger(tmp_path / "ledger.jsonl", again=True)
        with pytest.raises(PrivacyError, match="must not be reused"):
            again.append(replace(event, **other))
        again.close()


def test_a_closed_ledger_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, synced = tmp_path / "ledger.jsonl", []
    ledger = Ledger(path)
    ledger.append(GaussianEvent("gradient", 0, 1.0, 2.0))
    monkeypatch.setattr(os, "fsync", lambda opened: synced.append(os.fstat(opened).st_size))
    ledger.close()
    assert synced == [path.stat().st_size]


def test_a_ledger_that_did_not_reach_the_disk_is_never_said_to_be_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux reports an error of the disk once, and the next call succeeds though the lines are lost."""
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.append(GaussianEvent("gradient", 0, 1.0, 2.0))
    monkeypatch.setattr(os, "fsync", mock.Mock(side_effect=[OSError(errno.EIO, "Input/output error"), None, None]))
    for attempt in (ledger.sync, ledger.sync, ledger.close):
        with pytest.raises(OSError, match="Input/output"):
            attempt()
    Ledger(tmp_path / "ledger.jsonl", again=True).close()  # the lock of the first one is gone
