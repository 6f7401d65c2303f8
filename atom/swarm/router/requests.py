"""Requests to a home router to open a TCP port, by PCP (RFC 6887) or NAT-PMP (RFC 6886).

The functions here only encode requests and decode answers. They return None for bytes that do not
answer the request: the caller goes on waiting.
"""

import ipaddress
import socket
import struct
from dataclasses import dataclass
from typing import NamedTuple

from atom.base.errors import AtomError

MAX_ANSWER_BYTES = 1100
"""Largest answer of PCP, as its specification says."""
UNKNOWN_HOST = "0.0.0.0"
"""Placeholder for an outside address that the router does not report."""
_ANSWER, _TCP = 0x80, 6
_PCP, _PCP_MAP, _PCP_HEAD_BYTES, _PCP_MAP_BYTES = 2, 1, 24, 60
_NAT_PMP, _PMP_HOST, _PMP_TCP, _PMP_HOST_BYTES, _PMP_TCP_BYTES = 0, 0, 2, 12, 16
PMP_HOST_REQUEST = bytes((_NAT_PMP, _PMP_HOST))
"""Question of NAT-PMP for the router's address on the internet."""


class PortRefused(AtomError):
    """Error of a router that does not open a port: the message is the reason."""


@dataclass(frozen=True)
class PortRequest:
    """Port that should be opened or closed."""

    inside: int
    """TCP port on which this machine listens."""
    outside: int
    """TCP port of the router; it may open another one."""
    lasts_s: int
    """Seconds until the router closes the port by itself; 0: it should close the port now."""
    nonce: bytes = bytes(12)
    """Secret of 12 bytes, which PCP needs to change or close a port later."""


class PublicPort(NamedTuple):
    """Port that a router has opened."""

    host: str
    """IPv4 address of the router on the internet."""
    port: int
    lasts_s: int

    @property
    def address(self) -> str:
        """Address "host:port" for other peers."""
        return f"{self.host}:{self.port}"


def pcp_request(own_host: str, request: PortRequest) -> bytes:
    """Encode a request of PCP.

    Args:
        own_host: IPv4 address of this machine, from which the request is sent.
        request: Port to open or to close.
    """
    head = struct.pack("!BBHI", _PCP, _PCP_MAP, 0, request.lasts_s) + _in_ipv6(own_host)
    ports = struct.pack("!B3xHH", _TCP, request.inside, request.outside)
    return head + request.nonce + ports + _in_ipv6("0.0.0.0")


def read_pcp(answer: bytes, request: PortRequest) -> PublicPort | None:
    """Decode an answer of PCP.

    Raises:
        PortRefused: The router refuses, or does not know PCP.
    """
    if answer[:1] == bytes((_NAT_PMP,)):
        raise PortRefused("the router does not know it")
    if len(answer) < _PCP_HEAD_BYTES or answer[:2] != bytes((_PCP, _ANSWER | _PCP_MAP)):
        return None
    is_whole = len(answer) >= _PCP_MAP_BYTES  # a short refusal repeats nothing of the request
    asked = request.nonce + struct.pack("!B3xH", _TCP, request.inside)
    if is_whole and answer[24:42] != asked:
        return None
    _refuse(answer[3])
    if not is_whole:
        return None
    lasts_s, outside = *struct.unpack_from("!I", answer, 4), *struct.unpack_from("!H", answer, 42)
    host = ipaddress.IPv6Address(answer[44:60]).ipv4_mapped
    return PublicPort(str(host or UNKNOWN_HOST), outside, lasts_s)


def read_pmp_host(answer: bytes) -> str | None:
    """Decode the router's address on the internet; PortRefused: it has none, or refuses."""
    if len(answer) < _PMP_HOST_BYTES or answer[:2] != bytes((_NAT_PMP, _ANSWER | _PMP_HOST)):
        return None
    _refuse(*struct.unpack_from("!H", answer, 2))
    return socket.inet_ntoa(answer[8:12])


def pmp_request(request: PortRequest) -> bytes:
    """Encode a request of NAT-PMP."""
    outside = request.outside if request.lasts_s else 0
    ports = request.inside, outside, request.lasts_s
    return struct.pack("!BBHHHI", _NAT_PMP, _PMP_TCP, 0, *ports)


def read_pmp(answer: bytes, request: PortRequest, host: str) -> PublicPort | None:
    """Decode an answer of NAT-PMP.

    Args:
        answer: Bytes from the router.
        request: Port that was asked for.
        host: The router's address on the internet, from `read_pmp_host`.

    Raises:
        PortRefused: The router refuses.
    """
    if len(answer) < _PMP_TCP_BYTES or answer[:2] != bytes((_NAT_PMP, _ANSWER | _PMP_TCP)):
        return None
    inside, outside, lasts_s = struct.unpack_from("!HHI", answer, 8)
    if inside != request.inside:
        return None
    _refuse(*struct.unpack_from("!H", answer, 2))
    return PublicPort(host, outside, lasts_s)


def _refuse(result: int) -> None:
    if result:
        raise PortRefused(f"the router refuses with code {result}")


def _in_ipv6(host: str) -> bytes:
    """Return an IPv4 address as PCP writes it, in the 16 bytes of an IPv6 address."""
    return bytes(10) + b"\xff\xff" + socket.inet_aton(host)
