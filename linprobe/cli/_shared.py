"""Flags and printing that several commands share."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]


def print_json(value: Any) -> None:
    """One JSON object on stdout."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))
