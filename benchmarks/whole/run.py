"""The whole run: seconds, memory and accuracy from a feature file to a trained probe, beside other libraries.

    python benchmarks/whole/run.py [FILE.h5 ...] --json benchmarks/whole/results.json [--peers PYTHON] [--seeds 3]

Each training is a process of its own, so that start, imports, reading and writing count. linprobe is
`linprobe train FILE --method noisy-gd --eps E`, without public rows, and writes its run folder. `peers.py` states what
the others do. Without files: the built-in digits. diffprivlib 0.6.6 needs scikit-learn below 1.5, and linprobe a newer
one, so `--peers` names the Python of an environment with opacus and diffprivlib; a library that is not there is
skipped. No cell may take more than `LONGEST` seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

DELTA, EPSILONS = "1e-5", (1.0, 3.0)
LONGEST = 900.0
PEERS = ("scikit-learn", "diffprivlib", "opacus")


def measured(words: list[str], folder: Path) -> tuple[float, float, str] | None:
    """Wall seconds, peak memory in MiB, and stdout of a process; None if it failed or took too long."""
    log = folder / "stdout"
    environment = os.environ | {"XDG_STATE_HOME": str(folder / str(time.monotonic_ns()))}
    with log.open("w") as stdout:
        started = time.perf_counter()
        process = subprocess.Popen(["timeout", str(LONGEST), *words], stdout=stdout, cwd=folder, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    return None if process.returncode else (seconds, usage.ru_maxrss / 1024, log.read_text())


def trained(tool: str, path: Path, epsilon: float, seed: int, python: str, folder: Path) -> dict[str, Any] | None:
    """Accuracy, seconds and memory of one training."""
    if tool == "linprobe":
        command = str(Path(sys.executable).with_name("linprobe"))
        options = ["--method", "noisy-gd", "--eps", str(epsilon), "--delta", DELTA, "--public-shots", "0", "--json"]
        ended = measured([command, "train", str(path), *options, "--out", f"run-{seed}-{epsilon}-{path.stem}"], folder)
    else:
        script = str(Path(__file__).with_name("peers.py"))
        ended = measured([python, script, tool, str(path), str(epsilon), str(seed)], folder)
    if ended is None:
        return None
    seconds, memory, text = ended
    found = json.loads(text)
    others = found.pop("seconds_of_other_rates", 0.0)
    accuracy = found["test_accuracy"] if tool == "linprobe" else found.pop("accuracy")
    setting = {} if tool == "linprobe" else found
    return {"accuracy": accuracy, "seconds": seconds - others, "mib": memory, **setting}


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
        "mib": max(run["mib"] for run in done),
        "runs": done,
    }


def versions(python: str) -> dict[str, str]:
    """Versions of what is compared."""
    code = "import json, sys; from importlib.metadata import version; print(json.dumps(version(sys.argv[1])))"
    found = {}
    for name in PEERS:
        done = subprocess.run([python, "-c", code, name], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            found[name] = json.loads(done.stdout)
    return {"linprobe": version("linprobe"), **found}


def main() -> None:
    """Measure every cell, print a line for each, and write the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--peers", default=sys.executable, help="the Python that has the other libraries")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tools", default=",".join(("linprobe", *PEERS)), help="what to compare")
    given = parser.parse_args()
    here = versions(given.peers)
    cells = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = [path.absolute() for path in given.files]
        if not files:
            from linprobe.data.digits import write_digits

            files = [folder / "digits.h5"]
            write_digits(files[0])
        for path in files:
            for epsilon in EPSILONS:
                for tool in (tool for tool in given.tools.split(",") if tool in here):
                    if tool == "scikit-learn" and epsilon != EPSILONS[0]:
                        continue
                    found = cell(tool, path, epsilon, given.seeds, given.peers, folder)
                    if found is None:
                        print(f"{path.stem:<16} {tool:<14} {epsilon:g} failed, or more than {LONGEST:g} s", flush=True)
                        continue
                    cells.append(found)
                    shown = f"{found['accuracy']:.4f} +- {found['std'] or 0:.4f}  {found['seconds']:.2f} s"
                    print(f"{path.stem:<16} {tool:<14} {epsilon:g} {shown}  {found['mib']:.0f} MiB", flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps({"versions": here, "delta": DELTA, "cells": cells}, indent=1) + "\n")


if __name__ == "__main__":
    main()
