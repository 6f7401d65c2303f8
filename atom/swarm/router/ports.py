"""Ports that the home router opens for this peer, kept open until the peer ends.

After the death of a peer a port closes by itself. Nothing is opened without the owner's consent
(`[network] map_ports`).
"""

import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from atom.base.events import EventSink
from atom.swarm.dial_rules import AddressClass, class_of
from atom.swarm.router.gateway import by_nat_pmp, by_pcp, default_gateway
from atom.swarm.router.requests import UNKNOWN_HOST, PortRefused, PortRequest, PublicPort
from atom.swarm.router.upnp import by_upnp

LASTS_S = 600
"""Seconds for which the router is asked to keep a port open. Ports are renewed at half of it. So a
router that has lost them, or has a new address, is noticed within five minutes."""
LEAST_S = 60
"""Least number of seconds that a router must promise."""
RETRY_S = 20.0
"""Pause after a failed renewal."""
LEAST_PORT = 1024
NEVER_OPEN = PortRequest(9, 9, 0)
"""Request to close a port that Atom never opens."""

Protocol = Callable[[str, PortRequest], PublicPort]
"""Function (router's address, port to open) → opened port; raises PortRefused."""
PROTOCOLS: Mapping[str, Protocol] = {"PCP": by_pcp, "NAT-PMP": by_nat_pmp, "UPnP": by_upnp}
"""Protocols by name, in the order in which they are tried."""


@dataclass(frozen=True)
class PortMapping:
    """Port of the router that leads to a port of this machine."""

    protocol: str
    """Name of the protocol."""
    request: PortRequest
    opened: PublicPort


def open_port(gateway: str, request: PortRequest, protocols: Mapping[str, Protocol]) -> PortMapping:
    """Ask the router to open a port, by each protocol until one succeeds.

    Args:
        gateway: IPv4 address of the router.
        request: Port to open.
        protocols: Protocols to try.

    Raises:
        PortRefused: All protocols failed; the message has each reason. Nothing stays open.
    """
    if request.inside < LEAST_PORT:
        reserved = f"port {request.inside} is reserved"
        raise PortRefused(f"{reserved}: ports from {LEAST_PORT} on are opened")
    reasons = []
    for name in protocols:
        try:
            return _opened(gateway, name, request, protocols)
        except PortRefused as refused:
            reasons.append(f"{name}: {refused.message}")
    raise PortRefused("; ".join(reasons))


def _opened(
    gateway: str, name: str, request: PortRequest, protocols: Mapping[str, Protocol]
) -> PortMapping:
    opened = protocols[name](gateway, request)
    port = PortMapping(name, replace(request, outside=opened.port), opened)
    if class_of(opened.host) is not AddressClass.PUBLIC:
        problem = f"the provider translates the router's address {opened.host} once more"
    elif opened.port < LEAST_PORT or opened.lasts_s < LEAST_S:
        problem = f"the router offers port {opened.port} for {opened.lasts_s} s"
    else:
        return port
    close_port(gateway, port, protocols)
    raise PortRefused(problem)


def close_port(gateway: str, port: PortMapping, protocols: Mapping[str, Protocol]) -> None:
    """Ask the router to close a port; if it does not answer, the port closes by itself later."""
    with suppress(PortRefused):
        protocols[port.protocol](gateway, replace(port.request, lasts_s=0))


def find_router(protocols: Mapping[str, Protocol] = PROTOCOLS) -> tuple[str, str]:
    """Return the protocol that the home router answers, and the router's outside address.

    Nothing is opened: the router is asked to close a port that Atom never opens. The address is
    0.0.0.0 if the router does not say it.

    Raises:
        PortRefused: No protocol was answered.
    """
    answers, gateway = dict[str, str](), default_gateway()
    for name, ask in protocols.items():
        with suppress(PortRefused):
            answers[name] = ask(gateway, NEVER_OPEN).host
    if not answers:
        raise PortRefused(f"no router answers by {', '.join(protocols)}")
    return next(iter(answers)), max(answers.values(), key=lambda host: host != UNKNOWN_HOST)


class PortKeeper:
    """Keeper of this peer's open ports. Call `open`, then `start`, and `close` at the end."""

    def __init__(
        self,
        events: EventSink,
        gateway: Callable[[], str] = default_gateway,
        protocols: Mapping[str, Protocol] = PROTOCOLS,
    ) -> None:
        """Begin without an open port.

        Args:
            events: Receives changes of the open ports.
            gateway: Returns the router's address, which differs in another network.
            protocols: Protocols to try.
        """
        self._events, self._gateway, self._protocols = events, gateway, protocols
        self._ports: dict[int, PortMapping] = {}
        """Open ports by the port of this machine."""
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def open(self, ports: Sequence[int]) -> Sequence[PortMapping]:
        """Open ports of the router for these ports of this machine; takes up to half a minute.

        Raises:
            PortRefused: The router does not open one of them; then none stays open.
        """
        try:
            for inside in ports:
                self._open(PortRequest(inside, inside, LASTS_S, secrets.token_bytes(12)))
        except PortRefused:
            self.close()
            raise
        return [*self._ports.values()]

    def outside(self, inside: int) -> PublicPort | None:
        """Return the open port that leads to a port of this machine, if any. Thread-safe."""
        port = self._ports.get(inside)
        return None if port is None else port.opened

    def start(self) -> None:
        """Begin to renew the ports."""

        def renew_until_closed() -> None:
            pause_s = LASTS_S / 2
            while not self._closing.wait(pause_s):
                pause_s = LASTS_S / 2 if self.renew() else RETRY_S

        self._thread = threading.Thread(target=renew_until_closed, name="ports", daemon=True)
        self._thread.start()

    def renew(self) -> bool:
        """Renew all ports, and return False if the router refused one of them."""
        is_renewed = True
        for inside, before in list(self._ports.items()):
            try:
                port = self._open(before.request)
            except PortRefused as refused:
                is_renewed = False
                self._events.emit("port-refused", port=inside, detail=refused.message)
            else:
                if port.opened.address != before.opened.address:
                    self._events.emit("port-opened", port=inside, outside=port.opened.address)
        return is_renewed

    def _open(self, wish: PortRequest) -> PortMapping:
        """Open or renew a port. The protocol that succeeds is the first one to try from then on."""
        port = self._ports[wish.inside] = open_port(self._gateway(), wish, self._protocols)
        self._protocols = {port.protocol: self._protocols[port.protocol], **self._protocols}
        return port

    def close(self) -> None:
        """Close all ports. Idempotent."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
        ports, self._ports = self._ports, {}
        with suppress(PortRefused):
            gateway = self._gateway()
            for port in ports.values():
                close_port(gateway, port, self._protocols)
