"""`atom export`: a peer's model as a folder for other programs."""

from pathlib import Path

import typer

from atom.base.files import expand_home
from atom.base.units import format_bytes
from atom.cli.box.control import find_state
from atom.cli.shell.console import TerminalConsole
from atom.cli.shell.options import parse_trust
from atom.cli.shell.signals import end_at_once_on_signals, raise_on_signals
from atom.cli.shell.terminal import stderr_console
from atom.config.section import PRECISION_NAMES


def export_model(
    folder: Path,
    state: Path | None,
    precision: str | None,
    trust: str | None,
    adapter: bool,
    wanted: str,
) -> None:
    """Write a model to a new folder, and print its files.

    Args:
        folder: Folder to create.
        state: State directory of the peer; None: the only one on this machine.
        precision: Precision of the weights; None: the run's.
        trust: KEY:SHA256 of code that may be executed; None: no code.
        adapter: If True, write only the adapter that the run trained.
        wanted: Number of a kept round, or "best", or "latest".

    Raises:
        typer.BadParameter: An argument is not usable.
        StorageError: The folder exists, or cannot be written, or no such round is kept.
        UserError: Another kind that `atom.daemon.model.exporting.export_run` raises.
    """
    if precision not in (None, *PRECISION_NAMES):
        known = ", ".join(PRECISION_NAMES)
        raise typer.BadParameter(f"{precision!r} is not one of {known}", param_hint="--precision")
    if wanted not in ("best", "latest") and not (wanted.isdecimal() and len(wanted) < 12):
        raise typer.BadParameter(f"{wanted!r} is no round, best or latest", param_hint="--round")
    parse_trust(trust)
    kept = find_state(state)
    end_at_once_on_signals("interrupted: nothing was written")
    console = TerminalConsole()
    try:
        with stderr_console().status("reading the run"):
            from atom.daemon.model.exporting import export_run

        export_run(folder, kept, console, precision, trust, raise_on_signals, adapter, wanted)
    finally:
        console.close()
    for path in sorted(expand_home(folder).iterdir()):
        typer.echo(f"{path}  {format_bytes(path.stat().st_size)}")
