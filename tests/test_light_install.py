"""`pip install linprobe` brings no torch: all but `extract` works without it, and a missing extra is one line."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from linprobe.errors import EXTRAS

FOR_DEVELOPERS = {"bench", "dev", "docs", "test"}
ABSENT = sorted({module for _, modules in EXTRAS.values() for module in modules} | {"huggingface_hub"})
HIDDEN = f"""
import sys
from importlib.machinery import PathFinder

class Hiding(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {ABSENT!r} else PathFinder.find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Hiding
"""
COMMAND_LINE = """
import json, time
from linprobe import cli
for words in json.loads(sys.argv[1]):
    start = time.process_time()
    print("status", cli.run(words.split()), time.process_time() - start)
"""
ESTIMATOR = """
import numpy as np
from linprobe import NoisyGD
X = np.eye(4, dtype=np.float32).repeat(50, axis=0)
y = np.arange(4).repeat(50)
print(NoisyGD(epsilon=3, classes=[0, 1, 2, 3]).fit(X, y).score(X, y))
"""
SECONDS = 2.0  # of a processor, most for a refusal, which takes 0.1
COMMANDS = (
    "import rows.npz --out rows.h5",
    "train rows.h5 --eps 3 --public-shots 2 --out run",
    "verify run --max-eps 3",
    "report run --html report.html",
    "predict run new.npy",
    "evaluate run rows.h5",
    "release run --out released",
    "export run --to safetensors --out probe.safetensors",
    "plan --n 200 --eps 3 --q 1",
    "budget rows.h5",
    "info run",
    "doctor",
)
REFUSED = {
    "extract images": "extract",
    "extract images --backbone resnet50 --device cuda": "extract",
    "extract images --backbone pixels": "extract",
    "train --eps 3 --device cuda": "torch",
    "train --eps 3 --device cuda:1 --dry-run": "torch",
    "audit --method noisy-gd --eps 3 --device cuda": "torch",
    "import rows.pt --out rows.h5": "torch",
    "import train.parquet --out rows.h5": "arrow",
    "export run --to onnx --out probe": "onnx",
}


def light(folder: Path, program: str, *words: str) -> subprocess.CompletedProcess[str]:
    """A program in a process that cannot import what the extras bring."""
    return subprocess.run([sys.executable, "-c", HIDDEN + program, *words], cwd=folder, capture_output=True, text=True)


def test_every_extra_has_a_purpose_and_no_required_package_brings_torch() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(EXTRAS) == set(project["optional-dependencies"]) - FOR_DEVELOPERS
    assert not [line for line in project["dependencies"] if line.startswith(("torch", "timm", "open-clip"))]


def test_commands_and_estimators_work_without_the_extras(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = np.arange(200) % 2
    X = (rng.normal(size=(200, 8)) + y[:, None]).astype(np.float32)
    np.savez(tmp_path / "rows.npz", X_train=X[:150], y_train=y[:150], X_test=X[150:], y_test=y[150:])
    np.save(tmp_path / "new.npy", X[:5])
    done = light(tmp_path, COMMAND_LINE + ESTIMATOR, json.dumps(COMMANDS))
    assert done.stdout.count("status 0") == len(COMMANDS), done.stderr
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.splitlines()[-1]) > 0.5
    for made in ("report.html", "released", "probe.safetensors"):
        assert (tmp_path / made).exists()
    assert "extra extract" in done.stderr + done.stdout


def test_a_missing_extra_is_one_line_that_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for name in ("rows.pt", "train.parquet"):
        (tmp_path / name).touch()
    done = light(tmp_path, COMMAND_LINE, json.dumps(list(REFUSED)))
    messages = done.stderr.splitlines()
    assert len(messages) == len(REFUSED), done.stderr
    for (words, extra), message, result in zip(REFUSED.items(), messages, done.stdout.splitlines(), strict=True):
        _, status, seconds = result.split()
        assert message.startswith("linprobe: error: "), words
        assert message.endswith(f" not installed; pip install 'linprobe[{extra}]'"), (words, message)
        assert (int(status), float(seconds) < SECONDS) == (2, True), words


def test_several_processes_need_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    done = light(tmp_path, COMMAND_LINE, '["train --eps 3"]')
    assert done.stdout.startswith("status 2")
    assert done.stderr.endswith("needs torch, which is not installed; pip install 'linprobe[torch]'\n")
    assert done.stderr.count("\n") == 1
