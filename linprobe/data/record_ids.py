"""Record ids made from content, for rows whose source names none.

An id never depends on the place of a row: deleting a row leaves the ids of all others as they are. Public shots, which
are chosen by id, then stay the same too.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

GIVEN, FILE_NAMES, CONTENT = "given", "file names", "content"
LONGEST_ID = 4_096  # bytes of a record id: a path has at most these on Linux
DIGEST_BYTES = 16


class ContentIds:
    """Ids `PREFIX/DIGEST` of the rows of one group, in row order.

    The digest is BLAKE2b of a row's shape, type, bytes and label. Rows that are equal in all of them are numbered from
    the second on: `PREFIX/DIGEST-2`, `PREFIX/DIGEST-3`. Deleting one of them removes the last number. The digest has no
    key, so whoever knows a row can find its id: the ids of private rows are private.

    Attributes:
        names: the ids of all rows added so far.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.names: list[str] = []
        self._seen: Counter[str] = Counter()

    def add(self, rows: NDArray[Any], labels: NDArray[np.integer]) -> None:
        """Append the ids of a block of rows, shape (b, ...), with labels (b,) or (b, n_labels)."""
        contiguous = np.ascontiguousarray(rows)
        kind = f"{contiguous.shape[1:]} {contiguous.dtype.str}".encode()
        for row, label in zip(contiguous, labels.tolist(), strict=True):
            sha = hashlib.blake2b(kind, digest_size=DIGEST_BYTES)
            sha.update(row.data)
            sha.update(str(label).encode())
            name = f"{self.prefix}/{sha.hexdigest()}"
            self._seen[name] += 1
            count = self._seen[name]
            self.names.append(name if count == 1 else f"{name}-{count}")
