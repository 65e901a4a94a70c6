"""The whole corpus, family by family."""

from __future__ import annotations

from collections.abc import Iterator

from tests.hostile.case import Case, Good

MUTATIONS = 100  # of each kind of file; twice as many of feature files
FAMILIES = ("features", "npz", "pt", "csv", "npy", "table", "image", "weights", "runs", "forged", "book")


def corpus(good: Good, mutations: int = MUTATIONS) -> Iterator[Case]:
    """Every case."""
    from tests.hostile import arrays, books, features, images, runs, tables  # which hold 200 MB of hostile bytes

    yield from features.cases(good, 2 * mutations)
    yield from arrays.cases(mutations)
    yield from tables.cases(mutations)
    yield from images.cases(mutations)
    yield from runs.cases(good, mutations)
    yield from books.cases(good, mutations)
