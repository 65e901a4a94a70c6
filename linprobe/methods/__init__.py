"""One published algorithm per file, and the registry of methods by their name for `--method`.

Every module of this folder that defines `METHOD` is registered, in the order of `linprobe.options`.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from linprobe.errors import UsageError
from linprobe.methods._base import Fitted, Method, Problem, Run, Sampling, Schedule
from linprobe.options import METHOD_OPTIONS
from linprobe.options.declaration import declared, nearest

METHODS: dict[str, Method] = {}


def register(method: Method) -> None:
    """Register a method. Call this before `linprobe.estimators` is imported."""
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
PAPER_NOISE_MULTIPLIER = 20.0
PAPER_METHODS = ("adamix", "noisy-gd", "ngd", "ppgd", "fully-private", "non-private", "only-public")


def paper_options(method: Method) -> dict[str, Any]:
    """Settings of the AdaMix paper (section 4, A.6) for the options that `method` has."""
    settings = {name: value for name, value in PAPER_SETTINGS.items() if name in declared(method.options)}
    if method.name == "noisy-gd":
        settings["init"] = "zero"
    return settings


__all__ = [
    "METHODS",
    "PAPER_METHODS",
    "PAPER_NOISE_MULTIPLIER",
    "Fitted",
    "Method",
    "Problem",
    "Run",
    "Sampling",
    "Schedule",
    "find_method",
    "paper_options",
    "register",
]
