"""The built-in data set `digits`: 1,797 images of handwritten digits, shipped with scikit-learn."""

from __future__ import annotations

import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from linprobe.data.feature_reader import Description
from linprobe.data.feature_writer import FeatureWriter
from linprobe.data.labels import GIVEN, in_share
from linprobe.errors import LinprobeError
from linprobe.parallel.array_api import Indices, Reals

DIGITS_SHOTS = 2
TEST_SHARE = 0.25


def _digits() -> tuple[Reals, Indices]:
    """Pixels (1797, 64) and labels (1797,), read from scikit-learn's data file, as its loader is slow to import."""
    found = find_spec("sklearn")
    if found is None or found.origin is None:
        raise LinprobeError("scikit-learn, which has the digits, is not installed; install it, or give a feature file")
    path = Path(found.origin).with_name("datasets") / "data" / "digits.csv.gz"
    with gzip.open(path, "rt", encoding="ascii") as lines:
        table = np.loadtxt(lines, delimiter=",")
    return table[:, :-1], table[:, -1].astype(np.int64)


def write_digits(path: Path) -> None:
    """Write the digits as a feature file: 64 features, values 0 to 16; a quarter are test rows, chosen by record id."""
    pixels, labels = _digits()
    ids = np.array([f"digits/{row:04d}" for row in range(len(labels))])
    test = in_share(map(str, ids), TEST_SHARE)
    description = Description(
        class_names=tuple(str(digit) for digit in range(10)),
        backbone="pixels",
        preprocessing="8x8 grey values 0..16, flattened",
        source="scikit-learn load_digits (UCI optical recognition of handwritten digits, test part)",
        ids_from=GIVEN,  # numbers of the images in a file that nobody edits
    )
    with FeatureWriter(path, description) as writer:
        for group, rows in (("train", ~test), ("test", test)):
            x = pixels[rows]
            writer.write_group(group, len(x), x.shape[1], [x], labels[rows], ids[rows].tolist(), np.float16)
