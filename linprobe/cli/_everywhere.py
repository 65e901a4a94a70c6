"""Options that every command takes, anywhere on the line: --config, --quiet, --verbose and --debug."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from linprobe.atomic_files import given_text
from linprobe.errors import UsageError
from linprobe.options.declaration import nearest

EVERYWHERE = (
    ("--config FILE.toml", "Take options from a TOML file; flags on the command line win."),
    ("--quiet", "Print no notes, tables or progress on stderr, errors only."),
    ("-v, --verbose", "Show mu of Gaussian DP and rho of zero-concentrated DP in tables."),
    ("--debug", "Show a traceback when something goes wrong."),
)
SWITCHES = ("debug", "quiet", "verbose")


@dataclass(frozen=True)
class Everywhere:
    """The options of `EVERYWHERE` as given."""

    debug: bool = False
    quiet: bool = False
    verbose: bool = False
    config: Path | None = None


def taken_out(arguments: Sequence[str]) -> tuple[Everywhere, list[str]]:
    """The options of `EVERYWHERE` among some arguments, and the other arguments.

    Raises:
        UsageError: an option without its file, or twice.
    """
    found: dict[str, Any] = {}
    others: list[str] = []
    words = iter(arguments)
    for word in words:
        word = "--verbose" if word == "-v" else word
        name, equals, value = word.removeprefix("--").partition("=")
        if word.startswith("--") and name in SWITCHES and not equals:
            found[name] = True
        elif word.startswith("--") and name == "config":
            file = value if equals else next(words, "")
            if not file:
                raise UsageError("--config was given without a file; allowed: --config FILE")
            if name in found:
                raise UsageError(f"--config was given twice, {found[name]} and {file}; give it once")
            found[name] = Path(file)
        else:
            others.append(word)
    return Everywhere(**found), others


def defaults_from(path: Path, command: str, parameters: Iterable[Any], commands: Iterable[str]) -> dict[str, Any]:
    """Values for the parameters of a command from a TOML file, by parameter name.

    A key is a flag without its dashes, or the name of an argument. Keys outside any table are for the command that is
    run; those in a table named after a command are for that command.

    Args:
        parameters: of the command, as typer made them. commands: names of all commands.

    Raises:
        UsageError: a file that cannot be read, an unknown key or table, or a value of a wrong type.
    """
    content = _content(path)
    tables = {name: value for name, value in content.items() if isinstance(value, dict)}
    known = list(commands)
    for table in tables:
        if table not in known:
            raise UsageError(f"{path} has the table [{table}]; allowed: a table for a command: {', '.join(known)}")
    by_key = {key: parameter for parameter in parameters for key in _keys(parameter)}
    given = {name: value for name, value in content.items() if name not in tables} | tables.get(command, {})
    values: dict[str, Any] = {}
    for key, value in given.items():
        parameter = by_key.get(key.replace("_", "-"))
        if parameter is None:
            near = nearest(key, {name: name for name in by_key})
            hint = f"did you mean {near}?" if near else f"see linprobe {command} --help"
            raise UsageError(f"{path} sets {key}, which linprobe {command} does not have; {hint}")
        values[parameter.name] = _value(path, key, value, parameter)
    return values


def _content(path: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(given_text(path))
    except OSError as error:
        raise UsageError(f"config file {path} cannot be read ({error.strerror}); give a TOML file") from None
    except (ValueError, RecursionError) as error:  # TOML or its encoding
        raise UsageError(f"config file {path} is not TOML ({error}); write lines such as eps = 3") from None


def _keys(parameter: Any) -> set[str]:
    """The keys of a parameter: its long flags without dashes, or its name."""
    flags = {flag.removeprefix("--") for flag in parameter.opts if flag.startswith("--")}
    return flags or {parameter.name.replace("_", "-")}


def _value(path: Path, key: str, value: Any, parameter: Any) -> Any:
    """A value as the command line would have it."""
    if getattr(parameter, "is_flag", False):
        if not isinstance(value, bool):
            raise UsageError(f"{path} sets {key} to {value!r}; allowed: true, false")
        return value
    several = getattr(parameter, "multiple", False) or parameter.nargs != 1
    if several and isinstance(value, list) and all(_is_scalar(each) for each in value):
        return [str(each) for each in value]
    if several or not _is_scalar(value):
        raise UsageError(f"{path} sets {key} to {value!r}; allowed: {'a list' if several else 'one number or text'}")
    return str(value)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)
