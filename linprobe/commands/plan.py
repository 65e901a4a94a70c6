"""`linprobe plan` and `linprobe account`: what noise costs. No data is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from linprobe.accounting import planning
from linprobe.commands._output import check_folders, writing
from linprobe.options import DEFAULT_DELTA
from linprobe.progress import Progress
from linprobe.reporting import plots


@dataclass(frozen=True)
class PlanRequest:
    """What `linprobe plan` was asked for; fields as in `planning.plan`."""

    epsilon: float
    n_rows: int
    delta: float = DEFAULT_DELTA
    epochs: float = planning.DEFAULT_EPOCHS
    sampling_rates: Sequence[float] = planning.DEFAULT_RATES
    accountant: str = "auto"
    plot: Path | None = None


def plan(request: PlanRequest, progress: Progress) -> dict[str, Any]:
    """The noise each sampling rate needs for one budget; drawn too, if asked.

    Returns: epsilon, delta, n, epochs, accountant, rows (one object a rate, keys as in `planning.PlanRow`),
        recommended (one of the rows), why.
    """
    if request.plot is not None:
        plots.check_format(request.plot)
        check_folders(request.plot)
    progress.start(len(set(request.sampling_rates)), "planning")
    rows = planning.plan(
        epsilon=request.epsilon,
        delta=request.delta,
        n_rows=request.n_rows,
        epochs=request.epochs,
        sampling_rates=request.sampling_rates,
        accountant=request.accountant,
        on_row=progress.step,
    )
    recommended, why = planning.recommend(rows)
    if request.plot is not None:
        place = request.plot
        title = f"ε = {request.epsilon:g}, δ = {request.delta:g} after {request.epochs:g} epochs"
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


def account(sampling_rate: float, noise_multiplier: float, n_steps: int, delta: float) -> dict[str, Any]:
    """What sampled Gaussian releases cost.

    Returns: sampling_rate, noise_multiplier, steps, delta, accountant (the one of record), and epsilon by every
        accountant that applies under its name, the one of record first; None where there is no finite figure.
    """
    costs = planning.account(sampling_rate, noise_multiplier, n_steps, delta)
    figures = {name: cost if np.isfinite(cost) else None for name, cost in costs.items()}
    return {
        "sampling_rate": sampling_rate,
        "noise_multiplier": noise_multiplier,
        "steps": n_steps,
        "delta": delta,
        "accountant": next(iter(figures)),
        **figures,
    }
