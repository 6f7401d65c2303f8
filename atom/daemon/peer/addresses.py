"""Where others reach this box. Pure, but for one look at the routing table."""

import ipaddress
from collections.abc import Sequence

from atom.config.address import parse_host_port
from atom.config.peer_file import Network
from atom.swarm.addresses import parse_listen
from atom.swarm.dht.directory import primary_host
from atom.swarm.records.lease import MAX_ADDRESSES


def data_place(network: Network, listen: str) -> tuple[str, int] | None:
    """Where gradients and state arrive: on the DHT's host. None: this box only dials."""
    if network.reachable == "no":
        return None
    return parse_listen(listen).host, network.data_port


def announced_multiaddrs(announce: Sequence[str], dht_port: int) -> tuple[str, ...]:
    """libp2p addresses of the announced hosts; a host without a port means the DHT's own."""
    found = []
    for text in announce:
        host, port = _host_and_port(text, dht_port)
        if port:
            found.append(f"/{_family(host)}/{host}/tcp/{port}")
    return tuple(found)


def data_addresses(announce: Sequence[str], bound: tuple[str, int]) -> tuple[str, ...]:
    """ "host:port" of the direct transport, best first: announced hosts, else our own."""
    host, port = bound
    if announce:
        hosts = [_host_and_port(text, port)[0] for text in announce]
    elif ipaddress.ip_address(host).is_unspecified:
        hosts = [found for found in (primary_host(), "127.0.0.1") if found]
    else:
        hosts = [host]
    return tuple(f"[{h}]:{port}" if ":" in h else f"{h}:{port}" for h in hosts[:MAX_ADDRESSES])


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
