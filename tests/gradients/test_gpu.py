"""Training on rows of a torch device: the same code and noise as on the host, without synchronisation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from linprobe.api.estimators import DPSGD, NGD, AdaMix, FullyPrivate, NoisyGD
from linprobe.data.blocks import ArraySource, narrowed
from linprobe.data.rows import ArrayRows
from linprobe.errors import UsageError
from linprobe.gradients import gpu as device_module
from linprobe.gradients.backend import products
from linprobe.gradients.gpu import DeviceProducts, DeviceRows, GpuBackend
from linprobe.gradients.rounding import SUM_ROWS, ExactSum
from linprobe.mechanisms import gpu_noise
from linprobe.mechanisms.gaussian import GaussianMechanism
from linprobe.mechanisms.gpu_noise import DeviceNoise
from linprobe.mechanisms.noise import NoiseSource
from linprobe.methods import Run, Schedule
from linprobe.methods._base import Iterates, project_to_ball
from linprobe.training.execute import Runtime
from tests.mechanisms.test_gpu_noise import Watch

CPU = torch.device("cpu")
N, D, C = 2300, 33, 5
G = np.random.default_rng(0)
CENTRES = G.normal(size=(C, D))
Y = G.integers(0, C, N)
X = (CENTRES[Y] + 2 * G.normal(size=(N, D))).astype(np.float32)
PUBLIC, PRIVATE = ArraySource(X[:60], Y[:60]), ArraySource(X[60:], Y[60:])


@pytest.fixture
def torch_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's CPU device in place of a GPU."""
    monkeypatch.setattr(device_module, "check_device", lambda name: CPU)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (NoisyGD, {}),
        (NoisyGD, {"output": "vote", "radius": 3.0}),
        (AdaMix, {}),
        (AdaMix, {"output": "ema", "per_record": False}),
        (NGD, {"output": "weighted"}),
        (FullyPrivate, {"output": "last"}),
    ],
)
def test_a_device_trains_what_the_host_trains(kind, options, precision, torch_cpu) -> None:
    settings = {"epsilon": 2.0, "classes": range(C), "insecure_seed": 5, "n_steps": 12, **options}
    host, there = (
        kind(**settings).fit_sources(PRIVATE, PUBLIC, runtime=Runtime(precision, device)) for device in ("cpu", "cuda")
    )
    np.testing.assert_allclose(there.coef_, host.coef_, atol=2e-5 * np.abs(host.coef_).max())
    np.testing.assert_allclose(there.private_record_losses_.mu, host.private_record_losses_.mu, rtol=1e-3, atol=1e-9)
    assert there.privacy_["epsilon_if_seed_were_secret"] == host.privacy_["epsilon_if_seed_were_secret"]
    for before, after in zip(host.history_, there.history_, strict=True):
        assert before == pytest.approx(after, rel=1e-4)


@pytest.mark.parametrize(
    ("kind", "options", "reason"),
    [
        (DPSGD, {}, "method dp-sgd trains on device cpu"),
        (AdaMix, {"subspace": "gradient"}, "subspace is 'gradient' on device"),
        (AdaMix, {"variant": "theory"}, "variant is 'theory' on device"),
    ],
)
def test_what_a_device_cannot_do_is_refused(kind, options, reason, torch_cpu) -> None:
    probe = kind(epsilon=2.0, classes=range(C), **options)
    with pytest.raises(UsageError, match=reason):
        probe.fit_sources(PRIVATE, PUBLIC, runtime=Runtime(device="cuda"))


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


def test_weights_that_grew_too_large_meet_no_record_on_a_device() -> None:
    rows = DeviceRows(ArrayRows(X, Y), CPU)
    mechanism = GaussianMechanism(DeviceNoise(NoiseSource(1), CPU), lambda event: None)
    run = Run(Schedule(1, 3.0, 1.0), mechanism, lambda: None, backend=GpuBackend(CPU))
    for bad in (1e31, np.inf, np.nan):
        found = run.gradient(rows, torch.full((D, C), bad, dtype=torch.float64), 0.5)
        assert torch.isfinite(found).all()


def steps(rows: DeviceRows, per_record: bool) -> None:
    """Two steps of noisy descent, as methods take them."""
    backend = GpuBackend(rows.device)
    noise = backend.noise(NoiseSource())
    schedule, mechanism = Schedule(2, 3.0, 1.0), GaussianMechanism(noise, lambda event: None)
    run = Run(schedule, mechanism, lambda: None, per_record=per_record, backend=backend)
    iterates = Iterates(backend.zeros(D, C), 2, "average", 2)
    for _ in run.steps(iterates):
        weights = iterates.weights
        after = weights - 0.1 * (run.gradient(rows, weights, 0.5) + 0.01 * weights)
        iterates.move(project_to_ball(after, weights, 2.0), clip_norm=0.5)


@pytest.mark.parametrize("per_record", [True, False])
def test_a_step_reads_nothing_back_but_which_numbers_need_a_second_look(per_record, monkeypatch) -> None:
    monkeypatch.setattr(gpu_noise, "places", lambda unsure: [])
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
