"""The exchange with everybody directly: its plan alone, then real threads and connections."""

import random
import threading
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from threaded_ring import PARENT, SOON, Swarm, broken, sources, swarm_of
from torch import Tensor

from atom.base.reasons import Reason
from atom.swarm.exchange.algorithm import Algorithm
from atom.swarm.exchange.allreduce import RingBroken, open_one_shot
from atom.swarm.exchange.codec import CODECS, Codec
from atom.swarm.exchange.geometry import ALIGNMENT, RingPlan, ring_tag
from atom.swarm.exchange.one_shot import WINDOW, OneShotPlan
from atom.swarm.stream.frames import Kind, Patience

__all__ = ["swarm_of"]

ELEMENTS = 200_000
PLANS = st.builds(
    RingPlan,
    elements=st.integers(0, 40).map(lambda n: n * ALIGNMENT),
    members=st.integers(2, 5),
    bucket_elements=st.integers(5, 12).map(lambda n: n * ALIGNMENT),
    chunk_elements=st.integers(1, 3).map(lambda n: n * ALIGNMENT),
).map(OneShotPlan)


@given(PLANS)
@settings(max_examples=60, deadline=None)
def test_each_sends_what_the_other_expects(plan: OneShotPlan) -> None:
    lanes = plan.members - 1
    for rank in range(plan.members):
        assert sorted(plan.peer(rank, lane) for lane in range(lanes)) == sorted(
            set(range(plan.members)) - {rank}
        )
        for lane in range(lanes):
            peer = plan.peer(rank, lane)
            back = next(n for n in range(lanes) if plan.peer(peer, n) == rank)
            sent = list(plan.sends_on(rank, lane, lanes))
            assert sent == list(plan.receives_on(peer, back, lanes))
            assert all(number < plan.chunks_received(rank) for number, _ in sent)


@given(PLANS, st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_every_segment_is_summed_once_and_nothing_waits_for_ever(
    plan: OneShotPlan, dice: random.Random
) -> None:
    """Runs all members in any order of events, with bitmaps instead of numbers."""
    lanes, everybody = plan.members - 1, (1 << plan.members) - 1
    streams = {
        (rank, lane): list(plan.sends_on(rank, lane, lanes))
        for rank in range(plan.members)
        for lane in range(lanes)
    }
    final: list[set[int]] = [set() for _ in range(plan.members)]
    held: list[dict[int, tuple[int, int]]] = [{} for _ in range(plan.members)]
    while any(streams.values()):
        able = [
            key
            for key, steps in streams.items()
            if steps and (steps[0][1].needs is None or steps[0][1].needs in final[key[0]])
        ]
        rank, lane = dice.choice(able)
        number, step = streams[rank, lane].pop(0)
        peer = plan.peer(rank, lane)
        if step.gather:
            assert step.contributors == everybody
            final[peer].add(number)
            continue
        slot, before = plan.slot(number), plan.before(number)
        assert slot < WINDOW * plan.segment_chunks
        assert before is None or before in final[peer]
        name, parts = held[peer].pop(slot, (number, 1 << peer))
        assert (name, parts & step.contributors) == (number, 0), "nothing else is held there"
        if parts | step.contributors == everybody:
            final[peer].add(number)
        else:
            held[peer][slot] = number, parts | step.contributors
    buckets = range(0, plan.geometry.elements, plan.geometry.bucket_elements)
    chunks = sum(len(plan.geometry.chunks(b, s)) for b in buckets for s in range(plan.members))
    assert [len(numbers) for numbers in final] == [chunks] * plan.members
    assert not any(held)


@pytest.fixture
def group_of(swarm_of: Callable[[str, int], Swarm]) -> Callable[[str, int], Swarm]:
    def make(kind: str, size: int) -> Swarm:
        swarm = swarm_of(kind, size)
        swarm.algorithm = Algorithm.ONE_SHOT
        return swarm

    return make


def reduced(swarm: Swarm, parts: list[Tensor], codec: Codec | None = None) -> list[Tensor]:
    work = swarm.start(lambda rank: swarm.member(rank, parts[rank], ELEMENTS, codec))
    return [future.result(SOON) for future in work]


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS.keys())
@pytest.mark.parametrize(("kind", "size"), [("tcp", 3), ("local", 2), ("local", 5)])
def test_all_members_get_the_same_mean(
    group_of: Callable[[str, int], Swarm], kind: str, size: int, codec: Codec
) -> None:
    parts = sources(size, ELEMENTS)
    results = reduced(group_of(kind, size), parts, codec)
    exact = sum(part.double() for part in parts) / 64
    tolerance = {"float32": 1e-6, "bfloat16": 2e-2, "int8": 4e-2}[codec.name]
    for result in results:
        assert torch.equal(result, results[0])
        torch.testing.assert_close(
            result.double(), exact, rtol=tolerance, atol=tolerance * size / 40
        )


def test_in_float32_it_gives_the_rings_bytes(group_of: Callable[[str, int], Swarm]) -> None:
    swarm, parts = group_of("local", 4), sources(4, ELEMENTS)
    directly = reduced(swarm, parts)
    swarm.algorithm = Algorithm.RING
    assert torch.equal(reduced(swarm, parts)[0], directly[0])


def test_what_rounding_takes_away_is_kept(group_of: Callable[[str, int], Swarm]) -> None:
    swarm, parts = group_of("local", 3), sources(3, ELEMENTS)
    residuals = [torch.full((ELEMENTS,), float("nan")) for _ in parts]
    work = swarm.start(
        lambda rank: swarm.member(
            rank, parts[rank], ELEMENTS, CODECS["int8"], residual=residuals[rank]
        )
    )
    results = [future.result(SOON) for future in work]
    kept = sum(residual.double() for residual in residuals)
    exact = sum(part.double() for part in parts)
    torch.testing.assert_close(results[0].double() * 64 + kept, exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("culprit", [0, 2])
def test_bad_numbers_are_blamed_on_who_sent_them(
    group_of: Callable[[str, int], Swarm], culprit: int
) -> None:
    swarm, parts = group_of("local", 3), sources(3, ELEMENTS)
    parts[culprit][31_000] = float("nan")
    for future in swarm.start(lambda rank: swarm.member(rank, parts[rank], ELEMENTS)):
        failure = broken(future)
        assert (failure.suspect, failure.reason) == (swarm.order[culprit], Reason.NOT_FINITE)


@pytest.mark.parametrize("frozen", [True, False])
def test_who_freezes_or_dies_is_named_by_all(
    group_of: Callable[[str, int], Swarm], frozen: bool
) -> None:
    swarm, parts, over = group_of("tcp", 3), sources(3, ELEMENTS), threading.Event()

    def work(rank: int) -> Tensor:
        if rank != 1:
            return swarm.member(rank, parts[rank], ELEMENTS, silence_s=0.5)
        channels = swarm.open_all(rank)
        if frozen:
            assert over.wait(SOON)
        channels.close()
        return parts[rank]

    futures = swarm.start(work)
    try:
        for rank in (0, 2):
            failure = broken(futures[rank])
            reason = Reason.TIMEOUT if frozen else Reason.RING_BROKEN
            assert (failure.suspect, failure.reason) == (swarm.order[1], reason)
    finally:
        over.set()


def test_a_part_before_its_time_waits(group_of: Callable[[str, int], Swarm]) -> None:
    """Taken at once, it would be added in the place of one that is still under way."""
    swarm, parts = group_of("local", 3), sources(3, ELEMENTS)
    plan = OneShotPlan(RingPlan(ELEMENTS, 3, 48 * 1024, 4 * 1024))
    over = threading.Event()

    def work(rank: int) -> Tensor:
        if rank != 1:
            return swarm.member(rank, parts[rank], ELEMENTS, silence_s=SOON)
        channels, tag = swarm.open_all(rank), ring_tag(PARENT, swarm.ballot)
        for lane, channel in enumerate(channels.right):
            for _, step in plan.sends_on(rank, lane, 2):
                zeros = bytes(4 * (step.stop - step.start))
                channel.send_frame(
                    Kind.CHUNK, plan.header(tag, step), zeros, patience=Patience(SOON)
                )
        assert over.wait(SOON)
        channels.close()
        return parts[rank]

    futures = swarm.start(work)
    result = futures[0].result(SOON)
    over.set()
    for bucket in range(0, ELEMENTS, 48 * 1024):
        for owner in (0, 2):
            start, stop = plan.geometry.segment(bucket, owner)
            honest = (parts[0] + parts[2])[start:stop] / 64
            torch.testing.assert_close(result[start:stop], honest)


def test_who_does_not_come_is_named(group_of: Callable[[str, int], Swarm]) -> None:
    swarm = group_of("tcp", 3)
    swarm.transports[1].close()
    with pytest.raises(RingBroken) as failure:
        open_one_shot(swarm.transports[0], swarm.order, PARENT, swarm.ballot, 0.2)
    assert failure.value.suspect == swarm.order[1]
