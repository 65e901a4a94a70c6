"""`--owners-on-both-sides`: people may have rows in training and test, and file, manifest, report and verify say so."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

from linprobe.accounting.figures import rounded_up
from linprobe.runs.run_folder import read_run
from tests.cli.outcomes import result_of, write_sealed
from tests.conftest import gaussian_rows

TRAIN = ["train", "both.h5", "--method", "noisy-gd", "--eps", "3", "--steps", "3", "--unit", "owner", "--out"]


@pytest.fixture
def overlap() -> Path:
    """Rows of 50 people in training, 10 of whom have test rows too."""
    x, y = gaussian_rows("train", 200)
    x_test, y_test = gaussian_rows("test", 60)
    owners = {"owner_train": np.arange(200) % 50, "owner_test": 40 + np.arange(60) % 20}
    named = {"class_names": np.array(list("abcd"))}
    np.savez("overlap.npz", X_train=x, y_train=y, X_test=x_test, y_test=y_test, **owners, **named)
    return Path("overlap.npz")


def test_the_choice_is_in_file_manifest_report_and_verify(cli: Callable[..., Any], refused: Any, overlap: Path) -> None:
    refused(cli("import", overlap, "--out", "both.h5"), 3, ["both sides", "10", "--owners-on-both-sides"])
    made = cli("import", overlap, "--out", "both.h5", "--owners-on-both-sides")
    assert "people with rows on both sides: 10" in made.stderr
    info = result_of(cli("info", "both.h5", "--json"))
    assert (info["test_owners"], info["on_both_sides"]) == ("shared", 10)
    assert "people seen in training" in cli(*TRAIN, "run").stderr
    manifest = json.loads(Path("run/manifest.json").read_text())
    assert manifest["test_owners"] == "shared"
    assert "on_both_sides" not in Path("run/manifest.json").read_text()  # their number is private
    assert cli("verify", "run", "--features", "both.h5").status == 0
    assert cli("evaluate", "run", "both.h5").status == 0
    assert cli(*TRAIN, "again").status == 0  # the people of the test rows are private in the book of the first run
    assert cli("report", "run", "--html", "page.html").status == 0
    assert "people seen in training" in Path("page.html").read_text()
    assert cli("release", "run", "--out", "pub").status == 0
    assert "people seen in training" in Path("pub/README.md").read_text()
    refused(cli("attack", "run"), 2, ["both sides", "--owners-on-both-sides"])
    before = result_of(cli("budget", "both.h5", "--json"))["runs"]
    words = ["compare", "both.h5", "--unit", "owner", "--methods", "noisy-gd:steps=3", "--eps", "1", "--seeds", "1"]
    for further in (["--dry-run"], []):
        refused(cli(*words, "--attack", "--no-baselines", "--out", "compared", *further), 2, ["both sides"])
    assert result_of(cli("budget", "both.h5", "--json"))["runs"] == before
    del manifest["test_owners"]
    write_sealed(Path("run"), {**manifest, "test_owners": "apart"})
    refused(cli("verify", "run", "--features", "both.h5"), 4, ["test_owners"])


@pytest.mark.parametrize("sampled", [False, True])
def test_the_loss_of_a_person_covers_the_test_rows(cli: Callable[..., Any], overlap: Path, sampled: bool) -> None:
    for name, both in (("both", ["--owners-on-both-sides"]), ("apart", [])):
        if not both:
            arrays = dict(np.load(overlap))
            np.savez(overlap, **{**arrays, "owner_test": 50 + np.arange(60)})
        assert cli("import", overlap, "--private-test", *both, "--out", "both.h5", "--overwrite").status == 0
        method = ["--method", "dp-sgd", "--accountant", "rdp"] if sampled else []
        words = [
            name,
            "--test-epsilon",
            "20",
            "--delta",
            "1e-4",
            "--condition",
            "none",
            "--clip-norm",
            "100",
            *method,
        ]
        assert cli(*TRAIN, *words, "--eps", "30").status == 0  # the last --eps counts
    both, apart = (read_run(Path(name)).per_record.losses for name in ("both", "apart"))
    tests = [one for one in read_run(Path("both")).manifest.releases or () if one.purpose.startswith("test ")]
    charged = sum(one.noise_multiplier**-2 for one in tests)
    assert len(tests) == 2
    assert (both.mu**2).min() >= charged
    assert (apart.mu**2).min() < charged


def test_a_run_with_people_apart_does_not_state_the_choice(cli: Callable[..., Any], features_file: Path) -> None:
    assert cli("train", features_file, *TRAIN[2:8], "--out", "run").status == 0
    assert "test_owners" not in json.loads(Path("run/manifest.json").read_text())


def test_a_fraction_of_the_rows_is_taken_and_not_of_the_people(cli: Callable[..., Any], refused: Any) -> None:
    with Path("t.csv").open("w", newline="") as stream:
        lines = csv.writer(stream)
        lines.writerow(["a", "b", "y", "who"])
        lines.writerows([row / 7, (row * row) % 11, row % 2, f"p{row // 10}"] for row in range(200))
    words = ["import", "t.csv", "--label-column", "y", "--owner-column", "who", "--test-fraction", "0.3", "--out"]
    assert cli(*words, "apart.h5").status == 0
    assert cli(*words, "both.h5", "--owners-on-both-sides").status == 0
    both = result_of(cli("info", "both.h5", "--json"))
    assert both["on_both_sides"] > 10
    with h5py.File("both.h5", "a") as file:
        del file["test/owner"]
    assert result_of(cli("info", "both.h5", "--json"))["on_both_sides"] == 0
    assert result_of(cli("info", "apart.h5", "--json"))["on_both_sides"] is None
    alone = [*words[:4], "--test-fraction", "0.3", "--out", "c.h5", "--owners-on-both-sides"]
    with Path("u.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([["a", "y"], *([row / 7, row % 2] for row in range(50))])
    alone[1] = "u.csv"
    refused(cli(*alone), 2, ["--owners-on-both-sides", "no owners"])


def test_both_releases_of_a_person_on_both_sides_are_charged(
    cli: Callable[..., Any], refused: Any, overlap: Path
) -> None:
    assert cli("import", overlap, "--out", "both.h5", "--owners-on-both-sides", "--private-test").status == 0
    assert cli(*TRAIN, "run", "--test-epsilon", "1.1").status == 0
    manifest = json.loads(Path("run/manifest.json").read_text())
    assert {one["purpose"] for one in manifest["releases"]} >= {"gradient", "test accuracy"}
    assert manifest["epsilon"] <= 3
    again = cli("evaluate", "run", "both.h5", "--epsilon", "1.1", "--unit", "owner", "--json")
    assert result_of(again)["n_test"] == 20
    assert "2 runs on" in again.stderr  # the books have rows and owners in common
    assert 3 < result_of(cli("budget", "both.h5", "--json"))["epsilon"] < 4.2
    public = [*TRAIN, "shots", "--public-shots", "1"]
    refused(cli(*public), 4, ["people who have private rows too"])


def test_a_page_counts_evaluations_on_people_of_both_sides(cli: Callable[..., Any], overlap: Path) -> None:
    assert cli("import", overlap, "--out", "both.h5", "--owners-on-both-sides", "--private-test").status == 0
    assert cli(*TRAIN, "run").status == 0  # its book has no key of the test rows
    assert cli("evaluate", "run", "both.h5", "--epsilon", "3", "--unit", "owner").status == 0
    together = rounded_up(result_of(cli("budget", "both.h5", "--json"))["epsilon"])
    assert cli("release", "run", "--out", "pub").status == 0
    assert f"runs on this file only | epsilon {together} at delta" in Path("pub/README.md").read_text()


def test_images_of_a_person_on_both_sides(cli: Callable[..., Any], refused: Any) -> None:
    images = np.random.default_rng(0).integers(0, 255, (40, 8, 8), dtype=np.uint8)
    Path("photos").mkdir()
    with Path("photos.csv").open("w", newline="") as stream:
        lines = csv.writer(stream)
        lines.writerow(["file", "who", "kind"])
        for row, image in enumerate(images):
            Image.fromarray(image).save(f"photos/{row}.png")
            lines.writerow([f"photos/{row}.png", f"p{row // 8}", "ab"[row % 2]])
    words = ["extract", "--table", "photos.csv", "--path-column", "file", "--label-column", "kind"]
    words += ["--backbone", "pixels", "--test-fraction", "0.3", "--out", "images.h5"]
    assert cli(*words, "--owner-column", "who", "--owners-on-both-sides").status == 0
    info = result_of(cli("info", "images.h5", "--json"))
    assert info["test_owners"] == "shared"
    assert info["on_both_sides"] > 2
    refused(cli(*words, "--overwrite", "--owners-on-both-sides"), 2, ["--owners-on-both-sides", "no owners"], notes=1)
