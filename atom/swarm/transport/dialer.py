"""Outgoing connections: to a peer's addresses, or by a call over the line that it keeps to us.

Then come TLS, the check of the peer's key and the handshake: both ends prove their identity,
however the connection was made. Messages to one peer go over one connection, by a queue and a
thread that live while there is traffic.
"""

import contextlib
import math
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Container, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from atom.base.errors import PeerRefused, Reason
from atom.config.address import parse_host_port
from atom.swarm.addresses import host_group
from atom.swarm.dial_rules import AddressClass, class_of, may_dial
from atom.swarm.stream import handshake
from atom.swarm.stream.frames import Channel, Interrupted, Kind, Patience, Purpose
from atom.swarm.stream.tls import SocketStream, TlsStream, peer_of_certificate
from atom.swarm.transport import limits
from atom.swarm.transport.limits import Endpoint, Unreachable
from atom.swarm.transport.punching import Punches, shared_port
from atom.swarm.transport.reverse_connections import ReverseConnections

MOST_KNOWN = 8192
"""Bound on known peers; the peer heard of longest ago is forgotten first."""
Route = tuple[str, int]
"""One route to a peer: a host and a port of that peer, or `CALL`."""
CALL: Route = ("", 0)
"""A call over the line that the peer keeps to us; without such a line, a punched connection."""
CALL_PART = 0.9
"""Part of the remaining time that a call or a punched connection may take, if addresses follow of
a peer that says that it cannot be dialled."""
MOST_ADDRESSES = 8
"""Bound on addresses of one host name that are tried."""
MOST_LOOKUPS = 16
"""Bound on host names that are looked up at a time. The system's resolver may take half a minute,
and the names come from strangers' leases."""
_lookups = threading.BoundedSemaphore(MOST_LOOKUPS)

AddressInfo = tuple[int, int, int, str, tuple[Any, ...]]
"""One result of `socket.getaddrinfo`."""


def address_of(text: str) -> Route | None:
    """Parse "host:port" or "[v6]:port"; None if the text is neither, or the port is 0."""
    try:
        host, port = parse_host_port(text)
    except ValueError:
        return None
    return (host, port) if port else None


_UNKNOWN: tuple[tuple[str, ...], bool] = (), False
"""Contact of a peer that was never set."""


class ContactBook:
    """Routes to each peer, best first, by peer id. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, tuple[tuple[tuple[str, ...], bool], list[Route]]] = {}
        """The arguments of the last `set`, and the routes in their present order."""

    def set(self, peer_id: str, addresses: Sequence[str], dials_out: bool = False) -> None:
        """Replace the contact of a peer.

        If the contact changed, the routes are the addresses, then a call. Malformed addresses are
        left out.

        Args:
            peer_id: The peer.
            addresses: Texts "host:port", best first.
            dials_out: True if the peer says that no peer can dial it: the call comes first.
        """
        contact = tuple(addresses), dials_out
        with self._lock:
            before, routes = self._known.pop(peer_id, (_UNKNOWN, [CALL]))
            if contact != before:
                routes = [route for route in map(address_of, addresses) if route]
                routes.insert(0 if dials_out else len(routes), CALL)
            self._known[peer_id] = contact, routes
            while len(self._known) > MOST_KNOWN:
                del self._known[next(iter(self._known))]

    def dials_out(self, peer_id: str) -> bool:
        """Return True if the peer says that no peer can dial it."""
        with self._lock:
            return self._known.get(peer_id, (_UNKNOWN, []))[0][1]

    def routes(self, peer_id: str) -> list[Route]:
        """Return all routes: the address that worked last first, routes that failed last."""
        with self._lock:
            return list(self._known.get(peer_id, (_UNKNOWN, [CALL]))[1])

    def tried(self, peer_id: str, route: Route, worked: bool) -> None:
        """Move an address that worked to the front, or a route that failed to the end."""
        with self._lock:
            _, routes = self._known.get(peer_id, (_UNKNOWN, []))
            if route in routes and not (worked and route == CALL):
                routes.remove(route)
                routes.insert(0 if worked else len(routes), route)


class Dialer:
    """Opens outgoing channels. Thread-safe."""

    def __init__(
        self,
        endpoint: Endpoint,
        reverse: ReverseConnections,
        punches: Punches,
        dialled: Callable[[], frozenset[AddressClass]],
    ) -> None:
        """Create a dialer without contacts.

        Args:
            endpoint: Shared parts of the transport.
            reverse: Lines over which peers can be called.
            punches: Way to peers that can neither be dialled nor called.
            dialled: Returns the classes of addresses that this peer dials at the moment.
        """
        self.contacts = ContactBook()
        self.neighbours: Callable[[], Container[str]] = frozenset
        """Returns the peer ids in our own network: their local addresses are dialled, too."""
        self._endpoint = endpoint
        self._reverse = reverse
        self._punches = punches
        self._dialled = dialled

    def dial(
        self,
        peer_id: str,
        purpose: Purpose,
        tag: bytes = b"",
        seconds: float = math.inf,
        stop: threading.Event | None = None,
        routes: Sequence[Route] | None = None,
    ) -> Channel:
        """Open a channel to one peer.

        Each route but the last has at most half of the remaining time: an address that does not
        answer must not use up all of it. A call has most of the time if the peer says that it
        cannot be dialled.

        Args:
            peer_id: The peer that has to prove its identity at the other end.
            purpose: Purpose of the channel, which the handshake states.
            tag: Tag of a ring channel.
            seconds: Time limit, besides the usual limits.
            stop: Ends the attempt soon after it is set.
            routes: Ways to try, instead of all that are known.

        Raises:
            Unreachable: No route led to the peer.
            PeerRefused: Some route led to a refusal; the last reason.
            Interrupted: `stop` was set.
        """
        failures = list[OSError | PeerRefused]()
        if routes is None:
            called = self._reverse.has_line(peer_id) or self._punches.may_ask(peer_id)
            routes = self.contacts.routes(peer_id) if called else self.addresses(peer_id)
        patience = Patience(seconds, time.monotonic() + seconds, stop)
        for route in routes:
            part = CALL_PART if route == CALL and self.contacts.dials_out(peer_id) else 0.5
            share = patience if route == routes[-1] else _share(patience, part)
            try:
                channel = self._open(route, peer_id, purpose, tag, share)
            except Interrupted:
                raise
            except (OSError, PeerRefused) as failure:
                failures.append(failure)
                self.contacts.tried(peer_id, route, worked=False)
            else:
                self.contacts.tried(peer_id, route, worked=True)
                return channel
        raise _reason(peer_id, failures)

    def connect(self, peer_id: str, route: Route, opening: bytes, seconds: float) -> SocketStream:
        """Open a connection to a peer at a numeric address; send nothing but `opening`.

        Raises:
            OSError: The address does not answer in time, or may not be dialled.
        """
        [target] = self._targets(peer_id, route, seconds)
        return _connect(target, opening, Patience.within(seconds))

    def addresses(self, peer_id: str) -> list[Route]:
        """Return the routes to a peer that are addresses, best first."""
        return [route for route in self.contacts.routes(peer_id) if route != CALL]

    def _open(
        self, route: Route, peer_id: str, purpose: Purpose, tag: bytes, patience: Patience
    ) -> Channel:
        """Open a channel by one route; of a host name, by the first of its addresses that works.

        The addresses share the time of one handshake. Raises: OSError, PeerRefused.
        """
        if route == CALL and not self._reverse.has_line(peer_id):
            with self._punches.to(peer_id, patience) as (below, left):
                return self._shake_hands(below, peer_id, purpose, tag, left)
        deadline = min(patience.deadline, time.monotonic() + limits.HANDSHAKE_S)
        within = replace(patience, deadline=deadline)
        if route == CALL:
            below = self._reverse.call(peer_id, within.left_s())
            return self._shake_hands(below, peer_id, purpose, tag, within)
        targets = self._targets(peer_id, route, within.left_s())
        while True:
            share, target = _share(within, 1 / len(targets)), targets.pop(0)
            try:
                below = _connect(target, b"", share)
                return self._shake_hands(below, peer_id, purpose, tag, share)
            except Interrupted:
                raise
            except (OSError, PeerRefused):
                if not targets:
                    raise

    def _targets(self, peer_id: str, route: Route, seconds: float) -> list[AddressInfo]:
        """Resolve a route to addresses that may be dialled.

        Raises:
            OSError: There is no such address.
        """
        found, dialled, near = resolve(*route, seconds), self._dialled(), self.neighbours()
        targets = [each for each in found if not may_dial(each[4][0], dialled, peer_id in near)]
        if not targets:
            kind = class_of(found[0][4][0])
            raise ConnectionError(f"{Reason.ADDRESS_NOT_DIALLED}: {route[0]} has class {kind}")
        return targets

    def _shake_hands(
        self, below: SocketStream, peer_id: str, purpose: Purpose, tag: bytes, within: Patience
    ) -> Channel:
        end = self._endpoint
        stream = TlsStream(below)
        channel = Channel(stream, end.channels.discard)
        channel.purpose, channel.tag = purpose, tag
        end.keep(channel)
        try:
            stream.handshake(within)
            certificate = stream.certificate()
            if certificate is None or peer_of_certificate(certificate) != peer_id:
                raise PeerRefused(Reason.WRONG_IDENTITY, f"another peer than {peer_id} answered")
            handshake.greet(channel, end.local, peer_id, certificate, within)
        except BaseException:
            channel.close()
            raise
        channel.local, channel.remote = below.ends()
        end.known.seen_at(host_group(channel.remote[0]), peer_id)
        channel.bandwidth = end.bandwidth
        return channel


def _connect(target: AddressInfo, opening: bytes, patience: Patience) -> SocketStream:
    """Open a connection that begins with `opening`.

    Without an opening, the connection is only begun: it is complete, or fails, at the first use.
    Raises: OSError.
    """
    family, _, _, _, address = target
    connecting = SocketStream(shared_port(family))
    try:
        connecting.connect(address)
        connecting.send_all(memoryview(opening), patience)
    except BaseException:
        connecting.close()
        raise
    return connecting


def resolve(host: str, port: int, seconds: float) -> list[AddressInfo]:
    """Return the addresses of a host, best first, at most `MOST_ADDRESSES`. Thread-safe.

    If the time is over, the thread that looks up the name is left running.

    Raises:
        OSError: The name is unknown, or not a name at all.
        TimeoutError: The name was not looked up in time.
    """
    deadline = time.monotonic() + seconds
    with contextlib.suppress(socket.gaierror):
        return _lookup(host, port, socket.AI_NUMERICHOST)
    if not _lookups.acquire(timeout=min(seconds, threading.TIMEOUT_MAX)):
        raise TimeoutError("too many host names are being looked up")
    found = Future[list[AddressInfo]]()

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


def _lookup(host: str, port: int, flags: int = 0) -> list[AddressInfo]:
    """Raises: OSError."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except UnicodeError as problem:  # an empty label, or one that is too long
        raise OSError(f"{host[:80]!r} is not a host name: {problem}") from problem
    return [*found[:MOST_ADDRESSES]]


def _share(patience: Patience, part: float) -> Patience:
    """Return a part of the remaining time."""
    now = time.monotonic()
    return replace(patience, deadline=now + (patience.deadline - now) * part)


def _reason(peer_id: str, failures: list[OSError | PeerRefused]) -> PeerRefused | Unreachable:
    """Return the error that says why no route led to a peer."""
    refusals = [failure for failure in failures if isinstance(failure, PeerRefused)]
    if refusals:
        return refusals[-1]
    detail = "; ".join(str(failure) for failure in failures) or "no known address"
    return Unreachable(f"{peer_id}: {detail}")


class Hint(bytes):
    """Message that is sent again and again anyway.

    If it cannot be delivered, nothing is reported, and the receiver does not count as unreachable.
    """


class Lanes:
    """Queues of messages, one for each destination.

    `send` never blocks; messages that cannot be delivered are dropped and reported. Thread-safe.
    """

    def __init__(self, endpoint: Endpoint, dial: Callable[[str], Channel]) -> None:
        self._endpoint = endpoint
        self._dial = dial
        self._changed = threading.Condition()
        self._queues: dict[str, deque[bytes]] = {}
        """Queues of the destinations that have a thread, by peer id."""

    def send(self, peer_id: str, raw: bytes) -> bool:
        """Queue a message, and return True if there was room.

        Returns:
            False if the queue is full, there are too many destinations, or the transport is
                closing.
        """
        with self._changed:
            if self._endpoint.closing.is_set() or not self._has_lane(peer_id):
                return False
            queue = self._queues[peer_id]
            full = len(queue) >= limits.MAX_QUEUED_MESSAGES
            full = full or sum(map(len, queue)) + len(raw) > limits.MAX_QUEUED_BYTES
            if not full:
                queue.append(raw)
                self._changed.notify_all()
        if full:  # reported without the lock: all senders wait for the lock, and the log for disk
            refused = PeerRefused(Reason.BUSY, "queue full")
            self._endpoint.report("message-dropped", refused, peer_id=peer_id)
        return not full

    def wake(self) -> None:
        """Let the threads end, after `closing` was set."""
        with self._changed:
            self._changed.notify_all()

    def _has_lane(self, peer_id: str) -> bool:
        """Return True if the destination has a queue and a thread; start them if it has none."""
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
        raw: bytes | None = None
        try:
            while (raw := self._next(peer_id, queue)) is not None:
                channel = self._deliver(peer_id, raw, channel)
        except (OSError, PeerRefused) as error:
            lost = error
        finally:
            self._drop(peer_id, queue)
            if channel is not None:
                channel.close()
        matters = not all(isinstance(each, Hint) for each in (raw, *queue))
        if lost is not None and matters and not self._endpoint.closing.is_set():
            self._report_unreachable(peer_id, lost)

    def _next(self, peer_id: str, queue: deque[bytes]) -> bytes | None:
        """Return the next message; None (the lane is gone) after a long silence or when closing."""
        closing = self._endpoint.closing
        with self._changed:
            self._changed.wait_for(lambda: bool(queue) or closing.is_set(), limits.LANE_IDLE_S)
            if not queue or closing.is_set():
                self._drop(peer_id, queue)  # under the lock: a later send starts a new lane
                return None
            return queue.popleft()

    def _drop(self, peer_id: str, queue: deque[bytes]) -> None:
        """End this lane and drop its queued messages: they would fail in the same way."""
        with self._changed:
            if self._queues.get(peer_id) is queue:
                del self._queues[peer_id]

    def _deliver(self, peer_id: str, raw: bytes, channel: Channel | None) -> Channel:
        """Send a message over `channel` if that is alive, otherwise over a new channel.

        Returns the channel that took the message.

        Raises:
            OSError, PeerRefused: The peer cannot be reached.
        """
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

    def _report_unreachable(self, peer_id: str, error: OSError | PeerRefused) -> None:
        refused = PeerRefused(Reason.UNREACHABLE, str(error))
        self._endpoint.report("peer-unreachable", refused, peer_id=peer_id)
        self._endpoint.handlers.on_unreachable(peer_id)
