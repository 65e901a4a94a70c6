"""The training engine: raw rows and settings in, a model with its guarantee out.

    1  public rows: centre and scale of the training space; initial weights, if they come from an earlier run
    2  budget: steps and noise, calibrated before any private row is read
    3  private and public rows: to training space, around a noisy private mean if that pays, and to the back end that
       computes gradients
    4  the method: every release is in the ledger before its noise is drawn
    5  weights for raw rows; the noisy accuracy on private test rows; the guarantee, recomputed from the ledger

Estimators and commands call the engine. It depends neither on scikit-learn nor on the command line.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linprobe.accounting.calibrate import Budget
from linprobe.accounting.events import Releases
from linprobe.accounting.ledger import Ledger
from linprobe.accounting.per_instance import RecordLosses, record_losses
from linprobe.data.owners import Bounds
from linprobe.data.preprocessing import Preprocessing, default_intercept, normalise_rows
from linprobe.data.rows import prepare
from linprobe.data.sources import Source
from linprobe.data.unit_rows import prepare_units
from linprobe.errors import DataError, DivergedError, ParameterError, PrivacyError, UsageError
from linprobe.gradients import choose_backend
from linprobe.gradients.backend import Backend
from linprobe.gradients.loss import check_weights
from linprobe.mechanisms.gaussian import GaussianMechanism
from linprobe.mechanisms.held_out_counts import NoisyTest, held_out_counts
from linprobe.mechanisms.noise import NoiseSource
from linprobe.mechanisms.right_counts import right_counts
from linprobe.mechanisms.sampling import PoissonSampler
from linprobe.methods import Fitted, Method, Problem, Run
from linprobe.methods.private_mean import MEAN, released_mean
from linprobe.options import MANY_ROWS, MANY_ROWS_FROM_TEXT, Centring, Intercept
from linprobe.options.declaration import declared
from linprobe.parallel.array_api import on_host
from linprobe.parallel.process_group import Group
from linprobe.parallel.threads import blas_held_to_one_thread
from linprobe.runs.check import FirstModel
from linprobe.runs.guarantee import privacy_statement
from linprobe.runs.manifest import PrivacyStatement
from linprobe.training.conditioning import SHORTEST_MEAN, settled
from linprobe.training.runtime import Runtime
from linprobe.training.settings import INIT_WORDS, SELECTION, TEST_ACCURACY, Settings, schedule_of
from linprobe.training.shrinkage import Selected, best_of
from linprobe.training.sources import Sources as Sources
from linprobe.training.sources import refuse, with_roles


@dataclass(frozen=True)
class Trained:
    """A trained probe.

    Attributes:
        weights, bias: for L2-normalised raw rows, float32, shapes (n_features, n_classes) and (n_classes,); with the
            voters as first axis if the run votes.
        history: public facts of each step. n_steps: number of steps.
        centre: `public` or `private` if rows were centred on such a mean, else `none`.
        privacy: the guarantee and how it was reached.
        losses: each private record's own privacy loss, on rank 0; None for a method that spends nothing. PRIVATE.
        tested: noisy numbers of right and wrong private test rows; None if not released.
        selected: the shrinkage that noisy counts of right private rows chose; None without such counts.
    """

    weights: NDArray[np.float32]
    bias: NDArray[np.float32]
    history: list[dict[str, float]]
    n_steps: int
    centre: str
    privacy: PrivacyStatement
    losses: RecordLosses | None
    tested: NoisyTest | None = None
    selected: Selected | None = None


Counted = Callable[[NDArray[np.float32], NDArray[np.float32], Source, Bounds | None], tuple[float, float]]


def _nothing(*_: object) -> None:
    """Default progress callback."""


@blas_held_to_one_thread()
def train(
    sources: Sources,
    settings: Settings,
    runtime: Runtime | None = None,
    *,
    ledger: Ledger | None = None,
    on_budget: Callable[[Budget | None], None] = _nothing,
    on_start: Callable[[int], None] = _nothing,
    on_step: Callable[[], None] = _nothing,
    count_test: Callable[[NDArray[np.float32], NDArray[np.float32]], NDArray[np.int64]] | None = None,
    count_private: Counted | None = None,
) -> Trained:
    """Train one probe.

    Guarantee: that of `settings.method` at the epsilon and delta of `settings`, under zero-out of one private row, or
    of one person with all private rows if `sources` has `bounds`.

    Args:
        ledger: records each event before its result exists; None for a ledger in memory.
        on_budget: called with the budget before a private row is read, and again if a release changes its division
            into steps. An error that it raises ends the run.
        on_start: called with the number of steps. on_step: called after every step.
        count_test: (weights, bias) -> numbers of right and wrong private test rows of each class, (n_classes, 2), if
            `settings.test_epsilon` pays for it.
        count_private: (weights, bias, private rows, bounds of `sources`) -> numbers of right rows and of all rows, zero
            rows left out of both; with bounds, sums over people as in `linprobe.mechanisms.right_counts`. Called if
            `settings.shrink` pays for it. A unit must not change what another counts.

    Raises:
        ParameterError, UsageError: a parameter or combination that is not allowed. DataError: wrong shapes.
        PrivacyError: delta of at least 1/n_private, noise too small for one step, or a first model without a guarantee.
    """
    runtime, ledger = runtime or Runtime(), Ledger() if ledger is None else ledger
    method, group = settings.method, runtime.group
    backend = choose_backend(runtime.device)
    runtime.check(settings.options)
    refuse(sources, settings)
    sources = with_roles(sources, method)
    private, public, n_units = sources.private, sources.public, sources.n_units
    settings = settings.with_public(public is not None)
    preprocessing = _preprocessing(settings, public, sources)
    first = _first_model(settings, sources)
    inherited = () if first is None else first.releases
    first_weights = None if first is None else preprocessing.unfold(first.weights, first.bias)
    settings = settled(settings, n_units, private.n_features, known=_known(settings, sources))
    budget = _budget(settings, sources, preprocessing, inherited)
    schedule = schedule_of(budget)
    on_budget(budget)

    space = Preprocessing() if settings.condition == MEAN else preprocessing  # unit rows, whose mean is released
    bounds = sources.bounds if method.spends else None  # without clipping, the rows of a person are rows like others
    weighting = sources.weights
    rows = None
    if "private" in method.needs:
        rows = prepare_units(private, bounds, space, runtime.precision, group, weighting)
    others = None if weighting is None else weighting.of_others
    known = None if public is None else prepare(public, preprocessing, runtime.precision, weights=others)
    source = _noise_source(settings.insecure_seed, group)
    keeper = None
    if runtime.keep is not None and budget is not None and rows is not None:
        # in a single process, a method may add public rows to the private ones
        held = slice(None) if group.size == 1 else slice(rows.first, rows.first + rows.n_local)
        keeper = runtime.keep(source, held)
    ledger.inherit(inherited)
    mechanism = GaussianMechanism(
        backend.noise(source),
        ledger.append,
        first_step=ledger.position,
        group=group,
        repeated=() if keeper is None else keeper.early,
    )
    if settings.condition == MEAN and rows is not None:
        mean = released_mean(rows, mechanism, schedule.others[MEAN], group, backend)
        if np.linalg.norm(mean) >= SHORTEST_MEAN:
            preprocessing = preprocessing.around(mean, schedule.others[MEAN] / n_units)
        else:  # what is left of the budget stays the same; its division into steps may depend on a release
            settings = replace(settings, condition="none")
            budget = _budget(settings, sources, preprocessing, inherited)
            schedule = schedule_of(budget)
            on_budget(budget)
        rows = None  # frees their memory
        rows = prepare_units(private, bounds, preprocessing, runtime.precision, group, weighting)
    problem = Problem(
        private.n_features + bool(preprocessing.intercept),
        sources.n_classes,
        private=None if rows is None else backend.place(rows),
        public=None if known is None else backend.place(known),
        text_weights=_unit_text_weights(sources, preprocessing),
        run_weights=first_weights,
        centred=preprocessing.centre is not None,
        several_labels=sources.several_labels,
    )
    on_start(schedule.n_steps)
    sampler = PoissonSampler(source, schedule.sampling_rate)
    run = Run(schedule, mechanism, on_step, sampler, settings.per_record, keeper, group, backend)
    fitted = _fitted(method, problem, settings.options, run, ledger)
    check_weights(fitted.weights)
    selected = None
    if settings.shrink and count_private is not None:
        candidates = [_folded(preprocessing, fitted.shrunk(factor)) for factor in settings.shrink]
        counts = [count_private(*one, private, sources.bounds) if group.rank == 0 else (0, 0) for one in candidates]
        tracked = rows.n_local if rows is not None and settings.per_record else 0
        clipped = right_counts(counts, tracked)
        placed = replace(clipped, value=backend.put(clipped.value), contributions=backend.put(clipped.contributions))
        released = mechanism.release(placed, schedule.others[SELECTION], purpose=SELECTION)
        selected = best_of(settings.shrink, on_host(released.value)[:, 0], schedule.others[SELECTION], n_units)
        fitted = fitted.shrunk(selected.shrink)
    weights, bias = _folded(preprocessing, fitted)
    tested = None
    if count_test is not None:
        cells = count_test(weights, bias) if group.rank == 0 else np.zeros((sources.n_classes, 2), np.int64)
        tested = _released_counts(cells, mechanism, schedule.others[TEST_ACCURACY], backend)
    ledger.close()

    history = [{name: float(on_host(fact)) for name, fact in facts.items()} for facts in fitted.history]
    losses = None
    if budget is not None:
        losses = record_losses(
            n_units if settings.per_record and group.rank == 0 else 0,
            group.gather(on_host(mechanism.contributed.squared_mu)),
            group.gather(mechanism.contributed.levels),
            budget.releases[-1],
            inherited,
        )
    privacy = privacy_statement(
        method,
        budget,
        ledger.events,
        n_private=n_units,
        unit=sources.unit,
        n_public=0 if public is None else public.n_rows,
        noise_kind=source.kind if method.spends else "none drawn",
        insecure=settings.insecure_seed is not None,
    )
    centre = "none" if preprocessing.centre is None else "private" if settings.condition == MEAN else "public"
    return Trained(weights, bias, history, schedule.n_steps, centre, privacy, losses, tested, selected)


def budgets(sources: Sources, settings: Settings) -> tuple[Budget, ...]:
    """Every budget that `train` may spend on these rows: two if a short private mean changes the number of steps.

    Reads public rows only.

    Raises:
        As `train`, before it reads private rows.
    """
    refuse(sources, settings)
    sources = with_roles(sources, settings.method)
    private, public = sources.private, sources.public
    settings = settings.with_public(public is not None)
    preprocessing = _preprocessing(settings, public, sources)
    settings = settled(settings, sources.n_units, private.n_features, known=_known(settings, sources))
    possible = [settings]
    if settings.condition == MEAN:
        possible.append(replace(settings, condition="none"))
    first = _first_model(settings, sources)
    inherited = () if first is None else first.releases
    found = [_budget(one, sources, preprocessing, inherited) for one in possible]
    return tuple(budget for budget in found if budget is not None)


def _budget(
    settings: Settings, sources: Sources, preprocessing: Preprocessing, inherited: tuple[Releases, ...] = ()
) -> Budget | None:
    """The budget of `settings`; `preprocessing` is that of public facts."""
    many = math.inf
    if preprocessing.centre is not None:
        many = MANY_ROWS * sources.n_classes
    elif _from_text(settings, sources):
        many = MANY_ROWS_FROM_TEXT * sources.n_classes
    return settings.budget(sources.n_units, inherited, many_rows=many)


def _fitted(method: Method, problem: Problem, options: Any, run: Run, ledger: Ledger) -> Fitted:
    """`method.fit`. What it refuses after a release depends on the release: it counts as divergence, without figures.

    Raises:
        DivergedError: a bound on one record does not hold at weights that depend on releases.
    """
    start = ledger.position
    try:
        return method.fit(problem, options, run)
    except UsageError:
        if ledger.position == start:
            raise
        raise DivergedError(
            f"training diverged: at the weights reached, {method.name} has no bound on one record; give a smaller "
            "--score-noise, or a larger --clip-norm (for adadps, --scale-floor)"
        ) from None


def _folded(preprocessing: Preprocessing, fitted: Fitted) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Weights and bias for raw rows."""
    weights, bias = preprocessing.fold(fitted.weights, fitted.bias)
    return np.ascontiguousarray(weights), bias


def _known(settings: Settings, sources: Sources) -> str | None:
    """What makes a private mean unnecessary or impossible; None if nothing does."""
    if sources.public is not None:
        return "public rows"
    if settings.first_run is not None:
        return "weights of an earlier run"
    return "text weights" if _from_text(settings, sources) else None


def _from_text(settings: Settings, sources: Sources) -> bool:
    """Whether training starts from text weights."""
    init = getattr(settings.options, "init", "zero")
    chosen = init == "text" or (init == "auto" and sources.public is None)
    return chosen and settings.first_run is None and sources.text_weights is not None


def _released_counts(
    cells: NDArray[np.int64], mechanism: GaussianMechanism, noise_multiplier: float, backend: Backend
) -> NoisyTest:
    """Noisy numbers of private test rows, from those of right and wrong ones by class (n_classes, 2)."""
    counted = held_out_counts(cells)
    placed = replace(counted, value=backend.put(counted.value))
    released = mechanism.release(placed, noise_multiplier, purpose=TEST_ACCURACY)
    return NoisyTest.of(on_host(released.value)[:, 0], noise_multiplier)


def _preprocessing(settings: Settings, public: Source | None, sources: Sources) -> Preprocessing:
    """The map to the training space of `settings`: with a public centre, a bias column, both for labels, or neither."""
    centre, intercept = settings.centre, settings.intercept
    declared(Centring)["centre"].check(centre)
    if centre == "public" and public is None:
        raise UsageError("centre is 'public', but there are no public rows; give some, or use centre none")
    declared(Intercept)["intercept"].check(intercept)
    if settings.starts_from_text and centre == "public":
        raise UsageError("init 'text' needs uncentred rows, since text weights are not centred; use centre none")
    automatic = settings.method.centres and public is not None and not settings.starts_from_text
    centring = centre == "public" or (centre == "auto" and automatic)
    if intercept and centring and not sources.several_labels:
        raise UsageError(f"intercept {intercept:g} needs uncentred rows; use centre none, or intercept 0")
    column = default_intercept(sources.private.n_features) if intercept is None else intercept
    if not centring or public is None:
        return Preprocessing(intercept=column)
    centred = Preprocessing.centred_on(np.concatenate([rows for rows, _ in public.blocks()]))
    # a softmax of centred rows needs no bias, but a label that few rows have does: sigmoid(0) is one half
    return replace(centred, intercept=column) if sources.several_labels else centred


def _first_model(settings: Settings, sources: Sources) -> FirstModel | None:
    """The initial weights from the run `settings.first_run`, with its releases; None without such a run.

    Raises:
        PrivacyError: that run had public rows, which it did not protect, and they are not the public rows of this run.
        ParameterError, DataError: not a run folder, or weights of another shape.
    """
    if settings.first_run is None:
        return None
    init = settings.first_run.folder
    if not Path(init).is_dir():
        raise ParameterError(f"init is {init!r}; allowed: {', '.join(INIT_WORDS)}, or a run folder")
    first = settings.first_run.model
    if first.unit != sources.unit:
        raise PrivacyError(
            f"init run {init} protects units of kind {first.unit}, and this run {sources.unit}; the guarantees do not "
            "add up; train it with the same unit"
        )
    if first.weights.shape != sources.weights_shape:
        raise DataError(
            f"init run {init} has weights of shape {first.weights.shape}; allowed here: "
            f"{sources.weights_shape}; train it on features of the same kind"
        )
    digest = getattr(sources.public, "digest", None)
    if first.public_digest is not None and (digest is None or digest() != first.public_digest):
        raise PrivacyError(
            f"init run {init} had public rows that are not the public rows here, and might be private here; "
            "give the same feature file, --public-shots, --split-seed and --public (arrays cannot be compared)"
        )
    return first


def _noise_source(insecure_seed: int | None, group: Group) -> NoiseSource:
    """The noise source, with the same key in all processes."""
    source = NoiseSource(insecure_seed)
    source.key = group.broadcast(np.frombuffer(source.key, dtype=np.uint8)).tobytes()
    return source


def _unit_text_weights(sources: Sources, preprocessing: Preprocessing) -> NDArray[np.float64] | None:
    """Text weights with unit norm per class, and a zero row for the bias column if there is one.

    Raises:
        DataError: the shape is not that of the weights.
    """
    text_weights = sources.text_weights
    if text_weights is None:
        return None
    if text_weights.shape != sources.weights_shape:
        raise DataError(f"text weights have shape {text_weights.shape}; allowed: {sources.weights_shape}")
    encodings = normalise_rows(text_weights.T.astype(np.float32)).T.astype(np.float64)
    padding = np.zeros((int(bool(preprocessing.intercept)), sources.n_classes))
    return np.concatenate([encodings, padding])
