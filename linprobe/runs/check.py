"""The judgement of a run: every figure recomputed from its ledger, every file compared with its digest.

`verified` judges a whole run. Whatever a caller then uses, it takes from the same `RunFolder`, whose bytes were judged.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from numpy.typing import NDArray

from linprobe import __version__
from linprobe.accounting import accountants
from linprobe.accounting.calibrate import GRADIENT
from linprobe.accounting.events import INHERITED, OWNER, GaussianEvent, Releases, grouped
from linprobe.accounting.figures import epsilon_of, mu_and_rho, rounded_up
from linprobe.accounting.ledger import read_ledger, read_selection, unreadable
from linprobe.accounting.selection import SelectionEvent, selection_cross_check, selection_epsilon
from linprobe.errors import DataError, PrivacyError, printable
from linprobe.mechanisms.correct_predictions import TEST_ACCURACY, NoisyTest
from linprobe.mechanisms.noise import INSECURE, SECURE
from linprobe.mechanisms.score_histogram import BINS, TEST_AUROC, NoisyScores, n_histograms
from linprobe.methods import Method
from linprobe.options import VOTE
from linprobe.runs.figures import noisy_accuracy
from linprobe.runs.guarantee import (
    ADJACENCIES,
    SEED_KINDS,
    SELECTION_CROSS_CHECK,
    accountant_of,
    claimed_texts,
    guarantee_text,
    selected_guarantee,
    without_noise,
)
from linprobe.runs.manifest import (
    HISTORY,
    LEDGER,
    MANIFEST,
    MODEL,
    OF_CLASSES,
    OF_LABELS,
    PAGES,
    PER_RECORD,
    RUN_FILES,
    SIGNATURE,
    VERIFY_PAGE,
    Accuracy,
    DamagedManifestError,
    Manifest,
    digest_of,
)
from linprobe.runs.officer_page import is_officer_page
from linprobe.runs.refined_weights import unrefinable
from linprobe.runs.release_rules import (
    HISTOGRAM,
    all_releases,
    check_lines,
    check_method,
    check_purposes,
    check_selection_line,
    check_sensitivities,
    clips_by_release,
    read_history,
    registered,
    start_of,
    steps_of,
)
from linprobe.runs.run_folder import RunFolder
from linprobe.runs.specification import stated_in

ROUNDING = 1e-9  # of the price of a published histogram
TIME = re.compile(r"\d{4}-\d\d-\d\d([Tt ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?)?")
EARLIER_CROSS_CHECK = "privacy-loss distribution (dp-accounting)"  # of sums over all rows, in version 0.2


@dataclass(frozen=True)
class Recomputed:
    """What the ledger of a run costs by all accountants, as computed now.

    Attributes:
        epsilon_autodp, epsilon_dp_accounting: a third opinion, the second on samples; None where the library has none.
        releases: their number.
    """

    epsilon: float | None
    epsilon_cross_check: float | None
    epsilon_autodp: float | None
    epsilon_dp_accounting: float | None
    gdp_mu: float | None
    zcdp_rho: float | None
    releases: int


def verified(run: RunFolder) -> Recomputed:
    """Recompute a run's epsilon from its ledger with all accountants, and check every file.

    A run that is not private passes if its manifest says so.

    Raises PrivacyError: any mismatch, or an incomplete or damaged run. DataError: not a run folder, or one of another
    format.
    """
    check_complete(run)
    manifest, recomputed = run.manifest, check_run(run)
    _check_names(run)
    try:
        _ = run.weights, run.unrefined, run.test_metrics, run.histograms
        named = len(run.per_record.ids) if run.may_read_per_record else manifest.n_private
    except DataError as error:
        raise PrivacyError(str(error)) from None
    if named != manifest.n_private:
        raise PrivacyError(f"n_private is {manifest.n_private}, and {PER_RECORD} names {named}; do not trust it")
    return recomputed


def check_complete(run: RunFolder) -> None:
    """PrivacyError if a run lacks its manifest, or has a damaged one; DataError if it is no run folder."""
    if MANIFEST not in run.names and not run.names.isdisjoint(RUN_FILES):
        raise PrivacyError(
            f"run {run.folder} is incomplete: it has no {MANIFEST}, which states the guarantee; restore it, or "
            "finish the run with linprobe train --resume"
        )
    try:
        _ = run.manifest
    except DamagedManifestError as error:
        raise PrivacyError(str(error)) from None


def check_run(run: RunFolder) -> Recomputed:
    """Recompute the guarantee of a run from its ledger with all accountants; compare every figure, digest and key.

    Raises PrivacyError: an edited manifest, weights or ledger, a missing file, or a figure or key that does not match.
    DataError: not a run folder, or a damaged manifest.
    """
    path, content, manifest = run.folder / LEDGER, ledger_of(run), run.manifest
    selection = read_selection(path, content)
    events = read_ledger(path, content) if selection is None else []
    try:
        check_digests(run)
        if manifest.selection != selection:
            raise PrivacyError("selection differs between manifest and ledger; do not trust it")
        nothing = _nothing_released(run, events) if manifest.accountant is None else None
        history = read_history(run[HISTORY], manifest.steps)
        if selection is None:
            check_lines(run[LEDGER], events)
            check_sensitivities(manifest, events, history)
        else:
            check_selection_line(run[LEDGER], selection)
        recomputed = nothing or _recomputed(manifest, events, selection)
        _check_derived(manifest)
        return recomputed
    except (ValueError, OverflowError) as error:  # of a library, about figures that no run has
        raise PrivacyError(f"{run.folder}/{MANIFEST} has a malformed {error}; do not trust it") from None


@dataclass(frozen=True)
class _Cost:
    """What a ledger costs, and what a manifest must say of it.

    Attributes:
        checker, cross_check: the words and the epsilon of the second accountant. judge: whose epsilon is of record.
        confirmed: whether the second accountant confirms the stated epsilon. opinions: epsilon by further accountants.
        contradicted: whether one of these shows that the ledger costs more.
    """

    epsilon: float
    cross_check: float
    checker: str
    judge: accountants.Accountant
    confirmed: bool
    guarantee: str
    figures: dict[str, float | None]
    releases: int
    opinions: dict[accountants.Judge, float]
    contradicted: bool = False


def _cost_of_sums(manifest: Manifest, events: list[GaussianEvent]) -> _Cost:
    releases, accountant, (stated, delta) = grouped(events), accountant_of(manifest), manifest.bound
    _check_releases(manifest, events, releases)
    if not accountant.covers(releases):
        raise PrivacyError(
            "the ledger holds sampled releases, which the manifest's accountant does not cover; do not trust it"
        )
    found, opinion = accountant.epsilon(releases, delta), accountants.third_opinion(accountant, releases, delta)
    return _Cost(
        found,
        accountant.cross_check.epsilon(releases, delta),
        accountant.cross_check.words,
        accountant,
        accountants.confirmed(accountant, stated, releases, delta),
        guarantee_text(stated, delta, releases, insecure=not manifest.private, unit=manifest.unit),
        accountants.gaussian_figures(releases),
        len(events),
        {} if opinion is None else dict([opinion]),
        opinion is not None and opinion[0].contradicts(found, releases, delta, opinion[1]),
    )


def _cost_of_selection(manifest: Manifest, selection: SelectionEvent) -> _Cost:
    _check_selection(manifest, selection)
    stated, delta = manifest.bound
    checked = selection_cross_check(selection, delta)
    return _Cost(
        selection_epsilon(selection, delta, accountant_of(manifest)),
        checked,
        SELECTION_CROSS_CHECK,
        accountants.PLD,
        accountants.RENYI.agrees(stated, checked),  # both figures are upper bounds, as for sampled sums
        selected_guarantee(stated, delta, manifest.unit),
        {"gdp_mu": None, "zcdp_rho": None},
        1,
        {},
    )


def _recomputed(manifest: Manifest, events: list[GaussianEvent], selection: SelectionEvent | None) -> Recomputed:
    """Compare the claim with the ledger of a run that released something with noise."""
    stated, delta = manifest.bound
    _check_delta(manifest, delta)
    _check_seed(manifest)
    cost = _cost_of_sums(manifest, events) if selection is None else _cost_of_selection(manifest, selection)
    if stated < cost.epsilon * (1 - cost.judge.tolerance):
        raise PrivacyError(
            f"the ledger costs epsilon {rounded_up(cost.epsilon, 9)}, the manifest says {stated:.9g}; do not trust it"
        )
    for name, value in cost.figures.items():
        found = getattr(manifest, name)
        if found != value:
            raise PrivacyError(f"{name} follows from the ledger as {value}, the manifest says {found}; do not trust it")
    if manifest.guarantee != cost.guarantee:
        raise PrivacyError(
            f"the manifest's guarantee ({manifest.guarantee!r}) does not follow from the ledger; do not trust it"
        )
    if not cost.confirmed:
        raise PrivacyError(
            f"{cost.checker} finds epsilon {rounded_up(cost.cross_check)}, the manifest says {rounded_up(stated)}; "
            "do not trust it"
        )
    for accountant, epsilon in cost.opinions.items():
        if cost.contradicted:
            raise PrivacyError(
                f"{accountant.words} finds epsilon {rounded_up(epsilon, 9)}, the ledger costs "
                f"{rounded_up(cost.epsilon, 9)}; do not trust it"
            )
    if stated > (manifest.epsilon_target or 0.0):
        raise PrivacyError(
            f"epsilon {rounded_up(stated, 9)} is above the target, {manifest.epsilon_target:.9g}; do not trust it"
        )
    by_autodp, by_google = cost.opinions.get(accountants.AUTODP), cost.opinions.get(accountants.GOOGLE)
    return Recomputed(cost.epsilon, cost.cross_check, by_autodp, by_google, **cost.figures, releases=cost.releases)


def _check_delta(manifest: Manifest, delta: float) -> None:
    if not (manifest.n_private > 0 and 0 < delta < 1 and delta * manifest.n_private < 1):
        raise PrivacyError(
            f"delta is {rounded_up(delta)} for {manifest.n_private} private units; allowed: above 0 and below 1/N; "
            "do not trust it"
        )


def _nothing_released(run: RunFolder, events: Sequence[GaussianEvent]) -> Recomputed:
    """The figures of a run without noisy releases. Its claims must follow from its method."""
    manifest = run.manifest
    if events:
        raise PrivacyError(
            f"{run.folder}/{LEDGER} holds {len(events)} releases, the manifest says that none were made; do "
            "not trust it"
        )
    method = registered(manifest.method)
    if method.spends or manifest.published:
        raise PrivacyError(f"method {manifest.method} releases sums with noise, the ledger is empty; do not trust it")
    for key, value in without_noise(method.private).items():
        _same(manifest, key, value)
    return Recomputed(manifest.epsilon, manifest.epsilon, None, None, manifest.gdp_mu, manifest.zcdp_rho, 0)


def ledger_of(run: RunFolder) -> bytes:
    """The content of the ledger. PrivacyError if it cannot be read."""
    try:
        return run[LEDGER]
    except OSError as error:
        raise unreadable(run.folder / LEDGER, error) from None


def check_digests(run: RunFolder) -> None:
    """PrivacyError if the manifest, or a file that it lists, has another digest than it states."""
    if run.manifest.manifest_digest != run.manifest.content_digest():
        raise PrivacyError(
            f"{run.folder}/{MANIFEST} was edited: its digest does not match its content; do not trust it"
        )
    for name, digest in run.manifest.files.items():
        try:
            found = digest_of(run[name])
        except OSError as error:
            found = "missing" if isinstance(error, FileNotFoundError) else f"none: {error.strerror}"
        if found == digest:
            continue
        found = found[:16] if len(found) == len(digest) else found
        raise PrivacyError(
            f"{run.folder / name} has digest {found}, the manifest says {digest[:16]}; do not trust this run"
        )


def _check_seed(manifest: Manifest) -> None:
    """Compare the four places that say where the key of the noise came from."""
    seed = manifest.options.get("insecure_seed")
    stated = (manifest.private, manifest.seed_kind, manifest.noise_source, seed is not None)
    if stated not in ((True, "os", SECURE, False), (False, "insecure", INSECURE, True)):
        raise PrivacyError(
            f"the manifest says private: {manifest.private}, noise from {manifest.noise_source!r}, seed kind "
            f"{manifest.seed_kind!r} and seed {seed}, which contradict each other; do not trust it"
        )


def _check_releases(manifest: Manifest, events: list[GaussianEvent], releases: Sequence[Releases]) -> None:
    """Compare the steps, the published histograms and the list of releases with the ledger."""
    steps = [release for release in releases if release.purpose == GRADIENT]
    claimed = [steps_of(manifest)]
    if steps != claimed:
        raise PrivacyError(
            f"the ledger holds {_described(steps)} for the steps, the manifest {_described(claimed)}; do not trust it"
        )
    paid = sorted(event.noise_multiplier for event in events if event.purpose == HISTOGRAM)
    listed = sorted(release.noise_multiplier for release in manifest.published)
    if paid != listed:
        raise PrivacyError(
            f"the manifest lists published histograms with noise {listed}, the ledger paid for {paid}; do not trust it"
        )
    names = manifest.histogram_files
    for name in names:
        if name not in manifest.files or names.count(name) > 1:
            raise PrivacyError(
                f"the manifest has no digest of the published {name}, or names it twice; do not trust it"
            )
    for one in manifest.published:
        cost = epsilon_of(mu_and_rho([(1, one.noise_multiplier)])[0], manifest.bound[1])
        if one.epsilon < cost * (1 - ROUNDING):
            raise PrivacyError(
                f"a published histogram costs epsilon {rounded_up(cost)}, the manifest says {one.epsilon:g}; do not "
                "trust it"
            )
    if manifest.releases != releases:
        raise PrivacyError(
            f"the manifest's list of releases is not the ledger's, {_described(releases)}; do not trust it"
        )


def _check_selection(manifest: Manifest, selection: SelectionEvent) -> None:
    """Compare what a manifest states of the selected run with the ledger of the selection."""
    if not manifest.private:
        raise PrivacyError("the manifest says that a run of tune --grid is not private; such runs are; do not trust it")
    unexpected = {name: value for name in ("releases", "published") if (value := getattr(manifest, name))}
    steps = steps_of(manifest)
    if unexpected or not any(steps in run for run in selection.runs):
        raise PrivacyError(
            f"the manifest states {unexpected or steps}, which no run of the ledger has; do not trust it"
        )


def _check_derived(manifest: Manifest) -> None:
    """PrivacyError if a key contradicts another one from which it follows."""
    method = registered(manifest.method)
    _same(manifest, "paper", method.paper)
    _check_unit(manifest)
    if manifest.several_labels and not method.several_labels:
        raise PrivacyError(f"task is {manifest.task}, which method {method.name} does not train; do not trust it")
    for key in OF_CLASSES if manifest.several_labels else OF_LABELS:
        if getattr(manifest, key) is not None:
            raise PrivacyError(f"{key} is {getattr(manifest, key)}, and task {manifest.task} has none; do not trust it")
    _check_noise(manifest)
    _check_refined(manifest, method)
    check_purposes(manifest, manifest.selection)
    check_method(manifest, method)
    if (manifest.test_rows == "none") != (manifest.n_test == 0):
        raise PrivacyError(f"test_rows is {manifest.test_rows} and n_test {manifest.n_test}; do not trust it")
    _check_accuracy(manifest)
    _check_noisy_test(manifest)
    try:
        if TIME.fullmatch(manifest.created) is None:
            raise ValueError
        datetime.fromisoformat(manifest.created)
    except ValueError:
        raise PrivacyError(f"created is {manifest.created[:40]!r}, which is no time; do not trust it") from None


def _check_unit(manifest: Manifest) -> None:
    """PrivacyError if the unit, its adjacency and its numbers contradict each other."""
    n_units = manifest.n_private if manifest.n_units is None else manifest.n_units
    if manifest.adjacency != ADJACENCIES[manifest.unit] or n_units != manifest.n_private:
        raise PrivacyError(
            f"the manifest's unit {manifest.unit!r}, its adjacency and its numbers {n_units} and {manifest.n_private} "
            f"of private units contradict each other; allowed: {', '.join(ADJACENCIES)}; do not trust it"
        )
    if manifest.per_owner_rows is not None and manifest.unit != OWNER:
        raise PrivacyError(
            f"per_owner_rows is {manifest.per_owner_rows} and unit {manifest.unit!r}, which has none; do not trust it"
        )


def _check_noise(manifest: Manifest) -> None:
    """PrivacyError if what a manifest says of noise and commitments does not follow from its accountant and options."""
    for key in ("private_commitment", "per_record_commitment"):
        if (manifest.accountant is None) != (getattr(manifest, key) is None):
            raise PrivacyError(
                f"{key} is {getattr(manifest, key)}, and accountant {manifest.accountant}; do not trust it"
            )
    texts = claimed_texts(manifest)
    if texts is None:
        _same(manifest, "seed_kind", SEED_KINDS["none drawn"])
        _same(manifest, "noise_source", "none drawn")
        return
    _same(manifest, "mechanism", texts[0])
    if (accountant_of(manifest), manifest.cross_check) != (accountants.GAUSSIAN, EARLIER_CROSS_CHECK):
        _same(manifest, "cross_check", texts[1])
    if manifest.private:
        _same(manifest, "epsilon_if_seed_were_secret", None)
    stated = {"delta": "delta", "n_steps": "steps", "noise_multiplier": "noise_multiplier"}
    for option, key in {**stated, "sampling_rate": "sampling_rate"}.items():
        given, found = manifest.options.get(option), getattr(manifest, key)
        if given is not None and given != found:
            raise PrivacyError(f"option {option} is {given}, the manifest's {key} {found}; do not trust it")


def _check_refined(manifest: Manifest, method: Method) -> None:
    """PrivacyError for a refinement that no run can have."""
    refined = manifest.refined
    if refined is None:
        return
    votes = manifest.options.get("output") == VOTE
    if unrefinable(method, votes=votes, several_labels=manifest.several_labels) is not None:
        raise PrivacyError(f"method {method.name} on {manifest.task} rows cannot be refined; do not trust it")
    if (refined.run is None) != (refined.run_digest is None):
        raise PrivacyError(f"refined names run {refined.run} with digest {refined.run_digest}; do not trust it")


def _check_accuracy(manifest: Manifest) -> None:
    by_class, balanced = manifest.test_accuracy_per_class, manifest.test_balanced_accuracy
    if by_class is None:
        _same(manifest, "test_balanced_accuracy", None)
        return
    unknown = set(by_class) - set(manifest.class_names)
    if unknown:
        raise PrivacyError(f"test_accuracy_per_class names {min(unknown)!r}, which is no class; do not trust it")
    found = [value for value in by_class.values() if value is not None]
    if found and (balanced is None or not math.isclose(balanced, sum(found) / len(found), abs_tol=1e-9)):
        raise PrivacyError(
            f"test_balanced_accuracy is {balanced}, and the classes give {sum(found) / len(found):.9g}; do not trust it"
        )


def _check_noisy_test(manifest: Manifest) -> None:
    """PrivacyError if the accuracies on private test rows do not follow from the noisy counts and the release.

    Earlier manifests state no counts.
    """
    counts = manifest.test_counts
    if counts is None:
        _check_no_figures(manifest)
        return
    release = next((one for one in manifest.releases or () if one.purpose == TEST_ACCURACY), None)
    sizes = [len(pair) for pair in counts.by_class]
    if release is None or manifest.test_rows != "private" or sizes != [2] * manifest.n_classes:
        raise PrivacyError("test_counts belong to no release on private test rows by class; do not trust it")
    tested = NoisyTest.of(np.append(counts.right, counts.by_class), release.noise_multiplier)
    for key, value in vars(
        noisy_accuracy(tested, _noisy_scores(manifest), manifest.n_test, manifest.class_names)
    ).items():
        stated = getattr(manifest, key)
        sums = key in SUMS and None not in (stated, value)
        if stated != value and not (sums and math.isclose(stated, value, abs_tol=1e-9)):
            raise PrivacyError(
                f"{key} follows from test_counts as {value}, the manifest says {stated}; do not trust it"
            )


def _noisy_scores(manifest: Manifest) -> NoisyScores | None:
    """The released histograms that a manifest states; PrivacyError if they have another shape or no release."""
    if manifest.test_scores is None:
        return None
    release = next((one for one in manifest.releases or () if one.purpose == TEST_AUROC), None)
    sizes = [[len(cells) for cells in histogram] for histogram in manifest.test_scores]
    if release is None or sizes != [[BINS] * 2] * n_histograms(manifest.n_classes):
        raise PrivacyError("test_scores belong to no release of scores on private test rows; do not trust it")
    return NoisyScores.of(np.array(manifest.test_scores), release.noise_multiplier)


# sums, which another machine or version of Python adds in another order
SUMS = ("test_balanced_accuracy", "test_balanced_accuracy_std", "test_macro_auroc", "test_macro_auroc_std")
NOISE_OF_FIGURES = ("test_accuracy_std", "test_balanced_accuracy_std", "test_macro_auroc_std")


def _check_no_figures(manifest: Manifest) -> None:
    """PrivacyError if a run without noisy counts states figures that only they, or public test rows, can give."""
    released = any(one.purpose == TEST_ACCURACY for one in manifest.releases or ())
    forbidden: tuple[str, ...] = () if released else NOISE_OF_FIGURES
    if manifest.test_rows != "public" and not released:
        forbidden = tuple(key for key in Accuracy.__dataclass_fields__ if key not in ("test_rows", "n_test"))
    for key in forbidden:
        if getattr(manifest, key) is not None:
            raise PrivacyError(
                f"{key} is {getattr(manifest, key)!r:.60}, test_rows is {manifest.test_rows}, and no noisy count was "
                "released; do not trust it"
            )


def _same(manifest: Manifest, key: str, value: Any) -> None:
    if getattr(manifest, key) != value:
        raise PrivacyError(
            f"{key} follows from the run as {value!r}, the manifest says {getattr(manifest, key)!r}; do not trust it"
        )


def _check_names(run: RunFolder) -> None:
    """PrivacyError if the folder holds anything that is no part of the run."""
    unknown = sorted(run.names - {MANIFEST, SIGNATURE, PER_RECORD, VERIFY_PAGE, *PAGES, *run.manifest.files})
    if unknown:
        raise PrivacyError(f"{run.folder} holds {unknown[0]!r}, which the manifest does not list; move it away")
    for name in sorted(run.names & {SIGNATURE, VERIFY_PAGE, *PAGES}):
        try:
            run[name]
        except OSError as error:
            raise PrivacyError(f"{run.folder / name} cannot be read ({error.strerror}); move it away") from None
    if VERIFY_PAGE in run.names and not is_officer_page(run[VERIFY_PAGE]):
        raise PrivacyError(
            f"{run.folder / VERIFY_PAGE} is a foreign file: it is not the page of this linprobe ({__version__}) or of "
            "an earlier one, so its verdict is worth nothing; move it away, and take the page from linprobe"
        )


def not_covered(run: RunFolder) -> list[str]:
    """The pages in the folder that the manifest has no digest of, as in a release by linprobe 0.2.0.

    Neither a digest nor a signature says anything about them.
    """
    return [name for name in PAGES if name in run.names and name not in run.manifest.files]


def not_checked(run: RunFolder) -> list[str]:
    """The keys and files that a run states and nothing in the folder proves."""
    unknown = [f"{LEDGER} (sensitivities of dpsgd-f's theory variant)"] if clips_by_release(run.manifest) else []
    start, released = start_of(run.manifest), all_releases(run.manifest, run.manifest.selection)
    if start is not None and INHERITED not in {one.purpose for one in released}:
        unknown.append(
            f"{LEDGER} (started from run {printable(Path(start).name or start)}, and counts no release of it: right "
            "only if that run released nothing with noise)"
        )
    names = run.names if run.may_read_per_record else run.names - {PER_RECORD}
    return [*stated_in(run.manifest, names), *unknown]


def _described(releases: Iterable[Releases]) -> str:
    return ", ".join(
        f"{release.count} {release.purpose} releases at noise multiplier {release.noise_multiplier:g} and sampling "
        f"rate {release.sampling_rate:g}"
        for release in releases
    )


def check_signature(run: RunFolder, key: Ed25519PublicKey) -> None:
    """Check the signature of the manifest.

    Raises PrivacyError: no signature, or not one of this manifest by this key.
    """
    if SIGNATURE not in run.names:
        raise PrivacyError(
            f"run {run.folder} is not signed: it has no {SIGNATURE}; ask its owner for a run made with --sign KEY"
        )
    try:
        key.verify(run[SIGNATURE], run[MANIFEST])
    except OSError as error:
        raise PrivacyError(f"the signature of {run.folder} cannot be checked ({error}); do not trust it") from None
    except InvalidSignature:
        raise PrivacyError(
            f"{run.folder / SIGNATURE} is not the signature of {MANIFEST} by this key: the manifest was changed "
            "after it was signed, or another key signed it; do not trust this run"
        ) from None


@dataclass(frozen=True)
class FirstModel:
    """The initial weights that a run takes from an earlier run.

    Attributes:
        weights (n_features, n_classes), bias (n_classes,): as in `RunFolder`; the mean over voters if the run votes.
        releases: the earlier run's releases, all under the purpose `inherited`.
        extraction: how its rows were made. public_digest, unlabelled_digest: of its public rows, with labels and
            without; None if it had none.
        unit: its unit of privacy.
        run_id: its name in budget books. model_digest: of its `model.npz`.
    """

    weights: NDArray[np.floating]
    bias: NDArray[np.floating]
    releases: tuple[Releases, ...]
    extraction: dict[str, Any]
    public_digest: str | None
    unlabelled_digest: str | None
    unit: str
    run_id: str
    model_digest: str


@dataclass(frozen=True)
class FirstRun:
    """The run folder that `init` names, read once: training, checkpoint and budget book use what was verified.

    Attributes:
        folder: its path.
    """

    folder: str | os.PathLike[str]

    @cached_property
    def model(self) -> FirstModel:
        """The weights and the releases they depend on, at the first use.

        Raises DataError, PrivacyError: as `check_run`, or a damaged model. PrivacyError: the run is not private, so a
        run that starts from it cannot be private either, or a private selection chose it.
        """
        run = RunFolder(self.folder)
        manifest, weights, bias = run.manifest, run.weights, run.bias
        events = read_ledger(run.folder / LEDGER, ledger_of(run))
        try:
            check_run(run)
        except PrivacyError as error:
            raise PrivacyError(f"init run {self.folder}: {error}") from None
        if not manifest.private:
            raise PrivacyError(
                f"init run {self.folder} is {manifest.guarantee.split(':')[0]}, and so is any run that starts from it; "
                "give a private run, or init zero, public or text"
            )
        if weights.ndim == 3:
            weights, bias = weights.mean(axis=0), bias.mean(axis=0)
        return FirstModel(
            weights,
            bias,
            releases=grouped(replace(event, purpose=INHERITED) for event in events),
            extraction=manifest.extraction or {},
            public_digest=manifest.public_digest,
            unlabelled_digest=None if manifest.refined is None else manifest.refined.digest,
            unit=manifest.unit,
            run_id=manifest.book_id,
            model_digest=manifest.files[MODEL],
        )
