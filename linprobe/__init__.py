"""Differentially private linear probing on frozen features.

Estimators, one per method: `NoisyGD`, `AdaMix`, `DPSGD` and the others of `linprobe.__all__`. Run folders: `load_run`.
Nothing heavy is imported until one of these names is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from linprobe._version import __version__
from linprobe.options import METHOD_OPTIONS
from linprobe.options.declaration import estimator_name

if TYPE_CHECKING:
    from linprobe.runs.run_folder import load_run

_HOMES = {"load_run": "linprobe.runs.run_folder", "PrivacyWarning": "linprobe.errors"}

__all__ = ["PrivacyWarning", "__version__", "load_run"]
__all__ += sorted(estimator_name(options) for options in METHOD_OPTIONS.values())


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name not in map(estimator_name, METHOD_OPTIONS.values()):
        raise AttributeError(f"module 'linprobe' has no attribute {name!r}")
    return getattr(import_module("linprobe.estimators"), name)
