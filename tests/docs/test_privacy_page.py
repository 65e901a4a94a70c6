"""docs/run-folder.md explains every key of a real manifest and ledger; links between pages lead somewhere."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import pytest

from linprobe.accounting.accountants import ACCOUNTANTS
from linprobe.accounting.calibrate import GRADIENT
from linprobe.accounting.events import HISTOGRAM, INHERITED, TEST_ACCURACY
from linprobe.cli import run
from linprobe.mechanisms.score_histogram import TEST_AUROC
from linprobe.methods import METHODS
from linprobe.methods.class_counts import CLASS_COUNTS
from linprobe.methods.private_mean import MEAN
from linprobe.options import DPSGDFOptions
from linprobe.runs.release_rules import SELECTION

ROOT = Path(__file__).parents[2]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "features" / "README.md"]


def _explained(page: str, heading: str) -> set[str]:
    """Names in code style in the first column of the tables under a heading."""
    section = re.split(rf"^#+ {re.escape(heading)}$", page, flags=re.MULTILINE)[1]
    section = re.split(r"^##", section, flags=re.MULTILINE)[0]
    return {
        name
        for row in re.findall(r"^\| (`[^|]*) \|", section, flags=re.MULTILINE)
        for name in re.findall(r"`([^`]+)`", row)
    }


@pytest.mark.parametrize("words", [["adamix"], ["dpsgd-f", "--accountant", "rdp"]])
def test_every_key_of_manifest_and_ledger_is_explained(tmp_path: Path, words: list[str]) -> None:
    folder = tmp_path / "first"
    assert run(["train", "--method", *words, "--eps", "3", "--steps", "2", "--out", str(folder)]) == 0
    page = (ROOT / "docs" / "run-folder.md").read_text(encoding="utf-8")
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    assert _explained(page, "manifest.json, key by key") == set(manifest)
    first_line = (folder / "ledger.jsonl").read_text(encoding="utf-8").splitlines()[0]
    assert _explained(page, "ledger.jsonl") == set(json.loads(first_line))
    assert {path.name for path in folder.iterdir()} <= _explained(page, "Files")


def test_every_purpose_of_a_release_is_explained() -> None:
    page = (ROOT / "docs" / "run-folder.md").read_text(encoding="utf-8")
    row = re.search(r"^\| `purpose` \| (.*) \|$", page, flags=re.MULTILINE)
    assert row is not None
    options = [(method, method.make_options({})) for method in METHODS.values()]
    options.append((METHODS["dpsgd-f"], DPSGDFOptions(variant="theory")))
    shares = {share.purpose for method, chosen in options for share in method.shares(chosen)}
    assert {"mean", "covariance", "radius"} <= shares
    for purpose in (GRADIENT, INHERITED, HISTOGRAM, MEAN, CLASS_COUNTS, SELECTION, TEST_ACCURACY, TEST_AUROC, *shares):
        assert f"`{purpose}`" in row[1]


def test_every_accountant_is_explained() -> None:
    page = (ROOT / "docs" / "privacy.md").read_text(encoding="utf-8")
    assert _explained(page, "Accountants") == set(ACCOUNTANTS)


@cache
def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere() -> None:
    links = [
        (page, target)
        for page in PAGES
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
        if not target.startswith("http")
    ]
    assert links
    for page, target in links:
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), f"{page}: {target} does not exist"
        assert not anchor or anchor in _anchors(file), f"{page}: {target} has no such heading"
