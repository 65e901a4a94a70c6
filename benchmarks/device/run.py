"""Limits of one GPU, seconds of a step and of its noise on it: N = 200,000 rows, D = 2,048 features.

    python benchmarks/device/run.py [--quick] [--json FILE]

`limit_*` is the least time of a step: the larger of one read of the rows at the measured bandwidth and the step's
4 N D C flops at the measured rate of matrix products. `share_*` is `limit_*` over the time of a step of the method: the
mean of `STEPS` steps, with per-record contributions, noise and update. `noise_*` is one draw of D x C normals: `device`
by ChaCha20 in torch, `words` by torch from OpenSSL words of the host, `host` on the host alone; kernel launches and
copies to the device are included. Best of several rounds. Without a GPU nothing is measured or written.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from linprobe.data.blocks import narrowed, normalise_rows
from linprobe.data.rows import ArrayRows
from linprobe.gradients.gpu import DeviceRows, GpuBackend, check_device
from linprobe.mechanisms.gaussian import GaussianMechanism
from linprobe.mechanisms.gpu_noise import DeviceNoise, Stream
from linprobe.mechanisms.noise import NoiseSource
from linprobe.methods import METHODS, Method, Problem, Run, Schedule

N, D, STEPS = 200_000, 2048, 5
N_CLASSES = (10, 100, 1000)
SIDE, COPIED, NORMALS = 8192, 1 << 31, 1 << 24


class HostStream(Stream):
    """The same words, from OpenSSL on the host."""

    def __init__(self, key: bytes, draw: int, device: torch.device) -> None:
        self.device = device
        self._key, self._draw = key, draw

    def _blocks(self, first: int, last: int) -> torch.Tensor:
        nonce = first.to_bytes(4, "little") + self._draw.to_bytes(12, "little")
        stream = Cipher(ChaCha20(self._key, nonce), mode=None).encryptor()
        words = torch.frombuffer(bytearray(stream.update(bytes(64 * (last - first)))), dtype=torch.int64)
        return words.pin_memory().to(self.device, non_blocking=True)


class Copied:
    """Draws of the host, copied to the device."""

    def __init__(self, source: NoiseSource, device: torch.device) -> None:
        self._source, self._device = source, device

    def add_noise(self, value: torch.Tensor, std: float) -> torch.Tensor:
        return torch.from_numpy(self._source.add_noise(value.cpu().numpy(), std)).to(self._device)


def best(step: Callable[[], object], rounds: int) -> float:
    """Shortest wall time of `step` with a synchronisation, seconds, after two warm-up rounds."""
    times = []
    for _ in range(rounds + 2):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times[2:])


def machine_limits(device: torch.device, rounds: int) -> dict[str, float]:
    """Bytes per second that a copy in device memory reads and writes, and flops per second of matrix products."""
    source = torch.zeros(COPIED, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    found = {"copy_bytes_per_second": 2 * COPIED / best(partial(target.copy_, source), rounds)}
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        a = torch.randn(SIDE, SIDE, device=device).to(dtype)
        b, product = a.T.contiguous(), torch.empty_like(a)
        seconds = best(partial(torch.matmul, a, b, out=product), rounds)
        found[f"{name}_flops_per_second"] = 2 * SIDE**3 / seconds
    return found


def noise(device: torch.device, rounds: int) -> dict[str, float]:
    """Normals per second of one long draw, and seconds of the draw of a step."""
    source = NoiseSource()
    makers = {
        "device": DeviceNoise(source, device),
        "words": HostStream(bytes(range(32)), 0, device),
        "host": Copied(source, device),
    }
    long_draw = partial(makers["device"].add_noise, torch.zeros(NORMALS, dtype=torch.float64, device=device), 1.0)
    found = {"normals_per_second": NORMALS / best(long_draw, rounds)}
    for name, maker in makers.items():
        for n_classes in N_CLASSES:
            value = torch.zeros((D, n_classes), dtype=torch.float64, device=device)
            found[f"noise_c{n_classes}_{name}"] = best(partial(maker.add_noise, value, 1.0), rounds)
    return found


def steps(device: torch.device, rounds: int) -> dict[str, float]:
    """Seconds of a step of noisy-gd and adamix, on float32 and bfloat16 rows."""
    g = np.random.default_rng(0)
    x = normalise_rows(g.standard_normal((N, D), dtype=np.float32))
    found = {}
    for precision in ("float32", "bfloat16"):
        narrow = narrowed(x, precision)
        for n_classes in N_CLASSES:
            rows = DeviceRows(ArrayRows(narrow, g.integers(0, n_classes, N)), device)
            public = DeviceRows(ArrayRows(narrow[: 2 * n_classes], np.arange(2 * n_classes) % n_classes), device)
            problem = Problem(D, n_classes, private=rows, public=public)
            for name in ("noisy-gd", "adamix"):
                method = METHODS[name]
                options = method.make_options({"init": "zero"})

                def fit(method: Method = method, options: Any = options, problem: Problem = problem) -> None:
                    mechanism = GaussianMechanism(DeviceNoise(NoiseSource(), device), lambda event: None)
                    schedule = Schedule(STEPS, 10.0, STEPS**0.5 / 10)
                    method.fit(problem, options, Run(schedule, mechanism, lambda: None, backend=GpuBackend(device)))

                found[f"{name}_c{n_classes}_{precision}"] = best(fit, rounds) / STEPS
            del rows, public, problem
    return found


def main() -> None:
    """Measure, print, and write JSON if --json is given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="3 rounds instead of 20")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("torch finds no GPU here; nothing was measured or written", file=sys.stderr)
        return
    rounds = 3 if arguments.quick else 20
    device = check_device("cuda")
    limits = machine_limits(device, rounds)
    least = {
        f"limit_c{n_classes}_{name}": max(
            size * N * D / limits["copy_bytes_per_second"], 4 * N * D * n_classes / limits[f"{name}_flops_per_second"]
        )
        for n_classes in N_CLASSES
        for name, size in (("float32", 4), ("bfloat16", 2))
    }
    taken = steps(device, rounds)
    shares = {f"share_{name}": least[f"limit_{name.split('_', 1)[1]}"] / seconds for name, seconds in taken.items()}
    figures = {**limits, **least, **taken, **noise(device, rounds)}
    for name, figure in figures.items():
        print(f"{name:<28} {figure:.4g}" if name.endswith("per_second") else f"{name:<28} {1e3 * figure:9.3f} ms")
    for name, share in shares.items():
        print(f"{name:<28} {share:9.2f}")
    machine = {"gpu": torch.cuda.get_device_name(device), "torch": torch.__version__, "n": N, "d": D}
    if arguments.json:
        arguments.json.write_text(json.dumps({**machine, **figures, **shares}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
