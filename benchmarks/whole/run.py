"""The whole run, from a feature file to a trained probe: seconds, memory and accuracy, beside other libraries.

    python benchmarks/whole/run.py [FILE.h5 ...] --json benchmarks/whole/results.json [--peers PYTHON ...] [--seeds 3]

Each training is a process of its own, so that start, imports, reading and writing count. linprobe is
`linprobe train FILE --method noisy-gd --eps E`, without public rows, and writes its run folder. `peers.py` states what
the others do; with `--tools "linprobe --steps 50"`, linprobe has that option. Without files: the built-in digits.
diffprivlib 0.6.6 needs scikit-learn below 1.8, so each `--peers` names the Python of an
environment; a library takes the first that has it, or is skipped.
A file given by --json keeps the cells that are not measured again.
Processor seconds depend less than wall seconds on what else the machine does. No training may take more than
`LONGEST` of them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

DELTA, EPSILONS = "1e-5", (1.0, 3.0)
LONGEST = 3000
OURS = "linprobe"
PEERS = ("scikit-learn", "diffprivlib", "opacus", "jax-privacy")


def measured(words: list[str], folder: Path) -> tuple[float, float, float, str] | None:
    """Wall and processor seconds, peak memory in MiB, and stdout of a process; None if it failed or took too long."""
    log = folder / "stdout"
    environment = os.environ | {"XDG_STATE_HOME": str(folder / str(time.monotonic_ns()))}
    with log.open("w") as stdout:
        started = time.perf_counter()
        limit = partial(resource.setrlimit, resource.RLIMIT_CPU, (LONGEST, LONGEST))
        process = subprocess.Popen(words, stdout=stdout, cwd=folder, env=environment, preexec_fn=limit)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    return (
        None
        if process.returncode
        else (seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, log.read_text())
    )


def trained(tool: str, path: Path, epsilon: float, seed: int, python: str, folder: Path) -> dict[str, Any] | None:
    """Accuracy, seconds and memory of one training."""
    own = tool.startswith(OURS)
    if own:
        command = str(Path(sys.executable).with_name("linprobe"))
        options = [
            "--method",
            "noisy-gd",
            "--eps",
            str(epsilon),
            "--delta",
            DELTA,
            "--public-shots",
            "0",
            "--json",
            *tool.split()[1:],
        ]
        name = "-".join(("run", *tool.split()[1:], str(seed), str(epsilon), path.stem))
        ended = measured([command, "train", str(path), *options, "--out", name], folder)
    else:
        script = str(Path(__file__).with_name("peers.py"))
        ended = measured([python, script, tool, str(path), str(epsilon), str(seed)], folder)
    if ended is None:
        return None
    seconds, cpu, memory, text = ended
    found = json.loads(text)
    others, cpu_of_others = found.pop("of_other_rates", (0.0, 0.0))
    accuracy = found["test_accuracy"] if own else found.pop("accuracy")
    setting = {} if own else found
    return {
        "accuracy": accuracy,
        "seconds": seconds - others,
        "cpu_seconds": cpu - cpu_of_others,
        "mib": memory,
        **setting,
    }


def cell(tool: str, path: Path, epsilon: float, seeds: int, python: str, folder: Path) -> dict[str, Any] | None:
    """Mean and standard deviation of several trainings."""
    runs = [trained(tool, path, epsilon, seed, python, folder) for seed in range(seeds)]
    done = [run for run in runs if run is not None]
    if len(done) < seeds:
        return None
    accuracy = [run["accuracy"] for run in done]
    return {
        "data": path.stem,
        "tool": tool,
        "epsilon": epsilon,
        "accuracy": statistics.mean(accuracy),
        "std": statistics.stdev(accuracy) if seeds > 1 else None,
        "seconds": statistics.median(run["seconds"] for run in done),
        "cpu_seconds": statistics.median(run["cpu_seconds"] for run in done),
        "mib": max(run["mib"] for run in done),
        "runs": done,
    }


def environments(pythons: list[str]) -> dict[str, tuple[str, str]]:
    """Version and Python of each library that is there."""
    code = "import json, sys; from importlib.metadata import version; print(json.dumps(version(sys.argv[1])))"
    found = {OURS: (version(OURS), sys.executable)}
    for name, python in itertools.product(PEERS, pythons):
        done = subprocess.run([python, "-c", code, name], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            found.setdefault(name, (json.loads(done.stdout), python))
    return found


def main() -> None:
    """Measure every cell, print a line for each, and write the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--peers", action="append", help="a Python that has other libraries; may be repeated")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tools", default=",".join((OURS, *PEERS)), help="what to compare")
    parser.add_argument("--eps", type=float, nargs="+", default=EPSILONS)
    given = parser.parse_args()
    here = environments(given.peers or [sys.executable])
    known = json.loads(given.json.read_text()) if given.json is not None and given.json.exists() else {"cells": []}
    done = {(cell["data"], cell["tool"], cell["epsilon"]): cell for cell in known["cells"]}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = [path.absolute() for path in given.files]
        if not files:
            from linprobe.data.digits import write_digits

            files = [folder / "digits.h5"]
            write_digits(files[0])
        tools = [tool for tool in given.tools.split(",") if tool.split()[0] in here]
        for path, epsilon, tool in itertools.product(files, given.eps, tools):
            if tool == "scikit-learn" and epsilon != given.eps[0]:
                continue
            found = cell(tool, path, epsilon, given.seeds, here[tool.split()[0]][1], folder)
            if found is None:
                print(f"{path.stem:<16} {tool:<14} {epsilon:g} failed, or more than {LONGEST} s", flush=True)
                continue
            done[path.stem, tool, epsilon] = found
            shown = f"{found['accuracy']:.4f} +- {found['std'] or 0:.4f}  {found['seconds']:.2f} s wall"
            shown += f"  {found['cpu_seconds']:.2f} s processor  {found['mib']:.0f} MiB"
            print(f"{path.stem:<16} {tool:<14} {epsilon:g} {shown}", flush=True)
            if given.json is not None:
                versions = known.get("versions", {}) | {tool: found for tool, (found, _) in here.items()}
                content = {"versions": versions, "delta": DELTA, "cells": list(done.values())}
                given.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
