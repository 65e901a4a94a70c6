"""Training with people as the unit: from Python, in several processes, from a stream, on a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from linprobe import DPSGD, AdaMix, FullyPrivate, NoisyGD
from linprobe.accounting.calibrate import calibrate
from linprobe.data import rows
from linprobe.data.blocks import ArraySource, Preprocessing
from linprobe.data.dataset import Dataset
from linprobe.data.rows import ArrayRows, prepare_shard
from linprobe.errors import DataError, PrivacyError, PrivacyWarning, UsageError
from linprobe.gradients.clipped_sum import row_sum
from linprobe.parallel import available_memory
from linprobe.parallel.process_group import ALONE, Group, in_group
from linprobe.training import execute
from linprobe.training.execute import Runtime, Trained
from linprobe.training.plan import Settings, plan_run
from tests.conftest import gaussian_rows

N, WIDTH, CLASSES = 600, 10, range(4)
X, Y = gaussian_rows("train", N)
OWNERS = np.arange(N) // 3


def settings(**given: Any) -> Settings:
    return NoisyGD(**{"epsilon": 3.0, "n_steps": 4, "insecure_seed": 1, "condition": "none"} | given).settings()


def dataset(sizes: Any) -> Dataset:
    bounds = np.concatenate([[0], np.cumsum(sizes)])
    return Dataset(ArraySource(X[: bounds[-1]], Y[: bounds[-1]]), 4, bounds=bounds)


def train_on(given: Dataset, runtime: Runtime | None = None) -> Trained:
    return execute.execute(plan_run(settings(), given), given, runtime)


def test_the_estimator_protects_people() -> None:
    probe = NoisyGD(epsilon=3, classes=CLASSES, n_steps=10).fit(X, Y, owners=OWNERS)
    privacy = probe.privacy_
    assert (privacy["unit"], privacy["n_units"]) == ("owner", 200)
    assert privacy["noise_multiplier"] == pytest.approx(
        calibrate(epsilon=3, delta=1e-5, n_private=200, steps=10).noise_multiplier, rel=0.2
    )
    losses = probe.private_record_losses_.epsilon(1e-5)
    assert losses.shape == (200,)
    assert losses.max() <= privacy["epsilon"]
    assert probe.score(X, Y) > 0.5
    assert NoisyGD(epsilon=3, classes=CLASSES, n_steps=2).fit(X, Y).privacy_["unit"] == "record"


def test_the_order_of_rows_does_not_matter() -> None:
    order = np.random.default_rng(0).permutation(N)
    given = {"epsilon": 3, "classes": CLASSES, "n_steps": 4, "insecure_seed": 5}
    names = np.array([f"p{owner:03d}" for owner in OWNERS])
    here = NoisyGD(**given).fit(X, Y, owners=names)
    there = NoisyGD(**given).fit(X[order], Y[order], owners=list(names[order]))
    np.testing.assert_allclose(here.coef_, there.coef_, atol=1e-4 * np.abs(here.coef_).max())
    assert here.owners_.tolist() == there.owners_.tolist() == sorted(set(names))


@pytest.mark.parametrize("owners", [OWNERS[:-1], OWNERS / 2, OWNERS[:, None]])
def test_owners_that_do_not_fit_are_refused(owners: Any) -> None:
    with pytest.raises(DataError, match="owners has shape"):
        NoisyGD(epsilon=3, classes=CLASSES).fit(X, Y, owners=owners)


def test_delta_is_held_against_the_number_of_people() -> None:
    with pytest.raises(PrivacyError, match="200"):
        NoisyGD(epsilon=3, delta=0.006, classes=CLASSES, n_steps=2).fit(X, Y, owners=OWNERS)
    with pytest.warns(PrivacyWarning, match="200"):
        NoisyGD(epsilon=3, delta=0.004, classes=CLASSES, n_steps=2).fit(X, Y, owners=OWNERS)
    with pytest.raises(PrivacyError, match="600"):
        NoisyGD(epsilon=3, delta=0.004, classes=CLASSES, n_steps=2).fit(X, Y)


def test_public_rows_of_unknown_owners_are_not_protected_as_people() -> None:
    probe = FullyPrivate(epsilon=3, n_steps=2, classes=CLASSES)
    with pytest.raises(UsageError, match="no public rows"):
        probe.fit(X, Y, X[:8], Y[:8], owners=OWNERS)
    others = np.roll(X[:8], 1, axis=1)
    assert AdaMix(epsilon=3, n_steps=2).fit(X, Y, others, Y[:8], owners=OWNERS).privacy_["n_units"] == 200


def test_a_sample_draws_whole_people(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    original = ArrayRows._people

    def watched(self: ArrayRows, bounds: Any, size: int, sampled: Any) -> Any:
        for load in original(self, bounds, size, sampled):
            block = load()
            if sampled is not None:
                seen.append((len(sampled), int(sampled.sum()), np.diff(block.bounds)))
            yield lambda block=block: block

    monkeypatch.setattr(ArrayRows, "_people", watched)
    given = {"epsilon": 3, "classes": CLASSES, "n_steps": 3, "accountant": "rdp", "per_record": False}
    DPSGD(sampling_rate=0.5, condition="none", **given).fit(X, Y, owners=OWNERS)
    assert {n for n, _, _ in seen} == {200}
    for _, _, sizes in seen:
        assert sizes.tolist() == [3] * 200


def test_the_private_mean_has_the_sensitivity_of_a_person() -> None:
    def mean(extra: int) -> Any:
        """The mean released of 100 people, the last of whom has `extra` equal rows more."""
        x = np.concatenate([X[:300], np.repeat(X[299:300], extra, axis=0)])
        rows_of = prepare_shard(
            ArraySource(x, np.zeros(len(x), dtype=int)),
            np.array([*range(0, 300, 3), len(x)]),
            Preprocessing(),
            "float32",
            ALONE,
        )
        return row_sum(rows_of, 1.0).value

    assert np.linalg.norm(mean(0) - mean(5000)) <= 1.0


@pytest.mark.parametrize("n_ranks", [1, 2, 3])
@pytest.mark.parametrize("memory", [True, False])
def test_processes_and_streams_train_the_same_model(n_ranks, memory, monkeypatch) -> None:
    monkeypatch.setattr(rows, "SHARD_ROWS", 128)
    sizes = np.random.default_rng(0).integers(1, 3, 350)
    given = dataset(sizes)
    want = train_on(given)
    if not memory:
        monkeypatch.setattr(available_memory, "suffices", lambda n_bytes: False)

    def member(group: Group) -> Any:
        return train_on(given, Runtime(group=group))

    found = in_group(n_ranks, member)
    for trained in found:
        np.testing.assert_array_equal(trained.weights, want.weights)
    assert found[0].losses is not None
    assert want.losses is not None
    np.testing.assert_array_equal(found[0].losses.mu, want.losses.mu)
    assert len(want.losses.mu) == 350


def test_a_person_is_in_one_shard(monkeypatch) -> None:
    monkeypatch.setattr(rows, "SHARD_ROWS", 128)
    sizes = np.random.default_rng(0).integers(1, 3, 300)
    given = dataset(sizes)

    def member(group: Group) -> Any:
        shard = prepare_shard(given.private, given.bounds, Preprocessing(), "float32", group)
        return shard.first, shard.n_local, [np.diff(block.bounds) for block in shard.blocks()]

    found = in_group(2, member)
    assert [first for first, _, _ in found] == [0, 128]
    assert sum(n for _, n, _ in found) == 300
    assert np.concatenate([part for _, _, parts in found for part in parts]).tolist() == sizes.tolist()


def test_a_device_gives_the_model_of_the_host() -> None:
    torch = pytest.importorskip("torch")
    from linprobe.gradients import gpu

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execute, "choose_backend", lambda device: gpu.GpuBackend(torch.device("cpu")))
        sizes = [*[1, 2, 4] * 60, 30]
        on_device = train_on(dataset(sizes))
    host = train_on(dataset(sizes))
    assert on_device.privacy.unit == host.privacy.unit == "owner"
    np.testing.assert_allclose(on_device.weights, host.weights, atol=0.02 * np.abs(host.weights).max())
    assert on_device.losses is not None
    assert host.losses is not None
    np.testing.assert_allclose(on_device.losses.mu, host.losses.mu, atol=0.06)
