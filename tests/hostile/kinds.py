"""One run of each kind, whose manifests differ in their keys: people, tuned, with private test rows, not private."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from linprobe.data.feature_reader import PRIVATE, Description
from linprobe.data.feature_writer import FeatureWriter
from linprobe.data.labels import MULTICLASS, MULTILABEL
from tests.conftest import CLASS_NAMES, SIZES, gaussian_rows, write_unlabelled
from tests.hostile.case import own_books

STEPS = ("--method", "noisy-gd", "--steps", "3", "--eps", "3")
WORDS: dict[str, tuple[str, ...]] = {
    "plain": ("train", "rows.h5", *STEPS),
    "people": ("train", "rows.h5", *STEPS, "--unit", "owner", "--per-owner-rows", "2", "--public-shots", "1"),
    "shrunk": ("tune", "rows.h5", "--method", "adamix", "--steps", "3", "--eps", "3", "--shrink", "0,0.5,1"),
    "selected": ("tune", "no-public.h5", *STEPS[:4], "--eps", "2", "--grid", "clip_norm=0.1,1"),
    "selected with covariance": ("tune", "rows.h5", "--method", "dp-fc", *STEPS[2:], "--grid", "clip_norm=0.1,1"),
    "class counts": ("train", "rows.h5", *STEPS, "--class-weight", "balanced"),
    "seeded": ("train", "rows.h5", *STEPS, "--insecure-seed", "--noise-seed", "1"),
    "not private": ("train", "rows.h5", "--method", "non-private"),
    "private mean": ("train", "no-public.h5", *STEPS),
    "inherited": ("train", "rows.h5", "--method", "noisy-gd", "--steps", "3", "--eps", "5", "--init", "plain"),
    "several labels": ("train", "labels.h5", *STEPS),
    "covariance": ("train", "rows.h5", "--method", "dp-ls", "--eps", "3"),
    "released clip norm": ("train", "rows.h5", "--method", "dpsgd-f", "--variant", "theory", *STEPS[2:]),
    "public rows only": ("train", "rows.h5", "--method", "only-public"),
    "signed": ("train", "rows.h5", *STEPS, "--sign", "key.pem"),
    "histogram": ("pdp-report", "plain", "--publish-epsilon", "0.5"),
    "release": ("release", "plain"),
    "refined": ("train", "rows.h5", *STEPS, "--unlabelled", "unlabelled.h5"),
    "refined later": ("refine", "plain", "unlabelled.h5"),
    "moved to a private mean": ("train", "no-public.h5", "--method", "dpsgd-f", "--steps", "2", "--eps", "3"),
    "sampled": ("train", "rows.h5", "--method", "dp-sgd", "--steps", "3", "--eps", "3", "--sampling-rate", "0.2"),
    # the last, as no run is made where its test rows, which are public, are private rows of an earlier one
    "private test rows": ("train", "private.h5", *STEPS, "--test-epsilon", "1"),
    "private test people": ("train", "private.h5", *STEPS, "--unit", "owner", "--test-epsilon", "1"),
}  # fmt: skip


# with books of their own, as what they and later runs cost together takes long to compute
SAMPLED = ("released clip norm", "moved to a private mean", "sampled")


def write_rows(
    path: Path,
    *,
    private_test: bool = False,
    several_labels: bool = False,
    groups: Iterable[str] = ("train", "test", "public"),
) -> Path:
    """Rows of four classes that belong to 100 people."""
    task, test_rows = MULTILABEL if several_labels else MULTICLASS, PRIVATE if private_test else "public"
    description = Description(CLASS_NAMES, backbone="test", test_rows=test_rows, task=task)
    with FeatureWriter(path, description) as writer:
        for group in groups:
            # a row that is private in one run may not be public in another
            own = f"private {group}" if private_test and group == "test" else group
            x, y = gaussian_rows(own, SIZES[group])
            y = (y[:, None] == np.arange(len(CLASS_NAMES))).astype(np.uint8) if several_labels else y
            owners = sorted(f"{own} {row % 100:03d}" for row in range(len(x)))
            writer.write_group(group, *x.shape, [x], y, [f"{own}/{row:04d}" for row in range(len(x))], owners=owners)
    return path


def runs_in(folder: Path, kinds: Iterable[str] = tuple(WORDS)) -> dict[str, Path]:
    """The run folders that `write_runs` makes, by kind."""
    return {kind: folder / ("plain.published-1" if kind == "histogram" else kind.replace(" ", "-")) for kind in kinds}


def write_runs(folder: Path, kinds: Iterable[str] = tuple(WORDS)) -> dict[str, Path]:
    """Train a run of each of the kinds in `folder`, which also gets their feature files; run folders by kind."""
    from linprobe.cli import run

    write_rows(folder / "rows.h5")
    write_rows(folder / "private.h5", private_test=True)
    write_rows(folder / "no-public.h5", groups=("train", "test"))
    write_rows(folder / "labels.h5", several_labels=True)
    write_unlabelled(folder / "unlabelled.h5")
    key = Ed25519PrivateKey.generate()
    (folder / "key.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    (folder / "key.pem").chmod(0o600)
    made = runs_in(folder, kinds)
    for kind in made:
        command, source, *words = WORDS[kind]
        words = [str(folder / word) if word in ("plain", "key.pem", "unlabelled.h5") else word for word in words]
        words += [] if kind == "histogram" else ["--out", str(made[kind])]
        words += ["--unit", "record"] if command in ("train", "tune") and "--unit" not in words else []
        with contextlib.ExitStack() as entered:
            if kind in SAMPLED:
                entered.enter_context(own_books(folder / f"state of {kind}"))
            errors = entered.enter_context(contextlib.redirect_stderr(io.StringIO()))
            entered.enter_context(contextlib.redirect_stdout(io.StringIO()))
            status = run([command, str(folder / source), *words])
        if status:
            raise RuntimeError(f"the run {kind!r} ended with {status}: {errors.getvalue()}")
    return made


def random_edit(value: object, rng: np.random.Generator, values: tuple[object, ...]) -> object:
    """A copy of a JSON value with one of `values` at a random place."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = list(value)[rng.integers(len(value))]
        if rng.random() < 0.1:
            return {name: entry for name, entry in value.items() if name != key}
        return {**value, key: random_edit(value[key], rng, values)}
    if isinstance(value, list) and value and rng.random() < 0.7:
        place = int(rng.integers(len(value)))
        return [*value[:place], random_edit(value[place], rng, values), *value[place + 1 :]]
    return values[rng.integers(len(values))]
