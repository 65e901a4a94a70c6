"""A row, image or person that is private in one run is public in none, whatever file and command brings them together.

Lost, old and damaged files of the budget book are refused or named.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linprobe.accounting import book
from linprobe.accounting.book import Entry, read_book, spending
from linprobe.accounting.events import Releases
from linprobe.accounting.row_keys import Account, RowKeys, keys_file, read_keys
from linprobe.data.feature_reader import Description
from linprobe.data.feature_writer import FeatureWriter
from linprobe.evaluation import predict
from linprobe.training.charge import RunCharge
from tests.cli.outcomes import NOISY, Cli, result_of
from tests.conftest import CLASS_NAMES, gaussian_rows
from tests.processes import ended, start_copy

FEW = [*NOISY, "--centre", "none", "--steps", "3", "--delta", "1e-5"]
PUBLIC = ["--method", "adamix", "--eps", "3", "--steps", "3", "--delta", "1e-5"]
SEEDED, TESTED = ["--noise-seed", "1", "--insecure-seed"], ["--test-epsilon", "1"]
N = 200
A, B, C = (gaussian_rows(name, N)[0] for name in ("meeting a", "meeting b", "meeting c"))
HELD = gaussian_rows("meeting test", 40)[0]
TWO = 4.46342  # epsilon of two runs with a record in both


WRITTEN: dict[Any, bytes] = {}


def file_of(path: Path, owners: dict[str, list[str]] | None = None, /, *, facts: Any = None, **groups: Any) -> Path:
    """A feature file with these groups of rows, and the owners of some of them; equal ones are written once."""
    key = (path.stem, repr((owners, facts)), *((name, rows.shape, rows.tobytes()) for name, rows in groups.items()))
    if key in WRITTEN:
        path.write_bytes(WRITTEN[key])
        return path
    names = () if "rows" in groups else CLASS_NAMES
    with FeatureWriter(path, Description(names, backbone="test", **(facts or {}))) as writer:
        for group, rows in groups.items():
            labels = None if group == "rows" else np.arange(len(rows)) % 4
            ids = [f"{path.stem} {group} {place}" for place in range(len(rows))]
            writer.write_group(group, len(rows), rows.shape[1], [rows], labels, ids, owners=(owners or {}).get(group))
    WRITTEN[key] = path.read_bytes()
    return path


def people(prefix: str, n_rows: int = N) -> list[str]:
    return [f"{prefix} {place // 4:03d}" for place in range(n_rows)]


@pytest.fixture
def trained(cli: Cli) -> Callable[..., Any]:
    """Train on a file; returns the printed object."""

    def run(source: str, out: str, *words: object) -> Any:
        return result_of(cli("train", source, *FEW, "--out", out, "--json", *words))

    return run


def spent(cli: Cli, source: object, *words: object) -> dict[str, Any]:
    return result_of(cli("budget", source, "--json", *words))


def test_rows_that_differ_beside_one_large_column_alone_are_different_rows(
    cli: Cli, refused: Cli, trained: Any, tmp_path: Path
) -> None:
    """They have one key, so only the check of their own file tells training rows and test rows apart."""
    rows, held = (np.pad(x, ((0, 0), (1, 0)), constant_values=3e4) for x in (A, HELD))
    file_of(tmp_path / "a.h5", train=rows, test=held)
    for name in ("a", "b"):
        trained("a.h5", name)
    assert cli("evaluate", "a").status == 0
    compare = ["compare", "a.h5", "--methods", "noisy-gd:steps=3", "--eps", "3", "--seeds", "2", "--jobs", "1"]
    assert cli(*compare, "--out", "c").status == 0
    file_of(tmp_path / "b.h5", train=-rows, test=rows[:40])
    refused(cli("train", "b.h5", *FEW, "--out", "d"), 4, ["of the rows of group test of b.h5", "private in"])


USES = {
    "evaluate": ("evaluate", "run", "--calibrate", "public.h5"),
    "predict": ("predict", "run", "private.h5", "--calibrate", "public.h5"),
    "export": ("export", "run", "--to", "onnx", "--calibrate", "public.h5", "--out", "out.onnx"),
    "refine": ("refine", "run", "rows.h5", "--out", "out"),
    "unlabelled": ("train", "private.h5", *FEW, "--unlabelled", "rows.h5", "--out", "out"),
    "public": ("train", "private.h5", *PUBLIC, "--public", "public.h5", "--out", "out"),
}


@pytest.mark.parametrize("use", USES)
def test_other_rows_of_a_private_person_are_private(
    cli: Cli, refused: Cli, own_books: Path, trained: Any, tmp_path: Path, use: str
) -> None:
    file_of(tmp_path / "private.h5", {"train": people("p")}, train=A, test=HELD)
    strangers = people("someone")
    for name, owner in (("public.h5", people("p", 40)), ("stranger.h5", people("new", 40))):
        file_of(tmp_path / name, {"train": strangers, "public": owner}, train=B, public=C[:40])
    for name, owner in (("rows.h5", people("p", 40)), ("stranger rows.h5", people("new", 40))):
        file_of(tmp_path / name, {"rows": owner}, rows=C[40:80])
    trained("private.h5", "run", "--unit", "owner", "--centre", "auto", "--condition", "mean", "--eps", 20)
    words = [*USES[use], *(["--unit", "owner"] if USES[use][0] == "train" else [])]
    refused(cli(*words), 4, ["people"])
    assert not list(tmp_path.glob("out*"))
    swapped = {"public.h5": "stranger.h5", "rows.h5": "stranger rows.h5"}
    assert cli(*[swapped.get(word, word) for word in words]).status == 0
    trained("private.h5", "record", "--unit", "record")
    by_record = ["record" if word == "run" else word for word in USES["evaluate"]]
    (own_books / "key").rename(tmp_path / "key")  # without books, for which the person is still private
    shutil.rmtree(own_books)
    assert cli(*by_record).status == 0


@pytest.mark.parametrize("by_owner", [False, True], ids=["record", "owner"])
@pytest.mark.parametrize("way", ["group", "file", "unlabelled", "refine", "calibrate"])
def test_private_test_rows_are_not_public(
    cli: Cli, refused: Cli, own_books: Path, trained: Any, tmp_path: Path, by_owner: bool, way: str
) -> None:
    owners = {"train": people("p"), "test": people("t", 40), "public": people("t", 40), "rows": people("t", 40)}
    shown, rest = (C[:40], {"rows": owners["rows"]}) if by_owner else (2 * HELD, {})
    hidden = {name: owners[name] for name in ("train", "test")} if by_owner else {}
    within = {"public": shown} if way == "group" else {}
    if by_owner and way in ("group", "file"):  # people with test rows and public rows are bad data, private or not
        within, status = {}, 3
    else:
        status = 4
    unit = ["--unit", "owner"] if by_owner else []
    file_of(tmp_path / "a.h5", hidden, facts={"test_rows": "private"}, train=A, test=HELD, **within)
    public = {"public": owners["public"], "train": people("q")} if by_owner else {}
    file_of(tmp_path / "p.h5", public, train=B, public=shown)
    file_of(tmp_path / "u.h5", rest, rows=shown)
    if way in ("refine", "calibrate"):
        trained("a.h5", "run", *unit)
    words = {
        "group": ["train", "a.h5", *PUBLIC, *unit, *(["--public", "p.h5"] if by_owner else []), "--out", "out"],
        "file": ["train", "a.h5", *PUBLIC, *unit, "--public", "p.h5", "--out", "out"],
        "unlabelled": ["train", "a.h5", *FEW, *unit, "--unlabelled", "u.h5", "--out", "out"],
        "refine": ["refine", "run", "u.h5", "--out", "out"],
        "calibrate": ["predict", "run", "a.h5", "--calibrate", "p.h5"],
    }[way]
    refused(cli(*words), status, ["in test and in train or public" if status == 3 else "private test rows"])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("hidden", ["train", "test", "owner"])
def test_public_rows_are_not_private_in_their_own_file(cli: Cli, refused: Cli, tmp_path: Path, hidden: str) -> None:
    unit = ["--unit", "owner"] if hidden == "owner" else []
    file_of(tmp_path / "a.h5", {"train": people("p")} if unit else {}, train=A, test=HELD)
    rows = {"train": 2 * B[:40], "test": C[:40], "owner": C[80:120]}[hidden]
    owners = {"train": people("q"), "test": people("r", 40)} if unit else {}
    for name, who, shown in (("bad.h5", "q", rows), ("good.h5", "s", C[40:80])):
        whose = owners | {"public": people(who, 40)} if unit else {}
        file_of(tmp_path / name, whose, facts={"test_rows": "private"}, train=B, test=C[:40], public=shown)
    words = ["train", "a.h5", *PUBLIC, *unit, "--out", "out", "--public"]
    said = {"train": "of its group train", "test": "holds private test rows", "owner": "a person is private or public"}
    refused(cli(*words, "bad.h5"), 4, ["bad.h5", said[hidden]])
    assert not (tmp_path / "out").exists()
    assert cli(*words, "good.h5").status == 0
    if hidden != "owner":  # whether people are the unit of another file is not known here
        calibrate = ["predict", "out", "a.h5", "--calibrate"]
        refused(cli(*calibrate, "bad.h5"), 4, ["bad.h5", said[hidden]])
        file_of(tmp_path / "new.h5", facts={"test_rows": "private"}, train=B, test=C[:40], public=C[80:120])
        assert cli(*calibrate, "new.h5").status == 0


def test_a_comparison_with_public_rows_that_a_book_protects_spends_nothing(
    cli: Cli, refused: Cli, trained: Any, tmp_path: Path
) -> None:
    file_of(tmp_path / "a.h5", train=A, test=HELD)
    file_of(tmp_path / "b.h5", train=B, test=C[:40])
    file_of(tmp_path / "c.h5", train=C, test=HELD)
    trained("b.h5", "b")
    words = ("--methods", "noisy-gd", "--eps", "3", "--delta", "1e-5", "--no-baselines", "--jobs", "1", "--out", "out")
    for more in ((), ("--dry-run",)):
        refused(
            cli("compare", "a.h5", "--public", "none", "--public", "b.h5", *words, *more),
            4,
            ["are private in "],
        )
        assert not (tmp_path / "out").exists()
    assert spent(cli, "a.h5")["runs"] == 0
    kept = ("compare", "b.h5", *words[:-1], "kept")
    assert cli(*kept, "--seeds", "1").status == 0
    trained("c.h5", "c")
    refused(cli("compare", "b.h5", *words, "--dry-run"), 4, ["group test of b.h5", "are private in "])
    before = {path: path.read_bytes() for path in Path("kept").rglob("*.*") if path.is_file()}
    refused(cli(*kept, "--seeds", "2"), 4, ["group test of b.h5", "are private in "])
    assert {path: path.read_bytes() for path in Path("kept").rglob("*.*") if path.is_file()} == before


def test_the_dry_run_of_a_comparison_counts_the_runs_on_public_rows_that_it_protects(cli: Cli, tmp_path: Path) -> None:
    file_of(tmp_path / "a.h5", train=A, test=HELD)
    file_of(tmp_path / "b.h5", train=B, test=HELD)
    file_of(tmp_path / "p.h5", train=C[:40], test=HELD)
    shared = ("--public", "p.h5", "--eps", "3", "--delta", "1e-5")
    assert cli("train", "b.h5", "--method", "fully-private", *shared, "--out", "b").status == 0
    words = ("compare", "a.h5", "--methods", "fully-private", *shared, "--seeds", "1", "--no-baselines", "--jobs", "1",
             "--out", "compared", "--json")  # fmt: skip
    told = result_of(cli(*words, "--dry-run"))["together"]
    assert cli(*words).status == 0
    found = spent(cli, "a.h5")
    assert (told["runs"], told["epsilon"]) == (found["runs"], found["epsilon"]) == (2, pytest.approx(TWO, rel=1e-4))


def test_a_row_that_becomes_public_between_the_check_and_the_charge_is_refused(
    cli: Cli, refused: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file_of(tmp_path / "a.h5", train=A, test=HELD)
    file_of(tmp_path / "b.h5", train=B, test=HELD)
    charge = RunCharge.budget

    def meanwhile(self: RunCharge, plan: Any) -> None:
        monkeypatch.setattr(RunCharge, "budget", charge)
        assert cli("train", "a.h5", *PUBLIC, "--public", "b.h5", "--out", "other").status == 0
        charge(self, plan)

    monkeypatch.setattr(RunCharge, "budget", meanwhile)
    refused(cli("train", "b.h5", *FEW, "--out", "run"), 4, ["were public in "])
    assert not (tmp_path / "run").exists()
    assert (spent(cli, "a.h5")["runs"], spent(cli, "b.h5")["runs"]) == (1, 0)


def test_test_rows_that_become_public_before_their_release_are_refused(
    cli: Cli, refused: Cli, trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file_of(tmp_path / "a.h5", train=A, test=HELD)
    file_of(tmp_path / "new.h5", facts={"test_rows": "private"}, train=B, test=C[:60])
    file_of(tmp_path / "shown.h5", rows=C[:60])
    trained("a.h5", "run")
    charge = predict.charge_entry

    def meanwhile(*given: Any) -> None:
        assert cli("refine", "run", "shown.h5", "--out", "refined").status == 0
        charge(*given)

    monkeypatch.setattr(predict, "charge_entry", meanwhile)
    refused(cli("evaluate", "run", "new.h5", "--epsilon", "1"), 4, ["were public in "])


@pytest.mark.parametrize("order", [("seeded", "tested"), ("tested", "seeded")])
def test_a_seeded_run_protects_no_test_rows_and_a_private_run_does(
    cli: Cli, refused: Cli, trained: Any, tmp_path: Path, order: tuple[str, ...]
) -> None:
    file_of(tmp_path / "a.h5", train=A, test=HELD)
    file_of(tmp_path / "hidden.h5", facts={"test_rows": "private"}, train=A, test=HELD)
    words = {"tested": TESTED, "seeded": (*TESTED, *SEEDED)}
    trained("a.h5", "first")
    trained("hidden.h5", "before", *words["seeded"])
    trained("a.h5", "second")
    for name in order:
        trained("hidden.h5", name, *words[name])
    trained("hidden.h5", "not tested")
    refused(cli("train", "a.h5", *FEW, "--out", "out"), 4, ["group test of a.h5", "tested (budget book"])


def test_a_seeded_run_on_test_rows_under_a_cap_is_refused(cli: Cli, refused: Cli, tmp_path: Path) -> None:
    for name, rows in (("a", A), ("b", B)):
        file_of(tmp_path / f"{name}.h5", facts={"test_rows": "private"}, train=rows, test=HELD)
    assert cli("budget", "b.h5", "--set-cap", "5").status == 0
    seeded = ("train", "a.h5", *FEW, *SEEDED)
    refused(cli(*seeded, *TESTED, "--out", "out"), 4, ["cap is epsilon 5, and no epsilon covers"], notes=1)
    assert cli(*seeded, "--out", "not tested").status == 0


def test_the_refusal_names_the_run_without_privacy_that_used_a_row_as_public(
    cli: Cli, refused: Cli, tmp_path: Path
) -> None:
    file_of(tmp_path / "a.h5", train=A, test=HELD)
    file_of(tmp_path / "b.h5", train=B, test=HELD)
    assert cli("train", "b.h5", *PUBLIC, "--public", "a.h5", *SEEDED, "--out", "seeded").status == 0
    refused(cli("train", "a.h5", *FEW, "--out", "out"), 4, ["were public in ", "seeded (budget book"])


@pytest.mark.parametrize("whole", [True, False])
def test_a_book_that_is_a_link_is_read_with_its_folder_or_refused(
    cli: Cli, refused: Cli, own_books: Path, trained: Any, tmp_path: Path, whole: bool
) -> None:
    file_of(tmp_path / "a.h5", train=A, test=HELD)
    file_of(tmp_path / "half.h5", train=A[:100], test=HELD)
    trained("a.h5", "run")
    elsewhere = tmp_path / "elsewhere"
    if whole:
        own_books.rename(elsewhere)
        own_books.symlink_to(elsewhere)
        trained("half.h5", "second")
        assert spent(cli, "half.h5")["epsilon"] == pytest.approx(TWO, abs=1e-4)
        return
    elsewhere.mkdir()
    (path,) = own_books.glob("*.jsonl")
    for moved in (path, keys_file(path)):
        moved.rename(elsewhere / moved.name)
        moved.symlink_to(elsewhere / moved.name)
    for words in (["train", "half.h5", *FEW, "--out", "second"], ["budget", "half.h5"]):
        refused(cli(*words), 3, ["is a link to", "move the book and its row keys back"])


MEETINGS = {
    "a group": ("train", "b.h5", *PUBLIC, "--out", "out"),
    "a group, dry run": ("train", "b.h5", *PUBLIC, "--dry-run", "--out", "out"),
    "a group without noise": ("train", "b.h5", "--method", "only-public", "--out", "out"),
    "a file": ("train", "c.h5", *PUBLIC, "--public", "a.h5", "--out", "out"),
    "a file, with a book by hand": (
        "train",
        "c.h5",
        *PUBLIC,
        "--public",
        "a.h5",
        "--book",
        "own.jsonl",
        "--out",
        "out",
    ),
    "without labels": ("train", "c.h5", *FEW, "--unlabelled", "u.h5", "--out", "out"),
    "refine": ("refine", "other", "u.h5", "--out", "out"),
    "calibrate": ("evaluate", "other", "--calibrate", "b.h5"),
}


@pytest.mark.parametrize("meeting", MEETINGS)
def test_rows_that_are_private_in_another_book_are_not_public(
    cli: Cli, refused: Cli, own_books: Path, trained: Any, tmp_path: Path, meeting: str
) -> None:
    file_of(tmp_path / "a.h5", train=A, test=HELD)
    file_of(tmp_path / "b.h5", train=B, test=HELD, public=np.concatenate([4 * A[7:8], C[150:180]]))
    file_of(tmp_path / "c.h5", train=C[:100], test=HELD)
    file_of(tmp_path / "u.h5", rows=np.concatenate([A[:1], B[:30]]))
    trained("c.h5", "other")
    words = MEETINGS[meeting]
    if meeting == "a group":
        assert cli(*words[:-1], "before").status == 0  # nothing is private yet
        refused(cli("train", "a.h5", *FEW, "--out", "out"), 4, ["some of the private rows", "were public", "move"])
        book_of_public = Path(spent(cli, "b.h5")["book"])
        for path in (book_of_public, keys_file(book_of_public)):
            path.rename(tmp_path / path.name)
    trained("a.h5", "a")
    before = {path: path.read_bytes() for path in own_books.iterdir()}
    refused(cli(*words), 4, ["or of their images or people, are private in ", "(budget book", "move"])
    after = {path: path.read_bytes() for path in own_books.iterdir()}
    assert {path: after[path] for path in before} == before
    assert not (tmp_path / "out").exists()


def test_no_published_figure_tells_that_a_test_row_is_private_in_another_book(
    cli: Cli, refused: Cli, own_books: Path, trained: Any, tmp_path: Path
) -> None:
    """A refinement without its figures would tell as well as with them, so `refine` refuses as `evaluate` does."""
    file_of(tmp_path / "a.h5", train=A, test=HELD)
    file_of(tmp_path / "b.h5", train=np.concatenate([B[1:], HELD[5:6]]), test=C[:40])
    file_of(tmp_path / "u.h5", rows=C[40:80])
    trained("a.h5", "run", "--centre", "auto", "--condition", "mean", "--eps", 20)
    trained("b.h5", "b")
    before = {path: path.read_bytes() for path in own_books.iterdir()}
    refused(cli("evaluate", "run"), 4, ["some of the rows of group test of a.h5", "private in"])
    refused(cli("refine", "run", "u.h5", "--out", "out"), 4, ["some of the rows of group test of a.h5", "private in"])
    assert not list(tmp_path.glob("*out*"))
    assert {path: path.read_bytes() for path in own_books.iterdir()} == before


def test_rows_that_refined_a_run_are_not_private_later(
    cli: Cli, refused: Cli, own_books: Path, trained: Any, tmp_path: Path
) -> None:
    file_of(tmp_path / "a.h5", train=A, test=HELD)
    file_of(tmp_path / "u.h5", rows=C[:40])
    file_of(tmp_path / "later.h5", train=np.concatenate([B, C[:1]]), test=HELD)
    trained("a.h5", "run", "--centre", "auto", "--condition", "mean", "--eps", 20)
    trained("later.h5", "before")
    refused(cli("refine", "run", "u.h5", "--out", "refined"), 4, ["some of the rows of group rows", "budget book"])
    for path in (book := Path(spent(cli, "later.h5")["book"]), keys_file(book)):
        path.unlink()
    assert cli("refine", "run", "u.h5", "--out", "refined").status == 0
    refused(cli("train", "later.h5", *FEW, "--out", "after"), 4, ["some of the private rows", "were public"])
    assert spent(cli, "a.h5")["runs"] == 1


def test_public_rows_may_be_protected_in_one_run_and_public_in_others(
    cli: Cli, own_books: Path, tmp_path: Path
) -> None:
    for name, rows in (("a.h5", A), ("b.h5", B)):
        file_of(tmp_path / name, train=rows, test=HELD, public=C[:40])
    joined = ["--method", "fully-private", "--eps", "3", "--steps", "3", "--delta", "1e-5"]
    for place, (source, words) in enumerate((("a.h5", joined), ("b.h5", PUBLIC), ("a.h5", PUBLIC), ("b.h5", joined))):
        assert cli("train", source, *words, "--out", f"run {place}").status == 0
    assert spent(cli, "a.h5")["shared"][0]["rows"] == 40


def test_rows_without_a_private_run_may_be_public(cli: Cli, own_books: Path, tmp_path: Path) -> None:
    file_of(tmp_path / "a.h5", train=A, test=HELD)
    file_of(tmp_path / "b.h5", train=B, test=HELD)
    assert cli("train", "a.h5", "--method", "non-private", "--out", "a").status == 0
    assert cli("train", "b.h5", *PUBLIC, "--public", "a.h5", "--out", "b").status == 0
    assert cli("train", "a.h5", "--method", "non-private", "--out", "c").status == 0


def test_a_run_that_a_cap_refuses_makes_no_row_public(
    cli: Cli, refused: Callable[..., None], own_books: Path, trained: Any, tmp_path: Path
) -> None:
    file_of(tmp_path / "a.h5", train=A, test=HELD)
    file_of(tmp_path / "b.h5", train=B, test=HELD)
    file_of(tmp_path / "public.h5", train=B[:40])
    words = ["train", "a.h5", *PUBLIC, "--public", "public.h5", "--cap", "0.1", "--out", "no"]
    refused(cli(*words), 4, ["cap", "0.1"], notes=2)
    budgeted = ("--eps", "3", "--delta", "1e-5", "--public", "public.h5", "--out", "no")
    grid = ("tune", "a.h5", "--method", "adamix", "--grid", "steps=2,3", "--cap", "0.1")
    refused(cli(*grid, *budgeted), 4, ["cap", "0.1"], notes=2)
    assert not list(own_books.glob("*.rows"))
    spent(cli, "a.h5", "--set-cap", "0.1")
    refused(cli("compare", "a.h5", "--methods", "adamix:steps=3", "--jobs", "1", *budgeted), 4, ["cap", "0.1"], notes=2)
    assert trained("b.h5", "b")["epsilon"] <= 3


@pytest.mark.parametrize("end", ["stopped before its charge", "refused when it is resumed"])
def test_a_run_that_ends_before_its_charge_makes_no_row_public(
    cli: Cli, refused: Cli, trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    file_of(tmp_path / "a.h5", train=A, test=HELD)
    file_of(tmp_path / "b.h5", train=B, test=HELD)
    file_of(tmp_path / "shown.h5", train=C[:40])
    file_of(tmp_path / "meant.h5", train=B[:40])
    words = ("train", "a.h5", *PUBLIC, "--checkpoint", "0", "--out", "run", "--public")

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunCharge, *(("budget", stop) if end.startswith("stopped") else ("step", stop)))
        assert cli(*words, "meant.h5" if end.startswith("stopped") else "shown.h5").status == 130
    if end.startswith("refused"):
        refused(cli(*words, "meant.h5", "--resume"), 2, ["another"])
    trained("b.h5", "b")
    refused(cli(*words[:-2], "second", "--public", "meant.h5"), 4, ["are private in"])


STARTED = {
    "public": ("train", "second.h5", *PUBLIC, "--centre", "none", "--public", "shown.h5", "--out", "out"),
    "unlabelled": ("train", "second.h5", *FEW, "--unlabelled", "rows.h5", "--out", "out"),
    "test": ("train", "tested.h5", *FEW, "--out", "out"),
    "evaluate": ("evaluate", "{}", "tested.h5"),
    "calibrate": ("evaluate", "{}", "--calibrate", "labelled.h5"),
    "refine": ("refine", "{}", "rows.h5", "--out", "out"),
}


@pytest.mark.parametrize("use", STARTED)
def test_private_rows_of_the_runs_that_a_run_started_from_are_private_without_their_book(
    cli: Cli, refused: Cli, own_books: Path, trained: Any, tmp_path: Path, use: str
) -> None:
    file_of(tmp_path / "first.h5", train=A, test=HELD)
    file_of(tmp_path / "second.h5", train=B, test=C[160:])

    def write(few: Any) -> None:
        file_of(tmp_path / "shown.h5", train=few)
        file_of(tmp_path / "rows.h5", rows=few)
        file_of(tmp_path / "tested.h5", train=C[40:80], test=few)
        file_of(tmp_path / "labelled.h5", train=C[80:120], public=few, test=C[120:160])

    write(A[:40])
    trained("first.h5", "first")
    shutil.rmtree(own_books)
    trained("second.h5", "second", "--init", "first", "--eps", "4")
    trained("second.h5", "third", "--init", "second", "--eps", "6")
    for start in ("second", "third") if "{}" in STARTED[use] else ("first", "second"):
        words = [word.format(start) for word in STARTED[use]]
        words += ["--init", start, "--eps", "8"] if words[0] == "train" else []
        outcome = cli(*words)
        tested = use in ("test", "evaluate")
        refused(
            outcome, 3 if tested else 4, ["training rows", "first.h5", "leak" if not tested else "40 of 40 test rows"]
        )
        assert not list(tmp_path.glob("*out*"))
    for name in ("shown", "rows", "tested", "labelled"):
        (tmp_path / f"{name}.h5").unlink()
    write(C[:40])
    unrelated = cli(*words)
    if use == "refine":
        refused(unrelated, 2, ["not centred"])
    else:
        assert unrelated.status == 0


@pytest.mark.parametrize("loss", ["the folder", "its manifest", "its rows", "a circle"])
def test_a_run_that_started_from_a_lost_run_is_evaluated_with_a_note(
    cli: Cli, own_books: Path, trained: Any, tmp_path: Path, loss: str
) -> None:
    for name, rows in (("first", A), ("second", B)):
        file_of(tmp_path / f"{name}.h5", train=rows, test=HELD)
    file_of(tmp_path / "tested.h5", train=C[40:80], test=A[:40])
    trained("first.h5", "first")
    shutil.rmtree(own_books)
    trained("second.h5", "second", "--init", "first", "--eps", "4")
    if loss == "the folder":
        shutil.rmtree(tmp_path / "first")
    elif loss == "its manifest":
        (tmp_path / "first/manifest.json").write_text("{}")
    elif loss == "its rows":
        (tmp_path / "first.h5").unlink()
    else:
        shutil.rmtree(tmp_path / "first")
        (tmp_path / "first").symlink_to("second")
    outcome = cli("evaluate", "second", "tested.h5")
    assert outcome.status == 0
    told = {"its rows": "first.h5 is not here", "a circle": ""}.get(loss, "first, which run second started from")
    assert told in outcome.stderr


def test_a_default_book_given_by_hand_gets_the_keys_of_the_rows(
    cli: Cli, refused: Cli, own_books: Path, trained: Any, tmp_path: Path
) -> None:
    file_of(tmp_path / "a.h5", train=A, test=HELD)
    file_of(tmp_path / "b.h5", train=B, test=HELD)
    file_of(tmp_path / "c.h5", train=B[:50], test=HELD)
    trained("a.h5", "a")
    trained("b.h5", "b", "--book", spent(cli, "a.h5")["book"])
    for source in ("a.h5", "b.h5", "c.h5"):
        found = spent(cli, source)
        assert (found["runs"], found["epsilon"]) == (2, pytest.approx(TWO, rel=1e-5))
    told = ["4.46", "2 runs on these rows count"]
    refused(cli("train", "c.h5", *FEW, "--cap", "3.5", "--out", "c"), 4, told, notes=1)


def with_private_test_rows(cli: Cli, tmp_path: Path) -> Path:
    """Run `a.h5` and `b.h5`, which share private test rows only; returns the book of the first."""
    for name, rows in (("a", A), ("b", B)):
        file_of(tmp_path / f"{name}.h5", facts={"test_rows": "private"}, train=rows, test=HELD)
        assert cli("train", f"{name}.h5", *FEW, "--test-epsilon", "0.5", "--out", name).status == 0
    return Path(next(entry["book"] for entry in spent(cli, "a.h5")["entries"] if Path(entry["name"]).name == "a"))


LOSSES: dict[str, Callable[[Path, Path], Any]] = {
    "the keys": lambda path, old: keys_file(path).unlink(),
    "new keys": lambda path, old: shutil.copy(old, keys_file(path)),
    "the book": lambda path, old: path.unlink(),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_lost_and_old_keys_are_refused(
    cli: Cli, refused: Cli, own_books: Path, tmp_path: Path, loss: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("linprobe.accounting.row_keys.PAUSE", 0.0)  # no other process writes them meanwhile
    path = with_private_test_rows(cli, tmp_path)
    kept = {one: one.read_bytes() for one in own_books.iterdir()}
    keys = read_keys(keys_file(path))
    other = Account(tmp_path / "old.jsonl", RowKeys(rows=keys.rows[:N]))
    with other.charging():
        LOSSES[loss](path, keys_file(other.path))
    words = (["budget", "a.h5"], ["budget", "b.h5"], ["train", "b.h5", *FEW, "--test-epsilon", "0.5", "--out", "c"])
    made_anew = loss == "the keys"  # by `budget a.h5`, which reads all rows that the keys are of
    for one in words[made_anew:]:
        refused(cli(*one), 3, ["row keys", keys_file(path).name, "restore"])
    assert not (tmp_path / "c").exists()
    if made_anew:
        assert spent(cli, "a.h5")["runs"] == 2
        assert keys_file(path).read_bytes() == kept[keys_file(path)]
    for one, content in kept.items():
        one.write_bytes(content)
    assert spent(cli, "b.h5")["runs"] == 2


def test_lost_keys_of_training_rows_are_made_anew(cli: Cli, own_books: Path, trained: Any, tmp_path: Path) -> None:
    file_of(tmp_path / "a.h5", train=A, test=HELD)
    trained("a.h5", "a")
    beside = keys_file(Path(spent(cli, "a.h5")["book"]))
    before = beside.read_bytes()
    beside.unlink()
    assert spent(cli, "a.h5")["runs"] == 1
    assert beside.read_bytes() == before


@pytest.mark.parametrize(
    "writes", ["linprobe.accounting.row_keys.state_keys", "linprobe.accounting.row_keys._write_keys"]
)
@pytest.mark.parametrize("grown", [False, True], ids=["first keys", "more keys"])
def test_a_crash_between_keys_and_their_digest_is_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: str, grown: bool
) -> None:
    path, entry = tmp_path / "a.jsonl", Entry("a", "a", "noisy-gd", "record", True, 1e-5, (Releases("g", 9.0, 1.0, 5),))
    one, two = (RowKeys(rows=np.arange(n, dtype=np.uint64)) for n in (5, 9))
    if grown:
        with Account.at(path, one).charging():
            book.charge(path, entry)
    for _ in range(3):
        with monkeypatch.context() as patch:

            def killed(*_: object) -> None:
                raise KeyboardInterrupt

            patch.setattr(writes, killed)
            with pytest.raises(KeyboardInterrupt), Account.at(path, two).charging():
                pass
    torn = tmp_path / ".a.rows.0123abcd.partial"
    torn.touch()
    for _ in range(2):
        with Account.at(path, two).charging():
            book.charge(path, entry)
    assert not torn.exists()
    assert np.array_equal(read_keys(keys_file(path)).rows, two.rows)
    assert len(read_book(path).keys) == 1


def test_an_old_copy_of_all_books_is_named(cli: Cli, own_books: Path, trained: Any, tmp_path: Path) -> None:
    file_of(tmp_path / "a.h5", train=A, test=HELD)
    trained("a.h5", "a")
    shutil.copytree(own_books, tmp_path / "copy")
    trained("a.h5", "b")
    assert spent(cli, "a.h5")["not_recorded"] == []
    shutil.rmtree(own_books)
    (tmp_path / "copy").rename(own_books)
    found = spent(cli, "a.h5")
    assert (found["runs"], found["not_recorded"]) == (1, [str(tmp_path / "b")])
    outcome = cli("budget", "a.h5")
    assert f"runs missing from the budget books, or recorded in part: {tmp_path / 'b'};" in outcome.stderr
    assert "no budget book" in cli("report", "b", "--html", "b.html").stderr


def test_many_processes_charge_one_book_with_keys(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    release = Releases("gradient", 50.0, 1.0, 1)
    assert len(spending([]).epsilon_by_unit) == 1  # imports before the processes part

    def work(number: int) -> int:
        for place in range(8):
            rows = np.array([number * 8 + place], dtype=np.uint64)
            with Account.at(path, RowKeys(rows=rows)).charging():
                book.charge(path, Entry(f"{number} {place}", "run", "noisy-gd", "record", True, 1e-5, (release,)))
        return 0

    children = [start_copy(lambda number=number: work(number)) for number in range(8)]
    assert [ended(child) for child in children] == [0] * 8
    entries = read_book(path).counted
    assert {entry.run for entry in entries} == {f"{number} {place}" for number in range(8) for place in range(8)}
    assert np.array_equal(read_keys(keys_file(path)).rows, np.arange(64))
    assert spending(entries).gdp_mu == pytest.approx(64**0.5 / 50)


@pytest.mark.parametrize("same", ["name", "half", "half precision", "order", "one row"])
def test_a_copy_of_the_rows_counts_together(cli: Cli, own_books: Path, trained: Any, tmp_path: Path, same: str) -> None:
    file_of(tmp_path / "a.h5", train=A, test=HELD)
    trained("a.h5", "a")
    rows = {"half": 0.5 * A, "half precision": A.astype(np.float16), "order": A[::-1].copy(), "one row": A[:1]}
    if same == "name":
        (tmp_path / "a.h5").rename(tmp_path / "b.h5")
    else:
        more = B[:8] if same == "one row" else B[:0]
        file_of(tmp_path / "b.h5", train=np.concatenate([rows[same], more]), test=HELD)
    assert spent(cli, "b.h5")["runs"] == 1


def test_records_and_people_of_overlapping_files_are_one_account(
    cli: Cli, own_books: Path, trained: Any, tmp_path: Path
) -> None:
    file_of(tmp_path / "a.h5", {"train": people("p")}, train=A, test=HELD)
    file_of(tmp_path / "b.h5", {"train": people("p")}, train=np.concatenate([A[:20], B[20:]]), test=HELD)
    trained("a.h5", "a", "--unit", "record")
    trained("b.h5", "b", "--unit", "owner")
    found = spent(cli, "b.h5")
    assert (found["runs"], found["unit"], found["epsilon_by_unit"]["owner"]) == (2, "record", None)
    assert found["epsilon"] == pytest.approx(7.66505, rel=1e-5)  # a run by owner is two for a record: mu^2 = 4 + 1


def test_test_rows_that_were_private_in_another_run_are_not_measured(
    cli: Cli, refused: Cli, own_books: Path, trained: Any, tmp_path: Path
) -> None:
    for name, test, facts in (("a", HELD, {}), ("b", A[:40], {}), ("c", A[:40], {"test_rows": "private"})):
        file_of(tmp_path / f"{name}.h5", facts=facts, train=A if name == "a" else B, test=test)
    trained("a.h5", "a")
    for words in (FEW, ["--method", "non-private"], [*FEW, "--dry-run"]):
        refused(
            cli("train", "b.h5", *words, "--out", "b"),
            4,
            ["some of the rows of group test of b.h5, or of their images"],
            notes="non-private" in words,
        )
    refused(cli("evaluate", "a", "b.h5"), 3, ["40 of 40 test rows equal training rows of a.h5"])
    file_of(tmp_path / "other.h5", train=C, test=HELD)
    trained("other.h5", "other")
    refused(cli("evaluate", "other", "b.h5"), 4, ["some of the rows of group test of b.h5, or of their images"])
    file_of(tmp_path / "later.h5", train=HELD)
    trained("later.h5", "later")
    refused(cli("evaluate", "other"), 4, ["some of the rows of group test of other.h5, or of their images"])
    trained("c.h5", "c", "--test-epsilon", "0.5")
    assert spent(cli, "a.h5")["runs"] == 2


def test_public_rows_without_a_class_are_named(cli: Cli, tmp_path: Path) -> None:
    file_of(tmp_path / "a.h5", train=A, test=HELD)
    said = "public rows have 2 of 4 classes"
    for n_rows, named in ((2, True), (6, False), (8, False)):
        file_of(tmp_path / f"{n_rows}.h5", train=B[:n_rows])
        words = ["train", "a.h5", *PUBLIC, "--public", f"{n_rows}.h5", "--out", f"run {n_rows}"]
        assert (said in cli(*words, "--dry-run").stderr) == (said in cli(*words).stderr) == named
