"""`linprobe train --dry-run`: what a run would read, spend and write, without spending or writing anything."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from linprobe.accounting.book import Entry
from linprobe.accounting.calibrate import Budget
from linprobe.accounting.figures import rounded_up
from linprobe.commands._budget_book import preview
from linprobe.commands._row_sources import DIGITS
from linprobe.commands._training_rows import Rows, rows_of
from linprobe.commands.train import TrainRequest, make_settings, opened, with_method
from linprobe.data.feature_file import FeatureReader
from linprobe.data.precision import STORAGE
from linprobe.methods import find_method
from linprobe.parallel import available_memory
from linprobe.progress import Progress
from linprobe.training import engine
from linprobe.training.estimate import seconds_of_steps
from linprobe.training.settings import Settings

ON_HOST = "cpu"


def dry_run(request: TrainRequest, progress: Progress) -> dict[str, Any]:
    """Check a request of `train` as far as that is possible without a release.

    The rows are read, as the choice of public shots, the check for copies and the name of the budget book need them.

    Returns: method, why (it was chosen, None if it was named); features, private_rows, unit, n_units, public_rows,
        test_rows, n_features, n_classes; epsilon_target, delta, plans (one, or two if the length of a private mean
        decides between them; each with steps, noise_multiplier, sampling_rate and releases); together (runs, epsilon
        and delta of all runs of the budget book with this one; None without a book); out, book; memory_bytes of the
        rows, in_memory (else they are streamed); seconds (an estimate, None on a GPU, without steps,
        or for steps that cost more than a gradient).

    Raises:
        LinprobeError: as `train`, if the run would be refused.
    """
    request, choice = with_method(request)
    method = find_method(str(request.method))
    settings = make_settings(request, method)
    with opened(request, method, progress) as (features, other, completed):
        rows = rows_of(features, other, completed, method)
        budgets = engine.budgets(rows.sources, settings)
        n_private, n_features = rows.sources.private.n_rows, rows.sources.private.n_features
        itemsize = np.dtype(STORAGE[request.precision]).itemsize
        memory = n_private * n_features * itemsize if "private" in method.needs else 0
        book, together = _together(features, completed, settings, rows, budgets)
        return {
            "method": method.name,
            "why": None if choice is None else f"{choice.when}; {choice.why}",
            "features": DIGITS if request.features is None else str(request.features),
            "private_rows": n_private if "private" in method.needs else 0,
            "unit": rows.sources.unit,
            "n_units": rows.n_units if "private" in method.needs else 0,
            "public_rows": 0 if rows.public is None else rows.public.n_rows,
            "test_rows": features.sizes.get("test", 0),
            "n_features": n_features,
            "n_classes": rows.sources.n_classes,
            "epsilon_target": settings.epsilon,
            "delta": settings.delta,
            "plans": [_plan(budget) for budget in budgets],
            "together": together,
            "out": str(completed.out),
            "book": book,
            "memory_bytes": memory,
            "in_memory": available_memory.fits(memory),
            "seconds": _seconds(request, settings, rows, budgets),
        }


def _plan(budget: Budget) -> dict[str, Any]:
    return {
        "steps": budget.n_steps,
        "noise_multiplier": budget.noise_multiplier,
        "sampling_rate": budget.sampling_rate,
        "releases": [asdict(release) for release in budget.releases],
    }


def _together(
    features: FeatureReader, request: TrainRequest, settings: Settings, rows: Rows, budgets: tuple[Budget, ...]
) -> tuple[str | None, dict[str, Any] | None]:
    """The budget book, and the cost of its runs with this one; None where there is none yet.

    Raises:
        PrivacyError: the run would exceed the cap.
    """
    if not budgets or settings.insecure_seed is not None:
        return None, None
    entry = Entry(
        run="",
        name="",
        method=settings.method.name,
        unit=rows.sources.unit,
        private=True,
        delta=settings.delta,
        releases=budgets[0].releases,
    )
    found = preview(features, request.book, entry, request.cap)
    if found is None:
        return None, None
    path, spent = found
    return str(path), {"runs": spent.runs, "epsilon": spent.epsilon, "delta": spent.delta}


def _seconds(request: TrainRequest, settings: Settings, rows: Rows, budgets: tuple[Budget, ...]) -> float | None:
    if not budgets or request.device != ON_HOST or settings.method.n_steps is not None:
        return None
    sources = rows.sources
    return seconds_of_steps(
        max(budgets, key=lambda budget: budget.n_steps),
        sources.private.n_rows,
        sources.private.n_features,
        sources.n_classes,
        request.precision,
        per_record=settings.per_record,
    )


def lines_of(found: dict[str, Any]) -> list[tuple[str, str]]:
    """A dry run in words."""
    units = "people" if found["unit"] == "owner" else "rows"
    rows = [
        ("method", found["method"] if found["why"] is None else f"{found['method']}: {found['why']}"),
        ("reads", f"{found['features']}: {found['private_rows']} private rows of {found['n_features']} features"),
        ("", f"{found['public_rows']} public rows, {found['test_rows']} test rows, {found['n_classes']} classes"),
        ("protects", f"{found['n_units']} {units}"),
    ]
    if found["plans"]:
        rows.append(("spends", f"epsilon {found['epsilon_target']:g} at delta {found['delta']:g}"))
    for place, plan in enumerate(found["plans"]):
        sampled = "" if plan["sampling_rate"] == 1 else f", sampling rate {plan['sampling_rate']:g}"
        text = f"{plan['steps']} steps, noise multiplier {plan['noise_multiplier']:.4g}{sampled}"
        rows.append(("" if place == 0 else "or", text if place == 0 else f"{text}, if the private mean is short"))
    if found["together"] is not None and found["together"]["runs"] > 1:
        spent = found["together"]
        rows.append(("together", f"epsilon {rounded_up(spent['epsilon'])} for {spent['runs']} runs on these rows"))
    where = "in memory" if found["in_memory"] else "streamed"
    rows.append(("memory", f"{found['memory_bytes'] / 2**20:.0f} MiB for the private rows, {where}"))
    if found["seconds"] is not None:
        rows.append(("time", f"about {found['seconds']:.1f} s for the steps, on this machine as busy as it is"))
    rows.append(("writes", found["out"]))
    rows.append(("", f"budget book {found['book'] or 'that does not exist yet'}"))
    return rows
