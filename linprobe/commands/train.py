"""`linprobe train`: one private training run into a run folder."""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from linprobe.accounting.calibrate import Budget, check_epsilon, large_delta
from linprobe.accounting.events import Releases
from linprobe.accounting.ledger import Ledger
from linprobe.commands._budget_book import RunCharge, book_of
from linprobe.commands._method_choice import choose_method, refuse_missing_public
from linprobe.commands._output import run_folder_of_group
from linprobe.commands._row_sources import DIGITS, FileSource, open_features, refuse_training_rows
from linprobe.commands._run_config import config_text, refuse_other_encodings
from linprobe.commands._test_rows import PRINTED, PRINTED_OF_LABELS, accuracy_of, figures_of, test_epsilon_of
from linprobe.commands._tracking import refuse_tracking, send
from linprobe.commands._training_rows import Rows, count_private, rows_of
from linprobe.commands._units import fewer_protected, private_records
from linprobe.data.digits import DIGITS_SHOTS
from linprobe.data.feature_reader import FeatureReader, extraction_of
from linprobe.errors import LinprobeError, UsageError, advice
from linprobe.evaluation.figures import no_better_than_guessing
from linprobe.evaluation.metrics import right_and_wrong
from linprobe.methods import PAPER_METHODS, PAPER_NOISE_MULTIPLIER, Method, find_method, paper_options
from linprobe.methods.choice import Chosen
from linprobe.methods.private_mean import MEAN
from linprobe.options import DEFAULT_DELTA, Choice, Confirmation, RunOptions
from linprobe.options.declaration import arguments_of, declared
from linprobe.parallel.process_group import ALONE, Group
from linprobe.progress import Progress, Silent
from linprobe.runs import run_folder, signature
from linprobe.runs.claim import claimed
from linprobe.runs.manifest_check import accountant_of
from linprobe.runs.run_files import LEDGER
from linprobe.training import engine
from linprobe.training.checkpoint import Keeping, run_identity
from linprobe.training.conditioning import SHORTEST_MEAN
from linprobe.training.engine import Trained
from linprobe.training.runtime import Runtime
from linprobe.training.settings import Settings, method_options

RANDOM_WEIGHTS = "random"
CHECKPOINT_SECONDS = 60.0
OUTCOME_KEYS = (
    "method",
    "epsilon",
    "delta",
    "epsilon_target",
    "noise_multiplier",
    "sampling_rate",
    "steps",
    "gdp_mu",
    "zcdp_rho",
    "unit",
    "n_units",
    "n_private",
    "n_public",
    "n_features",
    "n_classes",
    "task",
    *PRINTED,
    "seed_kind",
)


@dataclass(frozen=True)
class TrainRequest(Confirmation, RunOptions, Choice):
    """The arguments of `linprobe train`. None means the default.

    `options` holds the method's own options by name; `features` None is the built-in digits.
    """

    epsilon: float | None = None
    delta: float = DEFAULT_DELTA
    sigma: float | None = None
    steps: int | None = None
    sampling_rate: float | None = None
    accountant: str | None = None
    per_record: bool | None = None
    centre: str | None = None
    condition: str | None = None
    intercept: float | None = None
    noise_seed: int | None = None
    options: dict[str, Any] | None = None


def make_settings(request: TrainRequest, method: Method) -> Settings:
    """Settings for the engine; arguments that are not given have their defaults.

    Raises:
        ParameterError, UsageError: an option that is not allowed.
    """
    return Settings.of_given(method, _parameters(request, method, arguments_of(method.options)))


def _parameters(request: TrainRequest, method: Method, known: Collection[str]) -> dict[str, Any]:
    """Arguments of the method by name; `known` are the names of all that it has."""
    declared(RunOptions)["preset"].check(request.preset)
    settings: dict[str, Any] = dict(request.options or {})
    refuse_other_encodings([*vars(request).values(), *settings.values()])
    sigma, centre, condition = request.sigma, request.centre, request.condition
    if request.preset == "paper":
        if method.name not in PAPER_METHODS:
            raise UsageError(
                f"preset paper is the AdaMix paper's, which has no {method.name}; leave it out, or choose one of "
                f"{', '.join(PAPER_METHODS)}"
            )
        settings = {**paper_options(method), **settings}
        if settings.get("subspace") == "none" and "subspace_dim" not in (request.options or {}):
            del settings["subspace_dim"]  # the preset's, of a subspace that the caller turned off
        sigma = PAPER_NOISE_MULTIPLIER if sigma is None and request.steps is None else sigma
        centre = "none" if centre is None else centre
        condition = "none" if condition is None else condition
    shared = {
        "centre": centre,
        "condition": condition,
        "intercept": request.intercept,
        "sampling_rate": request.sampling_rate,
        "accountant": request.accountant,
        "per_record": request.per_record,
    }
    method_options(method, settings)
    settings |= {name: value for name, value in shared.items() if value is not None and name in known}
    for name, value in shared.items():
        by_preset = name in ("centre", "condition") and getattr(request, name) is None
        if value is not None and name not in known and not by_preset:
            raise UsageError(f"option {name.replace('_', '-')} does nothing for {method.name}; leave it out")
    if request.epsilon is not None:
        check_epsilon(request.epsilon)
    if not method.spends:
        spending = {
            "--delta": None if request.delta == DEFAULT_DELTA else request.delta,
            "--sigma": request.sigma,
            "--steps": request.steps,
            "--noise-seed": request.noise_seed,
            "--checkpoint": request.checkpoint_every,
            "--resume": request.resume or None,
            "--cap": request.cap,
        }
        for flag, given in spending.items():
            if given is not None:
                raise UsageError(f"option {flag} does nothing for {method.name}, which adds no noise; leave it out")
        return settings
    if request.epsilon is None:
        raise UsageError(f"method {method.name} needs a privacy budget and got none; give --eps, for example --eps 3")
    if (request.noise_seed is not None) != request.insecure_seed:
        alone, missing = ("--noise-seed", "--insecure-seed")[:: -1 if request.insecure_seed else 1]
        raise UsageError(
            f"{alone} was given without {missing}; a seed makes the run not private, so give both --noise-seed N and "
            "--insecure-seed, or neither"
        )
    budget = {"epsilon": request.epsilon, "delta": request.delta, "insecure_seed": request.noise_seed}
    if not method.one_step:
        return {**settings, **budget, "noise_multiplier": sigma, "n_steps": request.steps}
    for flag, given in (("--sigma", sigma), ("--steps", request.steps)):
        if given is not None:
            raise UsageError(
                f"option {flag} does nothing for {method.name}, whose releases are fixed and have the noise that --eps "
                "needs; leave it out"
            )
    return {**settings, **budget}


def default_out(request: TrainRequest, *, timed: bool = True) -> Path:
    """A new run folder, named after method, epsilon and, if `timed`, the time."""
    parts = [str(request.method)]
    if request.epsilon is not None and find_method(str(request.method)).spends:
        parts.append(f"eps{request.epsilon:g}")
    if timed:
        parts.append(datetime.now(UTC).strftime("%Y%m%d-%H%M%S"))
    return Path("runs") / "-".join([*parts, secrets.token_hex(2 if timed else 4)])


def train(request: TrainRequest, progress: Progress | None = None, group: Group = ALONE) -> dict[str, Any]:
    """Train once, write a run folder, and return a summary. Each call spends privacy budget.

    All processes of `group` make the same call, and each trains on its shard of the private rows. Rank 0 writes.
    Without `progress` nothing is shown.

    Returns: run, method, epsilon, delta, epsilon_target, noise_multiplier, sampling_rate, steps, gdp_mu, unit, n_units,
        n_private (as n_units), n_public, n_features, n_classes, test_accuracy, test_accuracy_std (of its noise, None
        without), test_balanced_accuracy, test_macro_auroc, test_calibration_error, seconds, seed_kind;
        for rows with several labels also test_label_accuracy, test_macro_average_precision.

    Raises:
        LinprobeError: any failure, with its exit status; no run folder is left behind.
    """
    progress = progress or Silent()
    request, choice = with_method(request)
    method = find_method(str(request.method))
    settings = make_settings(request, method)  # a wrong option is reported before data is read
    with opened(request, method, progress, group) as (features, other, completed):
        config = config_text(completed, method)
        outcome = train_on(features, other, completed, settings, progress, group, choice, config)
    send(request, outcome, progress)
    return outcome


def with_method(request: TrainRequest) -> tuple[TrainRequest, Chosen | None]:
    """The request with a method, and why it was chosen if the request named none."""
    if request.method is not None:
        return request, None
    choice = choose_method(request.features, request.public, request.public_shots)
    return replace(request, method=choice.method), choice


@contextmanager
def opened(
    request: TrainRequest, method: Method, progress: Progress, group: Group = ALONE
) -> Iterator[tuple[FeatureReader, FeatureReader | None, TrainRequest]]:
    """The feature file, that of public rows, and the request with its run folder and shots; the folder's name is held.

    Raises:
        UsageError, ParameterError: a wrong request. DataError: a file that cannot be read.
    """
    for name, option in declared(RunOptions).items():
        option.check(getattr(request, name))
    if request.resume and request.out is None:
        raise UsageError("--resume was given without --out; give the run folder that the unfinished run was to become")
    signing_key_of(request, group)  # a wrong key is told before the data is read
    refuse_tracking(request, method)
    if group.size > 1 and "private" in method.needs and not method.spends:
        raise UsageError(f"method {method.name} trains in one process, {group.size} were started; start one")
    shots = request.public_shots
    if request.features is None:
        progress.note("no feature file given: using the built-in digits (1,797 real images)")
        if request.public is None and shots is None:
            shots = DIGITS_SHOTS
            progress.note(f"{shots} public shots per class are taken out of the training rows")
    elif shots is None and request.public is None:
        refuse_missing_public(method, request.features)
    out = request.out or default_out(request)
    request = replace(request, public_shots=shots, out=out)
    with ExitStack() as stack:
        if group.rank == 0:
            if not stack.enter_context(claimed(out)):
                progress.note(f"{out.absolute().parent} has no file locks: let no other process train into {out}")
            unfinished = run_folder.unfinished_folders(out)
            if request.resume and not unfinished:
                progress.note(f"there is no unfinished run of {out} with a checkpoint; this one begins it")
            for folder in () if request.resume else unfinished:
                progress.note(f"an unfinished run of {out} is in {folder}; resume it with --resume, or delete it")
        features = stack.enter_context(open_features(request.features, progress=progress))
        other = None if request.public is None else stack.enter_context(open_features(request.public))
        _warn_of_random_weights((features,) if other is None else (features, other), progress)
        yield features, other, request


def train_on(
    features: FeatureReader,
    other: FeatureReader | None,
    request: TrainRequest,
    settings: Settings,
    progress: Progress,
    group: Group = ALONE,
    choice: Chosen | None = None,
    config: str | None = None,
) -> dict[str, Any]:
    """`train` on checked feature files, open or in memory; `other` contains public rows, `choice` says why a method.

    `config` is the text of the run's config file; None for a run that no options of `linprobe train` repeat.
    """
    started = time.perf_counter()
    signing_key = signing_key_of(request, group)
    method, out = settings.method, request.out or default_out(request)
    settings = replace(settings, test_epsilon=test_epsilon_of(features, request.test_epsilon, request.delta, method))
    rows = rows_of(features, other, request, method)
    sources, public, protected = rows.sources, rows.public, rows.protected

    def identity() -> dict[str, Any]:
        return run_identity(
            settings,
            precision=request.precision,
            device=request.device,
            public_digest=None if public is None or method.joins_public else public.digest(),
            text_weights=sources.text_weights,
            unit=sources.unit,
            class_weights=None if sources.weights is None else sources.weights.by_class,
        )

    def count_test(weights: NDArray[np.float32], bias: NDArray[np.float32]) -> NDArray[np.int64]:
        return right_and_wrong(features.blocks("test"), weights, bias)

    def private_digest() -> str:
        read = protected if settings.test_epsilon is None else [*protected, FileSource(features, "test")]
        return "".join(source.digest() for source in read)

    def book() -> Path:
        return book_of(features, request.book)

    warning = large_delta(settings.delta, rows.n_units) if method.spends else None
    if warning is not None:
        progress.note(warning)
    if choice is not None:
        progress.note(f"method {choice.method}: {choice.when}; {choice.why}. --method names another")
    every = CHECKPOINT_SECONDS if request.checkpoint_every is None else request.checkpoint_every
    keep: Keeping | None = None
    try:
        with (
            run_folder_of_group(out, group, resume=request.resume) as folder,
            closing(Ledger(folder / LEDGER if group.rank == 0 else None, again=request.resume)) as ledger,
            Keeping(folder, ledger, identity, private_digest, every, group) as keep,
            RunCharge(
                book, keep.check, folder, out, settings, ledger, request.cap, progress, group, sources.unit
            ) as charge,
        ):

            def on_budget(budget: Budget | None) -> None:
                refuse_training_rows(features)  # after wrong settings, before anything is spent
                charge.plan(budget)

            runtime = Runtime(request.precision, request.device, group, keep)
            trained = engine.train(
                sources,
                settings,
                runtime,
                ledger=ledger,
                on_budget=on_budget,
                on_start=progress.start,
                on_step=progress.step,
                count_test=None if settings.test_epsilon is None else count_test,
                count_private=count_private,
            )
            if group.rank > 0:
                return {}
            bought = settings.condition != "none" and any(event.purpose == MEAN for event in ledger.events)
            if bought and trained.centre == "none":
                progress.note(
                    f"the private mean is shorter than {SHORTEST_MEAN:g} of a row, so rows were not centred; they got "
                    f"{trained.n_steps} steps"
                )
            measured = figures_of(features, trained)
            manifest = run_folder.write_run(
                folder,
                trained.weights,
                trained.bias,
                trained.history,
                {**manifest_of(features, rows, request, settings, trained, measured), "run_id": charge.run},
                private_records(rows.units, protected, trained),
                signing_key,
                measured,
                config,
                pages_to_sign(out, signing_key),
            )
    except BaseException as error:
        if keep is not None and keep.can_resume:
            progress.note(f"unfinished run kept; the same command with --resume --out {out} resumes it")
        if isinstance(error, OSError) and not isinstance(error, ConnectionAbortedError):
            raise LinprobeError(f"the run cannot be written ({error}); {advice(error)}") from None
        raise
    if manifest["epsilon"] is None and method.private:
        progress.note("NOT PRIVATE: the noise came from a seed you gave; use this run for tests only")
    elif method.spends and request.unit is None:
        releases = [Releases(**release) for release in manifest["releases"]]
        fewer = fewer_protected(features, releases, settings.delta, accountant_of(manifest))
        if fewer is not None:
            progress.note(fewer)
    no_better = None if measured is None else no_better_than_guessing(measured)
    if no_better is not None:
        progress.note(no_better)
    return {
        "run": str(out),
        **{key: manifest[key] for key in (*OUTCOME_KEYS, *PRINTED_OF_LABELS) if key in manifest},
        **{key: None for key in ("gdp_mu", "zcdp_rho") if not manifest["private"]},
        "seconds": time.perf_counter() - started,
    }


def signing_key_of(request: TrainRequest, group: Group) -> Ed25519PrivateKey | None:
    """The key of --sign in rank 0, which writes the run."""
    return None if request.sign is None or group.rank > 0 else signature.private_key(request.sign)


def pages_to_sign(out: Path, signing_key: Ed25519PrivateKey | None) -> run_folder.MakePages | None:
    """What makes the pages of the run `out`, which its signature covers; None for a run that is not signed."""
    if signing_key is None:
        return None
    from linprobe.reporting.model_card import pages_of_run  # jinja2 would slow down every run

    return partial(pages_of_run, out.resolve().name, True)


def _warn_of_random_weights(files: Iterable[FeatureReader], progress: Progress) -> None:
    for file in files:
        if file.description.weights == RANDOM_WEIGHTS:
            progress.note(
                f"{file.path} was made with RANDOM WEIGHTS: its accuracy says nothing about {file.description.backbone}"
            )


def manifest_of(
    features: FeatureReader,
    rows: Rows,
    request: TrainRequest,
    settings: Settings,
    trained: Trained,
    measured: dict[str, Any] | None,
) -> dict[str, Any]:
    """The manifest: guarantee, settings, data, and accuracy on the test rows."""
    description, public, selected = features.description, rows.public, trained.selected
    names = description.class_names
    return {
        **trained.privacy,
        "precision": request.precision,
        "device": request.device,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "n_features": features.n_features,
        "n_classes": len(names),
        "class_names": list(names),
        "class_names_from": description.class_names_from,
        "task": description.task,
        "ids_from": description.ids_from,
        "options": settings.parameters,
        "preset": request.preset,
        "centre": trained.centre,
        "features": DIGITS if request.features is None else str(request.features),
        "backbone": description.backbone,
        "extraction": extraction_of(description),
        "public_from": "nowhere" if public is None else str(public),
        "public_shots": None if public is None else rows.shots,
        "public_file": None if request.public is None else str(request.public),
        "split_seed": request.split_seed,
        "per_owner_rows": request.per_owner_rows,
        "class_weights": None
        if rows.sources.weights is None
        else dict(zip(names, rows.sources.weights.by_class.tolist(), strict=True)),
        "public_digest": None if public is None or settings.method.joins_public else public.digest(),
        **accuracy_of(features, trained, measured),
        "tuning": None if selected is None else {"factors": list(settings.shrink), **asdict(selected)},
        "published": [],
    }
