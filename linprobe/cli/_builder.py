"""Commands of typer, made from the requests that `linprobe.options` declares."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field
from functools import cache
from typing import Annotated, Any, TypeVar

import typer

from linprobe.atomic_files import path_from
from linprobe.errors import ParameterError
from linprobe.options import METHOD_OPTIONS, TRAIN, Budget, Choice, Confirmation, RunOptions
from linprobe.options.declaration import Option, Request, arguments_of, declared, methods_on_gpu
from linprobe.options.requests import TrainingFlags
from linprobe.options.shared import OUTPUT

FEW = 2  # largest number of methods that a help text lists
OPTIONS, METHOD = "Options", "Method"  # panels of options that declare none
Asked = TypeVar("Asked", bound=Request)
FUNCTIONS: dict[type[Request], Callable[[Any], None]] = {}


def command(request: type[Asked]) -> Callable[[Callable[[Asked], None]], Callable[[Asked], None]]:
    """Make the decorated function the one that a command calls with its request."""

    def register(function: Callable[[Asked], None]) -> Callable[[Asked], None]:
        FUNCTIONS[request] = function
        return function

    return register


@dataclass
class Flag:
    """One parameter of a command. Methods may declare it differently.

    Attributes:
        option: the first declaration. others: the declarations that differ from it, by method.
        methods: methods that take the option; empty for options of the command.
        is_of_a_method: whether it is an option of methods, not an argument that estimators share.
        of_command: whether it is an option of the command, which applies its default. The other options are None
            unless they are given, so that a method can refuse an option that it does not have.
        required: whether it must be given. panel: of the help text.
    """

    option: Option
    of_command: bool = False
    others: dict[str, Option] = field(default_factory=dict)
    methods: list[str] = field(default_factory=list)
    is_of_a_method: bool = False
    required: bool = False
    panel: str = METHOD

    @property
    def help(self) -> str:
        """Its methods, description, words and default."""
        methods = self._listed_methods
        text = self.option.sentence.replace("{methods_on_gpu}", ", ".join(methods_on_gpu()))
        if methods and text[:1].isupper() and text[1:2].islower():
            text = text[0].lower() + text[1:]
        elsewhere = {method: other.listed_words for method, other in self.others.items() if other.words}
        differing = "".join(
            f"; {method}: {words}" for method, words in elsewhere.items() if words != self.option.listed_words
        )
        default = "" if self._default not in (None, "") else self._default_in_words
        return f"{methods}{text.removesuffix('.')}{differing}.{default and f' [default: {default}]'}"

    @property
    def _listed_methods(self) -> str:
        on_samples = [method for method, options in METHOD_OPTIONS.items() if "sampling_rate" in arguments_of(options)]
        if self.methods == on_samples:
            return "With Poisson sampling: "
        return f"{', '.join(self.methods)}: " if 0 < len(self.methods) <= FEW else ""

    @property
    def _default_in_words(self) -> str:
        own = self.option.default_text
        differing = [f"{other.default_text} {method}" for method, other in self.others.items()]
        return "; ".join([own, *(text for text in differing if not text.startswith(f"{own} "))] if own else [])

    @property
    def _default(self) -> Any:
        """The default that typer gets, and shows; None without one."""
        option = self.option
        if not self.of_command or option.default in (MISSING, None):
            return None
        if not option.several:
            return option.default
        return ",".join(_plain(each) for each in option.default) if option.commas else None

    @property
    def parameter(self) -> inspect.Parameter:
        """The parameter of a typer command."""
        option, default = self.option, self._default
        kind: Any = str if option.commas else option.kind
        if option.several and not option.commas:
            kind = list[kind]
        shown: dict[str, Any] = {"help": self.help, "metavar": option.argument or option.metavar}
        if option.piped:
            shown["parser"] = path_from
        if option.argument is not None:
            marked: Any = typer.Argument(**shown)
        else:
            marked = typer.Option(*self._spellings, rich_help_panel=self.panel, **shown)
        if default is None and not self.required:
            kind = kind | None
        return inspect.Parameter(
            option.parameter,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if self.required else default,
            annotation=Annotated[kind, marked],
        )

    @property
    def _spellings(self) -> tuple[str, ...]:
        spellings = self.option.spellings
        if self.option.kind is bool and self.option.default is True:
            return (f"{spellings[0]}/--no-{spellings[0].removeprefix('--')}",)
        return spellings

    def value(self, given: Any) -> Any:
        """The value of the request, from the value that typer read."""
        option = self.option
        if not option.several or (given is None and option.optional):
            return given
        if not option.commas:
            return tuple(given or ())
        words = [word.strip() for word in given.split(",")] if given.strip() else []
        if option.kind is str:
            return tuple(word for word in words if word)
        try:
            return tuple(option.kind(word) for word in words)
        except ValueError:
            flag, whole = option.spellings[0], "whole " if option.kind is int else ""
            raise ParameterError(
                f"{flag.removeprefix('--')} is {given!r}; allowed: {whole}numbers with commas between; give for "
                f"example {flag} {option.example}"
            ) from None


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


@cache
def train_flags() -> tuple[Flag, ...]:
    """The flags of `TRAIN` and of all methods, the flags of the command before the flags of methods."""
    flags: dict[str, Flag] = {}
    for group in TRAIN:
        for option in declared(group).values():
            of_command = group in (Budget, Choice, RunOptions, Confirmation)
            flags[option.parameter] = Flag(option, of_command, panel=option.group or METHOD)
    for method, options in METHOD_OPTIONS.items():
        for option in arguments_of(options).values():
            if option.name == "classes":
                continue  # the feature file declares the classes
            flag = flags.setdefault(option.parameter, Flag(option, is_of_a_method=True))
            flag.methods.append(method)
            if option != flag.option:
                flag.others[method] = option
    return tuple(flags.values())


def flag_of_argument(name: str) -> str | None:
    """The flag of an estimator's argument; None if there is no such argument."""
    return next((flag.option.spellings[0] for flag in train_flags() if flag.option.name == name), None)


def _own_flags(request: type[Request], panel: str) -> list[Flag]:
    return [
        Flag(option, of_command=True, required=option.default is MISSING, panel=option.group or panel)
        for option in declared(request).values()
        if not option.hidden
    ]


def add_command(app: typer.Typer, request: type[Request], shown_as: type[Any], *, bare: bool = False) -> None:
    """Add the command of a request to `app`, with the class `shown_as`, which formats its help.

    With `bare`, the command has its name and help text only.
    """
    added = app.command(request.command, cls=shown_as, help=inspect.cleandoc(request.__doc__ or ""))
    if bare:
        added(lambda: None)
        return
    trains = issubclass(request, TrainingFlags)
    own = _own_flags(request, METHOD if trains else OPTIONS)
    left_out = request.left_out if issubclass(request, TrainingFlags) else ()
    shared = [flag for flag in train_flags() if flag.option.parameter not in left_out] if trains else []

    def called(**given: Any) -> None:
        values = {flag.option.name: flag.value(given[flag.option.parameter]) for flag in own}
        if trains:
            values["given"] = _for_training(given, shared)
        FUNCTIONS[request](request(**values))

    flags = sorted(
        [*own, *shared], key=lambda flag: (flag.option.argument is None, flag in own and flag.panel == OUTPUT)
    )
    called.__signature__ = inspect.Signature([flag.parameter for flag in flags])  # type: ignore[attr-defined]
    called.__annotations__ = {}
    added(called)


def _for_training(given: dict[str, Any], flags: list[Flag]) -> dict[str, Any]:
    """The fields of a request to train; options of methods that were given are under `options`."""
    named = {flag.option.parameter: given[flag.option.parameter] for flag in flags if not flag.is_of_a_method}
    options = {flag.option.parameter: given[flag.option.parameter] for flag in flags if flag.is_of_a_method}
    return {**named, "options": {name: value for name, value in options.items() if value is not None}}
