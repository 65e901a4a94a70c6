"""A signed run: what its key did not sign is refused, and nothing is signed that was not checked."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

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

from linprobe import atomic_files
from linprobe.accounting.accountants import GAUSSIAN, gaussian_figures
from linprobe.accounting.events import grouped
from linprobe.accounting.figures import rounded_up
from linprobe.accounting.ledger import read_ledger
from linprobe.runs.guarantee import guarantee_text
from tests.cli.outcomes import NOISY, PAGE_EDITS, Cli, result_of, write_sealed
from tests.cli.test_verify import _edit_manifest
from tests.conftest import copied, trained_once
from tests.made_once import made_once


def write_keys(folder: Path, name: str) -> tuple[Path, Path]:
    """A new key and its public half, as openssl writes them."""
    key, paths = Ed25519PrivateKey.generate(), (folder / f"{name}.pem", folder / f"{name}.public.pem")
    paths[0].write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    paths[1].write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return paths


@pytest.fixture(scope="module")
def keys() -> tuple[Path, Path]:
    """The owner's key and its public half. Do not change them."""
    folder = made_once("keys", lambda folder: write_keys(folder, "key"))
    return folder / "key.pem", folder / "key.public.pem"


@pytest.fixture
def signed_run(features_file: Path, keys: tuple[Path, Path], tmp_path: Path, own_books: Path) -> Path:
    """A copy of a signed run that a test may damage."""
    trained = trained_once("signed", features_file, *NOISY, "--steps", "5", "--sign", str(keys[0]))
    return copied(trained, tmp_path / "run", own_books)


def forge(run: Path, factor: float) -> None:
    """Claim noise that is `factor` times as large, consistently: in ledger, manifest and digests."""
    path, manifest = run / "ledger.jsonl", json.loads((run / "manifest.json").read_text())
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        line["noise_multiplier"] *= factor
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    releases = grouped(read_ledger(path))
    epsilon = GAUSSIAN.epsilon(releases, manifest["delta"])
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
    assert "manifest.json.sig" not in result["stated_not_checked"]
    assert "manifest.json.sig" in result_of(cli("verify", "run", "--json"))["stated_not_checked"]
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


FILES = (
    "model.npz", "ledger.jsonl", "history.csv", "test_figures.json", "config.toml", "README.md", "claim.yaml",
    "manifest.json", "manifest.json.sig",
)  # fmt: skip


@pytest.mark.parametrize("name", FILES)
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


# a run with a histogram has a manifest of its own


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
    assert result_of(cli("verify", "run.published-1", "--public-key", keys[1], "--json"))["releases"] == 6
    assert result_of(cli("verify", "run", "--public-key", keys[1], "--json"))["releases"] == 5


def test_forgery_is_not_signed_again(cli: Cli, refused: Cli, signed_run: Path, keys: tuple[Path, Path]) -> None:
    forge(signed_run, 10)
    publish = ["pdp-report", "run", "--publish-epsilon", "0.5", "--sign", keys[0]]
    refused(cli(*publish), 4, ["not the signature"])
    (signed_run / "manifest.json.sig").unlink()
    refused(cli(*publish), 2, ["not signed"])


def test_pages_of_a_signed_run_state_its_histogram(
    cli: Cli, signed_run: Path, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    before = (signed_run / "README.md").read_text()
    assert cli("pdp-report", "run", "--publish-epsilon", "0.5", "--sign", keys[0]).status == 0
    assert (signed_run / "README.md").read_text() == before
    published = tmp_path / "run.published-1"
    now = (published / "README.md").read_text()
    epsilon = rounded_up(json.loads((published / "manifest.json").read_text())["epsilon"])
    assert f"| epsilon | {epsilon} |" in now
    assert f"| epsilon | {epsilon} |" not in before
    assert "published_histogram_1.json" in now


# what a signature covers of a release


@pytest.fixture
def release(cli: Cli, signed_run: Path) -> Path:
    """A release of a signed run, made without its key."""
    outcome = cli("release", "run", "--out", "pub")
    assert outcome.status == 0, outcome
    return signed_run.with_name("pub")


def test_a_release_has_the_pages_and_the_signature_of_its_run(
    cli: Cli, release: Path, signed_run: Path, keys: tuple[Path, Path]
) -> None:
    assert {path.name for path in release.iterdir()} == {*FILES, "verify.html"}
    for name in FILES:
        assert (release / name).read_bytes() == (signed_run / name).read_bytes()
    result = result_of(cli("verify", "pub", "--public-key", keys[1], "--json"))
    assert result["not_covered"] == []


@pytest.mark.parametrize("page", ["README.md", "claim.yaml"])
@pytest.mark.parametrize("edit", PAGE_EDITS)
def test_an_edited_page_of_a_signed_release_is_refused(
    cli: Cli, refused: Cli, release: Path, keys: tuple[Path, Path], page: str, edit: str
) -> None:
    PAGE_EDITS[edit](release / page)
    refused(cli("verify", "pub", "--public-key", keys[1]), 4, [page])
    refused(cli("release", "pub", "--out", "again", "--public-key", keys[1]), 4, [page])


WORDS = ["--name", "Flower probe", "--curator", "One", "--use", "sorting", "--region", "EU", "--license", "mit"]


def test_words_of_a_publisher_need_the_key(
    cli: Cli, refused: Cli, signed_run: Path, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    refused(cli("release", "run", "--out", "pub", *WORDS), 2, ["is signed", "--name, --curator, --use", "--sign KEY"])
    other, _ = write_keys(tmp_path, "other")
    refused(cli("release", "run", "--out", "pub", *WORDS, "--sign", other), 4, ["manifest.json.sig", "another key"])
    assert not Path("pub").exists()
    made = result_of(cli("release", "run", "--out", "pub", *WORDS, "--sign", keys[0], "--json"))
    assert (made["signed"], made["files"]) == (True, sorted([*FILES, "verify.html"]))
    assert result_of(cli("verify", "pub", "--public-key", keys[1], "--json"))["not_covered"] == []
    for page in ("README.md", "claim.yaml"):
        assert all(word in Path("pub", page).read_text() for word in WORDS[1:6:2])


def test_a_release_of_a_run_that_is_not_signed_can_be_signed(
    cli: Cli, refused: Cli, trained_run: Path, keys: tuple[Path, Path]
) -> None:
    assert cli("release", trained_run, "--out", "pub", *WORDS, "--sign", keys[0]).status == 0
    assert cli("verify", "pub", "--public-key", keys[1]).status == 0
    Path("pub/claim.yaml").write_text("epsilon: 0.1\n")
    refused(cli("verify", "pub", "--public-key", keys[1]), 4, ["claim.yaml"])


def as_signed_before(run: Path, key: Path) -> None:
    """Make a signed run what linprobe 0.2.0 made: its manifest lists no pages."""
    manifest = json.loads((run / "manifest.json").read_text())
    write_sealed(run, manifest, [name for name in manifest["files"] if name not in ("README.md", "claim.yaml")])
    signing = Ed25519PrivateKey.from_private_bytes(_raw(key))
    (run / "manifest.json.sig").write_bytes(signing.sign((run / "manifest.json").read_bytes()))


def test_pages_that_an_earlier_signature_does_not_cover_are_named(
    cli: Cli, refused: Cli, release: Path, keys: tuple[Path, Path]
) -> None:
    as_signed_before(release, keys[0])
    outcome = cli("verify", "pub")
    assert (outcome.status, outcome.stdout) == (0, "verified\n")
    assert "covered by no digest and no signature: README.md, claim.yaml\n" in outcome.stderr
    assert result_of(cli("verify", "pub", "--json"))["not_covered"] == ["README.md", "claim.yaml"]
    refused(cli("verify", "pub", "--public-key", keys[1]), 4, ["README.md, claim.yaml of pub: not covered"])
    (release / "README.md").unlink()
    refused(cli("verify", "pub", "--public-key", keys[1]), 4, ["claim.yaml of pub: not covered"])
    (release / "claim.yaml").unlink()
    assert result_of(cli("verify", "pub", "--public-key", keys[1], "--json"))["not_covered"] == []


@pytest.mark.parametrize("edit", ["a folder", "a link"])
def test_a_page_that_nothing_covers_is_a_regular_file_all_the_same(
    cli: Cli, refused: Cli, release: Path, keys: tuple[Path, Path], edit: str
) -> None:
    as_signed_before(release, keys[0])
    PAGE_EDITS[edit](release / "README.md")
    refused(cli("verify", "pub"), 4, ["README.md", "regular file"])


def test_a_run_signed_by_an_earlier_version_is_released_with_its_key(
    cli: Cli, refused: Cli, signed_run: Path, keys: tuple[Path, Path]
) -> None:
    as_signed_before(signed_run, keys[0])
    refused(cli("release", "run", "--out", "pub"), 2, ["README.md and claim.yaml", "--sign KEY"])
    assert cli("release", "run", "--out", "pub", "--sign", keys[0]).status == 0
    assert result_of(cli("verify", "pub", "--public-key", keys[1], "--json"))["not_covered"] == []


def test_a_run_that_is_resumed_without_the_key_keeps_no_pages(
    cli: Cli, features_file: Path, keys: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ended when the pages were written, and the signature was not."""

    write_whole = atomic_files.write_whole

    def ends(path: Path, *given: Any, **options: Any) -> None:
        if path.name == "manifest.json.sig":
            raise KeyboardInterrupt
        write_whole(path, *given, **options)

    train = ["train", features_file, *NOISY, "--steps", "5", "--checkpoint", "0", "--out", "run"]
    with monkeypatch.context() as patch:
        patch.setattr(atomic_files, "write_whole", ends)
        assert cli(*train, "--sign", keys[0]).status == 130
    assert list(Path().glob(".run.*.partial/README.md"))
    assert cli(*train, "--resume").status == 0
    assert {path.name for path in Path("run").iterdir()} == {*FILES, "per_record.npz"} - {
        "README.md", "claim.yaml", "manifest.json.sig",
    }  # fmt: skip


def test_a_signed_run_without_privacy_has_no_pages(cli: Cli, features_file: Path, keys: tuple[Path, Path]) -> None:
    assert cli("train", features_file, "--method", "non-private", "--sign", keys[0], "--out", "run").status == 0
    assert {path.name for path in Path("run").iterdir()} == set(FILES) - {"README.md", "claim.yaml"}


def test_key_without_a_histogram_does_nothing(
    cli: Cli, refused: Cli, trained_run: Path, keys: tuple[Path, Path]
) -> None:
    refused(cli("pdp-report", trained_run, "--sign", keys[0]), 2, ["--sign", "--publish-epsilon"])
