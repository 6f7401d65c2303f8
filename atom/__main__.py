"""The `atom` command, and `python -m atom`."""

import os
import signal
import sys
from types import FrameType


def main() -> int:
    """Returns the exit code. Until a command is guarded, Ctrl-C has nothing to clear up, and no
    traceback: where it is ignored (nohup), or somebody else hears it, that stays so."""
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, _end)
    from atom.cli.app import main as command

    return command(raise_interrupts=ours)


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
