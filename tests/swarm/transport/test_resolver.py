"""Host names: found, unknown, or given up in time; never more lookups than a few."""

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from atom.swarm.transport.resolver import MOST_LOOKUPS, MOST_PER_PEER, Resolver

SOON = 10.0
PEER = "peer"


class SlowNames:
    """The system's resolver, as it is when the network is away."""

    def __init__(self) -> None:
        self.answer = threading.Event()
        self.asked = threading.Semaphore(0)
        self.under_way: list[threading.Thread] = []

    def __call__(self, host: str, port: int, **options: Any) -> list[Any]:
        if options["flags"] == socket.AI_NUMERICHOST:
            if host == "192.0.2.7":
                return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))]
            raise socket.gaierror("not a number")
        self.under_way.append(threading.current_thread())
        self.asked.release()
        assert self.answer.wait(SOON)
        if host == "nowhere.example":
            raise socket.gaierror("unknown")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.9", port))]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowNames]:
    slow = SlowNames()
    monkeypatch.setattr(socket, "getaddrinfo", slow)
    yield slow
    slow.answer.set()
    for thread in slow.under_way:
        thread.join(SOON)


def test_numbers_need_no_lookup(names: SlowNames) -> None:
    assert Resolver().resolve("192.0.2.7", 80, 0.0, PEER)[4] == ("192.0.2.7", 80)
    assert names.under_way == []


def test_names_are_found_or_unknown(names: SlowNames) -> None:
    names.answer.set()
    assert Resolver().resolve("somewhere.example", 80, SOON, PEER)[4] == ("192.0.2.9", 80)
    with pytest.raises(OSError, match="unknown"):
        Resolver().resolve("nowhere.example", 80, SOON, PEER)


def test_a_system_without_threads_costs_no_place(
    names: SlowNames, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolver = Resolver()
    names.answer.set()
    with monkeypatch.context() as poor:
        poor.setattr(threading.Thread, "start", no_thread)
        for _ in range(MOST_PER_PEER + 1):
            with pytest.raises(OSError, match="no thread to look up"):
                resolver.resolve("somewhere.example", 80, SOON, PEER)
    assert resolver.resolve("somewhere.example", 80, SOON, PEER)[4] == ("192.0.2.9", 80)


def no_thread(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_silent_resolver_is_given_up(names: SlowNames) -> None:
    with pytest.raises(TimeoutError, match="takes too long"):
        Resolver().resolve("somewhere.example", 80, 0.05, PEER)


def test_lookups_that_hang_are_bounded(names: SlowNames) -> None:
    resolver = Resolver()
    for number in range(MOST_LOOKUPS):
        with pytest.raises(TimeoutError, match="takes too long"):
            resolver.resolve("somewhere.example", 80, 0.01, f"peer {number}")
    with pytest.raises(TimeoutError, match="too many"):
        resolver.resolve("somewhere.example", 80, 0.01, PEER)
    assert len(names.under_way) == MOST_LOOKUPS
    names.answer.set()
    assert resolver.resolve("somewhere.example", 80, SOON, PEER)[4] == ("192.0.2.9", 80)


def test_one_peers_names_leave_room_for_the_others(names: SlowNames) -> None:
    resolver = Resolver()
    for _ in range(MOST_PER_PEER):
        with pytest.raises(TimeoutError, match="takes too long"):
            resolver.resolve("somewhere.example", 80, 0.01, "greedy")
    with pytest.raises(TimeoutError, match="too many"):
        resolver.resolve("somewhere.example", 80, 0.01, "greedy")
    names.answer.set()
    assert resolver.resolve("somewhere.example", 80, SOON, PEER)[4] == ("192.0.2.9", 80)


class LateTurn(threading.Condition):
    """It is one's turn at the last moment."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> bool:
        self.now += timeout or 0.0
        return True

    def monotonic(self) -> float:
        return self.now


def test_the_wait_for_ones_turn_counts(names: SlowNames, monkeypatch: pytest.MonkeyPatch) -> None:
    resolver, turn = Resolver(), LateTurn()
    monkeypatch.setattr(resolver, "_changed", turn)
    monkeypatch.setattr("atom.swarm.transport.resolver.time", turn)
    with pytest.raises(TimeoutError, match="takes too long"):
        resolver.resolve("somewhere.example", 80, 3600.0, PEER)


@pytest.mark.parametrize("host", ["a..b", ".", "x" * 70])
def test_what_cannot_be_a_name_is_unknown(host: str) -> None:
    with pytest.raises(OSError, match="is no host name"):
        Resolver().resolve(host, 80, SOON, PEER)


def test_the_real_one_knows_this_machine() -> None:
    assert Resolver().resolve("localhost", 80, SOON, PEER)[4][0] in ("127.0.0.1", "::1")
