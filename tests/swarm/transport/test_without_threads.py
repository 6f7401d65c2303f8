"""A system that has no thread to give right now, as under a limit of processes, gets them later."""

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from transport_peers import RUN, SOON, Peer, until

from atom.base.errors import AddressError, PeerRefused
from atom.swarm.identity import Identity
from atom.swarm.state import fetch as fetch_module
from atom.swarm.state.fetch import Wanted, fetch
from atom.swarm.stream.frames import Channel
from atom.swarm.stream.handshake import Local
from atom.swarm.transport import reverse_connections
from atom.swarm.transport.transport import Transport
from tests.event_list import EventList

Make = Callable[..., Peer]


@pytest.mark.parametrize("name", ["atom-inbound", "atom-lane", "atom-line", "atom-answer"])
def test_messages_get_through_later(
    make_peer: Make, monkeypatch: pytest.MonkeyPatch, refused: Counter[str], name: str
) -> None:
    """Over a line, too: the guest cannot be dialled."""
    monkeypatch.setattr(reverse_connections, "PAUSE_S", 0.05)
    host, guest = make_peer(), make_peer(listens=False)
    host.knows(guest)
    guest.knows(host)
    refused[name] = 1

    def arrives() -> bool:
        guest.transport.keep_lines([host.peer_id])
        return host.transport.send(guest.peer_id, b"hello") and not guest.heard.empty()

    until(arrives)
    assert refused[name] == 0
    assert guest.heard.get(timeout=SOON)[2] == b"hello"


def test_a_port_is_not_held_without_anybody_behind_it(
    make_peer: Make, refused: Counter[str]
) -> None:
    before = make_peer().transport
    before.close()
    here = Transport(Local(Identity.create(), RUN, bytes(16)), before.address, EventList())
    refused["atom-accept"] = 1
    with pytest.raises(AddressError, match="no thread"):
        here.start()
    here.start()
    here.close()


def test_a_fetch_that_is_short_of_threads_ends(
    make_peer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first thread would wait for a slow donor to the end."""
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

    one, two = make_peer(), make_peer(serve=say_nothing)
    one.knows(two)
    monkeypatch.setattr(ThreadPoolExecutor, "submit", submit)
    monkeypatch.setattr(fetch_module, "SILENCE_S", 3600.0)
    wanted = Wanted("state/x", [two.peer_id, one.peer_id], bytes(32), 1 << 20)
    with pytest.raises(PeerRefused, match="no thread"):
        fetch(one.transport, wanted, None)
