"""Every example of every help text runs, in the order of the help text, on small files with the names that it uses."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from linprobe.options.declaration import REQUESTS
from tests.cli.outcomes import Cli
from tests.extraction.samples import write_images

PEOPLE, ROWS_EACH, SPECIES = 60, 3, ("ant", "bee")
QUICK = {  # flags that only make a command faster
    "train": ["--steps", "2"],
    "tune": ["--steps", "2"],
    "compare": ["--seeds", "1", "--jobs", "1"],
    "audit": ["--runs", "12", "--canaries", "10", "--steps", "2"],
    "attack": ["--resamples", "0"],
}


def arrays(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows (count, 8) of two classes, and labels."""
    labels = np.arange(count) % 2
    return (np.eye(2, 8)[labels] + 0.3 * np.random.default_rng(seed).normal(size=(count, 8))).astype("f4"), labels


@pytest.fixture
def files(tmp_path: Path, cli: Cli) -> Path:
    """The files that examples take as given."""
    (x, y), (x_test, y_test) = arrays(PEOPLE * ROWS_EACH, 0), arrays(40, 1)
    owners = np.repeat([f"person {person}" for person in range(PEOPLE)], ROWS_EACH)
    given = {"X_test": x_test, "y_test": y_test, "class_names": np.array(SPECIES)}
    np.savez(
        tmp_path / "arrays.npz",
        X_train=x,
        y_train=y,
        X_public=x_test[:8],
        y_public=y_test[:8],
        owner_train=owners,
        **given,
    )
    for name in ("train", "test"):
        lines = [",".join(map(str, [*row, SPECIES[label]])) for row, label in zip(*arrays(20, 2), strict=True)]
        header = ",".join([*(f"f{column}" for column in range(8)), "species"])
        (tmp_path / f"{name}.csv").write_text("\n".join([header, *lines]) + "\n")
    np.savez(tmp_path / "later.npz", X_train=x + 1, y_train=y, **given)
    for name in ("later", "new"):
        assert cli("import", "later.npz", "--out", f"{name}.h5").status == 0
    key = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "key.pem").write_bytes(key)
    return tmp_path


def run_examples(cli: Cli, command: str) -> None:
    """Run the examples of a command; a redirection and a slow size are left out."""
    for example in REQUESTS[command].examples:
        words = shlex.split(example.split(" > ")[0])
        more = [] if "--help" in words else QUICK.get(command, [])
        outcome = cli(*words, *more)
        assert outcome.status == 0, f"linprobe {example}\n{outcome.stderr}"
        assert outcome.stdout


def test_examples_of_all_commands_but_extract_run(cli: Cli, files: Path) -> None:
    for command in REQUESTS:
        if command != "extract":
            run_examples(cli, command)


def test_examples_of_extract_run(cli: Cli, tmp_path: Path) -> None:
    write_images(tmp_path / "photos", {"train": 12, "test": 6})
    write_images(tmp_path / "new", {"": 2})
    first, second = REQUESTS["extract"].examples
    assert cli(*shlex.split(first)).status == 0
    trained = cli("train", "photos.h5", "--method", "noisy-gd", "--eps", "3", "--steps", "2", "--out", "runs/first")
    assert trained.status == 0, trained.stderr
    assert cli(*shlex.split(second)).status == 0


def test_every_command_has_an_example() -> None:
    for name, request in REQUESTS.items():
        assert request.examples, name
        assert all(example.split()[0] == name for example in request.examples)
