"""A fault that several tests plant in the product."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from linprobe.data.blocks import Block
from linprobe.gradients.unit_sums import ClippedUnits, UnitClip


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
