"""The commands of docs/hospital.md run, in order, in an empty folder, on photographs that the page makes."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from linprobe.accounting.accountants import GAUSSIAN
from linprobe.accounting.events import grouped
from linprobe.accounting.ledger import read_ledger
from tests.conftest import new_folder
from tests.docs.commands import FENCE
from tests.hostile.officer import officer

PAGE = Path(__file__).parents[2] / "docs" / "hospital.md"
TOTAL = re.compile(r"together cost epsilon ([\d.]+) at delta 1e-05 for a person")


def test_the_week_ends_with_a_checked_model_and_a_refused_third_run(
    bash: Callable[[str], subprocess.CompletedProcess[str]], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = PAGE.read_text(encoding="utf-8")
    said = ""
    for number, match in enumerate(match for match in FENCE.finditer(text) if match[1] == "sh"):
        done = bash(match[2])
        assert done.returncode == 0, f"block {number}:\n{match[2]}\n{done.stdout}\n{done.stderr}"
        said += done.stdout + done.stderr
    assert said.count("verified\n") == 2
    first, second = (
        json.loads((tmp_path / "runs" / name / "manifest.json").read_text()) for name in ("first", "second")
    )
    for manifest in (first, second):
        assert (manifest["unit"], manifest["test_rows"]) == ("owner", "private")
        assert manifest["test_accuracy_std"] > 0
    assert f"protects   {first['n_units']} people" in text
    stated = TOTAL.findall(text)
    assert stated == TOTAL.findall(said)
    ledgers = [read_ledger(tmp_path / "runs" / name / "ledger.jsonl") for name in ("first", "second")]
    together = GAUSSIAN.epsilon(grouped([event for ledger in ledgers for event in ledger]), 1e-5)
    assert together <= float(stated[0]) <= 5
    assert "exit status 4" in said
    assert not (tmp_path / "runs" / "third").exists()
    if shutil.which("node"):
        with officer(new_folder(tmp_path_factory, "page")) as page:
            assert page.run(tmp_path / "released")["status"] == "private"
    assert "report.html" in {path.name for path in tmp_path.iterdir()}
    with (tmp_path / "labels.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == len(list((tmp_path / "partner").iterdir()))
    assert {row["label"] for row in rows} <= {"other", "naevus", "melanoma"}
