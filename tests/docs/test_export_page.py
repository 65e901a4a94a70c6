"""The commands and the code of the page on exports run, and every format gives the labels of `predict`."""

from __future__ import annotations

import csv
import io
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Outcome

PAGE = (Path(__file__).parents[2] / "docs" / "export.md").read_text(encoding="utf-8")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)


def test_every_format_gives_the_labels_of_predict(
    cli: Callable[..., Outcome], capsys: pytest.CaptureFixture[str]
) -> None:
    for package in ("onnx", "onnxruntime"):
        pytest.importorskip(package)
    export, predict = blocks("sh")
    outcomes = [cli(*shlex.split(line)[1:]) for line in export.splitlines()]
    parts = re.fullmatch(r'python -c "\n(.*)"\nlinprobe (.*) > predicted.csv\n', predict, re.DOTALL)
    assert parts is not None
    make_rows, line = parts.groups()
    exec(make_rows, {})
    outcomes.append(cli(*shlex.split(line)))
    assert [outcome.status for outcome in outcomes] == [0] * 4
    predicted = [row["label"] for row in csv.DictReader(io.StringIO(outcomes[-1].stdout))]
    programs = blocks("python")
    assert len(programs) == 2
    for program in programs:
        names: dict[str, Any] = {}
        exec(program, names)
        assert list(names["labels"]) == predicted
        assert capsys.readouterr().out.startswith("(3, 1e-05)-differential privacy")
