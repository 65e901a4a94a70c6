"""`linprobe compare`: train methods at several epsilons, seeds, public shots and public files; and its dry run."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from linprobe.accounting.book import Contents, Entry, read_book, spending
from linprobe.accounting.calibrate import large_delta
from linprobe.accounting.figures import NOUNS, rounded_up
from linprobe.accounting.row_keys import Account, books_folder, files_of_books
from linprobe.atomic_files import PRIVATE_FOLDER, check_place, held, read_text, write_csv, write_json, write_whole
from linprobe.data.dataset import (
    DIGITS,
    Dataset,
    Split,
    check_one_class,
    check_test_rows,
    dataset_of,
    open_features,
    refuse_training_rows,
    unit_of,
    unlabelled_group,
)
from linprobe.data.digits import DIGITS_SHOTS
from linprobe.data.feature_reader import FeatureReader
from linprobe.data.row_checks import check_rows
from linprobe.errors import (
    DataError,
    LinprobeError,
    PrivacyError,
    PrivacyNote,
    Progress,
    Silent,
    UsageError,
    counted,
    reading,
    writing,
)
from linprobe.evaluation.attack import PRIVATE_OUTPUT, refuse_insiders, threshold_auc
from linprobe.evaluation.comparison_plan import (
    PARAGON,
    PUBLIC_BASELINE,
    RUNS,
    Planned,
    check_request,
    left_out,
    plan_runs,
    refuse_other_versions,
)
from linprobe.methods import METHODS
from linprobe.options import RECORD
from linprobe.options.requests import CompareRequest, name_of
from linprobe.parallel.threads import interrupted_once, unordered
from linprobe.parallel.torch_group import refuse_copies
from linprobe.reporting import comparison
from linprobe.runs import run_folder
from linprobe.runs.check import check_run
from linprobe.runs.figures import CLEARLY
from linprobe.runs.manifest import LEDGER, MANIFEST, Manifest
from linprobe.runs.matching import tested_unlabelled
from linprobe.runs.run_folder import RunFolder
from linprobe.training import words
from linprobe.training.charge import BookFinder, entry_of, note_not_compared, preview, under_caps
from linprobe.training.dry_run import Preview, possible_entries, previewed, rows_facts, rows_lines
from linprobe.training.plan import Plan, make_settings, plan_facts, plan_run, refuse_other_encodings
from linprobe.training.train import Ready, account_of, train_on
from linprobe.training.tune import Selection, selection_of, settings_of, tune_on

STATED, COMMITTED, LOCK = "comparison.json", "private_commitment.json", ".lock"
TORN = (f".{STATED}.*.partial", f".{COMMITTED}.*.partial")  # left by a killed process
RESULTS = ("*.csv", "*.md", "*.png", *TORN)


class ComparisonFolder:
    """An open comparison; made by `open_comparison`. What its runs cost is in their budget book."""

    def __init__(self, out: Path, of: dict[str, Any], book: Path | None) -> None:
        self.shown, self.of, self._book = out, of, book and book.absolute()
        self.out = out.absolute()  # the process may change to another working directory
        self.runs = self.out / RUNS
        self._manifests: dict[str, Manifest] = {}
        self.recorded = _recorded(out)  # ids of runs that were ever here

    def finished(self) -> list[Path]:
        """Folders of the finished runs that exist now; not of a complete one without its name, which is unfinished."""
        return sorted(manifest.parent for manifest in self.runs.glob("[!.]*/manifest.json"))

    def manifest(self, run: Path) -> Manifest:
        if run.name not in self._manifests:
            self._manifests[run.name] = RunFolder(run).manifest
        return self._manifests[run.name]

    def check(self, run: Path) -> None:
        opened = RunFolder(run)
        check_run(opened)
        self._manifests[run.name] = opened.manifest

    def composed(self, delta: float) -> dict[str, Any]:
        """The cost of all runs that ever were here, composed as by `linprobe budget`."""
        spent = asdict(spending(self.entries(), delta))
        del spent["epsilon_by_unit"]  # all runs of a comparison have one unit
        return {"private_runs": spent.pop("runs"), **spent, "unit": self.of.get("unit", RECORD)}

    def entries(self) -> list[Entry]:
        """All runs that ever were here as books have them, also killed ones, and runs that they started from.

        PrivacyError: a run that is in no book.
        """
        books = [*files_of_books(books_folder()), *([] if self._book is None else [self._book])]
        recorded = Contents({run: one for path in books for run, one in read_book(path).entries.items()})
        self.recorded |= set(_unnamed(self.runs))  # before the finished ones: a run may get its name meanwhile
        here, features = self.runs.resolve(), (None, self.of["features"])
        found = {
            run: one
            for run, one in recorded.entries.items()
            if run in self.recorded or (one.features in features and Path(one.name).parent.resolve() == here)
        }
        for entry in (entry_of(run, self.manifest(run)) for run in self.finished()):
            found[entry.run] = recorded.after(entry, ())
        unknown = min(self.recorded - found.keys(), default=None)
        if unknown is not None:
            raise PrivacyError(
                f"run {unknown} of {self.shown} is neither there nor in a budget book here, so its cost is unknown; "
                "allowed: the --book that has it, its budget book put back, or a new --out"
            )
        self.recorded |= found.keys() & recorded.entries.keys()
        return list(recorded.with_first(found).values())

    def begin(self) -> None:
        """State which runs were ever here, and remove tables and figures, which may show runs that no longer exist.

        Raises as `entries`, and then removes nothing.
        """
        self.entries()
        with writing(self.out):
            for pattern in RESULTS:
                for path in self.out.glob(pattern):
                    path.unlink()
            self.finish({"unfinished": True})

    def recording(self, done: Iterable[Path], spending: Collection[Path]) -> Iterator[Path]:
        """The runs that are `done`. Those in `spending`, which a book has, are recorded before the next."""
        for run in done:
            if run in spending:
                self.recorded.add(self.manifest(run).book_id)
                self.finish({"unfinished": True})
            yield run

    def finish(self, content: dict[str, Any]) -> None:
        write_json(self.out / STATED, {"of": self.of, "recorded": sorted(self.recorded), **content})

    def discard_unfinished(self, names: Iterable[str]) -> None:
        """Remove the folders of unfinished runs called `names`, unless complete; their book has what they released."""
        for name in names:
            for partial in self.runs.glob(f".{name}.*.partial"):
                if (partial / MANIFEST).exists():  # `_name_complete` names it
                    continue
                with suppress(LinprobeError, OSError), ExitStack() as stack:
                    if (partial / LEDGER).exists():
                        stack.enter_context(held(partial / LEDGER, "the ledger is being written"))
                    shutil.rmtree(partial, ignore_errors=True)


def is_new_comparison(out: Path, of: dict[str, Any]) -> bool:
    """Whether `out` is free for a comparison. UsageError: it holds another. DataError: damaged; as `check_place`."""
    check_place(out, "comparison")
    stated = out / STATED
    is_new = not stated.is_file()
    if is_new and out.exists() and not (out.is_dir() and all(map(_is_early, out.iterdir()))):
        raise UsageError(f"{out} exists and holds no comparison; give --out a new folder, or an earlier comparison")
    if not is_new:
        with reading(str(stated), "give --out a new folder"):
            theirs = dict(json.loads(read_text(stated))["of"])
        if theirs != of:
            shown = [
                f"{one.get('features')} at delta {one.get('delta')} for unit {one.get('unit', RECORD)}"
                for one in (theirs, of)
            ]
            raise UsageError(f"{out} holds a comparison of {shown[0]}, not of {shown[1]}; give another --out")
    return is_new


def _is_early(path: Path) -> bool:
    """Whether a comparison makes `path` before its first run, so that a killed one may have left it."""
    return any(map(path.match, (LOCK, COMMITTED, *TORN))) or (
        path.name == RUNS and path.is_dir() and not any(path.iterdir())
    )


@contextmanager
def open_comparison(
    out: Path, of: dict[str, Any], features: FeatureReader, protected: Mapping[str, str], book: Path | None
) -> Iterator[ComparisonFolder]:
    """Create or continue the comparison in `out`, locked for this process. `protected`: digests of public rows by name.

    Raises UsageError: another comparison's folder, or one in use. PrivacyError: the folder compares other rows, or a
    run in it does not verify. DataError: a damaged file.
    """
    is_new_comparison(out, of)
    busy = f"another compare is running in {out}; allowed: one at a time; wait, or give another --out"
    with ExitStack() as stack:
        with writing(out):
            out.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
            stack.enter_context(held(out / LOCK, busy, create=True, error=UsageError))
        is_new = is_new_comparison(out, of)  # another process may have made it meanwhile
        try:
            with writing(out):
                (out / RUNS).mkdir(PRIVATE_FOLDER, exist_ok=True)
                if is_new:  # no run is bound to the rows of a killed comparison
                    (out / COMMITTED).unlink(missing_ok=True)
            _commit(out / COMMITTED, features, protected)
            folder = ComparisonFolder(out, of, book)
            for run in folder.finished():
                folder.check(run)
            folder.begin()
            yield folder
        finally:
            if is_new and not _recorded(out) and not any((out / RUNS).glob("*")):
                for path in (one for name in (STATED, COMMITTED, LOCK, *TORN) for one in out.glob(name)):
                    path.unlink()
                with suppress(OSError):  # a file of somebody else
                    (out / RUNS).rmdir()
                    out.rmdir()


def _recorded(out: Path) -> set[str]:
    """Ids of the runs that were ever in a comparison, as it states them, and an earlier version in `spent.jsonl`."""
    stated, spent = out / STATED, out / "spent.jsonl"
    with reading(str(out), "restore it, or give --out a new folder"):
        found = _ids(json.loads(read_text(stated)).get("recorded", [])) if stated.is_file() else set()
        lines = [json.loads(line) for line in (read_text(spent).splitlines() if spent.is_file() else ())]
        keys = {line["run_key"] for line in lines if line["releases"] or line.get("selection")}
        return found | {key for key in keys if run_folder.is_run_id(key)}


def _ids(stated: Any) -> set[str]:
    if not isinstance(stated, list) or not all(isinstance(each, str) for each in stated):
        raise ValueError(f"recorded is {str(stated)[:40]}; allowed: a list of run ids")
    return set(stated)


def _unnamed(runs: Path) -> Iterator[str]:
    """Ids of the runs in `runs` that made a release and have no name yet: they were killed, or are under way.

    DataError: an id is damaged.
    """
    for partial in runs.glob(".*.partial"):
        with suppress(OSError):  # it has got its name or was removed meanwhile, or released nothing
            if not (partial / LEDGER).stat().st_size:
                continue
            if not (partial / run_folder.RUN_ID).exists():  # the last step before it gets its name
                with suppress(DataError):
                    yield RunFolder(partial).manifest.book_id
                continue
            text = read_text(partial / run_folder.RUN_ID)
            if not run_folder.is_run_id(text):
                raise DataError(
                    f"{partial} has releases and no run id, so their cost is unknown; restore it, or give --out a new "
                    "folder"
                )
            yield text


def _commit(path: Path, features: FeatureReader, protected: Mapping[str, str]) -> None:
    """Bind the folder to the rows of `features`, and of each `protected` file, by a keyed hash, as a run does."""
    content = hashlib.sha256("".join(features.digest(group) for group in features.sizes).encode()).hexdigest()
    key, commitment, known = secrets.token_bytes(32), None, dict[str, str]()
    if path.exists():
        with reading(str(path), "give --out a new folder"):
            held = json.loads(read_text(path))
            key, commitment, known = bytes.fromhex(held["key"]), held["commitment"], dict(held.get("protected", {}))
    found = {name: run_folder.commitment(key, digest) for name, digest in protected.items()}
    other = [name for name, value in found.items() if known.get(name, value) != value]
    if commitment not in (None, run_folder.commitment(key, content)):
        other = [str(features.path)]
    if other:
        raise PrivacyError(f"{other[0]} does not hold the rows that {path.parent} compares; find them, or change --out")
    if commitment is None or not found.keys() <= known.keys():
        value = {"private": True, "key": key.hex(), "commitment": run_folder.commitment(key, content)}
        with writing(path):
            write_json(path, {**value, "protected": {**known, **found}}, private=True)


@dataclass(frozen=True)
class _Comparison:
    """A checked request with its files, what is compared, every run in the table's order, and public digests."""

    request: CompareRequest
    of: dict[str, Any]
    others: Mapping[str, FeatureReader]
    unlabelled: FeatureReader | None
    reader: FeatureReader
    planned: list[Planned]
    publics: dict[str, str]

    @property
    def protected(self) -> dict[str, str]:
        """The `publics` that a method protects. Private."""
        joined = {run.setting.public for run in self.planned if METHODS[str(run.request.method)].joins_public}
        return {name: digest for name, digest in self.publics.items() if name in joined}


def compare_methods(request: CompareRequest, progress: Progress) -> dict[str, Any]:
    """Train every method at every epsilon, setting and seed, each run in its own folder; write tables and figures.

    Runs that exist already are checked and not trained again. Every run is a release; `composed` is their total cost.
    Raises the error of the first run that failed; finished runs are kept, and the same command continues.
    """
    refuse_copies("compare")
    progress.start(0, "reading rows")
    with interrupted_once(), _opened(request) as found, ExitStack() as stack:
        request, opened, planned = found.request, found.reader, found.planned
        _name_complete(planned)
        # refused before the first run spends
        groups = _missing(planned)
        plans = [_plan(_ready(found, runs[0]), runs[0]) for runs in groups]
        _check_splits(found)
        account = _account(found, plans, progress) if plans else None
        for entries in _entries(groups, plans):
            under_caps(account, entries)
        before = under_caps(account, ())
        earlier = spending(before.counted).runs
        stack.enter_context(run_folder.new_folders(request.folder))
        folder = stack.enter_context(open_comparison(request.folder, found.of, opened, found.protected, request.book))
        secret = any(_selects(run) for run in planned)
        # selections come last, so that no later run begins when one of them has ended
        missing = sorted((run for run in planned if not _is_made(run)), key=_selects)
        if missing:
            for warning in _warnings(missing, found):
                progress.note(warning)
            progress.start(len(missing), "comparing")
        try:
            early = [folder.out / name for name in (STATED, LOCK, COMMITTED)]
            stack.callback(_give_one_time, [*early, *(one.place for one in planned)] if secret else [])
            arguments = [(run, replace(_ready(found, run), dated=not secret)) for run in missing]
            selections = {one.place for one in missing if _selects(one)}
            charged = {one.place for one in missing if one.spends}
            done = folder.recording(unordered(_train, arguments, request.jobs), charged)
            _count(done, selections, progress)
            written = _written(request, folder, planned, opened)
        except BaseException:
            folder.discard_unfinished(one.folder.name for one in missing)
            with suppress(LinprobeError, OSError):  # what stopped it is told
                folder.begin()
            _tell_kept(folder, missing, before, progress)
            raise
        if account is not None and earlier:  # after the tables, which a warning that is an error must not cost
            for _, text in words.together_line(preview(account, ())):
                progress.note(PrivacyNote(f"{text} (budget book {account.path})"))
        return written


def _name_complete(planned: Iterable[Planned]) -> None:
    """Give complete runs whose last renaming failed their names, so that they are not paid for again."""
    for one in planned:
        run_folder.name_complete(one.place)


def _tell_kept(folder: ComparisonFolder, missing: Sequence[Planned], before: Contents, progress: Progress) -> None:
    """Say what `missing` runs cost that were not in their book `before`, and that finished runs are kept."""
    with suppress(LinprobeError, OSError):  # what stopped it is told
        places = [one.place for one in missing]
        charged = [one for one in folder.entries() if one.run not in before.entries and Path(one.name) in places]
        spent = spending(charged, folder.of["delta"])
        if spent.runs:
            progress.note(PrivacyNote(f"{counted(spent.runs, 'run')} of this command cost {spent.in_words}"))
    if folder.finished():
        progress.note(f"finished runs are kept in {folder.shown / RUNS}; the same command continues from there")


def _count(done: Iterable[Path], selections: set[Path], progress: Progress) -> None:
    """Show runs as they are done, but private selections at the end: which took longer is secret."""
    for run in done:
        if run not in selections:
            progress.step()
    for _ in selections:
        progress.step()


@contextmanager
def _opened(request: CompareRequest) -> Iterator[_Comparison]:
    check_request(request)
    run_folder.refuse_book_inside(request.book, request.folder)
    refuse_other_encodings([request.folder, *request.public])
    if request.features is None and not request.public_shots and not request.public:
        request = replace(request, public_shots=(DIGITS_SHOTS,))
    of = {"features": DIGITS if request.features is None else str(request.features.resolve()), "delta": request.delta}
    if request.unit not in (None, RECORD):
        of["unit"] = request.unit
    refuse_other_encodings(of.values())
    with ExitStack() as stack:
        reader = stack.enter_context(open_features(request.features))
        others = {name_of(path): stack.enter_context(open_features(path)) for path in request.public if path}
        for opened in (reader, *others.values()):
            check_one_class(opened, "compare")
        refuse_training_rows(reader)
        check_test_rows(reader, "methods are compared on")
        if request.attack:
            refuse_insiders(reader, request.unit)
        given = request.unlabelled
        further = None if given is None else stack.enter_context(open_features(given, labelled=False))
        digest = "" if further is None else unlabelled_group(further).digest()
        # SHA-256 of the rows that a file provides as public rows
        publics = {name: one.digest("public" if "public" in one.sizes else "train") for name, one in others.items()}
        planned = plan_runs(request, publics, reader.sizes, digest)
        refuse_other_versions(planned)
        if any(run.spends for run in planned):
            unit_of(reader, request.unit)
        yield _Comparison(request, of, others, further, reader, planned, publics)


def _warnings(missing: Sequence[Planned], found: _Comparison) -> list[str]:
    n_units = dataset_of(found.reader, None, Split(shots=0, unit=found.request.unit)).n_units
    warning = large_delta(found.request.delta, n_units) if any(run.spends for run in missing) else None
    unprotected = sum(not METHODS[str(run.request.method)].private for run in missing)
    said = [*left_out(found.request, found.planned), *([] if warning is None else [PrivacyNote(warning)])]
    if unprotected:
        runs = counted(len(missing), "run")
        left = runs if len(missing) == len(found.planned) else f"the {runs} left"
        are = f"{left} {'is' if unprotected == 1 else 'are'}"
        bare = f"{unprotected} of {are} not private ({PARAGON}); --no-baselines leaves baselines out"
        said.append(PrivacyNote(bare))
    return [*said, *tested_unlabelled(found.reader, found.unlabelled)]


def _train(run: Planned, ready: Ready) -> Path:
    try:
        if run.tuning is None:
            train_on(ready, make_settings(run.request, ready.method), Silent())
        else:
            tune_on(ready, run.tuning, settings_of(run.request, run.tuning), Silent())
    except LinprobeError:
        if run.request.out is None or not run.request.out.exists():
            raise
        raise UsageError(
            f"run {run.folder} was finished by a process of an earlier compare that was killed; wait "
            "until its processes have ended, then give the same command again"
        ) from None
    return run.place


def _selects(run: Planned) -> bool:
    """Whether the run is a private selection, whose duration is secret."""
    return run.tuning is not None and bool(run.tuning.grid)


def _give_one_time(folders: Sequence[Path]) -> None:
    """Set one modification time on all runs beside a private selection. Own times would tell how long it took."""
    now = time.time_ns()
    for folder in folders:
        for path in (*folder.glob("*"), folder):
            with suppress(OSError):
                os.utime(path, ns=(now, now))


def _written(
    request: CompareRequest, folder: ComparisonFolder, planned: Sequence[Planned], features: FeatureReader
) -> dict[str, Any]:
    guessing = _guessing(features)
    aucs = [threshold_auc(features, run_folder.read_run(one.place))["auc"] for one in planned if request.attack]
    out, levels = folder.out, (PUBLIC_BASELINE, PARAGON)
    data = name_of(request.features) or DIGITS
    runs = [{"data": data, **_run_row(run, folder.manifest(run.place))} for run in planned]
    summary = [{"data": data, **one} for one in comparison.summarise(runs, *levels)]
    with writing(out):
        write_csv(out / "runs.csv", runs)
        write_csv(out / "summary.csv", summary)
        spread = f"mean ± standard deviation over {request.seeds} seeds" if request.seeds > 1 else "1 seed"
        tables = comparison.comparison_tables(summary).items()
        texts = [f"{what.capitalize()}, %, {spread}:\n\n{comparison.markdown(*table)}" for what, table in tables]
        write_whole(out / "table.md", "\n".join(texts))
        picture = out / "accuracy_against_epsilon.png"
        plot = comparison.accuracy_against_epsilon(
            picture, summary, *levels, _about(request, runs), guessing=guessing["commonest_share"]
        )
        attacked = {}
        if request.attack:
            keys = ("method", "public", "shots", "epsilon", "seed")
            attacks = [
                {**{key: run[key] for key in keys}, "attack_auc": auc} for run, auc in zip(runs, aucs, strict=True)
            ]
            marked = [{**one, "note": PRIVATE_OUTPUT} for one in attacks]
            write_csv(out / "private_attacks.csv", marked, private=True)
            attacked = {"attacks": attacks, "attacks_note": PRIVATE_OUTPUT}
        found = {"composed": folder.composed(request.delta), **guessing, "summary": summary, "runs": runs}
        folder.finish(found)
    figures = [] if plot is None else [str(request.folder / plot.name)]
    return {"out": str(request.folder), **found, **attacked, "figures": figures}


def _run_row(run: Planned, manifest: Manifest) -> dict[str, Any]:
    return {
        "method": run.row,
        **asdict(run.setting),
        "epsilon": run.request.epsilon,
        "seed": run.request.split_seed,
        **manifest.stated(("test_accuracy", "test_balanced_accuracy", "test_macro_auroc")),
        "epsilon_spent": manifest.epsilon,
        "delta": manifest.delta,
        **manifest.stated(("noise_multiplier", "sampling_rate", "steps", "n_private", "n_public")),
        "run": str(run.folder),
    }


def _about(request: CompareRequest, runs: Sequence[Mapping[str, Any]]) -> str:
    name = name_of(request.features) or "built-in digits"
    least, most = (choose(run["n_private"] for run in runs) for choose in (min, max))
    numbers = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    return f"{name}, {numbers} private {NOUNS[request.unit or RECORD]}"


def _guessing(features: FeatureReader) -> dict[str, Any]:
    """Majority class of public test rows, its share, and balanced accuracy by guessing plus `CLEARLY` errors."""
    counts = np.bincount(features.labels("test"))
    place, present = int(counts.argmax()), counts[counts > 0]
    error = float(np.sqrt(np.sum(1 / (4 * present)))) / len(present)
    return {
        "commonest_class": features.description.class_names[place],
        "commonest_share": int(counts[place]) / int(counts.sum()),
        "balanced_limit": 1 / len(present) + CLEARLY * error,
    }


def dry_run_of_comparison(request: CompareRequest, progress: Progress) -> words.DryRun:
    """Check a request of `compare` as far as that is possible without a release; raises as `compare`, before any run.

    Runs that differ in their seed alone are taken to cost what the first of them costs.
    """
    progress.start(0, "reading rows")
    with _opened(request) as found:
        request = found.request
        is_new_comparison(request.folder, found.of)
        progress.start(0, "planning")
        groups = _missing(found.planned)
        plans = [_plan(_ready(found, runs[0]), runs[0]) for runs in groups]
        _check_splits(found)
        previews = [previewed(runs[0].request, *one) for runs, one in zip(groups, plans, strict=True)]
        first = _ready(found, found.planned[0])
        about = rows_facts(first, first.dataset())
        warnings = _warnings([run for runs in groups for run in runs], found)
        for warning in warnings:
            progress.note(warning)
        numbers = [len(runs) for runs in groups]
        account = _account(found, plans, progress)
        *_, spent = [preview(account, entries) for entries in _entries(groups, plans)]
        book = None if account is None else account.path
        timed = [(one.seconds, number) for one, number in zip(previews, numbers, strict=True) if one.seconds]
        facts = {
            **{name: value for name, value in about.items() if name not in ("method", "why")},
            "rows": [_row(runs, one) for runs, one in zip(groups, previews, strict=True)],
            "finished": len(found.planned) - sum(numbers),
            "missing": sum(numbers),
            "not_private": sum(
                len(runs) for one, runs in zip(previews, groups, strict=True) if not one.entries[0].private
            ),
            "together": words.together_facts(spent),
            "out": str(request.folder),
            "book": None if book is None else str(book),
            "seconds": sum(seconds * number for seconds, number in timed),
            "timed": sum(number for _, number in timed),
            "warnings": warnings,
        }
        lines = [
            *rows_lines(about)[1:],
            ("trains", f"{counted(facts['missing'], 'run')}; {facts['finished']} of the comparison exist already"),
            *words.listed("spends", [text for row in facts["rows"] for text in _row_lines(row)]),
            *words.together_line(spent, least=1),
        ]
        if facts["not_private"] and not spent.runs:
            lines.append(("", f"{counted(facts['not_private'], 'run')} without privacy, which no epsilon covers"))
        where = "in memory, once for each process" if facts["in_memory"] else "streamed"
        lines.append(("memory", f"{words.bytes_in_words(facts['memory_bytes'])} for the private rows, {where}"))
        if timed:
            lines += words.time_line(facts["seconds"], f"the steps of {counted(facts['timed'], 'run')}, one by one")
        return words.DryRun(
            facts, [*lines, *words.written(f"{request.folder}: a folder for each run, tables, figures", book=book)]
        )


def _ready(found: _Comparison, run: Planned) -> Ready:
    further = None if run.request.unlabelled is None else found.unlabelled  # of runs that are refined
    return Ready(run.request, found.reader, found.others.get(run.setting.public), further)


def _is_made(run: Planned) -> bool:
    return run.place.exists() or bool(run_folder.without_name(run.place))


def _missing(planned: Sequence[Planned]) -> list[list[Planned]]:
    groups: dict[Any, list[Planned]] = {}
    for run in (run for run in planned if not _is_made(run)):
        groups.setdefault((run.row, run.setting, run.request.epsilon), []).append(run)
    return list(groups.values())


def _plan(ready: Ready, run: Planned) -> tuple[Plan | Selection, Dataset]:
    dataset = ready.dataset()
    if run.tuning is None:
        return plan_run(make_settings(run.request, ready.method), dataset), dataset
    candidates = settings_of(run.request, run.tuning)
    if run.tuning.grid:
        return selection_of(dataset, run.request, run.tuning, candidates), dataset
    return plan_run(replace(candidates[0], shrink=run.tuning.shrink), dataset), dataset


def _check_splits(found: _Comparison) -> None:
    splits = {}
    for run in (run for runs in _missing(found.planned) for run in runs):
        seed = run.request.split_seed if run.setting.shots else None
        splits[run.setting, seed, METHODS[str(run.request.method)].joins_public, run.request.unlabelled] = run
    for (_, seed, *_), run in splits.items():
        try:
            _ready(found, run).dataset().check()
        except LinprobeError as error:
            where = "" if seed is None else f"seed {seed} of 0 to {found.request.seeds - 1}: "
            raise type(error)(f"{where}{error}") from None


def _account(
    found: _Comparison, plans: Sequence[tuple[Plan | Selection, Dataset]], progress: Progress
) -> Account | None:
    """The book of the rows, with keys of all that runs of `plans` protect or use as public; nothing is written."""
    finder = BookFinder(found.request.book, make=False)
    check_rows(found.reader, commitment=finder.commitment)
    runs = [(plan if isinstance(plan, Plan) else plan.plans[0], dataset) for plan, dataset in plans]
    account = account_of(finder, runs, found.reader, Silent())
    note_not_compared(account, progress)
    return account


def _entries(
    groups: Sequence[list[Planned]], plans: Sequence[tuple[Plan | Selection, Dataset]]
) -> Iterator[list[Entry]]:
    """Book entries of all missing runs, in `groups` with one plan each: if private means are short, then as charged."""
    each = [(possible_entries(plan), len(runs)) for runs, (plan, _) in zip(groups, plans, strict=True)]
    for place in (-1, 0):
        planned = [possible[place] for possible, number in each for _ in range(number)]
        yield [entry for entry in planned if entry.counts]


def _row(runs: list[Planned], seen: Preview) -> dict[str, Any]:
    return {
        "method": runs[0].row,
        **asdict(runs[0].setting),
        "epsilon": runs[0].request.epsilon,
        "runs": len(runs),
        "plans": [
            {**plan_facts(budget), "text": words.plan_in_words(budget)}
            for several in seen.budgets
            for budget in several
        ],
    }


def _row_lines(row: dict[str, Any]) -> list[str]:
    if row["epsilon"] is None:
        return []
    public = "" if not row["public"] else f", public {row['public']}"
    shots = "" if row["shots"] is None else f", {counted(row['shots'], 'public shot')}"
    each = f"{counted(row['runs'], 'run')}, epsilon {rounded_up(row['epsilon'])}{public}{shots}"
    return [f"{row['method']}: {each}: {' or '.join(dict.fromkeys(plan['text'] for plan in row['plans']))}"]
