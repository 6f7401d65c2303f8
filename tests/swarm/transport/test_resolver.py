"""Host names: found, unknown, or given up in time; never more lookups than a few."""

import socket
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from atom.swarm.transport.dialer import MOST_LOOKUPS, resolve

SOON = 10.0
NAME, FOUND = "somewhere.example", ("192.0.2.9", 80)


class SlowNames:
    """The system's resolver, as it is when the network is away."""

    def __init__(self) -> None:
        self.answer = threading.Event()
        self.under_way: list[threading.Thread] = []

    def __call__(self, host: str, port: int, **options: Any) -> list[Any]:
        if options["flags"] == socket.AI_NUMERICHOST and host != "192.0.2.7":
            raise socket.gaierror("not a number")
        if host != "192.0.2.7":
            self.under_way.append(threading.current_thread())
            assert self.answer.wait(SOON)
        if host == "nowhere.example":
            raise socket.gaierror("unknown")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", FOUND)]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowNames]:
    slow = SlowNames()
    monkeypatch.setattr(socket, "getaddrinfo", slow)
    yield slow
    slow.answer.set()
    for thread in slow.under_way:
        thread.join(SOON)


def test_lookups_that_hang_are_given_up_and_bounded_and_numbers_need_none(
    names: SlowNames,
) -> None:
    for _ in range(MOST_LOOKUPS):
        with pytest.raises(TimeoutError, match="takes too long"):
            resolve(NAME, 80, 0.01)
    with pytest.raises(TimeoutError, match="too many"):
        resolve(NAME, 80, 0.01)
    assert len(names.under_way) == MOST_LOOKUPS
    assert resolve("192.0.2.7", 80, 0.0)[4] == FOUND
    names.answer.set()
    assert resolve(NAME, 80, SOON)[4] == FOUND
    with pytest.raises(OSError, match="unknown"):
        resolve("nowhere.example", 80, SOON)


def test_a_system_without_threads_costs_no_place(names: SlowNames, refused: Counter[str]) -> None:
    refused["atom-lookup"] = MOST_LOOKUPS + 1
    names.answer.set()
    for _ in range(MOST_LOOKUPS + 1):
        with pytest.raises(OSError, match="no thread to look up"):
            resolve(NAME, 80, SOON)
    assert resolve(NAME, 80, SOON)[4] == FOUND


@pytest.mark.parametrize("host", ["a..b", ".", "x" * 70])
def test_malformed_host_names_are_unknown_to_the_real_one(host: str) -> None:
    with pytest.raises(OSError, match="is no host name"):
        resolve(host, 80, SOON)
    assert resolve("localhost", 80, SOON)[4][0] in ("127.0.0.1", "::1")
