"""Refined runs: what their manifest states, and whether the rows and the run that it names give their weights."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linprobe.data.dataset import dataset_of, open_features, unlabelled_group
from linprobe.data.feature_file import UNLABELLED
from linprobe.data.feature_reader import FeatureReader
from linprobe.errors import PrivacyError, UsageError
from linprobe.mechanisms.correct_predictions import USUAL_GAIN, NoisyGain
from linprobe.methods import find_method
from linprobe.methods.class_counts import equal_shares, shift_between
from linprobe.methods.similar_rows import NearShots, SimilarRows, Surroundings
from linprobe.runs.manifest import LEDGER, MODEL, UNIFORM, UNREFINED, Accuracy, Refinement, digest_of
from linprobe.runs.matching import split_of
from linprobe.runs.refined_weights import Known, Refined, mu_of_weights, refined_weights, unlabelled_rows, unrefinable
from linprobe.runs.release_rules import similar_share, steps_of
from linprobe.runs.run_folder import RunFolder

# Of the norm of the change: another processor rounds sums otherwise, and the optimiser stops elsewhere.
TOLERANCE = 0.02
# keys of the manifest that a refinement changes; all others are those of its parent
CHANGED = {"refined", "files", "manifest_digest", *(each.name for each in fields(Accuracy))}
# keys that a histogram, published after the refinement, changes further
BY_HISTOGRAMS = {"guarantee", "epsilon", "epsilon_target", "gdp_mu", "zcdp_rho", "releases", "published"}


def refinement(
    unlabelled: FeatureReader,
    refined: Refined,
    parent: RunFolder | None = None,
    similar: SimilarRows | None = None,
    gain: NoisyGain | None = None,
) -> Refinement:
    """What the manifest states of a refinement; `parent` is the run that was refined, None for training itself."""
    return Refinement(
        file=str(unlabelled.path),
        rows=unlabelled.sizes[UNLABELLED],
        digest=unlabelled.digest(UNLABELLED),
        strength=refined.strength,
        similar=similar,
        gain=gain,
        near_shots=None if refined.near_shots is None else asdict(refined.near_shots),
        run=None if parent is None else parent.folder.absolute().name,  # not that of the folder which a link names
        run_digest=None if parent is None else parent.manifest.manifest_digest,
    )


def refined_by(
    run: RunFolder,
    weights: NDArray[np.float32],
    bias: NDArray[np.float32],
    rows: NDArray[np.float32],
    near_shots: NearShots | None,
) -> Refined:
    """`refine` with the facts that the manifest of a run states; `rows` as `unlabelled_rows` reads them."""
    manifest = run.manifest
    known = replace(known_of(run), near_shots=near_shots)
    gain = None if manifest.refined is None else manifest.refined.gain
    refined = refined_weights(rows, weights, bias, known, shift=prior_shift(run))
    return refined.after(gain, manifest.n_private, weights, bias)


def near_shots(run: RunFolder, rows: NDArray[np.float32], features: FeatureReader) -> NearShots | None:
    """How many rows `Dataset.like_private` of a run are near the unlabelled `rows`; None without any in `features`."""
    dataset = dataset_of(features, None, split_of(run.manifest))
    shots = dataset.like_private(find_method(run.manifest.method).spends)
    return None if shots is None else Surroundings(rows).shots_near(shots.blocks())


def prior_shift(run: RunFolder) -> NDArray[np.float64] | float:
    """What the bias of a run was moved by for equal classes, (n_classes,); 0 if it was not."""
    shares = run.class_shares
    if shares is None or run.manifest.class_prior != UNIFORM:
        return 0.0
    return shift_between(shares, equal_shares(shares))


def known_of(run: RunFolder) -> Known:
    manifest = run.manifest
    selected = () if manifest.selection is None else (steps_of(manifest),)
    mu, centred = mu_of_weights(selected or manifest.releases or ()), manifest.centre != "none"
    return Known(manifest.n_private, mu, centred, similar_share(manifest), class_shares=run.class_shares)


def refuse_unrefinable(run: RunFolder, step: str = "give another run") -> None:
    """UsageError, which advises `step`, for a run that rows without labels cannot refine."""
    manifest = run.manifest
    votes = run.weights.ndim == 3
    reason = unrefinable(find_method(manifest.method), votes=votes, several_labels=manifest.several_labels)
    if manifest.refined is not None:
        reason = f"it is refined already, by {manifest.refined.file}"
    if reason is not None:
        raise UsageError(f"rows without labels cannot refine run {run.folder}: {reason}; {step}")


def check_refinement(
    run: RunFolder, unlabelled: Path | None, parent: RunFolder | None, features: Path | None = None
) -> list[str]:
    """The keys and files that the named rows and the run that was refined, which the caller verifies, prove."""
    stated, before, proved = run.manifest.refined, run.unrefined, []
    if stated is None or before is None:
        raise UsageError(f"run {run.folder} was not refined; leave out --unlabelled and --run")
    if parent is not None:
        _check_parent(run, stated, parent)
        proved.append(UNREFINED)
    if unlabelled is not None:
        with open_features(unlabelled, labelled=False) as file:
            group = unlabelled_group(file)
            if group.n_rows != stated.rows or file.digest(UNLABELLED) != stated.digest:
                raise PrivacyError(f"{unlabelled} does not hold the rows that refined {run.folder}; find that file")
            rows = unlabelled_rows(group, run.weights.shape[1])
        found = refined_by(run, *before, rows, _checked_shots(run, stated, rows, features))
        change = _norm(found.weights - before[0], found.bias - before[1])
        off = _norm(found.weights - run.weights, found.bias - run.bias)
        if unlike := _unlike(found, stated):
            raise PrivacyError(f"refined.{unlike} does not follow from {UNREFINED} and {unlabelled}; do not trust it")
        if off > TOLERANCE * change:
            raise PrivacyError(
                f"{run.folder / MODEL} does not follow from {UNREFINED} and {unlabelled}: it is {off:.3g} away, "
                f"allowed: {TOLERANCE * change:.3g}; do not trust it"
            )
        proved += [MODEL] if stated.near_shots and (features is None or not _shots_in_file(run)) else ["refined", MODEL]
    return proved


def _unlike(found: Refined, stated: Refinement) -> str:
    """The first key of a refinement that differs from the computed one by more than roundings; empty if none does."""
    if abs(found.strength - stated.strength) > TOLERANCE:
        return "strength"
    other = stated.gain is not None and abs(found.expected_gain - stated.gain.expected) > TOLERANCE * USUAL_GAIN
    return "gain.expected" if other else ""


def _checked_shots(
    run: RunFolder, stated: Refinement, rows: NDArray[np.float32], features: Path | None
) -> NearShots | None:
    """The shots near the rows that the manifest states, compared with `features`; None if it states none."""
    if stated.near_shots is None:
        return None
    named = NearShots(**stated.near_shots)
    if features is not None and _shots_in_file(run):
        with open_features(features, whole=False) as opened:
            found = near_shots(run, rows, opened)
        if found is None or found.of != named.of or abs(found.near - named.near) > TOLERANCE * found.of:
            gives = None if found is None else asdict(found)
            raise PrivacyError(
                f"refined.near_shots is {stated.near_shots}, and {features} gives {gives}; do not trust it"
            )
    return named


def _shots_in_file(run: RunFolder) -> bool:
    """Whether the feature file of a run holds all rows whose number `near_shots` states."""
    return run.manifest.public_file is None or bool(run.manifest.public_shots)


def _check_parent(run: RunFolder, stated: Refinement, parent: RunFolder) -> None:
    if stated.run_digest is None:
        raise UsageError(f"run {run.folder} was refined by train itself, not from another run; leave out --run")
    mine, theirs, ledger = run.manifest, parent.manifest, run[LEDGER]
    changed, n_before = CHANGED, len(theirs.published)
    if len(mine.published) > n_before and mine.published[:n_before] == theirs.published:
        changed, ledger = CHANGED | BY_HISTOGRAMS, ledger[: len(parent[LEDGER])]
    pairs: dict[str, tuple[Any, Any]] = {
        "manifest digest": (stated.run_digest, theirs.manifest_digest),
        "model": (mine.files[UNREFINED], theirs.files[MODEL]),
        "ledger": (digest_of(ledger), theirs.files[LEDGER]),
    }
    stated_by_run, stated_by_parent = mine.to_json(), theirs.to_json()
    for key in sorted((stated_by_run.keys() | stated_by_parent.keys()) - changed):
        pairs[key] = stated_by_run.get(key), stated_by_parent.get(key)
    for what, (named, found) in pairs.items():
        if named != found:
            raise PrivacyError(
                f"run {run.folder} names {what} {named!s:.16}, and {parent.folder} has {found!s:.16}; give "
                "the run that was refined with --run"
            )


def _norm(weights: NDArray[np.float32], bias: NDArray[np.float32]) -> float:
    return float(np.sqrt((weights.astype(np.float64) ** 2).sum() + (bias.astype(np.float64) ** 2).sum()))
