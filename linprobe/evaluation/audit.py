"""`linprobe audit`: a measured lower bound on epsilon, to compare with the upper bound that accounting claims.

`docs/audit.md` explains canaries, tests, parts and paths. Each part is run through the function that releases it.

    1  for r = 1..R:  toss b_ri for i = 1..m;  run the part on the background rows and the canaries with b_ri = 1, on
                      one path of `train` after the other
    2  z_rti <- score of canary i in release t, in units of its noise (`linprobe.evaluation.audit_canaries`)
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
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linprobe.accounting.accountants import GAUSSIAN
from linprobe.accounting.calibrate import calibrate
from linprobe.accounting.events import HISTOGRAM
from linprobe.accounting.figures import rounded_down, rounded_up
from linprobe.accounting.per_instance import histogram_counts
from linprobe.accounting.selection import selection_epsilon
from linprobe.data.blocks import ArraySource, concatenated
from linprobe.data.dataset import Dataset, Split, dataset_of, open_features
from linprobe.data.digits import DIGITS_SHOTS
from linprobe.errors import DivergedError, ParameterError, PrivacyError, Progress, UsageError
from linprobe.evaluation.audit_bounds import Trials, lower_bounds
from linprobe.evaluation.audit_canaries import (
    BACKGROUND_PEOPLE,
    MechanismFactory,
    Planted,
    SamplerFactory,
    Scores,
    Watching,
    background_of,
    plant,
)
from linprobe.gradients.backend import ARITHMETIC
from linprobe.mechanisms.correct_predictions import GAIN
from linprobe.mechanisms.gaussian import GaussianMechanism
from linprobe.mechanisms.noise import WORDS_PER_BLOCK, NoiseSource, PoissonSampler
from linprobe.methods import METHODS, Method, find_method
from linprobe.methods.dp_newton import METHOD as NEWTON
from linprobe.methods.dp_newton import hessian_scale
from linprobe.methods.private_mean import MEAN
from linprobe.options import DEFAULT_STEPS, OWNER
from linprobe.options.requests import DEVICE_ROWS, HOST_ROWS, AuditRequest, TrainRequest
from linprobe.parallel.process_group import Group, in_group
from linprobe.runs.figures import count_private
from linprobe.runs.release_rules import SELECTION
from linprobe.training.execute import Runtime, Trained, execute, released_histogram
from linprobe.training.plan import Plan, make_settings, plan_run
from linprobe.training.tune import Selection, Tuning, chosen_run, selection_of

COUNTS, TUNE = "counts", "tune"
PARTS = ("training", COUNTS, TUNE, HISTOGRAM)
NAMES = {MEAN: "private mean", SELECTION: "choice"}
REPETITIONS = 3  # mean number of runs of an audited choice
TEST_SHARE = 0.25  # of epsilon, for the counts of predictions on test rows
MOST_SCORES = 100_000_000  # 800 MB
NO_DEVICE = "rows on a GPU"
NEVER_COVERED = ("similar rows", GAIN, "feature files", "torch.distributed", "precisions below float32", "checkpoints")


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
class Subject:
    """What is audited: a plan, its planted rows, the paths of its runs, a part of a run and what it claims."""

    plan: Plan
    planted: Planted
    paths: Sequence[Path]
    part: Callable[[Plan, Planted, NDArray[np.bool_], Runtime, Callable[[], Watching]], Seen]
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
        "products": trials.products,
        "not_covered": [*([NO_DEVICE] if request.device == "cpu" else []), *parts, *NEVER_COVERED],
        "tests": tests,
    }


def subject_of(request: AuditRequest, method: Method) -> Subject:
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


def _trained(
    plan: Plan, planted: Planted, inside: NDArray[np.bool_], runtime: Runtime, watch: Callable[[], Watching]
) -> Seen:
    observer = watch()
    execute(plan, planted.with_canaries(inside), runtime, observer=observer)
    return observer.adversary.scores, observer.adversary.others


def _chosen(
    choice: Selection,
    plan: Plan,
    planted: Planted,
    inside: NDArray[np.bool_],
    runtime: Runtime,
    watch: Callable[[], Watching],
) -> Seen:
    """Scores in the releases of the run that `tune` chooses."""
    watched: list[Watching] = []

    def watching() -> Watching:
        watched.append(watch())
        return watched[-1]

    _, trained, observer = chosen_run(choice.plans, _zeroed(planted, inside), runtime, REPETITIONS, watching)
    adversary = next(one for one in watched if one is observer).adversary
    if trained is None:
        raise DivergedError(f"an audited run of {plan.method.name} diverged; audit it with fewer steps")
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


def _published(
    noise_multiplier: float,
    plan: Plan,
    planted: Planted,
    inside: NDArray[np.bool_],
    runtime: Runtime,
    watch: Callable[[], Watching],
) -> Seen:
    trained: Trained = execute(plan, planted.with_canaries(np.ones_like(inside)), runtime, observer=watch())
    if plan.budget is None or trained.losses is None or runtime.group.rank:
        return [], {}
    budget = plan.budget.accountant.epsilon(plan.budget.releases, plan.budget.delta)
    epsilons = trained.losses.epsilon(plan.budget.delta, budget)
    everyone, scores = histogram_counts(epsilons, budget), []
    releasing = watch().mechanism(NoiseSource(plan.settings.insecure_seed), lambda event: None)
    for place, joins in zip(planted.places, inside, strict=True):
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
        return subject.part(
            audited, planted, inside[run], runtime, lambda: Watching(planted, mechanism, sampler, scale)
        )

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
    return Trials(inside, np.array(scores), taken, ARITHMETIC, by_purpose)
