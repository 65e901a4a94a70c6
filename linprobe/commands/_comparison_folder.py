"""The folder of a comparison: who works in it, which rows it is of, and what every run in it has spent."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from linprobe.accounting.accountants import ACCOUNTANTS, choose_accountant, composed_epsilon
from linprobe.accounting.events import Releases, grouped
from linprobe.accounting.ledger import read_ledger
from linprobe.atomic_files import write_json
from linprobe.data.feature_file import FeatureReader
from linprobe.errors import DataError, LinprobeError, PrivacyError, UsageError
from linprobe.runs import run_folder
from linprobe.runs.manifest import check_manifest, read_manifest

RUNS, STATED, SPENT, COMMITTED = "runs", "comparison.json", "spent.jsonl", "private_commitment.json"
RESULTS = ("*.csv", "*.md", "*.png")


class ComparisonFolder:
    """An open comparison; made by `open_comparison`.

    `spent.jsonl` has one line a run that ever finished here, written as soon as it is known and never taken back: a run
    whose folder is deleted has still been seen.
    """

    def __init__(self, out: Path, of: dict[str, Any]) -> None:
        self.out, self.of, self.runs = out, of, out / RUNS
        self._lines = _read_lines(out / SPENT)
        self._known = {line["run_key"] for line in self._lines}
        self._manifests: dict[str, dict[str, Any]] = {}

    def finished(self) -> list[Path]:
        """Folders of the finished runs that are here now."""
        return sorted(manifest.parent for manifest in self.runs.glob("*/manifest.json"))

    def manifest(self, run: Path) -> dict[str, Any]:
        """The manifest of a finished run, read the first time it is asked for."""
        if run.name not in self._manifests:
            self._manifests[run.name] = read_manifest(run)
        return self._manifests[run.name]

    def record(self, run: Path) -> None:
        """Write down a finished run, unless it is already."""
        manifest = self.manifest(run)
        key = manifest["manifest_digest"]
        if key in self._known:
            return
        line = {
            "run_key": key,
            "run": run.name,
            "private": manifest["private"],
            "releases": manifest["releases"] or [],
        }
        with (self.out / SPENT).open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line, ensure_ascii=False) + "\n")
            stream.flush()
            os.fsync(stream.fileno())
        self._lines.append(line)
        self._known.add(key)

    def composed(self, delta: float) -> dict[str, Any]:
        """What all runs that ever were here cost a record that was private in all of them.

        Returns: private_runs, those that released something, killed ones included; not_private_runs; epsilon, delta,
            accountant.
        """
        # before the finished ones: a run that finishes meanwhile counts twice rather than not at all
        unfinished = [read_ledger(ledger) for ledger in sorted(self.runs.glob(f".*.partial/{run_folder.LEDGER}"))]
        for run in self.finished():
            self.record(run)
        releases = [
            Releases("gradient", float(one["noise_multiplier"]), float(one["sampling_rate"]), int(one["count"]))
            for line in self._lines
            for one in line["releases"]
        ]
        spending = sum(bool(line["releases"]) for line in self._lines)
        for events in unfinished:
            releases += grouped(events)
            spending += bool(events)
        # many kinds of sampled releases: the Renyi bound composes them at once, and bounds from above
        accountant = "gdp" if choose_accountant("auto", releases) == "gdp" else "rdp"
        return {
            "private_runs": spending,
            "not_private_runs": sum(not line["private"] for line in self._lines),
            "epsilon": composed_epsilon(releases, delta, accountant),
            "delta": delta,
            "accountant": ACCOUNTANTS[accountant],
        }

    def begin(self) -> None:
        """Take away the tables and figures of an earlier request: none must outlive the runs that it is about."""
        for pattern in RESULTS:
            for path in self.out.glob(pattern):
                path.unlink()
        write_json(self.out / STATED, {"of": self.of, "unfinished": True})

    def finish(self, content: dict[str, Any]) -> None:
        """Write `comparison.json`."""
        write_json(self.out / STATED, {"of": self.of, **content})

    def discard_unfinished(self, names: Iterable[str]) -> None:
        """After Ctrl-C or an error: remove what runs called `names` left, as each does whose process is not ended."""
        for name in names:
            for partial in self.runs.glob(f".{name}.*.partial"):
                shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def open_comparison(out: Path, of: dict[str, Any], features: FeatureReader) -> Iterator[ComparisonFolder]:
    """The folder `out`, made or continued, for this process alone.

    Raises:
        UsageError: another comparison's folder, or one in use. PrivacyError: it is of other rows; a run in it that does
            not verify. DataError: a damaged file.
    """
    stated = out / STATED
    is_new = not stated.is_file()
    if is_new and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} exists and holds no comparison; give --out a new folder, or an earlier comparison")
    if not is_new:
        theirs = _read_stated(stated)
        if theirs != of:
            shown = [f"{one.get('features')} at delta {one.get('delta')}" for one in (theirs, of)]
            raise UsageError(
                f"{out} holds a comparison of {shown[0]}, and this is one of {shown[1]}; give another --out"
            )
    try:
        (out / RUNS).mkdir(parents=True, exist_ok=True)
        lock = (out / ".lock").open("w")
    except OSError as error:
        raise LinprobeError(f"{out} cannot be written ({error.strerror}); give --out a writable place") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(
                f"another compare works in {out}; allowed: one at a time; wait, or give another --out"
            ) from None
        try:
            _commit(out / COMMITTED, features)
            folder = ComparisonFolder(out, of)
            for run in folder.finished():
                check_manifest(folder.manifest(run), run, read_ledger(run / run_folder.LEDGER))
            folder.composed(of["delta"])  # what cannot be counted is told before more is spent
            folder.begin()
            yield folder
        finally:
            if is_new and not any((out / RUNS).iterdir()):
                shutil.rmtree(out, ignore_errors=True)  # nothing came of it


def _read_stated(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))["of"])
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise DataError(f"{path} cannot be read ({error}); give --out a new folder") from None


def _read_lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for line in lines:
            _ = line["run_key"], line["private"], [one["noise_multiplier"] for one in line["releases"]]
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise PrivacyError(
            f"{path} cannot be read ({error}); without it no epsilon can be proven; restore it"
        ) from None
    return lines


def _commit(path: Path, features: FeatureReader) -> None:
    """Bind the folder to the rows of `features`, as a run does: by a keyed hash that only the key's owner can check."""
    content = hashlib.sha256("".join(features.digest(group) for group in features.sizes).encode()).hexdigest()
    if not path.exists():
        key = secrets.token_bytes(32)
        value = {"private": True, "key": key.hex(), "commitment": run_folder.commitment(key, content)}
        write_json(path, value, private=True)
        return
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        key, commitment = bytes.fromhex(held["key"]), held["commitment"]
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise DataError(f"{path} cannot be read ({error}); give --out a new folder") from None
    if run_folder.commitment(key, content) != commitment:
        raise PrivacyError(
            f"{features.path} does not hold the rows that {path.parent} compares; find the right file, or give --out a "
            "new folder"
        )
