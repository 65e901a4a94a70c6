"""Wall time of `linprobe --help` and of `linprobe train` on the built-in digits, and the parts of the latter.

    python benchmarks/startup/run.py [--json FILE]

Each command runs in its own process, with files in the page cache; the shortest of five runs counts. Another process
measures the parts: it times the calls of `train` and, by a wrapper of `__import__`, all imports. The time of a part
excludes imports. `imports_by_package` sums the self times of `python -X importtime` by top-level package.
"""

from __future__ import annotations

import argparse
import builtins
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROUNDS = 5
TRAIN = ("train", "--method", "adamix", "--eps", "3", "--out")
PARTS = {
    "reading": ("public_source",),
    "evaluation": ("right_and_wrong",),
}


class Clock:
    """Seconds of named parts, without imports, which are the part `imports`."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._depth, self._import = 0, builtins.__import__
        builtins.__import__ = self._timed_import

    def _timed_import(self, name: str, *rest: Any, **named: Any) -> Any:
        self._depth += 1
        start = time.perf_counter()
        try:
            return self._import(name, *rest, **named)
        finally:
            self._depth -= 1
            if not self._depth:
                self.seconds["imports"] += time.perf_counter() - start

    def timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `call` to add its time to `part`."""

        def inner(*arguments: Any, **named: Any) -> Any:
            start, imports = time.perf_counter(), self.seconds["imports"]
            try:
                return call(*arguments, **named)
            finally:
                imported = self.seconds["imports"] - imports
                self.seconds[part] += time.perf_counter() - start - imported

        return inner


def parts(spawned: float) -> dict[str, float]:
    """Train once in this process; seconds of each part. `spawned`: `time.perf_counter` when the parent started it."""
    clock = Clock()
    clock.seconds["interpreter"] = time.perf_counter() - spawned
    from linprobe import cli
    from linprobe.commands import train
    from linprobe.runs import run_folder
    from linprobe.training import engine

    for part, names in PARTS.items():
        for name in names:
            setattr(train, name, clock.timed(part, getattr(train, name)))
    opened = train.open_features

    @contextlib.contextmanager
    def open_features(*arguments: Any) -> Any:
        with contextlib.ExitStack() as stack:
            yield clock.timed("reading", stack.enter_context)(opened(*arguments))

    train.open_features = open_features
    engine.train = clock.timed("training", engine.train)
    run_folder.write_run = clock.timed("writing", run_folder.write_run)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        if cli.run([*TRAIN, f"{folder}/run"]) != 0:
            raise SystemExit("train failed")
    total = time.perf_counter() - spawned
    found = dict(clock.seconds)
    return {**found, "rest": total - sum(found.values()), "total": total}


def spawn(*words: str) -> str:
    """Run Python with arguments `words`; return its stdout and stderr."""
    done = subprocess.run([sys.executable, *words], check=True, capture_output=True, text=True)
    return done.stdout + done.stderr


def best_seconds(*words: str) -> float:
    """Shortest wall time of `linprobe WORDS` in its own process, seconds."""
    times = []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            out = [f"{folder}/run"] if words[-1] == "--out" else []
            start = time.perf_counter()
            spawn("-m", "linprobe", *words, *out)
            times.append(time.perf_counter() - start)
    return min(times)


def packages() -> dict[str, float]:
    """Import seconds of `train` by top-level package, the eight largest."""
    own: dict[str, float] = defaultdict(float)
    with tempfile.TemporaryDirectory() as folder:
        for line in spawn("-X", "importtime", "-m", "linprobe", *TRAIN, f"{folder}/run").splitlines():
            if line.startswith("import time:") and not line.endswith("package"):
                microseconds, _, name = line.removeprefix("import time:").split("|")
                own[name.strip().split(".")[0]] += int(microseconds) / 1e6
    return dict(sorted(own.items(), key=lambda item: -item[1])[:8])


def main() -> None:
    """Measure, print, and write JSON if --json is given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--parts-since", type=float, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.parts_since is not None:
        print(json.dumps(parts(given.parts_since)))
        return
    result: dict[str, Any] = {
        "cpus": len(os.sched_getaffinity(0)),
        "python": sys.version.split()[0],
        "help": best_seconds("--help"),
        "train": best_seconds(*TRAIN),
    }
    runs = [json.loads(_last(spawn(__file__, "--parts-since", repr(time.perf_counter())))) for _ in range(ROUNDS)]
    result["parts_of_train"] = min(runs, key=lambda run: run["total"])
    result["imports_by_package"] = packages()
    text = json.dumps(result, indent=1)
    print(text)
    if given.json:
        given.json.write_text(text + "\n", encoding="utf-8")


def _last(text: str) -> str:
    return next(line for line in text.splitlines() if line.startswith("{"))


if __name__ == "__main__":
    main()
