"""Outgoing connections: at a peer's addresses, or by calling it over the line that it keeps to us;
then TLS, the check of its key, the handshake. However the connection came about, the two ends prove
themselves to each other. Messages to one peer go over one connection, by a queue and a thread that
live while there is traffic.
"""

import contextlib
import math
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.config.address import parse_host_port
from atom.swarm.stream import handshake
from atom.swarm.stream.frames import Channel, Interrupted, Kind, Patience, Purpose
from atom.swarm.stream.tls import SocketStream, TlsStream, peer_of_certificate
from atom.swarm.transport import limits
from atom.swarm.transport.limits import Endpoint, Unreachable
from atom.swarm.transport.reverse_connections import ReverseConnections

MOST_KNOWN = 8192
"""Peers; the one heard of longest ago is forgotten first."""
Way = tuple[str, int]
"""To a peer: a host and a port of its, or `CALL`."""
CALL: Way = ("", 0)
"""Over its line to us."""
MOST_LOOKUPS = 16
"""Of host names under way at a time. The system's resolver may take half a minute, and the names
come from strangers' leases."""
_lookups = threading.BoundedSemaphore(MOST_LOOKUPS)

AddressInfo = tuple[int, int, int, str, Any]
"""As `socket.getaddrinfo` gives them."""


def address_of(text: str) -> Way | None:
    """ "host:port" or "[v6]:port" that can be dialled; None if it is neither."""
    try:
        host, port = parse_host_port(text)
    except ValueError:
        return None
    return (host, port) if port else None


class ContactBook:
    """The ways to each peer, best first, by peer id. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, tuple[object, list[Way]]] = {}
        """As they were set, and their ways."""

    def set(self, peer_id: str, addresses: Sequence[str], dials_out: bool = False) -> None:
        """Replaces what was known. If it is news, its ways are: its addresses ("host:port", best
        first), then a call; the call first, if `dials_out`: the peer says that nobody can dial it.
        Malformed addresses are left out."""
        contact = tuple(addresses), dials_out
        with self._lock:
            before, ways = self._known.pop(peer_id, (None, []))
            if contact != before:
                ways = [way for way in map(address_of, addresses) if way]
                ways.insert(0 if dials_out else len(ways), CALL)
            self._known[peer_id] = contact, ways
            while len(self._known) > MOST_KNOWN:
                del self._known[next(iter(self._known))]

    def ways(self, peer_id: str) -> list[Way]:
        """All ways. An address that worked last is the first, ways that failed come last."""
        with self._lock:
            return list(self._known.get(peer_id, (None, [CALL]))[1])

    def tried(self, peer_id: str, way: Way, worked: bool) -> None:
        """An address that worked goes to the front, a way that led nowhere to the end."""
        with self._lock:
            _, ways = self._known.get(peer_id, (None, []))
            if way in ways and not (worked and way == CALL):
                ways.remove(way)
                ways.insert(0 if worked else len(ways), way)


class Dialer:
    """Opens outgoing channels. Thread-safe."""

    def __init__(self, endpoint: Endpoint, reverse: ReverseConnections) -> None:
        self.contacts = ContactBook()
        self._endpoint = endpoint
        self._reverse = reverse

    def dial(
        self,
        peer_id: str,
        purpose: Purpose,
        tag: bytes = b"",
        seconds: float = math.inf,
        stop: threading.Event | None = None,
        directly: bool = False,
    ) -> Channel:
        """A channel to that peer and no other, within `seconds` (and the usual limits), or until
        `stop` is set. Each way but the last has at most half of what is left of the time: an
        address behind which nobody answers must not use up all of it. `directly`: at its addresses
        only.

        Raises: Unreachable; PeerRefused (the last reason) if only refusals were met.
        """
        ways, failures = self._addresses(peer_id), list[OSError | PeerRefused]()
        if not directly and self._reverse.has_line(peer_id):
            ways = self.contacts.ways(peer_id)
        patience = Patience(seconds, time.monotonic() + seconds, stop)
        for way in ways:
            share = patience if way == ways[-1] else _half(patience)
            try:
                channel = self._shake_hands(way, peer_id, purpose, tag, share)
            except Interrupted:
                raise
            except (OSError, PeerRefused) as failure:
                failures.append(failure)
                self.contacts.tried(peer_id, way, worked=False)
            else:
                self.contacts.tried(peer_id, way, worked=True)
                return channel
        raise _reason(peer_id, failures)

    def open(self, peer_id: str, opening: bytes, seconds: float) -> tuple[SocketStream, str]:
        """A connection to the first of the peer's addresses that takes one, and its host; nothing
        but `opening` is said. Raises: OSError."""
        patience, failure = Patience.within(seconds), OSError("no known address")
        for way in self._addresses(peer_id):
            try:
                return self._connect(way, patience, opening), way[0]
            except OSError as error:
                failure = error
        raise failure

    def _addresses(self, peer_id: str) -> list[Way]:
        return [way for way in self.contacts.ways(peer_id) if way != CALL]

    def _shake_hands(
        self, way: Way, peer_id: str, purpose: Purpose, tag: bytes, patience: Patience
    ) -> Channel:
        end = self._endpoint
        deadline = min(patience.deadline, time.monotonic() + limits.HANDSHAKE_S)
        within = replace(patience, deadline=deadline)
        if way == CALL:
            below = self._reverse.call(peer_id, within.left_s())
        else:
            below = self._connect(way, within)
        stream = TlsStream(below)
        channel = Channel(stream, end.channels.discard)
        channel.purpose, channel.tag = purpose, tag
        end.keep(channel)
        try:
            stream.handshake(within)
            certificate = stream.certificate()
            if certificate is None or peer_of_certificate(certificate) != peer_id:
                raise PeerRefused(Reason.WRONG_IDENTITY, f"that is not {peer_id}")
            handshake.greet(channel, end.local, peer_id, certificate, within)
        except BaseException:
            channel.close()
            raise
        channel.bandwidth = end.bandwidth
        return channel

    def _connect(self, way: Way, patience: Patience, opening: bytes = b"") -> SocketStream:
        """A connection that begins with `opening`. Without one it is there, or fails, when
        something is sent. Raises: OSError."""
        family, kind, protocol, _, target = resolve(*way, patience.left_s())
        connecting = SocketStream(socket.socket(family, kind, protocol))
        try:
            connecting.connect(target)
            connecting.send_all(memoryview(opening), patience)
        except BaseException:
            connecting.close()
            raise
        return connecting


def resolve(host: str, port: int, seconds: float) -> AddressInfo:
    """The first address of a host, within `seconds`; from any thread. Nobody waits in the end for
    the threads that look names up: they only ever wait themselves.

    Raises: OSError (unknown, or not a name at all), TimeoutError.
    """
    deadline = time.monotonic() + seconds
    with contextlib.suppress(socket.gaierror):
        return _lookup(host, port, socket.AI_NUMERICHOST)
    if not _lookups.acquire(timeout=min(seconds, threading.TIMEOUT_MAX)):
        raise TimeoutError("too many host names are being looked up")
    found = Future[AddressInfo]()

    def look() -> None:
        try:
            found.set_result(_lookup(host, port))
        except OSError as problem:
            found.set_exception(problem)
        finally:
            _lookups.release()

    try:
        threading.Thread(target=look, name="atom-lookup", daemon=True).start()
    except RuntimeError as problem:
        _lookups.release()
        raise OSError(f"no thread to look up {host}: {problem}") from problem
    try:
        return found.result(max(deadline - time.monotonic(), 0.0))
    except TimeoutError:
        raise TimeoutError(f"looking up {host} takes too long") from None


def _lookup(host: str, port: int, flags: int = 0) -> AddressInfo:
    """Raises: OSError."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)[0]
    except UnicodeError as problem:  # an empty label, or one that is too long
        raise OSError(f"{host[:80]!r} is no host name: {problem}") from problem


def _half(patience: Patience) -> Patience:
    """What is left of it, halved."""
    now = time.monotonic()
    return replace(patience, deadline=now + (patience.deadline - now) / 2)


def _reason(peer_id: str, failures: list[OSError | PeerRefused]) -> PeerRefused | Unreachable:
    """Why no way led to a peer."""
    refusals = [failure for failure in failures if isinstance(failure, PeerRefused)]
    if refusals:
        return refusals[-1]
    detail = "; ".join(str(failure) for failure in failures) or "no known address"
    return Unreachable(f"{peer_id}: {detail}")


class Lanes:
    """All destinations. `send` never blocks; what cannot be delivered is dropped and reported.
    Thread-safe."""

    def __init__(self, endpoint: Endpoint, dial: Callable[[str], Channel]) -> None:
        self._endpoint = endpoint
        self._dial = dial
        self._changed = threading.Condition()
        self._queues: dict[str, deque[bytes]] = {}
        """Of the destinations that have a thread."""

    def send(self, peer_id: str, raw: bytes) -> bool:
        """Queues a message; False if this destination's queue is full, there are too many
        destinations already, or we are closing."""
        with self._changed:
            if self._endpoint.closing.is_set() or not self._has_lane(peer_id):
                return False
            queue = self._queues[peer_id]
            full = len(queue) >= limits.MAX_QUEUED_MESSAGES
            full = full or sum(map(len, queue)) + len(raw) > limits.MAX_QUEUED_BYTES
            if not full:
                queue.append(raw)
                self._changed.notify_all()
        if full:  # told without the lock: every message waits for it, and this one for the disk
            refused = PeerRefused(Reason.BUSY, "queue full")
            self._endpoint.tell("message-dropped", refused, peer_id=peer_id)
        return not full

    def wake(self) -> None:
        """After `closing` was set: lets the threads end."""
        with self._changed:
            self._changed.notify_all()

    def _has_lane(self, peer_id: str) -> bool:
        """Whether the destination has a queue and a thread; begins them if it had none."""
        if peer_id in self._queues:
            return True
        end = self._endpoint
        if not end.known.has_room(peer_id, self._queues, limits.MAX_DESTINATIONS):
            return False
        queue = self._queues[peer_id] = deque[bytes]()
        try:
            end.threads.start("atom-lane", lambda: self._run(peer_id, queue))
        except OSError:  # the next message tries again
            del self._queues[peer_id]
            return False
        return True

    def _run(self, peer_id: str, queue: deque[bytes]) -> None:
        channel: Channel | None = None
        lost: OSError | PeerRefused | None = None
        try:
            while (raw := self._next(peer_id, queue)) is not None:
                channel = self._deliver(peer_id, raw, channel)
        except (OSError, PeerRefused) as error:
            lost = error
        finally:
            self._drop(peer_id, queue)
            if channel is not None:
                channel.close()
        if lost is not None and not self._endpoint.closing.is_set():
            self._tell_unreachable(peer_id, lost)

    def _next(self, peer_id: str, queue: deque[bytes]) -> bytes | None:
        """The next message; None (and the lane is gone) after a long silence or when closing."""
        closing = self._endpoint.closing
        with self._changed:
            self._changed.wait_for(lambda: bool(queue) or closing.is_set(), limits.LANE_IDLE_S)
            if not queue or closing.is_set():
                self._drop(peer_id, queue)  # under the lock: a later send starts a new lane
                return None
            return queue.popleft()

    def _drop(self, peer_id: str, queue: deque[bytes]) -> None:
        """This lane is over. What is queued is dropped: it would only meet the same fate."""
        with self._changed:
            if self._queues.get(peer_id) is queue:
                del self._queues[peer_id]

    def _deliver(self, peer_id: str, raw: bytes, channel: Channel | None) -> Channel:
        """Sends over `channel` if it is alive, else over a new one; returns the one that took the
        message. Raises: OSError, PeerRefused if the peer cannot be reached."""
        if channel is not None:
            if self._try(channel, raw):
                return channel
            channel.close()
        channel = self._dial(peer_id)
        if not self._try(channel, raw):
            channel.close()
            raise ConnectionError("lost while sending")
        return channel

    def _try(self, channel: Channel, raw: bytes) -> bool:
        try:
            if not channel.stream.idle():
                return False  # the server never speaks here: this is its end of stream
            patience = Patience.within(limits.FRAME_S)
            channel.send_frame(Kind.MESSAGE, raw, patience=patience)
        except OSError:
            return False
        return True

    def _tell_unreachable(self, peer_id: str, error: OSError | PeerRefused) -> None:
        told = PeerRefused(Reason.UNREACHABLE, str(error))
        self._endpoint.tell("peer-unreachable", told, peer_id=peer_id)
        self._endpoint.handlers.on_unreachable(peer_id)
