"""One function per command; the only place that sees both data and accounting.

Every function returns plain data for the command line to print; none prints anything itself.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from linprobe import artifact
from linprobe.accounting import planning
from linprobe.accounting.accountants import ACCOUNTANTS, composed_epsilon
from linprobe.accounting.calibrate import DEFAULT_DELTA, calibrate, check_epsilon
from linprobe.accounting.events import GaussianEvent, grouped
from linprobe.accounting.ledger import Ledger, read_ledger
from linprobe.accounting.per_instance import HISTOGRAM_BINS, RecordLosses, histogram_counts
from linprobe.builtin import DIGITS_SHOTS, write_digits
from linprobe.errors import DataError, LinprobeError, PrivacyError, UsageError
from linprobe.evaluation.metrics import class_accuracy, predictions
from linprobe.extraction.request import ExtractOutcome, ExtractRequest
from linprobe.feature_file import FeatureFile, common_keys
from linprobe.files import replace_when_complete
from linprobe.importing import import_arrays
from linprobe.mechanisms.clipping import ClippedSum
from linprobe.mechanisms.entropy import NoiseSource
from linprobe.mechanisms.gaussian import GaussianMechanism
from linprobe.methods import METHODS, PAPER_NOISE_MULTIPLIER, Method, find_method, paper_options
from linprobe.reporting import pdp_report as reports
from linprobe.reporting import plots
from linprobe.reporting.manifest import check_manifest, gaussian_figures, guarantee_text, read_manifest
from linprobe.rows import BLOCK_ROWS, ChainedSource, row_keys
from linprobe.splits import public_shots

DIGITS = "digits"
RANDOM_WEIGHTS = "random"
OUTCOME_KEYS = (
    "method",
    "epsilon",
    "delta",
    "epsilon_target",
    "noise_multiplier",
    "sampling_rate",
    "steps",
    "gdp_mu",
    "n_private",
    "n_public",
    "n_features",
    "n_classes",
    "test_accuracy",
    "seed_kind",
)
HISTOGRAM = "published_histogram_{}.json"


class Progress(Protocol):
    """What a command tells a person while it works."""

    def note(self, text: str) -> None:
        """One line."""

    def start(self, total: int, what: str = "training") -> None:
        """The number of steps is known; 0 if it is not."""

    def step(self, count: int = 1) -> None:
        """So many more steps are done."""


class FileSource:
    """The rows of one group of a feature file, streamed: those where `keep` is true, labels renumbered by `relabel`."""

    def __init__(
        self,
        features: FeatureFile,
        group: str,
        keep: NDArray[np.bool_] | None = None,
        relabel: NDArray[np.int64] | None = None,
    ) -> None:
        self.features, self.group, self.keep, self.relabel = features, group, keep, relabel
        self.n_rows = features.sizes[group] if keep is None else int(keep.sum())
        self.n_features = features.n_features

    def blocks(self) -> Iterator[tuple[NDArray[np.floating], NDArray[np.int64]]]:
        """Blocks of raw rows and class indices, in file order."""
        for x, y in self.features.blocks(self.group, self.keep):
            yield x, y if self.relabel is None else self.relabel[y]

    def ids(self) -> list[str]:
        """Record ids in the order of the rows."""
        ids = self.features.ids(self.group)
        return ids if self.keep is None else [name for name, kept in zip(ids, self.keep, strict=True) if kept]

    def digest(self) -> str:
        """SHA-256 of these rows, labels, ids and the class names."""
        return self.features.digest(self.group, self.keep)


class PublicRows(ChainedSource):
    """Public rows of one or two files."""

    def __init__(self, *parts: FileSource) -> None:
        super().__init__(*parts)
        self.parts = parts

    def ids(self) -> list[str]:
        """Record ids in the order of the rows."""
        return [name for part in self.parts for name in part.ids()]

    def digest(self) -> str:
        """That of the only part, or SHA-256 of the parts' digests."""
        digests = [part.digest() for part in self.parts]
        return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()

    def __str__(self) -> str:
        return ", ".join(f"group {part.group} of {part.features.path}" for part in self.parts)


@dataclass(frozen=True)
class TrainRequest:
    """What `linprobe train` was asked for. None means: use the default.

    `options` holds the method's own options by name; `features` None is the built-in digits.
    """

    method: str
    features: Path | None = None
    epsilon: float | None = None
    delta: float = DEFAULT_DELTA
    sigma: float | None = None
    steps: int | None = None
    out: Path | None = None
    public: Path | None = None
    public_shots: int | None = None
    split_seed: int = 0
    sampling_rate: float | None = None
    accountant: str | None = None
    per_record: bool | None = None
    centre: str | None = None
    intercept: float | None = None
    preset: str = "default"
    noise_seed: int | None = None
    insecure_seed: bool = False
    options: dict[str, Any] | None = None


@contextmanager
def open_features(path: Path | None, *, whole: bool = True) -> Iterator[FeatureFile]:
    """The feature file at `path`, every row checked if `whole`; the built-in digits for None."""
    if path is None or (str(path) == DIGITS and not path.exists()):
        with tempfile.TemporaryDirectory() as folder:
            digits = Path(folder) / "digits.h5"
            write_digits(digits)
            with FeatureFile(digits, shown_as=Path(DIGITS)) as features:
                yield features
        return
    with FeatureFile(path) as features:
        if whole:
            features.scan()
        yield features


def _settings(request: TrainRequest, method: Method) -> dict[str, Any]:
    """Constructor arguments of the method's estimator."""
    from linprobe.estimators import ESTIMATORS

    if request.preset not in ("default", "paper"):
        raise UsageError(f"preset is {request.preset!r}; allowed: default, paper")
    settings: dict[str, Any] = dict(request.options or {})
    sigma, centre = request.sigma, request.centre
    if request.preset == "paper":
        if method.sampling is not None:
            raise UsageError(
                f"preset paper is the AdaMix paper's, which has no {method.name}; leave it out, or choose adamix, "
                "noisy-gd, ngd or ppgd"
            )
        settings = {**paper_options(method), **settings}
        sigma = PAPER_NOISE_MULTIPLIER if sigma is None and request.steps is None else sigma
        centre = "none" if centre is None else centre
    known = ESTIMATORS[method.name]._get_param_names()
    shared = {
        "centre": centre,
        "intercept": request.intercept,
        "sampling_rate": request.sampling_rate,
        "accountant": request.accountant,
        "per_record": request.per_record,
    }
    method.make_options({**settings, **({"init": "run"} if "init" in settings else {})})
    settings |= {name: value for name, value in shared.items() if value is not None and name in known}
    for name, value in shared.items():
        by_preset = name == "centre" and request.centre is None
        if value is not None and name not in known and not by_preset:
            raise UsageError(f"option {name.replace('_', '-')} does nothing for {method.name}; leave it out")
    if request.epsilon is not None:
        check_epsilon(request.epsilon)
    if not method.spends:
        spending = {"--sigma": request.sigma, "--steps": request.steps, "--noise-seed": request.noise_seed}
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
    budget = {
        "epsilon": request.epsilon,
        "delta": request.delta,
        "noise_multiplier": sigma,
        "n_steps": request.steps,
    }
    return {**settings, **budget, "insecure_seed": request.noise_seed}


def _public_source(
    request: TrainRequest, features: FeatureFile, other: FeatureFile | None, shots: int | None
) -> tuple[PublicRows | None, NDArray[np.bool_] | None]:
    """Public rows, and which training rows some were taken out of (None if all come from elsewhere)."""
    parts, mask = [], None
    if shots is not None and shots < 0:
        raise UsageError(f"public shots is {shots}; allowed: 0 or more")
    if shots:
        names = features.description.class_names
        mask = public_shots(features.ids("train"), features.labels("train"), names, shots, request.split_seed)
        parts.append(FileSource(features, "train", mask))
    if other is not None:
        parts.append(_other_public_rows(features, other, mask))
    elif shots is None and "public" in features.sizes:
        parts.append(FileSource(features, "public"))
    return PublicRows(*parts) if parts else None, mask


def _other_public_rows(features: FeatureFile, other: FeatureFile, shots: NDArray[np.bool_] | None) -> FileSource:
    """Public rows of another file, classes matched by name: its `public` group, else its `train` group.

    They may repeat training rows that are public `shots`, as augmented images do, but no private one.
    """
    if other.n_features != features.n_features:
        raise DataError(
            f"{other.path} has {other.n_features} features and {features.path} {features.n_features}; "
            "allowed: the same; make both with the same backbone"
        )
    mine, theirs = features.description, other.description
    compared: tuple[str, ...] = ("backbone", "weights_digest")
    if mine.extraction_digest and theirs.extraction_digest:
        compared = ("backbone", "weights_digest", "tensor", "preprocessing", "extraction_digest")
    for name in compared:
        here, there = getattr(mine, name), getattr(theirs, name)
        if here and there and here != there:
            raise DataError(f"{other.path} has {name} {there!r} and {features.path} {here!r}; allowed: the same")
    index = {name: position for position, name in enumerate(mine.class_names)}
    relabel = np.array([index.get(name, -1) for name in theirs.class_names])
    group = "public" if "public" in other.sizes else "train"
    _refuse_shared_rows(features, other, group, None if shots is None else ~shots)
    keep = relabel[other.labels(group)] >= 0
    if not keep.any():
        raise DataError(
            f"{other.path} shares no class name with {features.path}; allowed: at least one of "
            f"{', '.join(mine.class_names[:5])}"
        )
    return FileSource(other, group, keep, relabel)


def _refuse_shared_rows(
    features: FeatureFile, other: FeatureFile, group: str, private: NDArray[np.bool_] | None
) -> None:
    """Refuse public rows that are private too, or multiples of private ones; compared in half precision."""
    mine, theirs = features.image_keys("train"), other.image_keys(group)
    if mine is not None and private is not None:
        mine = mine[private]
    if mine is not None and theirs is not None and common_keys(mine, theirs):
        raise PrivacyError(
            f"{other.path} was made from images that are training images of {features.path} too; a private image "
            "cannot be public; give others, or --public-shots K"
        )
    public = set(row_keys(x for x, _ in other.blocks(group)))
    if any(key in public for key in row_keys(x for x, _ in features.blocks("train", private))):
        raise PrivacyError(
            f"{other.path} holds training rows of {features.path}; a private row cannot be public too; "
            "give other rows, or --public-shots K"
        )


def weights_of(estimator: Any) -> NDArray[np.float32]:
    """A fitted estimator's weights as a run folder keeps them: (n_features, n_classes), voters in front."""
    return np.ascontiguousarray(np.swapaxes(estimator.coef_, -1, -2))


def _default_out(request: TrainRequest) -> Path:
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    epsilon = "" if request.epsilon is None else f"-eps{request.epsilon:g}"
    return Path("runs") / f"{request.method}{epsilon}-{stamp}-{secrets.token_hex(2)}"


def train(request: TrainRequest, progress: Progress) -> dict[str, Any]:
    """Train once, write a run folder, and say how it went. One release, one charge.

    Returns: run, method, epsilon, delta, epsilon_target, noise_multiplier, sampling_rate, steps, gdp_mu, n_private,
        n_public, n_features, n_classes, test_accuracy, seconds, seed_kind.

    Raises:
        LinprobeError: whatever went wrong, with its exit status; no run folder is then left behind.
    """
    from linprobe.estimators import ESTIMATORS

    started = time.perf_counter()
    method = find_method(request.method)
    settings = _settings(request, method)
    shots = request.public_shots
    if request.features is None:
        progress.note("no feature file given: using the built-in digits (1,797 real images)")
        if request.public is None and shots is None:
            shots = DIGITS_SHOTS
            progress.note(f"{shots} public shots per class are taken out of the training rows")
    elif shots is None and request.public is None:
        _refuse_missing_public(method, request.features)
    with open_features(request.features) as features:
        other = None if request.public is None else FeatureFile(request.public)
        try:
            if other is not None:
                other.scan()
            _warn_of_random_weights((features, other), progress)
            if method.joins_public and shots:
                shots = 0  # all training rows are protected anyway
            public, taken = _public_source(request, features, other, shots)
            private = FileSource(features, "train", None if taken is None else ~taken)
            classes = list(range(len(features.description.class_names)))
            estimator = ESTIMATORS[method.name](classes=classes, **settings)
            out = request.out or _default_out(request)
            with artifact.new_run_folder(out) as folder:
                ledger = Ledger(folder / artifact.LEDGER)
                text = features.text_weights()
                estimator.fit_sources(
                    private, public, text, ledger=ledger, on_step=progress.step, on_start=progress.start
                )
                correct, total = class_accuracy(features.blocks("test"), weights_of(estimator), estimator.intercept_)
                manifest = _write_run(folder, request, shots, features, private, public, estimator, correct, total)
        except OSError as error:
            raise LinprobeError(f"the run cannot be written ({error}); free some space or give another --out") from None
        finally:
            if other is not None:
                other.close()
    if manifest["epsilon"] is None and method.private:
        progress.note("NOT PRIVATE: the noise came from a seed you gave; use this run for tests only")
    return {
        "run": str(out),
        **{key: manifest[key] for key in OUTCOME_KEYS},
        "seconds": time.perf_counter() - started,
    }


def _warn_of_random_weights(files: Iterable[FeatureFile | None], progress: Progress) -> None:
    for file in files:
        if file is not None and file.description.weights == RANDOM_WEIGHTS:
            progress.note(
                f"{file.path} was made with RANDOM WEIGHTS: its accuracy says nothing about {file.description.backbone}"
            )


def _refuse_missing_public(method: Method, path: Path) -> None:
    """Tell a user who forgot public rows so before the whole file is read."""
    if "public" not in method.needs or not path.is_file():
        return
    with FeatureFile(path) as features:
        if "public" not in features.sizes:
            raise UsageError(
                f"method {method.name} needs public rows and {path} has no public group; "
                "give --public FILE or --public-shots K"
            )


def _write_run(
    folder: Path,
    request: TrainRequest,
    shots: int | None,
    features: FeatureFile,
    private: FileSource,
    public: PublicRows | None,
    estimator: Any,
    correct: NDArray[np.int64],
    total: NDArray[np.int64],
) -> dict[str, Any]:
    method = estimator.method
    artifact.write_model(folder, weights_of(estimator), estimator.intercept_)
    artifact.write_history(folder, estimator.history_)
    private_commitment = per_record_commitment = None
    if method.spends:
        key = secrets.token_bytes(32)
        private_commitment = artifact.commitment(key, private.digest())
        ids = private.ids()
        if method.joins_public and public is not None:
            ids += public.ids()
        losses = estimator.private_record_losses_
        artifact.write_per_record(folder, ids, losses, key)
        per_record_commitment = artifact.commitment(key, artifact.per_record_digest(ids, losses))
    description = features.description
    names = description.class_names
    n_test = int(total.sum())
    manifest = {
        **estimator.privacy_,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "n_features": features.n_features,
        "n_classes": len(names),
        "class_names": list(names),
        "class_names_from": description.class_names_from,
        "options": estimator.get_params(),
        "preset": request.preset,
        "centre": estimator.centre_,
        "features": DIGITS if request.features is None else str(request.features),
        "backbone": description.backbone,
        "public_from": "nowhere" if public is None else str(public),
        "public_shots": None if public is None else shots,
        "split_seed": request.split_seed,
        "public_digest": None if public is None or method.joins_public else public.digest(),
        "private_commitment": private_commitment,
        "per_record_commitment": per_record_commitment,
        "test_accuracy": int(correct.sum()) / n_test,
        "test_accuracy_per_class": _per_class(names, correct, total),
        "n_test": n_test,
        "published": [],
    }
    manifest["options"].pop("classes")
    return artifact.write_manifest(folder, manifest)


def extract(request: ExtractRequest, progress: Progress) -> ExtractOutcome | None:
    """Images to a feature file; None in a process that is not the first of several."""
    # torch and torchvision take seconds to load; the other commands need neither
    from linprobe.extraction.extract import extract as run_extraction

    return run_extraction(request, progress)


def import_features(sources: Sequence[Path], out: Path, classes: Path | None) -> dict[str, Any]:
    """Make a feature file from arrays; returns its description as `info` gives it."""
    if out.is_dir():
        raise UsageError(f"feature file {out} is a folder; give --out a file name")
    names = None
    if classes is not None:
        try:
            names = [line.strip() for line in classes.read_text(encoding="utf-8").splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"class list {classes} cannot be read ({error}); give one class name a line") from None
    try:
        import_arrays(sources, out, names)
    except OSError as error:
        raise LinprobeError(
            f"feature file {out} cannot be written ({error}); free some space or give another --out"
        ) from None
    return describe_features(out)


def describe_features(path: Path) -> dict[str, Any]:
    """What a feature file holds."""
    with open_features(path) as features:
        description = features.description
        return {
            "file": str(path),
            "rows": dict(features.sizes),
            "n_features": features.n_features,
            "n_classes": len(description.class_names),
            "text_weights": features.text_weights() is not None,
            **{key: value for key, value in vars(description).items() if key != "class_names"},
            "class_names": list(description.class_names),
        }


def info(path: Path) -> dict[str, Any]:
    """A feature file's description, or a run folder's manifest."""
    if path.is_dir():
        return read_manifest(path)
    return describe_features(path)


def _features_of(run: artifact.LoadedRun, features: Path | None) -> Path | None:
    """The feature file to use with a run: the one given, else the one it was trained on."""
    if features is not None:
        return features
    recorded = run.manifest["features"]
    return None if recorded == DIGITS else Path(recorded)


def evaluate(folder: Path, features: Path | None) -> dict[str, Any]:
    """Accuracy of a run on the test rows of a feature file, overall and per class."""
    run = artifact.load_run(folder)
    with open_features(_features_of(run, features)) as opened:
        if list(opened.description.class_names) != run.class_names:
            raise DataError(f"{opened.path} declares other classes than the run {folder}; use a file with the same")
        _check_width(run, opened.n_features, opened.path)
        correct, total = class_accuracy(opened.blocks("test"), run.weights, run.bias)
    return {
        "run": str(folder),
        "test_rows": int(total.sum()),
        "test_accuracy": int(correct.sum()) / int(total.sum()),
        "per_class": _per_class(run.class_names, correct, total),
    }


def _per_class(names: Sequence[str], correct: NDArray[np.int64], total: NDArray[np.int64]) -> dict[str, float | None]:
    """Accuracy by class name; None for a class without rows."""
    return {name: int(c) / int(t) if t else None for name, c, t in zip(names, correct, total, strict=True)}


def _finite(blocks: Iterable[NDArray[np.floating]], where: Path) -> Iterator[NDArray[np.floating]]:
    """The same blocks, refused at the first NaN or infinity."""
    start = 0
    for x in blocks:
        bad = np.flatnonzero(~np.isfinite(x).all(axis=1))
        if bad.size:
            raise DataError(
                f"{where} has rows with NaN or infinity, first at row {start + bad[0]}; "
                "allowed: finite features; remove or repair those rows"
            )
        start += len(x)
        yield x


def _check_width(run: artifact.LoadedRun, n_features: int, where: Path) -> None:
    if n_features != run.weights.shape[-2]:
        raise DataError(f"{where} has {n_features} features; allowed for this run: {run.weights.shape[-2]}")


def predict(folder: Path, features: Path, group: str) -> Iterator[tuple[str, str, float]]:
    """(id, class name, softmax score) of each row: of a group of a feature file, or of a `.npy` array of rows."""
    run = artifact.load_run(folder)
    if features.suffix == ".npy":
        try:
            rows = np.load(features, mmap_mode="r", allow_pickle=False)
        except artifact.UNREADABLE as error:
            reason = str(error) or type(error).__name__
            raise DataError(f"{features} cannot be read ({reason}); give a .npy array of feature rows") from None
        if rows.dtype.kind not in "fiub":
            raise DataError(f"{features} has type {rows.dtype}; allowed: real numbers")
        _check_width(run, rows.shape[1] if rows.ndim == 2 else 0, features)
        ids: Iterator[str] = (str(row) for row in range(len(rows)))
        blocks = (rows[start : start + BLOCK_ROWS] for start in range(0, len(rows), BLOCK_ROWS))
        yield from _predicted(run, ids, _finite(blocks, features))
        return
    with open_features(features, whole=False) as opened:
        if group not in opened.sizes:
            raise UsageError(f"group is {group!r}; allowed for {features}: {', '.join(opened.sizes)}")
        _check_width(run, opened.n_features, features)
        rows = _finite((x for x, _ in opened.blocks(group)), features)
        yield from _predicted(run, iter(opened.ids(group)), rows)


def _predicted(
    run: artifact.LoadedRun, ids: Iterator[str], blocks: Iterator[NDArray[np.floating]]
) -> Iterator[tuple[str, str, float]]:
    names = run.class_names
    for best, score in predictions(blocks, run.weights, run.bias):
        for index, value in zip(best.tolist(), score.tolist(), strict=True):
            yield next(ids), names[index], value


@dataclass(frozen=True)
class PdpReport:
    """The per-record report and what the terminal shows of it. Private."""

    report: dict[str, Any]
    sparkline: str
    published: dict[str, Any] | None


def pdp_report(
    folder: Path, *, csv: Path | None = None, plot: Path | None = None, publish_epsilon: float | None = None
) -> PdpReport:
    """Summarise the per-record losses of a run; write them, draw them, or release their histogram, if asked.

    Raises:
        DataError: a folder without per-record figures. PrivacyError: the run claims no privacy.
    """
    if plot is not None:
        plots.check_format(plot)
    if publish_epsilon is not None:
        check_epsilon(publish_epsilon)
    for wanted in (csv, plot):
        if wanted is not None and not wanted.parent.is_dir():
            raise LinprobeError(f"{wanted} cannot be written: there is no folder {wanted.parent}; make it first")
    run = artifact.load_run(folder)
    manifest = run.manifest
    if manifest["accountant"] is None:
        raise UsageError(
            f"run {folder} used method {manifest['method']}, which releases nothing with noise; "
            "per-record losses exist for methods that spend a budget"
        )
    ids, losses, _ = artifact.read_per_record(folder, manifest)
    if len(losses.mu) != len(ids):
        raise UsageError(f"run {folder} was trained with --no-per-record; train with --per-record to follow records")
    published = None if publish_epsilon is None else _publish_histogram(run, losses, publish_epsilon)
    manifest = read_manifest(folder)
    # a published histogram costs every record alike
    losses = losses.charged(sum((1 / release["noise_multiplier"]) ** 2 for release in manifest["published"]))
    worst = manifest["epsilon"] if manifest["private"] else manifest["epsilon_if_seed_were_secret"]
    epsilons = losses.epsilon(manifest["delta"], worst)
    if csv is not None:
        _writing(csv, lambda: reports.write_csv(csv, ids, epsilons))
    if plot is not None:
        _writing(plot, lambda: plots.sorted_epsilons(plot, epsilons, worst, manifest["method"]))
    sampled = manifest["gdp_mu"] is None
    return PdpReport(
        reports.report(epsilons, worst, manifest["delta"], sampled=sampled),
        reports.sparkline(epsilons, worst),
        published,
    )


def _writing(path: Path, write: Callable[[], None]) -> None:
    try:
        write()
    except OSError as error:
        raise LinprobeError(f"{path} cannot be written ({error.strerror}); give another place") from None


def _publish_histogram(run: artifact.LoadedRun, losses: RecordLosses, epsilon: float) -> dict[str, Any]:
    """Release the histogram of epsilon_i with Gaussian noise and charge it to the run's ledger.

    Given the released iterates each epsilon_i is a function of its own record, so one record moves one count by one:
    L2 sensitivity 1. The charge is in the ledger and on the disk before the noise is drawn.
    """
    folder, manifest = run.folder, run.manifest
    if not manifest["private"]:
        raise PrivacyError(f"run {folder} is not private; nothing can be published from it")
    events, delta = read_ledger(folder / artifact.LEDGER), manifest["delta"]
    check_manifest(manifest, folder, events)
    accountant = next(name for name, title in ACCOUNTANTS.items() if title == manifest["accountant"])
    training = grouped(event for event in events if event.purpose != "histogram")
    training_epsilon = composed_epsilon(training, delta, accountant)
    budget = calibrate(epsilon=epsilon, delta=delta, n_private=manifest["n_private"], steps=1)
    counts = histogram_counts(losses.epsilon(delta, training_epsilon), training_epsilon)
    ledger = Ledger(folder / artifact.LEDGER)

    def charge(event: GaussianEvent) -> None:
        ledger.append(event)
        ledger.close()

    mechanism = GaussianMechanism(NoiseSource(), charge, first_step=len(events))
    clipped = ClippedSum(counts[:, None], 1.0, np.ones(1))
    noisy = mechanism.release(clipped, budget.noise_multiplier, purpose="histogram").value[:, 0]
    histogram = {
        "what": "noisy number of records by their own training epsilon; safe to publish",
        "bin_edges": np.linspace(0, training_epsilon, HISTOGRAM_BINS + 1).tolist(),
        "noisy_counts": np.rint(noisy).astype(int).tolist(),
        "noise_std": budget.noise_multiplier,
        "epsilon_charged": epsilon,
    }
    releases = grouped(ledger.events)
    total = composed_epsilon(releases, delta, accountant)
    target = manifest["epsilon_target"] + epsilon
    name = HISTOGRAM.format(len(manifest["published"]) + 1)
    release = {"what": "histogram", "epsilon": epsilon, "noise_multiplier": budget.noise_multiplier, "file": name}
    updated = {
        **manifest,
        "guarantee": guarantee_text(total, delta, insecure=False),
        "epsilon": total,
        "epsilon_target": target,
        **gaussian_figures(releases),
        "releases": [asdict(release) for release in releases],
        "published": [*manifest["published"], release],
    }
    histogram |= {"epsilon_of_run_now": total, "file": str(folder / name)}
    with replace_when_complete(folder / name, "w") as stream:
        json.dump(histogram, stream, indent=2)
        stream.write("\n")
    artifact.write_manifest(folder, updated, tuple(release["file"] for release in updated["published"]))
    return histogram


def verify(folder: Path, features: Path | None) -> dict[str, Any]:
    """Recompute a run's epsilon from its ledger with both accountants; check every file, and the data if given.

    Raises:
        PrivacyError: anything that does not match.
    """
    manifest = read_manifest(folder)
    try:
        result = check_manifest(manifest, folder, read_ledger(folder / artifact.LEDGER))
    except (KeyError, TypeError) as error:
        raise PrivacyError(f"{folder}/manifest.json lacks or garbles {error}; do not trust it") from None
    if (folder / artifact.PER_RECORD).exists():
        artifact.read_per_record(folder, manifest)
    data = "not checked: give --features FILE"
    if features is not None:
        data = _verify_data(manifest, folder, features)
    return {"run": str(folder), "verified": True, "private": manifest["private"], **result, "data": data}


def _verify_data(manifest: dict[str, Any], folder: Path, path: Path) -> str:
    if manifest["private_commitment"] is None:
        return "not committed to: the run makes no release about private rows"
    ids, _, key = artifact.read_per_record(folder, manifest)
    with open_features(path) as features:
        known = set(ids)
        keep = np.array([name in known for name in features.ids("train")])
        if find_method(manifest["method"]).joins_public:
            keep[:] = True  # and the public rows among the ids come from elsewhere
        if artifact.commitment(key, features.digest("train", keep)) != manifest["private_commitment"]:
            raise PrivacyError(f"{path} does not hold the private rows this run was trained on; find the right file")
    return "the private rows are those the run was trained on"


def list_methods() -> list[dict[str, Any]]:
    """Every method: name, summary, paper, the data it needs."""
    return [
        {
            "method": method.name,
            "summary": method.summary,
            "needs": list(method.needs),
            "spends": method.spends,
            "paper": method.paper,
        }
        for method in METHODS.values()
    ]


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
        if not request.plot.parent.is_dir():
            raise LinprobeError(
                f"{request.plot} cannot be written: there is no folder {request.plot.parent}; make it first"
            )
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
        _writing(place, lambda: plots.noise_against_rate(place, rows, recommended, title))
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
