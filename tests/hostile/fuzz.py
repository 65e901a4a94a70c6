"""Guided fuzzing of `verify` and the feature reader: `python -m tests.hostile.fuzz [--seconds 1200] [--only WORD]`.

Files are changed byte by byte. A change that makes a line of linprobe run which no earlier one did is kept, and changed
further (`sys.settrace`, so it needs no compiler). The manifest of a changed run gets fresh digests, as a forger would
make them; `verify` must never accept one with another epsilon. Reading must end in rows or in an error of linprobe.
Neither may take longer than `LONGEST`. Prints every failure, and the counts: tried, refused, accepted, kept, failed.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from linprobe.errors import LinprobeError, PrivacyError
from linprobe.options.requests import VerifyRequest
from linprobe.runs.manifest import MANIFEST
from tests.hostile.case import good_files
from tests.hostile.features import mutated
from tests.hostile.runs import sealed

LONGEST = 5.0  # seconds of a processor
MOST_KEPT = 200
VERIFIED = ("manifest.json", "ledger.jsonl", "model.npz", "test_figures.json", "history.csv", "per_record.npz")


class Lines:
    """Which lines of linprobe have run."""

    def __init__(self) -> None:
        self.seen: set[tuple[str, int]] = set()
        self.new = 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        name = frame.f_code.co_filename
        if "linprobe" not in name or "tests" in name:
            return None
        if (name, frame.f_lineno) not in self.seen:
            self.seen.add((name, frame.f_lineno))
            self.new += 1
        return self


def changed(content: bytes, draw: random.Random) -> bytes:
    """Changed bytes, or a digit of a number in its place, which JSON and texts survive."""
    if draw.random() < 0.5:
        return mutated(content or b"\0", draw.randrange(1 << 30))
    digits = [place for place, byte in enumerate(content) if 48 <= byte <= 57]
    if not digits:
        return content[: draw.randrange(len(content) + 1)]
    place = draw.choice(digits)
    return content[:place] + str(draw.randrange(10)).encode() + content[place + 1 :]


def verified(run: Path, name: str, good: bytes) -> Callable[[bytes], str]:
    """Verify the run with a changed file: what is wrong with the outcome."""
    from linprobe.runs.check import verify_run
    from linprobe.runs.run_folder import RunFolder

    stated, manifest = RunFolder(run).manifest.epsilon, (run / MANIFEST).read_bytes()

    def judge(content: bytes) -> str:
        (run / name).write_bytes(content)
        try:
            with suppress(ValueError, TypeError, AttributeError, RecursionError):  # no JSON object any more
                sealed(run)
            found = verify_run(VerifyRequest(run=run))
        finally:
            (run / name).write_bytes(good)
            (run / MANIFEST).write_bytes(manifest)
        if not found["verified"]:
            raise PrivacyError(found["refused"])
        return "" if found["epsilon"] == stated else f"verified with epsilon {found['epsilon']} in place of {stated}"

    return judge


def read(path: Path) -> Callable[[bytes], str]:
    """Read every group of a changed feature file: what is wrong with the rows."""
    import numpy as np

    from linprobe.data.dataset import open_features

    def judge(content: bytes) -> str:
        path.write_bytes(content)
        with open_features(path) as features:
            for x, _ in features.blocks("train"):
                if not np.isfinite(x).all():
                    return "a row that is not finite was read"
        return ""

    return judge


def fuzz(good: bytes, judge: Callable[[bytes], str], seconds: float, draw: random.Random) -> Iterator[tuple[str, str]]:
    """Outcomes of changed files: a kind, and what is wrong with it (empty if nothing is)."""
    lines, corpus, until = Lines(), [good], time.monotonic() + seconds
    while time.monotonic() < until:
        content = changed(draw.choice(corpus), draw)
        lines.new, started, kind, failure = 0, time.process_time(), "accepted", ""
        sys.settrace(lines)
        try:
            failure = judge(content)
        except LinprobeError as error:
            kind = "refused"
            failure = "" if "\n" not in str(error) else "an error of several lines"
        except Exception as error:
            kind, failure = "refused", f"{type(error).__name__}: {error}"
        finally:
            sys.settrace(None)
        if time.process_time() - started > LONGEST:
            failure = failure or f"took {time.process_time() - started:.1f} seconds"
        if lines.new and len(corpus) < MOST_KEPT:
            corpus.append(content)
            yield "kept", ""
        yield kind, failure


def main() -> int:
    """Exit status 1 if a changed file did harm."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1200, help="for all files together")
    parser.add_argument("--seed", type=int, default=0, help="of the changes")
    parser.add_argument("--only", default="", help="files whose name holds this")
    given = parser.parse_args()
    draw, failed = random.Random(given.seed), 0
    with good_files() as made, tempfile.TemporaryDirectory(prefix="linprobe-fuzz-") as name:
        run, features = Path(name) / "run", Path(name) / "f.h5"
        shutil.copytree(made.run, run)
        content = made.features.read_bytes()
        judges = {f"verify, {file}": (verified, file) for file in VERIFIED if (run / file).exists()}
        wanted = [title for title in (*judges, "features") if given.only in title]
        for title in wanted:
            good = content if title == "features" else (run / judges[title][1]).read_bytes()
            judge = read(features) if title == "features" else verified(run, judges[title][1], good)
            counts: Counter[str] = Counter()
            for kind, failure in fuzz(good, judge, given.seconds / len(wanted), draw):
                counts[kind] += 1
                if failure:
                    counts["failed"] += 1
                    print(f"{title} | {kind} | {failure[:300]}", flush=True)
            failed += counts["failed"]
            counts["tried"] = counts["refused"] + counts["accepted"]
            shown = ("tried", "refused", "accepted", "kept", "failed")
            print(f"{title:<28}" + "".join(f" {word} {counts[word]:>5}" for word in shown), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
