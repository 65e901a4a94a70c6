"""Many fits and commands in one process, and trainings at once: `python -m tests.hostile.soak`.

Prints memory and open files after a tenth of the fits or commands, and at the end. Fails if either has grown, or if one
of four seeded trainings at once gives another model than one alone.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.conftest import gaussian_rows, write_features
from tests.hostile.case import own_books, preload, status_figure
from tests.processes import start_copy

MOST_GROWTH = 24 << 10  # KiB, of which the allocator's own slack is a part
SEEDED = ("--method", "dp-sgd", "--eps", "3", "--steps", "100", "--sampling-rate", "0.2", "--accountant", "rdp",
          "--insecure-seed", "--noise-seed", "5")  # fmt: skip


def _quietly(words: list[str]) -> int:
    from linprobe.cli import run

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return run(words)


def repeated(what: str, times: int, act: Callable[[int], object]) -> bool:
    """Call `act` so often; whether memory and open files stayed as they were after a tenth of the calls."""
    early = (0, 0)
    for number in range(times):
        act(number)
        if number == times // 10:
            early = _used()
    late = _used()
    print(f"{what}: {times}; resident memory {early[0]} KiB, then {late[0]} KiB; open files {early[1]}, then {late[1]}")
    return late[0] - early[0] <= MOST_GROWTH and late[1] <= early[1]


def _used() -> tuple[int, int]:
    return status_figure("VmRSS"), len(list(Path("/proc/self/fd").iterdir()))


def fits(times: int) -> int:
    """Exit status 1 if fits leak."""
    from linprobe.api.estimators import NoisyGD

    x, y = gaussian_rows("train", 400)
    warnings.simplefilter("ignore")
    return (
        0 if repeated("fits", times, lambda number: NoisyGD(epsilon=1.0, classes=range(4), n_steps=10).fit(x, y)) else 1
    )


def commands(times: int, top: Path) -> int:
    """Exit status 1 if commands leak or fail."""
    os.chdir(top)
    statuses = set()
    cycle = [
        ["train", "f.h5", "--method", "noisy-gd", "--eps", "1", "--steps", "5", "--out", "soaked"],
        ["verify", "soaked", "--features", "f.h5"],
        ["evaluate", "soaked", "f.h5"],
        ["predict", "soaked", "f.h5"],
        ["pdp-report", "soaked", "--json"],
        ["report", "soaked", "--html", "page.html", "--overwrite"],
        ["info", "f.h5"],
        ["import", "a.npz", "--out", "imported.h5", "--overwrite"],
    ]

    def act(number: int) -> None:
        if number % len(cycle) == 0:
            shutil.rmtree("soaked", ignore_errors=True)
        statuses.add(_quietly(cycle[number % len(cycle)]))

    kept = repeated("commands", times, act)
    print(f"exit statuses: {sorted(statuses)}")
    return 0 if kept and statuses == {0} else 1


def at_once(top: Path) -> int:
    """Exit status 1 if four trainings at once differ from one."""

    def train(name: str) -> int:
        os.chdir(top)
        return _quietly(["train", "f.h5", *SEEDED, "--out", name])

    os.waitpid(start_copy(lambda: train("alone")), 0)
    names = [f"together{number}" for number in range(4)]
    for child in [start_copy(lambda name=name: train(name)) for name in names]:  # type: ignore[misc]
        os.waitpid(child, 0)
    same = 0
    with np.load(top / "alone/model.npz") as alone:
        for name in names:
            with np.load(top / name / "model.npz") as other:
                same += all(np.array_equal(alone[key], other[key]) for key in alone)
    print(f"trainings at once: {len(names)}; like one alone: {same}")
    return 0 if same == len(names) else 1


def main() -> int:
    """Exit status 1 if anything grew or differed."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.soak", description=__doc__)
    parser.add_argument("--fits", type=int, default=500)
    parser.add_argument("--commands", type=int, default=200)
    given = parser.parse_args()
    preload()
    failed = 0
    with tempfile.TemporaryDirectory(prefix="linprobe-soak-") as name, own_books(Path(name) / "state"):
        top = Path(name)
        for part in (lambda: _inputs(top), lambda: fits(given.fits), lambda: commands(given.commands, top)):
            failed += os.waitstatus_to_exitcode(os.waitpid(start_copy(part), 0)[1]) != 0
        failed += at_once(top)
    return 1 if failed else 0


def _inputs(top: Path) -> int:
    write_features(top / "f.h5")
    (x, y), (x_test, y_test) = gaussian_rows("train", 200), gaussian_rows("test", 60)
    np.savez(top / "a.npz", X_train=x, y_train=y, X_test=x_test, y_test=y_test)
    return 0


if __name__ == "__main__":
    sys.exit(main())
