"""Connections that say nothing cost a daemon few sockets, and keep no scrape out."""

import contextlib
import socket
import urllib.request
from collections.abc import Iterator

import pytest

from atom.extras.monitors import metrics
from atom.extras.monitors.metrics import Metrics

FEW = 4
HALF = b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Slow: "


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(metrics, "MAX_CONNECTIONS", FEW)
    monkeypatch.setattr(metrics._Handler, "timeout", 0.5)
    server = Metrics().serve("127.0.0.1", 0)
    yield server.server_port
    server.close()


def knock(stack: contextlib.ExitStack, port: int) -> socket.socket:
    held = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
    held.sendall(HALF)
    return held


def scrape(port: int) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        return bytes(answer.read())


def ends(held: socket.socket) -> bool:
    """Whether the other side hangs up; False after the time that the socket has."""
    try:
        while held.recv(4096):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


def test_connections_that_say_nothing_end_and_too_many_are_hung_up_on(
    port: int, capfd: pytest.CaptureFixture[str]
) -> None:
    with contextlib.ExitStack() as stack:
        held = [knock(stack, port) for _ in range(3 * FEW)]
        assert all(ends(each) for each in held)
    for _ in range(2 * FEW):
        with contextlib.ExitStack() as stack:
            gone = knock(stack, port)
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    assert b"atom_events" in scrape(port)
    assert capfd.readouterr().err == "", "who hangs up is nothing to tell of"


def test_who_holds_all_places_keeps_no_scrape_out(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A byte now and then, and none of them is ever silent for too long."""
    monkeypatch.setattr(metrics._Handler, "timeout", 60.0)
    with contextlib.ExitStack() as stack:
        held = [knock(stack, port) for _ in range(FEW)]
        assert b"atom_events" in scrape(port)
        assert ends(held[0]), "the oldest"


def test_with_the_server_nothing_is_answered() -> None:
    server = Metrics().serve("127.0.0.1", 0)
    assert b"atom_events" in scrape(server.server_port)
    server.close()
    with contextlib.ExitStack() as stack, pytest.raises(ConnectionError):
        knock(stack, server.server_port)
