"""What every method is given, what it returns, and the few pieces several of them share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import numpy as np

from linprobe.errors import ParameterError, UsageError
from linprobe.mechanisms.gaussian import GaussianMechanism
from linprobe.probe import Weights, minimise
from linprobe.rows import Rows

Init = Literal["auto", "zero", "public", "text"]
Average = Literal["last", "tail", "weighted"]
TAIL_SHARE = 0.1


@dataclass(frozen=True)
class Problem:
    """Rows in training space and what is publicly known about the task.

    Attributes:
        n_features, n_classes: shape of the weights.
        private: rows protected under add/remove of one record; None where a method reads none.
        public: labelled public rows, or None.
        text_weights: unit-norm class encodings, shape (n_features, n_classes), or None.
    """

    n_features: int
    n_classes: int
    private: Rows | None = None
    public: Rows | None = None
    text_weights: Weights | None = None

    @property
    def private_rows(self) -> Rows:
        """The private rows, which the caller's method declares it needs."""
        if self.private is None:
            raise UsageError("no private rows were given; this method trains on them; give training rows")
        return self.private

    @property
    def public_rows(self) -> Rows:
        """The public rows, which the caller's method declares it needs."""
        if self.public is None:
            raise UsageError("no public rows were given; give --public FILE or --public-shots K")
        return self.public


@dataclass(frozen=True)
class Schedule:
    """How many releases at which noise: the one object behind the loop, the noise and the ledger.

    Attributes:
        n_steps: number of releases T.
        noise_multiplier: noise std divided by the clip norm; 0 adds none and is not private.
        gdp_mu: sqrt(T) / noise_multiplier.
    """

    n_steps: int
    noise_multiplier: float
    gdp_mu: float


@dataclass(frozen=True)
class Run:
    """Everything a method needs besides the data and its options."""

    schedule: Schedule
    mechanism: GaussianMechanism
    on_step: Callable[[], None]


@dataclass(frozen=True)
class Fitted:
    """Weights in training space, shape (n_features, n_classes), and one dictionary of public facts a step."""

    weights: Weights
    history: list[dict[str, float]] = field(default_factory=list)


@dataclass(frozen=True)
class Method:
    """A registered method.

    Attributes:
        name: as given to `--method`.
        summary, paper: one line each.
        options: frozen dataclass of the method's own options.
        fit: (problem, options, run) -> Fitted.
        needs: which of `private`, `public`, `text` it cannot do without.
        spends: whether it releases anything about private rows with noise.
        private: whether the result carries a guarantee at all.
        joins_public: whether public rows are protected as private ones.
        centres: whether rows are centred on the public mean by default.
    """

    name: str
    summary: str
    paper: str
    options: type[Any]
    fit: Callable[[Problem, Any, Run], Fitted]
    needs: tuple[str, ...]
    spends: bool = True
    private: bool = True
    joins_public: bool = False
    centres: bool = True

    def make_options(self, given: dict[str, Any]) -> Any:
        """The method's options from the values given; anything else keeps its default.

        Raises:
            UsageError: an option this method does not have. ParameterError: a value outside its range.
        """
        allowed = [option.name for option in fields(self.options)]
        for name in given:
            if name not in allowed:
                raise UsageError(
                    f"option {name.replace('_', '-')} does nothing for {self.name}; "
                    f"its options are: {', '.join(n.replace('_', '-') for n in allowed)}"
                )
        options = self.options(**given)
        for name, (low, high) in _RANGES.items():
            value = getattr(options, name, None)
            if value is not None and not low < value <= high:
                raise ParameterError(f"{name.replace('_', '-')} is {value}; allowed: above {low:g}, at most {high:g}")
        return options


_RANGES: dict[str, tuple[float, float]] = {
    "clip_floor": (0, 1e6),
    "clip_norm": (0, 1e6),
    "clip_quantile": (0, 1),
    "learning_rate": (0, 1e9),
    "radius": (0, 1e9),
    "score_noise": (0, 1e6),
    "strong_convexity": (0, 1e9),
    "subspace_dim": (0, 1e9),
    "text_scale": (0, 1e6),
    "weight_decay": (0, 1e9),
}


def refuse_idle(options: Any, idle: Iterable[str], why: str) -> None:
    """Refuse options among `idle` that were changed from their defaults and would do nothing.

    Raises:
        UsageError: naming the first of them.
    """
    defaults = {option.name: option.default for option in fields(options)}
    for name in idle:
        value = getattr(options, name)
        if value != defaults[name]:
            raise UsageError(f"option {name.replace('_', '-')} {value} does nothing with {why}; leave it out")


def initial_weights(problem: Problem, *, init: Init, weight_decay: float, text_scale: float) -> Weights:
    """W_1: zeros, the public optimum, or scaled text encodings; shape (n_features, n_classes).

    `auto` takes the public optimum where there are public rows, text weights where there are those, else zeros.

    Raises:
        UsageError: `public` without public rows, `text` without text weights.
    """
    if init == "auto":
        init = "public" if problem.public is not None else "text" if problem.text_weights is not None else "zero"
    zeros = np.zeros((problem.n_features, problem.n_classes))
    if init == "zero":
        return zeros
    if init == "public":
        return minimise(problem.public_rows, zeros, weight_decay=weight_decay, reference=zeros)
    if init == "text":
        if problem.text_weights is None:
            raise UsageError("init is 'text', but the feature file has no text/weights; allowed here: zero, public")
        return text_scale * problem.text_weights.astype(np.float64)
    raise ParameterError(f"init is {init!r}; allowed: auto, zero, public, text")


def learning_rate(given: float | None, score_noise: float, schedule: Schedule, clip_norm: float) -> float:
    """eta_t: the rate given, or the one under which the noise of all T steps adds up to `score_noise` nats.

    A step adds noise of std eta sigma tau to every weight, so to the score of a unit-norm row; over T steps that is
    sqrt(T) eta sigma tau = T eta tau / mu. Setting it to s gives eta_t = s mu / (T tau_t): public quantities only.
    """
    if given is not None:
        return given
    return score_noise * schedule.gdp_mu / (schedule.n_steps * clip_norm)


def project_to_ball(weights: Weights, centre: Weights, radius: float | None) -> Weights:
    """Nearest point to `weights` with ||W - centre|| <= radius; unchanged without a radius."""
    if radius is None:
        return weights
    length = float(np.linalg.norm(weights - centre))
    return weights if length <= radius else centre + (weights - centre) * (radius / length)


class IterateAverage:
    """The released weights as a function of the iterates: post-processing, free of privacy cost.

    Args:
        kind: `last` iterate; mean of the last tenth (`tail`); or `weighted`, sum_t 2t / (T(T+1)) W_t (Theorem 3).
        n_steps: T.
    """

    def __init__(self, kind: Average, n_steps: int) -> None:
        if kind not in ("last", "tail", "weighted"):
            raise ParameterError(f"average is {kind!r}; allowed: last, tail, weighted")
        self._kind = kind
        self._n_steps = n_steps
        self._tail = 1 if kind == "last" else max(1, round(TAIL_SHARE * n_steps))
        self._sum: Weights | float = 0.0

    def add(self, t: int, before: Weights, after: Weights) -> None:
        """Take in step t = 1..T, which led from `before` (W_t) to `after` (W_{t+1})."""
        if self._kind == "weighted":
            self._sum = self._sum + before * (2 * t / (self._n_steps * (self._n_steps + 1)))
        elif t > self._n_steps - self._tail:
            self._sum = self._sum + after / self._tail

    def result(self) -> Weights:
        """The average, shape (n_features, n_classes)."""
        return np.asarray(self._sum, dtype=np.float64)


def reference_weights(kind: str, start: Weights) -> Weights:
    """W_ref, what weight decay pulls towards: the initial weights (`init`) or `zero`."""
    if kind not in ("init", "zero"):
        raise ParameterError(f"reference is {kind!r}; allowed: init, zero")
    return start if kind == "init" else np.zeros_like(start)
