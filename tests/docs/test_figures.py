"""The figures of the pages show the committed results, and every page names what draws its figures."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest

from tests.conftest import mostly_nightly
from tests.docs.scripts import load_script

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
LARGEST = 150_000  # bytes
DRAWER = load_script(ROOT / "docs" / "draw_figures.py")
NOTED = json.loads((IMAGES / "sources.json").read_text(encoding="utf-8"))
RESULTS = json.loads((ROOT / "benchmarks" / "accuracy" / "results.json").read_text(encoding="utf-8"))["results"]


@pytest.mark.parametrize("name", sorted(DRAWER.FIGURES))
def test_a_figure_was_drawn_from_the_results_that_are_committed(name: str) -> None:
    picture, (_, source) = IMAGES / f"{name}.png", DRAWER.FIGURES[name]
    stale = f"run python docs/draw_figures.py {name}"
    assert NOTED[name]["picture"] == DRAWER.digest(picture), stale
    assert NOTED[name]["results"] == {source.relative_to(ROOT).as_posix(): DRAWER.digest(source)}, stale
    assert picture.stat().st_size <= LARGEST


@pytest.mark.parametrize("name", mostly_nightly(sorted(DRAWER.FIGURES), ("adamix-figure2", "regression").__contains__))
def test_a_figure_can_be_drawn(name: str, tmp_path: Path) -> None:
    draw, _ = DRAWER.FIGURES[name]
    draw(tmp_path / "figure.png")
    assert 0 < (tmp_path / "figure.png").stat().st_size <= LARGEST


def test_every_image_is_drawn_by_the_script_or_by_a_command_of_its_page() -> None:
    drawn = {path.stem for path in IMAGES.glob("*.png")}
    assert drawn == {*DRAWER.FIGURES, "plan"}
    assert drawn - {"plan"} == NOTED.keys()
    assert "--plot plan.png" in (ROOT / "docs" / "planning.md").read_text(encoding="utf-8")


def test_a_page_names_what_draws_its_figures() -> None:
    pages = {page: page.read_text(encoding="utf-8") for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))}
    drawn = {page for page, text in pages.items() if set(re.findall(r"images/([\w-]+)\.png", text)) - {"plan"}}
    assert drawn
    assert {page for page in drawn if "docs/draw_figures.py" not in pages[page]} == set()


@pytest.mark.parametrize(
    ("data", "shots"),
    mostly_nightly([("rare", 0), ("digits", 2), ("fashion-scattering", 0)], lambda case: case[0] == "rare"),
)
def test_curves_are_means_and_deviations_of_the_results(
    data: str, shots: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    panels: list[Any] = []
    curves = DRAWER.accuracy_curves
    monkeypatch.setattr(
        DRAWER, "accuracy_curves", lambda axes, *args, **more: (panels.append(axes), curves(axes, *args, **more))[1]
    )
    DRAWER.evidence_figure(data, tmp_path / "figure.svg")
    cells = [one for one in (2, 0) if any((row["data"], row["shots"]) == (data, one) for row in RESULTS)]
    lines = [[tuple(float(y) for y in line.get_ydata()) for line in axes.lines] for axes in panels][cells.index(shots)]
    kind = "balanced" if data == "rare" else "accuracies"
    rows = [row for row in RESULTS if (row["data"], row["shots"]) == (data, shots)]
    for name in {row["row"] for row in rows if row["epsilon"] is not None}:
        mine = sorted((row for row in rows if row["row"] == name), key=lambda row: row["epsilon"])
        assert tuple(100 * mean(row[kind]) for row in mine) in lines, name
    shade = panels[cells.index(shots)].collections[0].get_paths()[0].vertices[:, 1]
    default = "adamix" if shots else "noisy-gd"
    for row in rows:
        if row["row"] == default:
            for end in (-1, 1):
                assert min(abs(shade - 100 * (mean(row[kind]) + end * stdev(row[kind])))) < 1e-9
