"""A griffe extension: docstrings of estimators, with their symbol tables and arguments as Markdown shows them."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object


class Docstrings(Extension):
    """Tables of symbols become code; "Args (all by keyword):" becomes the section of arguments."""

    def on_instance(self, *, obj: Object, **_: Any) -> None:
        """Rewrite the docstring of `obj`."""
        if obj.docstring is None:
            return
        text = obj.docstring.value.replace("Args (all by keyword):", "Args:")
        obj.docstring.value = re.sub(r"(?m)^(?:\|.*\n)+", lambda table: _code(table[0]), text)


def _code(table: str) -> str:
    return "\n".join(f"    {line}" for line in table.splitlines()) + "\n"
