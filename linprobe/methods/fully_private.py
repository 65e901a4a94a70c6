"""Fully-private: NoisyGD from zero with the public rows protected like the private ones.

Golatkar et al., "Mixed Differential Privacy in Computer Vision", CVPR 2022, Table 1, column Fully-Private.

    1  D <- private rows and public rows together, all protected
    2  return NoisyGD(D) from W_1 = 0

Guarantee: sqrt(T)/sigma - Gaussian DP of all rows under add/remove.
"""

from __future__ import annotations

from dataclasses import dataclass

from linprobe.methods import noisy_gd
from linprobe.methods._base import Fitted, Method, Problem, Run
from linprobe.methods._output import Output


@dataclass(frozen=True, kw_only=True)
class FullyPrivateOptions:
    """Options of `fully-private`; each as for `noisy-gd`."""

    clip_norm: float = 0.5
    learning_rate: float | None = None
    score_noise: float = 1.0
    weight_decay: float = 1e-2
    output: Output = "average"
    ensemble: int | None = None


def fit(problem: Problem, options: FullyPrivateOptions, run: Run) -> Fitted:
    """Train; shapes and guarantee as the module's docstring says."""
    return noisy_gd.fit(problem, noisy_gd.NoisyGDOptions(init="zero", **vars(options)), run)


METHOD = Method(
    name="fully-private",
    summary="noisy-gd from zero, public rows protected like private ones",
    paper="Golatkar et al. 2022 (AdaMix), Table 1",
    options=FullyPrivateOptions,
    fit=fit,
    needs=("private",),
    on_device=True,
    joins_public=True,
    centres=False,
)
