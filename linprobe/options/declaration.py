"""Declarations of options, and the checks, hints and help texts derived from them.

An option is a field of a `Declaration`: the annotation is its type, `option(...)` states the rest. A subclass that
changes only a default repeats the field. The fields of a `Request` are the options of a command.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields
from math import inf
from numbers import Integral, Real
from os import PathLike, fspath
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, Union, dataclass_transform, get_args, get_origin

from linprobe.errors import LinprobeError, ParameterError, UsageError

TYPES: Mapping[Any, tuple[tuple[type, ...], str]] = {  # of the values of an option, by its kind, and their name
    bool: ((bool,), "True or False"),
    int: ((Integral,), "a whole number"),
    float: ((Real,), "a number"),
    str: ((str, PathLike), "text"),
    Path: ((str, PathLike), "a path"),
}


@dataclass(frozen=True, kw_only=True)
class Option:
    name: str  # as an argument of an estimator
    kind: Any  # its type; for a Literal, the type of the words
    words: tuple[str, ...]  # the allowed words; empty for other types
    optional: bool
    default: Any  # `dataclasses.MISSING` if the option is required
    help: str  # one sentence; for an option with words a phrase without a full stop, which they follow
    after: str = ""  # text after the words or the range
    several: bool = False  # whether the value is a sequence of `kind`
    commas: bool = False  # whether the command line has it as one word with commas
    from_text: Callable[[str, Any], Any] | None = None  # from the flag's name, and its word or words
    above: float | None = None  # exclusive, of each value of a sequence; as `below`
    below: float | None = None
    least: float | None = None
    most: float | None = None
    unit: str = ""  # of the range
    unset: str = ""  # meaning of None
    shown: str = ""  # the default in words
    also: tuple[str, str] | None = None  # a word for values outside `words`, and a description of these
    on_gpu: tuple[Any, ...] | None = None  # values that work on a GPU; None for all
    asked: str = ""  # name on the command line and in `TrainRequest`, if it differs
    flags: tuple[str, ...] = ()  # spellings, if not `--asked`
    metavar: str | None = None  # in the help of the command line
    argument: str | None = None  # the same for one without a flag
    group: str = ""  # heading in the help of a command with many options

    @property
    def parameter(self) -> str:
        """Its name on the command line and in `TrainRequest`."""
        return self.asked or self.name

    @property
    def spellings(self) -> tuple[str, ...]:
        return self.flags or (f"--{self.parameter.replace('_', '-')}",)

    @property
    def flag(self) -> str:
        """Its first flag, without dashes before it."""
        return self.spellings[0].removeprefix("--")

    @property
    def listed_words(self) -> str:
        if self.also is None:
            return ", ".join(self.words)
        return ", ".join([*(word for word in self.words if word != self.also[0]), f"or {self.also[1]}"])

    @property
    def allowed(self) -> str:
        """Words or range, empty if everything is allowed."""
        if self.words:
            return self.listed_words
        if self.least is not None and self.below is None:
            least = as_word(self.least)
            return f"{least} or more{self.unit}" if self.most is None else f"{least} to {as_word(self.most)}"
        bounds = {"above": self.above, "at least": self.least, "below": self.below, "at most": self.most}
        return ", ".join(f"{word} {as_word(bound)}" for word, bound in bounds.items() if bound is not None)

    @property
    def values(self) -> str:
        return self.listed_words or TYPES[self.kind][1]

    @property
    def sentence(self) -> str:
        return f"{self.help and f'{self.help}: '}{self.listed_words}{self.after}." if self.words else self.help

    @property
    def default_text(self) -> str:
        if self.default is MISSING:
            return ""
        if self.default is None:
            return self.unset
        return self.shown or as_word(self.default)

    @property
    def documentation(self) -> str:
        """Help text, range and default, for the docstring of an estimator."""
        limits = f"Allowed: {self.allowed}." if self.allowed and self.allowed not in self.sentence else ""
        default = "Required." if self.default is MISSING else f"Default: {self.default!r}"
        if self.default is None and self.unset:
            default += f", {self.unset}"
        text = " ".join(text for text in (self.sentence, limits, default.removesuffix(".") + ".") if text)
        return as_arguments(text)

    def check(self, value: Any) -> None:
        """ParameterError unless `value` has the type of the option, and is one of the words, or in the range."""
        value = self.plain(value)
        if not self.allowed or (value is None and self.optional):
            return
        for each in value if self.several else (value,):
            if self.words:
                good, got = each in self.words, repr(each)
            else:
                good, got = isinstance(each, Real) and self._holds(each), str(each)
            if not good:
                raise ParameterError(f"{self.flag} is {got}; allowed: {self.allowed}")

    def plain(self, value: Any, name: str = "") -> Any:
        """The value as Python's own number or flag, or a list or mapping of such; other values as they are.

        Of several numbers, each is kept once: a comparison would make two runs in one folder.
        NumPy's numbers have another precision and are no JSON. ParameterError: another type; about `name`, or the flag.
        """
        if value is None and self.optional:
            return value
        if self.several:
            if isinstance(value, str) or not isinstance(value, Iterable):
                raise ParameterError(f"{name or self.flag} is {value!r}; allowed: a list of values")
            values = [self._plain(each, name) for each in value]
            return list(dict.fromkeys(values)) if self.kind in (int, float) else values
        return self._plain(value, name)

    def _plain(self, value: Any, name: str) -> Any:
        if self.kind is Path:
            check_path(value, name or self.flag)
        if self.kind not in TYPES or (value is None and self.optional):
            return {key: _item(one) for key, one in value.items()} if isinstance(value, Mapping) else _item(value)
        try:
            return _of_python(self.kind, value)
        except TypeError:
            found = "which is text" if isinstance(value, str) else f"of type {type(value).__name__}"
            got = f"an array of shape {value.shape}" if getattr(value, "ndim", 0) else f"{value!r}, {found}"
            raise ParameterError(f"{name or self.flag} is {got}; allowed: {self.values}") from None
        except OverflowError:
            raise ParameterError(f"{name or self.flag} is beyond 1e308; allowed: {self.allowed}") from None

    def _holds(self, number: Any) -> bool:
        above, least = (-inf if bound is None else bound for bound in (self.above, self.least))
        below, most = (inf if bound is None else bound for bound in (self.below, self.most))
        return bool(above < number < below and least <= number <= most)


def check_path(value: Any, name: str) -> None:
    if "\0" in str(value):
        raise ParameterError(f"{name} is {value!r}; allowed: a path without the character \\0")


def _item(value: Any) -> Any:
    """A scalar or an array of NumPy as Python's own; other values as they are."""
    return value.tolist() if hasattr(value, "tolist") else value


def _of_python(kind: Any, value: Any) -> Any:
    """A value of a kind in `TYPES` as Python's own. Raises TypeError, OverflowError."""
    number = _item(value)
    whole = isinstance(number, float) and number.is_integer()
    flag = isinstance(number, int) and number in (0, 1)
    right = isinstance(number, TYPES[kind][0]) or (kind is int and whole) or (kind is bool and flag)
    if not right or (isinstance(number, bool) and kind is not bool):
        raise TypeError
    return fspath(number) if kind is str else number if kind is Path else kind(number)


def option(default: Any = MISSING, help: str = "", **rest: Any) -> Any:
    """A field of a dataclass that declares an option; the arguments are attributes of `Option`."""
    return field(default=default, metadata={"help": help, **rest})


def as_word(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return ",".join(map(as_word, value)) if isinstance(value, tuple) else str(value)


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Declaration:
    """Base of the classes whose fields declare options: every subclass is a frozen dataclass of keyword arguments."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclass(frozen=True, kw_only=True)(cls)


class Request(Declaration):
    """Base of the classes that declare a command. The docstring of a subclass is the help text of its command.

    A request checks its values when it is made, unless `checked_later`: a range may depend on the method.
    """

    command: ClassVar[str] = ""
    examples: ClassVar[tuple[str, ...]] = ()  # lines without `linprobe`, for the help; a test runs each
    first: ClassVar[tuple[str, ...]] = ()  # what `--help` shows, where `--help-all` shows all
    checked_later: ClassVar[bool] = False

    def __init_subclass__(
        cls, command: str = "", examples: tuple[str, ...] = (), first: tuple[str, ...] = (), checked_later: bool = False
    ) -> None:
        super().__init_subclass__()
        if command:
            cls.command, cls.examples, cls.first, cls.checked_later = command, examples, first, checked_later
            REQUESTS[command] = cls

    def __post_init__(self) -> None:
        if not self.checked_later:
            check_declared(type(self), self)


REQUESTS: dict[str, type[Request]] = {}  # in the order of declaration
OnGpu = Literal["", "sums", "steps"]


class Options(Declaration):
    """Base of the classes that state which options a method takes."""

    method: ClassVar[str] = ""
    takes: ClassVar[tuple[type, ...]] = ()  # groups of further arguments of its estimator
    on_gpu: ClassVar[OnGpu] = ""  # a GPU computes whole `steps`, the private `sums` and their noise, or nothing

    def __init_subclass__(cls, method: str = "", takes: tuple[type, ...] = (), on_gpu: OnGpu = "") -> None:
        super().__init_subclass__()
        if method:
            cls.method, cls.takes, cls.on_gpu = method, takes, on_gpu
            METHOD_OPTIONS[method] = cls

    def check_together(self) -> None:
        """UsageError for an option that does nothing beside another. Subclasses override this."""


METHOD_OPTIONS: dict[str, type[Options]] = {}  # in the order of declaration
_DECLARED: dict[type[Any], Mapping[str, Option]] = {}
# shared arguments that no grid varies
NOT_VARIED = ("epsilon", "delta", "accountant", "per_record", "classes", "class_weight", "class_counts", "noise_seed")


def declared(group: type[Any]) -> Mapping[str, Option]:
    """The options that a dataclass declares or inherits, by name."""
    if group not in _DECLARED:
        _DECLARED[group] = {
            one.name: Option(name=one.name, default=one.default, **_parsed(one.type), **_metadata(group, one.name))
            for one in fields(group)
        }
    return _DECLARED[group]


def check_value(group: type[Any], name: str, value: object) -> None:
    """Check one value of an option that a group declares. Raises ParameterError: a value that is not allowed."""
    declared(group)[name].check(value)


def check_declared(group: type[Any], values: object) -> None:
    """Check the attributes of `values` that a group declares. Raises ParameterError: a value that is not allowed."""
    for name, option in declared(group).items():
        option.check(getattr(values, name))


def plain_values(known: Mapping[str, Option], given: Mapping[str, Any]) -> dict[str, Any]:
    """Named values, of Python's own types where `known` has the option. Raises ParameterError: another type."""
    return {name: known[name].plain(value, name) if name in known else value for name, value in given.items()}


def config_keys(*groups: type[Any]) -> dict[str, str]:
    """The names of the options of several groups in a config file, by their names in `TrainRequest`."""
    options = (option for group in groups for option in declared(group).values())
    return {option.parameter: option.parameter if option.argument else option.flag for option in options}


def _metadata(group: type, name: str) -> Mapping[str, Any]:
    """The metadata of `name` from the nearest base; a field that only changes the default has none of its own."""
    for base in group.__mro__:
        own = vars(base).get("__dataclass_fields__", {}).get(name)
        if own is not None and own.metadata:
            return dict(own.metadata)
    raise TypeError(f"{group.__name__}.{name} has no declaration; give it option(...)")


def _parsed(annotation: Any) -> dict[str, Any]:
    """The attributes of an `Option` that an annotation states."""
    annotation, optional = _without_none(annotation)
    several = get_origin(annotation) is Sequence
    if several:
        annotation, optional_items = _without_none(*get_args(annotation))
        optional = optional or optional_items
    words = get_args(annotation) if get_origin(annotation) is Literal else ()
    return {"kind": str if words else annotation, "words": words, "optional": optional, "several": several}


def _without_none(annotation: Any) -> tuple[Any, bool]:
    if get_origin(annotation) not in (Union, UnionType):
        return annotation, False
    kinds = get_args(annotation)
    return next(kind for kind in kinds if kind is not NoneType), NoneType in kinds


def arguments_of(options: type[Options]) -> dict[str, Option]:
    """All arguments of a method's estimator: shared ones, then its own."""
    shared = {name: option for group in options.takes for name, option in declared(group).items()}
    return {**shared, **declared(options)}


def estimator_name(options: type[Options]) -> str:
    return options.__name__.removesuffix("Options")


def methods_on_gpu() -> list[str]:
    return [method for method, options in METHOD_OPTIONS.items() if options.on_gpu]


def make_options(options: type[Options], given: Mapping[str, Any]) -> Any:
    """The options of a method, `given` or default. UsageError: one that it does not have, or an idle one."""
    declarations = declared(options)
    for name in given:
        if name not in declarations:
            everywhere = {other for one in METHOD_OPTIONS.values() for other in declared(one)}
            known = {one.parameter: one for one in arguments_of(options).values() if one.parameter not in NOT_VARIED}
            near = "" if name in everywhere else _dashed(hint(name, known))
            raise UsageError(
                f"option {_dashed(name)} does nothing for {options.method}; "
                f"its options are: {', '.join(map(_dashed, known))}{near}"
            )
    for name, value in given.items():
        declarations[name].check(value)
    made: Any = options(**given)
    made.check_together()
    return made


def refuse_idle(options: Any, idle: Iterable[str], why: str) -> None:
    """UsageError for the first option among `idle` that was changed from its default and would do nothing."""
    for name in idle:
        value = getattr(options, name)
        if value != declared(type(options))[name].default:
            raise UsageError(f"option {_dashed(name)} {value} does nothing with {why}; leave it out")


def refuse_on_gpu(options: Options, device: str) -> None:
    """UsageError if the method, or a value of its options, does not work on a GPU."""
    if not options.on_gpu:
        able = ", ".join(methods_on_gpu())
        raise UsageError(f"method {options.method} trains on device cpu, not {device!r}; on a GPU: {able}")
    for name, option in declared(type(options)).items():
        value = getattr(options, name)
        if option.on_gpu is not None and value not in option.on_gpu:
            allowed = ", ".join(map(str, option.on_gpu))
            raise UsageError(f"{_dashed(name)} is {value!r} on device {device!r}; allowed: {allowed}")


IN_PYTHON = {  # names of arguments that are not those of the flags
    "eps": "epsilon",
    "set-cap": "cap",
    "checkpoint": "checkpoint_every",
    "no-baselines": "baselines=False",
    "allow-other-features": "allow_other",
    "max-eps": "max_epsilon",
    "run": "before",
}


def as_arguments(text: str) -> str:
    """`text` for a caller in Python: names of arguments in place of flags, but for those of a `linprobe` command."""

    def argument(found: re.Match[str]) -> str:
        command, flag, equals = found.groups()
        return command or IN_PYTHON.get(flag, flag.replace("-", "_")) + ("=" if equals else "")

    return re.sub(r"(linprobe [a-z]+ [^;,)]*)|(?<![^\s(])--([a-z-]+)( (?=\d))?", argument, text)


@contextmanager
def naming_arguments() -> Iterator[None]:
    try:
        yield
    except LinprobeError as error:
        text = str(error)
        if isinstance(error, UsageError):  # it may begin with a flag, without its dashes
            text = re.sub(r"^(option )?([a-z][a-z-]*)(?= (is|does) )", _named_in_python, text)
        error.args = (as_arguments(text),)
        raise


def _named_in_python(found: re.Match[str]) -> str:
    of, flag = found[1] or "", found[2]
    return of + (flag if flag == "run" else IN_PYTHON.get(flag, flag.replace("-", "_")))


def argument_of(flag: object) -> str:
    """The argument of Python for a flag, with or without dashes before it."""
    return str(flag).strip("-").replace("-", "_")


def hint(name: str, known: Mapping[str, Option]) -> str:
    """`; did you mean NAME?` for the option with the most similar name, for an estimator too, or flag; or nothing."""
    spelled = {argument_of(word): key for key, one in known.items() for word in (*one.spellings, one.name)}
    near = nearest(name, {**spelled, **{key: key for key in known}})
    return f"; did you mean {near}?" if near else ""


def nearest(name: str, known: Mapping[str, str]) -> str | None:
    from difflib import get_close_matches

    near = get_close_matches(name, known, n=1)
    return known[near[0]] if near else None


def _dashed(name: str) -> str:
    return name.replace("_", "-")
