"""AdaDPS: divide gradients by the public second moment before they are clipped and noised.

Li, Zaheer, Reddi, Smith, "Private Adaptive Optimization with Side Information", ICML 2022, Algorithm 1, as Nasr et al.
2023 compare with it.

    1  W_1 <- init
    2  for t = 1..T:
    3      A   <- sqrt(mean over public records of g_j(W_t) * g_j(W_t)), divided by its root mean square, plus a floor
    4      B   <- Poisson sample of the private records at rate q
    5      G   <- 1/q (sum_{i in B} clip_C(g_i(W_t) / A) + N(0, sigma^2 C^2 I))
    6      W   <- W - eta * optimiser(G + lambda (W - W_ref))
    7  return the last iterate, or an average or a vote of the last ones

| paper   | code        |  | paper | code             |
| ------- | ----------- |  | ----- | ---------------- |
| C       | clip_norm   |  | sigma | noise_multiplier |
| epsilon | scale_floor |  | q     | sampling_rate    |

Products and quotients of matrices are elementwise. The paper's scale has the units of a gradient. Here it is divided by
its root mean square, so it has no units, and C and eta mean the same as in `dp-sgd`.
Guarantee: T-fold composition of the Poisson-subsampled Gaussian mechanism at (q, sigma), for every fixed public set.
"""

import numpy as np

from linprobe.gradients.loss import Scale, Weights, mean_squared_gradient
from linprobe.methods._base import Fitted, Method, Problem, Run
from linprobe.methods._descent import Descent
from linprobe.options import AdaDPSOptions


def public_scale(moment: Weights, floor: float) -> Weights:
    """A from the public second moment, same shape; ones if the public gradient is zero."""
    root_mean_square = float(np.sqrt(moment.mean()))
    if root_mean_square == 0:
        return np.ones_like(moment)
    return np.asarray(np.sqrt(moment) / root_mean_square + floor, dtype=np.float64)


def fit(problem: Problem, options: AdaDPSOptions, run: Run) -> Fitted:
    schedule = run.schedule
    descent, loss = Descent(problem, options, schedule), problem.loss(options.loss)
    for _ in run.steps(descent):
        scale = public_scale(mean_squared_gradient(problem.public_rows, descent.weights, loss), options.scale_floor)
        released = run.gradient(
            problem.private_rows, descent.weights, options.clip_norm, geometry=Scale(scale), loss=loss
        )
        descent.step(released, rate=schedule.sampling_rate, scale_spread=float(scale.max() / scale.min()))
    return Fitted(descent.result(), descent.history, start=descent.start)


METHOD = Method(
    summary="private gradients divided by the size of public gradients, over Poisson samples",
    paper="Li et al. 2022 (AdaDPS), as Nasr et al. 2023 compare with it",
    options=AdaDPSOptions,
    fit=fit,
    needs=("private", "public"),
)
