"""Reaching peers that cannot be dialled: they keep a line open to peers that can, are called over
it, and dial back.

A peer answers a call with a TCP connection that begins with the call's token. From then on it is a
connection like any other, TLS client and server as if the caller had dialled: what protects it is
that handshake, not the token, which only says which call is answered.
"""

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from atom.base.errors import PeerRefused
from atom.swarm.stream.frames import Channel, Kind, Patience
from atom.swarm.stream.tls import SocketStream
from atom.swarm.transport.limits import Endpoint

ANSWER = b"atomcall"
"""How a connection begins that answers a call; TLS begins with another byte."""
TOKEN_BYTES = 16
PING_S = 5.0
"""A line says this often that it is there; after three times as much silence it is dialled anew."""
_ANSWER_S = 3.0
_MAX_CALLS = 64
"""Under way at a time, per line."""
_MOST_ANSWERS = 32
"""Calls that are being answered at a time, over all lines."""
_SEND_S = 5.0
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 10.0


class ReverseConnections:
    """Lines that others keep open to us, and calls over them. Thread-safe."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._changed = threading.Condition()
        self._lines: dict[str, deque[bytes]] = {}
        """Per peer the tokens that are yet to be told."""
        self._expected: dict[bytes, SocketStream | None] = {}

    def has_line(self, peer_id: str) -> bool:
        with self._changed:
            return peer_id in self._lines

    def serve_line(self, channel: Channel) -> None:
        """Serves a line until it ends; a newer one of the same peer takes its place.

        Raises: OSError when the other end is gone.
        """
        peer_id, calls = channel.peer_id, deque[bytes](maxlen=_MAX_CALLS)
        limits, known = self._endpoint.limits, self._endpoint.known
        with self._changed:
            others = self._lines.keys() - {peer_id}
            if not known.has_room(peer_id, others, limits.lines):
                return
            self._lines[peer_id] = calls
            self._changed.notify_all()
        try:
            while self._tell_next(channel, calls):
                pass
        finally:
            with self._changed:
                if self._lines.get(peer_id) is calls:
                    del self._lines[peer_id]
                self._changed.notify_all()

    def call(self, peer_id: str, seconds: float) -> SocketStream:
        """A connection that `peer_id` opened because we asked. If its line is replaced meanwhile,
        the call goes over the new one.

        Raises: ConnectionError, TimeoutError.
        """
        token, deadline = secrets.token_bytes(TOKEN_BYTES), time.monotonic() + seconds
        with self._changed:
            self._expected[token] = None
            try:
                while self._expected[token] is None and time.monotonic() < deadline:
                    self._ask(peer_id, token, deadline)
            finally:
                answered = self._expected.pop(token)
        if answered is None:
            raise TimeoutError(f"{peer_id}: did not answer our call")
        return answered

    def _ask(self, peer_id: str, token: bytes, deadline: float) -> None:
        """Over the line that is there now; returns with an answer, another line, or no time left.

        Raises: ConnectionError.
        """
        calls = self._lines.get(peer_id)
        if calls is None:
            raise ConnectionError(f"{peer_id}: keeps no line to us")
        calls.append(token)
        self._changed.notify_all()
        self._changed.wait_for(
            lambda: self._expected[token] is not None or self._lines.get(peer_id) is not calls,
            max(deadline - time.monotonic(), 0.0),
        )

    def arrived(self, token: bytes, stream: SocketStream) -> bool:
        """A connection answers a call; False if nobody waits for it (any more)."""
        with self._changed:
            if token not in self._expected or self._expected[token] is not None:
                return False
            self._expected[token] = stream
            self._changed.notify_all()
            return True

    def close(self) -> None:
        """Ends all calls; the lines' threads end by themselves once the transport is closing."""
        with self._changed:
            self._lines.clear()
            self._changed.notify_all()

    def _tell_next(self, channel: Channel, calls: deque[bytes]) -> bool:
        """Sends a token, or a ping after a while. False: this line's time is over."""

        def over() -> bool:
            closing = self._endpoint.closing.is_set() or channel.closed.is_set()
            return closing or self._lines.get(channel.peer_id) is not calls

        with self._changed:
            self._changed.wait_for(lambda: bool(calls) or over(), PING_S)
            if over():
                return False
            token = calls.popleft() if calls else b""
        if not channel.stream.idle():
            return False  # the other end never speaks here: this is its end of stream
        kind = Kind.CALL if token else Kind.PING
        channel.send_frame(kind, token, patience=Patience.within(_SEND_S))
        return True


class OwnLines:
    """Lines that we keep open to others. Each has a thread, which dials again when the line breaks.
    Thread-safe."""

    def __init__(
        self,
        endpoint: Endpoint,
        dial: Callable[[str], Channel],
        open_plain: Callable[[str, float], tuple[SocketStream, str]],
        serve: Callable[[SocketStream, str], None],
    ) -> None:
        """`dial`: opens a line to that peer; raises OSError, PeerRefused. `open_plain`: within so
        many seconds, a connection to that peer, nothing proven, and its host; raises OSError.
        `serve`: serves such a connection as the listener does, to its end."""
        self._endpoint = endpoint
        self._dial = dial
        self._open_plain = open_plain
        self._serve = serve
        self._changed = threading.Condition()
        self._wanted: frozenset[str] = frozenset()
        self._running: set[str] = set()
        self._up: dict[str, Channel] = {}
        self._answers = threading.BoundedSemaphore(_MOST_ANSWERS)

    def keep(self, peer_ids: Iterable[str]) -> None:
        """From now on a line to each of these, and to no other."""
        with self._changed:
            self._wanted = frozenset(peer_ids)
            begin = self._wanted - self._running
            self._running |= begin
            ending = [line for peer, line in self._up.items() if peer not in self._wanted]
            self._changed.notify_all()
        for line in ending:
            line.close()
        for peer_id in begin:
            try:
                self._endpoint.threads.start("atom-line", partial(self._run, peer_id))
            except OSError:  # the next `keep` tries again
                self._ended(peer_id)

    def wake(self) -> None:
        """After `closing` was set: lets the threads end."""
        with self._changed:
            self._changed.notify_all()

    def _run(self, peer_id: str) -> None:
        pause_s = _FIRST_PAUSE_S
        try:
            while self._goes_on(peer_id):
                heard = self._hold(peer_id)
                pause_s = _FIRST_PAUSE_S if heard else min(2 * pause_s, _LONGEST_PAUSE_S)
                with self._changed:
                    self._changed.wait_for(lambda: self._over(peer_id), pause_s)
        except Exception:
            self._ended(peer_id)  # the thread group tells of it, and the next `keep` begins anew
            raise

    def _goes_on(self, peer_id: str) -> bool:
        with self._changed:
            if self._over(peer_id):
                self._running.discard(peer_id)  # under the lock: a later `keep` begins anew
                return False
            return True

    def _ended(self, peer_id: str) -> None:
        with self._changed:
            self._running.discard(peer_id)

    def _over(self, peer_id: str) -> bool:
        return self._endpoint.closing.is_set() or peer_id not in self._wanted

    def _hold(self, peer_id: str) -> bool:
        """Keeps a line until it breaks. Whether anything came over it: a peer that has no room for
        one more lets us in, and hangs up."""
        try:
            channel = self._dial(peer_id)
        except (OSError, PeerRefused):  # the next try is the answer
            return False
        with self._changed:
            self._up[peer_id] = channel
        heard = False
        try:
            while not self._over(peer_id):
                self._hear(peer_id, channel)
                heard = True
        except (OSError, PeerRefused):  # and to this
            pass
        finally:
            channel.close()
            with self._changed:
                del self._up[peer_id]
        return heard

    def _hear(self, peer_id: str, channel: Channel) -> None:
        """Raises: PeerRefused, OSError."""
        kind, length = channel.recv_header(TOKEN_BYTES, Patience(3 * PING_S))
        token = channel.recv_rest(length, Patience(3 * PING_S))
        if kind == Kind.CALL and self._answers.acquire(blocking=False):
            try:
                self._endpoint.threads.start("atom-answer", partial(self._answer, peer_id, token))
            except OSError:
                self._answers.release()
                raise

    def _answer(self, peer_id: str, token: bytes) -> None:
        try:
            stream, host = self._open_plain(peer_id, _ANSWER_S)
            try:
                stream.send_all(memoryview(ANSWER + token), Patience.within(_ANSWER_S))
            except OSError:
                stream.close()
                raise
        except OSError:  # the caller notices by itself
            return
        finally:
            self._answers.release()
        self._serve(stream, host)
