"""The flags of `linprobe train`, made from the declarations in `linprobe.options`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass, field
from functools import wraps
from typing import Annotated, Any

import typer

from linprobe.options import METHOD_OPTIONS, TRAIN, Budget, Choice, Confirmation, RunOptions
from linprobe.options.declaration import Option, arguments_of, declared, methods_on_gpu

FEW = 2  # largest number of methods that a help text lists


@dataclass
class Flag:
    """One parameter of the command. Methods may declare it differently.

    Attributes:
        option: the first declaration. others: the declarations that differ from it, by method.
        methods: methods that take the option; empty for options of the command.
        is_of_a_method: whether it is an option of methods, not an argument that estimators share.
        of_command: whether it is an option of the command, which applies its default. The other options are None
            unless they are given, so that a method can refuse an option that it does not have.
    """

    option: Option
    of_command: bool = False
    others: dict[str, Option] = field(default_factory=dict)
    methods: list[str] = field(default_factory=list)
    is_of_a_method: bool = False

    @property
    def help(self) -> str:
        """Its methods, description, words and default."""
        methods = self._listed_methods
        text = self.option.sentence.format(methods_on_gpu=", ".join(methods_on_gpu()))
        if methods and text[:1].isupper() and text[1:2].islower():
            text = text[0].lower() + text[1:]
        elsewhere = {method: other.listed_words for method, other in self.others.items() if other.words}
        differing = "".join(
            f"; {method}: {words}" for method, words in elsewhere.items() if words != self.option.listed_words
        )
        default = "" if self._has_default else self._default
        return f"{methods}{text.removesuffix('.')}{differing}.{default and f' [default: {default}]'}"

    @property
    def _has_default(self) -> bool:
        """Whether typer gets a default, which it shows."""
        return self.of_command and self.option.default is not None and self.option.default is not MISSING

    @property
    def _listed_methods(self) -> str:
        on_samples = [method for method, options in METHOD_OPTIONS.items() if "sampling_rate" in arguments_of(options)]
        if self.methods == on_samples:
            return "With Poisson sampling: "
        return f"{', '.join(self.methods)}: " if 0 < len(self.methods) <= FEW else ""

    @property
    def _default(self) -> str:
        own = self.option.default_text
        differing = [f"{other.default_text} {method}" for method, other in self.others.items()]
        return "; ".join([own, *(text for text in differing if not text.startswith(f"{own} "))] if own else [])

    @property
    def parameter(self) -> inspect.Parameter:
        """The parameter of a typer command."""
        option = self.option
        if option.argument is not None:
            argument = typer.Argument(metavar=option.argument, help=self.help)
            if option.default is MISSING:
                return _parameter(option.parameter, Annotated[str, argument], inspect.Parameter.empty)
            return _parameter(option.parameter, Annotated[str | None, argument], None)
        spellings = option.spellings
        if option.kind is bool and not self.of_command:
            spellings = (f"{spellings[0]}/--no-{spellings[0].removeprefix('--')}",)
        marked = typer.Option(*spellings, help=self.help, metavar=option.metavar, rich_help_panel=option.group or None)
        if self._has_default:
            return _parameter(option.parameter, Annotated[option.kind, marked], option.default)
        return _parameter(option.parameter, Annotated[option.kind | None, marked], None)


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def train_flags() -> list[Flag]:
    """All flags of `linprobe train`, the flags of the command before those of methods."""
    flags: dict[str, Flag] = {}
    for group in TRAIN:
        for option in declared(group).values():
            flags[option.parameter] = Flag(option, of_command=group in (Budget, Choice, RunOptions, Confirmation))
    for method, options in METHOD_OPTIONS.items():
        for option in arguments_of(options).values():
            if option.name == "classes":
                continue  # the feature file declares the classes
            flag = flags.setdefault(option.parameter, Flag(option, is_of_a_method=True))
            flag.methods.append(method)
            if option != flag.option:
                flag.others[method] = option
    return sorted(flags.values(), key=lambda flag: flag.option.argument is None)


def given_options(given: dict[str, Any], flags: Iterable[Flag]) -> dict[str, Any]:
    """Take the options of methods out of `given`; those that are not None."""
    options = {flag.option.parameter: given.pop(flag.option.parameter) for flag in flags if flag.is_of_a_method}
    return {name: value for name, value in options.items() if value is not None}


def flag_of_argument(name: str) -> str | None:
    """The flag of an estimator's argument; None if there is no such argument."""
    return next((flag.option.spellings[0] for flag in train_flags() if flag.option.name == name), None)


def with_flags(command: Callable[..., None], flags: Iterable[inspect.Parameter]) -> Callable[..., None]:
    """`command` with a signature from which typer reads `flags`."""

    @wraps(command)
    def called(**given: Any) -> None:
        command(**given)

    called.__signature__ = inspect.Signature(list(flags), return_annotation=None)  # type: ignore[attr-defined]
    called.__annotations__ = {}
    return called
