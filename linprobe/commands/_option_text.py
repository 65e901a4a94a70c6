"""Values of options as text: in `--methods` of compare and `--grid` of tune."""

from __future__ import annotations

import math
from typing import Any

from linprobe.errors import ParameterError
from linprobe.methods import Method
from linprobe.options import RunOptions
from linprobe.options.declaration import arguments_of, declared


def option_kinds(method: Method) -> dict[str, Any]:
    """Type of every option of a run with `method`, by its name in `TrainRequest`."""
    declarations = [*declared(RunOptions).values(), *arguments_of(method.options).values()]
    return {declaration.parameter: declaration.kind for declaration in declarations}


def typed(flag: str, text: str, wanted: Any) -> Any:
    """`text` converted to the type `wanted`."""
    if wanted is bool:
        if text not in ("true", "false"):
            raise ParameterError(f"{flag} is {text!r}; allowed: true, false")
        return text == "true"
    if wanted not in (int, float):
        return text
    try:
        number = wanted(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ParameterError(f"{flag} is {text!r}; allowed: a {'whole ' if wanted is int else ''}number")
    return number
