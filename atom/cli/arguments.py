"""Arguments in forms that people write and the parser does not know. Pure."""

import re
from collections.abc import Sequence

import typer

from atom.base.units import parse_seconds

_FLAG = "--initial-peers"
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
