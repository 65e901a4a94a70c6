"""The page in a real browser: it fits a phone, prints completely, and makes no requests."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import zipfile
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest

from linprobe.reporting.page import page
from linprobe.runs.officer_page import officer_page
from tests.reporting.samples import figures_on
from tests.reporting.test_page import evidence_of

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium, chromium-browser or google-chrome on PATH")
QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # no request leaves the machine
    "--hide-scrollbars",
)

Browse = Callable[..., str]


@pytest.fixture
def browse(tmp_path: Path) -> Browse:
    """Open a file of the temporary folder in the browser with more flags; returns its output."""

    def open_file(name: str, *flags: str) -> str:
        command = [str(BROWSER), *QUIET, f"--user-data-dir={tmp_path / 'profile'}", *flags, f"file://{tmp_path / name}"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    return open_file


@pytest.fixture
def full_page(trained_run: Path, tmp_path: Path) -> Path:
    """A page with every section, many classes and long names."""
    figures = figures_on([f"class {index:03d} " + "x" * (index % 3 * 20) for index in range(102)])
    changes = {"features": "f" * 60 + ".h5", "backbone": "b" * 60}
    evidence = evidence_of(trained_run, **changes)
    text = page(replace(evidence, name="run-" + "r" * 60, test_metrics=figures))
    path = tmp_path / "page.html"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("width", [320, 360, 1200])
def test_page_fits_every_width(browse: Browse, full_page: Path, width: int) -> None:
    """A window cannot be this narrow, so the page is in a frame, and the outer page measures it."""
    measure = (
        "let d = f.contentDocument; for (const e of d.querySelectorAll('details')) e.open = true; "
        "document.title = d.documentElement.scrollWidth + ' of ' + d.documentElement.clientWidth"
    )
    frame = f'<iframe id="f" src="page.html" style="width:{width}px;height:700px;border:0" onload="{measure}"></iframe>'
    (full_page.parent / "frame.html").write_text(f"<!DOCTYPE html><title>not measured</title>{frame}")
    dumped = browse("frame.html", "--dump-dom", "--allow-file-access-from-files", "--virtual-time-budget=5000")
    found = re.search(r"<title>(\d+) of (\d+)</title>", dumped)
    assert found is not None, dumped[:500]
    assert int(found[1]) <= int(found[2]) <= width


def asked_for(log: Path) -> set[str]:
    """Addresses that a page requested, from the browser's network log; without the browser's own requests."""
    found = (event.get("params", {}) for event in json.loads(log.read_text())["events"])
    return {what["url"] for what in found if what.get("initiator", "not an origin") != "not an origin"}


def test_only_the_page_itself_is_asked_for(browse: Browse, full_page: Path) -> None:
    log = full_page.parent / "net.json"
    browse("page.html", "--dump-dom", f"--log-net-log={log}")
    assert asked_for(log) == set()
    # the log shows requests, and the page's own policy blocks an inserted image
    image = '<img src="http://127.0.0.1:9/seen">'
    text = full_page.read_text().replace("<main>", f"<main>{image}")
    full_page.write_text(text)
    browse("page.html", "--dump-dom", f"--log-net-log={log}")
    assert asked_for(log) == set()
    full_page.write_text(text.replace("Content-Security-Policy", "other"))
    browse("page.html", "--dump-dom", f"--log-net-log={log}")
    assert asked_for(log) == {"http://127.0.0.1:9/seen"}


def test_a_record_of_verify_html_has_the_run_its_digest_and_the_date(
    browse: Browse, trained_run: Path, tmp_path: Path
) -> None:
    """A page that is printed before anybody opened "Figures for your records"."""
    stream = BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for file in trained_run.iterdir():
            archive.write(file, f"run\\{file.name}")
    given = f'Uint8Array.from(atob("{b64encode(stream.getvalue()).decode()}"), (one) => one.charCodeAt(0))'
    text = officer_page().decode().replace("Content-Security-Policy", "other")
    look = f'look({{ paths: new Map([["run.zip", new File([{given}], "run.zip")]]), folders: [] }});'
    (tmp_path / "page.html").write_text(f"{text}<script>{look}</script>", encoding="utf-8")
    browse("page.html", "--print-to-pdf=page.pdf", "--no-pdf-header-footer", "--virtual-time-budget=10000")
    if shutil.which("pdftotext") is None:
        pytest.skip("no pdftotext on PATH to read the printed page")
    done = subprocess.run(
        ["pdftotext", "-layout", tmp_path / "page.pdf", "-"], capture_output=True, text=True, check=True
    )
    manifest = json.loads((trained_run / "manifest.json").read_text())
    assert re.search(r"checked\s+20\d\d-\d\d-\d\d \d\d:\d\d UTC", done.stdout)
    printed = "".join(done.stdout.split())
    assert manifest["run_id"] in printed
    assert manifest["manifest_digest"] in printed


def test_print_has_every_class_and_the_digests(browse: Browse, full_page: Path) -> None:
    browse("page.html", "--print-to-pdf=page.pdf", "--no-pdf-header-footer")
    pdf = full_page.parent / "page.pdf"
    assert pdf.read_bytes().startswith(b"%PDF")
    if shutil.which("pdftotext") is None:
        pytest.skip("no pdftotext on PATH to read the printed page")
    done = subprocess.run(["pdftotext", "-layout", pdf, "-"], capture_output=True, text=True, check=True)
    for index in range(102):
        assert f"class {index:03d}" in done.stdout
    digest = re.findall(r"[0-9a-f]{64}", full_page.read_text())[-1]
    assert digest in "".join(done.stdout.split())
