"""One directory, one daemon, nothing half-written."""

import errno
import fcntl
import os
import shutil
import socket
import stat
import subprocess
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atom.base.errors import StorageError
from atom.daemon.state_directory import StateDirectory, own_identity, write_atomically
from atom.swarm.identity import Identity


def test_who_only_looks_turns_no_daemon_away(tmp_path: Path) -> None:
    """`atom info` asks whether a daemon runs there, in the moment in which one starts."""
    started = StateDirectory(tmp_path / "s")
    started.lock()
    started.unlock()
    with (tmp_path / "s" / "daemon.lock").open("rb") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        looked = threading.Timer(0.1, lambda: fcntl.flock(looking, fcntl.LOCK_UN))
        looked.start()
        started.lock()
        looked.join()
    assert started.in_use
    started.unlock()


@pytest.mark.parametrize("taken_away", ["deleted", "moved", "begun anew", "unlocked"])
def test_a_directory_that_was_taken_away_is_noticed(taken_away: str, tmp_path: Path) -> None:
    state = StateDirectory(tmp_path / "s")
    state.lock()
    state.require_there()
    match taken_away:
        case "moved":
            state.root.rename(tmp_path / "elsewhere")
        case "unlocked":  # by a user who took the file for a leftover
            (state.root / "daemon.lock").unlink()
        case _:
            shutil.rmtree(state.root)
    if taken_away == "begun anew":
        again = StateDirectory(state.root)
        again.lock()
        again.unlock()
    with pytest.raises(StorageError, match="deleted or moved"):
        state.require_there()
    state.unlock()


def test_a_disk_that_does_not_answer_took_nothing_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(path: Path, **how: object) -> os.stat_result:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    state = StateDirectory(tmp_path / "s")
    state.lock()
    monkeypatch.setattr(Path, "stat", silent)
    state.require_there()
    state.unlock()


def test_a_folder_of_another_user_is_told_with_who_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path, *_modes: object, **_options: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "mkdir", refused)
    monkeypatch.setattr(os, "geteuid", lambda: 10001)
    with pytest.raises(StorageError, match="Permission denied") as problem:
        StateDirectory(tmp_path / "s").lock()
    assert "give write permission to user 10001" in problem.value.hint


def test_a_path_that_is_no_text_is_refused(tmp_path: Path) -> None:
    """The directory could be opened, but PyTorch could not map token files in it."""
    state = StateDirectory(tmp_path / os.fsdecode(b"\xff"))
    with pytest.raises(StorageError, match="its path is not UTF-8 text"):
        state.lock()
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_the_control_socket_lies_in_the_runtime_folder_if_that_is_private(
    mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = Path(tempfile.mkdtemp(dir="/tmp"))  # pytest's own path may be too long
    runtime.chmod(mode)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    state = StateDirectory(tmp_path / ("s" * 120))
    state.lock()
    try:
        assert (state.place_control_socket().parent == runtime) == (mode == 0o700)
        monkeypatch.delenv("XDG_RUNTIME_DIR")
        found = StateDirectory(state.root).control_socket
        assert found == state.control_socket, "a client with another environment finds it"
    finally:
        state.remove_control_socket()
        state.unlock()
        runtime.rmdir()


def test_a_new_directory_is_private_and_a_shared_folder_keeps_its_rights(tmp_path: Path) -> None:
    """Run by root with `--state /tmp`, Atom must not lock other users out of /tmp."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    state = StateDirectory(shared)
    state.lock()
    state.unlock()
    assert stat.S_IMODE(shared.stat().st_mode) == 0o1777
    new = StateDirectory(tmp_path / "new")
    new.lock()
    new.unlock()
    assert stat.S_IMODE(new.root.stat().st_mode) == 0o700


def test_a_key_that_others_may_read_is_warned_of(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path)
    assert not state.key_warning, "there is no key yet"
    Identity.load_or_create(state.identity)
    assert not state.key_warning
    state.identity.chmod(0o640)
    assert f"`chmod 600 {state.identity}`" in state.key_warning
    state.identity.chmod(0o600)  # the hint
    assert not state.key_warning


def test_a_folder_of_the_user_is_not_hidden_from_git(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    state = StateDirectory(tmp_path)
    state.lock()
    state.unlock()
    assert not (state.root / ".gitignore").exists()


@pytest.mark.parametrize("folder", ["s", "a/b/s"])
def test_git_never_sees_a_private_key(folder: str, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    state = StateDirectory(tmp_path / folder)
    state.lock()
    Identity.load_or_create(state.identity)
    state.unlock()
    command = ["git", "-C", tmp_path, "status", "--porcelain", "--untracked-files=all"]
    assert subprocess.run(command, check=True, capture_output=True).stdout == b""


def refusing(places: Callable[[str], bool]) -> type[socket.socket]:
    class Refusing(socket.socket):
        def bind(self, address: Any) -> None:
            if places(str(address)):
                raise OSError(errno.EPERM, os.strerror(errno.EPERM))
            super().bind(address)

    return Refusing


def test_a_disk_without_sockets_has_its_socket_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vfat, the drives of Windows in WSL, and some FUSE file systems hold no sockets."""
    monkeypatch.setattr(socket, "socket", refusing(lambda path: "runtime" in path))
    runtime = Path(tempfile.mkdtemp(dir="/tmp", prefix="runtime"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        state = StateDirectory(Path(short))
        state.lock()
        assert state.place_control_socket().parent == state.root, "the next place"
        monkeypatch.setattr(socket, "socket", refusing(lambda path: True))
        path = state.place_control_socket()
        assert path.parent.parent == Path("/tmp")
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert StateDirectory(state.root).control_socket == path
        state.remove_control_socket()
        assert not path.parent.exists()
        state.unlock()
    runtime.rmdir()


def test_atomic_write_replaces_or_leaves_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "manifest.bin"
    write_atomically(path, b"one")
    write_atomically(path, b"two")
    monkeypatch.setattr(os, "fsync", full)
    write_atomically(path, b"two")  # existing files need no room
    with pytest.raises(StorageError, match=r"manifest\.bin: the disk is full"):
        write_atomically(path, b"three")
    assert path.read_bytes() == b"two"
    assert list(tmp_path.iterdir()) == [path]


def test_a_look_for_an_identity_makes_none(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path / "state")
    assert own_identity(state.root) is None
    assert not state.root.exists()
    made = Identity.load_or_create(state.identity)
    found = own_identity(state.root)
    assert found is not None
    assert found.peer_id == made.peer_id
