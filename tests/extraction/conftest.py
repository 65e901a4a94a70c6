"""Shared fixtures of extraction: a folder of images and a network without a network."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.extraction.samples import write_images

torch.set_num_threads(1)  # tests run side by side, and threads of torch that wait for a core burn it


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """train with 7 images of each of 3 classes, test with 3. Do not change it."""
    return write_images(tmp_path_factory.mktemp("images") / "photos", {"train": 7, "test": 3})


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No network and empty caches; a test that would fetch something fails here instead."""
    import huggingface_hub.constants

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError("there is no network")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    return tmp_path
