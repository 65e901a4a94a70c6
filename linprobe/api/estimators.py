"""scikit-learn estimators, one per method: the Python interface of the training engine.

    probe = AdaMix(epsilon=3, classes=range(10)).fit(X, y, X_public=X_pub, y_public=y_pub)
    probe.predict(X_new); probe.privacy_["epsilon"]

Rows are L2-normalised and, if there are public rows, centred on their mean. Both steps are folded into `coef_` and
`intercept_`, so predictions take raw feature rows. Classes are declared by the caller or taken from public labels,
never from private labels.
"""

import inspect
import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from linprobe.accounting.events import RECORD
from linprobe.accounting.fits import WITHOUT_NOISE, copies_warning, crossing_warning, refit_warning
from linprobe.data.array_files import check_float32
from linprobe.data.blocks import ArraySource, Source
from linprobe.data.dataset import LEAST_UNLABELLED, Dataset
from linprobe.data.feature_file import NO_LABEL
from linprobe.data.labels import one_spelling
from linprobe.data.row_checks import HASHES, share_a_row
from linprobe.data.row_weights import BALANCED, OF_PUBLIC, RowWeights, class_weights, sample_weights
from linprobe.errors import ArgumentError, DataError, PrivacyError, PrivacyWarning, Silent, UsageError, counted
from linprobe.methods import METHODS, Method
from linprobe.options import VOTE
from linprobe.options.declaration import as_arguments, check_path, estimator_name, hint, naming_arguments
from linprobe.runs.figures import class_scores, label_probabilities, probabilities
from linprobe.runs.matching import refuse_private_array
from linprobe.runs.refined_weights import unrefinable
from linprobe.training import arrays
from linprobe.training.execute import Observer, Trained, execute
from linprobe.training.plan import OF_LABELS, Plan, Settings, plan_run, warnings_of

PRIVATE = ("owners_", "private_record_losses_")  # what fits set


class _Spent(Observer):
    """The plan of a fit, once the fit may use a private row."""

    last: Plan | None = None

    def budget(self, plan: Plan) -> None:
        self.last = plan


class _Notes(Silent):
    """Progress that keeps notes, as a fit shows nothing."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)


class LinearClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Predictions of folded weights on raw rows: what trained estimators and loaded runs have in common.

    Attributes:
        classes_ (n_classes,), coef_ (n_classes, n_features), intercept_ (n_classes,), n_features_in_: the model; with
            output `vote`, coef_ and intercept_ have the voters as first axis.
        multilabel_: whether a row has several labels, named by classes_, in place of one class.
        privacy_: the guarantee and how it was reached, JSON-ready; see `docs/run-folder.md`.
    """

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "coef_")  # a fit that failed may have set other attributes

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Class scores of raw rows `X`, in nats or votes: (n, n_classes); for two classes (n,), second minus first.

        With several labels a row, the score of each label, (n, n_classes); a label applies where it is above 0.
        """
        scores = self._scores(X)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 and not self.multilabel_ else scores

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Softmax of the class scores of raw rows `X`, or shares of votes: (n, n_classes), rows sum to 1.

        With several labels a row, the probability of each label by itself, the sigmoid of its score.
        """
        scores = self._scores(X)
        return label_probabilities(scores) if self.multilabel_ else probabilities(scores, self.coef_)

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The class of each raw row of `X` (n, n_features), shape (n,); or labels 0 and 1, shape (n, n_classes)."""
        scores = self.decision_function(X)
        if self.multilabel_:
            return (scores > 0).astype(int)
        best = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
        return np.asarray(self.classes_[best])

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """The accuracy on raw rows `X` with classes `y`; with several labels a row, the share with all labels right.

        Raises DataError: a series or frame with another index than the frame `X`, or labels in other columns than
        classes_.
        """
        check_is_fitted(self)
        arrays.refuse_other_index(X, {"y": y, "sample_weight": sample_weight})
        if self.multilabel_:
            arrays.refuse_other_columns(y, self.classes_, "y")
        return float(super().score(X, y, sample_weight=sample_weight))

    def _scores(self, X: ArrayLike) -> NDArray[np.float64]:
        check_is_fitted(self)
        X = self._rows(X)
        weights = np.swapaxes(self.coef_, -1, -2).astype(np.float64)
        return class_scores(X, weights, self.intercept_)

    def _rows(self, X: ArrayLike, name: str = "X") -> NDArray[np.floating]:
        with arrays.naming_cell(X, name):
            rows = np.asarray(validate_data(self, X, dtype=[np.float32, np.float64], reset=False))
        check_float32(rows, name)
        return rows


class LinearProbe(LinearClassifier):
    """Base of all probes: declared classes, training by the engine, predictions.

    Adjacency: zero-out. One private record is present, or its place is empty; the number of places is public. With
    `owners`, all private rows of one person are present, or none of them; the number of people is public.

    `fit` sets these attributes, and the attributes of `LinearClassifier`.

    Attributes:
        history_: public facts of each step.
        private_record_losses_: each private record's own privacy loss, in the order of `X`, or with `owners` each
            person's, in the order of `owners_`; `.epsilon(delta)` turns it into epsilons (n_private,).
            PRIVATE: do not publish.
        class_counts_: noisy number of private rows of each class, (n_classes,), if they were released.
        owners_: the people, sorted, if `owners` were given. PRIVATE.
    """

    _method: ClassVar[str]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Give the class a constructor with the arguments that `linprobe.options` declares, all by keyword."""
        super().__init_subclass__(**kwargs)
        arguments = METHODS[cls._method].arguments
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
        __init__.__module__, __init__.__qualname__ = cls.__module__, f"{cls.__qualname__}.__init__"
        cls.__init__ = __init__  # type: ignore[method-assign, assignment]

    @property
    def method(self) -> Method:
        return METHODS[self._method]

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        X_public: ArrayLike | None = None,
        y_public: ArrayLike | None = None,
        text_weights: ArrayLike | None = None,
        owners: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        X_unlabelled: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> Self:
        """Train on private rows `X` (n_private, n_features) with labels `y`, and public rows if given.

        Args:
            X, y: private rows, and their classes (n_rows,), or several labels each: 0 or 1, (n_rows, n_labels). Names
                of columns are public, and those of `y` name the labels. only-public and zero-shot ignore X and y. All
                that belongs to rows is taken by position, and refused with another index of pandas than the rows, also
                with the default index 0, 1, 2, ... beside another.
            X_public, y_public: public rows (n_public, n_features), and labels of the same kind.
            text_weights: class-name encodings (n_features, n_classes).
            owners: the person each row of `X` belongs to, shape (n_rows,): names or numbers. If given, people are
                protected with all of their rows, and n_private is the number of people. None protects single rows.
            sample_weight: public factors on the losses of the rows of `X`, shape (n_rows,), 0 or more. PUBLIC: no
                epsilon covers weights that were computed from other private rows. Gradients are clipped after they are
                weighted, so weights above 1 change little; if all are below 1, they are divided by the largest. They
                multiply the weights of `class_weight`.
            X_unlabelled: public rows without labels (n_unlabelled, n_features), which centre rows where nothing else
                does, and refine the weights after training; noisy counts of similar rows of `X` and of correct
                predictions decide whether, and how strongly.
            groups: the same as `owners`, by the name that scikit-learn passes on; not for `GroupKFold`, whose folds
                depend on private rows.

        Raises:
            ParameterError, UsageError: a parameter or combination that is not allowed.
            DataError: labels outside the declared classes, NaN, wrong shapes, weights below 0; another index than that
                of the rows, or columns of labels that are not the classes in their order.
            PrivacyError: delta of at least 1/n_private, noise too small for one step, or rows of X, or multiples of
                them, in X_public or X_unlabelled, or rows that are private in the run that `init` names.
                FullyPrivate protects X_public and does not compare it.

        Warns:
            PrivacyWarning: delta above a tenth of 1/n_private; rows that were in an earlier fit of this process, with
                what all of these fits cost together, or that no epsilon covers private fits and those without
                privacy; copies of rows; rows that are public in one fit and private in another; columns that a scaler
                fitted on these rows gives, or weights that are one over their number by class; public rows that cannot
                be compared with the private rows of the run that `init` names, as its feature file is not there.
        """
        self._forget()
        if groups is not None and owners is not None:
            raise UsageError("owners and groups are both given, and mean the same; give one of them")
        called, owners = ("owners", owners) if groups is None else ("groups", groups)
        labels_of_rows = {"y": y, "y_public": y_public, called: owners, "sample_weight": sample_weight}
        arrays.refuse_masked(labels_of_rows | {"text_weights": text_weights})
        arrays.refuse_other_index(X, {"y": y, called: owners, "sample_weight": sample_weight})
        arrays.refuse_other_index(X_public, {"y_public": y_public}, "X_public")
        X, y, frames = *self._checked(X, y), {"y": y, "y_public": y_public}
        public_labels = None if y_public is None else np.asarray(y_public)
        self.classes_ = self._named_classes(self._declared_classes(y, public_labels), frames)
        labels, bounds = self._labels(y, "y"), None
        if owners is not None:
            order, bounds, self.owners_ = arrays.people_of(np.asarray(owners), len(X), called)
            X, labels = X[order], labels[order]
        by_row = None if sample_weight is None else sample_weights(sample_weight, len(X))
        if by_row is not None and bounds is not None:
            by_row = by_row[order]
        private = ArraySource(X, labels)
        public, known = self._public(X_public, public_labels, X)
        text = None if text_weights is None else self._text(text_weights)
        weights = self._weights(known, by_row)
        self._warn_of_weights(weights, labels, by_row is not None)
        dataset = self._dataset(private, public=public, text_weights=text, bounds=bounds, weights=weights)
        if X_unlabelled is not None:
            further = self._unlabelled(self._rows(X_unlabelled, "X_unlabelled"), dataset.protected)
            dataset = replace(dataset, unlabelled=further)
        hashes = self._hashes(dataset) if "private" in self.method.needs else None
        plan = self._plan(dataset)  # a fit that is refused here makes no row public
        self._refuse_rows_of_first_run(plan, dataset)
        self._warn_of_rows(dataset, hashes)
        return self._fit(dataset, plan, hashes)

    @staticmethod
    def _text(given: ArrayLike) -> NDArray[np.float64]:
        with arrays.naming_cell(given, "text_weights"):
            return np.asarray(check_array(given, dtype=np.float64))

    @property
    def _promises(self) -> bool:
        """Whether the fit has a guarantee: a method that adds noise, and no seed that somebody chose."""
        return self.method.private and vars(self).get("insecure_seed") is None

    def _checked(self, X: ArrayLike, y: ArrayLike) -> tuple[NDArray[np.floating], NDArray[Any]]:
        shape = np.asarray(y).shape
        self.multilabel_ = len(shape) == 2 and shape[1] > 1  # public, like the number of features
        with arrays.naming_cell(X, "X"):
            X, y = validate_data(self, X, y, dtype=[np.float32, np.float64], multi_output=self.multilabel_)
        if not self.multilabel_:
            with np.errstate(invalid="ignore"):
                # twice: a warning that over half of the labels differ would depend on private ones
                check_classification_targets(np.concatenate([y, y]))
        rows = np.asarray(X)
        check_float32(rows, "X")
        learnt = arrays.learnt_scaling(rows) if self._promises else None
        if learnt is not None:
            warnings.warn(learnt, PrivacyWarning, stacklevel=3)
        return rows, np.asarray(y)

    def _hashes(self, dataset: Dataset) -> NDArray[np.uint64]:
        """Hashes of all protected rows, and of the people if these are protected."""
        hashes = dataset.protected_hashes()
        if dataset.unit == RECORD:
            return hashes
        # a person's rows may be in different fits; Python's hash has a secret key
        people = np.array([hash(one_spelling(str(person))) for person in self.owners_], dtype=np.int64)
        return np.concatenate([hashes, people.view(np.uint64)])

    def _unlabelled(self, rows: NDArray[np.floating], private: Iterable[Source]) -> ArraySource:
        reason = unrefinable(self.method, votes=vars(self).get("output") == VOTE, several_labels=self.multilabel_)
        if reason is not None:
            raise UsageError(f"X_unlabelled cannot refine this probe: {reason}; leave it out")
        if len(rows) < LEAST_UNLABELLED:
            raise DataError(f"X_unlabelled has {counted(len(rows), 'row')}; allowed: {LEAST_UNLABELLED} or more")
        _refuse_private("X_unlabelled", rows, (x for source in private for x, _ in source.blocks()))
        return ArraySource(rows, np.full(len(rows), NO_LABEL))

    def _forget(self) -> None:
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)

    def _declared_classes(self, y: NDArray[Any], y_public: NDArray[Any] | None) -> NDArray[Any]:
        """Classes in label order: as declared, else from public labels that are not protected. `y` tells its shape."""
        if self.classes is None and y_public is None and "public" in self.method.needs:
            raise UsageError(f"{type(self).__name__} needs public rows and got none; give X_public and y_public")
        public = None if self.method.joins_public else y_public
        return arrays.declared_classes(self.classes, public, n_labels=None if y.ndim == 1 else y.shape[1])

    def _named_classes(self, classes: NDArray[Any], frames: Mapping[str, Any]) -> NDArray[Any]:
        """The `classes`, or the columns of y that name several labels. DataError: other columns in one of `frames`."""
        if not self.multilabel_:
            return classes
        classes = arrays.named_by(getattr(frames["y"], "columns", None), self.classes, classes)
        for name, labels in frames.items():
            arrays.refuse_other_columns(labels, classes, name)
        return classes

    def _plan(self, dataset: Dataset) -> Plan:
        with naming_arguments():
            plan = plan_run(self.settings(), dataset)
        if plan.first is not None:
            wanted = (plan.first.manifest.extraction or {}).get("columns")
            arrays.refuse_other_features(list(vars(self).get("feature_names_in_", ())), wanted, vars(self)["init"])
        return plan

    def _labels(self, given: NDArray[Any], name: str) -> NDArray[Any]:
        """Indices into `classes_` (n,), or several labels a row, uint8 (n, n_classes)."""
        if self.multilabel_:
            return arrays.label_matrix(given, len(self.classes_), name)
        return arrays.class_indices(given, self.classes_, name, declared=self.classes is not None)

    def _public(
        self, X: ArrayLike | None, y: NDArray[Any] | None, private: NDArray[np.floating]
    ) -> tuple[ArraySource | None, NDArray[Any] | None]:
        if (X is None) != (y is None):
            missing = "y_public" if y is None else "X_public"
            raise UsageError(f"{missing} is None, but X_public and y_public belong together; give both or neither")
        if X is None or y is None:
            return None, None
        rows = self._rows(X, "X_public")
        if len(rows) != len(y):
            raise DataError(f"X_public has {len(rows)} rows and y_public {len(y)}; allowed: equal numbers")
        labels = self._labels(y, "y_public")
        if self.method.private and not self.method.joins_public:
            _refuse_private("X_public", rows, [private])
        return ArraySource(rows, labels), labels

    def _weights(self, public: NDArray[np.int64] | None, by_row: NDArray[np.float64] | None) -> RowWeights | None:
        """The weights of private rows; `public` are labels of public rows, not used if the method protects these."""
        if self.class_weight is not None and self.multilabel_:
            raise UsageError("class_weight is for rows with one class, and these have several labels; leave it out")
        if self.class_weight is None or (isinstance(self.class_weight, str) and self.class_weight == BALANCED):
            return None if by_row is None else RowWeights(np.ones(len(self.classes_)), by_row)
        public = None if self.method.joins_public else public
        return RowWeights(class_weights(self.class_weight, self.classes_.tolist(), public), by_row)

    def _dataset(self, private: Source, **others: Any) -> Dataset:
        names, joined = [str(name) for name in self.classes_], self.method.joins_public
        return Dataset(private, len(names), several_labels=self.multilabel_, joined=joined, class_names=names, **others)

    @staticmethod
    def _refuse_rows_of_first_run(plan: Plan, dataset: Dataset) -> None:
        """Refuse public rows that are private in the run that gives the initial weights, as `linprobe train` does."""
        first, notes = plan.settings.first_run, _Notes()
        given = {"X_public": None if dataset.joined else dataset.public, "X_unlabelled": dataset.unlabelled}
        for name, source in given.items():
            if first is not None and source is not None:
                refuse_private_array(first.run, name, [x for x, _ in source.blocks()], notes)
        for text in notes.texts:
            warnings.warn(text, PrivacyWarning, stacklevel=3)

    def _fit(self, dataset: Dataset, plan: Plan, hashes: NDArray[np.uint64] | None) -> Self:
        """Train; `hashes` of the protected rows are remembered, to warn of a second fit."""
        for warning in warnings_of(plan, dataset) if plan.private else ():
            warnings.warn(as_arguments(warning), PrivacyWarning, stacklevel=3)
        spent = _Spent()
        try:
            with naming_arguments():
                trained = execute(plan, dataset, observer=spent)
            self._keep(trained, dataset.private.n_features)  # before a warning, which may be an error
        finally:  # a fit that failed has released something too
            if hashes is not None and spent.last is not None:
                budget = spent.last.budget if spent.last.private else None
                releases, delta = (WITHOUT_NOISE, 1.0) if budget is None else (budget.releases, budget.delta)
                if (text := refit_warning(hashes, releases, delta, dataset.unit)) is not None:
                    warnings.warn(text, PrivacyWarning, stacklevel=3)
        return self

    def _keep(self, trained: Trained, n_features: int) -> None:
        self.n_features_in_ = n_features
        self.coef_, self.intercept_ = np.ascontiguousarray(np.swapaxes(trained.weights, -1, -2)), trained.bias
        self.history_, self.n_iter_ = trained.history, max(1, trained.n_steps)
        self.centre_, self.privacy_ = trained.centre, trained.privacy.stated()
        if trained.class_counts is not None:
            self.class_counts_ = trained.class_counts.by_class
        if trained.losses is not None:
            self.private_record_losses_ = replace(trained.losses, releases=trained.privacy.releases or ())

    def _warn_of_weights(self, weights: RowWeights | None, labels: NDArray[np.int64], of_rows: bool) -> None:
        of_public = not of_rows and isinstance(self.class_weight, str) and self.class_weight == OF_PUBLIC
        judged = self._promises and "private" in self.method.needs and not of_public and not self.multilabel_
        if weights is not None and judged:
            learnt = arrays.learnt_weights(weights.of(0, labels), labels)
            if learnt is not None:
                warnings.warn(learnt, PrivacyWarning, stacklevel=3)

    def _warn_of_rows(self, dataset: Dataset, hashes: NDArray[np.uint64] | None) -> None:
        """Warn of copies of a row, and of rows that are public in one fit and private in another."""
        none = np.empty(0, dtype=np.uint64)
        private = hashes if self._promises and hashes is not None else none
        used = (None if dataset.joined else dataset.public, dataset.unlabelled)
        public = [HASHES(rows) for source in used if source is not None for rows, _ in source.blocks()]
        copies = copies_warning(private) if dataset.unit == RECORD else None
        for text in (copies, crossing_warning(private, np.concatenate([none, *public]))):
            if text is not None:
                warnings.warn(text, PrivacyWarning, stacklevel=3)

    def _get_fitted_attr_html(self, doc_link: str = "") -> Any:
        """The attributes that a notebook displays, without private ones. Scikit-learn calls it from version 1.9."""
        shown = super()._get_fitted_attr_html(doc_link)
        guaranteed = vars(self).get("privacy_", {}).get("private")  # a search may show a probe that is not fitted
        for name in PRIVATE if guaranteed else (*PRIVATE, "class_counts_"):
            shown.pop(name, None)
        return shown

    def settings(self) -> Settings:
        """Settings for the engine, from the parameters of this estimator."""
        parameters = self.get_params(deep=False)
        _, class_weight, class_counts = (parameters.pop(name) for name in OF_LABELS)
        return Settings.of_given(self.method, parameters).with_counts(class_counts, class_weight)


def _refuse_private(name: str, rows: NDArray[np.floating], private: Iterable[NDArray[np.floating]]) -> None:
    if share_a_row(private, lambda: [rows]):
        raise PrivacyError(f"{name} holds rows of X, or protected ones; these cannot be public too; give other rows")


class TrainedProbe(LinearClassifier):
    """A run folder as a fitted classifier; made by `load_run`.

    Attributes:
        folder: the run folder. classes_: class names. privacy_: the manifest, as it is in the folder; `linprobe verify`
            checks it. centre_: `public`, `private`, `unlabelled` or `none`, the mean that was subtracted.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = folder

    def fit(self, X: ArrayLike | None = None, y: ArrayLike | None = None) -> Self:
        """Load the folder; a run is trained already. Raises UsageError: rows were given."""
        if X is not None or y is not None:
            raise UsageError(
                f"run {self.folder} is trained, and fit got rows; train another probe with an estimator, or wrap this "
                "one in sklearn.frozen.FrozenEstimator"
            )
        from linprobe.runs.run_folder import read_run

        run = read_run(self.folder)
        self.privacy_, self.centre_ = run.manifest.to_json(), run.manifest.centre
        self.classes_, self.multilabel_ = np.array(run.manifest.class_names), run.manifest.several_labels
        self.coef_, self.intercept_ = np.ascontiguousarray(np.swapaxes(run.weights, -1, -2)), run.bias
        self.n_features_in_ = run.weights.shape[-2]
        return self

    def _rows(self, X: ArrayLike, name: str = "X") -> NDArray[np.floating]:
        with arrays.naming_cell(X, name):
            rows = np.asarray(check_array(X, dtype=[np.float32, np.float64]))  # a run has a digest of names alone
        check_float32(rows, name)
        if rows.shape[1] != self.n_features_in_:
            raise DataError(f"X has {rows.shape[1]} features; allowed for run {self.folder}: {self.n_features_in_}")
        wanted = (self.privacy_.get("extraction") or {}).get("columns")
        arrays.refuse_other_features(list(getattr(X, "columns", ())), wanted, self.folder)
        return rows


def load_run(folder: str | os.PathLike[str]) -> TrainedProbe:
    """Load a run folder as a scikit-learn classifier of raw feature rows.

    Raises:
        DataError: not a run folder, a manifest of another format, or a damaged model file. ParameterError: no path.

    >>> _ = linprobe.train(method="adamix", epsilon=3, out="six")
    >>> linprobe.load_run("six").predict(load_digits().data[:2]).shape
    (2,)
    """
    check_path(folder, "folder")
    return TrainedProbe(folder).fit()


def _documentation(method: Method) -> str:
    """The docstring of the method's module, every argument, and an example with the rows that the method needs."""
    arguments = [f"    {name}: {option.documentation}" for name, option in method.arguments.items()]
    made = f"{estimator_name(method.options)}({'epsilon=3, ' if method.spends else ''}classes=range(10))"
    given = {"public": ", X_public=X[:100], y_public=y[:100]", "text": ", text_weights=np.eye(64, 10)"}
    example = [
        ">>> X, y = load_digits(return_X_y=True)",
        f">>> probe = linprobe.{made}.fit(X[100:], y[100:]{''.join(given.get(need, '') for need in method.needs)})",
        *(['>>> probe.privacy_["epsilon"] <= 3', "True"] if method.spends else [">>> probe.coef_.shape", "(10, 64)"]),
    ]
    return "\n".join([method.documentation.rstrip(), "", "Args (all by keyword):", *arguments, "", *example, ""])


def _estimator(method: Method) -> type[LinearProbe]:
    members = {"__module__": "linprobe", "__doc__": _documentation(method), "_method": method.name}
    return type(estimator_name(method.options), (LinearProbe,), members)


ESTIMATORS: dict[str, type[LinearProbe]] = {name: _estimator(method) for name, method in METHODS.items()}
globals().update({estimator.__name__: estimator for estimator in ESTIMATORS.values()})


def __getattr__(name: str) -> type[LinearProbe]:
    """The estimator of a method that was registered after this module was imported."""
    for method in METHODS.values():
        if method.name not in ESTIMATORS and estimator_name(method.options) == name:
            globals()[name] = ESTIMATORS[method.name] = _estimator(method)
            return ESTIMATORS[method.name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
