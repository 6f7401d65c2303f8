"""`atom trace`: the next pass of the daemon on this machine, as a file to look at."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import typer

from atom.base.errors import ControlError
from atom.cli.box.control import control_client
from atom.cli.shell.output_file import refuse_folders, write_whole
from atom.cli.shell.terminal import stderr_console

DEFAULT_DEADLINE_S = 300.0
_ASK_AGAIN_S = 0.2


def save_trace(file: Path, state: Path | None, deadline_s: float | None) -> None:
    """Waits for the next pass, writes its Chrome trace and prints one line of figures.

    Raises: ControlError, also when no pass ends before the deadline; StorageError.
    """
    refuse_folders(file, "trace.json")
    with stderr_console().status("asking the daemon") as status:
        client = control_client(state)
        trace, summary = _next_pass(client, deadline_s or DEFAULT_DEADLINE_S, status.update)
    write_whole(file, lambda place: place.write_text(trace, encoding="utf-8"))
    typer.echo(summary)
    typer.echo(f"{file}: open it in https://ui.perfetto.dev or chrome://tracing", err=True)


def waiting_words(info: Mapping[str, Any]) -> str:
    """What the wait is for, by what `atom info` shows."""
    if info.get("paused"):
        return f"no pass begins: the daemon is paused {info['paused']}"
    last = info.get("last_pass")
    if not last:
        return "waiting until the next pass has begun and ended"
    return f"recording the next pass; the last took {last['pass_seconds']:.1f} s"


def _next_pass(client: Any, deadline_s: float, told: Callable[[str], None]) -> tuple[str, str]:
    ticket, trace, summary = client.trace()
    asked_at = time.monotonic()
    while not trace:
        waited_s = time.monotonic() - asked_at
        told(waiting_words(client.info()))
        if waited_s >= deadline_s:
            raise ControlError(
                f"no pass began and ended within {deadline_s:.0f} s",
                "is the daemon paused, or waiting for others? see `atom info`; or wait longer: "
                '--deadline "10 min"',
            )
        time.sleep(_ASK_AGAIN_S)  # asked, not waited on: control threads are few
        ticket, trace, summary = client.trace(ticket)
    return trace, summary
