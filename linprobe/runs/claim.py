"""The claim on a run folder's name. Only the process that holds it reads private rows and makes the folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from linprobe.atomic_files import held
from linprobe.errors import LinprobeError, UsageError, advice


@contextmanager
def claimed(out: Path) -> Iterator[None]:
    """Hold the name of a run folder that does not exist yet, by a lock on `.NAME.lock` beside it.

    The system releases the lock of a killed process, so a lock file that was left behind blocks nobody. Parent
    folders are made, and removed again if they stay empty.

    Raises:
        UsageError: the folder exists, or another process holds the name. LinprobeError: the place is not writable.
    """
    refuse_existing(out)
    new_parents = [parent for parent in out.parents if not parent.exists()]
    lock_file = out.with_name(f".{out.name}.lock")
    try:
        with ExitStack() as stack:
            try:
                out.parent.mkdir(parents=True, exist_ok=True)
                while not _hold(lock_file, out, stack):
                    stack.close()
            except OSError as error:
                raise LinprobeError(f"run folder {out} cannot be made ({error.strerror}); {advice(error)}") from None
            stack.callback(lock_file.unlink, missing_ok=True)
            refuse_existing(out)  # the process that held the name before may have made it
            yield
    finally:
        for parent in new_parents:
            with suppress(OSError):  # not empty
                parent.rmdir()


def refuse_existing(out: Path) -> None:
    """Raise UsageError if the run folder exists."""
    if out.exists():
        raise UsageError(f"run folder {out} already exists; give --out another name, or remove it first")


def _hold(lock_file: Path, out: Path, stack: ExitStack) -> bool:
    """Lock the file until the stack is closed; false if its last holder removed it in the meantime."""
    busy = (
        f"run folder {out} is being made by another process; nothing was read or spent here; "
        "wait for it, or give --out another name"
    )
    descriptor = stack.enter_context(held(lock_file, busy, create=True, error=UsageError))
    return descriptor is None or (lock_file.exists() and os.path.samestat(os.fstat(descriptor), lock_file.stat()))
