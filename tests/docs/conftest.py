"""A `linprobe` and a `python` for pages with many commands: each runs in a copy of a copy of this process."""

from __future__ import annotations

import os
import runpy
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path

import pytest

from linprobe.cli import run
from tests.processes import start_copy

SLOW_IMPORTS = (
    *("linprobe.api.estimators", "linprobe.training.train", "linprobe.evaluation.compare", "linprobe.reporting.plots"),
    *("linprobe.extraction.run", "linprobe.extraction.backbones.scattering", "dp_accounting.pld", "matplotlib.figure"),
    *("rich.console", "rich.progress", "rich.table"),
    *("linprobe.evaluation.pdp_report", "linprobe.reporting.page", "linprobe.runs.check"),
)
CLIENT = """#!{python} -SE
import os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
socket.send_fds(server, ["\\0".join([os.getcwd(), *sys.argv]).encode()], [0, 1, 2])
sys.exit(server.recv(1)[0])
"""


def serve(listening: socket.socket) -> int:
    """Run each command that a client sends in a copy of this process, and send its exit status back."""
    os.setsid()
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        run(["methods"])  # what the first command of a process imports
    while True:
        client, _ = listening.accept()
        if os.fork():
            client.close()
            continue
        if os.fork():
            os._exit(0)
        words, descriptors, _, _ = socket.recv_fds(client, 1 << 16, 3)
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
        folder, program, *arguments = words.decode().split("\0")
        os.chdir(folder)
        try:
            status = (run if Path(program).name == "linprobe" else run_program)(arguments)
        except SystemExit as ended:
            status = int(ended.code or 0)
        sys.stdout.flush()
        sys.stderr.flush()
        client.sendall(bytes([status]))
        os._exit(0)


def run_program(arguments: list[str]) -> int:
    """What `python` does with these arguments: a program in a file, or in the argument after -c."""
    sys.path.insert(0, "")
    try:
        if arguments[0] == "-c":
            sys.argv = ["-c", *arguments[2:]]
            exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})
        else:
            sys.argv = arguments
            runpy.run_path(arguments[0], run_name="__main__")
    except Exception:
        traceback.print_exc()
        return 1
    return 0


@pytest.fixture(scope="session")
def path_with_linprobe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A PATH on which `linprobe` and `python` are those of this environment."""
    scripts = str(Path(sys.executable).parent)
    if not hasattr(socket, "send_fds"):
        yield f"{scripts}{os.pathsep}{os.environ['PATH']}"
        return
    for name in SLOW_IMPORTS:  # here, since later tests of this process need most of them too
        import_module(name)
    folder = tmp_path_factory.mktemp("bin")
    address = str(folder / "socket")
    for name in ("linprobe", "python"):
        (folder / name).write_text(CLIENT.format(python=sys.executable, address=address))
        (folder / name).chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen()
        server = start_copy(lambda: serve(listening))
    try:
        yield f"{folder}{os.pathsep}{scripts}{os.pathsep}{os.environ['PATH']}"
    finally:
        os.killpg(server, signal.SIGKILL)
        os.waitpid(server, 0)


@pytest.fixture
def bash(tmp_path: Path, path_with_linprobe: str) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a script in the temporary folder; it stops at the first command that fails."""
    environment = {**os.environ, "PATH": path_with_linprobe}

    def run_script(script: str, seconds: float = 120) -> subprocess.CompletedProcess[str]:
        command = ["bash", "-eu", "-c", script]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=seconds)

    return run_script
