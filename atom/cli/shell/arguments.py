"""Arguments in forms that people write and the parser does not know. Pure."""

import re
from collections.abc import Sequence

import typer

from atom.base.home import expand_home
from atom.base.units import parse_seconds

_FLAG = "--initial-peers"
_EMPTY = "is empty (is it a variable of the shell that is not set?)"
_HOME = re.compile(r"^(--[a-z-]+=)~(?=/|$)")
_MULTIADDR = re.compile(r"/(ip4|ip6|dns|dns4|dns6|dnsaddr)/")


def gather_addresses(arguments: Sequence[str]) -> list[str]:
    """`--initial-peers A B` and `--initial-peers A,B` → the flag once before each address."""
    gathered: list[str] = []
    follows = False
    for argument in arguments:
        if argument == _FLAG:
            follows = True
            gathered.append(argument)
        elif follows and _MULTIADDR.match(argument):
            for address in argument.split(","):
                if gathered[-1] != _FLAG:
                    gathered.append(_FLAG)
                gathered.append(address)
        else:
            follows = False
            gathered.append(argument)
    return gathered


def refuse_empty(arguments: Sequence[str]) -> None:
    """An empty path would be the folder that one stands in. Raises: typer.BadParameter."""
    for before, argument in zip(("", *arguments), arguments, strict=False):
        name, equals, value = argument.partition("=")
        if argument and not (name.startswith("-") and equals and not value):
            continue
        what = name or (before if before.startswith("-") else "an argument")
        raise typer.BadParameter(_EMPTY, param_hint=what)


def with_home(arguments: Sequence[str]) -> list[str]:
    """`--state=~/x`: shells leave a ~ alone that does not begin a word."""
    return [_HOME.sub(lambda found: found[1] + str(expand_home("~")), each) for each in arguments]


def parse_trust(text: str | None) -> str | None:
    """A peer id. Raises: typer.BadParameter."""
    from atom.swarm.identity import is_peer_id

    if text is not None and not is_peer_id(text):
        what = f"{text!r} is no peer id: those begin with 12D3KooW and have 52 characters"
        raise typer.BadParameter(what, param_hint="--trust")
    return text


def parse_deadline(text: str | None) -> float | None:
    """ "30 s" → 30.0; a bare number means seconds. Raises: typer.BadParameter."""
    if text is None:
        return None
    try:
        seconds = float(text) if re.fullmatch(r"[0-9.]+", text) else parse_seconds(text)
    except ValueError as problem:
        raise typer.BadParameter(str(problem), param_hint="--deadline") from None
    if seconds <= 0:
        raise typer.BadParameter("a deadline is above zero", param_hint="--deadline")
    return seconds
