"""`linprobe train`: one private training run into a run folder."""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from linprobe.accounting.calibrate import check_delta, check_epsilon, large_delta
from linprobe.accounting.ledger import Ledger
from linprobe.commands._method_choice import choose_method, refuse_missing_public
from linprobe.commands._row_sources import DIGITS, FileSource, PublicRows, open_features, public_source
from linprobe.data.digits import DIGITS_SHOTS
from linprobe.data.feature_file import FeatureReader
from linprobe.errors import LinprobeError, UsageError, advice
from linprobe.evaluation.metrics import accuracies, accuracy_by_class, class_accuracy
from linprobe.methods import PAPER_NOISE_MULTIPLIER, Method, find_method, paper_options
from linprobe.methods.choice import Chosen
from linprobe.options import DEFAULT_DELTA, Choice, Confirmation, RunOptions
from linprobe.options.declaration import declared
from linprobe.parallel.process_group import ALONE, Group
from linprobe.progress import Progress
from linprobe.runs import run_folder, signature
from linprobe.runs.claim import claimed
from linprobe.runs.run_folder import PrivateRecords
from linprobe.training import engine
from linprobe.training.checkpoint import Keeping, run_identity
from linprobe.training.engine import Sources, Trained
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
    "n_private",
    "n_public",
    "n_features",
    "n_classes",
    "test_accuracy",
    "test_accuracy_std",
    "test_balanced_accuracy",
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
    """Settings for the engine; arguments that are not given have the defaults of the method's estimator.

    Raises:
        ParameterError, UsageError: an option that is not allowed.
    """
    from linprobe.estimators import ESTIMATORS

    estimator = ESTIMATORS[method.name]
    return estimator(**_parameters(request, method, estimator._get_param_names())).settings()


def _parameters(request: TrainRequest, method: Method, known: Collection[str]) -> dict[str, Any]:
    """Parameters for the method's estimator; `known` are the names of all its parameters."""
    declared(RunOptions)["preset"].check(request.preset)
    settings: dict[str, Any] = dict(request.options or {})
    sigma, centre, condition = request.sigma, request.centre, request.condition
    if request.preset == "paper":
        if method.sampling is not None or method.one_step:
            raise UsageError(
                f"preset paper is the AdaMix paper's, which has no {method.name}; leave it out, or choose adamix, "
                "noisy-gd, ngd or ppgd"
            )
        settings = {**paper_options(method), **settings}
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
            "--sigma": request.sigma,
            "--steps": request.steps,
            "--noise-seed": request.noise_seed,
            "--checkpoint": request.checkpoint_every,
            "--resume": request.resume or None,
        }
        for flag, given in spending.items():
            if given is not None:
                raise UsageError(f"option {flag} does nothing for {method.name}, which adds no noise; leave it out")
        return settings
    if request.epsilon is None:
        raise UsageError(f"method {method.name} needs a privacy budget and got none; give --eps, for example --eps 3")
    if (request.noise_seed is not None) != request.insecure_seed:
        raise UsageError(
            f"noise seed is {request.noise_seed} and --insecure-seed is {'on' if request.insecure_seed else 'off'}; a "
            "seed makes the run not private, so give both --noise-seed N and --insecure-seed, or neither"
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


def _default_out(request: TrainRequest) -> Path:
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    epsilon = "" if request.epsilon is None else f"-eps{request.epsilon:g}"
    return Path("runs") / f"{request.method}{epsilon}-{stamp}-{secrets.token_hex(2)}"


def train(request: TrainRequest, progress: Progress, group: Group = ALONE) -> dict[str, Any]:
    """Train once, write a run folder, and return a summary. Each call spends privacy budget.

    All processes of `group` make the same call, and each trains on its shard of the private rows. Rank 0 writes.

    Returns: run, method, epsilon, delta, epsilon_target, noise_multiplier, sampling_rate, steps, gdp_mu, n_private,
        n_public, n_features, n_classes, test_accuracy, test_accuracy_std (of its noise, None without),
        test_balanced_accuracy, seconds, seed_kind.

    Raises:
        LinprobeError: any failure, with its exit status; no run folder is left behind.
    """
    choice = None
    if request.method is None:
        choice = choose_method(request.features, request.public, request.public_shots)
    method = find_method(str(request.method) if choice is None else choice.method)
    request = replace(request, method=method.name)
    settings = make_settings(request, method)  # a wrong option is reported before data is read
    for name, option in declared(RunOptions).items():
        option.check(getattr(request, name))
    if request.resume and request.out is None:
        raise UsageError("--resume was given without --out; give the run folder that the unfinished run was to become")
    _signing_key(request, group)  # a wrong key is told before the data is read
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
    out = request.out or _default_out(request)
    request = replace(request, public_shots=shots, out=out)
    with ExitStack() as stack:
        if group.rank == 0:
            stack.enter_context(claimed(out))
            for folder in () if request.resume else run_folder.unfinished_folders(out):
                progress.note(f"an unfinished run of {out} is in {folder}; resume it with --resume, or delete it")
        features = stack.enter_context(open_features(request.features))
        other = None if request.public is None else stack.enter_context(open_features(request.public))
        _warn_of_random_weights((features,) if other is None else (features, other), progress)
        return train_on(features, other, request, settings, progress, group, choice)


def train_on(
    features: FeatureReader,
    other: FeatureReader | None,
    request: TrainRequest,
    settings: Settings,
    progress: Progress,
    group: Group = ALONE,
    choice: Chosen | None = None,
) -> dict[str, Any]:
    """`train` on checked feature files, open or in memory; `other` contains public rows, `choice` says why a method."""
    started = time.perf_counter()
    signing_key = _signing_key(request, group)
    method, out = settings.method, request.out or _default_out(request)
    settings = replace(settings, test_epsilon=_test_epsilon(features, request, method))
    shots = (
        0 if method.joins_public and request.public_shots else request.public_shots
    )  # such a method protects all rows
    public, taken = public_source(features, other, shots, request.split_seed, protected=method.joins_public)
    private = FileSource(features, "train", None if taken is None else ~taken)
    protected: list[FileSource | PublicRows] = [private]
    if method.joins_public and public is not None:
        protected.append(public)
    sources = Sources(private, len(features.description.class_names), public, features.text_weights())

    def identity() -> dict[str, Any]:
        return run_identity(
            settings,
            precision=request.precision,
            device=request.device,
            public_digest=None if public is None or method.joins_public else public.digest(),
            text_weights=sources.text_weights,
        )

    def count_right(weights: NDArray[np.float32], bias: NDArray[np.float32]) -> int:
        return int(class_accuracy(features.blocks("test"), weights, bias)[0].sum())

    def private_digest() -> str:
        read = protected if settings.test_epsilon is None else [*protected, FileSource(features, "test")]
        return "".join(source.digest() for source in read)

    warning = large_delta(settings.delta, sum(source.n_rows for source in protected)) if method.spends else None
    if warning is not None:
        progress.note(warning)
    if choice is not None:
        progress.note(f"method {choice.method}: {choice.when}; {choice.why}. --method names another")
    every = CHECKPOINT_SECONDS if request.checkpoint_every is None else request.checkpoint_every
    keep: Keeping | None = None
    try:
        with (
            run_folder.run_folder_of_group(out, group, resume=request.resume) as folder,
            closing(Ledger(folder / run_folder.LEDGER if group.rank == 0 else None, again=request.resume)) as ledger,
            Keeping(folder, ledger, identity, private_digest, every, group) as keep,
        ):
            runtime = Runtime(request.precision, request.device, group, keep)
            trained = engine.train(
                sources,
                settings,
                runtime,
                ledger=ledger,
                on_start=progress.start,
                on_step=progress.step,
                count_right=None if settings.test_epsilon is None else count_right,
            )
            if group.rank > 0:
                return {}
            manifest = run_folder.write_run(
                folder,
                trained.weights,
                trained.bias,
                trained.history,
                _manifest(features, public, request, settings, shots, trained),
                _private_records(protected, trained),
                signing_key,
            )
    except BaseException as error:
        if keep is not None and keep.can_resume:
            progress.note(f"unfinished run kept; the same command with --resume --out {out} resumes it")
        if isinstance(error, OSError) and not isinstance(error, ConnectionAbortedError):
            raise LinprobeError(f"the run cannot be written ({error}); {advice(error)}") from None
        raise
    if manifest["epsilon"] is None and method.private:
        progress.note("NOT PRIVATE: the noise came from a seed you gave; use this run for tests only")
    return {
        "run": str(out),
        **{key: manifest[key] for key in OUTCOME_KEYS},
        **{key: None for key in ("gdp_mu", "zcdp_rho") if not manifest["private"]},
        "seconds": time.perf_counter() - started,
    }


def _signing_key(request: TrainRequest, group: Group) -> Ed25519PrivateKey | None:
    """The key of --sign in rank 0, which writes the run."""
    return None if request.sign is None or group.rank > 0 else signature.private_key(request.sign)


def _test_epsilon(features: FeatureReader, request: TrainRequest, method: Method) -> float | None:
    """The part of epsilon that pays for a noisy accuracy on private test rows; None for no noisy accuracy.

    Raises:
        UsageError: --test-epsilon without private test rows, or for a method that spends nothing.
        PrivacyError: delta of at least 1 / (number of test rows).
    """
    given = request.test_epsilon
    if given is None:
        return None
    if "test" not in features.sizes or not features.description.private_test:
        raise UsageError(
            f"test epsilon is {given:g}, and {features.path} has no private test rows, so accuracy costs nothing; "
            "leave out --test-epsilon, or declare the rows private with --private-test of import or extract"
        )
    if not method.spends:
        raise UsageError(f"option --test-epsilon does nothing for {method.name}, which adds no noise; leave it out")
    check_delta(request.delta, features.sizes["test"])
    return given


def _warn_of_random_weights(files: Iterable[FeatureReader], progress: Progress) -> None:
    for file in files:
        if file.description.weights == RANDOM_WEIGHTS:
            progress.note(
                f"{file.path} was made with RANDOM WEIGHTS: its accuracy says nothing about {file.description.backbone}"
            )


def _private_records(protected: Sequence[FileSource | PublicRows], trained: Trained) -> PrivateRecords | None:
    """Digest, ids and losses of the protected records, private rows first; None if nothing was protected."""
    if trained.losses is None:
        return None
    ids = [name for source in protected for name in source.ids()]
    return PrivateRecords(protected[0].digest(), ids, trained.losses)


def _manifest(
    features: FeatureReader,
    public: PublicRows | None,
    request: TrainRequest,
    settings: Settings,
    shots: int | None,
    trained: Trained,
) -> dict[str, Any]:
    """The manifest: guarantee, settings, data, and accuracy on the test rows."""
    description = features.description
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
        "ids_from": description.ids_from,
        "options": settings.parameters,
        "preset": request.preset,
        "centre": trained.centre,
        "features": DIGITS if request.features is None else str(request.features),
        "backbone": description.backbone,
        "public_from": "nowhere" if public is None else str(public),
        "public_shots": None if public is None else shots,
        "public_file": None if request.public is None else str(request.public),
        "split_seed": request.split_seed,
        "public_digest": None if public is None or settings.method.joins_public else public.digest(),
        **_accuracy(features, trained),
        "published": [],
    }


def _accuracy(features: FeatureReader, trained: Trained) -> dict[str, Any]:
    """Accuracy on the test rows: exact if they are public, noisy or none if they are private."""
    n_test = features.sizes.get("test", 0)
    measured: dict[str, Any] = {
        "test_rows": features.description.test_rows if n_test else "none",
        "n_test": n_test,
        "test_accuracy": None,
        "test_accuracy_std": None,
        "test_balanced_accuracy": None,
        "test_accuracy_per_class": None,
    }
    if trained.right is not None:
        right, std = trained.right
        return {
            **measured,
            "test_accuracy": min(max(right / n_test, 0.0), 1.0),
            "test_accuracy_std": std / n_test,
        }
    if not n_test or features.description.private_test:
        return measured
    correct, total = class_accuracy(features.blocks("test"), trained.weights, trained.bias)
    return {
        **measured,
        **accuracies(correct, total),
        "test_accuracy_per_class": accuracy_by_class(features.description.class_names, correct, total),
    }
