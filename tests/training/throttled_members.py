"""Members of rings over real connections on loopback, whose sending can be slowed down."""

import math
import queue
import threading
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from atom.base.clock import BootClock
from atom.base.events import EventList
from atom.swarm.chain.commit import Ballot, Contribution
from atom.swarm.exchange.codec import Codec, Float32
from atom.swarm.identity import Identity
from atom.swarm.stream.bandwidth import SLICE_BYTES, Bandwidth, ThrottledStream, TokenBucket
from atom.swarm.stream.frames import Channel, Purpose
from atom.swarm.stream.handshake import Local
from atom.swarm.transport.transport import Transport
from atom.training.exchange import Exchange, RingStyle
from atom.training.round.events import RingFailed, RingFinished, StartRing
from atom.training.storage.results import Results

ELEMENTS = 1 << 20
PARENT = b"p" * 32
SLOW_BYTES_PER_S = 4e6
WAIT_S = 20.0


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
            bucket = TokenBucket(SLOW_BYTES_PER_S, SLICE_BYTES)
            channel.stream = ThrottledStream(channel.stream, Bandwidth(upload=bucket))
        return channel


class Member:
    """One peer's exchange. Its gradients are all its number."""

    def __init__(self, number: int, folder: Path, codec: Codec | None = None) -> None:
        local = Local(Identity.create(), b"r" * 32, bytes(16))
        self.transport = SlowTo(local, ("127.0.0.1", 0), EventList())
        self.transport.start()
        self.outcomes: queue.SimpleQueue[RingFinished | RingFailed] = queue.SimpleQueue()
        self.gradients = torch.full((ELEMENTS,), float(number))
        self.averages = threading.Event()
        """Set when it is connected and begins."""
        self.results = Results(folder / str(number), ELEMENTS)
        self.exchange = Exchange(
            self.transport,
            self.results,
            self._read,
            self.outcomes.put,
            BootClock(),
            RingStyle(codec or Float32()),
        )
        self.part = Contribution(self.transport.peer_id, bytes(16), 1, 1.0)

    def _read(self, parent: bytes) -> Tensor:
        self.averages.set()
        return self.gradients

    @property
    def peer_id(self) -> str:
        return self.transport.peer_id

    def start(
        self, order: tuple[Contribution, ...], ballot: Ballot, shares: tuple[int, ...]
    ) -> None:
        self.exchange.start(StartRing(PARENT, ballot, order, shares))

    def outcome(self) -> RingFinished | RingFailed:
        return self.outcomes.get(timeout=WAIT_S)

    def result(self, digest: bytes) -> Tensor:
        held = self.results.get(digest)
        assert held is not None
        return held

    def close(self) -> None:
        self.exchange.close()
        self.transport.close()


def acquainted(members: Sequence[Member]) -> None:
    """Everybody knows where everybody listens."""
    for one in members:
        for other in members:
            host, port = other.transport.address
            one.transport.set_addresses(other.transport.peer_id, [f"{host}:{port}"])


def ballot_of(members: Sequence[Member], attempt: int) -> Ballot:
    return Ballot(attempt, members[0].transport.peer_id, bytes(16))


def averaged(
    members: Sequence[Member],
    order: tuple[Contribution, ...],
    attempt: int,
    shares: tuple[int, ...] = (),
) -> bytes:
    """The digest that all of them ended with."""
    for member in members:
        member.start(order, ballot_of(members, attempt), shares)
    outcomes = [member.outcome() for member in members]
    digests = {outcome.digest for outcome in outcomes if isinstance(outcome, RingFinished)}
    assert len(digests) == 1, outcomes
    assert all(isinstance(outcome, RingFinished) for outcome in outcomes), outcomes
    return digests.pop()
