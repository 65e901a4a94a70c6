"""From photographs to a release that a browser can check, in seconds: `python photographs.py` in an empty folder."""

# %% Photographs
import subprocess
import sys

import numpy as np
from sklearn.datasets import load_sample_images


def squares(photograph, side=16):
    """The squares of a photograph, (n, side, side, 3), column by column."""
    height, width = (length // side * side for length in photograph.shape[:2])
    grid = photograph[:height, :width].reshape(height // side, side, width // side, side, 3)
    return grid.transpose(2, 0, 1, 3, 4).reshape(-1, side, side, 3)


names = ["temple", "flower"]  # the two photographs that come with scikit-learn
photographs = [squares(photograph) for photograph in load_sample_images().images]
for name, images in zip(names, photographs, strict=True):
    print(name, images.shape)


# %% Features
def features(images):
    """Colours and contrasts on a grid of 4 by 4, as a stand-in for a network: (n, 96)."""
    cells = images.reshape(-1, 4, 4, 4, 4, 3) / 255.0
    parts = (cells.mean(axis=(2, 4)), cells.std(axis=(2, 4)))
    return np.concatenate([part.reshape(len(images), -1) for part in parts], axis=1).astype(np.float32)


def halves(part):
    """Features and labels of one side of each photograph: 0 is left, for training, 1 is right, for the test."""
    chosen = [np.array_split(images, 2)[part] for images in photographs]
    rows = [features(images) for images in chosen]
    return np.concatenate(rows), np.repeat([0, 1], [len(one) for one in rows])


X_train, y_train = halves(0)
X_test, y_test = halves(1)
np.savez("squares.npz", X_train=X_train, y_train=y_train, X_test=X_test, y_test=y_test, class_names=names)
print(X_train.shape, X_test.shape)


# %% Train
def linprobe(*words):
    """Run a command of linprobe, and print what it prints."""
    done = subprocess.run([sys.executable, "-m", "linprobe", *words], capture_output=True, text=True, check=True)
    lines = [f"$ linprobe {' '.join(words)}", *(done.stderr + done.stdout).splitlines()]
    print(*(line if len(line) <= 86 else f"{line[:86]}..." for line in lines), "", sep="\n")


linprobe("import", "squares.npz", "--out", "squares.h5")
linprobe("train", "squares.h5", "--eps", "1", "--public-shots", "5", "--out", "probe")

# %% Check
linprobe("verify", "probe", "--max-eps", "1")
linprobe("report", "probe", "--html", "report.html")

# %% Release
linprobe("release", "probe", "--out", "released")
