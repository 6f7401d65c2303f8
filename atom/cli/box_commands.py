"""Commands for this machine and its daemon. They import heavy modules only when they run."""

from contextlib import closing
from pathlib import Path
from typing import Annotated, Literal

import typer

from atom.base.files import expand_home
from atom.base.units import format_bytes, parse_seconds
from atom.cli.shell.options import (
    DaemonStateOption,
    JsonOption,
    PeerOption,
    StateOption,
    TrustOption,
    above_zero,
    option,
)
from atom.cli.shell.signals import end_at_once_on_signals, raise_on_signals
from atom.cli.shell.terminal import stderr_console

commands = typer.Typer()


@commands.command()
def pause(state: DaemonStateOption = None) -> None:
    """Stop computing, but stay in the swarm; counted work is kept.

    The GPU's memory is free within two seconds. The peer keeps voting. `atom resume` ends the
    pause.

    [bold]Example[/]
    atom pause
    """
    from atom.cli.box.control import ask_daemon

    typer.echo(ask_daemon(state, "pause"))


@commands.command()
def resume(state: DaemonStateOption = None) -> None:
    """Compute again after `atom pause`.

    The peer file's [schedule] still applies: `atom info` shows why a daemon is paused.

    [bold]Example[/]
    atom resume
    """
    from atom.cli.box.control import ask_daemon

    typer.echo(ask_daemon(state, "resume"))


@commands.command()
def leave(
    state: DaemonStateOption = None,
    deadline: Annotated[
        float | None,
        option(
            "TIME", 'Give up waiting after "30 s", "2 min", …', parser=above_zero(parse_seconds)
        ),
    ] = None,
) -> None:
    """Leave the swarm cleanly, without losing counted work.

    The daemon waits until a round has committed that work, at most 60 s if there is no --deadline.
    If the time runs out first, it ends with exit code 11.

    [bold]Examples[/]
    atom leave
    atom leave --deadline "5 min"
    """
    from atom.cli.box.control import ask_daemon

    typer.echo(ask_daemon(state, "leave", deadline))


@commands.command()
def reload(state: DaemonStateOption = None) -> None:
    """Reload the peer file in the running daemon, and list the keys that changed.

    The whole file is checked first: if a key is refused, nothing changes. Keys that take effect
    only at a restart are marked. Counted work is kept. A daemon that was started without --peer
    reads peer.toml in its state directory.

    [bold]Example[/]
    atom reload
    """
    from atom.cli.box.control import reload_settings

    reload_settings(state)


@commands.command()
def info(state: DaemonStateOption = None, as_json: JsonOption = False) -> None:
    """Show the daemon's progress, devices and peers; if several run, --state selects one.

    [bold]Examples[/]
    atom info
    atom info --json | jq .tokens_per_s
    """
    from atom.cli.box.control import show_info

    show_info(state, as_json)


@commands.command()
def export(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="New folder for the model.")],
    state: DaemonStateOption = None,
    precision: Annotated[
        Literal["float32", "bfloat16", "float16"] | None,
        option("P", "float32, bfloat16 or float16; default: the run's."),
    ] = None,
    trust: TrustOption = None,
    adapter: Annotated[
        bool, typer.Option("--adapter", help="Write only the trained adapters, for peft.")
    ] = False,
    wanted: Annotated[
        str, typer.Option("--round", metavar="N", help="A stored round, best or latest.")
    ] = "latest",
) -> None:
    """Export the model of a stored round as a folder that transformers loads.

    The daemon may be running. The folder appears once it is complete.

    [bold]Examples[/]
    atom export my-model
    atom export my-model --round best --precision bfloat16
    """
    from atom.cli.box.control import find_state
    from atom.cli.shell.console import TerminalConsole

    if wanted not in ("best", "latest") and not (wanted.isdecimal() and len(wanted) < 12):
        raise typer.BadParameter(f"{wanted!r} is no round, best or latest", param_hint="--round")
    kept = find_state(state)
    end_at_once_on_signals("interrupted: nothing was written")
    with stderr_console().status("reading the run"):
        from atom.daemon.model.exporting import export_run
    with closing(TerminalConsole()) as console:
        export_run(folder, kept, console, precision, trust, raise_on_signals, adapter, wanted)
    for path in sorted(expand_home(folder).iterdir()):
        typer.echo(f"{path}  {format_bytes(path.stat().st_size)}")


@commands.command()
def doctor(
    address: Annotated[
        str | None,
        typer.Argument(metavar="ADDRESS", help="Address of a run to check as well."),
    ] = None,
    peer: PeerOption = None,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> int:
    """Check this machine: its hardware, the obstacles to training, and how to fix them.

    With ADDRESS, also check that swarm, without joining it, and whether its run fits here.

    [bold]Examples[/]
    atom doctor
    atom doctor ADDRESS --peer my-box.toml
    """
    end_at_once_on_signals("interrupted")
    from atom.cli.box.doctor import show_diagnosis

    return show_diagnosis(address, peer, state, as_json)
