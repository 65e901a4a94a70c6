"""Direct reads of uncompressed HDF5 rows, without the HDF5 library."""

from __future__ import annotations

import os
from typing import Any, Self

import h5py
import numpy as np
from numpy.typing import NDArray


class Extents:
    """Byte ranges of an uncompressed HDF5 data set, for direct reads from the file.

    The HDF5 library would copy the rows once more, under a lock that blocks other threads.

    Args:
        descriptor: of the open file.
        chunk: rows per chunk. offsets: position of each chunk in the file, in bytes, shape (chunks,).
        width: values per row. dtype: of a value.
    """

    def __init__(
        self, descriptor: int, chunk: int, offsets: NDArray[np.int64], width: int, dtype: np.dtype[Any]
    ) -> None:
        self._descriptor, self._chunk, self._offsets = descriptor, chunk, offsets
        self._width, self._dtype = width, dtype

    @classmethod
    def of(cls, dataset: h5py.Dataset) -> Self | None:
        """Extents of a data set of shape (n_rows, n_features).

        Returns:
            None if rows are compressed, split between chunks, or not stored in this file.
        """
        file, plan = dataset.file, dataset.id.get_create_plist()
        usual = file.driver == "sec2" and not file.userblock_size and hasattr(os, "preadv")
        if not usual or plan.get_nfilters() or plan.get_external_count():
            return None
        n_rows, width = dataset.shape
        if plan.get_layout() == h5py.h5d.CHUNKED:
            chunk = dataset.chunks[0]
            offsets = np.zeros(-(-n_rows // chunk), dtype=np.int64)
            if dataset.chunks[1] != width or dataset.id.get_num_chunks() != len(offsets):
                return None

            def note(stored: Any) -> None:
                offsets[stored.chunk_offset[0] // chunk] = stored.byte_offset

            dataset.id.chunk_iter(note)
        elif plan.get_layout() == h5py.h5d.CONTIGUOUS and dataset.id.get_offset() is not None:
            chunk, offsets = n_rows, np.array([dataset.id.get_offset()])
        else:
            return None
        return cls(file.id.get_vfd_handle(), chunk, offsets, width, dataset.dtype)

    def read(self, start: int, stop: int) -> NDArray[np.floating]:
        """Rows start:stop, shape (stop - start, n_features). Raises OSError if the file is truncated."""
        x = np.empty((max(stop - start, 0), self._width), dtype=self._dtype)
        row_bytes = self._width * self._dtype.itemsize
        view = x.view(np.uint8).reshape(-1).data
        while start < stop:
            first = last = start // self._chunk
            while (last + 1) * self._chunk < stop and self._adjacent(last, row_bytes):
                last += 1
            end = min(stop, (last + 1) * self._chunk)
            offset = int(self._offsets[first]) + (start - first * self._chunk) * row_bytes
            size = (end - start) * row_bytes
            while size:
                count = os.preadv(self._descriptor, [view[:size]], offset)
                if not count:
                    raise OSError(f"the file ends at byte {offset}, inside its rows")
                view, offset, size = view[count:], offset + count, size - count
            start = end
        return x

    def _adjacent(self, chunk: int, row_bytes: int) -> bool:
        """Whether the next chunk follows directly in the file."""
        return bool(self._offsets[chunk + 1] == self._offsets[chunk] + self._chunk * row_bytes)
