"""A slow way between two peers is measured by the ring that uses it, told, and avoided by the next.

Real connections on loopback; one of them is throttled.
"""

import math
import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from atom.base.clock import BootClock
from atom.base.events import EventList
from atom.swarm.chain import Ballot, Contribution
from atom.swarm.frames import Channel, Purpose
from atom.swarm.handshake import Local
from atom.swarm.identity import Identity
from atom.swarm.rate_limit import TokenBucket
from atom.swarm.records import Lease, PeerState, short_name
from atom.swarm.throttle import SLICE_BYTES, Bandwidth, ThrottledStream
from atom.swarm.transport import Transport
from atom.training.exchange import Exchange, RingStyle
from atom.training.results import Results
from atom.training.round.seating import seat_members
from atom.training.round.vocabulary import RingFailed, RingFinished, StartRing, View

ELEMENTS = 1 << 20
PARENT = b"p" * 32
SLOW_BYTES_PER_S = 16e6
WAIT_S = 20.0


class SlowTo(Transport):
    """What it sends to one of its peers goes slowly."""

    slow_to = ""

    def connect(
        self,
        peer_id: str,
        purpose: Purpose,
        tag: bytes = b"",
        timeout_s: float = math.inf,
        stop: threading.Event | None = None,
    ) -> Channel:
        channel = super().connect(peer_id, purpose, tag, timeout_s, stop)
        if peer_id == self.slow_to:
            bucket = TokenBucket(SLOW_BYTES_PER_S, SLICE_BYTES)
            channel.stream = ThrottledStream(channel.stream, Bandwidth(upload=bucket))
        return channel


class Member:
    def __init__(self, number: int, folder: Path) -> None:
        local = Local(Identity.create(), b"r" * 32, bytes(16))
        self.transport = SlowTo(local, ("127.0.0.1", 0), EventList())
        self.transport.start()
        self.outcomes: queue.SimpleQueue[RingFinished | RingFailed] = queue.SimpleQueue()
        gradients = torch.full((ELEMENTS,), float(number))
        self.exchange = Exchange(
            self.transport,
            Results(folder / str(number), ELEMENTS),
            lambda parent: gradients,
            self.outcomes.put,
            BootClock(),
            RingStyle(),
        )
        self.part = Contribution(self.transport.peer_id, bytes(16), 1, 1.0)

    def lease(self) -> Lease:
        links = tuple(
            (short_name(peer_id), link) for peer_id, link in self.transport.links.links(16).items()
        )
        return Lease(
            self.transport.peer_id, bytes(16), 1, 0.0, PeerState.ACCUMULATING, PARENT, 1, 1, 1, 0,
            0, 0.0, 0.0, 1.0, None, b"", (), links=links,
        )  # fmt: skip

    def close(self) -> None:
        self.exchange.close()
        self.transport.close()


@pytest.fixture
def members(tmp_path: Path) -> Iterator[list[Member]]:
    before = set(threading.enumerate())
    four = [Member(number, tmp_path) for number in range(4)]
    for one in four:
        for other in four:
            host, port = other.transport.address
            one.transport.set_addresses(other.transport.peer_id, [f"{host}:{port}"])
    yield four
    for member in four:
        member.close()
    assert set(threading.enumerate()) <= before


def averaged(members: list[Member], order: tuple[Contribution, ...], attempt: int) -> bytes:
    """The digest that all of them ended with."""
    ballot = Ballot(attempt, members[0].transport.peer_id, bytes(16))
    for member in members:
        member.exchange.start(StartRing(PARENT, ballot, order))
    outcomes = [member.outcomes.get(timeout=WAIT_S) for member in members]
    digests = {outcome.digest for outcome in outcomes if isinstance(outcome, RingFinished)}
    assert len(digests) == 1, outcomes
    return digests.pop()


def test_a_slow_way_is_measured_told_and_avoided(members: list[Member]) -> None:
    slow, right = members[1], members[2]
    slow.transport.slow_to = right.transport.peer_id
    dealt = tuple(member.part for member in members)
    digest = averaged(members, dealt, attempt=1)

    measured = slow.transport.links.links(16)[right.transport.peer_id]
    assert 0 < measured.bytes_per_s < 1.1 * SLOW_BYTES_PER_S
    view = View({m.transport.peer_id: m.lease() for m in members[1:]}, mine=members[0].lease())
    order, why = seat_members(dealt, view, 4 * ELEMENTS)
    seats = [part.peer_id for part in order]
    apart = seats.index(slow.transport.peer_id) - seats.index(right.transport.peer_id)
    assert abs(apart) == 2, "across, in a ring of four"
    assert why.seconds < why.seconds_as_given
    assert averaged(members, order, attempt=2) == digest
