"""Noise on a device: words of the reference cipher, draws equal to those of the host, and no copies from the host."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from linprobe.errors import LinprobeError, ParameterError
from linprobe.gradients import gpu
from linprobe.gradients.gpu import check_device
from linprobe.mechanisms import gpu_noise as device_module
from linprobe.mechanisms.gpu_noise import CHUNK_BLOCKS, STREAM_WORDS, DeviceNoise, Stream, check_ndtri, look_on_device
from linprobe.mechanisms.noise import PART, NoiseSource, grid_step
from tests.conftest import mostly_nightly

CPU = torch.device("cpu")
RNG = np.random.default_rng(8)
KEYS = [bytes(range(32)), bytes(32), b"\xff" * 32, RNG.bytes(32)]
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU here")),
]


def _fakes_a_gpu() -> bool:
    try:
        with FakeTensorMode():
            torch.zeros(2, device="cuda")[:1]
    except RuntimeError:
        return False
    return True


needs_fake_gpu = pytest.mark.skipif(not _fakes_a_gpu(), reason="torch below 2.9 fakes no GPU without a driver")


def reference(key: bytes, draw: int, n: int, first_block: int = 0) -> np.ndarray:
    """`n` words of OpenSSL's stream, starting at `first_block`, int64."""
    counter_and_nonce = first_block.to_bytes(4, "little") + draw.to_bytes(12, "little")
    stream = Cipher(ChaCha20(key, counter_and_nonce), mode=None).encryptor()
    return np.frombuffer(stream.update(bytes(8 * n)), dtype="<i8")


def words_of(stream: Stream, n: int, start: int = 0) -> torch.Tensor:
    """Words `start` to `start + n`, shape (n,)."""
    found = torch.empty(n, dtype=torch.int64, device=stream.device)
    for offset, words in stream.chunks(n, start):
        found[offset : offset + len(words)] = words
    return found


def feed(words: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every draw of either source takes these words, uint64."""

    def blocks(stream: Stream, first: int, last: int) -> torch.Tensor:
        return torch.tensor(words[8 * first : 8 * last].view(np.int64), device=stream.device)

    monkeypatch.setattr(Stream, "_blocks", blocks)
    monkeypatch.setattr(NoiseSource, "words", lambda self, draw, n, start=0: words[start : start + n])


@pytest.fixture(autouse=True, params=[0, device_module.HOST_BLOCKS], ids=["torch", "openssl"])
def few_blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws of few blocks, from torch or from the host."""
    monkeypatch.setattr(device_module, "HOST_BLOCKS", request.param)


@pytest.mark.parametrize("name", DEVICES)
def test_the_block_function_is_that_of_rfc_8439(name: str) -> None:
    # section 2.3.2
    nonce = bytes.fromhex("000000090000004a00000000")
    stream = Stream(bytes(range(32)), int.from_bytes(nonce, "little"), torch.device(name))
    block = words_of(stream, 8, start=8).cpu().numpy().tobytes()
    assert block == bytes.fromhex(
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
    )


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("key", KEYS)
def test_words_are_those_of_the_reference_cipher(name: str, key: bytes) -> None:
    for draw in (0, 1, 255, 2**31, 2**64 + 2**32 - 1, 2**96 - 1):
        stream = Stream(key, draw, torch.device(name))
        for n in (0, 1, 7, 8, 9, 1000, 4099):
            np.testing.assert_array_equal(words_of(stream, n).cpu(), reference(key, draw, n))


@pytest.mark.parametrize("first_block", [2**31 - 3, 2**32 - 5])
def test_words_far_into_a_stream_are_those_of_the_reference_cipher(first_block: int) -> None:
    found = words_of(Stream(KEYS[3], 6, CPU), 40, start=8 * first_block)
    np.testing.assert_array_equal(found, reference(KEYS[3], 6, 40, first_block))


def test_no_words_beyond_the_counter_where_the_next_draw_begins() -> None:
    stream = Stream(KEYS[3], 6, CPU)
    for n, start in ((1, STREAM_WORDS), (9, STREAM_WORDS - 8), (4, -8)):
        with pytest.raises(ValueError, match=rf"words {start} to {start + n} .* allowed: 0 to {STREAM_WORDS}"):
            words_of(stream, n, start)


@pytest.mark.parametrize("chunk", mostly_nightly([1, 3, CHUNK_BLOCKS], (3).__eq__))
@pytest.mark.parametrize("start", [0, 5, 8, 160, 163])
def test_parts_and_chunks_change_no_draw(chunk: int, start: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Stream(KEYS[3], 2, CPU)
    words, value = words_of(whole, 300), torch.arange(300, dtype=torch.float64)
    released = DeviceNoise(CPU, 2).add_noise(value, 3.0)
    monkeypatch.setattr(device_module, "CHUNK_BLOCKS", chunk)
    assert torch.equal(DeviceNoise(CPU, 2).add_noise(value, 3.0), released)
    for n in (0, 1, 8, 97):
        part = slice(start, start + n)
        assert torch.equal(words_of(whole, n, start), words[part])


@pytest.mark.parametrize("name", DEVICES)
def test_both_sources_draw_the_same_in_turn_and_never_the_same_twice(name: str) -> None:
    host, noise = NoiseSource(3), DeviceNoise(torch.device(name), 3)
    for shape in ((1000,), (13, 7), (2, 3, 5), (), (0, 4), (3, PART + 5)):
        value = 1e4 * RNG.standard_normal(shape)
        there = torch.tensor(value, device=name)
        found = noise.add_noise(there, 2.3).cpu().numpy()
        assert found.shape == shape
        np.testing.assert_array_equal(found, host.add_noise(np.asarray(value), 2.3))
        np.testing.assert_array_equal(noise.bernoulli(0.4, 77), host.bernoulli(0.4, 77))  # of a sample, on the host
        noise.ratchet()
        host.ratchet()
        noise.key = host.key = KEYS[3]  # as after a checkpoint; random keys let two of 256 draws agree in 1 run of 100
    zeros = torch.zeros(64, dtype=torch.float64, device=name)
    drawn = torch.cat([noise.add_noise(zeros, 1.0) for _ in range(4)])
    assert len(drawn.unique()) == 256


@pytest.mark.parametrize("name", DEVICES)
def test_a_released_zero_has_no_sign(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    feed(np.tile(np.array([2**64 - 1, 2**64 - 2], dtype=np.uint64), 4), monkeypatch)
    values = torch.tensor([-0.3, -0.3, 0.3, 0.3, -0.0, -0.0, 0.0, 0.0], dtype=torch.float64, device=name) * grid_step(1)
    found = DeviceNoise(torch.device(name), 1).add_noise(values, 1.0)
    assert not found.any()
    assert not found.signbit().any()


def test_a_source_says_what_keyed_it() -> None:
    for seed in (None, 1):
        assert DeviceNoise(CPU, seed).kind == NoiseSource(seed).kind


@pytest.mark.parametrize("name", DEVICES)
def test_tails_are_released_alike_on_host_and_device(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bits = [*range(4), *(1 << k for k in range(63)), *((1 << k) - 1 for k in range(64)), (1 << 63) - 2]
    words = np.array([value << 1 | sign for value in bits for sign in (0, 1)], dtype=np.uint64)
    feed(words, monkeypatch)
    value = np.linspace(-1e6, 1e6, len(words))
    found = DeviceNoise(torch.device(name), 1).add_noise(torch.tensor(value, device=name), 0.9)
    np.testing.assert_array_equal(found.cpu().numpy(), NoiseSource(1).add_noise(value, 0.9))
    assert np.abs(found.cpu().numpy() - value).max() > 0.9 * 8.9


@pytest.mark.parametrize("name", DEVICES)
def test_a_device_with_another_inverse_distribution_function_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_ndtri(torch.device(name))
    real = torch.special.ndtri
    monkeypatch.setattr(torch.special, "ndtri", lambda u, out: torch.mul(real(u), 1 + 1e-12, out=out))
    with pytest.raises(LinprobeError, match="differs too much from the host for the noise; use device cpu"):
        check_ndtri(torch.device(name))


class Watch(TorchDispatchMode):
    """Fails if a tensor is created on another device than `device`; measures the peak of allocated bytes."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device, self.peak, self._alive = device, 0, []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                assert tensor.device.type == self.device, f"{func} went to {tensor.device}"
                self._alive.append(weakref.ref(tensor.untyped_storage()))
        self._alive = [storage for storage in self._alive if storage() is not None]
        sizes = {storage._cdata: storage.nbytes() for ref in self._alive if (storage := ref()) is not None}
        self.peak = max(self.peak, sum(sizes.values()))
        return result


@needs_fake_gpu
def test_the_watch_sees_what_the_next_test_relies_on() -> None:
    with FakeTensorMode(), Watch("cuda") as watch:
        words = torch.zeros(1 << 20, dtype=torch.int64, device="cuda")
        both = words + words
        assert watch.peak == 16 << 20
        with pytest.raises(AssertionError, match="went to cpu"):
            both.cpu()
        for read in (torch.Tensor.item, bool, torch.nonzero):
            with pytest.raises(Exception, match=r"aten\._local_scalar_dense|aten\.nonzero"):
                read(both[:1])


@needs_fake_gpu
def test_no_draw_waits_for_the_device_or_grows_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_module, "HOST_BLOCKS", 0)  # fake tensors cannot be copied from the host
    n = 2 * 8 * CHUNK_BLOCKS
    with FakeTensorMode():
        with Watch("cuda") as watch:
            words = words_of(Stream(KEYS[0], 1, torch.device("cuda")), n, start=3)
            assert len(words) == n
        assert 16 << 20 < watch.peak - words.nbytes <= 64 << 20
        value = torch.zeros(8 * CHUNK_BLOCKS, dtype=torch.float64, device="cuda")
        with Watch("cuda") as watch:
            look_on_device(value, words[: len(value)], 3.0, 2.0**-20)
        assert watch.peak <= 8 * value.nbytes


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU here")
def test_no_draw_waits_for_a_real_device() -> None:
    value = torch.zeros(3000, dtype=torch.float64, device="cuda")
    words = words_of(Stream(KEYS[0], 1, torch.device("cuda")), 3000)
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        look_on_device(value, words, 3.0, 2.0**-20)
    finally:
        torch.cuda.set_sync_debug_mode(before)


def test_a_device_that_torch_can_use_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_device("cpu") == CPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(gpu, "check_ndtri", lambda device: None)
    assert [str(check_device(name)) for name in ("cuda", "cuda:1")] == ["cuda", "cuda:1"]


@pytest.mark.parametrize(
    ("n_gpus", "name", "message"),
    [
        (0, "cuda", "device is 'cuda', but torch finds no GPU here; allowed here: cpu; give"),
        (0, "cuda:0", "device is 'cuda:0', but torch finds no GPU here; allowed here: cpu; give"),
        (1, "cuda:1", "device is 'cuda:1', but torch finds 1 GPU here; allowed here: cpu, cuda, cuda:0; give"),
        (2, "cuda:2", "finds 2 GPUs here; allowed here: cpu, cuda, cuda:0, cuda:1; give"),
        (1, "gpu", "device is 'gpu'; allowed here: cpu, cuda, cuda:0"),
        (0, "cpu:0", "device is 'cpu:0'; allowed here: cpu"),
        (0, "meta", "device is 'meta'; allowed here: cpu"),
        (0, "", "device is ''; allowed here: cpu"),
    ],
)
def test_another_device_is_refused_with_those_allowed(
    n_gpus: int, name: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: n_gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: n_gpus)
    with pytest.raises(ParameterError) as refused:
        check_device(name)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
