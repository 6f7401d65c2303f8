"""Rings whose members are threads of the test, over loopback."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from atom.base.events import EventList
from atom.swarm.chain.commit import Ballot
from atom.swarm.exchange.allreduce import (
    Arenas,
    Channels,
    ExchangeBroken,
    Terms,
    all_reduce,
    open_exchange,
)
from atom.swarm.exchange.codec import Codec, Float32
from atom.swarm.exchange.plans import PartsPlan, RingPlan, ring_tag
from atom.swarm.identity import Identity
from atom.swarm.stream.frames import Channel, Pace
from tests.swarm.local_transport import LocalNetwork, LocalTransport

PARENT = b"p" * 32
SOON = 20.0
SILENCE_S = 0.5
QUICK = Pace(slack_s=SOON)
"""Rings that nobody holds up on purpose."""


class Swarm:
    """Some transports that know each other, and threads to run their members in."""

    def __init__(self, size: int) -> None:
        network = LocalNetwork()
        self.shares: tuple[int, ...] = ()
        """Of parts with owners; empty: a ring."""
        self.transports = [
            LocalTransport(network, Identity.create(), bytes([number]) * 16, EventList())
            for number in range(size)
        ]
        for transport in self.transports:
            transport.start()
        self.order = tuple(transport.peer_id for transport in self.transports)
        self.ballot = Ballot(1, self.order[0], bytes(16))
        self.pool = ThreadPoolExecutor(size)

    def terms(self, rank: int, **changes: Any) -> Terms:
        """Of the ring or parts of all, seen by one of them."""
        tag = ring_tag(PARENT, self.ballot)
        return replace(Terms(self.order, rank, tag, 1 / 64, shares=self.shares), **changes)

    def plan(self, elements: int) -> RingPlan | PartsPlan:
        """With several buckets also of a small arena."""
        if self.shares:
            return PartsPlan(elements, self.shares, 48 * 1024, 4 * 1024)
        return RingPlan(elements, len(self.order), 48 * 1024, 4 * 1024)

    def open_all(self, rank: int, timeout_s: float = SOON) -> Channels:
        return open_exchange(self.transports[rank], self.terms(rank), timeout_s)

    def open(self, rank: int) -> tuple[Channel, Channel]:
        channels = self.open_all(rank)
        return channels.left[0], channels.right[0]

    def member(
        self,
        rank: int,
        source: Tensor | None,
        elements: int,
        codec: Codec | None = None,
        cancelled: threading.Event | None = None,
        tag: bytes | None = None,
        silence_s: float = SILENCE_S * 4,
        residual: Tensor | None = None,
        landed: Callable[[Tensor], Callable[[int, int], None]] = lambda result: lambda *_: None,
        pace: Pace = QUICK,
        opening_s: float = 0.0,
    ) -> Tensor:
        result = torch.full((elements,), float("nan"))
        terms = self.terms(
            rank,
            codec=codec or Float32(),
            progress_timeout_s=silence_s,
            opening_s=opening_s,
            pace=pace,
        )
        terms = terms if tag is None else replace(terms, tag=tag)
        channels = self.open_all(rank)
        arenas = Arenas(source, result, residual, landed(result))
        all_reduce(arenas, terms, channels, cancelled, self.plan(elements))
        return result

    def start(self, work: Callable[[int], Tensor]) -> list["Future[Tensor]"]:
        return [self.pool.submit(work, rank) for rank in range(len(self.order))]

    def close(self) -> None:
        for transport in self.transports:
            transport.close()
        self.pool.shutdown()


@pytest.fixture
def swarm_of() -> Iterator[Callable[..., Swarm]]:
    made: list[Swarm] = []

    def make(size: int, shares: tuple[int, ...] = ()) -> Swarm:
        made.append(Swarm(size))
        made[-1].shares = shares
        return made[-1]

    before = set(threading.enumerate())
    yield make
    for swarm in made:
        swarm.close()
    assert set(threading.enumerate()) <= before


def sources(count: int, elements: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(elements)
    return [torch.randn(elements, generator=generator) for _ in range(count)]


def broken(future: "Future[Tensor]") -> ExchangeBroken:
    failure = future.exception(timeout=SOON)
    assert isinstance(failure, ExchangeBroken), failure
    return failure
