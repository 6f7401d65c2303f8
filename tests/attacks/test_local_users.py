"""Attacks by another user of the same machine: read the state, take the control socket's name, or
answer in the daemon's place.

Run as root, the attacker's files belong to the user `nobody`. Otherwise they belong to this user,
and this process claims to be another one while it looks at them.
"""

import hashlib
import os
import shutil
import socket
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from atom.base.errors import ControlError
from atom.cli.box.control import ask_daemon
from atom.daemon.control import COMMANDS, ControlServer
from atom.daemon.state_directory import StateDirectory

NOBODY = 65534
IS_ROOT = os.geteuid() == 0


class Daemon:
    """The part of a daemon that takes commands."""

    def __getattr__(self, name: str) -> object:
        assert name in COMMANDS
        return lambda: f"the daemon's own {name}"


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that all users may look into; pytest's own is private."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def without_runtime_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)


def belongs_to_nobody(path: Path, patch: pytest.MonkeyPatch) -> None:
    """Give the file to another user; without root's rights, be another user."""
    if IS_ROOT:
        os.chown(path, NOBODY, NOBODY)
    else:
        patch.setattr(os, "geteuid", lambda: os.getuid() + 1)


def locked(root: Path) -> StateDirectory:
    state = StateDirectory(root)
    state.lock()
    return state


def test_another_user_reads_nothing_of_a_state(open_folder: Path) -> None:
    old = open_folder / "state"
    old.mkdir(mode=0o755)
    (old / "events.jsonl").write_text("the addresses of other peers")
    (old / "events.jsonl").chmod(0o644)
    locked(old).unlock()
    assert stat.S_IMODE(old.stat().st_mode) == 0o700
    user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if IS_ROOT else {}
    command = ["cat", str(old / "events.jsonl")]
    read = subprocess.run(command, capture_output=True, check=False, **user)  # type: ignore[call-overload]
    assert (b"Permission denied" in read.stderr) == IS_ROOT, "only this user may read it"


def test_a_name_that_another_user_took_stops_no_daemon(open_folder: Path) -> None:
    """The socket of a long path was `/tmp/atom-UID-HASH.sock`, which all users can compute; what
    another user had put there could not be removed, and the daemon did not start."""
    root = open_folder / ("x" * 120)
    name = hashlib.sha256(os.fsencode(os.path.realpath(root))).hexdigest()[:16]
    taken = Path("/tmp") / f"atom-{os.getuid()}-{name}.sock"
    taken.mkdir()  # root could remove a file of another user, but this neither
    state = locked(root)
    server = ControlServer(Daemon(), state)
    try:
        server.start()
        assert ask_daemon(root, "info") == "the daemon's own info"
        assert stat.S_IMODE(state.control_socket.parent.stat().st_mode) == 0o700
    finally:
        server.close()
        state.unlock()
        taken.rmdir()


def test_a_socket_of_another_user_is_not_asked(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A starting daemon of ours does not listen yet: another user answers in its place."""
    state = locked(open_folder / "state")
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(str(state.control_socket))
        belongs_to_nobody(state.control_socket, monkeypatch)
        with pytest.raises(ControlError, match="may belong to another user"):
            ask_daemon(state.root, "info")
    state.unlock()


def test_a_socket_that_another_user_can_replace_is_not_asked(open_folder: Path) -> None:
    """Between the look at its owner and the question, the socket may become another one."""
    state = locked(open_folder / "state")
    state.root.chmod(0o777)
    with socket.socket(socket.AF_UNIX) as ours:
        ours.bind(str(state.control_socket))
        with pytest.raises(ControlError, match="may belong to another user"):
            ask_daemon(state.root, "info")
    state.unlock()


def test_the_runtime_folder_of_another_user_is_not_used(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`su` without a login leaves `XDG_RUNTIME_DIR` as it was."""
    state, theirs = locked(open_folder / "state"), open_folder / "theirs"
    theirs.mkdir(mode=0o700)
    belongs_to_nobody(theirs, monkeypatch)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(theirs))
    assert state.place_control_socket().parent != theirs
    state.remove_control_socket()
    state.unlock()
