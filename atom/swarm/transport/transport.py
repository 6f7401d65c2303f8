"""Connections between the peers of one run: messages, ring channels, blob channels.

Plain threads and blocking sockets: one listener, one thread per incoming connection, one per
destination that is being written to. Every connection is TLS 1.3 between proven identities, whether
we dialled or were called (see `reverse_connections`).
"""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Container, Iterable, Sequence

from atom.base.errors import PeerRefused
from atom.base.events import EventSink
from atom.swarm.chain.messages import MAX_MESSAGE_BYTES
from atom.swarm.dial_rules import AddressClass, class_of, dialled_classes, own_hosts
from atom.swarm.records.lease import Reached
from atom.swarm.stream.bandwidth import Bandwidth
from atom.swarm.stream.frames import Channel, Kind, Patience, Purpose
from atom.swarm.stream.handshake import Local
from atom.swarm.transport.dialer import CALL, Dialer, Lanes
from atom.swarm.transport.limits import (
    HANDSHAKE_S,
    Endpoint,
    Handlers,
    KnownPeers,
    ThreadGroup,
)
from atom.swarm.transport.listener import Listener
from atom.swarm.transport.punching import Punches
from atom.swarm.transport.reverse_connections import OwnLines, ReverseConnections

_JOIN_S = 10.0
_DIAL_BACK_S = 4.0
"""Time limit for a connection to the host that sent a probe, and its handshake: enough for four
round trips of half a second, and one lost packet."""
_PROBE_S = 5.0
"""Constant time from a probe to its answer. It is longer than dialling ever takes, so the time of
the answer says nothing about the port that was tried."""


class Transport:
    """Listener of this peer and its outgoing connections, over TCP.

    `start` it, and tell it how to reach others with `set_addresses`.
    """

    def __init__(
        self,
        local: Local,
        bind: tuple[str, int] | None,
        events: EventSink,
        bandwidth: Bandwidth | None = None,
        handlers: Handlers | None = None,
        known: KnownPeers | None = None,
        dialled: Callable[[], frozenset[AddressClass]] | None = None,
    ) -> None:
        """Create a transport that does not listen yet.

        Args:
            local: Identity and run of this peer.
            bind: Host and port to listen on; None: other peers reach us over the lines that we
                keep.
            events: Log.
            bandwidth: Caps of this machine's line.
            handlers: Receivers of messages and other channels.
            known: Known peers, for which places are reserved.
            dialled: Returns the classes of addresses to dial; None: as for a peer that announces
                the address on which it listens.
        """
        own = own_hosts(bind[0]) if bind else ()
        self._bind = bind
        self._address: tuple[str, int] | None = None
        self._endpoint = Endpoint(
            local=local,
            events=events,
            threads=ThreadGroup(events),
            bandwidth=bandwidth or Bandwidth(),
            handlers=handlers or Handlers(),
            known=known or KnownPeers(),
        )
        self.peer_id = local.identity.peer_id
        self.bandwidth = self._endpoint.bandwidth
        """Caps of this machine, and the priorities of exchanges over state transfers."""
        self.threads = self._endpoint.threads
        """Threads of the transport; `close` joins them."""
        self.offenders = self._endpoint.offenders
        """Peers that are quarantined here, for one of the `OFFENCES`."""
        self.known = self._endpoint.known
        """Peers that the run knows; the follower of the chain sets them."""
        self.listens = False
        self._reverse = ReverseConnections(self._endpoint)
        dialled = dialled or (lambda: dialled_classes(own))
        self._punches = Punches(
            self._endpoint,
            self._reverse.has_line,
            lambda: self._lines.standing(),
            self._dial_to_introduce,
            lambda stream, host: self._listener.serve_called(stream, host),
        )
        self._dialer = dialer = Dialer(self._endpoint, self._reverse, self._punches, dialled)
        served: dict[Purpose, Callable[[Channel], None]] = {
            Purpose.LINE: self._reverse.serve_line,
            Purpose.PROBE: self._answer_probe,
            Purpose.INTRODUCE: self._punches.introduce,
            Purpose.MEET: self._punches.meet,
        }
        if self._endpoint.handlers.on_blobs is not None:
            for purpose in (Purpose.BLOBS, Purpose.TEXT):
                served[purpose] = self._endpoint.handlers.on_blobs
        self._listener = Listener(self._endpoint, self._reverse, served)
        self.public_hosts = self._listener.public_hosts
        """Function that returns the host group of each peer whose connection has a public
        address."""
        self._lines = OwnLines(
            self._endpoint,
            lambda peer_id: dialer.dial(peer_id, Purpose.LINE, routes=dialer.addresses(peer_id)),
            dialer.connect,
            self._listener.serve_called,
        )
        self._lanes = Lanes(self._endpoint, lambda peer_id: self.connect(peer_id, Purpose.MESSAGES))

    @property
    def address(self) -> tuple[str, int]:
        """Host and port on which the transport listens, after `start`."""
        assert self._address is not None, "not started, or without a listening address"
        return self._address

    @property
    def is_steady(self) -> bool:
        """True if punched connections to this peer work (see `Punches.is_steady`)."""
        return self._punches.is_steady

    def start(self) -> None:
        """Start to listen, unless the transport listens nowhere.

        Raises:
            PortInUseError: Another program has the port.
            AddressError: The host is not an address of this machine.
        """
        if self._bind is not None:
            self._address, self.listens = self._listener.start(self._bind), True

    def close(self) -> None:
        """Cut all connections and join all threads. Idempotent."""
        self._endpoint.closing.set()
        self._listener.close()
        self._reverse.close()
        self._lanes.wake()
        for channel in list(self._endpoint.channels):
            channel.close()
        if not self._endpoint.threads.join(_JOIN_S):
            self._endpoint.events.emit("threads-left", seconds=_JOIN_S)

    def set_addresses(
        self, peer_id: str, addresses: Sequence[str], dials_out: bool = False
    ) -> None:
        """Set the addresses of a peer.

        Args:
            peer_id: The peer.
            addresses: Addresses "host:port" on which the peer listens, best first.
            dials_out: True if the peer says that it cannot be dialled: then a call over its line is
                tried first.
        """
        self._dialer.contacts.set(peer_id, addresses, dials_out)

    def is_undialled(self, peer_id: str) -> bool:
        """Return True if the peer says that no peer can dial it."""
        return self._dialer.contacts.dials_out(peer_id)

    def try_to_punch(self, peer_id: str) -> None:
        """Try a punched connection to a peer, so that `is_steady` becomes known. Takes seconds."""
        if self._punches.may_ask(peer_id):
            with contextlib.suppress(OSError, PeerRefused):
                self._dialer.dial(
                    peer_id, Purpose.MESSAGES, b"", HANDSHAKE_S, routes=[CALL]
                ).close()

    def set_neighbours(self, neighbours: Callable[[], Container[str]]) -> None:
        """Set the function that returns the peers known to be in our own network.

        Their private addresses are dialled even if this peer announces a public one.
        """
        self._dialer.neighbours = neighbours

    def keep_lines(self, peer_ids: Iterable[str]) -> None:
        """Keep lines to exactly these peers: they can call us over them, but cannot dial us."""
        self._lines.keep(peer_ids)

    def probe(self, peer_id: str, from_outside: bool = False) -> Reached:
        """Ask a peer to dial us, and return its answer. Takes seconds.

        Args:
            peer_id: Peer to ask.
            from_outside: True: the answer of a peer in our own network is UNKNOWN.

        Raises:
            PeerRefused, OSError: The peer cannot be reached, or does not answer.
        """
        channel = self.connect(peer_id, Purpose.PROBE)
        try:
            if from_outside and class_of(channel.remote[0]) is not AddressClass.PUBLIC:
                return Reached.UNKNOWN
            answer = channel.recv_frame(Kind.REACHED, 8, Patience.within(_PROBE_S + 2.0))
        finally:
            channel.close()
        return Reached.of(answer)

    def send(self, peer_id: str, raw: bytes) -> bool:
        """Queue a message to a peer, and return False if it is dropped at once.

        Later failures are reported to `on_unreachable`.
        """
        assert len(raw) <= MAX_MESSAGE_BYTES
        return self._lanes.send(peer_id, raw)

    def connect(
        self,
        peer_id: str,
        purpose: Purpose,
        tag: bytes = b"",
        timeout_s: float = math.inf,
        stop: threading.Event | None = None,
    ) -> Channel:
        """Open a channel to a peer.

        Args:
            peer_id: Peer that has to prove its identity at the other end.
            purpose: Purpose of the channel.
            tag: Tag of a ring channel.
            timeout_s: Time limit, besides the usual limits.
            stop: Event that soon ends the attempt.

        Raises:
            Unreachable: No route led to the peer.
            PeerRefused: Some route led to a refusal; the last reason.
            Interrupted: `stop` was set.
            ConnectionError: This transport is closed.
        """
        if self._endpoint.closing.is_set():
            raise ConnectionError("closed by this peer")
        return self._dialer.dial(peer_id, purpose, tag, timeout_s, stop)

    def accept_ring(self, peer_id: str, tag: bytes, timeout_s: float) -> Channel:
        """Wait for the ring channel that a peer opens to us, and return it.

        Args:
            peer_id: Peer at the other end.
            tag: Tag of the channel.
            timeout_s: Time limit.

        Raises:
            PeerRefused: TIMEOUT: the channel did not arrive in time.
            ConnectionError: This transport is closing.
        """
        return self._listener.rings.claim(peer_id, tag, timeout_s)

    def _dial_to_introduce(
        self, peer_id: str, purpose: Purpose, tag: bytes, seconds: float
    ) -> Channel:
        """Dial an introducer, or call the peer to introduce. Raises: OSError, PeerRefused."""
        routes = [CALL] if purpose is Purpose.MEET else self._dialer.addresses(peer_id)
        return self._dialer.dial(peer_id, purpose, tag, seconds, routes=routes)

    def _answer_probe(self, channel: Channel) -> None:
        """Answer whether the asking peer can be dialled, `_PROBE_S` after it asked.

        Raises: OSError.
        """
        asked_at = time.monotonic()
        reached = self._dial_back(channel)
        self._endpoint.closing.wait(max(asked_at + _PROBE_S - time.monotonic(), 0.0))
        channel.send_frame(Kind.REACHED, reached.encode(), patience=Patience.within(1.0))
        with contextlib.suppress(OSError, PeerRefused):
            channel.recv_header(0, Patience.within(1.0))  # the asker hangs up first

    def _dial_back(self, channel: Channel) -> Reached:
        """Dial the host that this connection came from, at the port of that peer's lease.

        No other host is dialled: any peer may ask, and could otherwise scan ports of other hosts.
        """
        addresses = self._dialer.addresses(channel.peer_id)
        if not addresses:
            return Reached.UNKNOWN
        peer_id, routes = channel.peer_id, [(channel.remote[0], addresses[0][1])]
        with contextlib.suppress(OSError, PeerRefused):
            self._dialer.dial(peer_id, Purpose.MESSAGES, b"", _DIAL_BACK_S, routes=routes).close()
            return Reached.YES
        return Reached.NO
