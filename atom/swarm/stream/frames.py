"""Channels: frames over any stream. A frame is its length (four bytes), its kind (one byte), and
its payload.

Only one thread at a time may use a channel, for sending and receiving together: OpenSSL's
connection object has no lock. Only `close` may be called on another thread; it frees a blocked one.
"""

import math
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from atom.base.errors import PeerRefused, Reason
from atom.swarm.stream.bandwidth import Bandwidth, Precedence, Rank

Address = tuple[str, int]
"""A numeric IP address and a port."""
NO_ADDRESS: Address = ("0.0.0.0", 0)
"""Unknown address: no rule allows to dial it."""
_HEADER = struct.Struct(">IB")
_SMALL_BYTES = 4096
_SLICE_S = 0.05  # how soon a set `stop` is noticed
_LOOK_S = 0.01  # how often a channel asks whether transfers of higher rank leave room
SLOWEST_BYTES_PER_S = 64 * 1024.0
"""Least pace, about half a megabit: a slower member would make all members wait for hours."""


class Purpose(IntEnum):
    """Purpose of a connection, fixed by its handshake."""

    MESSAGES = 1
    RING = 2
    BLOBS = 3
    LINE = 4
    """Connection that a peer keeps open if it cannot be dialled: over it, other peers ask the peer
    to dial them."""
    INTRODUCE = 5
    """Asks an introducer for a connection to the peer in the tag: see `punching`."""
    PROBE = 6
    """ "Can you dial me?" """
    TEXT = 7
    """Blobs of a run's text, with a separate limit of connections, so that a peer that needs a
    result never waits for peers that fetch text."""
    MEET = 8
    """Introducer's connection to that peer."""


_RANKS = {Purpose.RING: Rank.EXCHANGE, Purpose.BLOBS: Rank.STATE, Purpose.TEXT: Rank.TEXT}


class Kind(IntEnum):
    """Type of a frame."""

    CHALLENGE = 1
    HELLO = 2
    WELCOME = 3
    REFUSED = 4
    MESSAGE = 16
    CHUNK = 32
    WAITING = 33
    """Ring: "I am alive, and myself waiting for my left neighbour." """
    BROKEN = 34
    BLOB_REQUEST = 48
    BLOB = 49
    CALL = 64
    """Line: "dial me, and begin with this token." """
    PING = 65
    """Line: sign of life."""
    REACHED = 66
    """Probe: the answer (see `Reached`)."""
    SEEN = 67
    """Introduction: the address at which the introducer sees the other peer."""


class Interrupted(ConnectionError):
    """Error of a wait that the caller's own `stop` ended; the stream itself is intact."""


@dataclass(frozen=True)
class Patience:
    """Time limits of an operation: `silence_s` without a byte, and `deadline` for the whole."""

    silence_s: float
    deadline: float = math.inf
    """Monotonic time by which the operation must end."""
    stop: threading.Event | None = None

    @classmethod
    def within(cls, seconds: float) -> "Patience":
        """Return limits that make all operations that use them end within `seconds` from now."""
        return cls(seconds, time.monotonic() + seconds)

    def left_s(self) -> float:
        """Return the seconds until the deadline, at least 0."""
        return max(self.deadline - time.monotonic(), 0.0)

    def wait_s(self, last_byte: float) -> float:
        """Return the seconds for which a call may block now.

        Args:
            last_byte: Monotonic time of the last byte.

        Raises:
            TimeoutError: A time limit has passed.
            Interrupted: `stop` was set.
        """
        if self.stop is not None and self.stop.is_set():
            raise Interrupted("stopped")
        left = min(last_byte + self.silence_s, self.deadline) - time.monotonic()
        if left <= 0:
            raise TimeoutError("no byte arrived for too long")
        return left if self.stop is None else min(left, _SLICE_S)


@dataclass(frozen=True)
class Pace:
    """Least speed of a transfer: bytes per second on average, after `slack_s` seconds to begin.

    In an exchange all members depend on each other's bytes, so they fall behind the pace together.
    """

    slack_s: float = 5.0
    bytes_per_s: float = SLOWEST_BYTES_PER_S

    def due_s(self, done_bytes: int) -> float:
        """Return the seconds from the start by which more than `done_bytes` must have passed."""
        return self.slack_s + done_bytes / self.bytes_per_s


class Stream(Protocol):
    """Ordered bytes in both directions."""

    def send_all(self, view: memoryview, patience: Patience) -> None:
        """Send all bytes.

        Raises:
            TimeoutError, Interrupted, ConnectionError: Not all bytes were sent.
        """

    def recv_into(self, view: memoryview, patience: Patience) -> None:
        """Fill `view`.

        Raises:
            TimeoutError, Interrupted: The bytes did not come in time, or waiting was interrupted.
            ConnectionError: The stream ended.
        """

    def idle(self) -> bool:
        """Return True if nothing (no data, no end of stream) waits to be received."""

    def close(self) -> None:
        """Close the stream; blocked calls raise ConnectionError. Thread-safe and idempotent."""


class Channel:
    """Frames over a stream to one authenticated peer, under the volunteer's caps and priorities."""

    def __init__(self, stream: Stream, on_close: Callable[["Channel"], None] | None = None) -> None:
        self.stream = stream
        self.bandwidth: Bandwidth | None = None
        """Caps of the volunteer; None until the handshake is over: no caps."""
        self.peer_id = ""
        self.incarnation = b""
        self.local, self.remote = NO_ADDRESS, NO_ADDRESS
        """Addresses of this end, and of the other end as seen here."""
        self.purpose = Purpose.MESSAGES
        self.tag = b""
        self.round_trip_s = 0.0
        """Time of one question and answer of the handshake, with the time to sign or verify the
        client's proof."""
        self.sending_s = 0.0
        """Total time spent in sending frames; written by the sending thread."""
        self.closed = threading.Event()
        self._ending = threading.Lock()
        self._on_close = on_close
        self._was_in_ring = False
        """True once the channel has carried bytes of an exchange. Only then does `close` count as
        the end of an exchange: a connection that no exchange has accepted does not."""

    def send_all(self, view: memoryview, patience: Patience) -> None:
        """Send a part of a frame.

        Raises:
            TimeoutError, Interrupted, ConnectionError: As `Stream.send_all`.
        """
        if (bandwidth := self.bandwidth) is None:
            return self.stream.send_all(view, patience)
        for part in self._in_turn(bandwidth.sending, view, patience):
            for piece in bandwidth.upload.slices(part):
                self.closed.wait(bandwidth.upload.take(len(piece), time.monotonic()))
                self.stream.send_all(piece, patience)
                bandwidth.carried(sent=len(piece))

    def recv_into(self, view: memoryview, patience: Patience) -> None:
        """Fill `view` with a part of a frame.

        Raises:
            TimeoutError, Interrupted, ConnectionError: As `Stream.recv_into`.
        """
        if (bandwidth := self.bandwidth) is None:
            return self.stream.recv_into(view, patience)
        for part in self._in_turn(bandwidth.receiving, view, patience):
            for piece in bandwidth.download.slices(part):
                self.stream.recv_into(piece, patience)
                bandwidth.carried(received=len(piece))
                self.closed.wait(bandwidth.download.take(len(piece), time.monotonic()))

    def _in_turn(
        self, precedence: Precedence, view: memoryview, patience: Patience
    ) -> Iterator[memoryview]:
        """Yield parts of `view`, each as soon as it may pass. Raises: TimeoutError, Interrupted."""
        rank = _RANKS.get(self.purpose)
        self._was_in_ring |= rank is Rank.EXCHANGE
        while view:
            now, size = time.monotonic(), len(view)
            if rank is not None and not self.closed.is_set():
                size = precedence.take(rank, size, now)
            if size:
                yield view[:size]
                view = view[size:]
            else:
                patience.wait_s(now)
                self.closed.wait(_LOOK_S)

    def send_frame(self, kind: Kind, *parts: bytes | memoryview, patience: Patience) -> None:
        """Send the parts as one frame.

        Raises:
            TimeoutError, Interrupted, ConnectionError: As `Stream.send_all`.
        """
        began = time.monotonic()
        pending = _HEADER.pack(sum(len(part) for part in parts), kind)
        for part in parts:
            if len(part) < _SMALL_BYTES:  # small parts are sent with the bytes before them
                pending += part
                continue
            if pending:
                self.send_all(memoryview(pending), patience)
            self.send_all(memoryview(part), patience)
            pending = b""
        if pending:
            self.send_all(memoryview(pending), patience)
        self.sending_s += time.monotonic() - began

    def recv_header(self, limit: int, patience: Patience) -> tuple[int, int]:
        """Receive a frame's header; return its kind and the length of its payload.

        The caller has to receive the payload next.

        Raises:
            PeerRefused: TOO_LARGE: the payload is longer than `limit`.
            TimeoutError, Interrupted, ConnectionError: As `recv_into`.
        """
        head = bytearray(_HEADER.size)
        self.recv_into(memoryview(head), patience)
        length, kind = _HEADER.unpack(head)
        if length > limit:
            raise PeerRefused(Reason.TOO_LARGE, f"frame of {length} bytes, at most {limit}")
        return kind, length

    def recv_frame(self, kind: Kind, limit: int, patience: Patience) -> bytes:
        """Receive a whole frame of the expected kind, and return its payload.

        Raises:
            PeerRefused: MALFORMED: the frame has another kind.
            PeerRefused, TimeoutError, Interrupted, ConnectionError: As `recv_header`.
        """
        found, length = self.recv_header(limit, patience)
        if found != kind:
            raise PeerRefused(Reason.MALFORMED, f"frame kind {found} instead of {kind.name}")
        return self.recv_body(length, patience)

    def recv_body(self, length: int, patience: Patience) -> bytes:
        """Receive the payload after `recv_header`, in new memory."""
        payload = bytearray(length)
        self.recv_into(memoryview(payload), patience)
        return bytes(payload)

    def close(self) -> None:
        """Close the connection, and free a thread that is blocked in another method. Idempotent."""
        with self._ending:
            if self.closed.is_set():
                return
            self.closed.set()
        self.stream.close()
        if self.bandwidth is not None and self._was_in_ring:
            self.bandwidth.sending.exchange_ended()
            self.bandwidth.receiving.exchange_ended()
        if self._on_close is not None:
            self._on_close(self)
