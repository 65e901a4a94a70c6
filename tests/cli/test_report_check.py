"""The check inside a report: it judges the copy of the run in the page, and compares it with what the page says."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from linprobe.reporting.page import STYLE
from linprobe.runs import officer_page
from linprobe.runs.officer_page import copy_of, report_script
from tests.cli.outcomes import NOISY, Cli
from tests.conftest import mostly_nightly
from tests.hostile.kinds import SAMPLED, WORDS
from tests.hostile.officer import Officer, officer
from tests.hostile.runs import sealed

# kinds that the check judges by the same rows of the same page as others
ALIKE = {"people", "class counts", "private mean", "inherited", "signed", "refined later", "private test people"}
COPY = re.compile(r'(<template id="run-files" data-shortened="\w+">)([^<]*)<')


@pytest.fixture(scope="module")
def check(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Officer]:
    with officer(tmp_path_factory.mktemp("page"), f"<script>{report_script()}</script>".encode()) as found:
        yield found


@pytest.fixture
def report(cli: Cli, features_file: Path, tmp_path: Path) -> Path:
    """The report of a run whose manifest names no folder."""
    (tmp_path / "rows.h5").symlink_to(features_file)
    assert cli("train", "rows.h5", *NOISY, "--steps", "20", "--out", "run").status == 0
    return _reported(cli, Path("run"), tmp_path)


def _reported(cli: Cli, run: Path, folder: Path) -> Path:
    assert cli("report", run, "--html", folder / "page.html").status == 0
    return folder / "page.html"


def _copy(text: str) -> dict[str, bytes]:
    """The files that a page holds."""
    found = COPY.search(text)
    assert found is not None
    with zipfile.ZipFile(io.BytesIO(base64.b64decode(found[2]))) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_check_agrees_with_python(check: Officer, report: Path) -> None:
    found = check.ask("report", page=report)
    text = report.read_text(encoding="utf-8")
    assert (found["agree"], found["look"]) == (True, "good")
    assert found["rows"]["epsilon"] == found["rows"]["ledger"] == ["3", "same"]
    assert found["rows"]["verdict"] == ["private", "same"]
    assert found["rows"]["releases"][1] == "same"
    assert found["words"].startswith("The two programs agree. ")
    written = [line for line in found["verdict"]["stated"] if "model.npz" in line]
    assert written, "the check must say that it has no model"
    assert set(_copy(text)) == {"manifest.json", "ledger.jsonl", "history.csv", "test_figures.json"}


@pytest.mark.parametrize("kind", mostly_nightly(WORDS, lambda kind: kind not in ALIKE))
def test_every_kind_of_run_agrees(cli: Cli, check: Officer, kinds: dict[str, Path], tmp_path: Path, kind: str) -> None:
    found = check.ask("report", page=_reported(cli, kinds[kind], tmp_path))
    assert found["agree"], found
    private = kind not in ("seeded", "not private")
    assert private or found["look"] == "unsure"
    assert found["words"].startswith(f"The two programs agree{'' if private else ' that this run is not private'}")
    assert found["rows"]["verdict"] == ["private" if private else "not private", "same"]
    if "ledger" in found["rows"]:
        coarser = kind in SAMPLED or kind.startswith("selected")
        assert found["rows"]["ledger"][1] == ("in line" if coarser else "same")
        assert found["rows"]["epsilon"][1] == "same"
    else:
        assert kind in ("not private", "public rows only")


@pytest.mark.parametrize("figure", ["verdict", "epsilon", "ledger", "delta", "releases"])
def test_a_figure_that_is_not_the_copys_is_different(check: Officer, report: Path, figure: str) -> None:
    text = report.read_text(encoding="utf-8")
    report.write_text(re.sub(rf'(data-figure="{figure}">)[^<]*', r"\g<1>0.5", text), encoding="utf-8")
    found = check.ask("report", page=report)
    assert not found["agree"]
    assert [name for name, (_, same) in found["rows"].items() if same == "DIFFERENT"] == [figure]


def _with_copy(report: Path, edit: Callable[[Path], None], folder: Path) -> None:
    """Put other files into the copy of a page."""
    text = report.read_text(encoding="utf-8")
    folder.mkdir()
    for name, content in _copy(text).items():
        (folder / name).write_bytes(content)
    edit(folder)
    contents = {path.name: path.read_bytes() for path in folder.iterdir()}
    copied = copy_of(contents.pop("manifest.json"), contents)
    assert copied is not None
    report.write_text(COPY.sub(rf"\g<1>{copied.packed}<", text), encoding="utf-8")


def _fewer_lines(run: Path) -> None:
    lines = (run / "ledger.jsonl").read_text().splitlines(keepends=True)
    (run / "ledger.jsonl").write_text("".join(lines[:-1]))


EDITS: dict[str, Callable[[Path], None]] = {
    "ledger.jsonl was changed": _fewer_lines,
    "ledger.jsonl is missing": lambda run: (run / "ledger.jsonl").unlink(),
    "manifest.json was edited": lambda run: (run / "manifest.json").write_text(
        (run / "manifest.json").read_text().replace('"n_test": 120', '"n_test": 121')
    ),
    "The ledger costs epsilon 3; the manifest says 0.5": lambda run: sealed(
        run, epsilon=0.5, files=json.loads((run / "manifest.json").read_text())["files"]
    ),
}


@pytest.mark.parametrize("said", EDITS)
def test_an_edited_copy_is_refused(check: Officer, report: Path, tmp_path: Path, said: str) -> None:
    _with_copy(report, EDITS[said], tmp_path / "copy")
    assert said in check.ask("report", page=report)["refused"]


def test_the_copy_names_no_folder_and_says_that_its_digest_is_not_computed(
    cli: Cli, check: Officer, features_file: Path, tmp_path: Path
) -> None:
    assert cli("train", features_file, *NOISY, "--out", "first").status == 0
    assert cli("train", features_file, *NOISY, "--eps", "5", "--init", tmp_path / "first", "--out", "run").status == 0
    text = _reported(cli, tmp_path / "run", tmp_path).read_text(encoding="utf-8")
    copied = _copy(text)
    assert features_file.name.encode() in copied["manifest.json"]
    for content in copied.values():
        assert str(tmp_path).encode() not in content
        assert str(features_file.parent).encode() not in content
    found = check.ask("report", page=tmp_path / "page.html")
    assert found["agree"]
    assert found["rows"]["digest"][1] == "not compared"
    assert "The two programs agree, but for the digest of the manifest, which was not compared" in found["words"]
    assert not any("own digest" in line for line in found["verdict"]["proved"])


def test_without_folders_the_copy_of_the_manifest_is_exact(report: Path) -> None:
    manifest = json.loads(_copy(report.read_text(encoding="utf-8"))["manifest.json"])
    for features, shortened in (("a.h5", False), ("folder/a.h5", True)):
        text = json.dumps({**manifest, "features": features}).encode()
        copied = copy_of(text, {})
        assert copied is not None
        assert copied.shortened is shortened
        (content,) = _copy(f'<template id="run-files" data-shortened="true">{copied.packed}<').values()
        assert (content == text) is not shortened


def test_the_policy_admits_this_script_and_this_style_sheet(report: Path) -> None:
    text = report.read_text(encoding="utf-8")
    (stated,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    allowed = {name: sources for name, *sources in (part.split() for part in stated.split(";"))}
    for name, tag in (("script-src", "script"), ("style-src", "style")):
        (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert allowed[name] == [f"'sha256-{digest}'"]
    assert allowed["default-src"] == allowed["connect-src"] == allowed["trusted-types"] == ["'none'"]
    assert not re.findall(r"\beval\b|new Function|innerHTML|document\.write|fetch\(|XMLHttp|localStorage", text)
    assert STYLE in text


def test_a_long_ledger_stays_small_and_a_longer_one_is_left_out(
    cli: Cli, check: Officer, features_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (
        cli("train", features_file, "--method", "noisy-gd", "--steps", "3000", "--eps", "3", "--out", "run").status == 0
    )
    page = _reported(cli, Path("run"), tmp_path)
    found = COPY.search(page.read_text(encoding="utf-8"))
    assert found is not None
    assert len(found[2]) < 60_000 < Path("run/ledger.jsonl").stat().st_size / 6
    assert check.ask("report", page=page)["agree"]
    monkeypatch.setattr(officer_page, "MOST_IN_A_REPORT", 1000)
    assert (
        copy_of(Path("run/manifest.json").read_bytes(), {"ledger.jsonl": Path("run/ledger.jsonl").read_bytes()}) is None
    )


def test_the_signature_is_left_to_verify_html(check: Officer, report: Path) -> None:
    stated = check.ask("report", page=report)["verdict"]["stated"]
    assert any("shows no signature" in line for line in stated)
    assert not any("not signed" in line for line in stated)
