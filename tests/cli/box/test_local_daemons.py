import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from atom.base.errors import ControlError, StorageError
from atom.cli.box import control as local_daemons
from atom.cli.box.control import find_daemon, find_state
from atom.cli.look.onlooker import run_meant
from atom.config.places import default_state_directory
from atom.daemon.state_directory import StateDirectory


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path / "atom"


@pytest.fixture
def open_sockets() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def daemon(root: Path, stack: ExitStack) -> Path:
    """Listens where a daemon of this state directory would."""
    root.mkdir(parents=True)
    path = StateDirectory(root).control_socket
    server = stack.enter_context(socket.socket(socket.AF_UNIX))
    server.bind(str(path))
    server.listen()
    return path


def test_the_only_daemon_is_meant_or_a_named_one(
    home: Path, open_sockets: ExitStack, tmp_path: Path
) -> None:
    path = daemon(default_state_directory("tiny"), open_sockets)
    (home / "other").mkdir()
    assert find_daemon(None) == path
    path = daemon(tmp_path / "elsewhere", open_sockets)
    assert find_daemon(tmp_path / "elsewhere") == path


def test_several_are_named(home: Path, open_sockets: ExitStack) -> None:
    daemon(home / "one", open_sockets)
    daemon(home / "two", open_sockets)
    with pytest.raises(ControlError, match="2 daemons run") as problem:
        find_daemon(None)
    assert problem.value.message.endswith("one, two")
    each = [f"--state {home / name}" for name in ("one", "two")]
    assert problem.value.hint.splitlines() == ["say which one:", *each]
    with pytest.raises(ControlError, match="2 daemons run") as problem:
        run_meant(None, None)
    assert problem.value.hint.splitlines()[-1] == "or give the run's ADDRESS"


def test_a_socket_left_behind_is_nobody(home: Path) -> None:
    with ExitStack() as stack:
        daemon(home / "tiny", stack)
    with pytest.raises(ControlError, match="no daemon"):
        find_daemon(None)
    with pytest.raises(ControlError, match="no daemon"):
        find_daemon(home / "tiny")


def test_a_socket_of_another_user_is_not_spoken_to(
    home: Path, open_sockets: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of a long path lies in /tmp, under a name that anybody can reckon."""
    long = home / ("x" * 120)
    path = daemon(long, open_sockets)
    open_sockets.callback(path.unlink)
    assert find_daemon(long) == path
    owners = {path: os.getuid() + 1}
    monkeypatch.setattr(local_daemons, "_owner", lambda file: owners.get(file, os.getuid()))
    for state in (None, long):
        with pytest.raises(ControlError, match="no daemon"):
            find_daemon(state)


def test_one_that_does_not_listen_is_not_said_to_be_away(home: Path) -> None:
    """It tokenises for an hour."""
    begins = StateDirectory(home / "tiny")
    begins.lock()
    try:
        for state in (None, home / "tiny"):
            with pytest.raises(ControlError, match="takes no commands now") as problem:
                find_daemon(state)
            assert "starting, standing by or ending" in problem.value.hint
    finally:
        begins.unlock()


def test_of_several_runs_that_are_kept_each_is_offered(home: Path) -> None:
    for name in ("one", "my run"):
        kept = StateDirectory(home / name)
        kept.root.mkdir(parents=True)
        kept.manifest.touch()
    with pytest.raises(StorageError, match=r"2 runs are kept under .*: my run, one") as problem:
        find_state(None)
    each = [f"--state '{home / 'my run'}'", f"--state {home / 'one'}"]
    assert problem.value.hint.splitlines() == ["say which one:", *each]
    running = StateDirectory(home / "one")
    running.lock()
    try:
        assert find_state(None) == home / "one", "the one whose daemon runs"
    finally:
        running.unlock()
