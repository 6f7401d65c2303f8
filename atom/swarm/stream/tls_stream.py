"""TLS over a socket stream, in memory: OpenSSL only ever sees buffers, the socket large pieces.

A TLS record holds 16 KiB, and Python's SSL sockets make two or three system calls for each. Here
the records of a large piece are made, or taken apart, between two system calls.
"""

import contextlib
import ssl
from typing import cast

from atom.swarm.stream.frames import HungUp, Patience
from atom.swarm.stream.socket_stream import SocketStream

_PIECE_BYTES = 256 * 1024
"""Sent, or received, per system call at best."""
_RECORD_BYTES = 17 * 1024
"""A record with what TLS adds: enough for a connection that carries small frames."""
_ALERT_S = 0.3


class TlsStream:
    """One end of a TLS connection, which begins with `handshake`."""

    def __init__(self, below: SocketStream, context: ssl.SSLContext, server_side: bool) -> None:
        self._below = below
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)
        self._received = memoryview(bytearray(_RECORD_BYTES))

    def handshake(self, patience: Patience) -> None:
        """Raises: TimeoutError, Interrupted, ConnectionError (also for garbage)."""
        while True:
            try:
                self._tls.do_handshake()
                self._flush(patience)
                return
            except ssl.SSLWantReadError:
                self._flush(patience)
                self._fill(patience)
            except ssl.SSLError as error:
                with contextlib.suppress(OSError):
                    self._flush(Patience.within(_ALERT_S))  # says what was wrong
                raise ConnectionError(str(error)) from error

    @property
    def version(self) -> str | None:
        """Of the protocol agreed on, after the handshake."""
        return self._tls.version()

    def certificate(self) -> bytes | None:
        """The other end's certificate (DER), after the handshake."""
        return self._tls.getpeercert(binary_form=True)

    def send_all(self, view: memoryview, patience: Patience) -> None:
        """Raises: TimeoutError, Interrupted, ConnectionError."""
        for start in range(0, len(view), _PIECE_BYTES):
            piece = view[start : start + _PIECE_BYTES]
            done = 0
            while done < len(piece):
                try:
                    done += self._tls.write(piece[done:])  # a record at a time
                except ssl.SSLError as error:
                    raise ConnectionError(str(error)) from error
            self._flush(patience)

    def recv_into(self, view: memoryview, patience: Patience) -> None:
        """Fills `view`. Raises: TimeoutError, Interrupted, ConnectionError."""
        if len(view) > _RECORD_BYTES and len(self._received) < _PIECE_BYTES:
            self._received = memoryview(bytearray(_PIECE_BYTES))
        done = 0
        while done < len(view):
            try:
                # given a buffer, it says how many bytes it put there
                count = cast(int, self._tls.read(len(view) - done, view[done:]))
            except ssl.SSLWantReadError:
                # as much is still to come, but for a record of which OpenSSL holds a part
                self._fill(patience, len(view) - done - _RECORD_BYTES)
                continue
            except ssl.SSLError as error:
                raise ConnectionError(str(error)) from error
            if count == 0:
                raise HungUp
            done += count

    def hand_over(self) -> SocketStream:
        """Ends TLS at this end without a word: the socket, with what came behind the last record
        that was read. Call between frames, when both ends are about to leave TLS."""
        self._below.push_back(self._incoming.read())
        return self._below

    def idle(self) -> bool:
        return not self._incoming.pending and not self._tls.pending() and self._below.idle()

    def close(self) -> None:
        """From any thread: cuts the connection, without a farewell."""
        self._below.close()

    def _flush(self, patience: Patience) -> None:
        if self._outgoing.pending:
            self._below.send_all(memoryview(self._outgoing.read()), patience)

    def _fill(self, patience: Patience, wanted: int = 1) -> None:
        count = self._below.recv_some(self._received, patience, wanted)
        self._incoming.write(self._received[:count])
