"""2,048 random features of 48,000 photographs: a file of the size of a ResNet-50 probe, from pixels that anyone has.

    python benchmarks/whole/wide.py fashion_mnist.npz fashion-2048.h5

Unit rows of pixels times a Gaussian matrix, negative numbers set to 0. The first 48,000 training rows, and all test
rows. The .npz holds X_train, y_train, X_test, y_test and class_names.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from linprobe.data.feature_reader import Description
from linprobe.data.feature_writer import FeatureWriter

N_ROWS, N_FEATURES = 48_000, 2_048


def main() -> None:
    """Write the feature file."""
    arrays, out = np.load(sys.argv[1], allow_pickle=False), Path(sys.argv[2])
    pixels = {group: arrays[f"X_{group}"].reshape(len(arrays[f"X_{group}"]), -1) for group in ("train", "test")}
    matrix = np.random.default_rng(0).normal(size=(pixels["train"].shape[1], N_FEATURES)).astype(np.float32)
    names = tuple(map(str, arrays["class_names"]))
    with FeatureWriter(out, Description(class_names=names)) as writer:
        for group, rows in pixels.items():
            unit = rows[:N_ROWS].astype(np.float32)
            unit /= np.linalg.norm(unit, axis=1, keepdims=True)
            found, labels = np.maximum(unit @ matrix, 0), arrays[f"y_{group}"][: len(unit)].astype(np.int64)
            ids = [f"{group}/{row}" for row in range(len(found))]
            writer.write_group(group, len(found), N_FEATURES, [found], labels, ids)


if __name__ == "__main__":
    main()
