"""The `atom` command and its `--help`. Heavy imports wait for the command that needs them."""

import inspect
import io
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from atom import __version__
from atom.cli import box_commands, look_commands, train_commands
from atom.cli.shell import look_alikes
from atom.cli.shell.arguments import gather_addresses, refuse_empty, with_home
from atom.cli.shell.completion import named_shell
from atom.cli.shell.exit_codes import MEANINGS, ExitCode
from atom.cli.shell.failures import run_guarded
from atom.cli.shell.help_text import shown
from atom.cli.shell.told_command import ToldCommand, ToldGroup

_EPILOGUE = "\n".join(
    (
        "Exit codes:",
        *(f"{code:3d}  {text}" for code, text in MEANINGS.items()),
        "",
        "Files:",
        "  ~/.local/share/atom/RUN  what a peer keeps of a run ($XDG_DATA_HOME)",
        "  ~/.local/state/atom      reports of unexpected faults ($XDG_STATE_HOME)",
        "  ~/.cache/atom            what only saves time ($XDG_CACHE_HOME)",
        "",
        "Environment: NO_COLOR, COLUMNS, ATOM_DEBUG=1 (as --debug), TZ (for schedule.hours).",
        "",
        "To begin: atom demo. To join a run: atom doctor ADDRESS, then atom join ADDRESS.",
    )
)

app = typer.Typer(
    name="atom",
    cls=ToldGroup,
    help="Train large models on volunteers' machines: every peer has the whole model.",
    epilog=_EPILOGUE,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class _Debug:
    on = False


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit()


@app.callback()
def common(
    debug: Annotated[
        bool, typer.Option("--debug", envvar="ATOM_DEBUG", help="Show tracebacks of errors.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    _Debug.on = debug


for panel, group in (
    ("Train", train_commands),
    ("Look at a swarm", look_commands),
    ("The daemon on this machine", box_commands),
):
    for command in group.commands.registered_commands:
        assert command.callback is not None
        assert command.callback.__doc__, "it explains itself"
        name = command.name or command.callback.__name__
        command.cls = ToldCommand
        command.rich_help_panel = panel
        command.help = shown(name, inspect.cleandoc(command.callback.__doc__))
    app.add_typer(group.commands)


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script. Returns the exit code; says errors on stderr."""
    # None: somebody closed it before we began (`atom plan … >&-`).
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - as long as the process
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=look_alikes.NAME)  # a poor terminal shall not end a command
    shell = named_shell(sys.argv[1:] if arguments is None else arguments)
    if shell is not None:
        os.environ["_ATOM_COMPLETE"] = f"source_{shell}"
    given = with_home(gather_addresses(sys.argv[1:] if arguments is None else arguments))

    def command() -> object:
        refuse_empty(given)
        return app(given or ["--help"], prog_name="atom", standalone_mode=False)

    return run_guarded(command, is_debug=lambda: _Debug.on)


__all__ = ["ExitCode", "app", "main"]
