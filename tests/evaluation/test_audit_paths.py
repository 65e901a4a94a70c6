"""The paths of an audit: the classes that `train` uses, and places that are empty whatever the method does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from linprobe.accounting.calibrate import Budget
from linprobe.data.blocks import ArraySource, Preprocessing
from linprobe.data.dataset import Dataset
from linprobe.data.rows import ArrayRows, Rows, StreamedRows
from linprobe.evaluation.audit import DEVICE_PATHS, HOST_PATHS, Path, Subject, _trained, plant, play
from linprobe.gradients.clipped_sum import clipped_sum
from linprobe.gradients.loss import PLAIN, Geometry, Origin, Scale
from linprobe.mechanisms.gaussian import GaussianMechanism
from linprobe.mechanisms.noise import WORDS_PER_BLOCK, NoiseSource, PoissonSampler
from linprobe.methods import METHODS, Run, Schedule
from linprobe.parallel.process_group import Group, in_group
from linprobe.training.execute import Runtime, private_rows
from linprobe.training.plan import Settings, plan_run

N, WIDTH, CLASSES, SEED = 200, 7, 3, 5
GENERATOR = np.random.default_rng(SEED)
WEIGHTS = GENERATOR.standard_normal((WIDTH, CLASSES))
GEOMETRIES = {"plain": PLAIN, "origin": Origin(WEIGHTS / 9), "scale": Scale(1 + np.abs(WEIGHTS))}


def given() -> Dataset:
    """Unit rows, a third of them absent, the first and the last too."""
    generator = np.random.default_rng(SEED)
    x = generator.standard_normal((N, WIDTH)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    present = generator.random(N) < 2 / 3
    present[[0, -1]] = False
    return Dataset(ArraySource(x, generator.integers(CLASSES, size=N)), CLASSES, present=present)


def rows_on(path: Path, dataset: Dataset, group: Group) -> Rows:
    """The private rows of a rank on a path, as `execute` has them."""
    plan = plan_run(Settings.of_given(METHODS["noisy-gd"], {"epsilon": 1.0, "delta": 1e-5}), dataset)
    runtime = Runtime(group=group, streamed=path.rows == "streamed", shard_units=WORDS_PER_BLOCK)
    return private_rows(plan, dataset, Preprocessing(), runtime)


def run_of(path: Path, group: Group, rate: float) -> Run:
    source = NoiseSource(SEED)
    mechanism = GaussianMechanism(source, lambda event: None, group=group)
    sampler = PoissonSampler(source, rate)
    return Run(Schedule(1, 0.0, 0.0, rate), mechanism, int, sampler, path.observed, group=group)


def summed(path: Path, rate: float, change: Any, geometry: Geometry) -> NDArray[np.float64]:
    """The clipped sum of a step on a path, without noise."""

    def member(group: Group) -> NDArray[np.float64]:
        rows, run = rows_on(path, given(), group), run_of(path, group, rate)
        weights = WEIGHTS if change is None else np.concatenate([WEIGHTS, WEIGHTS[:1]])
        return run.gradient(rows if change is None else change(rows), weights, 0.3, geometry=geometry)

    return in_group(path.n_ranks, member)[0]


def translated(rows: Rows) -> Rows:
    return rows.translated(np.full(WIDTH, 0.2), 1.0)


@pytest.mark.parametrize("path", HOST_PATHS, ids=str)
@pytest.mark.parametrize("rate", [1.0, 0.4])
@pytest.mark.parametrize("kind", ["plain", "origin", "scale", "translated"])
def test_an_empty_place_adds_nothing(path: Path, rate: float, kind: str) -> None:
    change = translated if kind == "translated" else None
    geometry, dataset = GEOMETRIES.get(kind, PLAIN), given()
    x, y = (np.concatenate(parts) for parts in zip(*dataset.private.blocks(), strict=True))
    joined = PoissonSampler(NoiseSource(SEED), rate).draw(N) & dataset.present
    rows: Rows = ArrayRows(Preprocessing().apply(x[joined]), y[joined])
    weights = WEIGHTS if change is None else np.concatenate([WEIGHTS, WEIGHTS[:1]])
    expected = clipped_sum(rows if change is None else change(rows), weights, 0.3, geometry=geometry).value
    np.testing.assert_allclose(summed(path, rate, change, geometry), expected, rtol=2e-4, atol=2e-5)


def test_rows_and_blocks_are_as_the_path_says() -> None:
    for path in HOST_PATHS:
        for rate in (1.0, 0.4):

            def member(group: Group, path: Path = path, rate: float = rate) -> tuple[Any, Any]:
                rows = rows_on(path, given(), group)
                return rows, run_of(path, group, rate).batch(rows)

            for rows, blocks in in_group(path.n_ranks, member):
                assert blocks.observed == (path.observed or rate == 1)
                assert (rows.n_rows, blocks.n_rows, blocks.sampling_rate) == (N, N, rate)
                assert (rows.n_local < N) == (path.rows == "two ranks")
                assert type(rows) is type(blocks) is (StreamedRows if path.rows == "streamed" else ArrayRows)


def test_a_canary_is_alone_in_its_column_and_the_spare_columns_are_empty() -> None:
    for sizes in (None, np.resize([1, 2, 3], 30)):
        background = Dataset(
            ArraySource(np.ones((60, 5), dtype=np.float32), np.arange(60) % 3),
            3,
            bounds=None if sizes is None else np.r_[0, np.cumsum(sizes)],
        )
        planted = plant(background, 7)
        (x, _), *_ = planted.dataset.private.blocks()
        bounds = np.arange(len(x) + 1) if sizes is None else planted.dataset.bounds
        for canary, unit in enumerate(planted.places):
            rows = np.flatnonzero(x[:, planted.first + canary])
            assert rows.tolist() == list(range(bounds[unit], bounds[unit + 1]))
        assert not x[:, planted.first + 7 :].any()
        assert planted.dataset.n_units == (60 if sizes is None else 30) + 7


@pytest.mark.parametrize("method", ["noisy-gd", "adamix", "dp-sgd"])
def test_paths_on_a_device_score_like_those_on_the_host(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from linprobe.gradients.gpu import GpuBackend

    monkeypatch.setattr("linprobe.training.execute.choose_backend", lambda name: GpuBackend(torch.device("cpu")))
    monkeypatch.setattr("linprobe.training.execute.Runtime.check", lambda *_, **__: None)
    private, public = given(), given().private.shard(0, 30)
    planted = plant(replace(private, public=public if method == "adamix" else None, present=None), 10)
    settings = Settings.of_given(METHODS[method], {"epsilon": 1.0, "centre": "none", "intercept": 0.0})
    if method != "adamix":
        settings = replace(settings, condition="none")
    plan = replace(plan_run(settings, planted.dataset), budget=Budget(100.0, 1e-5, 3, 2.0))

    def played(paths: tuple[Path, ...]) -> NDArray[np.float64]:
        trials = play(Subject(plan, planted, paths, _trained, 1.0), runs=2, on_run=int, insecure_seed=SEED)
        assert trials.paths == tuple(map(str, paths))
        return trials.scores

    np.testing.assert_allclose(played(DEVICE_PATHS), played(HOST_PATHS[:2]), atol=1e-3)
