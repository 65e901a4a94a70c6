"""Help of a command: examples first, options in panels by theme, and only those of the method that is named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typer.core import TyperCommand

from linprobe.cli._builder import METHOD, OPTIONS
from linprobe.cli._everywhere import EVERYWHERE
from linprobe.options import METHOD_OPTIONS
from linprobe.options.declaration import REQUESTS, arguments_of
from linprobe.options.requests import IMAGES, NETWORK
from linprobe.options.shared import DATA, OUTPUT, PRIVACY, SPEED

ARGUMENTS, ANYWHERE = "Arguments", "Every command takes"
PANELS = (ARGUMENTS, IMAGES, NETWORK, DATA, PRIVACY, SPEED, OUTPUT, METHOD)  # first, in this order
METHOD_WORDS = ("--method", "-m")


class Command(TyperCommand):
    """A command of linprobe."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the words, as help needs the method among them."""
        ctx.meta["linprobe.words"] = list(args)
        return super().parse_args(ctx, args)

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        """Write the usage, then examples."""
        super().format_usage(ctx, formatter)
        with formatter.section("Examples"):
            for example in REQUESTS[self.name or ""].examples:
                formatter.write(f"{'':>{formatter.current_indent}}linprobe {example}\n")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options: in one panel, or in the panels that their declarations name."""
        trains = any(parameter.name == "weight_decay" for parameter in self.get_params(ctx))
        method = method_among(ctx.meta.get("linprobe.words", ()))
        left_out = not_taken(method) if trains and method is not None else set()
        panels: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and parameter.name not in left_out:
                panels.setdefault(_panel(parameter), []).append(record)
        if {*panels} <= {ARGUMENTS, OPTIONS, OUTPUT}:  # few options
            *own, help = panels[OPTIONS]
            panels[OPTIONS] = [*own, *panels.pop(OUTPUT, []), help]
        order = dict.fromkeys([*PANELS, *panels])
        for panel in sorted((panel for panel in order if panel in panels), key=OPTIONS.__eq__):
            with formatter.section(panel):
                formatter.write_dl(panels[panel])
        with formatter.section(ANYWHERE):
            formatter.write_dl(list(EVERYWHERE))
        if trains:
            formatter.write_paragraph()
            formatter.write_text(
                "With --method NAME before --help, only the options of that method are shown."
                if method is None
                else f"Only options that {method} takes are shown."
            )


def _panel(parameter: Any) -> str:
    return ARGUMENTS if parameter.param_type_name == "argument" else parameter.rich_help_panel or OPTIONS


def method_among(words: Sequence[str]) -> str | None:
    """The method that the words of a command name, if there is such a method."""
    for place, word in enumerate(words):
        name = word.removeprefix("--method=") if word.startswith("--method=") else None
        if word in METHOD_WORDS and place + 1 < len(words):
            name = words[place + 1]
        if name in METHOD_OPTIONS:
            return name
    return None


def not_taken(method: str) -> set[str]:
    """Names of the parameters of training that other methods declare, and this one does not."""
    declared_by = {
        name: {option.parameter for option in arguments_of(options).values()}
        for name, options in METHOD_OPTIONS.items()
    }
    return set().union(*declared_by.values()) - declared_by[method]
