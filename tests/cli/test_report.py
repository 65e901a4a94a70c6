"""`linprobe report`: a valid run gets a page, an invalid run is refused, and the page contains nothing private."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linprobe.accounting.events import NO_CHOICE
from linprobe.accounting.per_instance import RecordLosses
from linprobe.runs.officer_page import report_script
from linprobe.runs.run_folder import (
    PerRecordFile,
    RunFolder,
    commitment,
    per_record_digest,
    read_per_record,
    write_per_record,
)
from tests.cli.outcomes import NOISY, Cli, result_of
from tests.cli.test_signature import write_keys


def page_of(cli: Cli, run: Path, *words: object) -> str:
    """The page that `report` writes for a run, without the script that each has, and with the copy of the run."""
    outcome = cli("report", run, "--html", "page.html", "--overwrite", *words)
    assert (outcome.status, outcome.stdout) == (0, "page.html\n"), outcome
    before, script, after = re.split("<script>|</script>", Path("page.html").read_text(encoding="utf-8"))
    assert script == report_script()
    return before + after


def reseal(run: Path, **changes: Any) -> None:
    """Change the manifest and compute its digest anew, as a forger would."""
    path = run / "manifest.json"
    manifest = {**json.loads(path.read_text()), **changes}
    content = {key: value for key, value in manifest.items() if key != "manifest_digest"}
    text = json.dumps(content, sort_keys=True, ensure_ascii=False)
    manifest["manifest_digest"] = hashlib.sha256(text.encode()).hexdigest()
    path.write_text(json.dumps(manifest, ensure_ascii=False))


def test_page_of_a_private_run_states_its_guarantee_and_digests(cli: Cli, trained_run: Path) -> None:
    manifest = json.loads((trained_run / "manifest.json").read_text())
    text = page_of(cli, trained_run)
    for words in (f"costs no more than {manifest['guarantee']}.", manifest["adjacency"], manifest["manifest_digest"]):
        assert words in text
    for name, digest in manifest["files"].items():
        assert name in text
        assert digest in text
    assert stat.S_IMODE(Path("page.html").stat().st_mode) == 0o666 & ~current_mask()


def test_page_names_data_owner_and_claim_and_no_version_to_install(cli: Cli, trained_run: Path) -> None:
    manifest = json.loads((trained_run / "manifest.json").read_text())
    text = page_of(cli, trained_run, "--title", "Flower <probe>", "--owner", "Botanic Institute")
    assert text.count("Flower &lt;probe&gt;") == 2
    assert "Botanic Institute" in text
    assert f"{manifest['n_private']:,} private rows, {manifest['n_public']:,} public rows" in text
    assert "leave its place empty, or put it back" in text
    assert f"Trained with {manifest['method']}" in text
    assert "pip install" not in text
    plain = page_of(cli, trained_run)
    assert "Botanic Institute" not in plain
    assert f"Privacy report: {manifest['method']}, run" in plain


def test_a_page_is_matched_to_its_release_by_the_run_id(cli: Cli, trained_run: Path) -> None:
    text, run_id = page_of(cli, trained_run), json.loads((trained_run / "manifest.json").read_text())["run_id"]
    assert "run id" in text
    assert text.count(f"<bdi>{run_id}</bdi>") == text.count(f"<code>{run_id}</code>") == 1
    assert cli("release", trained_run, "--out", "pub").status == 0
    assert json.loads(Path("pub/manifest.json").read_text())["run_id"] == run_id


def test_a_page_says_whether_the_run_is_signed(
    cli: Cli, features_file: Path, trained_run: Path, tmp_path: Path
) -> None:
    key, _ = write_keys(tmp_path, "key")
    assert cli("train", features_file, *NOISY, "--steps", "2", "--out", "signed", "--sign", key).status == 0
    signed, plain = page_of(cli, tmp_path / "signed"), page_of(cli, trained_run)
    assert "This run is signed: give --public-key" in signed
    assert "This run is not signed: nothing shows who made it" in plain
    assert "is not signed" not in signed
    assert "is signed:" not in plain


def test_the_claim_names_what_is_not_protected(
    cli: Cli, features_file: Path, trained_run: Path, tmp_path: Path
) -> None:
    def claim(run: Path) -> str:
        return page_of(cli, run).partition("<blockquote>")[2].partition("</blockquote>")[0]

    words = ("train", features_file, *NOISY, "--method", "adamix", "--public-shots", "1", "--out", "shots")
    assert cli(*words).status == 0
    public = RunFolder(tmp_path / "shots").manifest.public_collection
    assert f"Not protected: the public rows, including {public}, and the test rows." in claim(tmp_path / "shots")
    assert "of purpose" not in claim(trained_run)
    words = (
        "train",
        features_file,
        "--method",
        "dp-sgd",
        "--eps",
        "5",
        "--steps",
        "2",
        "--accountant",
        "rdp",
        "--public-shots",
        "1",
    )
    assert cli(*words, "--init", "shots", "--out", "next").status == 0
    assert f"Epsilon holds if {NO_CHOICE}." in claim(tmp_path / "next")


def test_the_verdict_says_in_plain_words_what_was_promised(cli: Cli, trained_run: Path) -> None:
    text = " ".join(page_of(cli, trained_run).split())
    for words in (
        "Private: epsilon 3, for every single record.", "To each of 400 private records.",
        "right in at most 64.05 % of", "for any method, allow 95.26 %",
        "and the results on test rows, which are not protected",
        "keys and files that are stated, not checked",
    ):  # fmt: skip
        assert words in text


def test_a_promise_that_protects_almost_nothing_is_not_praised(
    cli: Cli, features_file: Path, trained_run: Path
) -> None:
    assert cli("train", features_file, *NOISY[:2], "--eps", "60", "--centre", "none", "--out", "weak").status == 0
    weak, usual = page_of(cli, Path("weak")), page_of(cli, trained_run)
    promise = "At this epsilon the promise protects almost nothing"  # as verify.html says
    assert (weak.count(promise), usual.count(promise)) == (2, 0)
    assert (weak.count("can hardly tell"), usual.count("can hardly tell")) == (0, 2)
    assert '<div class="verdict unsure plainly">' in weak
    assert '<div class="verdict good plainly">' in usual


def test_a_run_without_a_guarantee_makes_no_claim(cli: Cli, features_file: Path, tmp_path: Path) -> None:
    assert cli("train", features_file, "--method", "non-private", "--out", tmp_path / "open").status == 0
    text = page_of(cli, tmp_path / "open")
    assert "No claim of privacy may be made for this model." in text
    assert "Trained with" not in text


def current_mask() -> int:
    """The process's umask, which can be read only by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_the_run_is_read_from_standard_input(cli: Cli, trained_run: Path) -> None:
    outcome = cli("report", "-", "--html", "page.htm", stdin=f"{trained_run}\n")
    assert (outcome.status, outcome.stdout) == (0, "page.htm\n"), outcome


def test_same_run_gives_the_same_page(cli: Cli, trained_run: Path) -> None:
    assert page_of(cli, trained_run) == page_of(cli, trained_run)


def test_figures_of_single_records_are_on_no_page(cli: Cli, run_copy: Path) -> None:
    text = page_of(cli, run_copy)
    assert "histogram" in text  # how to publish one
    assert "--publish-epsilon" in text
    assert "train/0" not in text
    assert "PRIVATE" not in text
    # a run folder without the private figures gives the same page
    (run_copy / "per_record.npz").unlink()
    assert page_of(cli, run_copy) == text


def test_published_histogram_is_tabled(cli: Cli, run_copy: Path) -> None:
    published = result_of(cli("pdp-report", run_copy, "--publish-epsilon", "0.5", "--json"))["published"]
    run = Path(published["run"])
    text = page_of(cli, run)
    for count in published["noisy_counts"]:
        assert f"<td>{count:,}</td>" in text
    assert "published histogram of privacy losses" in text
    assert "--publish-epsilon" not in text
    assert cli("pdp-report", run, "--publish-epsilon", "0.5").status == 0
    assert "histogram 2" in page_of(cli, run.with_suffix(".published-2"))


def test_histogram_the_ledger_did_not_pay_for_is_refused(cli: Cli, refused: Cli, run_copy: Path) -> None:
    exact = {"bin_edges": [0, 1], "noisy_counts": [400]}
    path = run_copy / "published_histogram_1.json"
    path.write_text(json.dumps(exact))
    files = json.loads((run_copy / "manifest.json").read_text())["files"]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    release = {"what": "histogram", "epsilon": 0.5, "noise_multiplier": 1e-9, "file": path.name}
    reseal(run_copy, published=[release], files={**files, path.name: digest})
    for words in (("verify", run_copy), ("report", run_copy, "--html", "page.html")):
        refused(cli(*words), 4, ["published histograms", "ledger"])


@pytest.mark.parametrize("damage", ["no digest", "no counts", "one edge too few"])
def test_damaged_histogram_is_refused(cli: Cli, refused: Cli, run_copy: Path, damage: str) -> None:
    assert cli("pdp-report", run_copy, "--publish-epsilon", "0.5").status == 0
    run = run_copy.with_name(f"{run_copy.name}.published-1")
    path = run / "published_histogram_1.json"
    histogram = json.loads(path.read_text())
    files = json.loads((run / "manifest.json").read_text())["files"]
    if damage == "no counts":
        del histogram["noisy_counts"]
    if damage == "one edge too few":
        del histogram["bin_edges"][-1]
    path.write_text(json.dumps(histogram))
    files[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    if damage == "no digest":
        del files[path.name]
    reseal(run, files=files)
    refused(cli("report", run, "--html", "page.html"), 4, [path.name])


# invalid runs


@pytest.mark.parametrize("sealed", [True, False])
def test_edited_manifest_gets_no_page(cli: Cli, refused: Cli, run_copy: Path, tmp_path: Path, sealed: bool) -> None:
    path = run_copy / "manifest.json"
    if sealed:
        reseal(run_copy, epsilon=0.1)
    else:
        path.write_text(path.read_text().replace('"n_test": 120', '"n_test": 121'))
    refused(cli("report", run_copy, "--html", "page.html"), 4, [])
    assert not (tmp_path / "page.html").exists()


def test_edited_weights_leave_an_older_page_alone(cli: Cli, refused: Cli, run_copy: Path) -> None:
    Path("page.html").write_text("old")
    np.savez(run_copy / "model.npz", weights=np.zeros((10, 4)), bias=np.zeros(4))
    refused(cli("report", run_copy, "--html", "page.html", "--overwrite"), 4, ["model.npz"])
    assert Path("page.html").read_text() == "old"


def test_wrong_places_are_refused(cli: Cli, refused: Cli, trained_run: Path, tmp_path: Path) -> None:
    refused(cli("report", trained_run, "--html", "page.pdf"), 2, ["'.pdf'", ".html"])
    (tmp_path / "file").touch()
    refused(cli("report", trained_run, "--html", "file/page.html"), 1, ["file/page.html cannot be made"])
    (tmp_path / "folder.html").mkdir()
    refused(cli("report", trained_run, "--html", "folder.html"), 2, ["folder.html is a folder"])
    refused(cli("report", tmp_path, "--html", "page.html"), 3, ["not a run folder"])


# runs without a guarantee, and runs that do not use private rows


def test_run_without_protection_says_so(cli: Cli, features_file: Path, tmp_path: Path) -> None:
    assert cli("train", features_file, "--method", "non-private", "--out", "run").status == 0
    text = page_of(cli, tmp_path / "run")
    assert "NO GUARANTEE" in text
    assert "costs no more than" not in text
    assert "may reveal single private records" in text
    assert "The best attack" not in text


def test_seeded_run_says_that_it_is_not_private(cli: Cli, features_file: Path, tmp_path: Path) -> None:
    seeded = [*NOISY, "--noise-seed", "7", "--insecure-seed"]
    assert cli("train", features_file, *seeded, "--out", "run").status == 0
    text = page_of(cli, tmp_path / "run")
    assert "NOT PRIVATE" in text
    assert "costs no more than" not in text
    assert "if the seed were secret" in text
    assert "The best attack" not in text
    assert "--publish-epsilon" not in text


def test_run_without_private_rows_says_so(cli: Cli, features_file: Path, tmp_path: Path) -> None:
    assert cli("train", features_file, "--method", "only-public", "--out", "run").status == 0
    text = page_of(cli, tmp_path / "run")
    assert "the private rows were not used. Epsilon is 0" in text
    assert "nothing was released with noise" in text


def test_run_on_samples_and_from_another_counts_both(cli: Cli, features_file: Path, tmp_path: Path) -> None:
    assert cli("train", features_file, *NOISY, "--out", "first").status == 0
    sampled = ["--method", "dp-sgd", "--eps", "5", "--accountant", "rdp", "--init", "first", "--out", "run"]
    assert cli("train", features_file, *sampled).status == 0
    text = page_of(cli, tmp_path / "run")
    assert "released by the run it started from" in text
    assert "counted here in full" in text
    assert "from all pairs of epsilon and delta, Renyi DP" in text
    assert str(tmp_path) not in text


def test_folders_of_the_owner_are_not_named(cli: Cli, features_file: Path, trained_run: Path) -> None:
    text = page_of(cli, trained_run)
    assert features_file.name in text
    assert str(features_file.parent) not in text
    assert str(trained_run.parent) not in text


def test_names_of_classes_are_escaped(cli: Cli, make_features: Callable[..., Path], tmp_path: Path) -> None:
    names = ["<script>alert(1)</script>", '" onload="x', "</table><img src=x>", "A & B"]
    features = make_features(tmp_path / "odd.h5", class_names=names)
    assert cli("train", features, *NOISY, "--out", "run").status == 0
    text = page_of(cli, tmp_path / "run")
    assert "<script" not in text
    assert "<img" not in text
    assert 'onload="x' not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "A &amp; B" in text


def test_a_moved_run_keeps_its_page_but_for_the_name(cli: Cli, run_copy: Path, tmp_path: Path) -> None:
    text = page_of(cli, run_copy)
    shutil.move(run_copy, tmp_path / "moved run")
    moved = page_of(cli, tmp_path / "moved run")
    assert "linprobe verify &#39;moved run&#39;" in moved
    assert moved.replace("&#39;moved run&#39;", run_copy.name).replace("moved run", run_copy.name) == text


def test_edited_figures_on_test_rows_are_refused(cli: Cli, run_copy: Path, refused: Callable[..., None]) -> None:
    path = run_copy / "test_figures.json"
    path.write_text(path.read_text().replace('"balanced_accuracy": 0.', '"balanced_accuracy": 1.', 1) + " ")
    for words in (["verify", run_copy], ["report", run_copy, "--html", "page.html"]):
        refused(cli(*words), 4, ["test_figures.json"])
    path.unlink()
    refused(cli("verify", run_copy), 4, ["test_figures.json", "missing"])


def test_names_of_records_are_not_held_twice_while_they_are_compared(tmp_path: Path) -> None:
    names = [f"train/{number:032d}" for number in range(50_000)]
    losses = RecordLosses(np.ones(len(names)), np.zeros((len(names), 0), dtype=np.float32))
    write_per_record(tmp_path, PerRecordFile(names, losses, b"key"))
    stored = np.array(names).nbytes
    tracemalloc.start()
    found = read_per_record(tmp_path, commitment(b"key", per_record_digest(names, losses)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.ids == names
    assert peak < 2 * stored
