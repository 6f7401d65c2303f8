"""A real bootstrap node, and a real look at a DHT, through the command line."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import yaml

from atom.cli.shell.console import TerminalConsole
from atom.cli.shell.failures import ExitCode
from atom.cli.train.daemons import PrintedEvents
from atom.swarm.addresses import parse_multiaddr

ATOM = (sys.executable, "-m", "atom")
COMPOSE = Path(__file__).parents[3] / "docker" / "compose.yaml"


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("node")


@pytest.fixture(scope="module")
def process(state: Path) -> Iterator[subprocess.Popen[str]]:
    """A node that serves until SIGTERM, which it answers as it should."""
    arguments = (*ATOM, "bootstrap", "--listen", "127.0.0.1:0", "--state", str(state))
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
        assert process.returncode == ExitCode.OK
        assert out == ""
        assert "--initial-peers /ip4" in err
        assert "Traceback" not in err


@pytest.fixture(scope="module")
def node(process: subprocess.Popen[str]) -> str:
    """Return the node's address."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_the_first_line_is_an_address_to_enter_by(node: str) -> None:
    assert parse_multiaddr(node) == node


def test_a_dht_that_ended_runs_again_and_a_closed_terminal_ends_all_in_good_order(
    tmp_path: Path,
) -> None:
    arguments = (*ATOM, "bootstrap", "--listen", "127.0.0.1:0", "--state", str(tmp_path))
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
    try:
        process = subprocess.Popen(
            arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    finally:
        signal.signal(signal.SIGHUP, before)
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        told, said = [], ""
        try:
            process.stdout.readline()
            (dht,) = psutil.Process(process.pid).children()
            dht.kill()
            while not told or "dht process restarted" not in told[-1]:
                told.append(process.stderr.readline())
                assert told[-1], f"it ended after {told}"
        finally:
            process.send_signal(signal.SIGHUP)
            said = process.communicate(timeout=30)[1]
    assert process.returncode == ExitCode.OK
    assert any("dht process ended" in line for line in told)
    assert "the bootstrap node has stopped" in said


def test_what_a_failed_start_was_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    console = TerminalConsole()
    PrintedEvents(console).emit("dht-restart-failed", detail="port 31337 is in use")
    console.close()
    said = " ".join(capsys.readouterr().err.split())
    assert "dht restart failed: port 31337 is in use" in said


def test_the_container_s_health_check_hears_that_the_node_answers(
    node: str, process: subprocess.Popen[str], tmp_path: Path
) -> None:
    check = yaml.safe_load(COMPOSE.read_text())["services"]["bootstrap"]["healthcheck"]
    kind, command = check["test"]
    assert kind == "CMD-SHELL"
    (tmp_path / "met").write_text(f"{node}\n")
    command = command.replace("$$", "$").replace("/meeting/bootstrap", str(tmp_path / "met"))
    (tmp_path / "atom").write_text(f'#!/bin/sh\nexec {sys.executable} -m atom "$@"\n')
    (tmp_path / "atom").chmod(0o755)
    here = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}

    def is_well() -> bool:
        return subprocess.run(["sh", "-c", command], env=here, timeout=100).returncode == 0

    assert is_well()
    (dht,) = psutil.Process(process.pid).children()
    dht.suspend()  # its port is open all the same
    try:
        assert not is_well()
    finally:
        dht.resume()
