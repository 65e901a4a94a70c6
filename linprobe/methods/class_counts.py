"""Noisy class counts: one Gaussian release of the number of private rows of each class, and what follows from it.

    1  n~_c <- sum_u s_uc + N(0, (sigma Delta)^2),       c = 1..C;  s_uc: share of the rows of unit u with class c
    2  e_c  <- n~_c - mean(n~),    v <- max(0, ||e||^2 / (C - 1) - (sigma Delta)^2)
    3  n_c  <- max(N / C + e_c v / (v + (sigma Delta)^2), sigma Delta),    pi_c <- n_c / sum n
    4  z_c  <- z_c - log pi_c + log p_c

Line 1. A unit is a row, or a person with all rows. A row has one class, so it adds 1 to one count. The shares of a
person are 0 or more and add up to at most 1, so their L2 norm is at most 1, whatever the number of rows. An empty place
adds nothing. So Delta = 1 under zero-out of one unit. Shares are rounded down to multiples of `SHARE_STEP`, which
float64 adds without rounding. A multilabel row, or the mean of a person's rows, has an entry from 0 to 1 for each of C
labels, so Delta = sqrt(C). Classes are the declared ones.

Lines 2 to 4 use the release and public constants only, the number of units N among them. Line 2 estimates the variance
of the true counts; line 3 shrinks the counts towards equal ones by the share of noise in them, and keeps each above the
standard deviation of the noise. So log pi_c is bounded, and noise alone moves equal classes little. Line 4 turns the
scores z of a model of log P(class | row) under the class shares of training into scores under the class shares p
(Saerens, Latinne, Decaestecker, "Adjusting the outputs of a classifier to new a priori probabilities", Neural
Computation 2002; Menon et al., "Long-tail learning via logit adjustment", ICLR 2021).

Guarantee: 1/sigma - Gaussian DP under zero-out of one unit.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from linprobe.data.blocks import Block
from linprobe.data.rows import FAR, Rows
from linprobe.gradients.clipped_sum import Reduce, unit_means
from linprobe.gradients.rounding import SMALLEST_MARGIN
from linprobe.mechanisms.correct_predictions import SHARE_STEP
from linprobe.mechanisms.gaussian import ClippedSum, relative_contributions
from linprobe.methods._base import Method, Run
from linprobe.parallel.array_api import Reals
from linprobe.parallel.process_group import ALONE

CLASS_COUNTS = "class counts"
Shares = Reals


@dataclass(frozen=True)
class ClassCounts:
    """Released class counts: n~ (n_classes,), and the standard deviation of their noise."""

    by_class: Reals
    std: float


def gives_log_odds(method: Method, options: Mapping[str, Any]) -> bool:
    """Whether scores of `method` estimate log P(class | row) + a constant, so that line 4 has a meaning."""
    return method.weighs and options.get("variant") != "theory" and options.get("loss") != "squared"


def sensitivity_of_counts(n_classes: int, several_labels: bool) -> float:
    """Delta: 1, or for multilabel rows sqrt(C), rounded up."""
    return math.nextafter(math.sqrt(n_classes), math.inf) if several_labels else 1.0


def class_sums(
    rows: Rows, n_classes: int, several_labels: bool, *, all_reduce: Reduce = ALONE.all_reduce
) -> ClippedSum:
    """Sum over units of their shares by class, shape (n_classes, 1), without noise, to be released."""
    total, contributions = np.zeros(n_classes), np.zeros(rows.n_local)
    sensitivity = sensitivity_of_counts(n_classes, several_labels)
    for block in rows.blocks():
        labels = block.y.astype(np.float64) if block.y.ndim == 2 else np.eye(n_classes)[block.y]
        shares = shares_of_units(block, labels)
        norms = np.sqrt(np.einsum("ij,ij->i", shares, shares))
        here = slice(block.start, block.start + len(shares))
        contributions[here] = relative_contributions(norms, sensitivity, SMALLEST_MARGIN)
        total += shares.sum(axis=0)
    return ClippedSum(all_reduce(total)[:, None], sensitivity, contributions)


def shares_of_units(block: Block, by_row: Reals) -> Reals:
    """`by_row` (b, m), of people the mean over their rows, as multiples of `SHARE_STEP`; zero for empty places."""
    if block.bounds is None:
        return np.asarray(by_row * (block.norms < FAR)[:, None])
    return np.floor(unit_means(block, by_row) / SHARE_STEP) * SHARE_STEP


def released_counts(rows: Rows, n_classes: int, several_labels: bool, run: Run) -> ClassCounts:
    """Line 1 for all units of all processes."""
    total = class_sums(rows, n_classes, several_labels, all_reduce=run.group.all_reduce)
    return ClassCounts(run.released(total, CLASS_COUNTS)[:, 0], run.schedule.others[CLASS_COUNTS] * total.sensitivity)


def class_shares(counts: ClassCounts, n_units: int) -> Shares:
    """Lines 2 and 3: pi (n_classes,), above 0, of rows with one class each."""
    around = counts.by_class - counts.by_class.mean()
    signal = max(float(around @ around) / (len(around) - 1) - counts.std**2, 0.0)
    kept = signal / (signal + counts.std**2) if signal else 0.0
    found = np.maximum(n_units / len(around) + around * kept, counts.std)
    return np.asarray(found / found.sum())


def equal_shares(shares: Shares) -> Shares:
    return np.full_like(shares, 1 / len(shares))


def shift_between(own: Shares, wanted: Shares) -> Shares:
    """Line 4: what to add to the scores of a model for the class shares `own`, for the shares `wanted`."""
    return np.asarray(np.log(wanted) - np.log(own))
