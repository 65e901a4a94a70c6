"""A signed run: what its key did not sign is refused, and nothing is signed that was not checked."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from linprobe.accounting.accountants import composed_epsilon, gaussian_figures
from linprobe.accounting.events import grouped
from linprobe.accounting.ledger import read_ledger
from linprobe.runs.manifest import guarantee_text
from tests.cli.outcomes import NOISY, Cli, result_of
from tests.cli.test_verify import _edit_manifest


def write_keys(folder: Path, name: str) -> tuple[Path, Path]:
    """A new key and its public half, as openssl writes them."""
    key, paths = Ed25519PrivateKey.generate(), (folder / f"{name}.pem", folder / f"{name}.public.pem")
    paths[0].write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    paths[1].write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return paths


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The owner's key and its public half."""
    return write_keys(tmp_path_factory.mktemp("keys"), "key")


@pytest.fixture
def signed_run(cli: Cli, features_file: Path, keys: tuple[Path, Path], tmp_path: Path) -> Path:
    """A signed run that a test may damage."""
    outcome = cli("train", features_file, *NOISY, "--steps", "5", "--sign", keys[0], "--out", "run")
    assert outcome.status == 0, outcome
    return tmp_path / "run"


def forge(run: Path, factor: float) -> None:
    """Claim noise that is `factor` times as large, consistently: in ledger, manifest and digests."""
    path, manifest = run / "ledger.jsonl", json.loads((run / "manifest.json").read_text())
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        line["noise_multiplier"] *= factor
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    releases = grouped(read_ledger(path))
    epsilon = composed_epsilon(releases, manifest["delta"], "gdp")
    _edit_manifest(
        run,
        sealed=True,
        epsilon=epsilon,
        guarantee=guarantee_text(epsilon, manifest["delta"], releases, insecure=False, unit="record"),
        noise_multiplier=lines[0]["noise_multiplier"],
        releases=[asdict(release) for release in releases],
        files={**manifest["files"], path.name: hashlib.sha256(path.read_bytes()).hexdigest()},
        **gaussian_figures(releases),
    )


def test_signed_run_is_verified_by_its_key_only(
    cli: Cli, refused: Cli, signed_run: Path, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    result = result_of(cli("verify", "run", "--public-key", keys[1], "--json"))
    assert "key.public.pem" in result["signature"]
    assert "not checked" in result_of(cli("verify", "run", "--json"))["signature"]
    _, other = write_keys(tmp_path, "other")
    refused(cli("verify", "run", "--public-key", other), 4, ["manifest.json.sig", "another key"])
    shutil.move(signed_run, tmp_path / "moved")
    assert cli("verify", "moved", "--public-key", keys[1]).status == 0


def test_run_without_a_signature_is_refused(cli: Cli, refused: Cli, trained_run: Path, keys: tuple[Path, Path]) -> None:
    refused(cli("verify", trained_run, "--public-key", keys[1]), 4, ["not signed", "manifest.json.sig", "--sign"])
    assert result_of(cli("verify", trained_run, "--json"))["signature"] is None


@pytest.mark.parametrize("sign_again", [False, True])
def test_consistent_forgery_passes_without_the_key_and_is_refused_with_it(
    cli: Cli, refused: Cli, signed_run: Path, keys: tuple[Path, Path], tmp_path: Path, sign_again: bool
) -> None:
    forge(signed_run, 10)
    assert result_of(cli("verify", "run", "--max-eps", "0.3", "--json"))["verified"] is True
    if sign_again:
        own, _ = write_keys(tmp_path, "forger")
        key = Ed25519PrivateKey.from_private_bytes(_raw(own))
        (signed_run / "manifest.json.sig").write_bytes(key.sign((signed_run / "manifest.json").read_bytes()))
    outcome = cli("verify", "run", "--public-key", keys[1])
    refused(outcome, 4, ["manifest.json.sig", "not the signature"])


def _raw(path: Path) -> bytes:
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    return load_pem_private_key(path.read_bytes(), None).private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())


@pytest.mark.parametrize("name", ["model.npz", "ledger.jsonl", "history.csv", "manifest.json", "manifest.json.sig"])
def test_every_byte_of_a_signed_run_counts(
    cli: Cli, refused: Cli, signed_run: Path, keys: tuple[Path, Path], name: str
) -> None:
    content = bytearray((signed_run / name).read_bytes())
    content[len(content) // 2] ^= 1
    (signed_run / name).write_bytes(bytes(content))
    refused(cli("verify", "run", "--public-key", keys[1]), 4, ["manifest.json" if "manifest" in name else name])


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_openssl_makes_the_keys_and_checks_the_signature(cli: Cli, features_file: Path, tmp_path: Path) -> None:
    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=tmp_path, check=True, capture_output=True)

    openssl("genpkey", "-algorithm", "ed25519", "-out", "key.pem")
    openssl("pkey", "-in", "key.pem", "-pubout", "-out", "public.pem")
    train = ["train", features_file, "--method", "only-public", "--sign", "key.pem", "--out", "run"]
    assert cli(*train).status == 0
    assert cli("verify", "run", "--public-key", "public.pem").status == 0
    signed = ["-in", "run/manifest.json", "-sigfile", "run/manifest.json.sig"]
    openssl("pkeyutl", "-verify", "-pubin", "-inkey", "public.pem", "-rawin", *signed)


BAD_KEYS: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: None,
    "no key": lambda path: path.write_text("-----BEGIN PRIVATE KEY-----\nsecret\n-----END PRIVATE KEY-----\n"),
    "the wrong half": lambda path: shutil.copy(path.parent / "whole.public.pem", path),
    "with a password": lambda path: _write_key(path, Ed25519PrivateKey.generate(), BestAvailableEncryption(b"word")),
    "of another kind": lambda path: _write_key(path, rsa.generate_private_key(65537, 1024), NoEncryption()),
}


def _write_key(path: Path, key: Ed25519PrivateKey | rsa.RSAPrivateKey, encryption: KeySerializationEncryption) -> None:
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))


@pytest.mark.parametrize("kind", BAD_KEYS)
def test_wrong_key_is_refused_before_anything_is_spent(
    cli: Cli, refused: Cli, features_file: Path, tmp_path: Path, kind: str
) -> None:
    write_keys(tmp_path, "whole")
    BAD_KEYS[kind](tmp_path / "bad.pem")
    outcome = cli("train", features_file, *NOISY, "--sign", "bad.pem", "--out", "run")
    refused(outcome, 3, ["bad.pem"])
    assert "secret" not in outcome.stderr
    assert sorted(path.suffix for path in tmp_path.iterdir() if path.name != "bad.pem") == [".pem", ".pem"]


def test_private_half_is_no_public_key(cli: Cli, refused: Cli, trained_run: Path, keys: tuple[Path, Path]) -> None:
    refused(cli("verify", trained_run, "--public-key", keys[0]), 3, ["key.pem", "openssl pkey"])
    refused(cli("verify", trained_run, "--public-key", "none.pem"), 3, ["none.pem"])


# a histogram changes the manifest


def test_histogram_of_a_signed_run_is_signed_again(
    cli: Cli, refused: Cli, signed_run: Path, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    publish = ["pdp-report", "run", "--publish-epsilon", "0.5"]
    ledger = (signed_run / "ledger.jsonl").read_bytes()
    refused(cli(*publish), 2, ["is signed", "--sign KEY"])
    other, _ = write_keys(tmp_path, "other")
    refused(cli(*publish, "--sign", other), 4, ["manifest.json.sig", "another key"])
    assert (signed_run / "ledger.jsonl").read_bytes() == ledger
    assert cli(*publish, "--sign", keys[0]).status == 0
    assert result_of(cli("verify", "run", "--public-key", keys[1], "--json"))["releases"] == 6


def test_forgery_is_not_signed_again(cli: Cli, refused: Cli, signed_run: Path, keys: tuple[Path, Path]) -> None:
    forge(signed_run, 10)
    publish = ["pdp-report", "run", "--publish-epsilon", "0.5", "--sign", keys[0]]
    refused(cli(*publish), 4, ["not the signature"])
    (signed_run / "manifest.json.sig").unlink()
    refused(cli(*publish), 2, ["not signed"])


def test_key_without_a_histogram_does_nothing(
    cli: Cli, refused: Cli, trained_run: Path, keys: tuple[Path, Path]
) -> None:
    refused(cli("pdp-report", trained_run, "--sign", keys[0]), 2, ["--sign", "--publish-epsilon"])
