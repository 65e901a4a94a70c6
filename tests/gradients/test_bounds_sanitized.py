"""Under AddressSanitizer and UndefinedBehaviorSanitizer no entry point of the kernel leaves its arrays."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from linprobe import native
from tests.narrow_kernel import needs_compiler

SOURCE = Path(__file__).parent / "sanitized" / "sweep.c"
FLAGS = ("-O0", "-w", "-std=gnu11", "-ffp-contract=fast", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
pytestmark = [needs_compiler, pytest.mark.nightly]  # it compiles for three seconds


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, compiled; its tests are skipped where the compiler has no sanitizers, or its programs do not run."""
    program = tmp_path_factory.mktemp("sanitized") / "sweep"
    trial = program.with_name("trial.c")
    trial.write_text("int main(void) { return 0; }\n", encoding="utf-8")
    command = ["cc", *FLAGS, "-o", str(program)]
    usable = subprocess.run([*command, str(trial)], capture_output=True).returncode == 0
    if not usable or run(program).returncode:
        pytest.skip("the compiler has no AddressSanitizer")
    subprocess.run([*command, str(SOURCE), "-lm"], check=True)
    return program


def run(program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    options = {**os.environ, "ASAN_OPTIONS": "quarantine_size_mb=1:detect_leaks=0"}
    return subprocess.run([program, *arguments], capture_output=True, text=True, errors="replace", env=options)


@pytest.mark.parametrize(("words", "least"), [(("few",), 30_000), ((), 200_000)])
def test_every_entry_point_stays_inside_its_arrays(sweep: Path, words: tuple[str, ...], least: int) -> None:
    done = run(sweep, *words)
    assert done.returncode == 0, done.stderr[:2000]
    calls = re.fullmatch(r"(\d+) calls with vectors of at most \d+ floats, interface (\d+)\n", done.stdout)
    assert calls is not None
    assert int(calls[1]) > least
    assert int(calls[2]) == native.INTERFACE


SHORT = [
    ("widened", "widen"),
    ("halves", "halve"),
    ("sum_total", "sum"),
    ("run_room", "clipped_runs"),
    ("group_room", "clipped_sum"),
    ("pairs", "inner_products"),
    ("person_room", "people"),
    ("formed_room", "formed"),
    ("doubtful", "first_look"),
]


@pytest.mark.parametrize(("array", "entry"), SHORT)
def test_an_array_that_is_one_number_too_short_is_found(sweep: Path, array: str, entry: str) -> None:
    done = run(sweep, array)
    assert done.returncode != 0
    assert "AddressSanitizer" in done.stderr
    frames = re.findall(r"#\d+ .* in (\w+)", done.stderr.split("located")[0])
    assert f"linprobe_{entry}" in frames
