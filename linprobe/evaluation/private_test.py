"""`linprobe evaluate`, and with `--epsilon` a noisy accuracy and AUROC on private test rows, or of private test people.

`linprobe.mechanisms.correct_predictions` and `linprobe.mechanisms.score_histogram` have the sums and their
sensitivities, and the weights are released already. So the two releases are private by themselves, together at the
epsilon that was asked for, under zero-out of one test row or person. They are charged, before noise is drawn, to the
budget book of the test rows, which counts together with every book that has a row, an image or an owner in common.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from linprobe.accounting.book import EVALUATION, Entry
from linprobe.accounting.calibrate import check_delta, check_epsilon
from linprobe.accounting.events import OWNER, TEST_ACCURACY
from linprobe.accounting.figures import rounded_down, rounded_up
from linprobe.accounting.ledger import Ledger
from linprobe.data.dataset import check_one_class, check_test_rows, unit_of
from linprobe.data.feature_reader import FeatureReader, test_people
from linprobe.errors import Progress, UsageError
from linprobe.evaluation.predict import evaluate_run, moved_bias
from linprobe.mechanisms.correct_predictions import NoisyTest
from linprobe.mechanisms.gaussian import GaussianMechanism
from linprobe.mechanisms.noise import NoiseSource
from linprobe.mechanisms.score_histogram import TEST_AUROC, NoisyScores
from linprobe.options.requests import EvaluateRequest
from linprobe.parallel.threads import blas_held_to_one_thread
from linprobe.parallel.torch_group import refuse_copies
from linprobe.runs.figures import noisy_accuracy, sums_of_test_rows, test_units
from linprobe.runs.matching import check_fits, refuse_private_rows, scored_file
from linprobe.runs.run_folder import RunFolder, read_run, refuse_book_inside
from linprobe.training.charge import charge_entry, existing_book, note_not_compared, preview
from linprobe.training.plan import fewer_protected, test_releases
from linprobe.training.words import DryRun, Lines, together_facts, together_line, written


def evaluate_test_rows(request: EvaluateRequest, progress: Progress) -> dict[str, Any]:
    """`evaluate_private` with an epsilon, else `evaluate_run`. UsageError for an option that needs an epsilon."""
    if request.epsilon is not None:
        return evaluate_private(request, progress)
    only = {
        "--delta": request.delta,
        "--unit": request.unit,
        "--book": request.book,
        "--dry-run": request.dry_run or None,
    }
    unused = [flag for flag, value in only.items() if value is not None]
    if unused:
        raise UsageError(f"{unused[0]} does nothing without --epsilon; give --epsilon E, or leave it out")
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
    epsilon, run = check_epsilon(request.epsilon), read_run(request.run)
    moved_bias(run, request.prior)
    refuse_book_inside(request.book)
    with scored_file(run, request.features, progress) as features:
        _check(run, features, request, progress)
        unit = unit_of(features, request.unit, "test")
        own, n_test = run.manifest.delta or None, test_units(features, unit)  # 0 for a run that used no private row
        delta = own if request.delta is None else request.delta
        if delta is None:
            raise UsageError(f"run {run.folder} has no delta of its own; give --delta, below 1 / number of test rows")
        n_classes = len(features.description.class_names)
        releases = test_releases(epsilon, check_delta(delta, n_test), n_test, n_classes)
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
    check_fits(run, features, progress, allow_other=request.allow_other_features)
    check_test_rows(features, "accuracy is measured on", private=True)
    if not features.description.private_test:
        raise UsageError(
            f"epsilon is {request.epsilon:g}, and the test rows of {features.path} are public, so accuracy costs "
            "nothing; leave out --epsilon, or declare the rows private with --private-test of import or extract"
        )
    refuse_private_rows(run, features, progress)
    if not run.manifest.private:
        progress.note(
            f"NOT PRIVATE: run {run.folder} is {run.manifest.guarantee}; epsilon is of this accuracy alone, and covers "
            "no training row of the run"
        )
