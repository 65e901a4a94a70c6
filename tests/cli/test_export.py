"""`linprobe export`: every format, loaded again, gives the labels and probabilities of `linprobe predict`."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from linprobe import load_run
from linprobe.evaluation import export
from linprobe.options.declaration import declared
from linprobe.options.requests import ExportRequest
from tests.cli.outcomes import Cli
from tests.conftest import CLASS_NAMES, gaussian_rows

Refused = Callable[..., None]
Read = tuple[list[str], Any, dict[str, str]]
"""Labels, probabilities (n_rows, n_classes), and the note of a file."""

VOTING = ["--method", "noisy-gd", "--eps", "1", "--steps", "20", "--output", "vote", "--ensemble", "7"]
# zero rows, rows of one feature, and rows whose squares leave the range of float32
ODD = np.array([[0.0] * 10, [0.0] * 9 + [2.0], [1e25] * 5 + [0.0] * 5, [3e-25] * 10], dtype=np.float32)


def softmax(scores: Any) -> Any:
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def by_hand(weight: Any, bias: Any, rows: Any) -> Any:
    """Probabilities from `weight` and `bias` as `docs/export.md` describes them."""
    wide = rows.astype(np.float64)
    norms = np.linalg.norm(wide, axis=1, keepdims=True)
    unit = wide / np.where(norms > 0, norms, 1)
    if weight.ndim == 2:
        return softmax(unit @ weight.T + bias)
    shares = softmax(unit @ np.swapaxes(weight, 1, 2) + bias[:, None])
    return np.eye(weight.shape[1])[shares.argmax(axis=-1)].mean(axis=0) + shares.sum(axis=0) * 1e-7


def labels_of(shares: Any, note: dict[str, str]) -> list[str]:
    return [json.loads(note["class_names"])[best] for best in shares.argmax(axis=1)]


def read_safetensors(path: Path, rows: Any) -> Read:
    from safetensors import safe_open

    with safe_open(path, "numpy") as file:
        note = dict(file.metadata())
        shares = by_hand(file.get_tensor("weight"), file.get_tensor("bias"), rows)
    return labels_of(shares, note), shares, note


def read_onnx(path: Path, rows: Any) -> Read:
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(path)
    labels, shares = session.run(["label", "probabilities"], {"features": rows})
    return list(labels), shares, session.get_modelmeta().custom_metadata_map


READ = {"safetensors": read_safetensors, "onnx": read_onnx}
FORMATS = pytest.mark.parametrize("to", READ)


def test_every_format_is_read_again() -> None:
    assert list(READ) == list(export.FORMATS) == list(declared(ExportRequest)["to"].words)


def exported(cli: Cli, run: Path, to: str, *options: object) -> Path:
    if to == "onnx":
        pytest.importorskip("onnx")
    outcome = cli("export", run, "--to", to, "--out", f"deep/probe.{to}", *options)
    assert outcome.status == 0, outcome
    assert outcome.stdout == f"deep/probe.{to}\n"
    return Path(outcome.stdout.strip())


def check_equal(cli: Cli, run: Path, path: Path, to: str, rows: Any, *options: object) -> None:
    """The file gives what `predict` prints."""
    np.save("rows.npy", rows)
    printed = list(csv.reader(io.StringIO(cli("predict", run, "rows.npy", "--probabilities", *options).stdout)))[1:]
    labels, shares, note = READ[to](path, rows)
    assert labels == [line[1] for line in printed]
    # a score in float32 errs by some parts in 10**7 of its size, and a share by at most half of its score's error
    largest = np.abs(load_run(run).decision_function(rows)).max() / float(note["temperature"])
    near = 2e-6 + largest * np.finfo(np.float32).eps
    np.testing.assert_allclose(shares, np.array([line[3:] for line in printed], dtype=float), atol=near)


@pytest.fixture(scope="module")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from linprobe.cli import run

    out = tmp_path_factory.mktemp("digits") / "run"
    assert run(["train", "--method", "adamix", "--eps", "3", "--steps", "5", "--out", str(out)]) == 0
    return out


@FORMATS
def test_real_rows_get_the_same_probabilities(cli: Cli, digits_run: Path, to: str) -> None:
    check_equal(cli, digits_run, exported(cli, digits_run, to), to, load_digits().data.astype(np.float32))


@FORMATS
def test_odd_rows_get_the_same_probabilities(cli: Cli, trained_run: Path, to: str) -> None:
    check_equal(cli, trained_run, exported(cli, trained_run, to), to, ODD)


@FORMATS
def test_two_classes(cli: Cli, make_features: Callable[..., Path], tmp_path: Path, to: str) -> None:
    two = make_features(tmp_path / "two.h5", class_names=("no", "yes"), order=(0, 0, 1, 1), text=False)
    assert cli("train", two, "--method", "noisy-gd", "--eps", "1", "--out", "run").status == 0
    check_equal(cli, Path("run"), exported(cli, Path("run"), to), to, gaussian_rows("test", 120)[0])


@pytest.fixture(scope="module")
def voting_run(tmp_path_factory: pytest.TempPathFactory, features_file: Path) -> Path:
    from linprobe.cli import run

    out = tmp_path_factory.mktemp("voting") / "run"
    assert run(["train", str(features_file), *VOTING, "--out", str(out)]) == 0
    return out


@FORMATS
def test_votes_are_counted_as_predict_counts_them(cli: Cli, voting_run: Path, to: str) -> None:
    rows = np.random.default_rng(0).standard_normal((500, 10)).astype(np.float32)  # far from any class: many ties
    check_equal(cli, voting_run, exported(cli, voting_run, to), to, rows)


def applied(path: Path, to: str, rows: Any) -> tuple[Any, Any, dict[str, str]]:
    """Labels 0 and 1 and their probabilities, (n_rows, n_labels), and the note of a file with several labels a row."""
    if to == "onnx":
        onnxruntime = pytest.importorskip("onnxruntime")
        session = onnxruntime.InferenceSession(path)
        labels, shares = session.run(["labels", "probabilities"], {"features": rows})
        return labels, shares, session.get_modelmeta().custom_metadata_map
    from safetensors import safe_open

    with safe_open(path, "numpy") as file:
        tensors, note = {name: file.get_tensor(name) for name in ("weight", "bias")}, dict(file.metadata())
    scores = rows / np.linalg.norm(rows, axis=1, keepdims=True) @ tensors["weight"].T + tensors["bias"]
    return (scores > 0).astype(int), 1 / (1 + np.exp(-scores)), note


@pytest.fixture(scope="module", params=[2, 3])
def labelled_run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A run of digits with several labels a row, and the number of labels."""
    from linprobe.cli import run

    folder, digits = tmp_path_factory.mktemp("labels"), load_digits()
    labels = np.stack([digits.target % (place + 2) == 0 for place in range(request.param)], 1).astype(np.uint8)
    parts = {"train": slice(1200), "test": slice(1200, None)}
    rows = {f"X_{group}": digits.data[part].astype(np.float32) for group, part in parts.items()}
    np.savez(folder / "rows.npz", **rows, **{f"y_{group}": labels[part] for group, part in parts.items()})
    assert run(["import", str(folder / "rows.npz"), "--out", str(folder / "rows.h5")]) == 0
    words = ["--method", "noisy-gd", "--eps", "3", "--steps", "5", "--out", str(folder / "run")]
    with pytest.MonkeyPatch.context() as patch:  # the test rows are private rows of `digits_run`
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        assert run(["train", str(folder / "rows.h5"), *words]) == 0
    return folder / "run", request.param


@FORMATS
def test_several_labels_a_row(cli: Cli, to: str, labelled_run: tuple[Path, int]) -> None:
    (run, n_labels), rows = labelled_run, load_digits().data[1200:].astype(np.float32)
    np.save("rows.npy", rows)
    found, shares, note = applied(exported(cli, run, to), to, rows)
    printed = list(csv.reader(io.StringIO(cli("predict", run, "rows.npy", "--probabilities").stdout)))[1:]
    assert found.tolist() == [list(map(int, line[1 : 1 + n_labels])) for line in printed]
    np.testing.assert_allclose(shares, np.array([line[1 + n_labels :] for line in printed], dtype=float), atol=2e-6)
    assert "sigmoid" in note["output"]


@FORMATS
def test_the_temperature_is_in_the_weights(cli: Cli, trained_run: Path, features_file: Path, to: str) -> None:
    given = ["--calibrate", features_file]
    path = exported(cli, trained_run, to, *given)
    rows = gaussian_rows("test", 120)[0]
    check_equal(cli, trained_run, path, to, rows, *given)
    assert float(READ[to](path, rows)[2]["temperature"]) != 1


@FORMATS
def test_the_note_states_what_the_manifest_states(cli: Cli, trained_run: Path, to: str) -> None:
    manifest = json.loads((trained_run / "manifest.json").read_text())
    *_, note = READ[to](exported(cli, trained_run, to), gaussian_rows("test", 1)[0])
    assert note["guarantee"] == manifest["guarantee"]
    assert (float(note["epsilon"]), float(note["delta"])) == (manifest["epsilon"], manifest["delta"])
    assert (note["private"], note["unit"], note["run_digest"]) == ("true", "record", manifest["manifest_digest"])
    assert tuple(json.loads(note["class_names"])) == CLASS_NAMES
    assert json.loads(note["features"])["backbone"] == "test"
    assert not any("/" in str(value) for name, value in note.items() if name != "guarantee")


def test_a_run_without_privacy_is_exported_with_a_warning(cli: Cli, features_file: Path) -> None:
    assert cli("train", features_file, "--method", "non-private", "--out", "run").status == 0
    outcome = cli("export", "run", "--to", "safetensors", "--out", "probe")
    assert outcome.status == 0
    assert outcome.stderr.startswith("NOT PRIVATE: run run is not private")
    note = read_safetensors(Path("probe"), gaussian_rows("test", 1)[0])[2]
    assert (note["private"], note["epsilon"]) == ("false", "null")


def test_an_edited_run_is_refused(cli: Cli, refused: Refused, run_copy: Path) -> None:
    text = (run_copy / "manifest.json").read_text()
    (run_copy / "manifest.json").write_text(text.replace('"epsilon_target": 3.0', '"epsilon_target": 1.0'))
    refused(cli("export", run_copy, "--to", "safetensors", "--out", "probe"), 4, ["edited"])
    assert not Path("probe").exists()


def test_a_file_is_replaced_only_on_request(cli: Cli, refused: Refused, trained_run: Path) -> None:
    command = ["export", trained_run, "--to", "safetensors", "--out", "probe"]
    assert cli(*command).status == 0
    refused(cli(*command), 2, ["probe", "--overwrite"])
    before = Path("probe").read_bytes()
    for _ in range(3):  # an order at random would be the same once in a while
        assert cli(*command, "--overwrite").status == 0
        assert Path("probe").read_bytes() == before


def test_no_file_of_the_run_is_replaced(cli: Cli, refused: Refused, run_copy: Path) -> None:
    command = ["export", run_copy, "--to", "safetensors", "--overwrite", "--out"]
    refused(cli(*command, run_copy / "model.npz"), 2, ["model.npz", "input"])
    assert cli(*command, "probe").status == 0


def test_wrong_words_are_refused(cli: Cli, refused: Refused, trained_run: Path) -> None:
    refused(cli("export", trained_run, "--to", "keras", "--out", "probe"), 2, ["keras", "safetensors, onnx"])
    refused(cli("export", "nowhere", "--to", "safetensors", "--out", "probe"), 3, ["nowhere"])
