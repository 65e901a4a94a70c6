"""The extraction loop: batches, workers and interruptions do not change the rows, and errors name the problem."""

from __future__ import annotations

import errno
import gc
import multiprocessing
import os
import shutil
import signal
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import _utils
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from linprobe.data.feature_file import FeatureFile
from linprobe.errors import DataError, LinprobeError, PrivacyError, UsageError
from linprobe.extraction import partial
from linprobe.extraction.partial import locked
from linprobe.extraction.run import Network
from linprobe.extraction.sources.folders import FolderMembers
from linprobe.parallel.threads import n_processors
from tests.conftest import mostly_nightly
from tests.extraction.samples import (
    CLASSES,
    SMALL,
    Notes,
    contents,
    damaged,
    ids_of,
    labels_of,
    photo,
    rows_of,
    run_extract,
    write_images,
)


@contextmanager
def after_batches(count: int, action: Callable[[Any], Any]) -> Iterator[list[int]]:
    """Let `count` batches through the network, then call `action` on each further one; yields all batch sizes."""
    seen: list[int] = []
    forward = Network._forward

    def watched(self: Network, pixels: Any) -> Any:
        seen.append(len(pixels))
        return forward(self, pixels) if len(seen) <= count else action(pixels)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Network, "_forward", watched)
        yield seen


def interrupt(_: Any) -> Any:
    raise KeyboardInterrupt


def interrupted(count: int, source: Path, out: Path, **options: Any) -> Notes:
    """An extraction that Ctrl-C stops after `count` batches."""
    notes = Notes()
    with after_batches(count, interrupt), pytest.raises(KeyboardInterrupt):
        run_extract(source, out, notes, **options)
    return notes


def test_rows_labels_and_ids_are_in_the_order_of_the_paths(images: Path, tmp_path: Path) -> None:
    outcome = run_extract(images, tmp_path / "f.h5", batch_size=4)
    for group, count in (("train", 7), ("test", 3)):
        expected = [f"{group}/{name}/{number:03d}.png" for name in CLASSES for number in range(count)]
        assert ids_of(tmp_path / "f.h5", group) == expected
        assert labels_of(tmp_path / "f.h5", group) == [label for label in range(3) for _ in range(count)]
        for row, name in zip(rows_of(tmp_path / "f.h5", group), expected, strict=True):
            image = Image.open(images / name).resize((10, 8), Image.Resampling.BILINEAR).crop((1, 0, 9, 8))
            assert np.allclose(row, np.asarray(image).transpose(2, 0, 1).reshape(-1) / 255, atol=1e-3)
    assert outcome["rows"] == {"train": 21, "test": 9}
    assert (outcome["extracted"], outcome["n_features"], outcome["n_classes"]) == (30, 192, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f.h5"]


@pytest.mark.parametrize("backbone", mostly_nightly(["wrn-16-4", "timm:test_resnet"], "timm:test_resnet".__eq__))
def test_batch_size_does_not_change_the_features(images: Path, tmp_path: Path, backbone: str) -> None:
    options = {"backbone": backbone, "random_weights": True, "dtype": "float32", "resize": 32, "crop": 32}
    found = []
    for size in (1, 7):
        run_extract(images, tmp_path / f"{size}.h5", batch_size=size, **options)
        found.append(rows_of(tmp_path / f"{size}.h5"))
    scale = np.abs(found[0]).max()
    assert np.abs(found[0] - found[1]).max() <= 1e-3 * scale
    assert np.std(found[0], axis=0).max() > 1e-3 * scale
    assert ids_of(tmp_path / "1.h5") == ids_of(tmp_path / "7.h5")


def test_the_number_of_workers_changes_nothing_at_all(images: Path, tmp_path: Path) -> None:
    found = []
    for workers in (0, 1, 2):
        run_extract(images, tmp_path / f"{workers}.h5", workers=workers, batch_size=2, **SMALL)
        found.append(contents(tmp_path / f"{workers}.h5"))
    assert found[0] == found[1] == found[2]


def test_slow_images_do_not_change_places_between_workers(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_extract(images, tmp_path / "a.h5", batch_size=1)
    read = FolderMembers.read

    def slow(self: FolderMembers, row: int) -> bytes:
        time.sleep(0.03 if row % 4 == 0 else 0)
        return read(self, row)

    monkeypatch.setattr(FolderMembers, "read", slow)
    run_extract(images, tmp_path / "b.h5", batch_size=1, workers=2)
    assert contents(tmp_path / "a.h5") == contents(tmp_path / "b.h5")


def test_features_are_half_precision_on_disk_unless_asked_for_more(images: Path, tmp_path: Path) -> None:
    run_extract(images, tmp_path / "half.h5", **SMALL)
    run_extract(images, tmp_path / "full.h5", dtype="float32", **SMALL)
    half, full = rows_of(tmp_path / "half.h5"), rows_of(tmp_path / "full.h5")
    assert (half.dtype, full.dtype) == (np.float16, np.float32)
    assert np.array_equal(half, full.astype(np.float16))
    assert not np.array_equal(half, full)


def test_features_beyond_half_precision_are_refused_with_the_way_out(images: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        run_extract(images, tmp_path / "f.h5", std=(1e-6,))
    assert all(word in str(caught.value) for word in ("train/ant/000.png", "float16", "--dtype float32"))
    assert list(tmp_path.iterdir()) == []
    run_extract(images, tmp_path / "f.h5", std=(1e-6,), dtype="float32")
    assert rows_of(tmp_path / "f.h5").max() > 65504


def test_features_that_are_not_finite_are_refused_by_image(images: Path, tmp_path: Path) -> None:
    def infinite(pixels: Any) -> Any:
        return torch.full((len(pixels), 192), float("nan"))

    with after_batches(1, infinite), pytest.raises(DataError, match=r"train/bee/001\.png are not finite"):
        run_extract(images, tmp_path / "f.h5", batch_size=8)


def test_lower_precision_is_close_and_noted(images: Path, tmp_path: Path) -> None:
    run_extract(images, tmp_path / "full.h5", **SMALL)
    outcome = run_extract(images, tmp_path / "low.h5", precision="bfloat16", **SMALL)
    full, low = (rows_of(tmp_path / f"{name}.h5").astype(float) for name in ("full", "low"))
    error = np.abs(full - low).max() / np.abs(full).max()
    assert 1e-5 < error < 0.05
    assert outcome["precision"] == "bfloat16"


OUT_OF_MEMORY = {
    "GPU": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    "CPU": RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried"),
}


@contextmanager
def memory_for(count: int, error: Exception) -> Iterator[list[int]]:
    """A device whose memory holds `count` images."""
    forward, taken = Network._forward, []

    def limited(self: Network, pixels: Any) -> Any:
        if len(pixels) > count:
            raise error
        taken.append(len(pixels))
        return forward(self, pixels)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Network, "_forward", limited)
        yield taken


@pytest.mark.parametrize("kind", OUT_OF_MEMORY)
def test_an_automatic_batch_is_halved_until_it_fits_and_gives_the_same_rows(
    images: Path, tmp_path: Path, kind: str
) -> None:
    run_extract(images, tmp_path / "a.h5", dtype="float32", **SMALL)
    with memory_for(3, OUT_OF_MEMORY[kind]) as taken:
        run_extract(images, tmp_path / "b.h5", dtype="float32", **SMALL)
    assert max(taken) == 2
    assert sum(taken) == 30
    first, second = rows_of(tmp_path / "a.h5"), rows_of(tmp_path / "b.h5")
    assert np.abs(first - second).max() <= 1e-3 * np.abs(first).max()
    assert ids_of(tmp_path / "a.h5") == ids_of(tmp_path / "b.h5")


@pytest.mark.parametrize(("size", "count"), [(8, 3), (None, 0)])
def test_memory_that_is_too_small_is_one_line_and_leaves_nothing(
    images: Path, tmp_path: Path, size: int | None, count: int
) -> None:
    with memory_for(count, OUT_OF_MEMORY["GPU"]), pytest.raises(LinprobeError) as caught:
        run_extract(images, tmp_path / "f.h5", batch_size=size)
    assert f"ran out with {size or 1} images at once; give a smaller --batch-size" in str(caught.value)
    assert caught.value.exit_status == 1
    assert list(tmp_path.iterdir()) == []


def test_other_errors_of_the_network_are_not_taken_for_missing_memory(images: Path, tmp_path: Path) -> None:
    with memory_for(0, RuntimeError("shapes do not agree")), pytest.raises(RuntimeError, match="shapes do not agree"):
        run_extract(images, tmp_path / "f.h5")


@pytest.mark.parametrize("workers", [0, 1])
def test_an_interrupted_run_goes_on_where_it_stopped(images: Path, tmp_path: Path, workers: int) -> None:
    run_extract(images, tmp_path / "whole.h5", batch_size=2, **SMALL)
    notes = interrupted(4, images, tmp_path / "f.h5", batch_size=2, workers=workers, **SMALL)
    assert "8 of 30 images are done and kept" in notes.text
    assert not (tmp_path / "f.h5").exists()
    notes = Notes()
    with after_batches(99, interrupt) as seen:
        outcome = run_extract(images, tmp_path / "f.h5", notes, batch_size=2, workers=workers, **SMALL)
    assert sum(seen) == outcome["extracted"] == notes.steps == 22
    assert "resuming" in notes.text
    assert contents(tmp_path / "f.h5") == contents(tmp_path / "whole.h5")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f.h5", "whole.h5"]


def test_a_batch_whose_status_is_only_half_on_the_disk_is_computed_again(images: Path, tmp_path: Path) -> None:
    run_extract(images, tmp_path / "whole.h5", batch_size=4)
    interrupted(2, images, tmp_path / "f.h5", batch_size=4)
    path = tmp_path / "f.h5.partial" / "train.status"
    status = bytearray(path.read_bytes())
    assert status.rstrip(bytes(1)) == b"\x01" * 8
    status[8:10] = b"\x01\x01"
    path.write_bytes(status)
    run_extract(images, tmp_path / "f.h5", batch_size=4)
    assert contents(tmp_path / "f.h5") == contents(tmp_path / "whole.h5")


def test_a_run_stopped_before_its_first_batch_leaves_nothing(images: Path, tmp_path: Path) -> None:
    interrupted(0, images, tmp_path / "f.h5")
    assert list(tmp_path.iterdir()) == []


OTHER_SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "resize": ({"resize": 9}, "transform"),
    "mean": ({"mean": (0.5,)}, "transform"),
    "interpolation": ({"interpolation": "bicubic"}, "transform"),
    "batch size": ({"batch_size": 4}, "batch_size"),
    "type on disk": ({"dtype": "float32"}, "dtype"),
    "precision": ({"precision": "bfloat16"}, "precision"),
    "arguments": ({"arguments": {"mode": "L"}}, "arguments"),
    "classes": ({"classes": "more.txt"}, "classes"),
    "backbone": ({"backbone": "timm:test_resnet", "random_weights": True}, "backbone"),
}


@pytest.mark.parametrize(
    ("case", "finished"),
    mostly_nightly(
        [(case, finished) for case in OTHER_SETTINGS for finished in (False, True)],
        lambda pair: pair[1] == list(OTHER_SETTINGS).index(pair[0]) % 2,
    ),
)
def test_other_settings_are_refused_until_told_to_start_again(
    images: Path, tmp_path: Path, case: str, finished: bool
) -> None:
    change, name = OTHER_SETTINGS[case]
    if "classes" in change:
        (tmp_path / "more.txt").write_text("\n".join([*CLASSES, "dog"]))
        change = {"classes": tmp_path / "more.txt"}
    out, options = tmp_path / "f.h5", {"batch_size": 2, "resize": 8, "crop": 8}
    run_extract(images, out, **options) if finished else interrupted(2, images, out, **options)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(UsageError) as caught:
        run_extract(images, out, **options | change)
    assert all(word in str(caught.value) for word in ("f.h5", f" {name}", "--overwrite")), str(caught.value)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    run_extract(images, out, overwrite=True, **options | change)
    assert len(ids_of(out)) == 21
    assert not (tmp_path / "f.h5.partial").exists()


@pytest.mark.parametrize("finished", [False, True])
def test_images_that_changed_since_are_refused(tmp_path: Path, finished: bool) -> None:
    source = write_images(tmp_path / "photos", {"train": 3, "test": 1})
    out = tmp_path / "f.h5"
    run_extract(source, out, batch_size=2) if finished else interrupted(2, source, out, batch_size=2)
    photo(77).save(source / "train" / "bee" / "001.png")
    with pytest.raises(UsageError, match=r"fingerprint .* the images, .* have changed"):
        run_extract(source, out, batch_size=2)
    run_extract(source, out, batch_size=2, overwrite=True)
    run_extract(source, tmp_path / "new.h5", batch_size=2)
    assert contents(out) == contents(tmp_path / "new.h5")


def test_the_same_command_on_a_finished_file_does_nothing(images: Path, tmp_path: Path) -> None:
    run_extract(images, tmp_path / "f.h5")
    before = (tmp_path / "f.h5").stat()
    notes = Notes()
    with after_batches(0, interrupt) as seen:
        outcome = run_extract(images, tmp_path / "f.h5", notes)
    assert seen == []
    assert "exists, made with the same settings" in notes.text
    assert outcome["extracted"] == 0
    assert outcome["rows"] == {"train": 21, "test": 9}
    after = (tmp_path / "f.h5").stat()
    assert (before.st_mtime_ns, before.st_ino) == (after.st_mtime_ns, after.st_ino)


def test_overwriting_keeps_the_old_file_until_the_new_one_is_whole(images: Path, tmp_path: Path) -> None:
    run_extract(images, tmp_path / "f.h5")
    before = (tmp_path / "f.h5").read_bytes()
    interrupted(2, images, tmp_path / "f.h5", resize=9, batch_size=2, overwrite=True)
    assert (tmp_path / "f.h5").read_bytes() == before
    run_extract(images, tmp_path / "f.h5", resize=9, batch_size=2, overwrite=True)
    run_extract(images, tmp_path / "new.h5", resize=9, batch_size=2)
    assert contents(tmp_path / "f.h5") == contents(tmp_path / "new.h5")


def test_a_foreign_file_under_the_name_is_not_replaced(images: Path, tmp_path: Path, features_file: Path) -> None:
    for content in (b"my notes", features_file.read_bytes()):
        (tmp_path / "f.h5").write_bytes(content)
        with pytest.raises(LinprobeError, match=r"f\.h5"):
            run_extract(images, tmp_path / "f.h5")
        assert (tmp_path / "f.h5").read_bytes() == content
    run_extract(images, tmp_path / "f.h5", overwrite=True)
    assert ids_of(tmp_path / "f.h5")[0] == "train/ant/000.png"


def test_two_extractions_to_one_file_at_once_are_refused(images: Path, tmp_path: Path) -> None:
    with locked(tmp_path / "f.h5.partial"), pytest.raises(LinprobeError, match="another extraction is running"):
        run_extract(images, tmp_path / "f.h5")
    run_extract(images, tmp_path / "f.h5")


def test_a_run_that_makes_a_finished_file_again_is_not_disturbed_by_another(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "f.h5"
    run_extract(images, out)

    def another(pixels: Any) -> Any:
        with pytest.raises(LinprobeError, match="another extraction is running"):
            run_extract(images, out)
        return torch.zeros(len(pixels), 192)

    with after_batches(1, another) as seen:
        run_extract(images, out, overwrite=True, batch_size=16)
    assert len(seen) == 3
    assert len(ids_of(out)) == 21


def failure(*arguments: Any, **options: Any) -> tuple[int, str]:
    """Exit status and text of the error of an extraction; closes everything that the traceback keeps open."""
    with pytest.raises(LinprobeError) as caught:
        run_extract(*arguments, **options)
    found = caught.value.exit_status, str(caught.value)
    del caught
    gc.collect()
    return found


@pytest.mark.parametrize("resize", [16, 32], ids=["while the file is made", "while rows are written"])
def test_a_full_disk_leaves_what_is_done_to_go_on_with(
    images: Path, tmp_path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch, resize: int
) -> None:
    monkeypatch.setattr(partial, "SYNC_SECONDS", 0.0)
    options = {"resize": resize, "crop": resize, "batch_size": 4}
    status, text = failure(images, small_disk / "f.h5", **options)
    assert status == 1
    assert all(word in text for word in ("cannot be written", "No space left", "the same command continues")), text
    assert [path.name for path in small_disk.iterdir()] == ["f.h5.partial"]
    subprocess.run(["mount", "-o", "remount,size=8m", small_disk], check=True)
    with after_batches(99, interrupt) as seen:
        run_extract(images, small_disk / "f.h5", **options)
    assert sum(seen) < 30
    run_extract(images, tmp_path / "whole.h5", **options)
    assert contents(small_disk / "f.h5") == contents(tmp_path / "whole.h5")
    assert [path.name for path in small_disk.iterdir()] == ["f.h5"]


def test_an_unreadable_image_stops_the_run_and_is_named(tmp_path: Path) -> None:
    source = damaged(tmp_path / "photos")
    with pytest.raises(DataError) as caught:
        run_extract(source, tmp_path / "f.h5", batch_size=12)
    text = str(caught.value)
    assert all(
        word in text for word in ("2 images", "train/bee/001.png (damaged", "train/cat/003.png (the file is empty)")
    )
    assert "--on-error skip" in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photos"]


@pytest.mark.parametrize(("times", "workers"), mostly_nightly(product((1, 2), (0, 2)), ((1, 2), (2, 0)).__contains__))
def test_a_failed_read_is_tried_once_more_and_never_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int, workers: int
) -> None:
    source = write_images(tmp_path / "photos", {"train": 4, "test": 1})
    read, left = Path.read_bytes, [times]

    def fails(path: Path) -> bytes:
        if path.name == "002.png" and path.parent.name == "ant" and left[0]:
            left[0] -= 1
            raise OSError(errno.EIO, "Input/output error")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", fails)
    if times == 1:
        assert not run_extract(source, tmp_path / "f.h5", on_error="skip", workers=workers)["skipped"]
        return
    of_other_tests = set(multiprocessing.active_children())
    with pytest.raises(LinprobeError) as caught:
        run_extract(source, tmp_path / "f.h5", on_error="skip", workers=workers)
    assert set(multiprocessing.active_children()) <= of_other_tests
    image = source / "train" / "ant" / "002.png"
    assert str(caught.value).startswith(f"image {image} cannot be read (Input/output error); check the disk")
    assert "\n" not in str(caught.value)


def test_a_few_of_many_unreadable_images_are_named_and_the_rest_counted(tmp_path: Path) -> None:
    source = write_images(tmp_path / "photos", {"train": 4, "test": 1})
    for path in (source / "train").rglob("*.png"):
        path.write_bytes(b"")
    with pytest.raises(DataError, match=r"8 images.*ant/002\.png.*; and 5 more of this batch"):
        run_extract(source, tmp_path / "f.h5", batch_size=8)


def test_unreadable_images_are_left_out_and_recorded_on_request(tmp_path: Path) -> None:
    source = damaged(tmp_path / "photos")
    outcome = run_extract(source, tmp_path / "f.h5", batch_size=5, on_error="skip")
    names = ["train/bee/001.png", "train/cat/003.png", "test/ant/001.png"]
    assert [name for name, _ in outcome["skipped"]] == names
    with FeatureFile(tmp_path / "f.h5") as features:
        skipped = features.skipped()
    assert [name for name, _ in skipped] == names
    assert [reason.split(":")[0] for _, reason in skipped] == ["damaged", "the file is empty", "damaged"]
    kept = [name for name in names if name in {*ids_of(tmp_path / "f.h5"), *ids_of(tmp_path / "f.h5", "test")}]
    assert kept == []
    assert outcome["rows"] == {"train": 10, "test": 5}
    for name in names:
        (source / name).unlink()
    run_extract(source, tmp_path / "clean.h5", batch_size=5)
    mine, clean = contents(tmp_path / "f.h5"), contents(tmp_path / "clean.h5")
    for name in ("train/x", "train/y", "train/id", "test/x", "test/y", "test/id"):
        assert mine[name] == clean[name]


def test_a_run_that_stopped_at_an_image_may_go_on_without_it(tmp_path: Path) -> None:
    source = damaged(tmp_path / "photos")
    with pytest.raises(DataError, match=r"train/bee/001\.png"):
        run_extract(source, tmp_path / "f.h5", batch_size=2)
    assert (tmp_path / "f.h5.partial").is_dir()
    with after_batches(99, interrupt) as seen:
        run_extract(source, tmp_path / "f.h5", batch_size=2, on_error="skip")
    assert sum(seen) == 18 - 4
    run_extract(source, tmp_path / "whole.h5", batch_size=2, on_error="skip")
    assert contents(tmp_path / "f.h5") == contents(tmp_path / "whole.h5")


def test_a_resumed_run_keeps_the_record_of_what_was_skipped(tmp_path: Path) -> None:
    source = damaged(tmp_path / "photos")
    interrupted(4, source, tmp_path / "f.h5", batch_size=2, on_error="skip")
    outcome = run_extract(source, tmp_path / "f.h5", batch_size=2, on_error="skip")
    assert [name for name, _ in outcome["skipped"]] == ["train/bee/001.png", "train/cat/003.png", "test/ant/001.png"]


def test_a_group_without_any_readable_image_is_refused(tmp_path: Path) -> None:
    source = write_images(tmp_path / "photos", {"train": 2, "test": 1})
    for path in (source / "test").rglob("*.png"):
        path.write_bytes(b"")
    with pytest.raises(DataError, match="no test image can be read"):
        run_extract(source, tmp_path / "f.h5", on_error="skip")
    with pytest.raises(DataError, match="no test image can be read"):
        run_extract(source, tmp_path / "g.h5", on_error="skip", resize=0, crop=0)
    assert not (tmp_path / "f.h5").exists()


def test_images_of_several_sizes_need_a_crop(tmp_path: Path) -> None:
    source = write_images(tmp_path / "photos", {"train": 2, "test": 1})
    photo(3, 30, 20).save(source / "train" / "bee" / "001.png")
    with pytest.raises(DataError, match=r"train/bee/001\.png \(30 x 20 pixels.*26 x 20; give --resize and --crop"):
        run_extract(source, tmp_path / "f.h5", resize=0, crop=0)


def on_reading(patch: pytest.MonkeyPatch, name: str, action: Callable[[], Any]) -> None:
    """Do something before the image with this id is read."""
    read = FolderMembers.read

    def watched(self: FolderMembers, row: int) -> bytes:
        if self.id(row) == name:
            action()
        return read(self, row)

    patch.setattr(FolderMembers, "read", watched)


@pytest.fixture
def forked() -> Iterator[None]:
    """Workers that inherit what a test patches, as Linux makes them up to Python 3.13."""
    before = multiprocessing.get_start_method()
    multiprocessing.set_start_method("fork", force=True)
    yield
    multiprocessing.set_start_method(before, force=True)


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_that_dies_is_one_line(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    here = os.getpid()
    monkeypatch.setattr(_utils, "MP_STATUS_CHECK_INTERVAL", 0.1)  # torch looks after its workers every 5 seconds
    monkeypatch.setattr(_MultiProcessingDataLoaderIter._try_get_data, "__defaults__", (0.1,))

    def die() -> None:
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)

    on_reading(monkeypatch, "train/ant/000.png", die)
    status, text = failure(images, tmp_path / "f.h5", batch_size=2, workers=workers)
    assert all(word in text for word in ("worker process died", "train/ant/000.png", "fewer --workers")), text
    assert len(text.splitlines()) == 1
    assert status == 1
    assert list(tmp_path.iterdir()) == []


def test_public_images_that_are_private_too_are_refused(tmp_path: Path) -> None:
    source = write_images(tmp_path / "photos", {"train": 4, "test": 2, "public": 2})
    copy = source / "public" / "cat" / "copy.png"
    copy.write_bytes((source / "train" / "ant" / "003.png").read_bytes())
    with pytest.raises(PrivacyError, match="a private image cannot be public") as caught:
        run_extract(source, tmp_path / "f.h5")
    assert caught.value.exit_status == 4
    assert not (tmp_path / "f.h5").exists()
    copy.unlink()
    copy.write_bytes((source / "test" / "ant" / "001.png").read_bytes())
    run_extract(source, tmp_path / "f.h5", overwrite=True)  # test images are public anyway
    assert len(ids_of(tmp_path / "f.h5", "public")) == 7
    with pytest.raises(PrivacyError, match="a private image cannot be public"):
        run_extract(source, tmp_path / "private.h5", private_test=True)
    assert not (tmp_path / "private.h5").exists()


def test_the_digest_follows_network_and_preprocessing_and_not_how_it_ran(images: Path, tmp_path: Path) -> None:
    def digest(**options: Any) -> str:
        run_extract(images, tmp_path / "f.h5", overwrite=True, **options)
        with h5py.File(tmp_path / "f.h5") as file:
            return str(file.attrs["extraction_digest"])

    plain = digest()
    assert len(plain) == 64
    assert digest(batch_size=3, workers=1, dtype="float32") == plain
    others = [
        digest(resize=9),
        digest(mean=(0.1,)),
        digest(interpolation="nearest"),
        digest(arguments={"mode": "L"}),
        digest(**SMALL),
    ]
    assert len({plain, *others}) == 6


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dtype": "int8"}, ["dtype is 'int8'", "float16, float32"]),
        ({"precision": "half"}, ["precision is 'half'", "bfloat16"]),
        ({"on_error": "ignore"}, ["on-error is 'ignore'", "fail, skip"]),
        ({"batch_size": 0}, ["batch-size is 0", "1 to"]),
        ({"workers": -1}, ["workers is -1", "0 to 1024"]),
    ],
)
def test_a_value_that_no_option_has_is_refused(
    images: Path, tmp_path: Path, options: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(UsageError) as caught:
        run_extract(images, tmp_path / "f.h5", **options)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_status_reaches_the_disk_while_the_run_goes_on(images: Path, tmp_path: Path) -> None:
    found = []

    def look(pixels: Any) -> Any:
        found.append(np.count_nonzero(np.fromfile(tmp_path / "f.h5.partial" / "train.status", dtype=np.uint8)))
        return torch.zeros(len(pixels), 192)

    with pytest.MonkeyPatch.context() as patch, after_batches(0, look):
        patch.setattr(partial, "SYNC_SECONDS", 0.0)
        run_extract(images, tmp_path / "f.h5", batch_size=1)
    assert 0 < found[12] <= 12


def test_a_copy_of_a_private_image_is_found_among_the_public_ones_wherever_it_stands(tmp_path: Path) -> None:
    source = write_images(tmp_path / "photos", {"train": 7, "test": 3, "public": 3})
    run_extract(source, tmp_path / "fine.h5", batch_size=4, **SMALL)
    with Image.open(source / "train" / "cat" / "002.png") as image:
        image.save(source / "public" / "bee" / "001.bmp")
    with pytest.raises(PrivacyError, match="some public images are private too"):
        run_extract(source, tmp_path / "f.h5", batch_size=4, **SMALL)


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_private_image_under_two_names_is_refused(images: Path, tmp_path: Path, link: Callable[..., None]) -> None:
    source = Path(shutil.copytree(images, tmp_path / "copy"))
    link(source / "train" / "ant" / "000.png", source / "train" / "bee" / "twice.png")
    with pytest.raises(PrivacyError, match=r"train/ant/000\.png is there a second time through links"):
        run_extract(source, tmp_path / "f.h5")
    (source / "train" / "bee" / "twice.png").rename(source / "test" / "bee" / "twice.png")
    with pytest.raises(PrivacyError, match=r"train/ant/000\.png is there a second time through links"):
        run_extract(source, tmp_path / "f.h5")


@pytest.mark.parametrize("group", ["test", "public"])
def test_a_private_test_image_under_two_names_is_refused(tmp_path: Path, group: str) -> None:
    source = write_images(tmp_path / "photos", {"train": 4, "test": 2, "public": 2})
    os.link(source / "test" / "ant" / "000.png", source / group / "bee" / "twice.png")
    run_extract(source, tmp_path / "f.h5")
    with pytest.raises(PrivacyError, match=r"test/ant/000\.png is there a second time through links"):
        run_extract(source, tmp_path / "f.h5", private_test=True, overwrite=True)


def test_two_files_that_are_gone_are_not_one_file(tmp_path: Path) -> None:
    source = write_images(tmp_path / "photos", {"train": 2, "test": 2})
    for group in ("train", "test"):
        (source / group / "ant" / "000.png").unlink()
        (source / group / "ant" / "000.png").symlink_to("nowhere")
    run_extract(source, tmp_path / "f.h5", on_error="skip")
    assert [len(ids_of(tmp_path / "f.h5", group)) for group in ("train", "test")] == [5, 5]


def test_folders_beside_the_groups_that_are_left_out_are_noted(tmp_path: Path) -> None:
    source = write_images(tmp_path / "photos", {"train": 2, "test": 1, "val": 1, "Public": 1, "more": 1})
    notes = Notes()
    run_extract(source, tmp_path / "f.h5", notes)
    assert [line for line in notes.lines if "left out" in line and "Public, val" in line and "more" not in line]
    for name in ("val", "Public"):
        shutil.rmtree(source / name)
    (source / "val").symlink_to(source / "test")
    notes = Notes()
    run_extract(source, tmp_path / "f.h5", notes, overwrite=True)
    assert "left out" not in notes.text


def test_more_workers_than_cores_print_no_warning_of_torch(images: Path, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        run_extract(images, tmp_path / "f.h5", workers=n_processors() + 1, batch_size=1)


def test_no_file_that_is_not_a_feature_file_is_replaced(images: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.h5").write_text("years of work")
    with pytest.raises(UsageError, match="is no feature file"):
        run_extract(images, tmp_path / "thesis.h5", overwrite=True)
    assert (tmp_path / "thesis.h5").read_text() == "years of work"
    (tmp_path / "thesis.npz").write_text("years of work")
    with pytest.raises(UsageError, match="would replace an input"):
        run_extract(tmp_path / "thesis.npz", tmp_path / "thesis.npz", overwrite=True)
