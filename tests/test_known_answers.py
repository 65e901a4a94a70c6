"""Arithmetic that is not that of the proofs: a kernel compiled or changed so, and a process set so, are refused."""

from __future__ import annotations

import ctypes
import ctypes.util
import hashlib
import json
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from linprobe import native
from linprobe.mechanisms.noise import EXTRA_BITS, UNSURE, NoiseSource, nearest_cell
from tests.conftest import mostly_nightly
from tests.narrow_kernel import SOURCE, narrow_kernel, needs_compiler

UPWARD, DOWNWARD, TO_ZERO = 0x800, 0x400, 0xC00  # of fesetround on x86-64
on_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="sets registers of x86-64")
needs_kernel = pytest.mark.skipif(native.LIBRARY is None, reason="the kernel is not built")
REASSOCIATED = ["-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math", "-U__ASSOCIATIVE_MATH__"]


@pytest.fixture(autouse=True)
def _kernels_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the suite runs without the kernel too."""
    monkeypatch.delenv("LINPROBE_NATIVE", raising=False)


# the same formulas at the speed of a test: few optimisations, and no copies for wide vectors
QUICK = ["-Og", "-DWIDEST=4"]


def compiled(source: Path, out: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = ["cc", "-O3", "-std=gnu11", "-ffp-contract=fast", *flags, "-fPIC", "-shared", str(source), "-o", str(out)]
    return subprocess.run([*command, "-lm"], capture_output=True, text=True, check=False)


@needs_compiler
@pytest.mark.parametrize("flag", ["-ffast-math", "-ffinite-math-only", "-Ofast"])
def test_the_kernel_does_not_compile_under_fast_math(flag: str, tmp_path: Path) -> None:
    found = compiled(SOURCE, tmp_path / "fast.so", flag)
    assert found.returncode != 0
    assert "compile without -ffast-math" in found.stderr


@needs_compiler
def test_a_kernel_whose_additions_were_reordered_is_not_used(tmp_path: Path) -> None:
    assert compiled(SOURCE, tmp_path / "fast.so", *QUICK, *REASSOCIATED).returncode == 0
    with pytest.warns(UserWarning, match="gives wrong numbers here, so NumPy computes; install linprobe again"):
        assert native.load(tmp_path / "fast.so") is None


CHANGES = [  # file, text before and after
    ("noise.h", "cells = steps + round - round", "cells = floor(steps)"),
    ("noise.h", "words[start + i] & 1 ? -z[i]", "words[start + i] & 2 ? -z[i]"),
    ("noise.h", "sqrt(-log(u[tail[k]])) - 1.6", "sqrt(-log(u[tail[k]])) - 1.6001"),
    ("noise.h", "r = 0.180625 - q * q", "r = 0.180626 - q * q"),
    ("vectors.h", "bound / ", "1.01 * bound / "),
]


@needs_compiler
@pytest.mark.parametrize(("file", "before", "after"), mostly_nightly(CHANGES, (CHANGES[0], CHANGES[-1]).__contains__))
def test_a_kernel_that_computes_something_else_is_not_used(file, before, after, tmp_path: Path) -> None:
    for each in SOURCE.parent.glob("*.[ch]"):
        shutil.copy(each, tmp_path)
    text = (tmp_path / file).read_text()
    assert before in text
    (tmp_path / file).write_text(text.replace(before, after))
    assert compiled(tmp_path / SOURCE.name, tmp_path / "other.so", *QUICK).returncode == 0
    with pytest.warns(UserWarning, match="gives wrong numbers"):
        assert native.load(tmp_path / "other.so") is None


@pytest.mark.parametrize("further", [0, 2**EXTRA_BITS - 1])
def test_the_known_noise_is_that_of_ball_arithmetic(further: int) -> None:
    for word, value, cell in native.KNOWN_NOISE:
        assert nearest_cell(value, 1.0, 2.0**-20, word, lambda: further) == cell
    assert UNSURE == 2.0**-21


@needs_kernel
def test_known_answers_cost_little() -> None:
    library, seconds = native.LIBRARY, []
    assert library is not None
    for _ in range(20):
        start = time.perf_counter()
        right = native._scores_as_known(library), native._sums_as_known(library), native._noise_as_known(library)
        seconds.append(time.perf_counter() - start)
        assert all(right)
    assert min(seconds) < 0.005


def test_the_manifest_names_the_kernel_and_its_vectors(trained_run: Path) -> None:
    named = json.loads((trained_run / "manifest.json").read_text())["software"]["arithmetic"]
    if native.LIBRARY is None:
        assert named == "numpy"
        return
    digest = hashlib.sha256(native.PATH.read_bytes()).hexdigest()
    assert named == f"kernel {digest}, vectors of {native.LIBRARY.linprobe_lanes()} floats"


@needs_compiler
@pytest.mark.parametrize("widest", [4, 8])
def test_a_narrow_kernel_says_how_wide_its_vectors_are(widest: int) -> None:
    library = narrow_kernel(widest)
    assert library is not None
    assert library.linprobe_lanes() in {4, widest}


@on_x86
@pytest.mark.parametrize("mode", [UPWARD, DOWNWARD, TO_ZERO])
def test_no_noise_is_made_where_numbers_are_not_rounded_to_nearest(mode: int) -> None:
    library = ctypes.CDLL(ctypes.util.find_library("m"))
    try:
        assert library.fesetround(mode) == 0
        with pytest.raises(
            Exception, match="does not round to nearest, so noise and sums would be wrong; allowed: the default"
        ):
            NoiseSource(1)
        if native.LIBRARY is not None and mode != DOWNWARD:
            assert not native._noise_as_known(native.LIBRARY)
    finally:
        library.fesetround(0)
    NoiseSource(1)


@on_x86
@needs_compiler
@pytest.mark.parametrize("bits", [0x8000, 0x0040, 0x8040])
def test_no_noise_is_made_where_small_numbers_are_flushed(bits: int, tmp_path: Path) -> None:
    """FTZ, DAZ and both, as a library compiled with -ffast-math sets them."""
    source = tmp_path / "flush.c"
    source.write_text("#include <xmmintrin.h>\nvoid flush(unsigned bits) { _mm_setcsr(_mm_getcsr() | bits); }\n")
    assert compiled(source, tmp_path / "flush.so").returncode == 0
    code = f"""
import ctypes, warnings
from linprobe import native
from linprobe.errors import LinprobeError
from linprobe.mechanisms.noise import NoiseSource
NoiseSource(1)
ctypes.CDLL({str(tmp_path / "flush.so")!r}).flush({bits})
try:
    NoiseSource(1)
except LinprobeError as error:
    print(error)
warnings.simplefilter("ignore")
print(native.load())
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.startswith("the processor flushes small numbers to 0, so noise and sums would be wrong")
    assert found.endswith("\nNone\n")
