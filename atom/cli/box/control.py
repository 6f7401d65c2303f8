"""Requests to the daemon on this machine, such as `atom info`, `atom pause` and `atom reload`."""

import json
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import Any

import typer
from rich.text import Text

from atom.base.errors import ControlError, StorageError, UserError
from atom.cli.shell.terminal import stderr_console, stdout_console
from atom.config.places import base_folder
from atom.daemon.state_directory import StateDirectory

_START_HINT = (
    "start one with `atom join` or `atom start`, or name its state directory with --state DIR"
)


def show_info(state: Path | None, as_json: bool) -> None:
    """Print the figures of a daemon, as lines or as JSON.

    Raises:
        ControlError: No daemon answers, or several run and none is named.
    """
    info = ask_daemon(state, "info")
    if as_json:
        typer.echo(json.dumps(info, indent=2))
        return
    from atom.cli.box.info_page import rows  # slow: imports the swarm

    for label, text in rows(info):
        stdout_console().print(Text.assemble((f"{label:15} ", "bold"), text), soft_wrap=True)


def reload_settings(state: Path | None) -> None:
    """Let a daemon read its peer file again, and print the keys that have changed.

    Raises:
        UserError: The daemon refused the file, and has changed nothing.
    """
    with stderr_console().status("the daemon is reading its peer file"):
        changed = ask_daemon(state, "reload")
    for each in changed:
        typer.echo(each["key"] if each["live"] else f"{each['key']}  # takes effect at a restart")
    if not changed:
        typer.echo("no key has changed in the peer file", err=True)


def ask_daemon(state: Path | None, command: str, *arguments: Any) -> Any:
    """Send one of `atom.daemon.control.COMMANDS` to a daemon on this machine.

    Args:
        state: The daemon's state directory; None: the only daemon that runs.
        command: Name of the command.
        arguments: Arguments of the command.

    Returns:
        The daemon's answer, parsed from JSON.

    Raises:
        ControlError: No daemon answers, or several run and none is named.
        UserError: The daemon refused the command.
    """
    from atom.daemon.control import ask  # imports gRPC, which takes a quarter of a second

    return ask(find_daemon(state), command, *arguments)


def find_daemon(state: Path | None) -> Path:
    """Return the control socket of the daemon in `state`, else of the only one that runs.

    Args:
        state: The daemon's state directory, if the user named it.

    Raises:
        ControlError: No daemon runs, several run, or another user may have made the socket.
    """
    if state is not None and not state.is_dir():
        raise ControlError(f"there is no state directory {state}", _START_HINT)
    home = base_folder("data") if state is None else state
    folders = state_directories(home) if state is None else [StateDirectory(state)]
    running = [folder.root for folder in folders if folder.in_use]
    if not running:
        raise ControlError(f"no daemon of this user is running in {home}", _START_HINT)
    root = _the_one(running, "daemons are running on this machine", ControlError)
    path = StateDirectory(root).control_socket
    # Root may command the daemon of any user; all others only their own.
    owners = {os.geteuid(), root.stat().st_uid} if os.geteuid() == 0 else {os.geteuid()}
    if path.exists() and not _is_safe(path, owners):
        hint = "if the daemon is yours, restart it; only you may write to its state directory"
        raise ControlError(f"{path} may belong to another user", hint)
    return path


def _is_safe(path: Path, owners: set[int]) -> bool:
    """Return True if only `owners` can have put this socket there.

    Another user's socket would receive our commands, and could answer with any bytes.
    """
    folder = path.parent.stat()
    writable = folder.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return path.lstat().st_uid in owners and folder.st_uid in owners and not writable


def find_state(state: Path | None) -> Path:
    """Return `state`, else the only state directory of a run; of several, the one in use.

    Args:
        state: State directory, if the user named it.

    Raises:
        StorageError: No run is kept here, or several are and none is named.
    """
    if state is not None:
        return state
    home = base_folder("data")
    runs = [folder.root for folder in state_directories(home) if folder.manifest.exists()]
    if not runs:
        raise StorageError(f"there is no run under {home}", "name its directory with --state DIR")
    running = [path for path in runs if StateDirectory(path).in_use]
    meant = running if len(running) == 1 else runs
    return _the_one(meant, f"runs are stored under {home}", StorageError)


def _the_one(folders: Sequence[Path], several: str, error: type[UserError]) -> Path:
    """Return the only folder.

    Raises:
        error: More than one folder is given; the hint has an option to copy for each.
    """
    if len(folders) > 1:
        names = ", ".join(folder.name for folder in folders)
        lines = ["choose one of:", *(f"--state {quote(str(folder))}" for folder in folders)]
        raise error(f"{len(folders)} {several}: {names}", "\n".join(lines))
    return folders[0]


def state_directories(home: Path) -> list[StateDirectory]:
    """Return the state directories of runs in a folder, by name."""
    if not home.is_dir():
        return []
    runs = (path for path in sorted(home.iterdir()) if path.is_dir() and path.name[0] not in "._")
    return list(map(StateDirectory, runs))  # `atom bootstrap` uses a folder that begins with "_"
