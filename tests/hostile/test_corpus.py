"""The quick part of the hostile corpus, in the default suite; `python -m tests.hostile` runs all of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.conftest import mostly_nightly
from tests.hostile.case import Good, good_files, judge, preload
from tests.hostile.corpus import FAMILIES, corpus

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits and /proc are those of Linux")


@pytest.fixture(scope="module")
def good() -> Iterator[Good]:
    preload()
    with good_files() as made:
        yield made


@pytest.mark.parametrize("mutations", mostly_nightly((1, 20), (1).__eq__))
@pytest.mark.parametrize("family", FAMILIES)
def test_hostile_files_are_refused_in_one_line_with_little_memory_and_time(
    family: str, good: Good, mutations: int
) -> None:
    quick = [case for case in corpus(good, mutations) if case.quick and case.name.startswith(f"{family}:")]
    verdicts = list(judge(quick[:: 3 if mutations == 1 else 1], good))
    assert verdicts
    assert [verdict for verdict in verdicts if verdict.failure] == []
