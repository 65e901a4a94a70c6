"""`wrn-16-4`, `wrn-40-4`, `wrn-28-10`: wide residual networks with group normalisation and standardised weights.

S. De et al., "Unlocking High-Accuracy Differentially Private Image Classification through Scale", 2022, section 3.
Order, shortcuts and padding follow the authors' code (jax_privacy), so that converted weights give the same features.
There are none for PyTorch under a standard name: the user gives a file with the parameter names of the modules below.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from linprobe.errors import DataError
from linprobe.extraction.backbones import Backbone, build_or_fetch, load_file, name_of_weights
from linprobe.extraction.images import ImageTransform

NETWORKS = {"wrn-16-4": (16, 4), "wrn-40-4": (40, 4), "wrn-28-10": (28, 10)}
SIDE = 32
CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
VARIANCE_FLOOR = 1e-4


class StandardisedConv(nn.Conv2d):
    """A convolution with weights of mean 0 and variance 1 / fan-in per output channel, times a learned gain."""

    def __init__(self, n_in: int, n_out: int, size: int, stride: int = 1) -> None:
        super().__init__(n_in, n_out, size, stride, padding=size // 2, bias=True)
        self.gain = nn.Parameter(torch.ones(n_out))

    def forward(self, images: Tensor) -> Tensor:
        """(rows, n_in, height, width) to (rows, n_out, height / stride, width / stride)."""
        axes, fan_in = (1, 2, 3), self.weight[0].numel()
        centred = self.weight - self.weight.mean(axes, keepdim=True)
        variance = self.weight.var(axes, keepdim=True, unbiased=False)
        scale = torch.rsqrt(torch.clamp(variance * fan_in, min=VARIANCE_FLOOR)) * self.gain.view(-1, 1, 1, 1)
        if self.kernel_size[0] == 3 and self.stride[0] == 2:
            images = functional.pad(images, (0, 1, 0, 1))  # padding of the published networks
            return functional.conv2d(images, centred * scale, self.bias, self.stride)
        return functional.conv2d(images, centred * scale, self.bias, self.stride, self.padding)


class ResidualBlock(nn.Module):
    """ReLU, norm and convolution, twice. In a stage's first block the shortcut is ReLU, norm and 1 x 1 convolution."""

    def __init__(self, n_in: int, n_out: int, stride: int, groups: int, *, first: bool) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(groups, n_in)
        self.conv1 = StandardisedConv(n_in, n_out, 3, stride)
        self.norm2 = nn.GroupNorm(groups, n_out)
        self.conv2 = StandardisedConv(n_out, n_out, 3)
        self.shortcut_norm = nn.GroupNorm(groups, n_in) if first else None
        self.shortcut = StandardisedConv(n_in, n_out, 1, stride) if first else None

    def forward(self, images: Tensor) -> Tensor:
        active = functional.relu(images)
        passed = images
        if self.shortcut is not None and self.shortcut_norm is not None:
            passed = self.shortcut(self.shortcut_norm(active))
        out: Tensor = self.conv2(self.norm2(functional.relu(self.conv1(self.norm1(active)))))
        return passed + out


class WideResNet(nn.Module):
    """Images (rows, 3, 32, 32) to features (rows, 64 * width): the mean over positions after the last norm."""

    def __init__(self, depth: int, width: int, groups: int = 16) -> None:
        super().__init__()
        self.stem = StandardisedConv(3, 16, 3)
        self.stages = nn.ModuleList()
        n_in = 16
        for n_out, stride in ((16 * width, 1), (32 * width, 2), (64 * width, 2)):
            blocks = [ResidualBlock(n_in, n_out, stride, groups, first=True)]
            blocks += [ResidualBlock(n_out, n_out, 1, groups, first=False) for _ in range((depth - 4) // 6 - 1)]
            self.stages.append(nn.ModuleList(blocks))
            n_in = n_out
        self.norm = nn.GroupNorm(groups, n_in)

    def forward(self, images: Tensor) -> Tensor:
        images = self.stem(images)
        for stage in self.stages:
            for block in stage:  # type: ignore[attr-defined]
                images = block(images)
        features: Tensor = self.norm(functional.relu(images))
        return features.mean((2, 3))


def load(name: str, weights: str | None, random: bool, arguments: dict[str, Any]) -> Backbone:
    """A wide residual network with group norm. Argument `groups`: number of groups (default 16)."""
    if weights is None and not random:
        raise DataError(f"backbone {name} has no weights to fetch; give --weights FILE, or --random-weights for a test")
    model = build_or_fetch(name, arguments, lambda: WideResNet(*NETWORKS[name], **arguments), "", random)
    if weights is not None:
        load_file(model, weights, head=("fc",))
    transform = ImageTransform((SIDE, SIDE), None, "bilinear", CIFAR_MEAN, CIFAR_STD)
    shown = name_of_weights(weights, random, "")
    return Backbone(name, model.eval(), transform, "mean over positions after the last normalisation", shown, arguments)
