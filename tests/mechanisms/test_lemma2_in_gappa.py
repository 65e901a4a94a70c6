"""The scalar steps of lemma 2 (docs/proofs/clipped-sum.md), proved by Gappa from files with the constants of the code.

`python -m tests.mechanisms.test_lemma2_in_gappa` writes the files anew.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from linprobe.gradients.rounding import FLOAT32_ROUNDING, LARGEST_MARGIN, SMALLEST_MARGIN, SUM_ROWS, arithmetic
from tests.conftest import mostly_nightly

FOLDER = Path(__file__).parent / "gappa"
FORMATS = "@d = float<ieee_64, ne>;\n@s = float<ieee_32, ne>;\n"
U = "1b-24"
ROUNDINGS = SUM_ROWS * (SUM_ROWS + 3)  # of a sum with a record and of one without it, in units of u
MOST = int(LARGEST_MARGIN / (ROUNDINGS * FLOAT32_ROUNDING))  # amplification of float32 sums
WIDEST = int(0.49 * 2**20)  # amplification of float64 sums
NORMS = 17  # error of a norm in units of u: `row_norms`, not proved here
FACTOR = 37  # of norms, factor and product
needs_gappa = pytest.mark.skipif(shutil.which("gappa") is None, reason="no gappa; apt-get install gappa")


def factor(within: int = FACTOR - 1) -> str:
    """The float32 factor of a record, relative to the one that its exact norms X and R give."""
    return f"""{FORMATS}longest = d(tau * d(1 - margin));
length = d(nx * nr);
c = d(longest / length);
f = s(c);
exact = tau * (1 - margin) / (X * R);
{{ tau in [1e-9, 1e6] /\\ margin in [1b-10, 0.5] /\\ c in [1b-100, 1]
  /\\ X in [1e-30, 1e15] /\\ R in [1e-30, 1e15]
  /\\ nx in [1e-30, 1e15] /\\ nr in [1e-30, 1e15] /\\ X * R in [1b-100, 1b100]
  /\\ nx -/ X in [-{NORMS}b-24, {NORMS}b-24] /\\ nr -/ R in [-{NORMS}b-24, {NORMS}b-24]
  -> f -/ exact in [-{within}b-24, {within}b-24] }}
"""


def product(power: int = 24) -> str:
    """The product of a factor and a residual, w = c r, rounded to float32."""
    return f"{FORMATS}v = s(w);\n{{ |w| in [1b-125, 1b120] -> v -/ w in [-1b-{power}, 1b-{power}] }}\n"


def small_product(power: int = 150) -> str:
    """The same where gradual underflow makes the error absolute."""
    return f"{FORMATS}v = s(w);\n{{ |w| in [0, 1b-125] -> v - w in [-1b-{power}, 1b-{power}] }}\n"


def running_sum(rows: int = SUM_ROWS, share: int = 1) -> str:
    """A float32 sum of products of at most 1, against the exact sum."""
    places, roundings = range(2, rows + 1), rows * (rows + 3) // 2 // share
    steps = ["p1 = s(x1 * v1);", "a1 = p1;", "e1 = x1 * v1;"]
    steps += [f"p{i} = s(x{i} * v{i}); a{i} = s(a{i - 1} + p{i}); e{i} = e{i - 1} + x{i} * v{i};" for i in places]
    given = " /\\ ".join(f"x{i} * v{i} in [-1, 1]" for i in range(1, rows + 1))
    goal = f"a{rows} - e{rows} in [-{roundings}b-24, {roundings}b-24]"
    return FORMATS + "\n".join(steps) + f"\n{{ {given} -> {goal} }}\n"


def grid(half: str = "0.5") -> str:
    """A term on the public grid, in units of a step: adding and subtracting 1.5 2^52 moves it by half a step."""
    return f"""{FORMATS}shift = 3b51;
raised = d(t + shift);
g = d(raised - shift);
{{ t in [-1b50, 1b50] -> g - t in [-{half}, {half}] }}
g - t -> (g - (raised - shift)) + (raised - (t + shift));
"""


def narrow_margin(less: int = 1) -> str:
    """What the margin leaves after float32 sums, the grid, sums of blocks and counted factors."""
    return _margin("0", f"{ROUNDINGS} * {U}", f"{FACTOR} * {U}", (1, MOST), less)


def wide_margin(less: int = 1) -> str:
    """The same for float64 sums around an origin, whose norms are rounded up: a factor and a product are rounded."""
    return _margin("1b-20", "0", f"2 * {U}", (MOST, WIDEST), less)


def _margin(own: str, sums: str, rest: str, amplifications: tuple[int, int], less: int) -> str:
    """`sums` and the grid are in the margin as they are; 2^-10 and `own` cover the `rest`."""
    others = f"A * ({rest} + 1b-27 + 1b-23)"
    left = f"""sums = A * ({sums} + grid);
others = {others};
margin = (1b-10 + A * {own} + sums) / {less};
left = margin - sums - others;
{{ A in [{amplifications[0]}, {amplifications[1]}] /\\ grid in [0, 1] -> left >= 0 }}
"""
    return left + (f"left -> 1b-10 + A * {own} - others;\n" if less == 1 else "")


FILES = {
    "factor": factor,
    "product": product,
    "small_product": small_product,
    "running_sum": running_sum,
    "grid": grid,
    "narrow_margin": narrow_margin,
    "wide_margin": wide_margin,
}
TOO_MUCH = {
    "factor": factor(3),
    "product": product(27),
    "small_product": small_product(153),
    "running_sum": running_sum(16, share=10),
    "grid": grid("0.05"),
    "narrow_margin": narrow_margin(10),
    "wide_margin": wide_margin(10),
}


def accepts(text: str) -> bool:
    """Whether Gappa proves every goal of a script."""
    done = subprocess.run(["gappa"], input=text, capture_output=True, text=True, timeout=600)
    assert done.returncode in (0, 1), done.stderr
    assert "not trivially equal" not in done.stderr, done.stderr
    assert done.returncode == 0 or "properties were not satisfied" in done.stderr, done.stderr
    return done.returncode == 0


@pytest.mark.parametrize("name", FILES)
def test_the_files_state_the_constants_of_the_code(name: str) -> None:
    assert (FOLDER / f"{name}.g").read_text(encoding="utf-8") == FILES[name]()


def test_the_margins_of_the_files_are_those_of_the_code() -> None:
    assert FLOAT32_ROUNDING == 2.0**-24
    assert SMALLEST_MARGIN == 2.0**-10
    for amplification in (1.0, MOST / 2, MOST - 1.0):
        assert arithmetic(amplification).margin >= 2.0**-10 + amplification * ROUNDINGS * 2.0**-24
    for amplification in (MOST + 2.0, WIDEST - 1e4):
        assert arithmetic(amplification).margin >= 2.0**-10 + amplification * 2.0**-20


@needs_gappa
@pytest.mark.parametrize("name", mostly_nightly(FILES, lambda name: name != "running_sum"))  # which takes seconds
def test_gappa_accepts_each_step(name: str) -> None:
    assert accepts((FOLDER / f"{name}.g").read_text(encoding="utf-8"))


@needs_gappa
@pytest.mark.parametrize("name", TOO_MUCH)
def test_gappa_refuses_each_bound_that_is_8_to_12_times_smaller(name: str) -> None:
    assert not accepts(TOO_MUCH[name])


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for _name, _write in FILES.items():
        (FOLDER / f"{_name}.g").write_text(_write(), encoding="utf-8")
