"""Lazy blocks, half precision, prefetch: blocks in memory and streamed blocks have the same bits."""

from __future__ import annotations

import gc
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from linprobe.data import blocks as blocks_module
from linprobe.data import feature_reader, row_checks
from linprobe.data import rows as rows_module
from linprobe.data.blocks import (
    BLOCK_ROWS,
    STORAGE,
    ArraySource,
    Block,
    ChainedSource,
    Preprocessing,
    halved,
    narrowed,
    row_norms,
    widened,
)
from linprobe.data.feature_file import Extents, FeatureFile
from linprobe.data.feature_reader import Description, FeatureReader, GroupRows
from linprobe.data.feature_writer import FeatureWriter
from linprobe.data.row_checks import check_rows
from linprobe.data.rows import ArrayRows, ChainedRows, Rows, StreamedRows, prepare
from linprobe.errors import DataError, Silent, UsageError
from linprobe.gradients.clipped_sum import clipped_sum
from linprobe.methods.dpsgd_f import feature_clipped
from linprobe.options.requests import TrainRequest
from linprobe.parallel import available_memory
from linprobe.parallel.threads import prefetched
from linprobe.training.charge import RunCharge
from linprobe.training.train import train_run

RNG = np.random.default_rng(5)
N, D = 5000, 37
RAW = (RNG.standard_normal((N, D)) + 0.3).astype(np.float32)
LABELS = np.arange(N) % 4
JOINED = RNG.random(N) < 0.6
PREPROCESSINGS = {
    "plain": Preprocessing(),
    "centre": Preprocessing.centred_on(RAW[:50]),
    "intercept": Preprocessing(intercept=0.5),
}


class Ragged:
    """A source with blocks of unusual sizes."""

    n_rows, n_features = N, D

    def blocks(self) -> Iterator[tuple[Any, Any]]:
        edges = [0, 3, 3, 700, 1024, 3500, 4998, N]
        for start, stop in pairwise(edges):
            yield RAW[start:stop], LABELS[start:stop]


def in_memory(precision: Any = "float32", preprocessing: Preprocessing = PREPROCESSINGS["plain"]) -> Rows:
    """The rows as arrays."""
    rows = prepare(ArraySource(RAW, LABELS), preprocessing, precision)
    assert isinstance(rows, ArrayRows)
    return rows


def streamed(precision: Any = "float32", preprocessing: Preprocessing = PREPROCESSINGS["plain"]) -> Rows:
    """The rows, read again in every pass."""
    source = Ragged()
    return StreamedRows(source.blocks, N, D + bool(preprocessing.intercept), preprocessing, precision)


def equal(left: Block, right: Block) -> bool:
    """Whether two blocks are the same in every bit."""
    assert left.x.dtype == right.x.dtype == np.float32
    return left.start == right.start and all(
        (one is None and other is None) or np.array_equal(one, other)
        for one, other in ((getattr(left, name), getattr(right, name)) for name in ("x", "y", "norms", "sampled"))
    )


ROWS = {
    **{f"in memory {precision}": lambda precision=precision: in_memory(precision) for precision in STORAGE},
    **{f"streamed {precision}": lambda precision=precision: streamed(precision) for precision in STORAGE},
    "chained": lambda: ChainedRows(in_memory(), streamed()),
    "translated": lambda: streamed().translated(np.arange(D) / 10, 0.5),
    "shortened": lambda: feature_clipped(in_memory("float16"), 0.3),
    "sampled": lambda: streamed().sample(JOINED, 0.6, observed=False),
    "observed": lambda: in_memory("bfloat16").sample(JOINED, 0.6, observed=True),
}


@pytest.mark.parametrize("name", ROWS)
def test_lazy_blocks_can_be_called_in_any_order_by_many_threads(name: str) -> None:
    rows: Rows = ROWS[name]()
    expected = list(rows.blocks())
    assert sum(len(block.y) for block in expected) in (N, 2 * N, JOINED.sum())
    loads = list(rows.lazy_blocks())
    with ThreadPoolExecutor(4) as pool:
        backwards = [pool.submit(load) for load in reversed(loads)]
    found = [future.result() for future in reversed(backwards)]
    assert all(equal(left, right) for left, right in zip(expected, found, strict=True))


@pytest.mark.parametrize("name", PREPROCESSINGS)
@pytest.mark.parametrize("precision", STORAGE)
def test_streamed_blocks_are_whole_and_those_in_memory_bit_for_bit(name: str, precision: Any) -> None:
    kept, read = in_memory(precision, PREPROCESSINGS[name]), streamed(precision, PREPROCESSINGS[name])
    sizes = [len(block.y) for block in read.blocks()]
    assert sizes == [BLOCK_ROWS] * (N // BLOCK_ROWS) + [N % BLOCK_ROWS]
    assert all(equal(left, right) for left, right in zip(kept.blocks(), read.blocks(), strict=True))
    weights = np.random.default_rng(1).standard_normal((kept.n_features, 4))
    left, right = clipped_sum(kept, weights, 0.4), clipped_sum(read, weights, 0.4)
    assert np.array_equal(left.value, right.value)
    assert np.array_equal(left.contributions, right.contributions)


@pytest.mark.parametrize("precision", STORAGE)
def test_norms_are_those_of_the_numbers_in_the_block(precision: Any) -> None:
    exact = in_memory("float32")
    for rows in (in_memory(precision), streamed(precision)):
        for block, unrounded in zip(rows.blocks(), exact.blocks(), strict=True):
            assert np.allclose(block.norms, np.linalg.norm(block.x.astype(np.float64), axis=1), rtol=1e-6, atol=0)
            assert np.array_equal(block.x, widened(narrowed(unrounded.x, precision)))
            assert np.allclose(block.x, unrounded.x, rtol=2.0**-8, atol=2.0**-24)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_every_stored_number_is_widened_exactly_and_narrowed_back(
    precision: Any, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native:
        monkeypatch.setattr(blocks_module, "LIBRARY", None)
    bits = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
    stored = bits.view(np.float16) if precision == "float16" else bits
    wide = widened(stored)
    expected = stored.astype(np.float32) if precision == "float16" else (bits.astype(np.uint32) << 16).view(np.float32)
    assert np.array_equal(wide, expected, equal_nan=True)
    assert np.array_equal(np.signbit(wide), np.signbit(expected))
    finite = np.isfinite(wide)
    again = widened(stored[finite])
    assert np.array_equal(again, wide[finite])
    assert np.array_equal(narrowed(again, precision).view(np.uint16), bits[finite])


@given(arrays(np.float32, 20, elements=st.floats(-6e4, 6e4, width=32)))
def test_bfloat16_is_the_nearest_and_the_even_one_of_two(x: Any) -> None:
    bits = narrowed(x, "bfloat16")
    wide = x.astype(np.float64)
    error = np.abs(widened(bits) - wide)
    for neighbour in (bits - np.uint16(1), bits + np.uint16(1)):
        other = np.abs(widened(neighbour) - wide)
        assert np.all((error < other) | ((error == other) & (bits % 2 == 0)) | ~np.isfinite(other))


@given(arrays(np.float32, 20, elements=st.floats(-65504, 65504, width=32)))
def test_float16_is_numpys(x: Any) -> None:
    assert np.array_equal(narrowed(x, "float16"), x.astype(np.float16))


@pytest.mark.parametrize("native", [True, False])
def test_every_float32_near_a_tie_is_rounded_to_numpys_float16(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not native:
        monkeypatch.setattr(blocks_module, "LIBRARY", None)
    # bits below the 13th decide a rounding: all of them for each exponent and sign, and each kept bit beside them
    low = np.array([0, 1, 0xFFE, 0xFFF, 0x1000, 0x1001, 0x1FFF, 0x2000, 0x3000], dtype=np.uint32)
    high = np.arange(1 << 16, dtype=np.uint32) << 16
    x = (high[:, None] + np.concatenate([low, low + 0x4000, low + 0xC000])).view(np.float32)
    half = halved(x)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        known = x.astype(np.float16)
    assert np.array_equal(half, known, equal_nan=True)
    assert np.array_equal(np.signbit(half), np.signbit(known))


@pytest.mark.parametrize(("precision", "value"), [("float16", 65520.0), ("bfloat16", 3.4e38), ("float16", np.nan)])
def test_what_a_precision_does_not_hold_is_refused(precision: Any, value: float) -> None:
    with pytest.raises(UsageError, match=rf"{precision}.*float32"):
        narrowed(np.array([[0.5, value]], dtype=np.float32), precision)


def test_a_bias_column_that_would_be_rounded_and_an_unknown_precision_are_refused() -> None:
    source = ArraySource(RAW, LABELS)
    with pytest.raises(UsageError, match=r"intercept is 0\.3.*0\.30078125"):
        prepare(source, Preprocessing(intercept=0.3), "bfloat16")
    assert prepare(source, Preprocessing(intercept=0.30078125), "bfloat16").n_features == D + 1
    with pytest.raises(UsageError, match=r"float64.*float32, bfloat16, float16"):
        prepare(source, Preprocessing(), "float64")  # type: ignore[arg-type]


@given(
    arrays(np.float32, st.tuples(st.integers(0, 4), st.integers(1, 100)), elements=st.floats(-1, 1, width=32)),
    st.integers(-45, 38),
)
def test_row_norms_are_right_to_one_part_in_a_million(x: Any, exponent: int) -> None:
    x = (x * 10.0**exponent).astype(np.float32)
    assert np.allclose(row_norms(x), np.sqrt(np.square(x, dtype=np.float64).sum(axis=1)), rtol=1e-6, atol=0)


@pytest.mark.parametrize("scale", [0, 1e-30, 1, 1e25])
def test_the_norm_of_a_long_row_depends_on_no_other_row(scale: float) -> None:
    x = (np.random.default_rng(0).standard_normal((5, 9000)) * scale).astype(np.float32)
    assert [row_norms(row[None])[0] for row in x] == row_norms(x).tolist()


def test_a_users_whole_numbers_are_no_bits() -> None:
    raw = np.arange(1, 13, dtype=np.uint16).reshape(3, 4)
    assert np.array_equal(Preprocessing().apply(raw), Preprocessing().apply(raw.astype(np.float64)))


def test_rows_are_kept_at_the_precision_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(available_memory, "available", lambda: 2 * (2 * N * D))
    for precision, kept in (("float32", False), ("bfloat16", True), ("float16", True)):
        rows = prepare(ArraySource(RAW, LABELS), Preprocessing(), precision)
        assert isinstance(rows, ArrayRows if kept else StreamedRows)
        if isinstance(rows, ArrayRows):
            assert rows.x.nbytes == 2 * N * D


# reading ahead


def readers() -> int:
    """Running prefetch threads."""
    return sum(thread.name.startswith("prefetch") for thread in threading.enumerate())


def test_items_come_in_order_and_no_more_than_asked_for_are_made_ahead() -> None:
    made = []

    def items() -> Iterator[int]:
        for item in range(100):
            made.append(item)
            yield item

    ahead = prefetched(items(), 3)
    assert (made, readers()) == ([], 0), "nothing is read before it is asked for"
    for expected, item in enumerate(ahead):
        assert item == expected
        assert len(made) <= expected + 2 + 3
    assert (len(made), readers()) == (100, 0)


def test_an_error_of_the_reader_reaches_the_caller_after_what_was_read() -> None:
    def items() -> Iterator[int]:
        yield 1
        yield 2
        raise DataError("the disk is gone")

    ahead = prefetched(items(), 8)
    assert [next(ahead), next(ahead)] == [1, 2]
    with pytest.raises(DataError, match="the disk is gone"):
        next(ahead)
    assert readers() == 0


@pytest.mark.parametrize("how", ["closed", "collected", "interrupted"])
def test_the_thread_ends_with_the_pass(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "PREFETCHED_BLOCKS", 2)

    def interrupt(blocks: Iterator[Any]) -> None:
        for _ in blocks:
            raise KeyboardInterrupt

    blocks = streamed().lazy_blocks()
    next(blocks)
    assert readers() == 1
    if how == "closed":
        blocks.close()  # type: ignore[attr-defined]
    elif how == "interrupted":
        with pytest.raises(KeyboardInterrupt):
            interrupt(blocks)
    del blocks
    gc.collect()
    assert readers() == 0


# feature files

LAYOUTS: dict[str, dict[str, Any]] = {
    "as written": {"chunks": (7, 10)},
    "one chunk": {"chunks": (400, 10)},
    "in one stretch": {},
    "compressed": {"chunks": (64, 10), "compression": "gzip"},
    "split columns": {"chunks": (64, 3)},
    "half precision": {"dtype": np.float16, "chunks": (33, 10)},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_are_read_whatever_their_layout(editable: Path, layout: str) -> None:
    with h5py.File(editable, "r+") as file:
        x = file["train/x"][:]
        del file["train/x"]
        file.create_dataset("train/x", data=x, **LAYOUTS[layout])
        expected = file["train/x"][:]
    with FeatureFile(editable) as features:
        check_rows(features)
        for part in (slice(None), slice(0, 1), slice(60, 333), slice(399, 900), slice(5, 5), slice(2, 90, 3)):
            found = features.rows("train", part)
            assert found.dtype == expected.dtype
            assert np.array_equal(found, expected[part])


def test_rows_cut_off_while_the_file_is_open_are_missed(editable: Path) -> None:
    for known in (True, False):
        whole = editable.read_bytes()
        with FeatureFile(editable) as features:
            if known:
                features.rows("test", slice(3))
            editable.write_bytes(whole[:500])
            with pytest.raises(DataError, match="test/x cannot be read"):
                check_rows(features)
        editable.write_bytes(whole)


def test_blocks_without_a_row_to_keep_are_not_read(features_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starts = []
    real = FeatureFile.rows

    def watched(self: FeatureFile, group: str, part: slice, kept: Any) -> Any:
        starts.append(part.start)
        return real(self, group, part, kept)

    monkeypatch.setattr(FeatureFile, "rows", watched)
    monkeypatch.setattr("linprobe.data.feature_reader.BLOCK_ROWS", 100)
    keep = np.zeros(400, dtype=bool)
    keep[[150, 160, 399]] = True
    with FeatureFile(features_file) as features:
        labels = [y for _, y in features.blocks("train", keep)]
    assert starts == [100, 300]
    assert np.concatenate(labels).tolist() == [2, 0, 3]


def in_another_process(features: FeatureReader) -> Any:
    return pickle.loads(pickle.dumps(features))


@pytest.mark.parametrize("read", [lambda features: features, in_another_process])
@pytest.mark.parametrize("masked", [True, False])
def test_chained_shards_are_the_whole(features_file: Path, read: Any, masked: bool) -> None:
    keep = np.arange(400) % 3 != 1 if masked else None
    with FeatureFile(features_file) as opened:
        features = read(opened)
        whole = GroupRows(features, "train", keep, np.array([3, 2, 1, 0]))
        edges = [0, 1, 130, whole.n_rows]
        shards = [whole.shard(start, stop) for start, stop in pairwise(edges)]
        assert [shard.n_rows for shard in shards] == np.diff(edges).tolist()
        assert [name for shard in shards for name in shard.ids()] == whole.ids()
        for column in (0, 1):
            expected = np.concatenate([block[column] for block in whole.blocks()])
            chained = ChainedSource(*shards).blocks()
            assert np.array_equal(np.concatenate([block[column] for block in chained]), expected)
        assert len({shard.digest() for shard in (whole, *shards)}) == 4
        assert whole.shard(0, whole.n_rows).digest() == whole.digest()
        inner = shards[2].shard(1, 9)
        assert inner.ids() == whole.ids()[131:139]
        for start, stop in ((-1, 3), (3, 3), (0, whole.n_rows + 1)):
            with pytest.raises(UsageError, match="allowed"):
                whole.shard(start, stop)


@pytest.mark.parametrize("read", [lambda features: features, in_another_process])
def test_the_same_rows_are_hashed_once(features_file: Path, read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with FeatureFile(features_file) as opened:
        features = read(opened)
        keep = np.arange(400) % 2 == 0
        first = [features.digest("train"), features.digest("train", keep), features.digest("test")]
        assert len(set(first)) == 3
        monkeypatch.setattr(feature_reader.FeatureReader, "blocks", None)
        assert [features.digest("train"), features.digest("train", keep.copy()), features.digest("test")] == first


def test_another_process_takes_over_what_is_known_and_refuses_a_file_that_changed(editable: Path) -> None:
    with FeatureFile(editable, shown_as=Path("shown.h5")) as features:
        check_rows(features)
        digest = features.digest("train")
        again = in_another_process(features)
        assert (again.path, again.checked, again.has_digest("train")) == (Path("shown.h5"), True, True)
        assert again.digest("train") == digest
        again.close()
        given = pickle.dumps(features)
    with h5py.File(editable, "r+") as file:
        file["train/x"][0] += 1
    with pytest.raises(DataError, match="written to after it was opened"):
        pickle.loads(given)


@pytest.mark.parametrize("in_place", [True, False])
def test_another_process_refuses_another_file_of_the_same_size_and_time(
    editable: Path, tmp_path: Path, in_place: bool
) -> None:
    swapped, times = tmp_path / "swapped.h5", editable.stat()
    swapped.write_bytes(editable.read_bytes())
    with h5py.File(swapped, "r+") as file:
        file["train/x"][0] += 1
    with FeatureFile(editable) as features:
        check_rows(features)
        given = pickle.dumps(features)
        if in_place:
            editable.write_bytes(swapped.read_bytes())
        else:
            swapped.replace(editable)
        os.utime(editable, ns=(times.st_atime_ns, times.st_mtime_ns))
        found = editable.stat()
        assert (found.st_size, found.st_mtime_ns) == (times.st_size, times.st_mtime_ns)
        for pickled in (given, pickle.dumps(features)):
            with pytest.raises(DataError, match="written to after it was opened"):
                pickle.loads(pickled)


def test_a_change_of_mode_and_a_hard_link_do_not_stop_the_reading_of_rows(editable: Path, tmp_path: Path) -> None:
    with FeatureFile(editable) as features:
        editable.chmod(0o600)
        (tmp_path / "link.h5").hardlink_to(editable)
        assert len(features.rows("train", slice(0, 3))) == 3


@pytest.mark.parametrize("number", [0, 7])
def test_ids_of_equal_hash_are_told_apart(editable: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_checks, "hash", lambda name: hash(name) % 5 if number else 0, raising=False)
    monkeypatch.setattr(feature_reader, "RECORDS_AT_ONCE", 100)
    with FeatureFile(editable) as features:
        check_rows(features)
    with h5py.File(editable, "r+") as file:
        file["train/id"][300] = file["train/id"][3]
        file["train/id"][301] = file["train/id"][3]
    with FeatureFile(editable) as features, pytest.raises(DataError, match="train has 2 repeated ids"):
        check_rows(features)
    with h5py.File(editable, "r+") as file:
        file["train/id"][300:302] = ["new", "newer"]
        file["public/id"][2] = file["train/id"][399]
    with FeatureFile(editable) as features, pytest.raises(DataError, match="train and public share 1 id,"):
        check_rows(features)


def test_a_streamed_run_is_the_run_in_memory_bit_for_bit(
    cli: Callable[..., Any], features_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(name: str) -> bytes:
        options = ["--eps", "2", "--steps", "3", "--noise-seed", "1", "--insecure-seed", "--out", name]
        outcome = cli("train", features_file, "--method", "noisy-gd", *options)
        assert outcome.status == 0, outcome.stderr
        return Path(name, "model.npz").read_bytes()

    expected = train("kept")
    passes = []
    real = StreamedRows._whole
    monkeypatch.setattr(StreamedRows, "_whole", lambda self: passes.append(self) or real(self))
    monkeypatch.setattr(available_memory, "available", lambda: 0)
    assert train("streamed") == expected
    assert len(passes) >= 3


@pytest.mark.parametrize("streamed", [True, False])
def test_a_file_that_is_written_to_after_its_rows_were_checked_ends_the_run(
    editable: Path, tmp_path: Path, make_features: Any, monkeypatch: pytest.MonkeyPatch, streamed: bool
) -> None:
    other = make_features(tmp_path / "other.h5", order=(1, 0, 2, 3)).read_bytes()
    monkeypatch.setattr(available_memory, "suffices", lambda _: not streamed)

    moment = "step" if streamed else "budget"  # between two passes, or before the rows are loaded
    real = getattr(RunCharge, moment)

    def overwrites(*given: Any) -> None:
        editable.write_bytes(other)
        real(*given)

    monkeypatch.setattr(RunCharge, moment, overwrites)
    request = TrainRequest(method="noisy-gd", features=editable, out=tmp_path / "run", epsilon=1, steps=3)
    with pytest.raises(DataError, match=r"edited\.h5 was written to after it was opened"):
        train_run(request, Silent())
    assert not request.out.exists()


@pytest.mark.parametrize("method", ["adamix", "noisy-gd"])
def test_a_run_reads_its_private_rows_twice_before_the_first_step_and_few_rows_for_public_shots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    with FeatureWriter(tmp_path / "f.h5", Description(class_names=tuple("abcd"))) as writer:
        writer.write_group("train", N, 16 * D, [np.tile(RAW, 16)], LABELS, list(map(str, range(N))))
    read, real = list[int](), Extents.read

    def counted(self: Extents, *given: Any) -> Any:
        found = real(self, *given)
        read.append(len(found))
        return found

    monkeypatch.setattr(Extents, "read", counted)
    shots = 3 * (method == "adamix")
    request = TrainRequest(
        method=method, features=tmp_path / "f.h5", out=tmp_path / "run", epsilon=1, steps=2, public_shots=shots
    )
    train_run(request, Silent())
    assert 2 * N - 4 * shots <= sum(read) <= 2 * N + 10 * 4 * shots
