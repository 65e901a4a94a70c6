"""Every command of README and docs runs, each page in a clean folder: `pytest -n0 tests/docs/every_command.py`.

The default suite does not collect this file, as it takes minutes; a release runs it. Pages name files that a reader
has; `make_files` makes small ones.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import textwrap
import zlib
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from linprobe.cli import run
from tests.docs.commands import GENERATED, PAGES, ROOT, commands_of
from tests.docs.test_readme import write_photos

ELSEWHERE = {
    "README.md": "test_readme.py",
    "docs/tutorial.md": "test_tutorial.py",
    "docs/hospital.md": "test_hospital_page.py",
    "docs/export.md": "test_export_page.py",
    "features/README.md": "test_feature_readme.py",
    "docs/billion-rows.md": "test_scale_page.py",
}
NOT_HERE = {
    "clip:": "weights from the internet",
    "backbone resnet50": "weights from the internet",
    "--weights mine": "weights of the reader's own",
    "fashion": "a download",
    "CIFAR10": "a download",
    "chexpert": "a download",
    "benchmarks/": "a benchmark",
    "pip install": "an installation, which .ci/run makes",
}
KILLED = "# killed; the power came back"
FEATURES = ("features", "private", "same_camera", "web", "public", "resnet", "clip", "other")
COPIES = ("f", "new", "scans")
Shell = Callable[..., subprocess.CompletedProcess[str]]


def make_files(folder: Path, page: str) -> None:
    """The files that pages take as given."""
    g = np.random.default_rng(zlib.crc32(page.encode()))  # other rows for each page, so another budget book
    names, centres = np.array(["ill", "well"]), g.normal(size=(2, 8))

    def arrays(rows: int, **more: int) -> dict[str, np.ndarray]:
        found = {"class_names": names}
        for group, count in {"train": rows, "test": 60, **more}.items():
            y = np.arange(count) % 2
            x = centres[y] + 0.4 * g.normal(size=(count, 8))
            found |= {f"X_{group}": x.astype(np.float32), f"y_{group}": y}
        return found

    for name in FEATURES:
        more = {"public": 20} if name == "public" else {}
        np.savez(folder / "arrays.npz", **arrays(20000 if "scaling" in page else 300, **more))
        assert run(["import", str(folder / "arrays.npz"), "--out", str(folder / f"{name}.h5")]) == 0
    for name in COPIES:
        if (name, page) != ("scans", "docs/people.md"):
            (folder / f"{name}.h5").write_bytes((folder / "features.h5").read_bytes())
    patients = {"patient_train": np.repeat(np.arange(100), 3), "patient_test": np.repeat(np.arange(100, 120), 3)}
    np.savez(folder / "scans.npz", **arrays(300), **patients)
    if page == "docs/people.md":
        later = {name: 1000 + owners for name, owners in patients.items()}
        np.savez(folder / "later.npz", **arrays(300), **later)
        words = ["import", str(folder / "later.npz"), "--owner-column", "patient", "--private-test"]
        assert run([*words, "--out", str(folder / "later.h5")]) == 0
    with h5py.File(folder / "clip.h5", "r+") as file:
        file["text/weights"] = centres.T.astype(np.float32)
    (folder / "shards").mkdir()
    for name in ("one", "two"):
        np.savez(folder / "arrays.npz", **arrays(300))
        assert run(["import", str(folder / "arrays.npz"), "--out", str(folder / "shards" / f"{name}.h5")]) == 0
    np.save(folder / "rows.npy", arrays(40)["X_train"])
    if page == "docs/extraction.md":
        write_photos(folder)
        shutil.copytree(folder / "photos" / "test" / "dark", folder / "new")
    (folder / "weights.json").write_text('{"ill": 1, "well": 0.05}')
    for name in ("RUN", "runs/one", "run") if page not in ("docs/people.md", "docs/run-folder.md") else ():
        words = ["train", str(folder / "features.h5"), "--method", "noisy-gd", "--eps", "3", "--steps", "5"]
        words += ["--class-counts", "yes"]  # for `predict --prior`
        assert run([*words, "--out", str(folder / name)]) == 0


@pytest.mark.parametrize("page", [page for page in PAGES if page not in (*ELSEWHERE, GENERATED)])
def test_the_commands_of_a_page_run_in_order(page: str, bash: Shell, tmp_path: Path) -> None:
    wanted = [command for command in commands_of(page) if not any(word in command for word in NOT_HERE)]
    if not wanted:
        pytest.skip("no command that runs here")
    make_files(tmp_path, page)
    for command in wanted:
        done = bash(command.replace(KILLED, "rm -r probe"), seconds=600)
        assert done.returncode == 0, f"{page}: {command}\n{done.stdout}\n{done.stderr}"


def test_pages_that_are_left_out_have_a_test() -> None:
    for page, test in ELSEWHERE.items():
        name = Path(page).name
        text = (ROOT / "tests" / "docs" / test).read_text(encoding="utf-8")
        assert name in text, f"{test} does not read {page}"
        assert re.search(r"bash\(|cli\(|load_script", textwrap.dedent(text))
