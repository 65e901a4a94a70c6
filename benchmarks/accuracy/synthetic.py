"""Write synthetic feature files for `run.py`: `python benchmarks/accuracy/synthetic.py FOLDER`.

classes-100   10,000 rows of 256 features around 100 class means, zero mean
offset-10     40,000 rows of 128 features around 10 class means, far from the origin in one direction
rare          4,500 rows of 64 features, zero mean; 4 % belong to the class of a half-space
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from linprobe.data.feature_reader import Description
from linprobe.data.feature_writer import FeatureWriter

N_TEST = 2000


def around_means(n: int, n_classes: int, width: int, *, apart: float, offset: float, seed: int) -> tuple:
    """Rows (n, width) with unit variance around class means, and labels; `apart` and `offset` are per feature."""
    g = np.random.default_rng(seed)
    means = apart * g.normal(size=(n_classes, width))
    y = g.integers(n_classes, size=n)
    return means[y] + g.normal(size=(n, width)) + offset * g.normal(size=width), y


def rare(n: int, width: int, seed: int) -> tuple:
    """Rows (n, width) with zero mean, and labels; the 4 % of rows furthest along a direction are of class 1."""
    g = np.random.default_rng(seed)
    direction = g.normal(size=width)
    x = g.normal(size=(n, width))
    along = x @ direction / np.linalg.norm(direction) + 0.3 * g.normal(size=n)
    return x, (along > np.quantile(along, 0.96)).astype(int)


def main() -> None:
    """Write the three files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    sets = {
        "classes-100": around_means(10_000 + N_TEST, 100, 256, apart=0.5, offset=0.0, seed=15),
        "offset-10": around_means(40_000 + N_TEST, 10, 128, apart=0.25, offset=3.0, seed=14),
        "rare": rare(4_500 + N_TEST, 64, 3),
    }
    for name, (x, y) in sets.items():
        description = Description(tuple(f"class {label}" for label in range(y.max() + 1)), "synthetic")
        with FeatureWriter(folder / f"{name}.h5", description) as writer:
            for group, part in (("train", slice(None, -N_TEST)), ("test", slice(-N_TEST, None))):
                rows, labels = x[part].astype(np.float32), y[part]
                ids = [f"{group}/{row}" for row in range(len(rows))]
                writer.write_group(group, len(rows), x.shape[1], [rows], labels, ids)


if __name__ == "__main__":
    main()
