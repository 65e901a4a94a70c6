"""The commands of the README run, in order, in an empty folder."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
from PIL import Image

PAGE = Path(__file__).parents[2] / "README.md"


def write_photos(folder: Path) -> None:
    """Images of two classes."""
    g = np.random.default_rng(0)
    places = [("photos/train", 12), ("photos/test", 4)]
    for name, shade in (("dark", 60), ("light", 190)):
        for place, count in places:
            target = folder / place / name
            target.mkdir(parents=True)
            for number in range(count):
                pixels = np.clip(shade + 40 * g.normal(size=(16, 16, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(target / f"{number}.png")


def test_the_commands_of_the_readme_run_in_order(cli, tmp_path: Path) -> None:
    write_photos(tmp_path)
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    commands = [line for block in blocks for line in block.splitlines() if line.startswith("linprobe ")]
    assert len(commands) >= 7
    for command in commands:
        done = cli(*shlex.split(command, comments=True)[1:])
        assert done.status == 0, f"{command}\n{done.stderr}"
    assert (tmp_path / "released" / "README.md").exists()


def test_the_readme_is_short() -> None:
    assert len(PAGE.read_text(encoding="utf-8").splitlines()) <= 60
