"""A comparison in tables, sentences and plots.

Figures of merit: Golatkar et al. 2022 (AdaMix), section 4: test error against epsilon, and the performance boost.
"""

from __future__ import annotations

import statistics
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from linprobe.accounting.figures import ONE, gaussian_words, rounded_up
from linprobe.errors import counted
from linprobe.reporting.plots import COLUMN, accuracy_curves, name_ends, new_figure


@dataclass(frozen=True, slots=True)
class Setting:
    """The source of public rows: a file's name, empty without one, and `shots` per class out of the training rows."""

    public: str = ""
    shots: int | None = None


Summary = dict[str, Any]
"""Runs that differ only in their seed: mean and sample standard deviation (None for a single run), number."""


def beats(mean: float, std: float | None, rivals: Iterable[tuple[float, float | None]]) -> bool:
    """Whether a mean minus its standard deviation is above mean plus deviation of rivals; False without either."""
    others = list(rivals)
    if std is None or not others:
        return False
    return all(spread is not None and mean - std > other + spread for other, spread in others)


def summarise(runs: Iterable[Mapping[str, Any]], public: str, paragon: str) -> list[Summary]:
    """One summary for each row, setting and epsilon, in order; `best` is one that `beats` its rivals, if any does.

    A run that does not spend has epsilon None, and stands for every epsilon. The `boost` is of rows that spend, in
    settings that also have the rows `public` and `paragon`.
    """
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for run in runs:
        groups[run["method"], run["public"], run["shots"], run["epsilon"]].append(run)
    means = {key: _figures([one["test_accuracy"] for one in group]) for key, group in groups.items()}
    balanced = {key: _figures([one["test_balanced_accuracy"] for one in group]) for key, group in groups.items()}
    summaries = []
    for key, group in groups.items():
        method, *setting, epsilon = key
        rivals = [other for other in groups if other[1:] == key[1:] and other != key and epsilon is not None]
        best, balanced_best = (beats(*of[key], [of[other] for other in rivals]) for of in (means, balanced))
        found = {"mean": means[key][0], "std": means[key][1], "runs": len(group), "best": best}
        found |= {"balanced_mean": balanced[key][0], "balanced_std": balanced[key][1], "balanced_best": balanced_best}
        levels = [means.get((name, *setting, None)) for name in (public, paragon)]
        errors = [1 - level[0] for level in (levels[0], means[key], levels[1]) if level is not None]
        gained = boost(*errors) if epsilon is not None and len(errors) == 3 else None
        about = {"method": method, "public": setting[0], "shots": setting[1], "epsilon": epsilon}
        summaries.append({**about, **found, "boost": gained})
    return summaries


def _figures(values: Sequence[float]) -> tuple[float, float | None]:
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def boost(error_public: float, error_private: float, error_paragon: float) -> float | None:
    """(err_public - err_paragon) / (err_private - err_paragon), 1 for no gain; None if it reaches the paragon."""
    gap = error_private - error_paragon
    return (error_public - error_paragon) / gap if gap > 0 else None


Header = tuple[str, ...]
Rows = list[tuple[str, ...]]
MOST_PANELS_A_ROW = 3


def comparison_table(summary: Sequence[Summary], *, balanced: bool = False, plain: bool = False) -> tuple[Header, Rows]:
    """Header and cells; a cell is the test accuracy, or the balanced accuracy, in percent as `mean ± std`.

    The best cell of its column and setting is bold, as in Markdown. In a `plain` cell, `mean±std`, `*` marks it, and a
    terminal finds no blank to break lines at.
    """
    mean, std, top = (f"balanced_{key}" if balanced else key for key in ("mean", "std", "best"))
    epsilons = sorted({line["epsilon"] for line in summary if line["epsilon"] is not None})
    varied = [key for key in ("public", "shots") if len({line[key] for line in summary}) > 1]
    header = ("method", *varied, *(f"eps {rounded_up(epsilon)}" for epsilon in epsilons))
    if not epsilons:
        header = (*header, f"{'balanced ' if balanced else ''}accuracy, %")
    between, best = ("±", "{}*") if plain else (" ± ", "**{}**")
    lines: dict[tuple[str, ...], dict[float | None, str]] = {}
    for line in summary:
        name = (line["method"], *("-" if line[key] in (None, "") else str(line[key]) for key in varied))
        cell = f"{100 * line[mean]:.1f}" + ("" if line[std] is None else f"{between}{100 * line[std]:.1f}")
        lines.setdefault(name, {})[line["epsilon"]] = best.format(cell) if line[top] else cell
    columns: list[float | None] = [*epsilons] or [None]
    return header, [(*name, *(cells.get(at, cells.get(None, "-")) for at in columns)) for name, cells in lines.items()]


def comparison_tables(summary: Sequence[Summary], *, plain: bool = False) -> dict[str, tuple[Header, Rows]]:
    """The tables of a comparison by what they state: balanced accuracy only where it differs from accuracy anywhere."""
    found = {"test accuracy": comparison_table(summary, plain=plain)}
    if any(abs(line["balanced_mean"] - line["mean"]) > 1e-9 for line in summary):
        found["balanced accuracy"] = comparison_table(summary, balanced=True, plain=plain)
    return found


def markdown(header: Header, rows: Rows) -> str:
    rule = ("---", *("---:" for _ in header[1:]))
    return "".join(f"| {' | '.join(line)} |\n" for line in (header, rule, *rows))


def no_better(compared: dict[str, Any]) -> str | None:
    """A warning that names rows no better than the majority class, by accuracy and by balanced accuracy."""
    found = [
        one["method"] + ("" if one["epsilon"] is None else f" at epsilon {rounded_up(one['epsilon'])}")
        for one in compared["summary"]
        if one["mean"] <= compared["commonest_share"] and one["balanced_mean"] <= compared["balanced_limit"]
    ]
    if not found:
        return None
    return (
        f"test accuracy is not above {compared['commonest_share']:.4f}, the accuracy of always predicting "
        f"{compared['commonest_class']!r}, for: {', '.join(dict.fromkeys(found))}"
    )


def footer(composed: dict[str, Any]) -> str:
    text, one = "no run released anything with noise", ONE[composed["unit"]]
    if composed["private_runs"]:
        text = (
            f"{counted(composed['private_runs'], 'run')} released something with noise: together epsilon "
            f"{rounded_up(composed['epsilon'])} at delta {rounded_up(composed['delta'])} for {one} private in all "
            f"of them ({composed['accountant']}; {gaussian_words(composed['gdp_mu'], composed['zcdp_rho'])}); "
            f"{one} that was public in any of them had no protection there"
        )
    if composed["not_private_runs"]:
        bare = counted(composed["not_private_runs"], "non-private run")
        text += f"; no epsilon covers {bare}: if the rows are really private, --no-baselines leaves baselines out"
    return text


def accuracy_against_epsilon(
    path: Path, summaries: Sequence[Summary], public: str, paragon: str, about: str, *, guessing: float
) -> Path | None:
    """Test accuracy against epsilon (the AdaMix paper's figure 1), a panel for each row and setting that spends.

    A panel shows its row with one standard deviation, the other rows of the setting in grey, and the rows `public` and
    `paragon`, which spend nothing, as lines. The axis of accuracy begins at `guessing`. None if no row spends.
    """
    spending = [one for one in summaries if one["epsilon"] is not None]
    if not spending:
        return None
    curves, levels = _curves(summaries, (public, paragon))
    panels = [(setting, row) for setting, found in curves.items() for row in found]
    columns = min(MOST_PANELS_A_ROW, len(panels))
    lines = -(-len(panels) // columns)
    size = (COLUMN, 1 + (2.1 if columns > 1 else 2.8) * lines)
    title, note = f"Test accuracy against epsilon\n{about}", _spread(spending, several=len(panels) > len(curves))
    note += f"\nThe axis begins at {100 * guessing:.3g} %, the accuracy of always predicting the majority class."
    with new_figure(path, size, lines, columns, title=title, note=note, sharey=True) as axes:
        for unused in axes[len(panels) :]:
            unused.set_visible(False)
        drawn = list(zip(axes, panels, strict=False))
        ends = [
            accuracy_curves(one, curves[setting], [row], levels[setting], least=100 * guessing)[1:]
            for one, (setting, row) in drawn
        ]
        axes[0].set_ylim(min(one.get_ylim()[0] for one, _ in drawn), 102)
        for place, (one, (setting, row)) in enumerate(drawn):
            source = f"\n{_title(setting)}" if len(curves) > 1 else ""
            one.set_title(textwrap.fill(row, 34) + source)
            one.set_xlabel("epsilon, logarithmic" if place + columns >= len(panels) else "")
        for left in axes[::columns]:
            left.set_ylabel("test accuracy, %")
        for right, names in zip(axes[columns - 1 : len(panels) : columns], ends[columns - 1 :: columns], strict=True):
            name_ends(right, names)
    return path


def _curves(
    summaries: Sequence[Summary], free: Sequence[str]
) -> tuple[dict[Setting, dict[str, list[tuple[float, float, float]]]], dict[Setting, dict[str, float]]]:
    """By setting, in percent: points of the rows that spend, and levels of the rows `free`, which do not."""
    curves: dict[Setting, dict[str, list[tuple[float, float, float]]]] = {}
    found = {}
    for one in summaries:
        setting = Setting(one["public"], one["shots"])
        if one["epsilon"] is None:
            found[one["method"], setting] = 100 * one["mean"]
        else:
            point = (one["epsilon"], 100 * one["mean"], 100 * (one["std"] or 0.0))
            curves.setdefault(setting, {}).setdefault(one["method"], []).append(point)
    levels = {at: {name: found[name, at] for name in free if (name, at) in found} for at in curves}
    return curves, levels


def _title(setting: Setting) -> str:
    rows = "row" if setting.shots == 1 else "rows"
    shots = "" if setting.shots is None else f"{setting.shots} public {rows} per class"
    return ", ".join(part for part in (f"public rows: {setting.public}" if setting.public else "", shots) if part)


def _spread(summaries: Sequence[Summary], *, several: bool) -> str:
    runs = sorted({summary["runs"] for summary in summaries})
    seeds = f"{runs[0]} seed{'s' * (runs[0] != 1)}" if len(runs) == 1 else f"{runs[0]} to {runs[-1]} seeds"
    spread = ", no spread." if runs[-1] == 1 else "; shaded: one standard deviation."
    return f"Points: mean over {seeds}{spread}" + " Grey: the other methods." * several
