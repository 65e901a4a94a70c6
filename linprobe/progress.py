"""Progress of a long command, as it is shown to the user."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receives notes and step counts while a command runs."""

    def note(self, text: str) -> None:
        """Show one line of text."""

    def start(self, total: int, what: str = "training") -> None:
        """Begin counting `total` steps; 0 if their number is not known."""

    def step(self, count: int = 1) -> None:
        """Count `count` more steps as done."""


class Silent:
    """Progress that shows nothing."""

    def note(self, text: str) -> None:
        """Do nothing."""

    def start(self, total: int, what: str = "training") -> None:
        """Do nothing."""

    def step(self, count: int = 1) -> None:
        """Do nothing."""
