"""Only-public: softmax regression on the public rows alone; the private rows are never read.

Golatkar et al., "Mixed Differential Privacy in Computer Vision", CVPR 2022, Table 1, column Only-Public.

    1  return argmin_W  public loss(W) + lambda / 2 ||W||^2

Guarantee: epsilon = 0 for the private rows.
"""

from __future__ import annotations

from linprobe.methods._base import Fitted, Method, Problem, Run, initial_weights
from linprobe.options import OnlyPublicOptions


def fit(problem: Problem, options: OnlyPublicOptions, run: Run) -> Fitted:
    """Train on public rows; weights (n_features, n_classes)."""
    return Fitted(initial_weights(problem, init="public", weight_decay=options.weight_decay, loss=problem.loss()))


METHOD = Method(
    summary="the public rows alone",
    paper="Golatkar et al. 2022 (AdaMix), Table 1",
    options=OnlyPublicOptions,
    fit=fit,
    needs=("public",),
    spends=False,
    weighs=True,
    several_labels=True,
)
