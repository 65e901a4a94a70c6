"""The command line: commands declared in `linprobe.options.requests`; each parses, calls one function, and prints.

stdout carries results only; everything for people goes to stderr. Exit status: 0 done, 1 other errors, 2 usage,
3 bad data, 4 privacy refusal, 130 Ctrl-C.
"""

import errno
import os
import sys
from contextlib import ExitStack
from functools import cache
from itertools import pairwise
from typing import Annotated, Any

import typer

from linprobe.cli import _command, _terminal, about, costs, features, runs, training
from linprobe.errors import LinprobeError, advice
from linprobe.options.declaration import REQUESTS
from linprobe.parallel import available_memory

DECLARING = (features, training, runs, about, costs)  # modules whose import declares their commands
INTERRUPTED = 130  # typer's exit status for Ctrl-C
NUMBERS = {"float": "a number", "int": "a whole number", "integer": "a whole number"}  # what typer calls types


@cache
def program(only: str | None = None) -> Any:
    """The command line that typer makes, once; with `only`, other commands have no parameters, to save time."""
    app = typer.Typer(
        name="linprobe",
        cls=_command.Program,
        epilog=f"Every command takes {', '.join(words for words, _ in _command.EVERYWHERE)} too.",
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    for name in REQUESTS:
        app.command(name)(_command.typer_function(name, bare=only not in (None, name)))
    for registered in app.registered_commands:
        registered.cls = _command.Command
    return typer.main.get_command(app)


def _version(wanted: bool) -> None:
    if wanted:
        from linprobe import __version__

        typer.echo(__version__)
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Differentially private linear probing on frozen features."""


def _fail(message: str, status: int) -> int:
    rank, size = (os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE"))  # of torchrun
    small = all(text.isdecimal() and len(text) < 10 for text in (rank, size))
    other = small and 0 < int(rank) < int(size)
    whose = f"linprobe: process {int(rank)}" if other else "linprobe"
    _terminal.note(f"{whose}: error: {' '.join(message.split())}", always=True)
    return status


def _hint(error: Any) -> str:
    """Suggest the flag for an unknown option that has the name of an estimator's argument, or quotes for shards."""
    name, context = getattr(error, "option_name", None), getattr(error, "ctx", None)
    extra = "unexpected extra argument" in error.format_message() and ".h5" in error.format_message()
    name = "features" if extra else name
    if name is None or context is None:  # typer gives no context where a known option has no value, or one too many
        return ""
    meant = _command.flag_of_argument(context.command.name, name.lstrip("-").replace("-", "_"))
    if extra and meant is not None and not meant.startswith("--"):
        return " To read several feature files as one, quote the pattern: 'shards/*.h5'."
    return f" Did you mean {meant}?" if meant else ""


def _got(error: Any, words: list[str], defaults: dict[str, Any]) -> str:
    """The value that was given for the option of an error, which typer may not name, and what a number may be."""
    parameter = getattr(error, "param", None)
    given = [value for flag, value in pairwise(words) if flag in getattr(parameter, "opts", ())]
    given += [
        values[parameter.name] for values in defaults.values() if parameter is not None and parameter.name in values
    ]
    got = f"; got {given[0]!r}" if given and str(given[0]) not in error.format_message() else ""
    allowed = NUMBERS.get(getattr(getattr(parameter, "type", None), "name", ""))
    return f"{got}; allowed: {allowed}" if allowed else got


def _misuse(error: Any, words: list[str], defaults: dict[str, Any]) -> str:
    asked = f"linprobe {_command_of(words) or ''}".rstrip()
    command = getattr(getattr(error, "ctx", None), "command_path", asked)
    text = f"{error.format_message().removesuffix('.')}{_got(error, words, defaults)}"
    stop = "" if text.endswith("?") else "."
    return f"{text}{stop}{_hint(error)} See {command} --help."


def _reader_left() -> int:
    """The exit status after the reader closed stdout, as `| head` does."""
    _terminal.drop_unwritten(getattr(sys.stdout, "wrapped", sys.stdout))  # typer hides this error of stdout
    return 0


def run(arguments: list[str]) -> int:
    """Run one command; returns its exit status. An error is one line on stderr, with a traceback only for --debug."""
    with ExitStack() as stack:
        stdout = stack.enter_context(_terminal.watched())
        try:
            everywhere, words = _command.taken_out(arguments)
            stack.enter_context(_terminal.as_asked(quiet=everywhere.quiet, verbose=everywhere.verbose))
        except LinprobeError as error:
            return _fail(str(error), error.exit_status)
        return _run(words, everywhere, stdout)


def _defaults(words: list[str], everywhere: _command.Everywhere) -> dict[str, Any]:
    if everywhere.config is None:
        return {}
    name = _command_of(words)
    commands = program(name).commands
    if name is None or name not in commands:
        return {}
    return {name: _command.defaults_from(everywhere.config, name, commands[name].params, commands)}


def _command_of(words: list[str]) -> str | None:
    """The first word that is no option; None for a shell that completes a line, and may ask for any command."""
    if "_LINPROBE_COMPLETE" in os.environ:
        return None
    return next((word for word in words if not word.startswith("-")), "")


def _reason(error: Exception, words: list[str], defaults: dict[str, Any], *, of_stdout: bool) -> tuple[str, int]:
    if isinstance(error, LinprobeError):
        return str(error), error.exit_status
    if available_memory.is_lack(error):
        return available_memory.RAN_OUT, 1
    if hasattr(error, "format_message"):  # typer's own usage errors
        return _misuse(error, words, defaults), 2
    _terminal.drop_unwritten(sys.stdout)
    if isinstance(error, ModuleNotFoundError) and not (error.name or "linprobe").startswith("linprobe"):
        return f"{error.name} is not installed, and this command needs it; pip install linprobe, with all it needs", 1
    if isinstance(error, OSError) and of_stdout:
        return f"stdout cannot be written ({error.strerror}); free some space, or redirect it", 1
    if isinstance(error, UnicodeEncodeError) and error.encoding != "utf-8":  # files have that, so it is stdout
        return f"stdout cannot be written ({error}); set PYTHONIOENCODING=utf-8, or a UTF-8 locale", 1
    if isinstance(error, OSError) and error.errno:
        return _reason_of_system(error)
    return f"{type(error).__name__}: {error}; run again with --debug to see where", 1


def _reason_of_system(error: OSError) -> tuple[str, int]:
    if error.errno == errno.ENAMETOOLONG:  # of an input: names of outputs were checked
        return f"{error.filename}: {error.strerror}; {advice(error)}", 3
    if error.errno == errno.ENOENT and error.filename is None:  # of `Path.cwd`
        return "the current folder was removed; change to a folder that exists (cd), and give the command again", 1
    return f"{error}; {advice(error)}", 1


def _interrupted() -> int:
    return _fail("stopped by Ctrl-C or a signal; nothing half-written was left under a final name", INTERRUPTED)


def _run(words: list[str], everywhere: _command.Everywhere, stdout: _terminal.Watched) -> int:
    defaults: dict[str, Any] = {}
    try:
        available_memory.check_limit()
        defaults = _defaults(words, everywhere)
        command_line = program(_command_of(words))
        status = command_line(words or ["--help"], prog_name="linprobe", standalone_mode=False, default_map=defaults)
        sys.stdout.flush()
    except BrokenPipeError:
        return _reader_left()
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # typer has handled the broken pipe
            return _reader_left()
        raise
    except KeyboardInterrupt:  # before typer handles it
        return _interrupted()
    except Exception as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # Python 3.11 wraps it where it comes in `__set_name__`
            return _interrupted()
        if everywhere.debug:
            raise
        return _fail(*_reason(error, words, defaults, of_stdout=error is stdout.error))
    if status == INTERRUPTED:
        return _interrupted()
    return status if isinstance(status, int) else 0
