"""A start with a cap that this box cannot reach says so, and goes on."""

import socket
from pathlib import Path

import pytest

from atom.base.errors import PortInUseError
from atom.base.units import format_bytes
from atom.daemon.peer.box import StartOptions
from atom.daemon.peer.setup import run_start
from atom.daemon.usable_memory import usable_memory
from tests.daemon.peer.small_peer import Notes
from tests.daemon.tiny_run import TINY_RUN


@pytest.mark.parametrize(("times", "told"), [(1, False), (3, True)])
def test_more_host_memory_than_the_box_has_is_told(tmp_path: Path, times: int, told: bool) -> None:
    total = usable_memory().total_bytes
    (tmp_path / "run.toml").write_text(TINY_RUN)
    console, box = Notes(), tmp_path / "box.toml"
    with socket.create_server(("127.0.0.1", 0)) as taken:  # which ends the start soon
        port = taken.getsockname()[1]
        box.write_text(
            f'[host]\nmemory = "{times * total} B"\n[network]\nlisten = "127.0.0.1:0"\n'
            f"data_port = {port}\n"
        )
        with pytest.raises(PortInUseError):
            run_start(StartOptions(tmp_path / "run.toml", box, tmp_path / "state"), console)
    words = f"[host] memory allows {format_bytes(times * total)}, this box has"
    assert [note.startswith(words) for note in console.notes] == [True] * told
