"""Hostile and forged run folders."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from linprobe.accounting import accountants
from linprobe.accounting.events import GaussianEvent, grouped
from linprobe.accounting.selection import SelectionEvent, selection_epsilon
from linprobe.mechanisms.correct_predictions import correct_counts_sensitivity
from linprobe.runs.guarantee import guarantee_text, mechanism_text, selection_accountant_text
from tests.hostile.case import Case, Good
from tests.hostile.features import mutated

COMMANDS = (
    ("report", "r", "--html", "p.html"), ("pdp-report", "r"), ("evaluate", "r", "{features}"),
    ("predict", "r", "{features}"), ("info", "r"), ("verify", "r"),
    ("export", "r", "--to", "safetensors", "--out", "e", "--overwrite"),
)  # fmt: skip
OPEN = frozenset({0, 2, 3, 4})  # a command that does not use a key may accept it, or have nothing to do
VALUES: tuple[Any, ...] = (None, [], {}, "\x1b[31mword", -1, 1e308, True, 10**30, [[[]]])
ABSENT = object()


def _copy(good: Good, change: Callable[[Path], Any]) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        shutil.copytree(good.run, folder / "r")
        change(folder / "r")

    return make


def sealed(run: Path, **changes: Any) -> None:
    """Change the manifest and renew all digests, as a forger would."""
    path = run / "manifest.json"
    manifest = {**json.loads(path.read_text()), **changes}
    manifest = {key: value for key, value in manifest.items() if value is not ABSENT}
    if "files" not in changes:
        names = [name for name in manifest["files"] if (run / name).is_file()]
        manifest["files"] = {name: hashlib.sha256((run / name).read_bytes()).hexdigest() for name in names}
    content = {key: value for key, value in manifest.items() if key != "manifest_digest" or key in changes}
    if "manifest_digest" not in changes:
        text = json.dumps(content, sort_keys=True, ensure_ascii=False)
        content["manifest_digest"] = hashlib.sha256(text.encode()).hexdigest()
    path.write_text(json.dumps(content, ensure_ascii=False))


def charged(run: Path, change: Callable[[dict[str, Any]], bool | None], **changes: Any) -> None:
    """Change the lines of a ledger, and all that follows from them, as a forger would.

    `change` changes a line in place, and may return False to leave it out.
    """
    lines = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
    lines = [line for line in lines if change(line) is not False]
    for step, line in enumerate(lines):
        line["step"] = step
    (run / "ledger.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    manifest = {**json.loads((run / "manifest.json").read_text()), **changes}
    releases = grouped(GaussianEvent.from_dict(line) for line in lines)
    steps = next(one for one in releases if one.purpose == "gradient")
    accountant, delta, unit = accountants.choose_accountant("auto", releases), manifest["delta"], manifest["unit"]
    epsilon = accountant.epsilon(releases, delta)
    follows = {
        "epsilon": epsilon,
        "epsilon_target": max(epsilon, manifest["epsilon_target"]),
        "releases": [asdict(one) for one in releases],
        "accountant": accountant.words,
        "cross_check": accountant.cross_check.words,
        "noise_multiplier": steps.noise_multiplier,
        "sampling_rate": steps.sampling_rate,
        "steps": steps.count,
        "mechanism": mechanism_text(steps.sampling_rate < 1, unit),
        **accountants.gaussian_figures(releases),
    }
    stated = {**follows, **changes}
    guarantee = guarantee_text(stated["epsilon"], delta, releases, insecure=False, unit=unit)
    (run / "per_record.npz").unlink(missing_ok=True)
    sealed(run, **{**stated, "guarantee": guarantee})


def charged_selection(run: Path, change: Callable[[list[Any]], list[Any]], **changes: Any) -> None:
    """Change the runs in the ledger of a selection, and all that follows from them, as a forger would.

    The manifest states the steps of the first run.
    """
    ledger = json.loads((run / "ledger.jsonl").read_text())
    ledger["runs"] = change(ledger["runs"])
    (run / "ledger.jsonl").write_text(json.dumps(ledger) + "\n")
    manifest, event = json.loads((run / "manifest.json").read_text()), SelectionEvent.from_dict(ledger)
    steps = next(one for one in event.runs[0] if one.purpose == "gradient")
    accountant = accountants.choose_accountant("auto", event.releases)
    epsilon = selection_epsilon(event, manifest["delta"], accountant)
    follows = {
        "selection": ledger,
        "epsilon": epsilon,
        "epsilon_target": max(epsilon, manifest["epsilon_target"]),
        "accountant": selection_accountant_text(accountant),
        "noise_multiplier": steps.noise_multiplier,
        "sampling_rate": steps.sampling_rate,
        "steps": steps.count,
        "guarantee": guarantee_text(epsilon, manifest["delta"], None, unit=manifest["unit"]),
    }
    sealed(run, **{**follows, **changes})


def as_one_run(run: Path) -> None:
    """Make a selection a run of its own, which costs less, as a forger would."""
    (releases,) = json.loads((run / "ledger.jsonl").read_text())["runs"]
    manifest = json.loads((run / "manifest.json").read_text())
    sensitivity = {
        "mean": 1.0,
        "gradient": manifest["options"]["clip_norm"],
        "selection": correct_counts_sensitivity(1),
    }
    lines = [
        {"event": "gaussian", "purpose": one["purpose"], "step": 0, "sensitivity": sensitivity[one["purpose"]]}
        | {key: one[key] for key in ("noise_multiplier", "sampling_rate")}
        for one in releases
        for _ in range(one["count"])
    ]
    (run / "ledger.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    tuning = {key: value for key, value in manifest["tuning"].items() if key not in ("settings", "chosen")}
    charged(run, lambda line: None, tuning=tuning, selection=ABSENT)


def _instead(name: str, make: Callable[[Path], Any]) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        (run / name).unlink()
        make(run / name)

    return change


def _arrays(name: str, **changes: Any) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        with np.load(run / name) as archive:
            arrays = {**dict(archive), **changes}
        np.savez(run / name, **{key: value for key, value in arrays.items() if value is not ABSENT})
        sealed(run)

    return change


def _ledger(**changes: Any) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        path = run / "ledger.jsonl"
        first, *rest = path.read_text().splitlines()
        path.write_text("\n".join([json.dumps({**json.loads(first), **changes}), *rest, ""]))
        sealed(run)

    return change


def _outside(run: Path) -> None:
    (run.parent / "outside").write_bytes(b"outside")
    files = json.loads((run / "manifest.json").read_text())["files"]
    sealed(run, files={**files, "../outside": hashlib.sha256(b"outside").hexdigest()})


def _forged_rows(manifest: dict[str, Any], figures: dict[str, Any]) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        path = run / "test_figures.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **figures}))
        sealed(run, **manifest)

    return change


def _figures(**changes: Any) -> Callable[[Path], None]:
    return _forged_rows({}, changes)


FILES: dict[str, Callable[[Path], Any]] = {
    **{f"{name} as a FIFO": _instead(name, os.mkfifo) for name in ("ledger.jsonl", "model.npz", "per_record.npz")},
    **{
        f"{name} as a link to /dev/zero": _instead(name, lambda path: path.symlink_to("/dev/zero"))
        for name in ("ledger.jsonl", "model.npz", "per_record.npz", "manifest.json")
    },
    "a history that is a FIFO": _instead("history.csv", os.mkfifo),
    "a manifest that is a FIFO": _instead("manifest.json", os.mkfifo),
    "a model that is a folder": _instead("model.npz", Path.mkdir),
    "a file outside": _outside,
    "an unknown file": lambda run: (run / "extra.txt").write_text("x"),
    "a README that is a folder": lambda run: (run / "README.md").mkdir(),
    "a README that is a link": lambda run: (run / "README.md").symlink_to("/dev/zero"),
    **{
        f"test figures with {key} {value!r:.9}": _figures(**{key: value})
        for key in ("test_rows", "test_accuracy", "macro_auroc", "per_class", "confusion_matrix", "other")
        for value in (None, "word", [], [[1]], {}, 7, 10**400)
    },
    "test figures as a FIFO": _instead("test_figures.json", os.mkfifo),
    "deep test figures": lambda run: ((run / "test_figures.json").write_text("[" * 10**5), sealed(run)),
    "a deep manifest": lambda run: (run / "manifest.json").write_text("[" * 100_000),
    "a manifest that is a list": lambda run: (run / "manifest.json").write_text("[]"),
    "a manifest of NaN": lambda run: (run / "manifest.json").write_text('{"format": NaN}'),
    "a number of 5000 digits": lambda run: (run / "manifest.json").write_text('{"format": ' + "9" * 5000 + "}"),
    "a line of 10 MB": lambda run: (run / "ledger.jsonl").write_text("a" * 10**7),
    "a deep ledger": lambda run: (run / "ledger.jsonl").write_text("[" * 100_000),
    **{
        f"an event with {key} {value!r}": _ledger(**{key: value})
        for key in ("purpose", "step", "sensitivity", "noise_multiplier", "sampling_rate", "event")
        for value in (None, "word", [], 1e400, 10**400, True)
    },
    **{
        f"{name} {what}": _arrays(name, **{key: value})
        for name, key in (
            ("model.npz", "weights"), ("model.npz", "bias"), ("per_record.npz", "id"), ("per_record.npz", "mu"),
            ("per_record.npz", "renyi"), ("per_record.npz", "key"),
        )
        for what, value in (
            (f"without {key}", ABSENT), (f"with {key} of one number", np.array(1.0)),
            (f"with {key} of text", np.array(["a", "b"])), (f"with {key} of NaN", np.full((10, 4), np.nan)),
            (f"with {key} of nothing", np.zeros((0, 0), np.float32)), (f"with {key} of 3 axes", np.zeros((2, 3, 4))),
        )
    },
}  # fmt: skip
# a forger may leave the ledger and change what the manifest makes of it
FORGED: dict[str, dict[str, Any]] = {
    "mechanism": {"mechanism": "none"}, "paper": {"paper": "Anon 2030"}, "cross check": {"cross_check": "none"},
    "adjacency": {"adjacency": "any two data sets"}, "n_features": {"n_features": 11}, "created": {"created": "soon"},
    "balanced accuracy": {"test_balanced_accuracy": 0.123}, "class of an accuracy":
        {"test_accuracy_per_class": {"emu": 1.0}}, "number of test rows": {"n_test": 0}, "method": {"method": "dp-sgd"},
    "epsilon": {"epsilon": 0.1}, "delta": {"delta": 1e-9}, "steps": {"steps": 1}, "rate": {"sampling_rate": 0.5},
    "mu": {"gdp_mu": 0.1}, "rho": {"zcdp_rho": 0.1}, "releases": {"releases": []}, "seed": {"seed_kind": "insecure"},
    "noise": {"noise_source": "a coin"}, "target": {"epsilon_target": 0.5}, "published": {"published": []},
    "number of private rows": {"n_private": 399, "n_units": 399}, "unit": {"unit": "owner"},
    "rows of a person": {"per_owner_rows": 1}, "public people": {"n_public_owners": 1},
    "accuracy": {"test_accuracy": 0.5}, "calibration error": {"test_calibration_error": 0.0},
    "accountant": {"accountant": "a friend"}, "class names": {"class_names": ["a", "b", "c"]},
}  # fmt: skip
# what a forger changes in the manifest and in the files that repeat it, and a feature file contradicts
FORGED_ROWS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "calibration error": ({"test_calibration_error": 0.9}, {"calibration_error": 0.9}),
    "AUROC": ({"test_macro_auroc": 0.5}, {"macro_auroc": 0.5}),
    "public digest": ({"public_digest": "0" * 64}, {}),
    "public rows": ({"n_public": 13}, {}),
    "split seed": ({"public_shots": 1, "split_seed": 5}, {}),
    "more shots than rows": ({"public_shots": 1000}, {}),
}


def cases(good: Good, mutations: int) -> Iterator[Case]:
    """Edited manifests, hostile files, forged claims."""
    manifest = json.loads((good.run / "manifest.json").read_text())
    for number, key in enumerate(manifest):
        for place, value in enumerate((ABSENT, *VALUES)):
            shown = "absent" if value is ABSENT else f"{value!r}"[:20]
            change = _copy(good, lambda run, key=key, value=value: sealed(run, **{key: value}))  # type: ignore[misc]
            yield Case(
                f"runs: {key} {shown}", change, COMMANDS, OPEN, quick=number % 30 == 0 and number // 30 % 10 == place
            )
    for number, (name, make) in enumerate(FILES.items()):
        yield Case(f"runs: {name}", _copy(good, make), COMMANDS, OPEN, quick=number % 16 == 0)
    for name, changes in FORGED.items():
        change = _copy(good, lambda run, changes=changes: sealed(run, **changes))  # type: ignore[misc]
        yield Case(f"forged: {name}", change, (("verify", "r"),), frozenset({4}), quick=True)
    data = (("verify", "r", "--features", "{features}"),)
    for name, both in FORGED_ROWS.items():
        yield Case(f"forged: {name}, with data", _copy(good, _forged_rows(*both)), data, frozenset({4}), quick=True)
    for name in ("an unknown file", "a file outside", "a README that is a folder", "a README that is a link"):
        yield Case(f"forged: {name}", _copy(good, FILES[name]), (("verify", "r"),), frozenset({4}), quick=True)
    for number in range(mutations):
        name = sorted(path.name for path in good.run.iterdir())[number % 5]
        change = _copy(good, lambda run, n=number, f=name: (run / f).write_bytes(mutated((run / f).read_bytes(), n)))  # type: ignore[misc]
        yield Case(f"runs: mutation {number} of {name}", change, COMMANDS, OPEN)
