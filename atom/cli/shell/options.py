"""Options and arguments that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

from atom.cli.shell.completion import DEVICES, devices, state_directories

PeerOption = Annotated[
    Path | None, typer.Option("--peer", metavar="PEER.toml", help="What this box gives.")
]
StateOption = Annotated[
    Path | None,
    typer.Option(
        "--state",
        metavar="DIR",
        help="Where identity, snapshots and events are kept.",
        autocompletion=state_directories,
    ),
]
DaemonStateOption = Annotated[
    Path | None,
    typer.Option(
        "--state",
        metavar="DIR",
        help="The daemon's state directory, if several run.",
        autocompletion=state_directories,
    ),
]
AllOption = Annotated[
    bool, typer.Option("--all", help="Every daemon of yours on this box, if several run.")
]
ListenOption = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Where the DHT node listens.")
]
InitialPeersOption = Annotated[
    list[str] | None,
    typer.Option(metavar="ADDRESS…", help="DHT nodes to enter through, as libp2p multiaddrs."),
]
MemberOption = Annotated[
    Path | None,
    typer.Option(
        "--state",
        metavar="DIR",
        help="Ask as this peer: peers of a run for listed ones answer nobody else. Without: as the"
        " one in the usual place, if it is listed.",
        autocompletion=state_directories,
    ),
]
AddressArgument = Annotated[
    str, typer.Argument(metavar="ADDRESS", help="What `atom start` printed after `join:`.")
]
LookedAtArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="ADDRESS",
        help="What `atom start` printed after `join:`; else the run of this machine's daemon.",
    ),
]
RunFileArgument = Annotated[
    Path, typer.Argument(metavar="RUN.toml", help="What the swarm agrees on.")
]
GpuMemoryOption = Annotated[
    str | None,
    typer.Option("--gpu-memory", metavar="SIZE", help='Device memory to use, such as "8 GiB".'),
]
AssumeOption = Annotated[
    str | None,
    typer.Option(
        metavar="DEVICE",
        help=f"Reckon for {', '.join(DEVICES[:-1])} or {DEVICES[-1]}, not this box.",
        autocompletion=devices,
    ),
]
NetworkOption = Annotated[
    str | None,
    typer.Option(
        metavar="RATE", help='Between peers, such as "400 Mbit/s"; else the peer file\'s caps.'
    ),
]
PeersOption = Annotated[
    int,
    typer.Option(
        metavar="N", min=1, max=100_000, help="Peers like this one that share the global batch."
    ),
]
TrustOption = Annotated[
    str | None,
    typer.Option(metavar="KEY", help="Run the code of this owner's run: their peer id."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="A JSON object on stdout.")]
