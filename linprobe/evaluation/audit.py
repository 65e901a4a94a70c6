"""`linprobe audit`: a measured lower bound on epsilon, to compare with the upper bound that accounting claims.

Canaries are planted records; a coin toss decides whether each one is in a run. An adversary guesses from the releases
which canaries were in. If the guesses are better than (epsilon, delta) allows, the implementation is not
(epsilon, delta)-DP.

    1  for r = 1..R:  toss b_ri for i = 1..m;  `execute` the plan on the background rows and the canaries with
                      b_ri = 1, on one path of `train` after the other
    2  z_rti <- <row of canary i in release t, u_i> / (sensitivity * noise multiplier)
    3  test whether z predicts b (`linprobe.evaluation.audit_bounds`)

Canary i is the unit vector of a column that is zero in every other row. Its column of a release holds only noise and
its own contribution, so m canaries are m independent trials, and R runs are n = R m. u_i is the direction of its
gradient at zero weights: mean over classes minus indicator of its label. If canary i is out, z is standard normal; if
it is in, the mean of z is about 1/sigma in every release that samples it. The adversary sees every release, as the
accountants assume.

A run may release a private mean m before its steps. The score of canary i in it is the entry of its column, divided by
the claimed noise. The steps are then on rows minus m, so that column i of every row holds -m_i, times a factor of the
row. `SPARE` columns S are zero in all rows and canaries. They hold -m_S times the same factors, so that

    row of canary i  -  m_i / ||m_S||^2  m_S^T (rows of S)

holds no other row. Its noise has the variance 1 + m_i^2 / ||m_S||^2, by which z is scaled.

Where people are audited, a canary is a person with `CANARY_ROWS` rows, all of them the unit vector of the column, and
background rows belong to people too. A canary that is out leaves its place empty: `Dataset.present`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linprobe.accounting.accountants import GAUSSIAN
from linprobe.accounting.figures import rounded_down, rounded_up
from linprobe.data.dataset import Dataset, Split, dataset_of, open_features
from linprobe.data.digits import DIGITS_SHOTS
from linprobe.data.sources import ArraySource, Source
from linprobe.errors import ParameterError, PrivacyError, UsageError
from linprobe.evaluation.audit_bounds import Trials, lower_bounds
from linprobe.gradients.host import ARITHMETIC
from linprobe.gradients.second_order import parts_of
from linprobe.mechanisms.clipping import ClippedSum
from linprobe.mechanisms.gaussian import GaussianMechanism, Projection, Release
from linprobe.mechanisms.noise import WORDS_PER_BLOCK, NoiseSource, PoissonSampler
from linprobe.methods import METHODS, Method, find_method
from linprobe.methods.private_mean import MEAN
from linprobe.options import DEFAULT_STEPS, OWNER
from linprobe.options.requests import DEVICE_ROWS, HOST_ROWS, AuditRequest, TrainRequest
from linprobe.parallel.array_api import on_host
from linprobe.parallel.process_group import Group, in_group
from linprobe.progress import Progress
from linprobe.training.execute import Observer, Runtime, execute
from linprobe.training.plan import Plan, plan_run
from linprobe.training.settings import make_settings

GRADIENT = "gradient"
CANARY_ROWS = 3  # of a person; clipped one by one, they would move a sum by 3 clip norms
SPARE = 16  # columns that are zero in all rows
BACKGROUND_ROWS = 300
BACKGROUND_PEOPLE = np.resize([1, 2, 3], BACKGROUND_ROWS // 2)  # rows of each person
MOST_SCORES = 100_000_000  # 800 MB
NO_DEVICE = "rows on a GPU"
NEVER_COVERED = (
    "private covariances",
    "class counts",
    "feature files",
    "torch.distributed",
    "precisions below float32",
    "checkpoints",
)

MechanismFactory = Callable[..., GaussianMechanism]
SamplerFactory = Callable[[NoiseSource, float], PoissonSampler]


@dataclass(frozen=True)
class Path:
    """A path through `train`.

    Attributes:
        rows: `memory`; `streamed`, read again in every pass; `two ranks`, each with its shard; or `device`.
        observed: whether every record's own loss is computed; blocks then hold all rows and the mask of the sample.
    """

    rows: str
    observed: bool

    def __str__(self) -> str:
        return f"{self.rows}, {'observed' if self.observed else 'unobserved'}"

    @property
    def n_ranks(self) -> int:
        """Number of members of the group."""
        return 2 if self.rows == "two ranks" else 1


HOST_PATHS = tuple(Path(rows, observed) for rows in HOST_ROWS for observed in (True, False))
DEVICE_PATHS = tuple(Path(rows, observed) for rows in DEVICE_ROWS for observed in (True, False))


def audit(
    request: AuditRequest,
    progress: Progress,
    *,
    mechanism: MechanismFactory = GaussianMechanism,
    insecure_seed: int | None = None,
) -> dict[str, Any]:
    """Train on digits and canaries many times, guess which canaries were in, and bound epsilon from below.

    The audited code is the code that `train` runs, on every path in turn; tests pass another `mechanism`,
    and `insecure_seed`, which makes coin tosses and noise reproducible.

    Returns: method, unit, epsilon (claimed), delta, epsilon_lower_bound, mean_epsilon and mean_epsilon_lower_bound (the
        same of the private mean alone, None without one), confidence, runs, canaries, steps,
        noise_multiplier, sampling_rate, paths (covered), products (`kernel` or `numpy`, of the paths on the host),
        not_covered, tests (see `lower_bounds`).
    """
    method = find_method(request.method)
    if not method.spends:
        spending = ", ".join(name for name, other in METHODS.items() if other.spends)
        raise UsageError(
            f"method is {method.name!r}, which releases nothing with noise, so there is nothing to audit; "
            f"allowed: {spending}"
        )
    paths = HOST_PATHS if request.device == "cpu" else HOST_PATHS + DEVICE_PATHS
    if request.runs < 2 * len(paths):
        raise ParameterError(f"runs is {request.runs}; allowed: a whole number from {2 * len(paths)}")
    plan, planted = _planned(request, method)
    budget = plan.budget
    if budget is None:
        raise ValueError(f"{method.name} spends and has no budget")
    if request.runs * request.canaries * budget.n_steps > MOST_SCORES:
        raise ParameterError(
            f"runs, canaries and steps are {request.runs}, {request.canaries} and {budget.n_steps}; allowed: a product "
            f"of at most {MOST_SCORES}; lower one of them"
        )
    progress.start(request.runs, "auditing")
    trials = play(
        plan,
        planted,
        runs=request.runs,
        on_run=progress.step,
        paths=paths,
        device=request.device,
        mechanism=mechanism,
        insecure_seed=insecure_seed,
    )
    tests = lower_bounds(trials, request.delta, request.confidence)
    of_means = [test["epsilon_lower_bound"] for test in tests if test["name"] == MEAN]
    claimed = [release for release in budget.others if release.purpose == MEAN]
    return {
        "method": method.name,
        "unit": request.unit,
        "epsilon": budget.accountant.epsilon(budget.releases, budget.delta),
        "delta": budget.delta,
        "epsilon_lower_bound": max(test["epsilon_lower_bound"] for test in tests if test["name"] != MEAN),
        "mean_epsilon": GAUSSIAN.epsilon(claimed, budget.delta) if of_means else None,
        "mean_epsilon_lower_bound": max(of_means, default=None),
        "confidence": request.confidence,
        "runs": request.runs,
        "canaries": request.canaries,
        "steps": budget.n_steps,
        "noise_multiplier": budget.noise_multiplier,
        "sampling_rate": budget.sampling_rate,
        "paths": [str(path) for path in paths],
        "products": trials.products,
        "not_covered": list(NEVER_COVERED if request.device != "cpu" else (NO_DEVICE, *NEVER_COVERED)),
        "tests": tests,
    }


def _planned(request: AuditRequest, method: Method) -> tuple[Plan, Planted]:
    """The plan of the audited runs, and the rows that they train on."""
    training = TrainRequest(
        method.name,
        epsilon=request.epsilon,
        delta=request.delta,
        steps=request.steps,
        sampling_rate=request.sampling_rate,
    )
    with open_features(None) as features:
        digits = dataset_of(features, None, Split(shots=DIGITS_SHOTS, joined=method.joins_public))
        people = BACKGROUND_PEOPLE if request.unit == OWNER else None
        background = _background(digits, people, "public" in method.needs)
    settings = replace(make_settings(training, method), centre="none", intercept=0.0)
    if settings.condition != "none":  # what `train` decides from the number of rows, the audit always covers
        steps = DEFAULT_STEPS if settings.n_steps is None and method.sampling is None else settings.n_steps
        settings = replace(settings, condition=MEAN, n_steps=steps)
    Runtime(device=request.device).check(settings.options)
    planted = plant(background, request.canaries)
    return plan_run(settings, planted.dataset), planted


def check_audit(audited: dict[str, Any]) -> None:
    """PrivacyError if a lower bound is above the claimed epsilon."""
    for what, claim in (("epsilon", "epsilon"), ("epsilon of the private mean", "mean_epsilon")):
        found = audited[f"{claim}_lower_bound"]
        if found is not None and found > audited[claim]:
            raise PrivacyError(
                f"{what} of {audited['method']} is at least {rounded_down(found)} at confidence "
                f"{audited['confidence']:g}; allowed: at most the {rounded_up(audited[claim])} claimed; audit again; "
                "if the result stays, release nothing made with this installation and report it"
            )


def _background(digits: Dataset, people: NDArray[np.int64] | None, public: bool) -> Dataset:
    """The first `BACKGROUND_ROWS` private digits, and the public digits if the method needs some."""
    known = _first_rows(digits.public, digits.public.n_rows) if public and digits.public is not None else None
    bounds = None if people is None else np.r_[0, np.cumsum(people)]
    return replace(
        digits, private=_first_rows(digits.private, BACKGROUND_ROWS), public=known, bounds=bounds, features=None
    )


def _first_rows(source: Source, count: int) -> ArraySource:
    blocks = list(source.blocks())
    x, y = (np.concatenate([block[part] for block in blocks])[:count] for part in (0, 1))
    return ArraySource(x, y)


@dataclass(frozen=True)
class Planted:
    """Background rows and canaries.

    Attributes:
        dataset: all of them, in an order that puts canaries into every shard. places: of the canaries among its units.
        first: column of the first canary; after those of the canaries come the `SPARE` columns.
        directions: u, shape (canaries, n_classes).
    """

    dataset: Dataset
    places: NDArray[np.intp]
    first: int
    directions: NDArray[np.float64]

    @property
    def n_canaries(self) -> int:
        """m."""
        return len(self.directions)

    def with_canaries(self, inside: NDArray[np.bool_]) -> Dataset:
        """The data set with the canaries that are `inside` (m,); the places of the others are empty."""
        present = np.ones(self.dataset.n_units, dtype=bool)
        present[self.places] = inside
        return replace(self.dataset, present=present)


def plant(background: Dataset, canaries: int) -> Planted:
    """Add `canaries` to the private rows of a data set in memory; its rows get a zero in every new column."""
    first, n_classes = background.private.n_features, background.n_classes
    labels = np.arange(canaries) % n_classes
    directions = 1 / n_classes - np.eye(n_classes)[labels]
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
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
    public = None if background.public is None else ArraySource(*_padded(background.public, canaries + SPARE))
    bounds = np.r_[0, np.cumsum(sizes[order])] if people else None
    dataset = replace(background, private=ArraySource(x[in_order], y[in_order]), public=public, bounds=bounds)
    places = np.argsort(order)[len(own) :]
    return Planted(dataset, places, first, directions)


def _padded(source: Source, columns: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    x, y = (np.concatenate(parts) for parts in zip(*source.blocks(), strict=True))
    return np.concatenate([x, np.zeros((len(x), columns))], axis=1).astype(np.float32), y


class _Adversary(GaussianMechanism):
    """Releases sums through another mechanism, and records the scores of the canaries in the releases.

    Attributes:
        scores: one array (canaries,) for each gradient release.
        mean: scores in the private mean, (canaries,); None until it is released.
    """

    def __init__(self, inner: GaussianMechanism, planted: Planted) -> None:
        self._inner, self._directions = inner, planted.directions
        self._n_features = planted.dataset.private.n_features
        last = planted.first + planted.n_canaries
        self._columns, self._spare = slice(planted.first, last), slice(last, last + SPARE)
        self._shares = np.zeros((planted.n_canaries, SPARE))  # of the rows of the spare columns
        self.scores: list[NDArray[np.float64]] = []
        self.mean: NDArray[np.float64] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @property
    def contributed(self) -> Any:
        """The contributions that `inner` recorded."""
        return self._inner.contributed

    def release(
        self, clipped: ClippedSum, noise_multiplier: float, *, purpose: str, projection: Projection | None = None
    ) -> Release:
        """The release of `inner`."""
        released = self._inner.release(clipped, noise_multiplier, purpose=purpose, projection=projection)
        std = clipped.sensitivity * noise_multiplier
        if purpose == GRADIENT:
            value, n_classes = on_host(released.value), self._directions.shape[1]
            if value.shape[1] != n_classes:  # dp-newton releases it in one column with the Hessians
                value, _ = parts_of(value, self._n_features, n_classes)
            cleared = value[self._columns] - self._shares @ value[self._spare]
            along = np.einsum("ic,ic->i", cleared, self._directions)
            self.scores.append(along / (std * np.sqrt(1 + np.square(self._shares).sum(axis=1))))
        elif purpose == MEAN:
            mean = on_host(released.value)[:, 0]
            self.mean, spare = mean[self._columns] / std, mean[self._spare]
            self._shares = np.outer(mean[self._columns], spare) / float(spare @ spare)
        return released

    def settle(self) -> None:
        """Settle `inner`."""
        self._inner.settle()

    def ratchet(self) -> None:
        """Ratchet `inner`."""
        self._inner.ratchet()


class _Watching(Observer):
    """Lets the adversary see every release of an execution."""

    def __init__(self, planted: Planted, mechanism: MechanismFactory, sampler: SamplerFactory) -> None:
        self._planted, self._mechanism, self._sampler = planted, mechanism, sampler
        self.adversary: _Adversary | None = None

    def mechanism(self, *given: Any, **named: Any) -> GaussianMechanism:
        self.adversary = _Adversary(self._mechanism(*given, **named), self._planted)
        return self.adversary

    def sampler(self, source: NoiseSource, rate: float) -> PoissonSampler:
        return self._sampler(source, rate)


def play(
    plan: Plan,
    planted: Planted,
    *,
    runs: int,
    on_run: Callable[[], None],
    paths: Sequence[Path],
    device: str = "cpu",
    mechanism: MechanismFactory = GaussianMechanism,
    sampler: SamplerFactory = PoissonSampler,
    insecure_seed: int | None = None,
) -> Trials:
    """Lines 1 and 2: execute the plan `runs` times, with about half of the canaries in.

    Args:
        plan: of `planted.dataset`. on_run: called after every run.
        paths: taken in turn. device: where the rows of device paths are, such as `cuda`.
        mechanism, sampler: audited in place of the production classes.
        insecure_seed: makes coin tosses and noise reproducible, for tests of the audit.
    """
    inside = np.random.default_rng(insecure_seed).random((runs, planted.n_canaries)) < 0.5

    def scored(run: int, group: Group) -> tuple[list[NDArray[np.float64]], NDArray[np.float64] | None]:
        """The scores of a run, and those in its private mean, as one member of its group computes them."""
        path = paths[run % len(paths)]
        seed = None if insecure_seed is None else insecure_seed * runs + run
        audited = replace(plan, settings=replace(plan.settings, per_record=path.observed, insecure_seed=seed))
        runtime = Runtime(
            device=device if path.rows == "device" else "cpu",
            group=group,
            streamed=path.rows == "streamed",
            shard_units=WORDS_PER_BLOCK,
        )
        observer = _Watching(planted, mechanism, sampler)
        execute(audited, planted.with_canaries(inside[run]), runtime, observer=observer)
        if observer.adversary is None:
            raise ValueError("a run without a mechanism released nothing")
        return observer.adversary.scores, observer.adversary.mean

    scores, means = [], []
    for run in range(runs):
        steps, mean = in_group(paths[run % len(paths)].n_ranks, partial(scored, run))[0]
        scores.append(steps)
        means += [] if mean is None else [mean]
        on_run()
    taken = tuple(str(paths[run % len(paths)]) for run in range(runs))
    return Trials(inside, np.array(scores), taken, ARITHMETIC, np.array(means) if means else None)
