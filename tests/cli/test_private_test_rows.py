"""Test rows declared private: their accuracy has noise and a charge, or is not measured."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linprobe.mechanisms.correct_predictions import SENSITIVITY, NoisyTest
from linprobe.mechanisms.score_histogram import BINS
from linprobe.runs import figures
from linprobe.training import execute
from tests.cli.outcomes import write_sealed
from tests.conftest import gaussian_rows

N_TEST = 300
CLASSES = np.array(list("abcd"))
TRAIN = ["train", "private.h5", "--method", "noisy-gd", "--eps", "3", "--delta", "1e-4", "--steps", "3"]


@pytest.fixture
def private_test(cli: Callable[..., Any], tmp_path: Path) -> Path:
    """A feature file whose test rows are private, as `import` makes it."""
    x, y = gaussian_rows("train", 200)
    x_test, y_test = gaussian_rows("test", N_TEST)
    np.savez(tmp_path / "rows.npz", X_train=x, y_train=y, X_test=x_test, y_test=y_test, class_names=CLASSES)
    assert cli("import", "rows.npz", "--out", "private.h5", "--private-test").status == 0
    return tmp_path / "private.h5"


def manifest_of(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "manifest.json").read_text()))


def test_accuracy_is_a_release_of_the_ledger_within_epsilon(
    cli: Callable[..., Any], private_test: Path, tmp_path: Path
) -> None:
    outcome = cli(*TRAIN, "--test-epsilon", "1", "--out", "run", "--json")
    assert outcome.status == 0, outcome
    printed, manifest = json.loads(outcome.stdout), manifest_of(tmp_path / "run")
    events = [json.loads(line) for line in (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()]
    assert [event["purpose"] for event in events] == ["mean"] + ["gradient"] * 3 + ["test accuracy", "test AUROC"]
    assert [event["sensitivity"] for event in events[-2:]] == [SENSITIVITY, np.nextafter(2, 3)]
    assert manifest["epsilon"] <= 3
    assert 0 < manifest["test_accuracy"] <= 1
    assert printed["test_accuracy"] == manifest["test_accuracy"]
    assert printed["test_accuracy_std"] == events[-2]["noise_multiplier"] * SENSITIVITY / N_TEST
    assert (manifest["test_rows"], manifest["n_test"]) == ("private", N_TEST)
    recalls = manifest["test_accuracy_per_class"]  # 75 rows a class, and noise of 5 in each count
    assert list(recalls) == list(CLASSES)
    assert None not in recalls.values()
    assert (
        printed["test_balanced_accuracy"]
        == manifest["test_balanced_accuracy"]
        == pytest.approx(sum(recalls.values()) / 4)
    )
    assert 0 < printed["test_balanced_accuracy_std"] < 0.2
    again = cli("evaluate", "run").stderr
    assert "linprobe info run shows its noisy accuracy, and evaluate --epsilon E releases another" in again
    assert "--test-epsilon" not in again
    assert not (tmp_path / "run" / "test_figures.json").exists()
    assert printed["test_calibration_error"] is None
    area, error = (printed[key] for key in ("test_macro_auroc", "test_macro_auroc_std"))
    assert (area, error) == (manifest["test_macro_auroc"], manifest["test_macro_auroc_std"])
    assert np.shape(manifest["test_scores"]) == (4, 2, BINS)
    assert "commonest" not in outcome.stderr + outcome.stdout
    assert cli("verify", "run", "--features", private_test).status == 0
    assert cli("report", "run", "--html", "page.html").status == 0
    page = " ".join((tmp_path / "page.html").read_text().split())
    assert "carries noise of" in page
    assert "the mean recall of 4 of 4 classes" in page
    assert f"Macro AUROC {area:.4f}, with a standard error of {error:.4f}" in page
    assert cli("release", "run", "--out", "released").status == 0
    card = (tmp_path / "released" / "README.md").read_text()
    assert "Mean over 4 of 4 classes" in card
    assert "left out" not in card
    assert f"Macro AUROC {area:.4f}, with a standard error of {error:.4f}" in card
    plain = cli(*TRAIN, "--test-epsilon", "1", "--out", "plain")
    assert "std of macro AUROC" in plain.stderr


def test_the_auroc_is_near_that_of_the_released_model(
    cli: Callable[..., Any], private_test: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*TRAIN[:5], "60", *TRAIN[6:], "--test-epsilon", "50", "--out", "run", "--json"]
    noisy = json.loads(cli(*words).stdout)
    private_test.unlink()
    monkeypatch.setenv("XDG_STATE_HOME", "other")  # the books of the run call these rows private
    assert cli("import", "rows.npz", "--out", "private.h5").status == 0  # the same rows, public
    exact = json.loads(cli("evaluate", "run", "private.h5", "--allow-other-features", "--json").stdout)["macro_auroc"]
    assert noisy["test_macro_auroc"] == pytest.approx(exact, abs=5 * noisy["test_macro_auroc_std"])
    assert 0 < noisy["test_macro_auroc_std"] < 0.05
    assert exact > 0.75


def test_the_order_of_a_sum_of_accuracies_is_free(cli: Callable[..., Any], private_test: Path, tmp_path: Path) -> None:
    """Python 3.12 adds in another way than 3.11."""
    assert cli(*TRAIN, "--test-epsilon", "1", "--out", "run").status == 0
    manifest = manifest_of(tmp_path / "run")
    for key in ("test_balanced_accuracy", "test_balanced_accuracy_std"):
        write_sealed(tmp_path / "run", {**manifest, key: math.nextafter(manifest[key], 1.0)})
        assert cli("verify", "run").status == 0, key


def test_verify_derives_the_accuracies_from_the_noisy_counts(
    cli: Callable[..., Any], private_test: Path, tmp_path: Path
) -> None:
    assert cli(*TRAIN, "--test-epsilon", "1", "--out", "run").status == 0
    manifest = manifest_of(tmp_path / "run")
    by_class, cells = manifest["test_counts"]["by_class"], manifest["test_scores"]
    for key, value in (
        ("test_accuracy", 0.99),
        ("test_accuracy_std", 0.001),
        ("test_balanced_accuracy_std", 0.001),
        ("test_counts", {"right": 30.0, "by_class": by_class}),
        ("test_counts", {"right": 30.0, "by_class": by_class[1:]}),
        ("test_counts", {"right": 30.0, "by_class": [[1.0], *by_class[1:]]}),
        ("test_counts", None),
        ("test_macro_auroc", 0.99),
        ("test_macro_auroc", None),
        ("test_macro_auroc_std", 0.001),
        ("test_scores", None),
        ("test_scores", cells[1:]),
        ("test_scores", [cells[0][:1], *cells[1:]]),
        ("test_scores", [[cells[0][0][1:], cells[0][1]], *cells[1:]]),
        ("test_scores", [[cells[0][1], cells[0][0]], *cells[1:]]),
    ):
        write_sealed(tmp_path / "run", {**manifest, key: value})
        refused = cli("verify", "run", "--json")
        assert refused.status == 4, key
        assert "test_" in json.loads(refused.stdout)["refused"]


def test_steps_get_the_noise_that_the_accuracy_leaves(
    cli: Callable[..., Any], private_test: Path, tmp_path: Path
) -> None:
    assert cli(*TRAIN, "--out", "without").status == 0
    assert cli(*TRAIN, "--test-epsilon", "1", "--out", "with").status == 0
    without, charged = manifest_of(tmp_path / "without"), manifest_of(tmp_path / "with")
    assert charged["noise_multiplier"] > without["noise_multiplier"]
    assert without["test_accuracy"] is None
    assert without["n_test"] == N_TEST


@pytest.mark.parametrize(("name", "sensitivity"), [("held_out_counts", SENSITIVITY), ("score_sums", 2)])
def test_one_test_row_moves_what_is_noised_by_at_most_the_sensitivity(
    cli: Callable[..., Any],
    private_test: Path,
    tmp_path: Path,
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
    seeded = [*TRAIN, "--noise-seed", "1", "--insecure-seed", "--test-epsilon", "1", "--out"]
    assert cli(*seeded, "all").status == 0
    with np.load(tmp_path / "rows.npz") as rows:
        shorter = {**rows, "X_test": rows["X_test"][1:], "y_test": rows["y_test"][1:]}
    np.savez(tmp_path / "shorter.npz", **shorter)
    private_test.unlink()
    assert cli("import", "shorter.npz", "--out", "private.h5", "--private-test").status == 0
    assert cli(*seeded, "one less").status == 0
    with np.load(tmp_path / "rows.npz") as rows:
        emptied = {**rows, "X_test": rows["X_test"] * (np.arange(N_TEST) != 7)[:, None]}  # place 7 is empty
    np.savez(tmp_path / "emptied.npz", **emptied)
    private_test.unlink()
    assert cli("import", "emptied.npz", "--out", "private.h5", "--private-test").status == 0
    assert cli(*seeded, "empty place").status == 0
    for other in sums[1:]:
        assert 0 < np.linalg.norm(sums[0].value - other.value) <= sums[0].sensitivity
    assert sums[0].sensitivity == pytest.approx(sensitivity, rel=1e-15)
    of_row = 1 if name == "held_out_counts" else 4  # entries that a row adds to, but for the count of all
    assert sums[0].value[of_row % 4 :].sum() == of_row * N_TEST
    assert sums[2].value[of_row % 4 :].sum() == of_row * (N_TEST - 1)
    models = [(tmp_path / run / "model.npz").read_bytes() for run in ("all", "one less", "empty place")]
    assert models[0] == models[1] == models[2]


def test_nothing_else_shows_an_exact_accuracy(
    cli: Callable[..., Any], refused: Callable[..., None], private_test: Path, tmp_path: Path
) -> None:
    assert cli(*TRAIN, "--out", "run").status == 0
    refused(cli("evaluate", "run"), 4, ["private.h5", "private", "--test-epsilon"])
    refused(cli("compare", "private.h5", "--methods", "noisy-gd", "--eps", "1", "--out", "c"), 4, ["private.h5"])
    assert cli("report", "run", "--html", "page.html").status == 0
    assert "test rows are private" in (tmp_path / "page.html").read_text()
    assert "private" in cli("info", private_test).stdout.split("test_rows")[1].splitlines()[0]


def test_exact_figures_on_rows_that_the_file_declares_private_are_refused(
    cli: Callable[..., Any], refused: Callable[..., None], private_test: Path, tmp_path: Path
) -> None:
    assert cli("import", "rows.npz", "--out", "public.h5").status == 0
    assert cli("train", "public.h5", *TRAIN[2:], "--out", "run").status == 0
    assert cli("verify", "run", "--features", "public.h5").status == 0
    refused(cli("verify", "run", "--features", private_test), 4, ["test_rows is public", "private.h5 gives private"])


def test_a_price_without_private_test_rows_is_refused(
    cli: Callable[..., Any], refused: Callable[..., None], private_test: Path, features_file: Path
) -> None:
    words = ["--eps", "3", "--test-epsilon", "1", "--out", "run"]
    refused(cli("train", features_file, "--method", "noisy-gd", *words), 2, ["no private test rows", "--private-test"])
    refused(cli(*TRAIN, "--test-epsilon", "3", "--out", "run"), 4, ["test accuracy", "--eps"])
    refused(cli(*TRAIN, "--test-epsilon", "0", "--out", "run"), 2, ["test-epsilon", "above 0"])
    refused(
        cli("train", private_test, "--method", "non-private", "--test-epsilon", "1", "--out", "run"),
        2,
        ["non-private", "--test-epsilon"],
    )
    refused(cli(*TRAIN[:6], "--delta", "4e-3", "--test-epsilon", "1", "--out", "run"), 4, ["delta", "0.004"])


def test_private_test_labels_give_no_class_names(
    cli: Callable[..., Any], refused: Callable[..., None], tmp_path: Path
) -> None:
    x, y = gaussian_rows("train", 20)
    np.savez(tmp_path / "unnamed.npz", X_train=x, y_train=y, X_test=x, y_test=y)
    refused(cli("import", "unnamed.npz", "--out", "f.h5", "--private-test"), 3, ["private", "--classes"])
    np.savez(tmp_path / "untested.npz", X_train=x, y_train=y, class_names=CLASSES)
    refused(cli("import", "untested.npz", "--out", "f.h5", "--private-test"), 2, ["no test rows"])


def test_a_run_that_is_resumed_releases_the_accuracy_of_the_same_rows(
    cli: Callable[..., Any],
    refused: Callable[..., None],
    private_test: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    released = execute._test

    def killed_after(*given: Any) -> NoisyTest:
        values.append(released(*given)[0])
        raise KeyboardInterrupt

    values: list[NoisyTest] = []
    words = [*TRAIN, "--test-epsilon", "1", "--checkpoint", "0", "--out", "run"]
    with monkeypatch.context() as patch:
        patch.setattr(execute, "_test", killed_after)
        assert cli(*words).status != 0
    (partial,) = tmp_path.glob(".run.*.partial")
    refused(cli(*words, "--resume", "--test-epsilon", "2"), 2, ["test epsilon 1.0"])
    held = private_test.read_bytes()
    with np.load(tmp_path / "rows.npz") as rows:
        np.savez(tmp_path / "other.npz", **{**rows, "X_test": rows["X_test"] + 1})
    private_test.unlink()
    assert cli("import", "other.npz", "--out", "private.h5", "--private-test").status == 0
    refused(cli(*words, "--resume"), 4, ["other private rows"])
    private_test.write_bytes(held)
    assert cli(*words, "--resume").status == 0
    assert not partial.exists()
    assert manifest_of(tmp_path / "run")["test_accuracy"] == min(values[0].right / N_TEST, 1)
    assert cli("verify", "run").status == 0


def test_private_test_images_do_not_decide_the_size(
    cli: Callable[..., Any], refused: Callable[..., None], tmp_path: Path
) -> None:
    images = np.random.default_rng(0).integers(0, 255, (8, 8, 8), dtype=np.uint8)
    labels = np.arange(8) % 2
    np.savez(
        tmp_path / "images.npz",
        X_train=images[:6],
        y_train=labels[:6],
        X_test=images[6:],
        y_test=labels[6:],
        class_names=CLASSES,
    )
    words = ["extract", "images.npz", "--private-test", "--out", "f.h5", "--backbone"]
    refused(cli(*words, "pixels"), 2, ["private test image", "--resize", "--crop"], notes=1)
    assert cli(*words, "pixels", "--resize", "8", "--crop", "8").status == 0
    assert "private" in cli("info", "f.h5").stdout.split("test_rows")[-1].splitlines()[0]
    outcome = cli(*words[:4], "scattering.h5", "--backbone", "scattering")
    assert "15,552 features" in outcome.stderr, outcome  # not the 8 x 8 grey pixels of the images


def test_a_dry_run_has_the_price_in_its_plan(
    cli: Callable[..., Any], refused: Callable[..., None], private_test: Path, features_file: Path
) -> None:
    words = ("--method", "noisy-gd", "--eps", "2", "--test-epsilon", "0.5", "--steps", "3")
    told = json.loads(cli("train", private_test, *words, "--dry-run", "--json").stdout)
    assert cli("train", private_test, *words, "--out", "run").status == 0
    released = json.loads(Path("run/manifest.json").read_text())["releases"]
    planned = [sorted(plan["releases"], key=str) for plan in told["plans"]]
    assert sorted(released, key=str) in planned
    refused(cli("train", features_file, *words, "--dry-run"), 2, ["no private test rows"])
