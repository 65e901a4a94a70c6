"""Membership inference: how well the scores of a released probe separate its training rows from other rows.

Yeom, Giacomelli, Fredrikson, Jha, "Privacy Risk in Machine Learning", CSF 2018: the loss as a score (threshold attack).
Carlini, Chien, Nasr, Song, Terzis, Tramèr, "Membership Inference Attacks From First Principles", S&P 2022: likelihood
ratios against shadow models (LiRA, Algorithm 1), true-positive rates at small false-positive rates.

    o_i      = log p_i - log(1 - p_i), p_i the model's probability of the record's own label: its log odds
    loss_i   = -log p_i = log(1 + e^-o_i)
    ratio_i  = log N(o_i; mean_i,in, v_in) - log N(o_i; mean_i,out, v_out)

Where people are compared, the threshold attack takes the mean of o_i over the rows of a person, which is comparable for
people with few and with many rows. The log likelihood ratio of a person is the sum over the rows, as if the rows were
independent given membership.

The loss falls as o_i rises, so both rank records alike; o_i still distinguishes records whose p_i rounds to 1. In this
module a higher score means "more likely a member". Every result is computed from private rows without noise: private.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax, logsumexp

from linprobe.data.blocks import normalise_rows

FALSE_POSITIVE_RATES = (0.001, 0.01)
CONFIDENCE = 0.95
LEAST_VARIANCE = 1e-12  # nats squared; float32 weights resolve nothing finer

Scores = NDArray[np.float64]


def log_odds(
    blocks: Iterable[tuple[NDArray[np.floating], NDArray[np.int64]]],
    weights: NDArray[np.floating],
    bias: NDArray[np.floating],
) -> Scores:
    """o_i of labelled raw rows, in nats, shape (n_rows,); for a run that votes, of the voters' mean probability.

    Args:
        blocks: rows (b, n_features) and class indices (b,).
        weights, bias: one set or a stack of voters, as in `linprobe.runs.figures`.
    """
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
    """The result of a membership attack. Private.

    Attributes:
        auc: probability that a member scores higher than a non-member; a tie counts one half.
        low, high: percentile bootstrap interval of `auc` at `CONFIDENCE`; None without resamples.
        fpr, tpr: the ROC curve from (0, 0) to (1, 1), one point for every distinct score.
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
    """Compare the scores of members (n,) with the scores of non-members (m,).

    The bootstrap resamples members and non-members separately. Scores are replaced by their ranks, so that a resample
    costs one count and one cumulative sum.
    """
    values, places = np.unique(np.concatenate([members, others]), return_inverse=True)
    member_places, other_places = np.split(places, [len(members)])
    counted = [np.bincount(part, minlength=len(values)) for part in (member_places, other_places)]
    low = high = None
    if resamples:
        # resampling protects nothing, so a fixed seed is safe and makes intervals reproducible
        rng = np.random.default_rng(0)
        drawn = [
            _auc(*(_recounted(part, len(values), rng) for part in (member_places, other_places)))
            for _ in range(resamples)
        ]
        low, high = np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]).tolist()
    tpr, fpr = (np.concatenate([[0.0], np.cumsum(counts[::-1]) / counts.sum()]) for counts in counted)
    return Membership(_auc(*counted), low, high, fpr, tpr)


def _recounted(places: NDArray[np.int64], size: int, rng: np.random.Generator) -> NDArray[np.int64]:
    return np.bincount(places[rng.integers(len(places), size=len(places))], minlength=size)


def _auc(members: NDArray[np.int64], others: NDArray[np.int64]) -> float:
    """AUC from the numbers of members and non-members at each score, in rising order."""
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
    few shadow models.

    Args:
        target: log odds of each record under the attacked model, (n,).
        shadows: the same under each shadow model, (n_shadows, n).
        inside: which records each shadow model was trained on, (n_shadows, n). Every record must be in at least two
            shadow models and outside at least two.
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
    """Random halves of the rows or people, (n_sets, n_units), in complementary pairs; each is in exactly half of them.

    The seed is fixed: membership in a shadow model need not be secret.
    """
    rng = np.random.default_rng(1)
    halves = np.zeros((n_sets, n_units), dtype=bool)
    for one in range(0, n_sets, 2):
        halves[one, rng.permutation(n_units)[: n_units // 2]] = True
        halves[one + 1] = ~halves[one]
    return halves
