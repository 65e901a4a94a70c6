"""Shared fixtures of extraction: a folder of images, and no access to the internet."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.extraction.samples import write_images

torch.set_num_threads(1)  # tests run in parallel, and torch threads that wait for a core keep it busy


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """train with 7 images of each of 3 classes, test with 3. Do not change it."""
    return write_images(tmp_path_factory.mktemp("images") / "photos", {"train": 7, "test": 3})


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No internet and empty caches, so that a test that would download something fails."""
    import huggingface_hub.constants

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError("there is no network")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    return tmp_path
