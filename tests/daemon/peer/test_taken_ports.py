"""A data port that another program has is said before there is a node, an address or a state."""

import socket
from pathlib import Path

import pytest

from atom.base.errors import PortInUseError
from atom.daemon.console import Silence
from atom.daemon.peer.box import JoinOptions, StartOptions
from atom.daemon.peer.peer import run_join, run_start
from atom.swarm.addresses import JoinAddress, format_join_address
from atom.swarm.identity import Identity
from tests.daemon.tiny_run import TINY_RUN


def peer_file(folder: Path, port: int) -> Path:
    path = folder / "box.toml"
    path.write_text(f'[network]\nlisten = "127.0.0.1:0"\ndata_port = {port}\n')
    return path


def test_a_taken_data_port_is_said_first(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(TINY_RUN)
    owner = Identity.create().peer_id
    nowhere = JoinAddress((f"/ip4/127.0.0.1/tcp/9/p2p/{owner}",), "tiny", owner)
    state = tmp_path / "state"
    with socket.create_server(("127.0.0.1", 0)) as other:
        box = peer_file(tmp_path, other.getsockname()[1])
        with pytest.raises(PortInUseError, match="in use") as start:
            run_start(StartOptions(tmp_path / "run.toml", box, state), Silence())
        with pytest.raises(PortInUseError, match="in use"):
            run_join(JoinOptions(format_join_address(nowhere), box, state), Silence())
        at_listen = f"127.0.0.1:{other.getsockname()[1]}"
    with pytest.raises(PortInUseError, match="--listen") as twice:
        run_start(StartOptions(tmp_path / "run.toml", box, state, listen=at_listen), Silence())
    assert "data_port" in start.value.hint
    assert "0 for any free one" in twice.value.hint
    assert not (state / "manifest.bin").exists()
