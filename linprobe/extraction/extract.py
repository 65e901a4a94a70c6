"""The extraction loop: batches of images through a frozen network, rows to disk, and the feature file at the end.

Workers decode, the device computes and a thread writes, at the same time. Which rows share a batch depends on the batch
size alone, so that a resumed run, or one on several processes, gives the same file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from linprobe.data.feature_file import Description, FeatureFile, FeatureWriter, common_keys, is_hdf5
from linprobe.data.public_shots import id_hash
from linprobe.errors import DataError, LinprobeError, PrivacyError, UsageError, first_line
from linprobe.extraction.backbones import RANDOM, Backbone, load_backbone
from linprobe.extraction.decoding import CONVERSIONS
from linprobe.extraction.images import FOLDER_NAMES, ImageSource, Members, open_source
from linprobe.extraction.loading import Batches, first_size, load, row_ids, worker_died
from linprobe.extraction.partial import CONVERTED, DONE, PENDING, SETTINGS, Lock, Partial, outcome, shown
from linprobe.extraction.processes import Processes
from linprobe.extraction.request import ExtractOutcome, ExtractRequest, Progress
from linprobe.extraction.text import DEFAULT_TEMPLATES, text_weights

DTYPES = {"float16": np.float16, "float32": np.float32}
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
BATCH_ON_GPU, BATCH_ON_CPU = 512, 8  # on a CPU larger batches are slower: see benchmarks/extraction
MOST_WORKERS = 16
WRITES_AHEAD = 3
NAMED_IN_ERROR = 3
TEXT = "text.npy"
TEMPLATE_SETS = ("openai-80", "simple-7")


def extract(request: ExtractRequest, progress: Progress) -> ExtractOutcome | None:
    """Make the feature file that `request` describes, going on where an interrupted run stopped.

    Returns:
        What was done; None in a process that is not the first of several.

    Raises:
        UsageError: an option, or an unfinished run with other settings. DataError: images or weights. PrivacyError:
        private images would become public or several records. LinprobeError: memory, disk, a silent worker.
    """
    _check(request)
    with Processes() as processes:
        device = _device(request.device, processes.local_rank)
        if not processes.first:
            processes.wait()  # the first one fetches what has to be fetched
        source = open_source(
            request.source,
            classes=None if request.classes is None else read_lines(request.classes, "class list", "one class name"),
            test_fraction=request.test_fraction,
            root=request.root,
            download=request.download and processes.first,
            public=request.public,
        )
        if request.augment_views and "public" not in source.groups:
            raise PrivacyError(
                f"augment views is {request.augment_views} and {source.name} has no public images; a private image "
                "stays one record; give --public FOLDER, or leave out --augment-views"
            )
        backbone = load_backbone(request.backbone, request.weights, request.random_weights, request.arguments)
        if processes.first:
            processes.wait()
        plan = _plan(request, source, backbone, device)
        if processes.first:
            _tell(source, backbone, progress)
        with contextlib.ExitStack() as stack:
            finished = False
            if processes.first:
                try:
                    if not plan.out.parent.is_dir():
                        plan.out.parent.mkdir(parents=True)
                        stack.callback(_remove_empty, plan.out.parent)
                    stack.enter_context(Lock(plan.folder))
                except OSError as error:
                    raise UsageError(f"{plan.folder} cannot be made ({error.strerror}); give another --out") from None
                finished = _finished(plan, request)
                if not finished and Partial.begin(
                    plan.folder, plan.settings, plan.sizes, plan.width, plan.dtype, overwrite=request.overwrite
                ):
                    progress.note(f"going on with {plan.folder}")
            if processes.told(finished):
                if not processes.first:
                    return None
                progress.note(f"{plan.out} is there already, made with the same settings")
                return _outcome(plan, 0, 0.0, 0.0)
            _same_threads(plan.folder, device)
            return _run(plan, request, processes, progress)


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def _same_threads(folder: Path, device: torch.device) -> None:
    """On a CPU the last digits depend on the number of threads, so an extraction keeps the one it was begun with."""
    if device.type == "cpu":
        torch.set_num_threads(int(json.loads((folder / SETTINGS).read_text(encoding="utf-8"))["threads"]))


def _check(request: ExtractRequest) -> None:
    """Refuse what is no value of an option."""
    choices = (
        ("dtype", request.dtype, tuple(DTYPES)),
        ("precision", request.precision, ("auto", *PRECISIONS)),
        ("on error", request.on_error, ("fail", "skip")),
    )
    for name, value, allowed in choices:
        if value not in allowed:
            raise UsageError(f"{name} is {value!r}; allowed: {', '.join(allowed)}")
    ranges = (
        ("batch size", request.batch_size, 1, 1 << 16),
        ("workers", request.workers, 0, 1024),
        ("augment views", request.augment_views, 0, 1024),
    )
    for name, count, low, high in ranges:
        if count is not None and not low <= count <= high:
            raise UsageError(f"{name} is {count}; allowed: whole numbers from {low} to {high}")
    if not 0 < request.timeout <= 1e6:
        raise UsageError(f"timeout is {request.timeout}; allowed: seconds above 0, at most a million")
    if request.out is not None and request.out.is_dir():
        raise UsageError(f"feature file {request.out} is a folder; give --out a file name")
    if request.out is None:
        return
    if not request.out.parent.is_dir():
        raise UsageError(f"folder {request.out.parent} does not exist; make it, or give --out another place")
    for what, path in (("the images", request.source), ("the weights", request.weights)):
        if path is not None and request.out.resolve() == Path(path).resolve():
            raise UsageError(f"feature file {request.out} would replace {what}; give --out another name")
    if request.overwrite and request.out.exists() and not is_hdf5(request.out):
        raise UsageError(f"{request.out} is no feature file, and --overwrite would replace it; give --out another name")


def read_lines(path: Path, what: str, one: str) -> list[str]:
    """The lines of a text file that are not blank."""
    try:
        if path.exists() and not path.is_file():
            raise DataError(f"{what} {path} is no file; give {one} a line in a text file")
        lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{what} {path} cannot be read ({error}); give {one} a line") from None
    if not lines:
        raise DataError(f"{what} {path} is empty; give {one} a line")
    return lines


def _device(wanted: str, local_rank: int) -> torch.device:
    found = ["cpu"]
    if torch.cuda.is_available():
        found = ["cuda", "cpu"]
    elif torch.backends.mps.is_available():
        found = ["mps", "cpu"]
    try:
        device = torch.device(found[0] if wanted == "auto" else wanted)
    except RuntimeError:
        raise UsageError(f"device is {wanted!r}; allowed here: auto, {', '.join(found)}") from None
    if device.type not in found or (device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()):
        raise UsageError(f"device is {wanted!r}, which torch does not find; allowed here: auto, {', '.join(found)}")
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", local_rank % torch.cuda.device_count())
    return device


@dataclass(frozen=True)
class Plan:
    """Everything that is settled before the first image: where, what and how. `settings` decides about resuming."""

    out: Path
    source: ImageSource
    backbone: Backbone
    batches: dict[str, Batches]
    sizes: dict[str, int]
    width: int
    dtype: np.dtype[Any]
    device: torch.device
    precision: str
    prompts: tuple[tuple[str, ...], tuple[str, ...]] | None
    settings: dict[str, Any]

    @property
    def folder(self) -> Path:
        """Where the unfinished extraction is kept."""
        return self.out.with_name(f"{self.out.name}.partial")


def _plan(request: ExtractRequest, source: ImageSource, backbone: Backbone, device: torch.device) -> Plan:
    transform = backbone.transform.overridden(
        request.resize, request.crop, request.mean, request.std, request.interpolation
    )
    backbone = replace(backbone, transform=transform)
    precision = request.precision
    if precision == "auto":
        precision = "bfloat16" if device.type == "cuda" else "float32"
    batch_size = request.batch_size or (BATCH_ON_GPU if device.type == "cuda" else BATCH_ON_CPU)
    size = transform.output_size
    if size is None:
        # the test images are public; a private one must not decide
        size = first_size(Batches(source.groups["test"], transform, 1, (0, 0)))
        if size is None:
            raise DataError(f"{source.name}: no test image can be read; allowed: at least one whole image")
    views = {group: 1 + request.augment_views if group == "public" else 1 for group in source.groups}
    batches = {
        group: Batches(members, transform, batch_size, size, views[group]) for group, members in source.groups.items()
    }
    sizes = {group: part.n_rows for group, part in batches.items()}
    for group, members in source.groups.items():
        _refuse_repeated_ids(group, members)
    width = _width(backbone, size)
    prompts = _prompts(request, source, backbone)
    out = request.out or Path("features") / f"{Path(source.name).stem}-{_file_name(backbone.name)}.h5"
    settings = {
        "backbone": backbone.name,
        "weights": backbone.weights,
        "weights_digest": backbone.weights_digest(),
        "arguments": backbone.arguments,
        "tensor": backbone.tensor,
        "transform": json.loads(transform.text),
        "image_size": list(size),
        "source": source.name,
        "images": sizes,
        "fingerprint": _fingerprint(source),
        "classes": list(source.class_names),
        "prompts": None if prompts is None else [list(part) for part in prompts],
        "augment_views": request.augment_views,
        "device": device.type,
        "precision": precision,
        "batch_size": batch_size,
        "compile": request.compile,
        "dtype": request.dtype,
        "torch": torch.__version__,
    }
    dtype = np.dtype(DTYPES[request.dtype])
    return Plan(out, source, backbone, batches, sizes, width, dtype, device, precision, prompts, settings)


def _refuse_repeated_ids(group: str, members: Members) -> None:
    hashes = np.fromiter((id_hash(members.id(row), 0) for row in range(len(members))), dtype=np.uint64)
    _, first, counts = np.unique(hashes, return_index=True, return_counts=True)
    if (counts > 1).any():
        name = members.id(int(first[np.argmax(counts > 1)]))
        raise DataError(f"{group} has {int((counts > 1).sum())} repeated ids, first {name!r}; a record has one; rename")


def _file_name(backbone: str) -> str:
    return "".join(letter if letter.isalnum() or letter in ".-_" else "-" for letter in backbone)


def _fingerprint(source: ImageSource) -> str:
    sha = hashlib.sha256()
    for group, members in source.groups.items():
        sha.update(f"{group}\0{members.fingerprint()}\0".encode())
    return sha.hexdigest()


def _width(backbone: Backbone, size: tuple[int, int]) -> int:
    """Features a row, found by one black image."""
    image = torch.zeros((1, len(backbone.transform.mean), *size))
    try:
        with torch.inference_mode():
            features = backbone.model(image)
    except (RuntimeError, AssertionError, ValueError) as error:
        reason = first_line(error)
        raise UsageError(
            f"backbone {backbone.name} cannot take images of {size[0]} x {size[1]} pixels ({reason}); "
            "change --resize, --crop or --backbone-arg"
        ) from None
    if not isinstance(features, Tensor) or features.ndim != 2:
        shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise UsageError(f"backbone {backbone.name} gives {shape} for one image; allowed: one vector; name another")
    return int(features.shape[1])


def _prompts(
    request: ExtractRequest, source: ImageSource, backbone: Backbone
) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Class names as prompts use them, and templates; None for a network without text tower."""
    if backbone.encode_text is None:
        if request.class_names is not None or request.templates is not None:
            raise UsageError(f"backbone {backbone.name} has no text tower; leave out --class-names and --templates")
        return None
    names = source.class_names
    if request.class_names is not None:
        names = tuple(read_lines(request.class_names, "list of class names", "one class name"))
        if len(names) != len(source.class_names):
            raise DataError(
                f"{request.class_names} lists {len(names)} class names; allowed: {len(source.class_names)}, one for "
                "each class in label order"
            )
    elif source.class_names_from == FOLDER_NAMES:
        names = tuple(name.replace("_", " ") for name in names)
    return names, _templates(request.templates)


def _templates(wanted: str | None) -> tuple[str, ...]:
    if wanted is None:
        return DEFAULT_TEMPLATES
    if wanted in TEMPLATE_SETS:
        import open_clip

        kept = open_clip.OPENAI_IMAGENET_TEMPLATES if wanted == "openai-80" else open_clip.SIMPLE_IMAGENET_TEMPLATES
        return tuple(template("{}") for template in kept)
    path = Path(wanted)
    if not path.is_file():
        raise UsageError(f"templates is {wanted!r}; allowed: {', '.join(TEMPLATE_SETS)}, or a file with one a line")
    lines = read_lines(path, "template file", "one template")
    for line in lines:
        if "{}" not in line:
            raise DataError(f"template {line!r} in {path} has no {{}} for the class name; put one in")
    return tuple(lines)


def _tell(source: ImageSource, backbone: Backbone, progress: Progress) -> None:
    images = ", ".join(f"{len(members)} {group}" for group, members in source.groups.items())
    progress.note(
        f"{source.name}: {images} images, {len(source.class_names)} classes; {backbone.name}, "
        f"{backbone.weights or 'no'} weights"
    )
    for note in backbone.notes:
        progress.note(note)
    if backbone.weights == RANDOM:
        progress.note("RANDOM WEIGHTS: these features are for tests only")
    if source.class_names_from == FOLDER_NAMES:
        progress.note("the class list is the names of the folders; --classes declares another")
    if source.left_out:
        progress.note(f"{source.left_out} public images of classes that are not declared are left out")


def _finished(plan: Plan, request: ExtractRequest) -> bool:
    """Whether the file is there and was made with these settings; with `--overwrite` it is made again."""
    if request.overwrite or not plan.out.exists():
        return False
    with FeatureFile(plan.out) as features:
        made = json.loads(features.description.extraction or "{}") | {"fingerprint": features.fingerprint()}
    wanted = json.loads(json.dumps(_stored(plan.settings) | {"fingerprint": plan.settings["fingerprint"]}))
    for name, value in wanted.items():
        if made.get(name) != value:
            raise UsageError(
                f"{plan.out} is there already, made with {name} {shown(made.get(name))} where this run has "
                f"{shown(value)}; give --overwrite, or another --out"
            )
    (plan.folder / SETTINGS).unlink(missing_ok=True)  # of a run that was killed after its last step
    return True


def _stored(settings: dict[str, Any]) -> dict[str, Any]:
    """What of the settings the file says openly: not the images' fingerprint, and not how many there were."""
    return {name: value for name, value in settings.items() if name not in ("fingerprint", "images")}


def _run(plan: Plan, request: ExtractRequest, processes: Processes, progress: Progress) -> ExtractOutcome | None:
    """The pass over the images, and the file."""
    model = Network(plan, compiled=request.compile, shrink=request.batch_size is None)
    started, waited = time.perf_counter(), 0.0
    try:
        with Partial(plan.folder, plan.sizes, plan.width, plan.dtype, processes.rank) as partial:
            if plan.prompts is not None and processes.first and not (plan.folder / TEXT).is_file():
                _write_text(plan)
            todo = {group: _pending(batches, partial.status(group)) for group, batches in plan.batches.items()}
            left = sum(_n_rows(plan.batches[group], numbers) for group, numbers in todo.items())
            if processes.first:
                progress.start(left // processes.count, "extracting")
            for group, numbers in todo.items():
                mine = [number for number in numbers if number % processes.count == processes.rank]
                waited += _pass(plan, group, mine, model, partial, request, progress if processes.first else None)
        seconds = time.perf_counter() - started
        processes.wait()
        if not processes.first:
            return None
        _assemble(plan)
    except BaseException as error:
        stopped = _after_a_stop(plan, processes, progress)
        if isinstance(error, OSError) and not isinstance(error, LinprobeError):
            raise LinprobeError(f"{plan.folder} cannot be written ({error}); free some space{stopped}") from None
        raise
    return _outcome(plan, left, seconds, waited / seconds if seconds else 0.0)


def _after_a_stop(plan: Plan, processes: Processes, progress: Progress) -> str:
    """Say what is kept, or remove a folder in which nothing was done yet."""
    if not processes.first or not plan.folder.is_dir():
        return ""
    done = sum(int(np.count_nonzero(np.fromfile(path, dtype=np.uint8))) for path in plan.folder.glob("*.status"))
    if not done and processes.count == 1:
        (plan.folder / SETTINGS).unlink(missing_ok=True)  # the lock removes the folder
        return ""
    progress.note(f"{done} of {sum(plan.sizes.values())} images are done and kept in {plan.folder}")
    return "; the same command continues"


def _n_rows(batches: Batches, numbers: Sequence[int]) -> int:
    short = batches.n_rows - (len(batches) - 1) * batches.batch_size
    return sum(short if number == len(batches) - 1 else batches.batch_size for number in numbers)


def _pending(batches: Batches, status: NDArray[np.uint8]) -> list[int]:
    """Numbers of the batches that are not done; a batch is done whole or not at all."""
    return [
        number
        for number, start in enumerate(range(0, batches.n_rows, batches.batch_size))
        if (status[start : start + batches.batch_size] == PENDING).any()
    ]


class Network:
    """The backbone on its device, in its precision, halving what it takes at once when memory runs out.

    Args:
        plan: backbone, device, precision. compiled: use torch.compile. shrink: halve instead of failing.
    """

    def __init__(self, plan: Plan, *, compiled: bool, shrink: bool) -> None:
        self.device, self.shrink = plan.device, shrink
        self._normalise = plan.backbone.transform.normaliser(plan.device)
        self.precision = PRECISIONS[plan.precision]
        self.at_once = int(plan.settings["batch_size"])
        model = plan.backbone.model.to(plan.device)
        self._model: Callable[[Tensor], Tensor] = model.to(memory_format=torch.channels_last)
        self._fill = compiled  # a compiled network is compiled again for every new size
        if compiled:
            self._model = torch.compile(self._model)
        if plan.precision == "float32":
            # TensorFloat-32 would change the fourth digit
            torch.backends.cudnn.allow_tf32 = False
            torch.backends.cuda.matmul.allow_tf32 = False

    def __call__(self, pixels: Tensor) -> Tensor:
        """uint8 pixels (rows, channels, height, width) to float32 features (rows, n_features) on the device.

        Raises:
            LinprobeError: memory ran out, and shrinking is not wanted or no longer possible.
        """
        while True:
            try:
                parts = [self._forward(part) for part in torch.split(pixels, self.at_once)]
                return parts[0] if len(parts) == 1 else torch.cat(parts)
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
        n_images = len(images)
        if self._fill and n_images < self.at_once:
            images = torch.cat([images, images.new_zeros((self.at_once - n_images, *images.shape[1:]))])
        half = self.precision != torch.float32
        with torch.inference_mode(), torch.autocast(self.device.type, self.precision, enabled=half):
            return self._model(images)[:n_images].float()


def _workers(request: ExtractRequest, device: torch.device, processes: int) -> int:
    """Decoding processes: on a CPU none, as the network needs the cores; beside a GPU most of the cores."""
    if request.workers is not None:
        return request.workers
    if device.type == "cpu":
        return 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(MOST_WORKERS, cores // processes - 1))


def _pass(
    plan: Plan,
    group: str,
    numbers: Sequence[int],
    model: Network,
    partial: Partial,
    request: ExtractRequest,
    progress: Progress | None,
) -> float:
    """Batches of one group; returns the seconds that were spent waiting for images."""
    if not numbers:
        return 0.0
    batches = plan.batches[group]
    workers = _workers(request, plan.device, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    waited = 0.0
    writes: deque[Future[None]] = deque()
    with ThreadPoolExecutor(1) as writer:
        try:
            asked = time.perf_counter()
            for number, pixels, status, keys, unread in load(
                batches, numbers, workers, request.timeout, pin=plan.device.type == "cuda"
            ):
                waited += time.perf_counter() - asked
                if unread and request.on_error == "fail":
                    raise DataError(_unreadable(batches, unread))
                for row, reason in unread:
                    partial.skip(group, row, batches.row_id(row), reason)
                start = number * batches.batch_size
                while len(writes) >= WRITES_AHEAD:
                    writes.popleft().result()
                writes.append(writer.submit(_write, partial, batches, group, start, model(pixels), status, keys))
                if progress is not None:
                    progress.step(len(status))
                asked = time.perf_counter()
            while writes:
                writes.popleft().result()
        except RuntimeError as error:
            if not worker_died(error):
                raise
            raise LinprobeError(
                f"a worker process died ({str(error).splitlines()[0]}); give fewer --workers or a smaller --batch-size "
                "if memory ran out; the same command continues"
            ) from None
        finally:
            writer.submit(partial.sync).result()
    return waited


def _unreadable(batches: Batches, unread: Sequence[tuple[int, str]]) -> str:
    named = "; ".join(f"{batches.row_id(row)} ({reason})" for row, reason in unread[:NAMED_IN_ERROR])
    more = "" if len(unread) <= NAMED_IN_ERROR else f"; and {len(unread) - NAMED_IN_ERROR} more of this batch"
    return (
        f"{len(unread)} image{'s' if len(unread) > 1 else ''} cannot be used: {named}{more}; repair or remove, then "
        "give --overwrite; or give --on-error skip to go on without"
    )


def _write(
    partial: Partial, batches: Batches, group: str, start: int, features: Tensor, status: Tensor, keys: Tensor
) -> None:
    """In the writing thread: off the device, to the type on disk, checked, to the disk."""
    values = features.cpu().numpy()
    with np.errstate(over="ignore"):
        rows = values.astype(partial.dtype)
    marks = status.numpy()
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=1) & (outcome(marks) == DONE))
    if bad.size:
        name = batches.row_id(start + int(bad[0]))
        if np.isfinite(values[bad[0]]).all():
            raise DataError(
                f"features of {name} reach {np.abs(values[bad[0]]).max():.3g}, more than {partial.dtype} holds; "
                "give --dtype float32"
            )
        raise DataError(f"features of {name} are not finite; give --precision float32, or other weights")
    rows[outcome(marks) != DONE] = 0
    partial.write(group, start, rows, marks, keys.numpy())


def _write_text(plan: Plan) -> None:
    """Encode the class names and keep them beside the rows."""
    if plan.prompts is None or plan.backbone.encode_text is None:
        return
    weights = text_weights(plan.backbone.encode_text, *plan.prompts)
    temporary = plan.folder / f"{TEXT}.new"
    with temporary.open("wb") as stream:
        np.save(stream, weights)
    temporary.replace(plan.folder / TEXT)


def _assemble(plan: Plan) -> None:
    """Turn the rows on disk into the feature file, and remove them."""
    settings = _stored(plan.settings)
    fingerprint = plan.settings["fingerprint"]
    compared = {
        key: settings[key] for key in ("backbone", "weights_digest", "arguments", "tensor", "transform", "image_size")
    }
    description = Description(
        class_names=plan.source.class_names,
        class_names_from=plan.source.class_names_from,
        backbone=plan.backbone.name,
        weights=plan.backbone.weights,
        weights_digest=settings["weights_digest"],
        preprocessing=plan.backbone.transform.text,
        source=plan.source.name,
        tensor=plan.backbone.tensor,
        extraction=json.dumps(settings, sort_keys=True),
        extraction_digest=hashlib.sha256(json.dumps(compared, sort_keys=True).encode()).hexdigest(),
    )
    made = plan.folder / "made.h5"
    with Partial(plan.folder, plan.sizes, plan.width, plan.dtype) as partial:
        _refuse_shared_rows(plan, partial)
        with FeatureWriter(made, description) as writer:
            for group, batches in plan.batches.items():
                kept = outcome(partial.status(group)) == DONE
                if not kept.any():
                    raise DataError(f"{plan.source.name}: no {group} image can be read; allowed: at least one")
                labels = np.repeat(batches.members.labels, batches.views)[kept]
                rows, dtype = partial.rows(group), plan.dtype.type
                writer.write_group(group, int(kept.sum()), plan.width, rows, labels, row_ids(batches, kept), dtype)
            if (plan.folder / TEXT).is_file():
                writer.write_text_weights(np.load(plan.folder / TEXT))
            skipped = [(name, reason) for _, name, reason in partial.skipped()]
            keys = {group: partial.keys(group) for group in plan.batches}
            writer.write_private_log(fingerprint, json.dumps(_conversions(partial)), skipped, keys)
    made.replace(plan.out)
    shutil.rmtree(plan.folder)


def _conversions(partial: Partial) -> dict[str, int]:
    """Images by the conversions they needed."""
    marks = np.concatenate([partial.status(group) for group in partial.sizes])
    marks = marks[outcome(marks) == DONE] // CONVERTED
    counts = {name: int((marks >> bit & 1).sum()) for bit, name in enumerate(CONVERSIONS)}
    return {name: count for name, count in counts.items() if count}


def _refuse_shared_rows(plan: Plan, partial: Partial) -> None:
    """Refuse images that are private and public at once, told by equal pixels after the transform."""
    if "public" not in plan.sizes:
        return
    if common_keys(partial.keys("train"), partial.keys("public")):
        raise PrivacyError(
            f"{plan.source.name}: some public images are private too; a private image cannot be public; "
            "take them out of the public images"
        )


def _outcome(plan: Plan, extracted: int, seconds: float, waiting_share: float) -> ExtractOutcome:
    with FeatureFile(plan.out) as features:
        return ExtractOutcome(
            file=plan.out,
            rows=dict(features.sizes),
            n_features=features.n_features,
            n_classes=len(features.description.class_names),
            extracted=extracted,
            seconds=seconds,
            waiting_share=waiting_share,
            device=plan.device.type,
            precision=plan.precision,
            skipped=tuple(features.skipped()),
            converted=features.converted(),
        )
