"""The budget book: what is written is counted, once, by any number of processes, and a damaged book is refused."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import time
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from unittest import mock

import pytest

from linprobe.accounting import book
from linprobe.accounting.accountants import GAUSSIAN, PLD, RENYI
from linprobe.accounting.book import Cap, Contents, Entry, composed, read_book, refuse_above, spending, under_cap
from linprobe.accounting.events import INHERITED, OF_FILE, RECORD, REMOVED, Releases
from linprobe.accounting.figures import epsilon_of
from linprobe.accounting.row_keys import book_with, recorded_runs
from linprobe.accounting.selection import SelectionEvent, selection_epsilon
from linprobe.errors import DataError, LinprobeError, PrivacyError
from linprobe.reporting import release_pages
from tests.cli.outcomes import Cli
from tests.planted import no_locks
from tests.processes import ended, start_copy

STEPS = Releases("gradient", 9.833, 1.0, 50)  # epsilon 3 at delta 1e-5
SAMPLED = Releases("gradient", 3.12, 0.15, 200)
DELTA = 1e-5
EVENT = SelectionEvent(3, ((STEPS,), (replace(STEPS, noise_multiplier=12.0), Releases("selection", 9.0, 1.0, 1))))
LITTLE = SelectionEvent(3, ((replace(STEPS, noise_multiplier=40.0),),))


def entry(run: str, *releases: Releases, **changes: object) -> Entry:
    stated = {"name": f"/runs/{run}", "method": "noisy-gd", "unit": "record", "private": True, "delta": DELTA}
    return Entry(run=run, releases=releases or (STEPS,), **{**stated, **changes})


def selection(run: str, event: SelectionEvent = EVENT, **changes: object) -> Entry:
    return replace(entry(run), releases=(), selection=event, created=None, **changes)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "books" / "rows.jsonl"


def test_what_is_charged_is_read_again_from_private_files(path: Path) -> None:
    charged = [entry("a"), entry("b", STEPS, SAMPLED, delta=1e-6), entry("c", private=False, delta=None)]
    charged.append(selection("d"))
    for one in charged:
        book.charge(path, one)
    contents = read_book(path)
    assert list(contents.entries.values()) == charged
    assert contents.cap is None
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert read_book(path.with_name("none.jsonl")) == Contents()


def test_a_run_that_is_charged_again_counts_once(path: Path) -> None:
    book.charge(path, entry("a"))
    book.settle(path, "a", [replace(STEPS, count=20)])
    assert read_book(path).entries["a"].total == (replace(STEPS, count=20),)
    others = book.charge(path, entry("a"))
    assert others == Contents()
    with pytest.raises(PrivacyError, match="has delta"):
        book.charge(path, entry("a", delta=1e-6))
    assert [one.total for one in read_book(path).counted] == [(STEPS,)]


def test_a_copy_of_a_run_that_is_finished_is_refused(path: Path) -> None:
    inherited = replace(STEPS, purpose=INHERITED)
    book.charge(path, entry("first"))
    again = partial(book.charge, path, entry("a", inherited, STEPS, first="first"))
    again()
    book.settle(path, "a", [inherited, replace(STEPS, count=20)])
    again()
    book.finish(path, "a")
    book.finish(path, "unknown")
    with pytest.raises(PrivacyError, match=r"is finished in budget book .*; train anew$"):
        again()
    assert [(one.total, one.finished) for one in read_book(path).counted] == [((STEPS,), False), ((STEPS,), True)]


def test_what_a_killed_process_leaves_of_a_finished_run_is_removed_and_of_an_unfinished_one_kept(path: Path) -> None:
    for run in "abc":
        book.charge(path, entry(run))
        book.releases_file(path, run).write_text("7\n")
        path.with_name(f"..{run}.releases.0123abcd.partial").write_text("")
    killed = mock.patch("linprobe.accounting.book.Path.unlink", side_effect=KeyboardInterrupt)
    with killed, pytest.raises(KeyboardInterrupt):
        book.finish(path, "a")
    book.finish(path, "b")
    left = sorted(file.name for file in path.parent.iterdir())
    assert left == ["..c.releases.0123abcd.partial", ".c.releases", path.name]


def test_a_run_that_made_nothing_does_not_count(path: Path) -> None:
    book.charge(path, entry("a"))
    book.settle(path, "a", [])
    book.settle(path, "unknown", [STEPS])
    assert read_book(path).counted == []
    inherited = replace(STEPS, purpose=INHERITED)
    assert read_book(path).lacking("a", (inherited, STEPS)) == (inherited, STEPS)


def test_what_is_released_afterwards_adds_up_and_stays(path: Path) -> None:
    histogram = Releases("histogram", 10.0, 1.0, 1)
    book.charge(path, entry("a"))
    book.add(path, entry("a"), [histogram])
    book.add(path, entry("b"), [histogram])  # the book did not know this run
    checked = []
    book.charge(path, entry("a"), lambda others, one: checked.append(one.total))
    assert {run: one.total for run, one in read_book(path).entries.items()} == dict.fromkeys("ab", (STEPS, histogram))
    assert checked == [(STEPS, histogram)]


def test_inherited_releases_count_once_if_the_first_run_is_in_the_book(path: Path) -> None:
    mine, inherited = Releases("gradient", 20.0, 1.0, 50), replace(STEPS, purpose=INHERITED)
    other = Releases(INHERITED, 11.0, 1.0, 2)
    book.charge(path, entry("first"))
    book.charge(path, entry("second", inherited, other, mine, first="first"))
    assert read_book(path).entries["second"].total == (other, mine)
    book.settle(path, "second", [inherited, other, replace(mine, count=7)])
    assert read_book(path).entries["second"].total == (other, replace(mine, count=7))
    book.charge(path, entry("third", replace(inherited, count=60), mine, first="first"))
    assert read_book(path).entries["third"].total == (replace(inherited, count=10), mine)
    book.charge(path, entry("fourth", inherited, mine, first="elsewhere"))
    assert read_book(path).entries["fourth"].total == (inherited, mine)


def test_equal_histograms_are_told_apart_by_their_names(path: Path) -> None:
    one, copy, of_second = (Releases(f"histogram {name}", 2.0, 1.0, 1) for name in "abc")
    mine, inherited = Releases("gradient", 20.0, 1.0, 50), replace(STEPS, purpose=INHERITED)
    book.add(path, entry("first"), [one])
    assert read_book(path).lacking("first", (STEPS, copy)) == (copy,)
    book.charge(path, entry("second", inherited, one, copy, mine, first="first"))
    book.settle(path, "second", [inherited, replace(one, purpose=INHERITED, count=2), mine])
    assert read_book(path).entries["second"].total == (copy, mine)
    all_inherited = [replace(one, purpose=INHERITED, count=2), replace(mine, purpose=INHERITED), inherited]
    assert read_book(path).lacking("second", (*all_inherited, mine, of_second)) == (of_second,)
    book.charge(path, entry("third", *all_inherited, of_second, mine, first="second"))
    assert read_book(path).entries["third"].total == (of_second, mine)


def test_a_histogram_without_a_name_stands_for_one_of_its_run_with_equal_noise(path: Path) -> None:
    unnamed, louder = Releases("histogram", 2.0, 1.0, 1), Releases(f"{OF_FILE} d", 3.0, 1.0, 1)
    one, two, named = (replace(unnamed, purpose=name) for name in (f"{OF_FILE} a", f"{OF_FILE} b", "histogram c"))
    inherited, mine = replace(STEPS, purpose=INHERITED), Releases("gradient", 20.0, 1.0, 50)
    book.add(path, entry("first"), [unnamed])
    assert read_book(path).lacking("first", (STEPS, one)) == ()
    assert read_book(path).lacking("first", (STEPS, one, two, named, louder)) == (two, named, louder)
    book.charge(path, entry("second", inherited, one, mine, first="first"))
    assert read_book(path).entries["second"].total == (mine,)
    before = [inherited, replace(one, purpose=INHERITED), replace(mine, purpose=INHERITED)]
    book.charge(path, entry("third", *before, two, mine, first="second"))  # a histogram of the second run
    assert read_book(path).entries["third"].total == (two, mine)


def test_a_page_counts_what_a_book_counts_of_a_run_from_another(own_books: Path) -> None:
    path, unknown = own_books / "a.jsonl", mock.Mock(epsilon=None)
    made, inherited = replace(STEPS, count=20), replace(STEPS, purpose=INHERITED)
    book.charge(path, entry("first", features="a.h5"))
    book.settle(path, "first", [made])  # a copy went on elsewhere
    book.charge(path, entry("second", inherited, STEPS, first="first", features="a.h5"))
    assert read_book(path).entries["second"].releases == (replace(inherited, count=30), STEPS)
    total = spending(read_book(path).counted).in_words
    assert total in release_pages._of_file("a.h5", recorded_runs(), unknown, "")


def test_two_default_books_with_one_run_are_refused(own_books: Path) -> None:
    name = own_books / "a.jsonl"
    book.charge(name, entry("run"))
    link = own_books / "link.jsonl"
    link.symlink_to(name.name)
    assert book_with("run") == name
    copy = own_books / "a.old.jsonl"
    shutil.copy(name, copy)
    with pytest.raises(DataError, match=r"a\.jsonl and .*a\.old\.jsonl both have run run .*; move the copy"):
        book_with("another run")


def test_a_book_of_format_1_is_read_and_appended_to(path: Path) -> None:
    book.charge(path, entry("a"))
    path.write_text(path.read_text().replace('{"book": 2}', '{"book": 1}', 1))
    book.charge(path, entry("b"))
    assert list(read_book(path).entries) == ["a", "b"]
    path.write_text(path.read_text().replace('{"book": 1}', '{"book": 3}', 1))
    with pytest.raises(DataError, match=r"line 1 .*not format 1 or 2.*restore the file from a copy"):
        read_book(path)


def test_a_torn_last_line_is_dropped(path: Path) -> None:
    book.charge(path, entry("a"))
    with path.open("ab") as stream:
        stream.write(b'{"entry": "run", "run": "b", "na')
    assert list(read_book(path).entries) == ["a"]
    book.charge(path, entry("c"))
    assert list(read_book(path).entries) == ["a", "c"]


@pytest.mark.parametrize("content", ['{"a": 1}', '{"book": 3}', "{"])
def test_a_file_of_one_line_that_is_no_book_is_left_as_it_is(path: Path, content: str) -> None:
    path.parent.mkdir()
    path.write_text(content)
    if content == "{":  # the first line of a book may be torn too
        book.charge(path, entry("a"))
        assert list(read_book(path).entries) == ["a"]
        return
    with pytest.raises(DataError, match="is no budget book"):
        book.charge(path, entry("a"))
    assert path.read_text() == content


@pytest.mark.parametrize("locks", [None, errno.ENOLCK, errno.EOPNOTSUPP])
def test_processes_at_the_same_time_lose_no_entry_and_keep_the_cap(
    path: Path, monkeypatch: pytest.MonkeyPatch, locks: int | None
) -> None:
    if locks is not None:
        no_locks(monkeypatch, locks)
    cap = Cap(4.5, DELTA)  # two runs fit, three do not
    refuse_above(cap, Contents(), entry("none"))  # imports before the processes part

    def check(others: Contents, new: Entry) -> None:
        refuse_above(cap, others, new)
        time.sleep(0.05)  # so that all are here at once

    def charge(number: int) -> int:
        try:
            book.charge(path, entry(f"run {number}"), check)
        except PrivacyError:
            return 4
        return 0

    children = [start_copy(lambda number=number: charge(number)) for number in range(8)]
    assert sorted(ended(child) for child in children) == [0, 0, *[4] * 6]
    assert len(read_book(path).counted) == 2
    assert [path] == list(path.parent.iterdir())


def test_no_process_cuts_the_line_of_another_without_locks(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_locks(monkeypatch)
    write = os.write

    def slowly(descriptor: int, text: bytes) -> int:
        time.sleep(0.001)
        return write(descriptor, text[:50])

    monkeypatch.setattr(os, "write", slowly)

    def charge(number: int) -> int:
        for place in range(5):
            book.charge(path, entry(f"run {number} {place}"))
        return 0

    children = [start_copy(lambda number=number: charge(number)) for number in range(4)]
    for child in children:
        read_book(path)  # while others write
        assert ended(child) == 0
    assert len(read_book(path).entries) == 20


RUN = json.dumps(book._run_line(entry("a"))).encode()
CHOICE = json.dumps(book._run_line(selection("a"))).encode()
HOSTILE = {
    "a selection of half a run": CHOICE.replace(b'"mean_repetitions": 3', b'"mean_repetitions": 2.5'),
    "a selection of one run": CHOICE.replace(b'"mean_repetitions": 3', b'"mean_repetitions": true'),
    "another distribution": CHOICE.replace(b"geometric", b"poisson"),
    "a selection of nothing": CHOICE[: CHOICE.index(b'"runs"')] + b'"runs": []}}',
    "a selection without noise": CHOICE.replace(b"9.833", b"1e-9"),
    "a selection without delta": CHOICE.replace(b'"delta": 1e-05', b'"delta": null'),
    "a selection in words": b'{"book": 2}\n{"entry": "selection", "selection": "all"}\n',
    "not a book": b"id,label\n",
    "binary": b"\x89HDF\r\n\x1a\n\xff\xfe\n",
    "another format": b'{"book": 3}\n',
    "no first line": RUN + b"\n",
    "not an object": b'{"book": 2}\n[1, 2]\n',
    "a number": b'{"book": 2}\n7\n',
    "unknown entry": b'{"book": 2}\n{"entry": "refund", "run": "a"}\n',
    "a missing key": b'{"book": 2}\n{"entry": "run", "run": "a"}\n',
    "no such run": b'{"book": 2}\n{"entry": "made", "run": "a", "releases": []}\n',
    "a run that is a list": b'{"book": 2}\n{"entry": "made", "run": ["a"], "releases": []}\n',
    "NaN": RUN.replace(b"9.833", b"NaN"),
    "infinity": RUN.replace(b"9.833", b"1e999"),
    "noise of zero": RUN.replace(b"9.833", b"0"),
    "negative noise": RUN.replace(b"9.833", b"-9.833"),
    "noise in words": RUN.replace(b"9.833", b'"much"'),
    "a rate above 1": RUN.replace(b'"sampling_rate": 1.0', b'"sampling_rate": 1.5'),
    "a rate of zero": RUN.replace(b'"sampling_rate": 1.0', b'"sampling_rate": 0'),
    "a negative count": RUN.replace(b'"count": 50', b'"count": -50'),
    "half a release": RUN.replace(b'"count": 50', b'"count": 0.5'),
    "a true count": RUN.replace(b'"count": 50', b'"count": true'),
    "a huge count": RUN.replace(b'"count": 50', b'"count": 1' + b"0" * 5000),
    "a delta of 2": RUN.replace(b'"delta": 1e-05', b'"delta": 2'),
    "no delta": RUN.replace(b'"delta": 1e-05', b'"delta": null'),
    "private in words": RUN.replace(b'"private": true', b'"private": "true"'),
    "an unknown unit": RUN.replace(b'"unit": "record"', b'"unit": "household"'),
    "a name that is a number": RUN.replace(b'"name": "/runs/a"', b'"name": 1'),
    "deep nesting": b'{"book": 2}\n' + b"[" * 100_000 + b"\n",
    "a cap of words after runs": b'{"book": 2}\n{"entry": "cap", "epsilon": 1, "delta": 1e-5, "runs": "some"}\n',
    "a run with a cap of words": RUN.replace(b'"private": true', b'"private": true, "cap": "5"'),
    "a negative cap": b'{"book": 2}\n{"entry": "cap", "epsilon": -1, "delta": 1e-5}\n',
}


@pytest.mark.parametrize("damage", HOSTILE)
def test_a_damaged_book_is_refused_and_left_as_it_is(path: Path, damage: str) -> None:
    path.parent.mkdir()
    content = HOSTILE[damage]
    content = content if content.startswith(b'{"book"') or damage == "no first line" else b'{"book": 2}\n' + content
    content = content if content.endswith(b"\n") else content + b"\n"
    path.write_bytes(content)
    for use in (lambda: read_book(path), lambda: book.charge(path, entry("b"))):
        with pytest.raises(DataError, match=r"budget book .* line [12] cannot be read") as caught:
            use()
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 500
    assert path.read_bytes() == content


def test_a_folder_is_no_book(tmp_path: Path) -> None:
    for use in (read_book, lambda path: book.charge(path, entry("a"))):
        with pytest.raises(DataError, match="is not a file"):
            use(tmp_path)


def test_a_book_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LinprobeError, match="cannot be read and written") as caught:
        book.charge(tmp_path / "file" / "book.jsonl", entry("a"))
    assert caught.value.exit_status == 1


def test_full_sums_compose_exactly_and_sampled_ones_by_loss_distributions() -> None:
    spent = spending([entry("a"), entry("b", replace(STEPS, noise_multiplier=20.0))])
    mu = (50 / 9.833**2 + 50 / 20**2) ** 0.5
    assert spent.gdp_mu == pytest.approx(mu, rel=1e-12)
    assert spent.epsilon == pytest.approx(epsilon_of(mu, DELTA), rel=1e-9)
    assert 3 < spent.epsilon < 6
    mixed = spending([entry("a"), entry("b", SAMPLED)])
    assert mixed.epsilon == PLD.epsilon([STEPS, SAMPLED], DELTA)
    assert (mixed.gdp_mu, mixed.zcdp_rho) == (None, None)
    assert mixed.epsilon < GAUSSIAN.epsilon([STEPS], DELTA) + PLD.epsilon([SAMPLED], DELTA)


def test_merging_kinds_does_not_understate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("linprobe.accounting.book.MOST_KINDS", 3)
    full = [Releases("gradient", sigma, 1.0, 10) for sigma in (7.0, 9.0, 13.0)]
    direct = PLD.epsilon([*full, SAMPLED], DELTA)
    assert composed([*full, SAMPLED], DELTA)[0] == pytest.approx(direct, rel=1e-4)
    for count in range(1, 100):
        full[0] = replace(full[0], count=count)
        (merged,) = book._merged(full)
        assert 1 / Fraction(merged.noise_multiplier) ** 2 >= sum(
            one.count / Fraction(one.noise_multiplier) ** 2 for one in full
        )
    many = [replace(SAMPLED, noise_multiplier=3 + place) for place in range(4)]
    epsilon, accountant = composed(many, DELTA)
    assert accountant is RENYI
    assert epsilon >= PLD.epsilon(many, DELTA)


def test_a_selection_alone_costs_its_own_bound() -> None:
    spent = spending([selection("a")])
    assert spent.epsilon == selection_epsilon(EVENT, DELTA, GAUSSIAN)
    assert (spent.runs, spent.gdp_mu, spent.zcdp_rho) == (1, None, None)
    assert spent.accountant == "1 private selection by privacy profiles"


def test_selections_and_the_rest_share_delta_and_add_epsilon() -> None:
    entries = [entry("a"), selection("b", LITTLE), entry("c"), selection("d", LITTLE), entry("e", SAMPLED)]
    spent = spending(entries)
    rest, _ = composed([STEPS, STEPS, SAMPLED], DELTA / 3)
    assert spent.epsilon == pytest.approx(rest + 2 * selection_epsilon(LITTLE, DELTA / 3, GAUSSIAN), rel=1e-9)
    assert spent.epsilon > spending(entries[:3]).epsilon > max(spending([one]).epsilon for one in entries[:2])
    assert (spent.runs, spent.gdp_mu) == (5, None)
    assert spent.accountant.endswith("added to 2 private selections by privacy profiles")
    twice = spending([selection("b"), selection("d")]).epsilon  # no share of delta for an empty rest
    assert twice == pytest.approx(2 * selection_epsilon(EVENT, DELTA / 2, GAUSSIAN), rel=1e-9)


@pytest.mark.parametrize("parts", [2, 3, 7, 10, 49])
def test_shares_of_delta_add_up_to_at_most_delta(parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    shares: list[Fraction] = []

    def cost(event: SelectionEvent, delta: float, accountant: str) -> float:
        shares.append(Fraction(delta))
        return 0.1

    monkeypatch.setattr("linprobe.accounting.book.selection_epsilon", cost)
    spent = spending([selection(str(place), replace(EVENT, mean_repetitions=3 + place)) for place in range(parts)])
    assert len(shares) == parts
    assert Fraction(DELTA) * Fraction(999, 1000) < sum(shares) <= Fraction(DELTA)
    assert Fraction(spent.epsilon) >= parts * Fraction(0.1)
    shares.clear()
    equal = spending([selection(str(place)) for place in range(parts)])
    assert len(shares) == 1  # equal selections are computed once
    assert equal.epsilon == spent.epsilon


@pytest.mark.parametrize("others", [[], [entry("z")], [entry("y", SAMPLED), entry("z")]])
def test_a_total_with_selections_is_the_smaller_of_two_bounds_and_at_most_what_any_cap_counts(
    others: list[Entry],
) -> None:
    least = set()
    for n_selections in (1, 2, 3, 8):
        entries = [*(selection(str(number), LITTLE) for number in range(n_selections)), *others]
        part = DELTA / (n_selections + bool(others))
        rest = [release for one in others for release in one.total]
        added = n_selections * selection_epsilon(LITTLE, part, GAUSSIAN) + composed(rest, part)[0]
        caps = [Cap(epsilon, DELTA) for epsilon in (0.1, 0.5, 1, 2, 4, 8, 16, 50)]
        filtered = [under_cap(entries, cap, REMOVED[RECORD]) for cap in caps]
        by_order = book._renyi_epsilons(entries, DELTA, REMOVED[RECORD])
        spent = spending(entries)
        assert spent.epsilon == pytest.approx(min(added, *by_order), rel=1e-9)
        assert spent.epsilon <= min(filtered)
        least.add("Renyi divergences" in spent.accountant)
    assert least == {False, True}


def test_a_book_is_said_to_reach_its_cap_only_if_nothing_more_is_allowed(path: Path, cli: Cli) -> None:
    small = Releases("accuracy", 1e6, 1.0, 1)
    for number in range(16):
        book.charge(path, selection(str(number)))
    runs = read_book(path)
    above = Cap(62, DELTA)
    refuse_above(above, runs, entry("next", small))
    book.set_cap(path, above)
    assert "reach the cap" not in cli("budget", path).stderr
    assert 16 * selection_epsilon(EVENT, DELTA / 16, GAUSSIAN) > above.epsilon  # which the sum alone would reach
    reached = Cap(spending(runs.counted).epsilon, DELTA)
    with pytest.raises(PrivacyError, match="nothing was spent"):
        refuse_above(reached, runs, entry("next", small))
    book.set_cap(path, reached)
    assert "these runs reach the cap, so every further one is refused" in cli("budget", path).stderr


def test_a_delta_too_small_for_a_selection_has_no_bound() -> None:
    assert spending([selection("a", delta=5e-324)]).epsilon == float("inf")


def test_nothing_in_the_line_of_a_selection_tells_when_or_how_it_ended(path: Path) -> None:
    book.charge(path, selection("a"))
    line = json.loads(path.read_text().splitlines()[1])
    assert set(line) == {"entry", "run", "name", "method", "unit", "delta", "selection"}
    book.settle(path, "a", [])
    assert read_book(path).entries["a"] == selection("a")


def test_delta_and_unit_are_those_that_hold_for_every_run() -> None:
    people = entry("a", unit="owner", delta=1e-6)
    assert spending([people]).unit == "owner"
    assert spending([people]).delta == 1e-6
    both = spending([people, entry("b")])
    assert (both.unit, both.delta, both.runs) == ("record", 1e-6, 2)
    cheap = entry("c", Releases("gradient", 100.0, 1.0, 1), delta=1e-3)
    assert spending([people, cheap]).epsilon > spending([people]).epsilon
    assert spending([people, entry("b")], 1e-7).epsilon > both.epsilon > 7
    assert spending([]).epsilon == 0
    assert spending([entry("a", private=False, delta=None)]).not_private_runs == 1


def test_a_cap_refuses_what_would_exceed_it() -> None:
    alone = GAUSSIAN.epsilon([STEPS], DELTA)
    refuse_above(Cap(alone, DELTA), Contents(), entry("a"))
    with pytest.raises(PrivacyError, match=r"1 run on these rows counts as epsilon 3, and 4\.46\d+ with this one"):
        refuse_above(Cap(alone, DELTA), Contents({"a": entry("a")}), entry("b"))
    with pytest.raises(PrivacyError, match="no epsilon covers"):
        refuse_above(Cap(100.0, DELTA), Contents(), entry("a", private=False, delta=None))


def test_a_cap_counts_the_run_that_began_while_it_was_set(path: Path) -> None:
    book.set_cap(path, Cap(3, DELTA))
    book.charge(path, entry("a"))
    with pytest.raises(PrivacyError, match="under which 1 run began;"):
        book.set_cap(path, Cap(4, DELTA))
    with pytest.raises(PrivacyError, match=r"delta 1\.236e-05; allowed"):
        book.set_cap(path, Cap(3, 1.236e-5))
    book.set_cap(path, Cap(2, DELTA))
    assert (cap := read_book(path).cap) is not None
    assert cap.runs == 1


def test_a_cap_that_is_lowered_after_a_run_counts_at_the_order_of_the_first(path: Path) -> None:
    event = SelectionEvent(10, ((Releases("gradient", 3.5, 1.0, 1),),))
    runs = [selection("a", event), entry("b", Releases("gradient", 1e6, 1.0, 1))]
    own = {epsilon: under_cap(runs, Cap(epsilon, DELTA), REMOVED[RECORD]) for epsilon in (3.024, 3.025)}
    assert own[3.024] < 3.024 < 3.25 < own[3.025]  # the best order changes between the two
    book.set_cap(path, Cap(3.025, DELTA))
    book.charge(path, entry("first"))
    book.set_cap(path, Cap(3.024, DELTA))
    assert (cap := read_book(path).cap) is not None
    assert under_cap(runs, cap, REMOVED[RECORD]) == own[3.025]
    book.set_cap(path, Cap(3.5, DELTA), may_raise=True)
    assert (raised := read_book(path).cap) is not None
    assert under_cap(runs, raised, REMOVED[RECORD]) == under_cap(runs, Cap(3.5, DELTA), REMOVED[RECORD])


def test_releases_that_a_copy_made_elsewhere_are_added_with_the_next_one(path: Path) -> None:
    inherited = replace(STEPS, purpose="inherited")
    elsewhere, here = Releases("histogram", 2.0, 1.0, 1), Releases("histogram", 9.0, 1.0, 1)
    book.charge(path, entry("first"))
    book.charge(path, entry("a", inherited, STEPS, first="first"))
    copy = entry("a", inherited, STEPS, elsewhere)
    assert read_book(path).lacking("a", copy.releases) == (elsewhere,)
    charged = book.add(path, copy, [here])
    assert charged.further == read_book(path).entries["a"].further == (elsewhere, here)
    assert not read_book(path).lacking("a", (*copy.releases, here))
    assert book.add(path, replace(copy, releases=(*copy.releases, here)), [here]).further == (elsewhere, here, here)


def test_a_preview_leaves_out_what_the_first_run_is_counted_with(path: Path) -> None:
    book.charge(path, entry("first"))
    second = entry("a", replace(STEPS, purpose="inherited"), SAMPLED, first="first")
    assert read_book(path).as_counted(second).releases == (SAMPLED,)
    assert read_book(path).as_counted(replace(second, first="elsewhere")) == replace(second, first="elsewhere")
