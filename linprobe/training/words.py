"""What every `--dry-run` states, and how it is put into words."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from linprobe.accounting.book import Spending
from linprobe.accounting.calibrate import Budget
from linprobe.accounting.figures import rounded_down
from linprobe.accounting.row_keys import PRIVATE_IN_ALL
from linprobe.errors import counted

Lines = list[tuple[str, str]]
NO_BOOK = "that does not exist yet"


@dataclass(frozen=True)
class DryRun:
    """What a command would read, spend and write: JSON-ready `facts`, and `lines` for people, each with its subject."""

    facts: dict[str, Any]
    lines: Lines


def bytes_in_words(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def seconds_in_words(seconds: float) -> str:
    """A duration, as `12 s`, `3.5 min` or `2.1 h`."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def time_line(seconds: float, what: str) -> Lines:
    return [("time", f"about {seconds_in_words(seconds)} for {what}, on this machine without other load")]


def plan_in_words(budget: Budget) -> str:
    """Steps, noise and sampling rate of a budget, and what is released besides."""
    text = f"{counted(budget.n_steps, 'step')}, noise multiplier {rounded_down(budget.noise_multiplier, 4)}"
    if budget.sampling_rate != 1:
        text += f", sampling rate {budget.sampling_rate:g}"
    besides = Counter[str]()
    for release in budget.others:
        besides[release.purpose] += release.count
    return text + "".join(f", {counted(count, 'release')} for {purpose}" for purpose, count in besides.items())


def together_facts(spent: Spending | None) -> dict[str, Any] | None:
    """What all runs of a budget book would have cost, JSON-ready."""
    if spent is None:
        return None
    stated = spent.as_dict()
    return {name: stated[name] for name in ("runs", "not_private_runs", "epsilon", "delta", "epsilon_by_unit")}


def together_line(spent: Spending | None, least: int = 2) -> Lines:
    """The line on the cost of all runs of a budget book, if these are `least` or more, or some are without privacy."""
    if spent is None or not spent.runs or (spent.runs < least and not spent.not_private_runs):
        return []
    return [("together", f"{counted(spent.runs, 'run')} on these rows cost {cost_of_all(spent)}")]


def cost_of_all(spent: Spending) -> str:
    """What runs cost together, for which rows, and how many runs no epsilon covers."""
    count, text = spent.not_private_runs, spent.in_words + (PRIVATE_IN_ALL if spent.runs > 1 else "")
    return f"{text}, and no epsilon covers {counted(count, 'run')} without privacy on these rows" if count else text


def written(*texts: str, book: Path | None) -> Lines:
    return listed("writes", (*texts, f"budget book {NO_BOOK if book is None else book}"))


def listed(about: str, texts: Iterable[str]) -> Lines:
    return [("" if place else about, text) for place, text in enumerate(texts)]
