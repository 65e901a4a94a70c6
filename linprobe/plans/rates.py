"""`linprobe plan`: sampling rate and noise for a budget. No data is read."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from linprobe.accounting import calibrate
from linprobe.accounting.figures import rounded_up
from linprobe.options.requests import PlanRequest
from linprobe.progress import Progress
from linprobe.reporting import plots
from linprobe.runs.output import new_files, writing


def plan(request: PlanRequest, progress: Progress) -> dict[str, Any]:
    """The noise each sampling rate needs for one budget; with `plot`, also as a figure.

    Returns: epsilon, delta, n, epochs, accountant, rows (one object for each rate, keys as in `calibrate.PlanRow`),
        recommended (one of the rows), why.
    """
    if request.plot is not None:
        plots.check_format(request.plot)
    with new_files({"--plot": request.plot}, overwrite=request.overwrite):
        return _plan(request, progress)


def _plan(request: PlanRequest, progress: Progress) -> dict[str, Any]:
    progress.start(len(set(request.sampling_rates)), "planning")
    rows = calibrate.plan_rates(
        epsilon=request.epsilon,
        delta=request.delta,
        n_rows=request.n_rows,
        epochs=request.epochs,
        sampling_rates=request.sampling_rates,
        accountant=request.accountant,
        on_row=progress.step,
    )
    recommended, why = calibrate.recommend(rows)
    if request.plot is not None:
        place = request.plot
        title = (
            f"Noise for ε = {rounded_up(request.epsilon)} at δ = {rounded_up(request.delta)}\n"
            f"after {request.epochs:g} epochs over {request.n_rows:,} rows"
        )
        writing(place, lambda: plots.noise_against_rate(place, rows, recommended, title))
    return {
        "epsilon": request.epsilon,
        "delta": request.delta,
        "n": request.n_rows,
        "epochs": request.epochs,
        "accountant": request.accountant,
        "rows": [asdict(row) for row in rows],
        "recommended": asdict(recommended),
        "why": why,
    }
