"""Differentially private linear probing on frozen features.

Estimators, one per method: `NoisyGD`, `AdaMix`, `DPSGD` and the others of `linprobe.__all__`. `load_run` makes a
classifier of a run folder. `train`, `plan`, `tune`, `compare`, `refine`, `predict`, `evaluate`, `verify`, `budget` and
`account` are the commands of those names.
Nothing heavy is imported until one of these names is used.
"""

from __future__ import annotations

# above the imports: the modules below import it
__version__ = "0.2.1"

from importlib import import_module
from typing import Any

from linprobe.options import METHOD_OPTIONS
from linprobe.options.declaration import estimator_name

_COMMANDS = ("account", "budget", "compare", "evaluate", "plan", "predict", "refine", "train", "tune", "verify")
_ESTIMATORS = "linprobe.api.estimators"  # home of the other names
_HOMES = {"PrivacyWarning": "linprobe.errors", **dict.fromkeys(_COMMANDS, "linprobe.api")}

__all__ = ["PrivacyWarning", "__version__", "load_run", *_COMMANDS]
__all__ += sorted(estimator_name(options) for options in METHOD_OPTIONS.values())


def __getattr__(name: str) -> Any:
    if name not in (*__all__, *map(estimator_name, METHOD_OPTIONS.values())):  # a method may be registered later
        raise AttributeError(f"module 'linprobe' has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, _ESTIMATORS)), name)


def __dir__() -> list[str]:
    """The public names, so that completion offers the estimators before they are imported."""
    return sorted(__all__)
