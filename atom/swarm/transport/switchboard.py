"""Calling peers that cannot be dialled: they keep a line open to us, and dial us when called.

Such a peer answers a call with a TCP connection that begins with the call's token. From then on it
is a connection like any other, TLS client and server as if *we* had dialled: what protects it is
that handshake, not the token, which only says whose turn it is.
"""

import secrets
import threading
import time
from collections import deque

from atom.swarm.stream.frames import Channel, Kind, Patience
from atom.swarm.stream.socket_stream import SocketStream
from atom.swarm.transport.contacts import Unreachable
from atom.swarm.transport.endpoint import Endpoint

ANSWER = b"atomcall"
"""How a connection begins that answers a call; TLS begins with another byte."""
TOKEN_BYTES = 16
PING_S = 5.0
"""A line says this often that it is there; after three times as much silence it is dialled anew."""
_MAX_CALLS = 64
"""Under way at a time, per line."""
_SEND_S = 5.0


class Switchboard:
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

    def attend(self, channel: Channel) -> None:
        """Serves a line until it ends; a newer one of the same peer takes its place.

        Raises: OSError when the other end is gone.
        """
        peer_id, calls = channel.peer_id, deque[bytes](maxlen=_MAX_CALLS)
        with self._changed:
            if peer_id not in self._lines and not self._has_room(peer_id):
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
        """A connection that `peer_id` opened because we asked. A line that is replaced meanwhile is
        no answer: the call goes over the new one.

        Raises: Unreachable, TimeoutError.
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

        Raises: Unreachable.
        """
        calls = self._lines.get(peer_id)
        if calls is None:
            raise Unreachable(f"{peer_id}: keeps no line to us")
        calls.append(token)
        self._changed.notify_all()
        self._changed.wait_for(
            lambda: self._expected[token] is not None or self._lines.get(peer_id) is not calls,
            max(deadline - time.monotonic(), 0.0),
        )

    def arrived(self, token: bytes, stream: SocketStream) -> bool:
        """Somebody answers a call; False if nobody waits for it (any more)."""
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
        with self._changed:
            self._changed.wait_for(lambda: bool(calls) or not self._ours(channel, calls), PING_S)
            if not self._ours(channel, calls):
                return False
            token = calls.popleft() if calls else b""
        if not channel.stream.idle():
            return False  # the other end never speaks here: this is its end of stream
        kind = Kind.CALL if token else Kind.PING
        channel.send_frame(kind, token, patience=Patience.within(_SEND_S))
        return True

    def _has_room(self, peer_id: str) -> bool:
        limits, known = self._endpoint.limits, self._endpoint.known
        if len(self._lines) >= limits.lines:
            return False
        return peer_id in known or known.strangers(self._lines) < limits.lines_of_strangers

    def _ours(self, channel: Channel, calls: deque[bytes]) -> bool:
        closing = self._endpoint.closing.is_set() or channel.closed.is_set()
        return not closing and self._lines.get(channel.peer_id) is calls
