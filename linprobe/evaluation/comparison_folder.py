"""The folder of a comparison: its lock, the rows it compares, and what its runs cost."""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from linprobe.accounting.book import Contents, Entry, read_book, spending
from linprobe.accounting.row_keys import books_folder, files_of_books
from linprobe.atomic_files import PRIVATE_FOLDER, check_place, held, read_text, write_json
from linprobe.data.feature_reader import FeatureReader
from linprobe.errors import PrivacyError, UsageError, reading, writing
from linprobe.options import RECORD
from linprobe.runs import run_folder
from linprobe.runs.check import check_run
from linprobe.runs.manifest import Manifest
from linprobe.runs.run_folder import RunFolder
from linprobe.training.charge import entry_of

RUNS, STATED, COMMITTED = "runs", "comparison.json", "private_commitment.json"
LOCK = ".lock"
TORN = (f".{STATED}.*.partial", f".{COMMITTED}.*.partial")  # left by a killed process
RESULTS = ("*.csv", "*.md", "*.png", *TORN)


class ComparisonFolder:
    """An open comparison; made by `open_comparison`. What its runs cost is in their budget book."""

    def __init__(self, out: Path, of: dict[str, Any]) -> None:
        self.out, self.of, self.runs = out, of, out / RUNS
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

    def composed(self, delta: float, book: Path | None) -> dict[str, Any]:
        """The cost of all runs that ever were here, composed as by `linprobe budget`."""
        spent = asdict(spending(self._entries(book), delta))
        del spent["epsilon_by_unit"]  # all runs of a comparison have one unit
        return {"private_runs": spent.pop("runs"), **spent, "unit": self.of.get("unit", RECORD)}

    def _entries(self, book: Path | None) -> list[Entry]:
        """All runs that ever were here as books have them, also killed ones, and runs that they started from."""
        books = [*files_of_books(books_folder()), *([] if book is None else [book])]
        recorded = Contents({run: one for path in books for run, one in read_book(path).entries.items()})
        here, features = self.runs.resolve(), (None, self.of["features"])
        found = {
            run: one
            for run, one in recorded.entries.items()
            if one.features in features and Path(one.name).parent.resolve() == here
        }
        for entry in (entry_of(run, self.manifest(run)) for run in self.finished()):
            found[entry.run] = recorded.after(entry, ())
        return list(recorded.with_first(found).values())

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
        """Remove the folders of unfinished runs called `names`; their book has what they released."""
        for name in names:
            for partial in self.runs.glob(f".{name}.*.partial"):
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
    out: Path, of: dict[str, Any], features: FeatureReader, protected: Mapping[str, str]
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
            folder = ComparisonFolder(out, of)
            for run in folder.finished():
                folder.check(run)
            folder.begin()
            yield folder
        finally:
            if is_new and not any((out / RUNS).glob("*")):
                shutil.rmtree(out, ignore_errors=True)


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
