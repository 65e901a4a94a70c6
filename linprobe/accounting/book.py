"""The budget book of a data set, an append-only file with one line for each run, and the cost of its runs together.

A line is on the disk before the run draws noise, with everything that the run is going to release. If the run ends
early, a second line says what it had released by then, but not of a private selection: the number of its runs is
secret, so the book must not tell how long it took or how far it came. A crash in between makes the book over-count,
never under-count. A run that is resumed keeps its id, so that it is counted once.

Sums over all rows compose exactly, as Gaussian differential privacy. If any run took Poisson samples, privacy-loss
distributions compose everything, or above `MOST_KINDS` kinds of releases the faster Renyi bound. Every figure is an
upper bound for a record, or a person, that was private in all runs, and for one relation (`events.py`).

A private selection is no Gaussian release. Basic composition joins k selections and everything else: each part has an
equal share of delta, and the epsilons add up,

    epsilon(delta) <= epsilon_rest(delta / (k + 1)) + sum_i epsilon_i(delta / (k + 1))        (k without a rest)

(Dwork and Roth 2014, Theorem 3.16). It holds in any order and for later runs that depend on earlier results: a pair of
distributions dominates each part, and the product of the pairs dominates the whole (Zhu, Dong, Wang 2022). The total is
the smaller of this sum and of epsilon by Renyi divergences, which add up at each order (`docs/proofs/selection.md`).
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from linprobe.accounting.accountants import (
    FILTER_ORDERS,
    GAUSSIAN,
    RENYI,
    Accountant,
    choose_accountant,
    gaussian_figures,
    gdp_mu,
    renyi_divergences,
)
from linprobe.accounting.events import (
    HISTOGRAM,
    INHERITED,
    OF_FILE,
    OWNER,
    RECORD,
    REMOVED,
    UNITS,
    Relation,
    Releases,
    converted,
    neighbours_between,
)
from linprobe.accounting.figures import NO_PERSON, ONE, cost_in_words, finite, renyi_conversion, rounded_up
from linprobe.accounting.ledger import AppendOnlyFile, whole_lines
from linprobe.accounting.selection import SelectionEvent, selection_divergences, selection_epsilon
from linprobe.atomic_files import PRIVATE_MODE, alone
from linprobe.errors import DataError, LinprobeError, PrivacyError, advice, counted, read_fault, writing
from linprobe.parallel.array_api import Reals

OLD_FORMAT, BOOK_FORMAT = 1, 2  # the same lines; 0.2.0 named its default books otherwise
FIRST_LINE = json.dumps({"book": BOOK_FORMAT}).encode() + b"\n"
NO_BOOK = "{} is no budget book; give --book a budget book, or the name of a new one"
SMALLEST_MULTIPLIER, LARGEST_MULTIPLIER = 1e-3, 1e100  # accountants overflow outside
MOST_BOOK_BYTES = 1 << 28
MOST_EQUAL_RELEASES = 10**9
DIGEST_BYTES = 16  # of row keys
SECOND_RUN = "a copy gets noise of its own, so it would be a second run that the book counts once"
EVALUATION = "evaluation"  # of a finished run on private test rows, in place of a method
RUN_FIELDS = ("run", "name", "method", "created", "unit", "private", "delta")  # of a line, in this order


@dataclass(frozen=True)
class Entry:
    """One run, as its book states it."""

    run: str
    name: str
    method: str
    unit: str
    private: bool  # whether its releases carry noise that nobody can subtract
    delta: float | None  # of its guarantee
    releases: tuple[Releases, ...]  # made, or planned, without those of a run in the same book that it started from
    further: tuple[Releases, ...] = ()  # what was released from it afterwards
    selection: SelectionEvent | None = None  # the private selection that chose it, which states all that it released
    cap: float | None = None  # the epsilon that `--cap` of this run allowed all runs together
    first: str | None = None  # id of the run that it started from, or evaluates
    features: str | None = None  # the path of the feature file with the rows; None in books of 0.2
    ended_early: bool = False  # whether its releases are those it had made when it ended, and not its plan
    finished: bool = False
    created: str | None = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    @property
    def total(self) -> tuple[Releases, ...]:
        """All releases, except of a selection."""
        return (*self.releases, *self.further)

    @property
    def follows_results(self) -> bool:
        """Whether results were known when some release was chosen: of a run that it started from, or its own."""
        return bool(self.further) or any(release.purpose == INHERITED for release in self.releases)

    @property
    def counts(self) -> bool:
        """Whether anything was released, with noise or without."""
        return not self.private or bool(self.total) or self.selection is not None


@dataclass(frozen=True)
class Cap:
    """The largest epsilon, at `delta`, that all runs of a book may cost together."""

    epsilon: float
    delta: float
    runs: int = field(default=0, compare=False)  # recorded before; 0: it holds for runs chosen after results
    order: int | None = field(default=None, compare=False)  # of a cap lowered after runs; else `filter_order`

    def raised_from(self, before: Cap | None) -> Cap | None:
        """The cap `before`, if this one was set after a run, and allows what that one does not."""
        above = before is not None and (self.epsilon > before.epsilon or self.delta > before.delta)
        return before if above and self.runs else None


@dataclass(frozen=True)
class Contents:
    """What a book holds. The file of row keys has one of `keys`, which are stated before they are written."""

    entries: Mapping[str, Entry] = field(default_factory=dict)  # by run id, in the order of their first lines
    cap: Cap | None = None
    first_cap: Cap | None = None  # the cap that the first raise replaced
    keys: tuple[str, ...] = ()  # digests of the row keys beside the book, "" for no file

    @property
    def counted(self) -> list[Entry]:
        return [entry for entry in self.entries.values() if entry.counts]

    def as_counted(self, entry: Entry) -> Entry:
        """A new run without the inherited releases that this book counts for the run it started from."""
        return replace(entry, releases=_without(entry.releases, _covered(self, entry.first)))

    def without(self, run: str) -> Contents:
        return replace(self, entries={name: one for name, one in self.entries.items() if name != run})

    def lacking(self, run: str, releases: Iterable[Releases]) -> tuple[Releases, ...]:
        """The `releases` of a run that its entry lacks, made from a copy; histograms have names of their own."""
        known = self.entries.get(run)
        if known is None or known.selection is not None or not known.private:  # these count more than their releases
            return ()
        # what a run inherits is counted with its first own release
        own = [one for one in releases if one.purpose != INHERITED or not known.releases]
        return _without(own, known.total)

    def after(self, entry: Entry, further: Sequence[Releases]) -> Entry:
        """A run, as this book knows it or else as `entry`, with what it lacks and with `further` releases."""
        known = self.entries.get(entry.run, entry)
        return replace(known, further=(*known.further, *self.lacking(entry.run, entry.releases), *further))

    def with_first(self, entries: Mapping[str, Entry]) -> dict[str, Entry]:
        """`entries` by run id, and the runs that they started from: a book counts in these what they have in common."""
        found, waiting = dict(entries), [one.first for one in entries.values()]
        while waiting:
            first = waiting.pop()
            if first is not None and first in self.entries and first not in found:
                found[first] = self.entries[first]
                waiting.append(found[first].first)
        return found


Check = Callable[[Contents, Entry], None]


def read_book(path: Path) -> Contents:
    """The contents of a book; empty without a file. DataError: no budget book, damaged. LinprobeError: unreadable."""
    try:
        if not path.exists():
            return Contents()
        _refuse_special(path)
        written = path.read_bytes()  # without a lock: a line that is being written has no end yet
    except OSError as error:
        raise read_fault(f"budget book {path}", error) or DataError(
            f"budget book {path} cannot be read ({error.strerror}); restore it from a copy"
        ) from None
    return _parsed(path, written)


def no_books(what: str, error: OSError) -> LinprobeError:
    """An error of one line: a book, or a folder of books, cannot be used, and why."""
    denied = isinstance(error, PermissionError)
    step = "make it and its files readable and writable" if denied else advice(error, "--book")
    return LinprobeError(
        f"{what} cannot be read and written ({error.strerror}), so nothing was spent; {step}; another book "
        "(--book, XDG_STATE_HOME) does not count the runs in this one"
    )


def charge(path: Path, entry: Entry, check: Check | None = None) -> Contents:
    """Write `entry`, as counted, in place of an earlier entry of the same run; returns what the book held before.

    Processes take turns, so that two of them cannot both spend what is left under a cap. If `check` raises, nothing is
    written.
    """
    with _opened(path) as (lines, contents):
        entry = contents.as_counted(entry)
        before = contents.entries.get(entry.run)
        others = contents.without(entry.run)
        if before is not None:
            refuse_another(path, before, entry)
            entry = replace(entry, further=before.further, created=before.created)
        if check is not None:
            check(others, entry)
        _append(lines, _run_line(entry))
        return others


def refuse_another(path: Path, before: Entry, entry: Entry) -> None:
    """PrivacyError for a run that is resumed as another one, or from a copy, as far as its book can tell."""
    for name in ("method", "unit", "private", "delta"):
        was, now = getattr(before, name), getattr(entry, name)
        if was != now:
            raise PrivacyError(
                f"run {entry.run[:16]} has {name} {was!r} in budget book {path} and now {now!r}; allowed: the "
                "same; give what the run was started with, or train anew under another name"
            )
    if Path(before.name).resolve() != Path(entry.name).resolve():
        found, step = f"is {before.name}", f"resumed as {entry.name}; {SECOND_RUN}; resume it as {before.name}, or"
    elif before.finished:
        found, step = "is finished", f"resumed; {SECOND_RUN};"
    else:
        return
    raise PrivacyError(f"run {entry.run[:16]} {found} in budget book {path}, and is {step} train anew")


def releases_file(path: Path, run: str) -> Path:
    """The file beside a book with the number of releases at the last checkpoint of an unfinished run."""
    return path.with_name(f".{run}.releases")


def finish(path: Path, run: str) -> None:
    """State that all files of a run are written. Does nothing if the book has no such run."""
    with _opened(path) as (lines, contents):
        if run in contents.entries:
            _append(lines, {"entry": "finished", "run": run})
    ended = {run, *(name for name, one in contents.entries.items() if one.finished)}
    for file in path.parent.glob(".*.releases*"):  # a killed process leaves its own, or a half-written one
        if file.name.lstrip(".").partition(".")[0] in ended:
            with suppress(OSError):
                file.unlink()


def settle(path: Path, run: str, releases: Sequence[Releases]) -> None:
    """State that a run has ended early, and made only `releases`. Does nothing if the book has no such run."""
    with _opened(path) as (lines, contents):
        if run in contents.entries:
            own = [one for one in releases if one.purpose != INHERITED]
            planned = contents.entries[run].releases if releases else ()
            made = [one for one in planned if one.purpose == INHERITED or one.is_histogram] + own
            _append(lines, {"entry": "made", "run": run, "releases": _listed(made)})


def add(path: Path, entry: Entry, further: Sequence[Releases], check: Check | None = None) -> Entry:
    """Add releases made from a finished run, and those of `entry` that the book lacks; raises as `charge`."""
    with _opened(path) as (lines, contents):
        others = contents.without(entry.run)
        charged = contents.after(entry, further)
        if check is not None:
            check(others, charged)
        if entry.run not in contents.entries:
            _append(lines, _run_line(entry))
        more = (*contents.lacking(entry.run, entry.releases), *further)
        _append(lines, {"entry": "more", "run": entry.run, "releases": _listed(more)})
        return charged


def set_cap(path: Path, cap: Cap, *, may_raise: bool = False) -> None:
    """State the cap of a book. PrivacyError: above the earlier one, after runs, without `may_raise`."""
    with _opened(path) as (lines, contents):
        cap = replace(cap, runs=max(cap.runs, len(contents.counted)))  # one may have begun since
        before = cap.raised_from(contents.cap)
        if before is not None and not may_raise:
            own = sum(one.private for one in contents.counted)
            began = counted(own or cap.runs, "run")  # the latter has those of other books too
            raise PrivacyError(
                f"set-cap is epsilon {cap.epsilon!r} at delta {cap.delta!r}; allowed: at most the cap of epsilon "
                f"{before.epsilon!r} at delta {before.delta!r}, under which {began} began; a cap raised after results "
                "is a new promise, and the book keeps both; give --raise-cap too to make it"
            )
        _append(lines, {"entry": "cap", "epsilon": cap.epsilon, "delta": cap.delta, "runs": cap.runs})


def state_keys(path: Path, digest: str) -> None:
    """State the digest of row keys that are to be written beside a book. DataError, LinprobeError: as `charge`."""
    with _opened(path) as (lines, _):
        _append(lines, {"entry": "keys", "digest": digest})


def _covered(contents: Contents, started_from: str | None) -> Iterator[Releases]:
    """What the book counts of `started_from` and the runs before it, as inherited; a histogram by its name too.

    One without a name is of `started_from` only, as a run inherits those of earlier runs without their names.
    """
    seen: set[str] = set()
    while started_from is not None and started_from in contents.entries and started_from not in seen:
        seen.add(started_from)
        entry = contents.entries[started_from]
        for release in entry.total:
            yield replace(release, purpose=INHERITED)
            if release.is_histogram and (release.purpose != HISTOGRAM or len(seen) == 1):
                yield release
        started_from = entry.first


def _without(releases: Iterable[Releases], covered: Iterable[Releases]) -> tuple[Releases, ...]:
    """The releases without those that are also in `covered`, with the same purpose, or as version 0.2 called them."""
    left: Counter[Releases] = Counter()
    for release in covered:
        left[replace(release, count=1)] += release.count
    kept = []
    for release in releases:
        kind = replace(release, count=1)
        if not left[kind] and kind.purpose.startswith(OF_FILE):
            kind = replace(kind, purpose=HISTOGRAM)
        common = min(release.count, left[kind])
        left[kind] -= common
        if release.count > common:
            kept.append(replace(release, count=release.count - common))
    return tuple(kept)


def _listed(releases: Iterable[Releases]) -> list[dict[str, Any]]:
    return [asdict(release) for release in releases]


def _run_line(entry: Entry) -> dict[str, Any]:
    selection = entry.selection
    left_out = () if selection is None else ("created", "private")
    named = {name: getattr(entry, name) for name in RUN_FIELDS if name not in left_out}
    named |= {name: value for name in ("cap", "first", "features") if (value := getattr(entry, name)) is not None}
    if selection is not None:
        return {"entry": "selection", **named, "selection": selection.as_dict()}
    return {"entry": "run", **named, "releases": _listed(entry.releases)}


@contextmanager
def _opened(path: Path) -> Iterator[tuple[AppendOnlyFile, Contents]]:
    """Open or make a book, and hold it inside the block. A torn last line is removed: its run never began."""
    with ExitStack() as stack:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if path.exists():
                _refuse_special(path)
            lines = stack.enter_context(closing(AppendOnlyFile(path, PRIVATE_MODE)))
            stack.enter_context(alone(path))
            written = path.read_bytes()
        except OSError as error:
            raise no_books(f"budget book {path}", error) from None
        contents = _parsed(path, written)
        if not lines.repair():
            _append(lines, {"book": BOOK_FORMAT})
        yield lines, contents


def _append(lines: AppendOnlyFile, fields: dict[str, Any]) -> None:
    with writing(f"budget book {lines.path}", "--book"):
        lines.append(json.dumps(fields, allow_nan=False) + "\n")


def _refuse_special(path: Path) -> None:
    if not path.is_file():
        raise DataError(f"budget book {path} is not a file; give --book a file, or the name of a new one")
    if path.stat().st_size > MOST_BOOK_BYTES:
        raise DataError(f"budget book {path} has more than {MOST_BOOK_BYTES} bytes; give --book another file")
    with path.open("rb") as stream:  # before the lock: the file may be one that this process has locked to read it
        if stream.read(1) not in (b"", b"{"):
            raise DataError(NO_BOOK.format(path))


def _after(fields: dict[str, Any], entries: dict[str, Entry]) -> Entry:
    """The entry of a run after a line about it."""
    kind = fields["entry"]
    if kind in ("run", "selection"):
        entry, known = _entry(fields), entries.get(fields["run"])
        return entry if known is None else replace(entry, further=known.further)
    if kind not in ("made", "more", "finished"):
        raise ValueError(f"entry {str(kind)[:40]!r} is not known to this version")
    before: Entry = entries[fields["run"]]
    if kind == "finished":
        return replace(before, finished=True)
    if kind == "more":
        return replace(before, further=(*before.further, *releases_of(fields)))
    releases = releases_of(fields)
    # when a selection ends is secret
    return replace(before, releases=releases, ended_early=before.selection is None)


_last: dict[Path, tuple[bytes, Contents]] = {}  # what each book of this process held


def _parsed(path: Path, written: bytes) -> Contents:
    """The contents of the complete lines of a book. A run reads the same ones many times."""
    known = _last.get(path)
    if known is None or known[0] != written:
        known = _last[path] = written, _contents(path, written)
    return known[1]


def _contents(path: Path, written: bytes) -> Contents:
    entries: dict[str, Entry] = {}
    cap: Cap | None = None
    first_cap: Cap | None = None
    keys: tuple[str, ...] = ()
    lines = whole_lines(written)
    if not lines and not FIRST_LINE.startswith(written):  # no book whose first line is torn
        raise DataError(NO_BOOK.format(path))
    for number, line in enumerate(lines.splitlines(), start=1):
        try:
            fields = json.loads(line.decode(), parse_constant=_no_such_number)
            if number == 1:
                if fields not in ({"book": OLD_FORMAT}, {"book": BOOK_FORMAT}):
                    raise ValueError(f"{line.decode()[:40]} is not format {OLD_FORMAT} or {BOOK_FORMAT}")
            elif fields["entry"] == "cap":
                before, cap = cap, _cap(fields, cap)
                first_cap = first_cap or cap.raised_from(before)
            elif fields["entry"] == "keys":
                keys = (*(keys or ("",)), _digest(fields))
            else:
                entry = _after(fields, entries)
                entries[entry.run] = entry
                keys = keys[-1:] if fields["entry"] in ("run", "selection") else keys
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise DataError(
                f"budget book {path} line {number} cannot be read ({reason[:120]}); without it no epsilon can be "
                "proved; restore the file from a copy"
            ) from None
    return Contents(entries, cap, first_cap, keys)


def _digest(fields: dict[str, Any]) -> str:
    digest = fields["digest"]
    if not isinstance(digest, str) or len(digest) != DIGEST_BYTES * 2:
        raise ValueError(f"digest is {str(digest)[:40]}")
    return digest


def _cap(fields: dict[str, Any], before: Cap | None) -> Cap:
    """The cap of a line, after the cap `before`; books of 0.2 do not say how many runs there were."""
    runs = _count(fields.get("runs", 0), 0)
    cap = Cap(_number(fields["epsilon"], 0, 1e300), _number(fields["delta"], 0, 1), runs)
    order = filter_order(before) if before is not None and runs and cap.raised_from(before) is None else None
    return replace(cap, order=order)


def _entry(fields: dict[str, Any]) -> Entry:
    chosen = fields["entry"] == "selection"
    texts = {name: fields[name] for name in RUN_FIELDS if name not in ("private", "delta", *("created",) * chosen)}
    for name, text in texts.items():
        if not isinstance(text, str):
            raise ValueError(f"{name} is {text!r}")
    texts["cap"] = _number(fields["cap"], 0, 1e300) if "cap" in fields else None
    texts |= {name: str(fields[name]) if name in fields else None for name in ("first", "features")}
    if texts["unit"] not in UNITS:
        raise ValueError(f"unit is {texts['unit'][:40]!r}; allowed: {', '.join(UNITS)}")
    if chosen:
        event = SelectionEvent.from_dict(fields["selection"])
        runs = tuple(releases_of({"releases": run}) for run in fields["selection"]["runs"])
        selection = replace(event, runs=runs)
        texts |= {"private": True, "created": None, "delta": _number(fields["delta"], 0, 1)}
        return Entry(releases=(), selection=selection, **texts)
    if not isinstance(fields["private"], bool):
        raise ValueError(f"private is {fields['private']!r}")
    delta = _number(fields["delta"], 0, 1) if fields["private"] else None
    return Entry(private=fields["private"], delta=delta, releases=releases_of(fields), **texts)


def releases_of(fields: Mapping[str, Any]) -> tuple[Releases, ...]:
    """What the line of a run released. Raises ValueError, KeyError, TypeError: a line that no run writes."""
    return tuple(_release(one) for one in fields["releases"])


def _release(one: dict[str, Any]) -> Releases:
    multiplier = _number(one["noise_multiplier"], SMALLEST_MULTIPLIER, LARGEST_MULTIPLIER)
    return Releases(str(one["purpose"]), multiplier, _number(one["sampling_rate"], 0, 1), _count(one["count"], 1))


def _count(value: Any, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MOST_EQUAL_RELEASES:
        raise ValueError(f"count is {str(value)[:40]}")
    return value


def _number(value: Any, above: float, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not above < value <= most:
        raise ValueError(f"a number is {str(value)[:40]}; allowed: above {above:g}, at most {most:g}")
    return float(value)


def _no_such_number(text: str) -> float:
    raise ValueError(f"{text} is not a number of JSON")


MOST_KINDS = 32  # of sampled releases; 16 take a second by privacy-loss distributions
EXAMPLES = (2, 5, 10)  # rows of a person, chosen without a look at the data
SMALLEST_DELTA = 1e-300  # of a selection; float64 cannot divide smaller ones


@dataclass(frozen=True)
class Spending:
    runs: int  # that released something with noise
    not_private_runs: int  # that no epsilon covers
    unit: str  # `owner` if every run protects it
    relation: str  # the same, as neighbours
    epsilon: float  # of all `runs` together; infinity if it cannot be bounded
    delta: float
    gdp_mu: float | None  # None, as zcdp_rho, if any release was sampled, or any run was a private selection
    zcdp_rho: float | None
    accountant: str
    epsilon_by_unit: dict[str, float]  # for each unit that any run protects

    @property
    def in_words(self) -> str:
        return cost_in_words(self.epsilon_by_unit, self.delta)

    def as_dict(self) -> dict[str, Any]:
        """The fields, JSON-ready: None in place of infinity."""
        by_unit = {unit: finite(epsilon) for unit, epsilon in self.epsilon_by_unit.items()}
        figures = {name: finite(getattr(self, name)) for name in ("epsilon", "gdp_mu", "zcdp_rho")}
        return {**asdict(self), **figures, "epsilon_by_unit": by_unit}


def spending(entries: Sequence[Entry], delta: float | None = None) -> Spending:
    """The cost of `entries` at `delta`; None: the smallest of the runs, as a larger one could lower the total."""
    private = [entry for entry in entries if entry.private and entry.counts]
    if delta is None:
        delta = min((entry.delta for entry in private if entry.delta is not None), default=0.0)
    units = units_of(private)
    costs = {unit: together(private, delta, REMOVED[unit]) for unit in units}
    epsilon, accountant = costs[units[0]]
    selects = any(entry.selection is not None for entry in private)
    return Spending(
        runs=len(private),
        not_private_runs=sum(not entry.private for entry in entries),
        unit=units[0],
        relation=str(REMOVED[units[0]]),
        epsilon=epsilon,
        delta=delta,
        **(
            dict.fromkeys(("gdp_mu", "zcdp_rho"))
            if selects
            else gaussian_figures(_all_releases(private, REMOVED[units[0]]))
        ),
        accountant=accountant,
        epsilon_by_unit={unit: cost for unit, (cost, _) in costs.items()},
    )


def units_of(entries: Iterable[Entry]) -> list[str]:
    """The units that the private ones of `entries` protect, `record` first; `record` without any."""
    found = {entry.unit for entry in entries if entry.private} or {RECORD}
    return [unit for unit in UNITS if unit in found]


def rows_of_a_person(entries: Sequence[Entry], delta: float) -> dict[int, float]:
    """Epsilon of private `entries` at `delta`, for a person with at most each of `EXAMPLES` rows, no private number."""
    return {rows: together(entries, delta, Relation(OWNER, rows=rows))[0] for rows in EXAMPLES}


def together(entries: Sequence[Entry], delta: float, relation: Relation) -> tuple[float, str]:
    """Epsilon of private `entries` for a relation at `delta`, an upper bound or infinity, and its accountant."""
    if any(neighbours_between(entry.unit, relation) is None for entry in entries):
        return math.inf, "none"
    selections = [
        replace(entry.selection, runs=tuple(converted(run, entry.unit, relation) for run in entry.selection.runs))
        for entry in entries
        if entry.selection is not None
    ]
    releases = _all_releases(entries, relation)
    if not selections:
        epsilon, accountant = composed(releases, delta)
        return epsilon, accountant.words
    parts = len(selections) + bool(releases)
    part = delta if parts == 1 else math.nextafter(delta / parts, 0)
    number = counted(len(selections), "private selection")
    words = f"{number} by privacy profiles"
    if part < SMALLEST_DELTA:
        return math.inf, words
    each = {  # equal selections are computed once
        event: selection_epsilon(event, part, choose_accountant("auto", event.releases)) for event in set(selections)
    }
    costs = [each[event] for event in selections]
    if releases:
        epsilon, accountant = composed(releases, part)
        costs.append(epsilon)
        words = f"{accountant.words}, added to {words}"
    total = costs[0] if parts == 1 else math.nextafter(math.fsum(costs), math.inf)
    by_divergences = min(_renyi_epsilons(entries, delta, relation))
    if by_divergences < total:
        return by_divergences, f"Renyi divergences of {number}{' and all other releases' if releases else ''}"
    return total, words


def _all_releases(entries: Iterable[Entry], relation: Relation) -> list[Releases]:
    """All releases outside selections, converted."""
    return [release for entry in entries for release in converted(entry.total, entry.unit, relation)]


def composed(releases: Sequence[Releases], delta: float, *, rough: bool = False) -> tuple[float, Accountant]:
    """Epsilon of all `releases` together at `delta`, an upper bound, and its accountant. `rough`: see `epsilon`."""
    accountant = choose_accountant("auto", releases)
    if accountant is GAUSSIAN:
        return accountant.epsilon(releases, delta) if releases else 0.0, accountant
    merged = _merged(releases)
    if len(merged) > MOST_KINDS:
        accountant = RENYI
    return accountant.epsilon(merged, delta, rough=rough), accountant


def _merged(releases: Sequence[Releases]) -> list[Releases]:
    """The same releases in fewer kinds: sums over all rows are one Gaussian mechanism."""
    counts: Counter[tuple[float, float]] = Counter()
    for release in releases:
        counts[release.noise_multiplier, release.sampling_rate] += release.count
    kinds = [Releases("", *kind, count) for kind, count in counts.items()]
    full = [kind for kind in kinds if kind.sampling_rate == 1]
    if len(full) > 1:
        kinds = [kind for kind in kinds if kind.sampling_rate < 1]
        kinds.append(Releases("", math.nextafter(1 / gdp_mu(full), 0), 1.0, 1))
    return kinds


def filter_order(cap: Cap) -> int:
    """The Renyi order of a cap, where a Gaussian mechanism has the largest mu; no result may change it."""
    if cap.order is not None:
        return cap.order
    left = [(cap.epsilon - renyi_conversion(order, cap.delta)) / order for order in FILTER_ORDERS]
    return FILTER_ORDERS[left.index(max(left))]


def under_cap(entries: Sequence[Entry], cap: Cap, relation: Relation) -> float:
    """Epsilon of private `entries` at the delta of a cap, each chosen after the results of the earlier ones.

    A privacy filter (`docs/proofs/adaptive.md`). Sums over all rows add mu^2: Gaussian DP. Otherwise Renyi divergences
    of all releases and selections add up at `filter_order`. The first run of a book depends on no result, so its own
    figure holds, unless it ended early, and until something is released after it. Infinite if a run bounds nothing for
    the relation.
    """
    alone = len(entries) == 1 and not entries[0].follows_results and not entries[0].ended_early
    if alone or all(entry.selection is None and GAUSSIAN.covers(entry.total) for entry in entries):
        return together(entries, cap.delta, relation)[0]
    if any(neighbours_between(entry.unit, relation) is None for entry in entries):
        return math.inf
    return _renyi_epsilons(entries, cap.delta, relation)[FILTER_ORDERS.index(filter_order(cap))]


def _renyi_epsilons(entries: Sequence[Entry], delta: float, relation: Relation) -> list[float]:
    """Epsilon of private `entries` at `delta` by their Renyi divergences at each of `FILTER_ORDERS`."""
    spent = zip(*(_divergences(entry, relation).tolist() for entry in entries), strict=True)
    sums = zip(FILTER_ORDERS, map(math.fsum, spent), strict=True)
    return [max(0.0, math.nextafter(total + renyi_conversion(order, delta), math.inf)) for order, total in sums]


def _divergences(entry: Entry, relation: Relation) -> Reals:
    """Renyi divergences at `FILTER_ORDERS` of all releases of a run, or of a selection, for a relation."""
    spent = np.zeros(len(FILTER_ORDERS))
    if entry.total:
        spent += renyi_divergences(converted(entry.total, entry.unit, relation))
    if entry.selection is not None:
        runs = [renyi_divergences(converted(run, entry.unit, relation)) for run in entry.selection.runs]
        spent += selection_divergences(np.max(runs, axis=0), entry.selection.mean_repetitions)
    return spent


def refuse_above(
    cap: Cap,
    others: Contents,
    entry: Entry,
    finished: Entry | None = None,
    *,
    unit: str | None = None,
    whose: str = "these rows",
) -> None:
    """PrivacyError if `entry` and all others of a book cost more than `cap`, for `unit` or for every unit."""
    if not entry.private:
        raise PrivacyError(
            f"cap is epsilon {cap.epsilon:.9g}, and no epsilon covers a run of {entry.method} without secret noise; "
            "nothing was spent; leave that run out (in compare: --no-baselines)"
        )
    earlier = [one for one in others.counted if one.private]
    entries = [*earlier, entry]
    costs = {one: under_cap(entries, cap, REMOVED[one]) for one in units_of(entries)}
    above = next((one for one in costs if unit in (None, one) and costs[one] > cap.epsilon), None)
    if above is None:
        return
    if above == OWNER and len(costs) > 1:  # after a run by record
        mixed = len(units_of(others.counted)) > 1
        step = "use other rows" if mixed else f"give --unit {OWNER if entry.unit == RECORD else RECORD}"
        raise PrivacyError(f"cap is epsilon {cap.epsilon:.9g}, and {NO_PERSON}; nothing was spent; {step}")
    after = rounded_up(costs[above]) + (f" for {ONE[above]}" if len(costs) > 1 else "")
    added, flag = "this one", "--eps"
    if finished is not None:
        earlier, added, flag = [*earlier, finished], "the histogram", "--publish-epsilon"
    raise _above(cap, REMOVED[above], earlier, whose, after, added, flag)


def _above(
    cap: Cap, relation: Relation, earlier: Sequence[Entry], whose: str, after: str, added: str, flag: str
) -> PrivacyError:
    """The refusal under a cap: what `earlier` runs count as, what they would with what is `added`, what to do."""
    made = [one for one in earlier if one.run]
    if len(made) < len(earlier):  # the others are planned, and have no id yet
        added, flag = f"{len(earlier) - len(made) + 1} of the planned runs", f"{flag} or --seeds"
    before = under_cap(made, cap, relation)
    runs = f"{counted(len(made), 'run')} on {whose} {'counts' if len(made) == 1 else 'count'}"
    step = f"give a smaller {flag}" if before < cap.epsilon else "no epsilon is small enough: use other rows"
    return PrivacyError(
        f"cap is epsilon {cap.epsilon:.9g} at delta {rounded_up(cap.delta)}; under this cap, {runs} as epsilon "
        f"{rounded_up(before)}, and {after} with {added}; nothing was spent; {step}, or raise the cap "
        "with linprobe budget --set-cap E --raise-cap"
    )
