"""Only-public: softmax regression on the public rows, near text weights if given; no private row is read.

Golatkar et al., "Mixed Differential Privacy in Computer Vision", CVPR 2022, Table 1, column Only-Public.

    1  return argmin_W  public loss(W) + lambda / 2 ||W - W_ref||^2

W_ref is 0, as in the paper. With text weights, and init auto, it is a multiple of them (`initial_weights`).

Guarantee: epsilon = 0 for the private rows.
"""

from linprobe.methods._base import Fitted, Method, Problem, Run, initial_weights
from linprobe.options import OnlyPublicOptions


def fit(problem: Problem, options: OnlyPublicOptions, run: Run) -> Fitted:
    """Train on public rows; weights (n_features, n_classes)."""
    init = "public" if problem.public is None else options.init
    return Fitted(initial_weights(problem, init=init, weight_decay=options.weight_decay, loss=problem.loss()))


METHOD = Method(
    summary="the public rows, and text weights if given; no private row",
    paper="Golatkar et al. 2022 (AdaMix), Table 1",
    options=OnlyPublicOptions,
    fit=fit,
    needs=("public",),
    spends=False,
    weighs=True,
    several_labels=True,
)
