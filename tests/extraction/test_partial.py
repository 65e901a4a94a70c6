"""An unfinished extraction on disk: rows before their status, one set of settings, one writer."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linprobe.errors import LinprobeError, UsageError
from linprobe.extraction import partial as module
from linprobe.extraction.partial import DONE, KEY_BYTES, LOCK, PENDING, SETTINGS, SKIPPED, Partial, locked

SIZES = {"train": 7, "test": 3}
WIDTH = 4
DTYPE = np.dtype(np.float16)
ASKED: dict[str, Any] = {"backbone": "pixels", "batch_size": 2, "mean": (0.5, 0.5)}
ROWS = np.random.default_rng(0).random((7, WIDTH)).astype(DTYPE)


def begin(folder: Path, settings: dict[str, Any] = ASKED) -> bool:
    folder.mkdir(exist_ok=True)
    return Partial(folder, SIZES, WIDTH, DTYPE).begin(settings)


def opened(folder: Path, rank: int = 0) -> Partial:
    return Partial(folder, SIZES, WIDTH, DTYPE, rank)


def marks(*values: int) -> Any:
    return np.array(values, dtype=np.uint8)


def keys_of(rows: Any) -> Any:
    """One key per row, derived from the values of the row."""
    return np.repeat(
        np.frombuffer(rows[:, :1].tobytes(), dtype=np.uint8).reshape(len(rows), -1), KEY_BYTES // 2, axis=1
    )


def test_rows_and_status_are_read_back_by_whoever_opens_it_next(tmp_path: Path) -> None:
    assert begin(tmp_path / "p") is False
    with opened(tmp_path / "p") as partial:
        partial.write("train", 4, ROWS[4:6], marks(DONE, DONE), keys_of(ROWS[4:6]))
        partial.write("train", 0, ROWS[:2], marks(DONE, SKIPPED), keys_of(ROWS[:2]))
        partial.sync()
    assert begin(tmp_path / "p") is True
    with opened(tmp_path / "p") as partial:
        assert partial.status("train").tolist() == [DONE, SKIPPED, PENDING, PENDING, DONE, DONE, PENDING]
        assert partial.status("test").tolist() == [PENDING] * 3
        assert np.array_equal(np.concatenate(list(partial.rows("train"))), ROWS[[0, 4, 5]])
        assert np.array_equal(partial.keys("train"), keys_of(ROWS[[0, 4, 5]]))


def test_blocks_put_together_are_the_rows_whatever_their_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(tmp_path / "p")
    monkeypatch.setattr(module, "ASSEMBLY_ROWS", 3)
    with opened(tmp_path / "p") as partial:
        partial.write("train", 0, ROWS, marks(1, 1, 2, 0, 1, 1, 1), keys_of(ROWS))
        partial.sync()
        blocks = list(partial.rows("train"))
    assert [len(block) for block in blocks] == [2, 2, 1]
    assert np.array_equal(np.concatenate(blocks), ROWS[[0, 1, 4, 5, 6]])


def test_status_counts_only_after_the_rows_are_safe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(tmp_path / "p")
    steps: list[str] = []
    write, sync = os.pwrite, os.fsync

    def name_of(descriptor: int) -> str:
        return Path(f"/proc/self/fd/{descriptor}").readlink().name

    def watched_write(descriptor: int, *rest: Any) -> int:
        steps.append(f"write {name_of(descriptor)}")
        return write(descriptor, *rest)

    def watched_sync(descriptor: int) -> None:
        steps.append(f"sync {name_of(descriptor)}")
        sync(descriptor)

    if not Path("/proc/self/fd").is_dir():
        pytest.skip("this system does not name open files")
    monkeypatch.setattr(os, "pwrite", watched_write)
    monkeypatch.setattr(os, "fsync", watched_sync)
    with opened(tmp_path / "p") as partial:
        partial.write("train", 0, ROWS[:2], marks(DONE, DONE), keys_of(ROWS[:2]))
        assert partial.status("train").tolist() == [PENDING] * 7
        partial.sync()
    assert steps == [
        "write train.keys",
        "write train.rows",
        "sync train.rows",
        "sync train.keys",
        "write train.status",
    ]


def test_status_is_written_at_least_every_second_or_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(tmp_path / "p")
    monkeypatch.setattr(module, "SYNC_SECONDS", 0.0)
    with opened(tmp_path / "p") as partial:
        partial.write("train", 0, ROWS[:2], marks(DONE, DONE), keys_of(ROWS[:2]))
        assert partial.status("train").tolist()[:3] == [DONE, DONE, PENDING]


def test_short_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(tmp_path / "p")
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, offset: write(descriptor, data[:3], offset))
    with opened(tmp_path / "p") as partial:
        partial.write("train", 2, ROWS[2:6], marks(1, 1, 1, 1), keys_of(ROWS[2:6]))
        partial.sync()
        assert np.array_equal(np.concatenate(list(partial.rows("train"))), ROWS[2:6])


def test_a_full_disk_is_not_taken_for_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(tmp_path / "p")

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with opened(tmp_path / "p") as partial:
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", full)
            with pytest.raises(OSError, match="No space"):
                partial.write("train", 0, ROWS[:2], marks(DONE, DONE), keys_of(ROWS[:2]))
        partial.sync()
        assert partial.status("train").tolist() == [PENDING] * 7


@pytest.mark.parametrize("kind", ["rows", "keys"])
def test_rows_that_a_disk_lost_are_not_taken_for_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Linux reports an error of the disk once, and the next call succeeds though the rows are lost."""
    begin(tmp_path / "p")
    faults = [OSError(errno.EIO, "Input/output error")]
    with opened(tmp_path / "p") as partial:

        def failing_once(descriptor: int) -> None:
            if faults and descriptor == partial._open[f"train.{kind}"]:
                raise faults.pop()

        monkeypatch.setattr(os, "fsync", failing_once)
        partial.write("train", 0, ROWS[:2], marks(DONE, DONE), keys_of(ROWS[:2]))
        with pytest.raises(OSError, match="Input/output"):
            partial.sync()
        partial.write("train", 4, ROWS[4:6], marks(DONE, DONE), keys_of(ROWS[4:6]))
        partial.sync()
        assert partial.status("train").tolist() == [PENDING] * 4 + [DONE, DONE, PENDING]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch_size": 3}, ["batch_size 2", "3"]),
        ({"backbone": "wrn-16-4"}, ['backbone "pixels"', '"wrn-16-4"']),
        ({"mean": (0.5, 0.6)}, ["mean [0.5, 0.5]", "[0.5, 0.6]"]),
        ({"dtype": "float32"}, ["dtype null", '"float32"']),
        ({"backbone": "x" * 500}, ["backbone", "x..."]),
    ],
)
def test_other_settings_are_refused_by_name(tmp_path: Path, change: dict[str, Any], words: list[str]) -> None:
    begin(tmp_path / "p")
    with pytest.raises(UsageError) as caught:
        begin(tmp_path / "p", ASKED | change)
    assert all(word in str(caught.value) for word in ["was begun with", "--overwrite", *words]), str(caught.value)
    assert begin(tmp_path / "p") is True


def test_starting_again_gives_up_other_settings_and_goes_on_with_the_same(tmp_path: Path) -> None:
    def again(settings: dict[str, Any]) -> bool:
        return Partial(tmp_path / "p", SIZES, WIDTH, DTYPE).begin(settings, overwrite=True)

    begin(tmp_path / "p")
    with opened(tmp_path / "p") as partial:
        partial.write("train", 0, ROWS, marks(*[DONE] * 7), keys_of(ROWS))
        partial.sync()
    assert again(ASKED) is True
    assert again(ASKED | {"batch_size": 3}) is False
    with opened(tmp_path / "p") as partial:
        assert partial.status("train").tolist() == [PENDING] * 7
    assert again(ASKED | {"batch_size": 3}) is True


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe"])
def test_damaged_settings_are_never_taken_for_the_same(tmp_path: Path, content: bytes) -> None:
    begin(tmp_path / "p")
    (tmp_path / "p" / SETTINGS).write_bytes(content)
    with pytest.raises(UsageError, match="backbone"):
        begin(tmp_path / "p")


def test_a_folder_without_settings_is_begun_anew(tmp_path: Path) -> None:
    begin(tmp_path / "p")
    with opened(tmp_path / "p") as partial:
        partial.write("train", 0, ROWS, marks(*[DONE] * 7), keys_of(ROWS))
        partial.sync()
        partial.skip("test", 1, "b", "broken")
    (tmp_path / "p" / SETTINGS).unlink()
    assert begin(tmp_path / "p") is False
    with opened(tmp_path / "p") as partial:
        assert partial.status("train").tolist() == [PENDING] * 7
        assert partial.skipped() == []


def test_what_a_killed_assembly_left_is_removed_and_the_rows_are_kept(tmp_path: Path) -> None:
    begin(tmp_path / "p")
    with opened(tmp_path / "p") as partial:
        partial.write("train", 0, ROWS, marks(*[DONE] * 7), keys_of(ROWS))
        partial.sync()
    for name in ("made.h5", ".made.h5.0011aabb.partial"):
        (tmp_path / "p" / name).write_bytes(b"half")
    begin(tmp_path / "p")
    names = {path.name for path in (tmp_path / "p").iterdir()}
    assert names == {SETTINGS, *(f"{group}.{kind}" for group in SIZES for kind in ("rows", "status", "keys"))}
    with opened(tmp_path / "p") as partial:
        assert partial.status("train").tolist() == [DONE] * 7


def test_skipped_images_of_all_processes_are_listed_once_and_in_order(tmp_path: Path) -> None:
    begin(tmp_path / "p")
    with opened(tmp_path / "p", 1) as second, opened(tmp_path / "p") as first:
        second.skip("test", 0, "t0", "empty")
        first.skip("train", 5, "r5", "cut ü")
        second.skip("train", 3, "r3", "empty")
        first.skip("train", 5, "r5", "cut ü")
        first.write("train", 3, ROWS[3:6], marks(SKIPPED, DONE, SKIPPED), keys_of(ROWS[3:6]))
        first.write("test", 0, ROWS[:2], marks(SKIPPED, DONE), keys_of(ROWS[:2]))
        first.skip("test", 1, "t1", "could be read the second time")
        first.sync()
        expected = [("train", "r3", "empty"), ("train", "r5", "cut ü"), ("test", "t0", "empty")]
        assert first.skipped() == expected
        with (tmp_path / "p" / "skipped-1.jsonl").open("a") as stream:
            stream.write(json.dumps({"group": "train"})[:-4])  # a process was killed here
        assert first.skipped() == expected


def test_a_second_extraction_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    with locked(folder):
        begin(folder)
        with pytest.raises(LinprobeError, match="another extraction is running") as caught, locked(folder):
            pass
        assert caught.value.exit_status == 2
        assert (folder / SETTINGS).is_file()
    with locked(folder):
        assert begin(folder) is True


def test_a_lock_leaves_no_folder_in_which_nothing_was_begun(tmp_path: Path) -> None:
    with locked(tmp_path / "p"):
        assert (tmp_path / "p" / LOCK).is_file()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    folder.mkdir()
    (folder / "thesis").write_text("years of work")
    with pytest.raises(UsageError, match="'thesis', which no extraction wrote"), locked(folder):
        pass
    assert (folder / "thesis").read_text() == "years of work"
    (tmp_path / "q").write_text("a file")
    with pytest.raises(UsageError, match="is no folder"), locked(tmp_path / "q"):
        pass
    assert (tmp_path / "q").read_text() == "a file"


def test_a_child_that_outlives_its_parent_does_not_hold_the_lock(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    begin(folder)
    read_end, write_end = os.pipe()
    told_end, tell_end = os.pipe()
    with locked(folder):
        child = os.fork()
        if not child:
            os.close(write_end)
            os.write(tell_end, b"x")
            os.read(read_end, 1)
            os._exit(0)
        os.read(told_end, 1)
    try:
        with locked(folder):
            pass
    finally:
        os.close(write_end)
        os.waitpid(child, 0)
        for end in (read_end, told_end, tell_end):
            os.close(end)


def test_files_cut_short_are_begun_anew(tmp_path: Path) -> None:
    begin(tmp_path / "p")
    with opened(tmp_path / "p") as partial:
        partial.write("train", 0, ROWS, marks(*[DONE] * 7), keys_of(ROWS))
        partial.sync()
    os.truncate(tmp_path / "p" / "train.status", 3)
    assert begin(tmp_path / "p") is False
    with opened(tmp_path / "p") as partial:
        assert partial.status("train").tolist() == [PENDING] * 7
