"""`linprobe audit`: a measured lower bound on epsilon, to compare with the upper bound that accounting claims.

`docs/audit.md` explains canaries, tests, parts and paths. Each part is run through the function that releases it.

    1  for r = 1..R:  toss b_ri for i = 1..m;  run the part on the background rows and the canaries with b_ri = 1, on
                      one path of `train` after the other
    2  z_rti <- score of canary i in release t, in units of its noise (the table below)
    3  test whether z predicts b (`linprobe.evaluation.audit_bounds`)

Canary i is the unit vector of a column that is zero in every other row. Its column of a release holds only noise and
its own contribution, so m canaries are m independent trials, and R runs are n = R m. u_i is the direction of its
gradient at zero weights: mean over classes minus indicator of its label. If canary i is out, z is standard normal; if
it is in, the mean of z is about 1/sigma in every release that samples it. A canary that is out leaves its place empty:
`Dataset.present`. The adversary sees every release, as the accountants assume.

A run may release a private mean m before its steps. The score of canary i in it is the entry of its column, divided by
the claimed noise. The steps are then on rows minus m, so that column i of every row holds -m_i, times a factor of the
row. `SPARE` columns S are zero in all rows and canaries. They hold -m_S times the same factors, so that

    row of canary i  -  m_i / ||m_S||^2  m_S^T (rows of S)

holds no other row. Its noise has the variance 1 + m_i^2 / ||m_S||^2, by which z is scaled.

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from linprobe.accounting.accountants import GAUSSIAN
from linprobe.accounting.calibrate import GRADIENT, calibrate
from linprobe.accounting.events import HISTOGRAM, TEST_ACCURACY
from linprobe.accounting.figures import rounded_down, rounded_up
from linprobe.accounting.per_instance import histogram_counts
from linprobe.accounting.selection import selection_epsilon
from linprobe.data.blocks import ArraySource, Source, concatenated
from linprobe.data.dataset import Dataset, Split, dataset_of, open_features
from linprobe.data.digits import DIGITS_SHOTS
from linprobe.data.feature_reader import Description, FeatureReader
from linprobe.errors import DivergedError, ParameterError, PrivacyError, Progress, UsageError
from linprobe.evaluation.audit_bounds import Trials, lower_bounds
from linprobe.gradients.backend import ARITHMETIC
from linprobe.gradients.second_order import diagonal_places, parts_of
from linprobe.mechanisms.correct_predictions import GAIN
from linprobe.mechanisms.gaussian import ClippedSum, GaussianMechanism, Projection
from linprobe.mechanisms.noise import WORDS_PER_BLOCK, NoiseSource, PoissonSampler
from linprobe.mechanisms.score_histogram import BINS, TEST_AUROC
from linprobe.methods import METHODS, Method, find_method
from linprobe.methods._directions import COVARIANCE
from linprobe.methods.class_counts import CLASS_COUNTS
from linprobe.methods.dp_newton import METHOD as NEWTON
from linprobe.methods.dp_newton import hessian_scale
from linprobe.methods.private_mean import MEAN
from linprobe.options import DEFAULT_STEPS, OWNER
from linprobe.options.requests import DEVICE_ROWS, HOST_ROWS, AuditRequest, TrainRequest
from linprobe.parallel.array_api import Reals, on_host
from linprobe.parallel.process_group import Group, in_group
from linprobe.runs.figures import count_private
from linprobe.runs.release_rules import SELECTION
from linprobe.training.execute import Observer, Runtime, Trained, execute, released_histogram
from linprobe.training.plan import Plan, make_settings, plan_run
from linprobe.training.tune import Selection, Tuning, chosen_run, selection_of

CANARY_ROWS = 6  # of a person, all of one class; clipped one by one, they would move a sum by 3 clip norms
SPARE = 16  # columns that are zero in all rows
BACKGROUND_ROWS = 300
BACKGROUND_PEOPLE = np.resize([1, 2, 3], BACKGROUND_ROWS // 2)  # rows of each person

MechanismFactory = Callable[..., GaussianMechanism]
SamplerFactory = Callable[[NoiseSource, float], PoissonSampler]
Scores = NDArray[np.float64]
COUNTS, TUNE = "counts", "tune"
PARTS = ("training", COUNTS, TUNE, HISTOGRAM)
NAMES = {MEAN: "private mean", SELECTION: "choice"}
REPETITIONS = 3  # mean number of runs of an audited choice
TEST_SHARE = 0.25  # of epsilon, for the counts of predictions on test rows
MOST_SCORES = 100_000_000  # 800 MB
NO_DEVICE = "rows on a GPU"
NEVER_COVERED = ("similar rows", GAIN, "feature files", "torch.distributed", "precisions below float32", "checkpoints")


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


@dataclass(frozen=True)
class Path:
    """A path through `train`: its rows in `memory`, `streamed` again in every pass, on `two ranks` or on a `device`. If
    `observed`, every record's own loss is computed; blocks then hold all rows and the mask of the sample.
    """

    rows: str
    observed: bool

    def __str__(self) -> str:
        return f"{self.rows}, {'observed' if self.observed else 'unobserved'}"

    @property
    def n_ranks(self) -> int:
        return 2 if self.rows == "two ranks" else 1


HOST_PATHS = tuple(Path(rows, observed) for rows in HOST_ROWS for observed in (True, False))
DEVICE_PATHS = tuple(Path(rows, observed) for rows in DEVICE_ROWS for observed in (True, False))


Seen = tuple[list[Scores], dict[str, Scores]]  # scores in each step, and in other releases by purpose


@dataclass(frozen=True)
class Round:
    """One run of what is audited, with the canaries that are `inside` (m,); `watch` makes the observer of a release."""

    plan: Plan
    planted: Planted
    inside: NDArray[np.bool_]
    runtime: Runtime
    watch: Callable[[], Watching]


@dataclass(frozen=True)
class Subject:
    """What is audited: a plan, its planted rows, the paths of its runs, a part of a run and what it claims."""

    plan: Plan
    planted: Planted
    paths: Sequence[Path]
    part: Callable[[Round], Seen]
    epsilon: float
    others: Mapping[str, float] = field(default_factory=dict)


def audit(
    request: AuditRequest,
    progress: Progress,
    *,
    mechanism: MechanismFactory = GaussianMechanism,
    insecure_seed: int | None = None,
) -> dict[str, Any]:
    """Train on digits and canaries many times, guess which canaries were in, and bound epsilon from below.

    The audited code is the code that `train`, `tune` and `pdp-report` run, on every path in turn; tests pass another
    `mechanism`, and `insecure_seed`, which makes coin tosses and noise reproducible, but for the part `tune`.
    """
    method = find_method(request.method)
    if not method.spends:
        spending = ", ".join(name for name, other in METHODS.items() if other.spends)
        raise UsageError(f"method is {method.name!r}, which adds no noise: nothing to audit; allowed: {spending}")
    subject = subject_of(request, method)
    if request.runs < 2 * len(subject.paths):
        raise ParameterError(f"runs is {request.runs}; allowed: a whole number from {2 * len(subject.paths)}")
    n_steps = subject.plan.schedule.n_steps
    if request.runs * request.canaries * n_steps > MOST_SCORES:
        raise ParameterError(
            f"runs, canaries and steps are {request.runs}, {request.canaries} and {n_steps}; allowed: a product "
            f"of at most {MOST_SCORES}; lower one of them"
        )
    progress.start(request.runs, "auditing")
    trials = play(
        subject,
        runs=request.runs,
        on_run=progress.step,
        device=request.device,
        mechanism=mechanism,
        insecure_seed=insecure_seed,
    )
    return _stated(request, subject, trials)


def _stated(request: AuditRequest, subject: Subject, trials: Trials) -> dict[str, Any]:
    tests, schedule = lower_bounds(trials, request.delta, request.confidence), subject.plan.schedule

    def largest(name: str | None = None) -> float:
        of = [test for test in tests if name == (test["name"] if test["name"] in others else None)]
        return max(float(test["epsilon_lower_bound"]) for test in of)

    others = {name: subject.others.get(name, subject.epsilon) for name in trials.others}
    parts = [f"part {part}" for part in PARTS if part != request.part]
    return {
        "method": request.method,
        "part": request.part,
        "unit": request.unit,
        "epsilon": subject.epsilon,
        "delta": request.delta,
        "epsilon_lower_bound": largest(),
        "others": {name: {"epsilon": claim, "epsilon_lower_bound": largest(name)} for name, claim in others.items()},
        "confidence": request.confidence,
        "runs": request.runs,
        "canaries": request.canaries,
        "steps": schedule.n_steps,
        "noise_multiplier": schedule.noise_multiplier,
        "sampling_rate": schedule.sampling_rate,
        "paths": [str(path) for path in subject.paths],
        "products": ARITHMETIC,
        "not_covered": [*([NO_DEVICE] if request.device == "cpu" else []), *parts, *NEVER_COVERED],
        "tests": tests,
    }


def subject_of(request: AuditRequest, method: Method) -> Subject:
    training = TrainRequest(
        method=method.name,
        epsilon=request.epsilon,
        delta=request.delta,
        steps=request.steps,
        sampling_rate=request.sampling_rate,
    )
    with open_features(None) as features:
        digits = dataset_of(features, None, Split(shots=DIGITS_SHOTS, joined=method.joins_public))
        people = BACKGROUND_PEOPLE if request.unit == OWNER else None
        background = background_of(digits, people, "public" in method.needs)
    settings = replace(make_settings(training, method), centre="none", intercept=0.0)
    if settings.condition != "none":  # what `train` decides from the number of rows, the audit always covers
        steps = DEFAULT_STEPS if settings.n_steps is None and not method.samples else settings.n_steps
        settings = replace(settings, condition=MEAN, n_steps=steps)
    Runtime(device=request.device).check(settings, request.unit)
    paths = HOST_PATHS if request.device == "cpu" else HOST_PATHS + DEVICE_PATHS
    planted = plant(background, request.canaries, own_classes=request.part == COUNTS)
    if request.part == TUNE:
        candidates = [settings, settings]  # each run has noise of its own
        choice = selection_of(planted.dataset, training, Tuning(repetitions=REPETITIONS), candidates)
        alone = [path for path in paths if path.rows in ("memory", "device") and not path.observed]
        epsilon = selection_epsilon(choice.event, choice.delta, choice.accountant)
        return Subject(choice.plans[0], planted, alone, partial(_chosen, choice), epsilon)
    if request.part == COUNTS:
        tested = None if people is not None else TEST_SHARE * request.epsilon  # no canary has several test rows
        settings = replace(settings, class_counts=True, test_epsilon=tested)
    plan = plan_run(settings, planted.dataset)
    return _of_histogram(request, plan, planted, paths) if request.part == HISTOGRAM else _of_run(plan, planted, paths)


def _of_run(plan: Plan, planted: Planted, paths: Sequence[Path]) -> Subject:
    budget = plan.budget
    if budget is None:
        raise ValueError(f"{plan.method.name} spends and has no budget")
    others = {release.purpose: GAUSSIAN.epsilon([release], budget.delta) for release in budget.others}
    epsilon = budget.accountant.epsilon(budget.releases, budget.delta)
    return Subject(plan, planted, paths, _trained, epsilon, others)


def _of_histogram(request: AuditRequest, plan: Plan, planted: Planted, paths: Sequence[Path]) -> Subject:
    published = calibrate(epsilon=request.epsilon, delta=request.delta, n_private=plan.n_units, steps=1)
    epsilon = GAUSSIAN.epsilon(published.releases, request.delta)
    observed = [path for path in paths if path.observed]
    return Subject(plan, planted, observed, partial(_published, published.noise_multiplier), epsilon)


def _trained(one: Round) -> Seen:
    observer = one.watch()
    execute(one.plan, one.planted.with_canaries(one.inside), one.runtime, observer=observer)
    return observer.adversary.scores, observer.adversary.others


def _chosen(choice: Selection, one: Round) -> Seen:
    """Scores in the releases of the run that `tune` chooses."""
    planted, inside = one.planted, one.inside
    _, trained, observer = chosen_run(choice.plans, _zeroed(planted, inside), one.runtime, REPETITIONS, one.watch)
    adversary = cast(Watching, observer).adversary
    if trained is None:
        raise DivergedError(f"an audited run of {one.plan.method.name} diverged; audit it with fewer steps")
    value, std = adversary.last
    first = np.arange(len(inside)) == 0
    (without, present), (together, _) = (
        count_private(trained.weights, trained.bias, rows.trained, rows.bounds)
        for rows in (_zeroed(planted, inside & ~first), _zeroed(planted, inside | first))
    )
    own = together - without - 0.5  # what the first canary adds to the count
    score = (float(value[0, 0]) - (without - present / 2)) * np.sign(own) / std
    return adversary.scores, {**adversary.others, SELECTION: np.where(first, score, np.nan)}


def _zeroed(planted: Planted, inside: NDArray[np.bool_]) -> Dataset:
    """The data set with the canaries that are `inside`, and rows of zeros in the other places."""
    dataset = planted.with_canaries(inside)
    sizes = 1 if dataset.bounds is None else np.diff(dataset.bounds)
    x, y = concatenated(dataset.private.blocks())
    own = dataset.private.n_rows if dataset.bounds is None else len(dataset.bounds) - 1
    kept = np.repeat(np.asarray(dataset.present)[:own], sizes)
    return replace(dataset, private=ArraySource(x * kept[:, None], y))


def _published(noise_multiplier: float, one: Round) -> Seen:
    plan, everybody = one.plan, one.planted.with_canaries(np.ones_like(one.inside))
    trained: Trained = execute(plan, everybody, one.runtime, observer=one.watch())
    if plan.budget is None or trained.losses is None or one.runtime.group.rank:
        return [], {}
    budget = plan.budget.accountant.epsilon(plan.budget.releases, plan.budget.delta)
    epsilons = trained.losses.epsilon(plan.budget.delta, budget)
    everyone, scores = histogram_counts(epsilons, budget), []
    releasing = one.watch().mechanism(NoiseSource(plan.settings.insecure_seed), lambda event: None)
    for place, joins in zip(one.planted.places, one.inside, strict=True):
        listed = epsilons if joins else np.delete(epsilons, place)
        noisy = released_histogram(listed, budget, releasing, noise_multiplier)
        own = histogram_counts(epsilons[[place]], budget)
        scores.append(float(own @ (noisy - everyone + own) / np.linalg.norm(own)) / noise_multiplier)
    return [np.array(scores)], {}


def check_audit(audited: dict[str, Any]) -> None:
    for name, claim in {"": audited, **audited["others"]}.items():
        found = claim["epsilon_lower_bound"]
        if found > claim["epsilon"]:
            what = f"epsilon of the {NAMES.get(name, name)}" if name else "epsilon"
            raise PrivacyError(
                f"{what} of {audited['method']} is at least {rounded_down(found)} at confidence "
                f"{audited['confidence']:g}; allowed: at most the {rounded_up(claim['epsilon'])} claimed; audit again; "
                "if the result stays, release nothing made with this installation and report it"
            )


def play(
    subject: Subject,
    *,
    runs: int,
    on_run: Callable[[], None],
    device: str = "cpu",
    mechanism: MechanismFactory = GaussianMechanism,
    sampler: SamplerFactory = PoissonSampler,
    insecure_seed: int | None = None,
) -> Trials:
    """Lines 1 and 2: run a part `runs` times, with about half of the canaries in."""
    plan, planted, paths = subject.plan, subject.planted, subject.paths
    inside = np.random.default_rng(insecure_seed).random((runs, planted.n_canaries)) < 0.5
    scale = hessian_scale(plan.settings.options) if plan.method is NEWTON else 0.0

    def scored(run: int, group: Group) -> Seen:
        path = paths[run % len(paths)]
        seed = None if insecure_seed is None else insecure_seed * runs + run
        audited = replace(plan, settings=replace(plan.settings, per_record=path.observed, insecure_seed=seed))
        runtime = Runtime(
            device=device if path.rows == "device" else "cpu",
            group=group,
            streamed=path.rows == "streamed",
            shard_units=WORDS_PER_BLOCK,
        )
        watch = partial(Watching, planted, mechanism, sampler, scale)
        return subject.part(Round(audited, planted, inside[run], runtime, watch))

    scores: list[list[Scores]] = []
    others: dict[str, list[Scores]] = {}
    for run in range(runs):
        steps, further = in_group(paths[run % len(paths)].n_ranks, partial(scored, run))[0]
        scores.append(steps)
        for purpose, found in further.items():
            others.setdefault(purpose, []).append(found)
        on_run()
    taken = tuple(str(paths[run % len(paths)]) for run in range(runs))
    by_purpose = {purpose: np.array(found) for purpose, found in others.items()}
    return Trials(inside, np.array(scores), taken, by_purpose)
