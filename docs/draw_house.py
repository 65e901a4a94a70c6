"""The house: the rooms of linprobe on their floors, as a picture and as the map in CONTRIBUTING.md.

    python docs/draw_house.py                     # writes the map
    python docs/draw_house.py --check             # fails if the map is out of date
    python docs/draw_house.py --picture house.png # draws the picture, as the site does when it is built

Floors are the layers that `lint-imports` checks (pyproject.toml), rooms the folders and files of `linprobe/`, arrows
their imports, and the words the first paragraph of each docstring. An import that points up is drawn in red.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "linprobe"
PAGE = ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- map: made by `python docs/draw_house.py` -->\n", "<!-- end of map -->"

WIDTH, GAP, MARGIN = 14.5, 0.42, 0.35  # inches: of the page, between floors, at the sides
LINE, TITLE, PADDING = 0.17, 0.24, 0.1  # inches: height of a line and of a title, space inside a room
CHARACTER = 0.0655  # inches, of the widest font used below
COLOURS = ("#e8eef7", "#dfe9df", "#f6eedc", "#eee6f2")
GROUND = 2  # lowest floors, whose rooms any other may use
INK, ARROW, WRONG = "#1c2733", "#5b6b7d", "#c62828"


@dataclass(frozen=True)
class Room:
    """A folder or file of the package.

    Attributes:
        name: as imported, without `linprobe.`.
        path: from the repository. words: first paragraph of its docstring. files: modules and folders inside.
        imports: names of the rooms it imports.
    """

    name: str
    path: str
    words: str
    files: tuple[str, ...]
    imports: frozenset[str]


def floors() -> list[list[str]]:
    """Names of rooms, from the top floor down: the layers of the first contract in pyproject.toml."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [[name.strip(" ()") for name in layer.split("|")] for layer in layers]


def words_of(file: Path) -> str:
    """The first paragraph of a module's docstring, on one line; empty where there is none."""
    docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) if file.is_file() else None
    return " ".join((docstring or "").split("\n\n")[0].split())


def imported(file: Path) -> Iterator[str]:
    """Names below `linprobe` that a file imports, at its top, inside a function or for types only."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            package, _, rest = name.partition(".")
            if package == PACKAGE.name and rest:
                yield rest


def rooms() -> dict[str, Room]:
    """Every room of the package by its name."""
    paths = {path.stem: path for path in sorted(PACKAGE.iterdir()) if is_code(path) and path.name != "__init__.py"}
    found = {}
    for name, path in paths.items():
        folder = path.is_dir()
        sources = sorted(path.rglob("*.py")) if folder else [path]
        imports = {other.split(".")[0] for source in sources for other in imported(source)} & set(paths) - {name}
        inside = [p for p in sorted(path.iterdir()) if is_code(p) and p.name != "__init__.py"] if folder else []
        found[name] = Room(
            name,
            shown(path),
            words_of(path / "__init__.py" if folder else path),
            tuple(p.stem if p.suffix == ".py" else p.name + "/" * p.is_dir() for p in inside),
            frozenset(imports),
        )
    return found


def is_code(path: Path) -> bool:
    """Whether a path is a folder of code or a file of Python or C."""
    return (path / "__init__.py").is_file() if path.is_dir() else path.suffix in {".py", ".c", ".h"}


def shown(path: Path) -> str:
    """A path from the repository, with a slash after a folder."""
    return f"{path.relative_to(ROOT).as_posix()}{'/' if path.is_dir() else ''}"


def table() -> str:
    """The map: a row for each folder and root file with a docstring, floor by floor from the top."""
    rows = ["| place | what it holds |", "| --- | --- |"]
    house = rooms()
    order = [name for floor in floors() for name in floor if name in house]
    for name in (*order, *sorted(set(house) - set(order))):
        if house[name].words:
            rows.append(f"| `{house[name].path}` | {cell(house[name].words)} |")
        for folder in sorted(p.parent for p in PACKAGE.joinpath(name).glob("*/**/__init__.py")):
            rows.append(f"| `{shown(folder)}` | {cell(words_of(folder / '__init__.py'))} |")
    return "\n".join(rows) + "\n"


def cell(text: str) -> str:
    """Text for a table: on one line, without a full stop at its end."""
    return text.replace("|", "\\|").removesuffix(".")


def page() -> str:
    """CONTRIBUTING.md with the map between its two marks."""
    text = PAGE.read_text(encoding="utf-8")
    return re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: f"{BEGIN}\n{table()}\n{END}", text, flags=re.S)


def drawn_arrows(house: dict[str, Room], floor_of: dict[str, int]) -> Iterator[tuple[str, str]]:
    """Imports to draw: all that point up or sideways, and of those that point down each that no longer way implies."""

    def below(name: str) -> set[str]:
        return {other for other in house[name].imports if floor_of[other] > floor_of[name]}

    def reached(name: str) -> set[str]:
        direct = below(name)
        return direct.union(*(reached(other) for other in direct))

    for name in house:
        implied = set().union(*(reached(other) for other in below(name)))
        yield from ((name, other) for other in sorted(house[name].imports - implied))


def draw(picture: Path) -> None:
    """Write the picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

    house = rooms()
    levels = [[name for name in floor if name in house] for floor in floors()]
    levels = [floor for floor in levels if floor]
    missing = sorted(set(house) - {name for floor in levels for name in floor})
    if missing:
        levels.append(missing)
    floor_of = {name: number for number, floor in enumerate(levels) for name in floor}
    boxes, height = placed(house, levels)
    figure, axes = plt.subplots(figsize=(WIDTH, height))
    axes.set(xlim=(0, WIDTH), ylim=(height, 0))
    axes.axis("off")
    figure.subplots_adjust(left=0, right=1, bottom=0, top=1)
    axes.text(MARGIN, 0.32, "The house of linprobe", fontsize=17, weight="bold", color=INK, va="center")
    caption = (
        "A room may import rooms on the floors below it, none beside or above it; lint-imports checks this. Arrows are "
        "imports.\nNot drawn: an arrow that a longer way implies, and arrows to the two lowest floors, open to all."
    )
    axes.text(MARGIN, 0.74, caption, fontsize=10, color=ARROW, va="center")
    for upper, lower in drawn_arrows(house, floor_of):
        wrong = floor_of[lower] <= floor_of[upper]
        if not wrong and floor_of[lower] >= len(levels) - GROUND:
            continue
        far = floor_of[lower] - floor_of[upper] > 2
        start, stop = ends(boxes[upper], boxes[lower], wrong)
        axes.add_patch(
            FancyArrowPatch(
                start,
                stop,
                arrowstyle="-|>",
                mutation_scale=13,
                lw=2.2 if wrong else 1.3,
                color=WRONG if wrong else ARROW,
                alpha=0.5 if far else 1,
                connectionstyle="arc3,rad=0.06",
                zorder=3 if wrong else 1,
            )
        )
    for name, (left, top, width, tall) in boxes.items():
        colour = COLOURS[floor_of[name] % len(COLOURS)]
        shape = FancyBboxPatch(
            (left, top), width, tall, boxstyle="round,pad=0,rounding_size=0.07", fc=colour, ec=INK, lw=1, zorder=2
        )
        axes.add_patch(shape)
        title, lines, files = text_of(house[name], width)
        place = top + PADDING + TITLE / 2
        axes.text(left + PADDING, place, title, fontsize=11.5, weight="bold", color=INK, va="center", zorder=4)
        place += TITLE / 2 + LINE / 2
        for text, style in (*((line, "normal") for line in lines), *((line, "italic") for line in files)):
            colour = INK if style == "normal" else ARROW
            axes.text(left + PADDING, place, text, fontsize=8.5, style=style, color=colour, va="center", zorder=4)
            place += LINE
    figure.savefig(picture, dpi=100, metadata={"Software": None})
    plt.close(figure)


def text_of(room: Room, width: float) -> tuple[str, list[str], list[str]]:
    """Title, lines of words and lines of file names of a room so wide."""
    characters = int((width - 2 * PADDING) / CHARACTER)
    return (
        room.path.removeprefix("linprobe/"),
        textwrap.wrap(room.words.replace("`", "").removesuffix("."), characters),
        textwrap.wrap("\N{NO-BREAK SPACE}· ".join(room.files), characters),
    )


def placed(
    house: dict[str, Room], levels: list[list[str]]
) -> tuple[dict[str, tuple[float, float, float, float]], float]:
    """Left, top, width and height of every room, in inches from the upper left corner, and the height of the page."""
    boxes, top = {}, 1.1
    for number, floor in enumerate(levels):
        share = [weight(house[name]) for name in floor]
        free = WIDTH - 2 * MARGIN - GAP * (len(floor) - 1)
        widths = [min(free * part / sum(share), most(house[name])) for part, name in zip(share, floor, strict=True)]
        # floors lean left and right in turn, so that arrows across a floor show beside it
        slack = free - sum(widths)
        left = MARGIN + slack * (0.3 if number % 2 else 0.7)
        tall = 0.0
        for name, width in zip(floor, widths, strict=True):
            _, words, files = text_of(house[name], width)
            tall = max(tall, 2 * PADDING + TITLE + LINE * (len(words) + len(files)))
        for name, width in zip(floor, widths, strict=True):
            boxes[name] = (left, top, width, tall)
            left += width + GAP
        top += tall + GAP
    return boxes, top - GAP + MARGIN


def weight(room: Room) -> float:
    """How much of its floor a room wants."""
    return 40 + len(room.words) + len(" · ".join(room.files))


def most(room: Room) -> float:
    """The greatest width of a room in inches: about two lines of words and of files, never the whole page."""
    longest = max(len(room.path) * 1.4, len(room.words) * 0.75, len(" · ".join(room.files)) * 0.6, 14)
    return min(longest * CHARACTER + 3 * PADDING, 0.8 * WIDTH)


def ends(
    upper: tuple[float, float, float, float], lower: tuple[float, float, float, float], wrong: bool
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Ends of an arrow: from the foot of `upper` to the roof of `lower`, the other way round if it points up."""

    def towards(box: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> float:
        aim = other[0] + other[2] / 2
        return min(max(aim, box[0] + 0.12 * box[2]), box[0] + 0.88 * box[2])

    start, stop = towards(upper, lower), towards(lower, upper)
    if wrong:
        return (start, upper[1]), (stop, lower[1] + lower[3])
    return (start, upper[1] + upper[3]), (stop, lower[1])


def main(arguments: list[str] | None = None) -> int:
    """Write or check the map, or draw the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the map is out of date")
    parser.add_argument("--picture", type=Path, help="draw the house to this file, and leave the map")
    given = parser.parse_args(arguments)
    if given.picture is not None:
        draw(given.picture)
        return 0
    if given.check:
        if page() == PAGE.read_text(encoding="utf-8"):
            return 0
        print("CONTRIBUTING.md is out of date; run: python docs/draw_house.py", file=sys.stderr)
        return 1
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
