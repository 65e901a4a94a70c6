"""`python -m linprobe` and the `linprobe` script."""

from __future__ import annotations

import os
import signal
import sys

INTERRUPTED = 130  # exit status of Ctrl-C


def end_like_ctrl_c() -> None:
    """Let SIGTERM and SIGHUP end a command as Ctrl-C does: unfinished files are removed, and workers end.

    Not under torchrun: a process that waits for another one in a library would not see the signal in time. Not where
    the signal is ignored, as under nohup.
    """
    if int(os.environ.get("WORLD_SIZE") or 1) > 1:
        return
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)


def main() -> None:
    """Run the command line and exit with its status."""
    end_like_ctrl_c()
    try:
        from linprobe.cli import run

        status = run(sys.argv[1:])
    except KeyboardInterrupt:  # before or after the command itself
        print(
            "linprobe: error: interrupted before the end; files under their final names are complete", file=sys.stderr
        )
        status = INTERRUPTED
    sys.exit(status)


if __name__ == "__main__":
    main()
