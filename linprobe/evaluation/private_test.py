"""`linprobe evaluate --epsilon`: a noisy accuracy of a finished run on private test rows, or of private test people.

`linprobe.mechanisms.correct_predictions` has the sums and their sensitivity, and the weights are released
already. So the release is private by itself, at the epsilon that was asked for, under zero-out of one test row or
person. It is charged, before its noise is drawn, to the budget book of the test rows. That book counts together with
every book that has a row, an image or an owner in common, so a person who has training rows too is charged for both.
"""

from __future__ import annotations

import secrets
from typing import Any

from linprobe.accounting.book import Entry
from linprobe.accounting.calibrate import calibrate, check_delta, check_epsilon
from linprobe.accounting.events import OWNER, RECORD, Releases
from linprobe.accounting.ledger import Ledger
from linprobe.data.dataset import check_one_class, check_test_rows, open_features
from linprobe.data.feature_reader import FeatureReader, extraction_of, test_people
from linprobe.errors import UsageError
from linprobe.evaluation.predict import bias_for
from linprobe.mechanisms.correct_predictions import NoisyTest, held_out_counts
from linprobe.mechanisms.gaussian import GaussianMechanism
from linprobe.mechanisms.noise import NoiseSource
from linprobe.options.requests import EvaluateRequest
from linprobe.progress import Progress
from linprobe.runs.matching import check_classes, check_made_alike, check_width, features_of, refuse_private_rows
from linprobe.runs.metrics_file import noisy_accuracy, test_units
from linprobe.runs.release_rules import TEST_ACCURACY
from linprobe.runs.run_folder import RunFolder, read_run
from linprobe.runs.scores import right_and_wrong
from linprobe.training.charge import book_of, charge_evaluation

EVALUATION = "evaluation"  # in place of a method, in budget books


def evaluate_private(request: EvaluateRequest, progress: Progress) -> dict[str, Any]:
    """Release noisy counts of correct predictions on private test rows. Each call spends privacy budget.

    Returns: run, unit, epsilon, delta, noise_multiplier, book, and the keys of the manifest about noisy test rows.

    Raises:
        UsageError: no epsilon, public test rows, several labels, --calibrate, or a unit that is missing or that has no
            owners. DataError: as `evaluate_run`. PrivacyError: delta too large, or the cap of a book.
    """
    if request.epsilon is None or request.calibrate is not None:
        raise UsageError("--calibrate changes no prediction, so no noisy accuracy either; leave it out with --epsilon")
    epsilon, run = check_epsilon(request.epsilon), read_run(request.run)
    bias = bias_for(run, request.prior)
    with open_features(features_of(run, request.features), progress=progress) as features:
        _check(run, features, request, progress)
        unit = _unit_of(features, request.unit)
        delta, n_test = _delta(run, request.delta), test_units(features, unit)
        sigma = calibrate(epsilon=epsilon, delta=check_delta(delta, n_test), n_private=n_test, steps=1).noise_multiplier
        entry = Entry(
            run=secrets.token_hex(16),
            name=str(run.folder.absolute()),
            method=EVALUATION,
            unit=unit,
            private=True,
            delta=delta,
            releases=(Releases(TEST_ACCURACY, sigma, 1.0, 1),),
        )
        cells = right_and_wrong(features.blocks("test"), run.weights, bias, test_people(features, unit))
        account = book_of(features, request.book, group="test", unit=unit)
        charge_evaluation(account, entry, progress)
        released = GaussianMechanism(NoiseSource(), Ledger().append).release(
            held_out_counts(cells), sigma, purpose=TEST_ACCURACY
        )
        tested = NoisyTest.of(released.value[:, 0], sigma)
        accuracy = vars(noisy_accuracy(tested, n_test, run.class_names))
    counts = accuracy["test_counts"]
    return {
        "run": str(request.run),
        "unit": unit,
        "epsilon": epsilon,
        "delta": delta,
        "noise_multiplier": sigma,
        "book": str(account.path),
        **{key: value for key, value in accuracy.items() if value is not None},
        "test_counts": {"right": counts.right, "by_class": counts.by_class},
    }


def _check(run: RunFolder, features: FeatureReader, request: EvaluateRequest, progress: Progress) -> None:
    """Refuse rows that do not fit the run, or that cost nothing."""
    check_one_class(features, "evaluate --epsilon")
    allow = request.allow_other_features
    check_made_alike(run, features.path, extraction_of(features.description), progress, allow_other=allow)
    check_width(run, features.n_features, features.path)
    check_classes(run, features)
    check_test_rows(features, "accuracy is measured on", private=True)
    if not features.description.private_test:
        raise UsageError(
            f"epsilon is {request.epsilon:g}, and the test rows of {features.path} are public, so accuracy costs "
            "nothing; leave out --epsilon, or declare the rows private with --private-test of import or extract"
        )
    if request.features is not None:
        refuse_private_rows(run, features, progress)


def _unit_of(features: FeatureReader, unit: str | None) -> str:
    """What is protected. UsageError where rows have owners and nothing was asked for, or the other way round."""
    owned = features.has_owners("test")
    if owned == (unit is not None) or (unit == RECORD):
        return unit or RECORD
    problem = "names the owner of each test row" if owned else "does not name the owners of its test rows"
    raise UsageError(
        f"unit is {unit}, and {features.path} {problem}; allowed: {f'{OWNER} or {RECORD}' if owned else RECORD}; "
        f"give --unit {OWNER if owned else RECORD}"
    )


def _delta(run: RunFolder, given: float | None) -> float:
    """Delta of the release: `given`, or the delta of the run."""
    delta = run.manifest.delta if given is None else given
    if delta is None:
        raise UsageError(f"run {run.folder} has no delta of its own; give --delta, below 1 / the number of test rows")
    return delta
