"""Hints about state directories, sockets and folders."""

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from atom.base import build_kernels
from atom.base.build_kernels import compile_kernels, load
from atom.cli.box.control import find_daemon, find_state
from atom.config.places import base_folder
from atom.daemon.control import ControlServer
from atom.daemon.model.exporting import folder_aside, require_new
from atom.daemon.peer.box import own_peer_id
from atom.daemon.state_directory import StateDirectory, write_atomically
from atom.swarm.addresses import EXAMPLE_JOIN
from atom.swarm.identity import Identity
from tests.hints.scene import scene, written


def locked(folder: Path) -> None:
    state = StateDirectory(folder)
    state.lock()
    state.unlock()


def beside_another(folder: Path, name: str, other_leaves: bool = False) -> None:
    other = StateDirectory(folder / "one")
    other.lock()
    try:
        if other_leaves:
            other.unlock()
        locked(folder / name)
    finally:
        other.unlock()


def moved(folder: Path, back: bool) -> None:
    state = StateDirectory(folder / "s")
    state.lock()
    try:
        state.root.rename(folder / "t")
        if back:
            (folder / "t").rename(state.root)
        state.require_there()
    finally:
        state.unlock()
        shutil.rmtree(folder / ("s" if back else "t"))


@contextmanager
def failing(where: Any, name: str, number: int, while_in: str = "") -> Iterator[None]:
    """Lets a system call fail for all paths that contain `while_in`."""
    usual = getattr(where, name)

    def fails(*args: Any, **options: Any) -> Any:
        if while_in in str(args[0]):
            raise OSError(number, os.strerror(number), str(args[0]))
        return usual(*args, **options)

    with patch.object(where, name, fails):
        yield


def on_old_disk(folder: Path, name: str) -> None:
    """A disk whose file system has no locks is mounted at "old"."""
    number = errno.ENOLCK if name == "old" else 0

    def flock(file: Any, operation: int) -> None:
        if number:
            raise OSError(number, os.strerror(number))

    with patch.object(fcntl, "flock", flock):
        locked(folder / name)


def write_to_disk(folder: Path, is_full: bool) -> None:
    with failing(os, "fsync", errno.ENOSPC, "" if is_full else "no descriptor"):
        write_atomically(folder / "x", os.urandom(8))


def listens(folder: Path, path: Path) -> None:
    with patch.object(StateDirectory, "place_control_socket", lambda state: path):
        server = ControlServer(SimpleNamespace(), StateDirectory(folder))
        server.start()
        server.close()


def daemons(folder: Path, running: int, state: str | None = None) -> None:
    """The data folder has this many running daemons."""
    states = [StateDirectory(folder / f"atom/run{n}") for n in range(running)]
    for each in states:
        each.lock()
    try:
        with patch.dict(os.environ, {"XDG_DATA_HOME": str(folder)}):
            find_daemon(None if state is None else folder / "atom" / state)
    finally:
        for each in states:
            each.unlock()


def open_to_others(folder: Path, restarted: bool) -> None:
    state = StateDirectory(folder / "s")
    state.lock()
    try:
        state.place_control_socket().touch()
        state.root.chmod(0o777)
        if restarted:  # a start makes the directory private
            state.unlock()
            state.lock()
            state.place_control_socket().touch()
        find_daemon(state.root)
    finally:
        state.root.chmod(0o700)
        state.unlock()


def kept(folder: Path, state: Path | None) -> None:
    (folder / "atom").mkdir(exist_ok=True)
    with patch.dict(os.environ, {"XDG_DATA_HOME": str(folder)}):
        find_state(state)


def homeless(**variables: str) -> None:
    with (
        patch.dict(os.environ, variables, clear=True),
        patch(
            "os.path.expanduser", lambda path: str(path).replace("~", variables.get("HOME", "~"))
        ),
    ):
        base_folder("data")
        base_folder("cache")


def damaged_key(folder: Path, deleted: bool) -> None:
    (folder / "identity.key").write_bytes(b"x")
    if deleted:
        (folder / "identity.key").unlink()
    Identity.load_or_create(folder / "identity.key")


def aside(folder: Path) -> None:
    with folder_aside(folder / "model"):
        pass
    (folder / "model").rmdir()


def over_a_leftover(folder: Path, removed: bool) -> None:
    left = folder / ".model.partial"
    left.mkdir(exist_ok=True)
    if removed:
        left.rmdir()
    aside(folder)


def kernels(folder: Path, compiled: bool) -> None:
    (source,) = [each for each in build_kernels.sources() if each.stem == "chunk_kernels"]
    if compiled:
        compile_kernels(source, folder / "libchunk.so")
    load(source, folder / "libchunk.so")


OF_STATE = {
    "choose a directory on a disk whose file system has locks: --state DIR": scene(
        lambda folder: on_old_disk(folder, "old"), lambda folder: on_old_disk(folder, "new")
    ),
    "stop it with `atom leave`, or choose another directory with --state DIR": scene(
        lambda folder: beside_another(folder, "one"),
        lambda folder: beside_another(folder, "one", other_leaves=True),
        lambda folder: beside_another(folder, "two"),
    ),
    "choose another one with --state DIR": scene(
        written("file", "", locked), lambda folder: locked(folder / "other")
    ),
    "move it back, then start again; otherwise the next start creates a new peer with an empty "
    "directory": scene(
        lambda folder: moved(folder, back=False), lambda folder: moved(folder, back=True)
    ),
    "free some disk space": scene(
        lambda folder: write_to_disk(folder, is_full=True),
        lambda folder: write_to_disk(folder, is_full=False),
    ),
    "no place holds sockets: choose --state DIR, or set XDG_RUNTIME_DIR to a folder of mode 0700, "
    "on another disk": scene(
        lambda folder: listens(folder, Path("/proc/control.sock")),
        lambda folder: listens(folder, folder / "s"),
    ),
    "start one with `atom join` or `atom start`, or name its state directory with --state DIR":
        scene(
            lambda folder: daemons(folder, 0),
            lambda folder: daemons(folder, 1), lambda folder: daemons(folder, 1, "run0"),
        ),
    "choose one of:\n--state {…}\n--state {…}": scene(
        lambda folder: daemons(folder, 2), lambda folder: daemons(folder, 2, "run1")
    ),
    "if the daemon is yours, restart it; only you may write to its state directory": scene(
        lambda folder: open_to_others(folder, restarted=False),
        lambda folder: open_to_others(folder, restarted=True),
    ),
    "name its directory with --state DIR": scene(
        lambda folder: kept(folder, None), lambda folder: kept(folder, folder)
    ),
    "set HOME, or both XDG_DATA_HOME and XDG_CACHE_HOME": scene(
        lambda folder: homeless(), lambda folder: homeless(HOME="/home/ada"),
        lambda folder: homeless(XDG_DATA_HOME="/d", XDG_CACHE_HOME="/c"),
    ),
    "restore it from a backup, or delete it to start as a new peer": scene(
        lambda folder: damaged_key(folder, deleted=False),
        lambda folder: damaged_key(folder, deleted=True),
    ),
    "name the run or its address: `atom id RUN`; or the directory: --state DIR": scene(
        lambda folder: own_peer_id(None, None, None),
        lambda folder: own_peer_id("tiny", None, folder),
        lambda folder: own_peer_id(EXAMPLE_JOIN, None, folder),
        lambda folder: own_peer_id(None, None, folder),
    ),
    "name a new folder": scene(
        lambda folder: require_new(folder), lambda folder: require_new(folder / "new")
    ),
    "choose another folder": scene(
        written("file", "", lambda path: require_new(path / "model")),
        lambda folder: require_new(folder / "other/model"),
    ),
    "remove it if no export is running": scene(
        lambda folder: over_a_leftover(folder, removed=False),
        lambda folder: over_a_leftover(folder, removed=True),
    ),
    "run `{…}` (it needs a C compiler)": scene(
        lambda folder: kernels(folder, compiled=False),
        lambda folder: kernels(folder, compiled=True),
    ),
}  # fmt: skip
