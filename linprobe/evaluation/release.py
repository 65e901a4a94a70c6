"""`linprobe release`: what may leave the building of a run, and nothing else."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import partial
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from linprobe.atomic_files import write_whole
from linprobe.errors import PrivacyError, UsageError, printable, writing
from linprobe.options.requests import ReleaseRequest
from linprobe.reporting.release_pages import Publisher, pages, recorded_totals
from linprobe.runs.check import check_signature, verified
from linprobe.runs.manifest import CARD, MANIFEST, PAGES, SIGNATURE, VERIFY_PAGE
from linprobe.runs.officer_page import officer_page
from linprobe.runs.run_folder import RunFolder, claimed, private_key, public_key, write_manifest

WORDS = {"name": "--name", "curators": "--curator", "use": "--use", "region": "--region", "licence": "--license"}
"""What a publisher may say, by the names of `Publisher`, and the flags."""


def _words_of(request: ReleaseRequest) -> dict[str, Any]:
    """The publisher's words that were given, by the names of `Publisher`. Raises UsageError: words not in UTF-8."""
    given = {name: getattr(request, name) for name in WORDS}
    words = {name: tuple(value) if name == "curators" else value for name, value in given.items() if value}
    for name, value in words.items():
        try:
            "".join(value).encode()
        except UnicodeEncodeError:
            raise UsageError(f"{WORDS[name]} is {value!r}; allowed: UTF-8; check the locale of the terminal") from None
    return words


def release(request: ReleaseRequest) -> tuple[dict[str, Any], str]:
    """Write a folder with the public files of a verified, private run, a model card, a registry entry, `verify.html`.

    The manifest lists the card and the entry. If the run has both, they are copied with its signature. If it lacks
    them, or the request gives a key or words of the publisher, they are written anew, and the manifest is sealed again.
    Returns facts, and a private line on what all runs on the same rows cost together.
    """
    with claimed(request.out, "release folder"):
        run, words = RunFolder(request.run), _words_of(request)
        if request.public_key is not None:
            check_signature(run, public_key(request.public_key))
        verified(run)
        if not run.manifest.private:
            raise PrivacyError(
                f"run {request.run} is {run.manifest.guarantee}; only a private run can be released; "
                "train with a private method and without --noise-seed"
            )
        listed, signed = list(run.manifest.files), SIGNATURE in run.names
        anew = CARD not in listed or bool(words) or request.sign is not None
        key = _key(request, run, words, has_pages=CARD in listed) if anew else None
        names = [name for name in listed if name not in PAGES] if anew else [*listed, MANIFEST, *[SIGNATURE] * signed]
        copied = {name: run[name] for name in names}
        unfinished = request.out.with_name(f".{request.out.name}.{secrets.token_hex(4)}.partial")
        try:
            with writing(f"release folder {request.out}"):
                unfinished.mkdir()
                for name, content in {**copied, VERIFY_PAGE: officer_page()}.items():
                    write_whole(unfinished / name, content)
                if anew:
                    words = {"name": printable(request.out.resolve().name), **words}
                    total, _ = recorded_totals(run.manifest)
                    publisher = Publisher(**words, published=datetime.now(UTC).date().isoformat(), total=total)
                    make = partial(pages, publisher=publisher, signed=key is not None)
                    write_manifest(unfinished, run.manifest, copied, key, make)
                names = sorted(path.name for path in unfinished.iterdir())
                unfinished.rename(request.out)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    facts = {
        "release": str(request.out),
        "files": names,
        "run_id": run.manifest.book_id,
        "epsilon": run.manifest.epsilon,
        "delta": run.manifest.delta,
        "signed": SIGNATURE in names,
    }
    return facts, recorded_totals(run.manifest)[1]


def _key(request: ReleaseRequest, run: RunFolder, words: Iterable[str], *, has_pages: bool) -> Ed25519PrivateKey | None:
    """The key for a manifest that lists new pages; None for a run without a signature, if no key is given."""
    signed = SIGNATURE in run.names
    if request.sign is not None:
        key = private_key(request.sign)
        if signed:
            check_signature(run, key.public_key())
        return key
    if signed and has_pages:
        given = ", ".join(WORDS[word] for word in words)
        raise UsageError(
            f"run {request.run} is signed, and {given} would change pages that its signature covers; give --sign KEY "
            f"with the key that signed it, or leave out {given}"
        )
    if signed:
        raise UsageError(
            f"run {request.run} was signed by a version whose signature covers no {' and '.join(PAGES)}; give --sign "
            "KEY with the key that signed it"
        )
    return None
