"""Backbones by name, and their weights.

Each family has a file of its own with `load(name, weights, random, arguments)`. Weights come from files, without
running code in them, or from the caches and hubs of the libraries.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from linprobe.data.array_files import load_torch, tensor_fits
from linprobe.data.feature_reader import WEIGHTS_SUFFIXES as WEIGHTS_SUFFIXES
from linprobe.errors import DataError, UsageError, counted, first_line, reading
from linprobe.extraction.images import ImageTransform
from linprobe.extraction.request import DEFAULT, DEFAULT_WITHOUT_WEIGHTS, check_layer, family_of

RANDOM = "random"
RANDOM_SEED = 0
# functions of torch.nn.init, and methods of tensors
DRAWING = ("kaiming_normal_", "kaiming_uniform_", "normal_", "trunc_normal_", "uniform_")
_WRAPPERS = ("state_dict", "model_state_dict", "model", "state_dict_ema")


class UnreachableWeightsError(DataError):
    """Standard weights are not on this machine and cannot be downloaded."""


def build_network(build: Callable[[], nn.Module], random: bool) -> nn.Module:
    """Build a network; `random` weights are equal in every run, others are not drawn first, which takes seconds."""
    with torch.random.fork_rng(devices=[]), nullcontext() if random else _Undrawn():
        torch.manual_seed(RANDOM_SEED)
        return build()


class _Undrawn(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if getattr(function, "__name__", "") in DRAWING:
            return args[0] if args else given["tensor"]
        return function(*args, **given)


def build_or_fetch(
    name: str, arguments: dict[str, Any], build: Callable[[], nn.Module], fetched: str, random: bool
) -> Any:
    """Build a network by another library, and perhaps fetch its weights, of which `fetched` says what and where."""
    try:
        with quietly():
            return build_network(build, random)
    except TypeError as error:
        raise UsageError(f"backbone {name} refuses {arguments} ({error}); change --backbone-arg") from None
    except Exception as error:  # the Hugging Face client raises many types
        reason = first_line(error)[:200]
        if not fetched:
            raise UsageError(f"backbone {name} cannot be built ({reason}); change --backbone-arg") from None
        raise DataError(
            f"{fetched} and cannot be fetched ({reason}); "
            "fetch them on a machine with internet and give --weights FILE, or --random-weights for a test"
        ) from None


@contextmanager
def quietly() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(before)


def read_weights(path: Path) -> dict[str, Tensor]:
    """Parameters by name from a .pt, .pth or .safetensors file, whose code is not run. DataError: none, or damaged."""
    if not path.is_file():
        raise DataError(f"weights file {path} does not exist; give --weights a {', '.join(WEIGHTS_SUFFIXES)} file")
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        with reading(f"weights file {path}", "save model.state_dict() again"):
            loaded: Any = load_file(path)
    else:
        loaded = load_torch(path)
    for wrapper in _WRAPPERS:
        if isinstance(loaded, dict) and isinstance(loaded.get(wrapper), dict):
            loaded = loaded[wrapper]
    items = list(loaded.items()) if isinstance(loaded, dict) else []
    plain = (isinstance(name, str) and isinstance(value, Tensor) and tensor_fits(value, path) for name, value in items)
    if not items or not all(plain):
        raise DataError(f"weights file {path} holds no state dictionary of dense real tensors; save model.state_dict()")
    if all(name.startswith("module.") for name in loaded):
        loaded = {name.removeprefix("module."): value for name, value in loaded.items()}
    state: dict[str, Tensor] = loaded
    return state


def load_strictly(model: nn.Module, state: dict[str, Tensor], path: Path, head: Iterable[str] = ()) -> None:
    """Load `state`; DataError for NaN, or other names, shapes or kinds of number, except in the classifier (`head`)."""
    prefixes = tuple(f"{name}." for name in head)

    def body(names: Iterable[str]) -> set[str]:
        return {name for name in names if not name.startswith(prefixes)} if prefixes else set(names)

    wanted = model.state_dict()
    ours, theirs = body(wanted), body(state)
    missing = sorted(name for name in ours - theirs if not name.endswith("num_batches_tracked"))
    surplus = sorted(theirs - ours)
    shapes = sorted(name for name in ours & theirs if wanted[name].shape != state[name].shape)
    kinds = sorted(
        name
        for name in ours & theirs
        if wanted[name].is_floating_point() != state[name].is_floating_point()
        and not name.endswith("num_batches_tracked")
    )
    problems = [
        *(f"{name} is missing" for name in missing[:3]),
        *(f"{name} is not in the network" for name in surplus[:3]),
        *(f"{name} is {tuple(state[name].shape)}, not {tuple(wanted[name].shape)}" for name in shapes[:3]),
        *(f"{name} is {state[name].dtype}, not {wanted[name].dtype}" for name in kinds[:3]),
    ]
    if problems:
        count = len(missing) + len(surplus) + len(shapes) + len(kinds)
        raise DataError(
            f"weights file {path} does not fit: {counted(count, 'difference')}, first {'; '.join(problems)}; "
            "give the weights of this network, or name another --backbone"
        )
    model.load_state_dict({name: state[name] for name in ours & theirs}, strict=False)
    bad = [name for name, value in model.state_dict().items() if name in ours and not torch.isfinite(value).all()]
    if bad:
        raise DataError(f"weights file {path} holds NaN or infinity, first in {bad[0]}; give whole weights")


def load_file(model: nn.Module, weights: str, head: Iterable[str] = ()) -> None:
    load_strictly(model, read_weights(Path(weights)), Path(weights), head)


def name_of_weights(weights: str | None, random: bool, default: str) -> str:
    """The name that a feature file states: `random`, the name of the file `weights`, or the default weights."""
    return RANDOM if random else default if weights is None else Path(weights).name


@dataclass(frozen=True)
class Backbone:
    """A frozen network that maps each image to one row of features."""

    name: str
    model: nn.Module  # float images (rows, channels, height, width) to features (rows, n_features), in `eval()` mode
    transform: ImageTransform
    tensor: str  # description of the tensor that is a row
    weights: str  # name; `random` for random ones, empty for a network without weights
    arguments: dict[str, Any] = field(default_factory=dict)  # of the constructor
    encode_text: Callable[[list[str]], Tensor] | None = None  # prompts to encodings (prompts, n_features)
    notes: tuple[str, ...] = ()
    # from (mode, height, width) of test images, in place of `transform`
    transform_for: Callable[[Collection[tuple[str, int, int]]], ImageTransform] | None = None
    float32_only: bool = False
    batch_on_cpu: int | None = None
    layer: str | None = None  # as `--layer` names it; None for the output
    layers: dict[str, tuple[nn.Module, str]] = field(default_factory=dict)  # model and tensor of each other layer

    def weights_digest(self) -> str:
        """SHA-256 of parameters and buffers by name, independent of the file; empty for a network without weights."""
        state = self.model.state_dict()
        if not state:
            return ""
        sha = hashlib.sha256()
        for name in sorted(state):
            if not name.endswith("num_batches_tracked"):
                value = state[name].detach().cpu().contiguous()
                sha.update(f"{name}\0{value.dtype}\0{tuple(value.shape)}\0".encode())
                sha.update(value.view(-1).view(torch.uint8).numpy().data)
        return sha.hexdigest()


def load_backbone(
    name: str, weights: str | None, random: bool, arguments: dict[str, Any], layer: str | None = None
) -> Backbone:
    """Load a frozen network with weights of a name or file, or random ones, in `eval()` mode, on the CPU."""
    family = family_of(name)
    if random and weights is not None:
        raise UsageError(f"weights is {weights!r} and --random-weights is on; give one of the two")
    module = import_module(f"linprobe.extraction.backbones.{family}")
    loaded: Backbone = module.load(name, weights, random, arguments)
    check_layer(loaded.name, layer, loaded.layers)
    if layer is None:
        return loaded
    model, tensor = loaded.layers[layer]
    return replace(loaded, model=model, tensor=tensor, layer=layer, encode_text=None)


def load_default(weights: str | None, random: bool, arguments: dict[str, Any]) -> Backbone:
    """The backbone where none is named: `resnet50`, or `scattering` if its weights are out of reach, with a note."""
    try:
        return load_backbone(DEFAULT, weights, random, arguments)
    except UnreachableWeightsError as error:
        if weights is not None or arguments:
            raise
        reason = str(error).partition(";")[0]
    backbone = load_backbone(DEFAULT_WITHOUT_WEIGHTS, None, False, {})
    note = (
        f"{reason}; the backbone is {backbone.name}, which needs none, and suits small images: on photographs it is "
        "far less accurate; --weights FILE gives weights, --backbone names another"
    )
    return replace(backbone, notes=(note, *backbone.notes))
