"""Without the internet, networks of the Hugging Face hub are refused at once: its client would retry for a minute."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from linprobe.errors import DataError
from linprobe.extraction.backbones import load_backbone, weights


@pytest.fixture
def disconnected(offline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No internet, which the client of the hub does not know."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)

    def sleep(_: float) -> None:
        raise AssertionError("the client waits before it tries again")

    monkeypatch.setattr(time, "sleep", sleep)


@pytest.mark.parametrize("name", ["clip:RN50", "timm:resnet18"])
@pytest.mark.usefixtures("disconnected")
def test_networks_of_the_hub_are_refused_without_a_retry(name: str) -> None:
    with pytest.raises(DataError, match=r"huggingface\.co cannot be reached.*--weights FILE"):
        load_backbone(name, None, False, {})
    assert constants.HF_HUB_OFFLINE is False


@pytest.fixture
def server() -> Any:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def test_a_hub_that_answers_is_used(server: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server}")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with weights.hub_or_cache() as reason:
        assert (reason, constants.HF_HUB_OFFLINE) == (None, False)


def test_a_proxy_is_asked_in_place_of_the_hub(server: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{server}")
    with weights.hub_or_cache() as reason:
        assert reason is None


def test_the_users_own_switch_stays_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with weights.hub_or_cache() as reason:
        assert reason == "HF_HUB_OFFLINE is set"
    assert constants.HF_HUB_OFFLINE is True


def test_a_name_server_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    ended = threading.Event()

    def hang(*_: object, **__: object) -> None:
        ended.wait(60)
        raise OSError

    monkeypatch.setattr(socket, "create_connection", hang)
    monkeypatch.setattr(weights, "LONGEST", 0.01)
    with weights.hub_or_cache() as reason:
        assert reason == "huggingface.co cannot be reached"
        assert constants.HF_HUB_OFFLINE is True
    ended.set()
