"""Report a lack of memory in one line. OpenBLAS hangs, or ends the process, if it cannot allocate its buffers."""

from __future__ import annotations

import errno
import mmap

from linprobe.errors import LinprobeError
from linprobe.parallel.available_memory import address_limit

RAN_OUT = "memory ran out; free some, raise the limit on it (ulimit -v), or use fewer rows at once"
START = 512 << 20  # bytes of address space for Python and the libraries
A_PROCESSOR = 96 << 20  # bytes of address space for the threads of two copies of OpenBLAS
SQUARE = 256  # rows of a matrix for which OpenBLAS needs its work space
WORDS = ("failed to map segment", "annot allocate memory", "can't allocate memory", "can't start new thread")


def check_limit() -> None:
    """Under a limit on address space, take the work space of OpenBLAS now, so that it does not fail later.

    Raises:
        LinprobeError: the limit leaves too little to start.
    """
    soft = address_limit()
    if soft is None:
        return
    from linprobe.parallel.threads import n_processors

    processors = n_processors()
    needed = START + A_PROCESSOR * processors
    try:
        mmap.mmap(-1, needed).close()
    except OSError:
        raise LinprobeError(
            f"memory is limited to {soft >> 20} MiB (ulimit -v); linprobe needs {needed >> 20} MiB beside Python to "
            f"start on {processors} processors; raise the limit"
        ) from None
    import numpy as np
    import scipy.linalg

    unit = np.eye(SQUARE)
    scipy.linalg.cholesky(scipy.linalg.blas.dgemm(1.0, unit, unit @ unit))


def is_lack(error: BaseException) -> bool:
    """Whether another library's error says that memory ran out."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    return any(word in str(error) for word in WORDS)
