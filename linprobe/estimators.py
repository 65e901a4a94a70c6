"""scikit-learn estimators, one a method: the Python face of linprobe, and what the command line calls.

    probe = AdaMix(epsilon=3, classes=range(10)).fit(X, y, X_public=X_pub, y_public=y_pub)
    probe.predict(X_new); probe.privacy_["epsilon"]

Rows are L2-normalised, and centred on the public mean where there are public rows; both are folded into `coef_` and
`intercept_`, so predictions take raw feature rows. Classes are declared by the caller (or read off public labels),
never off private ones.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from linprobe.accounting.calibrate import Budget, calibrate
from linprobe.accounting.events import Releases
from linprobe.accounting.ledger import Ledger
from linprobe.accounting.per_instance import record_losses
from linprobe.data.precision import Precision
from linprobe.data.preprocessing import Preprocessing, normalise_rows
from linprobe.data.rows import ArraySource, ChainedSource, Source, prepare, prepare_part
from linprobe.declaring import arguments_of, declared, estimator_name, hint, refuse_on_gpu
from linprobe.errors import ArgumentError, DataError, ParameterError, PrivacyError, UsageError
from linprobe.evaluation.metrics import class_scores
from linprobe.gradients import choose_backend
from linprobe.gradients.loss import check_weights
from linprobe.mechanisms.gaussian import GaussianMechanism
from linprobe.mechanisms.noise import NoiseSource
from linprobe.mechanisms.sampling import PoissonSampler
from linprobe.methods import METHODS, Method, Problem, Run, Schedule
from linprobe.options import DEFAULT_STEPS, Centring, Intercept
from linprobe.parallel.array_api import on_host
from linprobe.parallel.process_group import ALONE, Group
from linprobe.parallel.threads import blas_held_to_one_thread
from linprobe.runs.manifest import privacy_statement
from linprobe.runs.run_folder import load_first_model
from linprobe.training.checkpoint import Checkpoints

INIT_WORDS = ("auto", "zero", "public", "text")


def _nothing() -> None:
    """The progress callback of a caller who asks for none."""


def schedule_of(budget: Budget | None) -> Schedule:
    """What a method is told of its budget."""
    if budget is None:
        return Schedule(0, 0.0, 0.0)
    others = {release.purpose: release.noise_multiplier for release in budget.others}
    return Schedule(budget.n_steps, budget.noise_multiplier, budget.nominal_mu, budget.sampling_rate, others)


class LinearProbe(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """What every probe shares: fitting through the method's file, folding, predicting.

    Adjacency: add or remove one private record; the number of private records is public.

    Attributes set by `fit`:
        classes_ (n_classes,), coef_ (n_classes, n_features), intercept_ (n_classes,), n_features_in_: the model; with
            output `vote`, coef_ and intercept_ have the voters as first axis.
        privacy_: the guarantee and how it was reached, JSON-ready; see `docs/privacy.md`.
        history_: public facts of each step.
        private_record_losses_: each private record's own privacy loss, in the order of `X`;
            `.epsilon(delta, worst_case)` turns it into epsilons (n_private,). PRIVATE: do not publish.
    """

    _method: ClassVar[str]
    _shared: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, **parameters: Any) -> None:
        for name, value in parameters.items():
            setattr(self, name, value)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Give the class a constructor that takes what `linprobe.options` declares for its method, by keyword."""
        super().__init_subclass__(**kwargs)
        options = METHODS[cls._method].options
        arguments = arguments_of(options)
        cls._shared = frozenset(name for group in options.takes for name in declared(group))
        parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
        for name, option in arguments.items():
            default = inspect.Parameter.empty if option.default is MISSING else option.default
            parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default))
        signature = inspect.Signature(parameters)

        def __init__(self: LinearProbe, *args: Any, **given: Any) -> None:  # noqa: N807
            for name in given:
                if name not in arguments:
                    raise ArgumentError(
                        f"{type(self).__name__} has no argument {name}; "
                        f"its arguments are: {', '.join(arguments)}{hint(name, arguments)}"
                    )
            bound = signature.bind(self, *args, **given)
            bound.apply_defaults()
            for name in list(bound.arguments)[1:]:
                setattr(self, name, bound.arguments[name])

        __init__.__signature__ = signature  # type: ignore[attr-defined]
        cls.__init__ = __init__  # type: ignore[method-assign]

    @property
    def method(self) -> Method:
        """The registered method behind this estimator."""
        return METHODS[self._method]

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        X_public: ArrayLike | None = None,
        y_public: ArrayLike | None = None,
        text_weights: ArrayLike | None = None,
    ) -> Self:
        """Train on private rows `X` (n_private, n_features) with labels `y`, and public rows if given.

        Args:
            X, y: private rows and labels. only-public and zero-shot accept and ignore them.
            X_public, y_public: public rows (n_public, n_features) and labels.
            text_weights: class-name encodings (n_features, n_classes).

        Raises:
            ParameterError, UsageError: a parameter or combination that is not allowed.
            DataError: labels outside the declared classes, NaN, wrong shapes.
            PrivacyError: delta of at least 1/n_private, or noise too small for one step.
        """
        X, y = validate_data(self, X, y, dtype=[np.float32, np.float64])
        check_classification_targets(y)
        public_labels = None if y_public is None else np.asarray(y_public)
        self.classes_ = self._declared_classes(np.asarray(y), public_labels)
        self._check_range(np.asarray(X), "X")
        private = ArraySource(np.asarray(X), self._indices(np.asarray(y), "y"))
        public = None
        if (X_public is None) != (public_labels is None):
            missing = "y_public" if public_labels is None else "X_public"
            raise UsageError(f"{missing} is None, and the other half of the public rows is not; give both or neither")
        if X_public is not None and public_labels is not None:
            rows = np.asarray(validate_data(self, X_public, dtype=[np.float32, np.float64], reset=False))
            self._check_range(rows, "X_public")
            if len(rows) != len(public_labels):
                raise DataError(f"X_public has {len(rows)} rows and y_public {len(public_labels)}; allowed: as many")
            public = ArraySource(rows, self._indices(public_labels, "y_public"))
        text = None if text_weights is None else np.asarray(text_weights, dtype=np.float64)
        with blas_held_to_one_thread():
            return self._train(private, public, text, Ledger(), _nothing, None)

    def fit_sources(
        self,
        private: Source,
        public: Source | None = None,
        text_weights: NDArray[np.floating] | None = None,
        *,
        ledger: Ledger | None = None,
        on_step: Callable[[], None] = _nothing,
        on_start: Callable[[int], None] | None = None,
        precision: Precision = "float32",
        group: Group = ALONE,
        keep: Callable[[NoiseSource, slice], Checkpoints] | None = None,
        device: str = "cpu",
    ) -> Self:
        """Train on streamed rows whose labels are indices into the declared classes.

        Args:
            private, public: rows that can be passed over any number of times.
            text_weights: class-name encodings (n_features, n_classes).
            ledger: where events go before their results exist; in memory if None.
            on_step: called after every step. on_start: called with the number of steps.
            precision: in which rows are kept; clip factors are of the rounded rows.
            group: processes that call this together with the same arguments, each of which takes its part of the rows;
                what is fitted is the same in all but `private_record_losses_`, which rank 0 has.
            device: `cpu`, or `cuda` or `cuda:N` for methods that can; rows, weights and noise are then there.
            keep: makes the keeper of checkpoints, of the noise's source and the places of the private rows held here.
        """
        self.classes_ = self._declared_classes(None, None)
        ledger = Ledger() if ledger is None else ledger
        with blas_held_to_one_thread():
            return self._train(
                private,
                public,
                text_weights,
                ledger,
                on_step,
                on_start,
                precision=precision,
                group=group,
                keep=keep,
                device=device,
            )

    def _train(
        self,
        private: Source,
        public: Source | None,
        text_weights: NDArray[np.floating] | None,
        ledger: Ledger,
        on_step: Callable[[], None],
        on_start: Callable[[int], None] | None,
        *,
        precision: Precision = "float32",
        group: Group = ALONE,
        keep: Callable[[NoiseSource, slice], Checkpoints] | None = None,
        device: str = "cpu",
    ) -> Self:
        method, options = self.method, self.method_options()
        if device != "cpu":
            self._check_device(device, group)
        self.n_features_in_ = private.n_features
        if public is not None and not public.n_rows:
            public = None
        self._check_needs(public, text_weights)
        if method.joins_public and public is not None:
            private, public = ChainedSource(private, public), None
        preprocessing = self._preprocessing(public)
        run_weights, inherited = self._first_model(preprocessing, public)
        budget = self.budget(private.n_rows, inherited)
        n_features = private.n_features + bool(preprocessing.intercept)
        rows = prepare_part(private, preprocessing, precision, group) if "private" in method.needs else None
        known = None if public is None else prepare(public, preprocessing, precision)
        source = NoiseSource(getattr(self, "insecure_seed", None))
        source.key = group.broadcast(np.frombuffer(source.key, dtype=np.uint8)).tobytes()
        backend = choose_backend(device)
        rows, known = (part if part is None else backend.place(part) for part in (rows, known))
        problem = Problem(
            n_features,
            len(self.classes_),
            private=rows,
            public=known,
            text_weights=self._training_text_weights(text_weights, preprocessing),
            run_weights=run_weights,
        )
        schedule, keeper = schedule_of(budget), None
        if keep is not None and budget is not None and rows is not None:
            # a method may add public rows to those of a single process
            keeper = keep(source, slice(None) if group.size == 1 else slice(rows.first, rows.first + rows.n_held))
        ledger.inherit(inherited)
        mechanism = GaussianMechanism(
            backend.noise(source),
            ledger.append,
            first_step=ledger.position,
            group=group,
            repeated=() if keeper is None else keeper.early,
        )
        if on_start is not None:
            on_start(schedule.n_steps)
        sampler = PoissonSampler(source, schedule.sampling_rate)
        looked = getattr(self, "per_record", True)
        fitted = method.fit(
            problem, options, Run(schedule, mechanism, on_step, sampler, looked, keeper, group, backend)
        )
        check_weights(fitted.weights)
        ledger.close()
        weights, bias = preprocessing.fold(fitted.weights, fitted.bias)
        self.coef_, self.intercept_ = np.ascontiguousarray(np.swapaxes(weights, -1, -2)), bias
        self.history_ = [{name: float(on_host(fact)) for name, fact in facts.items()} for facts in fitted.history]
        self.n_iter_ = max(1, schedule.n_steps)
        if budget is not None:
            self.private_record_losses_ = record_losses(
                private.n_rows if looked and group.rank == 0 else 0,
                group.gather(on_host(mechanism.contributed.squared_mu)),
                group.gather(mechanism.contributed.levels),
                budget.releases[-1],
                inherited,
            )
        self.centre_ = "none" if preprocessing.centre is None else "public"
        self.privacy_ = privacy_statement(
            method,
            budget,
            ledger.events,
            n_private=private.n_rows,
            n_public=0 if public is None else public.n_rows,
            noise_kind=source.kind if method.spends else "none drawn",
            insecure=getattr(self, "insecure_seed", None) is not None,
        )
        return self

    @staticmethod
    def _check_range(x: NDArray[np.floating], name: str) -> None:
        """Refuse what single precision cannot hold: rows are float32."""
        if x.size and not np.abs(x).max() <= np.finfo(np.float32).max:
            raise DataError(f"{name} holds numbers beyond 3.4e38, which float32 cannot hold; scale the rows down")

    def _check_device(self, device: str, group: Group) -> None:
        """Refuse a device that is not there, or what cannot be done on one."""
        from linprobe.gradients.gpu import check_device

        check_device(device)
        refuse_on_gpu(self.method_options(), device)
        if group.size > 1:
            raise UsageError(f"device is {device!r} with {group.size} processes; allowed: one process, or device cpu")

    def method_options(self) -> Any:
        """The method's own options, from this estimator's parameters."""
        return self.method.make_options(self._option_values())

    def budget(self, n_private: int, inherited: tuple[Releases, ...] = ()) -> Budget | None:
        """What `fit` on `n_private` private rows would spend, calibrated; None for a method that spends nothing."""
        method, options = self.method, self.method_options()
        if not method.spends:
            return None
        target = {"delta": self.delta, "n_private": n_private}
        others = list(inherited)
        for share in method.shares(options):
            part = calibrate(epsilon=share.epsilon_share * self.epsilon, steps=share.count, **target)
            others.append(Releases(share.purpose, part.noise_multiplier, 1.0, share.count))
        rate, default_steps = 1.0, DEFAULT_STEPS
        if method.sampling is not None:
            rate, default_steps = self.sampling_rate, method.sampling.n_steps
        return calibrate(
            epsilon=self.epsilon,
            noise_multiplier=self.noise_multiplier,
            steps=self.n_steps,
            default_steps=default_steps,
            sampling_rate=rate,
            accountant=getattr(self, "accountant", "auto"),
            others=others,
            **target,
        )

    def _first_model(
        self, preprocessing: Preprocessing, public: Source | None
    ) -> tuple[NDArray[np.float64] | None, tuple[Releases, ...]]:
        """Weights to start from out of another run's folder, and what that run has already released.

        Rows it took for public must be public here too: they had no protection there.
        """
        init = getattr(self, "init", "auto")
        if init in INIT_WORDS:
            return None, ()
        if not Path(init).is_dir():
            raise ParameterError(f"init is {init!r}; allowed: {', '.join(INIT_WORDS)}, or a run folder")
        first = load_first_model(init)
        if first.weights.shape != (self.n_features_in_, len(self.classes_)):
            raise DataError(
                f"init run {init} has weights of shape {first.weights.shape}; allowed here: "
                f"{(self.n_features_in_, len(self.classes_))}; train it on features of the same kind"
            )
        digest = getattr(public, "digest", None)
        if first.public_digest is not None and (digest is None or digest() != first.public_digest):
            raise PrivacyError(
                f"init run {init} took rows for public that are not the public rows here, and might be private ones; "
                "give the same feature file, --public-shots, --split-seed and --public (arrays cannot be compared)"
            )
        return preprocessing.unfold(first.weights, first.bias), first.releases

    def _option_values(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in declared(self.method.options)}
        if values.get("init", "auto") not in INIT_WORDS:
            values["init"] = "run"
        return values

    def _check_needs(self, public: Source | None, text_weights: Any) -> None:
        if "public" in self.method.needs and public is None:
            raise UsageError(
                f"method {self._method} needs public rows and got none; "
                "give --public FILE or --public-shots K (in Python: X_public, y_public)"
            )
        if "text" in self.method.needs and text_weights is None:
            raise UsageError(
                f"method {self._method} needs text weights and got none; "
                "use a feature file with text/weights (in Python: text_weights)"
            )

    def _preprocessing(self, public: Source | None) -> Preprocessing:
        centre = getattr(self, "centre", "none") if "centre" in self._shared else "none"
        intercept = getattr(self, "intercept", 0.0)
        declared(Centring)["centre"].check(centre)
        if centre == "public" and public is None:
            raise UsageError("centre is 'public', but there are no public rows; give some, or use centre none")
        declared(Intercept)["intercept"].check(intercept)
        from_text = getattr(self, "init", None) == "text"
        if from_text and centre == "public":
            raise UsageError("init 'text' needs uncentred rows, on which text weights mean something; use centre none")
        automatic = self.method.centres and public is not None and not from_text
        centring = centre == "public" or (centre == "auto" and automatic)
        if intercept and centring:
            raise UsageError(f"intercept {intercept:g} needs uncentred rows; use centre none, or intercept 0")
        if not centring or public is None:
            return Preprocessing(intercept=intercept)
        return Preprocessing.centred_on(np.concatenate([rows for rows, _ in public.blocks()]))

    def _training_text_weights(
        self, text_weights: NDArray[np.floating] | None, preprocessing: Preprocessing
    ) -> NDArray[np.float64] | None:
        if text_weights is None:
            return None
        expected = (self.n_features_in_, len(self.classes_))
        if text_weights.shape != expected:
            raise DataError(f"text weights have shape {text_weights.shape}; allowed: {expected}")
        encodings = normalise_rows(text_weights.T.astype(np.float32)).T.astype(np.float64)
        padding = np.zeros((int(bool(preprocessing.intercept)), len(self.classes_)))
        return np.concatenate([encodings, padding])

    def _declared_classes(self, y: NDArray[Any] | None, y_public: NDArray[Any] | None) -> NDArray[Any]:
        """Classes in label order: as declared, else from public labels. `y` is private and not looked at."""
        if self.classes is not None:
            classes = np.asarray(list(self.classes))
        elif y_public is not None:
            classes = np.unique(y_public)
        else:
            raise ParameterError(
                "classes is None; allowed: the list of classes, which must not be read off private labels; "
                "pass classes=[...]"
            )
        if len(classes) < 2 or len(np.unique(classes)) != len(classes):
            raise ParameterError(
                f"classes has {len(classes)} entries, 1 class or repeats; allowed: 2 or more, all different"
            )
        return classes

    def _indices(self, labels: NDArray[Any], name: str) -> NDArray[np.int64]:
        """Labels to indices into `classes_`, shape (n,)."""
        order = np.argsort(self.classes_, kind="stable")
        ordered = self.classes_[order]
        try:
            places = np.clip(np.searchsorted(ordered, labels), 0, len(ordered) - 1)
            known = ordered[places] == labels
        except TypeError:
            known, places = np.zeros(len(labels), dtype=bool), np.zeros(len(labels), dtype=np.int64)
        if not np.all(known):
            raise DataError(
                f"{name} holds {int(np.sum(~known))} labels outside the {len(ordered)} declared classes; "
                "allowed: those in classes"
            )
        return np.asarray(order[places], dtype=np.int64)

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Class scores of raw rows `X`, nats or votes: (n, n_classes); (n,) for two, positive for the second."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=[np.float32, np.float64], reset=False)
        weights = np.swapaxes(self.coef_, -1, -2).astype(np.float64)
        scores = class_scores(np.asarray(X), weights, self.intercept_)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The class of each raw row of `X` (n, n_features), shape (n,)."""
        scores = self.decision_function(X)
        best = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
        return np.asarray(self.classes_[best])


def _documentation(method: Method) -> str:
    """The text at the head of the method's file, and every argument."""
    arguments = [f"    {name}: {option.documentation}" for name, option in arguments_of(method.options).items()]
    return "\n".join([method.documentation.rstrip(), "", "Args (all by keyword):", *arguments, ""])


def _estimator(method: Method) -> type[LinearProbe]:
    body = {"__module__": __name__, "__doc__": _documentation(method), "_method": method.name}
    return type(estimator_name(method.options), (LinearProbe,), body)


ESTIMATORS: dict[str, type[LinearProbe]] = {name: _estimator(method) for name, method in METHODS.items()}
globals().update({estimator.__name__: estimator for estimator in ESTIMATORS.values()})

if TYPE_CHECKING:

    def __getattr__(name: str) -> type[LinearProbe]:
        """`NoisyGD` and the others."""
