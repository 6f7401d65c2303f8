"""Channels: frames of four bytes of length, one byte of kind, then the payload, over any stream.

A channel is used by one thread at a time in all (OpenSSL's connection object has no lock); only
`close` may come from another thread, and frees a blocked thread.
"""

import math
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm.stream.bandwidth import Bandwidth, Precedence, Rank

_HEADER = struct.Struct(">IB")
_SMALL_BYTES = 4096
_SLICE_S = 0.05  # how soon a set `stop` is noticed
_LOOK_S = 0.01  # between looks whether what goes first leaves room
SLOWEST_BYTES_PER_S = 64 * 1024.0
"""About half a megabit: a slower member makes everybody wait for hours."""


class Purpose(IntEnum):
    """What a connection is for; fixed by its handshake."""

    MESSAGES = 1
    RING = 2
    BLOBS = 3
    LINE = 4
    """Kept open by a peer that cannot be dialled: over it, it is called."""
    PROBE = 6
    """ "Can you dial me?" """
    TEXT = 7
    """As blobs, with places of its own: who needs a result never waits for those who want text."""


_RANKS = {Purpose.RING: Rank.EXCHANGE, Purpose.BLOBS: Rank.STATE, Purpose.TEXT: Rank.TEXT}


class Kind(IntEnum):
    """What a frame is."""

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
    """Line: nothing to say, still there."""
    REACHED = 66
    """Probe: the answer (see `Reached`)."""


class Interrupted(ConnectionError):
    """The caller's own `stop` was set; the stream itself is intact."""


@dataclass(frozen=True)
class Patience:
    """How long an operation may wait: `silence_s` without a byte, never past `deadline`."""

    silence_s: float
    deadline: float = math.inf
    """On the monotonic clock."""
    stop: threading.Event | None = None

    @classmethod
    def within(cls, seconds: float) -> "Patience":
        """Everything done with this value must end within `seconds` from now."""
        return cls(seconds, time.monotonic() + seconds)

    def left_s(self) -> float:
        """Seconds until the deadline, at least 0."""
        return max(self.deadline - time.monotonic(), 0.0)

    def wait_s(self, last_byte: float) -> float:
        """How long to block now. Raises: TimeoutError, Interrupted."""
        if self.stop is not None and self.stop.is_set():
            raise Interrupted("stopped")
        left = min(last_byte + self.silence_s, self.deadline) - time.monotonic()
        if left <= 0:
            raise TimeoutError("no byte for too long")
        return left if self.stop is None else min(left, _SLICE_S)


@dataclass(frozen=True)
class Pace:
    """The least that a transfer must do: bytes per second on average, after some seconds to begin.

    In an exchange everybody's bytes depend on everybody else's, so all members fall behind this
    line together.
    """

    slack_s: float = 5.0
    bytes_per_s: float = SLOWEST_BYTES_PER_S

    def due_s(self, done_bytes: int) -> float:
        """Seconds from the start by which more than `done_bytes` have to be through."""
        return self.slack_s + done_bytes / self.bytes_per_s


class Stream(Protocol):
    """Bytes in order, both ways."""

    def send_all(self, view: memoryview, patience: Patience) -> None:
        """Raises: TimeoutError, Interrupted, ConnectionError."""

    def recv_into(self, view: memoryview, patience: Patience) -> None:
        """Fills `view`. Raises: TimeoutError, Interrupted, ConnectionError at end of stream."""

    def idle(self) -> bool:
        """Whether nothing (no data, no end of stream) waits to be received."""

    def close(self) -> None:
        """From any thread, any number of times; blocked calls raise ConnectionError."""


class Channel:
    """Frames over a stream to one authenticated peer, within the volunteer's caps, and after what
    goes first."""

    def __init__(self, stream: Stream, on_close: Callable[["Channel"], None] | None = None) -> None:
        self.stream = stream
        self.bandwidth: Bandwidth | None = None
        """The caps; None: without any, until the handshake is over."""
        self.peer_id = ""
        self.incarnation = b""
        self.remote = ("", 0)
        """IP address and port at the other end; of an incoming connection the address alone."""
        self.purpose = Purpose.MESSAGES
        self.tag = b""
        self.round_trip_s = 0.0
        """Of the handshake: an answer to what this end sent, with what it takes to sign or check
        the client's proof."""
        self.sending_s = 0.0
        """How long sending whole frames took: written by the thread that sends."""
        self.closed = threading.Event()
        self._ending = threading.Lock()
        self._on_close = on_close
        self._was_in_ring = False
        """One that nobody claims ends no ring."""

    def send_all(self, view: memoryview, patience: Patience) -> None:
        """A part of a frame. Raises: TimeoutError, Interrupted, ConnectionError."""
        if (bandwidth := self.bandwidth) is None:
            return self.stream.send_all(view, patience)
        for part in self._in_turn(bandwidth.sending, view, patience):
            for piece in bandwidth.upload.slices(part):
                self.closed.wait(bandwidth.upload.take(len(piece), time.monotonic()))
                self.stream.send_all(piece, patience)
                bandwidth.carried(sent=len(piece))

    def recv_into(self, view: memoryview, patience: Patience) -> None:
        """Fills `view`, a part of a frame. Raises: TimeoutError, Interrupted, ConnectionError."""
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
        """Parts of it, each when it may pass. Raises: TimeoutError, Interrupted."""
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
        """Sends the parts as one frame. Raises: TimeoutError, Interrupted, ConnectionError."""
        began = time.monotonic()
        pending = _HEADER.pack(sum(len(part) for part in parts), kind)
        for part in parts:
            if len(part) < _SMALL_BYTES:  # small parts travel with what precedes them
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
        """The next frame's kind and payload length; the payload is to be received.

        Raises: PeerRefused(TOO_LARGE) above `limit`; TimeoutError, Interrupted, ConnectionError.
        """
        head = bytearray(_HEADER.size)
        self.recv_into(memoryview(head), patience)
        length, kind = _HEADER.unpack(head)
        if length > limit:
            raise PeerRefused(Reason.TOO_LARGE, f"frame of {length} bytes, at most {limit}")
        return kind, length

    def recv_frame(self, kind: Kind, limit: int, patience: Patience) -> bytes:
        """One whole frame of the expected kind.

        Raises: PeerRefused(MALFORMED) for another kind, and as `recv_header`.
        """
        found, length = self.recv_header(limit, patience)
        if found != kind:
            raise PeerRefused(Reason.MALFORMED, f"frame kind {found} instead of {kind.name}")
        return self.recv_rest(length, patience)

    def recv_rest(self, length: int, patience: Patience) -> bytes:
        """The payload after `recv_header`, in new memory."""
        payload = bytearray(length)
        self.recv_into(memoryview(payload), patience)
        return bytes(payload)

    def close(self) -> None:
        """Ends the connection; idempotent; frees a thread blocked in any other method."""
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
