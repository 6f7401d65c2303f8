"""Rules about IP addresses: which ones this peer announces, and which ones it dials.

The addresses of other peers come from strangers. A stranger that names an address inside our home
would make this peer open connections to the router, the printer or a database there (server-side
request forgery). So each address is classified after the host name was resolved, immediately before
the connection to that same address is opened: a second look-up could give another answer.
"""

import ipaddress
import socket
from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum

from atom.base.errors import Reason
from atom.swarm.addresses import carried_address


class AddressClass(StrEnum):
    """Kinds of IP addresses, by the machines that they lead to."""

    PUBLIC = "public"
    PRIVATE = "private"
    """Inside a home or a company: RFC 1918, unique-local IPv6."""
    SHARED = "shared by a provider's customers"
    """100.64.0.0/10: behind a provider's NAT, and inside some virtual private networks."""
    LOOPBACK = "loopback"
    FORBIDDEN = "never dialled"
    """Link-local, multicast, broadcast, unspecified or reserved."""


LOCAL = frozenset({AddressClass.PRIVATE, AddressClass.SHARED})
_CLASSES = tuple(
    (ipaddress.ip_network(network), kind)
    for kind, networks in (
        (AddressClass.LOOPBACK, "127.0.0.0/8 ::1/128"),
        (AddressClass.PRIVATE, "10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 198.18.0.0/15 fc00::/7"),
        (AddressClass.SHARED, "100.64.0.0/10"),
        (AddressClass.FORBIDDEN, "0.0.0.0/8 169.254.0.0/16 192.0.0.0/24 224.0.0.0/3"),
        (AddressClass.PUBLIC, "0.0.0.0/0 2000::/3"),
    )
    for network in networks.split()
)
"""The first network that contains an address decides. Written out, because the tables of Python's
`ipaddress` differ between versions. 198.18.0.0/15 is for benchmarks inside a laboratory. IPv6
addresses outside all of these networks are not assigned, or link-local, or multicast."""
_DOCUMENTATION = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
"""Addresses that no machine has: they are used to ask the kernel for a route, and get no packet."""


def class_of(host: str) -> AddressClass:
    """Classify the text of an IP address. A host name counts as public until it is resolved.

    An IPv6 address that carries an IPv4 address is classified by that one.
    """
    try:
        address = carried_address(host)
    except ValueError:
        return AddressClass.PUBLIC
    kinds = (kind for network, kind in _CLASSES if address in network)
    return next(kinds, AddressClass.FORBIDDEN)


def answers_to(host: str, named: str) -> bool:
    """Return True if an HTTP server at `host` answers a request for the host name `named`.

    A server on loopback answers to its own names alone. By DNS rebinding, a stranger's site in a
    browser could otherwise make the server a part of itself, and read what it serves.

    Args:
        host: Address, or name, that the server listens on.
        named: Host header of the request, with or without a port.
    """
    is_local = host == "localhost" or class_of(host) is AddressClass.LOOPBACK
    name = named.rpartition(":")[0] if ":" in named and not named.endswith("]") else named
    return not is_local or name in {"127.0.0.1", "localhost", "[::1]", host}


def may_dial(
    host: str, dialled: Collection[AddressClass], is_neighbour: bool = False
) -> Reason | None:
    """Decide whether this peer may open a connection to an IP address.

    Args:
        host: The resolved IP address that would be dialled.
        dialled: Classes that this peer dials, from `dialled_classes`.
        is_neighbour: True if the target peer is known to be in our own network.

    Returns:
        None if it may, otherwise the reason why not.
    """
    kind = class_of(host)
    is_chosen = kind in dialled or (is_neighbour and kind in LOCAL)
    is_allowed = is_chosen and kind is not AddressClass.FORBIDDEN
    return None if is_allowed else Reason.ADDRESS_NOT_DIALLED


def dialled_classes(
    announced: Iterable[str], entrances: Iterable[str] = (), lan: bool = False
) -> frozenset[AddressClass]:
    """Decide which classes of addresses this peer dials, whichever peer names them.

    Local addresses are dialled if this peer announces no public address, or if its owner asks for
    it. Loopback is dialled if this peer announces nothing else. A class is also dialled if all
    entrances are of that class: then this peer has entered the run through it. One of several is
    not enough, as most join addresses name a public entrance and a private one.

    Args:
        announced: Hosts of the addresses that this peer announces.
        entrances: Multiaddrs through which this peer enters the run.
        lan: Value of `[network] lan` in the peer file.
    """
    own = {*map(class_of, announced)}
    entered = {class_of(entrance.split("/")[2]) for entrance in entrances}
    dialled = frozenset({AddressClass.PUBLIC})
    dialled |= LOCAL if lan or AddressClass.PUBLIC not in own else set()
    dialled |= own if own == {AddressClass.LOOPBACK} else set()
    return dialled | (entered if len(entered) == 1 else set())


def own_hosts(listen_host: str) -> Sequence[str]:
    """Return the addresses under which others reach a socket that listens on `listen_host`.

    A socket on every interface ("0.0.0.0"; "::" for both families) is reached under the addresses
    on the default routes, public ones first; loopback only if this machine has no other address.
    """
    families = {"0.0.0.0": (socket.AF_INET,), "::": (socket.AF_INET, socket.AF_INET6)}
    if listen_host not in families:
        return (listen_host,)
    found = [each for each in map(primary_host, families[listen_host]) if each]
    usable = [each for each in found if class_of(each) is not AddressClass.FORBIDDEN]
    usable.sort(key=lambda each: class_of(each) is not AddressClass.PUBLIC)
    return usable or ["127.0.0.1"]


def primary_host(family: int = socket.AF_INET) -> str | None:
    """Return our address on the default route of an address family; nothing is sent to find it."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((_DOCUMENTATION[socket.AddressFamily(family)], 9))
            return str(probe.getsockname()[0])
    except OSError:
        return None


def rank_addresses(visible: Sequence[str], primary: str | None) -> tuple[str, ...]:
    """Sort multiaddrs, the best to paste first.

    Announced names and public addresses, then `primary` (the address on the default route), then
    other local ones (a container bridge, say), and loopback last.
    """

    def rank(text: str) -> tuple[int, bool, bool]:
        _, kind, host, carrier, *_ = text.split("/")
        reach = class_of(host)
        local = 1 if host == primary else 2
        distance = 0 if reach is AddressClass.PUBLIC else local if reach in LOCAL else 3
        return distance, kind == "ip6", carrier != "tcp"

    return tuple(sorted(visible, key=rank))
