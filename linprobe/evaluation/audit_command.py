"""`linprobe audit`: a measured lower bound on epsilon, compared with the claimed epsilon."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from linprobe.accounting.accountants import GAUSSIAN
from linprobe.accounting.figures import rounded_down, rounded_up
from linprobe.data.dataset import Split, dataset_of, open_features
from linprobe.data.digits import DIGITS_SHOTS
from linprobe.data.preprocessing import Preprocessing
from linprobe.data.rows import ArrayRows
from linprobe.data.sources import Source
from linprobe.errors import ParameterError, PrivacyError, UsageError
from linprobe.evaluation.audit import MechanismFactory, play
from linprobe.evaluation.audit_bounds import lower_bounds
from linprobe.evaluation.audit_paths import DEVICE_PATHS, HOST_PATHS
from linprobe.mechanisms.gaussian import GaussianMechanism
from linprobe.methods import METHODS, find_method
from linprobe.methods.private_mean import MEAN
from linprobe.options import DEFAULT_STEPS, OWNER
from linprobe.options.requests import AuditRequest, TrainRequest
from linprobe.plans.centring import settled
from linprobe.plans.settings import make_settings, schedule_of
from linprobe.progress import Progress
from linprobe.training.runtime import Runtime

BACKGROUND_ROWS = 300
BACKGROUND_PEOPLE = np.resize([1, 2, 3], BACKGROUND_ROWS // 2)  # rows of each person
MOST_SCORES = 100_000_000  # 800 MB
NO_DEVICE = "rows on a GPU"
NEVER_COVERED = (
    "private covariances",
    "feature files",
    "torch.distributed",
    "precisions below float32",
    "checkpoints",
)


def audit(
    request: AuditRequest,
    progress: Progress,
    *,
    mechanism: MechanismFactory = GaussianMechanism,
    insecure_seed: int | None = None,
) -> dict[str, Any]:
    """Train on digits and canaries many times, guess which canaries were in, and bound epsilon from below.

    The audited code is the code that `train` runs, on every path in turn; tests pass another `mechanism`,
    and `insecure_seed`, which makes coin tosses and noise reproducible.

    Returns: method, unit, epsilon (claimed), delta, epsilon_lower_bound, mean_epsilon and mean_epsilon_lower_bound (the
        same of the private mean alone, None without one), confidence, runs, canaries, steps,
        noise_multiplier, sampling_rate, paths (covered), products (`kernel` or `numpy`, of the paths on the host),
        not_covered, tests (see `lower_bounds`).
    """
    method = find_method(request.method)
    if not method.spends:
        spending = ", ".join(name for name, other in METHODS.items() if other.spends)
        raise UsageError(
            f"method is {method.name!r}, which releases nothing with noise, so there is nothing to audit; "
            f"allowed: {spending}"
        )
    people = BACKGROUND_PEOPLE if request.unit == OWNER else None
    paths = HOST_PATHS if request.device == "cpu" else HOST_PATHS + DEVICE_PATHS
    if request.runs < 2 * len(paths):
        raise ParameterError(f"runs is {request.runs}; allowed: a whole number from {2 * len(paths)}")
    training = TrainRequest(
        method.name,
        epsilon=request.epsilon,
        delta=request.delta,
        steps=request.steps,
        sampling_rate=request.sampling_rate,
    )
    with open_features(None) as features:
        dataset = dataset_of(features, None, Split(shots=DIGITS_SHOTS))
        background, public = _rows(dataset.private, BACKGROUND_ROWS), dataset.public
        known = None if public is None or "public" not in method.needs else _rows(public, public.n_rows)
    n_classes = dataset.n_classes
    n_units = (background.n_rows if people is None else len(people)) + request.canaries
    settings = make_settings(training, method)
    if settings.condition != "none":  # what `train` decides from the number of rows, the audit always covers
        steps = DEFAULT_STEPS if settings.n_steps is None and method.sampling is None else settings.n_steps
        settings = replace(settings, condition=MEAN, n_steps=steps)
        settings = settled(settings, n_units, background.n_features, known=None)
    Runtime(device=request.device).check(settings.options)
    budget = settings.budget(n_units)
    if budget is None:
        raise ValueError(f"{method.name} spends and has no budget")
    if request.runs * request.canaries * budget.n_steps > MOST_SCORES:
        raise ParameterError(
            f"runs, canaries and steps are {request.runs}, {request.canaries} and {budget.n_steps}; allowed: a product "
            f"of at most {MOST_SCORES}; lower one of them"
        )
    progress.start(request.runs, "auditing")
    trials = play(
        method,
        settings.options,
        schedule_of(budget),
        background,
        known,
        n_classes,
        runs=request.runs,
        canaries=request.canaries,
        on_run=progress.step,
        paths=paths,
        device=request.device,
        people=people,
        centred=settings.condition == MEAN,
        mechanism=mechanism,
        insecure_seed=insecure_seed,
    )
    tests = lower_bounds(trials, request.delta, request.confidence)
    of_means = [test["epsilon_lower_bound"] for test in tests if test["name"] == MEAN]
    claimed = [release for release in budget.others if release.purpose == MEAN]
    return {
        "method": method.name,
        "unit": request.unit,
        "epsilon": budget.accountant.epsilon(budget.releases, budget.delta),
        "delta": budget.delta,
        "epsilon_lower_bound": max(test["epsilon_lower_bound"] for test in tests if test["name"] != MEAN),
        "mean_epsilon": GAUSSIAN.epsilon(claimed, budget.delta) if of_means else None,
        "mean_epsilon_lower_bound": max(of_means, default=None),
        "confidence": request.confidence,
        "runs": request.runs,
        "canaries": request.canaries,
        "steps": budget.n_steps,
        "noise_multiplier": budget.noise_multiplier,
        "sampling_rate": budget.sampling_rate,
        "paths": [str(path) for path in paths],
        "products": trials.products,
        "not_covered": list(NEVER_COVERED if request.device != "cpu" else (NO_DEVICE, *NEVER_COVERED)),
        "tests": tests,
    }


def check_audit(audited: dict[str, Any]) -> None:
    """PrivacyError if a lower bound is above the claimed epsilon."""
    for what, claim in (("epsilon", "epsilon"), ("epsilon of the private mean", "mean_epsilon")):
        found = audited[f"{claim}_lower_bound"]
        if found is not None and found > audited[claim]:
            raise PrivacyError(
                f"{what} of {audited['method']} is at least {rounded_down(found)} at confidence "
                f"{audited['confidence']:g}; allowed: at most the {rounded_up(audited[claim])} claimed; audit again; "
                "if the result stays, release nothing made with this installation and report it"
            )


def _rows(source: Source, count: int) -> ArrayRows:
    """The first `count` rows, scaled to unit norm and not centred."""
    blocks = list(source.blocks())
    x, y = (np.concatenate([block[part] for block in blocks])[:count] for part in (0, 1))
    return ArrayRows(Preprocessing().apply(x), y)
