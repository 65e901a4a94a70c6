"""The import examples of features/README.md run in order in an empty folder."""

from __future__ import annotations

import re
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path

from linprobe.data.feature_file import FeatureFile

PAGE = Path(__file__).parents[2] / "features" / "README.md"


def test_import_examples_run_in_order(tmp_path: Path, bash: Callable[[str], subprocess.CompletedProcess[str]]) -> None:
    blocks = re.findall(r"(?:^    .*\n|^\n(?=    ))+", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    script = "\n".join(textwrap.dedent(block) for block in blocks)
    done = bash(script)
    assert done.returncode == 0, done.stderr
    for kind in ("npz", "npy", "pt", "csv"):
        with FeatureFile(tmp_path / f"from_{kind}.h5") as features:
            assert features.sizes == {"train": 500, "test": 100}
            assert features.description.class_names == ("ant", "bee", "cat")
    assert "text_weights             True" in done.stdout
    assert "500 train, 100 test rows, 16 features, 3 classes" in done.stderr
