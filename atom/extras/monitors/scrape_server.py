"""A web server for scrapes that takes little of the daemon it lives in, whoever knocks.

prometheus_client's own has a thread and a socket for each connection, for as long as its client
likes: some thousand that say nothing, and the daemon has none left for its peers.
"""

import errno
import socket
from collections.abc import Callable
from contextlib import suppress
from socketserver import ThreadingMixIn
from threading import BoundedSemaphore, Thread, Timer
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from atom.base.errors import AddressError, PortInUseError

MAX_CONNECTIONS = 64
SILENCE_S = 2.0
"""After which a connection that says nothing ends: a scrape takes milliseconds."""
LONGEST_S = 10.0
"""After which any connection ends."""


class ScrapeServer(ThreadingMixIn, WSGIServer):
    """Answers every GET with what `app` says, from threads of its own. Others than the first
    `MAX_CONNECTIONS` are hung up on."""

    daemon_threads = True

    def __init__(self, host: str, port: int, app: Callable[..., Any]) -> None:
        """Listens from now on. Raises: OSError."""
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family = found[0][0]
        self._free = BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__((host, port), _Handler)
        self.set_app(app)
        Thread(target=self.serve_forever, name="metrics", daemon=True).start()

    def close(self) -> None:
        """No further connection is answered."""
        self.shutdown()
        self.server_close()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        return self._free.acquire(blocking=False)

    def process_request(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # there is no thread for it
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is nothing to tell the volunteer of."""


class _Handler(WSGIRequestHandler):
    timeout = SILENCE_S

    def handle(self) -> None:
        ends = Timer(LONGEST_S, _hang_up, (self.connection,))
        ends.daemon = True
        ends.start()
        try:
            super().handle()
        finally:
            ends.cancel()

    def log_message(self, format: str, *args: Any) -> None:
        """Scrapes come every few seconds."""


def _hang_up(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def listen(host: str, port: int, app: Callable[..., Any]) -> ScrapeServer:
    """Raises: PortInUseError; AddressError for an address or port this process cannot have."""
    try:
        return ScrapeServer(host, port, app)
    except OSError as problem:
        what = f"metrics cannot be served on {host} port {port}: "
        if problem.errno == errno.EADDRINUSE:
            hint = "choose another, or 0 for any free one: [metrics] port in a peer file"
            raise PortInUseError(f"{what}another program listens there", hint) from None
        raise AddressError(
            what + (problem.strerror or str(problem)),
            "use an address of this machine and a port above 1023: [metrics] host and port in"
            " a peer file",
        ) from None
