"""Printing that several commands share."""

from __future__ import annotations

import json
from typing import Any

import typer


def print_json(value: Any) -> None:
    """One JSON object on stdout."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))
