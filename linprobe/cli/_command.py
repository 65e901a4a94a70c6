"""Commands made from the declarations in `linprobe.options`: flags, help texts and examples; and the options that every
command takes, anywhere on the line: --config, --quiet, --verbose and --debug."""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import MISSING, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_origin

import typer
from typer.core import TyperCommand, TyperGroup

from linprobe.atomic_files import given_path, given_text, path_from
from linprobe.errors import ParameterError, UsageError, require_for
from linprobe.options import GROUPS, METHOD_OPTIONS, TRAIN, Choice, Confirmation, RunOptions, Target, declaration

FEW = 2  # largest number of methods that a help text lists
ARGUMENTS, OPTIONS, ANYWHERE = "Arguments", "Options", "Every command takes"
METHOD_GROUP = "Method"
LAST = {"overwrite": 1, "as_json": 2, "dry_run": 3}
METHOD_WORDS = ("--method", "-m")
COMMANDS: dict[str, Callable[[dict[str, Any]], None]] = {}  # what takes the values of the flags by parameter
FLAGS: dict[str, Sequence[Flag]] = {}
EVERYWHERE = (
    ("--config FILE.toml", "Take options from a TOML file; flags on the command line win."),
    ("--quiet", "Print no notes, tables or progress on stderr, errors only."),
    (
        "-v, --verbose",
        "Show mu of Gaussian DP and rho of zero-concentrated DP in tables, and all that verify does not check.",
    ),
    ("--debug", "Show a traceback when something goes wrong."),
)
SWITCHES = ("debug", "quiet", "verbose")
HELP_ALL = "--help-all"
LONGEST = 400  # characters of the description of a command in the help of the program
Asked = TypeVar("Asked", bound=declaration.Request)


@dataclass
class Flag:
    """One parameter of a command. Methods may declare it differently."""

    option: declaration.Option
    of_command: bool = False  # whether the command applies its default; a method may not have the option
    others: dict[str, declaration.Option] = field(default_factory=dict)  # that differ from `option`, by method
    methods: list[str] = field(default_factory=list)  # that take it; empty for a command's own
    is_of_a_method: bool = False  # and not an argument that estimators share
    of_request: bool = False  # whether it is an option of a `Request`, whose range is in the help text

    @property
    def help(self) -> str:
        """Its methods, description, words or range, and default."""
        methods = self._listed_methods
        text = self.option.sentence.format(methods_on_gpu=", ".join(declaration.methods_on_gpu()))
        if methods and text[:1].isupper() and text[1:2].islower():
            text = text[0].lower() + text[1:]
        elsewhere = {method: other.listed_words for method, other in self.others.items() if other.words}
        more = "".join(
            f"; {method}: {words}" for method, words in elsewhere.items() if words != self.option.listed_words
        )
        if self.of_request and self.option.allowed and not self.option.words:
            more += f", {'each ' if self.option.several else ''}{self.option.allowed}{self.option.after}"
        default = "" if self._has_default else self._default
        return f"{methods}{text.removesuffix('.')}{more}.{default and f' [default: {default}]'}"

    @property
    def _has_default(self) -> bool:
        """Whether typer gets a default, which it shows."""
        return self.of_command and self.option.default not in (None, (), MISSING)

    def help_of(self, method: str) -> str:
        option = self.option if self.of_command else self.others.get(method, self.option)
        if "{methods_on_gpu}" in option.help:
            option = replace(option, help=f"cpu{', cuda or cuda:N' if METHOD_OPTIONS[method].on_gpu else ''}.")
        return replace(self, option=option, others={}, methods=[]).help

    @property
    def _listed_methods(self) -> str:
        if self.methods == _on_samples():
            return "With Poisson sampling: "
        return f"{', '.join(self.methods)}: " if 0 < len(self.methods) <= FEW else ""

    @property
    def _default(self) -> str:
        own = self.option.unset if self.option.default == () else self.option.default_text
        differing: dict[str, list[str]] = {}
        for method, other in self.others.items():
            if other.default_text != own:
                differing.setdefault(other.default_text, []).append(method)
        on_samples = _on_samples()
        texts = [
            f"{text} {'with Poisson sampling' if methods == on_samples else ', '.join(methods)}"
            for text, methods in differing.items()
        ]
        return "; ".join([own, *texts] if own else [])

    @property
    def parameter(self) -> inspect.Parameter:
        option = self.option
        kind: Any = str if option.commas or option.from_text else option.kind
        if (option.several and not option.commas) or get_origin(option.kind) is dict:
            kind = list[kind]
        default: Any = inspect.Parameter.empty if self.of_request and option.default is MISSING else None
        if self._has_default:
            default = declaration.as_word(option.default) if option.commas else option.default
        if default is None:
            kind |= None
        annotation = Annotated[kind, self._marked]
        return inspect.Parameter(
            option.parameter, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
        )

    @property
    def _marked(self) -> Any:
        option = self.option
        if option.argument is not None:
            parser = path_from if "-" in option.argument else given_path if option.kind is Path else None
            return typer.Argument(metavar=option.argument, parser=parser, help=self.help)
        spellings = option.spellings
        if option.kind is bool and not self.of_command:
            spellings = (f"{spellings[0]}/--no-{spellings[0].removeprefix('--')}",)
        group = METHOD_GROUP if self.is_of_a_method else option.group or None
        # the commands say themselves what cannot be read
        is_path = option.kind is Path
        return typer.Option(
            *spellings,
            help=self.help,
            metavar=option.metavar or ("PATH" if is_path else None),
            rich_help_panel=group,
            parser=given_path if is_path else None,
            readable=False,
        )


def _on_samples() -> list[str]:
    return [
        method for method, options in METHOD_OPTIONS.items() if "sampling_rate" in declaration.arguments_of(options)
    ]


def flags_of(request: type[Any]) -> list[Flag]:
    """The flags of a request, or of a group of options: arguments first, `LAST` last."""
    flags = [Flag(option, of_command=True, of_request=True) for option in declaration.declared(request).values()]
    return sorted(flags, key=lambda flag: LAST.get(flag.option.name, 0) - (flag.option.argument is not None))


def train_flags() -> list[Flag]:
    flags: dict[str, Flag] = {}
    for group in TRAIN:
        for option in declaration.declared(group).values():
            named = Flag(option, of_command=group in (Target, Choice, RunOptions, Confirmation))
            flags.setdefault(option.parameter, named)
    for method, options in METHOD_OPTIONS.items():
        for option in declaration.arguments_of(options).values():
            if option.name == "classes":
                continue  # the feature file declares the classes
            flag = flags.setdefault(option.parameter, Flag(option, is_of_a_method=True))
            flag.methods.append(method)
            if option != flag.option:
                flag.others[method] = option
    return sorted(flags.values(), key=lambda flag: flag.option.argument is None)


def flag_of_argument(command: str, name: str) -> str | None:
    """The flag of a command for an argument in Python, or how to give what has no flag; None for an unknown name."""
    option = next((flag.option for flag in FLAGS.get(command, ()) if flag.option.name == name), None)
    if option is None or option.argument is None:
        return None if option is None else option.spellings[0]
    return f"{option.argument.partition('|')[0].strip('[].')} without a flag"


def command(request: type[Asked]) -> Callable[[Callable[[Asked], None]], Callable[[Asked], None]]:
    """Make the decorated function, which carries out a request and prints, the command that the request declares."""

    def registered(function: Callable[[Asked], None]) -> Callable[[Asked], None]:
        add_command(request, flags_of(request), lambda given: function(request_of(request, given)))
        return function

    return registered


def add_command(
    request: type[declaration.Request], flags: Sequence[Flag], run: Callable[[dict[str, Any]], None]
) -> None:
    """Add the command that a request declares; `run` gets the values of the flags by parameter."""
    COMMANDS[request.command], FLAGS[request.command] = run, flags


def typer_function(name: str, *, bare: bool = False) -> Callable[..., None]:
    """The function of a command, with a signature that typer reads; with `bare`, without parameters."""

    def called(**given: Any) -> None:
        COMMANDS[name](given)

    called.__doc__ = declaration.REQUESTS[name].__doc__
    parameters = [] if bare else [flag.parameter for flag in FLAGS[name]]
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {}
    return called


def request_of(request: type[Asked], given: Mapping[str, Any]) -> Asked:
    return request(**{name: _value(one, given[one.parameter]) for name, one in declaration.declared(request).items()})


def _value(option: declaration.Option, given: Any) -> Any:
    if option.from_text is not None and given is not None:
        return option.from_text(option.flag, given)
    return _listed(option, given) if option.several else given


def _listed(option: declaration.Option, value: Any) -> tuple[Any, ...] | None:
    """The values of a flag that takes several; of numbers, each once. None if it was not given and None means unset."""
    if value is None and option.default is None:
        return None
    if value is None or not option.commas:
        return tuple(value or ())
    words = [word.strip() for word in value.split(",") if word.strip()]
    if option.kind not in (int, float):
        return tuple(words)
    whole = "whole " if option.kind is int else ""
    example = declaration.as_word(option.default[:3]) or "0,1"
    try:
        return tuple(option.plain(map(option.kind, words)))
    except ValueError:
        raise ParameterError(
            f"{option.flag} is {value!r}; allowed: {whole}numbers with commas between, as {example}"
        ) from None


class Command(TyperCommand):
    """A command whose help has examples first, options under headings, and only the options of the method it names."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the words, as help needs the method among them."""
        ctx.meta["linprobe.words"] = list(args)
        return super().parse_args(ctx, ["--help" if word == HELP_ALL else word for word in args])

    def invoke(self, ctx: Any) -> Any:
        """Run the command. A missing extra is refused before the command imports what it computes with."""
        if self.name != "extract":
            require_for(ctx.params)
        return super().invoke(ctx)

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        super().format_usage(ctx, formatter)
        with formatter.section("Examples"):
            for example in declaration.REQUESTS[str(self.name)].examples:
                formatter.write(f"{'':>{formatter.current_indent}}linprobe {example}\n")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        words = ctx.meta.get("linprobe.words", ())
        method = _method_among(words)
        short = bool(declaration.REQUESTS[str(self.name)].first) and method is None and HELP_ALL not in words
        panels = self._panels(ctx, method, short=short)
        for panel, records in {**panels, ANYWHERE: [] if short else list(EVERYWHERE)}.items():
            if records:
                with formatter.section(panel):
                    formatter.write_dl(records)
        if panels[METHOD_GROUP] and not short:
            formatter.write_paragraph()
            formatter.write_text(
                "With --method NAME before --help, only the options of that method are shown."
                if method is None
                else f"Only options that {method} takes are shown."
            )

    def _panels(self, ctx: Any, method: str | None, *, short: bool) -> dict[str, list[tuple[str, str]]]:
        first = declaration.REQUESTS[str(self.name)].first
        left_out: set[str] = set()  # what other methods declare, and this one does not
        if method is not None:
            taken = {
                name: declaration.config_keys(*options.takes, options).keys()
                for name, options in METHOD_OPTIONS.items()
            }
            left_out = set().union(*taken.values()) - taken[method]
        flags = {flag.option.parameter: flag for flag in FLAGS[str(self.name)]}
        panels: dict[str, list[tuple[str, str]]] = {ARGUMENTS: [], **{group: [] for group in GROUPS}, METHOD_GROUP: []}
        for parameter in self.get_params(ctx):
            is_argument = parameter.param_type_name == "argument"
            if parameter.name in left_out or (short and not is_argument and parameter.name not in (*first, "help")):
                continue
            if method is not None and parameter.name in flags:
                own: Any = copy(parameter)
                own.help = flags[parameter.name].help_of(method)
                parameter = own
            group = ARGUMENTS if is_argument else getattr(parameter, "rich_help_panel", None) or OPTIONS
            record = parameter.get_help_record(ctx)
            if record is not None:
                panels.setdefault(group, []).append(record)
        panels[OPTIONS] = panels.pop(OPTIONS)  # the last
        if short:
            panels[OPTIONS].append((HELP_ALL, "Show all options. --method NAME --help shows the options of a method."))
        return panels


class Program(TyperGroup):
    """The program, whose help shows the whole first sentence of the help of every command."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        described = [(name, shown.get_short_help_str(LONGEST)) for name, shown in commands.items() if shown]
        with formatter.section("Commands"):
            formatter.write_dl(described)


def _method_among(given: Sequence[str]) -> str | None:
    """The method that the words of a command name, if there is such a method."""
    for place, word in enumerate(given):
        name = word.removeprefix("--method=") if word.startswith("--method=") else None
        if word in METHOD_WORDS and place + 1 < len(given):
            name = given[place + 1]
        if name in METHOD_OPTIONS:
            return name
    return None


@dataclass(frozen=True)
class Everywhere:
    debug: bool = False
    quiet: bool = False
    verbose: bool = False
    config: Path | None = None


def taken_out(arguments: Sequence[str]) -> tuple[Everywhere, list[str]]:
    """The options of `EVERYWHERE` among arguments, and the others. UsageError: one without its file, or twice."""
    values: dict[str, Any] = {}
    remaining: list[str] = []
    words = iter(arguments)
    for word in words:
        word = "--verbose" if word == "-v" else word
        name, equals, value = word.removeprefix("--").partition("=")
        if word.startswith("--") and name in SWITCHES and not equals:
            values[name] = True
        elif word.startswith("--") and name == "config":
            file = value if equals else next(words, "")
            if not file:
                raise UsageError("--config was given without a file; allowed: --config FILE")
            if name in values:
                raise UsageError(f"--config was given twice, {values[name]} and {file}; give it once")
            values[name] = Path(file)
        else:
            remaining.append(word)
    return Everywhere(**values), remaining


def defaults_from(path: Path, command: str, parameters: Iterable[Any], commands: Iterable[str]) -> dict[str, Any]:
    """Values for the parameters of a command, as typer made them, from a TOML file, by parameter name.

    A key is a flag without its dashes, or the name of an argument. Keys outside any table are for the command that is
    run; keys in a table named after a command are for that command.
    """
    try:
        content = tomllib.loads(given_text(path, "utf-8-sig"))
    except OSError as error:
        raise UsageError(f"config file {path} cannot be read ({error.strerror}); give a TOML file") from None
    except (ValueError, RecursionError) as error:  # TOML or its encoding
        raise UsageError(f"config file {path} is not TOML ({error}); write lines such as eps = 3") from None
    tables = {name: value for name, value in content.items() if isinstance(value, dict)}
    known = list(commands)
    for table in tables:
        if table not in known:
            raise UsageError(f"{path} has the table [{table}]; allowed: a table for a command: {', '.join(known)}")
    by_key = {key: parameter for parameter in parameters for key in _keys(parameter)}
    given = {name: value for name, value in content.items() if name not in tables} | tables.get(command, {})
    commas = {flag.option.parameter: flag.option.commas for flag in FLAGS[command]}
    values: dict[str, Any] = {}
    for key, value in given.items():
        parameter = by_key.get(key.replace("_", "-"))
        if parameter is None:
            near = declaration.nearest(key, {name: name for name in by_key})
            hint = f"did you mean {near}?" if near else f"see linprobe {command} --help"
            raise UsageError(f"{path} sets {key}, which linprobe {command} does not have; {hint}")
        if parameter.name in values:
            raise UsageError(f"{path} sets {key} under two names; allowed: one; leave the other out")
        values[parameter.name] = _configured(path, key, value, parameter, commas=commas.get(parameter.name, False))
    return values


def _keys(parameter: Any) -> set[str]:
    """The keys of a parameter: its long flags without dashes, also those that say no, or its name."""
    flags = {flag.removeprefix("--") for flag in (*parameter.opts, *parameter.secondary_opts) if flag.startswith("--")}
    return flags or {parameter.name.replace("_", "-")}


def _configured(path: Path, key: str, value: Any, parameter: Any, *, commas: bool) -> Any:
    """A value as the command line would have it, with `commas` between several."""
    if getattr(parameter, "is_flag", False):
        if not isinstance(value, bool):
            raise UsageError(f"{path} sets {key} to {value!r}; allowed: true, false")
        return value != (f"--{key.replace('_', '-')}" in parameter.secondary_opts)
    several = getattr(parameter, "multiple", False) or parameter.nargs != 1
    if several and isinstance(value, list) and all(_is_scalar(each) for each in value):
        return [str(each) for each in value]
    if commas and isinstance(value, list) and all(map(_is_scalar, value)):
        return ",".join(map(str, value))
    if several or not _is_scalar(value):
        raise UsageError(f"{path} sets {key} to {value!r}; allowed: {'a list' if several else 'one number or text'}")
    return str(value)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)
