"""Execute a plan: private rows in, a model with its guarantee out.

Nothing here decides what is released. If the private mean is too short to subtract, the plan has another budget.
"""

import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from linprobe import __version__
from linprobe.accounting.accountants import installed_version
from linprobe.accounting.events import HISTOGRAM, OWNER, TEST_ACCURACY, grouped
from linprobe.accounting.ledger import Ledger
from linprobe.accounting.per_instance import RecordLosses, histogram_counts, record_losses
from linprobe.data.blocks import COLUMN_OF_ZEROS, Precision, Preprocessing, Source
from linprobe.data.dataset import Dataset
from linprobe.data.rows import Rows, check_column, prepare, prepare_shard, row_parts, rows_in_memory
from linprobe.errors import DivergedError, UsageError, require
from linprobe.gradients.backend import HOST, Backend
from linprobe.gradients.loss import check_weights
from linprobe.mechanisms.correct_predictions import (
    GAIN,
    NoisyGain,
    NoisyTest,
    correct_counts,
    correct_counts_sensitivity,
    gain,
)
from linprobe.mechanisms.gaussian import ClippedSum, GaussianMechanism
from linprobe.mechanisms.noise import NoiseSource, PoissonSampler
from linprobe.mechanisms.score_histogram import TEST_AUROC, NoisyScores
from linprobe.methods import Fitted, Problem, Run
from linprobe.methods.class_counts import ClassCounts, class_shares, equal_shares, released_counts, shift_between
from linprobe.methods.private_mean import MEAN, expected_squared_norm, longer_steps, released_mean, text_mean
from linprobe.methods.similar_rows import SAME_KIND, SimilarRows, Surroundings, released_similar
from linprobe.native import arithmetic_name
from linprobe.options.declaration import refuse_on_gpu
from linprobe.parallel.array_api import Reals, Singles, on_host
from linprobe.parallel.process_group import ALONE, Group
from linprobe.parallel.threads import blas_held_to_one_thread
from linprobe.runs.figures import count_private, sums_of_test_rows
from linprobe.runs.guarantee import privacy_statement
from linprobe.runs.manifest import PrivacyStatement
from linprobe.runs.refined_weights import Known, Refined, mu_of_weights, refined_weights, unlabelled_rows
from linprobe.runs.release_rules import SELECTION
from linprobe.training.checkpoint import Checkpoints
from linprobe.training.plan import SHORTEST_MEAN, Plan, Settings, beside_text


@dataclass(frozen=True)
class Selected:
    """The shrinkage c of a run's update W_1 + c (W - W_1), and the noisy counts of each factor that chose it."""

    shrink: float
    counts: tuple[float, ...]
    std: float


@dataclass(frozen=True)
class Runtime:
    """How a run is computed: nothing here changes its method, budget or guarantee, but perhaps its rounding."""

    precision: Precision = "float32"  # storage type; clip factors are of the rounded rows
    device: str = "cpu"  # `cpu`, `cuda` or `cuda:N`; it holds rows, weights and noise
    group: Group = ALONE  # processes with the same arguments, each on its shard of the private rows
    streamed: bool = False  # whether rows are read again in every pass, though they fit in memory
    shard_units: int | None = None  # a shard begins at a multiple; None for the same bits in any number of processes
    keep: Checkpoints | None = None

    def check(self, settings: Settings, unit: str) -> None:
        """Refuse a device or processes that cannot train with these settings. UsageError; as `choose_backend`."""
        options, size = settings.options, self.group.size
        extended = getattr(options, "extended", 0)
        if extended and size > 1:
            raise UsageError(
                f"extended is {extended} in {size} processes, which add the same rows; allowed: 0, or one process"
            )
        if self.device == "cpu":
            return
        refuse_on_gpu(options, self.device)
        if unit == OWNER and settings.method.samples:
            raise UsageError(
                f"device is {self.device!r}, and the method is for samples, here of people; allowed: device cpu, or a "
                "method without samples, such as noisy-gd"
            )
        if size > 1:
            raise UsageError(f"device is {self.device!r} with {size} processes; allowed: one process, or device cpu")
        choose_backend(self.device)  # here, before a budget is charged

    def check_plan(self, plan: Plan) -> None:
        """`check` for a plan. Raises UsageError: as `check`, `check_column` and `row_parts`."""
        self.check(plan.settings, plan.unit)
        check_column(plan.preprocessing.intercept, self.precision)
        if self.group.size > 1 and "private" in plan.method.needs:
            # before the budget: torchrun ends process 0 when another one refuses, and then the whole plan would count
            row_parts(plan.n_units, self.group, self.shard_units)


class Observer:
    """Receives public facts and releases while a plan is executed. This base class ignores them."""

    def budget(self, plan: Plan) -> None:
        """The plan before a private row is used, and again if a release divides it anew. An error here ends the run."""

    def start(self, n_steps: int, what: str = "training") -> None:
        """The number of steps, before the first; or 0, and what follows the last."""

    def step(self) -> None:
        """The end of a step."""

    def mechanism(self, *given: Any, **named: Any) -> GaussianMechanism:
        """The mechanism that releases, with the arguments of `GaussianMechanism`; an observer may look at releases."""
        return GaussianMechanism(*given, **named)

    def sampler(self, source: NoiseSource, rate: float) -> PoissonSampler:
        return PoissonSampler(source, rate)


@dataclass(frozen=True)
class Trained:
    weights: Singles  # for L2-normalised raw rows, (n_features, n_classes); voters are the first axis
    bias: Singles
    history: list[dict[str, float]]  # public facts of each step
    n_steps: int
    centre: str  # `public`, `private` or `unlabelled`: the mean that was subtracted; or `none`
    privacy: PrivacyStatement
    losses: RecordLosses | None  # of each private record, on rank 0; None if nothing was spent. PRIVATE
    tested: tuple[NoisyTest, NoisyScores | None] | None = None  # on private test rows
    selected: Selected | None = None
    class_counts: ClassCounts | None = None
    unrefined: tuple[Singles, Singles] | None = None  # weights and bias before refinement
    refined: Refined | None = None
    similar: SimilarRows | None = None
    gain: NoisyGain | None = None


@dataclass(frozen=True)
class _Prepared:
    """Rows in training space and what releases their sums; `plan` has the budget that a private mean chose."""

    plan: Plan
    dataset: Dataset
    preprocessing: Preprocessing
    problem: Problem
    run: Run
    ledger: Ledger
    source: NoiseSource
    class_counts: ClassCounts | None
    similar: SimilarRows | None


@blas_held_to_one_thread()
def execute(
    plan: Plan,
    dataset: Dataset,
    runtime: Runtime | None = None,
    ledger: Ledger | None = None,
    observer: Observer | None = None,
) -> Trained:
    """Train one probe as `plan` says, on the rows of `dataset`, from which the plan was made.

    Guarantee: (epsilon, delta) of the plan, as its method defines it, under zero-out of one private row, or of one
    person with all private rows if `dataset` has `bounds`.

    What is refused after a release may depend on it: it counts as divergence, without figures.
    """
    runtime, ledger = runtime or Runtime(), Ledger() if ledger is None else ledger
    observer = observer or Observer()
    runtime.check_plan(plan)
    observer.budget(plan)
    before = ledger.position + sum(release.count for release in plan.inherited)
    try:
        prepared = _prepare(plan, dataset, runtime, ledger, observer)
        observer.start(prepared.plan.schedule.n_steps)
        fitted = plan.method.fit(prepared.problem, prepared.plan.settings.options, prepared.run)
        check_weights(fitted.weights)
        observer.start(0, "finishing")
        return _finish(prepared, fitted)
    except UsageError:
        if ledger.position <= before:
            raise
        raise DivergedError(
            f"training diverged: after a release, {plan.method.name} refused an option, or has no bound on one record "
            "at the weights reached; give a smaller --score-noise, or a larger --clip-norm (for adadps, --scale-floor)"
        ) from None


def _prepare(plan: Plan, dataset: Dataset, runtime: Runtime, ledger: Ledger, observer: Observer) -> _Prepared:
    settings, group, backend = plan.settings, runtime.group, choose_backend(runtime.device)
    preprocessing, reads = plan.preprocessing, "private" in plan.method.needs
    early = reads and (settings.condition == MEAN or settings.similar)
    space = Preprocessing() if early else preprocessing  # releases before the first step are of unit rows
    room = early and bool(preprocessing.intercept)
    rows = private_rows(plan, dataset, space, runtime, room=room) if reads else None
    public = _public_rows(plan, dataset, runtime)
    source = backend.noise(settings.insecure_seed)
    source.key = group.broadcast(np.frombuffer(source.key, dtype=np.uint8)).tobytes()  # the same in all processes
    keeper = None if plan.budget is None or rows is None else runtime.keep
    if keeper is not None and rows is not None:
        keeper.begin(source, slice(rows.first, rows.first + rows.n_local))
    ledger.inherit(plan.inherited)
    mechanism = observer.mechanism(
        source, ledger.append, first_step=ledger.position, group=group, repeated=() if keeper is None else keeper.early
    )
    sampler = observer.sampler(source, plan.schedule.sampling_rate)
    run = Run(plan.schedule, mechanism, observer.step, sampler, settings.per_record, keeper, group, backend)
    similar: SimilarRows | None = None
    if early and rows is not None:
        plan, preprocessing, similar = _centred(plan, dataset, rows, run, observer)
        run = replace(run, schedule=plan.schedule)
        rows = private_rows(plan, dataset, preprocessing, runtime, spent=rows)
    counts = _class_counts(plan, dataset, rows, run)
    problem = _problem(plan, dataset, preprocessing, rows, public, backend)
    return _Prepared(plan, dataset, preprocessing, problem, run, ledger, source, counts, similar)


def _problem(
    plan: Plan, dataset: Dataset, preprocessing: Preprocessing, rows: Rows | None, public: Rows | None, backend: Backend
) -> Problem:
    """What the method gets: rows in training space, on the back end's device; public ones where it takes its steps."""
    beside = backend if plan.method.options.on_gpu == "steps" else HOST
    shots, text = dataset.free_shots, plan.text_weights
    if text is not None:
        biased = not beside_text(plan.settings, dataset)  # beside public rows, these decide the biases
        text = preprocessing.unfold(text) if biased else np.pad(text, ((0, bool(preprocessing.intercept)), (0, 0)))
    return Problem(
        dataset.private.n_features + bool(preprocessing.intercept),
        dataset.n_classes,
        private=None if rows is None else backend.place(rows),
        public=None if public is None else beside.place(public),
        drawn=public is not None and shots is not None and shots.n_rows == public.n_rows,
        text_weights=text,
        run_weights=plan.first_weights,
        centred=preprocessing.centre is not None,
        longer_steps=_longer_steps(plan, dataset, preprocessing),
        short_mean=preprocessing.centre is None and MEAN in plan.schedule.others,
        several_labels=dataset.several_labels,
    )


def _longer_steps(plan: Plan, dataset: Dataset, preprocessing: Preprocessing) -> float:
    """`Problem.longer_steps`; 1 where a guess of the mean may stand in its place."""
    noise, centre = plan.schedule.others.get(MEAN), preprocessing.centre
    if noise is None or centre is None or plan.text_weights is not None or dataset.unlabelled is not None:
        return 1.0
    return longer_steps(centre, noise / plan.n_units)


def _centred(
    plan: Plan, dataset: Dataset, rows: Rows, run: Run, observer: Observer
) -> tuple[Plan, Preprocessing, SimilarRows | None]:
    """What the releases on unit rows decide: the plan, the map to training space, and the number of similar rows."""
    preprocessing = plan.preprocessing
    similar: SimilarRows | None = None
    around: Surroundings | None = None  # of unlabelled rows of the same kind
    if plan.settings.similar and dataset.unlabelled is not None:
        around = Surroundings(unlabelled_rows(dataset.unlabelled, dataset.n_classes))
        similar = released_similar(rows, around, run)
        around = around if similar.share(plan.n_units) >= SAME_KIND else None
    if plan.settings.condition == MEAN:
        guess = text_mean(plan.text_weights) if around is None else around.mean
        mean = released_mean(rows, run, guess)
        if np.linalg.norm(mean) >= SHORTEST_MEAN:
            if around is None:
                error = 0.0 if mean is guess else run.schedule.others[MEAN] / plan.n_units
                squared_norm = expected_squared_norm(mean, error)
            else:
                squared_norm = around.squared_norm + float(((mean - around.mean) ** 2).sum())
            return plan, preprocessing.around(mean, squared_norm), similar
        plan = plan.uncentred()
        observer.budget(plan)
    elif plan.centre_unlabelled and around is not None and np.linalg.norm(around.mean) >= SHORTEST_MEAN:
        preprocessing = preprocessing.around(around.mean, around.squared_norm)
    return plan, preprocessing, similar


def _public_rows(plan: Plan, dataset: Dataset, runtime: Runtime) -> Rows | None:
    """The public rows in training space, which nothing protects; None without any."""
    public, weights = dataset.free_public, dataset.trained_weights
    others, space = None if weights is None else replace(weights, by_row=None), plan.preprocessing
    if dataset.unequal and space.intercept and space.centre is not None:
        # shares of public classes say nothing about the bias
        space = replace(space, intercept=COLUMN_OF_ZEROS)
    return None if public is None else prepare(public, space, runtime.precision, weights=others)


def _class_counts(plan: Plan, dataset: Dataset, rows: Rows | None, run: Run) -> ClassCounts | None:
    if not plan.settings.class_counts or rows is None:
        return None
    return released_counts(rows, dataset.n_classes, dataset.several_labels, run)


def private_rows(
    plan: Plan,
    dataset: Dataset,
    preprocessing: Preprocessing,
    runtime: Runtime,
    *,
    room: bool = False,
    spent: Rows | None = None,
) -> Rows:
    """The protected rows of this process in training space; absent units are empty. `room`, `spent`: see `prepare`."""
    bounds = dataset.bounds if plan.method.spends else None  # without clipping, the rows of a person are just rows
    rows = prepare_shard(
        dataset.trained,
        bounds,
        preprocessing,
        runtime.precision,
        runtime.group,
        dataset.trained_weights,
        even=plan.settings.weighs,
        streamed=runtime.streamed,
        shard_units=runtime.shard_units,
        room=room,
        spent=spent,
    )
    if runtime.device != "cpu":
        rows_in_memory(rows, runtime.device)  # before the first release
    return rows if dataset.present is None else rows.emptied(dataset.present[rows.first : rows.first + rows.n_local])


def _finish(prepared: _Prepared, fitted: Fitted) -> Trained:
    plan, dataset, preprocessing, ledger = prepared.plan, prepared.dataset, prepared.preprocessing, prepared.ledger
    settings = plan.settings
    selected = None
    if settings.shrink:
        selected = _select(prepared, fitted)
        fitted = fitted.shrunk(selected.shrink)
    weights, bias = _folded(preprocessing, fitted)
    tested, unrefined = None, None
    refined, gained = _refined(prepared, weights, bias)
    if settings.balanced and prepared.class_counts is not None and not dataset.several_labels:
        own = class_shares(prepared.class_counts, plan.n_units)
        shift = shift_between(own, equal_shares(own))  # rows without labels have the shares of training: not before
        bias = np.asarray(bias + shift, dtype=bias.dtype)
        refined = None if refined is None else replace(refined, bias=(refined.bias + shift).astype(bias.dtype))
    if refined is not None:
        unrefined, weights, bias = (weights, bias), refined.weights, refined.bias
    if settings.test_epsilon is not None:
        tested = _test(prepared, weights, bias)
    ledger.close()
    return Trained(
        weights,
        bias,
        [{name: float(fact) for name, fact in facts.items()} for facts in fitted.history],
        plan.schedule.n_steps,
        "none" if preprocessing.centre is None else plan.centre,
        privacy_statement(
            plan.method,
            plan.budget,
            ledger.events,
            n_private=plan.n_units,
            unit=plan.unit,
            n_public=plan.n_public,
            noise_kind=prepared.source.kind if plan.method.spends else "none drawn",
            insecure=settings.insecure_seed is not None,
            software=_software_versions(),
        ),
        _losses(plan, dataset, prepared.run),
        tested,
        selected,
        prepared.class_counts,
        unrefined,
        refined,
        prepared.similar,
        gained,
    )


def _refined(prepared: _Prepared, weights: Singles, bias: Singles) -> tuple[Refined | None, NoisyGain | None]:
    """Weights that rows without labels refine, on rank 0, and what private rows gain; where they lose, weights stay."""
    plan, dataset, run = prepared.plan, prepared.dataset, prepared.run
    if dataset.unlabelled is None:
        return None, None
    refined = None
    if run.group.rank == 0:
        refined = _candidate(prepared, dataset.unlabelled, weights, bias)
    if not plan.settings.similar:
        return refined, None
    pair = ((weights, bias), (refined.weights, refined.bias)) if refined is not None and refined.strength else ()
    counts, tracked = _counted(prepared, pair)
    (old, new), noise = counts or [(0.0, 0.0)] * 2, plan.schedule.others[GAIN]
    released = run.released(gain(old, new, tracked), GAIN)
    gained = NoisyGain(float(released[0, 0]), noise, 0.0 if refined is None else refined.expected_gain)
    return None if refined is None else refined.after(gained, plan.n_units, weights, bias), gained


def _candidate(prepared: _Prepared, unlabelled: Source, weights: Singles, bias: Singles) -> Refined:
    plan, dataset, centre = prepared.plan, prepared.dataset, prepared.preprocessing.centre
    rows, shots = unlabelled_rows(unlabelled, dataset.n_classes), dataset.like_private(plan.method.spends)
    similar = None if prepared.similar is None else prepared.similar.share(plan.n_units)
    near = Surroundings(rows).shots_near(shots.blocks()) if similar is None and shots is not None else None
    known = Known(plan.n_units, mu_of_weights(grouped(prepared.ledger.events)), centre is not None, similar, near)
    return refined_weights(rows, weights, bias, known)


def _losses(plan: Plan, dataset: Dataset, run: Run) -> RecordLosses | None:
    """The privacy loss of each record, on rank 0, or None; people with private test rows pay those releases in full."""
    if plan.budget is None:
        return None
    contributed = run.mechanism.contributed
    both = dataset.features is not None and dataset.features.description.shares_owners and plan.unit == OWNER
    of_test = [one for one in plan.budget.others if both and one.purpose in (TEST_ACCURACY, TEST_AUROC)]
    return record_losses(
        plan.n_units if run.per_record and run.group.rank == 0 else 0,
        run.group.gather(on_host(contributed.squared_mu)),
        run.group.gather(contributed.levels),
        plan.budget.releases[-1],
        (*plan.inherited, *of_test),
    )


def _software_versions() -> dict[str, str]:
    """Versions of linprobe, Python, and the libraries whose arithmetic decides the result, and the kernel's digest."""
    names = ("numpy", "scipy", "scikit-learn", "cryptography")
    return {
        "linprobe": __version__,
        "python": platform.python_version(),
        **{name: installed_version(name) for name in names},
        "arithmetic": arithmetic_name(),
    }


def _counted(prepared: _Prepared, models: Sequence[tuple[Singles, Singles]]) -> tuple[list[tuple[float, float]], int]:
    """Correct predictions and rows present for each model, 0 on all ranks but the first; and units tracked here."""
    dataset, run = prepared.dataset, prepared.run
    first, tracked = run.group.rank == 0, prepared.problem.private_rows.n_local if run.per_record else 0
    return [count_private(*one, dataset.trained, dataset.bounds) if first else (0, 0) for one in models], tracked


def _select(prepared: _Prepared, fitted: Fitted) -> Selected:
    """The shrinkage with the largest noisy number of correct predictions on private rows."""
    plan, run = prepared.plan, prepared.run
    factors, noise = plan.settings.shrink, plan.schedule.others[SELECTION]
    candidates = [_folded(prepared.preprocessing, fitted.shrunk(factor)) for factor in factors]
    counts, tracked = _counted(prepared, candidates)
    released = run.released(correct_counts(counts, tracked), SELECTION)
    halved = released[:, 0]  # correct minus wrong predictions, halved
    std = noise * correct_counts_sensitivity(len(factors))
    return Selected(factors[int(halved.argmax())], tuple((halved + plan.n_units / 2).tolist()), std)


def _test(prepared: _Prepared, weights: Singles, bias: Singles) -> tuple[NoisyTest, NoisyScores | None]:
    """Noisy numbers, or people's shares, of correct and wrong predictions on private test rows, perhaps of scores."""
    dataset, run, noise = prepared.dataset, prepared.run, prepared.plan.schedule.others
    features = dataset.features if run.group.rank == 0 else None
    bounds = None if features is None else dataset.test_bounds
    sums = sums_of_test_rows(iter(()) if features is None else features.blocks("test"), weights, bias, bounds)
    released = {purpose: run.released(counted, purpose) for purpose, counted in sums.items() if purpose in noise}
    scores = NoisyScores.of(released[TEST_AUROC], noise[TEST_AUROC]) if TEST_AUROC in noise else None
    return NoisyTest.of(released[TEST_ACCURACY][:, 0], noise[TEST_ACCURACY]), scores


def released_histogram(epsilons: Reals, budget: float, mechanism: GaussianMechanism, noise_multiplier: float) -> Reals:
    """Noisy numbers of units by their own epsilon (n_units,), in equal bins of [0, budget].

    Given the releases of the run, an epsilon is a function of its own record or person alone (`docs/proofs/people.md`),
    so one of them changes one count by one: the L2 sensitivity is 1.
    """
    clipped = ClippedSum(histogram_counts(epsilons, budget)[:, None], 1.0, np.ones(1))
    return mechanism.release(clipped, noise_multiplier, purpose=HISTOGRAM)[:, 0]


def _folded(preprocessing: Preprocessing, fitted: Fitted) -> tuple[Singles, Singles]:
    weights, bias = preprocessing.fold(fitted.weights, fitted.bias)
    return np.ascontiguousarray(weights), bias


def choose_backend(device: str) -> Backend:
    """The host for `cpu`, else a GPU. ParameterError: an unknown device, or no GPU. UsageError: no torch."""
    if device == "cpu":
        return HOST
    require("torch", f"device {device}")
    from linprobe.gradients.gpu import GpuBackend, check_device  # imports torch

    return GpuBackend(check_device(device))
