"""A used port, month or manifest is reported before there is a node, an address or a state."""

import socket
from pathlib import Path

import pytest

from atom.base.errors import AllowanceError, PortInUseError
from atom.daemon.peer.setup import run_join, run_start
from atom.daemon.state_directory import StateDirectory
from atom.swarm.addresses import JoinAddress, format_join_address
from atom.swarm.identity import Identity
from tests.daemon.silence import Silence
from tests.daemon.tiny_run import TINY_RUN


def peer_file(folder: Path, settings: str) -> Path:
    (folder / "run.toml").write_text(TINY_RUN)
    path = folder / "box.toml"
    path.write_text(f'[network]\nlisten = "127.0.0.1:0"\n{settings}\n')
    return path


@pytest.mark.parametrize(
    ("settings", "said", "hint"),
    [
        ("data_port = {}", "in use", "[network] data_port"),
        ("[metrics]\nport = {}", "in use", "[metrics] port"),
    ],
)
def test_a_taken_port_is_said_first(tmp_path: Path, settings: str, said: str, hint: str) -> None:
    owner, state = Identity.create().peer_id, tmp_path / "state"
    nowhere = JoinAddress((f"/ip4/127.0.0.1/tcp/9/p2p/{owner}",), "tiny", owner)
    with socket.create_server(("127.0.0.1", 0)) as other:
        box = peer_file(tmp_path, settings.format(other.getsockname()[1]))
        with pytest.raises(PortInUseError, match=said) as started:
            run_start(tmp_path / "run.toml", Silence(), box, state)
        with pytest.raises(PortInUseError, match=said):
            run_join(format_join_address(nowhere), Silence(), box, state)
    assert hint in started.value.hint
    assert {path.name for path in state.iterdir()} == {".gitignore", "daemon.lock", "identity.key"}


def test_a_used_up_month_is_reported_first(tmp_path: Path) -> None:
    box, state = peer_file(tmp_path, 'per_month = "1 kB"'), StateDirectory(tmp_path / "state")
    state.traffic.parent.mkdir()
    state.traffic.write_text('{"days": {}, "round_bytes": 900, "per_month": 1000}')
    with pytest.raises(AllowanceError, match=r"the allowance of 1\.0 kB a month"):
        run_start(tmp_path / "run.toml", Silence(), box, state.root)
    assert not state.manifest.exists()
