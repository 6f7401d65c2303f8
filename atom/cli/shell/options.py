"""Options and arguments of several commands.

This module imports nothing heavy, so that `--help` and the completion of commands are quick.
"""

import functools
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from atom.base.files import expand_home

T = TypeVar("T")


def below_home(path: Path | None) -> Path | None:
    """Expand `~` in a path that the shell has left as it is, such as `--state=~/x`."""
    return None if path is None else expand_home(path)


def checked(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Return `parse` for typer: a ValueError becomes a message about the option or argument."""

    def parsed(text: str) -> T:
        try:
            return parse(text)
        except ValueError as problem:
            raise typer.BadParameter(str(problem)) from None

    return parsed


def above_zero(parse: Callable[[str], float]) -> Callable[[str], float]:
    """Return a parser of quantities such as "30 s", which refuses those that are not above zero."""

    def parsed(text: str) -> float:
        if (quantity := parse(text)) <= 0:
            raise ValueError("it must be above zero")
        return quantity

    return checked(parsed)


def parse_trust(text: str) -> str:
    """Check that the text is KEY:SHA256 or KEY, and return it.

    A KEY alone is refused later, with an explanation.

    Raises:
        ValueError: The text has neither form.
    """
    from atom.swarm.identity import is_peer_id

    key, colon, digest = text.partition(":")
    is_whole = re.fullmatch("[0-9a-f]{64}" if colon else "", digest) is not None
    if not (is_peer_id(key) and is_whole):
        what = f"{text!r} is not the peer id of an owner, a colon and the 64 digits of a sha256"
        raise ValueError(what)
    return text


def option(metavar: str, words: str, *names: str, **rules: Any) -> Any:
    """Return an option with this help text.

    Args:
        metavar: Name of its value in the help.
        words: Help text.
        names: Name of the option, if it differs from the parameter's.
        rules: Further arguments of `typer.Option`, such as a parser.
    """
    return typer.Option(*names, metavar=metavar, help=words, **rules)


def count_of_peers(metavar: str, words: str) -> Any:
    """Return an option for a number of peers."""
    return option(metavar, words, min=1, max=100_000)


def folder_option(name: str, metavar: str, words: str) -> Any:
    """Return an option for a folder."""
    return option(metavar, words, name, callback=below_home)


_JOIN = "Address that `atom start` printed after `join:`"

PeerOption = Annotated[Path | None, option("PEER.toml", "Settings of this machine.", "--peer")]
StateOption = Annotated[
    Path | None, folder_option("--state", "DIR", "Directory of identity, snapshots and events.")
]
DaemonStateOption = Annotated[
    Path | None,
    folder_option("--state", "DIR", "The peer's state directory, if there are several."),
]
ListenOption = Annotated[str | None, option("HOST:PORT", "Address that the DHT node listens on.")]
InitialPeersOption = Annotated[
    list[str] | None,
    option("ADDRESS", "DHT node to connect to, as a libp2p multiaddr; may be given several times."),
]
AddressArgument = Annotated[str, typer.Argument(metavar="ADDRESS", help=f"{_JOIN}.")]
LookedAtArgument = Annotated[
    str | None,
    typer.Argument(metavar="ADDRESS", help=f"{_JOIN}; default: this daemon's run."),
]
TrustOption = Annotated[
    str | None,
    option(
        "KEY:SHA256",
        "Owner and digest of code that may be executed here.",
        parser=checked(parse_trust),
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print a JSON object.")]
MACHINE_OPTIONS: dict[str, Any] = {
    "upload": Annotated[str | None, option("RATE", 'Most bandwidth to send with: "10 Mbit/s".')],
    "download": Annotated[str | None, option("RATE", "Most bandwidth to receive with.")],
    "gpu_memory": Annotated[
        str | None, option("SIZE", 'Most memory of each GPU that training may take: "8 GiB".')
    ],
    "cpu_threads": Annotated[int | None, option("N", "Threads for computing on the CPU.")],
    "hours": Annotated[
        list[str] | None, option("WHEN", 'Work only then: "sat,sun 00:00-24:00"; repeatable.')
    ],
    "map_ports": Annotated[
        bool | None, typer.Option(help="Let the home router open this peer's ports, or not.")
    ],
}
"""Options that replace keys of the peer file: parameter name → annotation."""


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
