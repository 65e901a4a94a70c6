"""`config.toml` of a run: the options of `linprobe train` that repeat it, at its price."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from linprobe.methods import Method
from linprobe.options import TRAIN
from linprobe.options.declaration import Option, arguments_of, declared
from linprobe.options.requests import TrainRequest

OF_ONE_RUN = {"out", "resume", "sign", "book", "options"}  # not repeated
HEADER = """\
# The options of this run. linprobe train --config FILE trains with them again, and spends their budget again.
"""


def config_text(request: TrainRequest, method: Method) -> str:
    """TOML text with the options that differ from the defaults, by their flags."""
    options = {option.parameter: option for group in TRAIN for option in declared(group).values()}
    options |= {option.parameter: option for option in arguments_of(method.options).values()}
    given: dict[str, Any] = {}
    for field in fields(request):
        value = getattr(request, field.name)
        if field.name not in OF_ONE_RUN and value is not None and (field.default is MISSING or value != field.default):
            given[field.name] = value
    given |= request.options or {}
    lines = (f"{_key(options[name])} = {_value(value)}\n" for name, value in given.items())
    return HEADER + "".join(lines)


def _key(option: Option) -> str:
    return option.parameter if option.argument is not None else option.spellings[0].removeprefix("--")


def _value(value: Any) -> str:
    """A value in TOML. Its strings have the escapes of JSON."""
    return json.dumps(str(value) if isinstance(value, Path) else value, ensure_ascii=False)
