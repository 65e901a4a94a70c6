"""Fixtures that the tests of `linprobe extract` share with those of extraction."""

from tests.extraction.conftest import images, offline

__all__ = ["images", "offline"]
