"""Canaries for audits, and the adversary who looks for them in the releases of a run.

    release                 score of canary i, standard normal if it is out             its mean if it is in
    gradient                <row of its column, u_i> / s                                about 1 / sigma
    gradient with Hessians  <(row, diagonal entries of its column), v_i> / s            about 1 / sigma
    mean                    entry of its column / s                                     1 / sigma
    covariance              diagonal entry of its column / s                            1 / sigma
    class counts            count of its class / s                                      1 / sigma
    test accuracy           (right + wrong predictions of its class) / (sqrt(2) s)      1 / (2 sigma)
    test AUROC              rows of its class in the bin of its score / s               1 / (sqrt(n_classes) sigma)

s is the sensitivity times the noise multiplier sigma, so a score is in units of the noise that the ledger claims. u_i
and v_i are the direction of its contribution at zero weights, of length 1. The counts need canaries that have a class
each. A test row moves two counts of the release, and the adversary looks at one, whose share is 1 / sqrt(2); the other
1 / sqrt(2) is for not knowing whether the prediction is right. In the histogram of each class, a test row moves one
cell. The adversary knows the model and so the bin, and looks at the histogram of the row's class: the other histograms
count other canaries in the same bin.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from linprobe.accounting.calibrate import GRADIENT
from linprobe.accounting.events import TEST_ACCURACY
from linprobe.data.blocks import ArraySource, Source, concatenated
from linprobe.data.dataset import Dataset
from linprobe.data.feature_reader import Description, FeatureReader
from linprobe.gradients.second_order import diagonal_places, parts_of
from linprobe.mechanisms.gaussian import ClippedSum, GaussianMechanism, Projection
from linprobe.mechanisms.noise import NoiseSource, PoissonSampler
from linprobe.mechanisms.score_histogram import BINS, TEST_AUROC
from linprobe.methods._directions import COVARIANCE
from linprobe.methods.class_counts import CLASS_COUNTS
from linprobe.methods.private_mean import MEAN
from linprobe.parallel.array_api import Reals, on_host
from linprobe.training.execute import Observer

CANARY_ROWS = 3  # of a person; clipped one by one, they would move a sum by 3 clip norms
SPARE = 16  # columns that are zero in all rows
BACKGROUND_ROWS = 300
BACKGROUND_PEOPLE = np.resize([1, 2, 3], BACKGROUND_ROWS // 2)  # rows of each person

MechanismFactory = Callable[..., GaussianMechanism]
SamplerFactory = Callable[[NoiseSource, float], PoissonSampler]
Scores = NDArray[np.float64]


def background_of(digits: Dataset, people: NDArray[np.int64] | None, public: bool) -> Dataset:
    """The first `BACKGROUND_ROWS` private digits, and the public digits if the method needs some."""
    public_rows = _first_rows(digits.public, digits.public.n_rows) if public and digits.public is not None else None
    bounds = None if people is None else np.r_[0, np.cumsum(people)]
    return replace(
        digits, private=_first_rows(digits.private, BACKGROUND_ROWS), public=public_rows, bounds=bounds, features=None
    )


def _first_rows(source: Source, count: int) -> ArraySource:
    x, y = concatenated(source.blocks())
    return ArraySource(x[:count], y[:count])


@dataclass(frozen=True)
class Planted:
    """Background rows and canaries in one `dataset`, in an order that puts canaries into every shard.

    `places` are of the canaries among its units, and `first` is the column of the first one; the `SPARE` columns follow
    theirs. With `own_classes`, each canary has a class that no other row has, and there is a test row like it.
    """

    dataset: Dataset
    places: NDArray[np.intp]
    first: int
    labels: NDArray[np.int64]
    own_classes: bool = False

    @property
    def n_canaries(self) -> int:
        return len(self.labels)

    @property
    def directions(self) -> Scores:
        """u, shape (canaries, n_classes): mean over classes minus indicator of the label, of length 1."""
        n_classes = self.dataset.n_classes
        directions = 1 / n_classes - np.eye(n_classes)[self.labels]
        return np.asarray(directions / np.linalg.norm(directions, axis=1, keepdims=True))

    def with_canaries(self, inside: NDArray[np.bool_]) -> Dataset:
        """The data set with the canaries that are `inside` (m,); the places of the others are empty."""
        present = np.ones(self.dataset.n_units, dtype=bool)
        present[self.places] = inside
        if not self.own_classes:
            return replace(self.dataset, present=present)
        x = np.eye(self.n_canaries, self.dataset.private.n_features, self.first, dtype=np.float32) * inside[:, None]
        # as a feature file, whose only group is `test`
        rows = SimpleNamespace(description=Description(class_names=()), blocks=lambda _: iter([(x, self.labels)]))
        return replace(self.dataset, present=present, features=cast(FeatureReader, rows))


def plant(background: Dataset, canaries: int, *, own_classes: bool = False) -> Planted:
    """Add `canaries` to the private rows of a data set in memory; its rows get a zero in every new column."""
    first, n_classes = background.private.n_features, background.n_classes
    labels = np.arange(canaries) + n_classes if own_classes else np.arange(canaries) % n_classes
    people = background.bounds is not None
    of_canary = CANARY_ROWS if people else 1
    rows = _padded(background.private, canaries + SPARE)
    own = np.diff(background.bounds) if background.bounds is not None else np.ones(len(rows[1]), dtype=int)
    x = np.concatenate([rows[0], np.eye(canaries, rows[0].shape[1], first, dtype=np.float32).repeat(of_canary, axis=0)])
    y = np.concatenate([rows[1], labels.repeat(of_canary)])
    sizes = np.r_[own, np.full(canaries, of_canary)]
    order = np.random.default_rng(0).permutation(len(sizes))
    by_unit = np.split(np.arange(len(y)), np.cumsum(sizes)[:-1])
    in_order = np.concatenate([by_unit[unit] for unit in order])
    dataset = replace(
        background,
        private=ArraySource(x[in_order], y[in_order]),
        n_classes=n_classes + canaries * own_classes,
        public=None if background.public is None else ArraySource(*_padded(background.public, canaries + SPARE)),
        bounds=np.r_[0, np.cumsum(sizes[order])] if people else None,
    )
    return Planted(dataset, np.argsort(order)[len(own) :], first, labels, own_classes)


def _padded(source: Source, columns: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    x, y = concatenated(source.blocks())
    return np.concatenate([x, np.zeros((len(x), columns))], axis=1).astype(np.float32), y


class Adversary:
    """Releases through another mechanism, and keeps scores (canaries,) of each gradient, and of others by purpose."""

    def __init__(self, inner: GaussianMechanism, planted: Planted, hessian_scale: float) -> None:
        self._inner, self._planted, self._directions = inner, planted, planted.directions
        self._hessian_scale = hessian_scale
        last = planted.first + planted.n_canaries
        self._columns, self._spare = slice(planted.first, last), slice(last, last + SPARE)
        self._shares = np.zeros((planted.n_canaries, SPARE))  # of the rows of the spare columns
        self.scores: list[Scores] = []
        self.others: dict[str, Scores] = {}
        self.last: tuple[Scores, float] = (np.zeros((0, 1)), math.inf)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def release(
        self, clipped: ClippedSum, noise_multiplier: float, *, purpose: str, projection: Projection | None = None
    ) -> Reals:
        released = self._inner.release(clipped, noise_multiplier, purpose=purpose, projection=projection)
        value, std = on_host(released), clipped.sensitivity * noise_multiplier
        self.last = value, std
        if purpose == GRADIENT:
            self.scores.append(self._of_gradient(value, std))
        elif purpose == MEAN:
            mean, spare = value[self._columns, 0], value[self._spare, 0]
            self.others[MEAN] = mean / std
            self._shares = np.outer(mean, spare) / float(spare @ spare)
        elif purpose == COVARIANCE:  # of rows around no mean
            self.others[COVARIANCE] = self._diagonals(value[:, 0]) / std
        elif purpose == CLASS_COUNTS and self._planted.own_classes:
            self.others[CLASS_COUNTS] = value[self._planted.labels, 0] / std
        elif purpose == TEST_ACCURACY:
            cells = value[1:, 0].reshape(-1, 2)[self._planted.labels]
            self.others[TEST_ACCURACY] = cells.sum(axis=1) / (math.sqrt(2) * std)
        elif purpose == TEST_AUROC:
            exact, noisy = (
                on_host(one).reshape(-1, 2, BINS)[self._planted.labels, 0] for one in (clipped.value, value)
            )
            bins = exact.argmax(axis=1)[:, None]  # of a canary that is out, any: all cells of its class hold noise
            self.others[TEST_AUROC] = np.take_along_axis(noisy, bins, axis=1)[:, 0] / std
        return released

    def _of_gradient(self, value: Scores, std: float) -> Scores:
        n_classes = self._directions.shape[1]
        if value.shape[1] == n_classes:
            cleared = value[self._columns] - self._shares @ value[self._spare]
            along = np.einsum("ic,ic->i", cleared, self._directions)
            return np.asarray(along / (std * np.sqrt(1 + np.square(self._shares).sum(axis=1))))
        gradient, hessians = parts_of(value, self._planted.dataset.private.n_features, n_classes)
        along = np.einsum("ic,ic->i", gradient[self._columns], self._directions)
        curved = self._diagonals(hessians).sum(axis=0) / math.sqrt(n_classes)
        length = math.sqrt(1 - 1 / n_classes)  # of the gradient at equal probabilities
        share = self._hessian_scale * length**2 / math.sqrt(n_classes)  # of the Hessians there
        return np.asarray((length * along + share * curved) / (math.hypot(length, share) * std))

    def _diagonals(self, packed: Scores) -> Scores:
        """The diagonal entries of the canaries' columns in packed matrices, shape (..., canaries)."""
        places = diagonal_places(self._planted.dataset.private.n_features)[self._columns]
        return np.asarray(packed[..., places])


class Watching(Observer):
    def __init__(
        self, planted: Planted, mechanism: MechanismFactory, sampler: SamplerFactory, hessian_scale: float = 0.0
    ) -> None:
        self._planted, self._mechanism, self._sampler = planted, mechanism, sampler
        self._hessian_scale = hessian_scale
        self.seen: Adversary | None = None

    @property
    def adversary(self) -> Adversary:
        if self.seen is None:
            raise ValueError("a run without a mechanism released nothing")
        return self.seen

    def mechanism(self, *given: Any, **named: Any) -> GaussianMechanism:
        self.seen = Adversary(self._mechanism(*given, **named), self._planted, self._hessian_scale)
        return cast(GaussianMechanism, self.seen)

    def sampler(self, source: NoiseSource, rate: float) -> PoissonSampler:
        return self._sampler(source, rate)
