"""A real bootstrap node, and a real look at a DHT, through the command line."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from atom.cli.shell.exit_codes import ExitCode
from atom.swarm.addresses import parse_multiaddr

ATOM = (sys.executable, "-m", "atom")


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("node")


@pytest.fixture(scope="module")
def node(state: Path) -> Iterator[str]:
    """The address of a node that serves until SIGTERM, which it answers as it should."""
    arguments = (*ATOM, "bootstrap", "--listen", "127.0.0.1:0", "--state", str(state))
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        yield address
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
        assert process.returncode == ExitCode.OK
        assert out == ""
        assert f"--initial-peers {address}" in err
        assert "Traceback" not in err


def atom(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*ATOM, *arguments], capture_output=True, text=True, timeout=100)


def test_the_first_line_is_an_address_to_enter_by(node: str) -> None:
    assert parse_multiaddr(node) == node


def test_a_dht_that_knows_no_such_run(node: str) -> None:
    done = atom("status", f"{node}/run/nobody")
    assert done.returncode == ExitCode.ADDRESS
    assert "error: the DHT is reached, but knows no run named 'nobody'" in done.stderr
    assert "hint: " in done.stderr


def test_one_node_per_state_directory(node: str, state: Path) -> None:
    done = atom("bootstrap", "--listen", "127.0.0.1:0", "--state", str(state))
    assert done.returncode == ExitCode.STORAGE
    assert "another daemon runs" in done.stderr
