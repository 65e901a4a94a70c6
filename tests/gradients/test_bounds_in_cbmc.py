"""CBMC finds no access outside an array, and no overflow, in the entry points of the kernel: any values, fixed shapes.

`python -m tests.gradients.test_bounds_in_cbmc` takes further shapes.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import mostly_nightly

HARNESS = Path(__file__).parent / "cbmc" / "entries.c"
CHECKS = [f"--{kind}-check" for kind in ("bounds", "pointer", "pointer-overflow", "signed-overflow", "undefined-shift")]
BOUNDS = ["--unwinding-assertions", "--unwind", "600", "--object-bits", "12"]
Shape = tuple[int, int, int]  # rows, features, classes
TRANSLATED = {stored: [f"STORED={stored.upper()}", "SHIFTED=1"] for stored in ("bfloat16", "float16")}
CASES: list[tuple[str, Shape, list[str]]] = [
    ("interface", (1, 1, 1), []),
    ("scores", (3, 17, 2), []),
    ("sum", (3, 17, 2), []),
    *((entry, (2, 5, 1), defined) for entry in ("load", "widen") for defined in TRANSLATED.values()),
    ("clipped_sum", (2, 5, 2), ["CHOSEN=2"]),
    ("clipped_runs", (2, 5, 2), []),
    ("inner_products", (3, 5, 2), []),
    ("clip_people", (3, 5, 2), []),
    ("people", (3, 1, 2), ["CHOSEN=1"]),
    ("formed", (3, 5, 2), ["PAIRED=1"]),
    ("first_look", (1, 1, 1), []),
]
FURTHER: list[tuple[str, Shape, list[str]]] = [
    ("sum", (3, 5, 2), ["CHOSEN=5"]),
    *((entry, (3, 5, 2), ["CHOSEN=5", *TRANSLATED["bfloat16"]]) for entry in ("clipped_sum", "clipped_runs")),
    ("people", (3, 5, 2), ["CHOSEN=2", *TRANSLATED["bfloat16"]]),
    ("formed", (3, 5, 2), ["PAIRED=1", "CHOSEN=1", *TRANSLATED["bfloat16"]]),
    ("formed", (3, 17, 2), ["PAIRED=1"]),
    *((entry, (3, 17, 2), []) for entry in ("load", "inner_products", "clip_people", "people")),
    *((entry, (3, 17, 2), []) for entry in ("clipped_sum", "clipped_runs")),
    ("first_look", (3, 1, 1), []),
]
# an array that is one number too short; for first_look CBMC decides that in no reasonable time
SHORT: list[tuple[str, Shape, str]] = [
    ("scores", (2, 31, 2), "OUT"),
    ("sum", (2, 31, 2), "TOTAL"),
    ("clipped_sum", (1, 1, 1), "FACTORS"),
    ("clipped_runs", (1, 1, 1), "FACTORS"),
    ("inner_products", (3, 1, 1), "INNER"),
    ("clip_people", (2, 1, 1), "FACTORS"),
    ("people", (2, 1, 1), "FACTORS"),
]
# proved by default; the others take seconds each, and `test_bounds_sanitized` calls all entry points
QUICK = ("interface", "load", "inner_products", "first_look")
needs_cbmc = pytest.mark.skipif(shutil.which("cbmc") is None, reason="no cbmc; apt-get install cbmc")


def failures(entry: str, shape: Shape, *defined: str) -> list[str]:
    """The names of what fails for N rows of D features and C classes."""
    sizes = [f"-D{name}={size}" for name, size in zip("NDC", shape, strict=True)]
    command = ["cbmc", str(HARNESS), *sizes, "-DWIDEST=4", *(f"-D{one}" for one in defined)]
    command += ["--function", f"check_{entry}", "--nondet-static", *CHECKS, "--slice-formula", *BOUNDS]
    command += ["--unwindset", f"plain_quantile.2:{shape[0] + 1}"]  # its count depends on the values
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=600)
    assert done.returncode in (0, 10), done.stdout[-2000:] + done.stderr
    results = re.findall(r"^\[([^]\s]+)\] (?:.*?): (SUCCESS|FAILURE|UNKNOWN)$", done.stdout, re.MULTILINE | re.DOTALL)
    found = [name for name, result in results if result == "FAILURE"]
    assert results
    assert (done.returncode == 10) == bool(found)
    return found


@needs_cbmc
@pytest.mark.parametrize(("entry", "shape", "defined"), mostly_nightly(CASES, lambda case: case[0] in QUICK))
def test_an_entry_point_stays_inside_its_arrays(entry: str, shape: Shape, defined: list[str]) -> None:
    assert not failures(entry, shape, *defined)


@needs_cbmc
def test_what_is_assumed_leaves_the_end_within_reach() -> None:
    assert failures("load", (2, 5, 2), "LAST") == ["check_load.assertion.1"]


@needs_cbmc
@pytest.mark.parametrize(("entry", "shape", "array"), mostly_nightly(SHORT, lambda case: case[0] in QUICK))
def test_an_array_that_is_one_number_too_short_is_found(entry: str, shape: Shape, array: str) -> None:
    assert failures(entry, shape, f"SHORT={array}")


if __name__ == "__main__":
    failed = 0
    for _entry, _shape, _defined in FURTHER:
        _found = failures(_entry, _shape, *_defined)
        failed += bool(_found)
        print(_entry, _shape, *_defined, *(_found or ["proved"]), flush=True)
    sys.exit(f"{failed} of {len(FURTHER)} fail" if failed else 0)
