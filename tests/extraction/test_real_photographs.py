"""Accuracy of a linear probe on features of real photographs, extracted by a pretrained network."""

import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file
from torchvision import transforms

from linprobe.options.requests import TrainRequest
from linprobe.training.train import train_run
from tests.extraction.samples import Notes, ids_of, labels_of, rows_of, run_extract

ARCHIVE = "flowers-images.tar"
# as the network was trained: see the description beside the weights
SETTINGS = {"resize": 256, "crop": 224, "mean": (0.50196078,), "std": (0.50196078,), "interpolation": "bicubic"}


class Silent(Notes):
    def start(self, total: int, what: str = "training") -> None: ...
    def step(self, count: int = 1) -> None: ...


def kind_of(member: tarfile.TarInfo) -> str:
    """The class of `flowers/GROUP/CLASS/FILE`."""
    return Path(member.name).parent.name


@pytest.fixture(scope="module")
def data() -> Path:
    folder = Path(os.environ.get("LINPROBE_TEST_DATA") or "/nowhere")
    names = (ARCHIVE, "mobilenetv2_100_same.safetensors")
    if not all((folder / name).is_file() for name in names):
        pytest.skip(f"LINPROBE_TEST_DATA names no folder with {', '.join(names)}")
    return folder


@pytest.fixture(scope="module")
def flowers(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Features of every third kind of flower: 476 photographs take 13 seconds, all 1427 three times that."""
    folder = tmp_path_factory.mktemp("flowers")
    with tarfile.open(data / ARCHIVE) as archive:
        members = [member for member in archive if member.isfile()]
        kinds = sorted({kind_of(member) for member in members})[::3]
        archive.extractall(folder, [member for member in members if kind_of(member) in kinds], filter="data")
    out = folder / "flowers.h5"
    weights = str(data / "mobilenetv2_100_same.safetensors")
    arguments = {"pad_type": "same"}
    (source,) = (path for path in folder.iterdir() if path.is_dir())
    run_extract(source, out, backbone="timm:mobilenetv2_100", weights=weights, arguments=arguments, **SETTINGS)
    return out


def accuracy(features: Path, out: Path, **request: object) -> float:
    run = train_run(TrainRequest(features=features, out=out, **request), Silent())  # type: ignore[arg-type]
    return float(run["test_accuracy"])


def test_all_rows_unprotected_reach_their_mark_and_adamix_learns(flowers: Path, tmp_path: Path) -> None:
    assert len(ids_of(flowers)) == 340
    assert len(ids_of(flowers, "test")) == 136
    assert len(set(labels_of(flowers))) == 34
    assert accuracy(flowers, tmp_path / "all", method="non-private") >= 0.82
    private = accuracy(flowers, tmp_path / "adamix", method="adamix", epsilon=3.0, public_shots=2, split_seed=0)
    assert private >= 0.5  # 8 private photographs a class


def test_features_are_those_of_plain_timm(flowers: Path, data: Path) -> None:
    model = timm.create_model("mobilenetv2_100", pad_type="same", num_classes=1000)
    model.load_state_dict(load_file(data / "mobilenetv2_100_same.safetensors"))
    model.reset_classifier(0)
    statistics = [0.50196078] * 3
    transform = transforms.Compose(
        [
            transforms.Resize(256, transforms.InterpolationMode.BICUBIC),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            transforms.Normalize(statistics, statistics),
        ]
    )
    names, rows = ids_of(flowers, "test")[::30], rows_of(flowers, "test")[::30].astype(np.float32)
    with tarfile.open(data / ARCHIVE) as archive, torch.no_grad():
        streams = [archive.extractfile(f"flowers/{name}") for name in names]
        batch = torch.stack([transform(Image.open(stream).convert("RGB")) for stream in streams if stream])
        expected = model.eval()(batch).numpy()
    assert len(expected) == len(rows) == 5
    assert np.abs(rows - expected).max() <= 2e-3 * np.abs(expected).max()
