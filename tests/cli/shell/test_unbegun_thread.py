"""No daemon waits for ever for a thread that never began."""

import subprocess
import sys

import pytest

NO_MEMORY_TO_BEGIN = """
import threading
from atom.cli.shell.unbegun_thread import end_if_a_thread_cannot_begin

class Unbegun(threading.Thread):
    def _bootstrap_inner(self):
        raise MemoryError

end_if_a_thread_cannot_begin()
Unbegun().start()
"""
OTHER_TROUBLE = """
from atom.cli.shell.unbegun_thread import end_if_a_thread_cannot_begin

class Untidy:
    def __del__(self):
        raise {error}

end_if_a_thread_cannot_begin()
Untidy()
print("goes on")
"""


def _run(program: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", program]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


def test_the_process_ends_and_says_why() -> None:
    told = _run(NO_MEMORY_TO_BEGIN)
    assert told.returncode == 16
    assert told.stderr == (
        "error: host memory ran out: a thread could not begin\n"
        "hint:  end other programs, then try again; what was committed is on disk\n"
    )


@pytest.mark.parametrize("error", ["MemoryError", "ValueError"])
def test_whatever_else_is_ignored_stays_so(error: str) -> None:
    told = _run(OTHER_TROUBLE.format(error=error))
    assert (told.returncode, told.stdout) == (0, "goes on\n")
    assert error in told.stderr
