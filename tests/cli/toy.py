"""A command that is declared outside linprobe: its request, and the function that it calls."""

from dataclasses import dataclass
from typing import Literal

import typer

from linprobe.cli._builder import command
from linprobe.cli._printing import print_json
from linprobe.options.declaration import option
from linprobe.options.requests import Json


@dataclass(frozen=True, kw_only=True)
class ToyRequest(Json, command="toy", examples=("toy 3 --factors 2,5", "toy 3 --json")):
    """Multiply a number."""

    number: float = option(help="A number.", argument="NUMBER")
    factors: tuple[float, ...] = option(
        (2.0,), "Factors, each {allowed}.", above=0, most=10, commas=True, metavar="F,F,...", example="2,5"
    )
    mark: Literal["none", "star"] = option("none", "What follows the product")


@command(ToyRequest)
def toy(request: ToyRequest) -> None:
    """Print the product."""
    product = request.number
    for factor in request.factors:
        product *= factor
    if request.as_json:
        print_json({"product": product})
        return
    typer.echo(f"{product:g}{'*' if request.mark == 'star' else ''}")
