"""`linprobe compare`: train methods at several epsilons, seeds, public shots and public files."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from linprobe._version import __version__
from linprobe.accounting.calibrate import check_epsilon, large_delta
from linprobe.atomic_files import replace_when_complete, write_csv
from linprobe.commands._budget_book import book_of
from linprobe.commands._comparison_folder import RUNS, ComparisonFolder, open_comparison
from linprobe.commands._method_row import MethodRow as MethodRow
from linprobe.commands._row_sources import DIGITS, check_one_class, check_test_rows, open_features
from linprobe.commands._units import private_units
from linprobe.commands.attack import PRIVATE_OUTPUT, threshold_auc
from linprobe.commands.train import TrainRequest, make_settings, train_on
from linprobe.commands.tune import Tuning, settings_of, tune_on
from linprobe.data.digits import DIGITS_SHOTS
from linprobe.data.feature_file import FeatureReader, LoadedFeatures
from linprobe.errors import LinprobeError, ParameterError, UsageError
from linprobe.evaluation.comparison import Result, Setting, boosts, summarise
from linprobe.methods import METHODS
from linprobe.options import DEFAULT_DELTA, RunOptions
from linprobe.options.declaration import declared
from linprobe.parallel import available_memory
from linprobe.parallel.jobs import unordered
from linprobe.progress import Progress, Silent
from linprobe.reporting.comparison_plots import accuracy_against_attack, accuracy_against_epsilon, boost_against_shots
from linprobe.reporting.comparison_table import balance_matters as balance_matters
from linprobe.reporting.comparison_table import comparison_table as comparison_table
from linprobe.reporting.comparison_table import footer as footer
from linprobe.reporting.comparison_table import markdown
from linprobe.reporting.comparison_table import no_better as no_better
from linprobe.runs import run_folder
from linprobe.runs.manifest import read_manifest
from linprobe.runs.units import NOUNS, RECORD
from linprobe.training.settings import method_options

PUBLIC_BASELINE, PARAGON = "only-public", "non-private"
NO_FILE = "none"
LONGEST_NAME = 80
Features = FeatureReader | Path | None


@dataclass(frozen=True)
class CompareRequest:
    """The arguments of `linprobe compare`.

    Attributes:
        features: feature file, None for the built-in digits. methods: rows of the table.
        epsilons, delta: budgets of each run.
        seeds: number of seeds. A seed chooses public shots; noise is always fresh.
        shots: public rows per class, one comparison for each entry; empty for the default of `train`.
        public: public files, one comparison for each entry; None is a comparison without a file.
        baselines: whether to add only-public and non-private.
        attack: whether to attack every run.
        jobs: processes; None for one per processor, at most 8.
        out: folder of the comparison. An earlier comparison in it is continued.
        book: budget book that every run is charged to; None for the one of the training rows.
        unit: what every run protects, `record` or `owner`.
    """

    methods: Sequence[MethodRow]
    epsilons: Sequence[float]
    out: Path
    features: Path | None = None
    delta: float = DEFAULT_DELTA
    seeds: int = 5
    shots: Sequence[int] = ()
    public: Sequence[Path | None] = ()
    baselines: bool = True
    attack: bool = False
    jobs: int | None = None
    book: Path | None = None
    unit: str = RECORD


@dataclass(frozen=True)
class _Planned:
    """A planned run: its row and setting, the arguments of `train`, and its folder."""

    row: str
    setting: Setting
    request: TrainRequest
    folder: Path
    tuning: Tuning | None = None

    @property
    def spends(self) -> bool:
        return METHODS[str(self.request.method)].spends


def compare(request: CompareRequest, progress: Progress) -> dict[str, Any]:
    """Train every method at every epsilon, setting and seed, each run in its own folder; write tables and figures.

    Runs that exist already are checked and not trained again. Every run is a release; `composed` is their total cost.

    Returns: out, composed, commonest_class and commonest_share (of the public test rows), summary (one object for each
        row, setting and epsilon), runs (one object each), figures; if requested attacks, one object for each run,
        private.

    Raises:
        UsageError: an invalid request, or a folder of another comparison. LinprobeError: the first run that failed;
            finished runs are kept, and the same command continues.
    """
    _check(request)
    if request.features is None and not request.shots and not request.public:
        request = replace(request, shots=(DIGITS_SHOTS,))
    of = {"features": DIGITS if request.features is None else str(request.features.resolve()), "delta": request.delta}
    if request.unit != RECORD:
        of["unit"] = request.unit
    with ExitStack() as stack:
        features = _shared(stack, request.features)
        others = {_name(path): _shared(stack, path) for path in request.public if path is not None}
        opened = _opened(stack, features)
        check_test_rows(opened, "methods are compared on")
        planned = _plan(request, {name: _public_digest(other) for name, other in others.items()}, opened.sizes)
        folder = stack.enter_context(open_comparison(request.out, of, opened))
        missing = [run for run in planned if not run.folder.exists()]
        if missing:
            charged = book_of(opened, request.book).absolute()  # read the rows once for all runs
            missing = [replace(run, request=replace(run.request, book=charged)) for run in missing]
            n_units = private_units(opened, None, request.unit, None, 0).n_units
            _announce(missing, n_units, request.delta, progress)
            progress.start(len(missing), "comparing")
        try:
            arguments = [(run, features, others.get(run.setting.public)) for run in missing]
            for run in unordered(_train, arguments, request.jobs):
                folder.record(run)
                progress.step()
        except (KeyboardInterrupt, LinprobeError) as error:
            folder.discard_unfinished(one.folder.name for one in missing)
            if isinstance(error, KeyboardInterrupt):
                progress.note(f"finished runs are kept in {folder.runs}; the same command continues from there")
            raise
        results = [_result(request, one, folder.manifest(one.folder), opened) for one in planned]
        return _written(request, folder, planned, results, _commonest(opened))


def _announce(missing: Sequence[_Planned], n_units: int, delta: float, progress: Progress) -> None:
    """Note the number of runs without privacy before they are trained, and a delta that is large for the units."""
    warning = large_delta(delta, n_units) if any(run.spends for run in missing) else None
    if warning is not None:
        progress.note(warning)
    unprotected = sum(not METHODS[str(run.request.method)].private for run in missing)
    if unprotected:
        progress.note(
            f"{unprotected} of {len(missing)} runs are not private ({PARAGON}); --no-baselines leaves baselines out"
        )


def _check(request: CompareRequest) -> None:
    declared(RunOptions)["unit"].check(request.unit)
    if not request.methods:
        raise UsageError("methods is empty; allowed: names from `linprobe methods`; give --methods adamix,noisy-gd")
    names = [row.name for row in request.methods]
    if len(set(names)) < len(names):
        raise UsageError(f"methods are {', '.join(names)}; allowed: each once; remove the repetition")
    if not 1 <= request.seeds <= 1000:
        raise ParameterError(f"seeds is {request.seeds}; allowed: a whole number from 1 to 1000")
    if request.jobs is not None and not 1 <= request.jobs <= 1024:
        raise ParameterError(f"jobs is {request.jobs}; allowed: a whole number from 1 to 1024")
    for epsilon in request.epsilons:
        check_epsilon(epsilon)
    spending = [row for row in request.methods if METHODS[row.method].spends]
    if spending and not request.epsilons:
        raise UsageError(
            f"method {spending[0].method} needs a privacy budget and got none; give --eps, for example --eps 1,3"
        )
    for row in request.methods:
        asked = row.request(**_budget(row, next(iter(request.epsilons), None), request.delta))
        if row.tuning is None:
            make_settings(asked, METHODS[row.method])
        else:
            settings_of(asked, row.tuning)
    files = [_name(path) for path in request.public if path is not None]
    if len(set(files)) < len(files) or len(set(request.public)) < len(request.public):
        raise UsageError(
            f"public files are called {', '.join(files)}; allowed: each name once, and {NO_FILE} once; rename or "
            "remove one"
        )


def _budget(row: MethodRow, epsilon: float | None, delta: float) -> dict[str, Any]:
    return {"epsilon": epsilon, "delta": delta} if METHODS[row.method].spends else {}


def _name(path: Path | None) -> str:
    return "" if path is None else path.stem


def _shared(stack: ExitStack, path: Path | None) -> Features:
    """The rows of a file, read once for all runs; its path if they do not fit in memory."""
    opened = stack.enter_context(open_features(path))
    check_one_class(opened, "compare")
    if not available_memory.fits(4 * opened.n_features * sum(opened.sizes.values())):
        return None if path is None else path.absolute()  # processes may have another working directory
    return LoadedFeatures(opened)


def _opened(stack: ExitStack, features: Features) -> FeatureReader:
    if isinstance(features, FeatureReader):
        return features
    return stack.enter_context(open_features(features, whole=False))


def _public_digest(features: Features) -> str:
    """SHA-256 of the rows that a file provides as public rows."""
    with ExitStack() as stack:
        opened = _opened(stack, features)
        return opened.digest("public" if "public" in opened.sizes else "train")


def _plan(request: CompareRequest, public_digests: dict[str, str], sizes: dict[str, int]) -> list[_Planned]:
    """Every run, in the order of the table."""
    planned = []
    for path, shots in product(request.public or (None,), request.shots or (None,)):
        setting = Setting(_name(path), shots)
        public_rows = path is not None or bool(shots) or (shots is None and "public" in sizes)
        rows = list(request.methods)
        if request.baselines:
            rows += [MethodRow(name, name) for name in (PUBLIC_BASELINE, PARAGON)]
        seen = set()
        for row in rows:
            method = METHODS[row.method]
            if row.name in seen:
                continue
            seen.add(row.name)
            if "public" in method.needs and not public_rows:
                if row not in request.methods:
                    continue
                raise UsageError(
                    f"method {method.name} needs public rows and got none ({setting or 'no public group'}); "
                    "give --public-shots K or --public FILE"
                )
            # a run without shots or noise is the same for every seed
            seeds = range(request.seeds if method.spends or shots else 1)
            budgets = list(request.epsilons) if method.spends else [None]
            for epsilon, seed in product(budgets, seeds):
                asked = row.request(
                    features=request.features,
                    public=path,
                    public_shots=shots,
                    split_seed=seed,
                    unit=request.unit,
                    **_budget(row, epsilon, request.delta),
                )
                folder = request.out / RUNS / _folder_name(row, setting, asked, public_digests.get(setting.public, ""))
                # worker processes may have another working directory
                planned.append(_Planned(row.name, setting, replace(asked, out=folder.absolute()), folder, row.tuning))
    return planned


def _folder_name(row: MethodRow, setting: Setting, asked: TrainRequest, public_digest: str) -> str:
    """A readable name, and a digest of everything that distinguishes the run from others."""
    _, first = method_options(METHODS[row.method], asked.options or {})
    started_from = read_manifest(Path(first))["manifest_digest"] if first and Path(first).is_dir() else ""
    identity = [__version__, row.method, sorted(row.settings.items()), started_from, asked.epsilon, asked.delta]
    identity += [setting.shots, public_digest, asked.split_seed]
    if asked.unit != RECORD:
        identity.append(asked.unit)
    if row.tuning is not None:
        identity.append(asdict(row.tuning))
    digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:8]
    parts = [row.name, "" if asked.epsilon is None else f"eps{asked.epsilon:g}", setting.public]
    parts += ["" if setting.shots is None else f"shots{setting.shots}", f"seed{asked.split_seed}"]
    readable = "-".join(re.sub(r"[^\w.=+-]", "_", part) for part in parts if part)
    return f"{readable[:LONGEST_NAME]}-{digest}"


def _train(run: _Planned, features: Features, other: Features) -> Path:
    """Train a planned run; returns its folder.

    Raises:
        UsageError: another process has finished the same run. LinprobeError: training failed.
    """
    with ExitStack() as stack:
        rows = None if run.request.public is None else _opened(stack, other)
        try:
            if run.tuning is None:
                settings = make_settings(run.request, METHODS[str(run.request.method)])
                train_on(_opened(stack, features), rows, run.request, settings, Silent())
            else:
                candidates = settings_of(run.request, run.tuning)
                tune_on(_opened(stack, features), rows, run.request, run.tuning, candidates, Silent())
        except LinprobeError:
            if run.request.out is None or not run.request.out.exists():
                raise
            raise UsageError(
                f"run {run.folder} was finished by a process of an earlier compare that was killed; wait "
                "until its processes have ended, then give the same command again"
            ) from None
    return run.folder


def _result(request: CompareRequest, run: _Planned, manifest: dict[str, Any], features: FeatureReader) -> Result:
    auc = threshold_auc(features, run_folder.load_run(run.folder))["auc"] if request.attack else None
    return Result(
        run.row,
        run.setting,
        run.request.epsilon,
        run.request.split_seed,
        run.spends,
        manifest["test_accuracy"],
        manifest["test_balanced_accuracy"],
        auc,
    )


def _written(
    request: CompareRequest,
    folder: ComparisonFolder,
    planned: Sequence[_Planned],
    results: Sequence[Result],
    commonest: tuple[str, float],
) -> dict[str, Any]:
    """Write the tables and figures and return them."""
    out, summaries = request.out, summarise(results)
    boost = boosts(summaries, PUBLIC_BASELINE, PARAGON)
    runs = [_run_row(run, folder.manifest(run.folder), result) for run, result in zip(planned, results, strict=True)]
    summary = [
        {
            "method": one.row,
            **asdict(one.setting),
            "epsilon": one.epsilon,
            "mean": one.mean,
            "std": one.std,
            "runs": one.runs,
            "best": one.best,
            "balanced_mean": one.balanced_mean,
            "balanced_std": one.balanced_std,
            "balanced_best": one.balanced_best,
            "boost": None if one.epsilon is None else boost.get((one.row, one.setting, one.epsilon)),
        }
        for one in summaries
    ]
    write_csv(out / "runs.csv", runs)
    write_csv(out / "summary.csv", summary)
    with replace_when_complete(out / "table.md", "w") as stream:
        stream.write(markdown(*comparison_table(summary, "**{}**")))
        if balance_matters(summary):
            stream.write("\nBalanced accuracy, %:\n\n" + markdown(*comparison_table(summary, "**{}**", balanced=True)))
    about, levels = _about(request, runs), (PUBLIC_BASELINE, PARAGON)
    figures = [accuracy_against_epsilon(out / "accuracy_against_epsilon.png", summaries, *levels, about)]
    if len({setting.shots for _, setting, _ in boost}) > 1:
        figures.append(boost_against_shots(out / "boost_against_shots.png", summaries, *levels, about))
    attacked = {}
    if request.attack:
        attacks = [
            {"method": one.row, **asdict(one.setting), "epsilon": one.epsilon, "seed": one.seed, "attack_auc": one.auc}
            for one in results
        ]
        marked = [{**one, "note": PRIVATE_OUTPUT} for one in attacks]
        write_csv(out / "private_attacks.csv", marked, private=True)
        figures.append(accuracy_against_attack(out / "private_accuracy_against_attack.png", summaries, about))
        attacked = {"attacks": attacks, "attacks_note": PRIVATE_OUTPUT}
    composed = folder.composed(request.delta)
    always = {"commonest_class": commonest[0], "commonest_share": commonest[1]}
    folder.finish({"composed": composed, **always, "summary": summary, "runs": runs})
    return {
        "out": str(out),
        "composed": composed,
        **always,
        "summary": summary,
        "runs": runs,
        **attacked,
        "figures": [str(path) for path in figures if path is not None],
    }


def _run_row(run: _Planned, manifest: dict[str, Any], result: Result) -> dict[str, Any]:
    return {
        "method": run.row,
        **asdict(run.setting),
        "epsilon": result.epsilon,
        "seed": result.seed,
        "test_accuracy": result.accuracy,
        "test_balanced_accuracy": result.balanced,
        "test_macro_auroc": manifest["test_macro_auroc"],
        "epsilon_spent": manifest["epsilon"],
        "delta": manifest["delta"],
        **{key: manifest[key] for key in ("noise_multiplier", "sampling_rate", "steps", "n_private", "n_public")},
        "run": str(run.folder),
    }


def _about(request: CompareRequest, runs: Sequence[Mapping[str, Any]]) -> str:
    """The name of the data and the number of private rows or people, for titles of figures."""
    name = "built-in digits" if request.features is None else request.features.stem
    least, most = (choose(run["n_private"] for run in runs) for choose in (min, max))
    numbers = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    return f"{name}, {numbers} private {NOUNS[request.unit]}"


def _commonest(features: FeatureReader) -> tuple[str, float]:
    """The commonest class of the public test rows, and its share of them."""
    counts = np.bincount(features.labels("test"))
    place = int(counts.argmax())
    return features.description.class_names[place], int(counts[place]) / int(counts.sum())
