"""One directory, one daemon, nothing half-written."""

import errno
import fcntl
import os
import shutil
import tempfile
import threading
from pathlib import Path

import pytest

from atom.base.errors import StorageError
from atom.daemon.state_directory import StateDirectory, own_identity, write_atomically
from atom.swarm.identity import Identity


def test_a_second_daemon_is_turned_away_until_the_first_ends(tmp_path: Path) -> None:
    first, second = StateDirectory(tmp_path / "s"), StateDirectory(tmp_path / "s")
    first.lock()
    with pytest.raises(StorageError, match="another daemon"):
        second.lock()
    first.unlock()
    second.lock()
    second.unlock()


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
        case "unlocked":  # by somebody who took it for one that was left behind
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
    assert "let user 10001 write there" in problem.value.hint


def test_a_file_system_without_locks_is_no_other_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_locks(file: object, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", without_locks)
    with pytest.raises(StorageError, match=r"cannot lock .*daemon\.lock: No locks available"):
        StateDirectory(tmp_path / "s").lock()


def test_a_path_that_is_no_text_is_refused(tmp_path: Path) -> None:
    """It can be opened, and PyTorch could not map the tokens in it."""
    state = StateDirectory(tmp_path / os.fsdecode(b"\xff"))
    with pytest.raises(StorageError, match="its path is no text"):
        state.lock()
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["a", "x" * 120])
def test_the_control_socket_fits_whatever_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Also where the temporary folder's does not; and a link to the directory finds it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("t" * 120)))
    (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to(name)
    socket, other = (StateDirectory(tmp_path / each).control_socket for each in (name, "y" * 120))
    assert len(str(socket)) < 108
    assert socket != other
    assert StateDirectory(tmp_path / "link").control_socket == socket


def test_atomic_write_replaces_or_leaves_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "manifest.bin"
    write_atomically(path, b"one")
    write_atomically(path, b"two")
    monkeypatch.setattr(os, "fsync", full)
    write_atomically(path, b"two")  # what is there already needs no room
    with pytest.raises(StorageError, match=r"manifest\.bin: the disk is full"):
        write_atomically(path, b"three")
    assert path.read_bytes() == b"two"
    assert list(tmp_path.iterdir()) == [path]


def test_who_lives_there(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path / "state")
    assert own_identity(state.root) is None
    assert not state.root.exists()
    made = Identity.load_or_create(state.identity)
    found = own_identity(state.root)
    assert found is not None
    assert found.peer_id == made.peer_id
    state.identity.write_bytes(b"no key")
    with pytest.raises(StorageError, match="is not an Ed25519 identity"):
        own_identity(state.root)
