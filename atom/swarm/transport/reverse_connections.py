"""Reverse connections: peers that cannot be dialled keep a line open to peers that can, are called
over it, and dial back.

A peer answers a call with a TCP connection that begins with a hash of the call's token. From then
on it is a connection like any other, with TLS client and server as if the caller had dialled. That
handshake protects it; the token only says which call is answered.

The caller chooses the token, so the token itself is never sent: a caller could otherwise make its
peer send commands to a service without password. And a call is answered only at the address and
port of the line that it came over, where the caller has proved its identity, not at addresses of
the caller's lease.
"""

import contextlib
import secrets
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial

from blake3 import blake3

from atom.base.errors import PeerRefused
from atom.swarm.stream.frames import Address, Channel, Kind, Patience
from atom.swarm.stream.tls import SocketStream
from atom.swarm.transport import limits
from atom.swarm.transport.limits import Endpoint

ANSWER = b"atomcall"
"""First bytes of a connection that answers a call; TLS begins with another byte."""
TOKEN_BYTES = 16
_ANSWER_CONTEXT = "atom 2026-11 answer to a reverse call"
PING_S = 5.0
"""Interval of signs of life on a line; after three times as much silence it is dialled again."""
_ANSWER_S = 3.0
_MOST_ANSWERS = 32
"""Bound on calls that are being answered at a time, over all lines."""
_SEND_S = 5.0
PAUSE_S = 3.0
"""Pause before a broken line is dialled again."""


def answer_to(token: bytes) -> bytes:
    """Return the `TOKEN_BYTES` that answer a call with this token."""
    return blake3(token, derive_key_context=_ANSWER_CONTEXT).digest(length=TOKEN_BYTES)


class ReverseConnections:
    """Lines that others keep open to us, and calls over them. Thread-safe."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._lines: dict[str, tuple[Channel, threading.Lock]] = {}
        """Line of each peer, and the lock that is held while sending on it."""
        self._calls: dict[bytes, Future[SocketStream]] = {}
        """Calls that wait for an answer, by the bytes that answer them."""

    def has_line(self, peer_id: str) -> bool:
        """Return True if a peer holds a line on which we can call it. Thread-safe."""
        with self._lock:
            return peer_id in self._lines

    def serve_line(self, channel: Channel) -> None:
        """Serve a line until it ends; a newer line of the same peer replaces it.

        Raises:
            OSError: The other end is gone.
        """
        peer_id, line = channel.peer_id, (channel, threading.Lock())
        with self._lock:
            others = [line for peer, (line, _) in self._lines.items() if peer != peer_id]
            if not self._endpoint.known.makes_room(channel, others, limits.PLACES_FOR_LINES):
                return
            before, self._lines[peer_id] = self._lines.get(peer_id), line
        if before:
            before[0].close()
        try:
            while not channel.closed.wait(PING_S) and channel.stream.idle():
                self._say(line, Kind.PING)  # the other end sends nothing but its end
        finally:
            with self._lock:
                if self._lines.get(peer_id) is line:
                    del self._lines[peer_id]

    def call(self, peer_id: str, seconds: float) -> SocketStream:
        """Call a peer over its line; return the connection that it opens.

        Raises:
            TimeoutError: The peer did not connect in time.
            ConnectionError: The peer holds no line, or this transport is closing.
        """
        token, answer = secrets.token_bytes(TOKEN_BYTES), Future[SocketStream]()
        with self._lock:
            line = self._lines.get(peer_id)
            if line is None or self._endpoint.closing.is_set():
                raise ConnectionError(f"{peer_id}: has no connection to this peer")
            self._calls[answer_to(token)] = answer
        try:
            self._say(line, Kind.CALL, token)
            return answer.result(seconds)
        except OSError:
            with self._lock:
                came = self._calls.pop(answer_to(token), None) is None
            if came:  # answered in the last moment, or we are closing
                return answer.result()
            raise

    def arrived(self, answered: bytes, stream: SocketStream) -> bool:
        """Hand a connection to the call that it answers; False if no call waits for it."""
        with self._lock:
            answer = self._calls.pop(answered, None)
            if answer:
                answer.set_result(stream)
        return answer is not None

    def close(self) -> None:
        """End all calls; the listener closes the channels of the lines."""
        with self._lock:
            while self._calls:
                self._calls.popitem()[1].set_exception(ConnectionError("closed by this peer"))

    def _say(self, line: tuple[Channel, threading.Lock], kind: Kind, token: bytes = b"") -> None:
        channel, sending = line
        with sending:
            channel.send_frame(kind, token, patience=Patience.within(_SEND_S))


class OwnLines:
    """Lines that we keep open to others. Thread-safe."""

    def __init__(
        self,
        endpoint: Endpoint,
        dial: Callable[[str], Channel],
        connect: Callable[[str, Address, bytes, float], SocketStream],
        serve: Callable[[SocketStream, str], None],
    ) -> None:
        """Create a set of lines that is empty.

        Args:
            endpoint: Shared parts of the transport.
            dial: Opens a line to a peer; raises OSError, PeerRefused.
            connect: Opens a connection to a peer at an address; the connection begins with the
                given bytes. The last argument is its time limit. Raises OSError.
            serve: Serves such a connection from that host, as the listener does, to its end.
        """
        self._endpoint = endpoint
        self._dial = dial
        self._connect = connect
        self._serve = serve
        self._lock = threading.Lock()
        self._wanted: frozenset[str] = frozenset()
        self._lines: dict[str, Channel | None] = {}
        """Own lines by peer id, each with a thread; None while the line is being dialled."""
        self._answers = threading.BoundedSemaphore(_MOST_ANSWERS)

    def standing(self) -> list[str]:
        """Return the peers to which a line stands now. Thread-safe."""
        with self._lock:
            lines = [*self._lines.items()]
        return [peer for peer, line in lines if line and not line.closed.is_set()]

    def keep(self, peer_ids: Iterable[str]) -> None:
        """Keep a line to each of these peers, and to no other.

        Call it regularly: it starts lines again that ended, or that got no thread.
        """
        with self._lock:
            wanted = self._wanted = frozenset(peer_ids)
            begin = wanted - self._lines.keys()
            ending = [line for peer, line in self._lines.items() if line and peer not in wanted]
            self._lines.update(dict.fromkeys(begin))
        for line in ending:
            line.close()
        for peer_id in begin:
            try:
                self._endpoint.threads.start("atom-line", partial(self._hold, peer_id))
            except OSError:
                self._forget(peer_id)

    def _hold(self, peer_id: str) -> None:
        """Keep a line for as long as it is wanted.

        A peer without room for one more line hangs up: it is asked again after the same pause.
        """
        try:
            while peer_id in self._wanted and not self._endpoint.closing.is_set():
                with contextlib.suppress(OSError, PeerRefused):  # the loop tries again
                    self._hear_calls(peer_id)
                self._endpoint.closing.wait(PAUSE_S)
        finally:
            self._forget(peer_id)

    def _forget(self, peer_id: str) -> None:
        with self._lock:
            del self._lines[peer_id]

    def _hear_calls(self, peer_id: str) -> None:
        """Serve one line to its end. Raises: PeerRefused, OSError."""
        with contextlib.closing(self._dial(peer_id)) as channel:
            with self._lock:
                self._lines[peer_id] = channel
            while peer_id in self._wanted:
                self._hear(peer_id, channel)

    def _hear(self, peer_id: str, channel: Channel) -> None:
        """Receive one frame of a line; answer it on a new thread if it is a call.

        Raises: PeerRefused, OSError.
        """
        kind, length = channel.recv_header(TOKEN_BYTES, Patience(3 * PING_S))
        token = channel.recv_body(length, Patience(3 * PING_S))
        if kind == Kind.CALL and self._answers.acquire(blocking=False):
            answer = partial(self._answer, peer_id, channel.remote, answer_to(token))
            try:
                self._endpoint.threads.start("atom-answer", answer)
            except OSError:
                self._answers.release()
                raise

    def _answer(self, peer_id: str, caller: Address, answer: bytes) -> None:
        try:
            stream = self._connect(peer_id, caller, ANSWER + answer, _ANSWER_S)
        except OSError:  # the caller notices by itself
            return
        finally:
            self._answers.release()
        self._serve(stream, caller[0])
