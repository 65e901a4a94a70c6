"""Every small change of a run folder, resealed as an attacker without the signing key would, and what `verify` says.

A mutation is refused, or it changes only what `verify` lists under `stated_not_checked`. The test suite tries a seeded
sample, and all of them if `LINPROBE_MUTATIONS` is `all`. `python -m tests.hostile.mutations [KIND ...]` tries all, and
prints counts for each kind.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from linprobe.errors import DataError
from linprobe.options.requests import VerifyRequest
from linprobe.runs.check import verify_run
from linprobe.runs.manifest import MANIFEST, PER_RECORD, SIGNATURE, VERIFY_PAGE, Manifest
from tests.hostile.runs import sealed

KINDS = (
    "plain", "sampled", "people", "shrunk", "selected", "private test rows", "class counts", "private mean",
    "inherited", "several labels", "covariance", "released clip norm", "public rows only", "histogram",
    "signed", "release", "refined", "refined later", "selected with covariance", "moved to a private mean",
)  # fmt: skip
RANGES = 24  # ranges of bytes of each binary file


class Mutation(NamedTuple):
    """A change of a run folder. `touches` is the key or the file that must be listed if the change is accepted."""

    name: str
    touches: str
    make: Callable[[Path], Any]


def _values(value: Any) -> Iterator[tuple[str, Any]]:
    """Other JSON values in place of one: types, scales, signs, words, nested values."""
    yield from (("null", None), ("a word", "word"), ("a list", []), ("an object", {}), ("true", True))
    if isinstance(value, bool):
        yield "not", not value
    elif isinstance(value, int | float):
        yield from (("double", value * 2), ("half", value / 2), ("negative", -value - 1), ("tiny", 1e-300))
        yield "a little more", value + 1 if isinstance(value, int) else value * 1.01
        yield "a little less", value - 1 if isinstance(value, int) else value * 0.99
    elif isinstance(value, str):
        yield from (("longer", value + "x"), ("empty", ""), ("other case", value.swapcase()))
        if value and set(value) <= set("0123456789abcdef"):
            yield "another digest", value[::-1]
    elif isinstance(value, list):
        yield "one more", [*value, value[0] if value else 1]
        if value:
            yield from (("one less", value[:-1]), ("reversed", value[::-1]))
            for what, changed in _values(value[0]):
                yield f"first {what}", [changed, *value[1:]]
    elif isinstance(value, dict):
        yield "extra", {**value, "extra": 1}
        for key in value:
            yield f"without {key}", {name: entry for name, entry in value.items() if name != key}
            for what, changed in _values(value[key]):
                yield f"{key} {what}", {**value, key: changed}


def _manifest(run: Path) -> Iterator[Mutation]:
    manifest = json.loads((run / MANIFEST).read_text())
    for key, value in manifest.items():
        for what, changed in _values(value):
            if changed != value or type(changed) is not type(value):
                touches = what.removeprefix("without ") if key == "files" else key
                yield Mutation(f"{key} {what}", touches, lambda run, k=key, v=changed: sealed(run, **{k: v}))
        yield Mutation(f"without {key}", key, lambda run, k=key: _without(run, k))
    yield Mutation("extra key", "extra", lambda run: sealed(run, extra=1))


def _without(run: Path, key: str) -> None:
    manifest = json.loads((run / MANIFEST).read_text())
    del manifest[key]
    (run / MANIFEST).write_text(json.dumps(manifest))
    if key not in ("files", "manifest_digest"):
        sealed(run)


def _edited(name: str, edit: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def make(run: Path) -> None:
        (run / name).write_bytes(edit((run / name).read_bytes()))
        sealed(run)

    return make


def _lines(run: Path, name: str) -> Iterator[Mutation]:
    lines = (run / name).read_bytes().splitlines(keepends=True)

    def changed(what: str, *new: bytes) -> Mutation:
        return Mutation(f"{name} {what}", name, _edited(name, lambda _: b"".join(new)))

    yield changed("empty")
    yield changed("with a last line", *lines, b"word\n")
    for place, line in enumerate(lines):
        before, after = lines[:place], lines[place + 1 :]
        yield changed(f"without line {place}", *before, *after)
        yield changed(f"line {place} twice", *before, line, *lines[place:])
        yield changed(f"line {place} with a space", *before, b" " + line, *after)
        if after and after[0] != line:
            yield changed(f"lines {place} and {place + 1} exchanged", *before, after[0], line, *after[1:])
        if name.endswith("jsonl"):
            event = json.loads(line)
            for what, value in _values(event):
                yield changed(f"line {place} {what}", *before, json.dumps(value).encode() + b"\n", *after)
            twice = b'{"sampling_rate": 1.0, ' + line[1:]
            yield changed(f"line {place} with a key twice", *before, twice, *after)
        else:
            cells = line.rstrip(b"\n").split(b",")
            for column in range(len(cells)):
                for cell in (b"7.5", b"word", b"", b"-" + cells[column]):
                    new = b",".join([*cells[:column], cell, *cells[column + 1 :]]) + b"\n"
                    yield changed(f"line {place} column {column} {cell!r}", *before, new, *after)


def _bytes(run: Path, name: str) -> Iterator[Mutation]:
    content = (run / name).read_bytes()
    rng = np.random.default_rng([*name.encode()])
    for number, part in enumerate(np.array_split(np.arange(len(content)), RANGES)):
        start, end = int(part[0]), int(part[-1]) + 1
        noise = bytes(byte ^ int(rng.integers(1, 256)) for byte in content[start:end])
        one = int(rng.integers(start, end))
        for what, new in (
            ("changed", content[:start] + noise + content[end:]),
            ("removed", content[:start] + content[end:]),
            ("twice", content[:end] + content[start:]),
            ("one byte", content[:one] + bytes([content[one] ^ int(rng.integers(1, 256))]) + content[one + 1 :]),
        ):
            yield Mutation(f"{name} range {number} {what}", name, _edited(name, lambda _, new=new: new))
    for what, new in (("bytes before", b"ROWS" * 9 + content), ("bytes after", content + b"ROWS")):
        yield Mutation(f"{name} {what}", name, _edited(name, lambda _, new=new: new))


def _files(run: Path) -> Iterator[Mutation]:
    yield Mutation("another file", "rows.csv", lambda run: (run / "rows.csv").write_text("x"))
    yield Mutation("another folder", "rows", lambda run: (run / "rows").mkdir())
    yield Mutation("a link", "link", lambda run: (run / "link").symlink_to("/etc/hostname"))
    for path in sorted(run.iterdir()):
        name = path.name
        yield Mutation(f"{name} removed", name, lambda run, n=name: (run / n).unlink())
        if name not in (SIGNATURE,):
            yield Mutation(f"{name} as a folder", "", lambda run, n=name: _as_folder(run / n))
        yield Mutation(f"{name} as a link", "", lambda run, n=name: _as_link(run / n))


def _as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _as_link(path: Path) -> None:
    target = path.parent.parent / f"{path.name}.elsewhere"
    path.rename(target)
    path.symlink_to(target)


def mutations(run: Path) -> list[Mutation]:
    """All mutations of a run."""
    found = [*_manifest(run), *_files(run)]
    for path in sorted(run.iterdir()):
        if path.suffix in (".jsonl", ".csv"):
            found += _lines(run, path.name)
        elif path.name != MANIFEST:
            found += _bytes(run, path.name)
    return found


def outcome(run: Path, before: Mapping[str, bytes], mutation: Mutation) -> str:
    """`refused`, `listed`, `no change` or `missed` for one mutation; the folder is as `before` afterwards."""
    try:
        mutation.make(run)
        try:
            result = verify_run(VerifyRequest(run=run))
        except DataError:  # another format, no manifest
            return "refused"
        if not result["verified"]:
            return "refused"
        others = (path for path in run.iterdir() if path.name != MANIFEST)
        same = all(path.is_file() and before.get(path.name) == path.read_bytes() for path in others)
        if same and _same_meaning(run, before):
            return "no change"
        listed = [*result["stated_not_checked"], *result["not_covered"]]
        if "sensitivity" in mutation.name:
            listed = [entry.removesuffix(" (sensitivities of dpsgd-f's theory variant)") for entry in listed]
        gone = mutation.name == f"{mutation.touches} removed" and mutation.touches in (
            PER_RECORD,
            SIGNATURE,
            VERIFY_PAGE,
        )
        return "listed" if mutation.touches in listed or gone else "missed"
    finally:
        for path in run.iterdir():
            if path.name not in before or path.is_symlink() or path.is_dir():
                path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        for name, content in before.items():
            (run / name).write_bytes(content)


def _same_meaning(run: Path, before: Mapping[str, bytes]) -> bool:
    """Whether the manifest says what it said."""
    then, now = (Manifest.read(text) for text in (before[MANIFEST], (run / MANIFEST).read_bytes()))
    return replace(then, manifest_digest="", absent=frozenset()) == replace(now, manifest_digest="", absent=frozenset())


def judged(run: Path, chosen: Callable[[list[Mutation]], list[Mutation]]) -> Iterator[tuple[Mutation, str]]:
    """The outcomes of the chosen mutations of a run."""
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    for mutation in chosen(mutations(run)):
        yield mutation, outcome(run, before, mutation)


def main() -> int:
    """Exit status 1 if a mutation was missed."""
    from tests.hostile.kinds import write_runs

    missed = 0
    with tempfile.TemporaryDirectory() as name:
        os.environ["XDG_STATE_HOME"] = f"{name}/state"
        runs = write_runs(Path(name), KINDS)
        for kind, run in ((kind, runs[kind]) for kind in sys.argv[1:] or KINDS):
            counts: Counter[str] = Counter()
            for mutation, found in judged(run, list):
                counts[found] += 1
                if found == "missed":
                    print(f"{kind}: {mutation.name}", flush=True)
            print(
                f"{kind:<20}",
                *(f"{word} {counts[word]:>5}" for word in ("refused", "listed", "no change", "missed")),
                flush=True,
            )
            missed += counts["missed"]
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
