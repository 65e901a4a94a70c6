"""Four processes run random commands in one folder, with faults: `python -m tests.hostile.together [--seconds 3600]`.

Every command works on the same feature file, budget book and few output names as the others, with new names each
minute. One in two has a fault of `tests.hostile.faults` at a random call. Meanwhile no command shows a traceback or
runs for longer than `PATIENCE` of `tests.processes`. Afterwards the budget book covers what all ledgers say, nobody
else can read a private file, every finished run verifies, and a training works. Prints every failure, and the counts of
commands: tried, refused, killed, failed.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.hostile.case import preload
from tests.hostile.crashes import uncovered
from tests.hostile.faults import FAULTS, KINDS, attempt, compiled, make_inputs, open_to_others
from tests.processes import ended, start_copy

PROCESSES, DEEPEST = 4, 40
SECONDS_OF_NAMES = 60  # until the commands take new names for their outputs
TRAIN = ("train", "../f.h5", "--eps", "0.5", "--steps", "3")
COMMANDS = (
    (*TRAIN, "--method", "noisy-gd"),
    (*TRAIN, "--method", "noisy-gd", "--checkpoint", "0"),
    (*TRAIN[:4], "--method", "prototypes"),
    ("tune", *TRAIN[1:], "--method", "noisy-gd", "--grid", "clip_norm=0.1,1"),
    ("import", "../a.npz"),
    ("release", "../run"),
    ("refine", "../run", "../u.h5"),
)
READERS = (
    ("pdp-report", "../run", "--publish-epsilon", "0.1"),
    ("verify", "../run", "--features", "../f.h5"),
    ("predict", "../run", "../f.h5"),
    ("budget", "../f.h5"),
)


def worker(number: int, folder: Path, until: float) -> int:
    """Run random commands until a time; write what was wrong, and the counts."""
    draw, counts, failures, began = random.Random(number), Counter[str](), [], time.monotonic()
    while time.monotonic() < until:
        words = draw.choice((*COMMANDS, *READERS))
        if words in COMMANDS:
            words = (*words, "--out", f"o{int(time.monotonic() - began) // SECONDS_OF_NAMES}-{draw.randrange(20)}")
        kind = draw.randrange(len(KINDS)) if draw.random() < 0.5 else -1
        fault = draw.choice(FAULTS[KINDS[kind]]) if kind >= 0 else 0
        try:
            status, said = attempt(words, folder, kind, draw.randrange(DEEPEST), fault, beside=str(number))
        except TimeoutError as error:
            status, said = 1, f"Traceback: {error}"
        counts.update(tried=1, refused=status > 0, killed=status < 0)
        if "Traceback" in said or (status > 0 and "linprobe: error: " not in said):
            counts["failed"] += 1
            failures.append(f"{' '.join(words)} | {kind} {fault} | {status} | {said[-300:]!r}")
    lines = [f"#{word} {counts[word]}" for word in ("tried", "refused", "killed", "failed")]
    (folder.parent.parent / f"said{number}").write_text("\n".join([*failures, *lines]))
    return 0


def wrong(folder: Path) -> Iterator[str]:
    """What is wrong in the end."""
    top = folder.parent
    yield from uncovered(top)
    yield from open_to_others(top)
    for path in folder.glob("o*/manifest.json"):
        status, said = attempt(("verify", str(path.parent)), folder)
        if status:
            yield f"{path.parent.name} does not verify: {said[-200:]!r}"
    status, said = attempt((*COMMANDS[0], "--out", "last"), folder)
    if status:
        yield f"a last training ends with status {status}: {said[-200:]!r}"


def main() -> int:
    """Exit status 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.together", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600, help="of commands")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="linprobe-together-") as name:
        if "faults.so" not in os.environ.get("LD_PRELOAD", ""):
            os.environ["LD_PRELOAD"] = str(compiled(Path(name)))
            return os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-m", "tests.hostile.together", *sys.argv[1:]])
        preload()
        top = Path(name) / "top"
        folder = top / "work"
        folder.mkdir(parents=True)
        if ended(start_copy(lambda: make_inputs(top))):
            return 1
        until = time.monotonic() + given.seconds
        children = [start_copy(lambda number=number: worker(number, folder, until)) for number in range(PROCESSES)]  # type: ignore[misc]
        for child in children:
            os.waitpid(child, 0)
        counts, failures = Counter[str](), list(wrong(folder))
        for number in range(PROCESSES):
            for line in (Path(name) / f"said{number}").read_text().splitlines():
                if line.startswith("#"):
                    counts[line[1:].split()[0]] += int(line.split()[1])
                else:
                    failures.append(line)
    for line in failures:
        print(line, flush=True)
    print("".join(f" {word} {counts[word]:>4}" for word in ("tried", "refused", "killed", "failed")))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
