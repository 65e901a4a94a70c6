"""How commands grow: processor seconds against runs in a budget book, runs compared, classes and images in a folder.

    python benchmarks/growth/run.py [--parts book,compare,classes,folder] [--json FILE]

Each part is measured at growing sizes, with data as small as it may be, in this process; the smaller sizes contain
imports. The slope is that of the logarithms since the size before: 1 is linear, 2 is quadratic. A run in a book is one
release on 300 rows; a comparison is resumed when all of its runs are there, so that only reading, checking and the
table count; a report is about a run with two training rows and a test row for each class; a folder has empty files,
whose names are listed and whose fingerprint is computed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from linprobe.data.feature_reader import Description
from linprobe.data.feature_writer import FeatureWriter
from linprobe.errors import Silent
from linprobe.evaluation.compare import compare_methods
from linprobe.extraction.sources.folders import list_folder
from linprobe.options.requests import BudgetRequest, CompareRequest, ReportRequest, TrainRequest
from linprobe.reporting.page import report
from linprobe.training.costs import book_cost
from linprobe.training.train import train_run

Times = Iterator[tuple[int, dict[str, float]]]
WIDTH = 8


def seconds(work: Callable[[], object]) -> float:
    """Processor seconds of a call."""
    started = time.process_time()
    work()
    return time.process_time() - started


def features_file(path: Path, n_classes: int, rows: int, test: int) -> Path:
    """Random rows."""
    generator = np.random.default_rng(0)
    with FeatureWriter(path, Description(class_names=tuple(f"class {place}" for place in range(n_classes)))) as writer:
        for group, size in (("train", rows), ("test", test)):
            x = generator.standard_normal((size, WIDTH), dtype=np.float32)
            writer.write_group(group, size, WIDTH, [x], np.arange(size) % n_classes, [str(row) for row in range(size)])
    return path


def request(features: Path, out: Path, book: Path) -> TrainRequest:
    """One release at a small epsilon."""
    given = {"method": "noisy-gd", "epsilon": 0.1, "delta": 1e-6, "steps": 1, "public_shots": 0}
    return TrainRequest(features=features, out=out, book=book, **given)


def book(folder: Path) -> Times:
    """A run and `budget` with so many runs in the book."""
    features, path, done = features_file(folder / "f.h5", 2, 300, 10), folder / "book.jsonl", 0
    for size in (10, 100, 1_000):
        while done < size - 1:
            train_run(request(features, folder / f"run{done}", path), Silent())
            done += 1
        train = seconds(lambda: train_run(request(features, folder / "last", path), Silent()))
        (folder / "last").rename(folder / f"run{done}")
        done += 1
        yield size, {"train": train, "budget": seconds(lambda: book_cost(BudgetRequest(source=path)))}


def compare(folder: Path) -> Times:
    """`compare` of so many runs that are all there."""
    features = features_file(folder / "f.h5", 2, 300, 10)
    for size in (5, 50, 500):
        methods = ["noisy-gd:steps=1"]
        given = {"epsilons": (0.1,), "delta": 1e-6, "public_shots": (0,), "baselines": False, "jobs": 1}
        wanted = CompareRequest(
            features=features, methods=methods, seeds=size, out=folder / "compared", book=folder / "book", **given
        )
        compare_methods(wanted, Silent())
        yield size, {"resumed": seconds(lambda wanted=wanted: compare_methods(wanted, Silent()))}


def classes(folder: Path) -> Times:
    """`train` and `report` with so many classes."""
    for size in (100, 1_000, 3_000, 10_000):
        features = features_file(folder / f"{size}.h5", size, 2 * size, size)
        out = folder / f"run{size}"
        train = seconds(lambda: train_run(request(features, out, folder / f"book{size}"), Silent()))  # noqa: B023
        page = ReportRequest(run=out, html=folder / f"{size}.html")
        yield size, {"train": train, "report": seconds(lambda page=page: report(page))}


def images(folder: Path) -> Times:
    """Listing so many images in 10 classes."""
    names, done = [f"class{place}" for place in range(10)], 0
    for name in names:
        (folder / name).mkdir()
    for size in (1_000, 10_000, 100_000, 1_000_000):
        for number in range(done, size):
            os.close(os.open(folder / names[number % 10] / f"{number}.jpg", os.O_CREAT))
        done = size
        yield size, {"list": seconds(lambda: list_folder(folder, ("",), names).fingerprint())}


PARTS = {"book": book, "compare": compare, "classes": classes, "folder": images}


def main() -> None:
    """Measure the parts, print a line for each size, and write JSON if --json is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    results = json.loads(given.json.read_text()) if given.json is not None and given.json.exists() else {}
    for part in given.parts.split(","):
        results[part], before = [], {}
        with tempfile.TemporaryDirectory() as name:
            os.environ["XDG_STATE_HOME"] = f"{name}/state"
            for size, times in PARTS[part](Path(name)):
                row = {"size": size, "seconds": {key: round(value, 4) for key, value in times.items()}}
                if before:
                    row["slope"] = {
                        key: round(math.log(value / before["times"][key]) / math.log(size / before["size"]), 2)
                        for key, value in times.items()
                    }
                before = {"size": size, "times": times}
                results[part].append(row)
                print(part, json.dumps(row), flush=True)
                if given.json is not None:
                    given.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
