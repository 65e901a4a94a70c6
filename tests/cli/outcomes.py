"""Helpers of the tests of commands: read the output and the files of a command."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

NOISY = ["--method", "noisy-gd", "--eps", "3"]

Cli = Callable[..., Any]


def result_of(outcome: Any) -> dict[str, Any]:
    """The JSON object that a command printed."""
    assert outcome.status == 0, outcome
    return dict(json.loads(outcome.stdout))


def weights_of(run: Path) -> Any:
    """The released weights of a run folder."""
    with np.load(run / "model.npz") as model:
        return model["weights"]
