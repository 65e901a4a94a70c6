"""`linprobe tune`: one run whose settings were chosen on private rows, with the choice paid for.

Two mechanisms, which may be combined:

    shrink    one run; noisy counts of correct predictions on private rows choose c in W_1 + c (W - W_1)
    grid      a secret number of runs with settings drawn at random; the one with the best noisy count is kept

The first is an ordinary run with one more release. The second is private selection. Only the chosen run leaves: the
other runs and their number are neither written nor shown, files carry the time of the end, and there is no progress.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from linprobe.accounting.calibrate import check_epsilon
from linprobe.accounting.ledger import record_selection
from linprobe.data.dataset import Dataset, check_one_class
from linprobe.errors import DivergedError, LinprobeError, Progress, UsageError, advice
from linprobe.mechanisms.correct_predictions import private_selection
from linprobe.methods import ChosenMethod, find_method
from linprobe.options.requests import TrainRequest
from linprobe.runs import run_folder
from linprobe.runs.figures import figures_of
from linprobe.runs.guarantee import selected
from linprobe.runs.manifest import LEDGER
from linprobe.runs.run_folder import RunFolder
from linprobe.training.charge import charged_selection
from linprobe.training.execute import Observer, Runtime, Trained, execute
from linprobe.training.plan import Plan, Settings
from linprobe.training.train import (
    OUTCOME_KEYS,
    Ready,
    checked_rows,
    default_out,
    manifest_of,
    opened,
    train_on,
    with_method,
    write_trained,
)
from linprobe.training.tuning import Selection, Tuning, check_start, selection_of, settings_of

DAY = len("YYYY-MM-DD")  # characters of a time that are its day


def tune_run(request: TrainRequest, tuning: Tuning, progress: Progress) -> dict[str, Any]:
    """Train with the settings that have the best noisy accuracy on private rows; all of it costs `request.epsilon`.

    Guarantee: (epsilon, delta)-DP of everything that is returned or left on disk, under zero-out of one private row, or
    of one person with `unit` owner.

    Returns: as `train`, without the seconds, and `tuning`, the choice as in the manifest.
    Raises LinprobeError: any failure, with its exit status; no run folder is left behind.
    """
    request, choice, candidates = candidates_of(request, tuning)
    with opened(request, find_method(str(request.method)), progress) as ready:
        return tune_on(replace(ready, choice=choice), tuning, candidates, progress)


def candidates_of(request: TrainRequest, tuning: Tuning) -> tuple[TrainRequest, ChosenMethod | None, list[Settings]]:
    """The request with a method, why it was chosen if none was named, and the settings of every run that may be made.

    Raises UsageError, ParameterError: an option or combination that is not allowed.
    """
    methods = dict(tuning.grid).get("method")
    if methods is not None:
        if request.method is not None:
            raise UsageError("option method is in --grid and given as well; leave one out")
        request = replace(request, method=methods[0])
    if request.resume or request.insecure_seed or request.noise_seed is not None:
        raise UsageError("tune neither resumes nor takes a seed; leave them out, or use linprobe train")
    request, choice = with_method(request)
    if tuning.grid and request.out is None:  # the time between name and files would tell the number of runs
        request = replace(request, out=default_out(request, timed=False))
    return request, choice, settings_of(request, tuning)


def tune_on(ready: Ready, tuning: Tuning, candidates: Sequence[Settings], progress: Progress) -> dict[str, Any]:
    """`tune_run` on open feature files."""
    dataset = tunable_rows(ready, tuning, candidates)
    if tuning.grid:
        return _select(ready, dataset, tuning, candidates, progress)
    settings = ready.with_test(replace(candidates[0], shrink=tuning.shrink))
    without = replace(ready, request=replace(ready.request, checkpoint_every=math.inf))  # nothing resumes such a run
    outcome = train_on(without, settings, progress)
    manifest = RunFolder(Path(outcome["run"])).manifest
    return {
        **{name: value for name, value in outcome.items() if name not in ("seconds", "unpublished")},
        "tuning": manifest.tuning,
    }


def tunable_rows(ready: Ready, tuning: Tuning, candidates: Sequence[Settings]) -> Dataset:
    """The rows that all candidates train on.

    Raises UsageError: no budget, or a factor on weights that start from zero. LinprobeError: as `dataset_of`.
    """
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
        except (DivergedError, ArithmeticError, np.linalg.LinAlgError):
            return -math.inf, (index, None, observer)  # an output like any other, and the worst
        return (-math.inf if trained.selected is None else trained.selected.score), (index, trained, observer)

    return private_selection(run, len(plans), mean_repetitions)


def _select(
    ready: Ready, dataset: Dataset, tuning: Tuning, candidates: Sequence[Settings], progress: Progress
) -> dict[str, Any]:
    """Private selection among `candidates`."""
    request, features, mean = ready.request, ready.features, tuning.mean_repetitions
    out = Path(request.out or "")
    selection = selection_of(dataset, request, tuning, candidates)
    runtime = Runtime(request.precision, request.device)
    for plan in selection.plans:
        runtime.check(plan.settings.options)
    said = ready.warnings(selection.plans[0], dataset, delta=selection.delta)
    book = checked_rows(ready, selection.plans[0], dataset, said, progress)

    try:
        with (
            run_folder.new_run_folder(out) as folder,
            charged_selection(book, folder, out, selection.entry(), request.cap, progress) as run_id,
        ):
            progress.note(selection_note(selection, mean))
            ledger = folder / LEDGER
            record_selection(ledger, selection.event)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a warning about another run would say something about it
                chosen, trained, _ = chosen_run(selection.plans, dataset, runtime, mean)
            os.utime(ledger)  # the time between the ledger and the other files would tell the number of runs
            if trained is None:
                raise DivergedError("the selected run diverged; give other settings, for example smaller steps")
            settings = replace(candidates[chosen], shrink=tuning.shrink or (1.0,))
            measured = figures_of(features, trained)
            named = replace(ready, request=replace(request, method=settings.method.name))
            manifest = selected(
                manifest_of(named, dataset, settings, trained, measured),
                selection.event,
                epsilon_target=float(request.epsilon or 0),
                delta=selection.delta,
                accountant=selection.accountant,
            )
            facts = {**(manifest.tuning or {}), "settings": tuning.settings, "chosen": chosen}
            manifest = replace(manifest, created=manifest.created[:DAY], run_id=run_id, tuning=facts)
            manifest = write_trained(folder, out, ready, dataset, trained, manifest, measured)
    except OSError as error:
        raise LinprobeError(f"the run cannot be written ({error}); {advice(error)}") from None
    return {"run": str(out), **manifest.stated(OUTCOME_KEYS), "tuning": manifest.tuning}
