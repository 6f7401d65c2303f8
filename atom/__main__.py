"""The `atom` command, and `python -m atom`."""

import os
import signal
import sys
from types import FrameType


def main() -> int:
    """Run the command line and return its exit code.

    Ctrl-C ends the process at once, without a traceback, until a command installs its own handling:
    nothing needs cleaning up before then. If SIGINT is ignored (nohup) or has another handler, that
    stays as it is.
    """
    has_default_handler = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if has_default_handler:
        signal.signal(signal.SIGINT, _exit_at_once)
    from atom.cli.app import main as command

    return command(raise_interrupts=has_default_handler)


def _exit_at_once(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
