"""`linprobe predict` and `evaluate`: classes of rows, metrics on test rows, and the temperature of both.

With `--epsilon`, `evaluate` releases a noisy accuracy and AUROC on private test rows (`linprobe.mechanisms` has the
sums). The weights are released already, so the two releases are private by themselves. They are charged, before noise
is drawn, to the budget book of the test rows.
"""

from __future__ import annotations

import csv
import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from linprobe.accounting.book import EVALUATION, Entry
from linprobe.accounting.calibrate import check_delta, check_epsilon
from linprobe.accounting.events import OWNER, TEST_ACCURACY
from linprobe.accounting.figures import rounded_down, rounded_up
from linprobe.accounting.ledger import Ledger
from linprobe.atomic_files import plain_cell
from linprobe.data.array_files import check_float32, open_array
from linprobe.data.blocks import ArraySource, Source
from linprobe.data.dataset import check_one_class, check_test_rows, open_features, refuse_private_at_home, unit_of
from linprobe.data.feature_file import NO_LABEL, UNLABELLED
from linprobe.data.feature_reader import FeatureReader, GroupRows, extraction_of, order_note, test_people
from linprobe.data.row_weights import shares_given
from linprobe.errors import DataError, Progress, UsageError, counted
from linprobe.mechanisms.correct_predictions import NoisyTest
from linprobe.mechanisms.gaussian import GaussianMechanism
from linprobe.mechanisms.noise import NoiseSource
from linprobe.mechanisms.score_histogram import TEST_AUROC, NoisyScores
from linprobe.methods import find_method
from linprobe.methods.class_counts import equal_shares, gives_log_odds, shift_between
from linprobe.options.requests import EvaluateRequest, PredictRequest
from linprobe.parallel.threads import blas_held_to_one_thread
from linprobe.parallel.torch_group import refuse_copies
from linprobe.runs import matching, run_folder
from linprobe.runs.figures import (
    class_scores,
    figures_by_task,
    fit_temperature,
    label_probabilities,
    no_better_than_guessing,
    noisy_accuracy,
    probabilities,
    sums_of_test_rows,
    test_units,
)
from linprobe.runs.manifest import TRAINED, UNIFORM
from linprobe.runs.refined_weights import gathered, refined_weights
from linprobe.runs.refinement import known_of, prior_shift, refuse_unrefinable
from linprobe.runs.run_folder import RunFolder
from linprobe.training.charge import (
    charge_entry,
    existing_book,
    note_not_compared,
    preview,
    refuse_private_in_books,
    refuse_protected_test_rows,
)
from linprobe.training.plan import fewer_protected, test_releases
from linprobe.training.words import DryRun, Lines, together_facts, together_line, written


def predict_rows(request: PredictRequest, progress: Progress) -> Iterator[tuple[str | float, ...]]:
    """The names of the columns, then (id, class name, its probability) of every row of a group of a feature file, or of
    a `.npy` array. A run with several labels a row gives 0 or 1 for each label in place of name and probability.

    With `together`, the weights are refined on these rows first, and the rows get the classes that they have together.
    They are then needed in memory, up to a number at which a fixed part of them refines.
    """
    features, group, prior, together = request.features, request.group, request.prior, request.together
    allow_other, all_classes = request.allow_other_features, request.probabilities
    if group is not None and features.suffix == ".npy":
        raise UsageError(f"option --group {group} does nothing for {features}, whose rows have no groups; leave it out")
    run = run_folder.read_run(request.run)
    if together:
        refuse_unrefinable(run, "leave out --together")
    moved = moved_bias(run, prior)
    temperature = temperature_of(run, request.calibrate, progress, moved[0], allow_other=allow_other)
    answers = run.manifest.class_names if run.manifest.several_labels else ["label", "score"]
    columns = ("id", *answers, *(f"p_{name}" for name in run.manifest.class_names if all_classes))
    _refuse_equal(columns, request.run)
    yield columns
    if features.is_dir():
        raise DataError(f"{features} is a folder, and predict takes rows; {matching.how_to_make(run, features)}")

    def answered(rows: Source, where: str, ids: Iterator[str]) -> Iterator[tuple[str | float, ...]]:
        for place, scores in enumerate(_scored(run, moved, rows, features, together=together)):
            if place == 0:
                progress.note(f"{counted(rows.n_rows, 'row')} {where}")
            yield from _predicted(run, ids, scores, temperature, all_classes)

    if features.suffix == ".npy":
        array = _rows_of(features, run.weights.shape[-2])
        matching.check_made_alike(run, features, {}, array.shape[1], progress)
        rows = ArraySource(array, np.broadcast_to(NO_LABEL, len(array)))  # labels take no memory
        yield from answered(rows, f"of {features}", map(str, range(len(array))))
        return
    with open_features(features, whole=False, labelled=False) as opened:
        group = group or (UNLABELLED if UNLABELLED in opened.sizes else "test")
        if group not in opened.sizes:
            allowed = ", ".join(opened.sizes)
            raise UsageError(
                f"group is {group!r}; allowed for {features}: {allowed}; give --group {next(iter(opened.sizes))}"
            )
        made = extraction_of(opened.description)
        matching.check_made_alike(run, features, made, opened.n_features, progress, allow_other=allow_other)
        _note_order(run, opened, progress)
        yield from answered(GroupRows(opened, group), f"of the group {group} of {features}", iter(opened.ids(group)))


def _refuse_equal(columns: Sequence[str], run: Path) -> None:
    """DataError if two columns have one name, as labels `id`, or `p_A` beside A, give."""
    twice = next((name for name, count in Counter(columns).items() if count > 1), None)
    if twice is not None:
        step = "" if twice == "id" else "leave out the probabilities, or "
        raise DataError(
            f"the predictions of run {run} have two columns {twice!r}; allowed: each name once, and no label may be "
            f"id, or p_LABEL of another; {step}read linprobe.load_run({str(run)!r}).predict_proba by position"
        )


def write_predictions(rows: Iterator[tuple[str | float, ...]], stream: IO[str]) -> None:
    """Write what `predict_rows` yields as CSV. A file that is refused is refused before the first line."""
    writer = csv.writer(stream, lineterminator="\n")
    header, first = next(rows), next(rows, None)
    writer.writerow(map(plain_cell, header))
    for row in () if first is None else chain([first], rows):
        writer.writerow(f"{cell:.6f}" if isinstance(cell, float) else plain_cell(str(cell)) for cell in row)


def _scored(
    run: RunFolder,
    moved: tuple[NDArray[np.float32], NDArray[np.float64] | None],
    rows: Source,
    where: Path,
    *,
    together: bool,
) -> Iterator[NDArray[np.float64]]:
    """Class scores (b, n_classes) of blocks by the bias `moved`; `together`, refined to its shares if any."""
    bias, shares = moved
    if not together or not rows.n_rows:
        for x in _finite(rows, where):
            yield class_scores(x, run.weights, bias)
        return
    some, places = gathered(_finite(rows, where), rows.n_rows, *run.weights.shape)
    if shares is None:
        refined = refined_weights(some, run.weights, bias, known_of(run), shift=prior_shift(run), together=True)
    else:
        refined = refined_weights(some, run.weights, bias, known_of(run), shares)
    start = done = 0
    for x in _finite(rows, where):
        stop = int(np.searchsorted(places, start + len(x)))
        scores = class_scores(x, refined.weights, refined.bias)
        scores[places[done:stop] - start] = refined.scores[done:stop]
        yield scores
        start, done = start + len(x), stop


def _rows_of(array_file: Path, width: int) -> NDArray[Any]:
    array = open_array(array_file)
    if array.dtype.kind not in "fiub" or array.ndim != 2:
        raise DataError(
            f"{array_file} has type {array.dtype} and shape {array.shape}; allowed: real numbers of shape (rows, "
            f"{width}), the features of this run; save the array with a row for each record"
        )
    return array


def _finite(rows: Source, where: Path) -> Iterator[NDArray[np.floating]]:
    start = 0
    for x, _ in rows.blocks():
        check_float32(x, str(where), range(start, start + len(x)))
        start += len(x)
        yield x


def _predicted(
    run: RunFolder, ids: Iterator[str], scores: NDArray[np.float64], temperature: float, all_classes: bool
) -> Iterator[tuple[str | float, ...]]:
    if run.manifest.several_labels:
        shares = label_probabilities(scores).tolist() if all_classes else [[]] * len(scores)
        for marks, line in zip((scores > 0).astype(int).tolist(), shares, strict=True):
            yield next(ids), *marks, *line
        return
    best, share = scores.argmax(axis=1), probabilities(scores, run.weights, temperature)
    score = share[np.arange(len(best)), best].tolist()
    others = share.tolist() if all_classes else [[]] * len(score)
    for index, value, line in zip(best.tolist(), score, others, strict=True):
        yield next(ids), run.manifest.class_names[index], value, *line


def evaluate_run(request: EvaluateRequest, progress: Progress) -> dict[str, Any]:
    """Metrics of a run on the test rows of a feature file, with a note if it is no better than the majority class.

    For a run with class counts, `by_prior` has two of them for the class shares of training and for equal ones.
    """
    run, allow_other = run_folder.read_run(request.run), request.allow_other_features
    bias = moved_bias(run, request.prior)[0]
    temperature = temperature_of(run, request.calibrate, progress, bias, allow_other=allow_other)
    with matching.scored_file(run, request.features, progress) as opened:
        matching.check_fits(run, opened, progress, allow_other=allow_other)
        _note_order(run, opened, progress)
        released = "" if run.manifest.test_accuracy_std is None else str(run.folder)
        check_test_rows(opened, "accuracy is measured on", released=released)
        matching.refuse_private_rows(run, opened, progress)
        refuse_protected_test_rows(opened)
        given = run.manifest.task, GroupRows(opened, "test"), run.weights
        figures = figures_by_task(*given, bias, run.manifest.class_names, temperature=temperature)
        by_prior: dict[str, Any] = {}
        if _movable_shares(run) is not None:
            found = {
                word: figures_by_task(*given, moved_bias(run, word)[0], run.manifest.class_names, most_passes=0)
                for word in (TRAINED, UNIFORM)
            }
            kept = ("test_accuracy", "balanced_accuracy")
            by_prior["by_prior"] = {word: {key: one[key] for key in kept} for word, one in found.items()}
    no_better = no_better_than_guessing(figures, run.manifest)
    if no_better is not None:
        progress.note(no_better)
    return {"run": str(request.run), "temperature": temperature, **by_prior, **figures}


def _note_order(run: RunFolder, features: FeatureReader, progress: Progress) -> None:
    note = order_note(run.manifest.extraction or {}, f"run {run.folder}", features)
    if note is not None:
        progress.note(note)


def moved_bias(run: RunFolder, prior: str | None) -> tuple[NDArray[np.float32], NDArray[np.float64] | None]:
    """The bias that makes the scores of a run those for other class shares, and these; None for the run's own.

    Post-processing of class counts. `prior`: `train`, estimated shares of private rows; `uniform`; or `shares_given`.
    """
    if prior is None:
        return run.bias, None
    shares = _movable_shares(run)
    if shares is None:
        raise UsageError(
            f"prior is {prior!r}, and run {run.folder} has no class counts that move its scores; allowed: softmax "
            "methods, one class a row, --class-counts yes or --class-weight balanced, no weights of classes; leave out "
            "--prior"
        )
    known = {TRAINED: shares, UNIFORM: equal_shares(shares)}
    wanted = known[prior] if prior in known else shares_given(prior, run.manifest.class_names)
    shift = shift_between(known[run.manifest.class_prior], wanted)
    return np.asarray(run.bias + shift, dtype=run.bias.dtype), wanted


def _movable_shares(run: RunFolder) -> NDArray[np.float64] | None:
    """The class shares that the scores of a run are for, before balancing; None if they cannot be moved."""
    manifest = run.manifest
    movable = manifest.class_weights is None and gives_log_odds(find_method(manifest.method), manifest.options)
    return run.class_shares if movable else None


def temperature_of(
    run: RunFolder,
    public: Path | None,
    progress: Progress,
    bias: NDArray[np.float32] | None = None,
    *,
    allow_other: bool | None = None,
) -> float:
    """The temperature fitted on the public rows of a feature file, with a note; 1 without a file. `bias` is in place of
    the bias of the run. Raises UsageError: a run that votes, or of several labels. PrivacyError: a row that is private.
    """
    if public is None:
        return 1.0
    if run.weights.ndim == 3:
        raise UsageError(f"run {run.folder} votes, so it has no temperature; leave out --calibrate")
    if run.manifest.several_labels:
        raise UsageError(f"run {run.folder} is multilabel, and a temperature needs one class a row; omit --calibrate")

    with open_features(public) as opened:
        if "public" not in opened.sizes:
            raise DataError(
                f"{public} has no public rows, and a temperature from other rows would leak; give a feature file with "
                "the group public"
            )
        matching.check_fits(run, opened, progress, allow_other=allow_other)
        seen = opened.digest("public") == run.manifest.public_digest
        if not seen:  # the others were compared when the run was trained
            given = GroupRows(opened, "public")
            refuse_private_at_home(given)
            with ExitStack() as stack:
                files = matching.training_files(run, opened, progress, stack)
                matching.refuse_private_as_public(files, given, "a temperature")
            refuse_private_in_books([given])
        temperature = fit_temperature(opened.blocks("public"), run.weights, run.bias if bias is None else bias)
        progress.note(f"temperature {temperature:.4g}, from {opened.sizes['public']} public rows of {public}")
        if seen:
            progress.note("the run was trained with these public rows, so the temperature may be too low; give others")
    return temperature


def evaluate_test_rows(request: EvaluateRequest, progress: Progress) -> dict[str, Any]:
    """`evaluate_private` with an epsilon, else `evaluate_run`. UsageError for an option that needs an epsilon."""
    if request.epsilon is not None:
        return evaluate_private(request, progress)
    for name in ("delta", "unit", "book", "dry_run"):
        if getattr(request, name) not in (None, False):
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"{flag} does nothing without --epsilon; give --epsilon E, or leave it out")
    return evaluate_run(request, progress)


@blas_held_to_one_thread()
def evaluate_private(request: EvaluateRequest, progress: Progress) -> dict[str, Any]:
    """Release noisy counts of correct predictions, and of scores, on private test rows. Each call spends budget.

    A note names the book, as its name depends on private rows.
    """
    refuse_copies("evaluate")
    with _prepared(request, progress) as (run, features, entry):
        n_test = test_units(features, entry.unit)
        bias, people = moved_bias(run, request.prior)[0], test_people(features, entry.unit)
        account = existing_book(features, request.book, make=True, group="test", unit=entry.unit)
        note_not_compared(account, progress)
        book = charge_entry(account, entry, progress)
        sums = sums_of_test_rows(features.blocks("test"), run.weights, bias, people)
    progress.note(
        f"charged to the book of the test rows; its name depends on them: keep it private (budget book {book})"
    )
    mechanism = GaussianMechanism(NoiseSource(), Ledger().append)
    noise = {release.purpose: release.noise_multiplier for release in entry.releases}
    released = {purpose: mechanism.release(sums[purpose], sigma, purpose=purpose) for purpose, sigma in noise.items()}
    tested = NoisyTest.of(released[TEST_ACCURACY][:, 0], noise[TEST_ACCURACY])
    scores = NoisyScores.of(released[TEST_AUROC], noise[TEST_AUROC]) if TEST_AUROC in noise else None
    accuracy = vars(noisy_accuracy(tested, scores, n_test, run.manifest.class_names)) | {"test_scores": None}
    return {
        "run": str(request.run),
        "run_private": run.manifest.private,
        "unit": entry.unit,
        "epsilon": request.epsilon,
        "delta": entry.delta,
        "noise_multiplier": noise[TEST_ACCURACY],
        "auroc_noise_multiplier": noise.get(TEST_AUROC),
        **{key: value for key, value in accuracy.items() if value is not None},
        "test_counts": {"right": tested.right, "by_class": tested.by_class.tolist()},
    }


def dry_run_of_evaluation(request: EvaluateRequest, progress: Progress) -> DryRun:
    """What `evaluate_private` would read and spend. Nothing is drawn, charged or written; raises as it does."""
    with _prepared(request, progress) as (run, features, entry):
        account = existing_book(features, request.book, group="test", unit=entry.unit)
        note_not_compared(account, progress)
        n_test, spent = test_units(features, entry.unit), preview(account, [entry])
        path = features.path
    book = None if account is None else account.path
    facts = {
        "run": str(request.run),
        "unit": entry.unit,
        "n_test": n_test,
        "epsilon": request.epsilon,
        "delta": entry.delta,
        "noise_multipliers": {one.purpose: one.noise_multiplier for one in entry.releases},
        "together": together_facts(spent),
        "book": None if book is None else str(book),
    }
    noise = ", ".join(
        f"{one.purpose} with noise multiplier {rounded_down(one.noise_multiplier, 4)}" for one in entry.releases
    )
    lines: Lines = [
        ("reads", f"{run.folder}, and {path}: {n_test:,} private test {'people' if entry.unit == OWNER else 'rows'}"),
        ("spends", f"epsilon {rounded_up(request.epsilon)} at delta {rounded_up(entry.delta or 0.0)}"),
        ("", noise),
        *together_line(spent),
    ]
    return DryRun(facts, [*lines, *written(book=book)])


@contextmanager
def _prepared(request: EvaluateRequest, progress: Progress) -> Iterator[tuple[RunFolder, FeatureReader, Entry]]:
    """The run, the open features, and what the book is to count, after all checks. Raises as `evaluate_private`."""
    if request.epsilon is None or request.calibrate is not None:
        raise UsageError("--calibrate changes no prediction, nor the noisy AUROC; leave it out with --epsilon")
    epsilon, run = check_epsilon(request.epsilon), run_folder.read_run(request.run)
    moved_bias(run, request.prior)
    run_folder.refuse_book_inside(request.book)
    with matching.scored_file(run, request.features, progress) as features:
        _check(run, features, request, progress)
        unit = unit_of(features, request.unit, "test")
        own, n_test = run.manifest.delta or None, test_units(features, unit)  # 0 for a run that used no private row
        delta = own if request.delta is None else request.delta
        if delta is None:
            raise UsageError(f"run {run.folder} has no delta of its own; give --delta, below 1 / number of test rows")
        n_classes = len(features.description.class_names)
        releases = test_releases(epsilon, check_delta(delta, n_test), n_test, n_classes, "--epsilon", None)
        entry = Entry(
            run=secrets.token_hex(16),
            name=str(run.folder.absolute()),
            method=EVALUATION,
            unit=unit,
            private=True,
            delta=delta,
            releases=releases,
            first=run.manifest.book_id,
        )
        people = fewer_protected(features, entry, group="test")
        if people is not None:
            progress.note(people)
        yield run, features, entry


def _check(run: RunFolder, features: FeatureReader, request: EvaluateRequest, progress: Progress) -> None:
    check_one_class(features, "evaluate --epsilon")
    matching.check_fits(run, features, progress, allow_other=request.allow_other_features)
    check_test_rows(features, "accuracy is measured on", private=True)
    if not features.description.private_test:
        raise UsageError(
            f"epsilon is {request.epsilon:g}, and the test rows of {features.path} are public, so accuracy costs "
            "nothing; leave out --epsilon, or declare the rows private with --private-test of import or extract"
        )
    matching.refuse_private_rows(run, features, progress)
    if not run.manifest.private:
        progress.note(
            f"NOT PRIVATE: run {run.folder} is {run.manifest.guarantee}; epsilon is of this accuracy alone, and covers "
            "no training row of the run"
        )
