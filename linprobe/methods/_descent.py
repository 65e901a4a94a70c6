"""Step sizes, and the optimisers of the methods on Poisson samples: SGD, momentum and Adam (Kingma and Ba 2015).

Optimisers use released gradients only: post-processing, at no privacy cost. Step sizes follow from public facts: the
budget, the steps, the numbers of rows and classes, and the public rows.

A step adds noise of std eta sigma tau / q to every weight, and so to the score of a unit row. Over T steps the std is
sqrt(T) eta sigma tau / q = T eta tau / mu. It equals s nats, the score noise, for

    eta_t = s mu / (T tau_t)

Each of the N / C rows of a class moves a weight by at most eta tau per step. So T steps move a score by at most s g
nats, with g = mu N / C the ratio of signal to noise. The default s is the lesser of

    w                 the weight of the private rows against what W_1 knows; if W_1 is zero, 1, as then a common factor
                      of all scores does not matter; for noisy-gd, g / 1000 from 1 to 2 for centred rows, else g / 300
                      from 1 to 4; around a noisy mean times 2 / (3 o), at least 1, with o the share of a row that is
                      its own (`linprobe.methods.private_mean`)
    3 b T / g         if rows are not centred: a step must not move scores by more than 3 b nats, or it oscillates along
                      the common mean of the rows; b = (1 + beta) / (1 - beta) for momentum beta
    25 b T / g        if they are, and at most 10,000 / g, or 10,000 / (g r) if the last step is r times the first: the
                      same, without the common mean

A score by W_1, from k public rows per class, has an error of 1 / sqrt(k d) relative to the signal of one row, if rows
spread over d directions; noise is 1 / g. The ratio of the two, with a factor that was measured, is the weight:

    w = min(1, g / (1.5 sqrt(k d))),    1 / d = mean squared cosine between two public rows around their mean

where k d is at most 1,024 unless all public rows were taken from the training rows.
`docs/decisions/0022-score-noise.md` derives and measures it.

Text weights are unit vectors of classes, scaled by beta. A unit row in a random direction has scores of which the std
over classes is beta r / sqrt(D), r the rms distance of the unit vectors from their mean. The scale is

    beta = 0.8 sqrt(D) / r * min(1, 15 / g)

and at most 100, the scale with which CLIP was trained. A start with larger scores is wrong about some rows by more than
private rows can correct; the more these say, the less the start has to. If no mean was released, g has a factor
min(1, 2 r^2)^2 in w: rows are taken for about as alike as text vectors, and noise along the mean of rows would outweigh
what tells them apart. `docs/decisions/0042-text-weights.md` measures it.

Centred rows spread far more in some directions than in most, and steps overshoot there. So if classes have many rows
and T is less than `CENTRED_STEPS`, full-batch descent has momentum, with which T steps are as stable as `CENTRED_STEPS`
without. Its steps grow from the first to the last (`Pace`, `docs/decisions/0025-private-mean.md`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linprobe.data.rows import Rows
from linprobe.gradients.loss import Weights
from linprobe.methods._base import Iterates, Problem, Schedule, reference_weights, starting_point
from linprobe.options import CENTRED_STEPS, DEFAULT_STEPS, ENOUGH_ROWS, STEEPEST, DescentOptions, Steps
from linprobe.parallel.array_api import Reals, by_rows, on_host

ADAM_BETAS = (0.9, 0.999)
ADAM_EPSILON = 1e-12
MOMENTS = ("first_moment", "second_moment")  # in a checkpoint
LARGEST_MOVE = 3.0
COLD_RATIO, LARGEST_COLD = 300.0, 4.0  # of damped descent from zero
CENTRED_RATIO, LARGEST_CENTRED = 1000.0, 2.0  # the same around a mean
START_FACTOR = 1.5
UNKNOWN_START = 100.0  # k d of a start without public rows
TEXT_SPREAD, TRAINED_TEXT_SCALE = 0.8, 100.0
STRONGEST_START = 1024.0  # largest k d of public rows that may be from another distribution
SPREAD_ROWS = 1000


def spread(public: Rows) -> float:
    """d: the number of directions over which public rows spread around their mean, from the first `SPREAD_ROWS` rows.

    Between n rows around their mean, cosines are -1 / (n - 1) on average, which is corrected.
    """
    taken, n_rows = [], 0
    for block in public.blocks():
        taken.append(on_host(block.x[: SPREAD_ROWS - n_rows]).astype(np.float64))
        n_rows += len(taken[-1])
        if n_rows >= SPREAD_ROWS:
            break
    x = np.concatenate(taken)
    x = x - x.mean(axis=0)
    x = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-300)
    cosines = (x @ x.T)[~np.eye(n_rows, dtype=bool)] + 1 / (n_rows - 1)
    return float(1 / np.clip(np.mean(cosines**2), 1 / public.n_features, 1))


def start_strength(problem: Problem) -> float:
    """The g at which private rows weigh as much as the start: 1.5 sqrt(k d), or more for text weights."""
    public, strength = problem.public, UNKNOWN_START
    if public is not None and public.n_rows > 1:
        strength = public.n_rows / problem.n_classes * spread(public)
        strength = strength if problem.drawn else min(strength, STRONGEST_START)
    return START_FACTOR * math.sqrt(strength) / _unlikeness(problem)


def _unlikeness(problem: Problem) -> float:
    """(2 r^2)^2 of text vectors, from 1e-8 to 1, for rows whose mean may be long; else 1."""
    text = problem.text_weights
    if text is None or problem.centred or problem.short_mean:
        return 1.0
    distance = _norm_around_mean(text) / (float(np.linalg.norm(text)) or 1.0)
    return min(1.0, max(1e-4, 2 * distance**2)) ** 2


def _norm_around_mean(text: Weights) -> float:
    return float(np.linalg.norm(text - text.mean(axis=1, keepdims=True)))


def text_scale(encodings: Weights, mu: float | None, n_rows: int) -> float:
    """beta: the default scale of unit-norm text weights (n_features, n_classes).

    Args:
        mu: signal over noise of the steps; None without training. n_rows: number of private rows.
    """
    if mu is None:
        return TRAINED_TEXT_SCALE
    n_features, n_classes = encodings.shape
    distance = _norm_around_mean(encodings) / math.sqrt(n_classes)
    strength = START_FACTOR * math.sqrt(UNKNOWN_START)
    spread: float = TEXT_SPREAD * math.sqrt(n_features) * strength / max(strength, mu * n_rows / n_classes)
    return spread / max(distance, spread / TRAINED_TEXT_SCALE)


def class_signal(problem: Problem, schedule: Schedule) -> float:
    """g: the largest ratio of signal to noise in a class score, mu N / C."""
    return schedule.nominal_mu * problem.private_rows.n_rows / problem.n_classes


def private_weight(problem: Problem, schedule: Schedule) -> float:
    """w: the weight of the private rows against what W_1 knows, in [0, 1]."""
    return min(1.0, class_signal(problem, schedule) / start_strength(problem))


def score_noise(
    options: Steps,
    problem: Problem,
    schedule: Schedule,
    *,
    informed: bool,
    momentum: float = 0.0,
    row_norm: float = 1.0,
    damped: bool = False,
    preconditioned: bool = False,
    growth: float = 1.0,
) -> float:
    """s: `options.score_noise`, or the default.

    Args:
        informed: whether W_1 is not zero, or public rows complete the weights afterwards.
        momentum: beta, if directions are exponential means of gradients.
        row_norm: typical norm of a row, if it is not 1; the default s is for rows of this norm.
        damped: whether steps on rows that are not centred are damped where they overshoot, so that they need no bound.
        preconditioned: whether steps are equally long in all directions in which rows spread, or in all weights (Adam),
            so that none overshoots.
        growth: ratio of the last step to the first, which lowers the bound on s.
    """
    if options.score_noise is not None:
        return options.score_noise
    ratio, noise = class_signal(problem, schedule), problem.longer_steps
    if informed:
        noise = private_weight(problem, schedule)
    elif damped and problem.centred:
        noise *= _reach(ratio, schedule.n_steps if momentum else math.inf)
    elif damped:
        noise = min(max(1.0, ratio / COLD_RATIO), LARGEST_COLD)
    plain_steps = (1 + momentum) / (1 - momentum) * schedule.n_steps
    if problem.centred and not preconditioned and ratio > 0:
        noise = min(noise, STEEPEST * min(1.0, plain_steps / CENTRED_STEPS) / (growth * ratio))
    elif not (damped or preconditioned) and ratio > 0:
        noise = min(noise, LARGEST_MOVE * plain_steps / ratio)
    return noise / row_norm


def _reach(ratio: float, n_steps: float) -> float:
    """s of descent from zero around a mean: g / 1000, at most 2 and T / 50 (infinite without momentum), at least 1."""
    return max(1.0, min(ratio / CENTRED_RATIO, LARGEST_CENTRED, n_steps / DEFAULT_STEPS))


def step_size(options: Steps, problem: Problem, schedule: Schedule, **facts: Any) -> Callable[[float], float]:
    """eta_t as a function of tau_t: `options.learning_rate`, or from the score noise; `facts` as in `score_noise`.

    From the score noise it is at most 1 / lambda: with more, weight decay alone would overshoot.
    """
    if options.learning_rate is not None:
        given = options.learning_rate
        return lambda clip_norm: given
    scale = score_noise(options, problem, schedule, **facts) * schedule.nominal_mu / schedule.n_steps
    return lambda clip_norm: min(scale / clip_norm, 1 / options.weight_decay)


def has_momentum(options: Any) -> bool:
    """Whether descent may have the momentum of `Pace`: the step size is neither given nor from theory."""
    theory = "theory" in (getattr(options, "schedule", None), getattr(options, "variant", None))
    return options.learning_rate is None and not theory


@dataclass(frozen=True)
class Pace:
    """Momentum beta of full-batch descent, and factors f_t on its steps, shape (n_steps,).

        V <- beta V - f_t eta_t G_t,   W <- W + V           Polyak's heavy ball, 1964

    Descent without momentum is stable up to a curvature of 2 / eta, with it up to (1 + beta) / (1 - beta) times as much
    for the same move along a constant gradient. The ratio b = M / T, with M = `CENTRED_STEPS`, gives

        beta = (M - T) / (M + T),    f_t = c (1 - beta) (1 + (sqrt(b) - 1) (t - 1) / T)

    A gradient of step t moves the last iterate by f_t eta_t (1 - beta^(T-t+1)) / (1 - beta) in all. c makes the squares
    of these factors of eta_t T in sum, so the noise of the run in a score stays s. All are public facts.

    From zero, s may be up to min(2, T / 50), and M is as many times as large as s would be by g / 1000. From another
    start, the bound on s is `growth` times as low, the ratio of the last step to the first.
    """

    momentum: float
    factors: Reals
    growth: float = 1.0

    @classmethod
    def of(cls, options: Steps, problem: Problem, schedule: Schedule, *, informed: bool = True) -> Pace:
        """Momentum for centred rows of one class each, if classes have many rows; else 0, and factors 1.

        `informed` is as in `score_noise`.
        """
        n_steps = schedule.n_steps
        many = problem.private_rows.n_rows >= ENOUGH_ROWS * problem.n_classes
        one_class = problem.centred and not problem.several_labels
        if not (many and one_class and n_steps < CENTRED_STEPS and has_momentum(options)):
            return cls(0.0, np.ones(n_steps))
        longer = 1.0 if informed else _reach(class_signal(problem, schedule), n_steps)
        plain = CENTRED_STEPS * longer
        beta = (plain - n_steps) / (plain + n_steps)
        last = math.sqrt(plain / n_steps)
        growth = np.linspace(1, last, n_steps, endpoint=False)
        moved = growth * (1 - beta ** np.arange(n_steps, 0, -1))
        factors = (1 - beta) * growth * math.sqrt(n_steps / np.sum(moved**2))
        return cls(beta, factors, last if informed else 1.0)


class Descent(Iterates):
    """Iterates with the state of an optimiser.

    Args:
        problem, options, schedule: arguments of the method.
        start: W_1; None for `options.init`.
        move: (W, step) -> W_{t+1}; None for W - step.
        clip: clip norm; None for `options.clip_norm`.
        row_norm: typical norm of a row, for the default score noise.

    Attributes:
        learning_rate: eta, which multiplies the estimated sum of gradients or Adam's direction.
    """

    def __init__(
        self,
        problem: Problem,
        options: DescentOptions,
        schedule: Schedule,
        *,
        start: Weights | None = None,
        move: Callable[[Weights, Weights], Weights] | None = None,
        clip: float | None = None,
        row_norm: float = 1.0,
    ) -> None:
        if start is None:
            start, _ = starting_point(problem, options, loss=problem.loss(options.loss))
        super().__init__(start, schedule.n_steps, options.output, options.ensemble)
        self._options = options
        self._reference = reference_weights(options.reference, start)
        self._moments = [np.zeros_like(start), np.zeros_like(start)]
        self._clip_norm = options.clip_norm if clip is None else clip
        self._move = move
        momentum = {"sgd": 0.0, "momentum": options.momentum, "adam": ADAM_BETAS[0]}[options.optimizer]
        facts: dict[str, Any] = {"informed": bool(np.any(start)), "momentum": momentum, "row_norm": row_norm}
        if options.optimizer == "adam" and options.learning_rate is None:
            noise = score_noise(options, problem, schedule, preconditioned=True, **facts)
            self.learning_rate = noise / math.sqrt(schedule.n_steps)
        else:
            self.learning_rate = step_size(options, problem, schedule, **facts)(self._clip_norm)

    def step(self, gradient: Weights, *, rate: float = 1.0, **facts: float) -> None:
        """Take a step with `gradient` / `rate`, an estimate of the summed gradient (n_features, n_classes).

        Intermediate results stay in cache. `facts` are added to the history.
        """
        after = np.empty_like(self.weights)
        kept = {"sgd": 0, "momentum": 1, "adam": 2}[self._options.optimizer]
        moments = [np.empty_like(moment) for moment in self._moments[:kept]]

        def descend(rows: slice) -> None:
            change = self.weights[rows] - self._reference[rows]
            change *= self._options.weight_decay
            change += gradient[rows] / rate
            change = self._direction(change, rows, moments)
            change *= self.learning_rate
            after[rows] = change if self._move else self.weights[rows] - change

        by_rows(after, descend)
        self._moments[:kept] = moments
        if self._move:
            after = self._move(self.weights, after)
        self.move(after, clip_norm=self._clip_norm, learning_rate=self.learning_rate, **facts)

    def _direction(self, gradient: Weights, rows: slice, moments: Sequence[Weights]) -> Weights:
        """The optimiser's direction for some rows of the gradient; writes the same rows of the new moments."""
        if self._options.optimizer == "sgd":
            return gradient
        if self._options.optimizer == "momentum":
            moments[0][rows] = self._options.momentum * self._moments[0][rows] + gradient
            return np.asarray((1 - self._options.momentum) * moments[0][rows])
        for moment, before, decay, term in zip(
            moments, self._moments, ADAM_BETAS, (gradient, gradient**2), strict=True
        ):
            moment[rows] = decay * before[rows] + (1 - decay) * term
        t = len(self.history) + 1
        first, second = (moment[rows] / (1 - decay**t) for moment, decay in zip(moments, ADAM_BETAS, strict=True))
        return np.asarray(first / (np.sqrt(second) + ADAM_EPSILON))

    def mean_gradient(self) -> Weights:
        """The exponential mean of the gradients so far, which begins at 0; of `momentum` and `adam` alone."""
        first: Weights = self._moments[0]
        return (1 - self._options.momentum) * first if self._options.optimizer == "momentum" else first

    def state(self) -> dict[str, Any]:
        return {**super().state(), **dict(zip(MOMENTS, self._moments, strict=True))}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        super().restore(state)
        self._moments = [state[name] for name in MOMENTS]
