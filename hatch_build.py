"""Builds the kernel in `linprobe/native/` on installation, where there is a C compiler.

The kernel asks at run time for AVX2 and AVX-512, so one wheel serves all processors of a platform. No flag below may
name a processor.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FLAGS = ("-O3", "-std=gnu11", "-ffp-contract=fast", "-fPIC", "-shared")
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX") or ".so"


class KernelHook(BuildHookInterface):
    """Without a compiler the wheel is pure Python, and products are NumPy's. LINPROBE_REQUIRE_KERNEL=1 fails then."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        package = Path(self.root) / "linprobe/native"
        library = package / f"clipped_sum{SUFFIX}"
        reason = build(package / "clipped_sum.c", library)
        if reason:
            library.unlink(missing_ok=True)
            if os.environ.get("LINPROBE_REQUIRE_KERNEL") == "1":
                raise RuntimeError(f"{reason}, and LINPROBE_REQUIRE_KERNEL=1 asks for the kernel")
            self.app.display_warning(f"{reason}; linprobe goes without its kernel and trains with NumPy alone")
            return
        build_data["artifacts"].append(f"/linprobe/native/{library.name}")
        build_data["infer_tag"] = True
        build_data["pure_python"] = False


def build(source: Path, library: Path) -> str | None:
    """Compiles `source` into `library`, whole or not at all; returns why it could not."""
    asked, named = (shlex.split(value or "") for value in (os.environ.get("CC"), sysconfig.get_config_var("CC")))
    known = [asked] if asked else [named, ["cc"], ["gcc"], ["clang"]]
    compilers = [command for command in known if command and shutil.which(command[0])]
    if not compilers:
        return "no C compiler found"
    # linkers write the name of the output into it, which must be the same for every build
    with TemporaryDirectory(dir=library.parent) as folder:
        for compiler in compilers:
            command = [*compiler, *FLAGS, str(source.resolve()), "-o", library.name, "-lm"]
            if subprocess.run(command, capture_output=True, cwd=folder).returncode == 0:
                (Path(folder) / library.name).replace(library)
                return None
    return f"{compilers[-1][0]} could not compile {source.name}"
