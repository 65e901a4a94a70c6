"""`linprobe release`: a folder with what may leave the building and nothing else."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import stat
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linprobe.reporting.release_pages import Publisher, pages
from linprobe.runs.run_folder import RunFolder
from tests.cli.outcomes import NOISY, PAGE_EDITS, Cli, write_sealed
from tests.conftest import gaussian_rows

yaml = pytest.importorskip("yaml")
Refused = Callable[..., None]
FILES = {
    "README.md", "claim.yaml", "manifest.json", "ledger.jsonl", "model.npz", "history.csv", "test_figures.json",
    "config.toml", "verify.html",
}  # fmt: skip
# sections and keys that the registry's schema allows; it refuses others
SCHEMA = {
    "basic": "name data_curators intended_use data_product_type data_product_region description publication_date "
    "data_product_sector",
    "dp_variant": "variant_name data_domain unprotected_quantities",
    "privacy_loss": "privacy_unit privacy_unit_details privacy_parameters privacy_parameters_details",
    "deployment_model": "model_name model_name_details actors release_type release_type_details data_source_type "
    "data_source_type_details access_type access_type_details",
    "accounting": "post_processing composition",
    "implementation": "preprocessing_and_hyperparameter_tuning mechanisms justification",
    "administrative": "sources notes registry_authors",
}
ODD = 'Probe | of *one* "clinic": <b>'


@pytest.fixture
def released(cli: Cli, trained_run: Path) -> dict[str, Any]:
    outcome = cli(
        "release", trained_run, "--out", "deep/pub", "--name", ODD, "--curator", "One", "--curator", "Two", "--json"
    )
    assert outcome.status == 0, outcome
    result: dict[str, Any] = json.loads(outcome.stdout)
    return result


def claim_of(folder: Path) -> dict[str, Any]:
    claim: dict[str, Any] = yaml.safe_load((folder / "claim.yaml").read_text())
    return claim


def named(card: str) -> set[str]:
    """The files that a model card lists."""
    return set(re.findall("^[|] `([^`]+)` [|]", card.split("\n## Files\n")[1], re.MULTILINE))


def test_a_release_has_the_public_files_and_verifies(cli: Cli, released: dict[str, Any], trained_run: Path) -> None:
    folder = Path(released["release"])
    assert set(released["files"]) == FILES == {path.name for path in folder.iterdir()}
    for name in FILES - {"README.md", "claim.yaml", "manifest.json", "verify.html"}:
        assert (folder / name).read_bytes() == (trained_run / name).read_bytes()
    stated, before = (json.loads((path / "manifest.json").read_text()) for path in (folder, trained_run))
    assert set(stated["files"]) - set(before["files"]) == {"README.md", "claim.yaml"}
    assert {key for key in stated if stated[key] != before[key]} == {"files", "manifest_digest"}
    assert cli("verify", folder).stdout == "verified\n"
    modes = {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert modes <= {0o644, 0o664, 0o666, 0o640, 0o600}
    assert [path.name for path in folder.parent.iterdir()] == ["pub"]


def test_an_edited_release_does_not_verify(cli: Cli, refused: Refused, released: dict[str, Any]) -> None:
    with (Path(released["release"]) / "ledger.jsonl").open("a") as stream:
        stream.write("\n")
    refused(cli("verify", released["release"]), 4, ["ledger.jsonl"])


@pytest.mark.parametrize("page", ["README.md", "claim.yaml"])
@pytest.mark.parametrize("edit", PAGE_EDITS)
def test_a_release_with_an_edited_page_is_refused(
    cli: Cli, refused: Refused, released: dict[str, Any], page: str, edit: str
) -> None:
    PAGE_EDITS[edit](Path(released["release"]) / page)
    refused(cli("verify", released["release"]), 4, [page])


def test_a_release_is_released_again_as_it_is(cli: Cli, released: dict[str, Any]) -> None:
    assert cli("release", released["release"], "--out", "again").status == 0
    for path in Path(released["release"]).iterdir():
        assert (Path("again") / path.name).read_bytes() == path.read_bytes()


def test_the_claim_has_the_layout_of_the_registry(released: dict[str, Any], trained_run: Path) -> None:
    claim = claim_of(Path(released["release"]))
    manifest = json.loads((trained_run / "manifest.json").read_text())
    assert set(claim) == {"url_slug", "status", "tier", "deployment"}
    assert re.fullmatch("[a-z0-9-]+", claim["url_slug"])
    assert (claim["status"], claim["tier"]) == ("Draft", 3)
    deployment = claim["deployment"]
    assert set(deployment) == set(SCHEMA)
    for section, allowed in SCHEMA.items():
        assert set(deployment[section]) <= set(allowed.split())
        assert all(value not in ("", None, []) for value in deployment[section].values())
    basic = deployment["basic"]
    assert (basic["name"], basic["data_curators"]) == (ODD, ["One", "Two"])
    assert basic["data_product_type"] == "Machine learning model"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", basic["publication_date"])
    parameters = deployment["privacy_loss"]["privacy_parameters"]
    assert parameters == {"epsilon": manifest["epsilon"], "delta": manifest["delta"], "rho": manifest["zcdp_rho"]}
    assert all(isinstance(value, float) for value in parameters.values())
    model = deployment["deployment_model"]
    assert (model["model_name"], model["release_type"]) == ("Central", "One release")
    assert (model["data_source_type"], model["access_type"]) == ("Static", "Non-interactive")


def test_the_claim_answers_what_others_leave_blank(released: dict[str, Any]) -> None:
    deployment = claim_of(Path(released["release"]))["deployment"]
    implementation = deployment["implementation"]
    assert "floating point: covered" in implementation["mechanisms"]
    assert "timing: not covered" in implementation["mechanisms"]
    assert "Other runs on the same rows" in implementation["preprocessing_and_hyperparameter_tuning"]
    assert "test rows" in deployment["dp_variant"]["unprotected_quantities"]


def test_the_card_states_the_guarantee_and_answers_every_point(released: dict[str, Any], trained_run: Path) -> None:
    text = (Path(released["release"]) / "README.md").read_text()
    manifest = json.loads((trained_run / "manifest.json").read_text())
    assert manifest["guarantee"] in text
    front = yaml.safe_load(text.split("---")[1])
    assert front["library_name"] == "linprobe"
    for heading in ("Model details", "Privacy", "Uses", "Bias, risks and limitations", "How to get started", "Training",
                    "Evaluation", "NIST SP 800-226", "Files"):  # fmt: skip
        assert f"\n## {heading}\n" in text
    points = text.split("## NIST SP 800-226")[1].split("\n## ")[0].strip().splitlines()[2:]
    assert len(points) == 15
    assert all(re.fullmatch(r"\| [^|]+ \| [^|]{20,} \|", line) for line in points)
    assert named(text) == FILES - {"README.md"}
    assert '# Probe \\| of \\*one\\* "clinic": \\<b\\>\n' in text


@pytest.mark.parametrize(
    ("extraction", "origin", "command"),
    [
        (None, "a network that the owner did not state", "import new.npz --out new.h5  # with an array X"),
        (
            {"backbone": "", "columns": "age, f_1 (SHA-256 12)"},  # a manifest always has a backbone
            "a table with the columns age, f\\_1 (SHA-256 12)\n",
            'import new.csv --out new.h5  # with the columns that "Features from" names',
        ),
        (
            {"backbone": "timm:one", "extraction_digest": "a", "weights": "seen.pt", "weights_digest": "b" * 64},
            f"timm:one, weights seen.pt, digest {'b' * 64}",
            "extract new-images --like RELEASED --weights FILE --out new.h5",
        ),
    ],
)
def test_the_card_says_how_to_score_rows(
    trained_run: Path, extraction: dict[str, str] | None, origin: str, command: str
) -> None:
    manifest = replace(RunFolder(trained_run).manifest, extraction=extraction, backbone="")
    text = pages(manifest, Publisher("probe", "2026-11-28"), signed=False)["README.md"]
    assert f"**Features from:** {origin}" in text
    assert f"    linprobe verify RELEASED\n    linprobe {command}" in text
    assert "linprobe predict RELEASED new.h5" in text
    assert ("--like" in text) == (extraction is not None and "extraction_digest" in extraction)


def test_no_name_in_the_card_becomes_a_link_or_turns_text_round(trained_run: Path) -> None:
    odd = "see https://x.org, WWW.x.org or a@x.org ~~now~~ &copy; \u202eneve\u00ad"
    manifest = RunFolder(trained_run).manifest
    named = replace(manifest, class_names=[odd, *manifest.class_names[1:]])
    text = pages(named, Publisher("probe", "2026-11-28"), signed=False)["README.md"]
    expected = r"see https:<!-- -->//x.org, WWW<!-- -->.x.org or a@<!-- -->x.org \~\~now\~\~ \&copy; neve,"
    assert f"- **Classes:** {expected}" in text
    assert not re.findall("[\u202e\u00ad]", text)


def test_no_public_text_has_a_character_that_a_terminal_obeys(cli: Cli, tmp_path: Path) -> None:
    """Class names, the name of the release and of the feature file."""
    odd = "\x1b[31m\x7f\x9b2J\u202ex"
    x, y = gaussian_rows("train", 60)
    names = [f"{one}{odd}" for one in ("ant", "bee", "cat", "dog")]
    np.savez(tmp_path / "a.npz", X_train=x, y_train=y, X_test=-x, y_test=y, class_names=names)
    assert cli("import", "a.npz", "--out", f"{odd}.h5").status == 0
    assert cli("train", f"{odd}.h5", *NOISY, "--out", "run").status == 0
    assert json.loads(Path("run/manifest.json").read_text(encoding="utf-8"))["class_names"] == names
    assert tomllib.loads(Path("run/config.toml").read_text(encoding="utf-8"))["features"] == f"{odd}.h5"
    assert cli("release", "run", "--out", "pub", "--name", f"name{odd}", "--use", f"use{odd}").status == 0
    assert yaml.safe_load(Path("pub/claim.yaml").read_text(encoding="utf-8"))["deployment"]["basic"]["name"]
    assert cli("verify", "pub").status == 0
    for path in Path("pub").iterdir():
        if path.suffix not in (".npz", ".html"):
            text = path.read_text(encoding="utf-8")
            assert [one for one in text if not one.isprintable() and one != "\n"] == [], path


def test_names_that_are_not_utf_8_make_no_half_release(
    cli: Cli, refused: Refused, trained_run: Path, tmp_path: Path
) -> None:
    name = "Bl\udcffm"
    for flag in ("--name", "--curator", "--use", "--region", "--license"):
        told = [f"{flag} is ", "'Bl\\udcffm'", "allowed: UTF-8"]
        refused(cli("release", trained_run, "--out", tmp_path / "new", flag, name), 2, told)
        assert not list(tmp_path.glob("*new*"))
    if sys.platform != "darwin":  # its file systems have no such names
        made = tmp_path / name
        cli("release", trained_run, "--out", made)  # a strict stdout cannot print its name
        assert "# Bl\\\\udcffm\n" in (made / "README.md").read_text(encoding="utf-8")
        assert cli("verify", made).stdout == "verified\n"


def test_the_manifest_may_hold_no_private_file(cli: Cli, refused: Refused, run_copy: Path) -> None:
    """A manifest that was rewritten as a whole, so that its digests hold."""
    manifest = json.loads((run_copy / "manifest.json").read_text())
    write_sealed(run_copy, manifest, (*manifest["files"], "per_record.npz"))
    refused(cli("release", run_copy, "--out", "pub"), 4, ["per_record.npz", "no public file"])
    assert not Path("pub").exists()


def test_a_model_with_more_than_weights_is_refused(cli: Cli, refused: Refused, run_copy: Path) -> None:
    with np.load(run_copy / "model.npz") as archive:
        np.savez(run_copy / "model.npz", **archive, rows=np.zeros(3))
    manifest = json.loads((run_copy / "manifest.json").read_text())
    write_sealed(run_copy, manifest)
    refused(cli("release", run_copy, "--out", "pub"), 4, ["model.npz", "rows"])


def test_runs_without_a_guarantee_and_damaged_ones_are_refused(
    cli: Cli, refused: Refused, features_file: Path, run_copy: Path
) -> None:
    assert cli("train", features_file, "--method", "non-private", "--out", "open").status == 0
    refused(cli("release", "open", "--out", "pub"), 4, ["not private"])
    words = ["--method", "noisy-gd", "--eps", "3", "--steps", "2", "--noise-seed", "3", "--insecure-seed"]
    assert cli("train", features_file, *words, "--out", "seeded").status == 0
    refused(cli("release", "seeded", "--out", "pub"), 4, ["not private"])
    (run_copy / "model.npz").write_bytes(b"edited")
    refused(cli("release", run_copy, "--out", "pub"), 4, ["model.npz"])
    (run_copy / "manifest.json").unlink()
    refused(cli("release", run_copy, "--out", "pub"), 4, ["manifest.json"])
    refused(cli("release", "nothing", "--out", "pub"), 3, ["nothing does not exist"])
    assert not Path("pub").exists()


def test_an_existing_folder_is_left_alone(cli: Cli, refused: Refused, trained_run: Path) -> None:
    Path("pub").mkdir()
    refused(cli("release", trained_run, "--out", "pub"), 2, ["pub already exists"])
    assert list(Path("pub").iterdir()) == []


@pytest.mark.parametrize("method", ["only-public", "dp-sgd"])
def test_runs_without_noise_and_with_samples_are_released(cli: Cli, features_file: Path, method: str) -> None:
    words = [] if method == "only-public" else ["--eps", "3", "--steps", "2", "--accountant", "rdp"]
    assert cli("train", features_file, "--method", method, *words, "--out", "run").status == 0
    assert cli("release", "run", "--out", "pub").status == 0
    parameters = claim_of(Path("pub"))["deployment"]["privacy_loss"]["privacy_parameters"]
    assert set(parameters) == ({"epsilon", "delta", "rho"} if method == "only-public" else {"epsilon", "delta"})


def test_signature_and_histogram_leave_with_a_signed_run(cli: Cli, refused: Refused, features_file: Path) -> None:
    for words in (
        ("genpkey", "-algorithm", "ed25519", "-out", "key.pem"),
        ("pkey", "-in", "key.pem", "-pubout", "-out", "public.pem"),
    ):
        if shutil.which("openssl") is None:
            pytest.skip("openssl is not installed")
        subprocess.run(["openssl", *words], check=True, capture_output=True)
    words = ["--method", "noisy-gd", "--eps", "3", "--steps", "2", "--sign", "key.pem"]
    Path("key.pem").chmod(0o640)
    trained = cli("train", features_file, *words, "--out", "run")
    assert trained.status == 0
    assert "others can read the private key key.pem" in trained.stderr
    assert cli("pdp-report", "run", "--publish-epsilon", "0.5", "--sign", "key.pem").status == 0
    assert cli("release", "run.published-1", "--out", "pub", "--public-key", "public.pem").status == 0
    assert {path.name for path in Path("pub").iterdir()} == FILES | {"manifest.json.sig", "published_histogram_1.json"}
    assert cli("verify", "pub", "--public-key", "public.pem").status == 0
    text = Path("pub/README.md").read_text()
    assert named(text) == {path.name for path in Path("pub").iterdir()} - {"README.md"}
    assert "digest of every other file but `verify.html`" in text
    Path("run/manifest.json.sig").write_bytes(hashlib.sha512(b"other").digest())
    refused(cli("release", "run", "--out", "other", "--public-key", "public.pem"), 4, ["manifest.json.sig"])


def test_verify_needs_only_what_the_light_install_holds(trained_run: Path) -> None:
    program = "import sys; from linprobe import cli; cli.run(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", program, "verify", str(trained_run)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "verified\n"
    loaded = set(done.stderr.splitlines()[-1].split())
    absent = {"torch", "torchvision", "timm", "open_clip", "PIL", "sklearn", "matplotlib", "jinja2", "joblib"}
    assert not loaded & (absent | {"safetensors", "pandas"})


def test_the_card_states_what_all_runs_on_the_feature_file_cost(cli: Cli, features_file: Path) -> None:
    for run in ("first", "second"):
        assert cli("train", features_file, "--method", "prototypes", "--eps", 3, "--out", run).status == 0
    assert cli("release", "second", "--out", "pub").status == 0
    text = Path("pub/README.md").read_text()
    assert "| runs on this file only | epsilon 4.46343 at delta 1e-05 for a record, over 2 recorded runs on" in text
    assert "this feature file, for rows that were private in all of them; this run: 3" in text
    assert "; this run: 3. As of " in text
    assert cli("verify", "pub").status == 0
