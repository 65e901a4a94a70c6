"""`linprobe attack`: membership inference against a run (`docs/attack.md`).

Yeom, Giacomelli, Fredrikson, Jha, "Privacy Risk in Machine Learning", CSF 2018: the loss as a score (threshold attack).
Carlini, Chien, Nasr, Song, Terzis, Tramèr, "Membership Inference Attacks From First Principles", S&P 2022: likelihood
ratios against shadow models (LiRA, Algorithm 1), true-positive rates at small false-positive rates.

    o_i      = log p_i - log(1 - p_i), p_i the model's probability of the record's own label: its log odds
    ratio_i  = log N(o_i; mean_i,in, v_in) - log N(o_i; mean_i,out, v_out)

The loss log(1 + e^-o_i) falls as o_i rises, so both rank records alike. Of a person, the threshold attack takes the
mean of o_i over the rows, and the ratio is the sum, as if rows were independent given membership. A higher score means
"more likely a member".
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax, logsumexp

from linprobe.accounting.figures import NOUNS
from linprobe.atomic_files import write_json
from linprobe.data.blocks import ArraySource, ChainedSource, RawBlocks, concatenated, normalise_rows
from linprobe.data.dataset import Dataset, check_one_class, check_test_rows, dataset_of, open_features, unlabelled_group
from linprobe.data.feature_reader import FeatureReader, GroupRows
from linprobe.data.row_weights import RowWeights
from linprobe.errors import DataError, ParameterError, PrivacyError, Progress, UsageError, writing
from linprobe.methods import find_method
from linprobe.options import OWNER, RECORD
from linprobe.options.requests import LEAST_RESAMPLES, LEAST_SHADOWS, SHADOWS, AttackRequest
from linprobe.parallel.threads import unordered
from linprobe.runs.check import verified
from linprobe.runs.guarantee import limit_of
from linprobe.runs.manifest import UNIFORM
from linprobe.runs.matching import check_classes, check_width, features_of, private_mask, split_of
from linprobe.runs.run_folder import RunFolder, inputs_of, new_files
from linprobe.training.execute import execute
from linprobe.training.plan import Settings, plan_run

FALSE_POSITIVE_RATES = (0.001, 0.01)
CONFIDENCE = 0.95
LEAST_VARIANCE = 1e-12  # nats squared; float32 weights resolve nothing finer

Scores = NDArray[np.float64]


def log_odds(blocks: RawBlocks, weights: NDArray[np.floating], bias: NDArray[np.floating]) -> Scores:
    """o_i of labelled raw rows in `blocks`, nats, (n_rows,); of a stack of voters, of their mean probability."""
    stack = weights.reshape(-1, *weights.shape[-2:])
    offsets = bias.reshape(len(stack), -1)
    parts = []
    for x, y in blocks:
        unit = normalise_rows(np.asarray(x, dtype=np.float32)).astype(weights.dtype, copy=False)
        own, others = np.empty((len(stack), len(y))), np.empty((len(stack), len(y)))
        rows = np.arange(len(y))
        for voter, (one, offset) in enumerate(zip(stack, offsets, strict=True)):
            scores = log_softmax((unit @ one + offset).astype(np.float64), axis=1)
            own[voter] = scores[rows, y]
            scores[rows, y] = -np.inf
            others[voter] = logsumexp(scores, axis=1)
        parts.append(logsumexp(own, axis=0) - logsumexp(others, axis=0))
    return np.concatenate(parts)


@dataclass(frozen=True)
class Membership:
    """The result of a membership attack: `auc`, a tie counting one half, with its percentile bootstrap interval at
    `CONFIDENCE`, if any; and the ROC curve from (0, 0) to (1, 1), one point for every distinct score. Private.
    """

    auc: float
    low: float | None
    high: float | None
    fpr: Scores
    tpr: Scores

    def tpr_at(self, rate: float) -> float:
        """The highest true-positive rate at a false-positive rate of at most `rate`."""
        allowed = rate * (1 + 1e-9)  # a rate of 0.003 allows 3 of 1,000 despite rounding
        return float(self.tpr[np.searchsorted(self.fpr, allowed, side="right") - 1])


def membership(members: Scores, others: Scores, resamples: int = 0) -> Membership:
    """Compare the scores of members (n,) with those of non-members (m,). The bootstrap resamples both separately."""
    values, places = np.unique(np.concatenate([members, others]), return_inverse=True)
    counted = [np.bincount(part, minlength=len(values)) for part in np.split(places, [len(members)])]
    low = high = None
    if resamples:
        # resampling protects nothing, so a fixed seed is safe and makes intervals reproducible
        rng = np.random.default_rng(0)
        grouped = _between(members, others)
        drawn = [_auc(*(rng.multinomial(n.sum(), n / n.sum()) for n in grouped)) for _ in range(resamples)]
        low, high = np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]).tolist()
    tpr, fpr = (np.concatenate([[0.0], np.cumsum(counts[::-1]) / counts.sum()]) for counts in counted)
    return Membership(_auc(*counted), low, high, fpr, tpr)


def _between(members: Scores, others: Scores) -> list[NDArray[np.int64]]:
    """Numbers of members and non-members at each score of a non-member and between two of them: enough for an AUC."""
    marks = np.unique(others)
    places = (np.searchsorted(marks, part) + np.searchsorted(marks, part, "right") for part in (members, others))
    return [np.bincount(place, minlength=2 * len(marks) + 1) for place in places]


def _auc(members: NDArray[np.int64], others: NDArray[np.int64]) -> float:
    below = np.cumsum(others) - others / 2
    return float(members @ below / (members.sum() * others.sum()))


def sums_of_people(scores: Scores, sizes: NDArray[np.int64]) -> Scores:
    """Sums of scores (n_rows,) over each person's rows, shape (n_people,); they have `sizes` rows, in order."""
    total = np.zeros(len(sizes))
    np.add.at(total, np.repeat(np.arange(len(sizes)), sizes), scores)
    return total


def likelihood_ratios(target: Scores, shadows: Scores, inside: NDArray[np.bool_]) -> Scores:
    """ratio_i: log likelihood ratio of the target's log odds, trained with record i against without it; nats, (n,).

    Each record has its own two means. The two variances are shared by all records, as Carlini et al. do when there are
    few shadow models. Log odds: (n,) and (n_shadows, n); each record is `inside` two shadows or more, and out of two.
    """
    ratio = np.zeros_like(target)
    for sign, part in ((1, inside), (-1, ~inside)):
        count = part.sum(axis=0)
        mean = np.where(part, shadows, 0).sum(axis=0) / count
        spread = np.where(part, shadows - mean, 0)
        variance = max(float(np.vdot(spread, spread)) / (count.sum() - len(target)), LEAST_VARIANCE)
        ratio -= sign * ((target - mean) ** 2 / variance + np.log(variance)) / 2
    return ratio


def complementary_halves(n_sets: int, n_units: int) -> NDArray[np.bool_]:
    """Random halves of rows or people (n_sets, n_units), in complementary pairs, from a fixed seed: none is secret."""
    rng = np.random.default_rng(1)
    halves = np.zeros((n_sets, n_units), dtype=bool)
    for one in range(0, n_sets, 2):
        halves[one, rng.permutation(n_units)[: n_units // 2]] = True
        halves[one + 1] = ~halves[one]
    return halves


PRIVATE_OUTPUT = "PRIVATE: computed from private rows without noise; do not publish"


def attack(request: AttackRequest, progress: Progress) -> dict[str, Any]:
    """Try to tell a run's private rows, or people, from the test rows or people of the same file. Private."""
    _check(request)
    progress.start(0, "reading rows")
    inputs = (*inputs_of(request.run), request.features, request.public)
    with new_files({"--out": request.out}, inputs=inputs, overwrite=request.overwrite):
        run = RunFolder(request.run)
        verified(run)
        manifest = run.manifest
        with open_features(features_of(run, request.features)) as features:
            check_one_class(features, "attack")
            check_test_rows(features, "an attack compares with private rows", private=True)
            dataset = _private(features, run)
            committed = private_mask(run, features)
            members = np.ones(features.sizes["train"], dtype=bool) if dataset.keep is None else dataset.keep
            if committed is not None and not np.array_equal(members, committed):
                raise PrivacyError(
                    f"{run.folder} has other public shots than its per-record file; restore it from a copy"
                )
            compared = _compared(features, dataset)
            progress.start(0, "scoring rows")
            if request.lira:
                found, shadows = _lira(features, compared, run, request, progress), request.shadows or SHADOWS
            else:
                found, shadows = _threshold(compared, run, request.resamples), None
        limit = limit_of(manifest)
        result = {
            "run": str(run.folder),
            "manifest_digest": manifest.manifest_digest,
            "method": manifest.method,
            "attack": "lira" if request.lira else "threshold",
            **_figures(found, compared.n_outside),
            "tpr_limit_at_fpr": None if limit is None else _by_rate(limit(np.array(FALSE_POSITIVE_RATES)).tolist()),
            "tpr_limit_from": None if limit is None else limit.source,
            "compared": NOUNS[RECORD if compared.sizes is None else OWNER],
            "members": compared.n_inside,
            "non_members": compared.n_outside,
            "confidence": CONFIDENCE,
            "shadows": shadows,
            "epsilon": manifest.epsilon,
            "delta": manifest.delta,
            "private_output": PRIVATE_OUTPUT,
        }
        if request.out is not None:
            with writing(request.out):
                write_json(request.out, result, private=True)
        return result


def threshold_auc(features: FeatureReader, run: RunFolder) -> dict[str, Any]:
    """The threshold attack on a run and its open file, whose rows were verified: auc, auc_low, auc_high, tpr_at_fpr."""
    compared = _compared(features, _private(features, run))
    return _figures(_threshold(compared, run, resamples=0), compared.n_outside)


def _check(request: AttackRequest) -> None:
    if request.resamples and request.resamples < LEAST_RESAMPLES:
        raise ParameterError(f"resamples is {request.resamples}; allowed: {LEAST_RESAMPLES} or more, or 0 for none")
    for name in ("shadows", "jobs", "public"):
        if not request.lira and getattr(request, name) is not None:
            raise UsageError(f"option --{name} does nothing without --lira; add --lira, or leave it out")
    if request.shadows is not None and request.shadows % 2:
        raise ParameterError(f"shadows is {request.shadows}; allowed: an even number, {LEAST_SHADOWS} or more")


def _private(features: FeatureReader, run: RunFolder) -> Dataset:
    """The training rows that were private according to the manifest, and the person of each row."""
    manifest = run.manifest
    check_width(run, features.n_features, features.path)
    check_classes(run, features)
    dataset = dataset_of(features, None, split_of(manifest))
    # if public rows are protected too, n_private includes them
    if not dataset.joined and dataset.n_units != manifest.n_private:
        raise DataError(
            f"{features.path} has {dataset.n_units} private {NOUNS[manifest.unit]}; allowed for the run "
            f"{run.folder}: {manifest.n_private}; give the file it was trained on with --features"
        )
    return dataset


@dataclass(frozen=True)
class _Compared:
    """Members (`inside`) and others, their numbers, and numbers of rows of people, members first; None for rows."""

    inside: GroupRows
    outside: GroupRows
    n_inside: int
    n_outside: int
    sizes: NDArray[np.int64] | None = None


def refuse_insiders(features: FeatureReader, unit: str | None) -> None:
    """UsageError if people are attacked, and people with test rows may have been in training."""
    if unit == OWNER and features.has_owners("test") and features.description.shares_owners:
        raise UsageError(
            f"{features.path} has people on both sides, so its test people are no outsiders to attack with; allowed: a "
            "file made without --owners-on-both-sides"
        )


def _compared(features: FeatureReader, dataset: Dataset) -> _Compared:
    """Private people and test people, if the run protects people and test rows have owners; else rows."""
    refuse_insiders(features, dataset.unit)
    inside, outside = GroupRows(features, "train", dataset.keep), GroupRows(features, "test")
    if dataset.bounds is None or not features.has_owners("test"):
        return _Compared(inside, outside, inside.n_rows, outside.n_rows)
    bounds, names = outside.people()
    sizes = np.concatenate([np.diff(dataset.bounds), np.diff(bounds)])
    return _Compared(inside, outside, dataset.n_units, len(names), sizes)


def _threshold(compared: _Compared, run: RunFolder, resamples: int) -> Membership:
    rows = ChainedSource(compared.inside, compared.outside)
    scores = log_odds(rows.blocks(), run.weights, run.bias)
    if compared.sizes is not None:
        scores = sums_of_people(scores, compared.sizes) / compared.sizes
    return membership(scores[: compared.n_inside], scores[compared.n_inside :], resamples)


def _lira(
    features: FeatureReader, compared: _Compared, run: RunFolder, request: AttackRequest, progress: Progress
) -> Membership:
    """The likelihood-ratio attack; shadow probes on random halves, of people or of rows, are not released."""
    manifest = run.manifest
    if manifest.tuning is not None:
        raise UsageError(f"run {run.folder} was tuned on its private rows, and shadow probes are not; leave --lira out")
    # every shadow draws fresh noise, even if the run had a seed
    options = {name: value for name, value in manifest.options.items() if name != "insecure_seed"}
    settings = Settings.of_given(find_method(manifest.method), options)
    counted, balanced = manifest.class_counts is not None, manifest.class_prior == UNIFORM
    settings = replace(settings, class_counts=counted, balanced=balanced, per_record=False)
    if manifest.unit == OWNER and compared.sizes is None:
        raise UsageError(
            f"run {run.folder} protects people, and test rows of {features.path} have no owners, so shadow probes "
            "cannot train on halves of all people; allowed: the threshold attack, or a file with owners of test rows"
        )
    if settings.first_run is not None:
        raise UsageError(
            f"run {run.folder} started from {settings.first_run.folder}, which was trained on members; shadow "
            "probes would start from it too; leave --lira out, or attack that run"
        )
    public, unlabelled = _public_rows(features, request.public, run), _unlabelled_rows(run, progress)
    x, y = concatenated(ChainedSource(compared.inside, compared.outside).blocks())
    sizes = np.ones(len(y), dtype=np.int64) if compared.sizes is None else compared.sizes
    halves = complementary_halves(request.shadows or SHADOWS, len(sizes))
    odds = np.empty((len(halves), len(y)))
    progress.start(len(halves), "shadow probes")
    text = features.text_weights()
    by_class = manifest.class_weights
    weights = None if by_class is None else RowWeights(np.array(list(by_class.values())))

    def half_of(half: NDArray[np.bool_]) -> Dataset:
        rows = np.repeat(half, sizes)
        bounds = None if compared.sizes is None else np.concatenate([[0], np.cumsum(sizes[half])])
        joined = settings.method.joins_public
        source = ArraySource(x[rows], y[rows])
        return Dataset(source, manifest.n_classes, public, text, bounds, weights, joined=joined, unlabelled=unlabelled)

    shadows = ((place, settings, half_of(half), x, y) for place, half in enumerate(halves))
    for shadow, found in unordered(_shadow, shadows, request.jobs):
        odds[shadow] = found
        progress.step()
    target = log_odds(ArraySource(x, y).blocks(), run.weights, run.bias)
    ratios = sums_of_people(likelihood_ratios(target, odds, np.repeat(halves, sizes, axis=1)), sizes)
    return membership(ratios[: compared.n_inside], ratios[compared.n_inside :], request.resamples)


def _public_rows(features: FeatureReader, given: Path | None, run: RunFolder) -> ArraySource | None:
    manifest = run.manifest
    named, digest = manifest.public_file, manifest.public_digest
    path = given if given is not None or named is None else Path(named)
    with ExitStack() as stack:
        other = None if path is None else stack.enter_context(open_features(path))
        dataset = dataset_of(features, other, split_of(manifest))
        public = dataset.public
        wrong = digest is not None and not dataset.has_public_digest(digest)
        if wrong or (public is None) != (manifest.public_from == "nowhere"):
            raise DataError(
                f"public rows are {public or 'none'}, but the run had others: {manifest.public_from}; "
                "give the file with --public, or leave --public out"
            )
        if public is None:
            return None
        return ArraySource(*concatenated(public.blocks()))


def _unlabelled_rows(run: RunFolder, progress: Progress) -> ArraySource | None:
    """The rows without labels that the run had, in memory, or None. DataError: their file is gone, or has others."""
    refined = run.manifest.refined
    if refined is None:
        return None
    if refined.run is not None:
        progress.note(
            f"run {run.folder} was refined after training, and shadow probes are not; to compare like with like, "
            f"attack run {refined.run}, which it was made from"
        )
        return None
    with open_features(Path(refined.file), labelled=False) as file:
        rows = unlabelled_group(file)
        if rows.digest() != refined.digest:
            raise DataError(
                f"{refined.file} does not hold the rows without labels that run {run.folder} was trained with; put "
                "that file back, or leave --lira out"
            )
        return ArraySource(*concatenated(rows.blocks()))


def _shadow(
    place: int, settings: Settings, half: Dataset, x: NDArray[np.floating], y: NDArray[np.int64]
) -> tuple[int, Scores]:
    shadow = execute(plan_run(settings, half), half)
    return place, log_odds(ArraySource(x, y).blocks(), shadow.weights, shadow.bias)


def _figures(found: Membership, n_outside: int) -> dict[str, Any]:
    """As JSON. A rate that `n_outside` non-members are too few for has no TPR."""
    tpr = [found.tpr_at(rate) if rate * n_outside >= 1 else None for rate in FALSE_POSITIVE_RATES]
    return {
        "auc": found.auc,
        "auc_low": found.low,
        "auc_high": found.high,
        "tpr_at_fpr": _by_rate(tpr),
    }


def _by_rate(values: list[Any]) -> dict[str, float | None]:
    return {f"{rate:g}": value for rate, value in zip(FALSE_POSITIVE_RATES, values, strict=True)}
