"""The signature of a run: who vouches for its manifest.

`manifest.json.sig` is the 64-byte Ed25519 signature (RFC 8032) of the bytes of `manifest.json`. The manifest holds the
digest of every other public file, the model card and the registry entry included, so the signature covers the run and
its release. Keys are PEM files, as `openssl` makes them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

from linprobe.atomic_files import replace_when_complete
from linprobe.errors import DataError, PrivacyError
from linprobe.runs.run_files import MANIFEST, SIGNATURE, RunFiles

LONGEST_KEY = 1 << 16  # bytes of a PEM file


def private_key(path: Path) -> Ed25519PrivateKey:
    """The key in a PEM file without a password.

    Raises:
        DataError: a missing file, or one without such a key.
    """
    key = _read(path, lambda text: load_pem_private_key(text, password=None))
    if not isinstance(key, Ed25519PrivateKey):
        raise DataError(
            f"key {path} is of another kind; allowed: an Ed25519 private key, PEM, without a password; make one with "
            "openssl genpkey -algorithm ed25519 -out key.pem"
        )
    return key


def public_key(path: Path) -> Ed25519PublicKey:
    """The public key in a PEM file.

    Raises:
        DataError: a missing file, or one without such a key.
    """
    key = _read(path, load_pem_public_key)
    if not isinstance(key, Ed25519PublicKey):
        raise DataError(
            f"key {path} is of another kind; allowed: an Ed25519 public key, PEM; derive it from the private key with "
            "openssl pkey -in key.pem -pubout -out public.pem"
        )
    return key


def _read(path: Path, load: Any) -> Any:
    """The key that `load` reads; None if the file holds none. Errors of the library may quote a key: show none."""
    try:
        with path.open("rb") as stream:  # a key may come through a pipe
            return load(stream.read(LONGEST_KEY))
    except OSError as error:
        raise DataError(f"key {path} cannot be read ({error.strerror}); give a PEM file") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):  # TypeError: a password is needed
        return None


def is_signed(files: RunFiles) -> bool:
    """Whether a run folder has a signature, valid or not."""
    return SIGNATURE in files.names


def sign(folder: Path, manifest: bytes, key: Ed25519PrivateKey) -> None:
    """Sign `manifest`, the future content of `manifest.json`, and write the signature."""
    with replace_when_complete(folder / SIGNATURE) as stream:
        stream.write(key.sign(manifest))


def check_signature(files: RunFiles, key: Ed25519PublicKey) -> None:
    """Check the signature of the manifest.

    Raises:
        PrivacyError: no signature, or not one of this manifest by this key.
    """
    if not is_signed(files):
        raise PrivacyError(
            f"run {files.folder} is not signed: it has no {SIGNATURE}; ask its owner for a run made with --sign KEY"
        )
    try:
        key.verify(files[SIGNATURE], files[MANIFEST])
    except OSError as error:
        raise PrivacyError(f"the signature of {files.folder} cannot be checked ({error}); do not trust it") from None
    except InvalidSignature:
        raise PrivacyError(
            f"{files.folder / SIGNATURE} is not the signature of {MANIFEST} by this key: the manifest was changed "
            "after it was signed, or another key signed it; do not trust this run"
        ) from None
