"""What a command tells a person while it works."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """What a command tells a person while it works."""

    def note(self, text: str) -> None:
        """One line."""

    def start(self, total: int, what: str = "training") -> None:
        """The number of steps is known; 0 if it is not."""

    def step(self, count: int = 1) -> None:
        """So many more steps are done."""


class Silent:
    """Progress that nobody watches."""

    def note(self, text: str) -> None:
        """Nothing."""

    def start(self, total: int, what: str = "training") -> None:
        """Nothing."""

    def step(self, count: int = 1) -> None:
        """Nothing."""
