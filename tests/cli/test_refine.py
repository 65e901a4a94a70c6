"""Refinement with public rows without labels: `import` of X alone, `train --unlabelled`, `refine`, `verify`."""

from __future__ import annotations

import csv
import errno
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import h5py
import numpy as np
import pytest
from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant

from linprobe import FullyPrivate, NoisyGD, OnlyPublic, load_run
from linprobe.accounting.events import INHERITED
from linprobe.data.dataset import open_features
from linprobe.data.feature_reader import Description
from linprobe.data.feature_writer import FeatureWriter
from linprobe.data.labels import id_hashes
from linprobe.errors import DataError, PrivacyError, UsageError
from linprobe.mechanisms.correct_predictions import GAIN, gain
from linprobe.mechanisms.gaussian import ClippedSum
from linprobe.methods.class_counts import CLASS_COUNTS
from linprobe.methods.similar_rows import SIMILAR_ROWS
from linprobe.runs import refined_weights, refinement
from linprobe.runs.run_folder import read_run
from linprobe.training import execute, train
from tests.cli.outcomes import NOISY, Cli, result_of, write_sealed
from tests.conftest import N_FEATURES, gaussian_rows, write_unlabelled
from tests.hostile.officer import officer
from tests.hostile.runs import sealed

SEED = ["--noise-seed", "1", "--insecure-seed"]
STEPS = [*NOISY[:2], "--eps", "1", "--steps", "4", "--public-shots", "0"]
BACK = {"class_names": ("ant", "bee", "cat", "dog"), "backbone": "test"}


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return write_unlabelled(tmp_path / "u.h5")


@pytest.fixture
def refined(cli: Cli, monkeypatch: pytest.MonkeyPatch, private_file: Path, rows: Path) -> Path:
    """A run, `run`, and the run that rows without labels made of it; 1 run in 30 has too much noise for either."""
    monkeypatch.setattr(refined_weights, "DIFFERENT", 1.0)  # the rows have few columns
    monkeypatch.setattr(refined_weights, "ALIKE", 1.1)
    for _ in range(6):
        assert cli("train", private_file, *STEPS, "--out", "run").status == 0
        outcome = cli("refine", "run", rows, "--out", "refined", "--json")
        if outcome.status == 0 and result_of(outcome)["strength"] > 0:
            break
        for folder in ("run", "refined"):
            shutil.rmtree(folder, ignore_errors=True)
    return Path("refined").absolute()


def test_arrays_without_labels_become_rows(cli: Cli, tmp_path: Path) -> None:
    x = gaussian_rows("unlabelled", 30)[0]
    np.savez(tmp_path / "u.npz", X=x, id=np.array([f"photo {row}" for row in range(30)]))
    outcome = cli("import", "u.npz", "--out", "u.h5")
    assert outcome.status == 0
    assert "30 unlabelled rows" in outcome.stderr
    assert result_of(cli("info", "u.h5", "--json"))["rows"] == {"rows": 30}
    with open_features(tmp_path / "u.h5", labelled=False) as features:
        np.testing.assert_array_equal(features.rows("rows", slice(0, 30)), x)
        assert features.ids("rows")[3] == "photo 3"


def test_arrays_with_some_labels_are_refused(cli: Cli, refused: Callable[..., None], tmp_path: Path) -> None:
    x, y = gaussian_rows("unlabelled", 30)
    np.savez(tmp_path / "both.npz", X=x, y=y)
    refused(cli("import", "both.npz", "--out", "u.h5"), 3, ["training labels are private", "--classes"])
    np.save(tmp_path / "X.npy", x)
    np.save(tmp_path / "X_train.npy", x)
    refused(cli("import", "X.npy", "X_train.npy", "--out", "u.h5"), 2, ["X alone"])


def test_a_refined_run_names_its_parent_as_it_was_given(cli: Cli, refined: Path, rows: Path, tmp_path: Path) -> None:
    Path("link").symlink_to(Path("run").rename(tmp_path / "patient-smith"))
    assert cli("refine", "link", rows, "--out", "of-link").status == 0
    assert "smith" not in Path("of-link/manifest.json").read_text()
    assert cli("verify", "of-link", "--run", "link").status == 0


def test_a_refined_run_costs_the_same_and_says_what_it_is(cli: Cli, refined: Path, rows: Path) -> None:
    run, before = read_run(refined), read_run(Path("run"))
    assert run.manifest.epsilon == before.manifest.epsilon
    assert run.manifest.releases == before.manifest.releases
    stated = run.manifest.refined
    assert stated is not None
    assert (stated.run, stated.run_digest) == ("run", before.manifest.manifest_digest)
    assert (stated.rows, stated.file) == (200, str(rows))
    assert stated.strength > 0
    np.testing.assert_array_equal(run.unrefined[0], before.weights)
    assert not np.array_equal(run.weights, before.weights)
    assert before.manifest.refined is None
    assert (refined / "ledger.jsonl").read_bytes() == Path("run/ledger.jsonl").read_bytes()
    assert run.manifest.test_accuracy == result_of(cli("evaluate", refined, "--json"))["test_accuracy"]


def test_test_rows_among_the_unlabelled_ones_are_noted(cli: Cli, private_file: Path, tmp_path: Path) -> None:
    new, words = gaussian_rows("unlabelled", 60)[0], ["--methods", "noisy-gd:steps=3", "--seeds", "1", "--jobs", "1"]
    with open_features(private_file) as features:
        x = features.rows("test", slice(0, 40))
        for name, known in {"some": x[:25] * np.float32(2), "none": x[:0]}.items():
            with FeatureWriter(tmp_path / f"{name}.h5", Description(class_names=(), backbone="test")) as writer:
                rows = np.concatenate([new, known])
                writer.write_group(
                    "rows", len(rows), N_FEATURES, [rows], None, [f"u/{row}" for row in range(len(rows))]
                )
    said = {}
    for name in ("some", "none"):
        run = ["train", private_file, *STEPS, "--unlabelled", f"{name}.h5", "--out", f"{name}-trained"]
        compared = ["compare", private_file, *words, "--eps", "1", "--unlabelled", f"{name}.h5", "--out", name]
        assert cli("train", private_file, *STEPS, "--out", f"{name}-run").status == 0
        refine = ["refine", f"{name}-run", f"{name}.h5", "--out", f"{name}-refined"]
        for command in ([*run, "--dry-run"], run, [*compared, "--dry-run"], compared, refine):
            outcome = cli(*command)
            assert outcome.status == 0
            said[name] = [*said.get(name, []), "25 of the 120 test rows" in " ".join(outcome.stderr.split())]
    assert said == {"some": [True] * 5, "none": [False] * 5}


def test_a_refinement_that_gets_no_name_leaves_nothing(
    cli: Cli, refused: Callable[..., None], refined: Path, rows: Path, tmp_path: Path
) -> None:
    with mock.patch("pathlib.Path.rename", side_effect=OSError(errno.EIO, "Input/output error")):
        refused(cli("refine", "run", rows, "--out", "second"), 1, ["run second cannot be written"])
    assert not list(tmp_path.glob(".second.*"))


def test_verify_follows_the_chain(cli: Cli, refined: Path, rows: Path, private_file: Path) -> None:
    alone = result_of(cli("verify", refined, "--max-eps", "1", "--json"))
    assert {"refined", "model.npz", "unrefined.npz"} <= set(alone["stated_not_checked"])
    chain = ["verify", refined, "--unlabelled", rows, "--run", "run", "--features", private_file, "--json"]
    proved = result_of(cli(*chain))["stated_not_checked"]
    assert not {"refined", "model.npz", "unrefined.npz"} & set(proved)


def _forge(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    manifest = json.loads((run / "manifest.json").read_text())
    change(manifest)
    write_sealed(run, manifest)


def _other_weights(name: str) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        with np.load(run / name) as archive:
            arrays = dict(archive)
        np.savez(run / name, weights=arrays["weights"] * np.float32(1.5), bias=arrays["bias"])
        _forge(run, lambda manifest: None)

    return change


FORGERIES: dict[str, Callable[[Path], None]] = {
    "other weights": _other_weights("model.npz"),
    "other weights before": _other_weights("unrefined.npz"),
    "other rows": lambda run: _forge(run, lambda found: found["refined"].update(digest="0" * 64)),
    "another number of rows": lambda run: _forge(run, lambda found: found["refined"].update(rows=7)),
    "another strength": lambda run: _forge(
        run, lambda found: found["refined"].update(strength=(found["refined"]["strength"] + 0.5) % 1)
    ),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_refinement_is_refused_with_its_rows(cli: Cli, refined: Path, rows: Path, name: str) -> None:
    FORGERIES[name](refined)
    assert cli("verify", refined, "--unlabelled", rows).status == 4


def test_public_shots_tell_rows_of_another_kind(
    cli: Cli, refused: Callable[..., None], private_file: Path, rows: Path, tmp_path: Path
) -> None:
    np.savez(tmp_path / "other.npz", X=-gaussian_rows("unlabelled", 200)[0])
    assert cli("import", "other.npz", "--out", "other.h5").status == 0
    assert cli("train", private_file, "--method", "only-public", "--public-shots", "3", "--out", "run").status == 0
    for given, near in ((rows, True), (tmp_path / "other.h5", False)):
        out = Path(f"by-{given.stem}")
        assert cli("refine", "run", given, "--out", out).status == 0
        stated = read_run(out).manifest.refined
        assert stated is not None
        assert stated.near_shots is not None
        assert (2 * stated.near_shots["near"] > stated.near_shots["of"]) == (stated.strength > 0) == near
        proof = ["verify", out, "--unlabelled", given, "--features", private_file]
        assert cli(*proof).status == 0
        trained = ["train", private_file, "--method", "only-public", "--public-shots", "3", "--unlabelled", given]
        assert cli(*trained, "--out", f"train-{given.stem}").status == 0
        again = read_run(Path(f"train-{given.stem}")).manifest.refined
        assert again is not None
        assert (again.near_shots, again.strength) == (stated.near_shots, stated.strength)
        alone = result_of(cli(*proof[:4], "--json"))["stated_not_checked"]
        assert "refined" in alone
        assert "model.npz" not in alone
        for near_shots, words in (({"near": 1, "of": 2}, proof), ({"near": 13, "of": 12}, proof[:2])):
            _forge(out, lambda found, new=near_shots: found["refined"].update(near_shots=new))
            refused(cli(*words), 4, [f"refined.near_shots is {near_shots}"])


def test_shots_of_a_run_with_another_public_file_are_proved(
    cli: Cli, refused: Callable[..., None], private_file: Path, rows: Path, tmp_path: Path
) -> None:
    x, y = gaussian_rows("other", 20)
    with FeatureWriter(tmp_path / "public.h5", Description(**BACK)) as writer:
        writer.write_group("train", 20, N_FEATURES, [x], y, [f"p/{row}" for row in range(20)])
    words = ["--method", "only-public", "--public-shots", "3", "--public", "public.h5", "--unlabelled", rows]
    assert cli("train", private_file, *words, "--out", "run").status == 0
    proof = ["verify", "run", "--unlabelled", rows, "--features", private_file]
    assert cli(*proof).status == 0
    _forge(Path("run"), lambda found: found["refined"]["near_shots"].update(near=0))
    refused(cli(*proof), 4, ["refined.near_shots is {'near': 0, 'of': 12}"])


def test_labelled_rows_of_another_file_tell_rows_of_another_kind(cli: Cli, private_file: Path, tmp_path: Path) -> None:
    """For a method without a budget: private rows cannot tell."""
    x, y = gaussian_rows("other", 60)
    with FeatureWriter(tmp_path / "public.h5", Description(**BACK)) as writer:
        writer.write_group("train", 60, N_FEATURES, [x], y, [f"p/{row}" for row in range(60)])
    words = ["train", private_file, "--method", "only-public", "--public", "public.h5", "--public-shots", "0"]
    for kind, sign in (("alike", 1), ("other", -1)):
        np.savez(f"{kind}.npz", X=sign * gaussian_rows("unlabelled", 300)[0])
        assert cli("import", f"{kind}.npz", "--out", f"{kind}.h5").status == 0
        assert cli(*words, "--unlabelled", f"{kind}.h5", "--out", kind).status == 0
        stated = read_run(Path(kind)).manifest.refined
        assert stated is not None
        assert (stated.near_shots is not None, stated.strength > 0) == (True, kind == "alike")
        assert cli("verify", kind, "--unlabelled", f"{kind}.h5", "--features", private_file).status == 0
        with officer(tmp_path) as page:
            assert "refused" not in page.run(Path(kind))
        given = {"X_public": x, "y_public": y, "X_unlabelled": sign * gaussian_rows("unlabelled", 300)[0]}
        with_u = OnlyPublic(classes=range(4)).fit(*gaussian_rows("train", 400), **given)
        plain = OnlyPublic(classes=range(4)).fit(*gaussian_rows("train", 400), X_public=x, y_public=y)
        assert np.array_equal(plain.coef_, with_u.coef_) == (kind == "other")


def test_verify_and_the_page_refuse_what_no_run_has_together(
    cli: Cli, private_file: Path, rows: Path, tmp_path: Path
) -> None:
    assert cli("train", private_file, *STEPS, "--unlabelled", rows, "--out", "run").status == 0
    manifest = read_run(Path("run")).manifest
    assert manifest.centre == "private"
    assert manifest.refined.similar.share(400) > 0.5
    forged: list[dict[str, Any]] = [{"centre": "unlabelled"}]
    honest = json.loads(Path("run/manifest.json").read_text())
    forged += [{"refined": {**honest["refined"], "near_shots": {"near": 5, "of": 12}}}]
    with officer(tmp_path) as page:
        assert "refused" not in page.run(Path("run"))
        for changes in forged:
            write_sealed(Path("run"), {**honest, **changes})
            assert cli("verify", "run").status == 4
            assert "refused" in page.run(Path("run"))


def test_a_refinement_without_the_feature_file_verifies_with_it(cli: Cli, private_file: Path, rows: Path) -> None:
    own, moved = Path(shutil.copy(private_file, "own.h5")), Path("moved.h5")
    assert cli("train", own, "--method", "only-public", "--public-shots", "3", "--out", "run").status == 0
    own.rename(moved)
    assert cli("refine", "run", rows, "--out", "refined").status == 0
    stated = read_run(Path("refined")).manifest.refined
    assert stated is not None
    assert stated.near_shots is None
    assert cli("verify", "refined", "--unlabelled", rows, "--features", moved).status == 0


@pytest.mark.parametrize("key", ["run_digest", "run"])
def test_half_a_parent_is_refused(cli: Cli, refused: Callable[..., None], refined: Path, key: str) -> None:
    _forge(refined, lambda found: found["refined"].update({key: None}))
    refused(cli("verify", refined), 4, ["refined names run"])


def test_another_parent_is_refused(cli: Cli, refused: Callable[..., None], refined: Path, private_file: Path) -> None:
    assert cli("train", private_file, *STEPS, "--out", "other").status == 0
    refused(cli("verify", refined, "--run", "other"), 4, ["manifest digest", "--run"])
    _other_weights("model.npz")(Path("run"))
    assert cli("verify", refined, "--run", "run").status == 4
    refused(cli("verify", "other", "--run", "run"), 2, ["was not refined"])


def test_training_refines_as_refine_does(
    cli: Cli, refused: Callable[..., None], private_file: Path, rows: Path
) -> None:
    assert cli("train", private_file, *STEPS, "--out", "direct", "--unlabelled", rows).status == 0
    run = read_run(Path("direct"))
    assert run.manifest.refined is not None
    assert run.manifest.refined.run is None
    proved = result_of(cli("verify", "direct", "--unlabelled", rows, "--json"))["stated_not_checked"]
    assert "model.npz" not in proved
    assert "unlabelled" in Path("direct/config.toml").read_text()
    refused(cli("refine", "direct", rows, "--out", "twice"), 2, ["refined already", "give another run"])
    refused(cli("predict", "direct", rows, "--together"), 2, ["refined already", "leave out --together"])
    refused(cli("verify", "direct", "--run", "run"), 2, ["by train itself", "leave out --run"])


def test_train_names_the_rows_that_refine_it(cli: Cli, private_file: Path, rows: Path) -> None:
    words = ["train", private_file, *STEPS, *SEED, "--out", "run", "--unlabelled", rows]
    with open_features(rows, labelled=False) as opened:
        count = opened.sizes["rows"]
    planned = cli(*words, "--dry-run")
    assert f"{count} public rows without labels" in planned.stdout
    assert result_of(cli(*words, "--dry-run", "--json"))["unlabelled_rows"] == count
    assert f"refined with {count} rows without labels, strength " in cli(*words).stderr
    assert "without labels" not in cli("train", private_file, *STEPS, "--out", "plain", "--dry-run").stdout


def test_refinement_reads_no_private_row(
    cli: Cli, refined: Path, private_file: Path, rows: Path, tmp_path: Path
) -> None:
    """The run's feature file is gone, or has other public test rows: the refined bits are the same."""
    copy = Path(shutil.copy(private_file, tmp_path / "copy.h5"))
    with h5py.File(copy, "r+") as file:
        file["test/x"][:] = -file["test/x"][:]
    manifest = json.loads(Path("run/manifest.json").read_text())
    for name, features in (("other-test-rows", copy), ("gone", tmp_path / "absent.h5")):
        shutil.copytree("run", f"run-{name}")
        write_sealed(Path(f"run-{name}"), {**manifest, "features": str(features)})
        assert cli("refine", f"run-{name}", rows, "--out", name).status == 0
        assert Path(name, "model.npz").read_bytes() == (refined / "model.npz").read_bytes()
        assert read_run(Path(name)).manifest.test_accuracy is None  # its test rows are not those of the run


@pytest.mark.parametrize("exchanged", ["features", "a public shot"])
@pytest.mark.parametrize(
    "method", [["only-public"], ["adamix", "--eps", "3", "--steps", "2"]], ids=lambda words: words[0]
)
def test_nothing_is_written_if_one_private_row_of_the_run_was_exchanged(
    cli: Cli, refused: Callable[..., None], private_file: Path, rows: Path, method: list[str], exchanged: str
) -> None:
    """Else the published figures or weights would tell. `only-public` does not depend on the features of such a row."""
    own = Path(shutil.copy(private_file, "own.h5"))
    assert cli("train", own, "--method", *method, "--public-shots", "3", "--out", "run").status == 0
    assert cli("refine", "run", rows, "--out", "before").status == 0
    with h5py.File(own, "r+") as file:
        ids, labels = [name.decode() for name in file["train/id"][:]], file["train/y"][:]
        of_class = np.flatnonzero(labels == labels[0])
        row = of_class[np.argmax(id_hashes([ids[place] for place in of_class], 0))]  # of the most private id
        file["train/x"][row] = -file["train/x"][row]
        if exchanged == "a public shot":
            file["train/id"][row] = min(
                (f"new/{number}" for number in range(9999)), key=lambda name: id_hashes([name], 0)[0]
            )
    outcome = cli("refine", "run", rows, "--out", "after")
    if (method[0], exchanged) == ("only-public", "features"):
        for name in ("manifest.json", "model.npz", "test_figures.json"):
            one, other = (Path(folder, name).read_bytes() for folder in ("before", "after"))
            assert one == other or name == "manifest.json"
        return
    refused(outcome, 3, ["own.h5 does not hold the rows of run run any more", "restore the file"])
    assert not list(Path().glob("*after*"))


def _copies(path: Path, group: str, source: Path) -> Path:
    with open_features(source) as features:
        stolen = 2 * features.rows(group, slice(0, 1))
    rows = np.concatenate([gaussian_rows("unlabelled", 20)[0], stolen])
    with FeatureWriter(path, Description(class_names=(), backbone="test")) as writer:
        writer.write_group("rows", len(rows), N_FEATURES, [rows], None, [f"u/{row}" for row in range(len(rows))])
    return path


def test_private_rows_among_the_rows_are_refused(
    cli: Cli, refused: Callable[..., None], private_file: Path, tmp_path: Path
) -> None:
    leaky = _copies(tmp_path / "leaky.h5", "train", private_file)
    refused(cli("train", private_file, *STEPS, "--out", "run", "--unlabelled", leaky), 4, ["leaky.h5", "--unlabelled"])
    assert not Path("run").exists()
    assert cli("train", private_file, *STEPS, "--out", "run").status == 0
    refused(cli("refine", "run", leaky, "--out", "refined"), 4, ["leaky.h5", "would leak"])
    assert not Path("refined").exists()


def test_rows_that_do_not_fit_are_refused(
    cli: Cli, refused: Callable[..., None], private_file: Path, tmp_path: Path
) -> None:
    assert cli("train", private_file, *STEPS, "--out", "run").status == 0
    (tmp_path / "text.h5").write_text("no feature file")
    wrong = {
        private_file: "labelled rows",
        write_unlabelled(tmp_path / "one.h5", 1): "1 row",
        write_unlabelled(tmp_path / "wide.h5", width=N_FEATURES + 1): f"{N_FEATURES + 1} features",
        tmp_path / "absent.h5": "does not exist",
        tmp_path / "text.h5": "not an HDF5 file",
    }
    for path, words in wrong.items():
        refused(cli("train", private_file, *STEPS, "--out", "new", "--unlabelled", path), 3, [words])
        refused(cli("refine", "run", path, "--out", "new"), 3, [words])
        assert not Path("new").exists()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--method", "non-private", "--public-shots", "0"], "adds no noise"),
        ([*STEPS, "--output", "vote", "--ensemble", "2"], "votes"),
    ],
)
def test_runs_that_cannot_be_refined_are_refused(
    cli: Cli, refused: Callable[..., None], private_file: Path, rows: Path, words: list[str], why: str
) -> None:
    refused(cli("train", private_file, *words, "--out", "run", "--unlabelled", rows), 2, [why])
    assert cli("train", private_file, *words, "--out", "run").status == 0
    refused(cli("predict", "run", rows, "--together"), 2, [why])
    assert cli("refine", "run", rows, "--out", "refined").status in (2, 4)


def test_rows_predicted_together(cli: Cli, private_file: Path) -> None:
    assert cli("train", private_file, *STEPS, "--eps", "0.3", "--out", "run").status == 0
    alone, together = (
        list(csv.DictReader(io.StringIO(cli("predict", "run", private_file, *words).stdout)))
        for words in ([], ["--together"])
    )
    names, truth = BACK["class_names"], gaussian_rows("test", 120)[1]
    hits = [sum(row["label"] == names[k] for row, k in zip(found, truth, strict=True)) for found in (alone, together)]
    assert [row["id"] for row in alone] == [row["id"] for row in together]
    assert hits[1] >= hits[0] - 1
    assert [row["score"] for row in alone] != [row["score"] for row in together]


@pytest.mark.filterwarnings("error")
def test_no_rows_predicted_together(cli: Cli, private_file: Path) -> None:
    assert cli("train", private_file, *STEPS, "--eps", "3", "--out", "run").status == 0
    np.save("none.npy", np.zeros((0, read_run(Path("run")).weights.shape[0]), np.float32))
    predicted = cli("predict", "run", "none.npy", "--together")
    assert (predicted.status, predicted.stdout.splitlines()[1:]) == (0, [])


def test_a_comparison_refines_its_private_runs(cli: Cli, private_file: Path, rows: Path) -> None:
    vote = "noisy-gd:steps=6:output=vote:ensemble=3"  # which cannot be refined
    tuned = "noisy-gd:steps=2:score-noise=0.3/1:repetitions=2"
    methods = f"noisy-gd:steps=3,{vote},{tuned}"
    words = ["--methods", methods, "--eps", "1", "--seeds", "1", "--jobs", "1", "--out", "compared"]
    result_of(cli("compare", private_file, *words, "--json"))
    result_of(cli("compare", private_file, *words, "--unlabelled", rows, "--json"))
    found = [read_run(folder).manifest for folder in Path("compared/runs").iterdir() if folder.is_dir()]
    by_method = sorted((one.method, one.options.get("output"), one.refined is not None) for one in found)
    assert sum(refined for _, _, refined in by_method) == 1
    assert [output for _, output, refined in by_method if refined] == ["average"]
    assert len(by_method) == 5
    assert {Path(one.refined.file) for one in found if one.refined} == {rows}


def test_a_refined_run_exports_releases_and_publishes(cli: Cli, refined: Path, rows: Path) -> None:
    assert cli("release", refined, "--out", "released").status == 0
    assert cli("verify", "released", "--unlabelled", rows).status == 0
    assert cli("verify", "released", "--run", "run").status == 0
    assert cli("report", refined, "--html", "page.html").status == 0
    for page in ("released/README.md", "page.html"):
        assert "public rows without labels" in Path(page).read_text(encoding="utf-8")
    assert "`unrefined.npz`" in Path("released/README.md").read_text(encoding="utf-8")
    assert cli("export", refined, "--to", "safetensors", "--out", "probe.safetensors").status == 0
    assert cli("pdp-report", refined, "--publish-epsilon", "0.5").status == 0
    assert cli("verify", f"{refined}.published-1", "--unlabelled", rows).status == 0
    assert cli("verify", f"{refined}.published-1", "--run", "run").status == 0
    assert cli("pdp-report", "run", "--publish-epsilon", "0.5").status == 0
    assert cli("verify", f"{refined}.published-1", "--run", "run.published-1").status == 4


@pytest.mark.parametrize(
    ("named", "edit"),
    [("device", {"device": "cuda:0"}), ("features", {"features": "other.h5"}), ("steps", {"steps": 99})],
)
def test_a_refined_run_states_what_its_parent_states(
    cli: Cli, refused: Cli, refined: Path, tmp_path: Path, named: str, edit: dict[str, Any]
) -> None:
    assert cli("verify", refined, "--run", "run").status == 0
    copy = shutil.copytree(refined, tmp_path / "forged")
    sealed(copy, **edit)
    refused(cli("verify", copy, "--run", "run"), 4, [named])


@pytest.mark.parametrize("published", [False, True])
def test_the_ledger_of_a_refined_run_is_its_parents(cli: Cli, refined: Path, tmp_path: Path, published: bool) -> None:
    if published:
        assert cli("pdp-report", refined, "--publish-epsilon", "0.5").status == 0
        refined = refined.with_name(f"{refined.name}.published-1")
    copy = shutil.copytree(refined, tmp_path / "forged")
    events = [json.loads(line) for line in (copy / "ledger.jsonl").read_text().splitlines()]
    quiet = [{**event, "noise_multiplier": 1e3 * event["noise_multiplier"]} for event in events]
    (copy / "ledger.jsonl").write_text("".join(json.dumps(event) + "\n" for event in quiet))
    sealed(copy)
    with pytest.raises(PrivacyError, match="names ledger"):
        refinement._check_parent(read_run(copy), read_run(copy).manifest.refined, read_run(Path("run")))


def test_an_estimator_refines_as_the_command_does(private_file: Path) -> None:
    x, y = gaussian_rows("train", 400)
    u = gaussian_rows("unlabelled", 200)[0]
    options = {"epsilon": 1, "n_steps": 4, "classes": range(4), "insecure_seed": 3}
    plain, refined = (NoisyGD(**options).fit(x, y, X_unlabelled=given) for given in (None, u))
    assert not np.array_equal(plain.coef_, refined.coef_)
    assert refined.privacy_["epsilon_if_seed_were_secret"] <= 1
    purposes = [[one["purpose"] for one in found.privacy_["releases"]] for found in (plain, refined)]
    assert purposes[1] == ["similar rows", *purposes[0], "refinement gain"]
    with pytest.raises(PrivacyError, match="X_unlabelled holds rows of X"):
        NoisyGD(**options).fit(x, y, X_unlabelled=np.concatenate([u, x[:1]]))
    for kind in (NoisyGD(**options), OnlyPublic(classes=range(4))):
        with pytest.raises(PrivacyError, match="X_public holds rows of X"):
            kind.fit(x, y, X_public=np.concatenate([u[:8], 3 * x[:1]]), y_public=y[:9])
    with pytest.raises(DataError, match="has 1 row;"):
        NoisyGD(**options).fit(x, y, X_unlabelled=u[:1])
    with pytest.raises(UsageError, match="votes"):
        NoisyGD(**options, output="vote", ensemble=2).fit(x, y, X_unlabelled=u)


def test_rows_that_fully_private_protects_are_not_public(
    cli: Cli, refused: Callable[..., None], private_file: Path, features_file: Path, tmp_path: Path
) -> None:
    with open_features(features_file) as features:
        x = features.rows("public", slice(None))
    with FeatureWriter(tmp_path / "u.h5", Description((), backbone="test")) as writer:
        u = np.concatenate([gaussian_rows("unlabelled", 30)[0], x[:1]])
        writer.write_group("rows", len(u), N_FEATURES, [u], None, list(map(str, range(len(u)))))
    words = ["train", "--method", "fully-private", "--eps", "3", "--steps", "3"]
    for source, more in ((features_file, []), (private_file, ["--public", features_file])):
        given = [*words, source, *more]
        refused(cli(*given, "--unlabelled", "u.h5", "--out", "out"), 4, ["u.h5 holds rows of group public", "protects"])
        assert cli(*given, "--condition", "mean", "--eps", "20", "--out", f"run {len(more)}").status == 0
        refused(cli("refine", f"run {len(more)}", "u.h5", "--out", "out"), 4, ["rows that the method protects"])
    with pytest.raises(PrivacyError, match="X_unlabelled holds"):
        FullyPrivate(epsilon=3, classes=range(4), n_steps=3).fit(
            *gaussian_rows("train", 400), X_public=x, y_public=np.arange(len(x)) % 4, X_unlabelled=u
        )


def test_a_loaded_run_has_the_refined_weights(refined: Path) -> None:
    np.testing.assert_array_equal(load_run(refined).coef_.T, read_run(refined).weights)


@pytest.mark.parametrize(
    ("words", "uniform"), [(["--class-counts", "yes"], False), (["--class-weight", "balanced"], True)]
)
def test_a_run_with_counts_is_refined_by_estimated_shares_before_it_is_balanced(
    cli: Cli, private_file: Path, rows: Path, words: list[str], uniform: bool
) -> None:
    """Rows without labels have the shares of the training rows, also where the bias is for equal ones."""
    words = [*words, "--eps", "3"]  # at 1, noise leaves 1 run in 250 without a centre
    with open_features(rows, labelled=False) as opened:
        u = opened.rows("rows", slice(None))
    assert cli("train", private_file, *STEPS, *words, "--out", "run").status == 0
    plain, names = read_run(Path("run")), read_run(Path("run")).manifest.class_names
    shift = np.log(0.25) - np.log(plain.class_shares) if uniform else np.zeros(4)
    unshifted = plain.weights, (plain.bias - shift).astype(np.float32)
    together = refined_weights.refined_weights(u, *unshifted, refinement.known_of(plain), together=True)
    predicted = list(csv.DictReader(io.StringIO(cli("predict", "run", rows, "--together").stdout)))
    expected = [names[best] for best in (together.scores + shift).argmax(axis=1)]
    assert np.mean([row["label"] == name for row, name in zip(predicted, expected, strict=True)]) > 0.99
    assert cli("refine", "run", rows, "--out", "later").status == 0
    assert cli("train", private_file, *STEPS, *words, "--unlabelled", rows, "--out", "at once").status == 0
    for folder in ("later", "at once"):
        run = read_run(Path(folder))
        assert cli("verify", folder, "--unlabelled", rows).status == 0
        weights, bias = run.unrefined
        shift = np.log(0.25) - np.log(run.class_shares) if uniform else np.zeros(4)
        found = refined_weights.refined_weights(u, weights, (bias - shift).astype(np.float32), refinement.known_of(run))
        if run.manifest.refined.strength:
            np.testing.assert_allclose(run.weights, found.weights, atol=1e-3 * np.abs(found.weights).max())
            np.testing.assert_allclose(run.bias, found.bias + shift, atol=1e-3 * np.abs(found.bias).max())


def test_a_finished_run_without_centre_is_refused(
    cli: Cli, refused: Callable[..., None], private_file: Path, rows: Path
) -> None:
    plain = ["train", private_file, *STEPS, "--condition", "none"]
    assert cli(*plain, "--out", "run").status == 0
    refused(cli("refine", "run", rows, "--out", "refined"), 2, ["not centred", "train with --unlabelled"])
    assert cli(*plain, "--unlabelled", rows, "--out", "counted").status == 0
    assert read_run(Path("counted")).manifest.refined.similar.count > 200


def test_a_finished_run_on_few_columns_stays_as_it_is(cli: Cli, private_file: Path, rows: Path) -> None:
    command = ["8" if word == "1" else word for word in STEPS]  # so that noise does not hide that rows have a mean
    assert cli("train", private_file, *command, "--out", "run").status == 0
    assert "strength 0.00, which leaves the weights as they were" in cli("refine", "run", rows, "--out", "same").stderr
    np.testing.assert_array_equal(read_run(Path("same")).weights, read_run(Path("run")).weights)
    assert cli("verify", "same", "--unlabelled", rows, "--run", "run").status == 0


FORGED_COUNTS: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "none": (lambda found: found["refined"].update(similar=None), "need each other"),
    "other noise": (lambda found: found["refined"]["similar"].update(std=1.0), "with its noise"),
    "too few for the centre": (lambda found: found["refined"]["similar"].update(count=0.0), "too few rows"),
    "no gain": (lambda found: found["refined"].update(gain=None), "need each other"),
    "other noise of the gain": (lambda found: found["refined"]["gain"].update(std=1.0), "with its noise"),
    "a gain beyond all expectation": (
        lambda found: found["refined"]["gain"].update(expected=0.5),
        "allowed: from -0.02 to 0.02",
    ),
    "impossible gain": (lambda found: found["refined"]["gain"].update(count=1e9), "gain.count is 1e+09 of 400"),
    "harm": (
        lambda found: found["refined"].update(strength=0.5, gain={**found["refined"]["gain"], "count": -1000.0}),
        "refinement harms",
    ),
}


@pytest.mark.parametrize("name", FORGED_COUNTS)
def test_the_centre_and_the_number_of_similar_rows_are_checked(
    cli: Cli, refused: Callable[..., None], monkeypatch: pytest.MonkeyPatch, private_file: Path, rows: Path, name: str
) -> None:
    monkeypatch.setattr("linprobe.training.plan.MOST_NOISE", 0.1)  # the budget buys no mean
    words = ["train", private_file, *STEPS, "--eps", "0.35", "--unlabelled", rows]
    planned = cli(*words, "--dry-run")
    assert "1 release for similar rows" in planned.stdout
    assert "mean of the rows without labels" in planned.stdout
    assert result_of(cli(*words, "--dry-run", "--json"))["centre"] == "unlabelled"
    assert cli(*words, *SEED, "--out", "run").status == 0
    assert read_run(Path("run")).manifest.centre == "unlabelled"
    change, why = FORGED_COUNTS[name]
    manifest = json.loads(Path("run/manifest.json").read_text())
    assert why not in cli("verify", "run").stderr
    change(manifest)
    write_sealed(Path("run"), manifest)
    assert why in cli("verify", "run").stderr


def test_the_count_decides_what_unlabelled_rows_do(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, private_file: Path, tmp_path: Path
) -> None:
    monkeypatch.setattr("linprobe.training.plan.MOST_NOISE", 0.1)  # the budget buys no mean
    other = tmp_path / "other.h5"
    rows = gaussian_rows("unlabelled", 200)[0] * np.float32([-1, 1]).repeat(N_FEATURES // 2) + 7
    with FeatureWriter(other, Description(class_names=(), backbone="test")) as writer:
        writer.write_group("rows", 200, N_FEATURES, [rows], None, [f"u/{row}" for row in range(200)])
    told = cli("train", private_file, *STEPS, *SEED, "--eps", "0.2", "--unlabelled", other, "--out", "run")
    assert "few private rows are near rows without labels" in told.stderr
    assert "refined with" not in told.stderr
    run = read_run(Path("run"))
    assert (run.manifest.centre, run.manifest.refined.strength) == ("none", 0.0)
    np.testing.assert_array_equal(run.weights, run.unrefined[0])
    assert cli("report", "run", "--out", "report.html").status == 0
    assert "200 public rows without labels did not change the weights" in Path("report.html").read_text()
    with officer(tmp_path) as page:
        assert "That public rows without labels did not change the model." in page.run(Path("run"))["stated"]


def test_weights_stay_where_private_rows_lose_by_refinement(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, private_file: Path, rows: Path
) -> None:
    def lost(old: Any, new: Any, n_tracked: int) -> ClippedSum:
        assert 0 < old[0] <= old[1] == new[1] == 400
        return gain((new[0] + 300, new[1]), new, n_tracked)

    monkeypatch.setattr(execute, "gain", lost)
    told = cli("train", private_file, *STEPS, "--unlabelled", rows, "--out", "run")
    assert "fewer private rows are labelled right after refinement, by a noisy count" in told.stderr
    assert "did not change the weights" in told.stderr
    run = read_run(Path("run"))
    assert run.manifest.refined.gain.count == pytest.approx(-300, abs=6 * run.manifest.refined.gain.std)
    assert run.manifest.refined.strength == 0
    np.testing.assert_array_equal(run.weights, run.unrefined[0])
    assert cli("verify", "run", "--unlabelled", rows, "--features", private_file).status == 0
    assert cli("release", "run", "--out", "new").status == 0
    assert "200 public rows without labels, which did not change the weights" in Path("new/README.md").read_text()


@pytest.mark.parametrize(
    ("share", "says"),
    [
        (0.59, ["few people are near", "59.0% by a noisy count", "did not change"]),
        (0.7485, ["strength 0.40", "99% of full strength", "at least 74.9%"]),
        (0.75, ["refined with 200 rows without labels, strength 0.40"]),
        (None, ["refined with 200 rows without labels, strength 0.40"]),
    ],
)
def test_a_refinement_is_told_by_the_share_that_decided_it(
    monkeypatch: pytest.MonkeyPatch, share: float | None, says: list[str]
) -> None:
    notes: list[str] = []
    refined = SimpleNamespace(rows=200, strength=0.4, gain=None)
    manifest = SimpleNamespace(centre="none", refined=refined, test_accuracy_per_class=None, test_accuracy_std=None)
    monkeypatch.setattr(train, "similar_share", lambda _: share)
    plan = SimpleNamespace(settings=SimpleNamespace(condition="none"), unit="owner")
    train.tell(manifest, plan, None, SimpleNamespace(note=notes.append))
    (note,) = notes
    assert all(word in note for word in says), note
    assert (share in (0.75, None)) == note.endswith("strength 0.40")


@pytest.mark.parametrize("refined", [None, SimpleNamespace(rows=200, strength=0.4, gain=None)])
def test_a_run_that_cannot_be_refined_later_says_so(monkeypatch: pytest.MonkeyPatch, refined: Any) -> None:
    notes: list[str] = []
    stated = {"steps": 3, "refined": refined, "test_accuracy_per_class": None, "test_accuracy_std": None}
    monkeypatch.setattr(train, "similar_share", lambda _: None)
    plan = SimpleNamespace(settings=SimpleNamespace(condition="mean"), unit="record")
    train.tell(SimpleNamespace(centre="none", **stated), plan, None, SimpleNamespace(note=notes.append))
    assert "not centred" in notes[0]
    assert ("--unlabelled" in notes[0]) == (refined is None)


def test_a_sampled_run_pays_for_the_count(cli: Cli, features_file: Path, rows: Path) -> None:
    """Public rows with labels are protected by dp-sgd, so they are counted too."""
    sampled = ["--method", "dp-sgd", "--sampling-rate", "0.2", "--steps", "10", "--eps", "2", "--condition", "none"]
    words = [*sampled, "--class-counts", "yes", "--unlabelled", rows]
    assert cli("train", features_file, *words, "--out", "run").status == 0
    manifest = read_run(Path("run")).manifest
    by_purpose = {one.purpose: one for one in manifest.releases}
    assert set(by_purpose) == {CLASS_COUNTS, SIMILAR_ROWS, "gradient", GAIN}
    composed = PLDAccountant(value_discretization_interval=1e-3)  # rounds up, by less on a finer grid
    for one in by_purpose.values():
        released = GaussianDpEvent(one.noise_multiplier)
        sampled_release = released if one.sampling_rate == 1 else PoissonSampledDpEvent(one.sampling_rate, released)
        composed.compose(SelfComposedDpEvent(sampled_release, one.count))
    assert composed.get_epsilon(manifest.delta) <= manifest.epsilon <= 2
    assert manifest.refined.similar.count == pytest.approx(0.9 * 412, abs=5 * manifest.refined.similar.std)
    assert cli("verify", "run", "--unlabelled", rows, "--features", features_file, "--max-eps", "2").status == 0


def test_a_run_begins_with_refined_weights_and_inherits_the_count(
    cli: Cli, refused: Callable[..., None], private_file: Path, rows: Path
) -> None:
    assert cli("train", private_file, *STEPS, "--unlabelled", rows, "--out", "first").status == 0
    words = ["train", private_file, *STEPS, "--eps", "2", "--init", "first", "--unlabelled", rows]
    refused(cli(*words[:-2], "--out", "second"), 4, ["init run first was refined", "--unlabelled"])
    with open_features(rows, labelled=False) as features:
        private = features.rows("rows", slice(None))  # had no protection
    with pytest.raises(PrivacyError, match="was refined"):
        NoisyGD(epsilon=2, classes=range(4), init="first").fit(private, np.arange(len(private)) % 4)
    assert cli(*words, "--out", "second").status == 0
    first, second = (read_run(Path(name)).manifest for name in ("first", "second"))
    inherited = [one for one in second.releases if one.purpose == INHERITED]
    assert sum(one.count for one in inherited) == sum(one.count for one in first.releases)
    counted = {one.noise_multiplier for one in first.releases if one.purpose == SIMILAR_ROWS}
    assert counted <= {one.noise_multiplier for one in inherited}
    assert [one.count for one in second.releases if one.purpose == SIMILAR_ROWS] == [1]
    assert first.epsilon <= 1 < second.epsilon <= 2
    assert cli("verify", "second", "--unlabelled", rows, "--features", private_file, "--max-eps", "2").status == 0
    assert cli("release", "second", "--out", "released").status == 0
    assert cli("verify", "released", "--unlabelled", rows, "--max-eps", "2").status == 0


def test_private_test_rows_do_not_refine_a_finished_run(
    cli: Cli, refused: Callable[..., None], private_file: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copy(private_file, tmp_path / "f.h5"))
    with h5py.File(copy, "r+") as file:
        file.attrs["test_rows"] = "private"
        rows = file["test/x"][:]
    assert cli("train", copy, *STEPS, "--out", "run").status == 0
    np.savez(tmp_path / "held.npz", X=rows[:20])
    assert cli("import", "held.npz", "--out", "held.h5").status == 0
    refused(cli("refine", "run", "held.h5", "--out", "refined"), 4, ["private test rows", "would leak"], notes=9)
    assert not Path("refined").exists()


def _with_image_keys(path: Path, keys: dict[str, np.ndarray[Any, Any]]) -> None:
    with h5py.File(path, "r+") as file:
        for name, digests in keys.items():
            file[f"private_log/{name}_key"] = digests


@pytest.mark.parametrize("held", ["train", "test"])
def test_other_rows_of_private_images_do_not_refine(
    cli: Cli, refused: Callable[..., None], private_file: Path, rows: Path, tmp_path: Path, held: str
) -> None:
    copy = Path(shutil.copy(private_file, tmp_path / "f.h5"))
    with open_features(copy) as features, open_features(rows, labelled=False) as others:
        mine = np.random.default_rng(0).integers(1, 256, (features.sizes[held], 16), dtype=np.uint8)
        theirs = np.random.default_rng(1).integers(1, 256, (others.sizes["rows"], 16), dtype=np.uint8)
    theirs[3] = mine[5]
    with h5py.File(copy, "r+") as file:
        file.attrs["test_rows"] = "private"
    _with_image_keys(copy, {held: mine})
    _with_image_keys(rows, {"rows": theirs})
    words = ["images", "would leak"]
    refused(cli("train", copy, *STEPS, "--out", "early", "--unlabelled", rows), 4, words)
    assert cli("train", copy, *STEPS, "--out", "run").status == 0
    refused(cli("refine", "run", rows, "--out", "refined"), 4, words, notes=9)
    assert not Path("refined").exists()
