"""AES-256-GCM records over a socket: what a ring may use instead of TLS, if its owner says so.

A TLS record holds 16 KiB and costs Python a few calls; a record here holds up to 256 KiB. Both ends
have proved who they are inside TLS before, and each gave the other 32 random bytes there. From
those both derive one key per direction, used for this connection and no other. Every record's
nonce is its number, so none can be repeated, left out or moved; its length is authenticated.

    record = length of what follows (4 bytes, big-endian) · ciphertext · tag (16 bytes)

It uses what TLS 1.3 uses (AES-256-GCM, HKDF, a key per direction), but it is not TLS, and nobody
else has reviewed it. There are no alerts and no key updates (2^32 records are far more than a ring
sends).
"""

import struct
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from atom.swarm.stream.frames import Patience
from atom.swarm.stream.socket_stream import SocketStream

SECRET_BYTES = 32
RECORD_BYTES = 256 * 1024
_TAG_BYTES = 16
_KEY_BYTES = 32
_LENGTH = struct.Struct(">I")
_NONCE = struct.Struct(">IQ")


@dataclass(frozen=True)
class RecordKeys:
    """Keys of one connection, as one end uses them."""

    sending: bytes
    receiving: bytes

    @classmethod
    def derive(cls, client_secret: bytes, server_secret: bytes, *, client: bool) -> "RecordKeys":
        """From what both ends drew at random and exchanged inside TLS."""
        assert len(client_secret) == len(server_secret) == SECRET_BYTES
        both = HKDF(SHA256(), 2 * _KEY_BYTES, salt=None, info=b"atom ring records 1").derive(
            client_secret + server_secret
        )
        from_client, from_server = both[:_KEY_BYTES], both[_KEY_BYTES:]
        return cls(from_client, from_server) if client else cls(from_server, from_client)


class RecordStream:
    """A stream of records. One thread at a time, but for `close`."""

    def __init__(self, below: SocketStream, keys: RecordKeys) -> None:
        self._below = below
        self._seal, self._open = AESGCM(keys.sending), AESGCM(keys.receiving)
        self._sent = self._received = 0
        self._out = memoryview(bytearray(_LENGTH.size + RECORD_BYTES + _TAG_BYTES))
        self._in = memoryview(bytearray(RECORD_BYTES + _TAG_BYTES))
        self._plain = memoryview(bytearray(RECORD_BYTES))
        self._unread = self._plain[:0]

    def send_all(self, view: memoryview, patience: Patience) -> None:
        """Raises: TimeoutError, Interrupted, ConnectionError."""
        view = view.cast("B")
        for start in range(0, len(view), RECORD_BYTES):
            piece = view[start : start + RECORD_BYTES]
            head = _LENGTH.pack(len(piece) + _TAG_BYTES)
            end = _LENGTH.size + len(piece) + _TAG_BYTES
            self._out[: _LENGTH.size] = head
            self._seal.encrypt_into(
                _NONCE.pack(0, self._sent), piece, head, self._out[_LENGTH.size : end]
            )
            self._sent += 1
            self._below.send_all(self._out[:end], patience)

    def recv_into(self, view: memoryview, patience: Patience) -> None:
        """Fills `view`. Raises: TimeoutError, Interrupted, ConnectionError (also for a record that
        is not the next one this connection's other end made)."""
        view = view.cast("B")
        done = 0
        while done < len(view):
            if not self._unread:
                done += self._next_record(view[done:], patience)
                continue
            count = min(len(self._unread), len(view) - done)
            view[done : done + count] = self._unread[:count]
            self._unread = self._unread[count:]
            done += count

    def idle(self) -> bool:
        return not self._unread and self._below.idle()

    def close(self) -> None:
        """From any thread."""
        self._below.close()

    def _next_record(self, view: memoryview, patience: Patience) -> int:
        """Decrypts one record into `view` if it fits there, else puts it aside: bytes in `view`."""
        head = bytearray(_LENGTH.size)
        self._below.recv_into(memoryview(head), patience)
        (length,) = _LENGTH.unpack(head)
        size = length - _TAG_BYTES
        if not 0 < size <= RECORD_BYTES:
            raise ConnectionError(f"a record of {length} bytes")
        sealed = self._in[:length]
        self._below.recv_into(sealed, patience)
        fits = size <= len(view)
        target = view[:size] if fits else self._plain[:size]
        try:
            self._open.decrypt_into(_NONCE.pack(0, self._received), sealed, bytes(head), target)
        except InvalidTag:
            raise ConnectionError("a record that was altered, repeated or lost") from None
        self._received += 1
        if not fits:
            self._unread = target
        return size if fits else 0
