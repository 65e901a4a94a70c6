"""The interface of a method: `Problem` and `Run` in, `Fitted` out. Also functions that several methods share.

`Iterates` is the state of an iterative method: everything it needs to resume, except rows and noise. The released
weights are a function of the iterates: post-processing, at no privacy cost. Last-n averages, exponential averages and
majority votes: De et al. 2022 and DOPE-SGD (section 4, "ensembles"); `weighted` is the average of NoisyGD's Theorem 3.
"""

from __future__ import annotations

import json
import math
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from linprobe.data.blocks import Source
from linprobe.data.rows import Rows
from linprobe.errors import ParameterError, UsageError
from linprobe.gradients.backend import HOST, Backend
from linprobe.gradients.clipped_sum import Subspace, clipped_sum
from linprobe.gradients.loss import PLAIN, Geometry, Weights, best_scale, checked_weights, minimise
from linprobe.mechanisms.gaussian import ClippedSum, GaussianMechanism
from linprobe.mechanisms.noise import PoissonSampler
from linprobe.options import DEFAULT_STEPS, SAMPLED_STEPS, Init, Loss, Output, Reference
from linprobe.options.declaration import Option, Options, arguments_of, make_options
from linprobe.parallel import available_memory
from linprobe.parallel.array_api import Reals, by_rows, inner, namespace, norm, on_host
from linprobe.parallel.process_group import ALONE, Group

ENSEMBLES = ("average", "ema", "vote")
NO_PUBLIC_ROWS = "no public rows were given; give --public FILE or --public-shots K"
NO_TEXT = "init is 'text', but the feature file has no text/weights; allowed here: zero, public"
ENSEMBLE_SHARE = 0.1
TEXT_SHARE, TEXT_SCALE_SPREAD, LARGEST_TEXT_SCALE = 0.5, 10.0, 100.0  # of text weights beside public rows
DEVIATIONS, REVERSAL, GROWTH = 3.0, 0.1, 1.2  # of the damping


class Iterates:
    """The iterate W_t, the released weights computed from W_1..W_T, and public facts of each step.

    Args:
        start: W_1, shape (n_features, n_classes).
        n_steps: T.
        output: `last`: the last iterate. `average`: the mean of the last n. `weighted`: sum_t 2t / (T(T+1)) W_t. `ema`:
            an exponential moving average with decay 1 - 2/(n+1), which spans n iterates. `vote`: the last n iterates,
            each with one vote.
        ensemble: n, at most T; None for a tenth of the steps.
        momentum: beta of `coasted`.

    Attributes:
        weights: W_t. history: one dictionary per step.
    """

    def __init__(
        self, start: Weights, n_steps: int, output: Output, ensemble: int | None = None, momentum: float = 0.0
    ) -> None:
        size = max(1, round(ENSEMBLE_SHARE * n_steps)) if ensemble is None else int(ensemble)
        self.weights = self._start = self._before = start
        self._momentum = momentum
        self.history: list[dict[str, float]] = []
        self._kind, self._n_steps = output, n_steps
        self._size = size if output in ENSEMBLES else 1
        self._sum: Weights | float = 0.0
        self._voters: deque[Weights] = deque(maxlen=self._size)

    def move(self, after: Weights, **facts: float) -> None:
        """Replace W_t with `after`, which is W_{t+1}; add `facts` to the history."""
        t, before = len(self.history) + 1, self.weights
        if self._kind == "weighted":
            self._sum = self._sum + before * (2 * t / (self._n_steps * (self._n_steps + 1)))
        elif self._kind == "ema":
            share = 1.0 if t == 1 else 2 / (self._size + 1)
            self._sum = self._sum + share * (after - self._sum)
        elif t > self._n_steps - self._size:
            if self._kind == "vote":
                self._voters.append(after)
            else:
                self._sum = self._sum + after / self._size
        self._before, self.weights = before if self._momentum else self._before, after
        self.history.append({"step": t, **facts})

    def coasted(self, after: Weights) -> Weights:
        """`after` + beta (W_t - W_{t-1}): the step goes on as the one before."""
        if not self._momentum:
            return after
        moved: Weights = after + self._momentum * (self.weights - self._before)
        return moved

    @property
    def start(self) -> Weights:
        """W_1, on the host; synchronises with the device."""
        return on_host(self._start)

    def result(self) -> Weights:
        """Released weights, on the host: (n_features, n_classes), or (ensemble, n_features, n_classes) for votes."""
        if self._kind == "vote":
            return on_host(namespace(self._voters[0]).stack(list(self._voters)))
        return on_host(self._sum)

    def state(self) -> dict[str, Any]:
        """The whole state, for a checkpoint: arrays, and the history as a list."""
        total = np.asarray(self._sum) if isinstance(self._sum, float) else self._sum
        voters = {f"voter_{place}": voter for place, voter in enumerate(self._voters)}
        before = {"before": self._before} if self._momentum else {}
        return {"weights": self.weights, "history": list(self.history), "output": total, **before, **voters}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self.weights, self._sum = state["weights"], state["output"]
        self._before = state.get("before", self._before)
        self.history = json.loads(str(state["history"]))
        self._voters.extend(state[f"voter_{place}"] for place in range(self._size) if f"voter_{place}" in state)


def descended(
    weights: Weights, eta: float, gradients: Sequence[Weights], weight_decay: float, reference: Weights
) -> Weights:
    """W - eta (sum of gradients + weight_decay (W - reference)); intermediate results stay in cache."""
    after: Weights = namespace(weights).empty_like(weights)

    def descend(rows: slice) -> None:
        step = weights[rows] - reference[rows]
        step *= weight_decay
        for gradient in gradients:
            step += gradient[rows]
        step *= -eta
        step += weights[rows]
        after[rows] = step

    by_rows(weights, descend)
    return after


class DampedIterates(Iterates):
    """Iterates with a factor f_t: smaller steps when released gradients show that steps overshoot.

    Jacobs, "Increased rates of convergence through learning rate adaptation", Neural Networks 1988, with one rate for
    all weights.

    1  f_1 <- 1
        2  for t = 2..T:  a <- <G_t, G_{t-1}>,  b <- 3 sigma tau sqrt(||G_t||^2 + ||G_{t-1}||^2)
        3                 f_t <- f_{t-1} / 2           if a < -b and a < -||G_t|| ||G_{t-1}|| / 10
        4                        min(1, 1.2 f_{t-1})   if a > b
        5                        f_{t-1}               else

    After a step that overshoots, the next gradient points backwards. b is three standard deviations of what noise adds
    to a, so noise alone hardly ever changes f. f_t is a function of releases: post-processing, at no privacy cost. f_t
    never exceeds 1, so the noise of the run stays within the score noise.

    Arguments and attributes as in `Iterates`.
    """

    def __init__(
        self, start: Weights, n_steps: int, output: Output, ensemble: int | None = None, momentum: float = 0.0
    ) -> None:
        super().__init__(start, n_steps, output, ensemble, momentum)
        self._factor = 1.0
        self._previous, self._length = 0.0 * start, 0.0

    def damped(self, gradient: Weights, noise: float) -> float:
        """f_t, after the released `gradient` with noise of standard deviation `noise` per entry."""
        longer, other = float(norm(gradient)), self._length
        turn, chance = float(inner(gradient, self._previous)), DEVIATIONS * noise * math.hypot(longer, other)
        if turn < -max(chance, REVERSAL * longer * other):
            self._factor /= 2
        elif turn > chance:
            self._factor = min(1.0, GROWTH * self._factor)
        self._previous, self._length = gradient, longer
        return self._factor

    def state(self) -> dict[str, Any]:
        return {**super().state(), "damping": np.array([self._factor]), "previous": self._previous}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        super().restore(state)
        self._factor, self._previous = float(on_host(state["damping"])[0]), state["previous"]
        self._length = float(norm(self._previous))


@dataclass(frozen=True)
class Problem:
    """Rows in training space and what is publicly known about the task. Weights are (n_features, n_classes)."""

    n_features: int
    n_classes: int
    private: Rows | None = None  # protected under zero-out of one record, or person; None if not read
    public: Rows | None = None  # labelled
    drawn: bool = False  # whether all public rows were taken from the training rows, and so are distributed alike
    text_weights: Weights | None = None  # class encodings in training space; scaled if there are no public rows
    run_weights: Weights | None = None  # of an earlier run
    centred: bool = False  # whether the mean of the rows was subtracted: no direction holds most of their length
    longer_steps: float = 1.0  # factor on the score noise of a start from zero, where a mean is noisy
    short_mean: bool = False  # whether a released mean of the rows was too short to subtract
    several_labels: bool = False  # whether each row has a 0 or 1 for every class, (n_rows, n_classes)

    def with_public(self, public: Rows) -> Problem:
        return replace(self, public=public, drawn=False)

    def loss(self, chosen: Loss | None = None) -> Loss:
        """The loss `chosen` by an option; by default the loss for the kind of labels."""
        return chosen or ("sigmoid" if self.several_labels else "softmax")

    @property
    def gradient_rank(self) -> int:
        """Largest rank of a summed gradient: softmax residuals sum to 0 in each row, sigmoid residuals need not."""
        return self.n_classes if self.several_labels else self.n_classes - 1

    @property
    def private_rows(self) -> Rows:
        if self.private is None:
            raise UsageError("no private rows were given; this method trains on them; give training rows")
        return self.private

    @property
    def public_rows(self) -> Rows:
        if self.public is None:
            raise UsageError(NO_PUBLIC_ROWS)
        return self.public


@dataclass(frozen=True)
class Schedule:
    """Number, noise and sampling rate of the releases of a run."""

    n_steps: int  # gradient releases T
    noise_multiplier: float  # noise std of a gradient release divided by the clip norm; 0: no noise and no privacy
    nominal_mu: float  # q sqrt(T) / noise_multiplier: signal over noise of the run; the GDP parameter if q = 1
    sampling_rate: float = 1.0  # q, the probability that a private record joins a step
    others: Mapping[str, float] = field(default_factory=dict)  # noise multipliers by purpose


class Keeper(Protocol):
    """Keeps the state of a run, so that another process can resume the run."""

    def restored(self) -> Mapping[str, NDArray[Any]] | None:
        """The state to resume from; None for a new run."""

    def offer(self, state: Mapping[str, Any]) -> None:
        """Receive the state after a step, and write it now or later."""

    def withdraw(self) -> None:
        """Drop the state that was offered last, as its arrays will change. A state already written stays."""


@dataclass(frozen=True)
class Run:
    """Everything a method needs besides the data and its options."""

    schedule: Schedule
    mechanism: GaussianMechanism
    on_step: Callable[[], None]  # called after every step
    sampler: PoissonSampler | None = None
    per_record: bool = True  # whether to compute the contribution of each record
    keeper: Keeper | None = None  # writes checkpoints
    group: Group = ALONE  # the processes, each with a shard of the private rows
    backend: Backend = HOST  # holds rows, weights and noise

    def steps(self, iterates: Iterates) -> Iterator[int]:
        """Yield the numbers of the steps: 1 to T, or those that remain in a resumed run.

        The caller changes `iterates` before it requests the next step. Then the weights of rank 0 are broadcast and the
        state is offered to the keeper.
        """
        done = 0
        state = None if self.keeper is None else self.keeper.restored()
        if state is not None:
            done = int(state["done"])
            iterates.restore(_placed(state, HOST if isinstance(iterates.weights, np.ndarray) else self.backend))
            self.mechanism.restore(_placed(state, self.backend))  # contributions are there, wherever the weights are
        else:
            self.mechanism.ratchet()
            if self.keeper is not None:
                self._offer(0, iterates)
        for t in range(done + 1, self.schedule.n_steps + 1):
            yield t
            iterates.weights = self.group.broadcast(iterates.weights)
            if self.keeper is not None:
                self.keeper.withdraw()
            self.mechanism.settle()
            self.mechanism.ratchet()
            self._offer(t, iterates)
            self.on_step()

    def _offer(self, done: int, iterates: Iterates) -> None:
        if self.keeper is not None:
            self.keeper.offer({"done": np.array(done), **iterates.state(), **self.mechanism.state()})

    def gradient(
        self,
        rows: Rows,
        weights: Weights,
        clip_norm: float,
        *,
        subspace: Subspace | None = None,
        geometry: Geometry = PLAIN,
        loss: Loss = "softmax",
    ) -> Weights:
        """The noised sum of clipped gradients over a Poisson sample, or over all rows if the sampling rate is 1.

        Shape (n_features, n_classes), on the host if `weights` are; one release of sensitivity `clip_norm`.
        """
        on_the_host = isinstance(weights, np.ndarray)
        if on_the_host and self.backend is not HOST:
            weights = self.backend.put(checked_weights(weights))
        clipped = clipped_sum(
            self.batch(rows),
            weights,
            clip_norm,
            subspace=subspace,
            geometry=geometry,
            loss=loss,
            per_record=self.per_record,
            backend=self.backend,
            all_reduce=self.group.all_reduce,
        )
        noise_multiplier = self.schedule.noise_multiplier
        released = self.mechanism.release(clipped, noise_multiplier, purpose="gradient", projection=subspace)
        return on_host(released) if on_the_host else released

    def released(self, total: ClippedSum, purpose: str) -> Reals:
        """A sum on the host with the noise that the schedule has for `purpose`, drawn on the back end; on the host."""
        put = self.backend.put
        placed = replace(total, value=put(total.value), contributions=put(total.contributions))
        return on_host(self.mechanism.release(placed, self.schedule.others[purpose], purpose=purpose))

    def batch(self, rows: Rows) -> Rows:
        """The rows of the next step: a Poisson sample, or all rows if the sampling rate is 1."""
        if self.schedule.sampling_rate == 1:
            return rows
        if self.sampler is None or self.sampler.rate != self.schedule.sampling_rate:
            raise ValueError(f"the run has no sampler of rate {self.schedule.sampling_rate}; give it one")
        sampled = self.sampler.draw(rows.n_local, rows.first)
        return rows.sample(sampled, self.schedule.sampling_rate, observed=self.per_record)


def _placed(state: Mapping[str, NDArray[Any]], backend: Backend) -> dict[str, Any]:
    """The state with its float64 arrays on a back end."""
    return {name: backend.put(value) if value.dtype == np.float64 else value for name, value in state.items()}


@dataclass(frozen=True)
class Fitted:
    weights: Weights  # in training space, (n_features, n_classes); voters are the first axis
    history: list[dict[str, float]] = field(default_factory=list)
    bias: Weights | float = 0.0  # class scores of a zero row, (n_classes,), or 0; voters are the first axis
    start: Weights | None = None  # the weights before the first step
    start_bias: Weights | float = 0.0

    def shrunk(self, factor: float) -> Fitted:
        """The same, the update from `start` multiplied by `factor`. Post-processing. Raises UsageError: no `start`."""
        if factor == 1:
            return self
        if self.start is None:
            raise UsageError(f"shrink is {factor:g}, and the method has no initial weights; leave out --shrink")
        weights = self.start + factor * (self.weights - self.start)
        return replace(self, weights=weights, bias=self.start_bias + factor * (self.bias - self.start_bias))


@dataclass(frozen=True)
class Share:
    """A part of the budget besides the steps: ledger `purpose`, `count` of releases, `epsilon_share` in (0, 1)."""

    purpose: str
    epsilon_share: float
    count: int = 1


def never(options: Any) -> bool:
    """False: of a method without momentum."""
    return False


def unchanged(options: Any, has_public: bool) -> Any:
    """Options that public rows do not decide."""
    return options


@dataclass(frozen=True)
class PublicFacts:
    """What a plan knows: steps, shape of weights, unprotected `public` rows or None, whether it has `text` weights."""

    n_steps: int
    n_features: int
    n_classes: int
    public: Source | None = None
    text: bool = False


def unchecked(options: Any, facts: PublicFacts) -> None:
    """Any options that the method takes fit any run."""


def no_shares(options: Any) -> tuple[Share, ...]:
    """No releases besides the steps."""
    return ()


def check_memory(what: str, needed: int, instead: str) -> None:
    """UsageError if `what` needs more than half of the free memory; `needed` is in bytes."""
    free = available_memory.available()
    if needed > free // 2:
        raise UsageError(
            f"{what} need {needed / 2**30:.1f} GiB; allowed: half of the {free / 2**30:.1f} GiB that are free; "
            f"{instead}"
        )


@dataclass(frozen=True)
class Method:
    summary: str  # one line, as `paper`
    paper: str
    options: type[Options]  # its class, with the method's name and whether it trains on a GPU
    fit: Callable[[Problem, Any, Run], Fitted]
    needs: tuple[str, ...]  # of `private`, `public` and `text`
    spends: bool = True  # whether it releases private sums with noise, which costs budget
    private: bool = True  # whether the result has a privacy guarantee
    joins_public: bool = False  # whether public rows are protected like private ones
    n_steps: int | None = None  # default number, if steps cost more than a gradient
    resolve: Callable[[Any, bool], Any] = unchanged  # no lambdas: processes get a method by pickling
    shares: Callable[[Any], tuple[Share, ...]] = no_shares  # parts of the budget for releases other than the steps
    check: Callable[[Any, PublicFacts], None] = unchecked  # refuses options that do not fit the run, before a charge
    weighs: bool = False  # whether weights of rows multiply all of its losses, private and public
    several_labels: bool = False  # whether it trains on rows with several labels
    has_momentum: Callable[[Any], bool] = never  # whether few steps on centred rows have momentum (`_descent.Pace`)

    @cached_property
    def name(self) -> str:
        return self.options.method

    @property
    def documentation(self) -> str:
        """The docstring of its module: citation, pseudo-code, symbols, guarantee."""
        return sys.modules[self.fit.__module__].__doc__ or ""

    @cached_property
    def arguments(self) -> dict[str, Option]:
        """All arguments of its estimator: shared ones, then its own."""
        return arguments_of(self.options)

    @cached_property
    def samples(self) -> bool:
        """Whether it trains on Poisson samples, and not on all rows in every step."""
        return "sampling_rate" in self.arguments

    @cached_property
    def one_step(self) -> bool:
        """Whether the method spends its budget without steps: it then makes one gradient release."""
        return self.spends and "n_steps" not in self.arguments

    @property
    def default_steps(self) -> int:
        """Number of gradient releases if the caller gives neither steps nor noise."""
        if self.one_step:
            return 1
        if self.n_steps is not None:
            return self.n_steps
        return SAMPLED_STEPS if self.samples else DEFAULT_STEPS

    def make_options(self, given: Mapping[str, Any]) -> Any:
        """The method's options, with defaults. UsageError: one it does not have. ParameterError: not allowed."""
        return make_options(self.options, given)

    def refuse(self, options: Any, facts: PublicFacts) -> None:
        """UsageError or ParameterError for options that do not fit these facts: of many methods, then by `check`."""
        init, ensemble = getattr(options, "init", "auto"), getattr(options, "ensemble", None)
        for name, value in (("init", init), ("centre", getattr(options, "centre", "auto"))):
            if value == "public" and facts.public is None:
                raise UsageError(f"{name} is 'public', but {NO_PUBLIC_ROWS}")
        if init == "text" and not facts.text:
            raise UsageError(NO_TEXT)
        if ensemble is not None and ensemble > facts.n_steps:
            raise ParameterError(f"ensemble is {ensemble}; allowed: 1 to the number of steps, {facts.n_steps}")
        self.check(options, facts)


def public_generator(step: int = 0) -> np.random.Generator:
    """A reproducible generator for public choices, such as the order of public rows. Never use it for noise."""
    return np.random.Generator(np.random.PCG64(step))


def initial_weights(
    problem: Problem, *, init: Init, weight_decay: float, loss: Loss = "softmax", backend: Backend = HOST
) -> Weights:
    """W_1, shape (n_features, n_classes): zeros, the public optimum, text weights, or weights of an earlier run.

    `auto` is `public` if there are public rows, else `text` if there are text weights, else `zero`. With both, weight
    decay of the public optimum pulls towards half of the scale at which text weights alone fit the public rows best,
    as far as these tell: a scale is taken for normal around 0 with deviation `TEXT_SCALE_SPREAD`.

    Raises UsageError: `public` without public rows, `text` without text weights, or `run` without weights of a run.
    """
    text = problem.text_weights if init == "auto" else None
    if init == "auto":
        init = "public" if problem.public is not None else "text" if problem.text_weights is not None else "zero"
    weights = np.zeros((problem.n_features, problem.n_classes))
    if init == "public":
        public = problem.public_rows
        if text is not None:
            scale = best_scale(
                public, text, spread=TEXT_SCALE_SPREAD, most=LARGEST_TEXT_SCALE, loss=loss, backend=backend
            )
            weights = TEXT_SHARE * scale * text
        weights = minimise(public, weights, weight_decay=weight_decay, reference=weights, loss=loss, backend=backend)
    elif init == "text":
        if problem.text_weights is None:
            raise UsageError(NO_TEXT)
        weights = problem.text_weights
    elif init == "run":
        if problem.run_weights is None:
            raise UsageError("init is 'run', but there are no weights of a run; allowed here: auto, zero, public, text")
        weights = problem.run_weights
    placed: Weights = backend.put(weights)
    return placed


def starting_point(
    problem: Problem, options: Any, *, loss: Loss = "softmax", backend: Backend = HOST
) -> tuple[Weights, Weights]:
    """W_1 and W_ref, both (n_features, n_classes), by the options `init`, `weight_decay` and `reference`.

    W_ref is the point that weight decay pulls towards: W_1 (`init`) or zeros (`zero`). Errors as of `initial_weights`.
    """
    weights = initial_weights(problem, init=options.init, weight_decay=options.weight_decay, loss=loss, backend=backend)
    return weights, reference_weights(options.reference, weights)


def project_to_ball(weights: Weights, centre: Weights, radius: float | None) -> Weights:
    """Nearest point to `weights` with ||W - centre|| <= radius; unchanged without a radius."""
    if radius is None:
        return weights
    offset = weights - centre
    projected: Weights = centre + offset * (radius / norm(offset).clip(radius, None))
    return projected


def reference_weights(kind: Reference, start: Weights) -> Weights:
    """W_ref, the point that weight decay pulls towards: the initial weights (`init`) or zeros (`zero`)."""
    return start if kind == "init" else 0.0 * start
