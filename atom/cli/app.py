"""The `atom` command and its `--help`. Commands import heavy modules only when they run."""

import inspect
import io
import os
import signal
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from atom.base import __version__
from atom.cli import box_commands, look_commands, train_commands
from atom.cli.shell.failures import ExitCode, refuse_empty, run_guarded
from atom.cli.shell.terminal import Messages

_EPILOGUE = "\n".join(
    (
        "Exit codes:",
        *(f"{code:3d}  {code.meaning}" for code in ExitCode),
        "",
        "Files:",
        "  ~/.local/share/atom/RUN  identity, snapshots and events of a run ($XDG_DATA_HOME)",
        "  ~/.cache/atom            caches, which may be deleted ($XDG_CACHE_HOME)",
        "",
        "Environment: NO_COLOR, COLUMNS, TZ (for schedule.hours).",
        "",
        "To begin: atom demo. To join a run: atom doctor ADDRESS, then atom join ADDRESS.",
    )
)

app = typer.Typer(
    name="atom",
    help="Train large models on volunteers' machines: every peer has the whole model.",
    epilog=_EPILOGUE,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit()


@app.callback(help=app.info.help)
def common(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Take the options of `atom` itself."""


def flowing(docstring: str) -> str:
    """Return help text whose paragraphs fill the terminal; examples keep their lines."""
    paragraphs = inspect.cleandoc(docstring).split("\n\n")
    return "\n\n".join(
        each if "\natom " in each else each.replace("\n", " ") for each in paragraphs
    )


for panel, group in (
    ("Train", train_commands),
    ("Look at a swarm", look_commands),
    ("The daemon on this machine", box_commands),
):
    for command in group.commands.registered_commands:
        assert command.callback is not None
        assert command.callback.__doc__, "every command has a help text"
        command.rich_help_panel = panel
        command.help = flowing(command.callback.__doc__)
    app.add_typer(group.commands)


def main(arguments: Sequence[str] | None = None, raise_interrupts: bool = False) -> int:
    """Run the console script: write errors to stderr, and return the exit code.

    Args:
        arguments: Command line without the program's name; None: `sys.argv`.
        raise_interrupts: If True, install the handler by which Ctrl-C raises KeyboardInterrupt.
    """
    # A stream is None if the shell closed it (`atom plan … >&-`).
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - open until the process ends
    if (own := sys.__stderr__) is not None and sys.stderr is own:
        messages = io.BufferedWriter(Messages(own.fileno(), "w", closefd=False))
        sys.stderr = io.TextIOWrapper(messages, own.encoding, line_buffering=True)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # not every terminal has all characters
    given = list(sys.argv[1:] if arguments is None else arguments)

    def command() -> object:
        if raise_interrupts:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        refuse_empty(given)
        return app(given or ["--help"], prog_name="atom", standalone_mode=False)

    return run_guarded(command)


__all__ = ["ExitCode", "app", "main"]
