"""What the gradients of a run are like: figure 6 of the AdaMix paper and figure 2 of the DOPE-SGD paper.

A run keeps its iterates W_t through the interface for checkpoints. From W_t follows the gradient G of all private rows,
without clipping and noise, and

    figure 6    || G - U U^T G || / || G ||, U the span of the public gradient, or a random space of equal dimension
    figure 2    cosine between G and the step W_t - W_{t+1} of plain SGD, which is the noised estimate of G

Both read private rows without noise: they are for rows that are public, and no part of a private run.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tables import DATA, Table, dataset_of, run_settings

from linprobe.evaluation.comparison_plan import MethodRow
from linprobe.gradients.loss import loss_and_gradient
from linprobe.methods import Fitted, Problem, Run
from linprobe.methods._directions import top_left_subspace
from linprobe.training.execute import execute
from linprobe.training.plan import plan_run

Matrix = NDArray[np.float64]


@dataclass
class Watched:
    """A run's rows in training space and its iterates W_1..W_{T+1}: a keeper of checkpoints that writes nothing."""

    problem: Problem | None = None
    weights: list[Matrix] = field(default_factory=list)

    def restored(self) -> None:
        """No state to resume from."""

    def offer(self, state: Mapping[str, Any]) -> None:
        """Keep the iterate."""
        self.weights.append(np.array(state["weights"], dtype=np.float64))

    def withdraw(self) -> None:
        """Do nothing: iterates are copies."""

    def gradients(self, weights: Matrix) -> tuple[Matrix, Matrix]:
        """Summed gradients of the private and of the public rows, without clipping and noise."""
        assert self.problem is not None
        return tuple(
            loss_and_gradient(rows, weights)[1] for rows in (self.problem.private_rows, self.problem.public_rows)
        )  # type: ignore[return-value]


def watched(row: MethodRow, table: Table, seed: int) -> Watched:
    """A run on the rows of a table, with public shots chosen by a seed."""
    assert table.drawn is not None
    found, drawn = Watched(), next(table.drawn(seed))
    dataset = dataset_of(row, drawn.private, drawn.public, DATA[table.data])
    settings = run_settings(row, table.epsilons[0])
    fit = settings.method.fit

    def watched_fit(problem: Problem, options: Any, run: Run) -> Fitted:
        found.problem = problem
        return fit(problem, options, replace(run, keeper=found))

    settings = replace(settings, method=replace(settings.method, fit=watched_fit))
    execute(plan_run(settings, dataset), dataset)
    return found


def reconstruction(run: Watched) -> dict[str, list[float]]:
    """Figure 6: the share of G outside the public span, and outside a random space, at each step."""
    outside: dict[str, list[float]] = {"public": [], "random": []}
    assert run.problem is not None
    rank = run.problem.gradient_rank
    g = np.random.default_rng(0)
    for weights in run.weights[:-1]:
        private, public = run.gradients(weights)
        for kind, spanning in (("public", public), ("random", g.standard_normal(private.shape))):
            subspace = top_left_subspace(spanning, rank, rank)
            outside[kind].append(1.0 if subspace is None else (1 - subspace.energy(private)) ** 0.5)
    return outside


def alignment(run: Watched) -> dict[str, list[float]]:
    """Figure 2: the cosine between G and each step."""
    cosines = []
    for weights, after in zip(run.weights[:-1], run.weights[1:], strict=True):
        gradient, step = run.gradients(weights)[0], weights - after
        cosines.append(float(np.sum(gradient * step) / np.linalg.norm(gradient) / np.linalg.norm(step)))
    return {"": cosines}


FIGURES: dict[str, Callable[[Watched], dict[str, list[float]]]] = {
    "adamix-figure6": reconstruction,
    "dope-figure2": alignment,
}


def figure_rows(name: str, table: Table) -> list[dict[str, Any]]:
    """Mean and spread over the seeds by part of the run: its first step, and each fifth of its steps."""
    rows = []
    for row in table.methods:
        runs = [FIGURES[name](watched(row, table, seed)) for seed in range(table.seeds)]
        for kind in runs[0]:
            series = np.array([one[kind] for one in runs])
            parts = np.array_split(series, 5, axis=1)
            for part, values in (("first", series[:, :1]), *((f"{20 * k + 20}", v) for k, v in enumerate(parts))):
                means = values.mean(axis=1)
                entry = {"part": part, "method": " ".join(filter(None, (row.name, kind))), "epsilon": table.epsilons[0]}
                spread = {"mean": statistics.fmean(means), "std": statistics.stdev(means), "runs": table.seeds}
                rows.append({**entry, **spread})
    return rows
