"""Images to a feature file: batches through a frozen network, rows to disk, and the feature file at the end.

The batch size alone decides which images share a batch, so a resumed run, or one in several processes, makes the same
file.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader

from linprobe import errors
from linprobe.atomic_files import replace_when_complete
from linprobe.data.feature_file import UNLABELLED, FeatureFile
from linprobe.data.feature_reader import Description, keys_among, people_by_group
from linprobe.data.feature_writer import FeatureWriter
from linprobe.data.labels import APART
from linprobe.extraction.backbones import RANDOM, load_backbone, load_default
from linprobe.extraction.images import Batch, Batches
from linprobe.extraction.partial import DONE, PIXEL_KEY, SETTINGS, SKIPPED, Partial, first_change, locked
from linprobe.extraction.plan import PRECISIONS, ExtractionPlan, backbone_like, choose_device, make_plan
from linprobe.extraction.request import ExtractRequest, Recipe
from linprobe.extraction.sources.base import FOLDER_NAMES, ImageSource, OwnedMembers
from linprobe.parallel import torch_group
from linprobe.parallel.process_group import Group
from linprobe.parallel.threads import n_processors

MOST_WORKERS = 16
WRITES_AHEAD = 3
NAMED_IN_ERROR = 3


def load(batches: Batches, wanted: Sequence[int], workers: int, *, pin: bool) -> Generator[Batch, None, None]:
    """The batches numbered `wanted`, in that order, each decoded by one of the `workers`, 0 for this process."""
    try:
        yield from _loading(batches, wanted, min(workers, len(wanted)), pin)
        return
    except errors.LinprobeError as error:  # torch puts the traceback of the worker before its message
        unread = str(error).rstrip().rpartition(f"{errors.LinprobeError.__name__}: ")[2]
        # torch's frame holds the error, whose traceback holds the workers: collected as garbage, each takes 5 s to end
        traceback.clear_frames(error.__traceback__)
    raise errors.LinprobeError(unread)


def _loading(batches: Batches, wanted: Sequence[int], workers: int, pin: bool) -> Iterator[Batch]:
    start = _ignore_ctrl_c if workers else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of more workers than cores, which --workers asked for
        loader: Any = DataLoader(
            batches, batch_size=None, sampler=wanted, num_workers=workers, pin_memory=pin, worker_init_fn=start
        )
        return iter(loader)


def _ignore_ctrl_c(_: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process handles it


def _stopped(error: Exception, first: str) -> errors.LinprobeError | None:
    """The error of a worker that died at the batch from `first`, as torch raises it anywhere; None for another one."""
    if isinstance(error, RuntimeError) and not str(error).startswith("DataLoader worker"):
        return None
    reason = (str(error) or type(error).__name__).splitlines()[0]
    return errors.LinprobeError(
        f"a worker process died at the batch that begins with {first} ({reason}); give fewer --workers or a "
        "smaller --batch-size if memory ran out; the same command continues"
    )


class Network:
    """The backbone on its device, in its precision; with `shrink` it halves its batches when memory runs out."""

    def __init__(self, plan: ExtractionPlan, *, shrink: bool) -> None:
        self.device, self.shrink = plan.device, shrink
        self._normalise = plan.backbone.transform.normaliser(plan.device)
        self.precision = PRECISIONS[plan.settings["precision"]]
        self.views = plan.backbone.transform.views
        self.at_once = int(plan.settings["batch_size"]) * self.views
        model = plan.backbone.model.to(plan.device)
        self._model: Callable[[Tensor], Tensor] = model.to(memory_format=torch.channels_last)
        if self.precision == torch.float32:
            # TensorFloat-32 would change the fourth digit
            torch.backends.cudnn.allow_tf32 = False
            torch.backends.cuda.matmul.allow_tf32 = False

    def __call__(self, pixels: Tensor) -> Tensor:
        """Uint8 pixels (rows * views, channels, height, width) to float32 rows, each the mean of its image's views."""
        while True:
            try:
                parts = [self._forward(part) for part in torch.split(pixels, self.at_once)]
                features = parts[0] if len(parts) == 1 else torch.cat(parts)
                return features if self.views == 1 else features.view(-1, self.views, features.shape[1]).mean(dim=1)
            except RuntimeError as error:
                if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
                    raise
            if not self.shrink or self.at_once == 1:
                raise errors.LinprobeError(
                    f"memory of {self.device} ran out with {self.at_once} images at once; give a smaller --batch-size"
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
    progress: errors.Progress | None,
) -> float:
    if not numbers:
        return 0.0
    batches = plan.batches[group]
    workers = workers_of(request, plan.device, local_size)
    waited, writes = 0.0, deque[Future[None]]()
    first = batches.members.id(batches.rows(numbers[0])[0])
    loading = load(batches, numbers, workers, pin=plan.device.type == "cuda")
    with ThreadPoolExecutor(1) as writer, contextlib.closing(loading) as loaded:
        try:
            asked = time.perf_counter()
            for following, (number, pixels, status, keys, unread) in zip([*numbers[1:], None], loaded, strict=True):
                waited += time.perf_counter() - asked
                if unread and request.on_error == "fail":
                    raise errors.DataError(_unreadable(batches, unread))
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
        f"at least {len(unread)} image{'s' if len(unread) > 1 else ''} cannot be used: {named}{more}; convert, repair "
        "or remove, then start again with --overwrite; or give --on-error skip to go on without them"
    )


def _write(
    partial: Partial, batches: Batches, group: str, start: int, features: Tensor, status: Tensor, keys: Tensor
) -> None:
    values = features.cpu().numpy()
    with np.errstate(over="ignore"):
        rows = values.astype(partial.dtype)
    marks = status.numpy()
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=1) & (marks == DONE))
    if bad.size:
        name = batches.members.id(start + int(bad[0]))
        if np.isfinite(values[bad[0]]).all():
            raise errors.DataError(
                f"features of {name} reach {np.abs(values[bad[0]]).max():.3g}, more than {partial.dtype} holds; "
                "give --dtype float32"
            )
        raise errors.DataError(f"features of {name} are not finite; give --precision float32, or other weights")
    rows[marks != DONE] = 0
    partial.write(group, start, rows, marks, keys.numpy())


PROMPTS_AT_ONCE = 256
TEXT = "text.npy"
TIMEOUT = timedelta(days=7)  # one process may have images that take far longer than the images of another
NEXT_STEP = "start all of them again; the same command continues"


def run_extraction(
    request: ExtractRequest, recipe: Recipe | None, source: ImageSource, progress: errors.Progress
) -> dict[str, Any] | None:
    with torch_group.group(TIMEOUT, NEXT_STEP) as group:
        plan = _planned(request, recipe, source, group)
        if group.rank == 0:
            _describe(plan, progress)
        with contextlib.ExitStack() as stack:
            finished = group.rank == 0 and _begin(plan, request, stack, progress)
            if group.broadcast(np.array(finished)):
                if group.rank > 0:
                    return None
                progress.note(f"{plan.out} exists, made with the same settings")
                return _outcome(plan, 0, 0.0, 0.0)
            if plan.device.type == "cpu":
                # the number of threads changes the last digits, so every attempt uses the number of the first
                settings = json.loads((plan.folder / SETTINGS).read_text(encoding="utf-8"))
                torch.set_num_threads(int(settings["threads"]))
            return _run(plan, request, group, progress)


def _planned(request: ExtractRequest, recipe: Recipe | None, source: ImageSource, group: Group) -> ExtractionPlan:
    device = choose_device(request.device, group.local_rank)
    # rank 0 chooses the backbone; the others wait until it has downloaded the weights
    named = request.backbone if group.rank == 0 else group.broadcast_text("")
    weights = (request.weights, request.random_weights, request.arguments or {})
    if recipe is not None:
        backbone = backbone_like(recipe, request.weights)
    else:
        backbone = load_default(*weights) if named is None else load_backbone(named, *weights, request.layer)
    if group.rank == 0:
        group.broadcast_text(backbone.name if named is None else named)
    return make_plan(request, recipe, source, backbone, device)


def _begin(
    plan: ExtractionPlan, request: ExtractRequest, stack: contextlib.ExitStack, progress: errors.Progress
) -> bool:
    """Lock the partial folder until `stack` ends, and begin or resume; true if the feature file is there already."""
    with errors.writing(plan.folder, fault="cannot be made"):
        for folder in [folder for folder in plan.out.parents if not folder.exists()]:
            stack.callback(_remove_empty, folder)
        plan.out.parent.mkdir(parents=True, exist_ok=True)
        stack.enter_context(locked(plan.folder))
    if _made_already(plan, request):
        (plan.folder / SETTINGS).unlink(missing_ok=True)  # left by a run that was killed after it renamed the file
        return True
    with errors.writing(plan.folder):
        resumed = plan.partial().begin(plan.settings, overwrite=request.overwrite)
    if resumed:
        progress.note(f"resuming {plan.folder}")
    return False


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def _describe(plan: ExtractionPlan, progress: errors.Progress) -> None:
    source, backbone = plan.source, plan.backbone
    images = errors.counted_groups({name: len(members) for name, members in source.groups.items()}, "image")
    images += f", {len(source.class_names)} classes" if source.class_names else ""
    progress.note(f"{source.name}: {images}; {backbone.name}, {backbone.weights or 'no'} weights")
    for note in (*source.notes, *backbone.notes):
        progress.note(note)
    if backbone.weights == RANDOM:
        progress.note("RANDOM WEIGHTS: these features are for tests only")
    if source.class_names_from == FOLDER_NAMES:
        progress.note("the class list is the names of the folders; --classes declares another")


def _made_already(plan: ExtractionPlan, request: ExtractRequest) -> bool:
    if request.overwrite or not plan.out.exists():
        return False
    with FeatureFile(plan.out) as features, errors.reading(f"{plan.out}: its extraction", "give --overwrite"):
        made = json.loads(features.description.extraction or "{}") | {"fingerprint": features.fingerprint()}
    other = first_change(made, plan.public_settings | {"fingerprint": plan.settings["fingerprint"]})
    if other is not None:
        raise errors.UsageError(f"{plan.out} exists, made with {other}; give --overwrite, or another --out")
    return True


def _run(
    plan: ExtractionPlan, request: ExtractRequest, group: Group, progress: errors.Progress
) -> dict[str, Any] | None:
    """Compute the batches that are not done, then assemble the file. Each process takes every `size`-th batch."""
    network = Network(plan, shrink=request.batch_size is None)
    started, waited = time.perf_counter(), 0.0
    try:
        with plan.partial(group.rank) as partial:
            if group.rank == 0:
                write_text(plan)
            todo = {name: pending(batches, partial.status(name)) for name, batches in plan.batches.items()}
            left = sum(len(plan.batches[name].rows(number)) for name, numbers in todo.items() for number in numbers)
            if group.rank == 0:
                progress.start(left // group.size, "extracting")
            for name, numbers in todo.items():
                mine = [number for number in numbers if number % group.size == group.rank]
                shown_to = progress if group.rank == 0 else None
                waited += extract_group(plan, name, mine, network, partial, request, group.local_size, shown_to)
        seconds = time.perf_counter() - started
        group.barrier()
        if group.rank > 0:
            return None
        note = assemble(plan)
        if note is not None:
            progress.note(note)
    except BaseException as error:
        stopped = _after_a_stop(plan, group, progress)
        if isinstance(error, OSError) and not isinstance(error, ConnectionAbortedError):
            raise errors.LinprobeError(
                f"{plan.folder} cannot be written ({error}); {errors.advice(error)}{stopped}"
            ) from None
        raise
    return _outcome(plan, left, seconds, waited / seconds if seconds else 0.0)


def _after_a_stop(plan: ExtractionPlan, group: Group, progress: errors.Progress) -> str:
    """Note how many images are kept, or mark the folder for removal if there are none; returns the next step."""
    if group.rank > 0 or not plan.folder.is_dir():
        return ""
    done = sum(int(np.count_nonzero(np.fromfile(path, dtype=np.uint8))) for path in plan.folder.glob("*.status"))
    if not done and group.size == 1:
        (plan.folder / SETTINGS).unlink(missing_ok=True)  # `locked` removes a folder without settings
        return ""
    progress.note(f"{done} of {sum(plan.sizes.values())} images are done and kept in {plan.folder}")
    return "; the same command continues"


def pending(batches: Batches, status: NDArray[np.uint8]) -> list[int]:
    return [
        number
        for number, start in enumerate(range(0, len(status), batches.batch_size))
        if not np.isin(status[start : start + batches.batch_size], (DONE, SKIPPED)).all()
    ]


def _outcome(plan: ExtractionPlan, extracted: int, seconds: float, waiting_share: float) -> dict[str, Any]:
    with FeatureFile(plan.out) as features:
        return {
            "file": str(plan.out),
            "backbone": features.description.backbone,
            "rows": dict(features.sizes),
            "owners": people_by_group(features),
            "n_features": features.n_features,
            "n_classes": len(features.description.class_names),
            "class_names_from": features.description.class_names_from,
            "extracted": extracted,
            "seconds": seconds,
            "waiting_share": waiting_share,
            "device": plan.device.type,
            "precision": plan.settings["precision"],
            "skipped": list(features.skipped()),
        }


def text_weights(
    encode: Callable[[list[str]], Tensor], class_names: Sequence[str], templates: Sequence[str]
) -> NDArray[np.float32]:
    """Text weights, shape (n_features, n_classes): for each class the normalised mean of its normalised encodings."""
    prompts = [template.replace("{}", name) for name in class_names for template in templates]
    parts = [encode(prompts[start : start + PROMPTS_AT_ONCE]) for start in range(0, len(prompts), PROMPTS_AT_ONCE)]
    encodings = torch.nn.functional.normalize(torch.cat(parts).cpu(), dim=1)
    means = encodings.view(len(class_names), len(templates), -1).mean(dim=1)
    return np.ascontiguousarray(torch.nn.functional.normalize(means, dim=1).T.numpy(), dtype=np.float32)


def write_text(plan: ExtractionPlan) -> None:
    if plan.prompts is None or plan.backbone.encode_text is None or (plan.folder / TEXT).is_file():
        return
    weights = text_weights(plan.backbone.encode_text, *plan.prompts)
    with replace_when_complete(plan.folder / TEXT, private=True) as stream:
        np.save(stream, weights)


def assemble(plan: ExtractionPlan) -> str | None:
    """Write the feature file from the partial folder. PrivacyError: an image is private and public, by its pixels."""
    settings = plan.public_settings
    description = Description(
        class_names=plan.source.class_names,
        class_names_from=plan.source.class_names_from,
        ids_from=plan.source.ids_from,
        test_rows=settings.get("test_rows", "public"),
        test_owners=settings.get("test_owners", APART),
        backbone=plan.backbone.name,
        weights=plan.backbone.weights,
        weights_digest=settings["weights_digest"],
        preprocessing=plan.backbone.transform.text,
        source=plan.source.name,
        tensor=plan.backbone.tensor,
        extraction=json.dumps(settings, sort_keys=True),
        extraction_digest=plan.extraction_digest,
    )
    made = plan.folder / "made.h5"
    with plan.partial() as partial:
        images = {name: partial.keys(name)[:, PIXEL_KEY] for name in plan.sizes}
        private = ("train", "test") if description.private_test else ("train",)
        if "public" in images and keys_among(images["public"], [images[name] for name in private]).any():
            raise errors.PrivacyError(
                f"{plan.source.name}: some public images are private too; a private image cannot be public; "
                "take them out of the public images"
            )
        with FeatureWriter(made, description, shown_as=plan.out) as writer:
            for group, batches in plan.batches.items():
                kept = partial.status(group) == DONE
                if not kept.any():
                    raise errors.DataError(f"{plan.source.name}: no {group} image can be read; allowed: at least one")
                members, rows, dtype = batches.members, partial.rows(group), plan.dtype.type
                labels = None if group == UNLABELLED else members.labels[kept]
                owners = members.owners[kept].tolist() if isinstance(members, OwnedMembers) else None
                ids = (members.id(int(row)) for row in np.flatnonzero(kept))
                writer.write_group(group, int(kept.sum()), plan.width, rows, labels, ids, dtype, owners)
            if (plan.folder / TEXT).is_file():
                writer.write_text_weights(np.load(plan.folder / TEXT))
            skipped = [(name, reason) for _, name, reason in partial.skipped()]
            keys = {group: partial.keys(group) for group in plan.batches}
            writer.write_private_log(plan.settings["fingerprint"], skipped, keys)
    made.replace(plan.out)
    shutil.rmtree(plan.folder)
    return writer.note
