"""Differentially private linear probing on frozen features.

Estimators: `NoisyGD`, `AdaMix`, `NGD`, `PPGD`, `DPSGD`, `DPSGDF`, `MirrorDescent`, `DopeSGD`, `AdaDPS`, `FullyPrivate`,
`OnlyPublic`, `ZeroShot`, `NonPrivate`. Run folders: `load_run`. Nothing heavy is imported until one of these names is
used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from linprobe._version import __version__

if TYPE_CHECKING:
    from linprobe.estimators import (
        DPSGD,
        DPSGDF,
        NGD,
        PPGD,
        AdaDPS,
        AdaMix,
        DopeSGD,
        FullyPrivate,
        MirrorDescent,
        NoisyGD,
        NonPrivate,
        OnlyPublic,
        ZeroShot,
    )
    from linprobe.runs.run_folder import load_run

_HOMES = {"load_run": "linprobe.runs.run_folder"}

__all__ = [
    "DPSGD",
    "DPSGDF",
    "NGD",
    "PPGD",
    "AdaDPS",
    "AdaMix",
    "DopeSGD",
    "FullyPrivate",
    "MirrorDescent",
    "NoisyGD",
    "NonPrivate",
    "OnlyPublic",
    "ZeroShot",
    "__version__",
    "load_run",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'linprobe' has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "linprobe.estimators")), name)
