"""Commands that found, join and plan runs. They import heavy modules only when they run."""

import gc
import importlib
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from atom.base.units import parse_bits_per_s
from atom.cli.shell.options import (
    AddressArgument,
    InitialPeersOption,
    JsonOption,
    ListenOption,
    PeerOption,
    StateOption,
    TrustOption,
    above_zero,
    count_of_peers,
    folder_option,
    option,
    with_machine_options,
)
from atom.cli.shell.signals import end_at_once_on_signals, run_to_the_end
from atom.cli.shell.terminal import print_plainly, stderr_console

commands = typer.Typer()


def load_torch() -> None:
    """Import PyTorch and its exporter, a million objects that live as long as the process.

    The garbage collector would traverse them again and again, during the imports and the tracing,
    for more than a second in all.
    """
    gc.disable()
    try:
        importlib.import_module("torch.export._trace")
    finally:
        gc.freeze()
        gc.enable()


@commands.command()
@with_machine_options
def start(
    run_file: Annotated[Path, typer.Argument(metavar="RUN.toml", help="Settings of the swarm.")],
    peer: PeerOption = None,
    state: StateOption = None,
    listen: ListenOption = None,
    initial_peers: InitialPeersOption = None,
    weights: Annotated[
        Path | None,
        folder_option(
            "--from",
            "FOLDER",
            "Begin from these weights: a folder of transformers or `atom export`.",
        ),
    ] = None,
    options: Any = None,
) -> int:
    """Found a run, and train it on this machine.

    RUN.toml has the settings of the whole swarm: model, data, batch, optimizer. PEER.toml has the
    settings of this machine, which options such as --upload replace. All are checked before
    anything is written. The first line of stdout is the address for joining. Ctrl-C or SIGTERM acts
    as `atom leave`. The same command continues the run later.

    [bold]Examples[/]
    atom start peers/demo.toml
    atom start my-run.toml --peer my-box.toml --state /data/my-run
    atom start tuned.toml --from my-model
    """
    end_at_once_on_signals()
    with stderr_console().status("loading PyTorch"):
        load_torch()
        from atom.cli.train.daemons import in_foreground
        from atom.daemon.peer.setup import run_start

    others = initial_peers or ()
    keys = options if listen is None else {**options, "--listen": listen}
    return in_foreground(
        lambda console: run_start(run_file, console, peer, state, keys, others, weights)
    )


@commands.command()
@with_machine_options
def join(
    address: AddressArgument,
    peer: PeerOption = None,
    state: StateOption = None,
    trust: TrustOption = None,
    base: Annotated[
        Path | None,
        folder_option(
            "--from", "FOLDER", "Your copy of the run's frozen weights, which are then not fetched."
        ),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Join without questions, as without a terminal.")
    ] = False,
    options: Any = None,
) -> int:
    """Join a run: fetch its state, then train with its peers.

    A new peer first sees its use for the swarm and the price, and a terminal asks whether to join.
    The state is kept in ~/.local/share/atom/RUN, or in the directory of --state. The same command
    later continues as the same peer, and fetches only the rounds that it missed. Ctrl-C or SIGTERM
    acts as `atom leave`. Code of the run's owner is executed only with --trust.

    [bold]Examples[/]
    atom join /ip4/203.0.113.7/tcp/31337/p2p/12D3…/run/words/owner/12D3…
    atom join ADDRESS --peer my-box.toml
    """
    end_at_once_on_signals()
    with stderr_console().status("loading PyTorch"):
        load_torch()
        from atom.cli.train.daemons import in_foreground
        from atom.cli.train.join_screen import ask
        from atom.daemon.peer.setup import run_join

    given = peer, state, trust, base, options
    return in_foreground(
        lambda console: run_join(address, console, *given, partial(ask, console)), asks=not yes
    )


@commands.command("id")
def id_(
    run: Annotated[
        str | None,
        typer.Argument(metavar="RUN", help="The run's name, or its address."),
    ] = None,
    peer: PeerOption = None,
    state: StateOption = None,
) -> None:
    """Print this machine's peer id in a run, for the run's owner to list.

    A new id is created if there is none. Its key is in the state directory that --state or --peer
    name: use the same options to join.

    [bold]Example[/]
    atom id words
    """
    from atom.daemon.peer.box import own_peer_id

    typer.echo(own_peer_id(run, peer, state))


@commands.command()
def bootstrap(
    listen: ListenOption = None,
    peer: PeerOption = None,
    state: StateOption = None,
    initial_peers: InitialPeersOption = None,
) -> None:
    """Serve as an entry point for new peers, without training.

    A new peer finds a run in the DHT, the distributed table that its peers maintain. The first line
    of stdout is the address for `atom start --initial-peers`. Other machines must be able to reach
    this machine; the load is small.

    [bold]Examples[/]
    atom bootstrap --listen 0.0.0.0:31337
    atom bootstrap --peer peers/bootstrap.toml
    """
    from atom.cli.train.daemons import serve_bootstrap

    serve_bootstrap(listen, peer, state, initial_peers or ())


@commands.command()
def plan(
    run: Annotated[str, typer.Argument(metavar="RUN", help="RUN.toml, or the ADDRESS of a swarm.")],
    peer: PeerOption = None,
    assume: Annotated[
        str | None,
        option("DEVICE", 'Plan for another device, such as rtx4090-24g; "?" lists them.'),
    ] = None,
    network: Annotated[
        float | None,
        option(
            "RATE",
            'Bandwidth of a peer: "400 Mbit/s"; default: the peer file\'s limits.',
            parser=above_zero(parse_bits_per_s),
        ),
    ] = None,
    peers: Annotated[
        int | None,
        count_of_peers(
            "N",
            "Number of equal peers that share the global batch; default: 4, or the swarm's peers"
            " and this peer.",
        ),
    ] = None,
    dialable: Annotated[
        int | None,
        count_of_peers(
            "K",
            "Number of peers that other peers can dial; default: one and all, or as the swarm's"
            " peers say.",
        ),
    ] = None,
    measure_again: Annotated[
        bool, typer.Option("--measure-again", help="Measure again, instead of reusing figures.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show whether a run fits this machine, and how fast it would train, alone and in a swarm.

    The verdict comes first, then memory, the time of a pass and of a round. Without
    --assume the model's layers are measured on this device. This may take minutes, but only once:
    the figures are kept in ~/.cache/atom.

    [bold]Examples[/]
    atom plan ADDRESS --peer my-box.toml
    atom plan peers/gpt3-2.7b.toml --assume rtx3060-12g --network "100 Mbit/s"
    """
    end_at_once_on_signals("interrupted")
    load_torch()
    from atom.cli.train.plan import live_passes, show_plan
    from atom.plan.planning import DEFAULT_PEERS, PlanRequest

    live, sharing = [] if assume or measure_again else live_passes(), peers or DEFAULT_PEERS
    request = PlanRequest(Path(run), peer, assume, network, sharing, measure_again)
    request = replace(request, dialable=dialable, live=live)
    if "/p2p/" in run and not Path(run).exists():
        from atom.cli.look.onlooker import looked_at
        from atom.cli.look.status import headline
        from atom.daemon.model.pinning import agreed_run
        from atom.swarm.records.view import owners_among

        swarm = run_to_the_end(looked_at(run))
        if not as_json:
            print_plainly(headline(swarm.latest, swarm.rounds))
        its, text, listed = agreed_run(swarm.manifest), swarm.manifest.text, swarm.latest.peers
        reach = dialable or max(1, owners_among(listed))
        count = peers or sum(each.state != "left" for each in listed) + 1
        request = replace(
            request, run=its, text=text, peers=count, dialable=reach,
            rounds_done=swarm.latest.round,
        )  # fmt: skip
    show_plan(request, as_json)


@commands.command()
def demo(
    directory: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for all files of the demo.")
    ] = Path("atom-demo"),
) -> int:
    """Train a GPT with three peers on this machine; one is killed, and another joins.

    It downloads nothing. It has two goals: the loss falls below half of its first value, and all
    replicas are bit-identical.

    [bold]Example[/]
    atom demo
    """
    from atom.cli.demo.command import run_demo

    return run_demo(directory)
