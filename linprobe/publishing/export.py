"""`linprobe export`: a trained probe in the format of other software."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from linprobe._version import __version__
from linprobe.atomic_files import replace_when_complete
from linprobe.data.labels import MULTILABEL
from linprobe.errors import UsageError, require_for
from linprobe.evaluation.predict import temperature_of
from linprobe.options.requests import ExportRequest
from linprobe.progress import Progress
from linprobe.publishing.formats import LARGEST_ONNX, Probe, onnx_bytes, safetensors_bytes
from linprobe.runs.check import verified
from linprobe.runs.output import inputs_of, new_files, writing
from linprobe.runs.run_folder import RunFolder

FORMATS = {"safetensors": safetensors_bytes, "onnx": onnx_bytes}
INPUT = "raw feature rows; each is divided by its L2 norm, and a zero row stays zero"
OUTPUT = "softmax of rows @ weights + bias"
LABELS = "sigmoid of rows @ weights + bias, each label by itself; a label applies where its probability is above 0.5"
VOTES = "every voter votes for its most probable class; shares of votes; ties go to the higher summed probability"


def export(request: ExportRequest, progress: Progress) -> dict[str, Any]:
    """Write a verified run to a file; a run that is not private is exported with a warning.

    Returns: the note that the file holds.

    Raises:
        UsageError: an unknown format or one whose package is missing, a run too large for the format, or see
            `new_files` and `temperature_of`. PrivacyError: the run does not verify.
            DataError: not a run folder, or see `temperature_of`.
    """
    if request.to not in FORMATS:
        raise UsageError(f"--to is {request.to!r}; allowed: {', '.join(FORMATS)}")
    require_for("to", request.to)
    inputs = (*inputs_of(request.run), request.calibrate)
    with new_files({"--out": request.out}, inputs=inputs, overwrite=request.overwrite):
        run = RunFolder(request.run)
        verified(run)
        manifest = run.manifest
        temperature = temperature_of(run, request.calibrate, progress)
        scale = np.float32(temperature)
        probe = Probe(
            run.weights / scale, run.bias / scale, run.class_names, _note(run, temperature), run.task == MULTILABEL
        )
        if request.to == "onnx" and probe.weights.nbytes >= LARGEST_ONNX:
            raise UsageError(
                f"run {request.run} has {probe.weights.nbytes / 2**30:.1f} GiB of weights; allowed in an ONNX file: "
                "less than 2; give --to safetensors"
            )
        content = FORMATS[request.to](probe)
        writing(request.out, lambda: _write(request.out, content, private=not manifest.private))
    if not manifest.private:
        progress.note(f"NOT PRIVATE: run {request.run} is {manifest.guarantee}; do not publish {request.out}")
    return probe.note


def _write(path: Path, content: bytes, *, private: bool) -> None:
    with replace_when_complete(path, private=private) as stream:
        stream.write(content)


def _note(run: RunFolder, temperature: float) -> dict[str, str]:
    """What a file says of its run. It holds no path."""
    manifest, extraction = run.manifest, run.manifest.extraction or {}
    values: dict[str, Any] = {
        "linprobe": __version__,
        "method": manifest.method,
        "guarantee": manifest.guarantee,
        "private": manifest.private,
        "epsilon": manifest.epsilon,
        "delta": manifest.delta,
        "unit": manifest.unit,
        "run_digest": manifest.manifest_digest,
        "class_names": run.class_names,
        "input": INPUT,
        "output": LABELS if run.task == MULTILABEL else VOTES if run.weights.ndim == 3 else OUTPUT,
        "temperature": temperature,
        "features": {name: extraction.get(name) for name in ("backbone", "weights", "weights_digest")},
    }
    return {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in values.items()
    }
