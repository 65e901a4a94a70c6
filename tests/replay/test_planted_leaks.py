"""Leaks planted in the product. The replay must find each one, by the fault that it reports."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from linprobe.data.blocks import Preprocessing
from linprobe.data.rows import Rows
from linprobe.errors import LinprobeError
from linprobe.gradients import clipped_sum
from linprobe.gradients.loss import loss_and_gradient
from linprobe.mechanisms.correct_predictions import GAIN
from linprobe.mechanisms.gaussian import GaussianMechanism
from linprobe.mechanisms.noise import NoiseSource, PoissonSampler
from linprobe.methods import noisy_gd
from linprobe.methods._base import Iterates, Run
from linprobe.methods._descent import Descent
from linprobe.methods.class_counts import CLASS_COUNTS
from linprobe.methods.similar_rows import SIMILAR_ROWS, Surroundings
from linprobe.runs.refined_weights import unlabelled_rows
from linprobe.training import execute, plan
from linprobe.training import train as train_command
from tests.replay.conftest import BASE
from tests.replay.datasets import NEIGHBOURS, empty_places
from tests.replay.replay import LeakError, compare, play
from tests.replay.test_replay import UNCENTRED, words_of

Patch = pytest.MonkeyPatch
HUGE, RELABELLED, LAST = NEIGHBOURS


def raw_rows(source: Any) -> Any:
    """All raw rows (n, n_features) of a source."""
    return np.concatenate([x for x, _ in source.blocks()]).astype(np.float64)


def spied_rows(patch: Patch, look: Callable[[Any, Any], None]) -> None:
    """Call `look(source, rows)` with the private rows, raw and in training space, when a run has prepared them."""
    prepare = execute.prepare_shard

    def prepared(source: Any, *given: Any, **named: Any) -> Any:
        rows = prepare(source, *given, **named)
        look(source, rows)
        return rows

    patch.setattr(execute, "prepare_shard", prepared)


def private_mean(patch: Patch) -> None:
    """Rows are centred on the private mean."""
    patch.setattr(plan, "_preprocessing", lambda _, dataset: Preprocessing.centred_on(raw_rows(dataset.private)))


def exact_class_counts(patch: Patch, counted: str = CLASS_COUNTS) -> None:
    """Scores are balanced by the numbers of private rows of each class, without noise."""
    release = GaussianMechanism.release

    def exact(self: Any, clipped: Any, *given: Any, **named: Any) -> Any:
        released = release(self, clipped, *given, **named)
        return clipped.value if named["purpose"] == counted else released

    patch.setattr(GaussianMechanism, "release", exact)


def exact_number_of_similar_rows(patch: Patch) -> None:
    """What rows without labels do follows from the number of private rows near them, without noise."""
    exact_class_counts(patch, SIMILAR_ROWS)


def exact_gain(patch: Patch) -> None:
    """Whether rows without labels refine the weights follows from the gain of private rows, without noise."""
    candidate = execute._candidate
    patch.setattr(execute, "_candidate", lambda *given: replace(candidate(*given), weights=-given[2], strength=0.5))
    exact_class_counts(patch, GAIN)


def nearer_than_another(patch: Patch) -> None:
    """A row is near if it is as near as the first private row."""
    near = Surroundings.near

    def compared(self: Surroundings, unit: Any) -> Any:
        self._least = float(self._nearness(self._products.of(self._from_mean(unit[:1])[0]))[0])
        return near(self, unit)

    patch.setattr(Surroundings, "near", compared)


def chosen_rows_without_labels(patch: Patch) -> None:
    """Rows without labels are used if they are on the side of the first private row."""
    gather, seen = unlabelled_rows, list[Any]()
    spied_rows(patch, lambda source, rows: seen.append(raw_rows(source)[0]))

    def chosen(*given: Any) -> Any:
        found = gather(*given)
        return found[found @ seen[-1] >= 0]

    patch.setattr(execute, "unlabelled_rows", chosen)


def private_largest_norm(patch: Patch) -> None:
    """Rows are divided by the largest raw norm."""

    def scale(source: Any, rows: Any) -> None:
        longest = np.linalg.norm(raw_rows(source), axis=1).max()
        rows.x[:] = rows.x / longest * 5
        rows.norms[:] = rows.norms / longest * 5

    spied_rows(patch, scale)


def realised_batch_size(patch: Patch) -> None:
    """Sums are divided by the number of rows in the sample."""
    sample, step, sizes = Rows.sample, Descent.step, []

    def counted(self: Rows, mask: Any, *given: Any, **named: Any) -> Rows:
        sizes.append(mask.sum())
        return sample(self, mask, *given, **named)

    patch.setattr(Rows, "sample", counted)
    patch.setattr(Descent, "step", lambda self, gradient, **facts: step(self, gradient * (100 / sizes[-1]), **facts))


def early_stopping(patch: Patch) -> None:
    """Weights no longer change once the loss of the private rows is low enough.

    Such a leak shows only in data sets on both sides of the threshold, so it lies at the first loss of the first run.
    """
    move, seen, low_enough = Iterates.move, [], []
    spied_rows(patch, lambda source, rows: seen.append(rows))

    def stopped(self: Any, after: Any, **facts: Any) -> None:
        loss = loss_and_gradient(seen[-1], self.weights)[0]
        low_enough.append(loss)
        move(self, self.weights if loss <= low_enough[0] else after, **facts)

    patch.setattr(Iterates, "move", stopped)


def class_list(patch: Patch) -> None:
    """The manifest names the classes of private labels."""
    manifest = train_command.manifest_of

    def listed(ready: Any, *given: Any) -> Any:
        features = ready.features
        present = np.unique(features.labels("train"))
        return replace(manifest(ready, *given), class_names=[features.description.class_names[c] for c in present])

    patch.setattr(train_command, "manifest_of", listed)


def private_count(patch: Patch) -> None:
    """The history counts the private rows of the first class."""
    move, seen = Iterates.move, []
    spied_rows(patch, lambda source, rows: seen.append(rows))
    patch.setattr(
        Iterates, "move", lambda self, after, **facts: move(self, after, **facts, ants=float((seen[-1].y == 0).sum()))
    )


def loss_on_stderr(patch: Patch) -> None:
    """Every step prints the loss of the private rows."""
    gradient = Run.gradient

    def told(self: Run, rows: Any, weights: Any, *given: Any, **named: Any) -> Any:
        print(f"loss {loss_and_gradient(rows, weights)[0]:.6f}", file=sys.stderr)
        return gradient(self, rows, weights, *given, **named)

    patch.setattr(Run, "gradient", told)


def wrong_rate(patch: Patch) -> None:
    """Samples are drawn at 1.5 times the rate that is accounted for."""
    patch.setattr(PoissonSampler, "draw", lambda self, n, first=0: self._source.bernoulli(1.5 * self.rate, n, first))


def reused_draw(patch: Patch) -> None:
    """Every draw is the first one, and the key is never replaced."""
    patch.setattr(NoiseSource, "next_draw", lambda self: 0)
    patch.setattr(NoiseSource, "ratchet", lambda self: None)


def kept_key(patch: Patch) -> None:
    """The count of draws restarts at 0 under the same key."""
    patch.setattr(NoiseSource, "ratchet", lambda self: setattr(self, "draws", 0))


def no_clip(patch: Patch) -> None:
    """Gradients are not clipped."""
    patch.setattr(clipped_sum, "clip_factors", lambda norms, *_: np.ones_like(norms))
    patch.setattr(clipped_sum, "longest_left", lambda *_: math.inf)


def half_clipped(patch: Patch) -> None:
    """Gradients are clipped at 1.01 clip norms."""
    factors, longest = clipped_sum.clip_factors, clipped_sum.longest_left
    patch.setattr(clipped_sum, "clip_factors", lambda norms, clip, margin: factors(norms, 1.01 * clip, margin))
    patch.setattr(clipped_sum, "longest_left", lambda clip, margin: longest(1.01 * clip, margin))


def all_rows_whatever_the_sample(patch: Patch) -> None:
    """Sums are over all rows."""
    sample = Rows.sample
    patch.setattr(Rows, "sample", lambda self, mask, rate, **how: sample(self, mask | True, rate, **how))


def learning_rate_of_private_rows(patch: Patch) -> None:
    """The learning rate is the inverse of the largest eigenvalue of the private second moment."""
    seen: list[Any] = []
    spied_rows(patch, lambda source, rows: seen.append(rows))

    def rate(_: float) -> float:
        return 1 / np.linalg.norm(seen[-1].x.astype(np.float64), 2) ** 2

    patch.setattr(noisy_gd, "step_size", lambda *_, **facts: rate)


def half_the_noise(patch: Patch) -> None:
    """Noise has half the standard deviation that the ledger says."""
    noised = GaussianMechanism._noised
    patch.setattr(GaussianMechanism, "_noised", lambda self, value, std: noised(self, value, std / 2))


def noise_before_the_ledger(patch: Patch) -> None:
    """The ledger learns of a release after it."""
    release = GaussianMechanism.release

    def late(self: Any, *given: Any, **named: Any) -> Any:
        record, waiting = self._record, []
        self._record = waiting.append
        released = release(self, *given, **named)
        self._record = record
        record(waiting[0])
        return released

    patch.setattr(GaussianMechanism, "release", late)


def sum_without_noise(patch: Patch) -> None:
    """Steps follow the sum itself; its noised version is drawn and dropped."""
    release = GaussianMechanism.release

    def exact(self: Any, clipped: Any, *given: Any, **named: Any) -> Any:
        release(self, clipped, *given, **named)
        return clipped.value

    patch.setattr(GaussianMechanism, "release", exact)


def refusal_of_private_rows(patch: Patch) -> None:
    """A run ends with an error where a private row is long."""

    def refuse(source: Any, rows: Any) -> None:
        if np.linalg.norm(raw_rows(source), axis=1).max() > 1e30:
            raise LinprobeError("a row is too long; allowed: 1e30")

    spied_rows(patch, refuse)


def warning_of_private_rows(patch: Patch) -> None:
    """Float32 overflows on a long row, and NumPy warns."""
    spied_rows(patch, lambda source, rows: [np.square(x.astype(np.float32)) for x, _ in source.blocks()])


SUM, OUTSIDE = r"moved by \S+ sensitivities", "outside the sample"
PLANTED = [
    (private_mean, "noisy-gd", HUGE, "published model.npz"),
    (exact_class_counts, "noisy-gd --class-weight balanced", RELABELLED, "published model.npz"),
    (exact_number_of_similar_rows, " ".join(UNCENTRED), HUGE, "published manifest.json: refined"),
    (exact_gain, " ".join(UNCENTRED), RELABELLED, "published manifest.json: refined"),
    (nearer_than_another, " ".join(UNCENTRED), HUGE, SUM),
    (chosen_rows_without_labels, " ".join(UNCENTRED), HUGE, "published model.npz"),
    (private_largest_norm, "noisy-gd", HUGE, SUM),
    (realised_batch_size, "dp-sgd", LAST, "published model.npz"),
    (early_stopping, "noisy-gd", LAST, "published model.npz"),
    (class_list, "noisy-gd", LAST, "published manifest.json: class_names"),
    (private_count, "noisy-gd", RELABELLED, "published history.csv"),
    (loss_on_stderr, "noisy-gd", LAST, "published stderr"),
    (wrong_rate, "dp-sgd", HUGE, "at rate 0.75, the ledger says 0.5"),
    (reused_draw, "noisy-gd", HUGE, "used twice under one key"),
    (kept_key, "dp-sgd", HUGE, "used twice under one key"),
    (no_clip, "noisy-gd", HUGE, SUM),
    (half_clipped, "noisy-gd", RELABELLED, SUM),
    (all_rows_whatever_the_sample, "dp-sgd", LAST, OUTSIDE),
    (learning_rate_of_private_rows, "noisy-gd", LAST, "published history.csv"),
    (half_the_noise, "noisy-gd", HUGE, "less than the ledger says"),
    (noise_before_the_ledger, "noisy-gd", HUGE, "before its event was in the ledger"),
    (sum_without_noise, "noisy-gd", HUGE, "published model.npz"),
    (refusal_of_private_rows, "noisy-gd", HUGE, "published exit status"),
    (warning_of_private_rows, "noisy-gd", HUGE, "published stderr"),
]


@pytest.mark.parametrize(("plant", "method", "name", "finding"), PLANTED, ids=[case[0].__name__ for case in PLANTED])
def test_a_planted_leak_is_found(plant, method, name, finding, datasets, monkeypatch) -> None:
    plant(monkeypatch)
    method, _, options = method.partition(" ")
    words, place, empty = words_of(method, options), NEIGHBOURS[name].place, empty_places("private")
    base = play(datasets / "private" / BASE, words, empty)
    other = play(datasets / "private" / name, words, empty - {place}, forced=base)
    with pytest.raises(LeakError, match=finding):
        compare(base, other, place)
