"""A system that has no thread to give right now, as under a limit of processes, gets them later."""

import threading
from collections import Counter
from collections.abc import Callable

import pytest
from transport_peers import SOON, Peer, make_tcp_peer, until

from atom.base.events import EventList
from atom.swarm.transport.limits import ThreadGroup

__all__ = ["make_tcp_peer"]


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many threads of a name are yet to be refused."""
    left, start = Counter[str](), threading.Thread.start

    def start_if_allowed(thread: threading.Thread) -> None:
        if left[thread.name] > 0:
            left[thread.name] -= 1
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_if_allowed)
    return left


def test_a_thread_that_did_not_start_is_not_joined(refused: Counter[str]) -> None:
    crew, ran = ThreadGroup(EventList()), threading.Event()
    refused["work"] = 1
    with pytest.raises(OSError, match="no thread for work"):
        crew.start("work", ran.set)
    crew.start("work", ran.set)
    assert ran.wait(SOON)
    assert crew.join(SOON)


def test_the_door_stays_open(make_tcp_peer: Callable[..., Peer], refused: Counter[str]) -> None:
    one, two = make_tcp_peer(), make_tcp_peer()
    two.knows(one)
    refused["atom-inbound"] = 1
    until(lambda: two.transport.send(one.peer_id, b"hello") and not one.heard.empty())
    assert refused["atom-inbound"] == 0
    assert one.heard.get(timeout=SOON)[2] == b"hello"


def test_messages_go_on(make_tcp_peer: Callable[..., Peer], refused: Counter[str]) -> None:
    one, two = make_tcp_peer(), make_tcp_peer()
    two.knows(one)
    refused["atom-lane"] = 1
    assert not two.transport.send(one.peer_id, b"lost")
    assert two.transport.send(one.peer_id, b"hello")
    assert one.heard.get(timeout=SOON)[2] == b"hello"
