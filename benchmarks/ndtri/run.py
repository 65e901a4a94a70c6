"""Error of `scipy.special.ndtri` and `torch.special.ndtri` where the noise uses them, against ball arithmetic.

    python benchmarks/ndtri/run.py [--points 10000000] [--json FILE]

Draws h from (0, 1/2]: half of the points uniform, a third log-uniform down to 2^-21, where the second look takes over,
the rest at both ends. For z = ndtri(h), Arb computes Phi(z) to 128 bits; |Phi(z) - h| / phi(z) is the error of z. The
third lemma of docs/proofs/gaussian.md uses the largest error with a factor of 64. Takes about twenty minutes.
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

LEAST = 2.0**-21


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
    h = points(arguments.points)
    approximations = {"scipy": ndtri(h), "torch": torch.special.ndtri(torch.from_numpy(h)).numpy()}
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
