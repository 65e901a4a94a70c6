"""DP-LS: least squares from a noisy second moment of the features and noisy sums of the features of each class.

Mehta, Krichene, Thakurta, Kurakin, Cutkosky, "Differentially Private Image Classification from Features", TMLR 2023
(arXiv 2211.13403), DP-LS; Wang, "Revisiting Differentially Private Linear Regression", UAI 2018, for the ridge.

    1  A <- sum_i x_i x_i^T + noise, eigenvalues at least 0           (_directions.py)
    2  B <- sum_i x_i onehot(y_i)^T + N(0, sigma^2 I)
    3  lambda <- weight decay + noise ridge sigma_A sqrt(2 D)
    4  return W = (A + lambda I)^-1 B

| paper    | code                                |  | paper    | code                   |
| -------- | ----------------------------------- |  | -------- | ---------------------- |
| sigma_A  | schedule.others["covariance"]       |  | sigma    | noise_multiplier       |
| lambda   | weight_decay, noise_ridge           |  | D        | n_features             |

Rows are scaled down to length 1, so both sums have sensitivity 1: the second is the gradient of the squared loss at
zero weights, with residuals of length 1. The spectral norm of the noise in A is about sigma_A sqrt(2 D). Line 3 takes
the ridge in this unit, like AdaSSP, but without its release of the smallest eigenvalue (docs/decisions/0024-peers.md).
The paper also releases a second moment for each class, with a weight 1 / alpha; here alpha is infinite, which saves
that release and the memory of C matrices.

Guarantee: two Gaussian mechanisms, mu = sqrt(1 / sigma_A^2 + 1 / sigma^2) - Gaussian DP under zero-out adjacency.
"""

import numpy as np

from linprobe.methods._base import Fitted, Iterates, Method, Problem, Run
from linprobe.methods._directions import check_covariance, covariance_share, released_covariance
from linprobe.options import DPLSOptions


def fit(problem: Problem, options: DPLSOptions, run: Run) -> Fitted:
    covariance = released_covariance(problem, run)
    ridge = options.weight_decay + options.noise_ridge * covariance.noise
    values = np.maximum(covariance.values, 0.0)
    zeros = np.zeros((problem.n_features, problem.n_classes))
    solution = Iterates(zeros, run.schedule.n_steps, "last")
    for _ in run.steps(solution):
        sums = -run.gradient(problem.private_rows, zeros, 1.0, loss="squared")
        solution.move(covariance.scaled(sums, 1 / (values + ridge)), ridge=ridge)
    return Fitted(solution.result(), solution.history)


METHOD = Method(
    summary="least squares from a noisy covariance and noisy class sums",
    paper="Mehta et al. 2023 (DP-LS)",
    options=DPLSOptions,
    fit=fit,
    needs=("private",),
    shares=covariance_share,
    check=check_covariance,
)
