"""Commands that show a swarm without joining it. They import heavy modules only when they run."""

from pathlib import Path
from typing import Annotated

import typer

from atom.cli.shell.options import (
    DaemonStateOption,
    JsonOption,
    LookedAtArgument,
    TrustOption,
    checked,
    option,
)
from atom.cli.shell.signals import end_at_once_on_signals
from atom.cli.shell.terminal import stderr_console
from atom.config.address import parse_interface

commands = typer.Typer()


@commands.command()
def status(
    address: LookedAtArgument = None, state: DaemonStateOption = None, as_json: JsonOption = False
) -> None:
    """Show a swarm once, as its peers report in the DHT, without joining it.

    [bold]Examples[/]
    atom status
    atom status ADDRESS --json | jq .loss
    """
    from atom.cli.look.status import show_status

    show_status(address, state, as_json)


@commands.command()
def watch(address: LookedAtArgument = None, state: DaemonStateOption = None) -> None:
    """Show a live view of a swarm, without joining it, until Ctrl-C.

    In a pipe it shows the swarm once, as `atom status` does.

    [bold]Examples[/]
    atom watch
    atom watch ADDRESS
    """
    from atom.cli.look.watch import watch_swarm

    watch_swarm(address, state)


@commands.command()
def dashboard(
    address: LookedAtArgument = None,
    port: Annotated[
        int, option("PORT", "Port of the page; 0: any free port.", min=0, max=65535)
    ] = 8700,  # fixed, so that an open page works again after a restart
    host: Annotated[
        str,
        option(
            "HOST",
            "Address to listen on; by default only this machine can open the page.",
            parser=checked(parse_interface),
        ),
    ] = "127.0.0.1",
    state: DaemonStateOption = None,
) -> None:
    """Show a swarm in the browser, without joining it, until Ctrl-C.

    The first line of stdout is the page's URL. The page shows progress to the global batch, the
    loss of every round, tokens per second, peers with their state, rounds with their outcome, and
    contributions. It loads nothing from other hosts.

    [bold]Examples[/]
    atom dashboard
    atom dashboard ADDRESS --port 8700
    """
    from atom.cli.look.watch import show_dashboard

    show_dashboard(address, port, host, state)


@commands.command()
def contributions(
    address: LookedAtArgument = None, state: DaemonStateOption = None, as_json: JsonOption = False
) -> None:
    """Show each peer's contribution to the run, summed over its certified rounds.

    The record of a round has the sequences of each peer, and a quorum of voters signed it. Any
    peer that is alive can serve the records. Every signature is checked here.

    [bold]Examples[/]
    atom contributions
    atom contributions ADDRESS --json
    """
    from atom.cli.look.status import show_contributions

    show_contributions(address, state, as_json)


@commands.command()
def sample(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER", help="A peer's state directory, or a folder of `atom export`."
        ),
    ],
    prompts: Annotated[list[str], typer.Argument(metavar="PROMPT...", help="Start of a text.")],
    tokens: Annotated[
        int, option("N", "Most tokens to add to a prompt.", min=1, max=100_000)
    ] = 100,
    temperature: Annotated[
        float, option("T", "0: always the most likely token.", min=0.0, max=100.0)
    ] = 0.8,
    seed: Annotated[int, option("N", "Seed of the random choices.", min=0, max=2**62)] = 0,
    device: Annotated[str, option("DEVICE", "auto, cpu, cuda or cuda:N.")] = "auto",
    trust: TrustOption = None,
) -> None:
    """Write text with the newest weights of a peer, or of an exported model.

    The peer's daemon may be running. The weights go through this machine's device in pieces, as
    in training, and each token takes one pass. Several prompts share the passes.

    [bold]Examples[/]
    atom sample ~/.local/share/atom/my-run "Once upon a time"
    atom sample my-model "def main(" --tokens 200 --temperature 0
    """
    end_at_once_on_signals("interrupted")
    with stderr_console().status("loading PyTorch"):
        from atom.cli.look.sample import show_samples
        from atom.models.sampling import Sampling

    show_samples(folder, prompts, tokens, Sampling(temperature, seed), device, trust)
