"""A command with two options, declared outside linprobe: one file and one declaration."""

from collections.abc import Sequence

import typer

from linprobe.cli._command import command
from linprobe.options.declaration import Request, option


class ToyRequest(Request, command="toy", examples=("toy --size 3", "toy --size 2 --shares 0.5,1")):
    """Print a toy."""

    size: int = option(help="Number of rows.", least=1, most=9)
    shares: Sequence[float] = option((1.0,), "Lengths of rows.", above=0, most=1, commas=True, metavar="S,S,...")


@command(ToyRequest)
def toy(request: ToyRequest) -> None:
    """Print the rows."""
    for share in request.shares:
        typer.echo("\n".join(["x" * round(10 * share)] * request.size))
