"""`linprobe verify`: every figure of a run recomputed from its ledger, every file compared with its digest.

`verified` judges a whole run. Whatever a caller then uses, it takes from the same `RunFolder`, whose bytes were judged.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
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
from linprobe.accounting.events import (
    HISTOGRAM,
    INHERITED,
    NO_CHOICE,
    OWNER,
    TEST_ACCURACY,
    GaussianEvent,
    Releases,
    grouped,
    hold_without_a_choice,
)
from linprobe.accounting.figures import epsilon_of, mu_and_rho, rounded_down, rounded_up
from linprobe.accounting.ledger import read_ledger, read_selection, unreadable
from linprobe.accounting.selection import SelectionEvent, selection_cross_check, selection_epsilon
from linprobe.errors import DataError, PrivacyError, printable
from linprobe.mechanisms.correct_predictions import NoisyTest
from linprobe.mechanisms.noise import INSECURE, SECURE
from linprobe.mechanisms.score_histogram import BINS, TEST_AUROC, NoisyScores, n_histograms
from linprobe.methods import Method
from linprobe.options import VOTE
from linprobe.options.requests import VerifyRequest
from linprobe.runs import release_rules as rules
from linprobe.runs.figures import noisy_accuracy
from linprobe.runs.guarantee import (
    ADJACENCIES,
    SEED_KINDS,
    SELECTION_CROSS_CHECK,
    WITH_FIRST,
    accountant_of,
    claimed_texts,
    guarantee_text,
    without_noise,
)
from linprobe.runs.manifest import (
    HISTORY,
    LEDGER,
    MANIFEST,
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
    stated_in,
)
from linprobe.runs.officer_page import is_officer_page
from linprobe.runs.refined_weights import unrefinable
from linprobe.runs.run_folder import RunFolder, public_key

FINDINGS = (
    "private", "epsilon", "epsilon_cross_check", "epsilon_autodp", "epsilon_dp_accounting", "delta", "gdp_mu",
    "zcdp_rho", "releases", "data", "signature", "per_record", "not_covered", "stated_not_checked", "refused",
)  # fmt: skip
ROUNDING = 1e-9  # of the price of a published histogram
TIME = re.compile(r"\d{4}-\d\d-\d\d([Tt ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?)?")
ADDED = (".git", ".gitattributes", ".cache", ".DS_Store", "Thumbs.db", "desktop.ini")
MOST_NAMED = 5


@dataclass(frozen=True)
class Recomputed:
    """What the ledger of a run costs by all accountants, as computed now; None where a library has no third opinion."""

    epsilon: float | None
    epsilon_cross_check: float | None
    epsilon_autodp: float | None
    epsilon_dp_accounting: float | None
    gdp_mu: float | None
    zcdp_rho: float | None
    releases: int


def verified(run: RunFolder) -> Recomputed:
    """Recompute a run's epsilon and check every file. PrivacyError: any mismatch. DataError: not a run folder."""
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
            f"run {run.folder} is incomplete: it has no {MANIFEST}; restore it, or finish it with train --resume"
        )
    try:
        _ = run.manifest
    except DamagedManifestError as error:
        raise PrivacyError(str(error)) from None


def check_run(run: RunFolder) -> Recomputed:
    """Recompute the guarantee of a run from its ledger with all accountants; compare every figure, digest and key.

    Raises PrivacyError: anything that does not match. DataError: not a run folder, or a damaged manifest.
    """
    path, content, manifest = run.folder / LEDGER, ledger_of(run), run.manifest
    selection = read_selection(path, content)
    events = read_ledger(path, content) if selection is None else []
    try:
        check_digests(run)
        rules.refuse(_of_ledger(run, content, events, selection))
        recomputed = _recomputed(manifest, events)
        rules.refuse(_of_keys(manifest))
        _refuse_moving(manifest, events)
        return recomputed
    except (ValueError, OverflowError) as error:  # of a library, about figures that no run has
        raise PrivacyError(f"{run.folder}/{MANIFEST} has a malformed {error}; do not trust it") from None


def _refuse_moving(manifest: Manifest, events: Sequence[GaussianEvent]) -> None:
    """PrivacyError for a published histogram of losses of people that may move with the rows of other people."""
    if manifest.published and manifest.moving_losses is not None:
        training = grouped(event for event in events if event.purpose != HISTOGRAM)
        epsilon = rounded_up(accountant_of(manifest).epsilon(training, manifest.bound[1]))
        raise PrivacyError(
            f"the losses of people in the published histogram were computed {manifest.moving_losses}, so it has no "
            f"proven sensitivity, and no epsilon covers it; epsilon {epsilon} of the other releases stands; ask for a "
            "copy of the run from before the histogram, or train again"
        )


def _of_ledger(
    run: RunFolder, content: bytes, events: Sequence[GaussianEvent], selection: SelectionEvent | None
) -> Iterator[str]:
    """The ledger, whose `content` holds `events` or a `selection`, and the history are as linprobe writes them."""
    manifest = run.manifest
    if manifest.selection != selection:
        yield "selection differs between manifest and ledger"
    if manifest.accountant is None:
        yield from _of_no_release(run, events)
    history = rules.read_history(run[HISTORY], manifest.steps)
    if selection is None:
        yield from rules.of_lines(content, events)
        yield from rules.of_sensitivities(manifest, events, history)
    else:
        yield from rules.of_selection_line(content, selection)


def _of_no_release(run: RunFolder, events: Sequence[GaussianEvent]) -> Iterator[str]:
    """The claims of a run without noisy releases follow from its method."""
    manifest, method = run.manifest, rules.registered(run.manifest.method)
    if events:
        yield f"{run.folder}/{LEDGER} holds {len(events)} releases, the manifest says that none were made"
    if method.spends or manifest.published:
        yield f"method {manifest.method} releases sums with noise, the ledger is empty"
    yield from _unequal(manifest, without_noise(method.private))


def _recomputed(manifest: Manifest, events: list[GaussianEvent]) -> Recomputed:
    """What the ledger costs. Raises PrivacyError: the manifest claims something else."""
    if manifest.accountant is None:
        return Recomputed(manifest.epsilon, manifest.epsilon, None, None, manifest.gdp_mu, manifest.zcdp_rho, 0)
    rules.refuse(_of_delta_and_seed(manifest))
    if manifest.selection is None:
        return _cost_of_sums(manifest, events)
    return _cost_of_selection(manifest, manifest.selection)


def _cost_of_sums(manifest: Manifest, events: list[GaussianEvent]) -> Recomputed:
    releases, accountant, (stated, delta) = grouped(events), accountant_of(manifest), manifest.bound
    rules.refuse(_of_releases(manifest, events, releases, accountant))
    epsilon, checked = (one.epsilon(releases, delta) for one in (accountant, accountant.cross_check))
    opinion = accountants.third_opinion(accountant, releases, delta)
    opinions = {} if opinion is None else dict([opinion])
    by_autodp, by_google = opinions.get(accountants.AUTODP), opinions.get(accountants.GOOGLE)
    figures = accountants.gaussian_figures(releases)
    found = Recomputed(epsilon, checked, by_autodp, by_google, **figures, releases=len(events))
    guarantee = guarantee_text(stated, delta, releases, insecure=not manifest.private, unit=manifest.unit)
    confirmed = accountants.confirmed(accountant, stated, releases, delta)
    rules.refuse(_of_claim(manifest, found, guarantee, accountant, accountant.cross_check.words, confirmed=confirmed))
    for judge, third in opinions.items():
        if judge.contradicts(epsilon, releases, delta, third):
            costs = f"the ledger costs {rounded_up(epsilon, 9)}"
            rules.refuse([f"{judge.words} finds epsilon {rounded_up(third, 9)}, {costs}"])
    return found


def _cost_of_selection(manifest: Manifest, selection: SelectionEvent) -> Recomputed:
    rules.refuse(_of_selection(manifest, selection))
    stated, delta = manifest.bound
    checked = selection_cross_check(selection, delta)
    epsilon = selection_epsilon(selection, delta, accountant_of(manifest))
    found = Recomputed(epsilon, checked, None, None, None, None, 1)
    guarantee = guarantee_text(stated, delta, None, unit=manifest.unit)
    confirmed = accountants.RENYI.agrees(stated, checked)  # both figures are upper bounds, as for sampled sums
    rules.refuse(_of_claim(manifest, found, guarantee, accountants.PLD, SELECTION_CROSS_CHECK, confirmed=confirmed))
    return found


def _of_claim(
    manifest: Manifest,
    found: Recomputed,
    guarantee: str,
    judge: accountants.Accountant,
    checker: str,
    *,
    confirmed: bool,
) -> Iterator[str]:
    """The manifest claims at least what the ledger costs by `judge`, at most its target, and `checker` confirms it."""
    (stated, _), epsilon = manifest.bound, found.epsilon or 0.0
    if stated < epsilon * (1 - judge.tolerance):
        yield f"the ledger costs epsilon {rounded_up(epsilon, 9)}, the manifest says {stated:.9g}"
    for name in ("gdp_mu", "zcdp_rho"):
        value, claimed = getattr(found, name), getattr(manifest, name)
        if claimed != value:
            yield f"{name} follows from the ledger as {value}, the manifest says {claimed}"
    if manifest.guarantee != guarantee:
        yield f"the manifest's guarantee ({manifest.guarantee!r}) does not follow from the ledger"
    if not confirmed:
        checked = rounded_up(found.epsilon_cross_check)
        yield f"{checker} finds epsilon {checked}, the manifest says {rounded_up(stated)}"
    if stated > (manifest.epsilon_target or 0.0):
        yield f"epsilon {rounded_up(stated, 9)} is above the target, {manifest.epsilon_target:.9g}"


def _of_delta_and_seed(manifest: Manifest) -> Iterator[str]:
    """Delta is below 1/N, also of earlier runs, and four places agree on where the key of the noise came from."""
    _, delta = manifest.bound
    if not (manifest.n_private > 0 and 0 < delta < 1 and delta * manifest.most_units < 1):
        units = f"{manifest.most_units} private units"
        yield f"delta is {rounded_up(delta)} for {units}; allowed: above 0 and below 1/N"
    seed = manifest.options.get("insecure_seed")
    stated = (manifest.private, manifest.seed_kind, manifest.noise_source, seed is not None)
    if stated not in ((True, "os", SECURE, False), (False, "insecure", INSECURE, True)):
        yield (
            f"the manifest says private: {manifest.private}, noise from {manifest.noise_source!r}, seed kind "
            f"{manifest.seed_kind!r} and seed {seed}, which contradict each other"
        )


def ledger_of(run: RunFolder) -> bytes:
    try:
        return run[LEDGER]
    except OSError as error:
        raise unreadable(run.folder / LEDGER, error) from None


def check_digests(run: RunFolder) -> None:
    """PrivacyError if the manifest, or a file that it lists, has another digest than it states."""
    if run.manifest.manifest_digest != run.manifest.content_digest():
        raise PrivacyError(
            f"{run.folder}/{MANIFEST} was edited: its digest is not that of its content; do not trust it"
        )
    for name, digest in run.manifest.files.items():
        try:
            found = digest_of(run[name])
        except OSError as error:
            found = "missing" if isinstance(error, FileNotFoundError) else f"none: {error.strerror}"
        if found == digest:
            continue
        found = found[:16] if len(found) == len(digest) else found
        raise PrivacyError(f"{run.folder / name} has digest {found}, the manifest says {digest[:16]}; do not trust it")


def _of_releases(
    manifest: Manifest, events: list[GaussianEvent], releases: tuple[Releases, ...], accountant: accountants.Accountant
) -> Iterator[str]:
    """The steps, histograms and releases that are stated are those of the ledger, which the accountant covers."""
    steps = [release for release in releases if release.purpose == GRADIENT]
    claimed = [rules.steps_of(manifest)]
    if steps != claimed:
        yield f"the ledger holds {_described(steps)} for the steps, the manifest {_described(claimed)}"
    paid = sorted(event.noise_multiplier for event in events if event.purpose == HISTOGRAM)
    listed = sorted(release.noise_multiplier for release in manifest.published)
    if paid != listed:
        yield f"the manifest lists published histograms with noise {listed}, the ledger paid for {paid}"
    names = manifest.histogram_files
    for name in names:
        if name not in manifest.files or names.count(name) > 1:
            yield f"the manifest has no digest of the published {name}, or names it twice"
    for one in manifest.published:
        cost = epsilon_of(mu_and_rho([(1, one.noise_multiplier)])[0], manifest.bound[1])
        if one.epsilon < cost * (1 - ROUNDING):
            yield f"a published histogram costs epsilon {rounded_up(cost)}, the manifest says {one.epsilon:g}"
    if manifest.releases != releases:
        yield f"the manifest's list of releases is not the ledger's, {_described(releases)}"
    if not accountant.covers(releases):
        yield "the ledger holds sampled releases, which the manifest's accountant does not cover"


def _of_selection(manifest: Manifest, selection: SelectionEvent) -> Iterator[str]:
    """What a manifest states of the selected run is in the ledger of the selection."""
    if not manifest.private:
        yield "the manifest says that a run of tune --grid is not private; such runs are"
    unexpected = {name: value for name in ("releases", "published") if (value := getattr(manifest, name))}
    steps = rules.steps_of(manifest)
    if unexpected or not any(steps in run for run in selection.runs):
        yield f"the manifest states {unexpected or steps}, which no run of the ledger has"


def _of_keys(manifest: Manifest) -> Iterator[str]:
    method = rules.registered(manifest.method)
    if manifest.paper != rules.EARLIER_PAPERS.get(method.name):
        yield from _unequal(manifest, {"paper": method.paper})
    yield from _of_unit(manifest)
    largest, start = manifest.largest_n_private, rules.start_of(manifest)
    if largest is not None and (start is None or largest < manifest.n_private):
        yield f"largest_n_private is {largest}, beside n_private {manifest.n_private} and init {start!r:.60}"
    if manifest.several_labels and not method.several_labels:
        yield f"task is {manifest.task}, which method {method.name} does not train"
    for key in OF_CLASSES if manifest.several_labels else OF_LABELS:
        if getattr(manifest, key) is not None:
            yield f"{key} is {getattr(manifest, key)}, and task {manifest.task} has none"
    yield from _of_noise(manifest)
    yield from _of_refinement(manifest, method)
    yield from rules.of_purposes(manifest)
    yield from rules.of_method(manifest, method)
    if (manifest.test_rows == "none") != (manifest.n_test == 0):
        yield f"test_rows is {manifest.test_rows} and n_test {manifest.n_test}"
    yield from _of_accuracy(manifest)
    yield from _of_noisy_test(manifest)
    try:
        if TIME.fullmatch(manifest.created) is None:
            raise ValueError
        datetime.fromisoformat(manifest.created)
    except ValueError:
        yield f"created is {manifest.created[:40]!r}, which is no time"


def _of_unit(manifest: Manifest) -> Iterator[str]:
    n_units = manifest.n_private if manifest.n_units is None else manifest.n_units
    if manifest.adjacency != ADJACENCIES[manifest.unit] or n_units != manifest.n_private:
        yield (
            f"the manifest's unit {manifest.unit!r}, its adjacency and its numbers {n_units} and {manifest.n_private} "
            f"of private units contradict each other; allowed: {', '.join(ADJACENCIES)}"
        )
    if manifest.per_owner_rows is not None and manifest.unit != OWNER:
        yield f"per_owner_rows is {manifest.per_owner_rows} and unit {manifest.unit!r}, which has none"
    people, shots = manifest.n_public_owners, manifest.public_shots
    shown = manifest.unit == OWNER and bool(shots)
    if manifest.has("n_public_owners") and ((people is not None) != shown or (people or 0) > manifest.n_public):
        stated = f"public_shots {shots}, n_public {manifest.n_public} and unit {manifest.unit!r}"
        yield f"n_public_owners is {people}, beside {stated}"


def _of_noise(manifest: Manifest) -> Iterator[str]:
    """What a manifest says of noise and commitments follows from its accountant and options."""
    for key in ("private_commitment", "per_record_commitment"):
        if (manifest.accountant is None) != (getattr(manifest, key) is None):
            yield f"{key} is {getattr(manifest, key)}, and accountant {manifest.accountant}"
    texts = claimed_texts(manifest)
    if texts is None:
        yield from _unequal(manifest, {"seed_kind": SEED_KINDS["none drawn"], "noise_source": "none drawn"})
        return
    if manifest.mechanism + WITH_FIRST != texts[0]:  # earlier manifests leave the first run out
        yield from _unequal(manifest, {"mechanism": texts[0]})
    checked = accountants.RENYI if (manifest.sampling_rate or 1) < 1 else accountants.GAUSSIAN
    # version 0.2 checked sums over all rows, and the Renyi bound of samples, by dp-accounting
    if (accountant_of(manifest), manifest.cross_check) != (checked, accountants.GOOGLE.words):
        yield from _unequal(manifest, {"cross_check": texts[1]})
    if manifest.private:
        yield from _unequal(manifest, {"epsilon_if_seed_were_secret": None})
    for key in ("delta", "steps", "noise_multiplier", "sampling_rate"):
        option = "n_steps" if key == "steps" else key
        given, found = manifest.options.get(option), getattr(manifest, key)
        if given is not None and given != found:
            yield f"option {option} is {given}, the manifest's {key} {found}"


def _of_refinement(manifest: Manifest, method: Method) -> Iterator[str]:
    refined, votes = manifest.refined, manifest.options.get("output") == VOTE
    if refined is None:
        return
    if unrefinable(method, votes=votes, several_labels=manifest.several_labels) is not None:
        yield f"method {method.name} on {manifest.task} rows cannot be refined"
    if (refined.run is None) != (refined.run_digest is None):
        yield f"refined names run {refined.run} with digest {refined.run_digest}"


def _of_accuracy(manifest: Manifest) -> Iterator[str]:
    by_class, balanced = manifest.test_accuracy_per_class, manifest.test_balanced_accuracy
    if by_class is None:
        yield from _unequal(manifest, {"test_balanced_accuracy": None})
        return
    unknown = set(by_class) - set(manifest.class_names)
    if unknown:
        yield f"test_accuracy_per_class names {min(unknown)!r}, which is no class"
    found = [value for value in by_class.values() if value is not None]
    if found and (balanced is None or not math.isclose(balanced, sum(found) / len(found), abs_tol=1e-9)):
        yield f"test_balanced_accuracy is {balanced}, and the classes give {sum(found) / len(found):.9g}"


def _of_noisy_test(manifest: Manifest) -> Iterator[str]:
    """Accuracies on private test rows follow from the noisy counts and the release."""
    counts = manifest.test_counts
    if counts is None:
        yield from _of_no_noisy_test(manifest)
        return
    release = _release_for(manifest, TEST_ACCURACY)
    sizes = [len(pair) for pair in counts.by_class]
    if release is None or manifest.test_rows != "private" or sizes != [2] * manifest.n_classes:
        yield "test_counts belong to no release on private test rows by class"
        return
    tested = NoisyTest.of(np.append(counts.right, counts.by_class), release.noise_multiplier)
    scores, released = None, _release_for(manifest, TEST_AUROC)
    if manifest.test_scores is not None:
        shape = [[len(cells) for cells in histogram] for histogram in manifest.test_scores]
        if released is None or shape != [[BINS] * 2] * n_histograms(manifest.n_classes):
            yield "test_scores belong to no release of scores on private test rows"
            return
        scores = NoisyScores.of(np.array(manifest.test_scores), released.noise_multiplier)
    expected = vars(noisy_accuracy(tested, scores, manifest.n_test, manifest.class_names))
    for key, value in expected.items():
        stated = getattr(manifest, key)
        sums = key in SUMS and None not in (stated, value)
        if stated != value and not (sums and math.isclose(stated, value, abs_tol=1e-9)):
            yield f"{key} follows from test_counts as {value}, the manifest says {stated}"


def _release_for(manifest: Manifest, purpose: str) -> Releases | None:
    return next((one for one in manifest.releases or () if one.purpose == purpose), None)


# sums, which another machine or version of Python adds in another order
SUMS = ("test_balanced_accuracy", "test_balanced_accuracy_std", "test_macro_auroc", "test_macro_auroc_std")
NOISE_OF_FIGURES = ("test_accuracy_std", "test_balanced_accuracy_std", "test_macro_auroc_std")


def _of_no_noisy_test(manifest: Manifest) -> Iterator[str]:
    """A run without noisy counts states no figure that only they, or public test rows, can give."""
    for key in NOISE_OF_FIGURES if manifest.test_rows == "public" else Accuracy.__dataclass_fields__:
        value = getattr(manifest, key)
        if value is not None and key not in ("test_rows", "n_test"):
            yield f"{key} is {value!r:.60}, test_rows is {manifest.test_rows}, and no noisy count is stated"


def _unequal(manifest: Manifest, expected: Mapping[str, Any]) -> Iterator[str]:
    for key, value in expected.items():
        if getattr(manifest, key) != value:
            yield f"{key} follows from the run as {value!r}, the manifest says {getattr(manifest, key)!r}"


def _check_names(run: RunFolder) -> None:
    """PrivacyError if the folder holds anything that is no part of the run."""
    unknown = sorted(run.names - {MANIFEST, SIGNATURE, PER_RECORD, VERIFY_PAGE, *PAGES, *run.manifest.files})
    if unknown:
        added = " (a model hub, or the system, adds such names)" if unknown[0] in ADDED else ""
        raise PrivacyError(
            f"{run.folder} holds {', '.join(map(repr, unknown[:MOST_NAMED]))}, which the manifest does not list{added}"
            "; move it away, or use a copy of the folder without it"
        )
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
    """The pages without a digest in the manifest, as in a release by linprobe 0.2.0: no signature covers them."""
    return [name for name in PAGES if name in run.names and name not in run.manifest.files]


def not_checked(run: RunFolder) -> list[str]:
    """The keys and files that a run states and nothing in the folder proves."""
    unknown = [f"{LEDGER} (sensitivities of dpsgd-f's theory variant)"] if rules.clips_by_release(run.manifest) else []
    start, released = rules.start_of(run.manifest), rules.all_releases(run.manifest)
    if start is not None and INHERITED not in {one.purpose for one in released}:
        unknown.append(
            f"{LEDGER} (started from run {printable(Path(start).name or start)}, and counts no release of it: right "
            "only if that run released nothing with noise)"
        )
    if hold_without_a_choice(released):
        unknown.append(f"epsilon (holds if {NO_CHOICE})")
    names = run.names if run.may_read_per_record else run.names - {PER_RECORD}
    return [*stated_in(run.manifest, names), *unknown]


def _described(releases: Iterable[Releases]) -> str:
    return ", ".join(
        f"{release.count} {release.purpose} releases at noise multiplier {rounded_down(release.noise_multiplier)} and "
        f"sampling rate {release.sampling_rate:g}"
        for release in releases
    )


def check_signature(run: RunFolder, key: Ed25519PublicKey) -> None:
    """Check the signature of the manifest. Raises PrivacyError: none, or not one of this manifest by this key."""
    if SIGNATURE not in run.names:
        raise PrivacyError(f"run {run.folder} is not signed: it has no {SIGNATURE}; ask for a run made with --sign KEY")
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
    """The initial weights that a run takes from an earlier run, as in `RunFolder`; the mean over voters if it votes.

    All `releases` of the earlier run have the purpose `inherited`.
    """

    weights: NDArray[np.floating]
    bias: NDArray[np.floating]
    releases: tuple[Releases, ...]
    manifest: Manifest

    @property
    def recorded(self) -> list[Releases]:
        """The releases as budget books have them: histograms by their names, the others as `inherited`."""
        every = self.manifest.recorded
        return [one if one.is_histogram else replace(one, purpose=INHERITED) for one in every]


@dataclass(frozen=True)
class FirstRun:
    """The run `folder` that `init` names, read once: training, checkpoint and budget book use what was verified."""

    folder: str | os.PathLike[str]

    @cached_property
    def run(self) -> RunFolder:
        return RunFolder(self.folder)

    @cached_property
    def model(self) -> FirstModel:
        """The weights and the releases they depend on, at the first use.

        Raises DataError, PrivacyError: as `check_run`, or a damaged model. PrivacyError: the run is not private, so a
        run that starts from it cannot be private either.
        """
        run = self.run
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
        return FirstModel(weights, bias, grouped(replace(event, purpose=INHERITED) for event in events), manifest)


def verify_run(request: VerifyRequest) -> dict[str, Any]:
    """Check that a run is private and intact, and that all accountants agree on its guarantee.

    Returns `FINDINGS` by name: figures that were not verified are None, and `refused` says why the run is not verified.
    Raises DataError: not a run folder, or an unreadable key or feature file.
    """
    folder, features, unlabelled, before = request.run, request.features, request.unlabelled, request.before
    result: dict[str, Any] = {"run": str(folder), "verified": False, **dict.fromkeys(FINDINGS)}
    run = RunFolder(folder)
    try:
        proved = _check_signed(run, request.public_key, result)
        _check_private(run, features, result)
        if unlabelled is not None or before is not None:
            from linprobe.runs.refinement import check_refinement

            parent = None if before is None else RunFolder(before)
            proved += check_refinement(run, unlabelled, parent, features)
            if parent is not None:
                verified(parent)
        result["stated_not_checked"] = [key for key in result["stated_not_checked"] if key not in proved]
        limits = (("epsilon", "max-eps", request.max_epsilon), ("delta", "max-delta", request.max_delta))
        for (what, flag, limit), stated in zip(limits, run.manifest.bound, strict=True):
            if limit is not None and stated > limit:
                raise PrivacyError(
                    f"run {folder} has {what} {rounded_up(stated)}, above --{flag} {limit:.12g}; ask for a run with a "
                    f"smaller {what}"
                )
    except PrivacyError as error:
        return {**result, "refused": str(error)}
    return {**result, "verified": True}


def _check_signed(run: RunFolder, key_file: Path | None, result: dict[str, Any]) -> list[str]:
    if key_file is None:
        if SIGNATURE in run.names:
            result["signature"] = "not checked: give --public-key FILE"
        return []
    key = public_key(key_file)
    check_complete(run)  # an incomplete run lacks more than a signature
    check_signature(run, key)
    uncovered = not_covered(run)
    if uncovered:
        raise PrivacyError(
            f"{', '.join(uncovered)} of {run.folder}: not covered by the signature, since the manifest does not "
            "list them (as in releases of linprobe 0.2.0); move them away to verify the rest, or ask the owner for a "
            "release made with --sign KEY"
        )
    result["signature"] = f"by the key in {key_file}"
    return [SIGNATURE]


def _check_private(run: RunFolder, features: Path | None, result: dict[str, Any]) -> None:
    """PrivacyError unless the run has a guarantee and, with `features`, was trained on their private rows."""
    recomputed, manifest = verified(run), run.manifest
    result["private"] = manifest.private
    if not manifest.private:
        raise PrivacyError(f"run {run.folder} is {manifest.guarantee}; train with a private method and without a seed")
    result |= {**asdict(recomputed), "delta": manifest.delta, "data": "not checked: give --features FILE"}
    committed = manifest.per_record_commitment is not None
    absent = "absent, not checked" if committed else "none: nothing was released about private rows"
    if run.may_read_per_record:
        result["per_record"] = "matches its commitment; losses not recomputed"
    else:
        hidden = "private, and this user may not read it; not checked"
        result["per_record"] = hidden if PER_RECORD in run.names else absent
    result["not_covered"] = not_covered(run)
    result["stated_not_checked"] = not_checked(run)
    if features is not None:
        from linprobe.data.dataset import open_features, refuse_training_rows
        from linprobe.runs.matching import check_stated, private_mask

        with open_features(features) as opened:
            refuse_training_rows(opened)
            private = private_mask(run, opened)
            proved = [*check_stated(run, opened), *([] if private is None else ["private_commitment"])]
        result["stated_not_checked"] = [key for key in result["stated_not_checked"] if key not in proved]
        result["data"] = "private rows match the run"
        if private is None:
            result["data"] = "not committed to: the run makes no release about private rows"
