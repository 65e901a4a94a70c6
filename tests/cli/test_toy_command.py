"""A command is a declared request and a function: flags, help, checks, --config and pages come from the declaration."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from linprobe.cli import program
from linprobe.options.declaration import REQUESTS
from tests.cli.outcomes import Cli, result_of
from tests.docs.scripts import load_script

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(autouse=True)
def toy() -> Iterator[None]:
    """The toy is a command of linprobe."""
    from tests.cli import toy as module

    importlib.reload(module)
    program.cache_clear()
    yield
    del REQUESTS["toy"]
    program.cache_clear()


def test_the_command_runs_with_flags_defaults_and_a_config_file(cli: Cli, tmp_path: Path) -> None:
    assert cli("toy", "3").stdout == "6\n"
    assert cli("toy", "3", "--factors", "2,5", "--mark", "star").stdout == "30*\n"
    assert result_of(cli("toy", "3", "--json")) == {"product": 6}
    (tmp_path / "toy.toml").write_text('number = 4\nmark = "star"\n[toy]\nfactors = "3"\n')
    assert cli("toy", "--config", "toy.toml").stdout == "12*\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["3", "--factors", "2,11"], ["factors is 11", "above 0, at most 10"]),
        (["3", "--factors", "2,x"], ["factors is '2,x'", "--factors 2,5"]),
        (["3", "--mark", "dot"], ["mark is 'dot'", "none, star"]),
        (["three"], ["NUMBER"]),
        ([], ["NUMBER"]),
        (["3", "--faktors", "2"], ["--factors"]),
    ],
)
def test_a_wrong_request_is_one_line(cli: Cli, refused: Callable[..., None], words: list[str], said: list[str]) -> None:
    refused(cli("toy", *words), 2, said)


def test_a_key_that_is_not_declared_is_refused(cli: Cli, refused: Callable[..., None], tmp_path: Path) -> None:
    (tmp_path / "toy.toml").write_text("number = 4\nfaktors = 3\n")
    refused(cli("toy", "--config", "toy.toml"), 2, ["sets faktors", "did you mean factors?"])


def test_help_and_pages_have_the_command(cli: Cli) -> None:
    assert "toy         Multiply a number." in cli("--help").stdout
    shown = " ".join(cli("toy", "--help").stdout.split())
    pages = (load_script(DOCS / "generate_cli.py").render(), load_script(DOCS / "generate_man.py").render())
    for text in (shown, *(" ".join(page.replace("\\-", "-").split()) for page in pages)):
        for words in ("toy 3 --factors 2,5", "Multiply a number.", "Factors, each above 0, at most 10.", "none, star"):
            assert words in text
