"""Commands for this machine and its daemon. They import heavy modules only when they run."""

from pathlib import Path
from typing import Annotated

import typer

from atom.cli.shell.options import (
    DaemonStateOption,
    JsonOption,
    KeptOption,
    PeerOption,
    StateOption,
    TrustOption,
    parse_deadline,
)
from atom.cli.shell.signals import end_at_once_on_signals

commands = typer.Typer()


@commands.command()
def pause(state: DaemonStateOption = None) -> None:
    """Stop computing, and stay in the swarm; what was counted is kept.

    The GPU's memory is free within two seconds. The peer goes on voting. `atom resume` ends it.

    [bold]Example[/]
    atom pause
    """
    from atom.cli.box.control import ask_daemon

    typer.echo(ask_daemon(state, "pause"))


@commands.command()
def resume(state: DaemonStateOption = None) -> None:
    """Compute again, after `atom pause`.

    The peer file's [schedule] still holds: `atom info` says why a daemon stands still.

    [bold]Example[/]
    atom resume
    """
    from atom.cli.box.control import ask_daemon

    typer.echo(ask_daemon(state, "resume"))


@commands.command()
def leave(
    state: DaemonStateOption = None,
    deadline: Annotated[
        str | None, typer.Option(metavar="TIME", help='Give up waiting after "30 s", "2 min", …')
    ] = None,
) -> None:
    """Finish cleanly: no sequence already counted is lost.

    The daemon waits until a round has them, at most 60 s if there is no --deadline. If it has to go
    earlier, it ends with exit code 11.

    [bold]Examples[/]
    atom leave
    atom leave --deadline "5 min"
    """
    from atom.cli.box.control import ask_daemon

    deadline_s = parse_deadline(deadline)
    typer.echo(ask_daemon(state, "leave", deadline_s))


@commands.command()
def reload(state: DaemonStateOption = None) -> None:
    """Read the peer file again, while the daemon runs, and say which keys have changed.

    All of it is checked first: if something is refused, nothing is changed. Keys that change at a
    restart only are marked so. Nothing counted is lost. A daemon that was started without --peer
    reads peer.toml in its state directory.

    [bold]Example[/]
    atom reload
    """
    from atom.cli.box.control import reload_settings

    reload_settings(state)


@commands.command()
def info(state: DaemonStateOption = None, as_json: JsonOption = False) -> None:
    """Show what the daemon is doing, and with what; if several run, --state says which.

    [bold]Examples[/]
    atom info
    atom info --json | jq .tokens_per_s
    """
    from atom.cli.box.control import show_info

    show_info(state, as_json)


@commands.command()
def export(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to make for the model.")],
    state: KeptOption = None,
    precision: Annotated[
        str | None,
        typer.Option(
            metavar="P",
            help="float32, bfloat16 or float16; else the run's.",
        ),
    ] = None,
    trust: TrustOption = None,
    adapter: Annotated[
        bool, typer.Option("--adapter", help="Only what the run trained beside it, for peft.")
    ] = False,
    wanted: Annotated[
        str, typer.Option("--round", metavar="N", help="A round that is kept; or best, or latest.")
    ] = "latest",
) -> None:
    """Write the model as a folder that transformers loads, from a round that is kept here.

    The daemon may be running. The folder appears when it is whole.

    [bold]Examples[/]
    atom export my-model
    atom export my-model --round best --precision bfloat16
    """
    from atom.cli.box.export import export_model

    export_model(folder, state, precision, trust, adapter, wanted)


@commands.command()
def doctor(
    address: Annotated[
        str | None,
        typer.Argument(metavar="ADDRESS", help="Address of a run to look at, too."),
    ] = None,
    peer: PeerOption = None,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> int:
    """Examine this box: what it has, what keeps it from training, and how to mend that.

    With ADDRESS also that swarm, without joining it, and whether its run fits here.

    [bold]Examples[/]
    atom doctor
    atom doctor ADDRESS --peer my-box.toml
    """
    end_at_once_on_signals("interrupted")
    from atom.cli.box.doctor import show_diagnosis

    return show_diagnosis(address, peer, state, as_json)
