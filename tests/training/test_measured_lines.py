"""A slow line is measured by the exchange that it holds up, told in leases, and owns no part of the
next. Real connections on loopback; what one member sends is throttled.
"""

import math
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from atom.base.events import EventList
from atom.swarm.chain.commit import Contribution
from atom.swarm.exchange.choice import Line, choose, line_rates
from atom.swarm.identity import Identity
from atom.swarm.stream.bandwidth import SLICE_BYTES, Bandwidth, ThrottledStream
from atom.swarm.stream.frames import Channel, Purpose
from atom.swarm.stream.handshake import Local
from atom.swarm.transport.transport import Transport
from atom.training.exchange import GradientEncoding
from tests.training.ring_members import Member

ELEMENTS = 1 << 20
SLOW_BYTES_PER_S = 4e6


class SlowTo(Transport):
    """What it sends to some of its peers goes slowly."""

    slow_to: frozenset[str] = frozenset()

    def connect(
        self,
        peer_id: str,
        purpose: Purpose,
        tag: bytes = b"",
        timeout_s: float = math.inf,
        stop: threading.Event | None = None,
    ) -> Channel:
        channel = super().connect(peer_id, purpose, tag, timeout_s, stop)
        if peer_id in self.slow_to:
            bandwidth = Bandwidth()
            bandwidth.upload.change(SLOW_BYTES_PER_S, SLICE_BYTES)
            channel.stream = ThrottledStream(channel.stream, bandwidth)
        return channel


@pytest.fixture
def members(tmp_path: Path) -> Iterator[list[Member]]:
    """Everybody knows where everybody listens. What the second one sends goes slowly."""
    before, three = set(threading.enumerate()), list[Member]()
    for number in range(3):
        local = Local(Identity.create(), b"r" * 32, bytes(16))
        transport = SlowTo(local, ("127.0.0.1", 0), EventList())
        gradients = torch.full((ELEMENTS,), float(number))
        three.append(Member(transport, gradients, tmp_path / str(number), GradientEncoding()))
    for one in three:
        for other in three:
            host, port = other.transport.address
            one.transport.set_addresses(other.peer_id, [f"{host}:{port}"])
    assert isinstance(three[1].transport, SlowTo)
    three[1].transport.slow_to = frozenset({three[0].peer_id, three[2].peer_id})
    yield three
    for member in three:
        member.close()
    assert set(threading.enumerate()) <= before


def averaged(
    members: Sequence[Member],
    order: tuple[Contribution, ...],
    attempt: int,
    shares: tuple[int, ...],
) -> bytes:
    """The digest that all of them ended with."""
    for member in members:
        member.start(order, attempt, shares)
    digests = {member.finished().digest for member in members}
    assert len(digests) == 1
    return digests.pop()


@pytest.mark.parametrize("shares", [(), (1, 1, 1)])
def test_exchange_measures_a_slow_line_and_gives_it_no_part(
    members: list[Member], shares: tuple[int, ...]
) -> None:
    one_way = tuple(member.part(1) for member in members)
    digest = averaged(members, one_way, 1, shares)
    assert averaged(members, one_way[::-1], 2, shares) == digest

    told = {
        (member.peer_id, peer_id): link.bytes_per_s
        for member in members
        for peer_id, link in member.exchange.speeds.links(16).items()
        if math.isfinite(link.bytes_per_s)
    }
    rates, slow = line_rates(told), members[1].peer_id
    assert rates.keys() == {slow}
    assert rates[slow] < 2.5 * SLOW_BYTES_PER_S, "each connection is throttled by itself"
    choice = choose([Line(rates.get(member.peer_id)) for member in members], 4 * ELEMENTS)
    assert choice.shares == (500, 0, 500)
    assert averaged(members, one_way, 3, choice.shares) == digest
