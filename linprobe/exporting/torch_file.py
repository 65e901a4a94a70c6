"""torch: the state of a `torch.nn.Linear`, class names and the note, without pickled code."""

from __future__ import annotations

import io

import torch

from linprobe.exporting.probe import Probe


def torch_bytes(probe: Probe) -> bytes:
    """A file for `torch.load(..., weights_only=True)`: a dictionary of `state_dict`, `class_names` and `note`.

    `state_dict` has `weight` (n_classes, n_features) and `bias` (n_classes,), with the voters as first axis.
    """
    state = {"weight": torch.from_numpy(probe.rows_of_weights), "bias": torch.from_numpy(probe.bias)}
    stream = io.BytesIO()
    torch.save({"state_dict": state, "class_names": probe.class_names, "note": probe.note}, stream)
    return stream.getvalue()
