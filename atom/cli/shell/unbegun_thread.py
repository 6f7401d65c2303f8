"""A thread that the system gave, and that had no memory to begin.

Python's `Thread.start` then waits for ever for its first word, and with it whoever started it: a
daemon that neither trains nor ends."""

import os
import sys
from typing import TYPE_CHECKING

from atom.cli.shell.exit_codes import ExitCode

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

_WORDS = (
    b"error: host memory ran out: a thread could not begin\n"
    b"hint:  end other programs, then try again; what was committed is on disk\n"
)
"""There may be no memory to put them together."""


def end_if_a_thread_cannot_begin() -> None:
    """From now on that ends the process at once, as a kill would: whoever waits for that thread
    cannot be woken, and nothing could be closed in order."""
    before = sys.unraisablehook

    def heard(problem: "UnraisableHookArgs") -> None:
        if isinstance(problem.exc_value, MemoryError) and "thread" in (problem.err_msg or ""):
            os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, _WORDS)
            os._exit(ExitCode.SHORTAGE)
        before(problem)

    sys.unraisablehook = heard
