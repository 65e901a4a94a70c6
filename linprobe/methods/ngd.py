"""NGD: AdaMix without its adaptive parts, the ablation baseline of the same paper.

Golatkar et al., "Mixed Differential Privacy in Computer Vision", CVPR 2022, Appendix A.1 and Figure 5.

    1  W_1 <- optimum on the public rows (or text weights)
    2  for t = 1..T:
    3      G <- sum_i clip_tau(g_i(W_t)) + N(0, sigma^2 tau^2 I)          tau fixed, no projection
    4      W <- W - eta_t (G_pub(W_t) + G + lambda (W - W_ref))
    5  return the last iterate, or a mean or vote of the last n

Symbols as in noisy_gd.py. Guarantee: sqrt(T)/sigma - Gaussian DP of the private rows under zero-out adjacency.
"""

from linprobe.gradients.loss import loss_and_gradient
from linprobe.methods._base import Fitted, Iterates, Method, Problem, Run, descended, starting_point
from linprobe.methods._descent import step_size
from linprobe.options import NGDOptions
from linprobe.parallel.array_api import norm


def fit(problem: Problem, options: NGDOptions, run: Run) -> Fitted:
    schedule, public = run.schedule, problem.public_rows
    weights, reference = starting_point(problem, options, backend=run.backend)
    eta = step_size(options, problem, schedule, informed=bool(norm(weights) > 0))(options.clip_norm)
    iterates = Iterates(weights, schedule.n_steps, options.output, options.ensemble)
    for _ in run.steps(iterates):
        weights = iterates.weights
        public_loss, public_gradient = loss_and_gradient(public, weights, backend=run.backend)
        gradient = run.gradient(problem.private_rows, weights, options.clip_norm)
        weights = descended(weights, eta, [public_gradient, gradient], options.weight_decay, reference)
        facts = {"clip_norm": options.clip_norm, "learning_rate": eta, "public_loss": public_loss / public.n_rows}
        iterates.move(weights, **facts)
    return Fitted(iterates.result(), iterates.history, start=iterates.start)


METHOD = Method(
    summary="AdaMix with a fixed clip norm and no projection",
    paper="Golatkar et al. 2022 (AdaMix), Appendix A.1",
    options=NGDOptions,
    fit=fit,
    needs=("private", "public"),
    weighs=True,
)
