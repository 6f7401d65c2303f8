"""Messages to a crowd of strangers take a few threads; who is known is reached at once."""

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from transport_peers import SOON, until

from atom.base.events import EventList
from atom.swarm.identity import Identity
from atom.swarm.stream.frames import Channel
from atom.swarm.stream.handshake import Local
from atom.swarm.transport.contacts import Unreachable
from atom.swarm.transport.crew import Crew
from atom.swarm.transport.endpoint import Endpoint, TransportLimits
from atom.swarm.transport.lane import Lanes
from tests.manual_clock import ManualClock

CROWD = [f"stranger {number:02}" for number in range(20)]


class Nowhere:
    """Addresses behind which nobody answers, until the test says that their time is over."""

    def __init__(self) -> None:
        self.dialled: list[str] = []
        self.over = threading.Event()

    def __call__(self, peer_id: str) -> Channel:
        self.dialled.append(peer_id)
        assert self.over.wait(SOON)
        raise Unreachable(peer_id)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    events, closing = EventList(), threading.Event()
    local, limits = Local(Identity.create(), bytes(32), bytes(16)), TransportLimits(introductions=3)
    endpoint = Endpoint(local, limits, events, ManualClock(), Crew(events), closing)
    yield endpoint
    closing.set()


def test_a_crowd_waits_for_its_turn_and_all_have_one(endpoint: Endpoint) -> None:
    nowhere = Nowhere()
    lanes, lost = Lanes(endpoint, nowhere), list[str]()
    lanes.on_unreachable = lambda peer_id, refused: lost.append(peer_id)
    endpoint.known.at_head(["voter"])
    for peer_id in CROWD:
        assert lanes.send(peer_id, b"a commit")
    until(lambda: len(nowhere.dialled) == 3)
    assert lanes.send("voter", b"a ballot")
    until(lambda: nowhere.dialled[3:] == ["voter"])
    nowhere.over.set()
    until(lambda: len(lost) == 1 + len(CROWD))
    assert sorted(nowhere.dialled) == [*CROWD, "voter"]
    endpoint.closing.set()
    lanes.wake()
    assert endpoint.crew.join(SOON)


def test_a_crowd_leaves_places_for_those_whom_the_run_knows(endpoint: Endpoint) -> None:
    """Who calls for promises tells everybody at its head, in an order that ids decide."""
    crowded = replace(endpoint, limits=replace(endpoint.limits, destinations=len(CROWD)))
    nowhere = Nowhere()
    lanes = Lanes(crowded, nowhere)
    endpoint.known.at_head(["voter"])
    told = [peer_id for peer_id in (*CROWD, "one more", "voter") if lanes.send(peer_id, b"call")]
    assert told == [*CROWD, "voter"]
    until(lambda: "voter" in nowhere.dialled)
    endpoint.closing.set()
    nowhere.over.set()
    lanes.wake()
    assert endpoint.crew.join(SOON)


def test_whoever_becomes_known_waits_no_longer(endpoint: Endpoint) -> None:
    nowhere = Nowhere()
    lanes = Lanes(endpoint, nowhere)
    for peer_id in CROWD:
        lanes.send(peer_id, b"a commit")
    until(lambda: len(nowhere.dialled) == 3)
    endpoint.known.in_ring(CROWD[-1:])
    assert lanes.send(CROWD[-1], b"a ring")
    until(lambda: nowhere.dialled[3:] == CROWD[-1:])
    endpoint.closing.set()
    nowhere.over.set()
    lanes.wake()
    assert endpoint.crew.join(SOON)
