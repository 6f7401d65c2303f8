"""A real bootstrap node, and a real look at a DHT, through the command line."""

import os
import signal
import subprocess
import sys
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


def is_well(node: str, folder: Path) -> bool:
    """Run the health check of the container for a node with this address."""
    check = yaml.safe_load(COMPOSE.read_text())["services"]["bootstrap"]["healthcheck"]
    kind, command = check["test"]
    assert kind == "CMD-SHELL"
    (folder / "met").write_text(f"{node}\n")
    command = command.replace("$$", "$").replace("/meeting/bootstrap", str(folder / "met"))
    (folder / "atom").write_text(f'#!/bin/sh\nexec {sys.executable} -m atom "$@"\n')
    (folder / "atom").chmod(0o755)
    here = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"}
    return subprocess.run(["sh", "-c", command], env=here, timeout=100).returncode == 0


def test_a_node_answers_restarts_its_dht_and_ends_with_its_terminal(tmp_path: Path) -> None:
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
        told = [""]
        try:
            node = process.stdout.readline().strip()
            assert parse_multiaddr(node) == node, "the first line is an address to enter by"
            assert is_well(node, tmp_path)
            (dht,) = psutil.Process(process.pid).children()
            dht.suspend()  # its port is open all the same
            assert not is_well(node, tmp_path)
            dht.kill()
            while "dht process restarted" not in told[-1]:
                told.append(process.stderr.readline())
                assert told[-1], f"it ended after {told}"
        finally:
            process.send_signal(signal.SIGHUP)
            out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (ExitCode.OK, "")
    assert any("--initial-peers /ip4" in line for line in told)
    assert any("dht process ended" in line for line in told)
    assert "the bootstrap node has stopped" in err


def test_the_reason_of_a_failed_start_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    console = TerminalConsole()
    PrintedEvents(console).emit("dht-restart-failed", detail="port 31337 is in use")
    console.close()
    said = " ".join(capsys.readouterr().err.split())
    assert "dht restart failed: port 31337 is in use" in said
