"""`--unit owner`: people are protected, counted, verified and reported; what would not protect them is refused."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from linprobe.accounting.accountants import GAUSSIAN
from linprobe.accounting.events import Releases
from linprobe.accounting.figures import epsilon_of, rounded_up
from linprobe.data.dataset import Dataset, Split, dataset_of, open_features
from linprobe.data.feature_reader import Description
from linprobe.data.feature_writer import FeatureWriter
from linprobe.errors import PrivacyError
from linprobe.evaluation.pdp_report import refuse_moving
from linprobe.methods import METHODS
from linprobe.runs.run_folder import read_run
from tests.cli.outcomes import write_sealed
from tests.conftest import CLASS_NAMES, SIZES, gaussian_rows, one_of_each_kind

PEOPLE = 120
SPENDING = [name for name, method in METHODS.items() if method.spends]


def write_owned(path: Path, *, groups: Sequence[str] = ("train", "test", "public"), shared: bool = False) -> Path:
    """The small feature file; its rows belong to people with 1 to 6 rows. `shared` people also have public rows."""
    g = np.random.default_rng(5)
    with FeatureWriter(path, Description(class_names=CLASS_NAMES, backbone="test")) as writer:
        for group in groups:
            x, y = gaussian_rows(group, SIZES[group])
            first = [*range(PEOPLE), *g.integers(0, PEOPLE, SIZES[group])][: SIZES[group]]
            owners = sorted(f"{'train' if shared and group == 'public' else group} {person:03d}" for person in first)
            ids = [f"{group}/{row:04d}" for row in range(len(x))]
            writer.write_group(group, *x.shape, [x], y, ids, owners=owners)
    return path


@pytest.fixture(scope="session")
def owned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 training rows of 120 people. Do not change it."""
    return write_owned(tmp_path_factory.mktemp("owned") / "owned.h5")


@pytest.fixture
def trained(cli: Callable[..., Any], owned: Path) -> Callable[..., dict[str, Any]]:
    """Train with the given words; the outcome as an object."""

    def train(*words: object) -> dict[str, Any]:
        done = cli("train", owned, "--eps", 3, "--json", *words)
        assert done.status == 0, done.stderr
        return dict(json.loads(done.stdout))

    return train


@pytest.mark.parametrize("method", one_of_each_kind(SPENDING))
def test_every_method_protects_people(trained, cli, owned, method) -> None:
    words = ["--public-shots", 0] if method == "fully-private" else []
    words += [] if METHODS[method].one_step else ["--steps", 3]
    words += ["--accountant", "rdp"] if METHODS[method].samples else []
    outcome = trained("--method", method, "--unit", "owner", "--out", "run", *words)
    assert (outcome["unit"], outcome["n_units"], outcome["n_private"]) == ("owner", PEOPLE, PEOPLE)
    assert outcome["epsilon"] <= 3
    assert cli("verify", "run", "--features", owned).status == 0
    report = json.loads(cli("pdp-report", "run", "--json").stdout)
    assert report["records"] == PEOPLE
    assert report["max"] <= 3 + 1e-9


def test_the_run_states_whom_it_protects(trained, cli, owned) -> None:
    trained("--method", "noisy-gd", "--unit", "owner", "--out", "run")
    manifest = read_run(Path("run")).manifest
    assert "people, each with all of their private rows" in manifest.guarantee
    assert "all private rows of one person" in manifest.adjacency
    assert "number of people with private rows" in manifest.public
    told = cli("pdp-report", "run", "--csv", "each.csv")
    assert told.stdout.startswith(f"people            {PEOPLE}\n")
    lines = Path("each.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines[1:]] == [f"train {person:03d}" for person in range(PEOPLE)]
    assert cli("report", "run", "--html", "page.html").status == 0
    page = " ".join(Path("page.html").read_text().split())
    for words in ("private people", "every other person", "one person can change the sum", "loss of a single person"):
        assert words in page
    assert cli("attack", "run", "--resamples", 0, "--json").status == 0


def test_a_release_states_whom_it_protects(trained, cli) -> None:
    trained("--method", "noisy-gd", "--unit", "owner", "--steps", 2, "--out", "run")
    assert cli("release", "run", "--out", "pub").status == 0
    for name in ("README.md", "claim.yaml"):
        text = Path("pub", name).read_text()
        assert "one person: all private rows of that person together" in text
        assert f"the private rows of {PEOPLE} people" in text
    assert cli("verify", "pub").status == 0


@pytest.mark.parametrize(
    ("key", "value"), [("unit", "record"), ("n_units", 400), ("unit", "family"), ("adjacency", "none of your business")]
)
def test_a_manifest_with_another_unit_does_not_verify(trained, cli, key, value) -> None:
    trained("--method", "noisy-gd", "--unit", "owner", "--steps", 2, "--out", "run")
    manifest = json.loads(Path("run/manifest.json").read_text())
    write_sealed(Path("run"), {**manifest, key: value})
    assert cli("verify", "run").status == 4


@pytest.mark.parametrize("words", [("train", "--eps", 3), ("train", "--eps", 3, "--dry-run"), ("compare", "--eps", 3)])
def test_a_file_with_owners_asks_for_the_unit(cli, refused, owned, words) -> None:
    command, *others = words
    refused(cli(command, owned, *others), 2, ["unit is not given", "--unit owner", "--unit record"], notes=2)
    assert cli("train", owned, "--method", "only-public").status == 0


def test_a_run_by_record_says_what_it_means_for_people(cli, owned) -> None:
    words = ("--method", "noisy-gd", "--eps", 3, "--steps", 5, "--unit", "record")
    done = cli("train", owned, *words, "--out", "run", "--json")
    outcome = json.loads(done.stdout)
    assert (outcome["unit"], outcome["n_units"]) == ("record", 400)
    note = next(line for line in done.stderr.splitlines() if "protects single rows" in line)
    releases = read_run(Path("run")).manifest.releases or ()
    for k in (2, 5, 10):
        group = [Releases(one.purpose, one.noise_multiplier / k, 1.0, one.count) for one in releases]
        epsilon = GAUSSIAN.epsilon(group, 1e-5)
        assert f"{k} rows" in note
        assert any(0 <= float(word) - epsilon < 1e-3 * epsilon for word in note.split() if _number(word))


def test_a_run_by_record_after_one_by_owner_states_the_right_figure(trained, cli, refused, owned) -> None:
    words = ("--method", "noisy-gd", "--condition", "none", "--steps", 3)
    mu = trained(*words, "--unit", "owner", "--out", "a")["gdp_mu"]
    exact = epsilon_of(5**0.5 * mu, 1e-5)
    assert 7.6 < exact < 7.67
    run = ("train", owned, "--eps", 3, *words, "--unit", "record", "--out", "b")
    refused(cli(*run, "--cap", 5), 4, ["cap is epsilon 5", f"and {rounded_up(exact)} for a record"], notes=1)
    told = json.loads(cli(*run, "--dry-run", "--json").stdout)["together"]
    assert told["epsilon_by_unit"] == {"record": pytest.approx(exact, rel=1e-9), "owner": None}
    by_record = cli(*run, "--cap", 7.67)
    assert by_record.status == 0, by_record
    assert (
        f"cost epsilon {rounded_up(exact)} at delta 1e-05 for a record; no epsilon covers a person" in by_record.stderr
    )
    found = json.loads(cli("budget", owned, "--json").stdout)
    assert (found["unit"], found["runs"]) == ("record", 2)
    assert found["epsilon"] == pytest.approx(exact, rel=1e-9)
    assert found["epsilon_by_unit"] == {"record": found["epsilon"], "owner": None}
    assert [entry["epsilon"] for entry in found["entries"]] == [pytest.approx(3, abs=1e-6)] * 2
    assert found["relation"] == "record removed"
    by_rows = {str(k): pytest.approx(epsilon_of((k**2 + 1) ** 0.5 * mu, 1e-5), rel=1e-9) for k in (2, 5, 10)}
    assert found["epsilon_by_rows"] == by_rows
    shown = cli("budget", owned)
    for k, epsilon in found["epsilon_by_rows"].items():
        assert re.search(rf"epsilon of a person with {k} rows\W+{re.escape(rounded_up(epsilon))}", shown.stderr)
    assert shown.stdout == f"{rounded_up(exact)}\n"
    assert "no epsilon covers a person with any number of rows (a run by record protects single rows)" in shown.stderr


def test_no_cap_holds_for_people_after_a_run_by_record(trained, cli, refused, owned) -> None:
    words = ("--method", "noisy-gd", "--condition", "none", "--steps", 3)
    trained(*words, "--unit", "record", "--out", "a")
    run = ("train", owned, "--eps", 3, *words, "--unit", "owner", "--out", "b")
    refused(cli(*run, "--cap", 1000), 4, ["no epsilon covers a person", "--unit record"])
    assert cli("budget", owned, "--set-cap", 1000).status == 0
    refused(cli(*run), 4, ["no epsilon covers a person", "--unit record"])
    trained(*words, "--unit", "record", "--out", "b")
    assert json.loads(cli("budget", owned, "--json").stdout)["runs"] == 2


def test_a_cap_has_a_delta_below_one_over_n(trained, cli, refused, owned) -> None:
    cap = ("budget", owned, "--set-cap", 9, "--delta", 0.005)  # 400 rows of 120 people
    assert cli(*cap).status == 0
    trained("--method", "noisy-gd", "--condition", "none", "--steps", 3, "--unit", "record", "--out", "a")
    refused(cli(*cap), 4, ["delta is 0.005, but with 400 private rows it must be below 1/N"])


def test_a_sample_of_people_and_a_run_by_record_have_an_epsilon_for_a_record(trained, cli, owned) -> None:
    sampled = ("--method", "dp-sgd", "--accountant", "rdp", "--sampling-rate", 0.5, "--steps", 3)
    trained(*sampled, "--unit", "owner", "--out", "a")
    trained("--method", "noisy-gd", "--condition", "none", "--steps", 3, "--unit", "record", "--out", "b")
    releases = [read_run(Path(name)).manifest.releases or () for name in "ab"]
    whole = [Releases("", one.noise_multiplier / 2, 1.0, one.count) for one in releases[0]]
    found = json.loads(cli("budget", owned, "--json").stdout)
    assert found["epsilon"] == pytest.approx(GAUSSIAN.epsilon([*whole, *releases[1]], 1e-5), rel=1e-6)
    assert found["epsilon_by_unit"] == {"record": found["epsilon"], "owner": None}


def _number(word: str) -> bool:
    return word.replace(".", "", 1).isdigit()


def test_a_cap_bounds_the_rows_of_a_person(trained, cli, owned, monkeypatch) -> None:
    from linprobe.training import train as command

    seen: list[Dataset] = []
    run = command.execute

    def watched(plan: Any, dataset: Dataset, *given: Any) -> Any:
        seen.append(dataset)
        return run(plan, dataset, *given)

    monkeypatch.setattr(command, "execute", watched)
    words = ("--method", "noisy-gd", "--steps", 2, "--unit", "owner")
    trained(*words, "--out", "all")
    trained(*words, "--out", "two", "--per-owner-rows", 2)
    whole, two = (np.diff(dataset.bounds) for dataset in seen)
    assert whole.sum() == seen[0].private.n_rows == 400
    assert np.array_equal(two, np.minimum(whole, 2))
    assert seen[1].private.n_rows == two.sum()
    assert cli("verify", "two", "--features", owned).status == 0
    assert cli("attack", "two", "--resamples", 0).status == 0


def test_rows_that_a_cap_chose_in_version_0_2_may_be_others(trained, cli, refused, owned: Path, tmp_path: Path) -> None:
    trained("--method", "noisy-gd", "--steps", 2, "--unit", "owner", "--per-owner-rows", 2, "--out", "run")
    other = tmp_path / "other.h5"
    shutil.copyfile(owned, other)
    with h5py.File(other, "r+") as file:
        file["train/x"][:] *= -1
    found = cli("verify", "run", "--features", other)
    refused(found, 4, ["does not hold the private rows"])
    assert "version 0.2" not in found.stderr
    manifest = json.loads(Path("run/manifest.json").read_text())
    del manifest["software"]["arithmetic"]
    write_sealed(Path("run"), manifest)
    refused(cli("verify", "run", "--features", other), 4, ["does not hold the private rows", "version 0.2 chose other"])
    assert cli("verify", "run", "--features", owned).status == 0


def test_private_people_of_a_table_without_labels_are_refused(cli, refused, owned: Path) -> None:
    rows = gaussian_rows("unlabelled", 30)[0]
    for name, statuses in (("train 000", (4, 4)), ("nobody", (0, 0))):
        lines = [",".join([*map(str, row), f"{name if place % 2 else 'other'}"]) for place, row in enumerate(rows)]
        header = ",".join([*(f"f{column}" for column in range(rows.shape[1])), "owner"])
        Path("new.csv").write_text("\n".join([header, *lines]))
        assert cli("import", "new.csv", "--out", "new.h5", "--overwrite").status == 0
        words = ("train", owned, "--eps", 3, "--steps", 2, "--unit", "owner", "--method", "noisy-gd")
        done = cli(*words, "--unlabelled", "new.h5", "--out", name)
        assert (done.status, "public-shots" in done.stderr) == (statuses[0], False)
        assert cli(*words, "--out", f"{name} first").status == 0
        assert cli("refine", f"{name} first", "new.h5", "--out", f"{name} refined").status == statuses[1]


def test_rows_that_a_cap_leaves_out_are_never_public(cli, refused, owned: Path) -> None:
    with open_features(owned) as features:
        used = dataset_of(features, None, Split(0, unit="owner", per_owner_rows=1)).keep
        assert used is not None
        x, y = features.rows("train", slice(None))[~used], features.labels("train")[~used]
        test = features.rows("test", slice(None)), features.labels("test")
    names = np.array(CLASS_NAMES)
    np.savez("left.npz", X_train=x, y_train=names[y], class_names=names)
    np.savez("other.npz", X_train=test[0], y_train=names[test[1]], class_names=names)
    np.savez("alone.npz", X=x)
    for name in ("left", "other", "alone"):
        assert cli("import", f"{name}.npz", "--out", f"{name}.h5").status == 0
    words = ("train", owned, "--eps", 3, "--steps", 2, "--unit", "owner", "--per-owner-rows", 1)
    refused(cli(*words, "--public", "left.h5", "--out", "a"), 4, ["left.h5 holds training rows of"])
    refused(
        cli(*words, "--method", "noisy-gd", "--unlabelled", "alone.h5", "--out", "b"), 4, ["alone.h5 holds training"]
    )
    assert cli(*words, "--method", "noisy-gd", "--public-shots", 0, "--out", "c").status == 0
    later = ("train", "other.h5", "--method", "adamix", "--eps", 3, "--steps", 2, "--public", "left.h5", "--out", "d")
    refused(cli(*later), 4, ["left.h5", "private"])


def test_public_shots_leave_no_row_of_a_public_person_private(trained, cli, owned) -> None:
    outcome = trained("--method", "adamix", "--unit", "owner", "--public-shots", 2, "--steps", 3, "--out", "run")
    with h5py.File(owned) as file:
        owners = file["train/owner"].asstr()[:]
    names = np.load("run/per_record.npz")["id"]
    private = np.isin(owners, names)
    assert outcome["n_units"] == len(names) < PEOPLE
    assert outcome["n_public"] == int((~private).sum()) >= 8
    shots = ("train", owned, "--method", "adamix", "--eps", 3, "--unit", "owner", "--public-shots", 2, "--dry-run")
    n_public = PEOPLE - len(names)
    whom = f"{n_public} people of the same collection ({outcome['n_public']} rows)"
    told = cli(*shots)
    assert whom in told.stderr
    assert whom in told.stdout
    assert cli("report", "run", "--html", "page.html").status == cli("release", "run", "--out", "pub").status == 0
    for page in ("page.html", "pub/README.md", "pub/claim.yaml"):
        assert whom in Path(page).read_text()
    manifest = json.loads(Path("run/manifest.json").read_text())
    assert manifest["n_public_owners"] == n_public
    proof = ("verify", "run", "--features", owned, "--json")
    assert "n_public_owners" not in json.loads(cli(*proof).stdout)["stated_not_checked"]
    for stated, command in ((n_public + 1, proof), (None, ("verify", "run", "--json"))):
        write_sealed(Path("run"), {**manifest, "n_public_owners": stated})
        assert "n_public_owners" in json.loads(cli(*command).stdout)["refused"]
    del manifest["n_public_owners"]  # of an earlier version
    write_sealed(Path("run"), manifest)
    assert cli("report", "run", "--html", "page.html", "--overwrite").status == 0
    assert "people of the same collection" in Path("page.html").read_text()
    assert set(owners[private]).isdisjoint(owners[~private])
    assert cli("verify", "run", "--features", owned).status == 0
    assert cli("attack", "run", "--resamples", 0).status == 0


def test_other_owners_are_other_data(trained, cli, owned, tmp_path) -> None:
    trained("--method", "noisy-gd", "--steps", 2, "--unit", "owner", "--out", "run")
    copy = tmp_path / "copy.h5"
    copy.write_bytes(owned.read_bytes())
    with h5py.File(copy, "r+") as file:
        names = file["train/owner"].asstr()[:]
        first = np.flatnonzero(names == names[0])[-1] + 1
        names[first] = names[0]  # one row more
        file["train/owner"][:] = names
    refused = cli("verify", "run", "--features", copy)
    assert refused.status == 4
    assert "does not hold the private rows" in refused.stderr


def _refusals(owned: Path, plain: Path) -> Iterator[tuple[list[object], int, list[str]]]:
    gd = ["--method", "noisy-gd", "--eps", 3]
    yield [plain, *gd, "--unit", "owner"], 2, ["does not name the owners", "owner_train"]
    yield [owned, *gd, "--unit", "family"], 2, ["record, owner"]
    yield [owned, *gd, "--per-owner-rows", 2], 2, ["--unit owner"]
    yield [owned, *gd, "--unit", "owner", "--per-owner-rows", 0], 2, ["1 or more"]
    yield [owned, "--method", "adamix", "--eps", 3, "--unit", "owner", "--variant", "theory"], 2, ["practical"]
    yield [owned, "--method", "dpsgd-f", "--eps", 3, "--unit", "owner", "--variant", "theory"], 2, ["practical"]
    yield [owned, "--method", "fully-private", "--eps", 3, "--unit", "owner"], 2, ["no public rows"]
    yield [owned, *gd, "--unit", "owner", "--delta", 0.009], 4, ["0.009", "120"]


@pytest.mark.parametrize("number", range(8))
def test_what_does_not_protect_people_is_refused(cli, refused, owned, private_file, number) -> None:
    words, status, named = list(_refusals(owned, private_file))[number]
    refused(cli("train", *words, "--out", "run"), status, named)
    assert not Path("run").exists()


def test_a_person_is_private_or_public(cli, refused, tmp_path) -> None:
    shared = write_owned(tmp_path / "shared.h5", shared=True)
    words = ["--method", "adamix", "--eps", 3, "--out", "run"]
    refused(cli("train", shared, *words, "--unit", "owner"), 4, ["people who have private rows too"])
    assert cli("train", shared, *words, "--unit", "record", "--steps", 2).status == 0


def test_a_run_for_rows_does_not_start_a_run_for_people(cli, refused, trained, owned) -> None:
    trained("--method", "noisy-gd", "--unit", "record", "--steps", 2, "--out", "rows")
    words = ["--method", "noisy-gd", "--eps", 9, "--unit", "owner", "--init", "rows", "--out", "people"]
    refused(cli("train", owned, *words), 4, ["protects units of kind record"])


def test_the_accuracy_of_people_needs_the_owners_of_test_rows(cli, refused, owned, tmp_path) -> None:
    copy = tmp_path / "copy.h5"
    copy.write_bytes(owned.read_bytes())
    with h5py.File(copy, "r+") as file:
        file.attrs["test_rows"] = "private"
        del file["test/owner"]
    words = ["--method", "noisy-gd", "--eps", 3, "--test-epsilon", 1, "--unit", "owner", "--out", "run"]
    refused(cli("train", copy, *words), 2, ["--test-epsilon", "owner_test"])


def test_info_and_import_count_people(cli, owned) -> None:
    assert json.loads(cli("info", owned, "--json").stdout)["owners"] == {"train": 120, "test": 120, "public": 12}
    x, y = gaussian_rows("train", 40)
    np.savez("a.npz", X_train=x, y_train=y, X_test=-x[:8], y_test=y[:8], patient_train=np.arange(40) // 4)
    done = cli("import", "a.npz", "--out", "a.h5")
    assert done.status == 0
    assert "patient_train, which is not read" in done.stderr
    done = cli("import", "a.npz", "--out", "a.h5", "--overwrite", "--owner-column", "patient")
    assert "not read" not in done.stderr
    assert "owners of rows: 10 train" in done.stderr


def test_an_interrupted_run_for_people_does_not_resume_for_rows_or_with_other_people(
    cli, refused, owned, interrupted_at_the_third_step
) -> None:
    words = ["train", owned, "--method", "ngd", "--eps", 3, "--steps", 5, "--checkpoint", 0, "--out", "run"]
    cli(*words, "--unit", "owner")
    refused(cli(*words, "--unit", "record", "--resume"), 2, ["unit 'owner'"], notes=2)
    refused(cli(*words, "--unit", "owner", "--per-owner-rows", 2, "--resume"), 4, ["other private rows"])
    shutil.copy(owned, "other.h5")
    with h5py.File("other.h5", "r+") as file:
        owners = file["train/owner"]
        place = next(place for place in range(len(owners)) if owners[place] != owners[0])
        owners[place] = owners[0]  # a row of the second person is now the first person's
    others = ["train", "other.h5", *words[2:], "--unit", "owner", "--resume"]
    refused(cli(*others), 4, ["other private rows"])
    done = cli(*words, "--unit", "owner", "--resume", "--json")
    assert json.loads(done.stdout)["n_units"] == PEOPLE
    assert cli("verify", "run").status == 0


def test_a_histogram_of_people_needs_losses_that_do_not_move(trained, cli, owned) -> None:
    trained("--method", "noisy-gd", "--steps", 2, "--unit", "owner", "--out", "run")
    assert cli("pdp-report", "run", "--publish-epsilon", "0.5").status == 0
    manifest = read_run(Path("run")).manifest
    refuse_moving(manifest)
    earlier = {name: text for name, text in manifest.software.items() if name != "arithmetic"}
    for other, word in (({"device": "cuda"}, "on a GPU"), ({"software": earlier}, "by an earlier version")):
        moving = replace(manifest, **other)
        with pytest.raises(PrivacyError, match=f"computed {word}.* no proven sensitivity; allowed: runs on the CPU"):
            refuse_moving(moving)
        refuse_moving(replace(moving, unit="record"))
