"""One published algorithm per file, and the registry of methods by their name for `--method`.

Every module of this folder that defines `METHOD` is registered, in the order of `linprobe.options`. `CHOICES` chooses
the method of a run that names none, from public facts (measured in `benchmarks/accuracy/results.json`): no row needs
epsilon, as with little budget the default score noise keeps a method at its start.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from linprobe.errors import UsageError
from linprobe.methods._base import Fitted, Method, Problem, PublicFacts, Run, Schedule
from linprobe.methods._descent import text_scale as text_scale
from linprobe.options import METHOD_OPTIONS
from linprobe.options.declaration import declared, nearest

METHODS: dict[str, Method] = {}


def register(method: Method) -> None:
    """Register a method. Call this before `linprobe.cli` is imported, which makes the flags of all methods."""
    found = {**METHODS, method.name: method}
    METHODS.clear()
    METHODS.update({name: found[name] for name in METHOD_OPTIONS if name in found})


for _module in iter_modules(__path__, f"{__name__}."):
    if (_method := getattr(import_module(_module.name), "METHOD", None)) is not None:
        register(_method)


def find_method(name: str) -> Method:
    """The registered method `name`. Raises UsageError, which suggests the nearest name, if there is none."""
    if name in METHODS:
        return METHODS[name]
    near = nearest(name, {known: known for known in METHODS})
    hint = f"did you mean {near}?" if near else "see `linprobe methods`"
    raise UsageError(f"method is {name!r}; allowed: {', '.join(METHODS)}; {hint}")


PAPER_SETTINGS: dict[str, Any] = {
    "learning_rate": 0.0025,
    "weight_decay": 1e-2,
    "reference": "zero",
    "output": "last",
    "subspace": "gradient",
    "subspace_dim": 2000,
    "clip_quantile": 0.9,
    "clip_floor": 1e-6,
}
PAPER_CHANGES: dict[str, dict[str, Any]] = {"paper": {}, "paper-clip": {"learning_rate": 5e-7, "subspace_dim": 500}}
PAPER_NOISE_MULTIPLIER = 20.0
PAPER_METHODS = ("adamix", "noisy-gd", "ngd", "ppgd", "fully-private", "non-private", "only-public")


def paper_options(method: Method, preset: str = "paper") -> dict[str, Any]:
    """Settings of the AdaMix paper (section 4, A.6) for the options that `method` has.

    Args:
        preset: `paper`, for features of ResNet-50, or `paper-clip`, for features of CLIP. The paper tries three
            learning rates for each; this is the middle one.
    """
    chosen = {**PAPER_SETTINGS, **PAPER_CHANGES[preset]}
    settings = {name: value for name, value in chosen.items() if name in declared(method.options)}
    if method.name == "noisy-gd":
        settings["init"] = "zero"
    return settings


@dataclass(frozen=True)
class ChosenMethod:
    """A row of the table: the method, and when and why it is chosen."""

    method: str
    when: str
    why: str
    holds: Callable[[bool, bool], bool]  # arguments of `choose`


CHOICES = (
    ChosenMethod("adamix", "some labelled rows are public", "adamix starts from them", lambda public, text: public),
    ChosenMethod(
        "noisy-gd", "no row is public and there are text weights", "noisy-gd starts from them", lambda _, text: text
    ),
    ChosenMethod("noisy-gd", "no row is public", "noisy-gd can centre rows on a private mean", lambda *_: True),
)


def choose(*, public: bool, text: bool) -> ChosenMethod:
    """The first row of `CHOICES` that holds, by whether labelled rows are public and whether there are text weights."""
    return next(choice for choice in CHOICES if choice.holds(public, text))


__all__ = [
    "CHOICES", "METHODS", "PAPER_METHODS", "PAPER_NOISE_MULTIPLIER", "ChosenMethod", "Fitted", "Method",
    "Problem", "PublicFacts", "Run", "Schedule", "choose", "find_method", "paper_options", "register",
]  # fmt: skip
