"""The claim on the name of an output. Only the process that holds it reads private rows and makes the output."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from linprobe.atomic_files import check_place, held
from linprobe.errors import LinprobeError, UsageError, advice
from linprobe.runs.manifest import LEDGER, MANIFEST

RUN_FOLDER = "run folder"
RUN_MARKS = (MANIFEST, LEDGER)  # every run folder has both


@contextmanager
def claimed(out: Path, what: str = RUN_FOLDER, flag: str = "--out", *, overwrite: bool | None = None) -> Iterator[bool]:
    """Hold the name of an output, by a lock on `.NAME.lock` beside it.

    The system releases the lock of a killed process, so a lock file that was left behind blocks nobody. Parent
    folders are made, and removed again if they stay empty.

    Args:
        what: the kind of output, and flag: the one that names it, for messages.
        overwrite: whether the output may exist already; None if the command never replaces one.
    Yields: whether the name is held; False on a file system without locks, where two processes may make one output.
    Raises UsageError: the output exists, lies in a run folder, has the name - or too long a one, or another process
    holds the name. LinprobeError: the place is not writable.
    """
    if out.name == "-":
        raise UsageError(f"{what} {out} would be a file of that name, not standard output; give another name")
    check_place(out, what, flag)
    refuse_existing(out, what, overwrite=overwrite)
    _refuse_inside_run(out, what)
    new_parents = [parent for parent in out.parents if not parent.exists()]
    lock_file = out.with_name(f".{out.name}.lock")
    try:
        with ExitStack() as stack:
            try:
                out.parent.mkdir(parents=True, exist_ok=True)
                while (locked := _hold(lock_file, out, what, stack)) is None:
                    stack.close()
            except OSError as error:
                raise LinprobeError(f"{what} {out} cannot be made ({error.strerror}); {advice(error, flag)}") from None
            stack.callback(lock_file.unlink, missing_ok=True)
            # the process that held the name before may have made it
            refuse_existing(out, what, overwrite=overwrite)
            yield locked
    finally:
        for parent in new_parents:
            with suppress(OSError):  # not empty
                parent.rmdir()


def refuse_existing(out: Path, what: str = RUN_FOLDER, *, overwrite: bool | None = None) -> None:
    """Raise UsageError if the output exists, unless `overwrite` is true; arguments as of `claimed`."""
    if out.exists() and not overwrite:
        next_step = "give another name, or remove it first"
        if overwrite is not None:
            next_step = "give another name, or --overwrite to replace it"
        raise UsageError(f"{what} {out} already exists; {next_step}")


def _refuse_inside_run(out: Path, what: str) -> None:
    """Raise UsageError if the output would lie in a run folder, which `verify` then refuses."""
    for parent in out.absolute().parents:
        if all((parent / name).is_file() for name in RUN_MARKS):
            raise UsageError(
                f"{what} {out} would lie in the run folder {parent}, which takes no other file; give another place"
            )


def _hold(lock_file: Path, out: Path, what: str, stack: ExitStack) -> bool | None:
    """Lock the file until the stack is closed: whether there are locks; None if its last holder has just removed it."""
    busy = (
        f"{what} {out} is being made by another process; nothing was read or spent here; "
        "wait for it, or give another name"
    )
    descriptor = stack.enter_context(held(lock_file, busy, create=True, error=UsageError))
    if descriptor is None:
        return False
    return True if lock_file.exists() and os.path.samestat(os.fstat(descriptor), lock_file.stat()) else None
