"""Seeded runs of every contract variant, and hashes of their weights, ledgers and per-record files.

    python tests/golden.py FOLDER > hashes.json             one process
    torchrun --nproc-per-node 2 tests/golden.py FOLDER      two; rank 0 prints

For the time of the redesign: a move of code must not move a bit.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np

PRECISIONS = ("float32", "bfloat16", "float16")
SPENDING = (
    *("noisy-gd", "adamix", "ngd", "ppgd", "dp-sgd", "dpsgd-f", "mirror-descent", "dope-sgd", "adadps"),
    "fully-private",
)
SAMPLED = ("dp-sgd", "dpsgd-f", "mirror-descent", "dope-sgd", "adadps")
VARIANTS = [
    *((method, "") for method in SPENDING),
    *((method, "") for method in ("only-public", "zero-shot", "non-private")),
    ("dp-sgd", "--optimizer adam --loss squared"),
    ("dp-sgd", "--no-per-record"),
    ("dp-sgd", "--output vote --ensemble 2"),
    ("dpsgd-f", "--centre public"),
    ("dpsgd-f", "--variant theory"),
    ("mirror-descent", "--update exact"),
    ("mirror-descent", "--update exact --loss squared"),
    ("mirror-descent", "--alpha 0.5 --extra-clip 0.01"),
    ("dope-sgd", "--clip-norm 0.02 --origin-norm 0.05"),
    ("dope-sgd", "--extended 0.5 --augment-public 20 --public-batch 7 --init zero"),
    ("adadps", "--scale-floor 0.01 --init zero"),
    ("adamix", "--subspace gradient"),
    ("adamix", "--subspace gradient --subspace-dim 5"),
    ("adamix", "--subspace features --subspace-dim 2"),
    ("adamix", "--variant theory"),
    ("noisy-gd", "--schedule theory --output weighted --radius 3 --weight-decay 5"),
    ("noisy-gd", "--centre none --intercept 1 --init zero --output ema"),
    ("noisy-gd", "--init text"),
]


def write_features(path: Path) -> None:
    """Two parts of private rows, twelve public ones, text weights."""
    from linprobe.cli import run

    g = np.random.default_rng(0)
    centres = 2 * g.normal(size=(4, 9))
    sizes = {"train": 8300, "public": 12, "test": 50}
    arrays = {"class_names": np.array(["a", "b", "c", "d"])}
    for group, n in sizes.items():
        y = np.arange(n) % 4
        arrays |= {f"X_{group}": (centres[y] + g.normal(size=(n, 9))).astype(np.float32), f"y_{group}": y}
    np.savez(path.with_suffix(".npz"), **arrays)
    if run(["import", str(path.with_suffix(".npz")), "--out", str(path)]):
        raise RuntimeError("import failed")
    import h5py

    with h5py.File(path, "a") as file:
        file.require_group("text")["weights"] = np.eye(9, 4, dtype=np.float32) + 0.1


def digest(folder: Path) -> str:
    """Of all that a seeded run decides."""
    sha = hashlib.sha256()
    for name, arrays in (("model.npz", ("weights", "bias")), ("per_record.npz", ("id", "mu", "renyi"))):
        if (folder / name).is_file():
            with np.load(folder / name) as archive:
                for array in arrays:
                    sha.update(archive[array].tobytes())
    sha.update((folder / "ledger.jsonl").read_bytes())
    sha.update((folder / "history.csv").read_bytes())
    return sha.hexdigest()[:16]


def main(folder: Path) -> None:
    """Run all and print the hashes."""
    from linprobe.cli import run

    rank = int(os.environ.get("RANK", 0))
    if "WORLD_SIZE" in os.environ:  # one group for all runs: gloo cannot connect twice at one address
        import torch.distributed as dist

        dist.init_process_group("gloo")
        dist.init_process_group = dist.destroy_process_group = lambda *_, **__: None
    features = folder / "golden.h5"
    hashes = {}
    for method, words in VARIANTS:
        for precision in PRECISIONS:
            out = folder / f"run-{os.environ.get('WORLD_SIZE', 1)}"
            given = ["train", str(features), "--method", method, "--precision", precision, "--out", str(out)]
            if method in SPENDING:
                given += ["--eps", "3", "--steps", "3", "--noise-seed", "5", "--insecure-seed"]
            if method in SAMPLED:
                given += ["--q", "0.3", "--accountant", "rdp"]
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as stderr:
                status = run([*given, *words.split()])
            if rank == 0:
                name = f"{method} {words} {precision}".replace("  ", " ")
                hashes[name] = digest(out) if status == 0 else f"status {status}: {stderr.getvalue().strip()[-60:]}"
                shutil.rmtree(out, ignore_errors=True)
    if rank == 0:
        json.dump(hashes, sys.stdout, indent=1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
