"""Judge all hostile cases: `python -m tests.hostile`, or `--only WORD` for cases whose name holds a word.

Prints every failure and the counts for each family: tried, refused, accepted, failed.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from tests.hostile.case import Verdict, good_files, judge, preload
from tests.hostile.corpus import corpus


def main() -> int:
    """Exit status 1 if a case failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--quick", action="store_true", help="the part that the test suite runs")
    parser.add_argument("--verbose", action="store_true", help="every outcome, not only failures")
    given = parser.parse_args()
    preload()
    counts: dict[str, Counter[str]] = {}
    with good_files() as good:
        chosen = (case for case in corpus(good) if given.only in case.name and (case.quick or not given.quick))
        for verdict in judge(chosen, good):
            count = counts.setdefault(verdict.case.partition(":")[0], Counter())
            count["tried"] += 1
            count[_word(verdict)] += 1
            if verdict.failure or given.verbose:
                print(f"{verdict.case} | {verdict.command} | {verdict.failure or verdict.status} | "
                          f"{verdict.message!r}", flush=True)  # fmt: skip
    total: Counter[str] = sum(counts.values(), Counter())
    for family, count in [*counts.items(), ("total", total)]:
        print(f"{family:<12}", *(f"{word} {count[word]:>5}" for word in ("tried", "refused", "accepted", "failed")))
    return 1 if total["failed"] else 0


def _word(verdict: Verdict) -> str:
    if verdict.failure:
        return "failed"
    return "refused" if verdict.status else "accepted"


if __name__ == "__main__":
    sys.exit(main())
