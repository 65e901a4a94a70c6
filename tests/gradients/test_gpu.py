"""Training on rows of a torch device: the same code and noise as on the host, without synchronisation."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import cpp_extension

from linprobe.accounting.ledger import Ledger
from linprobe.api.estimators import (
    DPSGD,
    DPSGDF,
    NGD,
    PPGD,
    AdaMix,
    DopeSGD,
    FullyPrivate,
    MirrorDescent,
    NoisyGD,
    Prototypes,
)
from linprobe.data.blocks import ArraySource, narrowed, normalise_rows
from linprobe.data.rows import FAR, ArrayRows
from linprobe.errors import DivergedError, ParameterError, UsageError
from linprobe.gradients import clipped_sum as clipped_sum_module
from linprobe.gradients import gpu as device_module
from linprobe.gradients.backend import ClippedBlock, products
from linprobe.gradients.clipped_sum import clipped_sum
from linprobe.gradients.gpu import DeviceBlock, DeviceProducts, DeviceRows, GpuBackend, Kernel
from linprobe.gradients.loss import Origin
from linprobe.gradients.rounding import SUM_ROWS, ExactSum
from linprobe.mechanisms import gpu_noise
from linprobe.mechanisms.gaussian import GaussianMechanism
from linprobe.mechanisms.gpu_noise import DeviceNoise
from linprobe.methods import METHODS, Run, Schedule
from linprobe.methods._base import Iterates, Keeper, project_to_ball
from linprobe.parallel.array_api import on_host
from linprobe.training.execute import Runtime
from linprobe.training.plan import Settings
from tests.conftest import executed, mostly_nightly
from tests.mechanisms.test_gpu_noise import Watch, needs_fake_gpu

CPU = torch.device("cpu")
N, D, C = 2300, 33, 5
G = np.random.default_rng(0)
CENTRES = G.normal(size=(C, D))
Y = G.integers(0, C, N)
X = (CENTRES[Y] + 2 * G.normal(size=(N, D))).astype(np.float32)
PUBLIC, PRIVATE = ArraySource(X[:60], Y[:60]), ArraySource(X[60:], Y[60:])


class OnHost(torch.Tensor):
    """What `cpu` gives: NumPy takes it."""

    def __array__(self, *args: object) -> np.ndarray:
        return self.as_subclass(torch.Tensor).numpy()


@pytest.fixture
def torch_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's CPU device in place of a GPU. As there, NumPy takes no tensor that was not copied to the host."""

    def refuse(self: torch.Tensor, *args: object) -> None:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    monkeypatch.setattr(torch.Tensor, "__array__", refuse)
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: self.as_subclass(OnHost))
    monkeypatch.setattr(device_module, "check_device", lambda name: CPU)


def stand_in(x, weights, y, norms, joined, total, bound, shift) -> tuple[torch.Tensor, torch.Tensor]:
    """What the kernel computes, by torch."""
    r = torch.softmax(x.float() @ weights.T, 1)
    r[torch.arange(len(y)), y] -= 1
    r_norms = r.norm(dim=1)
    factors = (bound / (norms.float() * r_norms)).clip(None, 1)
    r = r * (factors if joined is None else factors * joined)[:, None]
    for start in range(0, len(x), SUM_ROWS):
        here = slice(start, start + SUM_ROWS)
        total += (r[here].T @ x[here, : total.shape[1]].float()).double() + shift - shift
    return r_norms, factors


ON_DEVICE = [
    (NoisyGD, {}),
    (NoisyGD, {"output": "vote", "radius": 3.0}),
    (AdaMix, {}),
    (AdaMix, {"output": "ema", "per_record": False}),
    (NGD, {"output": "weighted"}),
    (FullyPrivate, {"output": "last"}),
    (AdaMix, {"subspace": "features", "subspace_dim": 3}),
    (PPGD, {}),
    (Prototypes, {"n_steps": None}),
    (DPSGD, {"sampling_rate": 0.2}),
    (DPSGD, {"sampling_rate": 0.2, "per_record": False}),
    (MirrorDescent, {"sampling_rate": 0.2}),
    (DopeSGD, {"sampling_rate": 0.2}),
    (DopeSGD, {"sampling_rate": 0.2, "origin": "history", "optimizer": "momentum"}),
]
PRECISIONS = ("float32", "bfloat16", "float16")


@pytest.mark.parametrize(
    ("kind", "options", "precision"),
    mostly_nightly(
        [(*case, precision) for case in ON_DEVICE for precision in PRECISIONS],
        lambda case: case[2] == PRECISIONS[ON_DEVICE.index(case[:2]) % 3],
    ),
)
def test_a_device_trains_what_the_host_trains(kind, options, precision, torch_cpu) -> None:
    given = {"epsilon": 2.0, "classes": range(C), "insecure_seed": 5, "n_steps": 12, **options}
    settings = {name: value for name, value in given.items() if value is not None}
    host, there = (
        executed(kind(**settings), PRIVATE, PUBLIC, Runtime(precision, device)) for device in ("cpu", "cuda")
    )
    np.testing.assert_allclose(there.weights, host.weights, atol=2e-5 * np.abs(host.weights).max())
    if "sampling_rate" not in options:
        losses = (each.losses.mu for each in (there, host))
        np.testing.assert_allclose(*losses, rtol=1e-3, atol=1e-9)
    elif options.get("per_record", True):
        losses = (replace(each.losses, releases=each.privacy.releases).epsilon(1e-5) for each in (there, host))
        np.testing.assert_allclose(*losses, rtol=1e-2)
    stated = [each.privacy.stated()["epsilon_if_seed_were_secret"] for each in (there, host)]
    assert stated[0] == stated[1]
    for before, after in zip(host.history, there.history, strict=True):
        assert before == pytest.approx(after, rel=1e-4)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (AdaMix, {"subspace": "features", "subspace_dim": 3}),
        (AdaMix, {"subspace": "gradient", "subspace_dim": 9, "per_record": False}),
        (DPSGD, {"sampling_rate": 0.2}),
        (MirrorDescent, {"sampling_rate": 1.0}),
        (PPGD, {"intercept": 0.0}),
    ],
)
def test_a_device_with_the_kernel_trains_what_the_host_trains(kind, options, torch_cpu, monkeypatch) -> None:
    calls = []
    monkeypatch.setattr(Kernel, "of", lambda *shape: lambda *given: calls.append(1) or stand_in(*given))
    test_a_device_trains_what_the_host_trains(kind, options, "bfloat16", None)
    assert len(calls) >= 12


@pytest.mark.parametrize(
    ("kind", "options", "reason"),
    [
        (DPSGDF, {}, "method dpsgd-f trains on device cpu"),
        (DopeSGD, {"extended": 0.5}, "extended is 0.5 on device"),
        (AdaMix, {"variant": "theory"}, "variant is 'theory' on device"),
    ],
)
def test_what_a_device_cannot_do_is_refused(kind, options, reason, torch_cpu) -> None:
    probe = kind(epsilon=2.0, classes=range(C), **options)
    with pytest.raises(UsageError, match=reason):
        executed(probe, PRIVATE, PUBLIC, Runtime(device="cuda"))


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_device_blocks_are_those_of_the_host_whatever_their_size(precision, monkeypatch) -> None:
    monkeypatch.setattr(device_module, "DEVICE_ROWS", 700)
    host = ArrayRows(narrowed(X, precision), Y)
    there = DeviceRows(host, CPU)
    found = [(block.start, block.x, block.y, block.norms) for block in there.blocks()]
    assert [start for start, *_ in found] == [0, 700, 1400, 2100]
    for place, expected in ((1, "x"), (2, "y"), (3, "norms")):
        whole = torch.cat([block[place] for block in found]).numpy()
        assert np.array_equal(whole, np.concatenate([getattr(block, expected) for block in host.blocks()]))


@pytest.mark.parametrize("b", [0, 1, SUM_ROWS - 1, SUM_ROWS, 3 * SUM_ROWS + 5])
def test_products_are_those_of_the_host(b, monkeypatch) -> None:
    monkeypatch.setattr(device_module, "SUMS_BYTES", 2 * 4 * C * D)
    weights = G.normal(size=(C, D)).astype(np.float32)
    x, r = X[:b], G.normal(size=(b, C)).astype(np.float32)
    there, host = DeviceProducts(torch.from_numpy(weights)), products(weights)
    tx, tr = torch.from_numpy(x), torch.from_numpy(r)
    np.testing.assert_allclose(there.scores(tx).numpy(), host.scores(x), atol=1e-4)
    found, expected = (ExactSum(taken.zeros(), np.array(1e3), 1) for taken in (there, host))
    there.add(found, tr, tx)
    host.add(expected, r, x)
    assert found.total.dtype == torch.float64
    np.testing.assert_allclose(found.total.numpy(), expected.total, atol=1e-3)


@pytest.mark.parametrize(("origin", "limit"), [(None, "ROUNDED_ROWS"), (1e4, "WIDE_ROWS")])
def test_no_float64_sum_of_more_rows_is_rounded_as_a_whole(origin, limit, monkeypatch) -> None:
    m, n = device_module.ROUNDED_ROWS // SUM_ROWS, clipped_sum_module.WIDE_ROWS
    assert max(m * (m + 3) * SUM_ROWS, n * (n + 3)) * 2.0**-53 <= 2.0**-27  # lemma 2 of docs/proofs/clipped-sum.md
    added, add = list[int](), ExactSum.add
    monkeypatch.setattr(ExactSum, "add", lambda self, term: (added.append(len(term)), add(self, term)))
    monkeypatch.setattr(device_module if origin is None else clipped_sum_module, limit, 512)
    rows, weights = ArrayRows(X, Y), G.normal(size=(D, C))
    how = {} if origin is None else {"geometry": Origin(np.full((D, C), origin))}
    there = DeviceRows(rows, CPU)
    found = clipped_sum(there, torch.from_numpy(weights), 0.5, backend=GpuBackend(CPU), **how)
    assert added == [C] * (N // 512 + (2 if origin is None else 1))
    expected = clipped_sum(rows, weights, 0.5, **how).value
    np.testing.assert_allclose(found.value.numpy(), expected, atol=1e-6 * np.abs(expected).max())


def run_on_device(n_steps: int, keeper: Keeper | None = None) -> Run:
    mechanism = GaussianMechanism(DeviceNoise(CPU, 1), lambda event: None)
    return Run(Schedule(n_steps, 3.0, 1.0), mechanism, lambda: None, keeper=keeper, backend=GpuBackend(CPU))


def test_weights_that_grew_too_large_meet_no_record_on_a_device() -> None:
    rows, run = DeviceRows(ArrayRows(X, Y), CPU), run_on_device(1)
    for bad in (1e31, np.inf, np.nan):
        found = run.gradient(rows, torch.full((D, C), bad, dtype=torch.float64), 0.5)
        assert torch.isfinite(found).all()
        with pytest.raises(DivergedError):
            run.gradient(rows, np.full((D, C), bad), 0.5)


class Kept:
    """Keeps the state after the last step, as a checkpoint does."""

    def __init__(self, state: dict | None = None) -> None:
        self.state = state

    def restored(self) -> dict | None:
        return self.state

    def offer(self, state: dict) -> None:
        self.state = {
            name: np.array(json.dumps(value)) if name == "history" else on_host(value).copy()
            for name, value in state.items()
        }

    def withdraw(self) -> None:
        pass


@pytest.mark.parametrize("put", [np.asarray, torch.from_numpy], ids=["host", "device"])
def test_a_resumed_run_adds_to_its_losses_wherever_its_weights_are(put, torch_cpu) -> None:
    rows, kept = DeviceRows(ArrayRows(X, Y), CPU), Kept()

    def squared_mu(run: Run) -> np.ndarray:
        iterates = Iterates(put(np.zeros((D, C))), 2, "last")
        for _ in run.steps(iterates):
            iterates.move(iterates.weights - run.gradient(rows, iterates.weights, 0.5))
        return on_host(run.mechanism.contributed.squared_mu)

    first = squared_mu(run_on_device(1, kept))
    resumed = squared_mu(run_on_device(2, Kept(kept.state)))
    assert np.array_equal(resumed, squared_mu(run_on_device(2)))
    assert (resumed > first).all()


def test_rows_beyond_the_memory_are_refused_before_a_release(torch_cpu) -> None:
    ledger, probe = Ledger(), FullyPrivate(epsilon=2.0, classes=range(C), condition="mean")
    with pytest.raises(UsageError, match="do not fit into this machine's memory"):
        executed(probe, PRIVATE, None, Runtime(device="cuda", streamed=True), ledger)
    assert not ledger.events


def test_a_missing_gpu_is_refused_before_a_charge(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ParameterError, match="torch finds no GPU here"):
        Runtime(device="cuda").check(Settings.of_given(METHODS["noisy-gd"], {"epsilon": 1.0}), "record")


def test_what_computes_is_torch_on_this_kind_of_device() -> None:
    assert GpuBackend(CPU).arithmetic == f"torch {torch.__version__} on cpu"


def steps(rows: DeviceRows, per_record: bool) -> None:
    """Two steps of noisy descent, as methods take them."""
    backend = GpuBackend(rows.device)
    noise = backend.noise()
    schedule, mechanism = Schedule(2, 3.0, 1.0), GaussianMechanism(noise, lambda event: None)
    run = Run(schedule, mechanism, lambda: None, per_record=per_record, backend=backend)
    iterates = Iterates(backend.zeros(D, C), 2, "average", 2)
    for _ in run.steps(iterates):
        weights = iterates.weights
        after = weights - 0.1 * (run.gradient(rows, weights, 0.5) + 0.01 * weights)
        iterates.move(project_to_ball(after, weights, 2.0), clip_norm=0.5)


@needs_fake_gpu
@pytest.mark.parametrize("per_record", [True, False])
def test_a_step_reads_nothing_back_but_which_numbers_need_a_second_look(per_record, monkeypatch) -> None:
    monkeypatch.setattr(gpu_noise, "places", lambda unsure: [])
    monkeypatch.setattr(gpu_noise, "HOST_BLOCKS", 0)
    monkeypatch.setattr(Kernel, "of", lambda *shape: None)
    host = ArrayRows(X, Y)
    with FakeTensorMode():
        rows = DeviceRows(host, torch.device("cuda"))
        with Watch("cuda"):
            steps(rows, per_record)


def test_a_step_does_not_wait_for_a_real_device(monkeypatch) -> None:
    if not torch.cuda.is_available():
        pytest.skip("torch finds no GPU here")
    rows = DeviceRows(ArrayRows(X, Y), torch.device("cuda"))
    steps(rows, True)
    monkeypatch.setattr(gpu_noise, "places", lambda unsure: [])
    torch.cuda.set_sync_debug_mode("error")
    try:
        steps(rows, True)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize(("kind", "rate", "public"), [(DPSGD, 0.1, None), (DopeSGD, 1.0, PUBLIC)])
def test_methods_for_samples_of_people_are_refused_on_a_device(kind, rate, public, torch_cpu) -> None:
    people = np.arange(0, N + 1, 2)
    probe = kind(epsilon=2.0, classes=range(C), n_steps=2, sampling_rate=rate)
    with pytest.raises(UsageError, match=r"here of people; allowed: device cpu, or a method without samples"):
        executed(probe, ArraySource(X, Y), public, Runtime(device="cuda"), bounds=people)


SHAPES = [(10, 2048), (10, 2049), (1, 7), (3, 385), (24, 513), (12, 2049), (5, 33)]


COMPILED = [(*shape, kind, capability) for shape in SHAPES for kind in range(3) for capability in ("80", "90")]


@pytest.mark.parametrize(
    ("n_classes", "n_features", "kind", "capability"),
    mostly_nightly(COMPILED, [(3, 385, 1, "80"), (5, 33, 2, "90"), (1, 7, 0, "90")].__contains__),
)
def test_the_kernel_compiles_for_all_gpus_without_one(n_classes, n_features, kind, capability, monkeypatch) -> None:
    """Without a CUDA toolkit either, as pip installs torch."""
    utils = pytest.importorskip("torch.cuda._utils")
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", None)
    if not hasattr(utils, "_nvrtc_compile") or torch.version.cuda is None:
        pytest.skip("this torch brings no compiler for GPUs")
    source = device_module.source(device_module.shape_of(n_features, n_classes), kind)
    try:
        utils._get_nvrtc_library()
    except OSError as error:
        pytest.skip(f"this torch does not find its compiler: {error}")
    with device_module.toolkit_not_needed():
        binary, name = utils._nvrtc_compile(source, "clipped_sum", compute_capability=capability)
    assert (name, binary[:4]) == ("clipped_sum", b"\x7fELF")


def test_shapes_that_do_not_fit_the_registers_have_no_kernel() -> None:
    assert device_module.shape_of(2049, 13) is None
    assert device_module.shape_of(64, 33) is None
    assert Kernel.of(2048, 10, torch.float32, CPU) is None


GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU here")


def block_of(n: int, n_features: int, n_classes: int, precision: str) -> DeviceBlock:
    g = np.random.default_rng(n)
    x = narrowed(normalise_rows(g.normal(size=(n, n_features)).astype(np.float32)), precision)
    (block,) = DeviceRows(ArrayRows(x, g.integers(0, n_classes, n)), torch.device("cuda")).blocks()
    return block


def clipped(block: DeviceBlock, weights: torch.Tensor, **how) -> tuple[torch.Tensor, ClippedBlock]:
    taken = DeviceProducts(weights)
    total = ExactSum(taken.zeros(), np.array(0.5), 10**5)
    found = taken.clip_block(total, block, 0.5, **how)
    assert found is not None
    return total.total, found


@GPU
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("n_classes", "n_features"), SHAPES)
def test_the_kernel_clips_and_sums_what_float64_does(n_classes, n_features, precision) -> None:
    for n in (1, 127, 128, 5003):
        block = block_of(n, n_features, n_classes, precision)
        weights = 5 * torch.randn(n_classes, n_features, device="cuda")
        total, taken = clipped(block, weights)
        x, there = block.x.double(), torch.arange(n)
        r = torch.softmax(x @ weights.double().T, 1)
        r[there, block.y] -= 1
        factors = (0.5 / (block.norms * r.norm(dim=1))).clip(None, 1)
        assert torch.allclose(taken.r_norms.double(), r.norm(dim=1), atol=1e-5), n
        assert torch.allclose(taken.factors.double(), factors, rtol=1e-4, atol=1e-5), n
        assert torch.allclose(total, (factors[:, None] * r).T @ x, atol=1e-6 * n**0.5 + 1e-6), n


@GPU
def test_the_kernel_keeps_every_gradient_below_the_bound_and_its_bits() -> None:
    block = block_of(1000, 2049, 10, "float32")
    weights = 50 * torch.randn(10, 2049, device="cuda")
    total, taken = clipped(block, weights)
    r = taken.r_norms.double()
    assert (taken.factors.double() * block.norms * r <= 0.5 * (1 + 32 * 2.0**-24)).all()
    for chosen in (0, 127, 128, 640, 999):
        mask = torch.ones(1000, dtype=torch.bool, device="cuda")
        mask[chosen] = False
        without, again = clipped(block, weights, sample=mask)
        assert torch.equal(again.factors, taken.factors)
        assert 0 < (total - without).norm() <= 0.5 * (1 + 2.0**-9)
        stored, norms = block.stored.clone(), block.norms.clone()
        stored[chosen], norms[chosen] = 0, FAR
        emptied, _ = clipped(replace(block, stored=stored, norms=norms), weights)
        assert torch.equal(emptied, without)
    few = Kernel.of(2049, 10, torch.float32, torch.device("cuda"))._replace(n_blocks=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Kernel, "of", lambda *shape: few)
        assert torch.equal(clipped(block, weights)[0], total)
