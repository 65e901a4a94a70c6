"""The arguments of `linprobe train`, and the `Settings` that they, or the parameters of an estimator, become."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from numbers import Real
from typing import Any, get_args

from linprobe.accounting.accountants import round_up
from linprobe.accounting.calibrate import Budget, calibrate, check_delta, check_epsilon
from linprobe.accounting.events import Releases
from linprobe.accounting.figures import largest_mu
from linprobe.data.row_weights import BALANCED
from linprobe.errors import ArgumentError, ParameterError, UsageError
from linprobe.mechanisms.correct_predictions import TEST_ACCURACY
from linprobe.mechanisms.score_histogram import AUROC_SHARE, TEST_AUROC
from linprobe.methods import PAPER_METHODS, PAPER_NOISE_MULTIPLIER, Method, Schedule, paper_options
from linprobe.methods.class_counts import CLASS_COUNTS
from linprobe.methods.similar_rows import SIMILAR_ROWS
from linprobe.options import CENTRED_STEPS, DEFAULT_DELTA, DEFAULT_STEPS, Init, RunOptions
from linprobe.options.declaration import arguments_of, declared, hint
from linprobe.options.requests import TrainRequest
from linprobe.runs.check import FirstRun
from linprobe.runs.release_rules import SELECTION

SELECTION_SHARE = 0.2
COUNTS_SHARE = 0.05  # of mu^2, for noisy class counts
SIMILAR_SHARE = 0.02  # of mu^2, at most, for the number of private rows near unlabelled ones
SIMILAR_NOISE = 0.04  # of the number of units: noise of that count which is small enough
OF_LABELS = ("classes", "class_weight", "class_counts")  # arguments about the labels, which are settled before training
SHARED = ("centre", "condition", "intercept", "sampling_rate", "accountant", "per_record")  # flags of several methods
INIT_WORDS = tuple(word for word in get_args(Init) if word != "run")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a run trains. Defaults are for methods that do not have the parameter.

    Attributes:
        method: a registered method. options: its own options, an instance of `method.options`.
        first_run: the run with the initial weights; None if `options.init` determines them.
        epsilon, delta: target. noise_multiplier, n_steps: the given one of the two; None to calibrate it.
        sampling_rate: q, in (0, 1]. accountant: `auto`, or the name of one.
        per_record: whether to track each record's own privacy loss.
        centre: `auto`, `none` or `public`.
        intercept: value of the constant bias column; 0 for none, None for the default.
        condition: `auto`, `none` or `mean`: a private mean is subtracted.
        others: further releases that the budget pays for.
        class_counts: whether `COUNTS_SHARE` of mu^2 pays for noisy class counts.
        balanced: whether these move the scores of the finished model to equal classes.
        similar: whether at most `SIMILAR_SHARE` of mu^2 pays for the number of private rows near unlabelled ones.
        test_epsilon: part of `epsilon` that pays for a noisy accuracy and AUROC on private test rows; or None.
        shrink: factors on the update W - W_1, one of which noisy counts of correct predictions choose, for
            `SELECTION_SHARE` of epsilon; empty for no count. A single factor is only counted.
        insecure_seed: seed of reproducible noise, for tests; None for secret noise.
        parameters: all parameters by name, as the caller gave them.
    """

    method: Method
    options: Any
    first_run: FirstRun | None = None
    epsilon: float | None = None
    delta: float = DEFAULT_DELTA
    noise_multiplier: float | None = None
    n_steps: int | None = None
    sampling_rate: float = 1.0
    accountant: str = "auto"
    per_record: bool = True
    centre: str = "none"
    intercept: float | None = 0.0
    condition: str = "none"
    others: tuple[Releases, ...] = ()
    class_counts: bool = False
    balanced: bool = False
    similar: bool = False
    test_epsilon: float | None = None
    shrink: tuple[float, ...] = ()
    insecure_seed: int | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, method: Method, parameters: Mapping[str, Any]) -> Settings:
        """Settings from named parameters: options of the method, and fields of this class.

        Raises ParameterError: an option outside its range, or no number where one belongs.
        """
        for name, option in arguments_of(method.options).items():
            value = parameters.get(name)
            if option.kind not in (int, float) or (value is None and option.default is None) or name not in parameters:
                continue
            if isinstance(value, str):
                raise ParameterError(f"{name} is {value!r}, which is text; allowed: a number; leave out the quotes")
            if isinstance(value, bool) or not isinstance(value, Real):
                raise ParameterError(f"{name} is {value!r}, of type {type(value).__name__}; allowed: a number")
        own = set(declared(method.options))
        options, first_run = method_options(method, {name: parameters[name] for name in own & set(parameters)})
        shared = {name: value for name, value in parameters.items() if name in _SHARED - own}
        return cls(method=method, options=options, first_run=first_run, parameters=dict(parameters), **shared)

    @classmethod
    def of_given(cls, method: Method, given: Mapping[str, Any]) -> Settings:
        """`of`, where arguments that are not given have their declared defaults.

        Raises ArgumentError: an argument that the method does not have, or one without a default that is not given.
        """
        arguments = {name: option for name, option in arguments_of(method.options).items() if name not in OF_LABELS}
        unknown = sorted(set(given) - set(arguments))
        if unknown:
            raise ArgumentError(
                f"{method.name} has no argument {unknown[0]}; its arguments are: {', '.join(arguments)}"
                f"{hint(unknown[0], arguments)}"
            )
        parameters = {name: given.get(name, option.default) for name, option in arguments.items()}
        missing = [name for name, value in parameters.items() if value is MISSING]
        if missing:
            raise ArgumentError(f"{method.name} needs the argument {missing[0]}; give it")
        return cls.of(method, dict(sorted(parameters.items())))

    def with_counts(self, class_counts: str, class_weight: Any) -> Settings:
        """The same settings with the class counts that `class_weight` uses, or that were asked for.

        Raises ParameterError: an unknown word. UsageError: no counts, and a class weight that needs them.
        """
        declared(RunOptions)["class_counts"].check(class_counts)
        balanced = isinstance(class_weight, str) and class_weight == BALANCED
        if balanced and class_counts == "no":
            raise UsageError(
                f"class weight is {BALANCED!r}, which needs class counts, and class counts is 'no'; give auto or yes"
            )
        return replace(self, class_counts=balanced or class_counts == "yes", balanced=balanced)

    def with_public(self, has_public: bool) -> Settings:
        """The same settings with the options that the presence of public rows decides."""
        return replace(self, options=self.method.resolve(self.options, has_public))

    @property
    def starts_from_text(self) -> bool:
        """Whether the caller chose text weights as initial weights."""
        return getattr(self.options, "init", None) == "text"

    def budget(
        self, n_private: int, inherited: tuple[Releases, ...] = (), *, many_rows: float = math.inf
    ) -> Budget | None:
        """The calibrated budget of a run on `n_private` private rows; None for a method that spends nothing.

        `inherited` are the releases of the first model. The target covers their cost too. `many_rows` is the number of
        private units from which the default is `CENTRED_STEPS`.
        """
        if not self.method.spends:
            return None
        epsilon, others = check_epsilon(self.epsilon), [*inherited, *self.others]
        for share in self.method.shares(self.options):
            part = calibrate(
                epsilon=share.epsilon_share * epsilon, delta=self.delta, n_private=n_private, steps=share.count
            )
            others.append(Releases(share.purpose, part.noise_multiplier, 1.0, share.count))
        if self.class_counts:
            mu = math.sqrt(COUNTS_SHARE) * largest_mu(epsilon, check_delta(self.delta, n_private))
            others.append(Releases(CLASS_COUNTS, round_up(1 / mu), 1.0, 1))
        if self.similar:
            mu = math.sqrt(SIMILAR_SHARE) * largest_mu(epsilon, check_delta(self.delta, n_private))
            others.append(Releases(SIMILAR_ROWS, max(round_up(1 / mu), SIMILAR_NOISE * n_private), 1.0, 1))
        if self.test_epsilon is not None:
            others += test_releases(self.test_epsilon, self.delta, n_private)
        if self.shrink:
            part = calibrate(epsilon=SELECTION_SHARE * epsilon, delta=self.delta, n_private=n_private, steps=1)
            others.append(Releases(SELECTION, part.noise_multiplier, 1.0, 1))
        return calibrate(
            epsilon=epsilon,
            delta=self.delta,
            n_private=n_private,
            noise_multiplier=self.noise_multiplier,
            steps=self.n_steps,
            default_steps=self._default_steps(n_private >= many_rows),
            sampling_rate=self.sampling_rate,
            accountant=self.accountant,
            others=others,
        )

    def _default_steps(self, many: bool) -> int:
        default = self.method.default_steps
        return CENTRED_STEPS if many and default == DEFAULT_STEPS else default


def test_releases(epsilon: float, delta: float, n_units: int) -> tuple[Releases, Releases]:
    """The releases of correct predictions and of scores on private test rows, which cost `epsilon` together."""
    whole = calibrate(epsilon=epsilon, delta=delta, n_private=n_units, steps=1).noise_multiplier
    scores = Releases(TEST_AUROC, whole / math.sqrt(AUROC_SHARE), 1.0, 1)
    rest = calibrate(epsilon=epsilon, delta=delta, n_private=n_units, steps=1, others=(scores,)).noise_multiplier
    return Releases(TEST_ACCURACY, rest, 1.0, 1), scores


_SHARED = {each.name for each in fields(Settings)} - {"method", "options", "first_run", "parameters"}


def method_options(method: Method, given: Mapping[str, Any]) -> tuple[Any, FirstRun | None]:
    """A method's options, and the run of `init` if it is not one of `INIT_WORDS`.

    Raises UsageError: an option that the method does not have. ParameterError: one outside its range.
    """
    init = given.get("init", "auto")
    if init in INIT_WORDS:
        return method.make_options(dict(given)), None
    return method.make_options({**given, "init": "run"}), FirstRun(init)


def schedule_of(budget: Budget | None) -> Schedule:
    """The schedule of a budget; no steps without a budget."""
    if budget is None:
        return Schedule(0, 0.0, 0.0)
    others = {release.purpose: release.noise_multiplier for release in budget.others}
    return Schedule(budget.n_steps, budget.noise_multiplier, budget.nominal_mu, budget.sampling_rate, others)


def make_settings(request: TrainRequest, method: Method) -> Settings:
    """The settings of a request; arguments that are not given have their defaults.

    Raises ParameterError, UsageError: an option that is not allowed.
    """
    declared(RunOptions)["preset"].check(request.preset)
    refuse_other_encodings([*vars(request).values(), *(request.options or {}).values()])
    given = request if request.preset == "default" else _of_preset(request, method)
    known, options = arguments_of(method.options), dict(given.options or {})
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


def _of_preset(request: TrainRequest, method: Method) -> TrainRequest:
    """The request with the settings of the AdaMix paper for all options that it leaves open."""
    if method.name not in PAPER_METHODS:
        raise UsageError(
            f"preset {request.preset} is the AdaMix paper's, which has no {method.name}; leave it out, or choose one "
            f"of {', '.join(PAPER_METHODS)}"
        )
    options = {**paper_options(method, request.preset), **(request.options or {})}
    if options.get("subspace") == "none" and "subspace_dim" not in (request.options or {}):
        del options["subspace_dim"]  # the preset's, of a subspace that the caller turned off
    by_paper = method.spends and request.sigma is None and request.steps is None
    return replace(
        request,
        options=options,
        sigma=PAPER_NOISE_MULTIPLIER if by_paper else request.sigma,
        centre=request.centre or "none",
        condition=request.condition or "none",
    )


def _refuse_idle(request: TrainRequest, method: Method) -> None:
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
            f"{alone} was given without {missing}; a seed makes the run not private, so give both --noise-seed N and "
            "--insecure-seed, or neither"
        )
    for flag, given in (("--sigma", request.sigma), ("--steps", request.steps)) if method.one_step else ():
        if given is not None:
            raise UsageError(
                f"option {flag} does nothing for {method.name}, whose releases are fixed and have the noise that --eps "
                "needs; leave it out"
            )


def refuse_other_encodings(values: Iterable[object]) -> None:
    """UsageError for the name of a file that is not UTF-8, which `config.toml` and the manifest could not hold."""
    for value in values:
        try:
            str(value).encode()
        except UnicodeEncodeError:
            raise UsageError(
                f"the name {value} is not UTF-8, and the files of a run are; nothing was read or spent; rename the file"
            ) from None
