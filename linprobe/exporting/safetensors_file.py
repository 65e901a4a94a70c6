"""safetensors: the tensors `weight` and `bias` in the layout of `torch.nn.Linear`, the note as metadata."""

from __future__ import annotations

from safetensors.numpy import save

from linprobe.exporting.probe import Probe


def safetensors_bytes(probe: Probe) -> bytes:
    """The file: `weight` (n_classes, n_features) and `bias` (n_classes,), with the voters as first axis."""
    return bytes(save({"weight": probe.rows_of_weights, "bias": probe.bias}, metadata=probe.note))
