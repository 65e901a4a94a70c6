"""The paths through the code of `train` that an audit takes, and data sets in which a record's place is empty.

A path says where the rows are and whether every record's own loss is computed. Rows, blocks, products, clipping,
sampling and noise are the classes of `train`. Only the data differ.

Places are left empty by `Rows.emptied`, whatever the mask of a sample is, so that code that forgets the mask still
leaves the record out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from linprobe.data.preprocessing import Preprocessing
from linprobe.data.rows import ArrayRows, Rows, StreamedRows
from linprobe.data.sources import ArraySource
from linprobe.mechanisms.noise import WORDS_PER_BLOCK
from linprobe.options.requests import DEVICE_ROWS, HOST_ROWS
from linprobe.parallel.process_group import Group


@dataclass(frozen=True)
class Path:
    """A path through `train`.

    Attributes:
        rows: `memory`; `streamed`, read again in every pass; `two ranks`, each with its shard; or `device`.
        observed: whether every record's own loss is computed; blocks then hold all rows and the mask of the sample.
    """

    rows: str
    observed: bool

    def __str__(self) -> str:
        return f"{self.rows}, {'observed' if self.observed else 'unobserved'}"

    @property
    def n_ranks(self) -> int:
        """Number of members of the group."""
        return 2 if self.rows == "two ranks" else 1


HOST_PATHS = tuple(Path(rows, observed) for rows in HOST_ROWS for observed in (True, False))
DEVICE_PATHS = tuple(Path(rows, observed) for rows in DEVICE_ROWS for observed in (True, False))


@dataclass(frozen=True)
class Places:
    """The places of a data set, each of a row or of a person.

    Attributes:
        x, y: rows (n, n_features), and labels (n,). present: whether each place has its rows, shape (n_places,).
        bounds: rows of person u are bounds[u] to bounds[u + 1], shape (n_places + 1,); None if each row is a place.
    """

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    present: NDArray[np.bool_]
    bounds: NDArray[np.int64] | None = None

    def shard(self, group: Group) -> tuple[int, Places]:
        """The first place of a rank, and its places."""
        n = len(self.present)
        units = -(-n // WORDS_PER_BLOCK)
        ends = (units * rank // group.size * WORDS_PER_BLOCK for rank in (group.rank, group.rank + 1))
        first, stop = (min(n, end) for end in ends)
        present = self.present[first:stop]
        if self.bounds is None:
            return first, Places(self.x[first:stop], self.y[first:stop], present)
        bounds = self.bounds[first : stop + 1]
        here = slice(bounds[0], bounds[-1])
        return first, Places(self.x[here], self.y[here], present, bounds - bounds[0])


def rows_on(path: Path, places: Places, group: Group) -> Rows:
    """The private rows of a rank, as `train` holds them on that path, without those that are absent."""
    first, mine = places.shard(group)
    rows: Rows = ArrayRows(mine.x, mine.y)
    if path.rows == "streamed":
        rows = StreamedRows(ArraySource(mine.x, mine.y).blocks, len(mine.y), mine.x.shape[1], Preprocessing())
    if mine.bounds is not None:
        rows = rows.of_people(mine.bounds)
    rows = rows.emptied(mine.present)
    return rows if group.size == 1 else rows.as_shard(first, len(places.present))
