"""A system that has no thread to give right now, as under a limit of processes, gets them later."""

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from transport_peers import SOON, Peer, make_tcp_peer, until

from atom.base.errors import AddressError, PeerRefused
from atom.base.events import EventList
from atom.swarm.state import fetch as fetch_module
from atom.swarm.state.fetch import Wanted, fetch
from atom.swarm.stream.frames import Channel
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


def test_a_port_is_not_held_without_anybody_behind_it(
    make_tcp_peer: Callable[..., Peer], refused: Counter[str]
) -> None:
    listens = make_tcp_peer(listens=False).transport._listener
    refused["atom-accept"] = 1
    with pytest.raises(AddressError, match="no thread"):
        listens.start(("127.0.0.1", 0))
    assert listens._socket is not None
    assert listens._socket.fileno() < 0, "it is closed"


def test_a_fetch_that_is_short_of_threads_ends(
    make_tcp_peer: Callable[..., Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first thread would wait for a slow donor to the end."""
    one, two = make_tcp_peer(), make_tcp_peer()
    asked, start = threading.Event(), ThreadPoolExecutor.submit

    def submit(pool: ThreadPoolExecutor, work: Callable[[], None]) -> Future[None]:
        if asked.is_set():
            raise RuntimeError("can't start new thread")
        under_way = start(pool, work)
        assert asked.wait(SOON)
        return under_way

    def say_nothing(channel: Channel) -> None:
        asked.set()
        channel.closed.wait(SOON)

    two.transport.set_handlers(on_blobs=say_nothing)
    one.knows(two)
    monkeypatch.setattr(ThreadPoolExecutor, "submit", submit)
    monkeypatch.setattr(fetch_module, "SILENCE_S", 3600.0)
    wanted = Wanted("state/x", [two.peer_id, one.peer_id], bytes(32), 1 << 20)
    with pytest.raises(PeerRefused, match="no thread"):
        fetch(one.transport, wanted, {})
