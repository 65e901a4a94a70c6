"""The templates beside this file. A name that a template uses and nobody gives is an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined


def templates(*, finalize: Callable[[Any], Any], html: bool) -> Environment:
    """An environment of the templates.

    Args:
        finalize: called with every value that a template prints.
        html: whether values are escaped for HTML, and the line break at the end is dropped.
    """
    return Environment(
        loader=PackageLoader("linprobe.reporting", "."),
        autoescape=html,
        finalize=finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=not html,
    )
