"""Options and arguments of several commands.

This module imports nothing heavy, so that `--help` and the completion of commands are quick.
"""

import functools
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from atom.base.files import expand_home


def below_home(path: Path | None) -> Path | None:
    """Expand `~` in a path that the shell has left as it is, such as `--state=~/x`."""
    return None if path is None else expand_home(path)


def _state(words: str) -> Any:
    return typer.Option("--state", metavar="DIR", help=words, callback=below_home)


def from_option(words: str) -> Any:
    """Return the option `--from FOLDER` with this help text."""
    return typer.Option("--from", metavar="FOLDER", callback=below_home, help=words)


def _of_machine(metavar: str, words: str, kind: Any = str) -> Any:
    return Annotated[kind | None, typer.Option(metavar=metavar, help=words)]


PeerOption = Annotated[
    Path | None, typer.Option("--peer", metavar="PEER.toml", help="Settings of this machine.")
]
StateOption = Annotated[
    Path | None,
    _state("Directory of identity, snapshots and events."),
]
DaemonStateOption = Annotated[
    Path | None,
    _state("The peer's state directory, if there are several."),
]
ListenOption = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Address that the DHT node listens on.")
]
InitialPeersOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ADDRESS",
        help="DHT node to connect to, as a libp2p multiaddr; may be given several times.",
    ),
]
MemberOption = Annotated[
    Path | None,
    _state(
        "State directory of the peer to identify as: a run for listed peers answers no others."
        " Default: the run's usual directory."
    ),
]
AddressArgument = Annotated[
    str, typer.Argument(metavar="ADDRESS", help="Address that `atom start` printed after `join:`.")
]
LookedAtArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="ADDRESS",
        help="Address that `atom start` printed after `join:`; default: this daemon's run.",
    ),
]
AssumeOption = Annotated[
    str | None,
    typer.Option(
        metavar="DEVICE",
        help='Plan for another device, such as rtx4090-24g; "?" lists them.',
    ),
]
NetworkOption = Annotated[
    str | None,
    typer.Option(
        metavar="RATE", help='Bandwidth of a peer: "400 Mbit/s"; default: the peer file\'s limits.'
    ),
]
DialableOption = Annotated[
    int | None,
    typer.Option(
        metavar="K",
        min=1,
        max=100_000,
        help="Number of peers that other peers can dial; default: one and all, or as the swarm's"
        " peers say.",
    ),
]
PeersOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        max=100_000,
        help="Number of equal peers that share the global batch; default: 4, or the swarm's peers"
        " and this peer.",
    ),
]
TrustOption = Annotated[
    str | None,
    typer.Option(metavar="KEY:SHA256", help="Owner and digest of code that may be executed here."),
]
MACHINE_OPTIONS: dict[str, Any] = {
    "upload": _of_machine("RATE", 'Most bandwidth to send with: "10 Mbit/s".'),
    "download": _of_machine("RATE", "Most bandwidth to receive with."),
    "gpu_memory": _of_machine("SIZE", 'Most memory of each GPU that training may take: "8 GiB".'),
    "cpu_threads": _of_machine("N", "Threads for computing on the CPU.", int),
    "hours": _of_machine("WHEN", 'Work only then: "sat,sun 00:00-24:00"; repeatable.', list[str]),
    "map_ports": Annotated[
        bool | None, typer.Option("--map-ports", help="Let the home router open this peer's ports.")
    ],
}
"""Options that replace keys of the peer file: parameter name → annotation."""
JsonOption = Annotated[bool, typer.Option("--json", help="Print a JSON object.")]


def with_machine_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add `MACHINE_OPTIONS` to a command. Its parameter `options` gets those that the user gave.

    Their names are then as in `atom.config.load.OPTION_KEYS`.
    """

    @functools.wraps(command)
    def extended(**values: Any) -> int:
        own = {name: values.pop(name) for name in MACHINE_OPTIONS}
        given = {f"--{n.replace('_', '-')}": v for n, v in own.items() if v not in (None, [])}
        return command(**values, options=given)

    taken = [p for p in inspect.signature(command).parameters.values() if p.name != "options"]
    kind = inspect.Parameter.KEYWORD_ONLY
    added = (
        inspect.Parameter(name, kind, default=None, annotation=annotation)
        for name, annotation in MACHINE_OPTIONS.items()
    )
    # typer reads the options of a command from its signature
    extended.__signature__ = inspect.Signature([*taken, *added])  # type: ignore[attr-defined]
    return extended


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


def parse_above_zero(text: str | None, parse: Callable[[str], float], option: str) -> float | None:
    """Return the quantity of a text such as "30 s" or "400 Mbit/s"; None for None.

    Args:
        text: Value of the option.
        parse: Function of `atom.base.units` for the unit.
        option: Name of the option.

    Raises:
        typer.BadParameter: The text is not such a quantity, or not above zero.
    """
    if text is None:
        return None
    try:
        quantity = parse(text)
    except ValueError as problem:
        raise typer.BadParameter(str(problem), param_hint=option) from None
    if quantity <= 0:
        raise typer.BadParameter("it must be above zero", param_hint=option)
    return quantity
