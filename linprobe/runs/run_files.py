"""The files of a run folder, by name, each opened once: what a command checks is what it uses.

Whoever can write to a folder can exchange a file at any time. A command that opened a file twice could check one
content and use another. So it takes every content from one `RunFiles`: it checks those bytes, parses them, and copies
them.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path

from linprobe.atomic_files import MOST_TEXT, read_bytes
from linprobe.errors import PrivacyError

MANIFEST, SIGNATURE, PER_RECORD = "manifest.json", "manifest.json.sig", "per_record.npz"
RUN_FILES = ("model.npz", "ledger.jsonl", "history.csv")  # of every run
MODEL, LEDGER, HISTORY = RUN_FILES
OPTIONAL_FILES = ("test_figures.json", "config.toml")  # of a run with public test rows, of one of linprobe train
TEST_FIGURES, CONFIG = OPTIONAL_FILES
PAGES = ("README.md", "claim.yaml")  # of a signed run, and of a release
CARD, CLAIM = PAGES
LONGEST_SIGNATURE = 4096  # bytes
MOST_LINES = 1 << 30  # bytes of a ledger or history: a million steps have a fifth of it
MOST_WEIGHTS = 1 << 34  # bytes
MOST_BYTES = {SIGNATURE: LONGEST_SIGNATURE, LEDGER: MOST_LINES, HISTORY: MOST_LINES, MODEL: MOST_WEIGHTS}


class RunFiles:
    """The files of one run folder. A file is read when it is first asked for, and its bytes are kept.

    `per_record.npz` is not read through this class: it may be large, and `read_per_record` opens it once itself.

    Attributes:
        folder: the path.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: dict[str, bytes | OSError] = {}

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of everything in the folder; none if there is no such folder.

        Raises:
            PrivacyError: the folder cannot be listed.
        """
        try:
            return frozenset(path.name for path in self.folder.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return frozenset()
        except OSError as error:
            raise PrivacyError(f"{self.folder} cannot be listed ({error.strerror}); make it readable") from None

    def __getitem__(self, name: str) -> bytes:
        """The content of a file.

        Raises:
            OSError: missing, unreadable, too large, or anything but a regular file.
        """
        if name not in self._read:
            try:
                self._read[name] = read_bytes(self.folder / name, MOST_BYTES.get(name, MOST_TEXT))
            except OSError as error:
                self._read[name] = error  # a file that appears later is not part of what is checked
        found = self._read[name]
        if isinstance(found, OSError):
            raise found
        return found


def digest_of(content: bytes) -> str:
    """SHA-256 of the content of a file, as the manifest lists it."""
    return hashlib.sha256(content).hexdigest()
