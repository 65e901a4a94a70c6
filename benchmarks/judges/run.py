"""Three judges from outside on linprobe: OpenDP's accountant, JAX Privacy's canary auditor and dp-recorder.

    python benchmarks/judges/run.py [--json FILE] [--runs 100] [--judge NAME ...]

    accountant   epsilon of T Gaussian releases: ours, the exact one by mpmath to 60 digits, and OpenDP's, which
                 composes zCDP and converts it to approximate DP
    canaries     scores of `linprobe audit` in JAX Privacy's estimators, beside our tests of the same confidence. Its
                 `epsilon_from_gdp` is left out: on scores of noise alone it finds an epsilon (`noise_alone`)
    recorder     dp-recorder records a run on D and replays it on D', which lacks one record or person: each sum may
                 move by its sensitivity at most, and nothing else may change. `planted` are faults that it must find

Needs `pip install opendp jax-privacy mpmath` and dp-recorder, which is on GitHub (ObliviousAI/dp-recorder) alone. A
judge that is not installed is skipped. `tests/evaluation/test_judges.py` runs each on a small case.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from linprobe.accounting.accountants import GAUSSIAN
from linprobe.accounting.events import Releases
from linprobe.accounting.figures import epsilon_of
from linprobe.evaluation.audit import play, subject_of
from linprobe.evaluation.audit_bounds import guess, mu_lower_bound, one_run_bound, one_run_mu, summed
from linprobe.mechanisms.gaussian import GaussianMechanism
from linprobe.methods import METHODS
from linprobe.options.requests import AuditRequest
from linprobe.training.execute import Observer, execute

SIGMAS, STEPS, DELTAS = (0.7, 1.0, 3.0, 10.0, 50.0), (1, 10, 100, 1000), (1e-3, 1e-5, 1e-8, 1e-12)
DELTA, CONFIDENCE, SEED = 1e-5, 0.999, 5
SPENDING = [name for name, method in METHODS.items() if method.spends]
AUDITED = [("training", name) for name in ("noisy-gd", "dp-sgd", "dp-ls", "dp-fc", "dp-newton")]
AUDITED += [(part, "noisy-gd") for part in ("counts", "tune", "histogram")]


def exact(mu: float, delta: float) -> float:
    """The epsilon of mu-Gaussian DP at `delta`: the root of Phi(mu/2 - e/mu) - exp(e) Phi(-mu/2 - e/mu) = delta."""
    import mpmath

    with mpmath.workdps(60):
        m, d = mpmath.mpf(mu), mpmath.mpf(delta)

        def excess(epsilon: Any) -> Any:
            first = mpmath.ncdf(m / 2 - epsilon / m)
            return first - mpmath.exp(epsilon) * mpmath.ncdf(-m / 2 - epsilon / m) - d

        low, high = mpmath.mpf(0), mpmath.mpf(1)
        if excess(low) <= 0:
            return 0.0
        while excess(high) > 0:
            high *= 2
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if excess(middle) > 0 else (low, middle)
        return float(low)


def accountant(
    sigmas: tuple[float, ...] = SIGMAS, steps: tuple[int, ...] = STEPS, deltas: tuple[float, ...] = DELTAS
) -> list[dict[str, Any]]:
    """One row for each number of steps, noise and delta with an epsilon of at most 100."""
    import opendp.prelude as dp

    dp.enable_features("contrib", "idealized-numerics")
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.l2_distance(T=float)
    found = []
    for sigma in sigmas:
        one = dp.m.make_gaussian(*space, sigma)
        for n_steps in steps:
            composed = one if n_steps == 1 else dp.c.make_composition([one] * n_steps)
            profile = dp.c.make_zCDP_to_approxDP(composed).map(1.0)
            for delta in deltas:
                ours = GAUSSIAN.epsilon([Releases("gradient", sigma, 1.0, n_steps)], delta)
                row = {"sigma": sigma, "steps": n_steps, "delta": delta, "ours": ours, "opendp": profile.epsilon(delta)}
                if ours <= 100:
                    found.append({**row, "exact": exact(n_steps**0.5 / sigma, delta)})
    return found


def canaries(
    part: str, method: str, epsilon: float, runs: int, *, count: int = 100, **how: Any
) -> dict[str, dict[str, Any]]:
    """Lower bounds by JAX Privacy and by linprobe on the same scores, by release, each at `CONFIDENCE` alone."""
    from jax_privacy import auditing

    request = AuditRequest(method=method, epsilon=epsilon, part=part, runs=runs, canaries=count)  # type: ignore[arg-type]
    started = time.process_time()
    subject = subject_of(request, METHODS[method])
    trials = play(subject, runs=runs, on_run=int, insecure_seed=SEED, **how)
    seconds = time.process_time() - started
    releases = {"steps": (trials.inside, summed(trials.scores), subject.epsilon)}
    for name, scores in trials.others.items():
        known = np.isfinite(scores)
        releases[name] = trials.inside[known], scores[known], subject.others.get(name, subject.epsilon)
    halves = auditing.Split(seed=SEED)  # one half chooses a threshold, the other half is judged at it
    significance, found = 1 - CONFIDENCE, {}
    for name, (inside, scores, claim) in releases.items():
        auditor = auditing.CanaryScoreAuditor(scores[inside], scores[~inside])
        correct, guesses = guess(inside, scores)
        given = correct, guesses, inside.size
        found[name] = {
            "claim": claim,
            "trials": inside.size,
            "runs": runs,
            "seconds": seconds,
            "jax_privacy": {
                "clopper-pearson": auditor.epsilon_clopper_pearson(significance, DELTA),
                "one run": auditor.epsilon_one_run(significance, DELTA, threshold_strategy=halves),
                "one run f-DP": auditor.epsilon_one_run_fdp(significance, DELTA, threshold_strategy=halves),
                "auroc": auditor.attack_auroc(),
            },
            "linprobe": {
                "sum": epsilon_of(mu_lower_bound(scores[inside], scores[~inside], CONFIDENCE), DELTA),
                "one run": one_run_bound(*given, DELTA, CONFIDENCE),
                "one run f-DP": epsilon_of(one_run_mu(*given, CONFIDENCE), DELTA),
            },
        }
    return found


def noise_alone(count: int = 5000, seeds: int = 20) -> dict[str, list[float]]:
    """Least and largest epsilon that estimators find where scores in and out have the same distribution."""
    from jax_privacy import auditing

    found: dict[str, list[float]] = {"clopper-pearson": [], "gdp": []}
    for seed in range(seeds):
        generator = np.random.default_rng(seed)
        auditor = auditing.CanaryScoreAuditor(generator.standard_normal(count), generator.standard_normal(count))
        found["clopper-pearson"].append(float(auditor.epsilon_clopper_pearson(1 - CONFIDENCE, DELTA)))
        found["gdp"].append(float(auditor.epsilon_from_gdp(1 - CONFIDENCE, DELTA)))
    return {name: [min(values), max(values)] for name, values in found.items()}


def recorder_of() -> Callable[..., Observer]:
    """A class of observers whose mechanisms draw their noise where dp-recorder looks."""
    from dp_recorder.auditing import audit_spec, dist_l2

    sources: list[Any] = []

    @audit_spec(kind="gaussian", input_arg="value", sensitivity_arg="sensitivity", metric_fn=dist_l2)
    def noised(value: Any, sensitivity: float, std: float, purpose: str) -> Any:
        return sources[-1].add_noise(value, std)

    class Recorded(GaussianMechanism):
        def release(self, clipped: Any, noise_multiplier: float, *, purpose: str, **others: Any) -> Any:
            self._stated = clipped.sensitivity, purpose
            return super().release(clipped, noise_multiplier, purpose=purpose, **others)

        def _noised(self, value: Any, std: float) -> Any:
            sources.append(self._source)
            sensitivity, purpose = self._stated
            return noised(value.ravel(), sensitivity, std, purpose).reshape(value.shape)

    class Recording(Observer):
        def mechanism(self, *given: Any, **named: Any) -> GaussianMechanism:
            return Recorded(*given, **named)

    return Recording


def recorded(method: str, unit: str = "record", part: str = "training", *, neighbours: int = 3) -> dict[str, Any]:
    """dp-recorder's verdicts on a run without a canary, replayed on the run with it, for several canaries."""
    from dp_recorder.auditing import Auditor, ensure_equality

    steps = {} if METHODS[method].one_step else {"steps": 3}
    request = AuditRequest(method=method, epsilon=3.0, part=part, unit=unit, canaries=10, **steps)  # type: ignore[arg-type]
    subject = subject_of(request, METHODS[method])
    observing, sums, faults = recorder_of(), 0, []
    plan = replace(subject.plan, settings=replace(subject.plan.settings, insecure_seed=SEED))

    def run(inside: Any) -> None:
        trained = execute(plan, subject.planted.with_canaries(inside), observer=observing())
        ensure_equality(
            weights=trained.weights, bias=trained.bias, history=trained.history, steps=trained.n_steps,
            centre=trained.centre, privacy=str(trained.privacy),
        )  # fmt: skip

    for canary in range(neighbours):
        auditor, inside = Auditor(), np.ones(10, dtype=bool)
        inside[canary] = False
        try:
            with auditor:
                run(inside)
            auditor.set_replay()
            inside[canary] = True
            with auditor:
                run(inside)
            auditor.validate_records()
        except (AssertionError, RuntimeError, ValueError) as fault:
            faults.append(str(fault).splitlines()[0])
        sums += sum(entry.kind == "gaussian" for entry in auditor.log)
    return {"method": method, "unit": unit, "part": part, "pairs": neighbours, "sums": sums, "faults": faults}


@contextmanager
def planted(fault: str) -> Iterator[None]:
    """A fault of one of the kinds that dp-recorder's paper reports, in linprobe."""
    from linprobe.gradients.clipped_sum import clipped_sum
    from linprobe.methods import _base, class_counts

    class_sums = class_counts.class_sums

    def unclipped(rows: Any, weights: Any, clip_norm: float, **others: Any) -> Any:
        return replace(clipped_sum(rows, weights, float("inf"), **others), sensitivity=clip_norm)

    def averaged(rows: Any, weights: Any, clip_norm: float, **others: Any) -> Any:
        count = sum(int((block.norms < 1e30).sum()) for block in rows.blocks())
        total = clipped_sum(rows, weights, clip_norm, **others)
        return replace(total, value=total.value / count, sensitivity=total.sensitivity / count)

    def no_noise(*_: Any) -> float:
        return 1e-9

    def of_rows(rows: Any, *given: Any, **others: Any) -> Any:
        total = class_sums(rows, *given, **others)
        return replace(total, value=total.value[total.value[:, 0] != 0])

    kinds = {
        "sum of rows that are not clipped": (_base, "clipped_sum", unclipped),
        "division by the private number of rows": (_base, "clipped_sum", averaged),
        "sensitivity that is nearly zero": (class_counts, "sensitivity_of_counts", no_noise),
        "classes that private rows have": (class_counts, "class_sums", of_rows),
    }
    module, name, wrong = kinds[fault]
    with mock.patch.object(module, name, wrong):
        yield


PLANTED = {
    "sum of rows that are not clipped": "training",
    "division by the private number of rows": "training",
    "sensitivity that is nearly zero": "counts",
    "classes that private rows have": "counts",
}


def by_recorder() -> dict[str, Any]:
    """dp-recorder on every method with a budget, and on planted faults."""
    started = time.process_time()
    right = [recorded(method, unit) for method in SPENDING for unit in ("record", "owner")]
    right += [recorded("noisy-gd", unit, "counts") for unit in ("record", "owner")]
    seconds, wrong = time.process_time() - started, {}
    for fault, part in PLANTED.items():
        with planted(fault):
            wrong[fault] = recorded("noisy-gd", part=part)["faults"]
    return {"runs": right, "planted": wrong, "seconds": seconds}


def by_accountant() -> dict[str, Any]:
    """Epsilons of the three accountants, and how far ours are above the exact ones and below OpenDP's."""
    rows = accountant()
    above = [row["ours"] / row["exact"] - 1 for row in rows if row["exact"]]
    return {
        "rows": rows,
        "ours_below_exact": sum(row["ours"] < row["exact"] for row in rows),
        "ours_above_opendp": sum(row["ours"] > row["opendp"] for row in rows),
        "most_above_exact": max(above),
        "opendp_over_ours": [f(row["opendp"] / row["ours"] for row in rows if row["ours"]) for f in (min, max)],
    }


def by_canaries(runs: int) -> dict[str, Any]:
    """Bounds on the scores of `AUDITED`."""
    found: dict[str, Any] = {"noise alone": noise_alone()}
    for part, method in AUDITED:
        for name, bounds in canaries(part, method, 3.0, runs).items():
            found[f"{method}, {part}: {name}"] = bounds
    return found


def main() -> None:
    """Run the judges that are installed, and write their figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--runs", type=int, default=100)
    judges = {"accountant": "opendp", "canaries": "jax_privacy", "recorder": "dp_recorder"}
    parser.add_argument("--judge", action="append", choices=judges)
    arguments = parser.parse_args()
    results = json.loads(arguments.json.read_text()) if arguments.json and arguments.json.exists() else {}
    for judge in arguments.judge or judges:
        if importlib.util.find_spec(judges[judge]) is None:
            print(f"{judge}: skipped; {judges[judge]} is not installed")
            continue
        run: dict[str, Callable[[], dict[str, Any]]] = {
            "accountant": by_accountant,
            "canaries": lambda: by_canaries(arguments.runs),
            "recorder": by_recorder,
        }
        results[judge] = run[judge]()
        if arguments.json:
            arguments.json.write_text(json.dumps(results, indent=1) + "\n")
        print(json.dumps(results[judge], indent=1))


if __name__ == "__main__":
    main()
