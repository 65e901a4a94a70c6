"""PDA-DPMD: mirror descent in the geometry of the public loss.

Amid, Ganesh, Mathews, Ramaswamy, Song, Steinke, Suriyakumar, Thakkar, Thakurta, "Public Data-Assisted Mirror Descent
for Private Model Training", ICML 2022, Algorithm 1 and equation 1.

    1  W_1 <- optimum of the public loss Psi
    2  for t = 1..T:
    3      B   <- Poisson sample of the private records at rate q
    4      G   <- 1/q (sum_{i in B} clip_C(g_i(W_t)) + N(0, sigma^2 C^2 I)), shortened to N L if asked
    5a     first-order:  W <- W - eta * optimiser(alpha_t G + (1 - alpha_t) N grad Psi(W_t) + lambda (W - W_ref))
    5b     exact:        W <- V with  grad Phi(V) = grad Phi(W) - eta * optimiser(G + lambda (W - W_ref)),
                         Phi = (Psi + kappa/2 ||W||^2) / (least eigenvalue of its Hessian)
    6  return an average of the iterates, the last one, or a vote

| paper   | code       |  | paper | code             |
| ------- | ---------- |  | ----- | ---------------- |
| C       | clip_norm  |  | sigma | noise_multiplier |
| L       | extra_clip |  | q     | sampling_rate    |
| alpha_t | alpha: cos(pi t / (2K)), K = horizon |  | kappa | ridge * mean ||x||^2 / D |

Psi is the mean public loss. Without the ridge, the softmax loss has directions without curvature, and 5b has no
solution. With it, the least eigenvalue is kappa for softmax. For squared loss the Hessian is X^T X / n + kappa I, and a
step is a linear solve. Because of the division, no direction moves further than in DP-SGD. 5a with alpha = 1 is DP-SGD.
Guarantee: T-fold composition of the Poisson-subsampled Gaussian mechanism at (q, sigma), for every fixed public set.
"""

import math
from collections.abc import Callable

import numpy as np

from linprobe.data.rows import Rows, join
from linprobe.errors import ParameterError
from linprobe.gradients.loss import Weights, loss_and_gradient
from linprobe.methods._base import Fitted, Method, Problem, PublicFacts, Run
from linprobe.methods._descent import Descent
from linprobe.options import MirrorDescentOptions
from linprobe.parallel.array_api import Reals
from linprobe.parallel.threads import blas_module

MIRROR_ITERATIONS = 20
LANCZOS_FROM = 500


def alphas(options: MirrorDescentOptions, n_steps: int) -> Reals:
    """alpha_1..alpha_T of the first-order update, shape (n_steps,)."""
    if options.alpha is not None:
        return np.full(n_steps, options.alpha)
    horizon = 4 * n_steps if options.horizon is None else options.horizon
    return np.cos(np.pi * np.arange(1, n_steps + 1) / (2 * horizon))


def check_horizon(options: MirrorDescentOptions, facts: PublicFacts) -> None:
    """ParameterError if the cosine of line 5a would turn negative within the steps."""
    if options.horizon is not None and options.horizon < facts.n_steps:
        raise ParameterError(f"horizon is {options.horizon}; allowed: at least the number of steps, {facts.n_steps}")


def _least_eigenvalue(matrix: Weights, factor: tuple[Weights, bool]) -> float:
    """Least eigenvalue of a positive definite matrix, given its Cholesky factor; by Lanczos if the matrix is large."""
    if len(matrix) < LANCZOS_FROM:
        return float(blas_module("scipy.linalg").eigvalsh(matrix, subset_by_index=(0, 0))[0])
    sparse, solve = blas_module("scipy.sparse.linalg"), blas_module("scipy.linalg").cho_solve
    inverse = sparse.LinearOperator(matrix.shape, matvec=lambda v: solve(factor, v), dtype=np.float64)
    largest = sparse.eigsh(inverse, k=1, v0=np.ones(len(matrix)), return_eigenvectors=False)
    return 1 / float(largest[0])


def mirror_map(public: Rows, options: MirrorDescentOptions) -> Callable[[Weights, Weights], Weights]:
    """Line 5b: the function (W, eta G) -> V, each of shape (n_features, n_classes)."""
    rows = join(public)
    # the loss of zero rows has no curvature, and any ridge will do
    squared_length = float(np.mean(rows.norms**2)) or 1.0
    kappa = options.ridge * squared_length / rows.n_features
    if options.loss == "squared":
        wide = rows.x.astype(np.float64)
        hessian = wide.T @ wide / rows.n_rows + kappa * np.eye(rows.n_features)
        linalg = blas_module("scipy.linalg")
        factor = linalg.cho_factor(hessian)
        least = _least_eigenvalue(hessian, factor)
        return lambda weights, step: weights - least * linalg.cho_solve(factor, step)

    def gradient_of_map(weights: Weights) -> tuple[float, Weights]:
        loss, gradient = loss_and_gradient(rows, weights)
        value = loss / rows.n_rows / kappa + float((weights**2).sum()) / 2
        return value, gradient / rows.n_rows / kappa + weights

    def solve(weights: Weights, step: Weights) -> Weights:
        dual = gradient_of_map(weights)[1] - step

        def objective(flat: Reals) -> tuple[float, Reals]:
            point = flat.reshape(weights.shape)
            value, gradient = gradient_of_map(point)
            return value - float((dual * point).sum()), (gradient - dual).ravel()

        found = blas_module("scipy.optimize").minimize(
            objective, weights.ravel(), jac=True, method="L-BFGS-B", options={"maxiter": MIRROR_ITERATIONS}
        )
        return np.asarray(found.x, dtype=np.float64).reshape(weights.shape)

    return solve


def fit(problem: Problem, options: MirrorDescentOptions, run: Run) -> Fitted:
    exact = options.update == "exact"
    schedule, public = run.schedule, problem.public_rows
    n_private = problem.private_rows.n_rows
    descent = Descent(problem, options, schedule, move=mirror_map(public, options) if exact else None)
    private_weights = np.ones(schedule.n_steps) if exact else alphas(options, schedule.n_steps)
    for t in run.steps(descent):
        alpha = private_weights[t - 1]
        released = run.gradient(
            problem.private_rows, descent.weights, options.clip_norm, loss=problem.loss(options.loss)
        )
        gradient = released / schedule.sampling_rate
        longest = math.inf if options.extra_clip is None else options.extra_clip * n_private
        gradient = gradient * min(1.0, longest / max(float(np.linalg.norm(gradient)), 1e-300))
        public_loss, public_gradient = loss_and_gradient(public, descent.weights, problem.loss(options.loss))
        mixed = alpha * gradient + (1 - alpha) * (n_private / public.n_rows) * public_gradient
        descent.step(mixed, alpha=float(alpha), public_loss=public_loss / public.n_rows)
    return Fitted(descent.result(), descent.history, start=descent.start)


METHOD = Method(
    summary="private gradients in the geometry of the public loss, over Poisson samples",
    paper="Amid et al. 2022 (PDA-DPMD), Algorithm 1 and equation 1",
    options=MirrorDescentOptions,
    fit=fit,
    needs=("private", "public"),
    check=check_horizon,
)
