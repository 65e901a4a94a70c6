"""A command declared outside linprobe has flags, checks, help, a config table, and its place in the references."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from linprobe.cli import _command, program
from linprobe.options.declaration import REQUESTS
from tests.cli.outcomes import Cli
from tests.docs.scripts import load_script

DOCS = Path(__file__).parents[2] / "docs"
Refused = Callable[..., None]


@pytest.fixture(autouse=True)
def toy() -> Iterator[None]:
    """The toy command, which is gone afterwards."""
    importlib.import_module("tests.cli.toy_command")
    program.cache_clear()
    yield
    del sys.modules["tests.cli.toy_command"]
    for registry in (REQUESTS, _command.COMMANDS, _command.FLAGS):
        registry.pop("toy")
    program.cache_clear()


def test_it_runs_with_its_flags(cli: Cli) -> None:
    assert cli("toy", "--size", "1").stdout == "xxxxxxxxxx\n"
    assert cli("toy", "--size", "2", "--shares", "0.1,0.2").stdout == "x\nx\nxx\nxx\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], ["Missing option '--size'", "See linprobe toy --help."]),
        (["--size", "0"], ["size is 0; allowed: 1 to 9"]),
        (["--size", "1", "--shares", "2"], ["shares is 2.0; allowed: above 0, at most 1"]),
        (["--size", "1", "--shares", "long"], ["shares is 'long'; allowed: numbers with commas between, as 1"]),
    ],
)
def test_its_values_are_checked(cli: Cli, refused: Refused, words: list[str], said: list[str]) -> None:
    refused(cli("toy", *words), 2, said)


def test_a_config_file_has_its_options(cli: Cli, refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "toy.toml").write_text("[toy]\nsize = 1\n")
    assert cli("toy", "--config", "toy.toml").stdout == "xxxxxxxxxx\n"
    (tmp_path / "toy.toml").write_text("[toy]\nsizes = 1\n")
    refused(cli("toy", "--config", "toy.toml"), 2, ["sets sizes", "did you mean size?"])


def test_help_and_references_explain_it(cli: Cli) -> None:
    text = " ".join(cli("toy", "--help").stdout.split())
    for said in ("Print a toy.", "linprobe toy --size 3", "Number of rows, 1 to 9.", "each above 0, at most 1."):
        assert said in text
    assert "| `--size` | Number of rows, 1 to 9. | required |" in load_script(DOCS / "generate_cli.py").render()
    page = load_script(DOCS / "generate_man.py").render()
    assert ".SS linprobe toy" in page
    assert "linprobe toy \\-\\-size 3" in page
