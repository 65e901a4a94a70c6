"""Non-private: softmax regression on all rows, the paragon to which private methods are compared.

Golatkar et al., "Mixed Differential Privacy in Computer Vision", CVPR 2022, Table 1, column Non-Private.

    1  return argmin_W  loss(W; private and public rows) + lambda / 2 ||W||^2

Guarantee: none. The manifest says `not private` and reports no epsilon.
"""

import numpy as np

from linprobe.data.rows import join
from linprobe.gradients.loss import minimise
from linprobe.methods._base import Fitted, Method, Problem, Run
from linprobe.options import NonPrivateOptions


def fit(problem: Problem, options: NonPrivateOptions, run: Run) -> Fitted:
    """Train on every row; weights (n_features, n_classes)."""
    rows = problem.private_rows if problem.public is None else join(problem.private_rows, problem.public)
    zeros = np.zeros((problem.n_features, problem.n_classes))
    weights = minimise(
        rows, zeros, weight_decay=options.weight_decay, reference=zeros, loss=problem.loss(), on_iteration=run.on_step
    )
    return Fitted(weights)


METHOD = Method(
    summary="all rows without any protection, for comparison",
    paper="Golatkar et al. 2022 (AdaMix), Table 1",
    options=NonPrivateOptions,
    fit=fit,
    needs=("private",),
    spends=False,
    private=False,
    weighs=True,
    several_labels=True,
)
