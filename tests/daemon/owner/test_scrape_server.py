"""Silent connections end, and a client that hangs up causes no message."""

import contextlib
import socket
import urllib.request
from collections.abc import Iterator

import pytest

from atom.daemon.owner import metrics
from atom.daemon.owner.metrics import Metrics

HALF = b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Slow: "


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(metrics, "SILENCE_S", 0.2)
    server = Metrics().serve("127.0.0.1", 0)
    yield server.server_port
    server.shutdown()
    server.server_close()


def knock(stack: contextlib.ExitStack, port: int) -> socket.socket:
    held = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
    held.sendall(HALF)
    return held


def scrape(port: int) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        return bytes(answer.read())


def test_connections_that_say_nothing_end_and_keep_no_scrape_out(
    port: int, capfd: pytest.CaptureFixture[str]
) -> None:
    with contextlib.ExitStack() as stack:
        held = [knock(stack, port) for _ in range(8)]
        assert b"atom_events" in scrape(port)
        with contextlib.suppress(ConnectionError):
            assert all(each.recv(4096) == b"" for each in held)
    for _ in range(8):
        with contextlib.ExitStack() as stack:
            gone = knock(stack, port)
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    assert b"atom_events" in scrape(port)
    assert capfd.readouterr().err == "", "a client that hangs up causes no message"


def test_with_the_server_nothing_is_answered() -> None:
    server = Metrics().serve("127.0.0.1", 0)
    assert b"atom_events" in scrape(server.server_port)
    server.shutdown()
    server.server_close()
    with contextlib.ExitStack() as stack, pytest.raises(ConnectionError):
        knock(stack, server.server_port)
