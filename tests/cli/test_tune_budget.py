"""`linprobe tune` in the budget book: charged once and in full before its first run, and no trace of their number."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from linprobe.accounting.accountants import GAUSSIAN
from linprobe.accounting.book import read_book
from linprobe.accounting.row_keys import books_folder
from linprobe.accounting.selection import selection_epsilon
from linprobe.errors import DivergedError
from linprobe.mechanisms import correct_predictions as mechanism
from linprobe.training import tune as tune_command
from tests.cli.outcomes import NOISY, Cli, result_of
from tests.processes import ended, start_copy

GRID = ["--method", "noisy-gd", "--centre", "none", "--steps", "2", "--eps", "2", "--grid", "score_noise=0.3,1"]
SHRINK = ["--method", "adamix", "--steps", "2", "--eps", "2", "--shrink", "0,1"]
FEW = [*NOISY, "--centre", "none", "--steps", "3"]


def spent(cli: Cli, source: Path, *words: object) -> dict[str, Any]:
    return result_of(cli("budget", source, "--json", *words))


def manifest(run: str) -> dict[str, Any]:
    return dict(json.loads((Path(run) / "manifest.json").read_text()))


def test_a_selection_costs_in_the_book_what_its_manifest_states(cli: Cli, features_file: Path) -> None:
    assert cli("tune", features_file, *GRID, "--out", "a").status == 0
    found, stated = spent(cli, features_file), manifest("a")
    assert (found["runs"], found["epsilon"], found["delta"]) == (1, stated["epsilon"], stated["delta"])
    assert (found["gdp_mu"], found["zcdp_rho"]) == (None, None)
    (entry,) = found["entries"]
    assert entry["run"] == stated["run_id"]
    assert (entry["epsilon"], entry["created"], entry["method"]) == (stated["epsilon"], None, "noisy-gd")
    shown = cli("budget", features_file)
    assert "private selection, time secret  noisy-gd, epsilon" in shown.stderr


def test_a_selection_and_a_run_share_delta_and_add_epsilon(cli: Cli, features_file: Path) -> None:
    assert cli("train", features_file, *FEW, "--eps", "1", "--out", "a").status == 0
    second = cli("tune", features_file, *GRID, "--eps", "1", "--out", "b")
    found = spent(cli, features_file)
    event = read_book(Path(found["book"])).entries[manifest("b")["run_id"]].selection
    assert event is not None
    first = spent(cli, features_file, "--delta", "5e-6")["entries"][0]["epsilon"]
    assert "2 runs on these rows together cost epsilon" in second.stderr
    assert found["epsilon"] > first + selection_epsilon(event, 1e-5, GAUSSIAN)
    assert (found["runs"], found["gdp_mu"]) == (2, None)
    third = cli("train", features_file, *FEW, "--out", "c")
    assert "3 runs on these rows" in third.stderr


def test_a_cap_refuses_a_selection_before_its_first_run(
    cli: Cli, refused: Cli, features_file: Path, tmp_path: Path
) -> None:
    with mock.patch.object(tune_command, "execute", side_effect=AssertionError("a row was read")):
        refused(cli("tune", features_file, *GRID, "--cap", "1.5", "--out", "new/a"), 4, ["cap is epsilon 1.5"])
        spent(cli, features_file, "--set-cap", "1.9")
        refused(cli("tune", features_file, *GRID, "--out", "a"), 4, ["cap is epsilon 1.9", "nothing was spent"])
    assert list(tmp_path.iterdir()) == []
    assert spent(cli, features_file)["runs"] == 0
    spent(cli, features_file, "--set-cap", "2", "--raise-cap")
    assert cli("tune", features_file, *GRID, "--cap", "2", "--out", "a").status == 0
    refused(cli("train", features_file, *FEW, "--out", "b"), 4, ["cap is epsilon 2 at", "1 run on these rows counts"])


def test_an_own_book_gets_the_selection(cli: Cli, features_file: Path, own_books: Path) -> None:
    assert cli("tune", features_file, *GRID, "--book", "own.jsonl", "--out", "a").status == 0
    assert spent(cli, Path("own.jsonl"))["runs"] == 1
    assert list(own_books.glob("*.jsonl")) == []


def test_shrinkage_is_charged_once_with_its_choice(cli: Cli, refused: Cli, features_file: Path) -> None:
    words = ["tune", features_file, *SHRINK, "--public-shots", "2"]
    refused(cli(*words, "--cap", "1.9", "--out", "a"), 4, ["cap is epsilon 1.9"], notes=1)  # of the public shots
    assert cli(*words, "--cap", "2", "--out", "a").status == 0
    found = spent(cli, features_file)
    (entry,) = read_book(Path(found["book"])).counted
    assert sorted(release.purpose for release in entry.total) == ["gradient", "selection"]
    assert (found["runs"], found["entries"][0]["run"]) == (1, manifest("a")["run_id"])
    assert found["epsilon"] == pytest.approx(manifest("a")["epsilon"], rel=1e-9)
    assert found["epsilon"] <= 2


@pytest.mark.parametrize("end", ["killed", "interrupted", "diverged"])
def test_a_selection_counts_in_full_however_it_ends(cli: Cli, features_file: Path, end: str) -> None:
    def stop(*_: object, **__: object) -> None:
        if end == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise KeyboardInterrupt if end == "interrupted" else DivergedError("training diverged")

    def tune() -> int:
        with mock.patch.object(tune_command, "execute", side_effect=stop):
            return int(cli("tune", features_file, *GRID, "--out", "a").status)

    status = ended(start_copy(tune))
    assert status == -signal.SIGKILL if end == "killed" else status > 0
    found = spent(cli, features_file)
    assert found["runs"] == 1
    assert 1.99 < found["epsilon"] <= 2


def test_the_book_does_not_tell_the_number_of_runs(
    cli: Cli, features_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, train = [], tune_command.execute
    for runs in (1, 4):
        ends: list[int] = []

        def counted(*arguments: Any, _ends: list[int] = ends, **named: Any) -> Any:
            trained = train(*arguments, **named)
            for path in (*books_folder().iterdir(), books_folder()):
                os.utime(path, (0, 0))  # a time before the end of the last run
            _ends.append(1)
            return trained

        monkeypatch.setattr(mechanism, "geometric", lambda mean, runs=runs: runs)
        monkeypatch.setattr(tune_command, "execute", counted)
        assert cli("tune", features_file, *GRID, "--out", "a").status == 0
        assert len(ends) == runs
        (book,) = books_folder().glob("*.jsonl")
        end = Path("a/model.npz").stat().st_mtime
        assert min(path.stat().st_mtime for path in (*books_folder().iterdir(), books_folder())) >= end
        text = book.read_text().replace(manifest("a")["run_id"], "")
        lines.append([line for line in text.splitlines() if '"keys"' not in line])  # their key is new
        shutil.rmtree(books_folder())
        Path("a").rename(f"kept {runs}")
    assert lines[0] == lines[1]
