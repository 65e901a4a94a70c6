"""Replay: a run on D is recorded, and run again on a neighbour D' with the recorded releases forced.

Given its releases, everything that a private run publishes must not depend on the private rows: weights, manifest,
history, ledger, stdout, stderr, exit status. Each sum before noise must differ by at most its sensitivity, and must not
differ at all where the record is outside the Poisson sample. (After "Re:cord-play", Oblivious 2024.)

Both runs have the same key, so the same records join the same samples. Noise is replaced where it is added, in
`NoiseSource.add_noise`: everything else is the path of `linprobe train`. Beside it a watch holds every draw of noise
against the ledger: recorded before, at least as much as recorded, at the rate recorded, and from a fresh stream.
"""

from __future__ import annotations

import io
import json
import logging
import math
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linprobe import cli
from linprobe.accounting.events import INHERITED, GaussianEvent
from linprobe.accounting.ledger import Ledger
from linprobe.cli import _terminal
from linprobe.mechanisms import noise
from linprobe.mechanisms.noise import NoiseSource, PoissonSampler
from linprobe.parallel import torch_group
from linprobe.parallel.array_api import on_host
from linprobe.runs.manifest import MANIFEST, PER_RECORD
from tests.replay.datasets import FEATURES, empty_places, leave_empty
from tests.replay.processes import in_processes

KEY = bytes(range(9, 41))  # under which each place is in two of four samples at rate 1/2
RUN = Path("run")
WATCHED = empty_places("joined")
# the date; the random id; commitments to private rows under a random key that is private too; and the digest of all
NOT_COMPARED = ("created", "run_id", "private_commitment", "per_record_commitment", "manifest_digest")
SECONDS = re.compile(r"(seconds)[^0-9\n]*[0-9.]+")  # with the blanks before, as many as the number needs


class LeakError(AssertionError):
    """What a replay found."""


@dataclass(frozen=True)
class Draw:
    """One draw of noise.

    Attributes:
        event: the ledger's. total: the sum before noise. released: after it. joined: which of the places that differ
            between the data sets were sampled; all of them without sampling.
    """

    event: GaussianEvent
    total: Any
    released: Any
    joined: Mapping[int, bool]


@dataclass
class Played:
    """A run: its draws, the faults found, and what it published, by name."""

    draws: list[Draw] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    published: dict[str, Any] = field(default_factory=dict)


def play(
    folder: Path,
    words: Sequence[str],
    empty: Collection[int],
    *,
    forced: Played | None = None,
    processes: int = 1,
    people: bool = False,
    command: str = "train",
) -> Played:
    """Run `linprobe train` on the data set in a folder; with `forced`, on the releases of that run.

    `command` takes the place of `train`. `empty` are places of rows, or with `people`, of people.
    """
    tape = Tape(None if forced is None else forced.draws)
    stdout, stderr = io.StringIO(), io.StringIO()
    given = [command, FEATURES, "--out", str(RUN), *words]
    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory() as books,
        redirect_stdout(stdout),
        redirect_stderr(stderr),
        _all_said(stderr),
    ):
        patch.chdir(folder)
        patch.setattr(_terminal, "LONG", math.inf)  # or a slow run says how far it is
        patch.setenv("XDG_STATE_HOME", books)  # or the second run would say what both cost
        leave_empty(patch, empty)
        tape.attach(patch, () if people else empty)  # who has no rows may join a sample
        if processes == 1:
            status = cli.run(given)
        else:
            groups, run_all = in_processes(processes, lambda: cli.run(given))
            patch.setattr(torch_group, "group", lambda: nullcontext(groups.group))
            status = run_all()
        tape.played.published = {
            "exit status": status,
            "stdout": SECONDS.sub(r"\1", stdout.getvalue()),
            "stderr": SECONDS.sub(r"\1", stderr.getvalue()),
            **_files(RUN),
        }
        shutil.rmtree(RUN, ignore_errors=True)
    if status == 0 and len(tape.events) != len(tape.played.draws):
        tape.played.faults.append(f"the ledger has {len(tape.events)} events for {len(tape.played.draws)} draws")
    return tape.played


@contextmanager
def _all_said(stderr: io.StringIO) -> Any:
    """Send every Python warning and log record to stderr, as outside of pytest."""
    handler = logging.StreamHandler(stderr)
    handler.setLevel(logging.WARNING)
    logging.getLogger().addHandler(handler)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = lambda message, kind, *_: print(f"{kind.__name__}: {message}", file=sys.stderr)
            yield
    finally:
        logging.getLogger().removeHandler(handler)


def _files(run: Path) -> dict[str, Any]:
    """The published files of a run folder, and the names of all."""
    if not run.is_dir():
        return {"files": []}
    names = sorted(path.name for path in run.iterdir())
    found: dict[str, Any] = {"files": names}
    for name in names:
        if name == MANIFEST:
            manifest = json.loads((run / name).read_text())
            found |= {f"{name}: {key}": value for key, value in manifest.items() if key not in NOT_COMPARED}
        elif name != PER_RECORD:
            found[name] = (run / name).read_bytes()
    return found


class Tape:
    """Records the releases of a run, or forces recorded ones, and watches the noise."""

    def __init__(self, forced: Sequence[Draw] | None) -> None:
        self.played, self.events = Played(), []
        self._forced = forced
        self._streams: set[Any] = set()
        self._rate = 1.0
        self._joined: dict[int, bool] = {}

    def attach(self, patch: pytest.MonkeyPatch, empty: Collection[int]) -> None:
        """Patch the ledger, coin tosses, samples and noise. The places `empty` join no sample."""
        append, bernoulli, sample, words = Ledger.append, NoiseSource.bernoulli, PoissonSampler.draw, NoiseSource.words

        def appended(ledger: Ledger, event: GaussianEvent) -> None:
            append(ledger, event)
            if event.purpose != INHERITED and ledger._lines is not None:  # rank 0's
                self.events.append(event)

        def tossed(source: NoiseSource, probability: float, *given: Any) -> Any:
            self._rate = probability
            return bernoulli(source, probability, *given)

        def sampled(sampler: PoissonSampler, n_rows: int, first: int = 0) -> Any:
            joined = sample(sampler, n_rows, first).copy()
            for place in WATCHED:
                if first <= place < first + n_rows:
                    self._joined[place] = bool(joined[place - first])
                    joined[place - first] &= place not in empty
            return joined

        def drawn(source: NoiseSource, draw: int, n: int, start: int = 0) -> Any:
            self.use_stream(source.key, draw, start)
            return words(source, draw, n, start)

        patch.setattr(Ledger, "append", appended)
        patch.setattr(NoiseSource, "bernoulli", tossed)
        patch.setattr(PoissonSampler, "draw", sampled)
        patch.setattr(NoiseSource, "words", drawn)
        patch.setattr(noise.os, "urandom", lambda size: KEY[:size])
        patch.setattr(NoiseSource, "add_noise", self._noise(NoiseSource.add_noise))
        if "linprobe.mechanisms.gpu_noise" in sys.modules:
            self._attach_device(patch)

    def _attach_device(self, patch: pytest.MonkeyPatch) -> None:
        from linprobe.mechanisms import gpu_noise

        stream = gpu_noise.Stream

        def opened(key: bytes, draw: int, device: Any) -> Any:
            self.use_stream(key, draw, 0)
            return stream(key, draw, device)

        patch.setattr(gpu_noise, "Stream", opened)
        patch.setattr(gpu_noise.DeviceNoise, "add_noise", self._noise(gpu_noise.DeviceNoise.add_noise))

    def use_stream(self, *words: Any) -> None:
        """Record the use of a part of the stream."""
        if words in self._streams:
            self.played.faults.append(f"words {words[2]} of draw {words[1]} were used twice under one key")
        self._streams.add(words)

    def _noise(self, add_noise: Callable[..., Any]) -> Callable[..., Any]:
        def noised(source: Any, value: Any, std: float) -> Any:
            draws, faults = self.played.draws, self.played.faults
            number = len(draws)
            released = add_noise(source, value, std)
            if number >= len(self.events):
                faults.append(f"noise {number} was drawn before its event was in the ledger")
                return released
            event = self.events[number]
            if not std >= event.noise_multiplier * event.sensitivity:
                faults.append(f"noise {number} has std {std}, less than the ledger says")
            if event.sampling_rate != self._rate:
                faults.append(f"sample {number} was drawn at rate {self._rate}, the ledger says {event.sampling_rate}")
            if self._forced is not None:
                fits = number < len(self._forced) and self._forced[number].released.shape == released.shape
                if fits:
                    released = self._forced[number].released
                else:
                    faults.append(f"release {number} is not among those recorded, or has another shape")
            joined = dict(self._joined) if event.sampling_rate < 1 else dict.fromkeys(WATCHED, True)
            draws.append(Draw(event, np.array(on_host(value)), released, joined))
            self._rate = 1.0
            return released + 0  # a copy: the caller may write to it

        return noised


def compare(base: Played, other: Played, place: int) -> None:
    """Raise LeakError unless the two runs differ as the guarantee allows, for data sets that differ at `place`."""
    found = [*base.faults, *other.faults]
    if len(base.draws) != len(other.draws):
        found.append(f"{len(base.draws)} and {len(other.draws)} releases")
    for number, (one, two) in enumerate(zip(base.draws, other.draws, strict=False)):
        if one.event != two.event or one.total.shape != two.total.shape:
            found.append(f"release {number} is {one.event} {one.total.shape} and {two.event} {two.total.shape}")
            continue
        moved = float(np.linalg.norm(one.total - two.total))
        if not moved <= one.event.sensitivity:
            found.append(f"sum {number} ({one.event.purpose}) moved by {moved / one.event.sensitivity} sensitivities")
        if moved and not two.joined[place]:
            found.append(f"sum {number} moved, though the record is outside the sample")
    for name in sorted({*base.published, *other.published}):
        one, two = base.published.get(name), other.published.get(name)
        if one != two:
            found.append(f"published {name} differs: {str(one)[-200:]} and {str(two)[-200:]}")
    if found:
        raise LeakError("\n".join(found))
