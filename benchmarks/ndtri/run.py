"""Error of the inverse normal distribution where the noise uses it, against ball arithmetic: kernel, SciPy and torch.

    python benchmarks/ndtri/run.py [--points 10000000] [--json FILE]

Draws h from (0, 1/2]: half of the points uniform, a third log-uniform down to 2^-21, where the second look takes over,
the rest at both ends. For z = ndtri(h), Arb computes Phi(z) to 128 bits; |Phi(z) - h| / phi(z) is the error of z. The
third lemma of docs/proofs/gaussian.md uses 64 times SciPy's largest error. The kernel gives z on a grid of 2^-48, so
1.8e-15 of its error is rounding. Takes about five minutes.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import numpy as np
import torch
from flint import arb, ctx
from scipy.special import ndtri

from linprobe.mechanisms.noise import LIBRARY

LEAST = 2.0**-21
GRID = 2.0**-48


def points(n: int) -> np.ndarray:
    """`n` values of h."""
    generator = np.random.default_rng(1)
    uniform = generator.uniform(LEAST, 0.5, n // 2)
    tails = 2.0 ** generator.uniform(-21, -1, n // 3)
    rest = n - len(uniform) - len(tails)
    ends = np.concatenate(
        [LEAST * (1 + 1e-3 * generator.random(rest // 2)), 0.5 - 2.0 ** -generator.uniform(2, 53, rest - rest // 2)]
    )
    return np.concatenate([uniform, tails, ends])


def by_kernel(h: np.ndarray) -> np.ndarray:
    """z on a grid of 2^-48: noise of standard deviation 1 on zeros. h: multiples of 2^-64."""
    assert LIBRARY is not None
    zeros, z, places = np.zeros(len(h)), np.empty(len(h)), np.empty(len(h), np.uint32)
    words = (h * 2.0**64).astype(np.uint64) << np.uint64(1)
    arrays = (array.ctypes.data for array in (words, zeros, z, places))
    LIBRARY.linprobe_first_look(*arrays, len(h), 1 / GRID, GRID, 0.0, 0)
    return z


def errors(h: np.ndarray, approximations: dict[str, np.ndarray]) -> dict[str, float]:
    """Largest absolute error of each approximation of Phi^-1(h)."""
    ctx.prec = 128
    root, largest = arb(2).sqrt(), dict.fromkeys(approximations, 0.0)
    seen: dict[float, float] = {}
    for place, value in enumerate(h.tolist()):
        seen.clear()
        for name, found in approximations.items():
            z = float(found[place])
            if z not in seen:
                off = abs(float((arb(-z) / root).erfc() / 2 - arb(value)))
                seen[z] = off * math.sqrt(2 * math.pi) * math.exp(z * z / 2)
            largest[name] = max(largest[name], seen[z])
    return largest


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=10**7)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    h = np.floor(points(arguments.points) * 2.0**64) * 2.0**-64
    h += 2.0**-65  # as the noise does: in the middle of an interval
    approximations = {
        "kernel": by_kernel(h),
        "scipy": ndtri(h),
        "torch": torch.special.ndtri(torch.from_numpy(h)).numpy(),
    }
    largest = errors(h, approximations)
    found = {
        "points": arguments.points,
        "largest_error": largest,
        "log2_of_64_times_it": {name: math.log2(64 * error) for name, error in largest.items()},
    }
    text = json.dumps(found, indent=2)
    print(text)
    if arguments.json is not None:
        arguments.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
