"""Synthetic public rows: samples from one Gaussian per class in feature space, with a shared covariance.

This simple model (Mood 1950) replaces the image generators of Nasr et al. 2023 (section 3). It uses public rows only.
"""

from __future__ import annotations

import numpy as np

from linprobe.data.preprocessing import normalise_rows
from linprobe.data.rows import ArrayRows
from linprobe.data.sources import BLOCK_ROWS
from linprobe.errors import UsageError
from linprobe.methods._base import public_generator


def gaussian_rows(public: ArrayRows, n_classes: int, n_rows: int) -> ArrayRows:
    """Sample `n_rows` rows of class mean + N(0, pooled within-class covariance), scaled to unit norm, class by class.

    A sum of the public rows' residuals with normal weights has this covariance, so no covariance matrix is formed.
    Classes without public rows get no samples.

    Raises:
        UsageError: no class has two public rows, so there is no covariance to estimate.
    """
    means = np.zeros((n_classes, public.n_features))
    labels = public.y.astype(np.intp)
    counts = np.bincount(labels, minlength=n_classes)
    np.add.at(means, labels, public.x)
    means /= np.maximum(counts, 1)[:, None]
    freedom = public.n_rows - int((counts > 0).sum())
    if freedom < 1:
        raise UsageError("augment-public needs a class with two public rows and got none; give more public rows")
    residuals = (public.x - means[labels]).astype(np.float32)
    known = np.flatnonzero(counts)
    y = known[np.arange(n_rows) % len(known)]
    generator = public_generator()
    x = np.empty((n_rows, public.n_features), dtype=np.float32)
    for start in range(0, n_rows, BLOCK_ROWS):
        part = slice(start, start + BLOCK_ROWS)
        weights = generator.standard_normal((len(y[part]), public.n_rows), dtype=np.float32) / np.sqrt(freedom)
        x[part] = normalise_rows((means[y[part]] + weights @ residuals).astype(np.float32))
    return ArrayRows(x, y)
