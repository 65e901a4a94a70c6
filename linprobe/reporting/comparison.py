"""A comparison in tables, sentences and plots.

A table has one row for each method and setting and one column for each epsilon. In a plot, rows differ in colour,
marker and line, so that a plot can be read without colours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from linprobe.accounting.figures import ONE, gaussian_words, rounded_up
from linprobe.reporting.comparison_metrics import Setting, Summary
from linprobe.reporting.plots import GREY, PALETTE, new_figure

Header = tuple[str, ...]
Rows = list[tuple[str, ...]]
MARKERS = "osD^vP*X"
DASHES = ("-", "--", "-.", ":")
MOST_PANELS_A_ROW = 3
APART = 0.02  # distance of the rows at one epsilon, in decades, so that error bars stay apart


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
    """A warning that names the rows whose predictions are no better than the majority class."""
    found = [
        one["method"] + ("" if one["epsilon"] is None else f" at epsilon {rounded_up(one['epsilon'])}")
        for one in compared["summary"]
        if one["mean"] <= compared["commonest_share"]
    ]
    if not found:
        return None
    return (
        f"test accuracy is not above {compared['commonest_share']:.4f}, the accuracy of always predicting "
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


@contextmanager
def _panels(path: Path, panels: int, title: str, note: str) -> Iterator[list[Any]]:
    """`new_figure` with a grid of `panels` panels and one legend."""
    columns = min(panels, MOST_PANELS_A_ROW)
    rows = -(-panels // columns)
    size = (3 + 4.2 * columns, 1 + 3.8 * rows)
    with new_figure(path, size, rows, columns, title=title, note=note, sharey=True) as axes:
        for unused in axes[panels:]:
            unused.set_visible(False)
        yield axes[:panels]
        named = {label: line for one in axes for line, label in zip(*one.get_legend_handles_labels(), strict=True)}
        if axes[panels:]:
            empty = axes[panels]
            empty.set_visible(True)
            empty.axis("off")
            empty.legend(named.values(), named.keys(), loc="center")
        else:
            axes[0].figure.legend(named.values(), named.keys(), loc="outside center right", fontsize="small")
        for left in axes[:panels:columns]:
            left.tick_params(labelleft=True)


def _settings(summaries: Sequence[Summary]) -> list[Setting]:
    return list(dict.fromkeys(summary.setting for summary in summaries))


def _epsilons(summaries: Sequence[Summary]) -> list[float]:
    return sorted({summary.epsilon for summary in summaries if summary.epsilon is not None})


def _title(setting: Setting) -> str:
    """The source of public rows, in words."""
    rows = "row" if setting.shots == 1 else "rows"
    shots = "" if setting.shots is None else f"{setting.shots} public {rows} per class"
    return ", ".join(part for part in (f"public rows: {setting.public}" if setting.public else "", shots) if part)


def _ticks(axis: Any, values: Sequence[float]) -> None:
    """Ticks at these values only."""
    axis.set_ticks(values, [f"{value:g}" for value in values])
    axis.set_ticks([], minor=True)


def _style(rows: Sequence[str]) -> dict[str, dict[str, Any]]:
    """A colour, a marker and a line for each row, the same in every panel."""
    return {
        row: {
            "color": PALETTE[place % len(PALETTE)],
            "marker": MARKERS[place % len(MARKERS)],
            "linestyle": DASHES[place // 2 % len(DASHES)],
            "markersize": 6,
            "label": row,
        }
        for place, row in enumerate(rows)
    }


def _aside(place: int, rows: int) -> float:
    """A factor that moves the points of a row aside, so that error bars of several rows do not hide each other."""
    return float(10 ** (APART * (place - (rows - 1) / 2)))


def _apart(rows: Sized) -> str:
    """A note that points at the same epsilon are drawn side by side, if they are."""
    return "" if len(rows) == 1 else "\nPoints of several methods stand side by side."


def _spread(summaries: Sequence[Summary], what: str = "mean") -> str:
    """What the error bars are, and over how many runs."""
    runs = sorted({summary.runs for summary in summaries})
    seeds = f"{runs[0]} seed{'s' * (runs[0] != 1)}" if len(runs) == 1 else f"{runs[0]} to {runs[-1]} seeds"
    return f"Points: {what} over {seeds}" + (", no spread." if runs[-1] == 1 else "; bars: one standard deviation.")


def accuracy_against_epsilon(
    path: Path, summaries: Sequence[Summary], public: str, paragon: str, about: str
) -> Path | None:
    """Test accuracy of every row against epsilon, one panel per setting (the AdaMix paper's figure 1).

    Rows that spend nothing are horizontal lines, dashed for the row `public` and dotted for the row `paragon`.
    `about` names the data and their number.

    Returns: `path`, or None if no row spends.
    """
    spending = [summary for summary in summaries if summary.epsilon is not None]
    if not spending:
        return None
    settings = _settings(spending)
    styles = _style(list(dict.fromkeys(summary.row for summary in spending)))
    level = {public: (GREY, "--"), paragon: ("black", ":")}
    title, note = f"Test accuracy against epsilon\n{about}", _spread(spending) + _apart(styles)
    with _panels(path, len(settings), title=title, note=note) as panels:
        for axes, setting in zip(panels, settings, strict=True):
            for place, (row, style) in enumerate(styles.items()):
                aside = _aside(place, len(styles))
                line = [one for one in spending if one.row == row and one.setting == setting]
                at = [aside * (one.epsilon or 0.0) for one in line]
                spread = [100 * (one.std or 0.0) for one in line]
                axes.errorbar(at, [100 * one.mean for one in line], yerr=spread, capsize=3, **style)
            for one in summaries:
                if one.epsilon is None and one.setting == setting:
                    color, dashes = level.get(one.row, (GREY, "-."))
                    axes.axhline(100 * one.mean, color=color, linestyle=dashes, label=one.row)
            axes.set_xscale("log")
            _ticks(axes.xaxis, _epsilons(spending))
            axes.set(xlabel="epsilon, on a logarithmic scale", title=_title(setting))
            axes.grid(alpha=0.3)
        for left in panels[::MOST_PANELS_A_ROW]:
            left.set_ylabel("test accuracy, %")
        panels[0].set_ylim(top=100)
    return path
