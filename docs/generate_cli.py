"""Write docs/cli.md and the manual page from the code: `python docs/generate_cli.py`.

A test compares the files with `render`. generate_man.py has the manual page.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import linprobe.cli
from linprobe import errors
from linprobe.cli._command import EVERYWHERE
from linprobe.options.declaration import REQUESTS

TARGET = Path(__file__).with_name("cli.md")
INTRODUCTION = """\
# Command line reference

<!-- Made by `python docs/generate_cli.py`. Do not edit: the texts are in linprobe/options/. -->

Results go to stdout; notes, tables and errors to stderr. A path `-` is read from the last line of standard input, so
that commands can be joined with `|`. The [methods](methods/README.md) pages list the defaults of each method.
"""

CONFIG = """\
`train --method NAME --help` prints only the options of that method.

A key of a `--config` file is a flag without its dashes, or the name of an argument. Several values are a list,
or text with commas. Keys at the top are for the command that is run; keys in a table named after a command are for
that command. Flags on the command line win.

    features = "features.h5"

    [train]
    method = "adamix"
    eps = 3\
"""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _default(parameter: Any) -> str:
    """The default as written on the command line; empty where the help text says it, or there is none."""
    value = parameter.default
    if value in (None, "") or isinstance(value, bool):
        return ""
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _parameter_row(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        name = f"`{_cell(parameter.metavar or parameter.name.upper())}`"
    else:
        name = ", ".join(f"`{option}`" for option in (*parameter.opts, *parameter.secondary_opts))
    required = "required" if parameter.required else _default(parameter)
    return f"| {name} | {_cell(parameter.help or '')} | {required} |"


def _usage(name: str, command: Any) -> str:
    arguments = [p.metavar or p.name.upper() for p in command.params if p.param_type_name == "argument"]
    needed = [p for p in command.params if p.param_type_name == "option" and p.required]
    required = [f"{p.opts[0]} {p.name.upper()}" for p in needed]
    return " ".join(["linprobe", name, *arguments, *required, "[OPTIONS]"])


def _command(name: str, command: Any) -> str:
    rows = [_parameter_row(parameter) for parameter in command.params]
    table = "\n".join(["| argument or option | meaning | default |", "| --- | --- | --- |", *rows])
    examples = "".join(f"    linprobe {example}\n" for example in REQUESTS[name].examples)
    usage = f"    {_usage(name, command)}\n\n{command.help.strip()}"
    return f"## linprobe {name}\n\n{usage}\n\n{table}\n\nExamples:\n\n{examples}"


def _exit_statuses() -> str:
    """The exit-status table, from the error classes and their docstrings."""
    rows = ["| 0 | Done. It is no error if the reader of stdout closes it early. |"]
    found: dict[int, str] = {}
    for error in (errors.LinprobeError, *errors.LinprobeError.__subclasses__()):
        found.setdefault(error.exit_status, _cell(error.__doc__ or ""))
    found[errors.LinprobeError.exit_status] = "Any other error: a file that cannot be written, a full disk, a bug."
    rows += [f"| {status} | {meaning} |" for status, meaning in sorted(found.items())]
    rows.append(
        "| 130 | Interrupted with Ctrl-C. No result was written; `train --resume` continues from a checkpoint. |"
    )
    introduction = (
        "Every error is one line on stderr. `--debug` shows where it came from.\n\n"
        "If stdout cannot be written, the error line says which output is complete. An unwritable stderr ends no\n"
        "command."
    )
    table = "\n".join(["| status | meaning |", "| --- | --- |", *rows])
    return f"## Exit status\n\n{introduction}\n\n{table}"


def render() -> str:
    """The whole page."""
    program: Any = linprobe.cli.program()
    rows = [f"| `{words}` | {meaning} |  |" for words, meaning in EVERYWHERE]
    rows += [_parameter_row(parameter) for parameter in program.params]
    common = "\n".join(["| option | meaning | default |", "| --- | --- | --- |", *rows])
    commands = [_command(name, command) for name, command in program.commands.items()]
    return "\n".join(
        [
            INTRODUCTION,
            "## Options of every command\n",
            f"`-h` or `--help` after any command prints its help, `--help-all` after `train` and `tune` all options. "
            f"{CONFIG}\n\n{common}\n",
            *commands,
            _exit_statuses(),
            "",
        ]
    )


if __name__ == "__main__":
    import generate_man

    TARGET.write_text(render(), encoding="utf-8")
    generate_man.write()
