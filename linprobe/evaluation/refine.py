"""`linprobe refine`: a new run, with weights refined by public rows without labels. It costs nothing."""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from linprobe.atomic_files import json_text
from linprobe.data.array_files import float_archive
from linprobe.data.dataset import check_test_rows, open_features, unlabelled_group
from linprobe.data.feature_reader import FeatureReader, extraction_of
from linprobe.data.row_checks import check_rows
from linprobe.errors import PrivacyError, Progress, UsageError, writing
from linprobe.evaluation.pdp_report import signing_key, write_derived
from linprobe.options.requests import RefineRequest
from linprobe.runs import matching
from linprobe.runs.check import verified
from linprobe.runs.figures import figures_of, measured_accuracy
from linprobe.runs.manifest import LEDGER, MODEL, TEST_FIGURES, UNREFINED, Accuracy
from linprobe.runs.refined_weights import Refined, unlabelled_rows
from linprobe.runs.refinement import near_shots, refined_by, refinement, refuse_unrefinable
from linprobe.runs.run_folder import RUN_ID, RunFolder, claimed, new_run_folder
from linprobe.training.charge import record_public, refuse_private_in_books, refuse_protected_test_rows


def refine_run(request: RefineRequest, progress: Progress) -> dict[str, Any]:
    """Write a run with the refined weights of a run; the run itself is not changed.

    Guarantee: post-processing. No private row is used: rows are compared with the training rows, if the run's feature
    file is here, only to refuse them. Every finding about private rows is a refusal, before anything is written. The
    budget book counts both runs as one.
    """
    progress.start(0, "reading rows")
    run = RunFolder(request.run)
    verified(run)
    key = signing_key(run, request.sign)
    refuse_unrefinable(run)
    if run.manifest.test_rows == "private" and run.manifest.test_accuracy is not None:
        raise PrivacyError(
            f"run {run.folder} states a noisy accuracy of its weights on private test rows, and other weights need "
            "another release; train with --unlabelled"
        )
    with writing(f"run {request.out}"), claimed(request.out), new_run_folder(request.out, paid="") as folder:
        with open_features(request.unlabelled, labelled=False) as rows:
            matching.check_made_alike(run, rows.path, extraction_of(rows.description), rows.n_features, progress)
            given = unlabelled_group(rows)
            with ExitStack() as stack:
                files = list(matching.training_files(run, rows, progress, stack, unchanged=True))
                matching.refuse_private_as_public(files, given, "a refinement")
                training = files[0][1]
                refuse_private_in_books([given])
                if run.manifest.centre == "none" and run.manifest.n_private:
                    raise UsageError(
                        f"run {run.folder} was trained on rows that were not centred, so refinement could not notice "
                        "rows of another kind; train with --unlabelled, which counts the private rows near them"
                    )
                progress.start(0, "refining")
                unlabelled = unlabelled_rows(given, run.weights.shape[1])
                unproven = training is None or run.manifest.public_file is not None  # which rows were the public shots
                near = None if training is None or unproven else near_shots(run, unlabelled, training)
                refined = refined_by(run, run.weights, run.bias, unlabelled, near)
                accuracy, figures = _measured(run, refined, training, rows, progress)
            stated = refinement(rows, refined, run)
            record_public(run.manifest.book_id, given)
        model = b"".join(float_archive({"weights": refined.weights, "bias": refined.bias}))
        made = {MODEL: model, UNREFINED: run[MODEL]}
        if figures is not None:
            made[TEST_FIGURES] = json_text(figures).encode()
        (folder / RUN_ID).write_text(run.manifest.book_id, encoding="utf-8")  # for a folder that is left behind
        (folder / LEDGER).write_bytes(run[LEDGER])
        manifest = replace(run.manifest, **vars(accuracy), refined=stated)
        write_derived(folder, run, manifest, made, key, dropped=(TEST_FIGURES,))
    return {
        "run": str(request.out),
        "refined": str(run.folder),
        "rows": stated.rows,
        "strength": stated.strength,
        "test_accuracy": accuracy.test_accuracy,
        "epsilon": manifest.epsilon,
        "delta": manifest.delta,
    }


def _measured(
    run: RunFolder, refined: Refined, features: FeatureReader | None, rows: FeatureReader, progress: Progress
) -> tuple[Accuracy, dict[str, Any] | None]:
    """What the manifest states on public test rows, and their figures; nothing if the rows are not there any more."""
    manifest = run.manifest
    if manifest.test_accuracy is None:
        return measured_accuracy(None, manifest.test_rows, manifest.n_test), None
    if features is not None:
        matching.check_classes(run, features)
        check_rows(features)
    if features is None or not _same_test_rows(run, features):
        progress.note(
            f"accuracy of refined weights was not measured: {manifest.features} is not here, or has other test rows"
        )
        return measured_accuracy(None, "none", 0), None
    check_test_rows(features, "accuracy is measured on")
    refuse_protected_test_rows(features)
    for note in matching.tested_unlabelled(features, rows):
        progress.note(note)
    figures = figures_of(features, refined.weights, refined.bias)
    return measured_accuracy(figures, "public", manifest.n_test), figures


def _same_test_rows(run: RunFolder, features: FeatureReader) -> bool:
    """Whether the weights before refinement have the stated accuracy on the public test rows of a file."""
    if features.sizes.get("test") != run.manifest.n_test:
        return False
    before = measured_accuracy(figures_of(features, run.weights, run.bias), "public", run.manifest.n_test).test_accuracy
    return before is not None and math.isclose(before, run.manifest.test_accuracy or 0.0, abs_tol=matching.ROUNDING)
