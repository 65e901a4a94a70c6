"""DP-SGD with large Poisson samples: any first-order optimiser on clipped, noised sums.

Abadi et al., "Deep Learning with Differential Privacy", CCS 2016, Algorithm 1, at the sampling rates of
Dörmann et al., "Not all noise is accounted equally", 2021.

    1  W_1 <- init
    2  for t = 1..T:
    3      B   <- Poisson sample of the private records at rate q
    4      G   <- 1/q (sum_{i in B} clip_C(g_i(W_t)) + N(0, sigma^2 C^2 I))
    5      W   <- W - eta * optimiser(G + lambda (W - W_ref))
    6  return the last iterate, or an average or a vote of the last ones

| paper | code          |  | paper  | code             |
| ----- | ------------- |  | ------ | ---------------- |
| C     | clip_norm     |  | sigma  | noise_multiplier |
| q     | sampling_rate |  | lambda | weight_decay     |
| eta   | learning_rate |  | W_ref  | reference        |

G estimates the sum over all N records, so that eta means the same at every q; 1/q and 1/(qN) are public constants.
Guarantee: T-fold composition of the Poisson-subsampled Gaussian mechanism at (q, sigma), under zero-out adjacency.
"""

from linprobe.methods._base import Fitted, Method, Problem, Run
from linprobe.methods._descent import Descent
from linprobe.options import DPSGDOptions


def fit(problem: Problem, options: DPSGDOptions, run: Run) -> Fitted:
    schedule = run.schedule
    descent, loss = Descent(problem, options, schedule), problem.loss(options.loss)
    for _ in run.steps(descent):
        released = run.gradient(problem.private_rows, descent.weights, options.clip_norm, loss=loss)
        descent.step(released, rate=schedule.sampling_rate)
    return Fitted(descent.result(), descent.history, start=descent.start)


METHOD = Method(
    summary="any optimiser on clipped, noised sums over Poisson samples",
    paper="Abadi et al. 2016; Dörmann et al. 2021",
    options=DPSGDOptions,
    fit=fit,
    needs=("private",),
    weighs=True,
    several_labels=True,
)
