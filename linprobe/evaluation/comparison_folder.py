"""The folder of a comparison: its lock, the rows it compares, and the cost of every run in it."""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from linprobe.accounting.book import Contents, Entry, releases_of, spending
from linprobe.accounting.events import Releases, grouped
from linprobe.accounting.ledger import AppendOnlyFile, read_ledger, read_selection
from linprobe.accounting.selection import SelectionEvent
from linprobe.atomic_files import PRIVATE_FOLDER, check_place, held, read_text, sync_folder, write_json
from linprobe.data.feature_reader import FeatureReader
from linprobe.errors import LinprobeError, PrivacyError, UsageError, reading, writing
from linprobe.options import RECORD
from linprobe.runs import run_folder
from linprobe.runs.check import check_run
from linprobe.runs.manifest import LEDGER, Manifest
from linprobe.runs.run_folder import RunFolder

RUNS, STATED, SPENT, COMMITTED = "runs", "comparison.json", "spent.jsonl", "private_commitment.json"
LOCK = ".lock"
TORN = (f".{STATED}.*.partial", f".{COMMITTED}.*.partial")  # left by a killed process
RESULTS = ("*.csv", "*.md", "*.png", *TORN)


class ComparisonFolder:
    """An open comparison; made by `open_comparison`.

    `spent.jsonl` has a line for every run that ever finished here, and for every unfinished one whose folder was
    removed after a release. It is written before that, and never removed: a run whose folder is deleted was still
    released.
    """

    def __init__(self, out: Path, of: dict[str, Any]) -> None:
        self.out, self.of, self.runs = out, of, out / RUNS
        self._recorded = {entry.run: entry for entry in self._read_entries()}
        self._manifests: dict[str, Manifest] = {}

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

    def record(self, run: Path) -> None:
        """Add a finished run to `spent.jsonl`, or what its line, of it or of the run it is made from, lacks."""
        manifest = self.manifest(run)
        key, releases = manifest.book_id, manifest.recorded
        if manifest.manifest_digest in self._recorded:  # the key of an earlier version
            return
        if key in self._recorded:
            lacking = Contents(self._recorded).lacking(key, releases)
            if not lacking:
                return
            releases = (*self._recorded[key].releases, *lacking)
        self._append(key, run.name, releases, manifest.selection, private=manifest.private)

    def _append(
        self, key: str, name: str, releases: Iterable[Releases], selection: SelectionEvent | None, *, private: bool
    ) -> None:
        """Add a line, which is on the disk when this returns, in place of an earlier one with the same key."""
        line = {
            "run_key": key,
            "run": name,
            "private": private,
            "releases": [asdict(release) for release in releases],
            "selection": None if selection is None else selection.as_dict(),
        }
        with writing(self.out / SPENT):
            with closing(AppendOnlyFile(self.out / SPENT)) as lines:
                lines.append(json.dumps(line, ensure_ascii=False) + "\n")
            sync_folder(self.out)
        self._recorded[key] = self._entry_of(line)

    def composed(self, delta: float) -> dict[str, Any]:
        """The total cost of all runs that ever were here, for a record or person private in all of them.

        `linprobe budget` composes in the same way: see `linprobe.accounting.book`.

        Returns: private_runs (runs that released something, killed and diverged ones included), not_private_runs,
            epsilon, delta, gdp_mu and zcdp_rho (None if any was sampled), accountant, unit.
        """
        spent = asdict(spending(self.entries(), delta))
        del spent["epsilon_by_unit"]  # all runs of a comparison have one unit
        return {"private_runs": spent.pop("runs"), **spent, "unit": self.of.get("unit", RECORD)}

    def entries(self) -> list[Entry]:
        """All runs that ever were here, killed and diverged ones too. Raises PrivacyError: an unreadable ledger."""
        # read this before the finished runs, so that a run that finishes in between is counted twice, not missed
        kept = [path for name in (".*.partial", "*.diverged*") for path in self.runs.glob(f"{name}/{LEDGER}")]
        unfinished = [self._unfinished(ledger) for ledger in kept if ledger.parent.name not in self._recorded]
        for run in self.finished():
            self.record(run)
        return [*unfinished, *self._recorded.values()]

    def _read_entries(self) -> list[Entry]:
        path = self.out / SPENT
        if not path.exists():
            return []
        try:
            return [self._entry_of(json.loads(line)) for line in read_text(path).splitlines()]
        except (ValueError, KeyError, TypeError, OSError, RecursionError) as error:
            raise PrivacyError(
                f"{path} cannot be read ({error}); without it no epsilon is proved; restore it"
            ) from None

    def _entry_of(self, line: dict[str, Any]) -> Entry:
        selection = SelectionEvent.from_dict(line["selection"]) if line.get("selection") else None
        private = line["private"]
        if not isinstance(private, bool):
            raise ValueError(f"private is {private!r:.40}")
        return self._entry(str(line["run_key"]), releases_of(line), selection, private=private)

    def _unfinished(self, ledger: Path) -> Entry:
        event = read_selection(ledger)
        return self._entry(ledger.parent.name, grouped(read_ledger(ledger)) if event is None else (), event)

    def _entry(
        self, run: str, releases: Iterable[Releases], selection: SelectionEvent | None, *, private: bool = True
    ) -> Entry:
        return Entry(
            run=run,
            name=run,
            method="",
            unit=self.of.get("unit", RECORD),
            private=private,
            delta=None,
            releases=tuple(releases),
            selection=selection,
            created=None,
        )

    def begin(self) -> None:
        """Remove the tables and figures of an earlier request, which may show runs that no longer exist."""
        with writing(self.out):
            for pattern in RESULTS:
                for path in self.out.glob(pattern):
                    path.unlink()
            write_json(self.out / STATED, {"of": self.of, "unfinished": True})

    def finish(self, content: dict[str, Any]) -> None:
        write_json(self.out / STATED, {"of": self.of, **content})

    def discard_unfinished(self, names: Iterable[str]) -> None:
        """Record what runs called `names` released, and remove their folders; `entries` counts those that stay."""
        for name in names:
            for partial in self.runs.glob(f".{name}.*.partial"):
                with suppress(LinprobeError, OSError):
                    self._record_unfinished(partial / LEDGER)
                    shutil.rmtree(partial, ignore_errors=True)

    def _record_unfinished(self, ledger: Path) -> None:
        if not ledger.exists():  # a run that had released nothing
            return
        with held(ledger, "the ledger is being written"):
            run = self._unfinished(ledger)
            if run.counts and run.run not in self._recorded:
                self._append(run.run, run.name, run.releases, run.selection, private=True)


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
    out: Path, of: dict[str, Any], features: FeatureReader, protected: Mapping[str, str]
) -> Iterator[ComparisonFolder]:
    """Create or continue the comparison in `out`, locked for this process.

    `protected`: digests of the files with public rows that a method protects, by name.

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
            folder = ComparisonFolder(out, of)
            for run in folder.finished():
                folder.check(run)
            folder.entries()  # an unreadable ledger is refused before more is spent
            folder.begin()
            yield folder
        finally:
            if is_new and not any((out / RUNS).glob("*")) and not (out / SPENT).exists():
                shutil.rmtree(out, ignore_errors=True)  # nothing was released


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
