"""Sockets, and TLS 1.3 over them without a certificate authority: the certificate's key identifies
the peer.

The certificate is self-signed with the peer's own Ed25519 key. The client reads that key and
compares it with the peer id that it meant to reach. The server identifies the client by a signature
inside the connection (see `handshake`). Nothing else in a certificate is checked.

A TLS record holds 16 KiB, and Python's SSL sockets make two or three system calls for each. Here
OpenSSL works on buffers: all records of a large piece are made, or decoded, between two system
calls. The socket below never blocks in the kernel. Python's own timeouts poll before every call;
here the call comes first, and the socket is polled only if it has no data or no room: at full
speed that saves half of the system calls. On slow links the thread is woken when a batch has
arrived, not for every packet: a tenth of the work.
"""

import contextlib
import datetime
import errno
import functools
import os
import secrets
import select
import socket
import ssl
import tempfile
import threading
import time
from typing import cast

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.x509.oid import NameOID

from atom.base.errors import PeerRefused, Reason
from atom.swarm.identity import Identity, peer_id_of
from atom.swarm.stream.frames import NO_ADDRESS, Address, Patience

MAX_CERTIFICATE_BYTES = 4096
_OPTIONS: tuple[tuple[int, int, int | bytes], ...] = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 15_000),
    # BBR, the default of some kernels, is 1.2-1.7 times slower on short paths
    (socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic"),
)
_PIECE_BYTES = 256 * 1024
"""Most bytes that are sent or received in a system call."""
_HUNG_UP = "closed by the other end"
"""Message for every end of a connection, with or without a proper shutdown."""
_RECORD_BYTES = 17 * 1024
"""Bytes of a record with the overhead of TLS: enough buffer for a connection of small frames."""
_BATCH_BYTES = 64 * 1024
_BATCH_S = 0.25
"""Time for which a receiver waits for a whole batch; after it, any byte will do: a slow link may
need longer for a batch."""


@functools.cache
def client_context() -> ssl.SSLContext:
    """Return the TLS context of a client, which sends no certificate."""
    return _context(ssl.PROTOCOL_TLS_CLIENT)


def server_context(identity: Identity) -> tuple[ssl.SSLContext, bytes]:
    """Return a server's TLS context with a new self-signed certificate, and the certificate (DER).

    Called once, before the listener starts. `ssl` reads keys only from files. So the key is written
    into a private directory that is removed before the return, encrypted with a password that
    never leaves this function.
    """
    certificate = _self_signed(identity)
    context = _context(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0  # an unread ticket turns a clean close into a reset
    password = secrets.token_bytes(24).hex().encode()
    with tempfile.TemporaryDirectory(prefix="atom-tls-") as directory:
        path = os.path.join(directory, "pair.pem")
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(_private_pem(identity, password))
            file.write(certificate.public_bytes(serialization.Encoding.PEM))
        context.load_cert_chain(path, password=password)
    return context, certificate.public_bytes(serialization.Encoding.DER)


class SocketStream:
    """Stream of bytes over a socket. The stream owns the socket."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        tune(connected)
        self._socket = connected
        self._readable = _poll(connected, select.POLLIN)
        self._writable = _poll(connected, select.POLLOUT)
        self._lock = threading.Lock()
        self._users = 0
        self._closed = False
        self._batch_bytes = 1

    def connect(self, address: object) -> None:
        """Begin to connect. Sending then waits for the connection, or fails.

        Raises:
            OSError: The address cannot be reached.
        """
        code = self._socket.connect_ex(address)  # type: ignore[arg-type] # what getaddrinfo gave
        if code not in (0, errno.EINPROGRESS):
            raise OSError(code, os.strerror(code))

    def ends(self) -> tuple[Address, Address]:
        """Return the addresses of this end and of the other end; unknown ones if it is gone."""
        with contextlib.suppress(OSError):
            return self._socket.getsockname()[:2], self._socket.getpeername()[:2]
        return NO_ADDRESS, NO_ADDRESS

    def send_all(self, view: memoryview, patience: Patience) -> None:
        """Send all bytes.

        Raises:
            TimeoutError, Interrupted, ConnectionError: Not all bytes were sent.
        """
        done, last_byte = 0, time.monotonic()
        self._enter()
        try:
            while done < len(view):
                try:
                    done += self._socket.send(view[done:])
                    last_byte = time.monotonic()
                except BlockingIOError:
                    self._writable.poll(1000 * patience.wait_s(last_byte))
                except ConnectionError:
                    raise
                except OSError as error:
                    raise ConnectionError(str(error)) from error
        finally:
            self._leave()

    def recv_into(self, view: memoryview, patience: Patience) -> None:
        """Fill `view`.

        Raises:
            TimeoutError, Interrupted, ConnectionError: As `recv_some`.
        """
        done = 0
        while done < len(view):
            done += self.recv_some(view[done:], patience, len(view) - done)

    def recv_some(self, view: memoryview, patience: Patience, wanted: int = 1) -> int:
        """Receive at least one byte, at most all of `view`; return the number of bytes.

        Args:
            view: Memory for the bytes.
            patience: Time limits.
            wanted: Size of a batch: if no byte has arrived yet, wait a while for so many.

        Raises:
            TimeoutError, Interrupted: As `Patience.wait_s`.
            ConnectionError: The stream has ended.
        """
        began = time.monotonic()
        self._enter()
        try:
            while True:
                try:
                    count = self._socket.recv_into(view)
                except BlockingIOError:
                    self._wait_for_batch(wanted, patience.wait_s(began))
                    continue
                except ConnectionResetError as reset:
                    raise ConnectionResetError(_HUNG_UP) from reset
                except OSError as error:
                    raise ConnectionError(str(error)) from error
                if count == 0:
                    raise ConnectionResetError(_HUNG_UP)
                return count
        finally:
            self._leave()

    def idle(self) -> bool:
        self._enter()
        try:
            self._set_batch(1)
            return not self._readable.poll(0)
        finally:
            self._leave()

    def close(self) -> None:
        """Shut down at once.

        The last call that uses the descriptor frees it, so that it cannot be reused while a call
        waits.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            if self._users == 0:
                self._socket.close()

    def _wait_for_batch(self, wanted: int, seconds: float) -> None:
        """Wait for a batch of bytes or the end of the stream; after `_BATCH_S` return anyway."""
        self._set_batch(max(min(wanted, _BATCH_BYTES), 1))
        self._readable.poll(1000 * min(seconds, _BATCH_S))

    def _set_batch(self, size_bytes: int) -> None:
        if size_bytes != self._batch_bytes:
            self._batch_bytes = size_bytes
            with contextlib.suppress(OSError):  # without this option every packet wakes us
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size_bytes)

    def _enter(self) -> None:
        with self._lock:
            if self._closed:
                raise ConnectionError("closed by this peer")
            self._users += 1

    def _leave(self) -> None:
        with self._lock:
            self._users -= 1
            if self._closed and self._users == 0:
                self._socket.close()


class TlsStream:
    """One end of a TLS connection. Call `handshake` first."""

    def __init__(
        self,
        below: SocketStream,
        server: ssl.SSLContext | None = None,
        received: bytes = b"",
    ) -> None:
        """Create one end of a connection.

        Args:
            below: Connected socket.
            server: TLS context of the server; None at the client's end.
            received: First bytes of the other end, if they have already been read.
        """
        self._below = below
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._incoming.write(received)
        self._tls = (server or client_context()).wrap_bio(
            self._incoming, self._outgoing, server_side=server is not None
        )
        self._received = memoryview(bytearray(_RECORD_BYTES))

    def handshake(self, patience: Patience) -> None:
        """Do the TLS handshake.

        Raises:
            TimeoutError, Interrupted: The handshake was not done in time, or was interrupted.
            ConnectionError: The connection ended, or the bytes are not TLS.
        """
        while True:
            try:
                self._tls.do_handshake()
                self._flush(patience)
                return
            except ssl.SSLWantReadError:
                self._flush(patience)
                self._fill(patience)
            except ssl.SSLError as error:
                raise ConnectionError(str(error)) from error

    def certificate(self) -> bytes | None:
        """Return the other end's certificate (DER), after the handshake; None if it has none."""
        return self._tls.getpeercert(binary_form=True)

    def send_all(self, view: memoryview, patience: Patience) -> None:
        """Send all bytes.

        Raises:
            TimeoutError, Interrupted, ConnectionError: As `SocketStream.send_all`.
        """
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
        """Fill `view`.

        Raises:
            TimeoutError, Interrupted: The bytes did not come in time, or waiting was interrupted.
            ConnectionError: The connection ended, or the bytes are not TLS.
        """
        if len(view) > _RECORD_BYTES and len(self._received) < _PIECE_BYTES:
            self._received = memoryview(bytearray(_PIECE_BYTES))
        done = 0
        while done < len(view):
            try:
                # with a buffer, `read` returns the number of bytes
                count = cast(int, self._tls.read(len(view) - done, view[done:]))
            except ssl.SSLWantReadError:
                if self._outgoing.pending > _RECORD_BYTES:
                    raise ConnectionError("requests for new keys without end") from None
                # so much is still to arrive: OpenSSL may already hold a part of one record
                self._fill(patience, len(view) - done - _RECORD_BYTES)
                continue
            except ssl.SSLError as error:
                raise ConnectionError(str(error)) from error
            if count == 0:
                raise ConnectionResetError(_HUNG_UP)
            done += count

    def idle(self) -> bool:
        return not self._incoming.pending and not self._tls.pending() and self._below.idle()

    def close(self) -> None:
        """Cut the connection without a TLS shutdown. Thread-safe."""
        self._below.close()

    def _flush(self, patience: Patience) -> None:
        if self._outgoing.pending:
            self._below.send_all(memoryview(self._outgoing.read()), patience)

    def _fill(self, patience: Patience, wanted: int = 1) -> None:
        count = self._below.recv_some(self._received, patience, wanted)
        self._incoming.write(self._received[:count])


def peer_of_certificate(der: bytes | None) -> str:
    """Return the peer id of the key in a certificate.

    Raises:
        PeerRefused: WRONG_IDENTITY: the certificate names no peer.
    """
    if der is None or len(der) > MAX_CERTIFICATE_BYTES:
        raise PeerRefused(Reason.WRONG_IDENTITY, "no certificate, or an oversized one")
    try:
        key = x509.load_der_x509_certificate(der).public_key()
    except Exception as error:  # a stranger's bytes: the parser may raise anything
        raise PeerRefused(Reason.WRONG_IDENTITY, "unreadable certificate") from error
    if not isinstance(key, Ed25519PublicKey):
        raise PeerRefused(Reason.WRONG_IDENTITY, "not an Ed25519 certificate")
    return peer_id_of(key.public_bytes_raw())


def tune(connected: socket.socket) -> None:
    """Set options for latency, liveness and congestion control; ignore refusals of the kernel."""
    for level, option, value in _OPTIONS:
        with contextlib.suppress(OSError):
            connected.setsockopt(level, option, value)


def _poll(connected: socket.socket, event: int) -> "select.poll":
    poll = select.poll()
    poll.register(connected, event)
    return poll


def _context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the peer id is compared instead
    return context


def _private_pem(identity: Identity, password: bytes) -> bytes:
    return identity.private_key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(password),
    )


def _self_signed(identity: Identity) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "atom peer")])
    start = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(identity.private_key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + datetime.timedelta(days=36500))
        .sign(identity.private_key, None)
    )
