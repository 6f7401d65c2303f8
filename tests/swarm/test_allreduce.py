"""Rings of real threads over loopback and memory: equal bytes everywhere, or a named failure."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from atom.base.events import EventList
from atom.base.reasons import Reason
from atom.swarm.algorithm import Algorithm
from atom.swarm.allreduce import (
    Arenas,
    RingBroken,
    RingChannels,
    RingTerms,
    all_reduce,
    open_one_shot,
    open_ring,
)
from atom.swarm.chain import Ballot
from atom.swarm.codec import CODECS, Codec, Float32, Int8
from atom.swarm.frames import Channel, Kind, Patience, Purpose
from atom.swarm.handshake import Local
from atom.swarm.identity import Identity
from atom.swarm.local_transport import LocalNetwork, LocalTransport
from atom.swarm.ring import RingPlan, ring_tag
from atom.swarm.ring_failure import hear_broken
from atom.swarm.ring_standing import Pace
from atom.swarm.sum_limits import LARGEST_PART
from atom.swarm.transport import PeerTransport, Transport

PARENT, RUN = b"p" * 32, b"r" * 32
SOON = 20.0
SILENCE_S = 0.5
QUICK = Pace(slack_s=SOON)
"""Rings that nobody holds up on purpose."""


class Swarm:
    """Some transports that know each other, and threads to run their members in."""

    def __init__(self, kind: str, size: int) -> None:
        network = LocalNetwork()
        self.algorithm = Algorithm.RING
        self.transports: list[PeerTransport] = []
        for number in range(size):
            identity, inc = Identity.create(), bytes([number]) * 16
            self.transports.append(
                Transport(Local(identity, RUN, inc), ("127.0.0.1", 0), EventList())
                if kind == "tcp"
                else LocalTransport(network, identity, inc, EventList())
            )
        for transport in self.transports:
            transport.start()
        for one in self.transports:
            for other in self.transports:
                host, port = other.address
                one.set_addresses(other.peer_id, [f"{host}:{port}"])
        self.order = tuple(transport.peer_id for transport in self.transports)
        self.ballot = Ballot(1, self.order[0], bytes(16))
        self.pool = ThreadPoolExecutor(size)

    def open_all(self, rank: int, connections: int = 1) -> RingChannels:
        where = self.transports[rank]
        if self.algorithm is Algorithm.ONE_SHOT:
            return open_one_shot(where, self.order, PARENT, self.ballot, SOON)
        return open_ring(where, self.order, PARENT, self.ballot, SOON, connections)

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
        connections: int = 1,
        residual: Tensor | None = None,
        landed: Callable[[Tensor], Callable[[int, int], None]] = lambda result: lambda *_: None,
        pace: Pace = QUICK,
        opening_s: float = 0.0,
    ) -> Tensor:
        result = torch.full((elements,), float("nan"))
        terms = RingTerms(
            members=self.order,
            rank=rank,
            tag=tag if tag is not None else ring_tag(PARENT, self.ballot),
            scale=1 / 64,
            codec=codec or Float32(),
            algorithm=self.algorithm,
            progress_timeout_s=silence_s,
            opening_s=opening_s,
            pace=pace,
        )
        plan = RingPlan(elements, len(self.order), 48 * 1024, 4 * 1024)
        channels = self.open_all(rank, connections)
        arenas = Arenas(source, result, residual, landed(result))
        all_reduce(arenas, terms, channels, cancelled, plan)
        return result

    def start(self, work: Callable[[int], Tensor]) -> list["Future[Tensor]"]:
        return [self.pool.submit(work, rank) for rank in range(len(self.order))]

    def close(self) -> None:
        for transport in self.transports:
            transport.close()
        self.pool.shutdown()


@pytest.fixture
def swarm_of() -> Iterator[Callable[[str, int], Swarm]]:
    made: list[Swarm] = []

    def make(kind: str, size: int) -> Swarm:
        made.append(Swarm(kind, size))
        return made[-1]

    before = set(threading.enumerate())
    yield make
    for swarm in made:
        swarm.close()
    assert set(threading.enumerate()) <= before


def sources(count: int, elements: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(elements)
    return [torch.randn(elements, generator=generator) for _ in range(count)]


def broken(future: "Future[Tensor]") -> RingBroken:
    failure = future.exception(timeout=SOON)
    assert isinstance(failure, RingBroken), failure
    return failure


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS.keys())
@pytest.mark.parametrize(
    ("kind", "size", "elements"),
    [("tcp", 2, 100_000), ("tcp", 3, 100_000), ("tcp", 4, 100_000), ("local", 2, 16),
     ("local", 3, 32), ("local", 5, 70_016), ("local", 1, 4096)],
)  # fmt: skip
def test_all_members_get_the_same_mean(
    swarm_of: Callable[[str, int], Swarm], kind: str, size: int, elements: int, codec: Codec
) -> None:
    swarm, parts = swarm_of(kind, size), sources(size, elements)
    kept = [part.clone() for part in parts]
    work = swarm.start(lambda rank: swarm.member(rank, parts[rank], elements, codec))
    results = [future.result(SOON) for future in work]
    exact = sum(part.double() for part in parts) / 64
    tolerance = {"float32": 1e-6, "bfloat16": 2e-2, "int8": 4e-2}[codec.name]
    for result in results:
        assert torch.equal(result, results[0])
        torch.testing.assert_close(
            result.double(), exact, rtol=tolerance, atol=tolerance * size / 40
        )
    assert all(torch.equal(part, copy) for part, copy in zip(parts, kept, strict=True))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_sources_in_sixteen_bits_count_as_what_they_say(
    swarm_of: Callable[[str, int], Swarm], size: int
) -> None:
    swarm, parts = swarm_of("local", size), [p.bfloat16() for p in sources(size, 50_000)]

    def reduced(parts: list[Tensor]) -> list[Tensor]:
        work = swarm.start(lambda rank: swarm.member(rank, parts[rank], 50_000))
        return [future.result(SOON) for future in work]

    wide = [part.float() for part in parts]
    for narrow, expected in zip(reduced(parts), reduced(wide), strict=True):
        assert torch.equal(narrow, expected)


@pytest.mark.parametrize("connections", [2, 3, 4])
@pytest.mark.parametrize(("kind", "size"), [("tcp", 3), ("local", 4)])
def test_several_connections_give_the_same_bytes(
    swarm_of: Callable[[str, int], Swarm], kind: str, size: int, connections: int
) -> None:
    parts = sources(size, 100_000)

    def reduced(swarm: Swarm, connections: int) -> list[Tensor]:
        work = swarm.start(
            lambda rank: swarm.member(rank, parts[rank], 100_000, connections=connections)
        )
        return [future.result(SOON) for future in work]

    expected = reduced(swarm_of("local", size), 1)[0]
    for result in reduced(swarm_of(kind, size), connections):
        torch.testing.assert_close(result, expected)  # peers' order differs: so does rounding
    swarm = swarm_of(kind, size)
    one = reduced(swarm, 1)
    again = reduced(swarm, connections)
    assert all(torch.equal(result, one[0]) for result in (*one, *again))


@pytest.mark.parametrize(("size", "connections"), [(2, 1), (3, 3)])
def test_every_element_is_told_of_once_when_it_is_final(
    swarm_of: Callable[[str, int], Swarm], size: int, connections: int
) -> None:
    swarm, parts = swarm_of("local", size), sources(size, 100_000)
    told: list[list[tuple[int, Tensor]]] = [[] for _ in range(size)]

    def member(rank: int) -> Tensor:
        def landed(result: Tensor) -> Callable[[int, int], None]:
            return lambda start, stop: told[rank].append((start, result[start:stop].clone()))

        codec = CODECS["bfloat16"]
        return swarm.member(
            rank, parts[rank], 100_000, codec, connections=connections, landed=landed
        )

    results = [future.result(SOON) for future in swarm.start(member)]
    for pieces, result in zip(told, results, strict=True):
        pieces.sort(key=lambda piece: piece[0])
        assert torch.equal(torch.cat([piece for _, piece in pieces]), result)


def test_one_connection_of_several_that_breaks_ends_the_ring(
    swarm_of: Callable[[str, int], Swarm],
) -> None:
    swarm, parts = swarm_of("tcp", 3), sources(3, 400_000)

    def work(rank: int) -> Tensor:
        if rank != 2:
            return swarm.member(rank, parts[rank], 400_000, connections=3)
        channels = swarm.open_all(rank, 3)
        channels.left[1].recv_header(1 << 20, Patience(SOON))
        channels.right[1].close()
        failed[0].exception(SOON)
        channels.close()
        return parts[rank]

    failed: list[Future[Tensor]] = []
    ready = threading.Event()

    def gated(rank: int) -> Tensor:
        assert ready.wait(SOON)
        return work(rank)

    failed += swarm.start(gated)
    ready.set()
    assert broken(failed[0]).suspect == swarm.order[2]
    assert broken(failed[1]).suspect == swarm.order[2]


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_what_rounding_takes_away_is_kept_for_the_next_round(
    swarm_of: Callable[[str, int], Swarm], size: int
) -> None:
    """Result · weight + everybody's residuals = the exact sum: nothing is lost for good."""
    swarm, parts, elements = swarm_of("local", size), sources(size, 50_000), 50_000
    residuals = [torch.full((elements,), float("nan")) for _ in range(size)]
    work = swarm.start(
        lambda rank: swarm.member(
            rank, parts[rank], elements, CODECS["int8"], residual=residuals[rank]
        )
    )
    results = [future.result(SOON) for future in work]
    exact = sum(part.double() for part in parts)
    kept = sum(residual.double() for residual in residuals)
    torch.testing.assert_close(results[0].double() * 64 + kept, exact, rtol=1e-5, atol=1e-5)
    assert max(residual.abs().max() for residual in residuals) > 1e-3, "there was something to keep"


def test_rounds_with_feedback_come_closer_to_the_sum_of_all_gradients(
    swarm_of: Callable[[str, int], Swarm],
) -> None:
    parts, rounds, elements = sources(3, 20_000), 12, 20_000

    def drift(feedback: bool) -> float:
        swarm, total = swarm_of("local", 3), torch.zeros(elements, dtype=torch.float64)
        residuals = [torch.zeros(elements) for _ in parts]
        for number in range(rounds):
            swarm.ballot = Ballot(number, swarm.order[0], bytes(16))
            given = [
                part + residual if feedback else part
                for part, residual in zip(parts, residuals, strict=True)
            ]
            fresh = [torch.empty(elements) for _ in parts]
            work = swarm.start(
                lambda rank, given=given, fresh=fresh: swarm.member(  # type: ignore[misc]
                    rank, given[rank], elements, CODECS["int8"], residual=fresh[rank]
                )
            )
            total += work[0].result(SOON).double() * 64
            for future in work:
                future.result(SOON)
            residuals = fresh
        exact = rounds * sum(part.double() for part in parts)
        return float((total - exact).norm() / exact.norm())

    assert drift(feedback=True) < drift(feedback=False) / 4


def test_a_member_without_gradients_passes_zeros(swarm_of: Callable[[str, int], Swarm]) -> None:
    swarm, parts = swarm_of("local", 3), sources(3, 20_000)
    work = swarm.start(lambda rank: swarm.member(rank, None if rank == 1 else parts[rank], 20_000))
    results = [future.result(SOON) for future in work]
    assert all(torch.equal(result, results[0]) for result in results)
    torch.testing.assert_close(results[0], (parts[0] + parts[2]) / 64)


def test_a_killed_member_is_named_by_all(swarm_of: Callable[[str, int], Swarm]) -> None:
    swarm, parts = swarm_of("tcp", 4), sources(4, 4_000_000)
    begun = threading.Event()

    def work(rank: int) -> Tensor:
        if rank != 2:
            return swarm.member(rank, parts[rank], 4_000_000)
        left, right = swarm.open(rank)
        left.recv_header(1 << 20, Patience(SOON))  # the ring is under way
        begun.set()
        left.close()
        right.close()
        return parts[rank]

    futures = swarm.start(work)
    assert begun.wait(SOON)
    for rank in (0, 1, 3):
        failure = broken(futures[rank])
        assert failure.suspect == swarm.order[2]
        assert failure.reason is Reason.RING_BROKEN


def test_a_frozen_member_is_named_by_all(swarm_of: Callable[[str, int], Swarm]) -> None:
    swarm, parts = swarm_of("tcp", 4), sources(4, 100_000)
    over = threading.Event()

    def work(rank: int) -> Tensor:
        if rank != 2:
            return swarm.member(rank, parts[rank], 100_000, silence_s=SILENCE_S)
        channels = swarm.open(rank)
        assert over.wait(SOON)
        for channel in channels:
            channel.close()
        return parts[rank]

    futures = swarm.start(work)
    try:
        for rank in (0, 1, 3):
            failure = broken(futures[rank])
            assert failure.suspect == swarm.order[2]
            assert failure.reason is Reason.TIMEOUT
    finally:
        over.set()


@pytest.mark.parametrize("culprit", [0, 1, 2])
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_member_with_bad_numbers_is_named_by_all(
    swarm_of: Callable[[str, int], Swarm], culprit: int, poison: float
) -> None:
    swarm, parts = swarm_of("local", 3), sources(3, 60_000)
    parts[culprit][31_000] = poison
    for future in swarm.start(lambda rank: swarm.member(rank, parts[rank], 60_000)):
        failure = broken(future)
        assert failure.reason is Reason.NOT_FINITE
        assert failure.suspect == swarm.order[culprit]


class Liar(Float32):
    """Sums honestly, and passes on its share of the mean as something else."""

    def __init__(self, members: int) -> None:
        self._truths = members  # what goes on to the right while summing, and its own last touch

    def encode(self, values: Tensor, scratch: Tensor, lost: Tensor | None = None) -> Tensor:
        self._truths -= 1
        return super().encode(values if self._truths >= 0 else values * float("nan"), scratch)


@pytest.mark.parametrize("size", [2, 3])
def test_a_mean_that_was_spoilt_on_its_way_names_who_passed_it_on(
    swarm_of: Callable[[str, int], Swarm], size: int
) -> None:
    swarm, parts = swarm_of("local", size), sources(size, 16 * size)
    codecs = [Float32(), Liar(size), Float32()]
    work = swarm.start(lambda rank: swarm.member(rank, parts[rank], 16 * size, codecs[rank]))
    for honest in (*work[:1], *work[2:]):
        failure = broken(honest)
        assert (failure.suspect, failure.reason) == (swarm.order[1], Reason.NOT_FINITE)


class Roundabout(Int8):
    """Sums honestly, and writes its share of the mean with twice the scale and half the steps."""

    def __init__(self, members: int) -> None:
        self._truths = members

    def encode(self, values: Tensor, scratch: Tensor, lost: Tensor | None = None) -> Tensor:
        wire = super().encode(values, scratch, lost)
        self._truths -= 1
        if self._truths < 0:
            wire[:2].view(torch.int16).add_(0x80)
            wire[2:].view(torch.int8).div_(2, rounding_mode="trunc")
        return wire


@pytest.mark.parametrize("size", [2, 3])
def test_a_mean_that_the_next_would_write_otherwise_names_who_wrote_it(
    swarm_of: Callable[[str, int], Swarm], size: int
) -> None:
    swarm, parts = swarm_of("local", size), sources(size, 16 * size)
    codecs = [Int8(), Roundabout(size), Int8()]
    work = swarm.start(lambda rank: swarm.member(rank, parts[rank], 16 * size, codecs[rank]))
    for honest in (*work[:1], *work[2:]):
        failure = broken(honest)
        assert (failure.suspect, failure.reason) == (swarm.order[1], Reason.MALFORMED)


class Exaggerator(Float32):
    """Passes on what is finite, and so large that others' sums might overflow."""

    def encode(self, values: Tensor, scratch: Tensor, lost: Tensor | None = None) -> Tensor:
        return super().encode(torch.full_like(values, 1.7e38), scratch)


@pytest.mark.parametrize("algorithm", Algorithm)
@pytest.mark.parametrize("culprit", [0, 1, 2])
def test_who_sends_absurd_numbers_is_named_by_all_however_finite(
    swarm_of: Callable[[str, int], Swarm], culprit: int, algorithm: Algorithm
) -> None:
    swarm, parts = swarm_of("local", 3), sources(3, 60_000)
    swarm.algorithm = algorithm
    codecs = [Exaggerator() if rank == culprit else Float32() for rank in range(3)]
    work = swarm.start(lambda rank: swarm.member(rank, parts[rank], 60_000, codecs[rank]))
    for rank in {0, 1, 2} - {culprit}:
        failure = broken(work[rank])
        assert (failure.suspect, failure.reason) == (swarm.order[culprit], Reason.NOT_FINITE)


def test_whose_own_numbers_are_absurd_names_itself(swarm_of: Callable[[str, int], Swarm]) -> None:
    swarm, parts = swarm_of("local", 3), sources(3, 60_000)
    parts[1].fill_(1e31)
    for future in swarm.start(lambda rank: swarm.member(rank, parts[rank], 60_000)):
        failure = broken(future)
        assert (failure.suspect, failure.reason) == (swarm.order[1], Reason.NOT_FINITE)


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS.keys())
@pytest.mark.parametrize("size", [2, 5])
def test_the_largest_honest_numbers_pass(
    swarm_of: Callable[[str, int], Swarm], size: int, codec: Codec
) -> None:
    swarm = swarm_of("local", size)
    part = torch.full((4096,), LARGEST_PART)
    for future in swarm.start(lambda rank: swarm.member(rank, part, 4096, codec)):
        assert torch.isfinite(future.result(SOON)).all()


def test_a_lone_member_refuses_bad_numbers(swarm_of: Callable[[str, int], Swarm]) -> None:
    swarm = swarm_of("local", 1)
    with pytest.raises(RingBroken) as failure:
        swarm.member(0, torch.full((64,), float("nan")), 64)
    assert (failure.value.suspect, failure.value.reason) == (swarm.order[0], Reason.NOT_FINITE)


def test_cancelling_ends_the_ring_for_all(swarm_of: Callable[[str, int], Swarm]) -> None:
    swarm, parts = swarm_of("tcp", 3), sources(3, 100_000)
    cancelled = threading.Event()

    def work(rank: int) -> Tensor:
        if rank == 0:
            return swarm.member(rank, parts[rank], 100_000, cancelled=cancelled, silence_s=SOON)
        if rank == 1:
            return swarm.member(rank, parts[rank], 100_000, silence_s=SOON)
        channels = swarm.open(rank)  # stands still: only the cancellation can end this
        cancelled.set()
        futures[0].exception(SOON)
        futures[1].exception(SOON)
        for channel in channels:
            channel.close()
        return parts[rank]

    ready = threading.Event()
    futures: list[Future[Tensor]] = []

    def gated(rank: int) -> Tensor:
        assert ready.wait(SOON)
        return work(rank)

    futures += swarm.start(gated)
    ready.set()
    assert broken(futures[0]).reason is Reason.SUPERSEDED
    assert broken(futures[1]).reason is Reason.SUPERSEDED
    futures[2].result(SOON)


def test_chunks_of_another_attempt_are_malformed(swarm_of: Callable[[str, int], Swarm]) -> None:
    swarm, parts = swarm_of("local", 2), sources(2, 4096)
    stale = ring_tag(b"q" * 32, swarm.ballot)

    def work(rank: int) -> Tensor:
        return swarm.member(rank, parts[rank], 4096, tag=stale if rank else None)

    failures = [broken(future) for future in swarm.start(work)]
    assert {failure.reason for failure in failures} == {Reason.MALFORMED}


@pytest.mark.parametrize("field", ["bitmap", "hop", "start", "length", "kind"])
def test_a_wrong_header_is_malformed_and_blames_the_sender(
    swarm_of: Callable[[str, int], Swarm], field: str
) -> None:
    swarm, part = swarm_of("local", 2), sources(1, 4096)[0]
    plan = RingPlan(4096, 2, 48 * 1024, 4 * 1024)
    future = swarm.pool.submit(swarm.member, 0, part, 4096)
    left, right = swarm.open(1)
    step = next(plan.sends(1))
    header = bytearray(plan.header(ring_tag(PARENT, swarm.ballot), step))
    places = {"bitmap": -1, "hop": 10, "start": 18}
    if field in places:
        header[places[field]] ^= 1
    kind = Kind.MESSAGE if field == "kind" else Kind.CHUNK
    size = 4 * (step.stop - step.start) - (4 if field == "length" else 0)
    right.send_frame(kind, bytes(header), bytes(size), patience=Patience(SOON))
    failure = broken(future)
    assert (failure.reason, failure.suspect) == (Reason.MALFORMED, swarm.order[1])
    left.close()
    right.close()


def test_a_neighbour_that_waits_forever_is_not_believed_forever(
    swarm_of: Callable[[str, int], Swarm],
) -> None:
    swarm, part = swarm_of("local", 2), sources(1, 4096)[0]
    future = swarm.pool.submit(swarm.member, 0, part, 4096, silence_s=0.1, pace=Pace(0.5))
    left, right = swarm.open(1)
    deadline = time.monotonic() + SOON
    while not future.done() and time.monotonic() < deadline:
        try:
            right.send_frame(Kind.WAITING, patience=Patience(SOON))
        except ConnectionError:
            break
        right.closed.wait(0.02)
    assert broken(future).reason is Reason.TOO_SLOW
    left.close()
    right.close()


def test_a_flood_of_waiting_ends_as_well(swarm_of: Callable[[str, int], Swarm]) -> None:
    """There is always something to be read, so nobody ever has to wait for it."""
    swarm, part = swarm_of("local", 2), sources(1, 4096)[0]
    future = swarm.pool.submit(swarm.member, 0, part, 4096, silence_s=0.1, pace=Pace(0.5))
    left, right = swarm.open(1)
    many = memoryview((bytes(4) + bytes([Kind.WAITING])) * 10_000)
    deadline = time.monotonic() + SOON
    while not future.done() and time.monotonic() < deadline:
        try:
            right.stream.send_all(many, Patience(SOON))
        except ConnectionError:
            break
    left.close()
    right.close()
    assert broken(future).reason is Reason.TOO_SLOW


def test_an_absent_neighbour_is_named(swarm_of: Callable[[str, int], Swarm]) -> None:
    swarm = swarm_of("tcp", 3)
    with pytest.raises(RingBroken) as failure:
        open_ring(swarm.transports[0], swarm.order, PARENT, swarm.ballot, 0.1)
    assert (failure.value.suspect, failure.value.reason) == (swarm.order[2], Reason.TIMEOUT)
    swarm.transports[1].close()
    with pytest.raises(RingBroken) as failure:
        open_ring(swarm.transports[0], swarm.order, PARENT, swarm.ballot, 0.1)
    assert (failure.value.suspect, failure.value.reason) == (swarm.order[1], Reason.RING_BROKEN)


def test_a_ring_that_cannot_be_opened_leaves_no_connection_open(
    swarm_of: Callable[[str, int], Swarm], monkeypatch: pytest.MonkeyPatch
) -> None:
    swarm, made = swarm_of("local", 2), list[Channel]()
    here, there = swarm.transports
    connect = here.connect

    def twice(peer_id: str, purpose: Purpose, tag: bytes, timeout_s: float) -> Channel:
        if len(made) == 2:
            raise ConnectionError("no third one")
        made.append(connect(peer_id, purpose, tag, timeout_s))
        return made[-1]

    monkeypatch.setattr(here, "connect", twice)
    with pytest.raises(RingBroken, match="no third one"):
        open_ring(here, swarm.order, PARENT, swarm.ballot, SOON, 3)
    assert [channel.closed.is_set() for channel in made] == [True, True]
    made.clear()
    tag = ring_tag(PARENT, swarm.ballot)
    arrived = there.connect(here.peer_id, Purpose.RING, tag + bytes(1))
    with pytest.raises(RingBroken):
        open_ring(here, swarm.order, PARENT, swarm.ballot, 0.2, 2)
    assert [channel.closed.is_set() for channel in made] == [True, True]
    assert hear_broken(arrived, swarm.order).suspect == swarm.order[1]
    with pytest.raises(ConnectionError):
        arrived.recv_header(0, Patience(SOON))


def test_a_channel_of_an_old_ballot_is_not_taken(swarm_of: Callable[[str, int], Swarm]) -> None:
    swarm = swarm_of("local", 2)
    old = ring_tag(PARENT, Ballot(0, swarm.order[0], bytes(16)))
    stale = swarm.transports[1].connect(swarm.order[0], Purpose.RING, old + bytes(1))
    with pytest.raises(RingBroken) as failure:
        open_ring(swarm.transports[0], swarm.order, PARENT, swarm.ballot, 0.1)
    assert failure.value.reason is Reason.TIMEOUT
    stale.close()


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS.keys())
def test_codecs_are_idempotent(codec: Codec) -> None:
    values = torch.cat([torch.randn(1000) * 10.0**power for power in range(-38, 38)])
    scratch = torch.empty(4 * values.numel(), dtype=torch.uint8)
    decoded = torch.empty_like(values)
    once = codec.encode(values, scratch).clone()
    assert once.numel() == codec.wire_bytes(values.numel())
    codec.decode(once, decoded)
    assert torch.equal(codec.encode(decoded, scratch), once)


@pytest.mark.parametrize("kind", ["local", "tcp"])
def test_who_is_long_in_opening_is_not_taken_for_frozen(
    swarm_of: Callable[[str, int], Swarm], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The last reaches the first only through a relay, say; the others' connections stand."""
    swarm, elements = swarm_of(kind, 3), 1 << 20
    parts = sources(3, elements)
    connect, long_way = swarm.transports[2].connect, threading.Event()

    def slowly(peer_id: str, purpose: Purpose, tag: bytes, timeout_s: float) -> Channel:
        long_way.wait(2.5 * SILENCE_S)
        return connect(peer_id, purpose, tag, timeout_s)

    monkeypatch.setattr(swarm.transports[2], "connect", slowly)
    futures = swarm.start(
        lambda rank: swarm.member(
            rank, parts[rank], elements, silence_s=SILENCE_S, opening_s=4 * SILENCE_S
        )
    )
    first, *others = (future.result(timeout=SOON) for future in futures)
    assert all(torch.equal(first, other) for other in others)
