"""Fixtures of extraction that the tests of its command use too."""

from tests.extraction.conftest import images, offline

__all__ = ["images", "offline"]
