"""A stock `hivemind-dht` node as a bootstrap node, and functions to end it."""

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator

import psutil

_SKEWED = """
import sys, time
real = time.time
ahead_s = float(sys.argv.pop(1))
time.time = lambda: real() + ahead_s
from hivemind.hivemind_cli.run_dht import main
main()
"""
_ADDRESS = re.compile(r"/ip4/127\.0\.0\.1/tcp/[0-9]+/p2p/[A-Za-z0-9]+")


@contextlib.contextmanager
def stock_node(clock_ahead_s: float = 0.0) -> Iterator[str]:
    """Yield the multiaddr of a running node; afterwards end the node and its orphans."""
    program = (_SKEWED, str(clock_ahead_s), "--host_maddrs", "/ip4/127.0.0.1/tcp/0")
    process = subprocess.Popen(
        [sys.executable, "-c", *program],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        yield _first_address(process)
    finally:
        family = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
        process.kill()
        process.wait()
        end_all([member.pid for member in family])
        if process.stdout is not None:
            process.stdout.close()


def end_all(pids: list[int]) -> None:
    """Send SIGKILL to the processes that still run."""
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(pid).kill()


def wait_until_gone(pids: list[int], timeout_s: float = 15.0) -> list[int]:
    """Return the processes that still run after the time limit: none if all is well."""
    living = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            living.append(psutil.Process(pid))
    _, left = psutil.wait_procs(living, timeout_s)
    return [process.pid for process in left]


def _first_address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    seen = list[str]()
    for line in process.stdout:
        seen.append(line)
        if found := _ADDRESS.search(line):
            return found[0]
    raise AssertionError(f"hivemind-dht did not start: {''.join(seen)}")
