"""`model.npz` of every Python: each command reads it, and neither `verify` nor its page takes another byte."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from linprobe import load_run
from tests.cli.outcomes import Cli
from tests.conftest import write_unlabelled
from tests.hostile.officer import Officer, officer
from tests.hostile.runs import sealed
from tests.npz_layouts import of_layout, with_headers

LAYOUTS = [{"earlier": earlier, "windows": windows} for earlier in (False, True) for windows in (False, True)]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Officer]:
    with officer(tmp_path_factory.mktemp("page")) as found:
        yield found


@pytest.fixture(params=LAYOUTS, ids=lambda layout: "-".join(name for name, value in layout.items() if value) or "now")
def run(request: pytest.FixtureRequest, run_copy: Path) -> Path:
    path = run_copy / "model.npz"
    path.write_bytes(of_layout(path.read_bytes(), **request.param))
    sealed(run_copy)
    return run_copy


def test_the_page_takes_it(page: Officer, run: Path) -> None:
    assert "refused" not in page.run(run)


def test_every_command_takes_it(cli: Cli, run: Path, features_file: Path, tmp_path: Path) -> None:
    rows = write_unlabelled(tmp_path / "u.h5")
    assert load_run(run).coef_.shape == (4, 10)
    for words in (
        ("verify", run),
        ("predict", run, features_file, "--out", "labels.csv"),
        ("predict", run, rows, "--out", "of_rows.csv"),
        ("export", run, "--out", "model.safetensors"),
        ("report", run, "--html", "report.html"),
        ("train", features_file, "--method", "noisy-gd", "--eps", "4", "--steps", "2", "--init", run, "--out", "next"),
        ("pdp-report", run, "--publish-epsilon", "0.5"),
        ("verify", f"{run}.published-1"),
        ("release", run, "--out", "pub"),
        ("verify", "pub"),
    ):
        outcome = cli(*words)
        assert outcome.status == 0, outcome.stderr
    assert "holds" not in cli("refine", run, rows, "--out", "refined").stderr  # the run may be too noisy to refine


def _places_of_headers(content: bytes) -> list[int]:
    """All bytes but those of the arrays, which a checksum covers."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        spans = [(one.header_offset + 30 + len(one.filename) + 20, one.file_size) for one in archive.infolist()]
    inside = {place for start, size in spans for place in range(start, start + size)}
    return [place for place in range(len(content)) if place not in inside]


def test_the_page_takes_no_other_byte(page: Officer, run: Path) -> None:
    path = run / "model.npz"
    content = path.read_bytes()
    for place in _places_of_headers(content)[::3]:
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        sealed(run)
        assert "refused" in page.run(run), place


SPELLINGS = {
    "spaces": lambda header: header[:-1] + 64 * b" " + b"\n",
    "fewer spaces": lambda header: header[:-65] + b"\n",
    "a zero before a number": lambda header: (
        header.replace(b"(10,", b"(010,").replace(b"(4,)", b"(04,)").replace(b"  \n", b" \n")
    ),
    "no comma": lambda header: header.replace(b"(4,)", b"(4)").replace(b"\n", b" \n"),
    "by column": lambda header: header.replace(b"False", b"True").replace(b"\n", b" \n"),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_an_array_has_one_header(cli: Cli, refused: Cli, page: Officer, run_copy: Path, spelling: str) -> None:
    """In an archive whose checksums fit. `by column` is another model, and one bit of the vector of biases."""

    def changed(name: str, header: bytes) -> bytes:
        return SPELLINGS[spelling](header) if name == "bias.npy" or b"(10," in header else header

    model = run_copy / "model.npz"
    model.write_bytes(with_headers(model.read_bytes(), changed))
    sealed(run_copy)
    refused(cli("verify", run_copy), 4, ["model.npz"])
    assert "refused" in page.run(run_copy)
