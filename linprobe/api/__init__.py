"""The Python interface: the commands as functions, without a subprocess, and estimators, one per method.

The functions take feature files and write run folders; estimators take arrays. Each function returns what its command
prints with `--json`, raises `linprobe.errors.LinprobeError` where the command would end with a message, and shows
nothing unless it gets a `progress`. Without one, notes on what all runs on the same rows cost, and on whom a run does
not protect, are a `PrivacyWarning`.
"""

import inspect
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import wraps
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

from linprobe.errors import ArgumentError, ParameterError, PrivacyNote, PrivacyWarning, Progress, Silent, UsageError
from linprobe.methods import METHODS
from linprobe.options import DEFAULT_DELTA, Choice, Confirmation, RunOptions, requests
from linprobe.options.declaration import (
    Option,
    Request,
    argument_of,
    as_arguments,
    declared,
    hint,
    naming_arguments,
    plain_values,
)
from linprobe.training.tune import Tuning, check_shrink

AnyPath = str | os.PathLike[str]
Asked = TypeVar("Asked", bound=Request)
Given = ParamSpec("Given")
Result = TypeVar("Result")
_OPTIONS = {"all_classes": "probabilities", "allow_other": "allow_other_features"}  # of commands, by arguments
_OF_COMMANDS = ("as_json", "dry_run")  # arguments that functions do not have


def _in_python(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """A function whose errors name arguments, not flags."""

    @wraps(function)
    def named(*arguments: Given.args, **options: Given.kwargs) -> Result:
        with naming_arguments():
            return function(*arguments, **options)

    return named


@_in_python
def train(features: AnyPath | None = None, *, progress: Progress | None = None, **options: Any) -> dict[str, Any]:
    """Train once, write a run folder, and return a summary. Each call spends privacy budget.

    Guarantee: (epsilon, delta)-differential privacy under zero-out of one private record, or with `unit="owner"` of one
    person with all private rows.

    Args:
        features: feature file; None for the built-in digits.
        progress: gets notes and steps; None for a `PrivacyWarning` in place of notes on privacy, and silence.
        options: options of `linprobe train` by name, such as `method`, `epsilon`, `out`, `public_shots`, and options of
            the method, such as `clip_norm`.

    Returns: the run folder under `run`, and the keys of `linprobe train --json`.

    Raises:
        errors.ArgumentError: an unknown option. errors.LinprobeError: any failure; no run folder is left behind.

    >>> trained = linprobe.train(method="adamix", epsilon=3, out="one")
    >>> trained["epsilon"] <= 3
    True
    >>> linprobe.load_run("one").classes_.shape
    (10,)
    """
    from linprobe.training.train import train_run as run

    return run(_request(features, options), progress or _Warning())


@_in_python
def plan(features: AnyPath | None = None, *, progress: Progress | None = None, **options: Any) -> dict[str, Any]:
    """What `train` with the same arguments would read, spend and write. Nothing is spent or written.

    Args:
        features, progress, options: as for `train`.

    Returns: the keys of `linprobe train --dry-run --json`: the releases under `plans`, what all runs on these rows
        would cost with this one under `together`, and `warnings`.

    Raises:
        LinprobeError: `train` would refuse.

    >>> planned = linprobe.plan(method="noisy-gd", epsilon=1)
    >>> planned["plans"][0]["steps"]
    50
    """
    from linprobe.training.dry_run import dry_run

    return dry_run(_request(features, options), progress or _Warning()).facts


@_in_python
def tune(
    features: AnyPath | None = None,
    *,
    grid: Mapping[str, Sequence[Any]] | None = None,
    shrink: Iterable[float] = (),
    repetitions: int | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Train with the settings that have the best noisy accuracy on private rows; training and choice cost `epsilon`.

    Args:
        features, progress, options: as for `train`.
        grid: options and the values to choose from; private selection makes a secret number of runs.
        shrink: factors on the update of the weights; noisy counts of correct predictions choose the factor.
        repetitions: mean number of runs for the grid; None for the number of settings, at most 5.

    Returns: as `train`, and `tuning`, what was chosen.

    Raises:
        errors.ArgumentError: an unknown option. errors.LinprobeError: any failure; no run folder is left behind.

    >>> tuned = linprobe.tune(method="adamix", epsilon=2, shrink=[0, 0.5, 1], out="tuned")
    >>> tuned["tuning"]["shrink"] in (0, 0.5, 1)
    True
    """
    from linprobe.training.tune import tune_run as run

    choices = _of_grid(grid or {})
    given = _values(declared(requests.TuneRequest), {"shrink": shrink, "repetitions": repetitions})
    tuning = Tuning(choices, check_shrink(given["shrink"]), given["repetitions"]).checked()
    return run(_request(features, options), tuning, progress or _Warning())


@_in_python
def compare(
    features: AnyPath | None = None,
    *,
    methods: Sequence[str],
    epsilons: Sequence[float] = (),
    out: AnyPath,
    progress: Progress | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Train methods at several epsilons and seeds, each run in its own folder of `out`; write tables and figures.

    Every run is a release of the private rows. Runs that `out` holds already are checked and not trained again.

    Args:
        features, progress: as for `train`.
        methods: rows of the table: `METHOD` or `METHOD:OPTION=VALUE`, as in `linprobe compare --methods`.
        options: fields of `CompareRequest`: delta, seeds, public_shots, public, unlabelled, baselines, attack, jobs,
            book, unit.

    Returns: the keys of `linprobe compare --json`; under `summary` one object for each row and epsilon.

    Raises:
        LinprobeError: a request that is not allowed, or the first run that failed.

    >>> compared = linprobe.compare(methods=["noisy-gd"], epsilons=[1], out="compared", seeds=2, jobs=1)
    >>> [row["method"] for row in compared["summary"]]
    ['noisy-gd', 'only-public', 'non-private']
    """
    from linprobe.evaluation.compare import compare_methods as run
    from linprobe.evaluation.comparison_plan import MethodRow

    rows = declared(requests.CompareRequest)["methods"].plain(methods)
    rows = rows and [MethodRow.parse(str(row)) for row in rows]
    request = _asked(requests.CompareRequest, methods=rows, epsilons=epsilons, out=out, features=features, **options)
    return run(request, progress or _Warning())


@_in_python
def refine(
    run: AnyPath, unlabelled: AnyPath, *, out: AnyPath, sign: AnyPath | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """Refine the weights of a run with public rows without labels, in a run of its own. It costs nothing.

    Guarantee: the guarantee of the run. Refinement is post-processing of released weights and public rows.

    Args:
        run: run folder. unlabelled: feature file of public rows without labels. out: run folder to make.
        sign: private key of a signed run.

    Returns: the keys of `linprobe refine --json`.

    Raises:
        LinprobeError: a run or rows that cannot be used.

    >>> refined = linprobe.refine("runs/first", "unlabelled.h5", out="runs/refined")  # doctest: +SKIP
    >>> refined["epsilon"]  # doctest: +SKIP
    1.0
    """
    request = _asked(requests.RefineRequest, **_named(locals()))
    from linprobe.evaluation.refine import refine_run

    return refine_run(request, progress or _Warning())


@_in_python
def predict(
    run: AnyPath,
    features: AnyPath,
    *,
    group: str | None = None,
    all_classes: bool = False,
    allow_other: bool = False,
    calibrate: AnyPath | None = None,
    prior: str | None = None,
    together: bool = False,
) -> dict[str, list[Any]]:
    """Classes of the rows of a feature file, or of a `.npy` array.

    Args:
        run: run folder. group: of the file; None for `rows` if it has unlabelled rows, else `test`.
        all_classes: add the probability of each class.
        allow_other, calibrate, prior, together: as in `linprobe predict`.

    Returns: columns by name, a value for each row: id, label, score (the probability of the label); for a run with
        several labels a row, 0 or 1 under the name of each label. `pandas.DataFrame` takes it as it is.

    Raises:
        LinprobeError: rows that do not fit the run.

    >>> _ = linprobe.train(method="adamix", epsilon=3, out="two")
    >>> np.save("rows.npy", load_digits().data[:3])
    >>> len(linprobe.predict("two", "rows.npy")["label"])
    3
    """
    request = _asked(requests.PredictRequest, **_named(locals()))
    from linprobe.evaluation.predict import predict_rows

    lines = predict_rows(request, _Warning())
    names = [str(name) for name in next(lines)]
    columns = list(zip(*lines, strict=True))
    return {name: list(columns[index]) if columns else [] for index, name in enumerate(names)}


@_in_python
def evaluate(
    run: AnyPath,
    features: AnyPath | None = None,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    unit: Literal["record", "owner"] | None = None,
    book: AnyPath | None = None,
    allow_other: bool = False,
    calibrate: AnyPath | None = None,
    prior: str | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Metrics of a run on the test rows of a feature file: accuracy, balanced accuracy, AUROC, each class.

    Public test rows cost nothing. For private ones, each call with `epsilon` spends privacy budget.

    Guarantee: with `epsilon`, (epsilon, delta)-differential privacy under zero-out of one private test record, or with
    `unit="owner"` of one test person with all test rows, charged to a budget book before noise is drawn.

    Args:
        run: run folder. features: feature file; None for the file that the run was trained on.
        epsilon, delta, unit, book: for a noisy accuracy and AUROC on private test rows.
        allow_other, calibrate, prior: as in `linprobe evaluate`.

    Returns: the keys of `linprobe evaluate --json`.

    Raises:
        LinprobeError: rows that do not fit the run, private test rows without `epsilon`, or public ones with it.

    >>> _ = linprobe.train(method="adamix", epsilon=3, out="three")
    >>> linprobe.evaluate("three")["test_rows"]
    409
    """
    request = _asked(requests.EvaluateRequest, **_named(locals()))
    from linprobe.evaluation.predict import evaluate_test_rows

    return evaluate_test_rows(request, progress or _Warning())


@_in_python
def verify(
    run: AnyPath,
    *,
    features: AnyPath | None = None,
    public_key: AnyPath | None = None,
    max_epsilon: float | None = None,
    max_delta: float | None = None,
    unlabelled: AnyPath | None = None,
    before: AnyPath | None = None,
    **others: Any,
) -> dict[str, Any]:
    """Judge whether a run is private and intact, and whether independent accountants agree on its epsilon.

    Args:
        run: run folder. features: feature file whose private rows must be the rows of the run.
        public_key: file of the key that must have signed the run.
        max_epsilon, max_delta: the most that the guarantee may state.
        unlabelled, before: the rows that refined the run, and the run that they refined.

    Returns: the keys of `linprobe verify --json`: `verified`, and under `refused` why it is not.

    Raises:
        LinprobeError: not a run folder, or a file that cannot be read.

    >>> _ = linprobe.train(method="adamix", epsilon=3, out="four")
    >>> linprobe.verify("four", max_epsilon=3)["verified"]
    True
    """
    request = _asked(requests.VerifyRequest, **_named(locals()), **others)
    from linprobe.runs.check import verify_run

    return verify_run(request)


@_in_python
def budget(source: AnyPath = "digits", **options: Any) -> dict[str, Any]:
    """What all recorded runs on the rows of a feature file cost together. With `cap`, sets the cap first.

    Args:
        source: feature file, or a budget book. options: `book`, `delta`, `cap`, as in `linprobe budget`.

    Returns: the keys of `linprobe budget --json`.

    Raises:
        LinprobeError: neither file, a damaged book, or a number that is not allowed.

    >>> before = linprobe.budget()["runs"]
    >>> _ = linprobe.train(method="noisy-gd", epsilon=1, out="five")
    >>> linprobe.budget()["runs"] - before
    1
    """
    from linprobe.training.costs import book_cost as run_command

    return run_command(_asked(requests.BudgetRequest, source=source, **options))


@_in_python
def account(
    *,
    noise_multiplier: float | None = None,
    n_steps: int | None = None,
    sampling_rate: float = 1.0,
    delta: float = DEFAULT_DELTA,
    **others: Any,
) -> dict[str, Any]:
    """The epsilon of Gaussian releases by every accountant that applies. No data is read.

    Args:
        noise_multiplier: standard deviation of the noise over the sensitivity. n_steps: number of releases.
        sampling_rate: of Poisson samples, in [1e-12, 1]. delta: in (0, 1).

    Returns: the keys of `linprobe account --json`.

    Raises:
        ParameterError: a number that is not allowed.

    >>> linprobe.account(noise_multiplier=10, n_steps=50, delta=1e-5)["accountant"]
    'gdp'
    """
    request = _asked(requests.AccountRequest, **_named(locals()), **others)
    from linprobe.accounting.calibrate import releases_cost

    return releases_cost(request)


class _Warning(Silent):
    """Progress that shows nothing, and warns of notes on privacy where linprobe was called."""

    def note(self, text: str) -> None:
        if isinstance(text, PrivacyNote):
            modules = [frame.frame.f_globals.get("__name__", "") for frame in inspect.stack(0)]
            inside = [place for place, name in enumerate(modules) if name.partition(".")[0] == "linprobe"]
            warnings.warn(as_arguments(text), PrivacyWarning, stacklevel=inside[-1] + 2)


def _request(features: AnyPath | None, options: Mapping[str, Any]) -> requests.TrainRequest:
    """The request of named options; options of the method are all that `TrainRequest` does not have."""
    known = _of_train()
    field_names = {field.name for field in fields(requests.TrainRequest)} - {"options"}
    for flag in options.keys() - known.keys() - field_names:
        if flag in _OF_COMMANDS:
            step = (
                "linprobe.plan makes a dry run; use that" if flag == "dry_run" else "results are dictionaries; omit it"
            )
            raise UsageError(f"{flag} is a flag of linprobe train; in Python, {step}")
        raise ArgumentError(f"linprobe.train has no option {flag}{hint(flag, known)}; see linprobe train --help-all")
    given = _values(known, {"features": features, **options})
    rest = {name: given.pop(name) for name in given.keys() - field_names}
    return requests.TrainRequest(**given, options=rest or None)


def _of_grid(grid: Mapping[str, Sequence[Any]]) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    """The values of a grid, of Python's own types. Raises ParameterError: a value of another type than its option."""
    known = _of_train()
    if not isinstance(grid, Mapping):
        raise ParameterError(f"grid is of type {type(grid).__name__}; allowed: a dictionary of options and values")
    by_name = {argument_of(name): values for name, values in grid.items()}
    if len(by_name) < len(grid):
        raise ParameterError(f"grid has {', '.join(map(str, grid))}; allowed: each option once; leave one out")
    for name, values in by_name.items():
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise ParameterError(f"grid has {name}={values!r}; allowed: a list of values to choose from")
    return tuple(
        (name, tuple(known[name].plain(each, name) if name in known else each for each in values))
        for name, values in by_name.items()
    )


def _of_train() -> dict[str, Option]:
    """The options of `train` and of all methods, by their names in `TrainRequest`."""
    of_methods = (option for method in METHODS.values() for option in method.arguments.values())
    of_all = (one for group in (RunOptions, Choice, Confirmation) for one in declared(group).values())
    return {one.parameter: one for one in (*of_all, *of_methods)}


def _named(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a function, its `locals()` at the start, by the names of the options; without `progress`."""
    left_out = ("progress", "others")
    return {_OPTIONS.get(name, name): value for name, value in arguments.items() if name not in left_out}


def _asked(request: type[Asked], **given: Any) -> Asked:
    """A request of named arguments: what its command declares, but for output and dry runs. ArgumentError: another."""
    known = {name: option for name, option in declared(request).items() if name not in _OF_COMMANDS}
    for name in given:
        if name not in known:
            listed = f"{hint(name, known)}; its arguments are: {', '.join(known)}"
            raise ArgumentError(f"{request.command} has no argument {name}{listed}")
    values = _values(known, given)
    for name, option in known.items():
        if option.default is MISSING and name not in values:
            kind = "a path" if option.kind is Path else "a value"
            raise ParameterError(f"{name} is {given.get(name)}; allowed: {kind}; linprobe {request.command} needs it")
    return request(**values)


def _values(known: Mapping[str, Option], given: Mapping[str, Any]) -> dict[str, Any]:
    """Named values as a request holds them: of Python's own types, and paths. None may stand for the default.

    Raises ParameterError: a value of another type than its option.
    """
    optional = {name for name in given if name not in known or known[name].optional}
    values = plain_values(known, {name: given[name] for name in given if given[name] is not None or name in optional})
    for name, option in known.items():
        if option.kind is Path and values.get(name) is not None:
            values[name] = list(map(Path, values[name])) if option.several else Path(values[name])
    return values
