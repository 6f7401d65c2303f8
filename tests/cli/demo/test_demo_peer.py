"""Real processes: a peer's daemon must never be left behind."""

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from atom.cli.demo.peer import DemoPeer, PeerFailed, read_events

PARENT = """
import sys, time
from pathlib import Path
from atom.cli.demo.peer import DemoPeer

peer = DemoPeer("peer 1", Path(sys.argv[1]) / "peer-1")
peer.start("bootstrap", "--listen", "127.0.0.1:0", "--state", str(peer.state))
while not (Path(sys.argv[1]) / "peer-1.out").read_text():
    time.sleep(0.1)
print(peer.process_id, flush=True)
time.sleep(60)
"""


def looked_at_until_it_ends(peer: DemoPeer) -> None:
    while not peer.fate:
        peer.look()
        time.sleep(0.05)


def test_a_daemon_that_ends_early_shows_its_log(tmp_path: Path) -> None:
    peer = DemoPeer("peer 1", tmp_path / "peer-1")
    peer.start("start", str(tmp_path / "none.toml"))
    with pytest.raises(PeerFailed, match="peer 1 ended with exit code 3") as failure:
        looked_at_until_it_ends(peer)
    peer.remove()
    assert "none.toml: no such file" in failure.value.hint
    assert str(peer.log) in failure.value.hint
    assert peer.join_address == ""


def test_a_killed_demo_leaves_no_daemon(tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", PARENT, str(tmp_path)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        daemon = psutil.Process(int(parent.stdout.readline()))
        family = [daemon, *daemon.children(recursive=True)]
        assert len(family) > 1
        parent.kill()
    _, alive = psutil.wait_procs(family, timeout=15)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []


def test_only_the_finished_lines_of_a_log_are_read(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    assert read_events(path) == []
    path.write_text('{"event": "a"}\n{"event": "b"')
    assert read_events(path) == [{"event": "a"}]
