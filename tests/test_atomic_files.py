"""Files are complete or absent, and private files are private from their first byte."""

from __future__ import annotations

import json
import os
import signal
import stat
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import pytest

from linprobe import atomic_files
from linprobe.atomic_files import alone, held, write_csv, write_json
from linprobe.errors import LinprobeError, PrivacyError, UsageError
from tests.conftest import mostly_nightly
from tests.planted import locks_of_nfs, no_locks
from tests.processes import ended, start_copy


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    write_json(tmp_path / "one.json", {"name": "ä\n", "value": [1, None]})
    assert json.loads((tmp_path / "one.json").read_text(encoding="utf-8")) == {"name": "ä\n", "value": [1, None]}
    write_csv(tmp_path / "one.csv", iter([{"id": "a,b", "epsilon": 1.5}, {"id": "ä", "epsilon": None}]))
    assert (tmp_path / "one.csv").read_text(encoding="utf-8") == 'id,epsilon\n"a,b",1.5\nä,\n'
    write_csv(tmp_path / "none.csv", [])
    assert (tmp_path / "none.csv").read_bytes() == b""


def _rows() -> Iterator[dict[str, int]]:
    yield {"a": 1}
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "write", [lambda path: write_json(path, {"a": object()}), lambda path: write_csv(path, _rows())]
)
def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(
    write: Callable[[Path], None], tmp_path: Path
) -> None:
    path = tmp_path / "kept"
    path.write_text("old", encoding="utf-8")
    with pytest.raises((TypeError, KeyboardInterrupt)):
        write(path)
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_private_files_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {}, private=True)
    write_csv(tmp_path / "a.csv", [{"a": 1}], private=True)
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


@pytest.mark.parametrize(
    ("what", "fault"),
    mostly_nightly(
        product(("file", "folder"), (None, no_locks, locks_of_nfs)),
        lambda case: (case[0] == "file") == (case[1] is None),
    ),
)
def test_one_process_at_a_time_is_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, fault: Callable[[pytest.MonkeyPatch], None] | None
) -> None:
    if fault is not None:
        fault(monkeypatch)
    counter, path = tmp_path / "counter", tmp_path / "held"
    counter.write_text("0")
    path.touch() if what == "file" else path.mkdir()

    def count() -> int:
        for _ in range(5):
            with alone(path):
                number = int(counter.read_text())
                time.sleep(0.002)
                counter.write_text(str(number + 1))
        return 0

    assert [ended(child) for child in [start_copy(count) for _ in range(4)]] == [0] * 4
    assert counter.read_text() == "20"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["counter", "held"]
    with alone(path):
        marks = len(list(tmp_path.rglob(".*.held")))
    assert marks == (fault is no_locks or (fault is locks_of_nfs and what == "folder"))


def test_the_lock_file_of_a_killed_process_stays_until_a_person_removes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_locks(monkeypatch)
    monkeypatch.setattr(atomic_files, "PATIENCE", 0.1)
    path = tmp_path / "held"
    path.touch()

    def killed() -> int:
        with alone(path):
            os.kill(os.getpid(), signal.SIGKILL)
        return 0

    child = start_copy(killed)
    assert ended(child) == -signal.SIGKILL
    told = rf"lock file .*\.held\.held of process {child} on .* is still there after 0\.1 seconds; nothing was spent"
    for _ in range(2):
        with pytest.raises(PrivacyError, match=told), alone(path):
            pass
    (tmp_path / ".held.held").unlink()
    with pytest.raises(KeyError), alone(path):
        raise KeyError
    with alone(path):
        (tmp_path / ".held.held").unlink()
        (tmp_path / ".held.held").touch()  # of the next process
    assert (tmp_path / ".held.held").exists()


def test_a_lock_has_one_holder_and_creates_no_file_unless_asked(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    with held(tmp_path, "busy"), pytest.raises(LinprobeError, match="busy"), held(tmp_path, "busy"):
        pass
    with held(tmp_path, "busy"), pytest.raises(FileNotFoundError), held(tmp_path / "lock", "busy"):
        pass
    assert list(tmp_path.iterdir()) == []
    with held(tmp_path / "lock", "busy", create=True):
        assert (tmp_path / "lock").is_file()


def test_a_lock_file_that_is_a_link_is_refused_and_not_followed(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match=r"lock is a link to .*elsewhere; .* remove it"):
        held(tmp_path / "lock", "busy", create=True, error=UsageError).__enter__()
    assert (tmp_path / "lock").is_symlink()
    assert not (tmp_path / "elsewhere").exists()


def test_a_file_is_on_the_disk_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, synced = tmp_path / "a.json", []
    monkeypatch.setattr(os, "fsync", lambda opened: synced.append((path.exists(), os.fstat(opened).st_size)))
    write_json(path, {"a": 1})
    assert synced == [(False, path.stat().st_size)]


def test_a_private_file_is_made_with_its_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes, real = [], os.open

    def opens(path: Path, flags: int, mode: int) -> int:
        modes.append(mode)
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", opens)
    write_json(tmp_path / "a.json", {}, private=True)
    assert modes == [0o600]
