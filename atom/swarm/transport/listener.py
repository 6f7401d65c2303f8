"""Incoming connections: each has a thread, proves its peer, and is served by its purpose.

A connection that answers a call of ours goes to the caller instead. A connection that we opened
because another peer called us is served here as if it had been accepted.
"""

import contextlib
import socket
import threading
from collections.abc import Callable, Mapping
from functools import partial

from atom.base.errors import PeerRefused, Reason
from atom.swarm.addresses import listening
from atom.swarm.chain.messages import MAX_MESSAGE_BYTES
from atom.swarm.stream import handshake
from atom.swarm.stream.bandwidth import Rate
from atom.swarm.stream.frames import Channel, Kind, Patience, Purpose
from atom.swarm.stream.tls import SocketStream, TlsStream, server_context
from atom.swarm.transport import limits
from atom.swarm.transport.limits import ConnectionLimiter, Endpoint, FairShare, offend
from atom.swarm.transport.reverse_connections import ANSWER, TOKEN_BYTES, ReverseConnections

_LAST_WORDS_S = 0.3
_KIB = 1024.0
MESSAGES_OF_KNOWN = Rate(256 * _KIB, 2048 * _KIB)
"""Bytes of messages that are read of each known peer; 200 kB may take 57 ms of the interpreter."""
MESSAGES_OF_STRANGER = Rate(2 * _KIB, 8 * _KIB)
"""Bytes of messages that are read of each stranger even in a flood: enough for a newcomer's
promises."""
MESSAGES_OF_ALL_STRANGERS = Rate(128 * _KIB, 1024 * _KIB)
_BYTES_PER_MESSAGE = 512
"""Bytes that each message costs in addition to its own."""


def data_door(bind: tuple[str, int]) -> socket.socket:
    """Return a socket that other peers may dial.

    Raises:
        PortInUseError: Another program has the port.
        AddressError: The host is not an address of this machine.
    """
    return listening(*bind, "[network] data_port in a peer file")


class RingPool:
    """Ring channels of other peers that this peer has not claimed yet. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[tuple[str, bytes], Channel] = {}
        """Channel by peer id and tag."""
        self._closed = False

    def serve(self, channel: Channel) -> None:
        """Hold a channel until its claimant, or a newer channel of this peer and tag, closes it.

        Raises:
            PeerRefused: NOT_FOUND: the channel is not claimed in time.
        """
        key = (channel.peer_id, channel.tag)
        with self._changed:
            before, self._waiting[key] = self._waiting.get(key), channel
            self._changed.notify_all()
        if before:
            before.close()
        ended = channel.closed.wait(limits.UNCLAIMED_RING_S)
        with self._changed:
            unclaimed = self._waiting.get(key) is channel
            if unclaimed:
                del self._waiting[key]
        if unclaimed and not ended:
            raise PeerRefused(Reason.NOT_FOUND, "this peer did not ask for that ring")
        channel.closed.wait()

    def claim(self, peer_id: str, tag: bytes, seconds: float) -> Channel:
        """Wait for the channel of that peer and tag.

        Raises:
            PeerRefused: TIMEOUT: the channel did not come in time.
            ConnectionError: This transport is closing.
        """
        key = (peer_id, tag)
        with self._changed:
            self._changed.wait_for(lambda: key in self._waiting or self._closed, seconds)
            if self._closed:
                raise ConnectionError("closed by this peer")
            if key not in self._waiting:
                raise PeerRefused(Reason.TIMEOUT, f"no ring connection from {peer_id}")
            return self._waiting.pop(key)

    def close(self) -> None:
        """End all waiting for channels."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class Listener:
    """Listening socket and its connections, each with a separate thread."""

    def __init__(
        self,
        endpoint: Endpoint,
        reverse: ReverseConnections,
        served: Mapping[Purpose, Callable[[Channel], None]],
    ) -> None:
        """Create a listener that does not listen yet.

        Args:
            endpoint: Identity, log, clock and limits.
            reverse: Our calls, to which incoming connections may be answers.
            served: Function for each further purpose than messages and rings; it serves a channel
                to its end and raises PeerRefused, OSError. Other purposes are refused.
        """
        self.rings = RingPool()
        own = {Purpose.MESSAGES: self._read_messages, Purpose.RING: self.rings.serve}
        self._served = {**own, **served}
        self._rates = FairShare(
            endpoint.known, MESSAGES_OF_KNOWN, MESSAGES_OF_STRANGER, MESSAGES_OF_ALL_STRANGERS
        )
        self._endpoint = endpoint
        self._context, self._certificate = server_context(endpoint.local.identity)
        self._reverse = reverse
        self._limiter = limiter = ConnectionLimiter(endpoint.known)
        self.public_hosts = limiter.public_hosts
        self._socket: socket.socket | None = None

    def start(self, bind: tuple[str, int]) -> tuple[str, int]:
        """Listen and return the bound address.

        Raises:
            PortInUseError, AddressError: As `data_door`.
            OSError: The system has no thread left.
        """
        self._socket = data_door(bind)
        self._endpoint.threads.start("atom-accept", self._accept)
        name = self._socket.getsockname()
        return str(name[0]), int(name[1])

    def close(self) -> None:
        """Stop listening, and end all waiting for rings."""
        self.rings.close()
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes accept

    def _accept(self) -> None:
        assert self._socket is not None
        closing = self._endpoint.closing
        with self._socket:
            while not closing.is_set():
                try:
                    accepted, address = self._socket.accept()
                except OSError:  # closing, or out of descriptors: pause and go on
                    closing.wait(0.1)
                    continue
                self._take(accepted, str(address[0]))

    def _take(self, accepted: socket.socket, host: str) -> None:
        below = SocketStream(accepted)
        channel = self._channel(below, host)
        if not self._limiter.enter(channel, host):
            channel.close()
            self._report_refusal(PeerRefused(Reason.TOO_MANY_CONNECTIONS), host)
            return
        try:
            serve = partial(self._serve, channel, below, host)
            self._endpoint.threads.start("atom-inbound", serve)
        except OSError:  # the system has no thread now; later connections may get one
            channel.close()

    def serve_called(self, connected: SocketStream, host: str) -> None:
        """Serve a connection that we opened because `host` called us, to its end."""
        channel = self._channel(connected, host)
        if self._limiter.enter(channel, host):
            self._attend(channel, connected, host, Patience.within(limits.HANDSHAKE_S))
        else:
            channel.close()

    def _serve(self, channel: Channel, below: SocketStream, host: str) -> None:
        """Serve a connection to its end.

        A connection that begins with a call's token goes to the caller. The first bytes of all
        others belong to the TLS handshake.
        """
        opening, token = bytearray(len(ANSWER)), b""
        patience = Patience.within(limits.HANDSHAKE_S)
        try:
            below.recv_into(memoryview(opening), patience)
            if opening == ANSWER:
                token = channel.recv_body(TOKEN_BYTES, patience)
        except OSError as error:
            self._report_refusal(_named(error), host)
            channel.close()
            return
        if not token:
            self._attend(channel, below, host, patience, bytes(opening))
        elif self._reverse.arrived(token, below):
            self._left(channel)  # the caller owns the connection now
        else:
            channel.close()

    def _channel(self, below: SocketStream, host: str) -> Channel:
        channel = Channel(below, self._left)
        channel.local, (_, port) = below.ends()
        channel.remote = host, port
        self._endpoint.keep(channel)
        return channel

    def _attend(
        self,
        channel: Channel,
        below: SocketStream,
        host: str,
        patience: Patience,
        received: bytes = b"",
    ) -> None:
        try:
            self._admit(channel, below, patience, received)
        except (PeerRefused, OSError) as error:
            self._report_refusal(_named(error), host, channel.peer_id)
            if isinstance(error, PeerRefused):
                self._send_refusal(channel, error)
            channel.close()
            return
        self._run(channel)

    def _admit(
        self, channel: Channel, below: SocketStream, patience: Patience, received: bytes
    ) -> None:
        """Complete the handshake within its limits.

        Raises:
            PeerRefused: The other end can be told why it is refused.
            OSError: The connection failed.
        """
        end = self._endpoint
        channel.stream = stream = TlsStream(below, self._context, received)
        stream.handshake(patience)
        handshake.receive(channel, end.local, self._certificate, patience)
        if channel.purpose not in self._served:
            raise PeerRefused(Reason.NOT_FOUND, f"{channel.purpose.name.lower()} is not served")
        if not self._limiter.identify(channel):
            raise PeerRefused(Reason.TOO_MANY_CONNECTIONS, "from this peer, or from strangers")
        handshake.welcome(channel, end.local, patience)
        channel.bandwidth = end.bandwidth

    def _run(self, channel: Channel) -> None:
        """Serve an admitted channel to its end."""
        end = self._endpoint
        try:
            self._served[channel.purpose](channel)
        except PeerRefused as refused:
            offend(end.offenders, channel.peer_id, refused.reason, end.clock.now())
            end.report("connection-dropped", refused, peer_id=channel.peer_id)
        except OSError:  # the other end left, or we are closing: no event
            pass
        finally:
            channel.close()

    def _read_messages(self, channel: Channel) -> None:
        end = self._endpoint
        idle = Patience(3 * limits.LANE_IDLE_S)
        while not end.closing.is_set():
            kind, length = channel.recv_header(MAX_MESSAGE_BYTES, idle)
            if kind != Kind.MESSAGE:
                raise PeerRefused(Reason.MALFORMED, f"frame kind {kind} among messages")
            raw = self._body_of_message(channel, length)
            cost = length + _BYTES_PER_MESSAGE
            if channel.closed.wait(self._rates.wait_s(channel.peer_id, cost, end.clock.now())):
                return
            end.handlers.on_message(channel.peer_id, channel.incarnation, raw)

    def _body_of_message(self, channel: Channel, length: int) -> bytes:
        """Return the payload. Raises: PeerRefused(TIMEOUT) if it is too slow; OSError."""
        within_s = limits.FRAME_S
        try:
            return channel.recv_body(length, Patience.within(within_s))
        except TimeoutError as late:
            detail = f"a frame of {length} bytes takes longer than {within_s:g} s"
            raise PeerRefused(Reason.TIMEOUT, detail) from late

    def _send_refusal(self, channel: Channel, refused: PeerRefused) -> None:
        patience = Patience.within(_LAST_WORDS_S)
        with contextlib.suppress(OSError, PeerRefused):
            handshake.refuse(channel, refused, patience)
            channel.recv_header(0, patience)  # closing with unread bytes would erase the answer

    def _report_refusal(self, refused: PeerRefused, host: str, peer_id: str = "") -> None:
        self._endpoint.report("connection-refused", refused, host=host, peer_id=peer_id)

    def _left(self, channel: Channel) -> None:
        self._endpoint.channels.discard(channel)
        self._limiter.leave(channel)


def _named(error: PeerRefused | OSError) -> PeerRefused:
    """Return the reason that the log gives for a connection whose handshake failed."""
    if isinstance(error, PeerRefused):
        return error
    late = isinstance(error, TimeoutError)
    return PeerRefused(Reason.TIMEOUT if late else Reason.BAD_HANDSHAKE, str(error))
