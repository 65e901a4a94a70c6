"""Checks for a privacy reviewer: an edited run is refused, every release is charged, the report stays private."""

from __future__ import annotations

import csv
import errno
import hashlib
import json
import math
import os
import re
import shutil
import signal
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from linprobe.accounting.accountants import AUTODP
from linprobe.accounting.figures import rounded_up
from linprobe.atomic_files import open_regular
from linprobe.cli import run
from linprobe.data.feature_file import FeatureFile
from linprobe.data.feature_reader import Description
from linprobe.data.feature_writer import FeatureWriter
from linprobe.runs import run_folder
from tests.cli.outcomes import NOISY, Cli, result_of, weights_of, write_sealed
from tests.processes import ended, start_copy


def test_seeded_noise_is_reproducible_and_not_private(cli: Cli, features_file: Path, tmp_path: Path) -> None:
    for name, seed in (("a", "7"), ("b", "7"), ("c", "8")):
        outcome = cli("train", features_file, *NOISY, "--noise-seed", seed, "--insecure-seed", "--out", name, "--json")
        result = result_of(outcome)
        assert (result["epsilon"], result["seed_kind"]) == (None, "insecure")
        assert "NOT PRIVATE" in outcome.stderr
    manifest = json.loads((tmp_path / "a" / "manifest.json").read_text())
    assert manifest["private"] is False
    assert manifest["guarantee"].startswith("not private")
    assert np.array_equal(weights_of(tmp_path / "a"), weights_of(tmp_path / "b"))
    assert not np.array_equal(weights_of(tmp_path / "a"), weights_of(tmp_path / "c"))
    assert cli("pdp-report", "a", "--publish-epsilon", "1").status == 4


def test_a_reviewer_is_not_told_to_open_the_private_file(
    cli: Cli, refused: Callable[..., None], run_copy: Path, features_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(path: Path) -> Any:
        if path.name == "per_record.npz":
            raise PermissionError(errno.EACCES, "Permission denied")
        return open_regular(path)

    monkeypatch.setattr(run_folder.atomic_files, "open_regular", denied)
    outcome = cli("verify", run_copy)
    assert (outcome.status, outcome.stdout) == (0, "verified\n")
    assert "per-record file: private, and this user may not read it; not checked" in outcome.stderr
    assert "per_record_commitment" in result_of(cli("verify", run_copy, "--json"))["stated_not_checked"]
    refused(cli("verify", run_copy, "--features", features_file), 1, ["is private", "ask the person who trained"])


def test_noise_differs_between_runs_without_a_seed(cli: Cli, trained_run: Path, features_file: Path) -> None:
    assert cli("train", features_file, *NOISY, "--out", "again").status == 0
    assert not np.array_equal(weights_of(Path("again")), weights_of(trained_run))


def test_good_run_is_verified_with_and_without_its_features(cli: Cli, trained_run: Path, features_file: Path) -> None:
    result = result_of(cli("verify", trained_run, "--features", features_file, "--json"))
    assert result["verified"] is True
    assert result["epsilon"] == pytest.approx(result["epsilon_cross_check"], rel=2e-3)
    assert result["epsilon"] == pytest.approx(result["epsilon_autodp"], rel=1e-9)
    assert result["data"] == "private rows match the run"
    assert "private_commitment" not in result["stated_not_checked"]
    outcome = cli("verify", trained_run)
    assert outcome.stdout == "verified\n"
    assert f", autodp {rounded_up(result['epsilon_autodp'])})" in outcome.stderr
    assert (result["private"], result["refused"], result["delta"]) == (True, None, 1e-5)


def test_a_run_that_autodp_judges_otherwise_is_refused_and_one_that_it_cannot_judge_is_not(
    cli: Cli, refused: Cli, trained_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AUTODP, "epsilon", lambda releases, delta: 3.1)
    refused(cli("verify", trained_run), 4, ["(autodp) finds epsilon 3.1"])
    monkeypatch.setattr(AUTODP, "epsilon", lambda releases, delta: math.nan)
    assert result_of(cli("verify", trained_run, "--json"))["epsilon_autodp"] is None


REFUSED: dict[str, list[str]] = {
    "seeded": [*NOISY, "--noise-seed", "7", "--insecure-seed"],
    "without privacy": ["--method", "non-private"],
}


@pytest.mark.parametrize("kind", REFUSED)
def test_run_that_is_not_private_is_refused_and_has_no_figures(
    cli: Cli, refused: Cli, features_file: Path, kind: str
) -> None:
    assert cli("train", features_file, *REFUSED[kind], "--out", "run").status == 0
    outcome = cli("verify", "run")
    refused(outcome, 4, ["run is not private"])
    as_json = cli("verify", "run", "--json")
    result = json.loads(as_json.stdout)
    assert (as_json.status, as_json.stderr) == (4, outcome.stderr)
    assert result["refused"] in outcome.stderr
    assert (result["verified"], result["private"]) == (False, False)
    assert {result[key] for key in ("epsilon", "epsilon_cross_check", "delta", "gdp_mu", "releases")} == {None}


def test_run_that_used_no_private_row_is_private(cli: Cli, features_file: Path) -> None:
    assert cli("train", features_file, "--method", "only-public", "--out", "run").status == 0
    result = result_of(cli("verify", "run", "--json", "--max-eps", "0", "--max-delta", "0"))
    assert (result["private"], result["epsilon"], result["delta"]) == (True, 0, 0)


def test_limits_refuse_more(cli: Cli, refused: Cli, trained_run: Path) -> None:
    assert cli("verify", trained_run, "--max-eps", "3", "--max-delta", "1e-5").status == 0
    refused(cli("verify", trained_run, "--max-eps", "2.99"), 4, ["--max-eps", "2.99"])
    refused(cli("verify", trained_run, "--max-eps", "3", "--max-delta", "9e-6"), 4, ["--max-delta", "9e-06", "1e-05"])
    near = "2.99999"
    refused(cli("verify", trained_run, "--max-eps", f"{near}99"), 4, ["has epsilon 3, above", f"--max-eps {near}99"])
    result = json.loads(cli("verify", trained_run, "--max-eps", "1", "--json").stdout)
    assert (result["verified"], result["private"]) == (False, True)
    assert result["epsilon"] == pytest.approx(3)
    for limit in ("-1", "nan"):
        refused(cli("verify", trained_run, "--max-eps", limit), 2, ["max-eps", limit])


@pytest.mark.parametrize("method", ["adamix", "fully-private"])
@pytest.mark.parametrize("public", ["group", "shots"])
def test_features_are_verified_whatever_became_of_the_public_rows(
    cli: Cli, features_file: Path, method: str, public: str
) -> None:
    shots = ["--public-shots", "3"] if public == "shots" else []
    assert cli("train", features_file, "--method", method, "--eps", "3", *shots, "--out", "run").status == 0
    outcome = cli("verify", "run", "--features", features_file)
    assert outcome.status == 0, outcome


def test_other_features_are_not_those_of_the_run(cli: Cli, refused: Cli, trained_run: Path, editable: Path) -> None:
    import h5py

    with h5py.File(editable, "r+") as file:
        file["train/x"][11, 3] += 0.25
    refused(cli("verify", trained_run, "--features", editable), 4, ["edited.h5", "private rows"])


def _edit_manifest(run: Path, *, sealed: bool, **changes: Any) -> None:
    """Change the manifest; with `sealed`, its own digest is computed anew, as a forger would."""
    path = run / "manifest.json"
    manifest = {**json.loads(path.read_text()), **changes}
    if sealed:
        content = {key: value for key, value in manifest.items() if key != "manifest_digest"}
        text = json.dumps(content, sort_keys=True, ensure_ascii=False)
        manifest["manifest_digest"] = hashlib.sha256(text.encode()).hexdigest()
    path.write_text(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n")


@pytest.mark.parametrize("key", ["epsilon", "test_accuracy", "n_private", "created", "method"])
def test_edited_manifest_is_refused(cli: Cli, refused: Cli, run_copy: Path, key: str) -> None:
    _edit_manifest(run_copy, sealed=False, **{key: 1})
    refused(cli("verify", run_copy), 4, ["manifest.json", "edited"])
    result = json.loads(cli("verify", run_copy, "--json").stdout)
    assert {result[name] for name in ("private", "epsilon", "delta", "gdp_mu")} == {None}


FORGERIES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "epsilon halved": lambda manifest: {"epsilon": manifest["epsilon"] / 2},
    "epsilon lowered a little": lambda manifest: {"epsilon": manifest["epsilon"] * 0.9999},
    "epsilon lowered by one bit": lambda manifest: {"epsilon": math.nextafter(manifest["epsilon"], 0)},
    "mu lowered by one bit": lambda manifest: {"gdp_mu": math.nextafter(manifest["gdp_mu"], 0)},
    "rho lowered by one bit": lambda manifest: {"zcdp_rho": math.nextafter(manifest["zcdp_rho"], 0)},
    "epsilon and mu halved": lambda manifest: {"epsilon": manifest["epsilon"] / 2, "gdp_mu": manifest["gdp_mu"] / 2},
    "delta lowered": lambda manifest: {"delta": 1e-9},
    "steps lowered": lambda manifest: {"steps": manifest["steps"] - 1},
    "noise raised": lambda manifest: {"noise_multiplier": manifest["noise_multiplier"] * 2},
    "rho halved": lambda manifest: {"zcdp_rho": manifest["zcdp_rho"] / 2},
    "target lowered": lambda manifest: {"epsilon_target": 1.0},
    "guarantee reworded": lambda manifest: {"guarantee": manifest["guarantee"].replace("(", "(0.", 1)},
    "epsilon is a word": lambda manifest: {"epsilon": "small"},
    "mu is no number": lambda manifest: {"gdp_mu": float("nan")},
    "target is no number": lambda manifest: {"epsilon_target": float("nan")},
    "delta above 1/N": lambda manifest: {"n_private": 200_000},
    "delta is no number": lambda manifest: {"delta": float("nan")},
    "weights not listed": lambda manifest: {
        "files": {name: digest for name, digest in manifest["files"].items() if name != "model.npz"}
    },
    "files are a list": lambda manifest: {"files": ["model.npz"]},
    "a seed among the options": lambda manifest: {"options": {**manifest["options"], "insecure_seed": 7}},
    "another source of noise": lambda manifest: {"noise_source": "user seed, not private"},
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_manifest_that_does_not_follow_from_the_ledger_is_refused(
    cli: Cli, refused: Cli, run_copy: Path, forgery: str
) -> None:
    changes = FORGERIES[forgery](json.loads((run_copy / "manifest.json").read_text()))
    _edit_manifest(run_copy, sealed=True, **changes)
    refused(cli("verify", run_copy), 4, [])


def test_sealing_an_unchanged_manifest_anew_is_accepted(cli: Cli, run_copy: Path) -> None:
    _edit_manifest(run_copy, sealed=True)
    assert cli("verify", run_copy).status == 0


CLAIMS: dict[str, dict[str, Any]] = {
    "to be private": {"private": True},
    "an epsilon": {"private": True, "epsilon": 1.0, "delta": 1e-5, "gdp_mu": 0.2, "guarantee": "(1, 1e-05)"},
    "not to have used private rows": {
        "guarantee": "the private rows were not used: epsilon = 0, delta = 0",
        "private": True, "epsilon": 0.0, "delta": 0.0, "gdp_mu": 0.0, "zcdp_rho": 0.0, "steps": 0, "releases": [],
    },
}  # fmt: skip


@pytest.mark.parametrize("claim", CLAIMS)
def test_run_without_privacy_that_claims_more_is_refused(
    cli: Cli, refused: Cli, features_file: Path, claim: str
) -> None:
    assert cli("train", features_file, "--method", "non-private", "--out", "run").status == 0
    _edit_manifest(Path("run"), sealed=True, **CLAIMS[claim])
    refused(cli("verify", "run"), 4, [])


def test_ledger_thrown_away_is_missed(cli: Cli, refused: Cli, run_copy: Path) -> None:
    """A run with noise whose ledger was emptied, dressed up as one that used no private row."""
    (run_copy / "ledger.jsonl").write_text("")
    files = json.loads((run_copy / "manifest.json").read_text())["files"]
    files["ledger.jsonl"] = hashlib.sha256(b"").hexdigest()
    _edit_manifest(run_copy, sealed=True, accountant=None, files=files, **CLAIMS["not to have used private rows"])
    refused(cli("verify", run_copy), 4, ["noisy-gd", "ledger is empty"])


def test_seeded_run_that_claims_to_be_private_is_refused(cli: Cli, refused: Cli, features_file: Path) -> None:
    outcome = cli("train", features_file, *NOISY, "--noise-seed", "7", "--insecure-seed", "--out", "run")
    assert outcome.status == 0
    manifest = json.loads(Path("run/manifest.json").read_text())
    _edit_manifest(Path("run"), sealed=True, private=True, epsilon=manifest["epsilon_if_seed_were_secret"])
    refused(cli("verify", "run"), 4, [])


def _edit_weights(run: Path) -> None:
    with np.load(run / "model.npz") as model:
        np.savez(run / "model.npz", weights=model["weights"] * 1.01, bias=model["bias"])


def _edit_ledger(change: Callable[[list[str]], list[str]]) -> Callable[[Path], None]:
    def edit(run: Path) -> None:
        path = run / "ledger.jsonl"
        path.write_text("".join(f"{line}\n" for line in change(path.read_text().splitlines())))

    return edit


def _less_noise(lines: list[str]) -> list[str]:
    event = json.loads(lines[4])
    return [*lines[:4], json.dumps({**event, "noise_multiplier": event["noise_multiplier"] / 2}), *lines[5:]]


EDITS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "weights": (_edit_weights, "model.npz"),
    "weights missing": (lambda run: (run / "model.npz").unlink(), "model.npz"),
    "ledger line removed": (_edit_ledger(lambda lines: lines[:-1]), "ledger.jsonl"),
    "ledger line repeated": (_edit_ledger(lambda lines: [*lines, lines[0]]), "ledger.jsonl"),
    "ledger line with less noise": (_edit_ledger(_less_noise), "ledger.jsonl"),
    "ledger line garbled": (_edit_ledger(lambda lines: [*lines, "{"]), "ledger.jsonl"),
    "ledger missing": (lambda run: (run / "ledger.jsonl").unlink(), "ledger.jsonl"),
    "history": (lambda run: (run / "history.csv").write_text(""), "history.csv"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_run_with_an_edited_file_is_refused(cli: Cli, refused: Cli, run_copy: Path, edit: str) -> None:
    change, word = EDITS[edit]
    change(run_copy)
    refused(cli("verify", run_copy), 4, [word])


@pytest.mark.parametrize("edit", ["ledger line removed", "ledger line repeated", "ledger line with less noise"])
def test_edited_ledger_is_refused_even_with_its_digest_renewed(
    cli: Cli, refused: Cli, run_copy: Path, edit: str
) -> None:
    EDITS[edit][0](run_copy)
    files = json.loads((run_copy / "manifest.json").read_text())["files"]
    digest = hashlib.sha256((run_copy / "ledger.jsonl").read_bytes()).hexdigest()
    _edit_manifest(run_copy, sealed=True, files={**files, "ledger.jsonl": digest})
    refused(cli("verify", run_copy), 4, ["ledger"])


# the per-record report


def test_report_is_bounded_by_the_worst_case_and_kept_private(cli: Cli, run_copy: Path, tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("old")
    (tmp_path / "r.csv").chmod(0o644)
    old_mask = os.umask(0)
    try:
        outcome = cli("pdp-report", run_copy, "--json", "--overwrite", "--csv", "r.csv", "--plot", "curve.svg")
        assert cli("pdp-report", run_copy, "--plot", "curve.png").status == 0
    finally:
        os.umask(old_mask)
    report = result_of(outcome)
    assert "PRIVATE" in outcome.stderr
    assert {"epsilon", "delta", "records", "max", "mean", "quantiles", "share_below_half"} <= set(report)
    with (tmp_path / "r.csv").open(newline="") as stream:
        records = list(csv.DictReader(stream))
    assert [record["id"] for record in records] == [f"train/{row:04d}" for row in range(400)]
    epsilons = np.array([float(record["epsilon"]) for record in records])
    assert report["max"] == pytest.approx(epsilons.max(), rel=1e-5)
    assert report["mean"] == pytest.approx(epsilons.mean(), rel=1e-4)
    assert report["max"] <= report["epsilon"] <= 3
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "curve.svg").read_text()
    for path in (tmp_path / "r.csv", tmp_path / "curve.svg", tmp_path / "curve.png", run_copy / "per_record.npz"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_report_of_a_seeded_run_says_that_nothing_holds(cli: Cli, features_file: Path, tmp_path: Path) -> None:
    outcome = cli("train", features_file, *NOISY, "--noise-seed", "7", "--insecure-seed", "--out", "run")
    assert outcome.status == 0
    outcome = cli("pdp-report", "run", "--csv", "r.csv", "--plot", "r.svg")
    assert "NOT PRIVATE" in outcome.stderr
    assert "worst case bound  none; 3 at delta 1e-05 if the seed were secret\n" in outcome.stdout
    report = result_of(cli("pdp-report", "run", "--json"))
    assert report["epsilon"] is report["gdp_mu"] is report["zcdp_rho"] is None
    assert report["epsilon_if_seed_were_secret"] == pytest.approx(3)
    assert report["guarantee"].startswith("not private")
    assert report["valid"].startswith("nowhere")
    assert (tmp_path / "r.csv").read_text().startswith("id,epsilon_if_seed_were_secret\n")
    assert "NOT PRIVATE" in (tmp_path / "r.svg").read_text()


def test_publishing_the_histogram_makes_a_run_that_is_charged_and_composes(
    cli: Cli, run_copy: Path, tmp_path: Path
) -> None:
    whole = {path.name: path.read_bytes() for path in run_copy.iterdir()}
    before = json.loads(whole["manifest.json"])
    spent, target, run = before["epsilon"], before["epsilon_target"], run_copy
    for count in (1, 2):
        outcome = cli("pdp-report", run, "--publish-epsilon", "0.5", "--json")
        published = result_of(outcome)["published"]
        run = run_copy.with_name(f"{run_copy.name}.published-{count}")
        assert published["run"] == str(run)
        assert Path(published["file"]) == run / f"published_histogram_{count}.json"
        manifest = json.loads((run / "manifest.json").read_text())
        assert manifest["run_id"] == before["run_id"]
        assert published["epsilon_of_run_now"] == manifest["epsilon"]
        assert str(tmp_path) not in Path(published["file"]).read_text()  # nor any folder of the owner
        assert spent < manifest["epsilon"] < spent + 0.5
        target += 0.5
        assert manifest["epsilon_target"] == pytest.approx(target)
        assert len(published["noisy_counts"]) == 20
        events = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
        assert [event["purpose"] for event in events] == ["gradient"] * 50 + ["histogram"] * count
        verified = result_of(cli("verify", run, "--features", before["features"], "--json"))
        assert verified["epsilon"] == pytest.approx(manifest["epsilon"])
        assert verified["releases"] == 50 + count
        assert stat.S_IMODE((run / "per_record.npz").stat().st_mode) == 0o600
        spent = manifest["epsilon"]
    assert len(manifest["published"]) == 2
    assert {path.name: path.read_bytes() for path in run_copy.iterdir()} == whole


@pytest.mark.parametrize("flag", ["--sign", "--book"])
def test_what_only_a_histogram_needs_is_refused_without_one(refused: Cli, cli: Cli, run_copy: Path, flag: str) -> None:
    refused(cli("pdp-report", run_copy, flag, "file"), 2, [f"option {flag} does nothing without --publish-epsilon"])


def test_a_second_histogram_is_published_from_the_run_with_the_first(cli: Cli, refused: Cli, run_copy: Path) -> None:
    first = run_copy.with_name(f"{run_copy.name}.published-1")
    assert cli("pdp-report", run_copy, "--publish-epsilon", "0.5").status == 0
    refused(cli("pdp-report", run_copy, "--publish-epsilon", "0.5"), 2, [f"linprobe pdp-report {first}"])


def test_nothing_is_published_from_an_edited_run(cli: Cli, refused: Cli, run_copy: Path) -> None:
    ledger, manifest = ((run_copy / name).read_bytes() for name in ("ledger.jsonl", "manifest.json"))
    _edit_manifest(run_copy, sealed=False, epsilon=0.1)
    refused(cli("pdp-report", run_copy, "--publish-epsilon", "0.5"), 4, ["edited"])
    (run_copy / "manifest.json").write_bytes(manifest)
    _edit_manifest(run_copy, sealed=True, paper="Anon 2030")
    refused(cli("pdp-report", run_copy, "--publish-epsilon", "0.5"), 4, ["paper"])
    assert (run_copy / "ledger.jsonl").read_bytes() == ledger


def test_run_folder_can_be_moved(cli: Cli, run_copy: Path, tmp_path: Path) -> None:
    shutil.move(run_copy, tmp_path / "moved")
    assert cli("verify", "moved").status == 0
    assert result_of(cli("pdp-report", "moved", "--json"))["records"] == 400


def test_edited_per_record_figures_are_refused(cli: Cli, refused: Cli, run_copy: Path) -> None:
    with np.load(run_copy / "per_record.npz") as archive:
        figures = dict(archive)
    np.savez(run_copy / "per_record.npz", **{**figures, "mu": 0 * figures["mu"]})
    refused(cli("verify", run_copy), 4, ["per_record.npz"])
    refused(cli("pdp-report", run_copy), 4, ["per_record.npz"])


def test_manifest_with_a_key_twice_is_refused(cli: Cli, refused: Cli, run_copy: Path) -> None:
    path = run_copy / "manifest.json"
    path.write_text(path.read_text().replace("{", '{"epsilon": 0.1,', 1))
    refused(cli("verify", run_copy), 4, ["manifest.json", "'epsilon' occurs twice"])


INCOMPLETE: dict[str, Callable[[Path], Any]] = {
    "no manifest": lambda run: (run / "manifest.json").unlink(),
    "half a manifest": lambda run: (run / "manifest.json").write_bytes((run / "manifest.json").read_bytes()[:900]),
    "no seal": lambda run: (run / "manifest.json").write_text(
        re.sub(r',\s*"manifest_digest": "\w+"', "", (run / "manifest.json").read_text())
    ),
    "a damaged per-record file": lambda run: (run / "per_record.npz").write_bytes(b"PK"),
}


@pytest.mark.parametrize("kind", INCOMPLETE)
def test_incomplete_run_is_refused(cli: Cli, refused: Cli, run_copy: Path, kind: str) -> None:
    INCOMPLETE[kind](run_copy)
    refused(cli("verify", run_copy), 4, [run_copy.name])


def test_folder_that_is_no_run_is_bad_data(cli: Cli, refused: Cli, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for folder, wrong in (("empty", "is not a run folder"), ("nowhere", "does not exist")):
        refused(cli("verify", folder), 3, [f"{folder} {wrong}"])
    (tmp_path / "run.zip").write_bytes(b"PK")
    for command in (["verify"], ["report", "--html", "page.html"]):
        refused(cli(*command, "run.zip"), 3, ["run.zip", "unpack it"])


def test_what_a_hub_adds_to_a_folder_is_named_and_refused(cli: Cli, refused: Cli, run_copy: Path) -> None:
    (run_copy / ".git").mkdir()
    (run_copy / ".gitattributes").touch()
    refused(cli("verify", run_copy), 4, ["'.git', '.gitattributes'", "hub", "a copy of the folder without"])


def test_what_is_not_checked_is_a_sentence_and_a_list_with_verbose(cli: Cli, trained_run: Path) -> None:
    short, long = (cli("verify", trained_run, *words).stderr for words in ((), ("--verbose",)))
    assert "whom it protects, how it was made, how accurate it is" in short
    assert "epsilon_target" not in short
    assert "epsilon_target, accountant_versions" in long
    assert "stated, not checked" not in cli("verify", trained_run, "--quiet").stderr


def test_a_public_row_that_is_private_too_is_refused(
    cli: Cli, refused: Cli, features_file: Path, tmp_path: Path
) -> None:
    with FeatureFile(features_file) as features:
        x, y = next(features.blocks("train"))
        names = features.description.class_names
    with FeatureWriter(tmp_path / "other.h5", Description(class_names=names)) as writer:
        for group, scale in (("train", 2.0), ("test", -1.0), ("public", 1.0)):
            writer.write_group(group, 8, x.shape[1], [scale * x[:8]], y[:8], [f"{group}{row}" for row in range(8)])
    outcome = cli("train", features_file, "--eps", "3", "--public", tmp_path / "other.h5", "--out", tmp_path / "run")
    refused(outcome, 4, ["other.h5", "private row"])


KILLED = {
    "before the noise": "linprobe.mechanisms.gaussian.GaussianMechanism._noised",
    "before the histogram is written": "linprobe.evaluation.pdp_report.write_derived",
    "before the manifest is written": "linprobe.runs.run_folder.write_manifest",
}


@pytest.mark.parametrize("moment", KILLED)
def test_a_publication_that_was_killed_is_charged_and_leaves_the_run_as_it_was(
    cli: Cli, run_copy: Path, features_file: Path, moment: str
) -> None:
    before = result_of(cli("budget", features_file, "--json"))["epsilon"]

    def killed() -> int:
        with mock.patch(KILLED[moment], side_effect=lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)):
            return run(["pdp-report", str(run_copy), "--publish-epsilon", "0.5"])

    assert ended(start_copy(killed)) == -signal.SIGKILL
    (partial,) = run_copy.parent.glob(f".{run_copy.name}.published-1.*.partial")
    assert '"purpose": "histogram"' in (partial / "ledger.jsonl").read_text()
    assert cli("verify", run_copy).status == 0
    charged = result_of(cli("budget", features_file, "--json"))["epsilon"]
    assert charged > before
    assert cli("pdp-report", run_copy, "--publish-epsilon", "0.5").status == 0
    assert cli("verify", f"{run_copy}.published-1").status == 0
    assert result_of(cli("budget", features_file, "--json"))["epsilon"] > charged


def test_a_complete_publication_without_its_name_gets_it_and_costs_nothing_more(
    cli: Cli, refused: Cli, run_copy: Path, features_file: Path
) -> None:
    with mock.patch("pathlib.Path.rename", side_effect=OSError(errno.EIO, "Input/output error")):
        outcome = cli("pdp-report", run_copy, "--publish-epsilon", "0.5")
    refused(outcome, 1, [".published-1 is complete without its name", "epsilon 0.5 for the histogram is spent"])
    charged = result_of(cli("budget", features_file, "--json"))["epsilon"]
    refused(cli("pdp-report", run_copy, "--publish-epsilon", "2"), 2, ["is 2", "complete histogram for epsilon 0.5"])
    refused(cli("pdp-report", run_copy, "--publish-epsilon", "0.5"), 2, ["was complete, and has its name now"])
    assert cli("verify", f"{run_copy}.published-1").status == 0
    assert result_of(cli("budget", features_file, "--json"))["epsilon"] == charged


def test_a_complete_publication_that_the_book_lacks_is_charged_before_it_gets_its_name(
    cli: Cli, refused: Cli, run_copy: Path, features_file: Path, own_books: Path, tmp_path: Path
) -> None:
    (book,) = own_books.glob("*.jsonl")
    earlier = book.read_bytes()
    with mock.patch("pathlib.Path.rename", side_effect=OSError(errno.EIO, "Input/output error")):
        assert cli("pdp-report", run_copy, "--publish-epsilon", "0.5").status == 1
    charged = result_of(cli("budget", features_file, "--json"))["epsilon"]
    book.write_bytes(earlier)
    before = result_of(cli("budget", features_file, "--json"))["epsilon"]
    assert cli("budget", features_file, "--set-cap", before + 1e-3).status == 0
    refused(cli("pdp-report", run_copy, "--publish-epsilon", "0.5"), 4, ["cap is epsilon"])
    assert not Path(f"{run_copy}.published-1").exists()
    book.write_bytes(earlier)
    refused(cli("pdp-report", run_copy, "--publish-epsilon", "0.5"), 2, ["was complete, and has its name now"])
    assert result_of(cli("budget", features_file, "--json"))["epsilon"] == charged > before


def test_a_publication_leaves_an_unfinished_training_run_of_its_name_alone(cli: Cli, run_copy: Path) -> None:
    unfinished = run_copy.with_name(f".{run_copy.name}.published-1.0123abcd.partial")
    unfinished.mkdir()
    (unfinished / "checkpoint.npz").write_bytes(b"of another run")
    assert cli("pdp-report", run_copy, "--publish-epsilon", "0.5").status == 0
    assert [path.name for path in unfinished.iterdir()] == ["checkpoint.npz"]


@pytest.mark.parametrize("torn", [False, True])
def test_a_ledger_with_a_release_that_the_manifest_does_not_state_is_refused(
    cli: Cli, refused: Cli, run_copy: Path, torn: bool
) -> None:
    path = run_copy / "ledger.jsonl"
    event = json.loads(path.read_text().splitlines()[-1])
    line = json.dumps({**event, "step": event["step"] + 1, "purpose": "histogram", "sampling_rate": 1.0}) + "\n"
    with path.open("a") as ledger:
        ledger.write(line[:40] if torn else line)
    for words in (["verify"], ["pdp-report"], ["pdp-report", "--publish-epsilon", "1"], ["report", "--html", "p.html"]):
        said = "is not an event" if torn and words[0] != "pdp-report" else "has digest"
        refused(cli(words[0], run_copy, *words[1:]), 4, ["ledger.jsonl", said])


def test_a_per_record_file_with_another_number_of_records_is_refused(cli: Cli, refused: Cli, run_copy: Path) -> None:
    ids, losses, key = run_folder.read_run(run_copy).per_record
    fewer = run_folder.PerRecordFile(ids[:-1], replace(losses, mu=losses.mu[:-1], renyi=losses.renyi[:-1]), key)
    run_folder.write_per_record(run_copy, fewer)
    digest = run_folder.per_record_digest(fewer.ids, fewer.losses)
    manifest = json.loads((run_copy / "manifest.json").read_text())
    write_sealed(run_copy, {**manifest, "per_record_commitment": run_folder.commitment(key, digest)})
    refused(cli("verify", run_copy), 4, ["n_private is 400", "per_record.npz names 399"])
