"""Direct connections between the peers of one run: messages, ring channels, blob channels.

Plain threads and blocking sockets: one listener, one thread per incoming connection, one per
destination that is being written to. Every connection is TLS 1.3 between proven identities.
"""

import math
import threading
from collections.abc import Sequence
from typing import Protocol

from atom.base.clock import BootClock, Clock
from atom.base.errors import PeerRefused
from atom.base.events import EventSink
from atom.base.reasons import Reason
from atom.swarm.crew import Crew
from atom.swarm.dialer import Dialer
from atom.swarm.endpoint import Endpoint, TransportLimits
from atom.swarm.frames import Channel, Purpose
from atom.swarm.handshake import Local
from atom.swarm.lane import Lanes, OnUnreachable
from atom.swarm.listener import Listener
from atom.swarm.message_codec import MAX_MESSAGE_BYTES
from atom.swarm.router import OnBlobs, OnMessage, Router
from atom.swarm.throttle import Bandwidth
from atom.swarm.tls import Credentials, make_credentials

_JOIN_S = 10.0


class PeerTransport(Protocol):
    """What the rest of the swarm needs; `Transport` and `LocalTransport` are it."""

    @property
    def peer_id(self) -> str: ...
    @property
    def address(self) -> tuple[str, int]: ...
    def start(self) -> None: ...
    def close(self) -> None: ...
    def set_handlers(
        self,
        on_message: OnMessage | None = None,
        on_unreachable: OnUnreachable | None = None,
        on_blobs: OnBlobs | None = None,
    ) -> None: ...
    def set_addresses(self, peer_id: str, addresses: Sequence[str]) -> None: ...
    def send(self, peer_id: str, raw: bytes) -> bool: ...
    def connect(
        self, peer_id: str, purpose: Purpose, tag: bytes = b"", timeout_s: float = math.inf
    ) -> Channel: ...
    def accept_ring(self, peer_id: str, tag: bytes, timeout_s: float) -> Channel: ...


class Transport:
    """This peer's listener and its outgoing connections, over TCP.

    Set the handlers, `start`, and tell it where others listen with `set_addresses`. Handlers run
    in the transport's threads, several at once, and must not block for long.
    """

    def __init__(
        self,
        local: Local,
        bind: tuple[str, int],
        events: EventSink,
        clock: Clock | None = None,
        limits: TransportLimits | None = None,
        bandwidth: Bandwidth | None = None,
    ) -> None:
        self._bind = bind
        self._address: tuple[str, int] | None = None
        self._endpoint = Endpoint(
            local=local,
            limits=limits or TransportLimits(),
            events=events,
            clock=clock or BootClock(),
            crew=Crew(events),
            closing=threading.Event(),
            bandwidth=bandwidth or Bandwidth(),
        )
        credentials: Credentials = make_credentials(local.identity)
        self._router = Router(self._endpoint)
        self._listener = Listener(self._endpoint, credentials, self._router)
        self._dialer = Dialer(self._endpoint, credentials)
        self._lanes = Lanes(self._endpoint, lambda peer_id: self.connect(peer_id, Purpose.MESSAGES))

    @property
    def peer_id(self) -> str:
        return self._endpoint.local.identity.peer_id

    @property
    def address(self) -> tuple[str, int]:
        """Host and port it listens on, after `start`."""
        assert self._address is not None, "not started"
        return self._address

    def set_handlers(
        self,
        on_message: OnMessage | None = None,
        on_unreachable: OnUnreachable | None = None,
        on_blobs: OnBlobs | None = None,
    ) -> None:
        """Who is told; before `start`. Without `on_blobs`, blob connections are refused."""
        self._router.on_message = on_message
        self._router.on_blobs = on_blobs
        self._lanes.on_unreachable = on_unreachable

    def start(self) -> None:
        """Listens. Raises: PortInUseError, AddressError."""
        self._address = self._listener.start(self._bind)

    def close(self) -> None:
        """Cuts every connection and joins every thread; idempotent."""
        self._endpoint.closing.set()
        self._listener.close()
        self._router.rings.close()
        self._lanes.wake()
        self._dialer.close()
        if not self._endpoint.crew.join(_JOIN_S):
            self._endpoint.events.emit("threads-left", seconds=_JOIN_S)

    def set_addresses(self, peer_id: str, addresses: Sequence[str]) -> None:
        """Where `peer_id` listens, as "host:port"; at most eight, malformed ones are left out."""
        self._dialer.addresses.set(peer_id, addresses)

    def send(self, peer_id: str, raw: bytes) -> bool:
        """Fire and forget; False if dropped at once. Later failures go to `on_unreachable`."""
        assert len(raw) <= MAX_MESSAGE_BYTES
        return self._lanes.send(peer_id, raw)

    def connect(
        self, peer_id: str, purpose: Purpose, tag: bytes = b"", timeout_s: float = math.inf
    ) -> Channel:
        """A channel of our own to `peer_id`, within `timeout_s` and the usual limits.

        Raises: Unreachable, PeerRefused.
        """
        if self._endpoint.closing.is_set():
            raise ConnectionError("closed here")
        return self._dialer.dial(peer_id, purpose, tag, timeout_s)

    def accept_ring(self, peer_id: str, tag: bytes, timeout_s: float) -> Channel:
        """The ring channel that `peer_id` opened to us under `tag`.

        Raises: PeerRefused(TIMEOUT) if it does not come in time; ConnectionError when closing.
        """
        try:
            return self._router.rings.claim(peer_id, tag, timeout_s)
        except TimeoutError as error:
            raise PeerRefused(Reason.TIMEOUT, str(error)) from error
