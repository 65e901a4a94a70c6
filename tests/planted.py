"""Faults that several tests plant in the product, or in the system under it."""

from __future__ import annotations

import errno
import fcntl
import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from linprobe.data.blocks import Block
from linprobe.gradients.clipped_sum import ClippedUnits, UnitClip


def no_locks(patch: pytest.MonkeyPatch, number: int = errno.ENOLCK) -> None:
    """The file system has no locks, as some network file systems."""

    def flock(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    patch.setattr("fcntl.flock", flock)


def locks_of_nfs(patch: pytest.MonkeyPatch) -> None:
    """The file system locks what is open for writing, and no folder, as NFS under Linux."""
    real = fcntl.flock

    def flock(opened: Any, operation: int) -> None:
        if fcntl.fcntl(opened, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        real(opened, operation)

    patch.setattr("fcntl.flock", flock)


def clip_by_row(patch: pytest.MonkeyPatch) -> None:
    """Gradients of rows are clipped, and people may have many."""
    add = UnitClip.add

    def by_row(self: UnitClip, block: Block, total: Any) -> ClippedUnits:
        before = total.total.copy()
        of_people = add(self, block, total)
        total.total[:] = before
        sampled = None if block.sampled is None else np.repeat(block.sampled, np.diff(block.bounds))
        add(self, replace(block, bounds=np.arange(len(block.y) + 1), pairs=None, sampled=sampled), total)
        return of_people

    patch.setattr(UnitClip, "add", by_row)
