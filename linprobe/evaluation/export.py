"""`linprobe export`: a trained probe in the format of other software.

onnx: a graph from raw rows to class names, or labels, and probabilities, in operators of the standard domain:

    m  = max(max |x|, least normal float32)         per row, so that squares neither overflow nor vanish
    x' = x / m
    u  = x' / max(||x'||_2, 1)                      ||x'||_2 >= 1 unless the row is zero, which stays zero
    p  = softmax(u W + b)
    label = class name of the largest p

With several labels a row, p = sigmoid(u W + b), and a label is 1 where u W + b > 0, else 0. If the probe votes, p has
the voters as first axis. The votes of a class are the voters whose p is largest there; its probability is its share of
votes, and ties go to the higher sum of p.

safetensors: `weight` and `bias` in the layout of `torch.nn.Linear`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from linprobe import __version__
from linprobe.accounting.events import NO_CHOICE, hold_without_a_choice
from linprobe.atomic_files import write_whole
from linprobe.errors import Progress, UsageError, require_for, writing
from linprobe.evaluation.predict import temperature_of
from linprobe.options.requests import ExportRequest
from linprobe.runs.check import verified
from linprobe.runs.run_folder import RunFolder, inputs_of, new_files

OPSET, IR_VERSION = 17, 8  # of 2022: read by every onnxruntime since 1.12
LARGEST_ONNX = 2**31 - 2**20  # bytes of weights; a protobuf message has less than 2 GiB


@dataclass(frozen=True)
class Probe:
    """A linear probe of L2-normalised raw rows, float32, with voters as the first axis of weights and bias if it votes.

    `note` has statements about it, by name. With `several_labels`, each label applies where its score is above 0.
    """

    weights: NDArray[np.float32]
    bias: NDArray[np.float32]
    class_names: list[str]
    note: dict[str, str]
    several_labels: bool = False

    @property
    def votes(self) -> bool:
        return self.weights.ndim == 3


def safetensors_bytes(probe: Probe) -> bytes:
    """Tensors `weight` (n_classes, n_features) and `bias` (n_classes,), with the voters as first axis; the note."""
    from safetensors.numpy import save

    rows = np.ascontiguousarray(np.swapaxes(probe.weights, -1, -2))
    content = bytes(save({"weight": rows, "bias": probe.bias}, metadata=probe.note))
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8:end]), sort_keys=True).encode()  # its order was random
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + content[end:]


class _Graph:
    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def add(self, operator: str, *inputs: str, name: str | None = None, **attributes: Any) -> str:
        output = name or f"{operator.lower()}_{len(self.nodes)}"
        from onnx import helper

        self.nodes.append(helper.make_node(operator, list(inputs), [output], **attributes))
        return output

    def constant(self, name: str, value: ArrayLike) -> str:
        from onnx import numpy_helper

        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name


def onnx_bytes(probe: Probe) -> bytes:
    """The file: `features` (rows, n_features) to `label` (rows,), or int64 `labels`, and `probabilities`."""
    from onnx import TensorProto, checker, helper

    graph, n_classes = _Graph(), len(probe.class_names)
    largest = graph.add("ReduceMax", graph.add("Abs", "features"), axes=[-1], keepdims=1)
    least = graph.constant("least_normal", np.finfo(np.float32).tiny)
    scaled = graph.add("Div", "features", graph.add("Max", largest, least))
    norm = graph.add("ReduceL2", scaled, axes=[-1], keepdims=1)
    unit = graph.add("Div", scaled, graph.add("Max", norm, graph.constant("one", np.float32(1))))  # a zero row stays
    scores = graph.add("MatMul", unit, graph.constant("weights", probe.weights))
    bias = probe.bias[:, None] if probe.votes else probe.bias
    scores = graph.add("Add", scores, graph.constant("bias", bias))
    if probe.several_labels:
        answer = helper.make_tensor_value_info("labels", TensorProto.INT64, ["rows", n_classes])
        graph.add("Sigmoid", scores, name="probabilities")
        applies = graph.add("Greater", scores, graph.constant("zero", np.float32(0)))
        graph.add("Cast", applies, to=TensorProto.INT64, name="labels")
    else:
        answer = helper.make_tensor_value_info("label", TensorProto.STRING, ["rows"])
        shares = graph.add("Softmax", scores, axis=-1, name="shares" if probe.votes else "probabilities")
        ranking = _votes(graph, shares, len(probe.weights), n_classes) if probe.votes else shares
        best = graph.add("ArgMax", ranking, axis=-1, keepdims=0)
        names = graph.constant("class_names", np.array(probe.class_names, dtype=object))
        graph.add("Gather", names, best, name="label")
    made = helper.make_graph(
        graph.nodes,
        "linprobe",
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["rows", probe.weights.shape[-2]])],
        [answer, helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["rows", n_classes])],
        graph.constants,
    )
    opsets = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(made, producer_name="linprobe", ir_version=IR_VERSION, opset_imports=opsets)
    helper.set_model_props(model, probe.note)
    checker.check_model(model, full_check=True)
    return bytes(model.SerializeToString())


def _votes(graph: _Graph, shares: str, n_voters: int, n_classes: int) -> str:
    """Add the output `probabilities`, shares of votes; returns votes plus a fraction that breaks ties."""
    voters, depth = graph.constant("voters_axis", np.array([0])), graph.constant("n_classes", np.int64(n_classes))
    chosen = graph.add("ArgMax", shares, axis=-1, keepdims=0)
    ballots = graph.add("OneHot", chosen, depth, graph.constant("off_on", np.array([0, 1], dtype=np.float32)), axis=-1)
    votes = graph.add("ReduceSum", ballots, voters, keepdims=0)
    graph.add("Div", votes, graph.constant("n_voters", np.float32(n_voters)), name="probabilities")
    summed = graph.add("ReduceSum", shares, voters, keepdims=0)
    fraction = graph.add("Div", summed, graph.constant("more_than_voters", np.float32(n_voters + 1)))
    return graph.add("Add", votes, fraction)


FORMATS = {"safetensors": safetensors_bytes, "onnx": onnx_bytes}
INPUT = "raw feature rows; each is divided by its L2 norm, and a zero row stays zero"
OUTPUT = "softmax of rows @ weights + bias"
LABELS = "sigmoid of rows @ weights + bias, each label by itself; a label applies where its probability is above 0.5"
VOTES = "every voter votes for its most probable class; shares of votes; ties go to the higher summed probability"


def export(request: ExportRequest, progress: Progress) -> dict[str, Any]:
    """Write a verified run to a file; a run that is not private is exported with a warning. Returns the file's note."""
    to = _format_of(request)
    require_for({"to": to})
    inputs = (*inputs_of(request.run), request.calibrate)
    with new_files({"--out": request.out}, inputs=inputs, overwrite=request.overwrite):
        run = RunFolder(request.run)
        verified(run)
        manifest = run.manifest
        temperature = temperature_of(run, request.calibrate, progress)
        scale = np.float32(temperature)
        probe = Probe(
            run.weights / scale,
            run.bias / scale,
            run.manifest.class_names,
            _note(run, temperature),
            run.manifest.several_labels,
        )
        if to == "onnx" and probe.weights.nbytes >= LARGEST_ONNX:
            raise UsageError(
                f"run {request.run} has {probe.weights.nbytes / 2**30:.1f} GiB of weights; allowed in an ONNX file: "
                "less than 2; give --to safetensors"
            )
        content = FORMATS[to](probe)
        with writing(request.out):
            write_whole(request.out, content, private=not manifest.private)
    if not manifest.private:
        progress.note(f"NOT PRIVATE: run {request.run} is {manifest.guarantee}; do not publish {request.out}")
    return probe.note


def _format_of(request: ExportRequest) -> str:
    to = request.out.suffix.removeprefix(".") if request.to is None else request.to
    if to not in FORMATS:
        allowed = ", ".join(FORMATS)
        got = f"--to is {to!r}" if request.to is not None else f"--out is {request.out}, without --to"
        raise UsageError(f"{got}; allowed: {allowed}; give --to FORMAT, or a name that ends in .{next(iter(FORMATS))}")
    return to


def _note(run: RunFolder, temperature: float) -> dict[str, str]:
    """What a file says of its run. It holds no path."""
    manifest, extraction = run.manifest, run.manifest.extraction or {}
    condition = f"; holds if {NO_CHOICE}" if hold_without_a_choice(manifest.releases or ()) else ""
    values: dict[str, Any] = {
        "linprobe": __version__,
        "method": manifest.method,
        "guarantee": manifest.guarantee + condition,
        "private": manifest.private,
        "epsilon": manifest.epsilon,
        "delta": manifest.delta,
        "unit": manifest.unit,
        "run_digest": manifest.manifest_digest,
        "class_names": run.manifest.class_names,
        "input": INPUT,
        "output": LABELS if run.manifest.several_labels else VOTES if run.weights.ndim == 3 else OUTPUT,
        "temperature": temperature,
        "features": {name: extraction.get(name) for name in ("backbone", "weights", "weights_digest")},
    }
    return {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in values.items()
    }
