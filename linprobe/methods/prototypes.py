"""Prototypes: one noisy sum of features for each class, and the class with the nearest direction.

Wahdany, Jagielski, Dziedzic, Boenisch, "Differentially Private Prototypes for Imbalanced Transfer Learning", AAAI 2025
(DPPL-Mean).

    1  S_c <- sum_(i: y_i = c) x_i + N(0, sigma^2 I)    for each class c
    2  return W_c = S_c / ||S_c||                       the score of a row is its cosine with S_c

Rows are scaled down to length 1. A record adds to one class, so all sums together have sensitivity 1: they are the
gradient of the squared loss at zero weights. A cosine needs no number of rows, so none is released.

Guarantee: 1/sigma - Gaussian DP under zero-out adjacency, for one release.
"""

import numpy as np

from linprobe.methods._base import Fitted, Iterates, Method, Problem, Run
from linprobe.options import PrototypesOptions

SHORTEST = 1e-12  # length of a sum that has no direction: of no rows, without noise


def fit(problem: Problem, options: PrototypesOptions, run: Run) -> Fitted:
    zeros = np.zeros((problem.n_features, problem.n_classes))
    prototypes = Iterates(zeros, run.schedule.n_steps, "last")
    for _ in run.steps(prototypes):
        sums = -run.gradient(problem.private_rows, zeros, 1.0, loss="squared")
        prototypes.move(sums / np.maximum(np.linalg.norm(sums, axis=0), SHORTEST))
    return Fitted(prototypes.result(), prototypes.history)


METHOD = Method(
    summary="one noisy sum of features for each class; the nearest direction wins",
    paper="Wahdany et al. 2025 (DPPL)",
    options=PrototypesOptions,
    fit=fit,
    needs=("private",),
)
