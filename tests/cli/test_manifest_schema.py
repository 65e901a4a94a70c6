"""Runs of every kind fit the published schema, which a program in another language can read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError

from linprobe.methods import METHODS
from tests.cli.outcomes import NOISY, Cli
from tests.conftest import SCHEMA
from tests.hostile.kinds import WORDS, write_runs

FEW = ("--steps", "2")
TRAINED: dict[str, tuple[str, ...]] = {
    **{name: ("--method", name, *(("--eps", "3") if method.spends else ())) for name, method in METHODS.items()},
    "text init": (*NOISY, *FEW, "--init", "text"),
    "class weights": (*NOISY, *FEW, "--class-weight", "bee=0,cat=4"),
    "from another run": (*NOISY, *FEW, "--init", "first"),
    "public shots": ("--method", "adamix", "--eps", "3", *FEW, "--public-shots", "2"),
}


@pytest.fixture(scope="module")
def schema() -> Draft202012Validator:
    found = json.loads(SCHEMA.read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(found)
    return Draft202012Validator(found)


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_runs(tmp_path_factory.mktemp("kinds"))


def manifest_of(run: Path) -> dict[str, Any]:
    return dict(json.loads((run / "manifest.json").read_text(encoding="utf-8")))


@pytest.mark.parametrize("kind", WORDS)
def test_a_run_of_each_kind_fits(kinds: dict[str, Path], schema: Draft202012Validator, kind: str) -> None:
    schema.validate(manifest_of(kinds[kind]))


@pytest.mark.parametrize("name", TRAINED)
def test_a_trained_run_and_its_release_fit(
    cli: Cli, features_file: Path, tmp_path: Path, schema: Draft202012Validator, name: str
) -> None:
    if name == "from another run":
        assert cli("train", features_file, *NOISY, "--steps", "1", "--eps", "1", "--out", "first").status == 0
    made = cli("train", features_file, *TRAINED[name], "--out", "run")
    assert made.status == 0, made
    schema.validate(manifest_of(Path("run")))
    if manifest_of(Path("run"))["private"]:
        assert cli("release", "run", "--out", "pub").status == 0
        schema.validate(manifest_of(Path("pub")))


def test_a_run_with_a_histogram_fits(cli: Cli, run_copy: Path, schema: Draft202012Validator) -> None:
    assert cli("pdp-report", run_copy, "--publish-epsilon", "0.5").status == 0
    published = manifest_of(run_copy.with_name(f"{run_copy.name}.published-1"))
    assert published["published"]
    schema.validate(published)


@pytest.mark.parametrize("change", [{"surprise": 1}, {"epsilon": "3"}, {"delta": 2}, {"steps": 1.5}, {"format": 4}])
def test_the_schema_refuses_what_the_reader_refuses(
    trained_run: Path, schema: Draft202012Validator, change: dict[str, Any]
) -> None:
    with pytest.raises(ValidationError):
        schema.validate({**manifest_of(trained_run), **change})
