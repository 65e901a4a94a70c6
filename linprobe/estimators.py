"""scikit-learn estimators, one a method: the Python face of the training engine.

    probe = AdaMix(epsilon=3, classes=range(10)).fit(X, y, X_public=X_pub, y_public=y_pub)
    probe.predict(X_new); probe.privacy_["epsilon"]

Rows are L2-normalised, and centred on the public mean where there are public rows; both are folded into `coef_` and
`intercept_`, so predictions take raw feature rows. Classes are declared by the caller (or read off public labels),
never off private ones.
"""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from linprobe.accounting.calibrate import DEFAULT_DELTA
from linprobe.accounting.ledger import Ledger
from linprobe.data.rows import ArraySource, Source
from linprobe.errors import DataError, ParameterError, UsageError
from linprobe.evaluation.metrics import class_scores
from linprobe.methods import METHODS, Method, Sampling
from linprobe.training.engine import Sources, train
from linprobe.training.runtime import Runtime
from linprobe.training.settings import Settings

REQUIRED = inspect.Parameter.empty
BUDGET = {"epsilon": REQUIRED, "delta": DEFAULT_DELTA}
CLASSES = {"classes": None}
NOISE = {"noise_multiplier": None, "n_steps": None, "per_record": True}
CENTRE = {"centre": "auto"}
INTERCEPT = {"intercept": 0.0}
SEED = {"insecure_seed": None}
SAMPLING = {"sampling_rate": Sampling.rate, "accountant": "auto"}


class LinearProbe(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """What every probe shares: declared classes, fitting through the engine, predicting.

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
    _shared: ClassVar[dict[str, Any]] = {}

    def __init__(self, **parameters: Any) -> None:
        for name, value in parameters.items():
            setattr(self, name, value)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Give the class a constructor whose parameters are the shared ones and the method's options, by keyword."""
        super().__init_subclass__(**kwargs)
        options = {option.name: option.default for option in fields(METHODS[cls._method].options)}
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters = [
            inspect.Parameter(name, keyword, default=default) for name, default in {**cls._shared, **options}.items()
        ]
        signature = inspect.Signature([inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD), *parameters])

        def __init__(self: LinearProbe, *args: Any, **given: Any) -> None:  # noqa: N807
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
        return self._fit(Sources(private, len(self.classes_), public, text))

    def fit_sources(
        self,
        private: Source,
        public: Source | None = None,
        text_weights: NDArray[np.floating] | None = None,
        *,
        runtime: Runtime | None = None,
        ledger: Ledger | None = None,
    ) -> Self:
        """Train on streamed rows whose labels are indices into the declared classes.

        Args:
            private, public: rows that can be passed over any number of times.
            text_weights: class-name encodings (n_features, n_classes).
            runtime: how rows are kept, on which device and by which processes; what is fitted is the same in all
                processes but for `private_record_losses_`, which rank 0 has.
            ledger: where events go before their results exist; in memory if None.
        """
        self.classes_ = self._declared_classes(None, None)
        return self._fit(Sources(private, len(self.classes_), public, text_weights), runtime, ledger)

    def _fit(self, sources: Sources, runtime: Runtime | None = None, ledger: Ledger | None = None) -> Self:
        trained = train(sources, self.settings(), runtime, ledger=ledger)
        self.n_features_in_ = sources.private.n_features
        self.coef_, self.intercept_ = np.ascontiguousarray(np.swapaxes(trained.weights, -1, -2)), trained.bias
        self.history_, self.n_iter_ = trained.history, max(1, trained.n_steps)
        self.centre_, self.privacy_ = trained.centre, trained.privacy
        if trained.losses is not None:
            self.private_record_losses_ = trained.losses
        return self

    def settings(self) -> Settings:
        """What this estimator's parameters ask the engine for."""
        parameters = self.get_params(deep=False)
        parameters.pop("classes")
        return Settings.of(self.method, parameters)

    @staticmethod
    def _check_range(x: NDArray[np.floating], name: str) -> None:
        """Refuse what single precision cannot hold: rows are float32."""
        if x.size and not np.abs(x).max() <= np.finfo(np.float32).max:
            raise DataError(f"{name} holds numbers beyond 3.4e38, which float32 cannot hold; scale the rows down")

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


class NoisyGD(LinearProbe):
    """Full-batch gradient descent on clipped, noised sums (AdaMix paper, Algorithm 1).

    Guarantee: (epsilon, delta)-DP of the private rows under add/remove of one record.

    Args (all by keyword):
        epsilon: target, in (0, 100]. delta: target, below 1/n_private.
        classes: list of classes; may be left out only where public labels are given.
        noise_multiplier: noise std over clip norm, fixes the steps. n_steps: fixes the noise instead; 50 if both None.
        per_record: whether every record's own loss is followed; on samples that looks at all rows at every step.
        centre: subtract the public mean: `auto` (where there are public rows), `none`, `public`.
        intercept: value of a constant bias column; 0 for none.
        insecure_seed: makes the noise reproducible and the result NOT PRIVATE; for tests only.
        init: first weights; besides the words of the options, the folder of an earlier run, whose releases are then
            charged to this one's budget.
        The others: see `linprobe.methods.noisy_gd.NoisyGDOptions`.
    """

    _method = "noisy-gd"
    _shared: ClassVar = {**BUDGET, **CLASSES, **NOISE, **CENTRE, **INTERCEPT, **SEED}


class AdaMix(LinearProbe):
    """Warm start, clip norm and subspace from public rows (AdaMix paper, Algorithms 2 and 3). Needs public rows.

    Guarantee: (epsilon, delta)-DP of the private rows under add/remove, for every fixed public set.

    Args: as for `NoisyGD`, and those of `linprobe.methods.adamix.AdaMixOptions`.
    """

    _method = "adamix"
    _shared: ClassVar = NoisyGD._shared


class NGD(LinearProbe):
    """AdaMix with a fixed clip norm and no projection. Needs public rows. Args and guarantee as for `NoisyGD`."""

    _method = "ngd"
    _shared: ClassVar = NoisyGD._shared


class PPGD(LinearProbe):
    """A private model, then public training pulled towards it (Wang and Zhou 2020). Needs public rows.

    Args and guarantee as for `NoisyGD`.
    """

    _method = "ppgd"
    _shared: ClassVar = NoisyGD._shared


class DPSGD(LinearProbe):
    """Any optimiser on clipped, noised sums over Poisson samples (Abadi et al. 2016; Dörmann et al. 2021).

    Guarantee: (epsilon, delta)-DP of the private rows under add/remove of one record.

    Args: as for `NoisyGD`, the options of `linprobe.methods.dp_sgd.DPSGDOptions`, and
        sampling_rate: q, probability with which each record joins each step, in (0, 1].
        accountant: `auto` (exact Gaussian DP where q = 1, else privacy-loss distributions), `gdp`, `pld`, `rdp`.
    """

    _method = "dp-sgd"
    _shared: ClassVar = {**NoisyGD._shared, **SAMPLING}


class DPSGDF(LinearProbe):
    """DP-SGD on rows moved to a private, or the public, mean (Sun et al. 2024). Guarantee as for `DPSGD`.

    Args: as for `DPSGD` without intercept, and those of `linprobe.methods.dpsgd_f.DPSGDFOptions`, where `centre` is
        `private` or `public`.
    """

    _method = "dpsgd-f"
    _shared: ClassVar = {**BUDGET, **CLASSES, **NOISE, **SEED, **SAMPLING}


class MirrorDescent(LinearProbe):
    """DP-SGD in the geometry of the public loss (Amid et al. 2022). Needs public rows. Guarantee as for `DPSGD`.

    Args: as for `DPSGD`, and those of `linprobe.methods.mirror_descent.MirrorDescentOptions`.
    """

    _method = "mirror-descent"
    _shared: ClassVar = DPSGD._shared


class DopeSGD(LinearProbe):
    """DP-SGD with gradients clipped around the public one (Nasr et al. 2023). Needs public rows.

    Guarantee as for `DPSGD`. Args: as for `DPSGD`, and those of `linprobe.methods.dope_sgd.DopeSGDOptions`.
    """

    _method = "dope-sgd"
    _shared: ClassVar = DPSGD._shared


class AdaDPS(LinearProbe):
    """DP-SGD on gradients divided by the public second moment (Li et al. 2022). Needs public rows.

    Guarantee as for `DPSGD`. Args: as for `DPSGD`, and those of `linprobe.methods.adadps.AdaDPSOptions`.
    """

    _method = "adadps"
    _shared: ClassVar = DPSGD._shared


class FullyPrivate(LinearProbe):
    """NoisyGD from zero with public rows protected like private ones. Args and guarantee as for `NoisyGD`."""

    _method = "fully-private"
    _shared: ClassVar = {**BUDGET, **CLASSES, **NOISE, **INTERCEPT, **SEED}


class OnlyPublic(LinearProbe):
    """The public rows alone; private rows are ignored. Guarantee: epsilon = 0. Needs public rows.

    Args: classes, centre, intercept as for `NoisyGD`; weight_decay: lambda on the summed loss.
    """

    _method = "only-public"
    _shared: ClassVar = {**CLASSES, **CENTRE, **INTERCEPT}


class ZeroShot(LinearProbe):
    """Text encodings of the class names; no row is used. Guarantee: epsilon = 0. Needs text weights.

    Args: classes as for `NoisyGD`; text_scale: beta.
    """

    _method = "zero-shot"
    _shared: ClassVar = CLASSES


class NonPrivate(LinearProbe):
    """All rows without protection. Guarantee: none; `privacy_["epsilon"]` is None.

    Args: classes, centre, intercept as for `NoisyGD`; weight_decay: lambda on the summed loss.
    """

    _method = "non-private"
    _shared: ClassVar = OnlyPublic._shared


ESTIMATORS: dict[str, type[LinearProbe]] = {
    estimator._method: estimator
    for estimator in (
        NoisyGD,
        AdaMix,
        NGD,
        PPGD,
        DPSGD,
        DPSGDF,
        MirrorDescent,
        DopeSGD,
        AdaDPS,
        FullyPrivate,
        OnlyPublic,
        ZeroShot,
        NonPrivate,
    )
}
