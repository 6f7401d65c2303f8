"""Port mapping by UPnP, in a child process of a few seconds.

    python -P -m atom.swarm.router.upnp GATEWAY INSIDE OUTSIDE LASTS_S

The library is written in C and parses XML that the router sends, so it runs apart from the peer,
with bounded memory and time. Only the router on the default route is asked: answers of other
devices in the network are ignored, and so is a description on another host. The child prints one
line of JSON.
"""

import ipaddress
import json
import random
import re
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from subprocess import DEVNULL
from typing import Any

from atom.base.files import child_environment
from atom.swarm.router.requests import PortRefused, PortRequest, PublicPort

DISCOVERY_S = 2.0
CHILD_S = 10.0
"""Most time of the child; a router answers within milliseconds."""
MAX_CHILD_BYTES = 128 << 20
"""Most memory of the child, of which Python takes 60 MiB."""
_MAX_SEARCH_BYTES = 4096
_GROUP = ("239.255.255.250", 1900)
_SEARCH = (
    b"M-SEARCH * HTTP/1.1\r\nHOST: 239.255.255.250:1900\r\n"
    b'MAN: "ssdp:discover"\r\nMX: 1\r\n'
    b"ST: urn:schemas-upnp-org:device:InternetGatewayDevice:1\r\n\r\n"
)
_LOCATION = re.compile(rb"^location:[ \t]*(\S+)", re.IGNORECASE | re.MULTILINE)
_NAME, _MAX_REASON = "Atom", 200
_OTHER_PORTS = 20000, 60000
"""Ports of which one is taken at random if another device has the wished one."""


def by_upnp(gateway: str, request: PortRequest) -> PublicPort:
    """Open or close a port by UPnP.

    Args:
        gateway: IPv4 address of the router.
        request: Port to open or to close.

    Raises:
        PortRefused: The router does not answer, or refuses; or the child failed.
    """
    numbers = map(str, (request.inside, request.outside, request.lasts_s))
    command = [sys.executable, "-P", "-m", __name__, gateway, *numbers]
    try:
        line = subprocess.check_output(
            command, stdin=DEVNULL, stderr=DEVNULL, timeout=CHILD_S, env=child_environment()
        )
        answer = json.loads(line)
        host = ipaddress.IPv4Address(answer.get("host", "0.0.0.0"))
    except (OSError, subprocess.SubprocessError, ValueError):
        raise PortRefused("the router's answer is too long, too late or malformed") from None
    if "refused" in answer:
        raise PortRefused(answer["refused"])
    return PublicPort(str(host), answer["port"], request.lasts_s)


# ---- in the child


def description_of(gateway: str, group: tuple[str, int] = _GROUP) -> str:
    """Return the URL of the router's description, from its answer to a search.

    Args:
        gateway: IPv4 address of the router.
        group: Address and port to which the search is sent.

    Raises:
        PortRefused: The router does not answer, or names another host.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        line.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 2)
        line.sendto(_SEARCH, group)
        give_up_at = time.monotonic() + DISCOVERY_S
        while (left_s := give_up_at - time.monotonic()) > 0:
            line.settimeout(left_s)
            try:
                answer, (sender, _) = line.recvfrom(_MAX_SEARCH_BYTES)
            except TimeoutError:
                break
            found = _LOCATION.search(answer)
            if sender == gateway and found is not None:
                url = found[1].decode("ascii", errors="replace")
                # Not by a library, because the library that opens the URL may read it otherwise.
                if not re.fullmatch(rf"http://{re.escape(gateway)}(:[0-9]{{1,5}})?/[!-~]*", url):
                    raise PortRefused("the router names another host")
                return url
    raise PortRefused("the router does not answer")


def _map(gateway: str, inside: int, outside: int, lasts_s: int) -> dict[str, Any]:
    """Open or close a port, and return what `read_child` reads."""
    import miniupnpc

    router = miniupnpc.UPnP()
    router.selectigd(description_of(gateway))
    if not (host := router.externalipaddress()):
        raise PortRefused("the router describes no gateway to the internet")
    ours = router.lanaddr, inside
    if not lasts_s:
        if _owner_of(router, outside) == ours:
            router.deleteportmapping(outside, "TCP")
        return {"host": host, "port": outside}
    if _owner_of(router, outside) not in (None, ours):
        outside = random.randint(*_OTHER_PORTS)
    router.addportmapping(outside, "TCP", *ours, _NAME, "", lasts_s)
    if _owner_of(router, outside) != ours:
        raise PortRefused("the router opened the port for another device")
    if not 0 < router.getspecificportmapping(outside, "TCP")[4] <= lasts_s:
        router.deleteportmapping(outside, "TCP")
        raise PortRefused("the router would never close the port by itself")
    return {"host": host, "port": outside}


def _owner_of(router: Any, outside: int) -> tuple[str, int] | None:
    """Return the address and port in this network that a port of the router leads to, if any."""
    mapping = router.getspecificportmapping(outside, "TCP")
    return None if mapping is None else (mapping[0], mapping[1])


def main(arguments: Sequence[str]) -> None:
    """Carry out the request of the command line `arguments`, and print its result."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_CHILD_BYTES, MAX_CHILD_BYTES))
    gateway, *numbers = arguments
    try:
        result = _map(gateway, *map(int, numbers))
    except PortRefused as refused:
        result = {"refused": refused.message}
    except Exception as problem:  # noqa: BLE001 - the library raises bare exceptions
        result = {"refused": f"the router refuses: {problem}"[:_MAX_REASON]}
    sys.stdout.write(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1:])
