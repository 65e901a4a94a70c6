"""Packages: one version in all places, one kernel for all processors, and installations that insist on the kernel."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.docs.scripts import load_script
from tests.narrow_kernel import SOURCE, needs_compiler

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture
def hook() -> ModuleType:
    """hatch_build.py."""
    pytest.importorskip("hatchling")
    return load_script(ROOT / "hatch_build.py")


def test_package_changelog_and_citation_name_one_version() -> None:
    done = subprocess.run([sys.executable, ROOT / ".ci" / "version"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_a_tag_of_another_version_is_refused() -> None:
    done = subprocess.run([sys.executable, ROOT / ".ci" / "version", "v99.0.0"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "99.0.0" in done.stdout


def test_no_compiler_flag_names_a_processor(hook: ModuleType) -> None:
    assert not [flag for flag in hook.FLAGS if flag.startswith("-m")]


def test_a_kernel_that_is_asked_for_and_cannot_be_built_fails_the_installation(
    hook: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    (tmp_path / "linprobe" / "native").mkdir(parents=True)
    monkeypatch.setattr(hook.shutil, "which", lambda command: None)
    builder: Any = hook.KernelHook.__new__(hook.KernelHook)
    monkeypatch.setattr(hook.KernelHook, "root", str(tmp_path), raising=False)
    monkeypatch.setattr(hook.KernelHook, "app", SimpleNamespace(display_warning=warnings.append), raising=False)
    data: dict[str, Any] = {"artifacts": []}
    builder.initialize("standard", data)
    assert data == {"artifacts": []}
    assert "no C compiler found" in warnings[0]
    monkeypatch.setenv("LINPROBE_REQUIRE_KERNEL", "1")
    with pytest.raises(RuntimeError, match="no C compiler found"):
        builder.initialize("standard", data)


def test_the_compiler_that_cc_names_is_the_only_one(
    hook: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "false -O0")
    assert hook.build(ROOT / "linprobe/native/clipped_sum.c", tmp_path / "kernel.so") == (
        "false could not compile clipped_sum.c"
    )


def test_type_checkers_read_the_types_of_the_package() -> None:
    assert (ROOT / "linprobe/py.typed").exists()  # PEP 561; pyproject.toml says "Typing :: Typed"


@needs_compiler
@pytest.mark.nightly  # by day, .ci/run builds twice
def test_two_builds_in_different_folders_have_the_same_bytes(
    hook: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    monkeypatch.setattr(hook, "FLAGS", (*hook.FLAGS, "-O1", "-DWIDEST=4"))  # names in a file do not depend on these
    for folder in (tmp_path / "here", tmp_path / "elsewhere" / "with a longer name"):
        shutil.copytree(SOURCE.parent, folder, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        before = set(folder.iterdir())
        library = folder / f"clipped_sum{hook.SUFFIX}"
        assert hook.build(folder / SOURCE.name, library) is None
        assert set(folder.iterdir()) == {*before, library}
        found.append(library.read_bytes())
    assert found[0] == found[1]
    assert str(tmp_path).encode() not in found[0]


def test_release_wheels_hold_the_kernel_for_every_python_that_the_package_takes() -> None:
    wheels = PROJECT["tool"]["cibuildwheel"]
    versions = re.findall(r"Python :: 3\.(\d+)", " ".join(PROJECT["project"]["classifiers"]))
    assert wheels["build"] == [f"cp3{minor}-*" for minor in versions]
    assert wheels["environment"]["LINPROBE_REQUIRE_KERNEL"] == "1"
    assert wheels["macos"]["environment"]["LINPROBE_REQUIRE_KERNEL"] == "1"


@pytest.mark.parametrize("workflow", ["ci.yml", "release.yml"])
def test_workflows_run_what_a_contributor_runs(workflow: str) -> None:
    text = (ROOT / ".github" / "workflows" / workflow).read_text(encoding="utf-8")
    assert "- run: .ci/run" in text


@pytest.mark.parametrize("workflow", ["nightly.yml", "release.yml"])
def test_workflows_run_what_pytest_alone_leaves_out(workflow: str) -> None:
    text = (ROOT / ".github" / "workflows" / workflow).read_text(encoding="utf-8")
    assert 'pytest -m "nightly or hypothesis" --hypothesis-profile nightly\n' in text
    assert "apt-get install --yes cbmc gappa" in text
