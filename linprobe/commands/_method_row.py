"""A row of a comparison: a method with settings, and what each of its runs chooses on private rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from linprobe.commands._option_text import option_kinds, typed
from linprobe.commands.train import TrainRequest
from linprobe.commands.tune import Tuning
from linprobe.errors import ParameterError, UsageError
from linprobe.methods import METHODS, find_method

REQUEST_OPTIONS = (
    "sigma",
    "steps",
    "sampling_rate",
    "accountant",
    "per_record",
    "centre",
    "condition",
    "intercept",
    "preset",
)
TUNING_OPTIONS = ("shrink", "repetitions")


@dataclass(frozen=True)
class MethodRow:
    """One row of the table: a method, and settings that differ from the defaults of `train`.

    Attributes:
        name: of the row. method: as given to `--method`.
        settings: fields of `TrainRequest` (`REQUEST_OPTIONS`) and options of the method.
        tuning: what each run chooses on its private rows; None for a run of `train`.
    """

    name: str
    method: str
    settings: dict[str, Any] = field(default_factory=dict)
    tuning: Tuning | None = None

    @classmethod
    def parse(cls, text: str) -> MethodRow:
        """`method` or `method:option=value:option=value`, with the option names of `linprobe train`.

        Several values with / between them, and the options shrink and repetitions, make a row of `linprobe tune`.
        """
        name, *pairs = text.strip().split(":")
        method = find_method(name)
        kinds = option_kinds(method)
        settings: dict[str, Any] = {}
        tuned: dict[str, list[str]] = {}
        for pair in pairs:
            flag, equals, value = pair.partition("=")
            option = flag.strip("-").replace("-", "_")
            if not equals or not option or not value or option in {**settings, **tuned}:
                raise UsageError(
                    f"method is {text!r}; allowed: METHOD or METHOD:OPTION=VALUE, each option once, as "
                    "dope-sgd:ensemble=5:steps=100"
                )
            if option in TUNING_OPTIONS or ("/" in value and kinds.get(option) in (int, float)):
                tuned[option] = value.split("/")
            else:
                settings[option] = typed(flag, value, kinds.get(option, str))
        return cls(text.strip(), method.name, settings, _tuning(tuned, method.name) if tuned else None)

    def request(self, **shared: Any) -> TrainRequest:
        """The arguments of `train` for this row."""
        mine = {name: value for name, value in self.settings.items() if name in REQUEST_OPTIONS}
        options = {name: value for name, value in self.settings.items() if name not in mine}
        return TrainRequest(
            method=self.method,
            checkpoint_every=math.inf if METHODS[self.method].spends else None,
            **mine,
            **shared,
            options=options,
        )


def _tuning(tuned: dict[str, list[str]], method: str) -> Tuning:
    factors = [typed("shrink", text, float) for text in tuned.pop("shrink", [])]
    repetitions = [typed("repetitions", text, int) for text in tuned.pop("repetitions", [])]
    if len(repetitions) > 1:
        raise ParameterError("repetitions has several values; allowed: one whole number")
    grid = [f"{option}={','.join(values)}" for option, values in tuned.items()]
    return Tuning.parse(grid, factors, repetitions[0] if repetitions else None, method)
