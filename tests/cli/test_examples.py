"""Every example of every help text runs on small data, in a folder with the files that it names.

An example of a command with `--dry-run` does what its dry run says: a new command with that flag is tested too.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from linprobe.cli import _terminal, program, run
from linprobe.cli._command import FLAGS
from linprobe.options.declaration import REQUESTS
from linprobe.runs.manifest import MANIFEST
from linprobe.training.words import NO_BOOK
from tests.cli.outcomes import Cli, result_of

TIME = re.compile(r"(-\d{8}-\d{6}-[0-9a-f]{4}|-[0-9a-f]{8})$")  # of a run without --out
Prepare = Callable[[str], tuple[list[str], list[Path]]]
QUICKER = {  # further words by command or example, as examples show defaults
    "attack runs/first --lira --shadows 8": ["--jobs", "1"],
    "audit": ["--runs", "12", "--canaries", "10", "--steps", "2"],
    "compare": ["--seeds", "1", "--jobs", "1"],
    "plan": ["--q", "0.5,1", "--accountant", "rdp"],
}
COMMANDS = program().commands
DRY, HELP = "--dry-run", "--help"
WITH_DRY_RUN = [name for name in COMMANDS if any(flag.option.name == "dry_run" for flag in FLAGS[name])]
SHOWN = [
    example
    for name in COMMANDS
    for example in REQUESTS[name].examples
    if name not in WITH_DRY_RUN or HELP in example or DRY in example
]
# a dry run warns of these, or they spend, or write private files
MORE = (
    "train features.h5 --method noisy-gd --eps 3 --delta 0.002 --steps 3 --book book.jsonl",
    "train features.h5 --method noisy-gd --eps 3 --steps 3 --noise-seed 1 --insecure-seed",
    "train patients.h5 --method noisy-gd --eps 3 --steps 3 --unit record",
    "train twice.h5 --method noisy-gd --eps 3 --steps 3",
    "train features.h5 --method non-private",
    "tune features.h5 --method noisy-gd --eps 3 --delta 0.002 --grid score-noise=0.3,1 --steps 3",
    "compare features.h5 --methods noisy-gd:steps=3 --eps 1,3 --delta 0.002 --out compared",
    "pdp-report runs/first --publish-epsilon 1 --csv losses.csv --book book.jsonl",
    "extract photos/ --backbone wrn-16-4 --random-weights --device cpu --out photos.h5",
)
DRY_RUN_TOO = [
    example
    for name in WITH_DRY_RUN
    for example in (*REQUESTS[name].examples, *(more for more in MORE if more.split()[0] == name))
    if HELP not in example and (name != "evaluate" or "--epsilon" in example)  # it costs nothing without
]


def test_every_command_has_an_example() -> None:
    assert set(REQUESTS) == set(COMMANDS)
    assert all(
        one.examples and all(example.split()[0] == name for example in one.examples) for name, one in REQUESTS.items()
    )


def _images(folder: Path, g: np.random.Generator) -> None:
    folder.mkdir(parents=True)
    for number in range(6):
        pixels = g.integers(0, 256, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{folder.parent.name}{folder.name}{number}.png")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Arrays, tables, feature files with owners, a run on one of them, and the result of an attack on the run."""
    folder, g = tmp_path_factory.mktemp("examples"), np.random.default_rng(7)
    arrays: dict[str, Any] = {"class_names": np.array(["setosa", "virginica"])}
    for group, count in {"train": 240, "test": 60, "public": 12}.items():
        labels = np.arange(count) % 2
        arrays |= {f"X_{group}": (g.normal(size=(count, 6)) + labels[:, None]).astype(np.float32), f"y_{group}": labels}
        with (folder / f"{group}.csv").open("w") as stream:
            stream.write("a,b,species\n")
            stream.writelines(f"{g.normal()},{g.normal()},{('setosa', 'virginica')[label]}\n" for label in labels)
    with (folder / "table.csv").open("w") as stream:
        stream.write("patient,age,outcome\n")
        stream.writelines(f"p{row // 2},{g.normal()},{('no', 'yes')[row % 2]}\n" for row in range(60))
    np.savez(folder / "arrays.npz", **arrays)
    np.savez(folder / "alone.npz", X=g.normal(size=(40, 6)))
    np.savez(folder / "owned.npz", **arrays, owner_train=np.arange(240) // 2)
    np.savez(folder / "twice.npz", **{**arrays, "X_train": np.repeat(arrays["X_train"][::2], 2, axis=0)})
    made = {"features": "arrays", "new": "arrays", "patients": "owned", "twice": "twice"}
    made |= {"unlabelled": "alone", "later": "later"}
    np.savez(folder / "later.npz", **{**arrays, "X_test": g.normal(size=(60, 6)).astype(np.float32)})
    for name, source in made.items():
        private = ["--private-test"] if name == "later" else []
        assert run(["import", str(folder / f"{source}.npz"), *private, "--out", str(folder / f"{name}.h5")]) == 0
    words = ["--method", "noisy-gd", "--eps", "3", "--steps", "3", "--book", str(folder / "book.jsonl")]
    assert run(["train", str(folder / "features.h5"), *words, "--out", str(folder / "runs" / "first")]) == 0
    attacked = ["--resamples", "0", "--out", str(folder / "attack.json")]
    assert run(["attack", str(folder / "runs" / "first"), *attacked]) == 0
    return folder


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of images, and a run on features of one of them."""
    folder, g = tmp_path_factory.mktemp("photographs"), np.random.default_rng(8)
    for group in ("train", "test"):
        for name in ("cat", "dog"):
            _images(folder / "photos" / group / name, g)
    _images(folder / "new" / "unlabelled", g)
    lines = [
        f"{path.relative_to(folder)},p{row // 2},{path.parent.name}\n"
        for row, path in enumerate(sorted((folder / "photos").rglob("*.png")))
    ]
    (folder / "photos.csv").write_text("".join(["file,patient_id,diagnosis\n", *lines]))
    features = str(folder / "extracted.h5")
    assert run(["extract", str(folder / "photos"), "--backbone", "scattering", "--out", features]) == 0
    words = ["--method", "noisy-gd", "--eps", "3", "--steps", "3", "--out", str(folder / "runs" / "first")]
    assert run(["train", features, *words]) == 0
    return folder


@pytest.fixture
def prepare(cli: Cli, tmp_path: Path, request: pytest.FixtureRequest) -> Prepare:
    """Copies the files that an example needs, less those that it makes, to the working directory."""

    def prepared(example: str) -> tuple[list[str], list[Path]]:
        command, *_ = words = shlex.split(example.split(" > ")[0])
        shutil.copytree(
            request.getfixturevalue("photographs" if command == "extract" else "files"), tmp_path, dirs_exist_ok=True
        )
        made = [tmp_path / words[place + 1] for place, word in enumerate(words) if word in ("--out", "--html")]
        for path in made:
            if path.is_dir():
                shutil.rmtree(path)
            path.unlink(missing_ok=True)
        return [*words, *QUICKER.get(example, QUICKER.get(command, ()))], made

    return prepared


@pytest.mark.parametrize("example", SHOWN)
def test_an_example_runs(example: str, cli: Cli, prepare: Prepare) -> None:
    words, made = prepare(example)
    outcome = cli(*words)
    assert outcome.status == 0, outcome.stderr
    assert outcome.stdout
    assert DRY in words or all(path.exists() for path in made)


class Said:
    """What a command notes, and the names of the stretches of work that it starts, in order."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.notes: list[tuple[str, tuple[str, ...]]] = []
        self.starts: tuple[str, ...] = ()

    def before(self, known: Collection[str]) -> list[str]:
        """The notes before the first start that is not `known`, without what several runs cost together."""
        early = [note for note, starts in self.notes if set(starts) <= set(known)]
        return sorted(note for note in early if "(budget book " not in note)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Said:
    found = Said()

    def note(_: Any, text: str) -> None:
        found.notes.append((text, found.starts))

    def start(_: Any, total: int, what: str = "training") -> None:
        found.starts += (what,)

    monkeypatch.setattr(_terminal.TerminalProgress, "note", note)
    monkeypatch.setattr(_terminal.TerminalProgress, "start", start)
    return found


def _files(*folders: Path) -> dict[Path, bytes]:
    """Contents of all files but locks, the key of budget books, and the keys of rows beside each book."""
    found = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    return {path: path.read_bytes() for path in found if path.suffix not in (".lock", ".rows") and path.name != "key"}


def _written(lines: str, folder: Path) -> set[Path]:
    """The paths that the lines of a dry run name after `writes`."""
    listed = [line[len("writes     ") :] for line in lines[lines.index("\nwrites") + 1 :].splitlines()]
    texts = [text.removeprefix("budget book ").split(": ")[0] for text in listed]
    return {folder / text for text in texts if not re.search(f"^(nothing|and |{NO_BOOK})| beside it ", text)}


def _untimed(path: Path) -> Path:
    """A path without the time and random part in the name of a run that no --out names."""
    return path.with_name(TIME.sub("", path.name)) if path.name else path


def _by_purpose(releases: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    return sorted(releases or (), key=lambda release: release["purpose"])


@pytest.mark.parametrize("example", DRY_RUN_TOO)
def test_an_example_does_what_its_dry_run_says(
    example: str, cli: Cli, prepare: Prepare, said: Said, tmp_path: Path, own_books: Path
) -> None:
    words = [word for word in prepare(example)[0] if word != DRY]
    said.clear()  # what the fixtures said
    before = _files(tmp_path, own_books)
    told = cli(*words, DRY)
    assert told.status == 0, told.stderr
    starts, warned = said.starts, said.before(said.starts)
    as_json = any(flag.option.name == "as_json" for flag in FLAGS[words[0]])
    facts = result_of(cli(*words, DRY, "--json")) if as_json else {}
    assert _files(tmp_path, own_books) == before
    said.clear()
    done = cli(*words)
    assert done.status == 0, done.stderr
    assert said.before(starts) == warned
    assert set(facts.get("warnings", ())) <= set(warned)

    changed = {path for path, content in _files(tmp_path, own_books).items() if before.get(path) != content}
    roots = {path: {_untimed(one) for one in (path, *path.parents)} for path in changed}
    named = set(map(_untimed, _written(told.stdout, tmp_path)))
    assert named <= set().union(*roots.values())
    unnamed = [path for path in changed if not named & roots[path]]
    assert len(unnamed) == (NO_BOOK in told.stdout)
    assert all(own_books in path.parents for path in unnamed)

    rows = facts["rows"] if words[0] == "compare" else [facts]
    plans = [_by_purpose(plan["releases"]) for row in rows for plan in row.get("plans", ())]
    for path in changed if plans else ():
        if path.name == MANIFEST:
            assert (_by_purpose(json.loads(path.read_text())["releases"]) or plans[0]) in plans
    if facts.get("together"):
        (book,) = (path for path in changed if path.suffix == ".jsonl" and path.parent in (tmp_path, own_books))
        spent = result_of(cli("budget", book, "--delta", facts["together"]["delta"], "--json"))
        cost = {
            key: facts["together"][key] for key in ("epsilon", "epsilon_by_unit")
        }  # of one release, it rounds otherwise
        for key in ("runs", "not_private_runs"):
            assert facts["together"][key] == spent[key]
        assert cost == {
            "epsilon": pytest.approx(spent["epsilon"]),
            "epsilon_by_unit": pytest.approx(spent["epsilon_by_unit"]),
        }
