"""The run folder: `RunFolder` reads a run; `new_run_folder` and `write_manifest` make one.

`per_record.npz` has mode 0600 and must not be published. Only the process that holds the name of an output, by
`claimed`, reads private rows and makes the output.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import hmac
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key
from numpy.typing import NDArray

from linprobe import atomic_files, errors
from linprobe.accounting.events import INHERITED
from linprobe.accounting.ledger import read_ledger, read_selection
from linprobe.accounting.per_instance import ORDERS, RecordLosses
from linprobe.data.array_files import checked_arrays, is_float_archive, read_archive
from linprobe.methods.class_counts import ClassCounts, class_shares
from linprobe.parallel.process_group import Group
from linprobe.runs.figures import contradictions
from linprobe.runs.manifest import (
    CONFIG,
    HISTORY,
    LEDGER,
    MANIFEST,
    MODEL,
    OPTIONAL_FILES,
    PAGES,
    PER_RECORD,
    PUBLISHED_HISTOGRAM,
    RUN_FILES,
    SIGNATURE,
    TEST_FIGURES,
    UNREFINED,
    DamagedManifestError,
    Manifest,
    fits,
)

PER_RECORD_ARRAYS = ("note", "id", "mu", "renyi", "key")
NOTE = "PRIVATE: derived from private rows without noise; do not publish"


class PerRecordFile(NamedTuple):
    """The content of `per_record.npz`: ids and losses in the same order, and the key of the commitments. Private."""

    ids: list[str]
    losses: RecordLosses
    key: bytes


def commitment(key: bytes, digest: str) -> str:
    """HMAC-SHA256 of a private digest: binds the manifest to the data and reveals nothing without the key."""
    return hmac.new(key, digest.encode(), hashlib.sha256).hexdigest()


def per_record_digest(ids: list[str], losses: RecordLosses) -> str:
    """SHA-256 of every record's id and losses. Private."""
    digest = hashlib.sha256("\0".join(ids).encode())
    digest.update(np.ascontiguousarray(losses.mu, dtype="<f8").data)
    digest.update(np.ascontiguousarray(losses.renyi, dtype="<f4").data)
    return digest.hexdigest()


def write_per_record(folder: Path, private: PerRecordFile) -> None:
    with atomic_files.replace_when_complete(folder / PER_RECORD, private=True) as stream:
        np.savez(
            stream,
            note=np.array(NOTE),
            id=np.array(private.ids, dtype=np.str_),
            mu=private.losses.mu,
            renyi=private.losses.renyi,
            key=np.frombuffer(private.key, dtype=np.uint8),
        )


class NotForThisUserError(errors.LinprobeError):
    """A private file of a run, which this user may not read."""


def read_per_record(folder: Path, committed: str | None) -> PerRecordFile:
    """The private sidecar of a run whose manifest states the commitment `committed`.

    Raises DataError: missing or damaged. PrivacyError: another file than the manifest commits to. NotForThisUserError:
    this user may not read it.
    """
    path = folder / PER_RECORD
    try:
        stream = atomic_files.open_regular(path)
    except PermissionError as error:
        raise NotForThisUserError(
            f"{path} cannot be read ({error.strerror}), and is private; leave it so, and ask the person who trained "
            "the run to give this command"
        ) from None
    except OSError as error:
        raise errors.read_fault(str(path), error) or errors.DataError(
            f"{folder} has no readable {PER_RECORD} ({error.strerror}); it is private and written only by "
            "methods that spend privacy; use the folder where the run was trained"
        ) from None
    with stream:
        arrays = read_archive(path, None, stream)
    if not set(arrays) <= set(PER_RECORD_ARRAYS) or str(arrays.get("note", NOTE)) != NOTE:
        raise errors.DataError(f"{path} holds more than {', '.join(PER_RECORD_ARRAYS)}; restore it from a copy")
    ids, mu, renyi, key = checked_arrays(path, arrays, id=(1, "U"), mu=(1, "f"), renyi=(2, "f"), key=(1, "u"))
    known = len(mu) in (0, len(ids)) and len(renyi) == len(mu) and renyi.shape[1] in (0, len(ORDERS))
    if not known or not (np.isfinite(mu).all() and (mu >= 0).all() and not np.isnan(renyi).any()):
        raise errors.DataError(
            f"{path} holds {len(ids)} ids, mu of {mu.shape} and renyi of {renyi.shape}; allowed: losses of 0 or more, "
            "one for each id, or none; restore it from a copy"
        )
    found = PerRecordFile(ids.tolist(), RecordLosses(mu, renyi), key.tobytes())
    del arrays, ids  # which are larger than the rest
    if commitment(found.key, per_record_digest(found.ids, found.losses)) != committed:
        raise errors.PrivacyError(f"{path} was edited, or belongs to another run; restore it from a copy")
    return found


RUN_FOLDER = "run folder"
RUN_MARKS = (MANIFEST, LEDGER)  # every run folder has both
BUSY = "unfinished run {} is being written by another process; wait for it, or stop it"


@contextmanager
def new_folders(folder: Path) -> Iterator[None]:
    """Remove a new `folder` and parents that stay empty; their place gets the end's time, as the start would tell."""
    new = [one for one in (folder.absolute(), *folder.absolute().parents) if not one.exists()]
    try:
        yield
    finally:
        for one in new:
            with suppress(OSError):  # not empty
                one.rmdir()
            with suppress(OSError):
                os.utime(one.parent)


@contextmanager
def claimed(out: Path, what: str = RUN_FOLDER, flag: str = "--out", *, overwrite: bool | None = None) -> Iterator[bool]:
    """Hold the name of an output, `what` by its `flag`, by a lock on `.NAME.lock` beside it.

    The system releases the lock of a killed process, so a lock file that was left behind blocks nobody. Parent
    folders are made, and removed again if they stay empty. `overwrite` is None if the command never replaces one.
    Yields whether the name is held: not on a file system without locks, where two processes may make one output.
    """
    if out.name == "-":
        raise errors.UsageError(f"{what} {out} would be a file of that name, not standard output; give another name")
    atomic_files.check_place(out, what, flag)
    refuse_existing(out, what, overwrite=overwrite)
    _refuse_inside_run(out, what)
    lock_file = out.with_name(f".{out.name}.lock")
    lock_place = lock_file.absolute()  # the process may change to another folder before the end
    with new_folders(out.parent), ExitStack() as stack:
        with errors.writing(f"{what} {out}", flag, "cannot be made"):
            out.parent.mkdir(parents=True, exist_ok=True)
            while (locked := _hold(lock_file, out, what, stack)) is None:
                stack.close()
        try:
            # the process that held the name before may have made it
            refuse_existing(out, what, overwrite=overwrite)
            yield locked
        finally:
            with suppress(OSError):  # the output may be complete
                lock_place.unlink()


def refuse_existing(out: Path, what: str = RUN_FOLDER, *, overwrite: bool | None = None) -> None:
    if out.exists() and not overwrite:
        next_step = ", or --overwrite to replace it" if overwrite is False else ", or remove it first"
        found, next_step = (" as a file", "") if overwrite is None and out.is_file() else ("", next_step)
        raise errors.UsageError(f"{what} {out} already exists{found}; give another name{next_step}")


def _refuse_inside_run(out: Path, what: str) -> None:
    """Raise UsageError if the output would lie in a run folder, which `verify` then refuses."""
    for parent in out.absolute().parents:
        if all((parent / name).is_file() for name in RUN_MARKS):
            raise errors.UsageError(
                f"{what} {out} would lie in the run folder {parent}, which takes none; give another place"
            )


def refuse_book_inside(book: Path | None, out: Path | None = None) -> None:
    """UsageError if a budget book would lie in a run folder, or in the new one `out`; LinprobeError: one is closed."""
    if book is None:
        return
    place = book.resolve()
    if out is not None and out.resolve() in (place, *place.parents):
        raise errors.UsageError(
            f"budget book {book} would lie in {out}, which is only for runs; give --book another place"
        )
    with errors.writing(f"budget book {book}", "--book", "cannot be used"):  # a folder may be closed to this user
        _refuse_inside_run(place, "budget book")


def _hold(lock_file: Path, out: Path, what: str, stack: ExitStack) -> bool | None:
    """Lock the file until the stack is closed: whether there are locks; None if its last holder has just removed it."""
    busy = f"{what} {out} is being made by another process; nothing was read or spent; wait, or give another name"
    descriptor = stack.enter_context(atomic_files.held(lock_file, busy, create=True, error=errors.UsageError))
    if descriptor is None:
        return False
    return True if lock_file.exists() and os.path.samestat(os.fstat(descriptor), lock_file.stat()) else None


LONGEST_KEY, LONGEST_SIGNATURE = 1 << 16, 4096  # bytes; keys are PEM files
CHECKPOINT, RUN_ID = "checkpoint.npz", "run_id"
DIVERGED_NOTE = "diverged.json"
MOST_BYTES = {
    SIGNATURE: LONGEST_SIGNATURE,
    **dict.fromkeys((LEDGER, HISTORY), 1 << 30),  # a million steps have a fifth of it
    **dict.fromkeys((MODEL, UNREFINED), 1 << 34),
}
NO_FOLDER = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)


class RunFolder:
    """A run on disk. Each file is read once, at its first use, and its bytes are kept.

    Whoever can write to a folder can exchange a file at any time. A command that opened a file twice could check one
    content and use another, so it takes every part from one `RunFolder`. `check.verified` judges it.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._read: dict[str, bytes | OSError] = {}

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of everything in the folder; none without one. Raises PrivacyError: it cannot be listed."""
        try:
            return frozenset(path.name for path in self.folder.iterdir())
        except OSError as error:
            if error.errno in NO_FOLDER:
                return frozenset()
            raise errors.PrivacyError(f"{self.folder} cannot be listed ({error.strerror}); make it readable") from None

    def __getitem__(self, name: str) -> bytes:
        """The content of a file, but `per_record.npz`, which may be large. OSError: missing, too large, not regular."""
        if name not in self._read:
            try:
                self._read[name] = atomic_files.read_bytes(
                    self.folder / name, MOST_BYTES.get(name, atomic_files.MOST_TEXT)
                )
            except OSError as error:
                self._read[name] = error  # a file that appears later is not part of what is checked
        found = self._read[name]
        if isinstance(found, OSError):
            raise errors.read_fault(str(self.folder / name), found) or found
        return found

    @cached_property
    def manifest(self) -> Manifest:
        """The manifest, not yet compared. Raises DataError: not a run folder, or as `Manifest.read`."""
        path = self.folder / MANIFEST
        try:
            return Manifest.read(self[MANIFEST], path)
        except OSError as error:
            if error.errno in NO_FOLDER:
                absent = error.errno == errno.ENOENT and not self.folder.exists()
                wrong = "does not exist" if absent else f"is not a run folder: it has no {MANIFEST}"
                step = "give the run folder that `linprobe train` printed"
                if error.errno == errno.ENOTDIR and self.folder.is_file():
                    wrong, step = "is a file, and a run is a folder", f"unpack it first if it is an archive, or {step}"
                raise errors.DataError(f"{self.folder} {wrong}; {step}") from None
            raise DamagedManifestError(f"{path} cannot be read ({error}); restore it from a copy") from None

    def _arrays(self, name: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        model, manifest = self.folder / name, self.manifest
        try:
            content = self[name]
        except OSError as error:
            raise errors.DataError(f"{model} cannot be read ({error.strerror}); restore it from a copy") from None
        arrays = read_archive(model, None, BytesIO(content))
        votes = int(arrays["weights"].ndim == 3) if "weights" in arrays else 0
        weights, bias = checked_arrays(model, arrays, weights=(2 + votes, "f"), bias=(1 + votes, "f"))
        shape = (manifest.n_features, manifest.n_classes)
        if {weights.dtype.str, bias.dtype.str} != {"<f4"}:
            raise errors.DataError(
                f"{model} holds {weights.dtype} and {bias.dtype}; allowed: float32; restore it from a copy"
            )
        if weights.shape[-2:] != shape or bias.shape != (*weights.shape[:-2], shape[1]) or not weights.size:
            raise errors.DataError(
                f"{model} holds shapes {weights.shape} and {bias.shape}; allowed: {shape} and {shape[1:]}; restore it"
            )
        if not (np.isfinite(weights).all() and np.isfinite(bias).all()):
            raise errors.DataError(f"{model} holds NaN or infinity; restore it from a copy")
        if list(arrays) != ["weights", "bias"] or not is_float_archive(content, arrays):
            more = errors.printable(", ".join(sorted(set(arrays) - {"weights", "bias"}))[:80]) or "other bytes"
            raise errors.DataError(f"{model} holds {more} besides weights and bias; restore it from a copy")
        return weights, bias

    @cached_property
    def histograms(self) -> list[dict[str, Any]]:
        """The published histograms: bin_edges and noisy_counts. Raises DataError: a file that holds none."""
        found = []
        for name in self.manifest.histogram_files:
            histogram, wrong = self._json(name), None
            if not fits(PUBLISHED_HISTOGRAM, histogram):
                wrong = "a key is unknown or missing, or a value is wrong"
            elif not 0 < len(histogram["noisy_counts"]) == len(histogram["bin_edges"]) - 1:
                wrong = "it must have one more bin edge than counts"
            if wrong is not None:
                raise errors.DataError(f"{self.folder / name}: {wrong}; restore it from a copy")
            found.append({key: histogram[key] for key in ("bin_edges", "noisy_counts")})
        return found

    def _json(self, name: str) -> Any:
        with errors.reading(str(self.folder / name), "restore it from a copy"):
            return json.loads(self[name].decode(), object_pairs_hook=atomic_files.no_repeated_keys)

    @cached_property
    def _model(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        return self._arrays(MODEL)

    @cached_property
    def unrefined(self) -> tuple[NDArray[np.float32], NDArray[np.float32]] | None:
        """Weights and bias before refinement; None for a run that was not refined. Raises as `weights`."""
        return None if self.manifest.refined is None else self._arrays(UNREFINED)

    @property
    def weights(self) -> NDArray[np.float32]:
        """Weights for L2-normalised rows, (n_features, n_classes), voters first. DataError: damaged, another shape."""
        return self._model[0]

    @property
    def bias(self) -> NDArray[np.float32]:
        return self._model[1]

    @property
    def class_shares(self) -> NDArray[np.float64] | None:
        """Class shares of private rows (n_classes,) from released counts; None without, or for several labels."""
        manifest, counts = self.manifest, self.manifest.class_counts
        if counts is None or manifest.several_labels:
            return None
        return class_shares(ClassCounts(np.array(list(counts.by_class.values())), counts.std), manifest.n_private)

    @cached_property
    def test_metrics(self) -> dict[str, Any] | None:
        """The metrics on public test rows, or None. Raises DataError: unreadable, or they contradict each other."""
        if TEST_FIGURES not in self.manifest.files:
            return None
        metrics: dict[str, Any] = self._json(TEST_FIGURES)
        for wrong in contradictions(metrics, self.manifest):
            raise errors.DataError(f"{self.folder / TEST_FIGURES}: {wrong}; restore it from a copy")
        return metrics

    @cached_property
    def may_read_per_record(self) -> bool:
        """Whether the folder holds the private sidecar, and this user may read it. Raises as `read_per_record`."""
        try:
            return PER_RECORD in self.names and self.per_record is not None
        except NotForThisUserError:
            return False

    @cached_property
    def per_record(self) -> PerRecordFile:
        """The private sidecar: ids, losses and the key of the commitment. Raises as `read_per_record`."""
        return read_per_record(self.folder, self.manifest.per_record_commitment)


def read_run(folder: str | os.PathLike[str]) -> RunFolder:
    """A run folder whose manifest and model can be read. Raises DataError: none, another format, or a damaged model."""
    run = RunFolder(folder)
    _ = run.weights
    return run


def unfinished_folders(out: Path) -> list[Path]:
    """Folders of runs of `out` that can go on, from a checkpoint, or that are complete except for their name."""
    named = re.compile(rf"[.]{re.escape(out.name)}[.][^.]+[.]partial")  # not of `out.1` or `out.published-1`
    folders = (path for path in out.parent.glob(f".{glob.escape(out.name)}.*.partial") if named.fullmatch(path.name))
    return sorted(path for path in folders if (path / CHECKPOINT).is_file() or (path / MANIFEST).is_file())


def unfinished_folder(out: Path) -> Path | None:
    """The one of `unfinished_folders`; None without one. Raises UsageError: several."""
    found = unfinished_folders(out)
    if len(found) > 1:
        raise errors.UsageError(
            f"--resume finds {len(found)} unfinished runs of {out}; allowed: 1: "
            f"{', '.join(str(path) for path in found)}; remove or rename all but one"
        )
    return found[0] if found else None


# long: the order of these steps decides what an error leaves on disk
@contextmanager
def new_run_folder(
    out: Path,
    *,
    resume: bool = False,
    complete: Callable[[RunFolder], None] | None = None,
    paid: str = "counts",
    flag: str = "--out",
) -> Iterator[Path]:
    """A temporary folder beside `out`, renamed to it when the block succeeds; with `resume` that of an unfinished run.

    One that is complete gets its name, after `complete` has accepted it. On an error or Ctrl-C the folder is removed,
    with everything computed from private rows, unless it is complete (and `paid`: making it again costs, in words for
    the error), or holds a checkpoint from which a second attempt may succeed. The ledger of a run that diverged is
    kept. A killed process leaves the folder behind.
    """
    refuse_existing(out)
    unfinished = unfinished_folder(out) if resume else None
    partial = out.with_name(f".{out.name}.{secrets.token_hex(4)}.partial") if unfinished is None else unfinished
    shown, partial = out.with_name(partial.name), partial.absolute()  # the process may change to another folder
    if unfinished is None:
        with errors.writing(f"run folder {out}", flag, "cannot be made"):
            partial.mkdir(mode=atomic_files.PRIVATE_FOLDER)
    with ExitStack() as stack:
        try:
            stack.enter_context(atomic_files.held(partial, BUSY.format(shown)))
        except OSError:
            if unfinished is None:
                _remove(partial)
            raise
        if unfinished is not None and (partial / MANIFEST).is_file():
            try:
                if complete is not None:
                    complete(RunFolder(shown))
                _name_complete(partial, out)
            except OSError as error:
                raise _without_name(partial, out, error, paid, flag) from None
            raise CompleteError(f"nothing was left to do: run {out} was complete, and has its name now")
        if unfinished is not None and not (partial / CHECKPOINT).is_file():
            raise errors.UsageError(f"unfinished run {shown} has ended in the meantime; look for {out}")
        try:
            for torn in partial.glob(".*.partial"):  # left by a killed process; may hold private figures
                torn.unlink()
            if not (partial / RUN_ID).is_file():
                (partial / RUN_ID).write_text(secrets.token_hex(16), encoding="utf-8")
            yield partial
            _name_complete(partial, out)
        except errors.DivergedError as error:
            kept = _keep_charge(partial, out, str(error))
            if kept is None:
                _remove(partial)
                raise
            raise errors.DivergedError(
                f"{error}; what it released counts: the ledger is kept in {out.with_name(kept.name)}"
            ) from None
        except BaseException as error:
            if paid and (partial / MANIFEST).exists():
                with suppress(OSError):
                    _remove_marks(partial)
                if isinstance(error, OSError | errors.LinprobeError) and not partial.with_name(out.name).exists():
                    raise _without_name(partial, out, error, paid, flag) from None
            elif (unfinished is None and isinstance(error, errors.LinprobeError)) or not (
                partial / CHECKPOINT
            ).exists():
                _remove(partial)
            raise


class CompleteError(errors.UsageError):
    """The unfinished run had all its files, and has its name now."""


def how_to_name(folder: Path, out: Path) -> str:
    """How the complete run in `folder` gets the name `out`: `train` alone can be resumed."""
    resumable = (folder / CONFIG).is_file()
    renamed = f"rename {out.with_name(folder.name)} to {out}"
    return f"the same command with --resume --out {out} names it" if resumable else renamed


def _without_name(partial: Path, out: Path, error: Exception, paid: str, flag: str) -> errors.LinprobeError:
    """An error in place of `error`, of the same exit status, once the run is complete: making it again would cost."""
    why = (error.strerror or error) if isinstance(error, OSError) else error
    kind = type(error) if isinstance(error, errors.LinprobeError) else errors.LinprobeError
    name = "the same command names it" if flag == errors.BESIDE_RUN else how_to_name(partial, out)
    return kind(f"run {out} is complete without its name ({why}), and {paid}; {name}")


def name_complete(out: Path) -> None:
    """Give a run of `out` its name, if it is complete without it and `out` is free. Raises if it cannot be renamed."""
    for partial in () if out.exists() else without_name(out)[:1]:
        with errors.writing(f"run folder {out}"), atomic_files.held(partial, BUSY.format(partial)):
            _name_complete(partial, out)


def without_name(out: Path) -> list[Path]:
    """Folders of runs of `out` that are complete except for their name."""
    return [path for path in unfinished_folders(out) if (path / MANIFEST).is_file()]


def _name_complete(partial: Path, out: Path) -> None:
    _remove_marks(partial)
    place = partial.with_name(out.name)
    try:
        partial.rename(place)
    except OSError:
        if not place.exists():
            raise
        raise errors.UsageError(
            f"run folder {out} was made by another process meanwhile; this run is complete; rename "
            f"{out.with_name(partial.name)}"
        ) from None


def _remove_marks(partial: Path) -> None:
    for name in (CHECKPOINT, RUN_ID):
        (partial / name).unlink(missing_ok=True)


def is_run_id(text: str) -> bool:
    return re.fullmatch("[0-9a-f]{32}", text) is not None


def run_id(partial: Path) -> str:
    """The random id of an unfinished run, kept when it is resumed, as in book and manifest. Raises DataError: none."""
    text = (partial / RUN_ID).read_text(encoding="utf-8", errors="replace")
    if not is_run_id(text):
        raise errors.DataError(f"{partial / RUN_ID} holds no run id; train anew without --resume")
    return text


def _remove(partial: Path) -> None:
    shutil.rmtree(partial, ignore_errors=True)
    if partial.exists():  # `rmtree` opens folders, which a limit on open files forbids
        for name in (*RUN_FILES, *OPTIONAL_FILES, *PAGES, SIGNATURE, PER_RECORD, MANIFEST, CHECKPOINT, RUN_ID):
            with suppress(OSError):
                (partial / name).unlink()
        with suppress(OSError):
            partial.rmdir()


def _keep_charge(partial: Path, out: Path, reason: str) -> Path | None:
    """Turn an unfinished run of `out` into `OUT.diverged`, `OUT.diverged-2` and so on, with its ledger and a note only.

    None if it released nothing. The owner of the rows saw the divergence, so the releases count.
    """
    released = 1
    if read_selection(partial / LEDGER) is None:
        released = sum(event.purpose != INHERITED for event in read_ledger(partial / LEDGER))
    if not released:
        return None
    for path in partial.iterdir():
        if path.name != LEDGER:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    note = {
        "what": "the ledger of a training run that diverged; its releases count",
        "run": str(out),
        "reason": reason,
        "releases": released,
    }
    atomic_files.write_json(partial / DIVERGED_NOTE, note)
    folders = (partial.with_name(f"{out.name}.diverged" + (f"-{number}" if number > 1 else "")) for number in count(1))
    kept = next(folder for folder in folders if not folder.exists())
    partial.rename(kept)
    return kept


def private_key(path: Path, progress: errors.Progress | None = None) -> Ed25519PrivateKey:
    """The key in a PEM file without a password; a note if others can read it. Raises DataError: no file or such key."""
    key = _key_in(path, lambda text: load_pem_private_key(text, password=None))
    if not isinstance(key, Ed25519PrivateKey):
        raise errors.DataError(
            f"key {path} is of another kind; allowed: an Ed25519 private key, PEM, without a password; make one with "
            "openssl genpkey -algorithm ed25519 -out key.pem"
        )
    if progress is not None and os.name == "posix" and path.stat().st_mode & 0o077:
        progress.note(f"others can read the private key {path}, and sign in your name; chmod 600 {path}")
    return key


def public_key(path: Path) -> Ed25519PublicKey:
    """The public key in a PEM file. Raises DataError: a missing file, or one without such a key."""
    key = _key_in(path, load_pem_public_key)
    if not isinstance(key, Ed25519PublicKey):
        raise errors.DataError(
            f"key {path} is of another kind; allowed: an Ed25519 public key, PEM; derive it from the private key with "
            "openssl pkey -in key.pem -pubout -out public.pem"
        )
    return key


def _key_in(path: Path, load: Any) -> Any:
    """The key that `load` reads; None if the file holds none. Errors of the library may quote a key: show none."""
    try:
        with path.open("rb") as stream:  # a key may come through a pipe
            return load(stream.read(LONGEST_KEY))
    except OSError as error:
        raise errors.DataError(f"key {path} cannot be read ({error.strerror}); give a PEM file") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):  # TypeError: a password is needed
        return None


def write_committed(folder: Path, private: PerRecordFile, digest: str, manifest: Manifest) -> Manifest:
    """Write the private sidecar; the manifest then commits to it, and to the private rows, by their `digest`."""
    write_per_record(folder, private)
    return replace(
        manifest,
        private_commitment=commitment(private.key, digest),
        per_record_commitment=commitment(private.key, per_record_digest(private.ids, private.losses)),
    )


def write_manifest(
    folder: Path,
    manifest: Manifest,
    contents: Mapping[str, bytes],
    signing_key: Ed25519PrivateKey | None,
    pages: Mapping[str, str],
) -> Manifest:
    """Write the pages, then the signature if there is a key for one, then `manifest.json`; returns it, sealed.

    The manifest lists the pages too, so that its signature covers them. No file is read: `contents` are of the others.
    """
    for name, text in pages.items():
        atomic_files.write_whole(folder / name, text)
    sealed = manifest.sealed({**contents, **{name: text.encode() for name, text in pages.items()}})
    text = atomic_files.json_text(sealed.to_json())
    if signing_key is not None:
        atomic_files.write_whole(folder / SIGNATURE, signing_key.sign(text.encode()))
    atomic_files.write_whole(folder / MANIFEST, text)
    return sealed


@contextmanager
def new_files(
    paths: Mapping[str, Path | None], *, what: str = "file", inputs: Iterable[Path | None] = (), overwrite: bool = False
) -> Iterator[None]:
    """Hold the names of output files by their flags, before anything is read. Missing folders are made.

    What killed processes left of these files is removed.
    Raises UsageError: an existing file without `overwrite`, a folder, an input, or one name twice; and as `claimed`.
    """
    wanted = {flag: path for flag, path in paths.items() if path is not None}
    for place, path in enumerate(wanted.values()):
        if path.is_dir():
            raise errors.UsageError(f"{what} {path} is a folder; give a file name")
        for given in inputs:
            if given is not None and path.exists() and given.exists() and path.samefile(given):
                raise errors.UsageError(f"{what} {path} would replace an input of the command; give another name")
        if path.absolute() in [other.absolute() for other in list(wanted.values())[:place]]:
            raise errors.UsageError(f"{what} {path} is named twice; give two names")
    with ExitStack() as stack:
        for flag, path in wanted.items():
            if stack.enter_context(claimed(path, what, flag, overwrite=overwrite)):
                atomic_files.remove_torn(path)
        yield


def inputs_of(run: Path) -> tuple[Path, ...]:
    """The files of a run folder, and the feature files of its rows; none if its manifest cannot be read."""
    try:
        manifest = RunFolder(run).manifest
    except errors.LinprobeError:  # the command will say so when it reads the run
        return ()
    return *run.iterdir(), *(Path(name) for name in (manifest.features, manifest.public_file) if name)


@contextmanager
def run_folder_of_group(group: Group, out: Path, **options: Any) -> Iterator[Path]:
    """`new_run_folder` in rank 0; the other processes of the group receive its path."""
    if group.rank > 0:
        yield Path(group.broadcast_text(""))
        return
    with new_run_folder(out, **options) as folder:
        group.broadcast_text(str(out.with_name(folder.name)))  # another machine may have it in another place
        yield folder
