"""Conversation with the router of this network: the only host that is asked to open a port."""

import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from atom.swarm.router import requests
from atom.swarm.router.requests import MAX_ANSWER_BYTES, PortRefused, PortRequest, PublicPort

T = TypeVar("T")

PORT = 5351
"""UDP port on which routers answer PCP and NAT-PMP."""
WAITS_S = (0.25, 0.5, 1.0)
"""Seconds to wait for an answer before the request is sent again; the last wait ends the attempt.
An answer that does not fit ends a wait as well.

The specifications wait for minutes. A router in the same home that is silent for 1.75 s does not
know the protocol.
"""
_ROUTES = Path("/proc/net/route")
_IS_GATEWAY = 2


def default_gateway(routes: Path = _ROUTES) -> str:
    """Return the IPv4 address of the router on the default route.

    Args:
        routes: The kernel's table of routes.

    Raises:
        PortRefused: There is no default route, or the system has no such table.
    """
    try:
        lines = routes.read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        raise PortRefused("this system does not list its routes") from None
    for line in lines:
        _, target, via, flags, _, _, _, mask, *_ = line.split()
        if target == mask == "00000000" and int(flags, 16) & _IS_GATEWAY:
            return socket.inet_ntoa(struct.pack("<I", int(via, 16)))
    raise PortRefused("this machine has no router on its default route")


def by_pcp(gateway: str, request: PortRequest, port: int = PORT) -> PublicPort:
    """Open or close a port by PCP.

    Args:
        gateway: IPv4 address of the router.
        request: Port to open or to close.
        port: UDP port of the router.

    Raises:
        PortRefused: The router does not answer, or refuses.
    """
    return _ask(
        (gateway, port),
        lambda own_host: requests.pcp_request(own_host, request),
        lambda answer: requests.read_pcp(answer, request),
    )


def by_nat_pmp(gateway: str, request: PortRequest, port: int = PORT) -> PublicPort:
    """Open or close a port by NAT-PMP: see `by_pcp`."""
    place = gateway, port
    host = _ask(place, lambda own_host: requests.PMP_HOST_REQUEST, requests.read_pmp_host)
    return _ask(
        place,
        lambda own_host: requests.pmp_request(request),
        lambda answer: requests.read_pmp(answer, request, host),
    )


def _ask(
    place: tuple[str, int], request: Callable[[str], bytes], read: Callable[[bytes], T | None]
) -> T:
    """Send a request until an answer fits, and return what `read` makes of the answer.

    The socket is connected, so the kernel drops packets of any other host.
    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
            line.connect(place)
            for wait_s in WAITS_S:
                line.settimeout(wait_s)
                line.send(request(line.getsockname()[0]))
                with suppress(TimeoutError):
                    found = read(line.recv(MAX_ANSWER_BYTES))
                    if found is not None:
                        return found
    except OSError as problem:
        raise PortRefused(f"the router cannot be asked: {problem}") from problem
    raise PortRefused("the router does not answer")
