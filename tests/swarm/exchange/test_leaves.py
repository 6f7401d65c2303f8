"""Between a leaf and its carrier: the same bits whoever is first, and the right one to blame."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from atom.base.errors import PeerRefused
from atom.base.events import EventList
from atom.base.reasons import Reason
from atom.swarm.chain.commit import Ballot
from atom.swarm.chain.ring_standing import Pace
from atom.swarm.exchange import reduction
from atom.swarm.exchange.allreduce import (
    Arenas,
    RingBroken,
    RingTerms,
    all_reduce,
    open_leaf,
    open_ring,
)
from atom.swarm.exchange.carriage import Carriage
from atom.swarm.exchange.codec import CODECS
from atom.swarm.exchange.geometry import RingPlan, ring_tag
from atom.swarm.exchange.leaves import Leaf, LeafPlan
from atom.swarm.identity import Identity
from atom.swarm.stream.frames import Channel, Kind, Patience
from tests.swarm.local_transport import LocalNetwork, LocalTransport
from tests.swarm.memory_stream import MemoryStream

PARENT = b"p" * 32
SOON = 20.0
SILENCE_S = 0.5
ELEMENTS = 160 * 1024
SEATS, CARRIER = 3, 1
"""And one leaf, whose rank is `SEATS`."""


class Group:
    """Three seats and a leaf of the second, connected through memory."""

    def __init__(
        self, codec: str = "float32", pace: Pace | None = None, elements: int = ELEMENTS
    ) -> None:
        self.elements = elements
        network = LocalNetwork()
        self.transports = [
            LocalTransport(network, Identity.create(), bytes([number]) * 16, EventList())
            for number in range(SEATS + 1)
        ]
        for transport in self.transports:
            transport.start()
        self.names = tuple(transport.peer_id for transport in self.transports)
        self.ballot = Ballot(1, self.names[0], bytes(16))
        self.pool = ThreadPoolExecutor(SEATS + 1)
        self.codec, self.pace = CODECS[codec], pace or Pace(slack_s=SOON)
        self.plan = RingPlan(self.elements, SEATS, 48 * 1024, 4 * 1024, (CARRIER,))
        self.sources = [
            torch.randn(self.elements, generator=torch.Generator().manual_seed(number))
            for number in range(SEATS + 1)
        ]
        self.left_behind = list[str]()
        self.silence_s = SILENCE_S
        self.residuals = [torch.zeros(self.elements) for _ in self.sources]
        self.landed = [torch.zeros(self.elements, dtype=torch.int32) for _ in self.sources]

    def part(self, rank: int, slowly: Callable[[Channel], None] = lambda channel: None) -> Tensor:
        """What a member does; `slowly` is done to a leaf's channel to its carrier first."""
        where, seats = self.transports[rank], self.names[:SEATS]
        if rank == SEATS:
            channels = open_leaf(where, seats[CARRIER], PARENT, self.ballot, SOON)
            slowly(channels.right[0])
        else:
            leaf = self.names[SEATS] if rank == CARRIER else ""
            channels = open_ring(where, seats, PARENT, self.ballot, SOON, 1, leaf)
        terms = RingTerms(
            seats, rank, ring_tag(PARENT, self.ballot), 0.25, self.codec,
            progress_timeout_s=self.silence_s, pace=self.pace,
            leaves=(Leaf(self.names[SEATS], CARRIER),),
        )  # fmt: skip
        result = torch.full((self.elements,), float("nan"))
        arenas = Arenas(self.sources[rank], result, self.residuals[rank], self._landing(rank))
        left_behind = all_reduce(arenas, terms, channels, plan=self.plan)
        self.left_behind += [left_behind] if left_behind else []
        return result

    def _landing(self, rank: int) -> Callable[[int, int], None]:
        def land(start: int, stop: int) -> None:
            self.landed[rank][start:stop] += 1

        return land

    def run(self, leaf: Callable[[], object] | None = None) -> list["Future[object]"]:
        seats = [self.pool.submit(self.part, rank) for rank in range(SEATS)]
        return [*seats, self.pool.submit(leaf or (lambda: self.part(SEATS)))]

    def channels(self) -> tuple[Channel, Channel]:
        """A leaf's, to its carrier and from it, to do with as one likes."""
        opened = open_leaf(self.transports[SEATS], self.names[CARRIER], PARENT, self.ballot, SOON)
        return opened.right[0], opened.left[0]

    def close(self) -> None:
        for transport in self.transports:
            transport.close()
        self.pool.shutdown()


@pytest.fixture
def group_of() -> Iterator[Callable[..., Group]]:
    made, before = list[Group](), set(threading.enumerate())

    def make(*terms: Any, **more: Any) -> Group:
        made.append(Group(*terms, **more))
        return made[-1]

    yield make
    for group in made:
        group.close()
    assert set(threading.enumerate()) <= before


def words(future: "Future[object]") -> tuple[str | None, Reason, str]:
    failure = future.exception(timeout=SOON)
    assert isinstance(failure, RingBroken), failure
    return failure.suspect, failure.reason, failure.told_by


def test_all_get_the_mean_of_all_once_and_keep_their_own(
    group_of: Callable[..., Group],
) -> None:
    group = group_of()
    kept = [source.clone() for source in group.sources]
    results = [future.result(SOON) for future in group.run()]
    for result in results[1:]:
        assert isinstance(result, Tensor)
        assert torch.equal(result, results[0])
    mean = torch.stack([source.double() for source in kept]).sum(0) / 4
    torch.testing.assert_close(results[0].double(), mean, rtol=1e-6, atol=1e-6)  # type: ignore[attr-defined] # a tensor, as seen
    for source, before, landed in zip(group.sources, kept, group.landed, strict=True):
        assert torch.equal(source, before)
        assert landed.eq(1).all(), "each element once"


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_the_bits_do_not_depend_on_who_came_first(
    group_of: Callable[..., Group], codec: str
) -> None:
    """A leaf that is held back until its carrier has parked what came from the left, and one that
    has sent all before the ring begins."""
    results = []
    for leaf_first in (True, False):
        group, gate = group_of(codec), threading.Event()
        leaf = group.pool.submit(
            group.part, SEATS, lambda _, gate=gate, first=leaf_first: first or gate.wait(0.4)
        )
        seats = [group.pool.submit(group.part, rank) for rank in range(SEATS)]
        results.append([future.result(SOON) for future in (*seats, leaf)])
        gate.set()
    for result in results[1]:
        assert torch.equal(result, results[0][0])


@pytest.mark.parametrize("codec", ["float32", "int8"])
def test_what_encoding_took_is_what_the_sum_lacks(
    group_of: Callable[..., Group], codec: str
) -> None:
    group = group_of(codec)
    result = group.run()[0].result(SOON)
    assert isinstance(result, Tensor)
    exact = torch.stack([source.double() for source in group.sources]).sum(0)
    lost = torch.stack([residual.double() for residual in group.residuals]).sum(0)
    torch.testing.assert_close(4 * result.double() + lost, exact, rtol=1e-4, atol=1e-4)
    assert (codec == "int8") == bool(group.residuals[SEATS].abs().max() > 0)


def chunk(group: Group, number: int, values: Tensor, tag: bytes | None = None) -> list[bytes]:
    step = list(LeafPlan(group.plan, 0).sends())[number]
    own = ring_tag(PARENT, group.ballot)
    return [group.plan.header(tag or own, step), values[: step.stop - step.start].numpy().tobytes()]


def send(channel: Channel, parts: list[bytes]) -> None:
    channel.send_frame(Kind.CHUNK, *parts, patience=Patience.within(SOON))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("no encoder", Reason.MALFORMED),
        ("nan", Reason.NOT_FINITE),
        ("absurd", Reason.NOT_FINITE),
        ("short", Reason.MALFORMED),
        ("another place", Reason.MALFORMED),
        ("another attempt", Reason.MALFORMED),
        ("goes", Reason.RING_BROKEN),
        ("silent", Reason.TIMEOUT),
    ],
)
def test_a_bad_leaf_is_refused_by_name_and_its_carrier_is_believed(
    group_of: Callable[..., Group], kind: str, reason: Reason
) -> None:
    group = group_of("int8" if kind == "no encoder" else "float32")
    ones, over = torch.ones(4 * 1024), threading.Event()
    header, numbers = chunk(group, 0, ones)
    wire_bytes = group.codec.wire_bytes(len(numbers) // 4)
    said = {
        "no encoder": [header, b"\x01" * wire_bytes],
        "nan": chunk(group, 0, torch.full_like(ones, float("nan"))),
        "absurd": chunk(group, 0, 1e31 * ones),
        "short": chunk(group, 0, ones[:16]),
        "another place": chunk(group, 1, ones),
        "another attempt": chunk(group, 0, ones, b"x" * 32),
    }

    def leaf() -> None:
        up, down = group.channels()
        if kind in said:
            send(up, said[kind])
        if kind != "goes":
            over.wait(SOON)
        up.close()
        down.close()

    seats = group.run(leaf)[:SEATS]
    assert words(seats[CARRIER]) == (group.names[SEATS], reason, "")
    for rank in (0, 2):
        suspect, _, teller = words(seats[rank])
        assert suspect == group.names[SEATS], "they hear whose fault it was"
        assert teller in group.names[:SEATS]
    over.set()


def test_a_leaf_that_dribbles_is_found_before_the_ring_is_too_slow(
    group_of: Callable[..., Group],
) -> None:
    group, over = group_of(pace=Pace(slack_s=2.0, bytes_per_s=1e6)), threading.Event()

    def leaf() -> None:
        up, down = group.channels()
        while not over.wait(SILENCE_S / 4):
            try:
                up.send_frame(Kind.WAITING, patience=Patience.within(SOON))
            except OSError:
                break
        up.close()
        down.close()

    seats = group.run(leaf)[:SEATS]
    assert words(seats[CARRIER]) == (group.names[SEATS], Reason.TOO_SLOW, "")
    assert {words(seats[rank])[0] for rank in (0, 2)} == {group.names[SEATS]}
    over.set()


def test_who_dies_when_its_sums_are_through_spoils_nothing(
    group_of: Callable[..., Group],
) -> None:
    group = group_of()

    def leaf() -> None:
        up, down = group.channels()
        part = torch.ones(4 * 1024)
        for number in range(sum(1 for _ in LeafPlan(group.plan, 0).sends())):
            send(up, chunk(group, number, part))
        up.close()
        down.close()

    results = [future.result(SOON) for future in group.run(leaf)[:SEATS]]
    mean = (torch.stack([source.double() for source in group.sources[:SEATS]]).sum(0) + 1) / 4
    for result in results:
        assert isinstance(result, Tensor)
        torch.testing.assert_close(result.double(), mean, rtol=1e-6, atol=1e-6)


def test_a_leaf_that_takes_its_means_too_slowly_is_cut_off(
    group_of: Callable[..., Group], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its part is in the mean, and its carrier does not stay in the ring for its sake."""
    monkeypatch.setattr(reduction, "_LEAST_TAIL_S", SILENCE_S)
    group, over = group_of(elements=3 * ELEMENTS), threading.Event()
    group.silence_s = SOON

    def leaf() -> None:
        up, down = group.channels()
        for number in range(sum(1 for _ in LeafPlan(group.plan, 0).sends())):
            send(up, chunk(group, number, torch.ones(4 * 1024)))
        try:
            while not over.wait(SILENCE_S / 3):
                down.recv_frame(Kind.CHUNK, 1 << 20, Patience.within(SOON))
        except (OSError, PeerRefused):
            pass
        up.close()
        down.close()

    seats = group.run(leaf)[:SEATS]
    results = [future.result(SOON) for future in seats]
    over.set()
    assert torch.equal(results[0], results[CARRIER])
    assert group.left_behind == [group.names[SEATS]]


def test_a_leaf_may_take_as_long_for_the_last_bucket_as_it_sent_it() -> None:
    """Its means begin when all of its sums are there: of one bucket that is all there is."""
    bucket = RingPlan.usual(16, SEATS).bucket_elements
    assert reduction.tail_s(RingPlan.usual(bucket, SEATS), 8.0) == 10.0
    assert reduction.tail_s(RingPlan.usual(bucket // 2, SEATS), 8.0) == 10.0
    assert reduction.tail_s(RingPlan.usual(10 * bucket, SEATS), 8.0) == 4.0
    assert reduction.tail_s(RingPlan.usual(10 * bucket, SEATS), 0.1) == 1.0


def test_of_several_connections_that_wait_for_the_leaf_none_is_forgotten() -> None:
    end, _ = map(Channel, MemoryStream.pair())
    plan = LeafPlan(RingPlan(ELEMENTS, SEATS, 48 * 1024, 4 * 1024, (CARRIER,)), 0)
    carriage = Carriage(plan, "leaf", end, end)
    carriage.expect(0)
    carriage.expect(4096)
    assert carriage.holds_up()
    carriage.brought.add(4096)
    assert carriage.holds_up(), "the other one still waits"
    carriage.brought.add(0)
    assert not carriage.holds_up()


def test_a_carrier_meets_its_leaf_while_it_waits_for_its_neighbours(
    group_of: Callable[..., Group],
) -> None:
    group = group_of()
    carrying = group.pool.submit(group.part, CARRIER)
    leaf = open_leaf(group.transports[SEATS], group.names[CARRIER], PARENT, group.ballot, SOON)
    others = [group.pool.submit(group.part, rank) for rank in (0, 2)]
    leaf.close()
    for future in (carrying, *others):
        assert words(future)[0] == group.names[SEATS]


def test_a_leaf_blames_a_carrier_that_falls_silent(group_of: Callable[..., Group]) -> None:
    group, over = group_of(), threading.Event()

    def carrier() -> None:
        leaf = group.names[SEATS]
        channels = open_ring(
            group.transports[CARRIER], group.names[:SEATS], PARENT, group.ballot, SOON, 1, leaf
        )
        over.wait(SOON)
        channels.close()

    group.pool.submit(carrier)
    others = {rank: group.pool.submit(group.part, rank) for rank in (0, 2, SEATS)}
    assert words(others[SEATS])[:2] == (group.names[CARRIER], Reason.TIMEOUT)
    over.set()


def test_headers_name_the_leaves_in_a_sum() -> None:
    """So a member that heard of other leaves breaks the ring, not the sum."""
    plan, without = RingPlan(1024, 3, 1024, 64, (1,)), RingPlan(1024, 3, 1024, 64)
    tag = b"t" * 32
    for step in plan.sends(0):
        bits = plan.header(tag, step)[-1]
        assert bits & 7 == step.contributors
        assert bool(bits & 8) == bool(bits & 2), "with its carrier's"
        assert (plan.header(tag, step) == without.header(tag, step)) == (not bits & 8)
    assert {plan.header(tag, step)[-1] for step in LeafPlan(plan, 0).sends()} == {8}


def test_a_leafs_chunks_are_all_of_the_arena_in_both_directions() -> None:
    for members in (2, 3, 5):
        for carrier in range(members):
            plan = LeafPlan(RingPlan(2048, members, 768, 64, (carrier,)), 0)
            there, back = list(plan.sends()), list(plan.receives())
            for steps in (there, back):
                covered = sorted((step.start, step.stop) for step in steps)
                assert covered[0][0] == 0
                assert covered[-1][1] == 2048
                assert all(one[1] == two[0] for one, two in pairwise(covered))
            needs = [step.needs for step in back]
            assert needs == sorted(needs, key=lambda each: each or 0), "as they become final"
