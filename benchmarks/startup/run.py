"""Wall time of short commands, each in its own process: most of it is Python and imports.

    python benchmarks/startup/run.py [--json FILE]

A run of adamix on the built-in digits is made first; the commands read it. Bytecode and files are cached, and the
budget book is empty. The shortest of seven runs counts. `imports_of_train` sums the self times of
`python -X importtime` by top-level package.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

ROUNDS = 7
TRAIN = ("train", "--method", "adamix", "--eps", "3", "--out")
COMMANDS = {
    "--help": ("--help",),
    "info": ("info", "run"),
    "methods": ("methods",),
    "predict": ("predict", "run", "rows.npy"),
    "evaluate": ("evaluate", "run"),
    "account": ("account", "--q", "1", "--sigma", "10", "--steps", "50", "--delta", "1e-5"),
    "verify": ("verify", "run"),
    "report": ("report", "run", "--html", "page.html", "--overwrite"),
}


def spawn(folder: Path, *words: str, options: tuple[str, ...] = ()) -> str:
    """Run `linprobe WORDS` in a folder, in a Python with `options`; return its stderr."""
    environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state" / str(time.monotonic_ns()))}
    command = [sys.executable, *options, str(Path(sys.executable).with_name("linprobe")), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder, env=environment).stderr


def best_seconds(folder: Path, *words: str) -> float:
    """Shortest wall time of `linprobe WORDS`."""
    times = []
    for index in range(ROUNDS):
        out = [f"run-{index}"] if words[-1] == "--out" else []
        start = time.perf_counter()
        spawn(folder, *words, *out)
        times.append(time.perf_counter() - start)
    return min(times)


def packages(folder: Path) -> dict[str, float]:
    """Import seconds of `train` by top-level package, the eight largest."""
    own: dict[str, float] = defaultdict(float)
    for line in spawn(folder, *TRAIN, "imported", options=("-X", "importtime")).splitlines():
        if line.startswith("import time:") and not line.endswith("package"):
            microseconds, _, name = line.removeprefix("import time:").split("|")
            own[name.strip().split(".")[0]] += int(microseconds) / 1e6
    return dict(sorted(own.items(), key=lambda item: -item[1])[:8])


def main() -> None:
    """Measure, print, and write JSON if --json is given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    result: dict[str, Any] = {"cpus": len(os.sched_getaffinity(0)), "python": sys.version.split()[0]}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.save(folder / "rows.npy", np.ones((3, 64), np.float32))
        spawn(folder, *TRAIN, "run")
        result["seconds"] = {command: best_seconds(folder, *words) for command, words in COMMANDS.items()}
        result["seconds"]["train"] = best_seconds(folder, *TRAIN)
        result["imports_of_train"] = packages(folder)
    text = json.dumps(result, indent=1)
    print(text)
    if given.json:
        given.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
