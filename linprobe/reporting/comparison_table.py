"""A comparison in words: a table, one row for each method and setting and one column for each epsilon, and notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from linprobe.accounting.figures import gaussian_words, rounded_up
from linprobe.runs.units import ONE

Header = tuple[str, ...]
Rows = list[tuple[str, ...]]


def comparison_table(summary: Sequence[Mapping[str, Any]], best: str, *, balanced: bool = False) -> tuple[Header, Rows]:
    """Header and cells; a cell is the test accuracy, or the balanced accuracy, in percent as `mean ± std`.

    Rows that spend nothing have the same figure in every column.

    Args:
        summary: objects as `linprobe compare` writes them, in the order of the table.
        best: format of the cell that beats the others of its column and setting, for example `**{}**`.
    """
    mean, std, top = (f"balanced_{key}" if balanced else key for key in ("mean", "std", "best"))
    epsilons = sorted({one["epsilon"] for one in summary if one["epsilon"] is not None})
    varied = [key for key in ("public", "shots") if len({one[key] for one in summary}) > 1]
    header = ("method", *varied, *(f"eps {rounded_up(epsilon)}" for epsilon in epsilons))
    if not epsilons:
        header = (*header, "accuracy, %")
    lines: dict[tuple[str, ...], dict[float | None, str]] = {}
    for one in summary:
        name = (one["method"], *("-" if one[key] in (None, "") else str(one[key]) for key in varied))
        cell = f"{100 * one[mean]:.1f}" + ("" if one[std] is None else f" ± {100 * one[std]:.1f}")
        lines.setdefault(name, {})[one["epsilon"]] = best.format(cell) if one[top] else cell
    columns: list[float | None] = [*epsilons] or [None]
    return header, [(*name, *(cells.get(at, cells.get(None, "-")) for at in columns)) for name, cells in lines.items()]


def balance_matters(summary: Sequence[Mapping[str, Any]]) -> bool:
    """Whether balanced accuracy differs from accuracy anywhere: the test classes have different numbers of rows."""
    return any(abs(one["balanced_mean"] - one["mean"]) > 1e-9 for one in summary)


def markdown(header: Header, rows: Rows) -> str:
    """A table in Markdown."""
    rule = ("---", *("---:" for _ in header[1:]))
    return "".join(f"| {' | '.join(line)} |\n" for line in (header, rule, *rows))


def no_better(compared: dict[str, Any]) -> str | None:
    """A warning that names the rows that are right no more often than the answer that is always the commonest class."""
    found = [
        one["method"] + ("" if one["epsilon"] is None else f" at epsilon {rounded_up(one['epsilon'])}")
        for one in compared["summary"]
        if one["mean"] <= compared["commonest_share"]
    ]
    if not found:
        return None
    return (
        f"test accuracy is not above {compared['commonest_share']:.4f}, that of always answering "
        f"{compared['commonest_class']!r}, for: {', '.join(dict.fromkeys(found))}"
    )


def footer(composed: dict[str, Any]) -> str:
    """The total cost of all runs of a comparison, in one or two sentences."""
    text, one = "no run released anything with noise", ONE[composed["unit"]]
    if composed["private_runs"]:
        text = (
            f"{composed['private_runs']} runs released something with noise: together epsilon "
            f"{rounded_up(composed['epsilon'])} at delta {rounded_up(composed['delta'])} for {one} private in all "
            f"of them ({composed['accountant']}; {gaussian_words(composed['gdp_mu'], composed['zcdp_rho'])}); "
            f"{one} that was public in any of them had no protection there"
        )
    if composed["not_private_runs"]:
        text += (
            f"; {composed['not_private_runs']} non-private runs are not covered by any epsilon: if the rows are really "
            "private, leave them out with --no-baselines"
        )
    return text
