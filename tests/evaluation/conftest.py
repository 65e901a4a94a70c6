"""Audits of this folder have few digits of few pixels behind their canaries; `tests/cli` audits among all of them."""

from __future__ import annotations

import numpy as np
import pytest

from linprobe.data import digits
from linprobe.evaluation import audit

PIXELS, LABELS = digits._digits()


@pytest.fixture(autouse=True)
def _few_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digits, "_digits", lambda: (PIXELS[:300, ::5], LABELS[:300]))
    monkeypatch.setattr(audit, "BACKGROUND_ROWS", 60)
    monkeypatch.setattr(audit, "BACKGROUND_PEOPLE", np.resize([1, 2, 3], 30))
