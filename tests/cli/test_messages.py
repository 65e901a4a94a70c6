"""Messages that name the value, the place and the next step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from linprobe import AdaMix, NoisyGD
from linprobe.errors import ArgumentError, ParameterError
from tests.cli.outcomes import Cli

Refused = Callable[..., None]


def test_a_wrong_argument_of_an_estimator_says_what_was_meant() -> None:
    with pytest.raises(ArgumentError, match="did you mean epsilon"):
        NoisyGD(eps=3)


@pytest.mark.parametrize("name", ["epsilon", "delta", "noise_multiplier", "n_steps", "clip_norm"])
def test_a_number_given_as_text_is_named(name: str) -> None:
    probe = NoisyGD(**{"epsilon": 3.0, "classes": [0, 1], name: "3"})
    with pytest.raises(ParameterError, match=f"{name} is '3', which is text; allowed: a number"):
        probe.fit(np.eye(4), [0, 1, 0, 1])
    assert AdaMix(epsilon=3, classes=["0", "1"]).get_params()["classes"] == ["0", "1"]


@pytest.mark.parametrize("command", ["train", "predict", "extract"])
def test_a_usage_error_points_to_the_help_of_its_command(cli: Cli, refused: Refused, command: str) -> None:
    refused(cli(command, "--no-such-option"), 2, [f"See linprobe {command} --help."])


def test_a_run_without_a_budget_has_no_epsilon_in_its_name(cli: Cli, features_file: Path) -> None:
    folder = cli("train", features_file, "--method", "non-private", "--eps", "1").stdout.strip()
    assert Path(folder).name.startswith("non-private-2")
