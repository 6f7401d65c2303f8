"""What stands between this box and the others, as far as it can be told. Pure.

Two things are seen: the address of our end of a connection, beside the one that its far end sees;
and whether a peer could dial our data port. Nothing is guessed from them that they do not say.
"""

import ipaddress
from dataclasses import dataclass
from enum import StrEnum

from atom.daemon.doctor.facts import Way, Ways
from atom.swarm.transport.contacts import parse_address

ONLY_HERE = "the peers that could be asked run on this very box"


class Nat(StrEnum):
    NONE = "none"
    FORWARDED = "port open"
    OUTGOING = "outgoing only"
    BEHIND = "behind one"
    """Whether the port is open is not known."""
    UNKNOWN = "not known"


class Mapping(StrEnum):
    """What a router makes of one port of ours."""

    ONE = "one"
    """The same for all far ends."""
    SYMMETRIC = "symmetric"
    """Another for each far end."""
    UNKNOWN = ""


@dataclass(frozen=True)
class Standing:
    nat: Nat
    seen: str = ""
    """The address that others see."""
    mapping: Mapping = Mapping.UNKNOWN
    because: str = ""
    """Why it is not known."""


def standing_of(ways: Ways, reached: str) -> Standing:
    """`reached`: "yes", "no", or why nobody knows whether we can be dialled."""
    told = [way for way in outward(ways) if host_of(way.near) and host_of(way.seen)]
    if not told:
        nobody = "no peer said where it sees us" if outward(ways) else ONLY_HERE
        return Standing(Nat.UNKNOWN, because=ways.problem or nobody)
    outside = [way for way in told if host_of(way.near) != host_of(way.seen)]
    if outside:
        seen = host_of(outside[0].seen)
        nat = {"yes": Nat.FORWARDED, "no": Nat.OUTGOING}.get(reached, Nat.BEHIND)
        return Standing(nat, seen, _mapping(outside))
    seen = host_of(told[0].seen)
    if ipaddress.ip_address(seen).is_global:
        return Standing(Nat.NONE, seen)
    because = f"the peers asked see {seen}, an address of a network that they share with this box"
    return Standing(Nat.UNKNOWN, seen, because=because)


def outward(ways: Ways) -> list[Way]:
    """Those that leave this machine: others say nothing of its line and its router."""
    return [way for way in ways.found if not way.same_box]


def _mapping(outside: list[Way]) -> Mapping:
    """By two far ends that were reached from one port."""
    if len(outside) < 2 or len({way.near for way in outside}) != 1:
        return Mapping.UNKNOWN
    return Mapping.ONE if len({way.seen for way in outside}) == 1 else Mapping.SYMMETRIC


def host_of(address: str) -> str:
    """Of "host:port", as `ipaddress` writes it; empty for what is no address. Without a scope: that
    may be any text of a stranger's."""
    try:
        host = ipaddress.ip_address(parse_address(address)[0])
    except ValueError:
        return ""
    mapped = getattr(host, "ipv4_mapped", None)
    return str(mapped or host).partition("%")[0]
