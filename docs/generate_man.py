"""Write docs/man/linprobe.1 from the code: `python docs/generate_cli.py`. A test compares the file with `render`.

The wheel installs the page as share/man/man1/linprobe.1, where `man linprobe` finds it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import linprobe.cli
from linprobe import __version__, errors
from linprobe.options.declaration import REQUESTS

TARGET = Path(__file__).parent / "man" / "linprobe.1"
ENVIRONMENT = {
    "LINPROBE_NATIVE": "0 turns the kernel in C off; NumPy replaces it.",
    "XDG_STATE_HOME": "The folder in which budget books are kept, as linprobe/; else ~/.local/state.",
    "TORCH_HOME": "Where torchvision keeps weights of networks.",
}


def _text(words: str) -> str:
    """Escape text for roff: backslashes, hyphens that may be copied, and lines that would be requests."""
    escaped = " ".join(words.split()).replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return f"\\&{escaped}" if escaped.startswith(".") else escaped


def _paragraphs(words: str) -> str:
    return "\n.PP\n".join(_text(paragraph) for paragraph in words.strip().split("\n\n"))


def _value(parameter: Any) -> str:
    if getattr(parameter, "is_flag", False):
        return ""
    return f" \\fI{_text((parameter.metavar or parameter.name or '').upper())}\\fR"


def _parameter(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        name = f"\\fI{_text(parameter.metavar or parameter.name.upper())}\\fR"
    else:
        names = ", ".join(f"\\fB{_text(option)}\\fR" for option in (*parameter.opts, *parameter.secondary_opts))
        name = names + _value(parameter)
    default = parameter.default
    shown = default not in (None, "") and not isinstance(default, bool) and not parameter.required
    said = f" Default: {default:g}." if isinstance(default, float) else f" Default: {default}."
    return f".TP\n{name}\n{_text((parameter.help or '') + (said if shown else ''))}"


def _command(name: str, command: Any) -> str:
    arguments = [p.metavar or p.name.upper() for p in command.params if p.param_type_name == "argument"]
    usage = f"\\fBlinprobe {_text(name)}\\fR {_text(' '.join(arguments))} [\\fIOPTIONS\\fR]"
    parameters = "\n".join(_parameter(parameter) for parameter in command.params)
    examples = "\n".join(_text(f"linprobe {example}") for example in REQUESTS[name].examples)
    shown = f".PP\nExamples:\n.PP\n.nf\n{examples}\n.fi"
    return f".SS linprobe {_text(name)}\n{usage}\n.PP\n{_paragraphs(command.help)}\n{parameters}\n{shown}"


def _statuses() -> str:
    found = {0: "Done."}
    for error in (*errors.LinprobeError.__subclasses__(), errors.LinprobeError):
        found.setdefault(error.exit_status, error.__doc__ or "")
    found[errors.LinprobeError.exit_status] = "Any other error."
    found[130] = "Interrupted with Ctrl-C."
    return "\n".join(f".TP\n\\fB{status}\\fR\n{_text(meaning)}" for status, meaning in sorted(found.items()))


def render() -> str:
    """The whole page, in roff."""
    program: Any = linprobe.cli.program()
    environment = [f".TP\n\\fB{name}\\fR\n{_text(meaning)}" for name, meaning in ENVIRONMENT.items()]
    return "\n".join(
        [
            '.\\" Made by `python docs/generate_cli.py`. Texts: linprobe/options/',
            f'.TH LINPROBE 1 "" "linprobe {__version__}" "User Commands"',
            ".SH NAME",
            "linprobe \\- differentially private linear probing on frozen features",
            ".SH SYNOPSIS",
            "\\fBlinprobe\\fR \\fICOMMAND\\fR [\\fIARGUMENTS\\fR] [\\fIOPTIONS\\fR]",
            ".SH DESCRIPTION",
            _text(
                "Fits a linear classifier on frozen image features under differential privacy, and writes a run folder "
                "whose manifest states epsilon and delta. Results go to stdout. Notes, tables and errors go to stderr. "
                "If - is given for a path, the path is read from the last line of standard input, so that commands can "
                "be joined with |."
            ),
            ".SH OPTIONS",
            *(_parameter(parameter) for parameter in program.params),
            ".SH COMMANDS",
            *(_command(name, command) for name, command in program.commands.items()),
            ".SH EXIT STATUS",
            _statuses(),
            ".SH ENVIRONMENT",
            *environment,
            "",
        ]
    )


def write() -> None:
    """Write the page."""
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    write()
