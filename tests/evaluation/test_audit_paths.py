"""The paths of an audit: the classes that `train` uses, and places that are empty whatever the method does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from linprobe.data.rows import ArrayRows, Rows, StreamedRows
from linprobe.evaluation.audit import play
from linprobe.evaluation.audit_paths import DEVICE_PATHS, HOST_PATHS, Path, Places, rows_on
from linprobe.gradients.clipped_sum import clipped_sum
from linprobe.gradients.geometry import PLAIN, Geometry, Origin, Scale
from linprobe.mechanisms.gaussian import GaussianMechanism
from linprobe.mechanisms.noise import NoiseSource
from linprobe.mechanisms.sampling import PoissonSampler
from linprobe.methods import METHODS, Run, Schedule
from linprobe.parallel.process_group import ALONE, Group, in_group

N, WIDTH, CLASSES, SEED = 200, 7, 3, 5
GENERATOR = np.random.default_rng(SEED)
WEIGHTS = GENERATOR.standard_normal((WIDTH, CLASSES))
GEOMETRIES = {"plain": PLAIN, "origin": Origin(WEIGHTS / 9), "scale": Scale(1 + np.abs(WEIGHTS))}


def places() -> Places:
    """Unit rows, a third of them absent, the first and the last too."""
    generator = np.random.default_rng(SEED)
    x = generator.standard_normal((N, WIDTH)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    present = generator.random(N) < 2 / 3
    present[[0, -1]] = False
    return Places(x, generator.integers(CLASSES, size=N), present)


def run_of(path: Path, group: Group, rate: float) -> Run:
    source = NoiseSource(SEED)
    mechanism = GaussianMechanism(source, lambda event: None, group=group)
    sampler = PoissonSampler(source, rate)
    return Run(Schedule(1, 0.0, 0.0, rate), mechanism, int, sampler, path.observed, group=group)


def summed(path: Path, given: Places, rate: float, change: Any, geometry: Geometry) -> NDArray[np.float64]:
    """The clipped sum of a step on a path, without noise."""

    def member(group: Group) -> NDArray[np.float64]:
        rows, run = rows_on(path, given, group), run_of(path, group, rate)
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
    geometry = GEOMETRIES.get(kind, PLAIN)
    given = places()
    joined = PoissonSampler(NoiseSource(SEED), rate).draw(N) & given.present
    rows: Rows = ArrayRows(given.x[joined], given.y[joined])
    weights = WEIGHTS if change is None else np.concatenate([WEIGHTS, WEIGHTS[:1]])
    expected = clipped_sum(rows if change is None else change(rows), weights, 0.3, geometry=geometry).value
    np.testing.assert_allclose(summed(path, given, rate, change, geometry), expected, rtol=2e-4, atol=2e-5)


def test_rows_and_blocks_are_those_of_train() -> None:
    given = places()
    for path in HOST_PATHS:
        for rate in (1.0, 0.4):

            def member(group: Group, path: Path = path, rate: float = rate) -> tuple[Any, Any]:
                rows = rows_on(path, given, group)
                return rows, run_of(path, group, rate).batch(rows)

            for rows, blocks in in_group(path.n_ranks, member):
                assert blocks.observed == (path.observed or rate == 1)
                assert (rows.n_rows, blocks.n_rows, blocks.sampling_rate) == (N, N, rate)
                assert (rows.n_local < N) == (path.rows == "two ranks")
                assert type(rows) is type(blocks) is (StreamedRows if path.rows == "streamed" else ArrayRows)


def test_ranks_share_the_places_in_whole_words_of_the_sampler() -> None:
    given = replace(places(), x=places().x[:21], y=places().y[:21], present=places().present[:21])
    firsts = in_group(2, lambda group: (given.shard(group)[0], len(given.shard(group)[1].y)))
    assert firsts == [(0, 8), (8, 13)]
    assert given.shard(ALONE)[0] == 0
    assert len(given.shard(ALONE)[1].y) == 21


@pytest.mark.parametrize("method", ["noisy-gd", "adamix"])
def test_paths_on_a_device_score_like_those_on_the_host(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from linprobe.gradients.gpu import GpuBackend

    monkeypatch.setattr("linprobe.evaluation.audit.choose_backend", lambda name: GpuBackend(torch.device(name)))
    found = METHODS[method]
    given = places()
    background, public = ArrayRows(given.x, given.y), ArrayRows(given.x[:30], given.y[:30])

    def played(paths: tuple[Path, ...]) -> NDArray[np.float64]:
        trials = play(
            found,
            found.make_options({}),
            Schedule(3, 2.0, 1.0),
            background,
            public,
            CLASSES,
            runs=2,
            canaries=10,
            on_run=int,
            paths=paths,
            insecure_seed=SEED,
        )
        assert trials.paths == tuple(map(str, paths))
        return trials.scores

    np.testing.assert_allclose(played(DEVICE_PATHS), played(HOST_PATHS[:2]), atol=1e-3)
