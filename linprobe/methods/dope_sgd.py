"""DOPE-SGD: clip private gradients around an estimate from public rows, or from earlier releases.

Nasr, Mahloujifar, Tang, Mittal, Houmansadr, "Effectively Using Public Data in Privacy Preserving Machine Learning",
ICML 2023, Algorithms 1 and 2, equation 2.

    1  public rows <- public rows and draws from class-conditional Gaussians fitted on them, if asked; W_1 <- init
    2  for t = 1..T:
    3      g   <- mean public gradient at W_t over a fresh public batch; or the optimiser's mean of released
                  gradients per record, so far                                                 (algorithm 1, if asked)
    4      g   <- g min(1, lambda_o / ||g||)                                                   (equation 2, if asked)
    5      B   <- Poisson sample of the private records at rate q
    6      G   <- 1/q (b g + sum_{i in B} clip_C(g_i(W_t) - g) + N(0, sigma^2 C^2 I)),   b = qN
    7      W   <- W - eta * optimiser(G + lambda (W - W_ref))
    8  return the last iterate, or an average or a vote of the last ones

| paper    | code        |  | paper  | code             |
| -------- | ----------- |  | ------ | ---------------- |
| C        | clip_norm   |  | sigma  | noise_multiplier |
| lambda_o | origin_norm |  | q      | sampling_rate    |

The paper adds |B_t| g with the realised batch size, which it assumes to be independent of the data. Under zero-out
adjacency with Poisson sampling |B_t| depends on the data, so the public constant qN replaces it; then the sensitivity
is C. `extended` adds a share of the public rows to the private rows. They are clipped alike, at no privacy cost.
Guarantee: T-fold composition of the Poisson-subsampled Gaussian mechanism at (q, sigma), for every fixed public set. In
a step g is fixed by public rows and earlier releases, so the composition is adaptive and its cost the same.
"""

import numpy as np

from linprobe.data.blocks import BLOCK_ROWS, normalise_rows
from linprobe.data.rows import ArrayRows, ChainedRows, join
from linprobe.errors import ParameterError, UsageError
from linprobe.gradients.loss import Origin, Weights, loss_and_gradient
from linprobe.methods._base import Fitted, Method, Problem, PublicFacts, Run, check_memory, public_generator
from linprobe.methods._descent import Descent
from linprobe.options import DopeSGDOptions

BYTES = 8  # per number of a row that is drawn: the row, and a copy beside the public rows


def gaussian_rows(public: ArrayRows, n_classes: int, n_rows: int) -> ArrayRows:
    """Synthetic public rows, a simple model (Mood 1950) in place of the image generators of section 3.

    Samples `n_rows` rows of class mean + N(0, pooled within-class covariance), scaled to unit norm, class by class. A
    sum of the public rows' residuals with normal weights has this covariance, so no covariance matrix is formed.
    Classes without public rows get no samples. A class with two public rows is needed.
    """
    means = np.zeros((n_classes, public.n_features))
    labels = public.y.astype(np.intp)
    counts = np.bincount(labels, minlength=n_classes)
    np.add.at(means, labels, public.x)
    means /= np.maximum(counts, 1)[:, None]
    freedom = public.n_rows - int((counts > 0).sum())
    residuals = (public.x - means[labels]).astype(np.float32)
    present = np.flatnonzero(counts)
    y = present[np.arange(n_rows) % len(present)]
    generator = public_generator()
    x = np.empty((n_rows, public.n_features), dtype=np.float32)
    for start in range(0, n_rows, BLOCK_ROWS):
        part = slice(start, start + BLOCK_ROWS)
        weights = generator.standard_normal((len(y[part]), public.n_rows), dtype=np.float32) / np.sqrt(freedom)
        x[part] = normalise_rows((means[y[part]] + weights @ residuals).astype(np.float32))
    return ArrayRows(x, y)


def clip_origin(origin: Weights, longest: float | None) -> Weights:
    """Equation 2: the origin, scaled to length `longest` if it is longer."""
    length = float(np.linalg.norm(origin))
    return origin if longest is None or length <= longest else origin * (longest / length)


def check_public(options: DopeSGDOptions, facts: PublicFacts) -> None:
    """Refuse larger batches than there are public rows, and draws beyond the memory or without a covariance."""
    public, size = facts.public, options.public_batch
    needed = BYTES * options.augment_public * facts.n_features
    check_memory(f"augment-public {options.augment_public} rows", needed, "give fewer")
    n_rows = options.augment_public + (0 if public is None else public.n_rows)
    if size is not None and size > n_rows:
        raise ParameterError(f"public-batch is {size}; allowed: 1 to the number of public rows, {n_rows}")
    if options.augment_public and public is not None and public.n_rows <= facts.n_classes:
        labels = np.concatenate([y for _, y in public.blocks()])
        if len(np.unique(labels)) == len(labels):
            raise UsageError("augment-public needs a class with two public rows and got none; give more public rows")


def fit(problem: Problem, options: DopeSGDOptions, run: Run) -> Fitted:
    schedule, private = run.schedule, problem.private_rows
    public = join(problem.public_rows)
    if options.augment_public:
        public = join(public, gaussian_rows(public, problem.n_classes, options.augment_public))
        problem = problem.with_public(public)
    size = public.n_rows if options.public_batch is None else options.public_batch
    if options.extended:
        joining = public_generator().permutation(public.n_rows)[: round(options.extended * public.n_rows)]
        private = ChainedRows(private, ArrayRows(public.x[joining], public.y[joining]))
    descent, loss = Descent(problem, options, schedule), problem.loss(options.loss)
    for t in run.steps(descent):
        facts: dict[str, float] = {}
        if options.origin == "history":
            gradient = descent.mean_gradient() / private.n_rows
        else:
            batch = public
            if size < public.n_rows:
                chosen = public_generator(t).choice(public.n_rows, size, replace=False)
                batch = ArrayRows(public.x[chosen], public.y[chosen])
            total, gradient = loss_and_gradient(batch, descent.weights, loss)
            gradient, facts = gradient / size, {"public_loss": total / size}
        origin = clip_origin(gradient, options.origin_norm)
        released = run.gradient(private, descent.weights, options.clip_norm, geometry=Origin(origin), loss=loss)
        descent.step(
            private.n_rows * origin + released / schedule.sampling_rate,
            origin_norm=float(np.linalg.norm(origin)),
            **facts,
        )
    return Fitted(descent.result(), descent.history, start=descent.start)


METHOD = Method(
    summary="private gradients clipped around the public gradient, over Poisson samples",
    paper="Nasr et al. 2023 (DOPE-SGD), Algorithms 1 and 2 and equation 2",
    options=DopeSGDOptions,
    fit=fit,
    needs=("private", "public"),
    check=check_public,
)
