"""The `atom` command and its `--help`. Heavy imports wait for the command that needs them."""

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

_EPILOGUE = "\n".join(
    (
        "Exit codes:",
        *(f"{code:3d}  {code.meaning}" for code in ExitCode),
        "",
        "Files:",
        "  ~/.local/share/atom/RUN  what a peer keeps of a run ($XDG_DATA_HOME)",
        "  ~/.cache/atom            what only saves time ($XDG_CACHE_HOME)",
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
    """Options of `atom` itself."""


def flowing(docstring: str) -> str:
    """Paragraphs as wide as the terminal, examples line by line."""
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
        assert command.callback.__doc__, "it explains itself"
        command.rich_help_panel = panel
        command.help = flowing(command.callback.__doc__)
    app.add_typer(group.commands)


def main(arguments: Sequence[str] | None = None, raise_interrupts: bool = False) -> int:
    """The console script. Returns the exit code; says errors on stderr. `raise_interrupts`: Ctrl-C
    raises KeyboardInterrupt from where that is caught."""
    # None: somebody closed it before we began (`atom plan … >&-`).
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - as long as the process
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a poor terminal shall not end a command
    given = list(sys.argv[1:] if arguments is None else arguments)

    def command() -> object:
        if raise_interrupts:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        refuse_empty(given)
        return app(given or ["--help"], prog_name="atom", standalone_mode=False)

    return run_guarded(command)


__all__ = ["ExitCode", "app", "main"]
