"""`linprobe methods` and `doctor`: the methods, what this installation has, and what is missing for which command."""

import os
import platform
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from threadpoolctl import threadpool_info

from linprobe import __version__, native
from linprobe.accounting.row_keys import books_folder
from linprobe.errors import EXTRAS, LinprobeError, first_line, missing
from linprobe.parallel import available_memory
from linprobe.parallel.threads import n_threads

State = Literal["ok", "limited", "broken"]
LITTLE_MEMORY = 2 << 30
USUAL_SHAPE = 2048, 10  # features and classes, for which the kernel is tried


@dataclass(frozen=True)
class Finding:
    """What was `found`: ok, `limited` (a command lacks it), `broken` (most fail); and the remedy, if any."""

    name: str
    found: str
    state: State = "ok"
    remedy: str = ""


def methods() -> list[dict[str, Any]]:
    """The registered methods, one object each: method, summary, needs, spends (whether it has a budget), paper."""
    from linprobe.methods import METHODS  # not where the installation is looked at: it may lack what they import

    return [
        {
            "method": method.name,
            "summary": method.summary,
            "needs": list(method.needs),
            "spends": method.spends,
            "paper": method.paper,
        }
        for method in METHODS.values()
    ]


def doctor() -> dict[str, Any]:
    """Look at the installation, offline: version, state (the worst), findings (name, found, state, remedy)."""
    python = Finding("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    looks = (_kernel, _processor, _memory, _device, _extras, _caches, _books)
    findings = [python, *(finding for look in looks for finding in look())]
    worst = next((state for state in ("broken", "limited") if any(each.state == state for each in findings)), "ok")
    return {"version": __version__, "state": worst, "findings": [asdict(finding) for finding in findings]}


def _kernel() -> list[Finding]:
    if native.LIBRARY is not None:
        return [Finding("kernel", native.PATH.name)]
    slower = "steps with few classes are slower"
    if os.environ.get("LINPROBE_NATIVE") == "0":
        return [Finding("kernel", "turned off", "limited", f"{slower}; unset LINPROBE_NATIVE")]
    reason = "built for another machine or version, or gives wrong numbers" if native.PATH.exists() else "not built"
    return [Finding("kernel", reason, "limited", f"{slower}; install a C compiler, then linprobe again")]


def _processor() -> list[Finding]:
    import numpy as np

    np.zeros(1) @ np.zeros(1)  # loads BLAS
    libraries = {f"{one['internal_api']} {one['version']}" for one in threadpool_info() if one["user_api"] == "blas"}
    return [
        Finding("BLAS", ", ".join(sorted(libraries)) or "unknown"),
        Finding("threads", f"{n_threads()} of {os.cpu_count()} processors"),
    ]


def _memory() -> list[Finding]:
    free = available_memory.available()
    free_memory = f"{free / 2**30:.1f} GiB free"
    if free >= LITTLE_MEMORY:
        return [Finding("memory", free_memory)]
    return [Finding("memory", free_memory, "limited", "large feature files are streamed from disk, which is slower")]


def _device() -> list[Finding]:
    if missing("torch"):
        return []  # the missing extra says so
    try:
        import torch
    except Exception as error:  # a damaged installation, or a lack of memory
        remedy = "extract, GPUs and .pt files need it; install it again, or raise the limit on memory (ulimit -v, -d)"
        return [Finding("torch", f"cannot be imported ({first_line(error)})", "limited", remedy)]

    findings = [Finding("torch", torch.__version__)]
    if torch.cuda.is_available():
        from linprobe.gradients.gpu import Kernel

        names = (torch.cuda.get_device_name(place) for place in range(torch.cuda.device_count()))
        slower = "steps with few classes are slower; free GPU memory, or install a newer torch with pip"
        kernel = Finding("GPU kernel", "does not compile, or gives wrong numbers", "limited", slower)
        with suppress(torch.OutOfMemoryError):
            if Kernel.of(*USUAL_SHAPE, torch.float32, torch.device("cuda")) is not None:
                kernel = Finding("GPU kernel", "compiles")
        return [*findings, Finding("GPU", ", ".join(names)), kernel]
    return [*findings, Finding("GPU", "none", "limited", "extract runs on the processor, which is slow")]


def _extras() -> list[Finding]:
    findings = []
    for extra, (purpose, _) in EXTRAS.items():
        absent, remedy = missing(extra), f"for {purpose}: pip install 'linprobe[{extra}]'"
        lacks = Finding(f"extra {extra}", f"without {', '.join(absent)}", "limited", remedy)
        findings.append(lacks if absent else Finding(f"extra {extra}", "installed"))
    return findings


def _caches() -> list[Finding]:
    if missing("extract"):
        return []
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    torch_home = Path(os.environ.get("TORCH_HOME") or home / "torch")
    hub_home = Path(os.environ.get("HF_HOME") or home / "huggingface")
    folders = {
        "weights for resnet50": torch_home / "hub" / "checkpoints",
        "weights for CLIP and timm": Path(os.environ.get("HF_HUB_CACHE") or hub_home / "hub"),
    }
    remedy = "extract downloads weights, or takes them with --weights; --backbone scattering needs none"
    return [
        Finding(name, str(path)) if any(path.glob("*")) else Finding(name, f"none in {path}", "limited", remedy)
        for name, path in folders.items()
    ]


def _books() -> list[Finding]:
    try:
        folder = books_folder()
    except LinprobeError as error:
        return [Finding("budget books", "no place", "broken", str(error))]
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if nearest.is_dir() and os.access(nearest, os.R_OK | os.W_OK | os.X_OK):
        return [Finding("budget books", str(folder))]
    remedy = "train cannot record its cost; make it yours, or if it has no books, set XDG_STATE_HOME to a new folder"
    return [Finding("budget books", f"{nearest} cannot be read and written", "broken", remedy)]
