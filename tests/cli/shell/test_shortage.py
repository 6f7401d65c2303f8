"""Shortages of the machine are reported as shortages, not as bugs."""

import subprocess
import sys
from pathlib import Path

import pytest

from atom.cli.shell.failures import ExitCode, run_guarded

UNDER_A_LIMIT = """
import os, resource, sys, threading
from pathlib import Path
from atom.cli.shell.failures import run_guarded

def hold(kind, most):
    resource.setrlimit(kind, (most, resource.getrlimit(kind)[1]))

def allow_bytes(beyond):
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    hold(resource.RLIMIT_AS, pages * resource.getpagesize() + beyond)

def python_memory():
    allow_bytes(2**24)
    bytearray(2**30)

def mapped_file():
    import torch
    Path("arena").touch()
    os.truncate("arena", 2**30)
    allow_bytes(2**24)
    torch.UntypedStorage.from_file("arena", False, 2**30)

def threads():
    threading.stack_size(2**28)
    allow_bytes(2**24)
    threading.Thread(target=print).start()

def files():
    hold(resource.RLIMIT_NOFILE, 64)
    held = []
    while True:
        held.append(open(os.devnull))

sys.exit(run_guarded(globals()[sys.argv[1]]))
"""


@pytest.mark.parametrize(
    ("wish", "words", "hint"),
    [
        ("python_memory", "host memory ran out", "end other programs"),
        ("mapped_file", "host memory ran out: unable to mmap", "end other programs"),
        ("threads", "the system cannot start more threads: can't start", "ulimit -u"),
        ("files", "too many open files: [Errno 24]", "ulimit -n"),
    ],
)
def test_it_names_what_ran_out(wish: str, words: str, hint: str, tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-c", UNDER_A_LIMIT, wish],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert told.returncode == 16, told.stderr
    assert told.stderr.startswith(f"error: {words}"), told.stderr
    assert hint in told.stderr.partition("\nhint:  ")[2]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (BlockingIOError(11, "no thread for atom-accept"), "cannot start more threads"),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), "memory ran"),
    ],
)
def test_a_librarys_own_words_are_understood(
    fault: Exception, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def load() -> None:
        raise fault

    assert run_guarded(load) == 16
    assert said in capsys.readouterr().err


def test_a_disk_that_a_library_found_full(capsys: pytest.CaptureFixture[str]) -> None:
    """Safetensors reports a full disk in its own exception."""

    def save() -> None:
        raise Exception("I/O error: No space left on device (os error 28)")

    assert run_guarded(save) == ExitCode.STORAGE
    assert capsys.readouterr().err.startswith("error: the disk is full\nhint:")
