"""`atom trace`: the next pass of the daemon on this machine, as a file to look at."""

import time
from pathlib import Path
from typing import Any

import typer

from atom.base.errors import ControlError
from atom.cli.control import control_client
from atom.cli.output_file import refuse_folders, write_whole

DEFAULT_DEADLINE_S = 300.0
_ASK_AGAIN_S = 0.2


def save_trace(file: Path, state: Path | None, deadline_s: float | None) -> None:
    """Waits for the next pass, writes its Chrome trace and prints one line of figures.

    Raises: ControlError, also when no pass ends before the deadline; StorageError.
    """
    refuse_folders(file, "trace.json")
    trace, summary = _next_pass(control_client(state), deadline_s or DEFAULT_DEADLINE_S)
    write_whole(file, lambda place: place.write_text(trace, encoding="utf-8"))
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
