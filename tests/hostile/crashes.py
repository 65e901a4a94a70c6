"""Kill commands at random moments: `python -m tests.hostile.crashes [--kills 50] [--only WORD]`.

After each kill: no process of the command is left, the budget book covers what the ledgers say, the command can be
finished, and its result is that of a run that nobody killed. Prints every failure, and the counts of each series:
kills, kills that came after the end, failures.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from linprobe.accounting.book import read_book
from tests.conftest import write_features
from tests.hostile.case import preload
from tests.processes import free_port, start_copy

SEED = ("--insecure-seed", "--noise-seed", "7")
SECONDS_TO_END = 20.0  # for processes of the command after one of them was killed
FULL = ("train", "../f.h5", "--method", "noisy-gd", "--eps", "3", "--steps", "200", "--checkpoint", "0", "--out", "o")
MANY = (
    *("train", "../many.h5", "--method", "noisy-gd", "--eps", "3", "--steps", "40", "--checkpoint", "0"),
    *("--out", "o"),
)
SAMPLED = (
    *("train", "../f.h5", "--method", "dp-sgd", "--eps", "3", "--steps", "150", "--checkpoint", "0", "--out", "o"),
    *("--sampling-rate", "0.2", "--accountant", "rdp"),
)
COMPARE = (
    *("compare", "../f.h5", "--methods", "noisy-gd,prototypes", "--eps", "1", "--seeds", "2"),
    *("--jobs", "2", "--out", "o"),
)
TUNE = (
    *("tune", "../f.h5", "--method", "noisy-gd", "--eps", "2", "--steps", "50", "--grid", "clip_norm=0.1,1"),
    *("--out", "o"),
)
PUBLISH = ("pdp-report", "o", "--publish-epsilon", "0.5")
EXTRACT = (
    *("extract", "../images", "--backbone", "timm:test_resnet", "--random-weights", "--resize", "16", "--crop", "16"),
    *("--device", "cpu", "--batch-size", "2", "--out", "o.h5"),
)


@dataclass(frozen=True)
class Series:
    """Kills of one command.

    Attributes:
        words: the command. finish: ends it after a kill. ranks: processes that train together.
        judge: what is wrong afterwards; gets the folder and the one of a run that nobody killed.
        before: makes what the command needs in a new folder.
    """

    words: tuple[str, ...]
    finish: Callable[[Series, Path], str]
    judge: Callable[[Path, Path], Iterator[str]]
    ranks: int = 1
    before: Callable[[Path], object] = lambda folder: None


def start(words: Sequence[str], folder: Path, ranks: int = 1) -> list[int]:
    """Run a command in `folder`, each process in a session of its own; their ids."""
    port = free_port()

    def work(rank: int) -> Callable[[], int]:
        def act() -> int:
            os.setsid()
            os.chdir(folder)
            os.environ["XDG_STATE_HOME"] = str(folder / "state")
            if ranks > 1:
                os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
                os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            signal.signal(signal.SIGINT, signal.default_int_handler)
            log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            from linprobe.cli import run

            return run(list(words))

        return act

    return [start_copy(work(rank)) for rank in range(ranks)]


def done(words: Sequence[str], folder: Path, ranks: int = 1) -> int:
    """Exit status of a command in `folder`, of the rank with the largest."""
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in start(words, folder, ranks))


def alive(session: int) -> list[int]:
    """Processes of a session that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] not in "ZX":
            found.append(int(path.parent.name))
    return found


def kill(words: Sequence[str], folder: Path, after: float, ranks: int) -> tuple[bool, str]:
    """Start a command and kill one process after a time: whether it had ended, and what is wrong then."""
    children = start(words, folder, ranks)
    time.sleep(after)
    victim = random.choice(children)
    early = os.waitpid(victim, os.WNOHANG)[0] == victim
    if not early:
        os.kill(victim, signal.SIGKILL)
        os.waitpid(victim, 0)
        for child in children:
            if child != victim:  # torchrun stops the other processes so
                os.kill(child, signal.SIGTERM)
    until = time.monotonic() + SECONDS_TO_END
    waiting = [child for child in children if child != victim]
    left: list[int] = []
    while time.monotonic() < until:
        waiting = [child for child in waiting if os.waitpid(child, os.WNOHANG)[0] == 0]
        left = [process for child in children for process in alive(child)]
        if not left and not waiting:
            return early, ""
        time.sleep(0.05)
    for process in left:
        os.kill(process, signal.SIGKILL)
    for child in waiting:
        os.waitpid(child, 0)
    return early, f"{len(left)} processes were left"


def uncovered(folder: Path) -> Iterator[str]:
    """Ledgers of private runs below `folder` with more releases than the budget book states."""
    entries = {}
    for path in (folder / "state" / "linprobe").glob("*.jsonl"):
        entries |= read_book(path).entries
    for ledger in folder.rglob("ledger.jsonl"):
        whole = ledger.read_bytes()
        lines = [json.loads(line) for line in whole[: whole.rfind(b"\n") + 1].splitlines()]
        manifest = ledger.with_name("manifest.json")
        stated, named = json.loads(manifest.read_text()) if manifest.exists() else {}, ledger.with_name("run_id")
        if not stated and not named.exists():
            continue  # a copy that `release` had begun
        run = stated.get("run_id") or named.read_text()
        entry = entries.get(run)
        if not lines or (entry is not None and not entry.private):
            continue
        if entry is None:
            yield f"{ledger.parent.name} has {len(lines)} releases, and the book does not know it"
        elif entry.selection is None:
            made = Counter((line["noise_multiplier"], line["sampling_rate"]) for line in lines)
            for release in entry.total:
                made[release.noise_multiplier, release.sampling_rate] -= release.count
            if max(made.values()) > 0:
                yield f"{ledger.parent.name} has {max(made.values())} releases more than the book states"


def _again(series: Series, folder: Path) -> str:
    status = 0 if (folder / "o").exists() and "compare" not in series.words else done(series.words, folder)
    return f"made again with status {status}" if status else ""


def _published(series: Series, folder: Path) -> str:
    status = 0 if (folder / "o.published-1").exists() else done(series.words, folder)
    return f"published again with status {status}" if status else ""


def _resumed(series: Series, folder: Path) -> str:
    status = 0 if (folder / "o").exists() else done((*series.words, "--resume"), folder, series.ranks)
    if status == 2 and (folder / "o").exists():  # killed between the manifest and the name, which it has now
        status = 0
    return f"resumed with status {status}" if status else ""


def _verified(folder: Path, whole: Path) -> Iterator[str]:
    runs = [path.parent for path in folder.rglob("manifest.json")]
    if not runs:
        yield "there is no run"
    for run in runs:
        manifest = json.loads((run / "manifest.json").read_text())
        status = done(("verify", str(run), "--features", manifest["features"]), folder) if manifest["private"] else 0
        if status:
            yield f"{run.name}: verify ended with {status}"


def _same_model(folder: Path, whole: Path) -> Iterator[str]:
    with np.load(folder / "o/model.npz") as here, np.load(whole / "o/model.npz") as there:
        if any(not np.array_equal(here[name], there[name]) for name in there):
            yield "another model than that of a run that nobody killed"


def _same_features(folder: Path, whole: Path) -> Iterator[str]:
    from tests.extraction.samples import contents

    if repr(contents(folder / "o.h5")) != repr(contents(whole / "o.h5")):
        yield "another feature file than that of an extraction that nobody killed"
    if list(folder.glob("*.partial")):
        yield "a partial folder was left"


def _extract_again(series: Series, folder: Path) -> str:
    status = 0 if (folder / "o.h5").exists() else done(series.words, folder)
    return f"extracted again with status {status}" if status else ""


SERIES = {
    "train": Series(FULL, _resumed, _verified),
    "train, seeded": Series((*FULL, *SEED), _resumed, _same_model),
    "train on samples": Series(SAMPLED, _resumed, _verified),
    "train on samples, seeded": Series((*SAMPLED, *SEED), _resumed, _same_model),
    "train in two processes": Series(MANY, _resumed, _verified, ranks=2),
    "train in two processes, seeded": Series((*MANY, *SEED), _resumed, _same_model, ranks=2),
    "extract": Series(EXTRACT, _extract_again, _same_features),
    "compare": Series(COMPARE, _again, _verified),
    "tune": Series(TUNE, _again, _verified),
    "publish": Series(PUBLISH, _published, _verified, before=lambda folder: done(FULL, folder)),
}


def play(name: str, series: Series, kills: int, top: Path) -> Counter[str]:
    """All kills of one series; prints what is wrong."""
    counts: Counter[str] = Counter()
    whole = top / "whole"
    for _ in range(2):  # the first attempt takes longer
        shutil.rmtree(whole, ignore_errors=True)
        whole.mkdir()
        series.before(whole)
        started = time.monotonic()
        if done(series.words, whole, series.ranks):
            raise RuntimeError(f"{name}: the command fails without a kill: {(whole / 'log').read_text()[-500:]}")
        lasts = time.monotonic() - started
    for number in range(kills):
        folder = top / "trial"
        folder.mkdir()
        series.before(folder)
        early, wrong = kill(series.words, folder, random.uniform(0, 1.05 * lasts), series.ranks)
        failures = [wrong, *uncovered(folder)]
        failures += [series.finish(series, folder)]
        if not any(failures):
            failures += [*series.judge(folder, whole), *uncovered(folder)]
        counts["kills"] += 1
        counts["late"] += early
        said = [failure for failure in failures if failure]
        if said:
            counts["failed"] += 1
            log = (folder / "log").read_text()[-200:] if (folder / "log").exists() else ""
            print(f"{name} | kill {number} | {'; '.join(said)} | {log!r}", flush=True)
        shutil.rmtree(folder)
    shutil.rmtree(whole)
    print(f"{name:<32}" + "".join(f" {word} {counts[word]:>3}" for word in ("kills", "late", "failed")), flush=True)
    return counts


def main() -> int:
    """Exit status 1 if a kill did harm."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.crashes", description=__doc__)
    parser.add_argument("--kills", type=int, default=50, help="of each series")
    parser.add_argument("--only", default="", help="the series of this name, or those whose name holds it")
    given = parser.parse_args()
    preload()
    total: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="linprobe-crashes-") as name:
        top = Path(name)
        done_in_copy = start_copy(lambda: make_inputs(top))  # so that this process stays without threads
        if os.waitstatus_to_exitcode(os.waitpid(done_in_copy, 0)[1]):
            return 1
        for title, series in SERIES.items():
            if title == given.only if given.only in SERIES else given.only in title:
                total += play(title, series, given.kills, top)
    print(f"{'total':<32}" + "".join(f" {word} {total[word]:>3}" for word in ("kills", "late", "failed")))
    return 1 if total["failed"] else 0


def make_inputs(top: Path) -> int:
    """Feature files and images for the commands."""
    from tests.extraction.samples import write_images
    from tests.training.test_processes import write_many

    write_features(top / "f.h5")
    write_many(top / "many.h5")
    write_images(top / "images", {"train": 8, "test": 2})
    return 0


if __name__ == "__main__":
    sys.exit(main())
