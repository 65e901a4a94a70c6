"""`evaluate --epsilon`: a noisy accuracy of a finished run, charged to the book of the test rows before it is drawn."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import linprobe
from linprobe.accounting.book import read_book
from linprobe.accounting.figures import epsilon_of
from linprobe.errors import UsageError
from linprobe.evaluation import predict
from linprobe.mechanisms.correct_predictions import SENSITIVITY
from linprobe.mechanisms.noise import NoiseSource
from linprobe.parallel import threads
from linprobe.runs import figures
from tests.cli.outcomes import result_of
from tests.conftest import gaussian_rows

PEOPLE, CLASSES = 100, np.array(list("abcd"))
NOISY = ["--method", "noisy-gd", "--eps", "2", "--delta", "1e-4", "--steps", "3"]
EVALUATE = ["evaluate", "run", "later.h5", "--epsilon", "1"]


@pytest.fixture
def later(cli: Callable[..., Any], trained_on: Callable[..., None]) -> Callable[..., None]:
    """A file with private test rows of 100 people, after an edit, and a run that was trained on others."""

    def make(edit: Callable[[dict[str, Any]], None] = lambda _: None, **more: Any) -> None:
        x, y = gaussian_rows("test", 300)
        owners = np.array([f"new {person:03d}" for person in [*range(PEOPLE), *(row % 10 for row in range(200))]])
        shown, labels = gaussian_rows("public", 40)
        rows = {"X_train": shown, "y_train": labels, "X_test": x, "y_test": y, "class_names": CLASSES}
        rows |= {"owner_test": owners, "owner_train": np.arange(40), **more}
        edit(rows)
        np.savez("later.npz", **rows)
        Path("later.h5").unlink(missing_ok=True)
        assert cli("import", "later.npz", "--out", "later.h5", "--private-test").status == 0

    trained_on()
    return make


@pytest.fixture
def trained_on(cli: Callable[..., Any]) -> Callable[..., None]:
    def train() -> None:
        x, y = gaussian_rows("train", 200)
        np.savez("rows.npz", X_train=x, y_train=y, owner_train=np.arange(200) // 2, class_names=CLASSES)
        assert cli("import", "rows.npz", "--out", "rows.h5").status == 0
        assert cli("train", "rows.h5", *NOISY, "--unit", "owner", "--out", "run").status == 0

    return train


def _book(outcome: Any) -> str:
    """The path of the budget book, which only the owner gets."""
    return re.search(r"charged to the book of the test rows.*\(budget book (\S+)\)", outcome.stderr)[1]


@pytest.mark.parametrize(("unit", "number"), [("owner", PEOPLE), ("record", 300)])
def test_the_accuracy_has_its_noise_and_its_price(cli, later, unit: str, number: int) -> None:
    later()
    before = {path: path.read_bytes() for path in Path("run").iterdir()}
    outcome = cli(*EVALUATE[:-1], "3", "--unit", unit, "--json")
    found, book = result_of(outcome), _book(outcome)
    assert book not in outcome.stdout  # anybody may read it, and the name depends on private rows
    assert (found["unit"], found["n_test"], found["test_rows"]) == (unit, number, "private")
    assert (found["epsilon"], found["delta"]) == (3, 1e-4)
    assert epsilon_of(1 / found["noise_multiplier"], 1e-4) <= 3
    assert found["test_accuracy_std"] == found["noise_multiplier"] * SENSITIVITY / number
    assert found["test_accuracy"] == min(max(found["test_counts"]["right"] / number, 0), 1) > 0.3
    assert found["test_balanced_accuracy_std"] > 0
    both = np.hypot(1 / found["noise_multiplier"], 1 / found["auroc_noise_multiplier"])
    assert 2.95 < epsilon_of(both, 1e-4) <= 3
    assert 0.5 < found["test_macro_auroc"] <= 1
    assert 0 < found["test_macro_auroc_std"] < 0.3
    assert before == {path: path.read_bytes() for path in Path("run").iterdir()}
    (entry,) = result_of(cli("budget", book, "--json"))["entries"]
    assert (entry["method"], entry["unit"]) == ("evaluation", unit)
    charged = next(iter(read_book(Path(book)).entries.values())).releases
    assert {one.purpose: one.noise_multiplier for one in charged} == {
        "test accuracy": found["noise_multiplier"],
        "test AUROC": found["auroc_noise_multiplier"],
    }


def test_a_printed_epsilon_is_never_below_the_one_that_is_spent(cli, later, features_file: Path) -> None:
    later()
    price = ["--epsilon", "0.77777749", "--unit", "owner"]
    told = [cli("evaluate", "run", "later.h5", *price, *more) for more in ((), ("--dry-run",))]
    train = ("train", features_file, "--method", "noisy-gd", "--eps", price[1], "--dry-run")
    told += [cli(*train), cli("tune", *train[1:], "--grid", "steps=3,4")]
    assert all("epsilon 0.777778 at delta" in one.stdout + one.stderr for one in told), told


def test_a_price_by_row_is_stated_for_people_with_several_rows_too(cli, later) -> None:
    later()
    said = cli(*EVALUATE[:-1], "3", "--unit", "record", "--dry-run").stderr
    stated = re.search(r"the epsilon of a person is ([\d.]+) with (\d+) rows", said)
    facts = result_of(cli(*EVALUATE[:-1], "3", "--unit", "record", "--dry-run", "--json"))
    mu = np.hypot(*(1 / noise for noise in facts["noise_multipliers"].values()))
    assert float(stated[1]) == pytest.approx(epsilon_of(int(stated[2]) * mu, 1e-4), rel=1e-3)
    assert "the epsilon of a person" not in cli(*EVALUATE[:-1], "3", "--unit", "owner", "--dry-run").stderr


def test_the_book_counts_every_release_on_the_same_people(cli, refused, later) -> None:
    later()
    words = [*EVALUATE, "--unit", "owner"]
    book = _book(cli(*words, "--json"))
    second = cli(*words)
    assert second.status == 0
    assert "2 runs" in second.stderr
    assert "private test people" in second.stderr
    both = result_of(cli("budget", book, "--json"))["epsilon"]
    assert 1.2 < both < 2
    assert cli("budget", book, "--set-cap", both + 0.1, "--delta", "1e-4").status == 0
    refused(cli(*words), 4, ["cap"])


@pytest.mark.parametrize("name", ["NoiseSource", "sums_of_test_rows"])
def test_the_charge_comes_before_the_noise(cli, later, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    later()
    monkeypatch.setattr(predict, name, lambda *_: 1 / 0)
    assert cli(*EVALUATE, "--unit", "owner", "--book", "own.jsonl").status == 1
    assert result_of(cli("budget", "own.jsonl", "--json"))["epsilon"] == pytest.approx(1, abs=0.01)


def test_test_rows_are_summed_on_one_thread(cli, later, monkeypatch: pytest.MonkeyPatch) -> None:
    later()
    monkeypatch.setattr(threads, "_outer", [])  # the suite's limit
    monkeypatch.setattr(predict, "sums_of_test_rows", lambda *_: seen.extend(threadpool_info()) or 1 / 0)
    seen: list[Any] = []
    with threadpool_limits(2, "blas"):
        cli(*EVALUATE, "--unit", "owner")
    assert {one["num_threads"] for one in seen if one["user_api"] == "blas"} == {1}


@pytest.mark.parametrize(("name", "sensitivity"), [("held_out_counts", SENSITIVITY), ("score_sums", 2)])
def test_one_test_person_moves_what_is_noised_by_at_most_the_sensitivity(
    cli, later, monkeypatch, name: str, sensitivity: float
) -> None:
    sums: list[Any] = []
    counted = getattr(figures, name)
    monkeypatch.setattr(figures, name, lambda cells: sums.append(counted(cells)) or sums[-1])

    def without(rows: dict[str, Any]) -> None:
        kept = rows["owner_test"] != "new 004"
        rows |= {key: rows[key][kept] for key in ("X_test", "y_test", "owner_test")}

    for edit in (lambda _: None, without):
        later(edit)
        assert cli(*EVALUATE, "--unit", "owner").status == 0
    assert 0.5 < np.linalg.norm(sums[0].value - sums[1].value) <= sums[0].sensitivity
    assert sums[0].sensitivity == pytest.approx(sensitivity, rel=1e-15)


def test_the_noise_released_is_the_noise_stated(cli, later, monkeypatch: pytest.MonkeyPatch) -> None:
    later()
    stds: list[float] = []

    class Source(NoiseSource):
        def add_noise(self, value: Any, std: float) -> Any:
            stds.append(std)
            return super().add_noise(value, std)

    monkeypatch.setattr(predict, "NoiseSource", Source)
    few = result_of(cli(*EVALUATE, "--unit", "owner", "--json"))
    assert few["auroc_noise_multiplier"] is None  # its error would be 0.5
    assert stds == pytest.approx([few["noise_multiplier"] * 2**0.5])
    stds.clear()
    found = result_of(cli(*EVALUATE[:-1], 5, "--unit", "owner", "--json"))
    assert stds[0] >= found["noise_multiplier"] * SENSITIVITY
    assert stds[1] >= found["auroc_noise_multiplier"] * 2  # four classes
    assert stds == pytest.approx([found["noise_multiplier"] * 2**0.5, found["auroc_noise_multiplier"] * 2])


def test_a_dry_run_states_what_the_release_then_does(cli, refused, later) -> None:
    later()
    words = [*EVALUATE[:-1], 5, "--unit", "owner", "--book", "own.jsonl"]
    refused(cli("evaluate", "run", "later.h5", "--dry-run"), 2, ["--dry-run", "--epsilon"])
    refused(cli(*EVALUATE, "--dry-run"), 2, ["unit", "owner", "record"])
    before = set(Path().rglob("*"))
    planned = result_of(cli(*words, "--dry-run", "--json"))
    assert "100 private test people" in cli(*words, "--dry-run").stdout
    assert set(Path().rglob("*")) == before
    outcome = cli(*words, "--json")
    found = result_of(outcome)
    assert {key: planned[key] for key in ("run", "unit", "n_test", "epsilon", "delta")} == {
        key: found[key] for key in ("run", "unit", "n_test", "epsilon", "delta")
    }
    assert planned["book"] == _book(outcome) == "own.jsonl"
    assert list(planned["noise_multipliers"].values()) == [found["noise_multiplier"], found["auroc_noise_multiplier"]]
    assert planned["together"]["epsilon"] == result_of(cli("budget", "own.jsonl", "--json"))["epsilon"]
    assert result_of(cli(*words, "--dry-run", "--json"))["together"]["runs"] == 2
    assert cli("budget", "own.jsonl", "--set-cap", 5.1, "--delta", "1e-4").status == 0
    refused(cli(*words, "--dry-run"), 4, ["cap"])


def test_python_does_what_the_command_does(later) -> None:
    later()
    asked = {"epsilon": 1, "unit": "owner", "delta": 2e-4}
    found = linprobe.evaluate("run", "later.h5", **asked, book="own.jsonl")
    assert "book" not in found
    assert {key: found[key] for key in asked} == asked
    assert linprobe.budget("own.jsonl")["entries"][0]["method"] == "evaluation"
    for wrong, text in (
        ({"unit": "owner"}, "^unit does nothing without epsilon"),
        ({"epsilon": 1, "unit": "patient"}, "allowed: record, owner"),
        ({"epsilon": 0, "unit": "owner"}, "epsilon is 0"),
        ({"epsilon": 1}, "give unit owner for people"),
    ):
        with pytest.raises(UsageError, match=text):
            linprobe.evaluate("run", "later.h5", **wrong)
    assert len(linprobe.budget("own.jsonl")["entries"]) == 1


def test_an_accuracy_that_noise_would_hide_is_refused_before_it_is_paid(cli, refused, later, tmp_path: Path) -> None:
    def few(rows: dict[str, Any], n_test: int = 3) -> None:
        rows |= {f"{name}_test": rows[f"{name}_test"][:n_test] for name in ("X", "y", "owner")}

    later(few)
    before = result_of(cli("budget", "later.h5", "--json"))["entries"]
    evaluate = ["evaluate", "run", "later.h5", "--unit", "record"]
    trained = ["train", "later.h5", *NOISY, "--eps", "20", "--unit", "record"]
    for words, flag in ((evaluate, "--epsilon"), ([*trained, "--out", "new"], "--test-epsilon")):
        for dry in ([], ["--dry-run"]):
            outcome = cli(*words, flag, "1", *dry)
            refused(outcome, 2, [f"{flag} is 1, ", "3 private test units", "at most 0.25", "nothing was spent"])
    stated = re.search(rf"standard deviation ([\d.]+); .* {flag} ([\d.]+), or (\d+) test units", outcome.stderr)
    assert stated is not None
    std, epsilon, units = map(float, stated.groups())
    assert std > 1
    assert result_of(cli("budget", "later.h5", "--json"))["entries"] == before
    assert not (tmp_path / "new").exists()
    assert result_of(cli(*evaluate, "--epsilon", epsilon, "--json"))["test_accuracy_std"] <= 0.25
    later(lambda rows: few(rows, int(units) - 1))
    refused(cli(*evaluate, "--epsilon", "1"), 2, ["nothing was spent"])
    later(lambda rows: few(rows, int(units)))
    assert 0.2 < result_of(cli(*evaluate, "--epsilon", "1", "--json"))["test_accuracy_std"] <= 0.25


def test_what_has_no_meaning_is_refused(cli, refused, later) -> None:
    later()
    refused(cli(*EVALUATE), 2, ["unit is not given", "owner", "record"])
    refused(cli("evaluate", "run", "later.h5"), 4, ["private", "evaluate --epsilon"])
    refused(cli("evaluate", "run", "later.h5", "--unit", "owner"), 2, ["--unit", "--epsilon"])
    refused(cli(*EVALUATE, "--unit", "owner", "--delta", "0.011"), 4, ["0.011"])
    refused(cli(*EVALUATE, "--unit", "owner", "--calibrate", "rows.h5"), 2, ["--calibrate"])
    rows = dict(np.load("later.npz"))
    del rows["owner_test"]
    np.savez("unnamed.npz", **rows)
    for out, words in (("unnamed.h5", ["--private-test"]), ("public.h5", [])):
        assert cli("import", "unnamed.npz", "--out", out, *words).status == 0
    refused(cli("evaluate", "run", "unnamed.h5", "--epsilon", "1", "--unit", "owner"), 2, ["unnamed.h5", "record"])
    refused(cli("evaluate", "run", "public.h5", "--epsilon", "1"), 2, ["public", "--private-test"])
    assert json.loads(cli("evaluate", "run", "unnamed.h5", "--epsilon", "1", "--json").stdout)["unit"] == "record"


@pytest.fixture
def whole(cli: Callable[..., Any], own_books: Path) -> str:
    """A file with private training rows and private test rows."""
    (x, y), (held, labels) = gaussian_rows("train", 200), gaussian_rows("test", 120)
    np.savez("whole.npz", X_train=x, y_train=y, X_test=held, y_test=labels, class_names=CLASSES)
    assert cli("import", "whole.npz", "--out", "whole.h5", "--private-test").status == 0
    return "whole.h5"


@pytest.mark.parametrize("price", [(), ("--test-epsilon", "1")], ids=["training rows", "and test rows"])
def test_the_budget_of_a_file_counts_evaluations_on_its_test_rows(
    cli, refused, whole: str, price: tuple[str, ...]
) -> None:
    assert cli("train", whole, *NOISY, *price, "--out", "run").status == 0
    alone = result_of(cli("budget", whole, "--json"))
    assert cli("evaluate", "run", "--epsilon", "3").status == 0
    both = result_of(cli("budget", whole, "--json"))
    assert (alone["runs"], both["runs"]) == (1, 2)
    assert both["epsilon"] > alone["epsilon"] + 0.5
    # the path of the file alone decides what the card counts
    assert cli("release", "run", "--out", "pub").status == 0
    found = re.search(r"file only \| epsilon ([\d.]+) at .* over (\d) recorded", Path("pub/README.md").read_text())
    assert (float(found[1]), int(found[2])) == (pytest.approx(both["epsilon"], rel=1e-5), 2)
    assert cli("budget", whole, "--set-cap", both["epsilon"] + 0.1, "--delta", "1e-4").status == 0
    refused(cli("evaluate", "run", "--epsilon", "3"), 4, ["cap"])


@pytest.mark.parametrize(("method", "notes"), [("non-private", 1), ("only-public", 0)])
def test_a_run_without_a_delta_asks_for_one(cli, refused, whole: str, method: str, notes: int) -> None:
    assert cli("train", whole, "--public-shots", "2", "--method", method, "--out", "run").status == 0
    refused(cli("evaluate", "run", "--epsilon", "1"), 2, ["no delta of its own", "give --delta"], notes)
    assert cli("evaluate", "run", "--epsilon", "1", "--delta", "1e-4").status == 0


def test_an_evaluation_of_a_run_without_a_guarantee_says_so(cli, whole: str) -> None:
    assert cli("train", whole, "--method", "non-private", "--out", "run").status == 0
    outcome = cli("evaluate", "run", "--epsilon", "1", "--delta", "1e-4", "--json")
    assert "NOT PRIVATE: run run is not private" in outcome.stderr
    assert result_of(outcome)["run_private"] is False


@pytest.mark.parametrize("shared", ["rows", "people"])
def test_private_rows_of_the_run_are_no_test_rows(cli, refused, later, shared: str) -> None:
    def with_private(rows: dict[str, Any]) -> None:
        if shared == "rows":
            rows["X_test"][:200], rows["y_test"][:200] = gaussian_rows("train", 200)
        else:
            rows["owner_train"], rows["owner_test"] = 1000 + np.arange(40), np.arange(300) // 3

    later(with_private)
    words = ("evaluate", "run", "later.h5", "--epsilon", "1", "--unit", "owner")
    refused(cli(*words), 3, ["later.h5", "rows.h5"])
