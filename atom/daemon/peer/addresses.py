"""Addresses of this machine for other peers, and a file of DHT nodes for the next start.

By the next start, the nodes of the join address may be gone.
"""

import ipaddress
import json
from collections.abc import Sequence
from pathlib import Path

from atom.base.clock import Clock
from atom.base.errors import AddressError
from atom.config.address import parse_host_port
from atom.config.peer_file import Network
from atom.daemon.peer.box import Box
from atom.daemon.state_directory import write_atomically
from atom.swarm.addresses import parse_listen, parse_multiaddr
from atom.swarm.dial_rules import AddressClass, class_of, dialled_classes, own_hosts
from atom.swarm.records.lease import MAX_ADDRESSES
from atom.swarm.router.requests import PublicPort
from atom.training.storage.disk import DiskRoom


def data_place(network: Network) -> tuple[str, int] | None:
    """Return (host, port) on which the direct transport listens; None if this peer only dials.

    Args:
        network: `[network]` of the peer file.
    """
    if network.reachable == "no":
        return None
    return parse_listen(network.listen).host, network.data_port


def announced_multiaddrs(
    announce: Sequence[str], listen: str, opened: PublicPort | None = None
) -> tuple[str, ...]:
    """Return the libp2p addresses that the DHT node announces.

    If the result is empty, the node announces the addresses that libp2p finds.

    Addresses in this machine's own network follow the others, for peers in the same home.

    Args:
        announce: "HOST" or "HOST:PORT" each.
        listen: HOST:PORT where the node listens; if the port is 0, hosts without a port are left
            out.
        opened: port of the router that leads to the node, if any.
    """
    place = parse_listen(listen)
    named = [_host_and_port(text, place.port) for text in announce]
    if opened is not None:
        named.insert(0, (opened.host, opened.port))
    if named:
        named += [(host, place.port) for host in _own_hosts(place.host)]
    return tuple(f"/{_family(host)}/{host}/tcp/{port}" for host, port in named if port)


def data_addresses(
    network: Network, bound: tuple[str, int], opened: PublicPort | None = None
) -> tuple[str, ...]:
    """Return "host:port" of the direct transport, best first.

    Args:
        network: `[network]` of the peer file.
        bound: IP address and port that the transport listens on.
        opened: port of the router that leads to the transport, if any.
    """
    host, port = bound
    found = [f"[{h}]:{port}" if ":" in h else f"{h}:{port}" for h in announced_hosts(network, host)]
    if opened is not None:
        found.insert(0, opened.address)
    return tuple(found[:MAX_ADDRESSES])


def announced_hosts(network: Network, listen_host: str) -> Sequence[str]:
    """Return the hosts under which other peers can reach this peer, best first.

    The hosts of `announce` come before the addresses of this machine. These are for peers in the
    same network: many routers do not route their public address back to the inside.

    Args:
        network: `[network]` of the peer file.
        listen_host: IP address on which this peer listens.
    """
    if not network.announce:
        return own_hosts(listen_host)
    named = [_host_and_port(text, 0)[0] for text in network.announce]
    return named + _own_hosts(listen_host)


def _own_hosts(listen_host: str) -> list[str]:
    return [each for each in own_hosts(listen_host) if class_of(each) is not AddressClass.LOOPBACK]


def dialled_by(box: Box) -> frozenset[AddressClass]:
    """Return the classes of addresses, such as public or private, to which this peer connects.

    They depend on the addresses that this machine announces now, on the entrances of the run, and
    on `[network] lan` (`dialled_classes`).

    Args:
        box: this machine.
    """
    network, listen = box.peer.network, parse_listen(box.peer.network.listen)
    own, opened = [*announced_hosts(network, listen.host)], box.ports.outside(network.data_port)
    own += [] if opened is None else [opened.host]
    return dialled_classes(own, box.entrances, network.lan)


def _host_and_port(text: str, default_port: int) -> tuple[str, int]:
    try:
        return parse_host_port(text)
    except ValueError:
        return text.strip("[]"), default_port


def _family(host: str) -> str:
    try:
        return f"ip{ipaddress.ip_address(host).version}"
    except ValueError:
        return "dns4"


_EVERY_S = 20.0
_MOST = 16
"""Number of nodes that are read from the file at most."""


class KeptContacts:
    """File with the DHT nodes that this peer has met. Not thread-safe."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._kept = known_contacts(path)
        self._due = 0.0

    def keep(self, contacts: tuple[str, ...], room: DiskRoom) -> None:
        """Write the nodes if they changed: at once the first time, later at most every `_EVERY_S`.

        A peer that was killed before the first write might find no other peer at its next start.

        Args:
            contacts: multiaddrs of all nodes that are known now.
            room: reports a full disk.
        """
        if not contacts or contacts == self._kept or self._clock.now() < self._due:
            return
        self._due = self._clock.now() + _EVERY_S
        listed = json.dumps(contacts).encode()
        if room.attempt("addresses", lambda: write_atomically(self._path, listed)):
            self._kept = contacts


def known_contacts(path: Path) -> tuple[str, ...]:
    """Return the DHT nodes that an earlier process met.

    Entries that are no multiaddrs are left out, and a missing or damaged file counts as empty.
    """
    try:
        listed = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return ()
    return tuple(filter(_is_multiaddr, listed))[:_MOST] if isinstance(listed, list) else ()


def _is_multiaddr(text: object) -> bool:
    try:
        return parse_multiaddr(str(text)) == text
    except AddressError:
        return False
