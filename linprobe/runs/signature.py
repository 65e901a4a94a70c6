"""The signature of a run: who vouches for its manifest.

`manifest.json.sig` is the 64-byte Ed25519 signature (RFC 8032) of the bytes of `manifest.json`, which holds the digest
of every other public file, so the signature covers the run and its release. Keys are PEM files, as of `openssl`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

from linprobe.atomic_files import write_whole
from linprobe.errors import DataError, Progress
from linprobe.runs.manifest import SIGNATURE

LONGEST_KEY = 1 << 16  # bytes of a PEM file
LONGEST_SIGNATURE = 4096  # bytes


def private_key(path: Path, progress: Progress | None = None) -> Ed25519PrivateKey:
    """The key in a PEM file without a password; a note if others can read it. Raises DataError: no file or such key."""
    key = _read(path, lambda text: load_pem_private_key(text, password=None))
    if not isinstance(key, Ed25519PrivateKey):
        raise DataError(
            f"key {path} is of another kind; allowed: an Ed25519 private key, PEM, without a password; make one with "
            "openssl genpkey -algorithm ed25519 -out key.pem"
        )
    if progress is not None and os.name == "posix" and path.stat().st_mode & 0o077:
        progress.note(f"others can read the private key {path}, and sign in your name; chmod 600 {path}")
    return key


def public_key(path: Path) -> Ed25519PublicKey:
    """The public key in a PEM file. Raises DataError: a missing file, or one without such a key."""
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


def sign(folder: Path, manifest: bytes, key: Ed25519PrivateKey) -> None:
    """Sign `manifest`, the future content of `manifest.json`, and write the signature."""
    write_whole(folder / SIGNATURE, key.sign(manifest))
