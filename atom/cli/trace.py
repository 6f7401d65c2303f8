"""`atom trace`: the next pass of the daemon on this machine, as a file to look at."""

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer

from atom.base.errors import ControlError, StorageError
from atom.cli.control import control_client

DEFAULT_DEADLINE_S = 300.0
_ASK_AGAIN_S = 0.2


def save_trace(file: Path, state: Path | None, deadline_s: float | None) -> None:
    """Waits for the next pass, writes its Chrome trace and prints one line of figures.

    Raises: ControlError, also when no pass ends before the deadline; StorageError.
    """
    _refuse_folders(file)
    trace, summary = _next_pass(control_client(state), deadline_s or DEFAULT_DEADLINE_S)
    _write(file, trace)
    typer.echo(summary)
    typer.echo(f"{file}: open it in https://ui.perfetto.dev or chrome://tracing", err=True)


def _next_pass(client: Any, deadline_s: float) -> tuple[str, str]:
    ticket, trace, summary = client.trace()
    give_up_at = time.monotonic() + deadline_s
    while not trace:
        if time.monotonic() >= give_up_at:
            raise ControlError(
                f"no pass began and ended within {deadline_s:.0f} s",
                "is the daemon paused, or waiting for others? see `atom info`; or wait longer: "
                '--deadline "10 min"',
            )
        time.sleep(_ASK_AGAIN_S)  # asked, not waited on: control threads are few
        ticket, trace, summary = client.trace(ticket)
    return trace, summary


def _refuse_folders(file: Path) -> None:
    """Before anybody waits. Raises: StorageError."""
    if file.is_dir():
        raise StorageError(f"{file} is a folder", "name a file, such as trace.json")
    if not file.absolute().parent.is_dir():
        raise StorageError(f"there is no folder {file.parent}", "choose another place")


def _write(file: Path, text: str) -> None:
    """Aside, then in place. Raises: StorageError."""
    aside = file.with_name(f".{file.name}.partial")
    try:
        aside.write_text(text, encoding="utf-8")
        aside.replace(file)
    except OSError as problem:
        with suppress(OSError):
            aside.unlink()
        raise StorageError(
            f"cannot write {file}: {problem.strerror}", "choose another place"
        ) from problem
