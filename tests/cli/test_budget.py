"""`linprobe budget`, caps and books on the command line: everything that spends is written before its result."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from linprobe.accounting.accountants import GAUSSIAN
from linprobe.accounting.book import read_book, refuse_above
from linprobe.accounting.events import Releases
from linprobe.accounting.figures import epsilon_of, rounded_up
from linprobe.accounting.row_keys import books_folder
from linprobe.data.feature_file import FeatureFile
from linprobe.data.feature_writer import FeatureWriter
from linprobe.errors import LinprobeError
from linprobe.training import train
from linprobe.training.charge import existing_book
from tests.cli.outcomes import NOISY, Cli, result_of
from tests.conftest import mostly_nightly
from tests.hostile.runs import sealed
from tests.planted import no_locks
from tests.processes import ended, start_copy

FEW = [*NOISY, "--centre", "none", "--steps", "3"]


def books(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.jsonl"))


def spent(cli: Cli, source: Path, *words: object) -> dict[str, Any]:
    return result_of(cli("budget", source, "--json", *words))


def test_two_runs_cost_more_than_one_and_less_than_twice_as_much(
    cli: Cli, features_file: Path, own_books: Path
) -> None:
    first = cli("train", features_file, *FEW, "--out", "a")
    assert "these rows" not in first.stderr
    second = cli("train", features_file, *FEW, "--out", "b", "--json")
    found = spent(cli, features_file)
    (line,) = second.stderr.splitlines()
    assert line.startswith("2 runs on these rows together cost epsilon 4.46")
    assert (found["runs"], found["cap"], found["unit"]) == (2, None, "record")
    mu = result_of(second)["gdp_mu"] * 2**0.5
    assert found["gdp_mu"] == pytest.approx(mu, rel=1e-12)
    assert found["epsilon"] == pytest.approx(epsilon_of(mu, 1e-5), rel=1e-9)
    assert 3 < found["epsilon"] < 6
    assert [entry["name"] for entry in found["entries"]] == [str(Path(name).absolute()) for name in "ab"]
    assert found["book"] == str(books(own_books)[0])
    for path in own_books.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(own_books.stat().st_mode) == 0o700
    assert spent(cli, books(own_books)[0]) == found
    shown = cli("budget", features_file)
    assert shown.stdout == "4.46343\n"
    assert shown.stderr.count("noisy-gd, epsilon 3 at delta 1e-05") == 2


def test_methods_that_read_no_private_row_are_not_in_the_book(cli: Cli, features_file: Path, own_books: Path) -> None:
    assert cli("train", features_file, "--method", "only-public", "--out", "a").status == 0
    assert books(own_books) == []
    assert spent(cli, features_file)["epsilon"] == 0


def test_a_book_names_the_file_where_it_was_opened_and_not_in_the_folder_of_another_process(
    features_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(features_file.parent)
    with FeatureFile(Path(features_file.name)) as features:
        monkeypatch.chdir(tmp_path)
        account = existing_book(features, tmp_path / "book.jsonl")
    assert account is not None
    assert account.features == str(features_file.resolve())


def test_a_question_writes_nothing(cli: Cli, features_file: Path, own_books: Path) -> None:
    found = spent(cli, features_file)
    assert (found["book"], found["runs"], found["epsilon"], found["entries"]) == (None, 0, 0, [])
    outcome = cli("budget", features_file)
    assert (outcome.status, outcome.stdout) == (0, "0\n")
    assert "no budget book yet" in outcome.stderr
    assert f"no book of these rows in {own_books}, so nothing is known to be spent; another user" in outcome.stderr
    assert "unit of privacy" not in outcome.stderr
    assert not own_books.exists()


def test_runs_without_privacy_are_counted_apart(cli: Cli, features_file: Path) -> None:
    assert cli("train", features_file, "--method", "non-private", "--out", "a").status == 0
    assert cli("train", features_file, *FEW, "--noise-seed", 1, "--insecure-seed", "--out", "b").status == 0
    for name in "ab":
        said = cli("report", name, "--html", f"{name}.html").stderr
        assert "no epsilon covers the recorded runs on these rows (2); this run: no epsilon holds (budget book" in said
    third = cli("train", features_file, *FEW, "--out", "c")
    assert (
        "this run costs epsilon 3 at delta 1e-05 for a record, and no epsilon covers 2 runs without privacy"
        in third.stderr
    )
    found = spent(cli, features_file)
    assert (found["runs"], found["not_private_runs"], found["not_recorded"]) == (1, 2, [])
    assert found["epsilon"] <= 3
    assert "no epsilon covers 2 runs without privacy on these rows" in cli("budget", features_file).stderr


def test_a_cap_refuses_before_training_and_leaves_nothing(
    cli: Cli, refused: Cli, features_file: Path, tmp_path: Path
) -> None:
    assert cli("train", features_file, *FEW, "--cap", "3", "--out", "a").status == 0
    with mock.patch("linprobe.training.execute.prepare_shard", side_effect=AssertionError("a row was read")):
        told = ["cap is epsilon 4.4", "4.46", "give a smaller --eps, or raise the cap"]
        refused(cli("train", features_file, *FEW, "--cap", "4.4", "--out", "b"), 4, told)
        told = ["cap is epsilon 2 ", "no epsilon is small enough: use other rows, or raise the cap"]
        refused(cli("train", features_file, *FEW, "--cap", "2", "--out", "b"), 4, told)
        found = spent(cli, features_file, "--set-cap", "4.4")
        assert (found["cap"], found["cap_delta"], found["runs"]) == (4.4, 1e-5, 1)
        refused(cli("train", features_file, *FEW, "--out", "b"), 4, ["cap is epsilon 4.4", "nothing was spent"])
        refused(cli("train", features_file, "--method", "non-private", "--out", "b"), 4, ["no epsilon covers"], notes=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a"]
    assert cli("train", features_file, *FEW, "--cap", "9", "--out", "b").status == 4  # the smaller cap counts
    above = ["set-cap is epsilon 4.5", "at most the cap of epsilon 4.4", "under which 1 run began;", "--raise-cap"]
    refused(cli("budget", features_file, "--set-cap", "4.5"), 4, above)
    refused(cli("budget", features_file, "--raise-cap"), 2, ["without --set-cap"])
    assert spent(cli, features_file)["cap"] == 4.4
    raised = spent(cli, features_file, "--set-cap", "4.5", "--raise-cap")
    assert (raised["cap"], raised["cap_raised_from"], raised["cap_runs"]) == (4.5, 4.4, 1)
    assert "the first cap, epsilon 4.4, was raised after runs" in cli("budget", features_file).stderr
    assert cli("train", features_file, *FEW, "--out", "b").status == 0


def test_a_cap_allows_every_plan_that_the_length_of_a_private_mean_may_choose(
    cli: Cli, refused: Cli, private_file: Path
) -> None:
    words = ("train", private_file, *NOISY, "--condition", "mean")
    costs = []
    for plan in result_of(cli(*words, "--out", "a", "--dry-run", "--json"))["plans"]:
        mu = sum(one["count"] / one["noise_multiplier"] ** 2 for one in plan["releases"]) ** 0.5
        costs.append(epsilon_of(mu, 1e-5))
    first, other = costs
    assert first < other <= 3
    between = ("--cap", f"{(first + other) / 2:.17g}", "--out", "a")
    refused(cli(*words, *between), 4, ["cap is epsilon", "nothing was spent"])
    refused(cli(*words, *between, "--dry-run"), 4, ["cap is epsilon", "nothing was spent"])
    assert spent(cli, private_file, "--set-cap", (first + other) / 2)["cap"]
    several = ("compare", private_file, "--methods", "noisy-gd:condition=mean", "--eps", "3", "--seeds", "1")
    refused(cli(*several, "--no-baselines", "--out", "c", "--dry-run"), 4, ["cap is epsilon", "nothing was spent"])
    assert spent(cli, private_file, "--set-cap", 3)["cap"] == 3
    assert cli(*several, "--no-baselines", "--out", "c", "--dry-run").status == 0
    assert cli(*words, "--out", "a").status == 0


def test_compare_refuses_before_its_first_run_what_all_runs_would_cost(
    cli: Cli, refused: Cli, features_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare = ("compare", features_file, "--methods", "noisy-gd:steps=3", "--eps", "1", "--out", "c", "--jobs", "1")
    assert spent(cli, features_file, "--set-cap", 2)["cap"] == 2
    bare = ("--no-baselines", "--seeds")
    for dry in ((), ("--dry-run",)):
        refused(cli(*compare, *bare, 4, *dry), 4, ["0 runs on these rows", "with 4 of the planned runs", "--seeds"])
        refused(cli(*compare, "--seeds", 1, *dry), 4, ["no epsilon covers"], notes=1)
    assert (spent(cli, features_file)["runs"], (tmp_path / "c").exists()) == (0, False)

    def beside_another(*given: Any) -> Any:
        made.append(given)
        if len(made) == 2:  # another process spends
            assert cli("train", features_file, "--method", "noisy-gd", "--eps", "1.5", "--out", "b").status == 0
        return train.train_on(*given)

    made: list[Any] = []
    monkeypatch.setattr("linprobe.evaluation.compare.train_on", beside_another)
    outcome = cli(*compare, *bare, 3)
    assert outcome.status == 4
    assert "1 run of this command cost epsilon 1 " in outcome.stderr
    assert "finished runs are kept in c/runs" in outcome.stderr


def test_a_cap_may_change_before_the_first_run_and_fall_after_it(cli: Cli, features_file: Path) -> None:
    assert [spent(cli, features_file, "--set-cap", cap)["cap"] for cap in (3, 8, 4)] == [3, 8, 4]
    assert cli("train", features_file, *FEW, "--cap", "3.5", "--out", "a").status == 0
    found = spent(cli, features_file, "--set-cap", "3.5")
    assert (found["cap"], found["cap_runs"], found["cap_raised_from"]) == (3.5, 1, None)
    assert [entry["cap"] for entry in found["entries"]] == [3.5]
    reached = "these runs reach the cap, so every further one is refused"
    assert reached not in cli("budget", features_file).stderr
    assert reached in cli("budget", features_file, "--set-cap", "2").stderr


def test_a_cap_that_earlier_runs_did_not_have_says_so(cli: Cli, features_file: Path) -> None:
    assert cli("train", features_file, *FEW, "--cap", "5", "--out", "a").stderr.count("--cap") == 0
    same = cli("train", features_file, *FEW, "--cap", "5", "--out", "b")
    assert "promises nothing" not in same.stderr
    other = cli("train", features_file, *FEW, "--cap", "9", "--out", "c")
    assert other.status == 0
    assert "--cap 9 at delta 1e-05 for a record was not the cap of every earlier run" in other.stderr
    assert [entry["cap"] for entry in spent(cli, features_file)["entries"]] == [5, 5, 9]
    words = ("train", features_file, *FEW, "--cap", "6", "--book", "looser.jsonl", "--out")
    assert "promises nothing" not in cli(*words, "d", "--delta", "1e-3").stderr
    assert "--cap 6 at delta 1e-05 for a record was not the cap" in cli(*words, "e").stderr
    found = spent(cli, features_file, "--set-cap", "9")
    assert (found["cap_runs"], found["cap_raised_from"]) == (3, None)
    assert "the cap was set after 3 runs" in cli("budget", features_file).stderr


def test_the_book_of_the_rows_is_found_under_other_labels_ids_and_order(
    cli: Cli, features_file: Path, tmp_path: Path
) -> None:
    assert cli("train", features_file, *FEW, "--out", "a").status == 0
    with FeatureFile(features_file) as features, FeatureWriter(tmp_path / "other.h5", features.description) as writer:
        for group in ("train", "test"):
            (rows, _), *_ = features.blocks(group)
            n = len(rows)
            ids = [f"new {group} {place}" for place in range(n)]
            writer.write_group(group, n, rows.shape[1], [rows[::-1]], np.zeros(n, dtype=int), ids)
    assert spent(cli, tmp_path / "other.h5")["runs"] == 1
    assert cli("train", features_file, *FEW, "--public-shots", "2", "--out", "b").status == 0
    assert spent(cli, tmp_path / "other.h5")["runs"] == 2


def times(factor: float, source: Path, out: Path) -> Path:
    """A feature file with the rows of another one times a factor."""
    with FeatureFile(source) as features, FeatureWriter(out, features.description) as writer:
        for group, size in features.sizes.items():
            rows = np.concatenate([rows for rows, _ in features.blocks(group)])
            ids = features.ids(group)
            writer.write_group(group, size, rows.shape[1], [np.float32(factor) * rows], features.labels(group), ids)
    return out


def appended(source: Path, out: Path) -> Path:
    """The rows of a feature file, and one more training row."""
    with FeatureFile(source) as features, FeatureWriter(out, features.description) as writer:
        for group, size in features.sizes.items():
            rows = np.concatenate([rows for rows, _ in features.blocks(group)])
            ids, labels = [*features.ids(group)], features.labels(group)
            if group == "train":
                rows, labels = np.concatenate([rows, rows[:1, ::-1]]), np.append(labels, labels[0])
                ids, size = [*ids, "one more"], size + 1
            writer.write_group(group, size, rows.shape[1], [rows], labels, ids)
    return out


def test_a_rescaled_file_has_the_book_of_its_rows(
    cli: Cli, refused: Cli, features_file: Path, own_books: Path, tmp_path: Path
) -> None:
    assert cli("train", features_file, *FEW, "--out", "a").status == 0
    for factor in (4, 2.0**-20):
        other = times(factor, features_file, tmp_path / f"{factor}.h5")
        assert spent(cli, other)["runs"] == 1
        refused(
            cli("train", other, *FEW, "--cap", "3.5", "--out", "b"),
            4,
            ["1 run on these rows counts as epsilon 3"],
        )
    assert spent(cli, times(3, features_file, tmp_path / "3.h5"))["runs"] == 0
    assert len(books(own_books)) == 1


def as_format_1(book: Path, out: Path) -> Path:
    """Write a book as 0.2.0 did."""
    _, *lines = book.read_text().splitlines(keepends=True)
    made = [line for line in lines if '"keys"' not in line and '"finished"' not in line]
    out.write_text("".join(['{"book": 1}\n', *made]))
    return out


def named_in_0_2_0(rows: np.ndarray, key: bytes) -> str:
    """The name that 0.2.0 gave to the book of some rows."""
    digests = [
        hashlib.blake2b((row.astype(np.float16) + np.float16(0)).tobytes(), key=key, digest_size=32) for row in rows
    ]
    total = np.sum([np.frombuffer(one.digest(), dtype=np.uint64) for one in digests], axis=0, dtype=np.uint64)
    content = total.tobytes() + str(len(rows)).encode()
    return hashlib.blake2b(content, key=key, digest_size=16).hexdigest() + ".jsonl"


def test_a_book_of_0_2_0_counts_as_a_book_that_was_given(
    cli: Cli, refused: Cli, features_file: Path, own_books: Path, tmp_path: Path
) -> None:
    assert cli("train", features_file, *FEW, "--out", "a").status == 0
    (book,) = books(own_books)
    old = as_format_1(book, tmp_path / "old.jsonl")
    shutil.rmtree(own_books)
    assert spent(cli, old)["runs"] == 1
    refused(cli("train", features_file, *FEW, "--book", old, "--cap", "4.4", "--out", "b"), 4, ["cap", "4.46"])
    assert cli("train", features_file, *FEW, "--book", old, "--out", "b").status == 0
    assert spent(cli, old)["runs"] == 2
    old.write_text(old.read_text().replace('{"book": 1}', '{"book": 3}', 1))
    refused(cli("budget", old), 3, ["line 1", "is not format 1 or 2", "restore the file from a copy"])


def test_a_default_book_of_0_2_0_counts_once_its_file_is_opened(
    cli: Cli, refused: Cli, private_file: Path, own_books: Path, tmp_path: Path
) -> None:
    assert cli("train", private_file, *FEW, "--out", "a").status == 0
    (book,) = books(own_books)
    with FeatureFile(private_file) as features:
        rows = np.concatenate([rows for rows, _ in features.blocks("train")])
    old = as_format_1(book, own_books / named_in_0_2_0(rows, bytes.fromhex((own_books / "key").read_text())))
    for path in (book, book.with_suffix(".rows")):
        path.unlink()
    assert "without row keys" in cli("train", private_file, *FEW, "--out", "b", "--dry-run").stderr
    refused(cli("train", private_file, *FEW, "--cap", "4.4", "--out", "b"), 4, ["without row keys", old.name])
    found = spent(cli, private_file)
    assert (found["runs"], found["not_compared"]) == (1, 0)
    refused(cli("train", private_file, *FEW, "--cap", "4.4", "--out", "b"), 4, ["1 run on these rows", "4.46"])
    assert cli("train", private_file, *FEW, "--out", "b").status == 0
    assert spent(cli, private_file)["runs"] == 2


def test_a_cap_counts_runs_of_its_own_book_as_begun_under_it(
    cli: Cli, refused: Cli, features_file: Path, tmp_path: Path
) -> None:
    assert cli("train", features_file, *FEW, "--out", "a").status == 0
    twice = appended(features_file, tmp_path / "more.h5")
    for name in ("b", "c"):
        assert cli("train", twice, *FEW, "--out", name).status == 0
    assert spent(cli, features_file, "--set-cap", "9")["runs"] == 3
    refused(cli("budget", features_file, "--set-cap", "10"), 4, ["under which 1 run began;"])


def test_names_of_books_tell_nothing_without_the_key(
    cli: Cli, features_file: Path, own_books: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert cli("train", features_file, *FEW, "--out", "a").status == 0
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    assert cli("train", features_file, *FEW, "--out", "b").status == 0
    (one,), (two,) = books(own_books), books(tmp_path / "another/linprobe")
    assert one.name != two.name


def test_an_own_book_is_used_by_every_command(cli: Cli, features_file: Path, own_books: Path) -> None:
    book = ["--book", "own.jsonl"]
    assert cli("train", features_file, *FEW, *book, "--out", "a").status == 0
    assert cli("pdp-report", "a", "--publish-epsilon", "0.5", *book).status == 0
    words = ["--methods", "noisy-gd:steps=3", "--eps", "2", "--seeds", "1", "--jobs", "1", "--no-baselines"]
    assert cli("compare", features_file, *words, *book, "--out", "compared").status == 0
    assert spent(cli, Path("own.jsonl"))["runs"] == 2
    assert spent(cli, features_file, *book)["runs"] == 2
    assert books(own_books) == []


def test_a_histogram_is_charged_to_the_book_of_its_run(
    cli: Cli, refused: Cli, run_copy: Path, features_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = spent(cli, features_file)
    assert cli("pdp-report", run_copy, "--publish-epsilon", "0.5").status == 0
    after = spent(cli, features_file)
    assert after["runs"] == before["runs"]
    published = run_copy.with_name(f"{run_copy.name}.published-1")
    manifest = json.loads((published / "manifest.json").read_text())
    (entry,) = (entry for entry in after["entries"] if entry["run"] == manifest["run_id"])
    assert entry["epsilon"] == pytest.approx(manifest["epsilon"], rel=1e-9)
    assert after["epsilon"] > before["epsilon"]
    spent(cli, features_file, "--set-cap", after["epsilon"] + 0.01)
    above = [
        "cap is epsilon",
        f" as epsilon {after['epsilon']:.6g}"[:-2],
        "give a smaller --publish-epsilon, or raise the cap",
    ]
    for words in ((), ("--dry-run",)):
        refused(cli("pdp-report", published, "--publish-epsilon", "0.5", *words), 4, above)
    spent(cli, features_file, "--set-cap", after["epsilon"])  # what the runs cost already
    above[-1] = "no epsilon is small enough: use other rows, or raise the cap"
    refused(cli("pdp-report", published, "--publish-epsilon", "0.5"), 4, above)
    second = run_copy.with_name(f"{run_copy.name}.published-2")
    assert not second.exists()
    new = ["pdp-report", published, "--publish-epsilon", "5", "--book", "new.jsonl"]
    for words in ((), ("--dry-run",)):
        refused(cli(*new, *words), 4, ["is in budget book", "--book is new.jsonl", "leave --book out"])
    with monkeypatch.context() as elsewhere:  # a machine whose books do not know the run
        elsewhere.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
        assert cli(*new).status == 0
        found = spent(cli, Path("new.jsonl"))
        manifest = json.loads((second / "manifest.json").read_text())
        assert found["epsilon"] == pytest.approx(manifest["epsilon"], rel=1e-9)
    assert cli("release", second, "--out", "pub").status == 0
    assert "the budget book lacks releases of this run" in Path("pub/README.md").read_text()
    spent(cli, features_file, "--set-cap", 20, "--raise-cap")
    assert cli("pdp-report", second, "--publish-epsilon", "0.5").status == 0  # counts the other histogram too
    third = json.loads((run_copy.with_name(f"{run_copy.name}.published-3") / "manifest.json").read_text())
    (entry,) = (entry for entry in spent(cli, features_file)["entries"] if entry["run"] == third["run_id"])
    assert entry["epsilon"] == pytest.approx(third["epsilon"], rel=1e-9)


def _histograms(run: Path) -> list[dict[str, Any]]:
    releases = json.loads((run / "manifest.json").read_text())["releases"]
    return [release for release in releases if release["purpose"] == "histogram"]


def test_a_histogram_that_another_machine_counts_is_missed(
    cli: Cli, features_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = ["train", features_file, "--method", "noisy-gd", "--eps", "1", "--centre", "none", "--steps", "1"]
    assert cli(*train, "--out", "run").status == 0
    assert spent(cli, features_file)["not_recorded"] == []
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
        assert cli("pdp-report", "run", "--publish-epsilon", "5", "--book", "new.jsonl").status == 0
    assert spent(cli, features_file)["not_recorded"] == [str(Path("run.published-1").absolute())]
    Path("run.published-1").rename("elsewhere")
    assert cli("pdp-report", "run", "--publish-epsilon", "5").status == 0
    assert cli("train", *train[1:], "--eps", "6", "--init", "elsewhere", "--out", "b").status == 0
    every = [*json.loads(Path("b/manifest.json").read_text())["releases"], *_histograms(Path("run.published-1"))]
    cost = GAUSSIAN.epsilon([Releases(**release) for release in every], 1e-5)
    assert spent(cli, features_file)["epsilon"] == pytest.approx(cost, rel=1e-9)  # both histograms, of equal noise


def test_a_histogram_that_version_0_2_published_is_counted_once(cli: Cli, features_file: Path, own_books: Path) -> None:
    train = ["train", features_file, "--method", "noisy-gd", "--centre", "none", "--steps", "1"]
    assert cli(*train, "--eps", "1", "--out", "run").status == 0
    assert cli("pdp-report", "run", "--publish-epsilon", "0.5").status == 0
    published = Path("run.published-1")
    (histogram,) = json.loads((published / "manifest.json").read_text())["published"]
    (book,) = books(own_books)
    book.write_text(book.read_text().replace(f'"{histogram["what"]}"', '"histogram"'))
    sealed(published, published=[{**histogram, "what": "histogram"}])
    before = spent(cli, features_file)
    assert (before["not_recorded"], '"histogram"' in book.read_text()) == ([], True)
    assert cli("release", published, "--out", "pub").status == 0
    assert "lacks releases" not in Path("pub/README.md").read_text()
    assert cli(*train, "--eps", "3", "--init", published, "--out", "next").status == 0
    stated = json.loads(Path("next/manifest.json").read_text())["epsilon"]
    assert spent(cli, features_file)["epsilon"] == pytest.approx(stated, rel=1e-9)
    assert cli("pdp-report", published, "--publish-epsilon", "0.5").status == 0
    second = json.loads(Path("run.published-2/manifest.json").read_text())
    (entry,) = (one for one in spent(cli, features_file)["entries"] if one["run"] == second["run_id"])
    assert entry["epsilon"] == pytest.approx(second["epsilon"], rel=1e-9)


def test_histograms_of_several_copies_of_a_run_are_said_to_cost_more_than_each_manifest_states(
    cli: Cli, run_copy: Path, features_file: Path
) -> None:
    published, notes = run_copy.with_name(f"{run_copy.name}.published-1"), []
    for number in (1, 2, 3):
        done = cli("pdp-report", run_copy, "--publish-epsilon", "0.5")
        assert done.status == 0
        notes.append(next((line for line in done.stderr.splitlines() if "more of this run" in line), ""))
        published.rename(run_copy.with_name(f"moved-{number}"))
    assert notes[0] == ""
    for number, note in enumerate(notes[1:], start=1):
        assert f" has {number} more of this run" in note
    assert f"cost epsilon {rounded_up(spent(cli, features_file)['epsilon'])} " in notes[2]


def test_a_place_that_cannot_be_written_is_told_before_the_charge(
    cli: Cli, refused: Cli, run_copy: Path, own_books: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "mkdir", read_only)
    before = [path.read_bytes() for path in sorted(own_books.iterdir())]
    refused(cli("pdp-report", run_copy, "--publish-epsilon", "0.5"), 1, ["copied_run.published-1", "cannot be made"])
    assert [path.read_bytes() for path in sorted(own_books.iterdir())] == before


def test_a_histogram_of_a_run_in_no_book_is_refused(cli: Cli, refused: Cli, trained_run: Path, tmp_path: Path) -> None:
    before = (trained_run / "ledger.jsonl").read_bytes()
    refused(cli("pdp-report", trained_run, "--publish-epsilon", "0.5"), 1, ["in no budget book", "--book"])
    assert (trained_run / "ledger.jsonl").read_bytes() == before


def test_a_run_from_seeded_weights_is_refused(cli: Cli, refused: Cli, features_file: Path) -> None:
    assert cli("train", features_file, *FEW, "--noise-seed", "1", "--insecure-seed", "--out", "first").status == 0
    again = ["train", features_file, *FEW, "--eps", "4", "--init", "first", "--out", "second"]
    refused(cli(*again), 4, ["init run first", "not private"])


def test_a_run_from_the_weights_of_another_counts_them_once(cli: Cli, features_file: Path) -> None:
    one_step = ["--method", "noisy-gd", "--centre", "none", "--steps", "1"]
    assert cli("train", features_file, *one_step, "--eps", "1", "--out", "a").status == 0
    assert cli("train", features_file, *one_step, "--eps", "2", "--init", "a", "--out", "b").status == 0
    assert cli("train", features_file, *one_step, "--eps", "3", "--init", "b", "--out", "c").status == 0
    manifest = json.loads(Path("c/manifest.json").read_text())
    assert manifest["epsilon"] > 2.99
    more = ["train", features_file, *one_step, "--eps", "3.5", "--init", "c", "--cap", "3.6", "--out", "d"]
    assert cli(*more, "--dry-run").status == 0
    said = cli(*more)
    assert said.status == 0
    assert "4 runs on these rows together cost epsilon 3.5 " in said.stderr
    manifest = json.loads(Path("d/manifest.json").read_text())
    assert spent(cli, features_file)["epsilon"] == pytest.approx(manifest["epsilon"], rel=1e-9)


def test_report_and_release_print_the_total_of_the_book(
    cli: Cli, refused: Cli, features_file: Path, own_books: Path
) -> None:
    for name in "abc":
        assert cli("train", features_file, *FEW, "--out", name).status == 0
    words = "over 3 recorded runs on these rows, for rows that were private in all of them; this run: 3 "
    total = f"epsilon {spent(cli, features_file)['epsilon']:.2f}"[:-1]
    for command in (("report", "a", "--html", "a.html"), ("release", "a", "--out", "released")):
        outcome = cli(*command)
        assert words in outcome.stderr
        assert total in outcome.stderr
        assert "recorded runs" not in outcome.stdout
        assert "do not publish this line" in outcome.stderr
    stated = words.replace("these rows, for", "this feature file, for").strip()
    assert stated in Path("a.html").read_text()
    assert stated in Path("released/README.md").read_text()
    assert cli("train", features_file, *FEW, "--delta", "1e-3", "--out", "d").status == 0
    assert "at delta 1e-05 for a record, over 4 recorded runs" in cli("release", "a", "--out", "again").stderr
    assert cli("train", features_file, *FEW, "--delta", "1e-6", "--out", "e").status == 0
    outcome = cli("release", "a", "--out", "third")
    assert "at delta 1e-06 for a record, over 5 recorded runs" in outcome.stderr
    assert "; this run: 3 at delta 1e-05 for a record (budget book" in outcome.stderr
    refused(cli("budget", features_file, "--set-cap", "9", "--delta", "0.01"), 4, ["delta is 0.01, but with", "1/N"])
    (book,) = books(own_books)
    copy = book.with_suffix(".old.jsonl")
    shutil.copy(book, copy)
    assert f"budget books {book} and {copy} both have run" in cli("report", "b", "--html", "copied.html").stderr
    copy.unlink()
    book.write_text('{"book": 2}\n7\n')
    assert "total of all runs on these rows is not known" in cli("report", "b", "--html", "b.html").stderr
    book.unlink()
    alone = cli("report", "c", "--html", "c.html")
    assert (alone.status, alone.stdout) == (0, "c.html\n")
    assert "no budget book in" in alone.stderr


def test_a_run_that_diverged_counts_with_what_it_released(cli: Cli, features_file: Path) -> None:
    assert cli("train", features_file, *NOISY, "--learning-rate", "1e9", "--out", "a").status == 1
    released = len(Path("a.diverged/ledger.jsonl").read_text().splitlines())
    found = spent(cli, features_file)
    assert found["runs"] == 1
    assert [entry["ended_early"] for entry in found["entries"]] == [True]
    assert "ended early" in cli("budget", features_file).stderr
    (entry,) = read_book(Path(found["book"])).counted
    assert sum(release.count for release in entry.total) == released


KILLED_AT = {
    "before a row is read": "linprobe.training.execute.prepare_shard",
    "before the first noise": "linprobe.mechanisms.gaussian.GaussianMechanism._noised",
    "before the manifest": "linprobe.runs.run_folder.write_manifest",
}


def killed(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("moment", KILLED_AT)
def test_a_killed_run_is_in_the_book(cli: Cli, features_file: Path, tmp_path: Path, moment: str) -> None:
    def train() -> int:
        with mock.patch(KILLED_AT[moment], side_effect=killed):
            return int(cli("train", features_file, *FEW, "--out", "a").status)

    assert ended(start_copy(train)) == -signal.SIGKILL
    assert not (tmp_path / "a").exists()
    found = spent(cli, features_file)
    assert found["runs"] == 1
    assert 2.99 < found["epsilon"] <= 3


@pytest.mark.parametrize(
    "other", [["--eps", "0.1"], ["--noise-seed", "1", "--insecure-seed"], ["--delta", "1e-6"], ["--method", "ngd"]]
)
def test_a_refused_resume_leaves_the_book_as_it_was(
    cli: Cli, features_file: Path, interrupted_at_the_third_step: None, own_books: Path, other: list[str]
) -> None:
    words = ["train", features_file, *FEW, "--steps", "5", "--checkpoint", "0", "--out", "run"]
    assert cli(*words).status == 130
    before = books(own_books)[0].read_bytes()
    assert spent(cli, features_file)["epsilon"] > 1
    assert cli(*words, "--resume", *other).status == 2
    assert books(own_books)[0].read_bytes() == before
    resumed = cli(*words, "--resume")
    assert resumed.status == 0, resumed
    assert spent(cli, features_file)["epsilon"] == pytest.approx(3, abs=1e-6)


def test_after_ctrl_c_the_same_command_spends_again_if_something_was_spent(
    cli: Cli, features_file: Path, interrupted_at_the_third_step: None
) -> None:
    words = ["train", features_file, *FEW, "--steps", "5", "--out", "run"]
    with mock.patch("linprobe.training.execute.prepare_shard", side_effect=KeyboardInterrupt):
        early = cli(*words)
    assert early.status == 130
    assert "nothing was spent" in early.stderr
    assert "the same command starts again\n" in early.stderr
    later = cli(*words)
    assert later.status == 130
    assert "the same command starts again and spends again\n" in later.stderr


def test_a_killed_run_that_is_resumed_counts_once(cli: Cli, features_file: Path) -> None:
    words = ["train", features_file, *FEW, "--checkpoint", "0", "--out", "a"]

    def train() -> int:
        with mock.patch("linprobe.training.train.write_trained", side_effect=killed):
            return int(cli(*words).status)

    assert ended(start_copy(train)) == -signal.SIGKILL
    resumed = cli(*words, "--resume", "--cap", "3")
    assert resumed.status == 0, resumed
    assert "these rows" not in resumed.stderr
    found = spent(cli, features_file)
    assert found["runs"] == 1
    assert found["epsilon"] <= 3
    assert found["entries"][0]["run"] == json.loads(Path("a/manifest.json").read_text())["run_id"]
    assert not Path("a/run_id").exists()


@pytest.mark.parametrize("locks", mostly_nightly([True, False], bool))
def test_runs_of_two_processes_share_the_first_book_and_its_key(
    cli: Cli, features_file: Path, own_books: Path, monkeypatch: pytest.MonkeyPatch, locks: bool
) -> None:
    if not locks:
        no_locks(monkeypatch)
    token_hex = secrets.token_hex

    def slowly(length: int) -> str:
        time.sleep(0.05)  # so that all are here at once
        return token_hex(length)

    monkeypatch.setattr(secrets, "token_hex", slowly)
    children = [
        start_copy(lambda name=name: int(cli("train", features_file, *FEW, "--out", name).status)) for name in "abc"
    ]
    assert [ended(child) for child in children] == [0, 0, 0]
    assert len(books(own_books)) == 1
    assert spent(cli, features_file)["runs"] == 3


def test_runs_at_the_same_time_keep_the_cap_without_locks(
    cli: Cli, features_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_locks(monkeypatch)

    def check(*given: Any, **more: Any) -> None:
        refuse_above(*given, **more)
        time.sleep(0.2)  # so that all are here at once

    monkeypatch.setattr("linprobe.training.charge.refuse_above", check)
    words = ["train", features_file, *FEW, "--eps", "1", "--cap", "2"]  # three runs cost 1.84, four 2.17
    children = [start_copy(lambda n=n: int(cli(*words, "--out", f"run{n}").status)) for n in range(5)]
    assert sorted(ended(child) for child in children) == [0, 0, 0, 4, 4]
    found = spent(cli, features_file)
    assert found["runs"] == 3
    assert 1.8 < found["epsilon"] <= 2


def test_without_locks_two_runs_of_one_name_are_both_counted(
    cli: Cli, features_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    no_locks(monkeypatch)
    words = ["train", features_file, *FEW, "--out", "run"]
    write_trained, begun = train.write_trained, tmp_path / "begun"

    def beside_another(*given: Any, **more: Any) -> Any:
        if not begun.exists():
            begun.touch()
            outcomes.append(cli(*words))
        return write_trained(*given, **more)

    outcomes: list[Any] = []
    monkeypatch.setattr(train, "write_trained", beside_another)
    outcomes.append(cli(*words))
    assert [outcome.status for outcome in outcomes] == [0, 2]
    assert "has no file locks: let no other process train into run" in outcomes[0].stderr
    assert "was made by another process meanwhile; this run is complete" in outcomes[1].stderr
    assert cli("verify", "run").status == 0
    assert spent(cli, features_file)["runs"] == 2


def test_a_book_that_cannot_be_written_stops_the_run(
    cli: Cli, refused: Cli, features_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    refused(
        cli("train", features_file, *FEW, "--book", "file/book", "--out", "a"),
        1,
        ["budget book", "nothing was spent"],
    )
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    refused(cli("train", features_file, *FEW, "--out", "a"), 1, ["budget book", "--book"])
    assert not (tmp_path / "a").exists()


def test_damaged_books_and_keys_are_bad_data(
    cli: Cli, refused: Cli, features_file: Path, own_books: Path, tmp_path: Path
) -> None:
    assert cli("train", features_file, *FEW, "--out", "a").status == 0
    (path,) = books(own_books)
    good = path.read_bytes()
    path.write_bytes(good.replace(b'"count": 3', b'"count": -3'))
    for words in (["budget", features_file], ["train", features_file, *FEW, "--out", "b"]):
        refused(cli(*words), 3, ["line 3 cannot be read"])
    path.write_bytes(good)
    (own_books / "key").write_text("short")
    refused(cli("train", features_file, *FEW, "--out", "b"), 3, ["key"])
    (own_books / "key").unlink()
    refused(cli("budget", features_file), 3, ["without their key"])
    refused(cli("budget", "nothing"), 3, ["does not exist"])
    refused(cli("budget", tmp_path / "a"), 3, ["is no file; give the feature file of a run"])
    refused(cli("budget", features_file, "--delta", "1"), 2, ["delta is 1"])
    refused(cli("budget", features_file, "--set-cap", "0"), 2, ["cap is 0"])
    assert not (tmp_path / "b").exists()


def test_a_file_that_the_user_may_not_read_is_no_fault_of_an_output(
    cli: Cli, refused: Callable[..., None], features_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(path: Path) -> bool:
        raise PermissionError(errno.EACCES, f"Unable to determine if {path} is hdf5 (errno = 13, o_flags = 0)")

    monkeypatch.setattr("h5py.is_hdf5", denied)
    refused(cli("budget", features_file), 1, [f"{features_file} cannot be read (Permission denied); make it readable"])


def test_private_test_rows_are_charged_with_the_run(cli: Cli, tmp_path: Path) -> None:
    g = np.random.default_rng(0)
    rows, labels = g.normal(size=(300, 6)).astype(np.float32), np.arange(300) % 3
    np.savez(
        tmp_path / "rows.npz",
        X_train=rows[:200],
        y_train=labels[:200],
        X_test=rows[200:],
        y_test=labels[200:],
        class_names=["a", "b", "c"],
    )
    assert cli("import", "rows.npz", "--private-test", "--out", "rows.h5").status == 0
    assert cli("train", "rows.h5", *NOISY, "--test-epsilon", "1", "--out", "run").status == 0
    found = spent(cli, Path("rows.h5"))
    (entry,) = read_book(Path(found["book"])).counted
    assert "test accuracy" in {release.purpose for release in entry.total}
    assert found["epsilon"] <= 3


def test_the_default_place_follows_the_standard(shell: Callable[..., Any], features_file: Path, tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": "", "HOME": str(tmp_path / "home")}
    program = "from linprobe.accounting.row_keys import books_folder; print(books_folder())"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ, **env}, timeout=60
    )
    assert re.fullmatch(rf"{re.escape(str(tmp_path))}/home/\.local/state/linprobe\n", done.stdout), done


@pytest.mark.parametrize("home", ["", "."])
def test_no_book_is_kept_in_a_home_beside_the_current_folder(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", home)
    monkeypatch.setenv("XDG_STATE_HOME", "state")
    with pytest.raises(LinprobeError, match="XDG_STATE_HOME"):
        books_folder()


def test_a_file_system_that_cannot_make_a_file_durable_is_named(
    cli: Cli, refused: Callable[..., None], features_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "fsync", refuse)
    refused(cli("train", features_file, *FEW, "--out", "a"), 1, ["Invalid argument", "check the disk"])
    refused(cli("train", *FEW, "--quiet", "--out", "a"), 1, ["Invalid argument", "check the disk", ".h5"])
