"""Host names: found, unknown, or given up in time; never more lookups than a few."""

import socket
import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from atom.swarm.transport import dialer
from atom.swarm.transport.dialer import MOST_LOOKUPS, AddressInfo, resolve

SOON = 10.0
NAME, FOUND = "somewhere.example", ("192.0.2.9", 80)


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Until then the network is away."""
    answer, under_way = threading.Event(), list[threading.Thread]()

    def slow(host: str, port: int, flags: int = 0) -> AddressInfo:
        if flags == socket.AI_NUMERICHOST:
            raise socket.gaierror("not a number")
        under_way.append(threading.current_thread())
        assert answer.wait(SOON)
        return socket.AF_INET, socket.SOCK_STREAM, 6, "", FOUND

    monkeypatch.setattr(dialer, "_lookup", slow)
    yield answer
    answer.set()
    for thread in under_way:
        thread.join(SOON)


def test_lookups_that_hang_are_given_up_and_bounded(
    answer: threading.Event, refused: Counter[str]
) -> None:
    """A system that has no thread to give costs no place."""
    refused["atom-lookup"] = 2
    for _ in range(2):
        with pytest.raises(OSError, match="no thread to look up"):
            resolve(NAME, 80, SOON)
    for _ in range(MOST_LOOKUPS):
        with pytest.raises(TimeoutError, match="takes too long"):
            resolve(NAME, 80, 0.01)
    with pytest.raises(TimeoutError, match="too many"):
        resolve(NAME, 80, 0.01)
    answer.set()
    assert resolve(NAME, 80, SOON)[4] == FOUND


@pytest.mark.parametrize("host", ["a..b", ".", "x" * 70])
def test_malformed_host_names_are_unknown_to_the_real_one(host: str) -> None:
    with pytest.raises(OSError, match="is no host name"):
        resolve(host, 80, SOON)
    assert resolve("localhost", 80, SOON)[4][0] in ("127.0.0.1", "::1")
