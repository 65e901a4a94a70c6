"""CBMC finds no access outside an array, and no overflow, in five entry points of the kernel: any values."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

HARNESS = Path(__file__).parent / "cbmc" / "entries.c"
CHECKS = [f"--{kind}-check" for kind in ("bounds", "pointer", "pointer-overflow", "signed-overflow", "undefined-shift")]
BOUNDS = ["--unwinding-assertions", "--unwind", "600", "--object-bits", "12"]
BRANCHES = ["load", "widen"]  # those whose code differs by storage type
needs_cbmc = pytest.mark.skipif(shutil.which("cbmc") is None, reason="no cbmc; apt-get install cbmc")


def failures(entry: str, shape: tuple[int, int, int], *defined: str) -> list[str]:
    """What fails for N rows of D features and C classes: lines of CBMC's results."""
    sizes = [f"-D{name}={size}" for name, size in zip("NDC", shape, strict=True)]
    command = ["cbmc", str(HARNESS), *sizes, "-DWIDEST=4", *(f"-D{one}" for one in defined)]
    command += ["--function", f"check_{entry}", "--nondet-static", *CHECKS, "--slice-formula", *BOUNDS]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=600)
    assert done.returncode in (0, 10), done.stdout[-2000:] + done.stderr
    found = [line for line in done.stdout.splitlines() if re.match(r"\[.*FAILURE$", line)]
    assert (done.returncode == 10) == bool(found)
    return found


@needs_cbmc
@pytest.mark.parametrize("entry", ["interface", "load", "widen", "scores", "sum"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 17, 2)])
def test_an_entry_point_stays_inside_its_arrays(entry: str, shape: tuple[int, int, int]) -> None:
    assert not failures(entry, shape)


@needs_cbmc
@pytest.mark.parametrize("entry", BRANCHES)
@pytest.mark.parametrize("stored", ["BFLOAT16", "FLOAT16"])
def test_rows_of_half_the_size_are_read_and_translated_inside_their_arrays(entry: str, stored: str) -> None:
    assert not failures(entry, (2, 5, 1), f"STORED={stored}", "SHIFTED=1")


@needs_cbmc
@pytest.mark.parametrize("entry", ["load", "scores", "sum"])
def test_what_is_assumed_leaves_the_end_within_reach(entry: str) -> None:
    (reached,) = failures(entry, (2, 5, 2), "LAST")
    assert "reached" in reached


@needs_cbmc
@pytest.mark.parametrize(("entry", "array"), [("scores", "SHORT_OUT"), ("sum", "SHORT_TOTAL")])
def test_an_array_that_is_one_number_too_short_is_found(entry: str, array: str) -> None:
    assert failures(entry, (2, 31, 2), array)
