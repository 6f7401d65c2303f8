"""Which daemon on this machine is meant."""

import os
import socket
from collections.abc import Iterable
from pathlib import Path
from shlex import quote

from atom.base.errors import ControlError, StorageError
from atom.config.places import state_home
from atom.daemon.state_directory import StateDirectory

_CONNECT_S = 1.0
_START_HINT = (
    "start one with `atom join` or `atom start`, or name its state directory with --state DIR"
)
_DEAF_HINT = (
    "it begins or ends just now, and says on its terminal at what it is; SIGTERM ends it "
    "(an entrance to the DHT takes no commands at all)"
)


def find_daemon(state: Path | None, home: Path | None = None) -> Path:
    """The control socket of the daemon in `state`, else of the only one under the usual place.

    Raises: ControlError if there is none, or more than one.
    """
    running = find_daemons(state, home)
    if len(running) > 1:
        names = ", ".join(folder.root.name for folder in running)
        raise ControlError(
            f"{len(running)} daemons run on this machine: {names}",
            _which_one(folder.root for folder in running),
        )
    return running[0].control_socket


def find_daemons(state: Path | None, home: Path | None = None) -> list[StateDirectory]:
    """Where the daemon in `state` runs, else all of those under the usual place. Raises:
    ControlError if there is none."""
    if state is not None:
        return [_named(StateDirectory(state))]
    home = state_home() if home is None else home
    folders = _state_directories(home)
    running = [folder for folder in folders if _listens(folder)]
    if not running:
        for folder in folders:
            _refuse_deaf(folder)
        raise ControlError(f"no daemon of yours runs under {home}", _START_HINT)
    return running


def find_state(state: Path | None, home: Path | None = None) -> Path:
    """`state`, else the only state directory of a run under the usual place.

    Raises: StorageError if there is none, or more than one.
    """
    if state is not None:
        return state
    home = state_home() if home is None else home
    runs = [folder.root for folder in _state_directories(home) if folder.manifest.exists()]
    if not runs:
        raise StorageError(f"no run is kept under {home}", "name its directory with --state DIR")
    if len(runs) > 1:
        names = ", ".join(path.name for path in runs)
        raise StorageError(
            f"{len(runs)} runs are kept under {home}: {names}",
            _which_one(runs),
        )
    return runs[0]


def _which_one(folders: Iterable[Path]) -> str:
    """A hint: what to add to the command, a line for each of them, ready to be copied."""
    return "\n".join(["say which one:", *(f"--state {quote(str(folder))}" for folder in folders)])


def _named(folder: StateDirectory) -> StateDirectory:
    if not folder.root.is_dir():
        raise ControlError(f"there is no state directory {folder.root}", _START_HINT)
    if not _listens(folder):
        _refuse_deaf(folder)
        raise ControlError(f"no daemon runs in {folder.root}", _START_HINT)
    return folder


def _refuse_deaf(folder: StateDirectory) -> None:
    """Raises: ControlError for a daemon that is there, but does not listen."""
    if folder.in_use:
        raise ControlError(f"the daemon in {folder.root} takes no commands now", _DEAF_HINT)


def _state_directories(home: Path) -> list[StateDirectory]:
    if not home.is_dir():
        return []
    return [StateDirectory(path) for path in sorted(home.iterdir()) if path.is_dir()]


def _listens(folder: StateDirectory) -> bool:
    """A socket file may be left behind by a daemon that was killed, or in /tmp be another
    user's, put there to hear our commands."""
    path = folder.control_socket
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_CONNECT_S)
        try:
            if _owner(path) not in (os.getuid(), _owner(folder.root)):
                return False
            probe.connect(str(path))
        except OSError:
            return False
        return True


def _owner(path: Path) -> int:
    return path.lstat().st_uid
