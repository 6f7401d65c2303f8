"""TCP hole punching: two peers that cannot be dialled connect to each other with the help of a peer
that can be, the introducer. Both keep a line to it.

1. The peer that asks opens a connection to the introducer, and names the other peer.
2. The introducer calls the other peer over its line. The other peer connects to the introducer.
3. The introducer tells each of the two the address at which it sees the other one's new connection.
4. Both close that connection and connect to each other, again and again, from the same local port
   that they used before. Most routers keep the outside port of a local port. So each router sends a
   packet out first, and lets the other peer's packets in as answers.

Then comes TLS, as on every connection: the peer that asked is the client, and the other end proves
its id. So an introducer cannot pass a connection to a wrong peer. But it may lie about addresses.
Therefore a peer connects only to one public address per introduction, never to its own network and
never to a port below 1024. It meets introduced peers only through peers to which it keeps a line,
and within a rate. The introducer does not learn the outcome from it.
"""

import contextlib
import ipaddress
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from atom.base.errors import PeerRefused, Reason
from atom.swarm.addresses import carried_address, host_group
from atom.swarm.dial_rules import AddressClass, class_of
from atom.swarm.stream.bandwidth import Rate
from atom.swarm.stream.frames import Address, Channel, Interrupted, Kind, Patience, Purpose
from atom.swarm.stream.tls import SocketStream
from atom.swarm.transport import limits
from atom.swarm.transport.limits import Backoff, Endpoint, FairShare

PUNCH_S = 6.0
"""Longest time for which an introduced peer tries to connect."""
ATTEMPT_S = 1.0
"""Time limit of one attempt: longer than a round trip; the system would repeat its first packet
after as much."""
PAUSE_S = 0.2
"""Pause after an attempt that was refused: the other end, or its router, was not ready."""
LEAST_PORT = 1024
FOR_KNOWN = Rate(4.0, 128.0)
"""Introductions of each known peer, per second and at once: an exchange opens up to two connections
to each other member."""
FOR_STRANGER = Rate(0.2, 4.0)
FOR_ALL_STRANGERS = Rate(2.0, 32.0)
MOST_ASKED = 6
"""Bound on introductions that we ask for at a time: `MAX_CONNECTIONS_PER_PEER` is the
introducer's bound on our connections."""
MOST_MISSED = 3
"""Number of different peers to which connections failed in a row, from which on this peer is not
steady: it may be behind another router now."""
MOST_INTRODUCERS = 2
"""Introducers that are asked, one after the other, for one connection."""
INTRODUCED_PART = 0.8
"""Part of the time for a connection that introductions may take; the rest is for the connection
itself. At the start of an exchange one introducer serves all pairs of members at once."""
MOST_MET = 64
"""Bound on introduced peers to which we try to connect at a time."""
_LONGEST_ADDRESS = 16 + 2


class Punches:
    """Punched connections of this peer, and introductions of other peers. Thread-safe."""

    def __init__(
        self,
        endpoint: Endpoint,
        has_line: Callable[[str], bool],
        introducers: Callable[[], Sequence[str]],
        dial: Callable[[str, Purpose, bytes, float], Channel],
        serve: Callable[[SocketStream, str], None],
    ) -> None:
        """Create the state of a peer that has punched no connection yet.

        Args:
            endpoint: Shared parts of the transport.
            has_line: Tells whether a peer keeps a line to us.
            introducers: Returns the peers to which we keep a line that stands.
            dial: Opens a channel with this purpose and tag within seconds: INTRODUCE by the peer's
                addresses, MEET by a call. Raises OSError, PeerRefused.
            serve: Serves a connection from that host, as the listener does, to its end.
        """
        self._endpoint = endpoint
        self._has_line = has_line
        self._introducers = introducers
        self._dial = dial
        self._serve = serve
        self._asked = threading.BoundedSemaphore(MOST_ASKED)
        self._meetings = threading.BoundedSemaphore(MOST_MET)
        self._rates = FairShare(endpoint.known, FOR_KNOWN, FOR_STRANGER, FOR_ALL_STRANGERS)
        self._failures = Backoff(limits.FIRST_HOLD_S, limits.LONGEST_HOLD_S)
        self._unknown = Backoff(limits.FIRST_HOLD_S, limits.FIRST_HOLD_S)
        """Peers to which no introducer could introduce us."""
        self._met, self._missed = set[str](), set[str]()
        """Peers to which our latest punched connection worked; and failed, since one worked."""

    @property
    def is_steady(self) -> bool:
        """True if a connection that we asked for works.

        Two peers then saw the same outside port of one local port of ours: the introducer, and the
        peer at the other end, which connects only to what the introducer saw.
        """
        return bool(self._met)

    def may_ask(self, peer_id: str) -> bool:
        """Return True if some peer can introduce us, and no recent attempt failed."""
        now = self._now()
        held = self._failures.held(now) | self._unknown.held(now)
        return bool(self._introducers()) and peer_id not in held

    @contextlib.contextmanager
    def to(self, peer_id: str, patience: Patience) -> Iterator[tuple[SocketStream, Patience]]:
        """Yield a connection to a peer, and the time limits of its handshake.

        The handshake in the `with` block decides whether the connection works.

        Raises:
            OSError: No introducer helps, or no connection comes about.
        """
        if not self._asked.acquire(timeout=min(patience.left_s(), limits.HANDSHAKE_S)):
            raise TimeoutError(f"{peer_id}: too many introductions at a time")
        try:
            deadline = min(patience.deadline, time.monotonic() + limits.UNCLAIMED_RING_S)
            within = replace(patience, deadline=deadline)
            local, target = self._introduced(peer_id, within)
        finally:
            self._asked.release()
        try:
            yield punch(local, target, within), within
        except Interrupted:
            raise
        except (OSError, PeerRefused):
            self._failures.fail(peer_id, self._now())
            self._met.discard(peer_id)
            self._missed.add(peer_id)
            if len(self._missed) >= MOST_MISSED:
                self._met.clear()
                self._missed.clear()
            raise
        self._failures.forgive(peer_id)
        self._missed.clear()
        if len(self._met) < limits.MAX_DESTINATIONS:
            self._met.add(peer_id)

    def introduce(self, channel: Channel) -> None:
        """Introduce the peer of a channel to the peer in its tag.

        Raises:
            PeerRefused: One of them keeps no line to us, they share an address, or ask too often.
            OSError: One of them does not answer.
        """
        asker, other = channel.peer_id, channel.tag.decode(errors="replace")
        if asker == other or not (self._has_line(asker) and self._has_line(other)):
            raise PeerRefused(Reason.NOT_FOUND, "no line of both peers to introduce")
        self._charge(asker)
        try:
            called = self._dial(other, Purpose.MEET, b"", limits.HANDSHAKE_S)
        except PeerRefused as refused:  # this is not the fault of the peer that asks
            raise ConnectionError(f"{other}: {refused}") from refused
        with contextlib.closing(called):
            if host_group(channel.remote[0]) == host_group(called.remote[0]):
                raise PeerRefused(Reason.NOT_FOUND, "both peers are behind one address")
            for end, seen in ((called, channel.remote), (channel, called.remote)):
                raw = carried_address(seen[0]).packed + seen[1].to_bytes(2)
                end.send_frame(Kind.SEEN, raw, patience=Patience.within(limits.HANDSHAKE_S))

    def meet(self, channel: Channel) -> None:
        """Connect to the peer that an introducer names, and serve the connection to its end.

        Raises:
            PeerRefused: The introducer keeps to no rule.
            OSError: The two peers do not connect.
        """
        if channel.peer_id not in self._introducers():
            raise PeerRefused(Reason.NOT_FOUND, "this peer keeps no line to that introducer")
        self._charge(channel.peer_id)
        target = receive_address(channel, Patience.within(limits.HANDSHAKE_S))
        channel.close()
        if not self._meetings.acquire(blocking=False):
            raise PeerRefused(Reason.BUSY, "too many introductions at a time")
        try:
            patience = replace(Patience.within(PUNCH_S), stop=self._endpoint.closing)
            stream = punch(channel.local, target, patience)
        finally:
            self._meetings.release()
        self._serve(stream, target[0])

    def _introduced(self, peer_id: str, patience: Patience) -> tuple[Address, Address]:
        """Ask one introducer, then another; known peers come first.

        Returns:
            Our local address, and the address of the other peer.

        Raises:
            OSError: No introducer helps. That is not the fault of the peer that we look for.
        """
        known, able = self._endpoint.known, list(self._introducers())
        random.shuffle(able)
        able.sort(key=lambda peer: peer not in known)
        chosen = able[:MOST_INTRODUCERS]
        for number, introducer in enumerate(chosen):
            part = INTRODUCED_PART / (len(chosen) - number)
            within = Patience.within(patience.left_s() * part)
            with contextlib.suppress(OSError, PeerRefused):
                tag, seconds = peer_id.encode(), within.left_s()
                with contextlib.closing(
                    self._dial(introducer, Purpose.INTRODUCE, tag, seconds)
                ) as asked:
                    return asked.local, receive_address(asked, within)
        self._unknown.fail(peer_id, self._now())
        raise ConnectionError(f"{peer_id}: no peer can introduce us")

    def _charge(self, peer_id: str) -> None:
        """Raises: PeerRefused(BUSY) if this peer causes too many introductions."""
        if not self._rates.allow(peer_id, self._now()):
            raise PeerRefused(Reason.BUSY, "too many introductions")

    def _now(self) -> float:
        return self._endpoint.clock.now()


def receive_address(channel: Channel, patience: Patience) -> Address:
    """Receive the address at which an introducer sees the other peer.

    Raises:
        PeerRefused: MALFORMED, TOO_LARGE: the frame holds no address. ADDRESS_NOT_DIALLED.
        OSError: The introducer sends nothing.
    """
    raw = channel.recv_frame(Kind.SEEN, _LONGEST_ADDRESS, patience)
    try:
        target = str(ipaddress.ip_address(raw[:-2])), int.from_bytes(raw[-2:])
    except ValueError as error:
        raise PeerRefused(Reason.MALFORMED, f"{len(raw)} bytes are no address") from error
    check_target(target, channel.local[0])
    return target


def check_target(target: Address, own_host: str) -> None:
    """Raise PeerRefused(ADDRESS_NOT_DIALLED) unless an introducer may send us to this address.

    Args:
        target: Address that the introducer names.
        own_host: Our own address in the local network. Where this is a public one, the neighbours
            in the local network have public addresses, too.
    """
    host, port = target
    is_near = _network(host) == _network(own_host)
    if class_of(host) is not AddressClass.PUBLIC or is_near or port < LEAST_PORT:
        raise PeerRefused(Reason.ADDRESS_NOT_DIALLED, f"introduced to {host} port {port}")


def punch(local: Address, target: Address, patience: Patience) -> SocketStream:
    """Connect from a local port to one address until the connection stands.

    If the other end's first packet comes between two attempts, the connection is accepted instead.

    Raises:
        TimeoutError, Interrupted: The connection did not come about.
        OSError: The local port cannot be used.
    """
    family = socket.AF_INET6 if ":" in local[0] else socket.AF_INET
    with shared_port(family, local) as door:
        door.listen(1)
        while True:
            attempt = shared_port(family, local)
            attempt.settimeout(min(ATTEMPT_S, patience.left_s()))
            try:
                attempt.connect(target)
                return SocketStream(attempt)
            except OSError:
                attempt.close()
            until = time.monotonic() + PAUSE_S
            while (left_s := until - time.monotonic()) > 0:
                door.settimeout(min(left_s, patience.wait_s(time.monotonic())))
                with contextlib.suppress(TimeoutError):
                    accepted, address = door.accept()
                    if address[:2] == target:
                        return SocketStream(accepted)
                    accepted.close()


def shared_port(family: int, local: Address = ("", 0)) -> socket.socket:
    """Return a TCP socket whose local port further sockets of this process may use.

    Raises:
        OSError: The local address cannot be used.
    """
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.bind(local)
    except BaseException:
        made.close()
        raise
    return made


def _network(host: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """Return the largest local network that an address may belong to."""
    return ipaddress.ip_network(f"{host}/{64 if ':' in host else 16}", strict=False)
