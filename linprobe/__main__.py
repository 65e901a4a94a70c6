"""`python -m linprobe` and the `linprobe` script."""

from __future__ import annotations

import gc
import os
import signal
import sys
from contextlib import suppress

INTERRUPTED = 130  # exit status of Ctrl-C
OBJECTS = 50_000  # made between searches for cycles: imports make many objects and no cycles
TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def end_like_ctrl_c() -> None:
    """Let SIGTERM and SIGHUP end a command as Ctrl-C does: unfinished files are removed, and workers end.

    Not under torchrun: a process that waits for another one in a library would not see the signal in time. Not where
    the signal is ignored, as under nohup.
    """
    if all(name in os.environ for name in TORCHRUN_VARIABLES) and os.environ["WORLD_SIZE"] != "1":
        return
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)


def open_closed_streams() -> None:
    """Open the null device in place of standard streams that the caller closed, as `>&-` does.

    Python has None for such a stream. The descriptors are taken too: otherwise the next file that is opened, such as a
    feature file, gets the number of stderr, and whatever a library prints there would damage it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)  # gets the lowest free number: the stream's
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8", errors="backslashreplace"))


def keep_private() -> None:
    """Let nobody else write to new files, let the user read them, and write no core dump, which could hold rows."""
    mask = os.umask(0o077)
    os.umask((mask | 0o022) & 0o077)
    with suppress(ImportError, ValueError, OSError):  # Windows has no limits
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def main() -> None:
    try:
        keep_private()
        open_closed_streams()
        end_like_ctrl_c()
        gc.set_threshold(OBJECTS)
        from linprobe.cli import run

        status = run(sys.argv[1:])
    except KeyboardInterrupt:  # before or after the command itself
        with suppress(OSError):  # stderr may be full
            print(
                "linprobe: error: stopped by Ctrl-C or a signal; nothing half-written was left under a final name",
                file=sys.stderr,
            )
        status = INTERRUPTED
    sys.exit(status)


if __name__ == "__main__":
    main()
