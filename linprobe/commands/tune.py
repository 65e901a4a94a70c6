"""`linprobe tune`: one run whose settings were chosen on private rows, with the choice paid for.

Two mechanisms, which may be combined:

    shrink    one run; noisy counts of right private rows choose c in W_1 + c (W - W_1)
    grid      a secret number of runs with settings drawn at random; the one with the best noisy count is kept

The first is an ordinary run with one more release. The second is private selection. Only the chosen run leaves: the
other runs and their number are neither written nor shown, files carry the time of the end, and there is no progress.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from linprobe.accounting.calibrate import check_delta, check_epsilon, large_delta
from linprobe.accounting.ledger import record_selection
from linprobe.accounting.selection import SelectionEvent, calibrate_selection, check_repetitions
from linprobe.commands._budget_book import book_of, charged_selection
from linprobe.commands._option_text import option_kinds, typed
from linprobe.commands._row_sources import check_one_class, refuse_training_rows
from linprobe.commands._test_rows import figures_of
from linprobe.commands._training_rows import Rows, count_private, rows_of
from linprobe.commands._units import private_records
from linprobe.commands.train import (
    OUTCOME_KEYS,
    TrainRequest,
    default_out,
    make_settings,
    manifest_of,
    opened,
    pages_to_sign,
    signing_key_of,
    train_on,
    with_method,
)
from linprobe.data.feature_reader import FeatureReader
from linprobe.errors import DivergedError, LinprobeError, UsageError, advice
from linprobe.mechanisms.private_selection import private_selection
from linprobe.methods import METHODS, find_method
from linprobe.methods.choice import Chosen
from linprobe.parallel.process_group import ALONE
from linprobe.progress import Progress
from linprobe.runs import run_folder
from linprobe.runs.guarantee import selected
from linprobe.runs.manifest import LEDGER
from linprobe.runs.run_folder import RunFolder
from linprobe.training import engine
from linprobe.training.engine import Trained
from linprobe.training.runtime import Runtime
from linprobe.training.settings import Settings
from linprobe.training.shrinkage import check_shrink

DAY = len("YYYY-MM-DD")  # characters of a time that are its day
REQUEST_OPTIONS = ("method", "sigma", "steps", "sampling_rate", "centre", "condition", "intercept")
MOST_SETTINGS = 1000
MOST_DEFAULT_REPETITIONS = 5


@dataclass(frozen=True)
class Tuning:
    """What is chosen on private rows.

    Attributes:
        grid: options and the values of each; every combination is a setting. shrink: factors on the update.
        repetitions: mean number of runs for the grid; None for the number of settings, at most 5.
    """

    grid: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    shrink: tuple[float, ...] = ()
    repetitions: int | None = None

    @classmethod
    def parse(cls, grid: Sequence[str], shrink: Sequence[float], repetitions: int | None, method: str | None) -> Tuning:
        """From words such as `score_noise=0.3,1,3`; `method` is that of the run, None if none was named.

        Raises:
            UsageError, ParameterError: nothing to choose, or a value that is not allowed.
        """
        texts = {}
        for word in grid:
            flag, equals, values = word.partition("=")
            name = flag.strip("-").replace("-", "_")
            listed = [value.strip() for value in values.split(",")]
            if not equals or not name or "" in listed or len(set(listed)) < len(listed) or name in texts:
                raise UsageError(
                    f"grid is {word!r}; allowed: OPTION=VALUE,VALUE,... with each option and value once, as "
                    "score_noise=0.3,1,3"
                )
            texts[name] = listed
        names = texts.get("method") or ([] if method is None else [method])
        kinds: dict[str, Any] = {}
        for known in names or METHODS:
            kinds |= option_kinds(find_method(known))
        parsed = tuple((name, tuple(typed(name, text, kinds.get(name, str)) for text in texts[name])) for name in texts)
        return cls(parsed, check_shrink(shrink), repetitions).checked()

    def checked(self) -> Tuning:
        """The same. Raises UsageError or ParameterError if there is nothing to choose."""
        n_settings = math.prod(len(values) for _, values in self.grid)
        if not self.grid and not self.shrink:
            raise UsageError(
                "nothing to choose; give --grid OPTION=VALUE,VALUE,... or --shrink FACTOR,FACTOR,..., for example "
                "--shrink 0,0.5,1"
            )
        if self.grid and not 2 <= n_settings <= MOST_SETTINGS:
            raise UsageError(f"the grid has {n_settings} settings; allowed: 2 to {MOST_SETTINGS}; give other values")
        if not self.grid and len(self.shrink) < 2:
            raise UsageError(f"shrink is {self.shrink[0]:g}; allowed without --grid: two factors or more, as 0,0.5,1")
        if self.repetitions is not None:
            if not self.grid:
                raise UsageError("option --repetitions does nothing without --grid; leave it out")
            check_repetitions(self.repetitions)
        return self

    @property
    def settings(self) -> list[dict[str, Any]]:
        """Every combination of the grid, one dictionary of options each."""
        names = [name for name, _ in self.grid]
        return [dict(zip(names, values, strict=True)) for values in product(*(values for _, values in self.grid))]

    @property
    def mean_repetitions(self) -> int:
        """m, from a public rule if none was given."""
        if self.repetitions is not None:
            return self.repetitions
        return min(len(self.settings), MOST_DEFAULT_REPETITIONS)


def tune(request: TrainRequest, tuning: Tuning, progress: Progress) -> dict[str, Any]:
    """Train with the settings that are right most often on private rows; the whole choice costs `request.epsilon`.

    Guarantee: (epsilon, delta)-DP of everything that is returned or left on disk, under zero-out of one private row, or
    of one person with `unit` owner.

    Returns: as `train`, without the seconds, and `tuning`, the choice as in the manifest.

    Raises:
        LinprobeError: any failure, with its exit status; no run folder is left behind.
    """
    request, choice, candidates = candidates_of(request, tuning)
    method = find_method(str(request.method))
    if tuning.grid and request.out is None:  # the time between name and files would tell the number of runs
        request = replace(request, out=default_out(request, timed=False))
    with opened(request, method, progress) as (features, other, completed):
        if choice is not None:
            progress.note(f"method {choice.method}: {choice.when}; {choice.why}. --method names another")
        return tune_on(features, other, completed, tuning, candidates, progress)


def candidates_of(request: TrainRequest, tuning: Tuning) -> tuple[TrainRequest, Chosen | None, list[Settings]]:
    """The request with a method, why it was chosen if none was named, and the settings of every run that may be made.

    Raises:
        UsageError, ParameterError: an option or combination that is not allowed.
    """
    methods = dict(tuning.grid).get("method")
    if methods is not None:
        if request.method is not None:
            raise UsageError("option method is in --grid and given as well; leave one out")
        request = replace(request, method=methods[0])
    if request.log_to is not None:
        raise UsageError(
            f"log-to is {request.log_to}, but a tracker would see how long the choice took, which is secret; leave it "
            "out of tune"
        )
    if request.resume or request.insecure_seed or request.noise_seed is not None:
        raise UsageError("tune neither resumes nor takes a seed; leave them out, or use linprobe train")
    request, choice = with_method(request)
    return request, choice, settings_of(request, tuning)


def settings_of(request: TrainRequest, tuning: Tuning) -> list[Settings]:
    """The settings of every run that may be made.

    Raises:
        UsageError, ParameterError: an option or combination that is not allowed.
    """
    found = []
    for one in tuning.settings:
        asked = {name: value for name, value in one.items() if name in REQUEST_OPTIONS}
        options = {name: value for name, value in one.items() if name not in asked}
        for name in one:
            given = getattr(request, name) if name in asked else (request.options or {}).get(name)
            if given is not None and name != "method":  # that of `request` is then the first of the grid
                raise UsageError(f"option {name.replace('_', '-')} is in --grid and given as well; leave one out")
        varied = replace(request, **asked, options={**(request.options or {}), **options})
        method = find_method(str(varied.method))
        if not method.spends:
            raise UsageError(f"method {method.name} spends no budget, so there is nothing to tune; choose another")
        settings = make_settings(varied, method)
        _check_tunable(settings, tuning)
        found.append(settings)
    if len({settings.method.joins_public for settings in found}) > 1:
        raise UsageError("methods of the grid protect different rows; allowed: all with fully-private, or none")
    return found


def _check_tunable(settings: Settings, tuning: Tuning) -> None:
    name, options = settings.method.name, settings.options
    if tuning.grid and settings.first_run is not None:
        raise UsageError(
            "init is a run folder, whose releases cannot be composed with private selection; allowed with --grid: "
            "auto, zero, public, text"
        )
    if tuning.shrink in ((), (1.0,)):
        return
    init = getattr(options, "init", "zero")
    if init == "zero" or (getattr(options, "variant", "practical") != "practical" and name == "adamix"):
        raise UsageError(
            f"option --shrink does nothing for {name} here, which starts from zero weights; leave it out, or choose a "
            "method that starts from public rows or text weights"
        )


def tune_on(
    features: FeatureReader,
    other: FeatureReader | None,
    request: TrainRequest,
    tuning: Tuning,
    candidates: Sequence[Settings],
    progress: Progress,
) -> dict[str, Any]:
    """`tune` on open feature files; `other` contains public rows."""
    rows = tunable_rows(features, other, request, tuning, candidates)
    if tuning.grid:
        return _select(features, rows, request, tuning, candidates, progress)
    settings = replace(candidates[0], shrink=tuning.shrink)
    without = replace(request, checkpoint_every=math.inf)  # nothing resumes such a run
    outcome = train_on(features, other, without, settings, progress)
    manifest = RunFolder(Path(outcome["run"])).manifest
    return {**{name: value for name, value in outcome.items() if name != "seconds"}, "tuning": manifest.tuning}


def tunable_rows(
    features: FeatureReader,
    other: FeatureReader | None,
    request: TrainRequest,
    tuning: Tuning,
    candidates: Sequence[Settings],
) -> Rows:
    """The rows that all candidates train on.

    Raises:
        UsageError: no budget, or a factor on weights that start from zero. LinprobeError: as `rows_of`.
    """
    check_one_class(features, "tune")
    if request.epsilon is None:
        raise UsageError("tune needs a privacy budget and got none; give --eps, for example --eps 3")
    check_epsilon(request.epsilon)
    rows = rows_of(features, other, request, candidates[0].method)
    if tuning.shrink not in ((), (1.0,)):
        _check_start(rows, candidates)
    return rows


def _check_start(rows: Rows, candidates: Sequence[Settings]) -> None:
    """UsageError if a method would start from zero weights, which every factor scales alike."""
    sources = rows.sources
    known = (sources.public is not None and sources.public.n_rows > 0) or sources.text_weights is not None
    for settings in candidates:
        if settings.options.init == "auto" and not known:
            raise UsageError(
                f"option --shrink does nothing for {settings.method.name} here: without public rows and text weights "
                "it starts from zero weights; leave --shrink out"
            )


@dataclass(frozen=True)
class Selection:
    """A private selection, calibrated.

    Attributes:
        settings: those of every candidate, at the budget of one run. epsilon: of one run, at delta / mean.
        delta: of the whole choice. accountant: of one run. event: for the ledger.
    """

    settings: Sequence[Settings]
    epsilon: float
    delta: float
    accountant: str
    event: SelectionEvent


def selection_of(rows: Rows, request: TrainRequest, tuning: Tuning, candidates: Sequence[Settings]) -> Selection:
    """The private selection among `candidates` that costs `request.epsilon`. No private row is read.

    Raises:
        UsageError: an option that a selection does not take. PrivacyError: no budget of one run is small enough.
    """
    if request.per_record:
        raise UsageError(
            "option --per-record does nothing with --grid: no bound of a single record below epsilon is known; "
            "leave it out"
        )
    if request.test_epsilon is not None:
        raise UsageError("option --test-epsilon does nothing with --grid; leave it out")
    mean, delta = tuning.mean_repetitions, check_delta(request.delta, rows.n_units)

    def at(one: float) -> list[Settings]:
        shrink = tuning.shrink or (1.0,)
        return [
            replace(settings, epsilon=one, delta=delta / mean, shrink=shrink, per_record=False)
            for settings in candidates
        ]

    one, accountant, event = calibrate_selection(
        lambda one: [budget.releases for each in at(one) for budget in engine.budgets(rows.sources, each)],
        mean_repetitions=mean,
        epsilon=float(request.epsilon or 0),
        delta=delta,
        accountant=request.accountant or "auto",
    )
    return Selection(at(one), one, delta, accountant, event)


def _select(
    features: FeatureReader,
    rows: Rows,
    request: TrainRequest,
    tuning: Tuning,
    candidates: Sequence[Settings],
    progress: Progress,
) -> dict[str, Any]:
    """Private selection among `candidates`."""
    mean, out = tuning.mean_repetitions, Path(request.out or "")
    signing_key = signing_key_of(request, ALONE)
    selection = selection_of(rows, request, tuning, candidates)
    refuse_training_rows(features)
    delta, event = selection.delta, selection.event
    warning = large_delta(delta, rows.n_units)
    if warning is not None:
        progress.note(warning)
    runtime = Runtime(request.precision, request.device)
    for settings in candidates:
        runtime.check(settings.options)

    def run(place: int) -> tuple[float, tuple[int, Trained | None]]:
        try:
            trained = engine.train(rows.sources, selection.settings[place], runtime, count_private=count_private)
        except (DivergedError, ArithmeticError, np.linalg.LinAlgError):
            return -math.inf, (place, None)  # an output like any other, and the worst
        return (-math.inf if trained.selected is None else trained.selected.score), (place, trained)

    methods = [settings.method.name for settings in candidates]
    try:
        with (
            run_folder.new_run_folder(out) as folder,
            charged_selection(
                book_of(features, request.book),
                folder,
                out,
                methods,
                event,
                delta,
                request.cap,
                progress,
                rows.sources.unit,
            ) as run_id,
        ):
            progress.note(
                f"choosing among {len(candidates)} settings by private selection, with {mean} runs on average. Their "
                "number is secret: no progress is shown, and the time that this takes should not be published"
            )
            ledger = folder / LEDGER
            record_selection(ledger, event)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a warning about another run would say something about it
                place, trained = private_selection(run, len(candidates), mean)
            os.utime(ledger)  # the time between the ledger and the other files would tell the number of runs
            if trained is None:
                raise DivergedError("the selected run diverged; give other settings, for example smaller steps")
            chosen = replace(candidates[place], shrink=tuning.shrink or (1.0,))
            measured = figures_of(features, trained)
            named = replace(request, method=chosen.method.name)
            manifest = selected(
                manifest_of(features, rows, named, chosen, trained, measured),
                event,
                epsilon_target=float(request.epsilon or 0),
                delta=delta,
                accountant=selection.accountant,
            )
            facts = {"settings": tuning.settings, "chosen": place}
            manifest = run_folder.write_run(
                folder,
                trained.weights,
                trained.bias,
                trained.history,
                replace(
                    manifest,
                    created=manifest.created[:DAY],
                    run_id=run_id,
                    tuning={**(manifest.tuning or {}), **facts},
                ),
                private_records(rows.units, rows.protected, trained),
                signing_key,
                measured,
                pages=pages_to_sign(out, signing_key),
            )
    except OSError as error:
        raise LinprobeError(f"the run cannot be written ({error}); {advice(error)}") from None
    return {"run": str(out), **manifest.stated(OUTCOME_KEYS), "tuning": manifest.tuning}
