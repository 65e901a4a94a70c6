"""Runs on two files with a protected row, image or person in common count together; runs on other files do not."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from linprobe.accounting.row_keys import keys_file, read_keys
from linprobe.data.feature_reader import Description
from linprobe.data.feature_writer import FeatureWriter
from tests.cli.outcomes import NOISY, Cli, result_of
from tests.conftest import CLASS_NAMES, gaussian_rows

FEW = [*NOISY, "--centre", "none", "--steps", "3", "--delta", "1e-5"]
N = 400
ROWS, LABELS = gaussian_rows("train", N)
NEW, _ = gaussian_rows("other", N)
TEST_ROWS, TEST_LABELS = gaussian_rows("test", 40)
ONE, TWO = 3.0, 4.46342  # epsilon of one run, and of two with a record in both


def written(path: Path, rows: Any, owners: list[str] | None = None, test: Any = None, **facts: str) -> Path:
    """A feature file with these training rows."""
    with FeatureWriter(path, Description(CLASS_NAMES, backbone="test", **facts)) as writer:
        names = [f"r{place:04d}" for place in range(len(rows))]
        labels = np.arange(len(rows)) % 4
        writer.write_group("train", len(rows), rows.shape[1], [rows], labels, names, owners=owners)
        test = TEST_ROWS if test is None else test
        names = [f"t{place:04d}" for place in range(len(test))]
        writer.write_group("test", len(test), test.shape[1], [test], np.arange(len(test)) % 4, names)
    return path


@pytest.fixture
def trained(cli: Cli) -> Any:
    """Train on a file; returns the printed object and the notes."""

    def run(source: Path, out: str, *words: object) -> Any:
        outcome = cli("train", source, *FEW, "--out", out, "--json", *words)
        return result_of(outcome), outcome.stderr

    return run


def spent(cli: Cli, source: Path, *words: object) -> dict[str, Any]:
    return result_of(cli("budget", source, "--json", *words))


SHARING = {
    "one row": np.concatenate([NEW[1:], ROWS[7:8]]),
    "another scale": 4 * ROWS,
    "another scale for each row": np.ldexp(ROWS, np.arange(N)[:, None] % 9),
    "another order": ROWS[::-1].copy(),
    "half of the rows": ROWS[: N // 2],
    "appended rows": np.concatenate([ROWS, NEW]),
    "half precision": ROWS.astype(np.float16),
}


@pytest.mark.parametrize("case", SHARING)
def test_a_file_with_common_rows_counts_together(
    cli: Cli, refused: Cli, trained: Any, own_books: Path, tmp_path: Path, case: str
) -> None:
    first, second = written(tmp_path / "a.h5", ROWS), written(tmp_path / "b.h5", SHARING[case])
    trained(first, "a")
    above = ["cap is epsilon 4.4 at delta", "1 run on these rows counts as epsilon 3", "and 4.46"]
    for words in ((), ("--dry-run",)):
        refused(cli("train", second, *FEW, "--cap", "4.4", "--out", "b", *words), 4, above)
    assert not (tmp_path / "b").exists()
    _, told = trained(second, "b")
    assert "2 runs on these rows" in told
    for source in (first, second):
        found = spent(cli, source)
        assert (found["runs"], found["epsilon"]) == (2, pytest.approx(TWO, rel=1e-5))
        assert [Path(entry["name"]).name for entry in sorted(found["entries"], key=lambda one: one["name"])] == [
            "a",
            "b",
        ]
        assert len(found["entries"]) == 2
    assert len({keys_file(path) for path in own_books.glob("*.jsonl")}) == (1 if case in SAME_BOOK else 2)
    assert ("1 run; " in cli("budget", first).stderr) == (case not in SAME_BOOK)


def test_books_that_cannot_be_listed_are_not_taken_for_none(
    cli: Cli, refused: Cli, trained: Any, own_books: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = written(tmp_path / "a.h5", ROWS), written(tmp_path / "b.h5", SHARING["half of the rows"])
    trained(first, "a")
    trained(second, "b")
    for name in ("listdir", "scandir"):
        whole = getattr(os, name)

        def denied(folder: Any = ".", whole: Any = whole) -> Any:
            if not isinstance(folder, int) and Path(os.fspath(folder)) == own_books:
                raise PermissionError(errno.EACCES, "Permission denied", str(folder))
            return whole(folder)

        monkeypatch.setattr(os, name, denied)
    told = [
        f"budget books in {own_books} cannot be read and written (Permission denied)",
        "make it",
        "nothing was spent",
    ]
    for words in (("budget", second), ("train", second, *FEW, "--cap", "9", "--out", "c"), ("evaluate", "a")):
        refused(cli(*words), 1, told)
    assert "budget books in" in cli("report", "a", "--html", "a.html").stderr
    page = Path("a.html").read_text(encoding="utf-8")
    assert "the total of all runs on these rows is not known: a budget book cannot be read" in page


SAME_BOOK = {"another scale", "another scale for each row", "another order", "half precision"}


def test_disjoint_halves_count_apart(cli: Cli, trained: Any, tmp_path: Path) -> None:
    first, second = written(tmp_path / "a.h5", ROWS[: N // 2]), written(tmp_path / "b.h5", ROWS[N // 2 :])
    trained(first, "a")
    _, told = trained(second, "b", "--cap", "3")
    assert told == ""
    for source in (first, second):
        found = spent(cli, source)
        assert (found["runs"], found["shared"], found["not_compared"]) == (1, [], 0)
        assert found["epsilon"] <= ONE
    whole = spent(cli, written(tmp_path / "whole.h5", ROWS))
    assert whole["runs"] == 2
    assert sorted(other["rows"] for other in whole["shared"]) == [N // 2, N // 2]
    assert whole["epsilon"] == pytest.approx(TWO, rel=1e-5)
    assert "also where no row is in all of them" in cli("budget", tmp_path / "whole.h5").stderr
    assert "also where no row is in all of them" not in cli("budget", first).stderr


def test_a_cap_of_one_file_holds_for_runs_on_another(cli: Cli, refused: Cli, trained: Any, tmp_path: Path) -> None:
    first = written(tmp_path / "a.h5", ROWS)
    second = written(tmp_path / "b.h5", np.concatenate([NEW, ROWS[:1]]))
    third = written(tmp_path / "c.h5", NEW[:-1])
    assert spent(cli, first, "--set-cap", "3.5")["runs"] == 0
    trained(third, "c")
    trained(second, "b")  # shares a row with each; the first has no runs yet
    book = Path(spent(cli, first)["book"]).name
    of_second = spent(cli, second)
    assert (of_second["cap"], [other["cap"] for other in of_second["shared"]].count(3.5)) == (None, 1)
    assert "; 1 row in common; its cap, 3.5 at delta 1e-05, holds for runs" in cli("budget", second).stderr
    refused(cli("train", second, *FEW, "--out", "d"), 4, ["cap is epsilon 3.5", "the rows of", book, "4.46"])
    refused(cli("train", first, *FEW, "--out", "d"), 4, ["cap is epsilon 3.5", " counts as epsilon 3, and "])
    trained(third, "d")  # shares no row with the file under the cap
    assert spent(cli, first)["runs"] == 1
    assert spent(cli, third)["runs"] == spent(cli, second)["runs"] == 3


def test_a_histogram_counts_for_the_rows_of_other_files(cli: Cli, refused: Cli, trained: Any, tmp_path: Path) -> None:
    first, second = written(tmp_path / "a.h5", ROWS), written(tmp_path / "b.h5", ROWS[:200])
    trained(first, "a")
    spent(cli, second, "--set-cap", "3.001")
    for words in ((), ("--dry-run",)):
        refused(
            cli("pdp-report", "a", "--publish-epsilon", "0.5", *words), 4, ["3.001", "the rows of", "--publish-epsilon"]
        )


def test_the_same_owners_count_together(cli: Cli, refused: Cli, trained: Any, tmp_path: Path) -> None:
    people = [f"person {place // 4:03d}" for place in range(N)]
    others = ["person 042"] * 4 + [f"someone {place // 4:03d}" for place in range(4, N)]
    first = written(tmp_path / "a.h5", ROWS, people)
    second = written(tmp_path / "b.h5", NEW, others)
    third = written(tmp_path / "c.h5", NEW[:, ::-1].copy(), others[4:] + others[-4:])
    trained(first, "a", "--unit", "owner")
    refused(cli("train", second, *FEW, "--unit", "owner", "--cap", "4.4", "--out", "b"), 4, ["4.46"])
    trained(third, "c", "--unit", "owner", "--cap", "3")
    assert spent(cli, first)["shared"] == []
    found = spent(cli, second)
    assert [other["owners"] for other in found["shared"]].count(1) == 1
    assert found["runs"] == 2


def test_private_test_rows_are_protected_rows(cli: Cli, trained: Any, tmp_path: Path) -> None:
    held_out = 3 * NEW[:100] + 1
    first = written(tmp_path / "a.h5", ROWS, test=held_out, test_rows="private")
    second = written(tmp_path / "b.h5", NEW, test=held_out[::-1], test_rows="private")
    trained(first, "a", "--test-epsilon", "0.5")
    _, told = trained(second, "b", "--test-epsilon", "0.5", "--delta", "1e-5")
    assert "2 runs on these rows, or on files that share some of them," in told
    assert spent(cli, second)["runs"] == 2


def test_keys_are_private_and_on_the_disk_before_the_run(
    cli: Cli, own_books: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = written(tmp_path / "a.h5", ROWS)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("linprobe.accounting.book.charge", killed)
    cli("train", source, *FEW, "--out", "a")
    (beside,) = own_books.glob("*.rows")
    assert stat.S_IMODE(beside.stat().st_mode) == 0o600
    keys = read_keys(beside)
    assert [len(part) for part in (keys.rows, keys.images, keys.owners, keys.public)] == [N, 0, 0, 0]
    assert np.all(np.diff(keys.rows.astype(object)) > 0)
    assert beside.stat().st_size < 8 * N + 200


def test_a_book_without_keys_gets_them_when_its_file_is_opened(cli: Cli, trained: Any, tmp_path: Path) -> None:
    first, second = written(tmp_path / "a.h5", ROWS), written(tmp_path / "b.h5", ROWS[:200])
    trained(first, "a")
    without_keys(Path(spent(cli, first)["book"]))
    found = spent(cli, second)
    assert (found["runs"], found["not_compared"]) == (0, 1)
    assert "run linprobe budget on their files" in cli("budget", second).stderr
    assert spent(cli, first)["runs"] == 1
    found = spent(cli, second)
    assert (found["runs"], found["not_compared"]) == (1, 0)


def without_keys(book: Path) -> None:
    """Make a book as one of version 0.2."""
    keys_file(book).unlink()
    book.write_text("".join(line for line in book.open() if '"keys"' not in line))


def test_a_book_without_keys_is_told_wherever_money_is_spent(cli: Cli, trained: Any, tmp_path: Path) -> None:
    first, second = written(tmp_path / "a.h5", ROWS), written(tmp_path / "b.h5", NEW, test=NEW[:100] + 1)
    private = written(tmp_path / "p.h5", NEW, test=3 * NEW[:100] + 1, test_rows="private")
    trained(first, "a")
    without_keys(Path(spent(cli, first)["book"]))
    trained(second, "b")
    for words in (
        ("train", second, *FEW, "--out", "c"),
        ("train", second, *FEW, "--out", "d", "--dry-run"),
        ("tune", second, *FEW, "--grid", "score_noise=1,2", "--out", "e", "--dry-run"),
        ("compare", second, "--methods", "noisy-gd:steps=3", "--eps", "1", "--no-baselines", "--out", "f"),
        ("compare", second, "--methods", "noisy-gd:steps=3", "--eps", "1", "--no-baselines", "--out", "g", "--dry-run"),
        ("evaluate", "b", private, "--epsilon", "1"),
        ("evaluate", "b", private, "--epsilon", "1", "--dry-run"),
        ("report", "b", "--html", "b.html"),
    ):
        told = cli(*words)
        assert told.status == 0, told.stderr
        assert told.stderr.count("not compared: 1 budget book without row keys") == 1, words
    spent(cli, first)
    assert "not compared" not in cli("train", second, *FEW, "--out", "h").stderr


@pytest.mark.parametrize("whose", ["this run", "its book", "the book without keys"])
def test_nothing_is_spent_under_a_cap_while_a_book_has_no_keys(
    cli: Cli, refused: Cli, trained: Any, tmp_path: Path, whose: str
) -> None:
    first, second = written(tmp_path / "a.h5", ROWS), written(tmp_path / "b.h5", ROWS[:200])
    trained(first, "a")
    if whose == "the book without keys":
        spent(cli, first, "--set-cap", "4")
    book = Path(spent(cli, first)["book"])
    without_keys(book)
    if whose == "its book":
        spent(cli, second, "--set-cap", "4")
    cap = ("--cap", "4") if whose == "this run" else ()
    comparing = ("compare", second, "--methods", "noisy-gd:steps=3", "--eps", "3", "--no-baselines", "--out", "c")
    for words in (("train", second, *FEW, *cap, "--out", "b"), *([] if cap else [comparing])):
        for more in ((), ("--dry-run",)):
            found = cli(*words, *more)
            assert (found.status, found.stdout) == (4, "")
            for text in ("cap is epsilon 4", "1 budget book without row keys", book.name, "/a", "linprobe budget"):
                assert text in found.stderr.splitlines()[-1]
    if whose == "the book without keys":
        words = ("train", second, *FEW, "--book", "by_hand.jsonl", "--out", "b")
        refused(cli(*words), 4, ["--book is by_hand.jsonl", book.name, "has a cap"])
    assert not (tmp_path / "b").exists()
    assert spent(cli, second)["runs"] == 0
    spent(cli, first)
    refused(cli("train", second, *FEW, *cap, "--out", "b"), 4, ["cap is epsilon 4", "4.46"])
    without_keys(book)
    book.rename(tmp_path / book.name)
    trained(second, "b", *cap)


def test_a_cap_refuses_a_histogram_of_a_run_without_keys(cli: Cli, refused: Cli, trained: Any, tmp_path: Path) -> None:
    first = written(tmp_path / "a.h5", ROWS)
    trained(first, "a")
    spent(cli, first, "--set-cap", "9")
    without_keys(Path(spent(cli, first)["book"]))
    for words in ((), ("--dry-run",)):
        refused(cli("pdp-report", "a", "--publish-epsilon", "0.5", *words), 4, ["cap is epsilon 9", "without row keys"])
    spent(cli, first)
    assert cli("pdp-report", "a", "--publish-epsilon", "0.5").status == 0


DAMAGES = {
    "cut": lambda content: content[:-8],
    "a changed key": lambda content: content[:-1] + bytes([content[-1] ^ 1]),
    "no header": lambda content: content[content.index(b"\n") + 1 :],
    "another format": lambda content: content.replace(b'"keys": 1', b'"keys": 2', 1),
    "negative sizes": lambda content: content.replace(b'"images": 0', b'"images":-1', 1),
    "empty": lambda content: b"",
    "a list": lambda content: b"[1]\n",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_keys_are_refused(cli: Cli, refused: Cli, trained: Any, tmp_path: Path, damage: str) -> None:
    source = written(tmp_path / "a.h5", ROWS)
    trained(source, "a")
    beside = keys_file(Path(spent(cli, source)["book"]))
    beside.write_bytes(DAMAGES[damage](beside.read_bytes()))
    other = written(tmp_path / "b.h5", NEW)
    for words in (("train", source, *FEW, "--out", "b"), ("budget", source), ("train", other, *FEW, "--out", "b")):
        refused(cli(*words), 3, ["row keys", beside.name, "restore"])


@pytest.mark.parametrize("kept", [None, 0, 1], ids=["removed", "emptied", "first line alone"])
def test_keys_beside_a_book_that_has_lost_its_lines_are_refused(
    cli: Cli, refused: Cli, trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int | None
) -> None:
    monkeypatch.setattr("linprobe.accounting.row_keys.PAUSE", 0.0)  # no other process writes them meanwhile
    source = written(tmp_path / "a.h5", ROWS)
    trained(source, "a")
    book = Path(spent(cli, source)["book"])
    lines = book.read_bytes().splitlines(keepends=True)
    book.unlink()
    if kept is not None:
        book.write_bytes(b"".join(lines[:kept]))
    other = written(tmp_path / "b.h5", SHARING["one row"])
    for words in (
        ("budget", source),
        ("budget", source, "--set-cap", "9"),
        ("train", source, *FEW, "--out", "b"),
        ("train", other, *FEW, "--out", "b"),
    ):
        refused(cli(*words), 3, ["row keys", keys_file(book).name, "restore the book"])


def test_a_book_given_by_hand_counts_by_itself(cli: Cli, trained: Any, tmp_path: Path) -> None:
    first, second = written(tmp_path / "a.h5", ROWS), written(tmp_path / "b.h5", ROWS[:200])
    trained(first, "a")
    trained(second, "b", "--book", "own.jsonl")
    found = spent(cli, Path("own.jsonl"))
    assert (found["runs"], found["compared"]) == (1, [])
    assert spent(cli, first)["compared"] == ["rows"]
    assert "counts by itself" in cli("budget", "own.jsonl").stderr
    shown = cli("budget", first).stderr
    assert "not recognised: the same rows scaled, with other signs or columns, or from another backbone" in shown
    assert "as the file has no image fingerprints or owners" in shown


def test_no_row_decides_what_a_page_states_of_other_runs(
    cli: Cli, trained: Any, own_books: Path, tmp_path: Path
) -> None:
    """A row of a file stays, is emptied or is exchanged between two runs and a third, which starts from the first."""
    stated, books = set[str](), set[int]()
    for number, last in enumerate((ROWS[-1], 0 * ROWS[-1], NEW[-1])):
        path = written(tmp_path / "a.h5", ROWS)
        for name in ("a", "b"):
            trained(path, f"{name}{number}")
        with h5py.File(path, "r+") as file:
            file["train/x"][-1] = last
        trained(path, f"c{number}", "--init", f"a{number}", "--eps", "4")
        assert cli("release", f"c{number}", "--out", f"pub{number}").status == 0
        found = re.search(r"runs on this file only \| (.*) As of", Path(f"pub{number}/README.md").read_text())
        assert found is not None
        stated.add(found[1])
        books.add(len(list(own_books.glob("*.jsonl"))))
        shutil.rmtree(own_books)
    assert books == {1, 2}
    assert len(stated) == 1
    assert "over 3 recorded runs on this feature file" in stated.pop()


@pytest.mark.parametrize("change", [0, 1], ids=["renamed", "with another row"])
def test_a_page_counts_the_first_run_whatever_its_path(
    cli: Cli, trained: Any, own_books: Path, tmp_path: Path, change: int
) -> None:
    rows = np.concatenate([ROWS[:-change], NEW[:change]]) if change else ROWS
    trained(written(tmp_path / "a.h5", ROWS), "a", "--eps", "2")
    trained(written(tmp_path / "b.h5", rows), "b", "--init", "a")
    assert cli("release", "b", "--out", "pub").status == 0
    assert "| epsilon 3 at delta 1e-05 for a record, over 2 recorded runs" in Path("pub/README.md").read_text()


def test_a_total_of_sampled_runs_states_its_condition(cli: Cli, tmp_path: Path) -> None:
    source = written(tmp_path / "a.h5", ROWS)
    sampled = ["--method", "dp-sgd", "--accountant", "rdp", "--eps", "2", "--steps", "3", "--delta", "1e-5"]
    for name in "ab":
        assert cli("train", source, *sampled, "--no-per-record", "--out", name).status == 0
    said = cli("release", "b", "--out", "pub").stderr
    for text in (said, Path("pub/README.md").read_text()):
        assert "private in all of them, if no result decided the noise, the sampling rate or the number" in text


@pytest.fixture(params=["by hand", "of another folder"])
def given(cli: Cli, trained: Any, tmp_path: Path, request: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new book, or a default book of other rows with keys, in the folder of another user."""
    if request.param == "by hand":
        return Path("own.jsonl")
    source = written(tmp_path / "theirs.h5", NEW + 1)
    with monkeypatch.context() as other:
        other.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
        trained(source, "theirs")
        return Path(spent(cli, source)["book"])


def test_a_book_given_by_hand_is_no_way_round_a_cap(
    cli: Cli, refused: Cli, trained: Any, tmp_path: Path, given: Path
) -> None:
    first, second = written(tmp_path / "a.h5", ROWS), written(tmp_path / "b.h5", SHARING["one row"])
    trained(first, "a")
    before = given.read_bytes() if given.exists() else None
    public = ["train", written(tmp_path / "c.h5", NEW), "--method", "adamix", *FEW[2:], "--public", first]
    refused(cli(*public, "--book", given, "--out", "p"), 4, ["are private in", "a (budget book"])
    spent(cli, first, "--set-cap", 4)
    for source in (first, second):
        for words in ((), ("--dry-run",)):
            other = ["train", source, *FEW, "--book", given, "--out", "b", *words]
            refused(cli(*other), 4, [f"--book is {given}", "has a cap, epsilon 4,", "leave --book out"])
    assert (given.read_bytes() if given.exists() else None) == before
    trained(tmp_path / "c.h5", "c", "--book", given)


def test_a_histogram_in_a_book_given_by_hand_is_no_way_round_a_cap(
    cli: Cli, refused: Cli, trained: Any, tmp_path: Path, given: Path
) -> None:
    capped, free = written(tmp_path / "a.h5", ROWS), written(tmp_path / "b.h5", -ROWS)
    for name, source in (("a", capped), ("b", free)):
        trained(source, name, "--book", given)
    publish = ["--publish-epsilon", "0.5", "--book", given]
    spent(cli, written(tmp_path / "c.h5", SHARING["one row"]), "--set-cap", 4)
    before = given.read_bytes()
    for words in ((), ("--dry-run",)):
        refused(cli("pdp-report", "a", *publish, *words), 4, [f"--book is {given}", "has a cap, epsilon 4,"])
    with h5py.File(capped, "r+") as file:
        file["train/x"][0] *= -1
    refused(cli("pdp-report", "a", *publish), 3, ["a.h5 does not hold the private rows of run a any more", "bring"])
    capped.unlink()
    refused(cli("pdp-report", "a", *publish), 3, ["a.h5, which is not at"])
    assert given.read_bytes() == before
    assert cli("pdp-report", "b", *publish).status == 0


PIXELS = ["--backbone", "pixels", "--device", "cpu"]


def test_the_same_images_through_two_backbones_count_together(cli: Cli, refused: Cli, images: Path) -> None:
    sizes = {"a": ("8", "8"), "b": ("9", "7")}
    for name, (resize, crop) in sizes.items():
        words = ["extract", images, *PIXELS, "--resize", resize, "--crop", crop, "--out", f"{name}.h5"]
        assert cli(*words).status == 0
    few = [*FEW[: FEW.index("--delta")], "--delta", "0.004"]
    assert cli("train", "a.h5", *few, "--out", "a").status == 0
    refused(cli("train", "b.h5", *few, "--cap", "3.5", "--out", "b"), 4, [" counts as epsilon 3, and "], notes=1)
    found = spent(cli, Path("b.h5"))
    (other,) = found["shared"]
    assert (found["runs"], other["rows"], other["owners"]) == (1, 0, 0)
    assert other["images"] == 21
    assert found["compared"] == ["rows", "images"]
    shown = " ".join(cli("budget", "b.h5").stderr.split())
    assert "; 21 image fingerprints in common" in shown
    assert "scaled, with other signs or columns, or from another backbone, unless image fingerprints are equal" in shown


def test_private_rows_with_errors_of_rounding_are_refused_as_unlabelled_rows_before_and_after_another_run(
    cli: Cli, refused: Cli, trained: Any, tmp_path: Path
) -> None:
    """A run that took them for public would have voided the promise of its own rows."""
    rng = np.random.default_rng(0)
    small = np.concatenate([ROWS, 1e-4 * rng.random((N, 60))], axis=1).astype(np.float32)
    copies = small + (1e-7 * rng.standard_normal(small.shape)).astype(np.float32)
    source = written(tmp_path / "a.h5", small, test=small[:40] + 1)
    unlabelled = tmp_path / "u.h5"
    with FeatureWriter(unlabelled, Description(class_names=(), backbone="test")) as writer:
        writer.write_group("rows", N, copies.shape[1], [copies], None, [f"u{place}" for place in range(N)])
    run = ("train", source, *FEW, "--unlabelled", unlabelled, "--out", "b")
    refused(cli(*run), 4, ["u.h5 holds training rows of ", "a.h5"])
    trained(source, "a")
    refused(cli(*run), 4, ["u.h5 holds training rows of ", "a.h5"])
    refused(cli("refine", "a", unlabelled, "--out", "c"), 4, ["u.h5 holds training rows"])


@pytest.mark.parametrize("kind", ["key", "source_key"])
def test_another_row_of_a_private_image_is_refused_as_public(cli: Cli, refused: Cli, tmp_path: Path, kind: str) -> None:
    """Before and after the transform, as the books compare images: the run alone would have taken it for public."""
    source, public = written(tmp_path / "a.h5", ROWS), written(tmp_path / "p.h5", NEW)
    keys = np.random.default_rng(0).integers(1, 256, (N, 16), dtype=np.uint8)
    for path, digests in ((source, keys), (public, np.concatenate([keys[-1:], 255 - keys[1:]]))):
        with h5py.File(path, "r+") as file:
            file[f"private_log/train_{kind}"] = digests
    words = ["holds training images of", "cannot be public too"]
    refused(cli("train", source, *FEW[:-1], "1e-5", "--public", public, "--out", "b"), 4, words)
