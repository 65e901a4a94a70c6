"""All that is public about a run before it starts.

`plan_run` reads public facts only: settings, sizes, public rows, text weights, the run of a warm start. What it
states can be printed, compared and charged. `execute` in `linprobe.training` follows it and may only refuse to go on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linprobe.accounting.accountants import Accountant
from linprobe.accounting.book import EXAMPLES, Entry
from linprobe.accounting.calibrate import Budget, large_delta
from linprobe.accounting.events import REMOVED, Relation, Releases, converted
from linprobe.accounting.figures import rounded_up
from linprobe.data.blocks import Preprocessing, default_intercept, normalise_rows
from linprobe.data.dataset import Dataset
from linprobe.errors import DataError, ParameterError, PrivacyError, UsageError
from linprobe.methods import METHODS, Method, Schedule
from linprobe.methods.class_counts import gives_log_odds
from linprobe.methods.private_mean import MEAN
from linprobe.options import (
    ENOUGH_ROWS,
    LARGE_STEP,
    LARGE_STEP_WITH_MOMENTUM,
    MANY_ROWS,
    MANY_ROWS_FROM_TEXT,
    OWNER,
    RECORD,
    VOTE,
    Centring,
    Intercept,
)
from linprobe.options.declaration import declared, refuse_idle
from linprobe.runs.check import FirstModel
from linprobe.runs.manifest import UNLABELLED_CENTRE
from linprobe.training.centring import settled
from linprobe.training.settings import INIT_WORDS, Settings, schedule_of


@dataclass(frozen=True)
class Plan:
    """All that is public about a run before it starts.

    Attributes:
        settings: with the options that public facts decide.
        preprocessing: the map to the training space, before a private mean.
        budget: every release with its cost; None for a method that spends nothing.
        first: the run with the initial weights, or None. first_weights: these weights in training space.
        text_weights: unit-norm class encodings in training space, (n_features, n_classes), or None.
        centre_unlabelled: whether the mean of unlabelled rows of the same kind takes the place of a private mean that
            the budget does not buy.
        n_units, unit: what is protected. n_public: number of public rows that are not protected.
    """

    settings: Settings
    preprocessing: Preprocessing
    budget: Budget | None
    first: FirstModel | None
    first_weights: NDArray[np.float64] | None
    text_weights: NDArray[np.float64] | None
    n_units: int
    unit: str
    n_public: int
    centre_unlabelled: bool = False

    @property
    def method(self) -> Method:
        """The method that trains."""
        return self.settings.method

    @property
    def centre(self) -> str:
        """What rows are to be centred on; a short private mean, or rows of another kind, change it to `none`."""
        if self.settings.condition == MEAN:
            return "private"
        if self.centre_unlabelled:
            return UNLABELLED_CENTRE
        return "none" if self.preprocessing.centre is None else "public"

    @property
    def schedule(self) -> Schedule:
        """Steps and noise; no steps without a budget."""
        return schedule_of(self.budget)

    @property
    def inherited(self) -> tuple[Releases, ...]:
        """The releases of the first model."""
        return () if self.first is None else self.first.releases

    @property
    def private(self) -> bool:
        """Whether the run has a guarantee."""
        return self.method.private and self.settings.insecure_seed is None

    def uncentred(self) -> Plan:
        """The plan after the release of a mean that is too short to subtract.

        The rest of the budget stays the same; its division into steps may depend on a release.
        """
        settings = replace(self.settings, condition="none")
        return replace(self, settings=settings, budget=settings.budget(self.n_units, self.inherited))

    @property
    def budgets(self) -> tuple[Budget, ...]:
        """Every budget that the run may spend: two if the length of a private mean decides between them."""
        plans = [self, self.uncentred()] if self.settings.condition == MEAN else [self]
        return tuple(plan.budget for plan in plans if plan.budget is not None)

    def entry(self, run: str = "", name: str = "") -> Entry:
        """The entry of the budget book."""
        spent = self.budget if self.private else None
        return Entry(
            run=run,
            name=name,
            method=self.method.name,
            unit=self.unit,
            private=self.private,
            delta=None if spent is None else spent.delta,
            releases=() if spent is None else spent.releases,
        )


def plan_run(settings: Settings, dataset: Dataset) -> Plan:
    """The plan of a run. No private row is read.

    Raises ParameterError, UsageError: a parameter or combination that is not allowed. DataError: wrong shapes.
    PrivacyError: delta of at least 1 / n_units, noise too small for one step, or a first model without a guarantee.
    """
    refuse_combinations(settings, dataset)
    settings = settings.with_public(dataset.free_public is not None)
    settings = replace(
        settings, similar=settings.similar or (dataset.unlabelled is not None and settings.method.spends)
    )
    preprocessing = _preprocessing(settings, dataset)
    first = _first_model(settings, dataset)
    first_weights = None if first is None else preprocessing.unfold(first.weights, first.bias)
    from_text = _from_text(settings, dataset)
    known, wanted = _known(settings, dataset, from_text), settings.condition
    settings = settled(settings, dataset.n_units, dataset.private.n_features, known=known)
    free = dataset.unlabelled is not None and known is None and (wanted, settings.condition) == ("auto", "none")
    return Plan(
        settings,
        preprocessing,
        settings.budget(
            dataset.n_units,
            () if first is None else first.releases,
            many_rows=_many_rows(settings, dataset, centred=preprocessing.centre is not None, from_text=from_text),
        ),
        first,
        first_weights,
        _unit_text_weights(dataset, preprocessing),
        dataset.n_units,
        dataset.unit,
        0 if dataset.free_public is None else dataset.free_public.n_rows,
        free,
    )


def warnings_of(plan: Plan, dataset: Dataset, *, delta: float | None = None) -> list[str]:
    """What to say to people before the run starts.

    Args:
        delta: of a choice among several runs; None for one run.
    """
    said: list[str | None] = []
    if plan.method.spends:
        said.append(large_delta(plan.settings.delta if delta is None else delta, plan.n_units))
    if plan.method.private and not plan.private:
        said.append("NOT PRIVATE: the noise comes from a seed you gave; use this run for tests only")
    elif plan.budget is not None and delta is None:
        said.append(fewer_protected(dataset, plan.budget.releases, plan.budget.delta, plan.budget.accountant))
    return [text for text in said if text is not None]


def fewer_protected(dataset: Dataset, releases: Sequence[Releases], delta: float, accountant: Accountant) -> str | None:
    """One line on what a run that protects rows means for people with several; None if no rows have owners.

    No number comes from the data.
    """
    features = dataset.features
    if features is None or dataset.unit != RECORD or not features.has_owners("train"):
        return None

    def epsilon(k: int) -> float:
        return accountant.epsilon(converted(releases, REMOVED[RECORD], Relation(OWNER, rows=k)), delta)

    costs = ", ".join(f"{rounded_up(epsilon(k))} with {k} rows" for k in EXAMPLES)
    return (
        f"{features.path} names the owner of each row, and this run protects single rows: the epsilon of a person is "
        f"{costs}; --unit {OWNER} protects people"
    )


def plan_facts(budget: Budget) -> dict[str, Any]:
    """A budget, JSON-ready."""
    return {
        "steps": budget.n_steps,
        "noise_multiplier": budget.noise_multiplier,
        "sampling_rate": budget.sampling_rate,
        "releases": [asdict(release) for release in budget.releases],
    }


def _known(settings: Settings, dataset: Dataset, from_text: bool) -> str | None:
    """What makes a private mean unnecessary or impossible; None if nothing does."""
    if dataset.free_public is not None:
        return "public rows"
    if settings.first_run is not None:
        return "weights of an earlier run"
    return "text weights" if from_text else None


def _many_rows(settings: Settings, dataset: Dataset, *, centred: bool, from_text: bool) -> float:
    """The number of private units from which the default is `CENTRED_STEPS`."""
    size, many = dataset.trained.n_rows * dataset.private.n_features * dataset.n_classes, MANY_ROWS * dataset.n_classes
    if settings.condition == MEAN:
        return many if size > LARGE_STEP else 0
    if centred:
        has_momentum = settings.method.has_momentum(settings.options) and not dataset.several_labels
        if size > LARGE_STEP_WITH_MOMENTUM:
            return math.inf if has_momentum else many
        return ENOUGH_ROWS * dataset.n_classes
    return MANY_ROWS_FROM_TEXT * dataset.n_classes if from_text else math.inf


def _from_text(settings: Settings, dataset: Dataset) -> bool:
    """Whether training starts from text weights."""
    init = getattr(settings.options, "init", "zero")
    chosen = init == "text" or (init == "auto" and dataset.free_public is None)
    return chosen and settings.first_run is None and dataset.encodings is not None


def _centres(settings: Settings, dataset: Dataset) -> bool:
    """Whether rows are centred on the mean of the public rows."""
    centre, public = settings.centre, dataset.free_public
    declared(Centring)["centre"].check(centre)
    if centre == "public" and public is None:
        raise UsageError("centre is 'public', but there are no public rows; give some, or use centre none")
    if centre == "public" and settings.starts_from_text:
        raise UsageError("init 'text' needs uncentred rows, since text weights are not centred; use centre none")
    automatic = settings.method.centres and public is not None and not settings.starts_from_text
    return centre == "public" or (centre == "auto" and automatic)


def _preprocessing(settings: Settings, dataset: Dataset) -> Preprocessing:
    """The map to the training space of `settings`: with a public centre, a bias column, both for labels, or neither."""
    intercept, centring = settings.intercept, _centres(settings, dataset)
    declared(Intercept)["intercept"].check(intercept)
    if intercept and centring and not dataset.several_labels:
        raise UsageError(f"intercept {intercept:g} needs uncentred rows; use centre none, or intercept 0")
    column = default_intercept(dataset.private.n_features) if intercept is None else intercept
    if not centring:
        return Preprocessing(intercept=column)
    # a softmax of centred rows needs no bias, but a label that few rows have does: sigmoid(0) is one half
    centred = dataset.public_centring
    return replace(centred, intercept=column) if dataset.several_labels else centred


def _first_model(settings: Settings, dataset: Dataset) -> FirstModel | None:
    """The initial weights from the run `settings.first_run`, with its releases; None without such a run.

    Raises PrivacyError: that run had public rows, which it did not protect, and they are not the public rows of this
    run. ParameterError, DataError: not a run folder, or weights of another shape.
    """
    if settings.first_run is None:
        return None
    init = settings.first_run.folder
    if not Path(init).is_dir():
        raise ParameterError(f"init is {init!r}; allowed: {', '.join(INIT_WORDS)}, or a run folder")
    first = settings.first_run.model
    if first.unit != dataset.unit:
        raise PrivacyError(
            f"init run {init} protects units of kind {first.unit}, and this run {dataset.unit}; the guarantees do not "
            "add up; train it with the same unit"
        )
    if first.weights.shape != dataset.weights_shape:
        raise DataError(
            f"init run {init} has weights of shape {first.weights.shape}; allowed here: "
            f"{dataset.weights_shape}; train it on features of the same kind"
        )
    if first.public_digest is not None and dataset.public_digest() != first.public_digest:
        raise PrivacyError(
            f"init run {init} had public rows that are not the public rows here, and might be private here; "
            "give the same feature file, --public-shots, --split-seed and --public (arrays cannot be compared)"
        )
    return first


def _unit_text_weights(dataset: Dataset, preprocessing: Preprocessing) -> NDArray[np.float64] | None:
    """Text weights with unit norm per class, and a zero row for the bias column if there is one.

    Raises DataError: the shape differs from the shape of the weights.
    """
    text_weights = dataset.encodings
    if text_weights is None:
        return None
    if text_weights.shape != dataset.weights_shape:
        raise DataError(f"text weights have shape {text_weights.shape}; allowed: {dataset.weights_shape}")
    encodings = normalise_rows(text_weights.T.astype(np.float32)).T.astype(np.float64)
    return np.concatenate([encodings, np.zeros((int(bool(preprocessing.intercept)), dataset.n_classes))])


def refuse_combinations(settings: Settings, dataset: Dataset) -> None:
    """UsageError for rows and settings that have no meaning, or no proof, together, or for rows that are missing."""
    _refuse_units(settings, dataset)
    _refuse_labels(settings, dataset)
    method, variant = settings.method, getattr(settings.options, "variant", "practical")
    if dataset.weights is not None and (not method.weighs or variant == "theory"):
        allowed = ", ".join(name for name, other in METHODS.items() if other.weighs)
        raise UsageError(
            f"weights of classes or rows do nothing for {method.name} here; allowed: {allowed}, without variant "
            "theory; leave them out"
        )
    _refuse_counts(settings, dataset)
    _refuse_text_scale(settings, dataset)
    if "public" in method.needs and dataset.free_public is None:
        raise UsageError(
            f"method {method.name} needs public rows and got none; "
            "give --public FILE or --public-shots K (in Python: X_public, y_public)"
        )
    if "text" in method.needs and dataset.text_weights is None:
        raise UsageError(
            f"method {method.name} needs text weights and got none; "
            "use a feature file with text/weights (in Python: text_weights)"
        )


def _refuse_counts(settings: Settings, dataset: Dataset) -> None:
    """UsageError for class counts of a method without noise, or balanced scores that would have no meaning."""
    method, options = settings.method, settings.options
    if settings.class_counts and not method.spends:
        raise UsageError(
            f"class counts are released with noise, and {method.name} adds none; leave out --class-counts and "
            "--class-weight balanced, or choose a method with a budget"
        )
    if not settings.balanced:
        return
    if dataset.weights is not None:
        raise UsageError("class weight is 'balanced' beside weights of rows, whose counts it ignores; leave one out")
    if not gives_log_odds(method, vars(options)):
        allowed = ", ".join(name for name, other in METHODS.items() if other.weighs and other.spends)
        raise UsageError(
            f"class weight is 'balanced', which needs scores that are log-odds; the scores of {method.name} are not; "
            f"allowed: {allowed}, with loss softmax and without variant theory"
        )


def _refuse_labels(settings: Settings, dataset: Dataset) -> None:
    """UsageError for settings without a meaning for multilabel rows."""
    if not dataset.several_labels:
        return
    method, options = settings.method, settings.options
    if not method.several_labels:
        allowed = ", ".join(name for name, other in METHODS.items() if other.several_labels)
        raise UsageError(
            f"method is {method.name}, which takes one class a row, and these rows have several labels each; "
            f"allowed: {allowed}"
        )
    refused: dict[str, tuple[bool, str]] = {
        "variant 'theory'": (getattr(options, "variant", "") == "theory", "variant practical"),
        "option loss": (getattr(options, "loss", None) is not None, "none, for binary cross-entropy"),
        "output 'vote'": (getattr(options, "output", "") == VOTE, "another output, such as average"),
        "init 'text'": (settings.starts_from_text, "init auto, zero or public"),
        "init from a run": (settings.first_run is not None, "init auto, zero or public"),
        "weights of classes": (dataset.weights is not None and not dataset.weights.of_rows_alone, "weights of rows"),
        "--test-epsilon": (settings.test_epsilon is not None, "public test rows, or none"),
        "selection on private rows": (bool(settings.shrink), "train, with settings that you state"),
    }
    for what, (given, allowed) in refused.items():
        if given:
            raise UsageError(f"{what} is for rows with one class, and these have several labels; allowed: {allowed}")


def _refuse_units(settings: Settings, dataset: Dataset) -> None:
    """UsageError for settings without a meaning, or a proof, where the unit of privacy is a person."""
    if dataset.bounds is None:
        return
    method = settings.method
    if getattr(settings.options, "variant", "practical") == "theory":
        raise UsageError(
            "variant is 'theory' and unit 'owner', but the analysis bounds the gradient of one row; allowed: variant "
            "practical, or unit record"
        )
    if dataset.joined and dataset.public is not None:
        raise UsageError(
            f"method {method.name} protects public rows like private ones, and the owners of public rows are not "
            "known; allowed with unit owner: no public rows; leave them out, or use noisy-gd"
        )


def _refuse_text_scale(settings: Settings, dataset: Dataset) -> None:
    """UsageError for a scale of text weights if training starts from other weights."""
    options = settings.options
    init = getattr(options, "init", "text")
    if init == "text" or "text_scale" not in declared(type(options)):
        return
    why = f"init {'of an earlier run' if init == 'run' else init}"
    if init == "auto":
        if dataset.public is not None and dataset.public.n_rows:
            why += ", which takes the public rows here"
        elif dataset.encodings is None:
            why += ", as there are no text weights for these rows"
        else:
            return
    refuse_idle(options, ("text_scale",), why)
