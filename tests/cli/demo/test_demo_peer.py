"""The demo's folder, and its peers: a daemon in a real process must never be left behind."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from atom.base.errors import StorageError
from atom.cli.demo.peer import DemoPeer, PeerFailed, prepare, read_events, run_text
from atom.config.load import load_peer_file, load_run_file

REPOSITORY = Path(__file__).parents[3]

PARENT = """
import signal, sys
from pathlib import Path
from atom.cli.demo.peer import DemoPeer

(Path(sys.argv[1]) / "peer.toml").touch()
peer = DemoPeer(Path(sys.argv[1]), 1)
peer.start("bootstrap", "--listen", "127.0.0.1:0")
assert peer.join_address()
print(peer.process.pid, flush=True)
signal.pause()
"""


def test_a_daemon_that_ends_early_shows_its_log(tmp_path: Path) -> None:
    (tmp_path / "peer.toml").touch()
    peer = DemoPeer(tmp_path, 1)
    peer.start("id", "No Name")
    assert peer.process is not None
    os.waitid(os.P_PID, peer.process.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(PeerFailed, match="peer 1 ended with exit code 4") as failure:
        peer.look()
    with pytest.raises(PeerFailed, match="peer 1 ended with exit code 4"):
        peer.join_address()
    peer.remove()
    assert "cannot be a run's name" in failure.value.hint
    assert str(peer.log) in failure.value.hint


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


def test_the_packaged_run_file_is_the_one_in_peers() -> None:
    assert run_text() == (REPOSITORY / "peers" / "demo.toml").read_text()


def test_a_prepared_folder_holds_valid_files(tmp_path: Path) -> None:
    root = tmp_path / "demo"
    first, second = prepare(root, 2)
    run = load_run_file(root / "run.toml")
    assert run.run.name == "demo"
    assert run.swarm.trusted == (first.peer_id, second.peer_id)
    assert load_peer_file(root / "peer.toml").device.cpu_threads == 1
    (first.state / "tokens" / "x").write_text("shared")
    assert (second.state / "tokens" / "x").read_text() == "shared"


def test_our_own_folder_is_emptied_and_no_link_is_followed(tmp_path: Path) -> None:
    precious, root = tmp_path / "precious", tmp_path / "demo"
    precious.mkdir()
    (precious / "thesis.tex").write_text("years of work")
    (peer,) = prepare(root, 1)
    old = peer.state / "events.jsonl"
    old.touch()
    (root / "link").symlink_to(precious)
    prepare(root, 1)
    assert not old.exists()
    assert (root / "run.toml").exists()
    assert (precious / "thesis.tex").exists()


def test_somebody_elses_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(StorageError, match="is not empty"):
        prepare(tmp_path, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
