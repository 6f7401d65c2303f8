"""Messages to a crowd of strangers take half of the lanes; peers that the run knows find one."""

import threading
from collections.abc import Iterator

import pytest
from transport_peers import SOON, until

from atom.base.events import EventList
from atom.swarm.identity import Identity
from atom.swarm.stream.frames import Channel
from atom.swarm.stream.handshake import Local
from atom.swarm.transport.lane import Lanes
from atom.swarm.transport.limits import Endpoint, ThreadGroup, TransportLimits, Unreachable
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
    local, limits = (
        Local(Identity.create(), bytes(32), bytes(16)),
        TransportLimits(destinations=2 * len(CROWD)),
    )
    endpoint = Endpoint(local, limits, events, ManualClock(), ThreadGroup(events), closing)
    yield endpoint
    closing.set()


def test_lanes_keep_places_for_known_peers(endpoint: Endpoint) -> None:
    """Who calls for promises tells everybody at its head, in an order that ids decide."""
    nowhere = Nowhere()
    lanes = Lanes(endpoint, nowhere)
    endpoint.known.at_head(["voter"])
    told = [peer_id for peer_id in (*CROWD, "one more", "voter") if lanes.send(peer_id, b"call")]
    assert told == [*CROWD, "voter"]
    until(lambda: "voter" in nowhere.dialled)
    endpoint.closing.set()
    nowhere.over.set()
    lanes.wake()
    assert endpoint.threads.join(SOON)
