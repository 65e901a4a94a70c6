"""A noisy accuracy of private test people: within epsilon, stated, verified, and moved by one person as proved."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linprobe.accounting.calibrate import calibrate
from linprobe.mechanisms.correct_predictions import SENSITIVITY
from linprobe.mechanisms.score_histogram import BINS
from linprobe.runs import figures
from tests.cli.outcomes import write_sealed
from tests.conftest import gaussian_rows

PEOPLE, CLASSES = 100, np.array(list("abcd"))
TRAIN = [*("train", "private.h5", "--method", "noisy-gd", "--eps", "3", "--delta", "1e-4", "--steps", "3"), "--unit"]
TESTED = [*TRAIN, "owner", "--test-epsilon", "1"]


@pytest.fixture
def imported(cli: Callable[..., Any], tmp_path: Path) -> Callable[..., Path]:
    """Import rows whose 300 test rows belong to 100 people, some with 1 row and some with many, after an edit."""

    def make(edit: Callable[[dict[str, Any]], None] = lambda _: None) -> Path:
        x, y = gaussian_rows("train", 200)
        x_test, y_test = gaussian_rows("test", 300)
        owners = [f"tested {person:03d}" for person in [*range(PEOPLE), *(row % 10 for row in range(200))]]
        rows = {"X_train": x, "y_train": y, "X_test": x_test, "y_test": y_test, "owner_test": np.array(owners)}
        rows |= {"owner_train": np.arange(200) // 2, "class_names": CLASSES}
        edit(rows)
        np.savez(tmp_path / "rows.npz", **rows)
        (tmp_path / "private.h5").unlink(missing_ok=True)
        assert cli("import", "rows.npz", "--out", "private.h5", "--private-test").status == 0
        return tmp_path / "private.h5"

    return make


def test_the_accuracy_of_people_is_a_release_within_epsilon(
    cli: Callable[..., Any], imported: Callable[..., Path], tmp_path: Path
) -> None:
    features = imported()
    words = [*TRAIN, "owner", "--eps", "8", "--test-epsilon", "5"]  # the last --eps counts
    told = json.loads(cli(*words, "--out", "run", "--dry-run", "--json").stdout)
    assert (told["test_people"], told["test_rows"]) == (PEOPLE, 300)
    outcome = cli(*words, "--out", "run", "--json")
    assert outcome.status == 0, outcome
    printed, manifest = json.loads(outcome.stdout), json.loads(Path("run/manifest.json").read_text())
    event, auroc = map(json.loads, Path("run/ledger.jsonl").read_text().splitlines()[-2:])
    assert (event["purpose"], event["sensitivity"]) == ("test accuracy", SENSITIVITY)
    assert (auroc["purpose"], auroc["sensitivity"]) == ("test AUROC", np.nextafter(2, 3))
    assert auroc["noise_multiplier"] / event["noise_multiplier"] == pytest.approx(3**0.5, rel=1e-3)
    assert printed["test_macro_auroc"] == manifest["test_macro_auroc"]  # None if the noise hides it
    assert np.shape(manifest["test_scores"]) == (4, 2, BINS)
    assert manifest["epsilon"] <= 8
    assert manifest["n_test"] == PEOPLE  # the number of rows of people is private
    assert printed["test_accuracy"] == manifest["test_accuracy"] > 0.3
    assert printed["test_accuracy_std"] == event["noise_multiplier"] * SENSITIVITY / PEOPLE
    assert 0 < printed["test_balanced_accuracy_std"] < 0.5
    assert sorted(manifest["releases"], key=str) in [sorted(plan["releases"], key=str) for plan in told["plans"]]
    assert cli("verify", "run", "--features", features).status == 0
    assert f"{PEOPLE} test people" in cli(*TESTED, "--out", "run2", "--dry-run").stdout
    assert json.loads(cli("budget", "private.h5", "--json").stdout)["epsilon"] == pytest.approx(8, abs=0.01)
    assert cli("report", "run", "--html", "page.html").status == 0
    page = " ".join(Path("page.html").read_text().split())
    assert "Accuracy averaged over people" in page
    assert f"{PEOPLE} private test people" in page
    assert "300 " not in page
    assert cli("release", "run", "--out", "pub").status == 0
    card = Path("pub/README.md").read_text()
    assert f"on {PEOPLE} private test people" in card
    assert f"each of {PEOPLE} test people" in page
    assert re.search("public rows</th> ?<td>none", page)
    for text in (card, Path("pub/claim.yaml").read_text()):
        assert f"the private rows of 100 people and of {PEOPLE} test people" in text
        assert "unless declared private" not in text
    for key, value, named in (("n_test", 300, "test_accuracy"), ("test_macro_auroc", 0.987, "test_macro_auroc")):
        write_sealed(tmp_path / "run", {**manifest, key: value})
        assert named in json.loads(cli("verify", "run", "--json").stdout)["refused"]


def test_few_people_pay_for_an_accuracy_alone(cli: Callable[..., Any], imported: Callable[..., Path]) -> None:
    features = imported()
    told = json.loads(cli(*TESTED, "--out", "run", "--dry-run", "--json").stdout)
    assert cli(*TESTED, "--out", "run").status == 0
    manifest = json.loads(Path("run/manifest.json").read_text())
    assert not {"test_scores", "test_macro_auroc_std"} & manifest.keys()  # the error would be 0.5
    released = {one["purpose"]: one["noise_multiplier"] for one in manifest["releases"]}
    assert "test AUROC" not in released
    exact = calibrate(epsilon=1, delta=1e-4, n_private=PEOPLE, steps=1).noise_multiplier
    assert released["test accuracy"] == exact
    assert sorted(manifest["releases"], key=str) in [sorted(plan["releases"], key=str) for plan in told["plans"]]
    assert cli("verify", "run", "--features", features).status == 0


def test_without_a_price_the_number_of_rows_of_test_people_is_not_stated(
    cli: Callable[..., Any], imported: Callable[..., Path]
) -> None:
    imported()
    for unit, number in (("owner", PEOPLE), ("record", 300)):
        assert cli(*TRAIN, unit, "--out", unit).status == 0
        manifest = json.loads(Path(unit, "manifest.json").read_text())
        assert (manifest["n_test"], manifest["test_accuracy"]) == (number, None)
    assert cli("report", "owner", "--html", "page.html").status == 0
    assert "private test rows" in Path("page.html").read_text()


def test_delta_is_below_one_over_the_number_of_test_people(
    cli: Callable[..., Any], refused: Callable[..., None], imported: Callable[..., Path]
) -> None:
    def few(rows: dict[str, Any]) -> None:
        rows["owner_test"] = 1000 + np.arange(300) // 30  # 10 people

    imported(few)
    words = ["train", "private.h5", "--method", "noisy-gd", "--eps", "3", "--delta", "0.0034", "--test-epsilon", "2"]
    refused(cli(*words, "--unit", "record", "--out", "rows"), 4, ["0.0034"])
    assert cli(*words, "--unit", "owner", "--out", "people").status == 0


@pytest.mark.parametrize(("name", "sensitivity"), [("held_out_counts", SENSITIVITY), ("score_sums", 2)])
def test_a_test_person_moves_what_is_noised_by_at_most_the_sensitivity(
    cli: Callable[..., Any],
    imported: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    sensitivity: float,
) -> None:
    sums: list[Any] = []
    counted = getattr(figures, name)

    def watched(cells: Any) -> Any:
        sums.append(counted(cells))
        return sums[-1]

    monkeypatch.setattr(figures, name, watched)

    def without(person: int) -> Callable[[dict[str, Any]], None]:
        def edit(rows: dict[str, Any]) -> None:
            kept = rows["owner_test"] != f"tested {person:03d}"
            rows |= {key: rows[key][kept] for key in ("X_test", "y_test", "owner_test")}

        return edit

    def empty(rows: dict[str, Any]) -> None:
        rows["X_test"] = rows["X_test"] * (rows["owner_test"] != "tested 003")[:, None]

    def exchanged(rows: dict[str, Any]) -> None:
        own = rows["owner_test"] == "tested 003"
        rows["y_test"] = np.where(own, (rows["y_test"] + 1) % 4, rows["y_test"])

    models = []
    for number, edit in enumerate((lambda _: None, without(3), empty, without(60), exchanged)):
        imported(edit)
        seeded = [*TESTED, "--noise-seed", "1", "--insecure-seed", "--out", f"run{number}"]
        assert cli(*seeded).status == 0
        models.append(Path(f"run{number}/model.npz").read_bytes())
    assert len(set(models)) == 1
    whole, fewer, emptied, other, labelled = (one.value for one in sums)
    assert np.array_equal(fewer, emptied)
    for one in (fewer, other):
        assert 0.5 < np.linalg.norm(whole - one) <= sums[0].sensitivity
    assert sums[0].sensitivity == pytest.approx(sensitivity, rel=1e-15)
    assert 0 < np.linalg.norm(whole - labelled) <= 2 * sums[0].sensitivity
    entries = 1 if name == "held_out_counts" else 4  # that a person adds to, but for the sum of all
    assert whole[entries % 4 :].sum() == pytest.approx(entries * PEOPLE, abs=entries * PEOPLE * 2**-17)
