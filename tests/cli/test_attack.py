"""`linprobe attack` succeeds against a model that memorises and fails against a private one; its files are private."""

from __future__ import annotations

import json
import re
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from linprobe.data.dataset import open_features
from linprobe.data.feature_reader import Description
from linprobe.data.feature_writer import FeatureWriter
from linprobe.evaluation import attack
from linprobe.evaluation.attack import threshold_auc
from linprobe.runs import run_folder
from tests.cli.outcomes import NOISY, Cli, result_of
from tests.conftest import write_unlabelled
from tests.hostile.runs import sealed

KEYS = {
    "manifest_digest",
    "run", "method", "attack", "auc", "auc_low", "auc_high", "tpr_at_fpr", "tpr_limit_at_fpr", "tpr_limit_from",
    "compared", "members", "non_members", "confidence", "shadows", "epsilon", "delta", "private_output",
}  # fmt: skip
LIRA = ["--lira", "--shadows", "16", "--jobs", "1", "--resamples", "0"]


@pytest.fixture(scope="module")
def noise_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows that are independent of their labels, so that a model can only memorise them."""
    path = tmp_path_factory.mktemp("noise") / "noise.h5"
    rng = np.random.default_rng(0)
    with FeatureWriter(path, Description(class_names=("a", "b"), source="drawn for a test")) as writer:
        for group, size in (("train", 200), ("test", 200), ("public", 20)):
            rows = rng.standard_normal((size, 150)).astype(np.float32)
            labels = rng.integers(2, size=size)
            writer.write_group(group, size, 150, [rows], labels, [f"{group}/{row}" for row in range(size)])
    return path


def test_a_memorising_model_is_found_out_and_better_with_shadows(cli: Cli, noise_file: Path) -> None:
    training = ["--method", "non-private", "--weight-decay", "0.1", "--centre", "none"]
    assert cli("train", noise_file, *training, "--out", "run").status == 0
    threshold = result_of(cli("attack", "run", "--json"))
    lira = result_of(cli("attack", "run", "--json", *LIRA))
    assert threshold["auc_low"] > 0.6
    assert lira["auc"] >= threshold["auc"]
    assert (lira["attack"], lira["shadows"], threshold["shadows"]) == ("lira", 16, None)
    assert lira["auc_low"] is lira["tpr_limit_at_fpr"] is lira["epsilon"] is None


@pytest.mark.parametrize("attack", [[], LIRA])
def test_a_private_model_at_small_epsilon_is_near_guessing(cli: Cli, noise_file: Path, attack: list[str]) -> None:
    assert cli("train", noise_file, "--eps", "0.1", "--out", "run").status == 0
    result = result_of(cli("attack", "run", "--json", *attack))
    assert abs(result["auc"] - 0.5) < 0.12
    # below e^0.1 times the false-positive rate and delta, 0.01106, since mu is known
    assert result["tpr_limit_at_fpr"]["0.01"] == pytest.approx(0.0109002, abs=2e-7)


@pytest.mark.parametrize("method", ["dp-sgd", "fully-private", "zero-shot"])
def test_shadows_repeat_the_method_of_the_run(cli: Cli, method: str, features_file: Path) -> None:
    # the whole attack, so that an option in the manifest that a constructor refuses fails here
    budget = [] if method == "zero-shot" else ["--eps", "2"]
    few = ["--steps", "5"] if budget else []
    few += ["--sampling-rate", "1"] if method == "dp-sgd" else []  # its accounting is fast
    assert cli("train", features_file, "--method", method, *budget, *few, "--out", "run").status == 0
    result = result_of(cli("attack", "run", "--json", "--lira", "--shadows", "4", "--jobs", "1", "--resamples", "0"))
    assert (result["members"], result["non_members"]) == (400, 120)
    if method == "zero-shot":
        assert result["auc"] == 0.5


def test_processes_find_what_one_finds(cli: Cli, noise_file: Path) -> None:
    assert cli("train", noise_file, "--method", "non-private", "--out", "run").status == 0
    lira = ["attack", "run", "--json", "--lira", "--shadows", "4", "--resamples", "0", "--jobs"]
    one, two = (result_of(cli(*lira, jobs))["auc"] for jobs in (1, 2))
    assert one == pytest.approx(two, abs=1e-3)


def test_result_has_every_key_and_says_it_is_private(cli: Cli, trained_run: Path, features_file: Path) -> None:
    outcome = cli("attack", trained_run, "--json", "--resamples", "100")
    result = result_of(outcome)
    assert set(result) == KEYS
    assert set(result["tpr_at_fpr"]) == set(result["tpr_limit_at_fpr"]) == {"0.001", "0.01"}
    assert result["auc_low"] <= result["auc"] <= result["auc_high"]
    assert outcome.stderr == result["private_output"] + "\n"
    assert result["private_output"].startswith("PRIVATE: ")
    text = cli("attack", "-", "--features", features_file, "--resamples", "100", stdin=f"{trained_run}\n")
    assert [line.split()[0] for line in text.stdout.splitlines()] == ["attack", "rows", "AUC", "TPR", "TPR"]
    assert f"{result['auc']:.4f} ({result['auc_low']:.4f}" in text.stdout
    few, enough = text.stdout.splitlines()[-2:]
    assert result["tpr_at_fpr"]["0.001"] is None
    assert "0.1 %  not measurable with 120 non-members, at most" in few
    assert f"{100 * result['tpr_at_fpr']['0.01']:.2f} %, at most" in enough


@pytest.mark.parametrize("words", [["noisy-gd"], ["dp-sgd", "--accountant", "rdp"]])
def test_attack_and_page_state_the_same_limit(cli: Cli, features_file: Path, words: list[str]) -> None:
    assert cli("train", features_file, "--eps", "3", "--steps", "20", "--out", "run", "--method", *words).status == 0
    printed = cli("attack", "run", "--resamples", "0", "--out", "a.json").stdout
    limits = re.findall(r"at most (\S+) % by the guarantee", printed)
    assert cli("report", "run", "--html", "page.html").status == 0
    page = Path("page.html").read_text(encoding="utf-8")
    result = json.loads(Path("a.json").read_text())
    for rate, limit in zip(("0.10", "1.00"), limits, strict=True):
        assert f"{rate}\N{NO-BREAK SPACE}%</th><td>{limit}\N{NO-BREAK SPACE}%</td>" in page
    assert float(limits[1]) < 8  # (3, 1e-5) alone allows 20.09 %
    assert f"follow from {result['tpr_limit_from']}" in page


def test_files_are_private_and_hold_what_is_printed(cli: Cli, trained_run: Path, tmp_path: Path) -> None:
    outcome = cli("attack", trained_run, "--json", "--resamples", "0", "--out", "attack.json")
    assert json.loads((tmp_path / "attack.json").read_text()) == result_of(outcome)
    assert [path.name for path in tmp_path.iterdir()] == ["attack.json"]
    assert stat.S_IMODE((tmp_path / "attack.json").stat().st_mode) == 0o600


def test_voters_and_public_shots_are_taken_into_account(cli: Cli, private_file: Path, tmp_path: Path) -> None:
    votes = ["--output", "vote", "--ensemble", "3", "--public-shots", "2", "--split-seed", "5"]
    assert cli("train", private_file, *NOISY, *votes, "--out", "run").status == 0
    for words in ([], ["--lira", "--shadows", "4", "--jobs", "1"]):
        result = result_of(cli("attack", "run", "--json", "--resamples", "0", *words))
        assert (result["members"], result["non_members"]) == (392, 120)
    run = run_folder.read_run(tmp_path / "run")
    assert run.weights.ndim == 3
    with open_features(private_file) as features:
        found = threshold_auc(features, run)
    assert found["auc_low"] is None
    assert found["auc"] == result_of(cli("attack", "run", "--json", "--resamples", "0"))["auc"]


def test_public_rows_of_another_file_are_those_of_the_run(
    cli: Cli, private_file: Path, make_features: Callable[..., Path], tmp_path: Path, refused: Callable[..., None]
) -> None:
    public, other = make_features(tmp_path / "public.h5"), tmp_path / "other.h5"
    make_features(other, order=(1, 0, 2, 3))
    assert cli("train", private_file, "--eps", "3", "--public", public, "--out", "run").status == 0
    lira = ["attack", "run", "--lira", "--shadows", "4", "--jobs", "1", "--json"]
    assert result_of(cli(*lira))["members"] == 400
    refused(cli(*lira, "--public", other), 3, ["run had others", str(public), "--public"])
    public.rename(tmp_path / "moved.h5")
    refused(cli(*lira), 3, [str(public)])
    assert result_of(cli(*lira, "--public", "moved.h5"))["members"] == 400
    assert cli("attack", "run").status == 0  # which needs no public rows


def test_digits_need_no_file(cli: Cli) -> None:
    assert cli("train", "--method", "only-public", "--out", "run").status == 0
    result = result_of(cli("attack", "run", "--json"))
    assert result["auc_low"] < 0.5 < result["auc_high"]
    assert result["tpr_limit_at_fpr"] == {"0.001": 0.001, "0.01": 0.01}


def test_rows_of_another_file_are_refused(
    cli: Cli, trained_run: Path, editable: Path, make_features: Callable[..., Path], tmp_path: Path, refused: Callable
) -> None:
    import h5py

    with h5py.File(editable, "r+") as file:
        file["train/x"][0, 0] += 1
    refused(cli("attack", trained_run, "--features", editable), 4, ["does not hold the private rows"])
    wide = make_features(tmp_path / "wide.h5", width=12)
    refused(cli("attack", trained_run, "--features", wide), 3, ["wide.h5", "12 features", "10"])
    assert cli("train", editable, "--method", "non-private", "--out", "run").status == 0
    refused(cli("attack", "run", "--features", _shorter(editable, tmp_path)), 3, ["399", "400", "--features"])


def _shorter(path: Path, folder: Path) -> Path:
    """A copy of the file without its last training row."""
    with open_features(path) as features:
        short = folder / "short.h5"
        with FeatureWriter(short, features.description) as writer:
            for group, size in features.sizes.items():
                size -= group == "train"
                rows, labels, ids = features.rows(group, slice(size)), features.labels(group), features.ids(group)
                writer.write_group(group, size, features.n_features, [rows], labels[:size], ids[:size])
    return short


def test_a_run_that_started_from_another_has_no_shadows(
    cli: Cli, features_file: Path, refused: Callable[..., None]
) -> None:
    for name, more in (("first", ["--eps", "2"]), ("run", ["--init", "first"])):
        outcome = cli("train", features_file, *NOISY, "--steps", "5", "--centre", "none", *more, "--out", name)
        assert outcome.status == 0, outcome
    refused(cli("attack", "run", *LIRA), 2, ["started from first", "--lira"])
    assert cli("attack", "run", "--resamples", "0").status == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--shadows", "8"], ["--shadows", "--lira"]),
        (["--jobs", "2"], ["--jobs", "--lira"]),
        (["--public", "p.h5"], ["--public", "--lira"]),
        (["--lira", "--shadows", "2"], ["shadows is 2", "4 or more"]),
        (["--lira", "--shadows", "9"], ["shadows is 9", "even"]),
        (["--lira", "--jobs", "0"], ["jobs is 0"]),
        (["--resamples", "7"], ["resamples is 7", "100"]),
        (["--resamples", "-1"], ["resamples is -1", "0 or more"]),
    ],
)
def test_requests_that_make_no_sense_are_refused(
    cli: Cli, trained_run: Path, words: list[str], told: list[str], refused: Callable[..., None]
) -> None:
    refused(cli("attack", trained_run, *words), 2, told)


def test_shadow_probes_of_a_run_with_unlabelled_rows_have_them_too(
    cli: Cli, refused: Callable[..., None], kinds: dict[str, Path], tmp_path: Path
) -> None:
    words = ("--features", kinds["refined"].parent / "rows.h5", "--lira", "--shadows", "4", "--jobs", "1")
    found = cli("attack", kinds["refined"], *words, "--json")
    assert result_of(found).keys() == KEYS
    assert "refined after training" in cli("attack", kinds["refined later"], *words).stderr
    copy = shutil.copytree(kinds["refined"], tmp_path / "copy")
    stated = json.loads((copy / "manifest.json").read_text())["refined"]
    other = write_unlabelled(tmp_path / "other.h5", 100)
    for file, said in ((tmp_path / "gone.h5", "gone.h5"), (other, "does not hold the rows without labels")):
        sealed(copy, refined={**stated, "file": str(file)})
        refused(cli("attack", copy, *words), 3, [said])


def test_shadows_do_not_draw_the_noise_of_a_run_with_a_seed(
    cli: Cli, features_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--steps", "2", "--public-shots", "3", "--noise-seed", "1", "--insecure-seed"]
    assert cli("train", features_file, *NOISY, *words, "--out", "run").status == 0
    seeds, real = [], attack.plan_run
    monkeypatch.setattr(attack, "plan_run", lambda given, half: seeds.append(given.insecure_seed) or real(given, half))
    assert cli("attack", "run", "--lira", "--shadows", "4", "--jobs", "1", "--resamples", "0").status == 0
    assert seeds == [None] * 4
