"""A griffe extension: docstrings of estimators, with their symbol tables and arguments as Markdown shows them."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object


class Docstrings(Extension):
    """Tables become code, lines after >>> the examples, and "Args (all by keyword):" the section of arguments."""

    def on_instance(self, *, obj: Object, **_: Any) -> None:
        """Rewrite the docstring of `obj`."""
        if obj.docstring is None:
            return
        text = obj.docstring.value.replace("Args (all by keyword):", "Args:")
        obj.docstring.value = re.sub(r"(?m)^(?:\|.*\n)+", lambda table: _code(table[0]), text)
        examples = r"(?m)^>>> (?:.+(?:\n|\Z))+"
        obj.docstring.value = re.sub(examples, lambda lines: f"Examples:\n{_code(lines[0])}", obj.docstring.value)


def _code(table: str) -> str:
    return "\n".join(f"    {line}" for line in table.splitlines()) + "\n"
