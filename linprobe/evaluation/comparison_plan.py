"""The runs of a comparison: every method at every epsilon, setting and seed, each with its own folder."""

from __future__ import annotations

import glob
import hashlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from linprobe import __version__
from linprobe.errors import ParameterError, PrivacyError, UsageError
from linprobe.methods import METHODS, find_method
from linprobe.options import RECORD, VOTE
from linprobe.options.declaration import argument_of
from linprobe.options.requests import COMPARED, CompareRequest, TrainRequest, name_of
from linprobe.reporting.comparison import Setting
from linprobe.runs.manifest import MANIFEST
from linprobe.runs.refined_weights import unrefinable
from linprobe.runs.run_folder import RunFolder
from linprobe.training.plan import make_settings, method_options
from linprobe.training.tune import Tuning, option_kinds, settings_of, typed

RUNS = "runs"  # in the folder of a comparison
PUBLIC_BASELINE, PARAGON = "only-public", "non-private"
NO_FILE = "none"
NO_PUBLIC = {None: "no public group", 0: "0 shots"}  # why there are no public rows, by the number of shots
LONGEST_NAME = 80
ROW_OPTIONS = (
    "sigma", "steps", "sampling_rate", "accountant", "per_record", "centre", "condition", "intercept", "preset",
)  # fmt: skip
TUNING_OPTIONS = ("shrink", "repetitions")


@dataclass(frozen=True)
class MethodRow:
    """A row of the table: a method with its settings, and what each run chooses on its private rows, or None."""

    name: str
    method: str
    settings: dict[str, Any] = field(default_factory=dict)
    tuning: Tuning | None = None

    @classmethod
    def parse(cls, text: str) -> MethodRow:
        """`method:option=value:option=value`; values with / between, shrink or repetitions make a row of `tune`."""
        name, *pairs = text.strip().split(":")
        method = find_method(name)
        kinds = option_kinds(method)
        settings: dict[str, Any] = {}
        tuned: dict[str, list[str]] = {}
        for pair in pairs:
            flag, equals, value = pair.partition("=")
            option = argument_of(flag)
            if not equals or not option or not value or option in {**settings, **tuned}:
                raise UsageError(
                    f"method is {text!r}; allowed: METHOD or METHOD:OPTION=VALUE, each option once, as "
                    "dope-sgd:ensemble=5:steps=100"
                )
            if option in TUNING_OPTIONS or ("/" in value and kinds.get(option) in (int, float)):
                tuned[option] = value.split("/")
            else:
                settings[option] = typed(flag, value, kinds.get(option, str))
        return cls(text.strip(), method.name, settings, _tuning(tuned, method.name) if tuned else None)

    def request(self, **shared: Any) -> TrainRequest:
        mine = {name: value for name, value in self.settings.items() if name in ROW_OPTIONS}
        options = {name: value for name, value in self.settings.items() if name not in mine}
        return TrainRequest(
            method=self.method,
            checkpoint_every=math.inf if METHODS[self.method].spends else None,
            **mine,
            **shared,
            options=options,
        )


def _tuning(tuned: dict[str, list[str]], method: str) -> Tuning:
    factors = [typed("shrink", text, float) for text in tuned.pop("shrink", [])]
    repetitions = [typed("repetitions", text, int) for text in tuned.pop("repetitions", [])]
    if len(repetitions) > 1:
        raise ParameterError("repetitions has several values; allowed: one whole number")
    grid = [f"{option}={','.join(values)}" for option, values in tuned.items()]
    return Tuning.parse(grid, factors, repetitions[0] if repetitions else None, method)


@dataclass(frozen=True)
class Planned:
    """A planned run: its row and setting, the arguments of `train`, and its folder as it is shown."""

    row: str
    setting: Setting
    request: TrainRequest
    folder: Path
    tuning: Tuning | None = None

    @property
    def place(self) -> Path:
        """The folder, absolute: the process may change to another working directory."""
        return self.folder if self.request.out is None else self.request.out

    @property
    def spends(self) -> bool:
        return METHODS[str(self.request.method)].spends


def rows_of(request: CompareRequest) -> list[MethodRow]:
    methods = COMPARED if request.methods is None else request.methods
    return [row if isinstance(row, MethodRow) else MethodRow.parse(row) for row in methods]


def check_request(request: CompareRequest) -> None:
    methods = rows_of(request)
    if not methods:
        raise UsageError("methods is empty; allowed: names from `linprobe methods`; give --methods adamix,noisy-gd")
    names = [row.name for row in methods]
    if len(set(names)) < len(names):
        raise UsageError(f"methods are {', '.join(names)}; allowed: each once; remove the repetition")
    spending = [row for row in methods if METHODS[row.method].spends]
    if spending and not request.epsilons:
        raise UsageError(
            f"method {spending[0].method} needs a privacy budget and got none; give --eps, for example --eps 1,3"
        )
    for row in methods:
        asked = row.request(**_budget(row, next(iter(request.epsilons), None), request.delta))
        if row.tuning is None:
            make_settings(asked, METHODS[row.method])
        else:
            settings_of(asked, row.tuning)
    files = [name_of(path) for path in request.public if path is not None]
    if len(set(files)) < len(files) or len(set(request.public)) < len(request.public):
        raise UsageError(f"public files are called {', '.join(files)}; allowed: each name once; rename or remove one")


def _budget(row: MethodRow, epsilon: float | None, delta: float) -> dict[str, Any]:
    return {"epsilon": epsilon, "delta": delta} if METHODS[row.method].spends else {}


def plan_runs(
    request: CompareRequest, public_digests: dict[str, str], sizes: dict[str, int], unlabelled: str = ""
) -> list[Planned]:
    """Every run, in the order of the table; `unlabelled` is the digest of the rows without labels."""
    planned = []
    for path, shots in product(request.public or (None,), request.public_shots or (None,)):
        setting = Setting(name_of(path), shots)
        public_rows = path is not None or bool(shots) or (shots is None and "public" in sizes)
        for row in _rows_in(request, setting, public_rows=public_rows):
            spends = METHODS[row.method].spends
            # a run without shots or noise is the same for every seed
            seeds = range(request.seeds if spends or shots else 1)
            for epsilon, seed in product(request.epsilons if spends else [None], seeds):
                asked = _asked(request, row, epsilon, public=path, public_shots=shots, split_seed=seed)
                refined_by = "" if asked.unlabelled is None else unlabelled
                name = _folder_name(row, setting, asked, public_digests.get(setting.public, ""), refined_by)
                folder = request.folder / RUNS / name
                planned.append(Planned(row.name, setting, replace(asked, out=folder.absolute()), folder, row.tuning))
    return planned


def _asked(request: CompareRequest, row: MethodRow, epsilon: float | None, **of_setting: Any) -> TrainRequest:
    votes = row.settings.get("output") == VOTE
    refined = row.tuning is None and unrefinable(METHODS[row.method], votes=votes, several_labels=False) is None
    return row.request(
        features=request.features,
        unit=request.unit or RECORD,
        unlabelled=request.unlabelled if refined else None,
        book=request.book and request.book.absolute(),  # worker processes may have another working directory
        **of_setting,
        **_budget(row, epsilon, request.delta),
    )


def _rows_in(request: CompareRequest, setting: Setting, *, public_rows: bool) -> list[MethodRow]:
    """The rows of a setting and the baselines that can run, each once. UsageError: one lacks public rows."""
    asked = {row.name: row for row in rows_of(request)}
    if not public_rows and request.methods is None:
        asked = {name: row for name, row in asked.items() if "public" not in METHODS[row.method].needs}
    baselines = (PUBLIC_BASELINE, PARAGON) if request.baselines else ()
    rows = {name: MethodRow(name, name) for name in baselines if name not in asked}
    if not public_rows:
        rows = {name: row for name, row in rows.items() if "public" not in METHODS[row.method].needs}
        for row in asked.values():
            if "public" in METHODS[row.method].needs:
                raise UsageError(
                    f"method {row.method} needs public rows and got none ({NO_PUBLIC.get(setting.shots)}); "
                    "give --public-shots K or --public FILE"
                )
    return [*asked.values(), *rows.values()]


def refuse_other_versions(planned: Sequence[Planned]) -> None:
    """PrivacyError if a run that is missing was made by another version, as it would be trained again."""
    for run in (run for run in planned if run.spends and not run.folder.exists()):
        name, _, _ = run.folder.name.rpartition("-")
        for other in sorted(run.folder.parent.glob(f"{glob.escape(name)}-*")):
            if other.name.rpartition("-")[0] != name or not (other / MANIFEST).is_file():
                continue
            version = RunFolder(other).manifest.software["linprobe"]
            if version != __version__:
                raise PrivacyError(
                    f"run {other} is of linprobe {version}, and this is {__version__}, so it would be trained and "
                    "count again; allowed: runs of one version in a comparison; nothing was spent; give another --out, "
                    "or finish this one with that version"
                )


def left_out(request: CompareRequest, planned: Sequence[Planned]) -> list[str]:
    """Notes on the methods that need public rows, if a request that names no method has settings without such rows."""
    names = [row.name for row in rows_of(request)] + ([PUBLIC_BASELINE] if request.baselines else [])
    notes = []
    for setting in dict.fromkeys(run.setting for run in planned) if request.methods is None else ():
        trained = {run.row for run in planned if run.setting == setting}
        absent = [name for name in names if name not in trained]
        if absent:
            where = f" with --public {setting.public or NO_FILE}" if len(request.public) > 1 else ""
            notes.append(
                f"left out{where}, as there are no public rows ({NO_PUBLIC.get(setting.shots)}): {', '.join(absent)}; "
                "--public-shots K or --public FILE gives them some"
            )
    return notes


def _folder_name(row: MethodRow, setting: Setting, asked: TrainRequest, public_digest: str, unlabelled: str) -> str:
    _, first = method_options(METHODS[row.method], asked.options or {})
    folder = None if first is None else Path(first.folder)
    started_from = RunFolder(folder).manifest.manifest_digest if folder and folder.is_dir() else ""
    identity: list[Any] = [__version__, row.method, sorted(row.settings.items()), started_from, asked.epsilon]
    # no digest without a key of rows that the method protects
    identity += [asked.delta, setting.shots, "" if METHODS[row.method].joins_public else public_digest]
    identity.append(asked.split_seed)
    if asked.unit != RECORD:
        identity.append(asked.unit)
    if unlabelled:
        identity.append(unlabelled)
    if row.tuning is not None:
        identity.append(asdict(row.tuning))
    digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:8]
    parts = [row.name, "" if asked.epsilon is None else f"eps{asked.epsilon:g}", setting.public]
    parts += ["" if setting.shots is None else f"shots{setting.shots}", f"seed{asked.split_seed}"]
    readable = "-".join(re.sub(r"[^\w.=+-]", "_", part) for part in parts if part)
    return f"{readable[:LONGEST_NAME]}-{digest}"
