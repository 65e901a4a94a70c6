"""Zero-shot: the class-name encodings themselves, scaled; no image is read.

Golatkar et al., "Mixed Differential Privacy in Computer Vision", CVPR 2022, section 3.3; Radford et al. 2021 (CLIP).

    1  return beta [enc(c_1), ..., enc(c_C)]

Guarantee: epsilon = 0.
"""

from linprobe.methods._base import Fitted, Method, Problem, Run, initial_weights
from linprobe.options import ZeroShotOptions


def fit(problem: Problem, options: ZeroShotOptions, run: Run) -> Fitted:
    """Weights (n_features, n_classes) from the text encodings."""
    return Fitted(initial_weights(problem, init="text", weight_decay=1.0))


METHOD = Method(
    summary="text encodings of the class names, no rows at all",
    paper="Golatkar et al. 2022 (AdaMix), section 3.3",
    options=ZeroShotOptions,
    fit=fit,
    needs=("text",),
    spends=False,
)
