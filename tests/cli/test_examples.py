"""Every example of every help text runs on small data, in a folder with the files that it names."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from linprobe.cli import program, run
from linprobe.options.declaration import REQUESTS
from tests.cli.outcomes import Cli

QUICKER = {  # further words by command or example, as examples show defaults
    "attack runs/first --lira --shadows 8": ["--jobs", "1"],
    "audit": ["--runs", "12", "--canaries", "10", "--steps", "2"],
    "compare": ["--seeds", "1", "--jobs", "1"],
    "plan": ["--q", "0.5,1", "--accountant", "rdp"],
}
COMMANDS = program().commands
SHOWN = [(command, example) for command in COMMANDS for example in REQUESTS[command].examples]


def test_every_command_has_an_example() -> None:
    assert set(REQUESTS) == set(COMMANDS)
    assert all(
        one.examples and all(example.split()[0] == name for example in one.examples) for name, one in REQUESTS.items()
    )


def _images(folder: Path, g: np.random.Generator) -> None:
    folder.mkdir(parents=True)
    for number in range(6):
        pixels = g.integers(0, 256, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{folder.parent.name}{folder.name}{number}.png")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Arrays, tables, feature files with owners, a run on one of them, and the result of an attack on the run."""
    folder, g = tmp_path_factory.mktemp("examples"), np.random.default_rng(7)
    arrays: dict[str, Any] = {"class_names": np.array(["setosa", "virginica"])}
    for group, count in {"train": 240, "test": 60, "public": 12}.items():
        labels = np.arange(count) % 2
        arrays |= {f"X_{group}": (g.normal(size=(count, 6)) + labels[:, None]).astype(np.float32), f"y_{group}": labels}
        with (folder / f"{group}.csv").open("w") as stream:
            stream.write("a,b,species\n")
            stream.writelines(f"{g.normal()},{g.normal()},{('setosa', 'virginica')[label]}\n" for label in labels)
    np.savez(folder / "arrays.npz", **arrays)
    np.savez(folder / "owned.npz", **arrays, owner_train=np.arange(240) // 2)
    for name, source in {"features": "arrays", "later": "arrays", "new": "arrays", "patients": "owned"}.items():
        assert run(["import", str(folder / f"{source}.npz"), "--out", str(folder / f"{name}.h5")]) == 0
    words = ["--method", "noisy-gd", "--eps", "3", "--steps", "3", "--out", str(folder / "runs" / "first")]
    assert run(["train", str(folder / "features.h5"), *words]) == 0
    attacked = ["--resamples", "0", "--out", str(folder / "attack.json")]
    assert run(["attack", str(folder / "runs" / "first"), *attacked]) == 0
    return folder


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of images, and a run on features of one of them."""
    folder, g = tmp_path_factory.mktemp("photographs"), np.random.default_rng(8)
    for group in ("train", "test"):
        for name in ("cat", "dog"):
            _images(folder / "photos" / group / name, g)
    _images(folder / "new" / "unlabelled", g)
    features = str(folder / "extracted.h5")
    assert run(["extract", str(folder / "photos"), "--backbone", "scattering", "--out", features]) == 0
    words = ["--method", "noisy-gd", "--eps", "3", "--steps", "3", "--out", str(folder / "runs" / "first")]
    assert run(["train", features, *words]) == 0
    return folder


@pytest.mark.parametrize(("command", "example"), SHOWN, ids=[example for _, example in SHOWN])
def test_an_example_runs(command: str, example: str, cli: Cli, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    prepared: Path = request.getfixturevalue("photographs" if command == "extract" else "files")
    words = shlex.split(example.split(" > ")[0])
    made = [tmp_path / words[place + 1] for place, word in enumerate(words) if word in ("--out", "--html")]
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    for path in made:
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
    outcome = cli(*words, *QUICKER.get(example, QUICKER.get(command, ())))
    assert outcome.status == 0, outcome.stderr
    assert outcome.stdout
    assert "--dry-run" in words or all(path.exists() for path in made)
