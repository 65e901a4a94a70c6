"""Checkpoints of an unfinished run: weights, optimiser, place in the ledger and in the noise, in one file of mode 0600.

The file holds the key of the noise of the next step, which is as secret as the private rows. Earlier keys are gone:
`NoiseSource.ratchet` is one-way. Later ones cannot be computed: every write mixes fresh bytes of the operating system
into the key, on the disk first and then in memory; with a seed, which reveals every step, nothing. The number of
releases at the last write lies beside the budget book too, so that an earlier copy of the folder is refused: it would
be a second run that the book counts once.

A resumed run repeats the releases that the ledger has beyond the checkpoint, with the same noise on the same rows. It
writes no checkpoint until it has repeated them.
"""

import hashlib
import json
import math
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import scipy
from numpy.typing import NDArray

from linprobe import __version__
from linprobe.accounting.book import SECOND_RUN, releases_file
from linprobe.accounting.events import GaussianEvent
from linprobe.accounting.ledger import Ledger
from linprobe.accounting.row_keys import Account
from linprobe.atomic_files import read_text, replace_when_complete, sync_folder, write_whole
from linprobe.data.array_files import read_archive
from linprobe.data.dataset import Dataset
from linprobe.data.row_weights import MOST_POWER
from linprobe.errors import DataError, PrivacyError, UsageError, reading
from linprobe.mechanisms.noise import NoiseSource
from linprobe.options.requests import TrainRequest
from linprobe.parallel.array_api import Reals, on_host
from linprobe.parallel.process_group import ALONE, Group
from linprobe.runs.manifest import MODEL
from linprobe.runs.run_folder import CHECKPOINT, commitment, run_id
from linprobe.training.plan import Settings

PER_RECORD = ("squared_mu", "levels")
NEEDED = ("key", "salt", "identity", "private_commitment", "done", "next_step", "draws", "weights", "output", "history")


class Checkpoints:
    """The state of one run, as `Runtime.keep`. As a context manager it writes the last complete step on a failure."""

    def __init__(
        self,
        folder: Path,
        ledger: Ledger,
        identity: Mapping[str, Any],  # settings and versions, as `run_identity` gives them
        dataset: Dataset,
        account: Account | None,
        every: float,  # seconds between checkpoints; infinite for none
        group: Group = ALONE,
        *,
        at_once: bool = False,  # the first one after the first step, so that a restart repeats it at no cost
    ) -> None:
        self._at_once = at_once
        self.path, self.keeps = folder / CHECKPOINT, every < math.inf
        self._ledger, self._group, self._dataset = ledger, group, dataset
        self._identity, self._every, self._held = identity, every, slice(None)
        self._source: NoiseSource | None = None
        self._latest: Mapping[str, Any] | None = None
        self._state = _read(self.path) if self.path.is_file() else None
        self._book = None if account is None else account.path.absolute()

    def check(self) -> None:
        """Refuse another run's checkpoint, or an earlier one (PrivacyError), before a charge; as `check_same_run`."""
        if self._state is None:
            return
        check_same_run(self.path, self._state, self._identity, self._private_digest())
        if self._last is None or not self._last.exists():
            return
        with reading(str(self._last), "restore it from a copy, or train anew without --resume"):
            last, here = int(read_text(self._last)), int(self._state["next_step"])
        if here < last:
            raise PrivacyError(
                f"checkpoint {self.path} was written after {here} releases, and the last one of this run after {last}, "
                f"by {self._last}; {SECOND_RUN}; resume the newest folder, or train anew under another name"
            )

    @property
    def _last(self) -> Path | None:
        return None if self._book is None else releases_file(self._book, run_id(self.path.parent))

    def _private_digest(self) -> str:
        digest, features = self._dataset.protected_digest(), self._dataset.features
        tested = features is not None and self._identity.get("test epsilon") is not None
        return digest + features.digest("test") if features is not None and tested else digest

    def begin(self, source: NoiseSource, held: slice) -> None:
        """Keep a run with noise from `source`, which gets the checkpoint's key; `held`: the rows of this process."""
        group, state = self._group, self._state
        digest = group.broadcast_text(self._private_digest() if group.rank == 0 else "")
        if (state is None) == bool(group.broadcast(np.array(state is not None))):
            raise DataError(
                f"checkpoint {self.path} is seen by process 0 or by process {group.rank}, not by both; allowed: a run "
                "folder that all of them reach; put --out on a shared file system"
            )
        if state is not None:
            shared = group.broadcast_text(json.dumps([event.as_dict() for event in self._ledger.events]))
            self._ledger.events = [GaussianEvent.from_dict(event) for event in json.loads(shared)]
            check_same_run(self.path, state, self._identity, digest)
            source.key = state["key"].tobytes()
        salt = secrets.token_bytes(32) if state is None else state["salt"].tobytes()
        self._stated = {
            "identity": np.array(json.dumps(self._identity, default=str)),
            "salt": np.frombuffer(salt, dtype=np.uint8),
            "private_commitment": np.array(commitment(salt, digest)),
        }
        due = self._at_once and state is None and self.keeps
        self._source, self._held, self._written_at = source, held, -math.inf if due else time.monotonic()

    @property
    def can_resume(self) -> bool:
        return self._source is not None and self.path.is_file()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        alone = kind is not None and self._group.size == 1
        if alone and self.path.is_file() and self._latest is not None and self._may_write():
            self._write()

    @property
    def early(self) -> list[Reals]:
        """Values that were released before the first step."""
        state = {} if self._state is None else self._state
        return [state[f"early_{place}"] for place in range(len([name for name in state if name.startswith("early_")]))]

    def restored(self) -> Mapping[str, NDArray[Any]] | None:
        """The state to resume from, after moving the ledger to its step; None for a new run."""
        if self._state is None:
            return None
        self._ledger.advance(int(self._state["next_step"]))
        state = {**self._state}
        for name in PER_RECORD:
            state[name] = state[name][self._held].copy()
        return state

    def offer(self, state: Mapping[str, Any]) -> None:
        """Keep the state after a step in memory; write it if `every` seconds have passed since the last write."""
        self._latest = state
        if self._group.broadcast(np.array(self._due())):
            self._write()

    def withdraw(self) -> None:
        """Drop the state in memory before the next step changes it; the file stays."""
        self._latest = None

    def _due(self) -> bool:
        return time.monotonic() - self._written_at >= self._every and self._may_write()

    def _may_write(self) -> bool:
        """Whether no release follows the latest state: one must be repeated with the key it had, or counts twice."""
        assert self._latest is not None  # noqa: S101
        return int(self._latest["next_step"]) == len(self._ledger.events)

    def _write(self) -> None:
        assert self._latest is not None  # noqa: S101
        assert self._source is not None  # noqa: S101
        key = np.frombuffer(self._source.renewed_key(), dtype=np.uint8)
        history = [{name: float(fact) for name, fact in facts.items()} for facts in self._latest["history"]]
        state = {name: on_host(value) for name, value in self._latest.items() if name != "history"}
        state |= {name: self._group.gather(state[name]) for name in PER_RECORD}
        if self._group.rank == 0:
            self._ledger.sync()
            with replace_when_complete(self.path, private=True) as stream:
                arrays = {**self._stated, **state, "key": key, "history": np.array(json.dumps(history))}
                np.savez(stream, allow_pickle=False, **arrays)
            sync_folder(self.path.parent)
            if self._last is not None:
                write_whole(self._last, f"{state['next_step']}\n", private=True)
        # only now: after a power cut, the file must have the key of every release in the ledger
        self._source.key = self._group.broadcast(key).tobytes()
        self._latest = None
        self._written_at = time.monotonic()


def _read(path: Path) -> dict[str, NDArray[Any]]:
    try:
        return read_archive(path)
    except DataError as error:
        raise DataError(f"checkpoint: {error}, or train anew without --resume") from None


def check_same_run(
    path: Path, state: Mapping[str, NDArray[Any]], identity: Mapping[str, Any], private_digest: str
) -> None:
    """Refuse another run's checkpoint. DataError: incomplete. UsageError: other settings. PrivacyError: other rows."""
    missing = [name for name in (*PER_RECORD, *NEEDED) if name not in state]
    if missing:
        raise DataError(f"checkpoint {path} lacks {', '.join(missing)}; train anew without --resume")
    before, now = json.loads(str(state["identity"])), json.loads(json.dumps(identity, default=str))
    for name in {"linprobe": "", **before, **now}:  # other versions have other settings
        if before.get(name) != now.get(name):
            again = "give what it was started with, or train anew under another name"
            step = "finish it with that version" if name == "linprobe" else again
            raise UsageError(
                f"the unfinished run has {name} {before.get(name)!r} and this one {now.get(name)!r}; allowed with "
                f"--resume: the same; {step}"
            )
    if str(state["private_commitment"]) != commitment(state["salt"].tobytes(), private_digest):
        raise PrivacyError(
            "the unfinished run had other private rows, and noise must not be reused on other rows; give the rows it "
            "was started with, or train anew under another name"
        )


def run_identity(settings: Settings, dataset: Dataset, request: TrainRequest, arithmetic: str) -> dict[str, Any]:
    """Facts that a resumed run must share with the unfinished run, besides the private rows.

    `arithmetic`: with the same noise, a sum must have the same bits. Another book than before would count too little.
    """
    text, weights = dataset.text_weights, dataset.weights
    return {
        "method": settings.method.name,
        **settings.parameters,
        "test epsilon": settings.test_epsilon,
        "class counts": settings.class_counts,
        "balanced": settings.balanced,
        "precision": request.precision,
        "device": request.device,
        "book": None if request.book is None else str(request.book.resolve()),
        "public rows": dataset.public_digest(),
        "unlabelled rows": dataset.unlabelled_digest(),
        "text weights": None if text is None else hashlib.sha256(text.tobytes()).hexdigest(),
        "first model": None if settings.first_run is None else settings.first_run.model.manifest.files[MODEL],
        "unit": dataset.unit,
        "class weights": None if weights is None else weights.by_class.tolist(),
        "weights in people": MOST_POWER if dataset.bounds is not None and settings.weighs else None,
        "linprobe": __version__,
        "NumPy": np.__version__,
        "SciPy": scipy.__version__,  # solves for the weights of some methods between their releases
        "arithmetic": arithmetic,
    }
