"""Auditing: a measured lower bound on epsilon, to compare with the upper bound that accounting claims.

Canaries are planted records; a coin toss decides whether each one is in a run. An adversary guesses from the releases
which canaries were in. If the guesses are better than (epsilon, delta) allows, the implementation is not
(epsilon, delta)-DP.

    1  for r = 1..R:  toss b_ri for i = 1..m;  train on the background rows and the canaries with b_ri = 1,
                      on one path of `train` after the other (`linprobe.evaluation.audit_paths`)
    2  z_rti <- <row of canary i in release t, u_i> / (sensitivity * noise multiplier)
    3  test whether z predicts b (`linprobe.evaluation.audit_bounds`)

Canary i is the unit vector of a column that is zero in every other row. Its column of a release holds only noise and
its own contribution, so m canaries are m independent trials, and R runs are n = R m. u_i is the direction of its
gradient at zero weights: mean over classes minus indicator of its label. If canary i is out, z is standard normal; if
it is in, the mean of z is about 1/sigma in every release that samples it. The adversary sees every release, as the
accountants assume.

Before the steps, a run may release a private mean of the rows, as `train` does. The score of canary i in it is the
entry of its column, divided by the claimed noise. The steps are on rows that are not centred, so that columns stay
apart.

Where people are audited, a canary is a person with `CANARY_ROWS` rows, all of them the unit vector of the column, and
background rows belong to people too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linprobe.accounting.events import GaussianEvent
from linprobe.data.rows import ArrayRows
from linprobe.evaluation.audit_paths import HOST_PATHS, Path, Places, rows_on
from linprobe.gradients import choose_backend
from linprobe.gradients.host import ARITHMETIC, HOST
from linprobe.mechanisms.clipping import ClippedSum
from linprobe.mechanisms.gaussian import GaussianMechanism, Projection, Release
from linprobe.mechanisms.noise import NoiseSource
from linprobe.mechanisms.sampling import PoissonSampler
from linprobe.methods import Method, Problem, Run, Schedule
from linprobe.methods.private_mean import MEAN, released_mean
from linprobe.parallel.array_api import on_host
from linprobe.parallel.process_group import Group, in_group
from linprobe.parallel.threads import blas_held_to_one_thread

GRADIENT = "gradient"
CANARY_ROWS = 3  # of a person; clipped one by one, they would move a sum by 3 clip norms

MechanismFactory = Callable[..., GaussianMechanism]
SamplerFactory = Callable[[NoiseSource, float], PoissonSampler]


@dataclass(frozen=True)
class Trials:
    """What the adversary observes.

    Attributes:
        inside: whether each canary was in, shape (runs, canaries).
        scores: z, shape (runs, steps, canaries), in units of the claimed noise.
        means: the same in the private mean, shape (runs, canaries); None if none was released.
        paths: the path of each run.
        products: what computed products on the host, `kernel` or `numpy`.
    """

    inside: NDArray[np.bool_]
    scores: NDArray[np.float64]
    paths: tuple[str, ...]
    products: str = ARITHMETIC
    means: NDArray[np.float64] | None = None

    def on(self, path: str) -> Trials:
        """The runs on one path."""
        chosen = [run for run, taken in enumerate(self.paths) if taken == path]
        means = None if self.means is None else self.means[chosen]
        return Trials(self.inside[chosen], self.scores[chosen], (path,) * len(chosen), self.products, means)


class _Observer(GaussianMechanism):
    """Releases sums through another mechanism, and records the scores of the canaries in the releases.

    Args:
        inner: the mechanism under audit.
        first: feature column of the first canary. directions: u, shape (canaries, n_classes).

    Attributes:
        scores: one array (canaries,) for each gradient release.
        mean: scores in the private mean, (canaries,); None until it is released.
    """

    def __init__(self, inner: GaussianMechanism, first: int, directions: NDArray[np.float64]) -> None:
        self._inner, self._directions = inner, directions
        self._columns = slice(first, first + len(directions))
        self.scores: list[NDArray[np.float64]] = []
        self.mean: NDArray[np.float64] | None = None

    def release(
        self, clipped: ClippedSum, noise_multiplier: float, *, purpose: str, projection: Projection | None = None
    ) -> Release:
        """The release of `inner`."""
        released = self._inner.release(clipped, noise_multiplier, purpose=purpose, projection=projection)
        if purpose == GRADIENT:
            along = np.einsum("ic,ic->i", on_host(released.value[self._columns]), self._directions)
            self.scores.append(along / (clipped.sensitivity * noise_multiplier))
        elif purpose == MEAN:
            self.mean = on_host(released.value)[self._columns, 0] / (clipped.sensitivity * noise_multiplier)
        return released

    def settle(self) -> None:
        """Settle `inner`."""
        self._inner.settle()

    def ratchet(self) -> None:
        """Ratchet `inner`."""
        self._inner.ratchet()


def play(
    method: Method,
    options: Any,
    schedule: Schedule,
    background: ArrayRows,
    public: ArrayRows | None,
    n_classes: int,
    *,
    runs: int,
    canaries: int,
    on_run: Callable[[], None],
    paths: Sequence[Path] = HOST_PATHS,
    device: str = "cpu",
    people: NDArray[np.int64] | None = None,
    centred: bool = False,
    mechanism: MechanismFactory = GaussianMechanism,
    sampler: SamplerFactory = PoissonSampler,
    insecure_seed: int | None = None,
) -> Trials:
    """Lines 1 and 2: train `runs` times with the production code and `canaries` canaries, about half of them in.

    Args:
        method, options, schedule: the audited training.
        background, public: rows in training space, the same in every run.
        on_run: called after every run.
        paths: taken in turn. device: where the rows of device paths are, such as `cuda`.
        people: number of background rows of each person in turn, to audit people; None to audit rows.
        centred: whether a private mean is released before the steps, with the noise of `schedule.others`.
        mechanism, sampler: audited in place of the production classes.
        insecure_seed: makes coin tosses and noise reproducible, for tests of the audit.
    """
    coins = np.random.default_rng(insecure_seed)
    labels = np.arange(canaries) % n_classes
    directions = 1 / n_classes - np.eye(n_classes)[labels]
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    first, of_canary = background.n_features, 1 if people is None else CANARY_ROWS
    planted = np.eye(canaries, first + canaries, first, dtype=np.float32).repeat(of_canary, axis=0)
    x = np.concatenate([_padded(background.x, canaries), planted])
    y = np.concatenate([background.y, labels.repeat(of_canary)])
    sizes = np.r_[np.ones(background.n_rows, dtype=int) if people is None else people, np.full(canaries, of_canary)]
    order = np.random.default_rng(0).permutation(len(sizes))  # canaries in every shard
    by_place = np.split(np.arange(len(y)), np.cumsum(sizes)[:-1])
    rows_in_order = np.concatenate([by_place[place] for place in order])
    x, y = x[rows_in_order], y[rows_in_order]
    bounds = None if people is None else np.r_[0, np.cumsum(sizes[order])]
    known = None if public is None else ArrayRows(_padded(public.x, canaries), public.y)
    inside = coins.random((runs, canaries)) < 0.5
    on_device = choose_backend(device)
    scores = np.empty((runs, schedule.n_steps, canaries))

    def scored(run: int, group: Group) -> tuple[list[NDArray[np.float64]], NDArray[np.float64] | None]:
        """The scores of a run, and those in its private mean, as one member of its group computes them."""
        path = paths[run % len(paths)]
        backend = on_device if path.rows == "device" else HOST
        present = np.r_[np.ones(len(sizes) - canaries, dtype=bool), inside[run]][order]
        rows = rows_on(path, Places(x, y, present, bounds), group)
        source = NoiseSource(None if insecure_seed is None else insecure_seed * runs + run)
        source.key = group.broadcast(np.frombuffer(source.key, dtype=np.uint8)).tobytes()
        problem = Problem(
            first + canaries,
            n_classes,
            private=backend.place(rows),
            public=None if known is None else backend.place(known),
        )
        observer = _Observer(mechanism(backend.noise(source), _forget, group=group), first, directions)
        if centred:
            released_mean(rows, observer, schedule.others[MEAN], group, backend)
        method.fit(
            problem,
            options,
            Run(
                schedule,
                observer,
                _nothing,
                sampler(source, schedule.sampling_rate),
                path.observed,
                group=group,
                backend=backend,
            ),
        )
        return observer.scores, observer.mean

    means = []
    with blas_held_to_one_thread():
        for run in range(runs):
            scores[run], mean = in_group(paths[run % len(paths)].n_ranks, partial(scored, run))[0]
            means += [] if mean is None else [mean]
            on_run()
    taken = tuple(str(paths[run % len(paths)]) for run in range(runs))
    return Trials(inside, scores, taken, means=np.array(means) if means else None)


def _padded(x: NDArray[np.float32], columns: int) -> NDArray[np.float32]:
    return np.concatenate([x, np.zeros((len(x), columns), dtype=np.float32)], axis=1)


def _nothing() -> None:
    """Callback of steps that does nothing."""


def _forget(event: GaussianEvent) -> None:
    """Ledger that records nothing: the rows are digits and canaries, so no budget is spent."""
