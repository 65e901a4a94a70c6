"""`linprobe plan`: sampling rate and noise for a budget, and the accuracy to expect. No data is read.

The N / C rows of a class move a score by at most g = mu N / C standard deviations of the noise of a whole run. Measured
on six data sets (`benchmarks/accuracy/results.json`), g alone says how far a run gets, whatever the features: `BANDS`.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from linprobe.accounting import calibrate
from linprobe.accounting.calibrate import check_delta, check_epsilon
from linprobe.accounting.figures import rounded_up
from linprobe.accounting.gaussian_dp import largest_mu
from linprobe.errors import Progress
from linprobe.options.requests import PlanRequest
from linprobe.reporting import plots
from linprobe.runs.run_folder import new_files, writing

BANDS = (  # g below; percent of the gap from only-public, or without public rows from guessing, to no privacy
    (5, (0, 12), (2, 25)),
    (10, (8, 20), (16, 36)),
    (20, (38, 66), (53, 90)),
    (50, (72, 79), (87, 95)),
    (100, (85, 100), (97, 100)),
    (math.inf, (87, 100), (90, 100)),
)


def expected(epsilon: float, delta: float, n_rows: int, n_classes: int) -> dict[str, Any]:
    """What accuracy to expect of a run on `n_rows` private rows of `n_classes` classes of about the same size.

    Returns: signal_to_noise (g of the module), percent_with_public and percent_without (least and largest measured
        percent of the gap from only-public, or from guessing, to no privacy), expect (in words).
    """
    g = largest_mu(check_epsilon(epsilon), check_delta(delta, n_rows)) * n_rows / n_classes
    _, known, cold = next(band for band in BANDS if g < band[0])
    where = "near the public rows alone" if g < 10 else "near no privacy" if g >= 50 else "in between"
    return {
        "signal_to_noise": g,
        "percent_with_public": list(known),
        "percent_without": list(cold),
        "expect": f"{where}: signal over noise of a class is {g:.3g}; such runs closed {known[0]} to {known[1]} % of "
        f"the gap from two public rows per class to no privacy, and without public rows {cold[0]} to {cold[1]} % of "
        "the gap from guessing",
    }


def recommended_rate(request: PlanRequest, progress: Progress) -> dict[str, Any]:
    """The noise each sampling rate needs for one budget; with `plot`, also as a figure.

    Returns: epsilon, delta, n, epochs, accountant, rows (one object for each rate, keys as in `calibrate.PlanRow`),
        recommended (one of the rows), why; with a number of classes, the keys of `expected`.
    """
    if request.plot is not None:
        plots.check_format(request.plot)
    with new_files({"--plot": request.plot}, overwrite=request.overwrite):
        return _plan(request, progress)


def _plan(request: PlanRequest, progress: Progress) -> dict[str, Any]:
    expectation = {}
    if request.n_classes is not None:
        expectation = expected(request.epsilon, request.delta, request.n_rows, request.n_classes)
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
        **expectation,
    }
