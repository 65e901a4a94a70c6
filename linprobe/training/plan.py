"""All that is public about a run before it starts: from arguments to `Settings`, and from these to a `Plan`.

`plan_run` reads public facts only, so a plan can be printed, compared and charged. `execute` follows it and may only
refuse. Centring on a private mean: docs/decisions/0025-private-mean.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import numpy as np

from linprobe import methods
from linprobe.accounting.accountants import round_up
from linprobe.accounting.book import Entry, composed, rows_of_a_person
from linprobe.accounting.calibrate import Budget, calibrate, check_delta, check_epsilon, large_delta
from linprobe.accounting.events import NO_CHOICE, TEST_ACCURACY, Releases, hold_without_a_choice
from linprobe.accounting.figures import largest_mu, rounded_up
from linprobe.data.blocks import Preprocessing, default_intercept, normalise_rows
from linprobe.data.dataset import Dataset
from linprobe.data.feature_reader import FeatureReader, extraction_of, first_difference
from linprobe.data.labels import one_spelling
from linprobe.data.row_weights import BALANCED
from linprobe.errors import ArgumentError, DataError, ParameterError, PrivacyError, UsageError, counted
from linprobe.mechanisms.correct_predictions import GAIN, SENSITIVITY
from linprobe.mechanisms.score_histogram import AUROC_SHARE, MOST_ERROR, TEST_AUROC, expected_error
from linprobe.methods.class_counts import CLASS_COUNTS, gives_log_odds
from linprobe.methods.private_mean import MEAN, largest_noise
from linprobe.methods.similar_rows import SIMILAR_ROWS
from linprobe.options import (
    CENTRED_STEPS,
    DEFAULT_DELTA,
    DEFAULT_STEPS,
    ENOUGH_ROWS,
    LARGE_STEP,
    LARGE_STEP_WITH_MOMENTUM,
    MANY_ROWS,
    MOMENTUM_STEPS,
    OWNER,
    RECORD,
    VOTE,
    Centring,
    Conditioning,
    Init,
    Intercept,
    RunOptions,
    Start,
)
from linprobe.options.declaration import check_value, declared, hint, plain_values, refuse_idle
from linprobe.options.requests import TrainRequest
from linprobe.parallel.array_api import Reals
from linprobe.runs.check import FirstModel, FirstRun
from linprobe.runs.manifest import UNLABELLED_CENTRE, Manifest
from linprobe.runs.release_rules import SELECTION

SELECTION_SHARE = 0.2
COUNTS_SHARE = 0.05  # of mu^2, for noisy class counts
SIMILAR_SHARE = 0.02  # of mu^2, at most, for the number of private rows near unlabelled ones
SIMILAR_NOISE = 0.04  # of the number of units: noise of that count which is small enough
GAIN_SHARE = 0.02  # of mu^2, at most, for the gain by refinement
GAIN_NOISE = 0.0025  # of the number of units: noise of the gain which is small enough
OF_LABELS = ("classes", "class_weight", "class_counts")  # arguments about the labels, which are settled before training
SHARED = ("centre", "condition", "intercept", "sampling_rate", "accountant", "per_record")  # flags of several methods
INIT_WORDS = tuple(word for word in get_args(Init) if word != "run")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a run trains. Defaults are for methods that do not have the parameter."""

    method: methods.Method
    options: Any
    first_run: FirstRun | None = None  # with the initial weights; None if `options.init` determines them
    epsilon: float | None = None
    delta: float = DEFAULT_DELTA
    noise_multiplier: float | None = None  # None to calibrate it, as n_steps
    n_steps: int | None = None
    sampling_rate: float = 1.0
    accountant: str = "auto"
    per_record: bool = True
    centre: str = "none"
    intercept: float | None = 0.0  # value of the constant bias column; 0 for none, None for the default
    condition: str = "none"  # `auto`, `none` or `mean`: a private mean is subtracted
    others: tuple[Releases, ...] = ()  # releases that the budget pays for
    class_counts: bool = False  # whether `COUNTS_SHARE` of mu^2 pays for noisy class counts
    balanced: bool = False  # whether these move the scores
    similar: bool = False  # whether noisy counts ask if unlabelled rows are alike, and what private rows gain
    test_epsilon: float | None = None  # part of `epsilon` for a noisy accuracy and AUROC on private test rows
    n_test: int = 0  # private test rows, or people, where figures on them are released; as n_classes
    n_classes: int = 0
    shrink: tuple[float, ...] = ()  # factors on the update W - W_1, one of which noisy counts choose
    insecure_seed: int | None = None  # of reproducible noise, for tests
    parameters: Mapping[str, Any] = field(default_factory=dict)  # by name, as the caller gave them

    @classmethod
    def of_given(cls, method: methods.Method, given: Mapping[str, Any]) -> Settings:
        """Settings from named arguments of a method, the others as declared.

        Raises ArgumentError: an unknown argument, or a missing one. ParameterError: out of range, no number.
        """
        arguments = {name: option for name, option in method.arguments.items() if name not in OF_LABELS}
        unknown = sorted(set(given) - set(arguments))
        if unknown:
            raise ArgumentError(
                f"{method.name} has no argument {unknown[0]}; its arguments are: {', '.join(arguments)}"
                f"{hint(unknown[0], arguments)}"
            )
        parameters = {name: given.get(name, arguments[name].default) for name in sorted(arguments)}
        missing = [name for name, value in parameters.items() if value is MISSING]
        if missing:
            raise ArgumentError(f"{method.name} needs the argument {missing[0]}; give it")
        parameters, own = plain_values(arguments, parameters), set(declared(method.options))
        options, first_run = method_options(method, {name: parameters[name] for name in own})
        shared = {name: value for name, value in parameters.items() if name in _SHARED - own}
        return cls(method=method, options=options, first_run=first_run, parameters=parameters, **shared)

    @property
    def weighs(self) -> bool:
        """Whether gradients of rows may have weights."""
        return self.method.weighs and getattr(self.options, "variant", "practical") != "theory"

    def with_counts(self, class_counts: str, class_weight: Any) -> Settings:
        """The same with class counts, asked for or for `class_weight`. ParameterError: a word. UsageError: none."""
        check_value(RunOptions, "class_counts", class_counts)
        balanced = isinstance(class_weight, str) and class_weight == BALANCED
        if balanced and class_counts == "no":
            raise UsageError(f"class weight is {BALANCED!r}, which needs class counts, not 'no'; give auto or yes")
        return replace(self, class_counts=balanced or class_counts == "yes", balanced=balanced)

    @property
    def starts_from_text(self) -> bool:
        return getattr(self.options, "init", None) == "text"

    def budget(
        self, n_private: int, inherited: tuple[Releases, ...] = (), *, steps: int = DEFAULT_STEPS
    ) -> Budget | None:
        """The calibrated budget of a run on `n_private` units, with `inherited` releases; None for one without noise.

        `steps` are the default of a method whose own default is `DEFAULT_STEPS`.
        """
        if not self.method.spends:
            return None
        epsilon, others, default = check_epsilon(self.epsilon), [*inherited, *self.others], self.method.default_steps
        for share in self.method.shares(self.options):
            others.append(paid_by(share.epsilon_share * epsilon, self.delta, n_private, share.purpose, share.count))
        if self.class_counts:
            mu = math.sqrt(COUNTS_SHARE) * largest_mu(epsilon, check_delta(self.delta, n_private))
            others.append(Releases(CLASS_COUNTS, round_up(1 / mu), 1.0, 1))
        if self.similar:
            mu = largest_mu(epsilon, check_delta(self.delta, n_private))
            for purpose, part, enough in ((SIMILAR_ROWS, SIMILAR_SHARE, SIMILAR_NOISE), (GAIN, GAIN_SHARE, GAIN_NOISE)):
                noise = max(round_up(1 / (math.sqrt(part) * mu)), enough * n_private)
                others.append(Releases(purpose, noise, 1.0, 1))
        if self.test_epsilon is not None:
            others += test_releases(
                self.test_epsilon, self.delta, self.n_test, self.n_classes, "--test-epsilon", epsilon
            )
        if self.shrink:
            others.append(paid_by(SELECTION_SHARE * epsilon, self.delta, n_private, SELECTION))
        return calibrate(
            epsilon=epsilon,
            delta=self.delta,
            n_private=n_private,
            noise_multiplier=self.noise_multiplier,
            steps=self.n_steps,
            default_steps=steps if default == DEFAULT_STEPS else default,
            sampling_rate=self.sampling_rate,
            accountant=self.accountant,
            others=others,
        )


def paid_by(epsilon: float, delta: float, n_units: int, purpose: str, count: int = 1) -> Releases:
    """`count` releases over all rows that cost (`epsilon`, `delta`) together."""
    part = calibrate(epsilon=epsilon, delta=delta, n_private=n_units, steps=count)
    return Releases(purpose, part.noise_multiplier, 1.0, count)


def test_releases(
    epsilon: float, delta: float, n_test: int, n_classes: int, flag: str, whole: float | None
) -> tuple[Releases, ...]:
    """Releases on private test rows that cost `epsilon` together; no scores of few test units (0: of any number).

    `whole`: the epsilon that pays for them, if it pays for others too.

    UsageError: the accuracy would have more noise than `MOST_ERROR`.
    """
    n_units = max(1, n_test)
    accuracy = paid_by(epsilon, delta, n_units, TEST_ACCURACY)
    noise = SENSITIVITY * accuracy.noise_multiplier
    if n_test and noise > MOST_ERROR * n_test:
        enough = composed([Releases(TEST_ACCURACY, MOST_ERROR * n_test / SENSITIVITY, 1.0, 1)], delta)[0]
        part = " and a larger --eps" if whole is not None and enough >= whole else ""
        raise UsageError(
            f"{flag} is {epsilon:g}, so noise of the accuracy on {counted(n_test, 'private test unit')} would have the "
            f"standard deviation {rounded_up(noise / n_test, 3)}; allowed: at most {MOST_ERROR}; nothing was spent; "
            f"give at least {flag} {rounded_up(enough, 4)}{part}, or {math.ceil(noise / MOST_ERROR)} test units"
        )
    scores = Releases(TEST_AUROC, accuracy.noise_multiplier / math.sqrt(AUROC_SHARE), 1.0, 1)
    if n_test and expected_error(scores.noise_multiplier, n_test, n_classes) > MOST_ERROR:
        return (accuracy,)
    rest = calibrate(epsilon=epsilon, delta=delta, n_private=n_units, steps=1, others=(scores,)).noise_multiplier
    return Releases(TEST_ACCURACY, rest, 1.0, 1), scores


_SHARED = {each.name for each in fields(Settings)} - {"method", "options", "first_run", "parameters"}


def method_options(method: methods.Method, given: Mapping[str, Any]) -> tuple[Any, FirstRun | None]:
    """A method's options, and the run of `init`, if no word. UsageError: unknown. ParameterError: out of range."""
    init = given.get("init", "auto")
    if init in INIT_WORDS or not issubclass(method.options, Start):
        return method.make_options(dict(given)), None
    return method.make_options({**given, "init": "run"}), FirstRun(init)


def make_settings(request: TrainRequest, method: methods.Method) -> Settings:
    """The settings of a request, with defaults. Raises ParameterError, UsageError: an option that is not allowed."""
    check_value(RunOptions, "preset", request.preset)
    refuse_other_encodings([*vars(request).values(), *(request.options or {}).values()])
    given = request if request.preset == "default" else _of_preset(request, method)
    known, options = method.arguments, dict(given.options or {})
    shared = {name: value for name in SHARED if (value := getattr(given, name)) is not None}
    method_options(method, options)
    for name in shared:
        if name not in known and getattr(request, name) is not None:
            raise UsageError(f"option {name.replace('_', '-')} does nothing for {method.name}; leave it out")
    if request.epsilon is not None:
        check_epsilon(request.epsilon)
    _refuse_idle(given, method)
    options |= {name: value for name, value in shared.items() if name in known}
    if method.spends:
        options |= {"epsilon": request.epsilon, "delta": request.delta, "insecure_seed": request.noise_seed}
    if method.spends and not method.one_step:
        options |= {"noise_multiplier": given.sigma, "n_steps": request.steps}
    return Settings.of_given(method, options).with_counts(request.class_counts, request.class_weight)


def _of_preset(request: TrainRequest, method: methods.Method) -> TrainRequest:
    """The request with the settings of the AdaMix paper for all options that it leaves open."""
    if method.name not in methods.PAPER_METHODS:
        raise UsageError(
            f"preset {request.preset} is the AdaMix paper's, which has no {method.name}; leave it out, or choose one "
            f"of {', '.join(methods.PAPER_METHODS)}"
        )
    options = {**methods.paper_options(method, request.preset), **(request.options or {})}
    if options.get("subspace") == "none" and "subspace_dim" not in (request.options or {}):
        del options["subspace_dim"]  # the preset's, of a subspace that the caller turned off
    by_paper = method.spends and request.sigma is None and request.steps is None
    return replace(
        request,
        options=options,
        sigma=methods.PAPER_NOISE_MULTIPLIER if by_paper else request.sigma,
        centre=request.centre or "none",
        condition=request.condition or "none",
    )


def _refuse_idle(request: TrainRequest, method: methods.Method) -> None:
    """UsageError for a missing budget, and for options on noise that do nothing for the method."""
    if not method.spends:
        spending = {
            "--delta": None if request.delta == DEFAULT_DELTA else request.delta,
            "--sigma": request.sigma,
            "--steps": request.steps,
            "--noise-seed": request.noise_seed,
            "--checkpoint": request.checkpoint_every,
            "--resume": request.resume or None,
            "--cap": request.cap,
        }
        for flag, given in spending.items():
            if given is not None:
                raise UsageError(f"option {flag} does nothing for {method.name}, which adds no noise; leave it out")
        return
    if request.epsilon is None:
        raise UsageError(f"method {method.name} needs a privacy budget and got none; give --eps, for example --eps 3")
    if (request.noise_seed is not None) != request.insecure_seed:
        alone, missing = ("--noise-seed", "--insecure-seed")[:: -1 if request.insecure_seed else 1]
        raise UsageError(
            f"{alone} was given without {missing}; give both --noise-seed N and --insecure-seed (not private), or none"
        )
    for flag, given in (("--sigma", request.sigma), ("--steps", request.steps)) if method.one_step else ():
        if given is not None:
            raise UsageError(
                f"option {flag} does nothing for {method.name}, whose noise follows from --eps; leave it out"
            )


def refuse_other_encodings(values: Iterable[object]) -> None:
    """UsageError for the name of a file that is not UTF-8, which `config.toml` and the manifest could not hold."""
    for value in values:
        try:
            str(value).encode()
        except UnicodeEncodeError:
            raise UsageError(f"the name {value} is not UTF-8; nothing was read or spent; rename the file") from None


MEAN_SHARE, MOST_SHARE = 0.05, 0.25  # of epsilon, for a private mean
ENOUGH_NOISE, MOST_NOISE = 0.25, 0.8  # of such a mean, in lengths of a row
SHORTEST_MEAN = 0.2  # that is subtracted
MANY_READS, SMALL_RATE = 1e9, 0.1  # rows that per-record losses read, and a sampling rate at which most are not sampled


def settled(
    settings: Settings, n_private: int, n_features: int, *, known: str | None, most: float = MOST_NOISE
) -> Settings:
    """`settings` with `condition` either `mean` or `none`, and the release that it needs.

    `known` makes a private mean unnecessary or impossible; `most`: noise, in lengths of a row, that `auto` accepts.
    """
    check_value(Conditioning, "condition", settings.condition)
    if settings.condition == "none":
        return settings
    if known is not None:
        if settings.condition == MEAN:
            raise UsageError(f"condition is 'mean', but there are {known}; use condition none, or leave it out")
        return replace(settings, condition="none")
    epsilon, tests = check_epsilon(settings.epsilon), settings.test_epsilon or 0.0
    # for training, as mu is about in proportion
    left = math.sqrt(epsilon**2 - tests**2) if tests < epsilon else epsilon

    def paid_with(share: float) -> tuple[Releases, float]:
        release = paid_by(share * left, settings.delta, n_private, MEAN)
        return release, math.sqrt(n_features) * release.noise_multiplier / n_private

    release, noise = paid_with(MEAN_SHARE)
    share = min(MOST_SHARE, MEAN_SHARE * noise / ENOUGH_NOISE)
    if share > MEAN_SHARE:
        release, noise = paid_with(share)
    if settings.condition == "auto" and noise > most:
        return replace(settings, condition="none")
    return replace(settings, condition=MEAN, others=(release,))


@dataclass(frozen=True)
class Plan:
    settings: Settings  # with the options that public facts decide
    preprocessing: Preprocessing  # to training space, before a private mean
    budget: Budget | None  # every release with its cost; None for a method that spends nothing
    first: FirstModel | None  # the run with the initial weights
    first_weights: Reals | None  # these weights in training space
    text_weights: Reals | None  # scaled class encodings for raw rows, (n_features, n_classes)
    n_units: int
    unit: str
    n_public: int  # rows that are not protected
    centre_unlabelled: bool = False  # whether the mean of unlabelled rows stands for one that the budget does not buy

    @cached_property
    def method(self) -> methods.Method:
        return self.settings.method

    @property
    def centre(self) -> str:
        """What rows are to be centred on; a short private mean, or rows of another kind, change it to `none`."""
        if self.settings.condition == MEAN:
            return "private"
        if self.centre_unlabelled:
            return UNLABELLED_CENTRE
        return "none" if self.preprocessing.centre is None else "public"

    @cached_property
    def schedule(self) -> methods.Schedule:
        budget = self.budget
        if budget is None:
            return methods.Schedule(0, 0.0, 0.0)
        others = {release.purpose: release.noise_multiplier for release in budget.others}
        return methods.Schedule(
            budget.n_steps, budget.noise_multiplier, budget.nominal_mu, budget.sampling_rate, others
        )

    @property
    def inherited(self) -> tuple[Releases, ...]:
        return () if self.first is None else self.first.releases

    @cached_property
    def charged(self) -> bool:
        """Whether the run uses private rows, so that a budget book counts it."""
        return self.budget is not None or not self.method.private

    @property
    def private(self) -> bool:
        return self.method.private and self.settings.insecure_seed is None

    def uncentred(self) -> Plan:
        """The plan after a mean that is too short to subtract: other steps, as releases allow, for the same rest."""
        settings = replace(self.settings, condition="none")
        return replace(self, settings=settings, budget=settings.budget(self.n_units, self.inherited))

    @cached_property
    def possible(self) -> tuple[Plan, ...]:
        """This plan, and the other one if the length of a private mean decides between two."""
        return (self, self.uncentred()) if self.settings.condition == MEAN else (self,)

    @property
    def budgets(self) -> tuple[Budget, ...]:
        return tuple(plan.budget for plan in self.possible if plan.budget is not None)

    def entry(self, run: str = "", name: str = "") -> Entry:
        spent = self.budget if self.private else None
        counted = () if self.first is None else self.first.recorded
        return Entry(
            run=run,
            name=name,
            method=self.method.name,
            unit=self.unit,
            private=self.private,
            delta=None if spent is None else spent.delta,
            releases=() if spent is None else (*counted, *spent.releases[len(self.inherited) :]),
            first=None if self.first is None else self.first.manifest.book_id,
        )


def plan_run(settings: Settings, dataset: Dataset, *, checked: bool = True) -> Plan:
    """The plan of a run; no private row is read. Not `checked` for all possible steps while a budget is sought."""
    refuse_combinations(settings, dataset)
    options = settings.method.resolve(settings.options, dataset.free_public is not None)
    counts_similar = dataset.unlabelled is not None and settings.method.spends
    settings = replace(settings, options=options, similar=settings.similar or counts_similar)
    preprocessing = _preprocessing(settings, dataset)
    first = _first_model(settings, dataset)
    first_weights = None if first is None else preprocessing.unfold(first.weights, first.bias)
    known, wanted = _known(settings, dataset), settings.condition
    text = dataset.encodings if _from_text(settings, dataset) else None
    most = MOST_NOISE if text is None else largest_noise(text)
    settings = settled(settings, dataset.n_units, dataset.private.n_features, known=known, most=most)
    free = dataset.unlabelled is not None and known is None and (wanted, settings.condition) == ("auto", "none")
    budget = settings.budget(
        dataset.n_units,
        () if first is None else first.releases,
        steps=_default_steps(settings, dataset, centred=preprocessing.centre is not None),
    )
    plan = Plan(
        settings,
        preprocessing,
        budget,
        first,
        first_weights,
        _text_weights(settings, dataset, budget),
        dataset.n_units,
        dataset.unit,
        0 if dataset.free_public is None else dataset.free_public.n_rows,
        free,
    )
    shape = dataset.private.n_features + bool(preprocessing.intercept), dataset.n_classes
    for n_steps in sorted({budget.n_steps for budget in plan.budgets} or {0}) if checked else ():
        facts = methods.PublicFacts(n_steps, *shape, dataset.free_public, dataset.encodings is not None)
        settings.method.refuse(settings.options, facts)
    return plan


def warnings_of(plan: Plan, dataset: Dataset, entry: Entry | None = None) -> list[str]:
    """What to say to people before the run starts. `entry`: of a choice among several runs; None for one run."""
    said: list[str | None] = []
    entry = plan.entry() if entry is None else entry
    if plan.method.spends:
        said.append(large_delta(plan.settings.delta if entry.delta is None else entry.delta, plan.n_units))
    if plan.method.private and not plan.private:
        said.append("NOT PRIVATE: the noise comes from a seed you gave; use this run for tests only")
    elif not plan.method.private:
        said.append("NOT PRIVATE: the private rows are used without protection; do not release this run")
    else:
        said.append(fewer_protected(dataset.features, entry))
    if plan.first is not None and hold_without_a_choice(entry.releases):
        said.append(f"epsilon of this run and its first run together holds if {NO_CHOICE}; else set a cap before both")
    said.append(_slow_losses(plan))
    if dataset.public_collection is not None:
        said.append(f"public shots make {dataset.public_collection} public and NOT protected")
    return [text for text in said if text is not None]


def _slow_losses(plan: Plan) -> str | None:
    """A line on losses of all records beside samples of few."""
    steps, rate = plan.schedule.n_steps, plan.schedule.sampling_rate
    if not plan.settings.per_record or rate >= SMALL_RATE or steps * plan.n_units < MANY_READS:
        return None
    return (
        f"per-record losses read every row in each of {steps:,} steps; --no-per-record reads samples alone, "
        f"{100 * rate:.2g} % of the rows"
    )


def fewer_protected(features: FeatureReader | None, entry: Entry, group: str = "train") -> str | None:
    """A line on what protecting rows means for people with several, without a number from data; None without owners."""
    if features is None or entry.unit != RECORD or entry.delta is None or not features.has_owners(group):
        return None
    by_rows = rows_of_a_person([entry], entry.delta)
    costs = ", ".join(f"{rounded_up(cost)} with {rows} rows" for rows, cost in by_rows.items())
    return (
        f"{features.path} names the owner of each row, and this protects single rows: the epsilon of a person is "
        f"{costs}; --unit {OWNER} protects people"
    )


def plan_facts(budget: Budget) -> dict[str, Any]:
    return {
        "steps": budget.n_steps,
        "noise_multiplier": budget.noise_multiplier,
        "sampling_rate": budget.sampling_rate,
        "releases": [asdict(release) for release in budget.releases],
    }


def _known(settings: Settings, dataset: Dataset) -> str | None:
    """What makes a private mean unnecessary or impossible; None if nothing does."""
    if dataset.free_public is not None:
        return "public rows"
    if settings.first_run is not None:
        return "weights of an earlier run"
    return "text weights and no intercept" if settings.intercept == 0 and _from_text(settings, dataset) else None


def _default_steps(settings: Settings, dataset: Dataset, *, centred: bool) -> int:
    """The default number of steps, from the numbers of private units, features and classes."""
    # of people, the number of rows is private
    per_class = dataset.n_units / dataset.n_classes
    size = dataset.n_units * dataset.private.n_features * dataset.n_classes
    has_momentum = settings.method.has_momentum(settings.options) and not dataset.several_labels
    if settings.condition == MEAN:
        if size > LARGE_STEP and has_momentum and not _from_text(settings, dataset):
            return MOMENTUM_STEPS if per_class >= MANY_ROWS else DEFAULT_STEPS
        many = MANY_ROWS if size > LARGE_STEP else 0
    elif centred:
        if size > LARGE_STEP_WITH_MOMENTUM and has_momentum:
            return DEFAULT_STEPS
        many = MANY_ROWS if size > LARGE_STEP_WITH_MOMENTUM else ENOUGH_ROWS
    else:
        return DEFAULT_STEPS
    return CENTRED_STEPS if per_class >= many else DEFAULT_STEPS


def _from_text(settings: Settings, dataset: Dataset) -> bool:
    init = getattr(settings.options, "init", "text" if "text" in settings.method.needs else "zero")
    chosen = init == "text" or (init == "auto" and dataset.free_public is None)
    return chosen and settings.first_run is None and dataset.encodings is not None


def beside_text(settings: Settings, dataset: Dataset) -> bool:
    auto = getattr(settings.options, "init", None) == "auto" and settings.first_run is None
    return auto and dataset.free_public is not None and dataset.encodings is not None


def _centres(settings: Settings, dataset: Dataset) -> bool:
    centre, public = settings.centre, dataset.free_public
    check_value(Centring, "centre", centre)
    if centre == "public" and public is None:
        raise UsageError("centre is 'public', but there are no public rows; give some, or use centre none")
    if centre == "public" and settings.starts_from_text and settings.intercept == 0:
        raise UsageError("init 'text' around a centre needs an intercept, which is 0; use centre none, or intercept 1")
    automatic = public is not None and not (settings.starts_from_text and settings.intercept == 0)
    return centre == "public" or (centre == "auto" and automatic)


def _preprocessing(settings: Settings, dataset: Dataset) -> Preprocessing:
    """The map to the training space of `settings`: with a public centre, a bias column, both for labels, or neither."""
    intercept, centring = settings.intercept, _centres(settings, dataset)
    check_value(Intercept, "intercept", intercept)
    biased = dataset.several_labels or settings.starts_from_text or (centring and dataset.unequal)
    if intercept and centring and not biased:
        raise UsageError(f"intercept {intercept:g} needs uncentred rows; use centre none, or intercept 0")
    column = default_intercept(dataset.private.n_features) if intercept is None else intercept
    if not centring:
        return Preprocessing(intercept=column)
    # a softmax of centred rows needs no bias, but text weights do, a mean of other shares of classes, and a label that
    # few rows have: sigmoid(0) is 1/2
    centred = dataset.public_centring
    return replace(centred, intercept=column) if biased else centred


def _first_model(settings: Settings, dataset: Dataset) -> FirstModel | None:
    """The initial weights from the run `settings.first_run`, with its releases; None without such a run."""
    if settings.first_run is None:
        return None
    init = settings.first_run.folder
    if not Path(init).is_dir():
        raise ParameterError(f"init is {init!r}; allowed: {', '.join(INIT_WORDS)}, or a run folder")
    first, earlier = settings.first_run.model, settings.first_run.model.manifest
    _refuse_other_units(earlier, settings, dataset, init)
    if earlier.several_labels:
        raise DataError(
            f"init run {init} has several labels a row, and the rows here one class; allowed: a run with one class a "
            "row; give one, or init auto, zero or public"
        )
    if first.weights.shape != dataset.weights_shape:
        raise DataError(
            f"init run {init} has weights of shape {first.weights.shape}; allowed here: "
            f"{dataset.weights_shape}; train it on features of the same kind"
        )
    first = _of_classes(first, dataset, init)
    here = {} if dataset.features is None else extraction_of(dataset.features.description)
    # without the digest: another crop of the images, say, is no reason to refuse
    differs = first_difference({**(earlier.extraction or {}), "extraction_digest": ""}, here)
    if differs is not None:
        raise DataError(
            f"init run {init} has {differs[0]} {differs[1]}, and the rows here {differs[2]}; allowed: the same; train "
            "it on features of the same kind"
        )
    if earlier.public_digest is not None and not dataset.has_public_digest(earlier.public_digest):
        raise PrivacyError(
            f"init run {init} had public rows that are not the public rows here, and might be private here; "
            "give the same feature file, --public-shots, --split-seed and --public (arrays cannot be compared)"
        )
    if earlier.refined is not None and dataset.unlabelled_digest() != earlier.refined.digest:
        raise PrivacyError(
            f"init run {init} was refined by rows without labels, which had no protection there and might be private "
            "here; give the same rows with --unlabelled (arrays cannot be compared), or the run before it was refined"
        )
    return first


def _refuse_other_units(earlier: Manifest, settings: Settings, dataset: Dataset, init: object) -> None:
    """PrivacyError if the manifest of the run `init` is of units of another kind, or of 1 / delta or more units."""
    if earlier.unit != dataset.unit:
        raise PrivacyError(
            f"init run {init} protects units of kind {earlier.unit}, this run {dataset.unit}; train it with the same"
        )
    most = earlier.most_units
    if earlier.releases and settings.delta * most >= 1:
        before = "" if most == earlier.n_private else ", or a run that it started from,"
        raise PrivacyError(
            f"delta is {rounded_up(settings.delta)}, and init run {init}{before} protects {most} private units, "
            f"whose releases count here too; allowed: below 1/N = {1 / most:.3g}; give a smaller --delta"
        )


def _of_classes(first: FirstModel, dataset: Dataset, init: object) -> FirstModel:
    """The model with its classes in the order here. Names of a caller stand by position if the run has none of them."""
    known, names = list(first.manifest.class_names), list(dataset.class_names)
    if dataset.features is None and sorted(names) != sorted(known):
        mine, theirs = list(map(one_spelling, names)), list(map(one_spelling, known))
        if not {name.casefold() for name in mine} & {name.casefold() for name in theirs}:
            return first
        if len(set(mine)) == len(mine) and len(set(theirs)) == len(theirs):
            names, known = mine, theirs
    other = next((name for name in names if name not in known), None)
    if other is not None:
        raise DataError(f"init run {init} has no class {other!r}; allowed: {', '.join(known)}; train it on these")
    order = [known.index(name) for name in names]
    return replace(first, weights=first.weights[:, order], bias=first.bias[order])


def _text_weights(settings: Settings, dataset: Dataset, budget: Budget | None) -> Reals | None:
    """Unit text weights times their scale, or None; beside public rows, which decide the scale, around their mean."""
    text_weights = dataset.encodings
    if text_weights is None:
        return None
    if text_weights.shape != dataset.weights_shape:
        raise DataError(f"text weights have shape {text_weights.shape}; allowed: {dataset.weights_shape}")
    beside = beside_text(settings, dataset)
    if not beside and not _from_text(settings, dataset):
        return None
    encodings = normalise_rows(text_weights.T.astype(np.float32)).T.astype(np.float64)
    if beside:
        return np.asarray(encodings - encodings.mean(axis=1, keepdims=True))
    scale = getattr(settings.options, "text_scale", None)
    if scale is None:
        scale = methods.text_scale(encodings, None if budget is None else budget.nominal_mu, dataset.n_units)
    return scale * encodings


def refuse_combinations(settings: Settings, dataset: Dataset) -> None:
    """UsageError for rows and settings that have no meaning, or no proof, together, or for rows that are missing."""
    _refuse_units(settings, dataset)
    _refuse_labels(settings, dataset)
    method = settings.method
    if dataset.weights is not None and not settings.weighs:
        allowed = ", ".join(name for name, other in methods.METHODS.items() if other.weighs)
        raise UsageError(
            f"weights of classes or rows do nothing for {method.name} here; allowed: {allowed}, without variant "
            "theory; leave them out"
        )
    _refuse_counts(settings, dataset)
    _refuse_text_scale(settings, dataset)
    if "public" in method.needs and dataset.free_public is None:
        of_file = "--public FILE or --public-shots K"
        step = "X_public and y_public" if dataset.features is None else of_file
        raise UsageError(f"method {method.name} needs public rows and got none; give {step}")
    if "text" in method.needs and dataset.text_weights is None:
        step = "text_weights" if dataset.features is None else "a feature file with text/weights"
        raise UsageError(f"method {method.name} needs text weights and got none; give {step}")


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
        raise UsageError(
            "class weight 'balanced' counts rows without weights, and these rows have weights; leave one out"
        )
    if not gives_log_odds(method, vars(options)):
        allowed = ", ".join(name for name, other in methods.METHODS.items() if other.weighs and other.spends)
        raise UsageError(
            f"class weight is 'balanced', which needs scores that are log-odds; the scores of {method.name} are not; "
            f"allowed: {allowed}, with loss softmax and without variant theory"
        )


def _refuse_labels(settings: Settings, dataset: Dataset) -> None:
    if not dataset.several_labels:
        return
    method, options = settings.method, settings.options
    if not method.several_labels:
        allowed = ", ".join(name for name, other in methods.METHODS.items() if other.several_labels)
        raise UsageError(
            f"method is {method.name}, for one class a row, and these have several labels; allowed: {allowed}"
        )
    refused: dict[str, tuple[bool, str]] = {
        "variant 'theory'": (getattr(options, "variant", "") == "theory", "variant practical"),
        "option loss": (getattr(options, "loss", None) is not None, "none, for binary cross-entropy"),
        "output 'vote'": (getattr(options, "output", "") == VOTE, "another output, such as average"),
        "init 'text'": (settings.starts_from_text, "init auto, zero or public"),
        "init from a run": (settings.first_run is not None, "init auto, zero or public"),
        "weights of classes": (
            dataset.weights is not None and bool((dataset.weights.by_class != 1).any()),
            "weights of rows",
        ),
        "--test-epsilon": (settings.test_epsilon is not None, "public test rows, or none"),
        "selection on private rows": (bool(settings.shrink), "train, with settings that you state"),
    }
    for what, (given, allowed) in refused.items():
        if given:
            raise UsageError(f"{what} is for rows with one class, and these have several labels; allowed: {allowed}")


def _refuse_units(settings: Settings, dataset: Dataset) -> None:
    if dataset.bounds is None:
        return
    method = settings.method
    if getattr(settings.options, "variant", "practical") == "theory":
        raise UsageError(
            "variant is 'theory' and unit 'owner', but it bounds one row; allowed: variant practical, or unit record"
        )
    if dataset.joined and dataset.public is not None:
        raise UsageError(
            f"method {method.name} protects public rows like private ones, and the owners of public rows are not "
            "known; allowed with unit owner: no public rows; leave them out, or use noisy-gd"
        )


def _refuse_text_scale(settings: Settings, dataset: Dataset) -> None:
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
