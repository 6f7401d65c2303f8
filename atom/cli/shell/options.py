"""Options and arguments of several commands.

This module imports nothing heavy, so that `--help` and the completion of commands are quick.
"""

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from atom.base.files import expand_home
from atom.base.units import parse_seconds


def below_home(path: Path | None) -> Path | None:
    """Expand `~` in a path that the shell has left as it is, such as `--state=~/x`."""
    return None if path is None else expand_home(path)


def _state(words: str) -> Any:
    return typer.Option("--state", metavar="DIR", help=words, callback=below_home)


PeerOption = Annotated[
    Path | None, typer.Option("--peer", metavar="PEER.toml", help="What this box gives.")
]
StateOption = Annotated[
    Path | None,
    _state("Where identity, snapshots and events are kept."),
]
DaemonStateOption = Annotated[
    Path | None,
    _state("The daemon's state directory, if several run."),
]
KeptOption = Annotated[
    Path | None,
    _state("The peer's state directory, if several are kept."),
]
ListenOption = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Where the DHT node listens.")
]
InitialPeersOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ADDRESS",
        help="DHT node to enter through, as a libp2p multiaddr; may be given several times.",
    ),
]
MemberOption = Annotated[
    Path | None,
    _state(
        "State directory of the peer to ask as: a run for listed peers answers those alone. Else"
        " the one in the usual place."
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
AssumeOption = Annotated[
    str | None,
    typer.Option(
        metavar="DEVICE",
        help='Reckon for another device, such as rtx4090-24g; "?" lists them; or'
        ' "tflops=71,memory=24 GiB,link=22 GB/s".',
    ),
]
NetworkOption = Annotated[
    str | None,
    typer.Option(
        metavar="RATE", help='Bandwidth between peers: "400 Mbit/s". Else the peer file\'s caps.'
    ),
]
PeersOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        max=100_000,
        help="Peers like this one that share the global batch; else 4, or those of the swarm and"
        " this one.",
    ),
]
TrustOption = Annotated[
    str | None,
    typer.Option(metavar="KEY:SHA256", help="Owner and digest of code that may be executed here."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="A JSON object on stdout.")]


def parse_trust(text: str | None) -> str | None:
    """Check that the text is KEY:SHA256 or KEY, and return it.

    A KEY alone is refused later, with an explanation.

    Raises:
        typer.BadParameter: The text has neither form.
    """
    from atom.swarm.identity import is_peer_id

    key, colon, digest = (text or "").partition(":")
    is_whole = re.fullmatch("[0-9a-f]{64}" if colon else "", digest) is not None
    if text is not None and not (is_peer_id(key) and is_whole):
        what = f"{text!r} is not the peer id of an owner, a colon and the 64 digits of a sha256"
        raise typer.BadParameter(what, param_hint="--trust")
    return text


def parse_deadline(text: str | None) -> float | None:
    """Return the seconds of a text such as "30 s"; None for None.

    Raises:
        typer.BadParameter: The text is not a time above zero.
    """
    if text is None:
        return None
    try:
        seconds = parse_seconds(text)
    except ValueError as problem:
        raise typer.BadParameter(str(problem), param_hint="--deadline") from None
    if seconds <= 0:
        raise typer.BadParameter("a deadline is above zero", param_hint="--deadline")
    return seconds
