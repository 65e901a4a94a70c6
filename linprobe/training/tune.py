"""`linprobe tune`: train with settings chosen on private rows; the budget pays for the choice.

`shrink` is one run with one more release; `grid` is private selection among a secret number of runs. Only the chosen
run is written: the others and their number are neither stored nor shown, and files have the time of the end.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from linprobe.accounting.accountants import Accountant
from linprobe.accounting.book import Entry
from linprobe.accounting.calibrate import check_delta, check_epsilon
from linprobe.accounting.ledger import record_selection
from linprobe.accounting.selection import SelectionEvent, calibrate_selection, check_repetitions
from linprobe.data.dataset import Dataset, check_one_class
from linprobe.errors import DivergedError, ParameterError, Progress, UsageError, counted, unwritten
from linprobe.mechanisms.correct_predictions import private_selection
from linprobe.methods import METHODS, ChosenMethod, Method, find_method
from linprobe.options import RunOptions
from linprobe.options.declaration import argument_of, declared
from linprobe.options.requests import TrainRequest
from linprobe.parallel.torch_group import refuse_copies
from linprobe.runs import run_folder
from linprobe.runs.figures import figures_of
from linprobe.runs.guarantee import selected
from linprobe.runs.manifest import DAY, LEDGER
from linprobe.runs.run_folder import RunFolder
from linprobe.training import train
from linprobe.training.charge import charged_selection
from linprobe.training.execute import Observer, Runtime, Trained, execute
from linprobe.training.plan import Plan, Settings, make_settings, plan_run

REQUEST_OPTIONS = ("method", "sigma", "steps", "sampling_rate", "centre", "condition", "intercept")
MOST_SETTINGS = 1000
MOST_DEFAULT_REPETITIONS = 5
MOST_FACTORS = 100


OF_THE_CHOICE = {"epsilon", "eps", "delta", "accountant"}


@dataclass(frozen=True)
class Tuning:
    """What is chosen on private rows."""

    grid: tuple[tuple[str, tuple[Any, ...]], ...] = ()  # options and the values of each; every combination is a setting
    shrink: tuple[float, ...] = ()  # factors on the update
    repetitions: int | None = None  # mean number of runs for the grid

    @classmethod
    def parse(cls, grid: Sequence[str], shrink: Sequence[float], repetitions: int | None, method: str | None) -> Tuning:
        """Parse words such as `score_noise=0.3,1,3` for `method`. UsageError, ParameterError: a value not allowed."""
        texts = {}
        for word in grid:
            flag, equals, values = word.partition("=")
            name = argument_of(flag)
            listed = [value.strip() for value in values.split(",")]
            if not equals or not name or "" in listed or len(set(listed)) < len(listed) or name in texts:
                raise UsageError(
                    f"grid is {word!r}; allowed: OPTION=VALUE,VALUE,..., each once, as score_noise=0.3,1,3"
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
        for name in dict(self.grid).keys() & OF_THE_CHOICE:
            raise UsageError(f"grid has {name}, which is of the whole choice; give {name} beside the grid")
        if not self.grid and not self.shrink:
            raise UsageError(
                "nothing to choose; give --grid OPTION=VALUE,VALUE,... or --shrink FACTOR,..., such as --shrink 0,0.5,1"
            )
        if self.grid and not 2 <= n_settings <= MOST_SETTINGS:
            found = counted(n_settings, "setting")
            raise UsageError(f"the grid has {found}; allowed: 2 to {MOST_SETTINGS}; give other values")
        for name, values in self.grid:
            twice = [value for place, value in enumerate(values) if value in values[:place]]
            if twice:
                raise UsageError(f"grid has {name}={twice[0]} twice; allowed: each value once; leave one out")
        if not self.grid and len(self.shrink) < 2:
            raise UsageError(f"shrink is {self.shrink[0]:g}; allowed without --grid: two factors or more, as 0,0.5,1")
        if self.repetitions is not None:
            if not self.grid:
                raise UsageError("option --repetitions does nothing without --grid; leave it out")
            check_repetitions(self.repetitions)
        return self

    @property
    def settings(self) -> list[dict[str, Any]]:
        names = [name for name, _ in self.grid]
        return [dict(zip(names, values, strict=True)) for values in product(*(values for _, values in self.grid))]

    @property
    def mean_repetitions(self) -> int:
        """m, from a public rule if none was given."""
        if self.repetitions is not None:
            return self.repetitions
        return min(len(self.settings), MOST_DEFAULT_REPETITIONS)


def settings_of(request: TrainRequest, tuning: Tuning) -> list[Settings]:
    """The settings of every run that may be made. Raises UsageError, ParameterError: an option that is not allowed."""
    varied_settings = []
    for setting in tuning.settings:
        asked = {name: value for name, value in setting.items() if name in REQUEST_OPTIONS}
        options = {name: value for name, value in setting.items() if name not in asked}
        for name in setting:
            given = getattr(request, name) if name in asked else (request.options or {}).get(name)
            if given is not None and name != "method":  # `request.method` is then the first of the grid
                raise UsageError(f"option {name.replace('_', '-')} is in --grid and given as well; leave one out")
        varied = replace(request, **asked, options={**(request.options or {}), **options})
        method = find_method(str(varied.method))
        if not method.spends:
            raise UsageError(f"method {method.name} spends no budget, so there is nothing to tune; choose another")
        settings = make_settings(varied, method)
        _check_tunable(settings, tuning)
        varied_settings.append(settings)
    if len({settings.method.joins_public for settings in varied_settings}) > 1:
        raise UsageError("methods of the grid protect different rows; allowed: all with fully-private, or none")
    return varied_settings


def _check_tunable(settings: Settings, tuning: Tuning) -> None:
    name, options = settings.method.name, settings.options
    if tuning.grid and settings.first_run is not None:
        raise UsageError("init is a run folder, which --grid cannot count; allowed with it: auto, zero, public, text")
    if tuning.shrink in ((), (1.0,)):
        return
    init = getattr(options, "init", "zero")
    if init == "zero" or (getattr(options, "variant", "practical") != "practical" and name == "adamix"):
        raise UsageError(
            f"option --shrink does nothing for {name} here, which starts from zero weights; leave it out, or choose a "
            "method that starts from public rows or text weights"
        )


def check_start(dataset: Dataset, candidates: Sequence[Settings]) -> None:
    """UsageError if a method would start from zero weights, which every factor scales alike."""
    known = (dataset.public is not None and dataset.public.n_rows > 0) or dataset.text_weights is not None
    for settings in candidates:
        if settings.options.init == "auto" and not known:
            raise UsageError(
                f"option --shrink does nothing for {settings.method.name} here: without public rows and text weights "
                "it starts from zero weights; leave --shrink out"
            )


@dataclass(frozen=True)
class Selection:
    plans: Sequence[Plan]  # of every candidate, at the budget of one run
    epsilon: float  # of one run, at delta / mean
    delta: float  # of the whole choice
    accountant: Accountant  # of one run
    event: SelectionEvent  # for the ledger

    def entry(self) -> Entry:
        return Entry(
            run="",
            name="",
            method="/".join(dict.fromkeys(plan.method.name for plan in self.plans)),
            unit=self.plans[0].unit,
            private=True,
            delta=self.delta,
            releases=(),
            selection=self.event,
        )


def selection_of(dataset: Dataset, request: TrainRequest, tuning: Tuning, candidates: Sequence[Settings]) -> Selection:
    """The selection among `candidates` for `request.epsilon`. UsageError: an idle option. PrivacyError: no budget."""
    if request.per_record:
        raise UsageError("option --per-record does nothing with --grid, which bounds no single record; leave it out")
    if request.test_epsilon is not None:
        raise UsageError("option --test-epsilon does nothing with --grid; leave it out")
    mean, delta = tuning.mean_repetitions, check_delta(request.delta, dataset.n_units)

    def at(one: float) -> list[Settings]:
        shrink = tuning.shrink or (1.0,)
        return [
            replace(settings, epsilon=one, delta=delta / mean, shrink=shrink, per_record=False)
            for settings in candidates
        ]

    one, accountant, event = calibrate_selection(
        lambda one: [budget.releases for each in at(one) for budget in plan_run(each, dataset, checked=False).budgets],
        mean_repetitions=mean,
        epsilon=float(request.epsilon or 0),
        delta=delta,
        accountant=request.accountant or "auto",
    )
    return Selection([plan_run(each, dataset) for each in at(one)], one, delta, accountant, event)


def check_shrink(factors: Sequence[float]) -> tuple[float, ...]:
    """`factors` if they are different numbers from 0 to 1; otherwise ParameterError."""
    if len(set(factors)) < len(factors) or len(factors) > MOST_FACTORS or not all(0 <= c <= 1 for c in factors):
        listed = ", ".join(f"{factor:g}" for factor in factors)
        raise ParameterError(f"shrink is {listed}; allowed: at most {MOST_FACTORS} different numbers from 0 to 1")
    return tuple(factors)


def option_kinds(method: Method) -> dict[str, Any]:
    declarations = [*declared(RunOptions).values(), *method.arguments.values()]
    return {declaration.parameter: declaration.kind for declaration in declarations}


def typed(flag: str, text: str, wanted: Any) -> Any:
    if wanted is bool:
        if text not in ("true", "false"):
            raise ParameterError(f"{flag} is {text!r}; allowed: true, false")
        return text == "true"
    if wanted not in (int, float):
        return text
    try:
        number = wanted(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ParameterError(f"{flag} is {text!r}; allowed: a {'whole ' if wanted is int else ''}number")
    return number


def tune_run(request: TrainRequest, tuning: Tuning, progress: Progress) -> dict[str, Any]:
    """Train with the settings that have the best noisy accuracy on private rows; all of it costs `request.epsilon`.

    Guarantee: (epsilon, delta)-DP of everything that is returned or left on disk, under zero-out of one private row, or
    of one person with `unit` owner.
    """
    refuse_copies("tune")
    request, choice, candidates = candidates_of(request, tuning)
    with train.opened(request, choice, progress) as ready:
        return tune_on(ready, tuning, candidates, progress)


def candidates_of(request: TrainRequest, tuning: Tuning) -> tuple[TrainRequest, ChosenMethod | None, list[Settings]]:
    """The request with a method, why it was chosen, and all settings. UsageError, ParameterError: not allowed."""
    methods = dict(tuning.grid).get("method")
    if methods is not None:
        if request.method is not None:
            raise UsageError("option method is in --grid and given as well; leave one out")
        request = replace(request, method=methods[0])
    if request.resume or request.insecure_seed or request.noise_seed is not None:
        raise UsageError("tune neither resumes nor takes a seed; leave them out, or use linprobe train")
    if request.unlabelled is not None:
        raise UsageError("tune takes no rows without labels; leave them out, and refine the run that it chose")
    request, choice = train.with_method(request)
    if tuning.grid and request.out is None:  # the time between name and files would tell the number of runs
        request = replace(request, out=train.default_out(request, timed=False))
    return request, choice, settings_of(request, tuning)


def tune_on(ready: train.Ready, tuning: Tuning, candidates: Sequence[Settings], progress: Progress) -> dict[str, Any]:
    dataset = tunable_rows(ready, tuning, candidates)
    if tuning.grid:
        return _select(ready, dataset, tuning, candidates, progress)
    settings = ready.with_test(replace(candidates[0], shrink=tuning.shrink))
    without = replace(ready, request=replace(ready.request, checkpoint_every=math.inf))  # nothing resumes such a run
    place = Path(ready.request.out or "").absolute()  # the process may change to another folder before the end
    outcome = train.train_on(without, settings, progress)
    manifest = RunFolder(place).manifest
    return {
        **{name: value for name, value in outcome.items() if name not in ("seconds", "unpublished")},
        "tuning": manifest.tuning,
    }


def tunable_rows(ready: train.Ready, tuning: Tuning, candidates: Sequence[Settings]) -> Dataset:
    """The rows of all candidates. UsageError: no budget, or factors on zero weights. LinprobeError: as `dataset_of`."""
    check_one_class(ready.features, "tune")
    if ready.request.epsilon is None:
        raise UsageError("tune needs a privacy budget and got none; give --eps, for example --eps 3")
    check_epsilon(ready.request.epsilon)
    dataset = replace(ready, request=replace(ready.request, method=candidates[0].method.name)).dataset()
    if tuning.shrink not in ((), (1.0,)):
        check_start(dataset, candidates)
    return dataset


def selection_note(tuned: Selection, mean: int) -> str:
    """What is noted before a private selection of `mean` runs on average begins."""
    return (
        f"choosing among {len(tuned.plans)} settings by private selection, with {mean} runs on average. Their "
        "number is secret: no progress is shown, and the time that this takes should not be published"
    )


def chosen_run(
    plans: Sequence[Plan],
    dataset: Dataset,
    runtime: Runtime,
    mean_repetitions: int,
    observed: Callable[[], Observer] = Observer,
) -> tuple[int, Trained | None, Observer]:
    """The best of a random number of runs by its noisy count: index of its plan, the run, and what observed it.

    None in place of a run that diverged. Guarantee: `linprobe.accounting.selection`, of what is returned alone.
    """

    def run(index: int) -> tuple[float, tuple[int, Trained | None, Observer]]:
        observer = observed()
        try:
            trained = execute(plans[index], dataset, runtime, observer=observer)
        except (DivergedError, UsageError, ArithmeticError, np.linalg.LinAlgError):
            return -math.inf, (index, None, observer)  # an output like any other, and the worst
        score = -math.inf if trained.selected is None else max(trained.selected.counts)
        return score, (index, trained, observer)

    return private_selection(run, len(plans), mean_repetitions)


def _select(
    ready: train.Ready, dataset: Dataset, tuning: Tuning, candidates: Sequence[Settings], progress: Progress
) -> dict[str, Any]:
    request, features, mean = ready.request, ready.features, tuning.mean_repetitions
    out = Path(request.out or "")
    selection = selection_of(dataset, request, tuning, candidates)
    runtime = Runtime(request.precision, request.device)
    for plan in selection.plans:
        runtime.check_plan(plan)
    said = ready.warnings(selection.plans[0], dataset, selection.entry())
    book = train.checked_rows(ready, selection.plans[0], dataset, said, progress, planned=selection.entry())

    folder: Path | None = None
    try:
        with (
            run_folder.new_run_folder(out) as folder,
            charged_selection(book, folder, out, selection.entry(), request.cap, progress) as run_id,
        ):
            progress.note(selection_note(selection, mean))
            progress.start(0)
            ledger = folder / LEDGER
            record_selection(ledger, selection.event)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a warning about another run would say something about it
                chosen, trained, _ = chosen_run(selection.plans, dataset, runtime, mean)
            os.utime(ledger)  # the time between the ledger and the other files would tell the number of runs
            if trained is None:
                raise DivergedError("the selected run diverged; give other settings, for example smaller steps")
            settings = replace(candidates[chosen], shrink=tuning.shrink or (1.0,))
            measured = figures_of(features, trained.weights, trained.bias)
            named = replace(ready, request=replace(request, method=settings.method.name))
            manifest = selected(
                train.manifest_of(named, dataset, settings, trained, measured),
                selection.event,
                epsilon_target=float(request.epsilon or 0),
                delta=selection.delta,
                accountant=selection.accountant,
            )
            facts = {**(manifest.tuning or {}), "settings": tuning.settings, "chosen": chosen}
            manifest = replace(manifest, created=manifest.created[:DAY], run_id=run_id, tuning=facts)
            manifest = train.write_trained(folder, out, ready, dataset, trained, manifest, measured)
        train.tell(manifest, selection.plans[chosen], measured, progress)
    except BaseException as error:
        if folder is not None:
            train.say_complete(error, folder, out, progress)
        if isinstance(error, OSError):
            raise unwritten("the run", error) from None
        raise
    return {"run": str(out), **manifest.stated(train.OUTCOME_KEYS), "tuning": manifest.tuning}
