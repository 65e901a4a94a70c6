"""Without --backbone, resnet50; scattering only if its standard weights are out of reach, and with a note."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import pytest
import torch
import torchvision

import linprobe.extraction.run
from linprobe.cli import run
from linprobe.errors import DataError
from linprobe.extraction.backbones import load_default
from linprobe.extraction.extract import extract
from linprobe.extraction.request import ExtractRequest
from tests.conftest import mostly_nightly
from tests.extraction.samples import Notes, contents, run_extract
from tests.processes import ended, free_port, start_copy

ENTRY = torchvision.models.ResNet50_Weights.IMAGENET1K_V1
NARROW = {"width_per_group": 4}


def cached(home: Path) -> Path:
    """Where torchvision keeps the default weights, in the caches of `offline`."""
    folder = home / "torch" / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    return folder / Path(ENTRY.url).name


def test_scattering_is_the_default_where_no_weights_can_be_fetched(
    cli: Callable[..., Any], images: Path, offline: Path
) -> None:
    outcome = cli("extract", images, "--device", "cpu")
    assert (outcome.status, outcome.stdout) == (0, "features/photos-scattering.h5\n")
    lines = [line for line in outcome.stderr.splitlines() if "cannot be fetched" in line]
    assert len(lines) == 1
    words = (
        "IMAGENET1K_V1 of resnet50",
        "there is no network",
        "the backbone is scattering",
        "--backbone names another",
    )
    assert all(word in lines[0] for word in words), lines[0]
    with h5py.File("features/photos-scattering.h5") as file:
        assert file.attrs["backbone"] == "scattering"
    named = cli("extract", images, "--device", "cpu", "--backbone", "scattering", "--out", "named.h5")
    assert "resnet50" not in named.stderr
    assert contents(Path("named.h5")) == contents(Path("features/photos-scattering.h5"))


def test_weights_on_the_machine_are_used(offline: Path) -> None:
    torch.save(torchvision.models.resnet50(weights=None, **NARROW).state_dict(), cached(offline))
    assert load_default(None, False, NARROW).name == "resnet50"


@pytest.mark.parametrize("content", [b"", b"no weights at all", b"PK\x03\x04 and then nothing"])
def test_damaged_weights_are_an_error(offline: Path, content: bytes) -> None:
    cached(offline).write_bytes(content)
    with pytest.raises(DataError, match=r"damaged .* remove .*resnet50-0676ba61\.pth") as caught:
        load_default(None, False, NARROW)
    assert len(str(caught.value).splitlines()) == 1


def test_a_damaged_download_is_an_error(offline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(*_: Any, **__: Any) -> None:
        raise RuntimeError('invalid hash value (expected "0676ba61", got "00000000...")')

    monkeypatch.setattr(torch.hub, "download_url_to_file", damaged)
    with pytest.raises(DataError, match=r"damaged .*invalid hash value"):
        load_default(None, False, {})


@pytest.mark.parametrize(
    "options",
    mostly_nightly(
        [{"arguments": NARROW}, {"weights": "IMAGENET1K_V2"}, {"backbone": "resnet50"}], {"arguments": NARROW}.__eq__
    ),
)
def test_whoever_asks_for_resnet50_gets_no_other_network(
    images: Path, offline: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    request = ExtractRequest(source=str(images), out=tmp_path / "f.h5", device="cpu", **options)
    with pytest.raises(DataError, match=r"of resnet50 are not at .* cannot be fetched"):
        extract(request, Notes())
    assert not (tmp_path / "f.h5").exists()


def test_random_weights_are_those_of_resnet50() -> None:
    backbone = load_default(None, True, NARROW)
    assert (backbone.name, backbone.weights) == ("resnet50", "random")


def test_the_first_of_several_processes_decides_for_all(images: Path, offline: Path, tmp_path: Path) -> None:
    command = ["extract", str(images), "--device", "cpu", "--batch-size", "3", "--out", str(tmp_path / "two.h5")]
    group = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}

    def refuse(*_: Any) -> Any:
        raise AssertionError("a later process decides by itself")

    def work(rank: int) -> int:
        os.environ |= {**group, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        if rank > 0:
            linprobe.extraction.run.load_default = refuse  # type: ignore[assignment]
        return run(command)

    children = [start_copy(lambda rank=rank: work(rank)) for rank in range(2)]
    assert [ended(child) for child in children] == [0, 0]
    run_extract(images, tmp_path / "one.h5", backbone="scattering", batch_size=3)
    assert contents(tmp_path / "two.h5") == contents(tmp_path / "one.h5")
