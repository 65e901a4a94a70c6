"""The frozen network on its device, and the pass of one group's images through it.

Worker processes decode, the device computes and a thread writes, all at the same time.
"""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from linprobe.errors import DataError, LinprobeError, Progress
from linprobe.extraction.images import Batch, Batches
from linprobe.extraction.partial import DONE, Partial
from linprobe.extraction.plan import PRECISIONS, ExtractionPlan
from linprobe.extraction.request import ExtractRequest
from linprobe.parallel.threads import n_processors

MOST_WORKERS = 16
WRITES_AHEAD = 3
NAMED_IN_ERROR = 3


def load(batches: Batches, wanted: Sequence[int], workers: int, *, pin: bool) -> Iterator[Batch]:
    """The batches numbered `wanted`, in that order. One worker decodes a whole batch.

    Args:
        workers: number of decoding processes; 0 decodes in this process.
        pin: use pinned memory, for faster copies to a GPU.
    Raises LinprobeError: an image could not be read for a reason outside its file. RuntimeError, ConnectionError,
    EOFError: a worker died; see `_stopped`.
    """
    loader: Any = DataLoader(
        batches,
        batch_size=None,
        sampler=wanted,
        num_workers=min(workers, len(wanted)),
        pin_memory=pin,
        worker_init_fn=_ignore_ctrl_c if workers else None,
    )
    try:
        yield from loader
    except LinprobeError as error:  # torch puts the traceback of the worker before its message
        raise LinprobeError(str(error).rstrip().rpartition(f"{LinprobeError.__name__}: ")[2]) from None


def _ignore_ctrl_c(_: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process handles it


def _stopped(error: Exception, first: str) -> LinprobeError | None:
    """The error to report for a worker that died at the batch that begins with `first`; None for another error.

    torch's signal handler raises the error of a dead worker anywhere in the main process.
    """
    if isinstance(error, RuntimeError) and not str(error).startswith("DataLoader worker"):
        return None
    reason = (str(error) or type(error).__name__).splitlines()[0]
    return LinprobeError(
        f"a worker process died at the batch that begins with {first} ({reason}); give fewer --workers or a "
        "smaller --batch-size if memory ran out; the same command continues"
    )


class Network:
    """The backbone on its device, in its precision.

    Args:
        plan: backbone, device and precision.
        shrink: on running out of memory, halve the number of views per forward pass instead of failing.
    """

    def __init__(self, plan: ExtractionPlan, *, shrink: bool) -> None:
        self.device, self.shrink = plan.device, shrink
        self._normalise = plan.backbone.transform.normaliser(plan.device)
        self.precision = PRECISIONS[plan.precision]
        self.views = plan.backbone.transform.views
        self.at_once = int(plan.settings["batch_size"]) * self.views
        model = plan.backbone.model.to(plan.device)
        self._model: Callable[[Tensor], Tensor] = model.to(memory_format=torch.channels_last)
        if plan.precision == "float32":
            # TensorFloat-32 would change the fourth digit
            torch.backends.cudnn.allow_tf32 = False
            torch.backends.cuda.matmul.allow_tf32 = False

    def __call__(self, pixels: Tensor) -> Tensor:
        """Map uint8 pixels (rows * views, channels, height, width) to float32 features (rows, n_features).

        A row is the mean of the features of the views of one image, so it is a function of this image alone. It stays
        on the device.

        Raises LinprobeError: out of memory, and shrinking is off or at one image already.
        """
        while True:
            try:
                parts = [self._forward(part) for part in torch.split(pixels, self.at_once)]
                features = parts[0] if len(parts) == 1 else torch.cat(parts)
                return features if self.views == 1 else features.view(-1, self.views, features.shape[1]).mean(dim=1)
            except RuntimeError as error:
                if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
                    raise
            if not self.shrink or self.at_once == 1:
                raise LinprobeError(
                    f"memory of {self.device} ran out with {self.at_once} images at once; give a smaller --batch-size, "
                    "or auto"
                )
            self.at_once //= 2
            if self.device.type == "cuda":
                torch.cuda.empty_cache()

    def _forward(self, pixels: Tensor) -> Tensor:
        images = self._normalise(pixels.to(self.device, non_blocking=True))
        images = images.contiguous(memory_format=torch.channels_last)
        half = self.precision != torch.float32
        with torch.inference_mode(), torch.autocast(self.device.type, self.precision, enabled=half):
            return self._model(images).float()


def extract_group(
    plan: ExtractionPlan,
    group: str,
    numbers: Sequence[int],
    network: Network,
    partial: Partial,
    request: ExtractRequest,
    local_size: int,
    progress: Progress | None,
) -> float:
    """Compute and write the batches `numbers` of one group; returns the seconds spent waiting for images.

    Args:
        local_size: number of extracting processes on this machine, which share its cores.
    Raises DataError: an unreadable image, unless `on_error` is skip, or features that do not fit the dtype on disk.
    LinprobeError: out of memory, or a worker that died.
    """
    if not numbers:
        return 0.0
    batches = plan.batches[group]
    workers = workers_of(request, plan.device, local_size)
    waited, writes = 0.0, deque[Future[None]]()
    first = batches.members.id(batches.rows(numbers[0])[0])
    with ThreadPoolExecutor(1) as writer:
        try:
            asked = time.perf_counter()
            loaded = load(batches, numbers, workers, pin=plan.device.type == "cuda")
            for following, (number, pixels, status, keys, unread) in zip([*numbers[1:], None], loaded, strict=True):
                waited += time.perf_counter() - asked
                if unread and request.on_error == "fail":
                    raise DataError(_unreadable(batches, unread))
                for row, reason in unread:
                    partial.skip(group, row, batches.members.id(row), reason)
                while len(writes) >= WRITES_AHEAD:
                    writes.popleft().result()
                start = batches.rows(number)[0]
                writes.append(writer.submit(_write, partial, batches, group, start, network(pixels), status, keys))
                if progress is not None:
                    progress.step(len(status))
                if following is not None:
                    first = batches.members.id(batches.rows(following)[0])
                asked = time.perf_counter()
            while writes:
                writes.popleft().result()
        except (RuntimeError, ConnectionError, EOFError) as error:
            stopped = _stopped(error, first)
            if stopped is None:
                raise
            raise stopped from None
        finally:
            writer.submit(partial.sync).result()
    return waited


def workers_of(request: ExtractRequest, device: torch.device, local_size: int) -> int:
    """Number of decoding processes: none on a CPU, where the network needs all cores; most of the cores with a GPU."""
    if request.workers is not None:
        return request.workers
    if device.type == "cpu":
        return 0
    return max(1, min(MOST_WORKERS, n_processors() // local_size - 1))


def _unreadable(batches: Batches, unread: Sequence[tuple[int, str]]) -> str:
    named = "; ".join(f"{batches.members.id(row)} ({reason})" for row, reason in unread[:NAMED_IN_ERROR])
    more = "" if len(unread) <= NAMED_IN_ERROR else f"; and {len(unread) - NAMED_IN_ERROR} more of this batch"
    return (
        f"{len(unread)} image{'s' if len(unread) > 1 else ''} cannot be used: {named}{more}; repair or remove, then "
        "give --overwrite; or give --on-error skip to skip them"
    )


def _write(
    partial: Partial, batches: Batches, group: str, start: int, features: Tensor, status: Tensor, keys: Tensor
) -> None:
    """Copy features to the host, convert them to the dtype on disk, check them and write them; in the writer thread."""
    values = features.cpu().numpy()
    with np.errstate(over="ignore"):
        rows = values.astype(partial.dtype)
    marks = status.numpy()
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=1) & (marks == DONE))
    if bad.size:
        name = batches.members.id(start + int(bad[0]))
        if np.isfinite(values[bad[0]]).all():
            raise DataError(
                f"features of {name} reach {np.abs(values[bad[0]]).max():.3g}, more than {partial.dtype} holds; "
                "give --dtype float32"
            )
        raise DataError(f"features of {name} are not finite; give --precision float32, or other weights")
    rows[marks != DONE] = 0
    partial.write(group, start, rows, marks, keys.numpy())
