"""torchvision ResNets: `resnet50` and `wide-resnet50-2`; a row is the features before the classifier."""

from __future__ import annotations

import contextlib
import pickle
import socket
import sys
from http.client import HTTPException
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import nn

from linprobe.errors import DataError, UsageError, first_line
from linprobe.extraction import backbones
from linprobe.extraction.images import ImageTransform

NETWORKS = {"resnet50": "resnet50", "wide-resnet50-2": "wide_resnet50_2"}
DEFAULT_WEIGHTS = "IMAGENET1K_V1"
DOWNLOAD_TIMEOUT = 30.0


def load(name: str, weights: str | None, random: bool, arguments: dict[str, Any]) -> backbones.Backbone:
    """A torchvision ResNet. `weights`: a torchvision name, or a file, which gets the preprocessing of IMAGENET1K_V1."""
    presets = torchvision.models.get_model_weights(NETWORKS[name]).__members__
    named = DEFAULT_WEIGHTS if weights is None else weights
    path = None if random or named in presets else Path(named)
    if path is not None and path.suffix not in backbones.WEIGHTS_SUFFIXES:
        raise UsageError(
            f"weights is {named!r}; allowed: {', '.join(presets)}, or a {', '.join(backbones.WEIGHTS_SUFFIXES)} file"
        )
    model = backbones.build_or_fetch(
        name, arguments, lambda: torchvision.models.get_model(NETWORKS[name], weights=None, **arguments), "", random
    )
    preset = presets[named if named in presets else DEFAULT_WEIGHTS].transforms()
    if not random:
        state = _named_weights(name, presets[named]) if path is None else backbones.read_weights(path)
        backbones.load_strictly(model, state, Path(named), head=("fc",))
    model.fc = nn.Identity()
    resize, crop = int(preset.resize_size[0]), int(preset.crop_size[0])
    mean, std = tuple(preset.mean), tuple(preset.std)
    transform = ImageTransform(resize, (crop, crop), preset.interpolation.value, mean, std)
    shown = backbones.RANDOM if random else named if path is None else path.name
    return backbones.Backbone(name, model.eval(), transform, "output of the global average pooling", shown, arguments)


def _named_weights(name: str, entry: Any) -> dict[str, Any]:
    where = Path(torch.hub.get_dir()) / "checkpoints" / Path(entry.url).name
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(DOWNLOAD_TIMEOUT)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # torch.hub prints downloads
            return dict(entry.get_state_dict(progress=False, check_hash=True, weights_only=True))
    except (OSError, HTTPException) as error:
        if where.exists():
            raise DataError(f"weights file {where} cannot be read ({error}); repair it, or give --weights") from None
        raise backbones.UnreachableWeightsError(
            f"weights {entry.name} of {name} are not at {where} and cannot be fetched ({first_line(error)}); "
            f"put {entry.url} there, give --weights FILE, or --random-weights for a test"
        ) from None
    except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise DataError(
            f"weights {entry.name} of {name} are damaged ({first_line(error)[:200]}); remove {where} if it exists and "
            "try again, or give --weights FILE"
        ) from None
    finally:
        socket.setdefaulttimeout(before)
