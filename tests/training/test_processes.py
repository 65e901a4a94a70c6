"""Training in several processes: same result as one process, noise drawn once, and an error if a process dies."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from threadpoolctl import threadpool_limits

import linprobe
from linprobe.accounting.ledger import Ledger
from linprobe.cli import _terminal, run
from linprobe.data.blocks import SHARD_ROWS, ArraySource, Preprocessing
from linprobe.data.dataset import Dataset
from linprobe.data.feature_reader import Description
from linprobe.data.feature_writer import FeatureWriter
from linprobe.data.rows import prepare_shard
from linprobe.errors import DataError, Silent, UsageError
from linprobe.mechanisms import noise
from linprobe.mechanisms.noise import WORDS_PER_BLOCK, NoiseSource, PoissonSampler
from linprobe.methods import METHODS
from linprobe.options.requests import TrainRequest
from linprobe.parallel import threads
from linprobe.parallel.process_group import Group, in_group
from linprobe.parallel.torch_group import TorchGroup
from linprobe.runs.run_folder import CHECKPOINT
from linprobe.training.checkpoint import Checkpoints
from linprobe.training.execute import Observer, Runtime, execute
from linprobe.training.plan import Settings, plan_run
from linprobe.training.train import train_run
from tests.conftest import gaussian_rows, mostly_nightly, write_unlabelled
from tests.processes import PATIENCE, ended, free_port, start_copy
from tests.training.test_checkpoint import SAMPLED, check_equal, unfinished

N_PRIVATE = 3 * SHARD_ROWS + 700
N_PUBLIC, WIDTH, STEPS, DIES_AT = 9, 8, 3, 2
# by day; the others add an option or a method of the same kind
KEPT = ("noisy-gd", "adamix", "fully-private", "dp-sgd", "rows without labels")
CASES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "noisy-gd": ((2, 4), {"method": "noisy-gd"}),
    "float16": ((2,), {"method": "noisy-gd", "precision": "float16", "centre": "none", "intercept": 1.0}),
    "adamix": ((2,), {"method": "adamix", "options": {"subspace": "gradient"}}),
    "ppgd": ((2,), {"method": "ppgd", "options": {"output": "vote", "ensemble": 2}}),
    "fully-private": ((3,), {"method": "fully-private"}),
    "dp-sgd": ((3,), {"method": "dp-sgd", "precision": "bfloat16", **SAMPLED}),
    "dp-sgd unobserved": ((2,), {"method": "dp-sgd", "per_record": False, **SAMPLED}),
    "dpsgd-f": ((2,), {"method": "dpsgd-f", "sampling_rate": 0.5, "accountant": "rdp"}),
    "dpsgd-f theory": ((2,), {"method": "dpsgd-f", "sampling_rate": 1.0, "options": {"variant": "theory"}}),
    "dope-sgd": ((4,), {"method": "dope-sgd", "options": {"public_batch": 5}, **SAMPLED}),
    "mirror-descent": ((2,), {"method": "mirror-descent", "per_record": False, **SAMPLED}),
    "adadps": ((2,), {"method": "adadps", **SAMPLED}),
    "rows without labels": ((3,), {"method": "noisy-gd", "unlabelled": Path("unlabelled.h5")}),
}


def request_of(folder: Path, name: str, out: Path) -> TrainRequest:
    """The run of a case, with a budget book of its own: no time is spent on what all runs cost together."""
    given = {"epsilon": 3.0, "steps": STEPS, "features": folder / "features.h5", **CASES[name][1]}
    given |= {key: folder / path for key, path in given.items() if key == "unlabelled"}
    return TrainRequest(out=out, checkpoint_every=0.0, book=out.with_suffix(".book"), **given)


def command(folder: Path, out: str, *words: object) -> list[str]:
    """`linprobe train` with a checkpoint after every step."""
    given = ["--eps", 3, "--steps", STEPS, "--checkpoint", 0, "--out", folder / out]
    return ["train", *(str(word) for word in (folder / "features.h5", *given, *words))]


def write_many(path: Path) -> Path:
    """A feature file with private rows for four shards, the last one shorter."""
    names = ("ant", "bee", "cat")
    with FeatureWriter(path, Description(class_names=names)) as writer:
        for group, size in (("train", N_PRIVATE), ("test", 60), ("public", N_PUBLIC)):
            rows, labels = gaussian_rows(group, size, WIDTH, len(names))
            writer.write_group(group, size, WIDTH, [rows], labels, [f"{group}/{row}" for row in range(size)])
    return path


def counted_noise(patch: pytest.MonkeyPatch) -> list[int]:
    """Number of variates of each call of `add_noise` in this process."""
    real, drawn = NoiseSource.add_noise, []

    def counting(self: NoiseSource, value: Any, std: float) -> Any:
        drawn.append(value.size)
        return real(self, value, std)

    patch.setattr(NoiseSource, "add_noise", counting)
    return drawn


def take_part(folder: Path, names: Collection[str], number: int) -> int:
    """One of four processes: its part of every case, by groups of two, three and four."""
    import torch.distributed as dist

    patch = pytest.MonkeyPatch()
    patch.setattr(noise.os, "urandom", lambda n: bytes([1 + number]) * n)
    drawn = counted_noise(patch)
    for size in range(max(2, number + 1), 5):
        store = dist.FileStore(str(folder / f"store{size}"), size)
        dist.init_process_group("gloo", store=store, rank=number, world_size=size)
        for name, (sizes, _) in CASES.items():
            if name in names and size in sizes:
                drawn.clear()
                train_run(request_of(folder, name, folder / f"{name}-{size}"), Silent(), TorchGroup(number, size))
                (folder / f"{name}-{size}.{number}.json").write_text(json.dumps(drawn))
        dist.barrier()
        dist.destroy_process_group()
    return 0


def run_as(folder: Path, number: int, port: str) -> int:
    """One of two processes that run the command: numbers 0 and 1, which dies, then 2 and 3, which go on with it."""
    for stream, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(folder / f"{name}{number}", os.O_WRONLY | os.O_CREAT), stream)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    os.environ |= {"RANK": str(number % 2), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    patch = pytest.MonkeyPatch()
    patch.setattr(noise.os, "urandom", lambda n: bytes([1 + number]) * n)
    patch.setattr(_terminal, "LONG", math.inf)  # or a slow run says how far it is
    if number == 1:
        left = [DIES_AT]

        def dies(self: Silent, count: int = 1) -> None:
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)

        patch.setattr(Silent, "step", dies)
    sampled = ["--method", "dp-sgd", "--q", 0.3, "--accountant", "rdp"]
    return run(command(folder, "killed", *sampled, *([] if number < 2 else ["--resume"])))


def copies(work: Callable[[int], int], numbers: Sequence[int]) -> list[int]:
    """Exit statuses of copies of this process that work at the same time, each on one thread."""

    def on_one_thread(number: int) -> int:
        threads._outer.clear()  # the suite's, with all threads for passes over rows
        with threadpool_limits(1):
            return work(number)

    children = [start_copy(lambda number=number: on_one_thread(number)) for number in numbers]
    return [ended(child) for child in children]


class GroupRuns:
    """What the processes left: the folder, and exit status and output of the four that ran the command."""

    def __init__(self, folder: Path, names: Collection[str]) -> None:
        self.folder, self.names = folder, names
        write_many(folder / "features.h5")
        write_unlabelled(folder / "unlabelled.h5", width=WIDTH)
        self.expect()  # first, so that the copies of this process need not account for the same runs again
        self.shares = copies(lambda number: take_part(folder, names, number), range(4))
        port = free_port()
        self.status = copies(lambda number: run_as(folder, number, port), (0, 1))
        shutil.copytree(folder, folder.with_name("after_the_kill"))
        port = free_port()
        self.status += copies(lambda number: run_as(folder, number, port), (2, 3))
        self.stdout, self.stderr = (
            [(folder / f"{name}{n}").read_text() for n in range(4)] for name in ("stdout", "stderr")
        )

    def expect(self) -> None:
        """Make the reference runs in one process."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(noise.os, "urandom", lambda n: bytes([1]) * n)
            drawn = counted_noise(patch)
            for name in self.names:
                drawn.clear()
                train_run(request_of(self.folder, name, self.folder / f"{name}-1"), Silent())
                (self.folder / f"{name}-1.0.json").write_text(json.dumps(drawn))
            whole = replace(request_of(self.folder, "dp-sgd", self.folder / "whole"), precision="float32")
            train_run(whole, Silent())


@pytest.fixture(scope="module")
def group_runs(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> GroupRuns:
    """All runs of the four processes that the tests of this session ask for, made once."""
    pytest.importorskip("torch.distributed")
    given = (getattr(item, "callspec", None) for item in request.session.items if item.path == request.path)
    names = {found.params["name"] for found in given if found is not None and "name" in found.params}
    return GroupRuns(tmp_path_factory.mktemp("distributed"), [name for name in CASES if name in names])


SHARED = pytest.mark.parametrize(
    ("name", "size"),
    mostly_nightly(
        [(name, size) for name, (sizes, _) in CASES.items() for size in sizes], lambda case: case[0] in KEPT
    ),
)


@SHARED
def test_several_processes_make_what_one_makes(group_runs: GroupRuns, name: str, size: int) -> None:
    assert group_runs.shares == [0] * 4
    check_equal(group_runs.folder / f"{name}-{size}", group_runs.folder / f"{name}-1")


@SHARED
def test_noise_is_drawn_once(group_runs: GroupRuns, name: str, size: int) -> None:
    drawn = [json.loads((group_runs.folder / f"{name}-{size}.{number}.json").read_text()) for number in range(size)]
    alone = json.loads((group_runs.folder / f"{name}-1.0.json").read_text())
    assert alone
    assert drawn == [alone] + [[]] * (size - 1)


def test_when_one_process_dies_the_others_end_with_one_line(group_runs: GroupRuns) -> None:
    assert group_runs.status[:2] == [1, -signal.SIGKILL]
    assert group_runs.stdout[:2] == ["", ""]
    warning, cost, notes, error = group_runs.stderr[0].splitlines()
    assert "customary" in warning
    assert "what it had released costs epsilon" in cost
    assert (
        notes == f"unfinished run kept; the same command with --resume --out {group_runs.folder / 'killed'} resumes it"
    )
    assert error.startswith("linprobe: error: another process is gone (")
    assert error.endswith(
        "; see its own error; without one, start all of them again, with --resume if a checkpoint was kept"
    )
    assert len(error) < 200
    assert "Traceback" not in "".join(group_runs.stderr)
    after = group_runs.folder.with_name("after_the_kill")
    assert not (after / "killed").exists()
    assert len(unfinished(after / "killed")) == 1


def test_as_many_processes_go_on_with_the_run(group_runs: GroupRuns) -> None:
    assert group_runs.status[2:] == [0, 0], group_runs.stderr
    check_equal(group_runs.folder / "killed", group_runs.folder / "whole")


def test_only_rank_0_prints(group_runs: GroupRuns) -> None:
    assert group_runs.stdout[2:] == [f"{group_runs.folder / 'killed'}\n", ""]
    assert group_runs.stderr[3] == ""


def test_another_number_of_processes_goes_on_with_the_run(group_runs: GroupRuns, tmp_path: Path) -> None:
    (left,) = unfinished(group_runs.folder.with_name("after_the_kill") / "killed")
    shutil.copytree(left, tmp_path / ".alone.0.partial")
    request = replace(request_of(group_runs.folder, "dp-sgd", tmp_path / "alone"), precision="float32", resume=True)
    train_run(replace(request, book=None), Silent())
    check_equal(tmp_path / "alone", group_runs.folder / "whole")


@pytest.mark.nightly  # `run_as` sets what torchrun sets; here is its start
def test_torchrun_trains_and_prints_one_path(group_runs: GroupRuns, tmp_path: Path) -> None:
    # the one start of torchrun itself: two new processes that import torch take some seconds
    from torch.distributed import run as torchrun

    words = command(group_runs.folder, "seeded", "--method", "noisy-gd", "--noise-seed", 3, "--insecure-seed")
    given = ["--nproc-per-node", "2", "--master-port", free_port(), "-m", "linprobe", *words]

    def launch() -> int:
        os.chdir(Path(__file__).parents[2])
        os.dup2(os.open(tmp_path / "stdout", os.O_WRONLY | os.O_CREAT), 1)
        torchrun.main(given)
        return 0

    assert ended(start_copy(launch)) == 0
    assert (tmp_path / "stdout").read_text() == f"{group_runs.folder / 'seeded'}\n"
    one = replace(request_of(group_runs.folder, "noisy-gd", tmp_path / "one"), noise_seed=3, insecure_seed=True)
    train_run(one, Silent())
    check_equal(group_runs.folder / "seeded", tmp_path / "one")


ELASTIC = """
import os, signal, sys
from linprobe.cli import run
from linprobe.mechanisms import noise
from linprobe.errors import Silent

attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
noise.os.urandom = lambda n: bytes([1 + attempt]) * n
left = [{dies_at}]

def dies(self, count=1):
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)

if os.environ["RANK"] == "1" and attempt == 0:
    Silent.step = dies
sys.exit(run(sys.argv[1:]))
"""


@pytest.mark.nightly  # it once hung in the rendezvous of torchrun
def test_an_elastic_restart_goes_on_from_the_checkpoint_with_the_same_noise(
    group_runs: GroupRuns, tmp_path: Path
) -> None:
    from torch.distributed import run as torchrun

    script = tmp_path / "elastic.py"
    script.write_text(ELASTIC.format(dies_at=DIES_AT))
    sampled = ["--method", "dp-sgd", "--q", 0.3, "--accountant", "rdp", "--resume"]
    words = command(group_runs.folder, "elastic", *sampled)
    # standalone: the static rendezvous keeps its store, with addresses of dead processes in it
    given = ["--nproc-per-node", "2", "--max-restarts", "1", "--standalone", str(script), *words]

    def launch() -> int:
        os.environ["PYTHONPATH"] = str(Path(__file__).parents[2])
        os.dup2(os.open(tmp_path / "stdout", os.O_WRONLY | os.O_CREAT), 1)
        torchrun.main(given)
        return 0

    assert ended(start_copy(launch), 3 * PATIENCE) == 0  # five processes import torch, one after another
    assert (tmp_path / "stdout").read_text() == f"{group_runs.folder / 'elastic'}\n"
    # other bytes of the operating system after the restart: a run from the start would have other noise
    check_equal(group_runs.folder / "elastic", group_runs.folder / "whole")


class Second(Group):
    """The second process of a group whose other processes do not exist."""

    def __init__(self, size: int = 2, told: Any = None) -> None:
        self.rank, self.size, self._told = 1, size, told

    def broadcast(self, array: Any) -> Any:
        return array if self._told is None else self._told


def other_row(folder: Path) -> dict[str, Any]:
    """Another copy of the rows, in which one row of the part of process 1 is another."""
    shutil.copyfile(folder / "s" / "1.h5", folder / "other.h5")
    with h5py.File(folder / "other.h5", "r+") as file:
        file["train/x"][-1] *= -1
    return {"features": folder / "other.h5"}


def shard_more(folder: Path) -> dict[str, Any]:
    """One shard more, before the others: rows of process 0 are in the part of process 1 again."""
    names = ("ant", "bee", "cat")
    with FeatureWriter(folder / "s" / "0.h5", Description(class_names=names)) as writer:
        rows, labels = gaussian_rows("more", 2 * SHARD_ROWS, WIDTH, len(names))
        ids = [f"more/{row}" for row in range(len(rows))]
        writer.write_group("train", len(rows), WIDTH, [rows], labels, ids)
    return {"features": folder / "s" / "*.h5"}


def other_clip_norm(_: Path) -> dict[str, Any]:
    """Ten times the sensitivity in process 1."""
    return {"options": {"clip_norm": 5.0}}


@pytest.mark.parametrize("view", [other_row, shard_more, other_clip_norm])
def test_processes_with_other_rows_or_settings_than_process_0_are_refused_before_a_release(
    tmp_path: Path, view: Callable[[Path], dict[str, Any]]
) -> None:
    (tmp_path / "s").mkdir()
    alike = {"epsilon": 3.0, "steps": 2, "method": "noisy-gd", "options": {"clip_norm": 0.5}, "out": tmp_path / "out"}
    request = TrainRequest(features=write_many(tmp_path / "s" / "1.h5"), book=tmp_path / "book", **alike)
    second = replace(request, **view(tmp_path))
    with pytest.raises((DataError, UsageError), match=r"process.*nothing was spent"):  # of either process
        in_group(2, lambda group: train_run(second if group.rank else request, Silent(), group))
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "book").exists()
    assert not unfinished(tmp_path / "out")


def test_too_many_processes_are_refused_before_the_book_is_charged(tmp_path: Path) -> None:
    # torchrun kills process 0 when another one refuses, which would leave its whole plan in the book
    request = TrainRequest(
        features=write_many(tmp_path / "f.h5"), epsilon=3.0, method="noisy-gd", out=tmp_path / "o", book=tmp_path / "b"
    )
    with pytest.raises(UsageError, match="--nproc-per-node 4"):
        in_group(5, lambda group: train_run(request, Silent(), group))
    assert not (tmp_path / "b").exists()


def test_tasks_without_torchrun_are_told_that_each_spends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    assert run(["train", "--method", "noisy-gd", "--eps", "3", "--steps", "2", "--out", "run"]) == 0
    assert "this is one of 4 tasks, and each makes a run of its own" in " ".join(capsys.readouterr().err.split())


def test_a_command_that_each_process_would_do_anew_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    assert run(["tune", "--eps", "3", "--grid", "clip-norm=0.5,1", "--method", "noisy-gd"]) == 2
    error = capsys.readouterr().err
    assert "linprobe: process 1: error: tune was started in 2 processes" in " ".join(error.split())
    assert run(["tune", "--help"]) == 0
    for call in (
        lambda: linprobe.train(epsilon=1),
        lambda: linprobe.tune(epsilon=1, method="noisy-gd", shrink=[0, 1]),
        lambda: linprobe.compare(methods=["noisy-gd"], epsilons=[1], out="compared"),
        lambda: linprobe.evaluate("run", epsilon=1),
    ):
        with pytest.raises(UsageError, match="started in 2 processes"):
            call()
    assert not [*tmp_path.iterdir()]


class PowerCut(Silent):
    """Ends the second step."""

    left = 2

    def step(self, count: int = 1) -> None:
        self.left -= 1
        if not self.left:
            raise RuntimeError("power cut")


def test_a_run_that_may_resume_has_a_checkpoint_after_its_first_step(tmp_path: Path) -> None:
    # with the default of 60 seconds a restart would begin another run, and spend again
    request = TrainRequest(
        features=write_many(tmp_path / "f.h5"), epsilon=3.0, method="noisy-gd", steps=3, out=tmp_path / "o", resume=True
    )
    with pytest.raises(RuntimeError, match="power cut"):
        train_run(request, PowerCut())
    assert [(folder / CHECKPOINT).is_file() for folder in unfinished(tmp_path / "o")] == [True]


@pytest.mark.parametrize(("n_rows", "size"), [(2 * SHARD_ROWS, 3), (1, 2), (SHARD_ROWS, 2)])
def test_more_processes_than_parts_are_refused(n_rows: int, size: int) -> None:
    source = ArraySource(np.ones((n_rows, 2), dtype=np.float32), np.zeros(n_rows, dtype=np.int64))
    with pytest.raises(UsageError, match=f"--nproc-per-node {-(-n_rows // SHARD_ROWS)}"):
        prepare_shard(source, None, Preprocessing(), "float32", Second(size))


@pytest.mark.parametrize("n_rows", [2 * SHARD_ROWS, 3 * SHARD_ROWS + 1, 7 * SHARD_ROWS - 5])
@pytest.mark.parametrize("size", [2, 3])
def test_parts_are_all_rows_in_order(n_rows: int, size: int) -> None:
    size = min(size, -(-n_rows // SHARD_ROWS))
    source = ArraySource(np.arange(n_rows, dtype=np.float32)[:, None], np.arange(n_rows))
    seen, first = [], 0
    for rank in range(size):
        group = Second(size)
        group.rank = rank
        rows = prepare_shard(source, None, Preprocessing(), "float32", group)
        assert (rows.first, rows.n_rows) == (first, n_rows)
        first += rows.n_local
        seen += [label for block in rows.blocks() for label in block.y]
    assert seen == list(range(n_rows))


def test_public_rows_that_train_as_private_ones_are_refused_in_several_processes(tmp_path: Path) -> None:
    features = write_many(tmp_path / "features.h5")
    given = {"sampling_rate": 1.0, "options": {"extended": 0.5}}
    request = TrainRequest(method="dope-sgd", features=features, epsilon=3.0, steps=2, out=tmp_path / "run", **given)
    group = Second()
    group.rank = 0
    with pytest.raises(UsageError, match=r"extended is 0\.5 in 2 processes"):
        train_run(request, Silent(), group)


def test_a_method_without_noise_trains_in_one_process(features_file: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="non-private trains in one process"):
        train_run(TrainRequest(method="non-private", features=features_file, out=tmp_path / "run"), Silent(), Second())


@pytest.mark.parametrize("here", [True, False])
def test_a_checkpoint_that_only_some_processes_see_is_refused(tmp_path: Path, here: bool) -> None:
    if here:
        np.savez(tmp_path / CHECKPOINT, key=np.zeros(32, dtype=np.uint8))
    group, rows = Second(told=np.array(not here)), Dataset(ArraySource(np.eye(2), np.arange(2)), 2)
    with pytest.raises(DataError, match="shared file system"):
        Checkpoints(tmp_path, Ledger(), {}, rows, None, 0.0, group).begin(NoiseSource(), slice(None))


def test_all_processes_sample_by_one_key() -> None:
    """A checkpoint keeps the key of process 0 alone."""
    keys: list[bytes] = []

    class Looking(Observer):
        def sampler(self, source: NoiseSource, rate: float) -> PoissonSampler:
            keys.append(source.key)
            return super().sampler(source, rate)

    dataset = Dataset(ArraySource(*gaussian_rows("train", 2 * WORDS_PER_BLOCK, WIDTH, 3)), 3)
    settings = Settings.of_given(METHODS["dp-sgd"], {"epsilon": 3.0, "delta": 1e-5, "n_steps": 2, **SAMPLED})
    plan = plan_run(settings, dataset)
    in_group(
        2, lambda group: execute(plan, dataset, Runtime(group=group, shard_units=WORDS_PER_BLOCK), None, Looking())
    )
    assert len(keys) == 2
    assert len(set(keys)) == 1
