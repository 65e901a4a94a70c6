"""The Hugging Face hub, or its cache alone where the hub is out of reach: its client retries for a minute."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from huggingface_hub import constants

LONGEST = 5.0  # seconds for a connection


@contextmanager
def hub_or_cache() -> Iterator[str | None]:
    """Inside the block, the client of the hub uses its cache alone if the hub is out of reach.

    Yields:
        Why the cache alone is used; None if the hub answers.
    """
    before = constants.HF_HUB_OFFLINE
    host = urlsplit(constants.ENDPOINT).hostname or ""
    reason = None
    if before:
        reason = "HF_HUB_OFFLINE is set"
    elif not _answers(*_first_stop(constants.ENDPOINT)):
        reason = f"{host} cannot be reached"
    constants.HF_HUB_OFFLINE = reason is not None
    try:
        yield reason
    finally:
        constants.HF_HUB_OFFLINE = before


def _first_stop(url: str) -> tuple[str, int]:
    """Host and port of the first connection for `url`: its proxy, or the host itself."""
    parts = urlsplit(url)
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if proxy and not proxy_bypass(parts.hostname or ""):
        parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def _answers(host: str, port: int) -> bool:
    """Whether a connection opens within `LONGEST` seconds; name servers have longer time limits of their own."""
    answer: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def connect() -> None:
        try:
            socket.create_connection((host, port), timeout=LONGEST).close()
            answer.put(True)
        except OSError:
            answer.put(False)

    threading.Thread(target=connect, daemon=True).start()
    try:
        return answer.get(timeout=LONGEST)
    except queue.Empty:
        return False
