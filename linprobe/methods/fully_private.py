"""Fully-private: NoisyGD from zero with the public rows protected like the private ones.

Golatkar et al., "Mixed Differential Privacy in Computer Vision", CVPR 2022, Table 1, column Fully-Private.

    1  D <- private rows and public rows together, all protected
    2  return NoisyGD(D) from W_1 = 0

Guarantee: sqrt(T)/sigma - Gaussian DP of all rows under zero-out adjacency.
"""

from linprobe.methods import noisy_gd
from linprobe.methods._base import Fitted, Method, Problem, Run
from linprobe.options import FullyPrivateOptions, NoisyGDOptions


def fit(problem: Problem, options: FullyPrivateOptions, run: Run) -> Fitted:
    return noisy_gd.fit(problem, NoisyGDOptions(init="zero", **vars(options)), run)


METHOD = Method(
    summary="noisy-gd from zero, public rows protected like private ones",
    paper="Golatkar et al. 2022 (AdaMix), Table 1",
    options=FullyPrivateOptions,
    fit=fit,
    needs=("private",),
    joins_public=True,
    weighs=True,
    several_labels=True,
)
