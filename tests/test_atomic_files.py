"""Files are complete or absent, and private files are private from their first byte."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from linprobe.atomic_files import held, write_csv, write_json
from linprobe.errors import LinprobeError


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


def test_a_lock_has_one_holder_and_creates_no_file_unless_asked(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    with held(tmp_path, "busy"), pytest.raises(LinprobeError, match="busy"), held(tmp_path, "busy"):
        pass
    with held(tmp_path, "busy"), pytest.raises(FileNotFoundError), held(tmp_path / "lock", "busy"):
        pass
    assert list(tmp_path.iterdir()) == []
    with held(tmp_path / "lock", "busy", create=True):
        assert (tmp_path / "lock").is_file()
