"""The run folder: `manifest.json`, `ledger.jsonl`, `model.npz`, `history.csv`, and the private `per_record.npz`.

A run with public test rows also has `test_figures.json`, one of `linprobe train` `config.toml`; a signed run has
`manifest.json.sig`, `README.md` and `claim.yaml`. No pickle anywhere. `per_record.npz` has mode 0600 and must not be
published.
"""

from __future__ import annotations

import glob
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from linprobe.accounting.events import INHERITED, Releases, grouped
from linprobe.accounting.ledger import read_ledger
from linprobe.atomic_files import (
    PRIVATE_FOLDER,
    held,
    json_text,
    replace_when_complete,
    write_csv,
    write_json,
)
from linprobe.data.array_files import checked_arrays, read_archive
from linprobe.errors import DataError, DivergedError, LinprobeError, PrivacyError, UsageError, advice
from linprobe.runs.claim import refuse_existing
from linprobe.runs.diverged import keep_charge
from linprobe.runs.manifest import MANIFEST_FORMAT, read_manifest, run_id_of, seal
from linprobe.runs.manifest_check import check_manifest, ledger_of
from linprobe.runs.per_record_file import PrivateRecords, commitment, per_record_digest, write_per_record
from linprobe.runs.run_files import (
    CONFIG,
    HISTORY,
    LEDGER,
    MANIFEST,
    MODEL,
    OPTIONAL_FILES,
    PAGES,
    PER_RECORD,
    RUN_FILES,
    SIGNATURE,
    TEST_FIGURES,
    RunFiles,
)
from linprobe.runs.signature import sign
from linprobe.runs.task import task_of
from linprobe.runs.units import unit_of

CHECKPOINT, RUN_ID = "checkpoint.npz", "run_id"
MakePages = Callable[[dict[str, Any]], Mapping[str, str]]
"""From a manifest with the digests of all other files: the names of pages and their texts."""


@dataclass(frozen=True)
class LoadedRun:
    """A run folder in memory.

    Attributes:
        folder: its path. manifest: the JSON object.
        weights (n_features, n_classes), bias (n_classes,): for L2-normalised raw rows. A run that votes has a leading
            axis of voters.
    """

    folder: Path
    manifest: dict[str, Any]
    weights: NDArray[np.float32]
    bias: NDArray[np.float32]

    @property
    def task(self) -> str:
        """`multiclass` or `multilabel`."""
        return task_of(self.manifest)

    @property
    def class_names(self) -> list[str]:
        """Class names in label order."""
        return list(self.manifest["class_names"])


@dataclass(frozen=True)
class FirstModel:
    """The initial weights that a run takes from an earlier run.

    Attributes:
        weights (n_features, n_classes), bias (n_classes,): as in `LoadedRun`; the mean over voters if the run votes.
        releases: the earlier run's releases, all under the purpose `inherited`.
        public_digest: of its public rows, None if it had none.
        unit: its unit of privacy.
        run_id: its name in budget books. model_digest: of its `model.npz`.
    """

    weights: NDArray[np.floating]
    bias: NDArray[np.floating]
    releases: tuple[Releases, ...]
    public_digest: str | None
    unit: str
    run_id: str
    model_digest: str


@dataclass(frozen=True)
class FirstRun:
    """The run folder that `init` names, read once: training, checkpoint and budget book use what was verified.

    Attributes:
        folder: its path.
    """

    folder: str | os.PathLike[str]

    @cached_property
    def model(self) -> FirstModel:
        """`load_first_model`, at the first use."""
        return load_first_model(self.folder)


def unfinished_folders(out: Path, holding: str = CHECKPOINT) -> list[Path]:
    """Folders of unfinished runs of `out` that hold a file of the given name."""
    return sorted(path.parent for path in out.parent.glob(f".{glob.escape(out.name)}.*.partial/{holding}"))


def unfinished_folder(out: Path) -> Path | None:
    """The folder of the unfinished run of `out`; None if none has a checkpoint.

    Raises:
        UsageError: several have a checkpoint, or one is complete except for its name.
    """
    found, complete = unfinished_folders(out), unfinished_folders(out, MANIFEST)
    if not found and complete:
        raise UsageError(
            f"--resume has nothing to do: the run is complete, only its name is not; rename {complete[0]} to {out}"
        )
    if len(found) > 1:
        raise UsageError(
            f"--resume finds {len(found)} unfinished runs of {out} with a checkpoint; allowed: 1: "
            f"{', '.join(str(path) for path in found)}; remove all but one"
        )
    return found[0] if found else None


@contextmanager
def new_run_folder(out: Path, *, resume: bool = False) -> Iterator[Path]:
    """A temporary folder beside `out`, or with `resume` that of an unfinished run if there is one, renamed to `out`
    when the block succeeds.

    On an error or Ctrl-C the folder is removed, with everything computed from private rows, unless it holds a
    checkpoint from which a second attempt may succeed. The ledger of a run that diverged is kept. A killed process
    leaves the folder behind, under a name ending in `.partial`, with the ledger of what it spent.
    """
    refuse_existing(out)
    new_parents = [parent for parent in out.parents if not parent.exists()]
    unfinished = unfinished_folder(out) if resume else None
    if unfinished is not None:
        partial = unfinished
    else:
        partial = out.with_name(f".{out.name}.{secrets.token_hex(4)}.partial")
        try:
            partial.parent.mkdir(parents=True, exist_ok=True)
            partial.mkdir(mode=PRIVATE_FOLDER)
        except OSError as error:
            raise LinprobeError(f"run folder {out} cannot be made ({error.strerror}); {advice(error)}") from None
    busy = f"unfinished run {partial} is being written by another process; wait for it, or stop it"
    with ExitStack() as stack:
        try:
            stack.enter_context(held(partial, busy))
        except OSError:
            if unfinished is None:
                _remove(partial, new_parents)
            raise
        if unfinished is not None and not (partial / CHECKPOINT).is_file():
            raise UsageError(f"unfinished run {partial} has ended in the meantime; look for {out}")
        taken = False
        try:
            for torn in partial.glob(".*.partial"):  # left by a killed process; may hold private figures
                torn.unlink()
            if not (partial / RUN_ID).is_file():
                (partial / RUN_ID).write_text(secrets.token_hex(16), encoding="utf-8")
            yield partial
            for name in (CHECKPOINT, RUN_ID):
                (partial / name).unlink(missing_ok=True)
            try:
                partial.rename(out)
            except OSError:
                taken = out.exists()
                if not taken:
                    raise
                raise UsageError(
                    f"run folder {out} was made by another process meanwhile; this run is complete; rename {partial}"
                ) from None
        except DivergedError as error:
            kept = keep_charge(partial, out, LEDGER, INHERITED, str(error))
            if kept is None:
                _remove(partial, new_parents)
                raise
            raise DivergedError(f"{error}; what it released counts: the ledger is kept in {kept}") from None
        except BaseException as error:
            may_succeed = unfinished is not None or not isinstance(error, LinprobeError)
            lacks_name = isinstance(error, OSError) and (partial / MANIFEST).exists()
            if taken or lacks_name or (may_succeed and (partial / CHECKPOINT).exists()):
                raise
            _remove(partial, new_parents)
            raise


def run_id(partial: Path) -> str:
    """The id of an unfinished run: random, and the same after it is resumed. The budget book and the manifest have it.

    Raises:
        DataError: no id of a run.
    """
    text = (partial / RUN_ID).read_text(encoding="utf-8", errors="replace")
    if not re.fullmatch("[0-9a-f]{32}", text):
        raise DataError(f"{partial / RUN_ID} holds no run id; train anew without --resume")
    return text


def _remove(partial: Path, new_parents: Iterable[Path]) -> None:
    """Remove the folder of an unfinished run, and the empty folders made for it."""
    shutil.rmtree(partial, ignore_errors=True)
    if partial.exists():  # `rmtree` opens folders, which a limit on open files forbids
        for name in (*RUN_FILES, *OPTIONAL_FILES, *PAGES, SIGNATURE, PER_RECORD, MANIFEST, CHECKPOINT, RUN_ID):
            with suppress(OSError):
                (partial / name).unlink()
        with suppress(OSError):
            partial.rmdir()
    for parent in new_parents:
        with suppress(OSError):  # not empty: another run uses it
            parent.rmdir()


def write_model(
    folder: Path, weights: NDArray[np.float32], bias: NDArray[np.float32], *, private: bool = False
) -> None:
    """Write `model.npz`: weights (n_features, n_classes) and bias (n_classes,), or a stack of voters for each.

    With `private` it has mode 0600: weights of a run without a guarantee may reveal private rows.
    """
    with replace_when_complete(folder / MODEL, private=private) as stream:
        np.savez(stream, weights=weights, bias=bias)


def write_history(folder: Path, history: list[dict[str, float]]) -> None:
    """Write `history.csv`, public facts of each step; an empty file for a run without steps."""
    write_csv(folder / HISTORY, history)


def write_manifest(
    folder: Path,
    manifest: dict[str, Any],
    contents: Mapping[str, bytes],
    signing_key: Ed25519PrivateKey | None = None,
    pages: MakePages | None = None,
) -> dict[str, Any]:
    """Write the pages if any are made, then the signature if there is a key for one, then `manifest.json`.

    Args:
        contents: of the files in the folder that the manifest lists, by name, without pages. They are not read again.

    Returns: the sealed manifest. It lists the pages too, so that its signature covers them.
    """
    manifest = {"format": MANIFEST_FORMAT, **manifest}
    made = {} if pages is None else pages(seal(manifest, contents))
    for name, text in made.items():
        with replace_when_complete(folder / name) as stream:
            stream.write(text.encode())
    sealed = seal(manifest, {**contents, **{name: text.encode() for name, text in made.items()}})
    text = json_text(sealed)
    if signing_key is not None:
        sign(folder, text.encode(), signing_key)
    with replace_when_complete(folder / MANIFEST, "w") as stream:
        stream.write(text)
    return sealed


def write_run(
    folder: Path,
    weights: NDArray[np.float32],
    bias: NDArray[np.float32],
    history: list[dict[str, float]],
    manifest: dict[str, Any],
    private: PrivateRecords | None,
    signing_key: Ed25519PrivateKey | None = None,
    test_figures: dict[str, Any] | None = None,
    config: str | None = None,
    pages: MakePages | None = None,
) -> dict[str, Any]:
    """Write all files of a trained run but its ledger, the manifest last; returns the sealed manifest.

    `test_figures` are those of public test rows, as `figures_by_task` gives them; None without public test rows.
    `config` is the text of its config file. `pages` makes the pages of a run that is signed.
    The manifest commits to `private`, which is None for a run that spent nothing, and is signed if a key is given.
    """
    write_model(folder, weights, bias, private=not manifest["private"])
    write_history(folder, history)
    for name in (*OPTIONAL_FILES, *PAGES, SIGNATURE):
        (folder / name).unlink(missing_ok=True)  # left by a process that was killed
    if config is not None:
        with replace_when_complete(folder / CONFIG, "w") as stream:
            stream.write(config)
    if test_figures is not None:
        write_json(folder / TEST_FIGURES, test_figures)
    private_commitment = per_record_commitment = None
    if private is not None:
        key = secrets.token_bytes(32)
        private_commitment = commitment(key, private.digest)
        write_per_record(folder, private.ids, private.losses, key)
        per_record_commitment = commitment(key, per_record_digest(private.ids, private.losses))
    commitments = {"private_commitment": private_commitment, "per_record_commitment": per_record_commitment}
    written, optional = RunFiles(folder), [name for name in OPTIONAL_FILES if (folder / name).exists()]
    contents = {name: written[name] for name in (*RUN_FILES, *optional)}
    return write_manifest(folder, {**manifest, **commitments}, contents, signing_key, pages)


def load_run(folder: str | os.PathLike[str]) -> LoadedRun:
    """Load a run folder.

    Raises:
        DataError: not a run folder, a manifest of another format, or a damaged model file.
    """
    files = RunFiles(Path(folder))
    return loaded(files, read_manifest(files))


def loaded(files: RunFiles, manifest: dict[str, Any]) -> LoadedRun:
    """The run of a folder with this manifest.

    Raises:
        DataError: a damaged model file, or one of another shape.
    """
    model = files.folder / MODEL
    try:
        content = files[MODEL]
    except OSError as error:
        raise DataError(f"{model} cannot be read ({error.strerror}); restore it from a copy") from None
    arrays = read_archive(model, ("weights", "bias"), BytesIO(content))
    votes = int(arrays["weights"].ndim == 3) if "weights" in arrays else 0
    weights, bias = checked_arrays(model, arrays, weights=(2 + votes, "f"), bias=(1 + votes, "f"))
    shape = (manifest["n_features"], manifest["n_classes"])
    if weights.shape[-2:] != shape or bias.shape != (*weights.shape[:-2], shape[1]) or not weights.size:
        raise DataError(
            f"{model} holds weights of {weights.shape} and bias of {bias.shape}; allowed: {shape} and {shape[1:]}, as "
            "the manifest says; restore it from a copy"
        )
    if not (np.isfinite(weights).all() and np.isfinite(bias).all()):
        raise DataError(f"{model} holds NaN or infinity; restore it from a copy")
    return LoadedRun(files.folder, manifest, weights, bias)


def load_first_model(folder: str | os.PathLike[str]) -> FirstModel:
    """The weights of a run and the releases they depend on, for `init`.

    Raises:
        DataError, PrivacyError: as `load_run` and `check_manifest`. PrivacyError: the run is not private, so a run that
            starts from it cannot be private either.
    """
    files = RunFiles(Path(folder))
    run = loaded(files, read_manifest(files))
    events = read_ledger(files.folder / LEDGER, ledger_of(files))
    check_manifest(run.manifest, files, events)
    if not run.manifest["private"]:
        raise PrivacyError(
            f"init run {folder} is {run.manifest['guarantee'].split(':')[0]}, and so is any run that starts from it; "
            "give a private run, or init zero, public or text"
        )
    weights, bias = run.weights, run.bias
    if weights.ndim == 3:
        weights, bias = weights.mean(axis=0), bias.mean(axis=0)
    inherited = grouped(replace(event, purpose=INHERITED) for event in events)
    return FirstModel(
        weights,
        bias,
        inherited,
        run.manifest.get("public_digest"),
        unit_of(run.manifest),
        run_id_of(run.manifest),
        run.manifest["files"][MODEL],
    )
