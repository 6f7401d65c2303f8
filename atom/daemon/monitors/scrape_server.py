"""A web server for scrapes that takes little of the daemon it lives in, whoever knocks.

The library's own has a thread and a socket for each connection, as long as its client likes: some
thousand that say nothing, and the daemon has no socket left for its peers nor a file for its state.
"""

import contextlib
import socket
from collections.abc import Callable
from socketserver import ThreadingMixIn
from threading import Lock, Thread
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

MAX_CONNECTIONS = 128
"""At a time. The oldest ends for one more: a scrape takes milliseconds."""
_JOIN_S = 5.0

_Request = socket.socket | tuple[bytes, socket.socket]


class ScrapeServer(ThreadingMixIn, WSGIServer):
    """Answers every GET with what `app` says, from threads of its own."""

    daemon_threads = True
    request_queue_size = MAX_CONNECTIONS

    def __init__(self, host: str, port: int, app: Callable[..., Any]) -> None:
        """Listens from now on. Raises: OSError."""
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family = found[0][0]
        self._open: dict[int, socket.socket] = {}
        """In the order they came."""
        self._lock = Lock()
        super().__init__((host, port), _QuietHandler)
        self.set_app(app)
        self._thread = Thread(target=self.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Nothing is answered any more."""
        self.shutdown()
        self.server_close()
        with self._lock:
            for each in self._open.values():
                _hang_up(each)
        self._thread.join(_JOIN_S)

    def process_request(self, request: _Request, client_address: Any) -> None:
        """Raises: RuntimeError if there is no thread to be had."""
        assert isinstance(request, socket.socket)
        with self._lock:
            if len(self._open) >= MAX_CONNECTIONS:
                _hang_up(self._open.pop(next(iter(self._open))))
            self._open[id(request)] = request
        super().process_request(request, client_address)

    def shutdown_request(self, request: _Request) -> None:
        """A connection has ended, whatever came of it."""
        with self._lock:
            self._open.pop(id(request), None)
        super().shutdown_request(request)

    def handle_error(self, request: _Request, client_address: Any) -> None:
        """A client that hangs up is nothing to tell the volunteer of."""


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Scrapes come every few seconds."""


def _hang_up(connection: socket.socket) -> None:
    """Its thread, which waits for its client, wakes up and ends it."""
    with contextlib.suppress(OSError):  # it has just ended
        connection.shutdown(socket.SHUT_RDWR)
