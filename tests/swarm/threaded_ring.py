"""Exchanges whose members are threads of the test, over loopback."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from atom.swarm.chain.commit import Ballot
from atom.swarm.exchange.allreduce import Channels, all_reduce, open_exchange
from atom.swarm.exchange.contribution import Sums
from atom.swarm.exchange.encoded import EncodedMean
from atom.swarm.exchange.plans import PartsPlan, Plan, RingPlan, Step, ring_tag
from atom.swarm.exchange.reduction import ExchangeBroken, Reduction, Terms
from atom.swarm.state.arenas import state_digest
from atom.swarm.stream.frames import Pace
from tests.swarm.local_transport import LocalNetwork

PARENT = b"p" * 32
SOON = 20.0
SILENCE_S = 0.5
ELEMENTS = 100_000
QUICK = Pace(slack_s=SOON)
"""Pace of exchanges that no member holds up on purpose."""


class SmallTerms(Terms):
    """Terms whose plan has several buckets even for a small arena."""

    def plan(self, elements: int) -> Plan:
        shares = self.shares or (1,) * len(self.members)
        return (PartsPlan if self.shares else RingPlan)(elements, shares, 48 * 1024, 4 * 1024)


class Swarm:
    """Some transports that know each other, and threads to run their members in."""

    def __init__(self, size: int) -> None:
        network = LocalNetwork()
        self.shares: tuple[int, ...] = ()
        """Shares of the parts' owners; empty: a ring."""
        self.transports = [network.add() for _ in range(size)]
        self.order = tuple(transport.peer_id for transport in self.transports)
        self.ballot = Ballot(1, self.order[0], bytes(16))
        self.pool = ThreadPoolExecutor(size)
        self.kept: list[EncodedMean] = []
        """Encoded mean of the last exchange at each member."""

    def terms(self, rank: int, **changes: Any) -> Terms:
        """Return one member's terms of an exchange of all members."""
        tag = ring_tag(PARENT, self.ballot)
        return replace(SmallTerms(self.order, rank, tag, 1 / 64, shares=self.shares), **changes)

    def open(self, rank: int, timeout_s: float = SOON) -> Channels:
        return open_exchange(self.transports[rank], self.terms(rank), timeout_s)

    def member(
        self,
        rank: int,
        source: Tensor | None,
        elements: int = ELEMENTS,
        cancelled: threading.Event | None = None,
        residual: Tensor | None = None,
        **changes: Any,
    ) -> Tensor:
        """Take part in an exchange; `changes` replace fields of the usual terms."""
        elements = elements if source is None else source.numel()
        usual = {"progress_timeout_s": SILENCE_S * 4, "pace": QUICK}
        terms, channels = self.terms(rank, **{**usual, **changes}), self.open(rank)
        given = None if source is None else Sums(source, residual)
        wires = terms.mean_wires(elements)
        all_reduce(given, wires, terms, channels, cancelled)
        mean = wires.encoded()
        self.kept.append(mean)
        return mean.numbers(terms.codec, elements)[:]

    def average(
        self,
        parts: Sequence[Tensor | None],
        residuals: Sequence[Tensor] | None = None,
        **changes: Any,
    ) -> Tensor:
        """Return the mean of an exchange, after a check that all members have the same bytes in
        different memory."""
        self.kept.clear()

        def member(rank: int) -> Tensor:
            residual = residuals[rank] if residuals else None
            return self.member(rank, parts[rank], residual=residual, **changes)

        work = self.start(member)
        first, *others = [future.result(SOON) for future in work]
        assert all(torch.equal(first, other) for other in others)
        assert len({state_digest(mean.arenas) for mean in self.kept}) == 1
        assert len({mean.wires.data_ptr() for mean in self.kept}) == len(self.kept)
        return first

    def broken_by(
        self,
        culprit: int,
        play: Callable[[Channels, threading.Event], object],
        elements: int = ELEMENTS,
        **changes: Any,
    ) -> dict[int, ExchangeBroken]:
        """Return the failures of all other members, by rank, if one member misuses its channels.

        `play` uses the culprit's channels, which are closed when it returns; if a connection
        breaks, they are closed when the other members have failed.
        """
        parts, over = sources(len(self.order), elements), threading.Event()

        def work(rank: int) -> Tensor:
            if rank != culprit:
                return self.member(rank, parts[rank], **changes)
            with closing(self.open(rank)) as channels:
                try:
                    play(channels, over)
                except ConnectionError:
                    over.wait(SOON)
            return parts[rank]

        futures = self.start(work)
        others = [rank for rank in range(len(futures)) if rank != culprit]
        try:
            return {rank: broken(futures[rank]) for rank in others}
        finally:
            over.set()

    def start(self, work: Callable[[int], Tensor]) -> list["Future[Tensor]"]:
        return [self.pool.submit(work, rank) for rank in range(len(self.order))]

    def close(self) -> None:
        for transport in self.transports:
            transport.close()
        self.pool.shutdown()


Make = Callable[..., Swarm]


@pytest.fixture
def swarm_of() -> Iterator[Make]:
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


@contextmanager
def spoilt(liar: int, means: bool, spoil: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Within it the member of that rank sums honestly, but sends its contributions, or else the
    `means` of its part, as something else."""
    put_mean, encoded_part = Reduction.put_mean, Reduction.encoded_part

    def put(reduction: Reduction, step: Step, mean: Tensor) -> None:
        put_mean(reduction, step, mean)
        if means and reduction.terms.rank == liar:
            wire = spoil(reduction.wires.chunk(step).clone())
            reduction.wires.room(step)[: wire.numel()] = wire
            reduction.wires.put(step, wire)

    def encoded(reduction: Reduction, step: Step, scratch: Tensor) -> Tensor:
        wire = encoded_part(reduction, step, scratch)
        return spoil(wire.clone()) if not means and reduction.terms.rank == liar else wire

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Reduction, "put_mean", put)
        patch.setattr(Reduction, "encoded_part", encoded)
        yield
