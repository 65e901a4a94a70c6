"""Help of a command: examples first, options in panels by theme, and only those of the method that is named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typer.core import TyperCommand

from linprobe.cli._everywhere import EVERYWHERE
from linprobe.errors import require_for
from linprobe.options import METHOD_OPTIONS
from linprobe.options.declaration import arguments_of

ARGUMENTS, OPTIONS, ANYWHERE = "Arguments", "Options", "Every command takes"
METHOD_WORDS = ("--method", "-m")
THEMES = {
    "Data": "public public_shots split_seed owner per_owner_rows centre condition intercept precision",
    "Privacy": "epsilon delta unit sigma steps sampling_rate accountant per_record test_epsilon cap book noise_seed "
    "insecure_seed",
    "Speed": "device checkpoint_every resume",
    "Output": "out dry_run as_json sign log_to overwrite",
}
EXAMPLES = {
    "extract": ("extract photos/ --backbone scattering --out photos.h5", "extract new/ --like runs/first --out new.h5"),
    "import": (
        "import arrays.npz --out features.h5",
        "import train.csv test.csv --label-column species --out features.h5",
    ),
    "train": (
        "train --eps 3",
        "train features.h5 --eps 3 --dry-run",
        "train features.h5 --eps 3 --out runs/first",
        "train features.h5 --eps 3 --public-shots 0 --unit owner",
        "train --method adamix --help",
    ),
    "tune": ("tune features.h5 --eps 3 --shrink 0.25,0.5,1",),
    "evaluate": ("evaluate runs/first", "evaluate runs/first later.h5 --json"),
    "predict": ("predict runs/first new.h5 > labels.csv", "predict runs/first new.h5 --probabilities"),
    "pdp-report": ("pdp-report runs/first",),
    "attack": ("attack runs/first",),
    "report": ("report runs/first --html report.html",),
    "verify": ("verify runs/first --features features.h5",),
    "release": ("release runs/first --out released",),
    "info": ("info features.h5", "info runs/first --json"),
    "plan": ("plan --n 50000 --eps 3",),
    "account": (
        "account --sigma 20 --steps 50 --q 1 --delta 1e-5",
        "account --sigma 1.5 --steps 1000 --q 0.01 --delta 1e-5",
    ),
    "audit": ("audit --method noisy-gd --eps 3",),
    "compare": ("compare features.h5 --methods adamix,noisy-gd --eps 1,3,8 --out compared",),
    "budget": ("budget features.h5",),
}
METHOD_THEME = "Method"
THEME_OF = {name: theme for theme, names in THEMES.items() for name in names.split()}


class Command(TyperCommand):
    """A command of linprobe."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the words, as help needs the method among them."""
        ctx.meta["linprobe.words"] = list(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command. A missing extra is refused before the command imports what it computes with."""
        for option, value in ctx.params.items() if self.name != "extract" else ():
            require_for(option, value)
        return super().invoke(ctx)

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        """Write the usage, then examples."""
        super().format_usage(ctx, formatter)
        if self.name in EXAMPLES:
            with formatter.section("Examples"):
                for example in EXAMPLES[self.name]:
                    formatter.write(f"{'':>{formatter.current_indent}}linprobe {example}\n")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options: in one panel, or those of training by theme."""
        themed = any(parameter.name == "weight_decay" for parameter in self.get_params(ctx))
        method = method_among(ctx.meta.get("linprobe.words", ()))
        left_out = set() if method is None else not_taken(method)
        panels: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None or parameter.name in left_out:
                continue
            panels.setdefault(_panel(parameter, themed), []).append(record)
        order = (ARGUMENTS, *THEMES, METHOD_THEME, OPTIONS) if themed else (ARGUMENTS, OPTIONS)
        for panel in order:
            if panel in panels:
                with formatter.section(panel):
                    formatter.write_dl(panels[panel])
        with formatter.section(ANYWHERE):
            formatter.write_dl(list(EVERYWHERE))
        if themed:
            formatter.write_paragraph()
            formatter.write_text(
                "With --method NAME before --help, only the options of that method are shown."
                if method is None
                else f"Only options that {method} takes are shown."
            )


def _panel(parameter: Any, themed: bool) -> str:
    if parameter.param_type_name == "argument":
        return ARGUMENTS
    if not themed or parameter.name == "help":
        return OPTIONS
    return THEME_OF.get(parameter.name, METHOD_THEME)


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
