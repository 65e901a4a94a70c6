"""A run knows how its rows were made: rows that were made otherwise are not scored silently."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linprobe import load_run
from linprobe.data.feature_reader import Description, extraction_of, first_difference
from linprobe.data.feature_writer import FeatureWriter
from linprobe.errors import DataError
from tests.cli.outcomes import Cli
from tests.conftest import CLASS_NAMES, gaussian_rows

Refused = Callable[..., None]
TRANSFORM = {"crop": [8, 8], "mean": [0.5], "std": [0.5], "resize": 8}
MADE = Description(
    class_names=CLASS_NAMES,
    backbone="timm:one",
    weights="one.pt",
    weights_digest="1" * 64,
    preprocessing=json.dumps(TRANSFORM),
    tensor="pooled",
    extraction=json.dumps({"arguments": {"pad": "same"}, "image_size": [8, 8], "precision": "float32"}),
    extraction_digest="a" * 64,
)
OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "network": ({"backbone": "timm:two", "weights_digest": "2" * 64}, 'backbone "timm:two"'),
    "weights": ({"weights_digest": "2" * 64}, f'weights_digest "{"2" * 64}"'),
    "arguments": ({"extraction": json.dumps({"arguments": {}, "image_size": [8, 8]})}, "arguments pad null"),
    "tensor": ({"tensor": "all"}, 'tensor "all"'),
    "mean": ({"preprocessing": json.dumps(TRANSFORM | {"mean": [0.4]})}, "preprocessing mean [0.4]"),
}


def write(path: Path, description: Description, width: int = 10) -> Path:
    with FeatureWriter(path, description) as writer:
        for group, count in (("train", 200), ("test", 40)):
            rows, labels = gaussian_rows(group, count, width)
            writer.write_group(group, count, width, [rows], labels, [f"{group}/{row}" for row in range(count)])
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from linprobe.cli import run as linprobe

    folder = tmp_path_factory.mktemp("made")
    features = write(folder / "f.h5", MADE)
    words = ["train", str(features), "--method", "noisy-gd", "--eps", "8", "--delta", "1e-4", "--steps", "5"]
    assert linprobe([*words, "--out", str(folder / "run")]) == 0
    return folder / "run"


def test_the_manifest_says_how_the_rows_were_made(run: Path) -> None:
    extraction = json.loads((run / "manifest.json").read_text())["extraction"]
    assert extraction == extraction_of(MADE)
    assert extraction["preprocessing"] == TRANSFORM
    assert (extraction["extraction_digest"], extraction["weights_digest"]) == ("a" * 64, "1" * 64)
    assert extraction["image_size"] == [8, 8]


def test_rows_made_alike_are_scored(cli: Cli, run: Path, tmp_path: Path) -> None:
    features = write(tmp_path / "same.h5", replace(MADE, source="elsewhere"))
    for command in ("predict", "evaluate"):
        outcome = cli(command, run, features)
        assert outcome.status == 0
        assert "otherwise" not in outcome.stderr


@pytest.mark.parametrize("other", OTHERS)
def test_rows_made_otherwise_are_refused_by_the_first_difference(
    cli: Cli, refused: Refused, run: Path, tmp_path: Path, other: str
) -> None:
    changes, words = OTHERS[other]
    features = write(tmp_path / "other.h5", replace(MADE, extraction_digest="b" * 64, **changes))
    for command in ("predict", "evaluate"):
        refused(cli(command, run, features), 3, [words, "--like", "--allow-other-features"])
        outcome = cli(command, run, features, "--allow-other-features")
        assert outcome.status == 0
        assert outcome.stderr.startswith("OTHER FEATURES: ")
        assert words in outcome.stderr


def test_rows_of_another_width_are_refused_even_if_others_are_allowed(
    cli: Cli, refused: Refused, run: Path, tmp_path: Path
) -> None:
    features = write(tmp_path / "wide.h5", replace(MADE, backbone="timm:two", extraction_digest="b" * 64), width=11)
    refused(cli("predict", run, features), 3, ["timm:two"])
    refused(cli("predict", run, features, "--allow-other-features"), 3, ["11 features"], notes=1)


def test_rows_of_unknown_origin_are_scored_with_a_note(cli: Cli, run: Path, tmp_path: Path) -> None:
    features = write(tmp_path / "imported.h5", Description(class_names=CLASS_NAMES))
    outcome = cli("predict", run, features)
    assert outcome.status == 0
    assert "does not say how its rows were made" in outcome.stderr
    np.save(tmp_path / "rows.npy", gaussian_rows("test", 5)[0])
    assert "does not say how its rows were made" in cli("predict", run, "rows.npy").stderr


def test_imported_rows_are_compared_by_what_both_state() -> None:
    imported = extraction_of(Description(class_names=CLASS_NAMES, backbone="timm:one"))
    assert first_difference(extraction_of(MADE), imported) is None
    other = extraction_of(Description(class_names=CLASS_NAMES, backbone="pixels"))
    assert first_difference(extraction_of(MADE), other) == ("backbone", '"timm:one"', '"pixels"')


def test_columns_in_another_order_are_refused_wherever_two_files_meet(
    cli: Cli, refused: Refused, tmp_path: Path
) -> None:
    """Each import of tables is right by itself; only the order of columns tells that features meet other weights."""
    rows, labels = gaussian_rows("train", 240, 3)
    named = {"ours": "abc", "alike": "abc", "other": "cba", "lists": ""}
    for place, (name, columns) in enumerate(named.items()):
        for group, part in (("train", slice(0, 40)), ("test", slice(40, 50))):
            start = 60 * place
            x, y = rows[start : start + 60][part], [CLASS_NAMES[label] for label in labels[start : start + 60][part]]
            (tmp_path / name).mkdir(exist_ok=True)
            if columns:
                table = np.column_stack([x.astype(str), y])
                header = ",".join([*columns, "label"])
                np.savetxt(tmp_path / name / f"{group}.csv", table, "%s", ",", header=header, comments="")
            else:
                np.save(tmp_path / name / f"X_{group}.npy", x)
                np.save(tmp_path / name / f"y_{group}.npy", y)
        assert cli("import", name, "--out", f"{name}.h5").status == 0
    few = ("--method", "noisy-gd", "--delta", "1e-4", "--steps", "2")
    assert cli("train", "ours.h5", *few, "--eps", "1", "--out", "run").status == 0
    made = json.loads(Path("run/manifest.json").read_text())["extraction"]
    assert made["columns"].startswith("a, b, c (SHA-256 ")
    meetings = [
        ("predict", "run", "{}"),
        ("evaluate", "run", "{}"),
        ("train", "ours.h5", *few, "--eps", "1", "--public", "{}", "--out", "public-{}"),
        ("train", "{}", *few, "--eps", "3", "--init", "run", "--out", "init-{}"),
    ]
    for words in meetings:
        refused(
            cli(*(word.format("other.h5") for word in words)),
            3,
            ['has columns "', '"a, b, c (SHA-256 ', '"c, b, a (SHA-256 '],
        )
        for name in () if "--public" in words else ("alike", "lists"):
            outcome = cli(*(word.format(f"{name}.h5") for word in words))
            assert outcome.status == 0, outcome.stderr


def test_columns_that_one_side_does_not_record_are_noted(cli: Cli, tmp_path: Path) -> None:
    table = Description(class_names=CLASS_NAMES, source="train.csv, test.csv", columns="a, b", tool_version="0.3.0")
    described = {"new": table, "old": replace(table, columns="", tool_version="0.2.1")}
    described |= {"arrays": replace(table, columns="", source="rows.npz"), "images": MADE}
    for name, description in described.items():
        write(tmp_path / f"{name}.h5", description)
    few = ("--method", "noisy-gd", "--delta", "1e-4", "--steps", "2")
    for name in described:
        assert cli("train", f"{name}.h5", *few, "--eps", "1", "--out", name, "--book", "book.jsonl").status == 0
    expected = {("new", "old"): "in old.h5, ", ("old", "new"): "in run old, ", ("new", "arrays"): "in arrays.h5, "}
    expected |= {("old", "old"): "in old.h5 and run old, ", ("arrays", "new"): "in run arrays, "}
    expected |= {("arrays", "old"): "in old.h5 and run arrays, "}
    for run in described:
        for file in described:
            starting = ("train", f"{file}.h5", *few, "--eps", "3", "--init", run, "--dry-run", "--book", "book.jsonl")
            for words in (("evaluate", run, f"{file}.h5"), ("predict", run, f"{file}.h5"), starting):
                told = cli(*words).stderr
                noted = [line for line in told.splitlines() if line.startswith("columns are not recorded ")]
                assert len(noted) == ((run, file) in expected), (words, told)
                assert expected.get((run, file), "") in "".join(noted)
                assert ("import the table again" in told) == (file == "old" and (run, file) in expected)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_table_of_new_rows_is_scored_if_its_columns_are_those_of_the_run(
    cli: Cli, refused: Refused, tmp_path: Path, suffix: str
) -> None:
    pandas = pytest.importorskip("pandas")
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    rows, labels = gaussian_rows("train", 60, 3)
    named = pandas.DataFrame(rows, columns=list("abc"))
    named.assign(label=[CLASS_NAMES[label] for label in labels]).to_csv("ward.csv", index=False)
    assert cli("import", "ward.csv", "--test-fraction", "0.3", "--out", "ward.h5").status == 0
    few = ("--method", "noisy-gd", "--delta", "1e-4", "--steps", "2", "--eps", "3")
    assert cli("train", "ward.h5", *few, "--out", "run").status == 0
    for columns, status in (("abc", 0), ("cba", 3)):
        table = named[list(columns)].assign(id=[f"p{row}" for row in range(60)], owner="anna")
        table.to_csv("new.csv", index=False) if suffix == ".csv" else table.to_parquet("new.parquet", index=False)
        made = cli("import", f"new{suffix}", "--out", "new.h5", "--overwrite")
        assert made.status == 0, made.stderr
        assert f"new{suffix} has no column 'label': rows without labels" in made.stderr
        scored = cli("predict", "run", "new.h5")
        assert scored.status == status, scored.stderr
        probe = load_run("run")
        if status == 0:
            printed = [line.split(",")[:2] for line in scored.stdout.splitlines()[1:]]
            assert printed == [[f"p{row}", label] for row, label in enumerate(probe.predict(named))]
            assert (probe.predict(rows) == probe.predict(pandas.DataFrame(rows))).all()  # nothing to compare
        else:
            refused(scored, 3, ['"a, b, c (SHA-256 ', '"c, b, a (SHA-256 '])
            with pytest.raises(DataError, match=r"X has the columns c, b, a .* trained with a, b, c .* same order"):
                probe.predict(named[list(columns)])


@pytest.mark.parametrize("header", ["Label,f0", "LABEL,f0"])
def test_a_column_spelt_as_the_labels_is_no_feature(cli: Cli, refused: Refused, tmp_path: Path, header: str) -> None:
    (tmp_path / "new.csv").write_text(f"{header}\n1,2\n")
    refused(cli("import", "new.csv", "--out", "new.h5"), 2, ["no column 'label'", "did you mean"])


def test_a_run_that_moved_says_where_its_rows_were(cli: Cli, refused: Refused, run: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(run, moved)
    manifest = json.loads((moved / "manifest.json").read_text())
    (moved / "manifest.json").write_text(json.dumps(manifest | {"features": "gone/f.h5"}))
    refused(cli("evaluate", moved), 3, ["gone/f.h5", str(tmp_path / "gone"), "give the feature file"])


def test_predict_reads_the_run_from_a_pipe(cli: Cli, run: Path) -> None:
    features = run.parent / "f.h5"
    piped = cli("predict", "-", features, stdin=f"{run}\n")
    assert piped.status == 0
    assert piped.stdout == cli("predict", run, features).stdout


def test_a_run_from_a_pipe_leaves_no_pipe_for_the_rows(cli: Cli, refused: Refused, run: Path) -> None:
    refused(cli("predict", "-", "-", stdin=f"{run}\n"), 2, ["give - once"])


def test_rows_for_the_temperature_are_made_alike_too(cli: Cli, refused: Refused, run: Path, tmp_path: Path) -> None:
    other = replace(MADE, backbone="timm:two", extraction_digest="b" * 64)
    with FeatureWriter(tmp_path / "public.h5", other) as writer:
        for group, count in (("train", 20), ("test", 8), ("public", 40)):
            rows, labels = gaussian_rows(group, count, 10)
            writer.write_group(group, count, 10, [rows], labels, [f"{group}/{row}" for row in range(count)])
    words = (run, run.parent / "f.h5", "--calibrate", "public.h5")
    for command in ("predict", "evaluate"):
        refused(cli(command, *words), 3, ['public.h5 has backbone "timm:two"'])
        assert "temperature" in cli(command, *words, "--allow-other-features").stderr
    outcome = cli("export", run, "--calibrate", "public.h5", "--out", "probe.onnx")  # which has no such option
    refused(outcome, 3, ['public.h5 has backbone "timm:two"'])
    assert "--allow-other-features" not in outcome.stderr


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("x", *CLASS_NAMES[1:]), "declares 'x' as class 0"),
        ((*CLASS_NAMES, "more"), f"declares {len(CLASS_NAMES) + 1} classes"),
    ],
)
def test_other_classes_are_refused_by_the_first_difference(
    cli: Cli, refused: Refused, run: Path, tmp_path: Path, names: tuple[str, ...], words: str
) -> None:
    features = write(tmp_path / "other.h5", replace(MADE, class_names=names))
    refused(cli("evaluate", run, features), 3, [words, "same classes"])


def test_a_run_of_imported_rows_is_not_told_to_extract(cli: Cli, refused: Refused, tmp_path: Path) -> None:
    assert cli("train", "--method", "noisy-gd", "--eps", "3", "--steps", "3", "--out", "digits").status == 0
    features = write(tmp_path / "f.h5", MADE)
    outcome = cli("predict", "digits", features)
    refused(outcome, 3, ['backbone "timm:one"', "give rows of the same network"])
    assert "--like" not in outcome.stderr


def test_numbers_beyond_float32_are_named_with_their_row(cli: Cli, refused: Refused, run: Path) -> None:
    rows = gaussian_rows("test", 5)[0].astype(np.float64)
    rows[3, 1] = -1e39
    np.save("rows.npy", rows)
    refused(cli("predict", run, "rows.npy"), 3, ["holds -1e+39 at row 3, column 1", "largest float32"], notes=1)
