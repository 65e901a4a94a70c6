"""The unit of privacy in words: what the guarantee of a run protects, and between which data sets it holds."""

from __future__ import annotations

from typing import Any

from linprobe.accounting.events import OWNER as OWNER
from linprobe.accounting.events import RECORD as RECORD
from linprobe.accounting.figures import ONE as ONE

ADJACENCIES = {
    RECORD: "zero-out adjacency (one private record is present, or its place is empty; the number of places is public)",
    OWNER: "zero-out adjacency of people (all private rows of one person are present, or none of them; the number of "
    "people is public, the number of rows of a person is not)",
}
PLAINLY = {
    RECORD: "Take one private record out of the data and leave its place empty, or put it back. Whoever sees the model "
    "can hardly tell which of the two was done.",
    OWNER: "Take one person out of the data with all of that person's rows, or put the person back. Whoever sees the "
    "model can hardly tell which of the two was done.",
}
PROTECTED = {RECORD: "the private rows", OWNER: "people, each with all of their private rows"}
COUNTED = {RECORD: "number of private records", OWNER: "number of people with private rows"}
NOUNS = {RECORD: "rows", OWNER: "people"}


def unit_of(manifest: dict[str, Any]) -> str:
    """The unit of a manifest; runs made before there was a choice protect records."""
    return str(manifest.get("unit", RECORD))
