"""The paths through the code of `train` that an audit takes, and data sets in which a record's place is empty.

A path says where the rows are and whether every record's own loss is computed. Rows, blocks, products, clipping,
sampling and noise are the classes of `train`. Only the data differ.

A place is left empty in one of two ways. Neither depends on the mask of a sample, so that code that forgets that mask
still leaves the record out:

- Blocks of all rows keep the place: zeros, with a norm so large that the clip factor is zero too. Its gradient is zero
  in every geometry, and it has no weight in a sum around an origin.
- Blocks of samples hold no row for it; the record is not in the data.

Where a place is that of a person, a person who is absent has no rows, as in `train`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from linprobe.data.blocks import Block, Blocks, LazyBlock, Rows
from linprobe.data.preprocessing import Preprocessing
from linprobe.data.rows import ArrayRows, StreamedRows
from linprobe.data.shards import ShardRows
from linprobe.data.sources import ArraySource
from linprobe.data.unit_rows import UnitRows
from linprobe.mechanisms.noise import WORDS_PER_BLOCK
from linprobe.methods import Run
from linprobe.options.requests import DEVICE_ROWS, HOST_ROWS
from linprobe.parallel.process_group import Group

FAR = 1e150  # norm of an empty place: a clip factor of about 1e-150, which is 0 in float32; its square is finite


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


def rows_on(path: Path, places: Places, group: Group, *, sampled: bool) -> tuple[Rows, NDArray[np.bool_] | None]:
    """The private rows of a rank, as `train` holds them on that path.

    Args:
        sampled: whether steps are on Poisson samples.

    Returns: the rows, and where this rank's places are present; None if absent records have no place.
    """
    first, mine = places.shard(group)
    if mine.bounds is not None:
        people: Rows = _people_on(path, mine, mine.bounds)
        return (people if group.size == 1 else ShardRows(people, first, len(places.present))), None
    gone = sampled and not path.observed
    x, y = (mine.x[mine.present], mine.y[mine.present]) if gone else (mine.x * mine.present[:, None], mine.y)
    rows: Rows = _stored(path, x, y)
    if gone:
        rows = _Gone(rows, mine.present)
    if group.size > 1:
        rows = ShardRows(rows, first, len(places.y))
    return rows, None if gone else mine.present


def _stored(path: Path, x: NDArray[np.float32], y: NDArray[np.int64]) -> ArrayRows | StreamedRows:
    if path.rows == "streamed":
        return StreamedRows(ArraySource(x, y).blocks, len(y), x.shape[1], Preprocessing())
    return ArrayRows(x, y)


def _people_on(path: Path, places: Places, bounds: NDArray[np.int64]) -> UnitRows:
    """The people of a rank. Those who are absent have no rows."""
    sizes = np.diff(bounds)
    keep = np.repeat(places.present, sizes)
    left = np.concatenate([[0], np.cumsum(sizes * places.present)])
    return UnitRows(_stored(path, places.x[keep], places.y[keep]), left)


class _Gone(Rows):
    """Rows without the absent records. Sample masks cover all places."""

    def __init__(self, rows: Rows, present: NDArray[np.bool_]) -> None:
        self.n_rows, self.n_features = len(present), rows.n_features
        self._rows, self._present = rows, present

    def lazy_blocks(self) -> Iterator[LazyBlock]:
        """The rows that are present."""
        return self._rows.lazy_blocks()

    def sampled_blocks(self, sampled: NDArray[np.bool_]) -> Iterator[LazyBlock]:
        """The present rows of a sample; `sampled` covers all places."""
        return self._rows.sampled_blocks(sampled[self._present])


class _Emptied(Blocks):
    """Blocks of all rows in which absent places are empty, even if the method has changed their zeros."""

    def __init__(self, blocks: Blocks, present: NDArray[np.bool_]) -> None:
        self.n_rows, self.n_features = blocks.n_rows, blocks.n_features
        self.sampling_rate, self.observed = blocks.sampling_rate, blocks.observed
        self._blocks, self._present = blocks, present

    @property
    def n_local(self) -> int:
        """Number of rows in the shard of this process."""
        return self._blocks.n_local

    @property
    def first(self) -> int:
        """Index of the first row of this shard among the rows of all processes."""
        return self._blocks.first

    def _empty(self, load: LazyBlock) -> Block:
        block = load()
        absent = ~self._present[block.start : block.start + len(block.y)]
        stored = block.stored
        if stored[absent].any():
            stored = stored.copy()
            stored[absent] = 0
        return replace(block, stored=stored, norms=np.where(absent, FAR, block.norms))

    def lazy_blocks(self) -> Iterator[LazyBlock]:
        """The blocks in order."""
        return (partial(self._empty, load) for load in self._blocks.lazy_blocks())


@dataclass(frozen=True)
class AuditedRun(Run):
    """A run of `train` on data with empty places.

    Attributes:
        present: where this rank's places are present; None if absent records have no rows, or on a device, where
            zeros are enough as no method there changes rows or clips around an origin.
    """

    present: NDArray[np.bool_] | None = None

    def batch(self, rows: Rows) -> Blocks:
        """The rows of the next step, with absent places empty."""
        blocks = super().batch(rows)
        return blocks if self.present is None else _Emptied(blocks, self.present)
