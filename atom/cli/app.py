"""The `atom` command and its `--help`. Heavy imports wait for the command that needs them."""

import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from atom.cli.arguments import gather_addresses
from atom.cli.exit_codes import MEANINGS, ExitCode
from atom.cli.failures import run_guarded
from atom.cli.options import (
    AddressArgument,
    AssumeOption,
    DaemonStateOption,
    GpuMemoryOption,
    InitialPeersOption,
    JsonOption,
    ListenOption,
    MemberOption,
    NetworkOption,
    PeerOption,
    PeersOption,
    RunFileArgument,
    StateOption,
    TrustOption,
)
from atom.cli.signals import end_at_once_on_signals

_TRAIN, _LOOK, _CONTROL = "Train", "Look at a swarm", "The daemon on this machine"
_EPILOGUE = "\n".join(("Exit codes:", *(f"{code:3d}  {text}" for code, text in MEANINGS.items())))

app = typer.Typer(
    name="atom",
    help="Train large models on volunteers' machines: every peer has the whole model.",
    epilog=_EPILOGUE,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class _Debug:
    on = False


@app.callback()
def common(
    debug: Annotated[
        bool, typer.Option("--debug", envvar="ATOM_DEBUG", help="Show tracebacks of errors.")
    ] = False,
) -> None:
    _Debug.on = debug


@app.command(rich_help_panel=_TRAIN)
def start(
    run_file: Annotated[Path, typer.Argument(metavar="RUN.toml", help="What the swarm agrees on.")],
    peer: PeerOption = None,
    state: StateOption = None,
    listen: ListenOption = None,
    initial_peers: InitialPeersOption = None,
    weights: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FOLDER",
            help="Begin from these weights: a folder of transformers, or of `atom export`.",
        ),
    ] = None,
) -> int:
    """Found a run and train it here; the first line of stdout is the address to join by."""
    end_at_once_on_signals()
    from atom.cli.daemons import found_run
    from atom.daemon.box import StartOptions

    addresses = tuple(initial_peers or ())
    return found_run(StartOptions(run_file, peer, state, listen, addresses, weights))


@app.command(rich_help_panel=_TRAIN)
def join(
    address: AddressArgument,
    peer: PeerOption = None,
    state: StateOption = None,
    trust: TrustOption = None,
) -> int:
    """Join a run: fetch its state, then train with the others."""
    end_at_once_on_signals()
    from atom.cli.daemons import join_run

    return join_run(address, peer, state, trust)


@app.command("id", rich_help_panel=_TRAIN)
def id_(
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="The run's name, or its address.")
    ] = None,
    peer: PeerOption = None,
    state: StateOption = None,
) -> None:
    """This machine's peer id in a run, for the run's owner to list; made now if it is new."""
    from atom.daemon.invitation import own_peer_id

    typer.echo(own_peer_id(run, peer, state))


@app.command(rich_help_panel=_TRAIN)
def bootstrap(
    listen: ListenOption = None,
    peer: PeerOption = None,
    state: StateOption = None,
    initial_peers: InitialPeersOption = None,
) -> None:
    """Serve as an entrance to the DHT, without training."""
    from atom.cli.bootstrap import BootstrapOptions, serve_bootstrap

    serve_bootstrap(BootstrapOptions(listen, peer, state, tuple(initial_peers or ())))


@app.command(rich_help_panel=_LOOK)
def status(address: AddressArgument, as_json: JsonOption = False) -> None:
    """Show a swarm once, from the DHT alone, without joining."""
    from atom.cli.status import show_status

    show_status(address, as_json)


@app.command(rich_help_panel=_LOOK)
def watch(
    address: Annotated[
        str | None,
        typer.Argument(
            metavar="[ADDRESS]",
            help="What `atom start` printed after `join:`; else the run of this machine's daemon.",
        ),
    ] = None,
    state: MemberOption = None,
) -> None:
    """Show a swarm as it lives, without joining it, until Ctrl-C.

    In a pipe it prints a line for each round, and when peers come or go.
    """
    from atom.cli.watch import watch_swarm

    watch_swarm(address, state)


@app.command(rich_help_panel=_LOOK)
def dashboard(
    address: AddressArgument,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port of the page; 0: any free one.")
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            help="Address of this machine to listen on; else 127.0.0.1: nobody but this machine "
            "can open the page."
        ),
    ] = None,
    state: MemberOption = None,
) -> None:
    """Show a swarm in the browser, without joining it, until Ctrl-C.

    The first line of stdout is the page's URL. The page shows progress to the global batch, the
    loss of every round, tokens per second, peers with their state, rounds with what happened, and
    contributions. It loads nothing from elsewhere.
    """
    from atom.cli.dashboard import show_dashboard

    show_dashboard(address, port, host, state)


@app.command(rich_help_panel=_LOOK)
def contributions(
    address: AddressArgument, state: MemberOption = None, as_json: JsonOption = False
) -> None:
    """What each peer gave to the run: the sums of its certified rounds.

    Every round's record says how many mini-batches each peer gave, and is signed by a quorum of
    the peers that voted. It is fetched from a peer that is alive, and every signature is checked
    here. What was checked is kept in the cache: next time, only new rounds are fetched.
    """
    from atom.cli.contributions import show_contributions

    show_contributions(address, state, as_json)


@app.command(rich_help_panel=_LOOK)
def plot(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A .png, .svg or .pdf to write.")],
    address: Annotated[
        str | None,
        typer.Argument(metavar="[ADDRESS]", help="Of a run to draw from its chain."),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            "--state",
            metavar="DIR",
            help="Of which peer, if several are kept; with ADDRESS: ask as this peer.",
        ),
    ] = None,
) -> None:
    """Draw a run: loss, throughput, membership and reduce time, over its rounds.

    Without ADDRESS, from what the peer on this machine wrote down; the daemon may be running. With
    ADDRESS, from the swarm's certified chain: loss and membership of the whole run, no speeds.
    """
    from atom.cli.plot import plot_run

    plot_run(file, address, state)


@app.command(rich_help_panel=_CONTROL)
def pause(state: DaemonStateOption = None) -> None:
    """Stop computing, stay in the swarm; what was counted is kept."""
    from atom.cli.control import pause_daemon

    pause_daemon(state)


@app.command(rich_help_panel=_CONTROL)
def resume(state: DaemonStateOption = None) -> None:
    """Compute again."""
    from atom.cli.control import resume_daemon

    resume_daemon(state)


@app.command(rich_help_panel=_CONTROL)
def leave(
    state: DaemonStateOption = None,
    deadline: Annotated[
        str | None, typer.Option(metavar="TIME", help='Give up waiting after "30 s", "2 min", …')
    ] = None,
) -> None:
    """Finish cleanly: no mini-batch already counted is lost."""
    from atom.cli.arguments import parse_deadline
    from atom.cli.control import leave_daemon

    leave_daemon(state, parse_deadline(deadline))


@app.command("set", rich_help_panel=_CONTROL)
def set_(
    assignments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help='Such as network.upload="20 Mbit/s"; "KEY=" alone: its default again.',
        ),
    ] = None,
    state: DaemonStateOption = None,
) -> None:
    """Change what this box gives, while its daemon runs; without arguments: show it.

    KEY is a section and a key of the peer file. VALUE is written as there; texts need no quotes but
    the shell's. All values are checked first: either all are taken, or none.

    The daemon writes them into its peer file, whose comments stay (without --peer at its start:
    peer.toml in its state directory, which it reads when it starts again).

    At once: schedule.*, network.upload, network.download, device.power; from the next pass on:
    device.cpu_threads. The others hold after a restart, and are marked so. Nothing counted is lost
    by any of them.

    [bold]Examples[/]

    atom set schedule.hours='["mon-fri 18:00-08:00", "sat,sun 00:00-24:00"]'

    atom set schedule.idle_for="10 min" schedule.pause_for_gpu_programs=true

    atom set network.upload="20 Mbit/s" network.download=

    atom set device.power="200 W"
    """
    from atom.cli.control import set_settings

    set_settings(state, assignments or ())


@app.command(rich_help_panel=_CONTROL)
def info(state: DaemonStateOption = None, as_json: JsonOption = False) -> None:
    """What the daemon is doing, and with what."""
    from atom.cli.control import show_info

    show_info(state, as_json)


@app.command(rich_help_panel=_CONTROL)
def trace(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where the trace goes.")],
    state: DaemonStateOption = None,
    deadline: Annotated[
        str | None, typer.Option(metavar="TIME", help='Give up waiting after "30 s", "10 min", …')
    ] = None,
) -> None:
    """Save the daemon's next pass as a Chrome trace, to see what waits for what."""
    from atom.cli.arguments import parse_deadline
    from atom.cli.trace import save_trace

    save_trace(file, state, parse_deadline(deadline))


@app.command(rich_help_panel=_TRAIN)
def plan(
    run_file: RunFileArgument,
    peer: PeerOption = None,
    gpu_memory: GpuMemoryOption = None,
    assume: AssumeOption = None,
    network: NetworkOption = None,
    peers: PeersOption = 4,
    as_json: JsonOption = False,
) -> None:
    """Does a run fit this box, and how fast would it go: memory, sub-models, tokens per second."""
    from atom.cli.plan import parse_gpu_memory, parse_network, show_plan
    from atom.daemon.planning import PlanRequest

    memory, bits_per_s = parse_gpu_memory(gpu_memory), parse_network(network)
    show_plan(PlanRequest(run_file, peer, memory, assume, bits_per_s, peers), as_json)


@app.command("compile", rich_help_panel=_TRAIN)
def compile_(
    run_file: RunFileArgument,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the files go.")],
    peer: PeerOption = None,
    gpu_memory: GpuMemoryOption = None,
    assume: AssumeOption = None,
) -> None:
    """Write what the daemon would execute: submodels.py, plan.json, and schedule.svg to look at."""
    from atom.cli.compile import compile_run
    from atom.cli.plan import parse_gpu_memory
    from atom.daemon.planning import PlanRequest

    compile_run(PlanRequest(run_file, peer, parse_gpu_memory(gpu_memory), assume), out)


@app.command(rich_help_panel=_CONTROL)
def export(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the model goes: new.")],
    state: Annotated[
        Path | None,
        typer.Option("--state", metavar="DIR", help="Of which peer, if several are kept."),
    ] = None,
    snapshot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="One of the peer's snapshots; else the newest."),
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="float32, bfloat16 or float16; else the run's.")
    ] = None,
    trust: TrustOption = None,
) -> None:
    """Write the model as a folder that transformers loads, from the newest snapshot."""
    from atom.cli.export import ExportOptions, export_model

    export_model(ExportOptions(folder, state, snapshot, precision, trust))


@app.command(rich_help_panel=_TRAIN)
def demo(
    rounds: Annotated[
        int | None, typer.Option(min=8, help="Rounds to train; fewer than about 60 miss the goal.")
    ] = None,
    directory: Annotated[
        Path, typer.Option(metavar="DIR", help="Where everything is written.")
    ] = Path("atom-demo"),
) -> int:
    """Three peers on this machine train a GPT; one is killed, another joins. Under 4 minutes."""
    from atom.cli.demo.command import run_demo

    return run_demo(directory, rounds)


@app.command(rich_help_panel=_CONTROL)
def doctor(
    address: Annotated[
        str | None,
        typer.Argument(metavar="ADDRESS", help="Of a run that this box would join."),
    ] = None,
    peer: PeerOption = None,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> int:
    """Examine this box: what it has, what keeps it from training, and how to mend that."""
    from atom.cli.doctor import show_diagnosis
    from atom.daemon.doctor.examination import DoctorRequest

    return show_diagnosis(DoctorRequest(address, peer, state), as_json)


@app.command(rich_help_panel=_LOOK)
def version() -> None:
    """Print the version."""
    from atom import __version__

    typer.echo(__version__)


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script. Returns the exit code; says errors on stderr."""
    # None: somebody closed it before we began (`atom plan … >&-`).
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - as long as the process
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a poor terminal shall not end a command
    given = gather_addresses(sys.argv[1:] if arguments is None else arguments)
    return run_guarded(
        lambda: app(given or ["--help"], prog_name="atom", standalone_mode=False),
        is_debug=lambda: _Debug.on,
    )


__all__ = ["ExitCode", "app", "main"]
