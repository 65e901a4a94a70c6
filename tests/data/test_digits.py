"""The built-in digits are scikit-learn's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from linprobe.data.digits import write_digits
from linprobe.data.feature_file import FeatureFile


def test_digits_are_those_of_scikit_learn(tmp_path: Path) -> None:
    write_digits(tmp_path / "digits.h5")
    pixels, labels = load_digits(return_X_y=True)
    with FeatureFile(tmp_path / "digits.h5") as features:
        groups = ("train", "test")
        places = np.concatenate(
            [[int(name.removeprefix("digits/")) for name in features.ids(group)] for group in groups]
        )
        x = np.concatenate([rows for group in groups for rows, _ in features.blocks(group)])
        y = np.concatenate([features.labels(group) for group in groups])
    assert sorted(places) == list(range(len(labels)))
    assert np.array_equal(x, pixels[places])
    assert np.array_equal(y, labels[places])
