"""One published algorithm a file, and the registry of them by the name given to `--method`."""

from __future__ import annotations

from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from linprobe.errors import UsageError
from linprobe.methods import (
    adadps,
    adamix,
    dope_sgd,
    dp_sgd,
    dpsgd_f,
    fully_private,
    mirror_descent,
    ngd,
    noisy_gd,
    non_private,
    only_public,
    ppgd,
    zero_shot,
)
from linprobe.methods._base import Fitted, Method, Problem, Run, Sampling, Schedule

METHODS: dict[str, Method] = {
    module.METHOD.name: module.METHOD
    for module in (
        noisy_gd,
        adamix,
        ngd,
        ppgd,
        dp_sgd,
        dpsgd_f,
        mirror_descent,
        dope_sgd,
        adadps,
        fully_private,
        only_public,
        zero_shot,
        non_private,
    )
}


def find_method(name: str) -> Method:
    """The registered method called `name`; UsageError with the nearest name otherwise."""
    if name in METHODS:
        return METHODS[name]
    near = get_close_matches(name, METHODS, n=1)
    hint = f"did you mean {near[0]}?" if near else "see `linprobe methods`"
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


def paper_options(method: Method) -> dict[str, Any]:
    """The AdaMix paper's settings (section 4, A.6), those of them that `method` has."""
    known = {option.name for option in fields(method.options)}
    settings = {name: value for name, value in PAPER_SETTINGS.items() if name in known}
    if method is noisy_gd.METHOD:
        settings["init"] = "zero"
    return settings


__all__ = [
    "METHODS",
    "PAPER_NOISE_MULTIPLIER",
    "Fitted",
    "Method",
    "Problem",
    "Run",
    "Sampling",
    "Schedule",
    "find_method",
    "paper_options",
]
