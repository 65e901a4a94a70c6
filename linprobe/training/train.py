"""`linprobe train`: one private training run into a run folder."""

import json
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import MISSING, asdict, dataclass, fields, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from linprobe import atomic_files
from linprobe.accounting.book import Entry
from linprobe.accounting.calibrate import check_delta
from linprobe.accounting.fits import copies_warning
from linprobe.accounting.ledger import Ledger
from linprobe.accounting.row_keys import Account
from linprobe.data.array_files import float_archive
from linprobe.data.dataset import (
    DIGITS,
    Dataset,
    PublicRows,
    Split,
    dataset_of,
    note_equal_rows,
    open_features,
    refuse_training_rows,
    unit_of,
)
from linprobe.data.digits import DIGITS_SHOTS
from linprobe.data.feature_reader import FeatureReader, GroupRows, extraction_of, order_note
from linprobe.errors import (
    DataError,
    LinprobeError,
    PrivacyError,
    PrivacyNote,
    Progress,
    Silent,
    UsageError,
    counted,
    unwritten,
)
from linprobe.methods import ChosenMethod, Method, choose, find_method
from linprobe.methods.private_mean import MEAN
from linprobe.options import OWNER, RECORD, TRAIN, VOTE, RunOptions
from linprobe.options.declaration import check_declared, config_keys
from linprobe.options.requests import TrainRequest
from linprobe.parallel.array_api import distinct
from linprobe.parallel.process_group import ALONE, Group
from linprobe.parallel.torch_group import refuse_copies
from linprobe.runs import figures, run_folder
from linprobe.runs.manifest import (
    CONFIG,
    DAY,
    HISTORY,
    LEDGER,
    MANIFEST,
    MODEL,
    OPTIONAL_FILES,
    PAGES,
    RUN_FILES,
    SIGNATURE,
    TEST_FIGURES,
    TRAINED,
    UNIFORM,
    UNREFINED,
    CountsByClass,
    Manifest,
)
from linprobe.runs.matching import (
    holds_rows,
    refuse_private_as_public,
    refuse_private_rows,
    tested_unlabelled,
    training_files,
)
from linprobe.runs.refined_weights import OTHER_KIND, part_by_share, unrefinable
from linprobe.runs.refinement import refinement
from linprobe.runs.release_rules import similar_share
from linprobe.runs.run_folder import PerRecordFile, claimed, refuse_book_inside, run_folder_of_group
from linprobe.training.charge import (
    BookFinder,
    RunCharge,
    charge_complete,
    note_not_compared,
    refuse_private_in_books,
    refuse_protected_test_rows,
)
from linprobe.training.checkpoint import Checkpoints, run_identity
from linprobe.training.execute import Runtime, Trained, choose_backend, execute
from linprobe.training.plan import SHORTEST_MEAN, Plan, Settings, make_settings, plan_run, warnings_of

RANDOM_WEIGHTS = "random"
CHECKPOINT_SECONDS = 60.0
LEAST_USEFUL = 1e-3  # epsilon; below, it may have been meant for delta
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
    *figures.PRINTED,
    "seed_kind",
)


@dataclass(frozen=True)
class Ready:
    """A checked request with its open files and a reserved run folder."""

    request: TrainRequest  # with its method, run folder and shots
    features: FeatureReader
    other: FeatureReader | None = None  # file of public rows
    unlabelled: FeatureReader | None = None  # file of public rows without labels
    signing_key: Ed25519PrivateKey | None = None  # of --sign, in rank 0
    choice: ChosenMethod | None = None  # why the method was chosen, if the request named none
    dated: bool = True  # whether the manifest states the time of day, which tells how long a private selection took

    @cached_property
    def method(self) -> Method:
        return find_method(str(self.request.method))

    def dataset(self) -> Dataset:
        """The rows, split; none is read. Raises LinprobeError: as `unit_of` and `dataset_of`."""
        request = self.request
        if self.method.spends:
            unit_of(self.features, request.unit)
        split = Split(
            request.public_shots, request.split_seed, request.unit, request.per_owner_rows, self.method.joins_public
        )
        return dataset_of(self.features, self.other, split, request.class_weight, self.unlabelled)

    def with_test(self, settings: Settings) -> Settings:
        """The settings with epsilon for noisy accuracy on private test rows. UsageError: none. PrivacyError: delta."""
        request, features, given = self.request, self.features, self.request.test_epsilon
        if given is None:
            return settings
        if "test" not in features.sizes or not features.description.private_test:
            raise UsageError(
                f"test epsilon is {given:g}, and {features.path} has no private test rows, so accuracy costs nothing; "
                "leave out --test-epsilon, or declare the rows private with --private-test of import or extract"
            )
        if not self.method.spends:
            raise UsageError(
                f"option --test-epsilon does nothing for {self.method.name}, which adds no noise; leave it out"
            )
        if request.unit == OWNER and not features.has_owners("test"):
            raise UsageError(
                f"test epsilon is {given:g} with unit owner, and {features.path} does not name the owners of its test "
                "rows; allowed: a file with owner_test, or no --test-epsilon"
            )
        n_test, n_classes = figures.test_units(features, request.unit), len(features.description.class_names)
        check_delta(request.delta, n_test)
        return replace(settings, test_epsilon=given, n_test=n_test, n_classes=n_classes)

    def expectation(self, dataset: Dataset) -> dict[str, Any] | None:
        """What accuracy to expect, as `figures.expected`; None where the figures behind it do not cover the run."""
        request, weighted = self.request, self.request.class_weight is not None
        if not self.method.spends or request.epsilon is None or dataset.several_labels or weighted:
            return None
        return figures.expected(request.epsilon, request.delta, dataset.n_units, dataset.n_classes)

    def _of_order(self, settings: Settings) -> list[str]:
        first = settings.first_run
        if first is None:
            return []
        note = order_note(first.model.manifest.extraction or {}, f"run {first.folder}", self.features)
        return [] if note is None else [note]

    def _of_noise(self, dataset: Dataset) -> list[str]:
        """Warnings that the noise will hide what the private rows say."""
        epsilon, expectation, said = self.request.epsilon, self.expectation(dataset), []
        if self.method.spends and epsilon is not None and epsilon < LEAST_USEFUL:
            said.append(f"epsilon {epsilon:g} leaves almost only noise; was it meant for --delta?")
        if expectation is not None and expectation["signal_to_noise"] < figures.LOW_SIGNAL:
            said.append(str(expectation["expect"]))
        return said

    def warnings(self, plan: Plan, dataset: Dataset, entry: Entry | None = None) -> list[str]:
        """Warnings to print before the run starts. `entry`: of a choice among runs, None for one run."""
        said = []
        for file in (self.features, self.other):
            if file is not None and file.description.weights == RANDOM_WEIGHTS:
                backbone = file.description.backbone
                said.append(f"{file.path} was made with RANDOM WEIGHTS: its accuracy says nothing about {backbone}")
        if self.features.description.shares_owners:
            said.append(
                f"{self.features.path} was made with --owners-on-both-sides: accuracy is on people seen in "
                "training, and may be lower on new people"
            )
        said += self._of_order(plan.settings)
        left_out = dataset.public.left_out() if isinstance(dataset.public, PublicRows) else None
        said += [] if left_out is None else [left_out]
        looks = plan.centre == "public" and plan.method.spends  # such a plan has counted the public rows
        seen = np.count_nonzero(dataset.public_counts) if looks else 0
        if 0 < seen < dataset.n_classes:
            said.append(
                f"public rows have {seen} of {dataset.n_classes} classes; without public rows, a run may be more "
                "accurate"
            )
        if self.choice is not None:
            said.append(f"method {self.choice.method}: {self.choice.when}; {self.choice.why}; --method chooses another")
        if self.request.epsilon is not None and not self.method.spends:
            said.append(f"option --eps does nothing for {self.method.name}, which adds no noise")
        return [*said, *self._of_noise(dataset), *map(PrivacyNote, warnings_of(plan, dataset, entry))]


def default_out(request: TrainRequest, *, timed: bool = True) -> Path:
    """A new run folder, named after method, epsilon and, if `timed`, the time."""
    parts = [str(request.method)]
    if request.epsilon is not None and find_method(str(request.method)).spends:
        parts.append(f"eps{request.epsilon:g}")
    if timed:
        parts.append(datetime.now(UTC).strftime("%Y%m%d-%H%M%S"))
    return Path("runs") / "-".join([*parts, secrets.token_hex(2 if timed else 4)])


def train_run(request: TrainRequest, progress: Progress | None = None, group: Group = ALONE) -> dict[str, Any]:
    """Train once, write a run folder, and return a summary. Each call spends privacy budget.

    All processes of `group` make the same call, and each trains on its shard of the private rows. Rank 0 writes.
    Raises LinprobeError: any failure, with its exit status; no run folder is left behind.
    """
    progress = progress or Silent()
    if group is ALONE:
        refuse_copies("train")
    request, choice = with_method(request)
    settings = make_settings(request, find_method(str(request.method)))  # reports a wrong option before data is read
    with opened(request, choice, progress, group) as ready:
        return train_on(ready, ready.with_test(settings), progress, group, config_text(ready))


def with_method(request: TrainRequest) -> tuple[TrainRequest, ChosenMethod | None]:
    """The request with a method, and why it was chosen from public facts if the request named none."""
    if request.method is not None:
        return request, None
    with open_features(request.features, whole=False) as file:
        shots = request.public_shots
        has_public_rows = request.public is not None or bool(shots)
        if shots is None:
            has_public_rows = has_public_rows or request.features is None or "public" in file.sizes
        text = file.text_weights() is not None and not file.description.several_labels
        choice = choose(public=has_public_rows, text=text)
    return replace(request, method=choice.method), choice


def _shots(request: TrainRequest, progress: Progress) -> int | None:
    """The public shots of a request; the digits have some without a request."""
    shots = request.public_shots
    if request.features is None:
        taken = shots is None and request.public is None
        shots = DIGITS_SHOTS if taken else shots
        of_them = f", of which {shots} training rows per class are public" if taken else ""
        progress.note(f"no feature file given: using the built-in digits (1,797 real images){of_them}")
    return shots


@contextmanager
def opened(
    request: TrainRequest, choice: ChosenMethod | None, progress: Progress, group: Group = ALONE
) -> Iterator[Ready]:
    """Check a request with a method, open its files, reserve its folder; no row is read. UsageError, DataError."""
    check_declared(RunOptions, request)
    if request.resume and request.out is None:
        raise UsageError("--resume was given without --out; give the run folder that the unfinished run was to become")
    # a wrong key is reported before the data is read
    signing_key = None if request.sign is None or group.rank > 0 else run_folder.private_key(request.sign, progress)
    method = find_method(str(request.method))
    if group.size > 1 and "private" in method.needs and not method.spends:
        raise UsageError(f"method {method.name} trains in one process, {group.size} were started; start one")
    request = replace(request, public_shots=_shots(request, progress), out=request.out or default_out(request))
    with ExitStack() as stack:
        if group.rank == 0:
            _claim(request, stack, progress)
        progress.start(0, "reading rows")
        features = stack.enter_context(open_features(request.features, whole=False))
        other = None if request.public is None else stack.enter_context(open_features(request.public))
        unlabelled = None
        if request.unlabelled is not None:
            _refuse_unlabelled(request, method, features)
            unlabelled = stack.enter_context(open_features(request.unlabelled, labelled=False))
        yield Ready(request, features, other, unlabelled, signing_key, choice)


def _refuse_unlabelled(request: TrainRequest, method: Method, features: FeatureReader) -> None:
    """UsageError if rows without labels cannot refine the weights of a run."""
    votes = (request.options or {}).get("output") == VOTE
    reason = unrefinable(method, votes=votes, several_labels=features.description.several_labels)
    if reason is not None:
        raise UsageError(f"option --unlabelled cannot refine this run: {reason}; leave it out")


def _claim(request: TrainRequest, stack: ExitStack, progress: Progress) -> None:
    """Reserve the run folder, and note unfinished runs of the same name."""
    out = Path(request.out or "")
    refuse_book_inside(request.book, out)
    if not stack.enter_context(claimed(out)):
        progress.note(f"{out.absolute().parent} has no file locks: let no other process train into {out}")
    unfinished = run_folder.unfinished_folders(out)
    if request.resume and not unfinished:
        progress.note(f"there is no unfinished run of {out} with a checkpoint; this one begins it")
    for folder in () if request.resume else unfinished:
        kind = "complete" if (folder / MANIFEST).is_file() else "unfinished"
        progress.note(
            f"the {kind} run {folder} was to become {out}, and counts; this is a new run, charged too; "
            f"{run_folder.how_to_name(folder, out) if kind == 'complete' else '--resume would have gone on with it'}"
        )


def checked_rows(
    ready: Ready,
    plan: Plan,
    dataset: Dataset,
    warnings: Sequence[str],
    progress: Progress,
    *,
    make: bool = True,
    rank: int = 0,
    planned: Entry | None = None,
) -> Account | None:
    """Read and check all rows, find their budget book on the way, and print the `warnings` of a run that may start.

    Without `make`, no key of budget books is made. A cap refuses what is `planned`; a resumed run is in the book.
    Returns None for a run that uses no private row, and in ranks above 0.
    """
    finder = BookFinder(ready.request.book, make=make) if rank == 0 and plan.charged else None
    # every process has the digest, for `_refuse_other_views`
    dataset.check(None if finder is None else finder.commitment, digest=plan.method.spends)
    note_equal_rows(ready.features, progress)
    refuse_training_rows(ready.features)
    for note in (*warnings, *_tested(ready, progress)):
        progress.note(note)
    if finder is not None and plan.method.spends and dataset.unit == RECORD and not isinstance(progress, Silent):
        _note_copies(finder, dataset, progress)
    asked = ready.request
    planned = None if planned is None or asked.resume else replace(planned, cap=asked.cap)
    return account_of(finder, [(plan, dataset)], ready.features, progress, planned) if rank == 0 else None


def _tested(ready: Ready, progress: Progress) -> list[str]:
    if ready.unlabelled is None or isinstance(progress, Silent):
        return []
    return tested_unlabelled(ready.features, ready.unlabelled)


def _note_copies(finder: BookFinder, dataset: Dataset, progress: Progress) -> None:
    """Note copies among the protected rows. They are read once more if they have no keys, or if keys are equal."""
    keys = None if finder.commitment is None else finder.commitment.row_keys()
    if keys is None or len(distinct(keys)) < len(keys):
        copies = copies_warning(dataset.protected_hashes(), "private row")
        if copies is not None:
            progress.note(PrivacyNote(copies))


def account_of(
    finder: BookFinder | None,
    runs: Sequence[tuple[Plan, Dataset]],
    features: FeatureReader,
    progress: Progress,
    planned: Entry | None = None,
) -> Account | None:
    """The book of `runs` on `features`, with the keys of all that any of them protects or uses as public.

    `finder` has read the training rows; it is None for runs that use no private row, which have no book. Refuses rows
    that are public in one run and private in another.
    """
    public: dict[tuple[Path, str], GroupRows] = {}
    protected: dict[tuple[Path, str], GroupRows] = {}
    exposed: list[GroupRows] = []
    unit = None
    for plan, dataset in runs:
        labelled = dataset.public.parts if isinstance(dataset.public, PublicRows) else ()
        outside = [part for part in labelled if part.keep is None or part.features is not features]
        unlabelled = [dataset.unlabelled] if isinstance(dataset.unlabelled, GroupRows) else []
        promised = plan.private and plan.budget is not None
        tested = [GroupRows(features, "test")] if plan.settings.test_epsilon is not None else []
        hidden = (tested if promised else []) + (outside if dataset.joined else [])
        exposed += [] if promised else tested
        public |= {(part.features.path, part.group): part for part in (*outside, *unlabelled)}
        protected |= {(part.features.path, part.group): part for part in hidden}
        unit = dataset.unit if promised else unit
    unprotected = [public[key] for key in sorted(public.keys() - protected.keys())]
    _refuse_rows_of_first_runs([plan for plan, _ in runs], features, unprotected, progress)
    refuse_protected_test_rows(features)
    if finder is None:
        refuse_private_in_books(list(public.values()))
        return None
    hidden, shown = list(protected.values()), list(public.values())
    account = finder.account(features, hidden, shown, unit, planned=planned, exposed=exposed)
    note_not_compared(account, progress)
    return account


def _refuse_rows_of_first_runs(
    plans: Sequence[Plan], features: FeatureReader, public: Sequence[GroupRows], progress: Progress
) -> None:
    """Refuse `public` rows and public test rows that are private in a run that one of `plans` starts from."""
    tested = "test" in features.sizes and not features.description.private_test
    firsts = [plan.settings.first_run for plan in plans if plan.settings.first_run is not None]
    for run in {str(first.folder): first.run for first in firsts}.values():
        if tested:
            refuse_private_rows(run, features, progress)
        for part in public:
            with ExitStack() as stack:
                refuse_private_as_public(training_files(run, part.features, progress, stack), part, "weights")


def train_on(
    ready: Ready, settings: Settings, progress: Progress, group: Group = ALONE, config: str | None = None
) -> dict[str, Any]:
    """`train_run` on open files; `config` is the text of its config file, None where no options repeat the run."""
    started, request, features = time.perf_counter(), ready.request, ready.features
    out, dataset = Path(request.out or ""), ready.dataset()
    plan = plan_run(settings, dataset)
    runtime = Runtime(request.precision, request.device, group)
    runtime.check_plan(plan)
    said = ready.warnings(plan, dataset)
    book = checked_rows(ready, plan, dataset, said, progress, rank=group.rank, planned=plan.entry())
    every = CHECKPOINT_SECONDS if request.checkpoint_every is None else request.checkpoint_every
    identity = run_identity(settings, dataset, request, choose_backend(request.device).arithmetic)
    _refuse_other_views(group, identity, dataset, plan)
    keep: Checkpoints | None = None
    try:
        with (
            run_folder_of_group(
                group,
                out,
                resume=request.resume,
                complete=partial(_named, ready, plan, book, config),
            ) as folder,
            closing(Ledger(folder / LEDGER if group.rank == 0 else None, again=request.resume)) as ledger,
            Checkpoints(folder, ledger, identity, dataset, book, every, group, at_once=request.resume) as keep,
            RunCharge(book, folder, out, ledger, request.cap, progress, group) as charge,
        ):
            if group.rank == 0:
                keep.check()
            trained = execute(plan, dataset, replace(runtime, keep=keep), ledger, charge)
            if group.rank > 0:
                return {}
            measured = figures.figures_of(features, trained.weights, trained.bias)
            manifest = replace(manifest_of(ready, dataset, settings, trained, measured), run_id=charge.run)
            manifest = write_trained(folder, out, ready, dataset, trained, manifest, measured, config)
        tell(manifest, plan, measured, progress)
    except BaseException as error:
        if keep is not None and group.rank == 0:
            _say_how_to_go_on(error, keep, plan, out, progress, spent=bool(ledger.events))
        if isinstance(error, OSError) and not isinstance(error, ConnectionAbortedError):
            raise unwritten("the run", error) from None
        raise
    return {
        "run": str(out),
        **manifest.stated((*OUTCOME_KEYS, *figures.PRINTED_OF_SOME)),
        **{key: None for key in ("gdp_mu", "zcdp_rho") if not manifest.private},
        "seconds": time.perf_counter() - started,
        "unpublished": ["seconds"],  # no theorem covers how long private rows took
    }


def _named(ready: Ready, plan: Plan, book: Account | None, config: str | None, run: run_folder.RunFolder) -> None:
    """Refuse a complete run that lacks its name but is another one; else charge what the book lacks of it."""
    request, manifest = ready.request, run.manifest
    derived = manifest.published or (manifest.refined is not None and manifest.refined.run is not None)
    if derived or CONFIG not in run.names or atomic_files.read_text(run.folder / CONFIG) != config:
        raise UsageError(
            f"run {run.folder} is complete and lacks its name, but another command made it; give the same options as "
            f"that command, or another --out, or rename {run.folder}"
        )
    if (SIGNATURE in run.names) != (request.sign is not None):
        signed = "signed" if SIGNATURE in run.names else "not signed"
        raise UsageError(f"run {run.folder} is complete, and {signed}; give --sign as when it was made")
    if not holds_rows(run, ready.features):
        raise PrivacyError(
            f"run {run.folder} is complete, and {ready.features.path} holds other rows than it used; give the rows it "
            "was made with, or another --out"
        )
    if book is not None:
        entry = plan.entry(manifest.book_id, str(Path(request.out or "").absolute()))
        charge_complete(book, replace(entry, releases=manifest.recorded, cap=request.cap))


def say_complete(error: BaseException, folder: Path, out: Path, progress: Progress) -> bool:
    """Note that the run in `folder` is complete, named `out` or without a name, if `error` does not; whether it is."""
    if not folder.exists() and (folder.with_name(out.name) / MANIFEST).is_file():
        progress.note(f"run {out} is complete, and counts")
        return True
    if folder.with_name(out.name).exists() or not (folder / MANIFEST).is_file():
        return False
    if not isinstance(error, LinprobeError):
        shown = out.with_name(folder.name)
        progress.note(f"the run is complete in {shown}, and counts; {run_folder.how_to_name(folder, out)}")
    return True


MAY_DIFFER = ("book", "init")  # paths; the digest of the first model is compared


def _refuse_other_views(group: Group, identity: Mapping[str, Any], dataset: Dataset, plan: Plan) -> None:
    """Refuse processes that see other rows or settings than process 0: parts of the rows may overlap. DataError."""
    if group.size == 1:
        return
    digest = dataset.protected_digest() if plan.method.spends else ""
    mine = {**json.loads(json.dumps(identity, default=str)), "private rows": digest}
    first = json.loads(group.broadcast_text(json.dumps(mine)))
    differs = [name for name in {**first, **mine} if first.get(name) != mine.get(name) and name not in MAY_DIFFER]
    others = np.zeros(group.size, dtype=np.int64)
    others[group.rank] = len(differs)
    numbers = np.flatnonzero(group.all_reduce(others)).tolist()
    if not numbers:
        return
    if differs == ["private rows"]:
        raise DataError(
            f"process {group.rank} reads other private rows than process 0; allowed: the same files in every process, "
            "in the same order; nothing was spent; put them on shared storage, or copy them again to every machine"
        )
    if differs:
        name = differs[0]
        raise UsageError(
            f"process {group.rank} has {name} {mine.get(name)!r} and process 0 {first.get(name)!r}; allowed: the same "
            "in every process; nothing was spent; use the same command, files and versions, and one kind of machine"
        )
    named = ", ".join(map(str, numbers))
    raise DataError(
        f"not all processes read the same rows with the same settings as process {group.rank}: {named} differ; nothing "
        "was spent; the line of such a process says what differs"
    )


def _say_how_to_go_on(
    error: BaseException, keep: Checkpoints, plan: Plan, out: Path, progress: Progress, *, spent: bool
) -> None:
    """Say whether --resume continues a run that has stopped. A run without checkpoints cannot be resumed."""
    if say_complete(error, keep.path.parent, out, progress):
        return
    if keep.can_resume:
        progress.note(f"unfinished run kept; the same command with --resume --out {out} resumes it")
    elif isinstance(error, KeyboardInterrupt) and plan.method.spends and keep.keeps:
        progress.note(
            "no checkpoint was written, so --resume cannot continue this run: the same command starts again"
            f"{' and spends again' if spent else ''}"
        )


def tell(manifest: Manifest, plan: Plan, measured: dict[str, Any] | None, progress: Progress) -> None:
    """Notes on a mean that was too short, on a refinement, and on an accuracy no better than guessing."""
    if manifest.centre == "none" and plan.settings.condition == MEAN:
        progress.note(
            f"the private mean is shorter than {SHORTEST_MEAN:g} of a row, so rows were not centred; the run "
            f"took {manifest.steps} steps"
            f"{'; only --unlabelled at training could refine it' if manifest.refined is None else ''}"
        )
    no_better = None if measured is None else figures.no_better_than_guessing(measured, manifest)
    hidden = figures.hidden_classes(manifest.test_accuracy_per_class, manifest.test_accuracy_std)
    for note in (_of_refinement(manifest, plan), no_better, hidden):
        if note is not None:
            progress.note(note)


def _of_refinement(manifest: Manifest, plan: Plan) -> str | None:
    """What rows without labels did to the weights, and why; None without such rows."""
    refined = manifest.refined
    if refined is None:
        return None
    rows, share, gain = f"{counted(refined.rows, 'row')} without labels", similar_share(manifest), refined.gain
    part, near = part_by_share(share), f"at least {max(share or 0, 0):.1%} by a noisy count"
    units, same = "people" if plan.unit == OWNER else "private rows", f"so the {rows} did not change the weights"
    if part == 0:
        return f"few {units} are near rows without labels ({near}; needed: above {OTHER_KIND:.0%}), {same}"
    if gain is not None and gain.harms(manifest.n_private):
        gains = gain.count, gain.least(manifest.n_private)
        found, needed = (f"{abs(one):,.1f} {'fewer' if one < 0 else 'more'}" for one in gains)
        told = f"{found} {units} are labelled right after refinement, by a noisy count"
        return f"{told} (± {gain.std:,.1f}; needed: {needed} or better), {same}"
    why = f": {part:.0%} of full strength, as the share of {units} near them is {near}" if part < 1 else ""
    kept = "" if refined.strength else ", which leaves the weights as they were"
    return f"refined with {rows}, strength {refined.strength:.2f}{kept}{why}"


def write_trained(
    folder: Path,
    out: Path,
    ready: Ready,
    dataset: Dataset,
    trained: Trained,
    manifest: Manifest,
    measured: dict[str, Any] | None,
    config: str | None = None,
) -> Manifest:
    """Write all files of the run of `out` into `folder` but its ledger, the manifest last; returns it, sealed.

    The manifest commits to the private rows and to the losses, and is signed if a key was given.
    """
    for name in (*OPTIONAL_FILES, *PAGES, SIGNATURE):
        (folder / name).unlink(missing_ok=True)  # left by a process that was killed
    models = {MODEL: (trained.weights, trained.bias)}
    if trained.unrefined is not None:
        models[UNREFINED] = trained.unrefined
    for name, (weights, bias) in models.items():
        # weights of a run without a guarantee may reveal private rows
        with atomic_files.replace_when_complete(folder / name, private=not manifest.private) as stream:
            stream.writelines(float_archive({"weights": weights, "bias": bias}))
    atomic_files.write_csv(folder / HISTORY, trained.history)
    if config is not None:
        atomic_files.write_whole(folder / CONFIG, config)
    if measured is not None:
        atomic_files.write_json(folder / TEST_FIGURES, measured)
    if trained.losses is not None:  # the protected units, private rows first
        records = PerRecordFile(dataset.unit_names(), trained.losses, secrets.token_bytes(32))
        manifest = run_folder.write_committed(folder, records, dataset.private_digest(), manifest)
    written = (*RUN_FILES, *(name for name in OPTIONAL_FILES if (folder / name).exists()))
    contents, pages = {name: (folder / name).read_bytes() for name in written}, dict[str, str]()
    if ready.signing_key is not None:
        from linprobe.reporting.release_pages import pages_of_run  # jinja2 would slow down every run

        pages = pages_of_run(out.resolve().name, True, manifest.sealed(contents))
    return run_folder.write_manifest(folder, manifest, contents, ready.signing_key, pages)


def manifest_of(
    ready: Ready, dataset: Dataset, settings: Settings, trained: Trained, measured: dict[str, Any] | None
) -> Manifest:
    """The manifest: guarantee, settings, data, and accuracy on the test rows."""
    request, features, public, selected = ready.request, ready.features, dataset.public, trained.selected
    description, weights, counts = features.description, dataset.weights, trained.class_counts
    names, refined, n_test = description.class_names, None, figures.test_units(features, dataset.unit)
    if trained.tested is None:
        accuracy = figures.measured_accuracy(measured, description.test_rows, n_test)
    else:
        accuracy = figures.noisy_accuracy(*trained.tested, n_test, names)
    if ready.unlabelled is not None and trained.refined is not None:
        refined = refinement(ready.unlabelled, trained.refined, similar=trained.similar, gain=trained.gain)
    return Manifest.of(
        trained.privacy,
        accuracy,
        precision=request.precision,
        device=request.device,
        created=datetime.now(UTC).isoformat(timespec="seconds")[: None if ready.dated else DAY],
        n_features=features.n_features,
        n_classes=len(names),
        class_names=list(names),
        class_names_from=description.class_names_from,
        task=description.task,
        ids_from=description.ids_from,
        options=settings.parameters,
        preset=request.preset,
        centre=trained.centre,
        features=DIGITS if request.features is None else str(request.features),
        backbone=description.backbone,
        extraction=extraction_of(description),
        public_from="nowhere" if public is None else str(public),
        public_shots=None if public is None else dataset.shots,
        n_public_owners=dataset.n_public_owners,
        public_file=None if request.public is None else str(request.public),
        split_seed=request.split_seed,
        per_owner_rows=request.per_owner_rows,
        class_weights=None if weights is None else dict(zip(names, weights.by_class.tolist(), strict=True)),
        public_digest=dataset.public_digest(),
        class_counts=counts and CountsByClass(dict(zip(names, counts.by_class.tolist(), strict=True)), counts.std),
        class_prior=UNIFORM if settings.balanced else TRAINED,
        test_owners=description.test_owners,
        largest_n_private=_largest_n_private(settings, trained.privacy.n_private),
        tuning=None if selected is None else {"factors": list(settings.shrink), **asdict(selected)},
        refined=refined,
    )


def _largest_n_private(settings: Settings, n_private: int) -> int | None:
    """The largest number of private units of the run and of those whose releases it counts; None without such a run."""
    first = None if settings.first_run is None else settings.first_run.model
    return None if first is None or not first.releases else max(n_private, first.manifest.most_units)


OF_ONE_RUN = {"out", "resume", "sign", "options"}  # not repeated
HEADER = """\
# The options of this run. linprobe train --config FILE trains with them again, and spends their budget again.
"""


def config_text(ready: Ready) -> str:
    """TOML text with the options that differ from the defaults, by their flags."""
    request, options = ready.request, ready.method.options
    keys = config_keys(*TRAIN, *options.takes, options)
    given: dict[str, Any] = {}
    left_out = OF_ONE_RUN | (set() if ready.method.spends else {"epsilon"})
    for field in fields(request):
        value = getattr(request, field.name)
        if field.name not in left_out and value is not None and (field.default is MISSING or value != field.default):
            given[field.name] = value
    given |= {name: value for name, value in (request.options or {}).items() if value is not None}
    lines = (f"{keys[name]} = {_value(value)}\n" for name, value in given.items())
    return atomic_files.escaped_lines(HEADER + "".join(lines))


def _value(value: Any) -> str:
    """A value in TOML. Its strings have the escapes of JSON."""
    if isinstance(value, Mapping):  # weights of classes, from Python
        by_name = {str(name): one for name, one in value.items()}
        plain = not any("," in name for name in by_name)
        value = ",".join(f"{name}={one}" for name, one in by_name.items()) if plain else json.dumps(by_name)
    return json.dumps(str(value) if isinstance(value, Path) else value, ensure_ascii=False)
