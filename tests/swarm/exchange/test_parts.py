"""Parts with owners: the plan alone, then real threads and connections."""

import random
import threading
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from threaded_ring import SOON, Swarm, sources, swarm_of
from torch import Tensor

from atom.swarm.exchange.allreduce import ExchangeBroken
from atom.swarm.exchange.plans import ALIGNMENT, BUCKET_BYTES, WINDOW, PartsPlan, chunk_header
from atom.swarm.stream.frames import Kind, Patience

__all__ = ["swarm_of"]

ELEMENTS = 200_000
SHARES = st.lists(st.integers(0, 5), min_size=2, max_size=5).filter(any).map(tuple)
PLANS = st.builds(
    PartsPlan,
    elements=st.integers(0, 40).map(lambda n: n * ALIGNMENT),
    shares=SHARES,
    bucket_elements=st.integers(1, 12).map(lambda n: n * ALIGNMENT),
    chunk_elements=st.integers(1, 3).map(lambda n: n * ALIGNMENT),
)


@given(PLANS)
@settings(max_examples=60, deadline=None)
def test_plan_parts_are_aligned_cover_the_arena_once_and_belong_to_owners(plan: PartsPlan) -> None:
    covered = []
    for bucket in range(-(-plan.elements // plan.bucket_elements)):
        for rank, share in enumerate(plan.shares):
            chunks = list(plan.chunks(bucket, rank))
            assert share or not chunks
            assert len(chunks) <= plan.owned_chunks
            for _, start, stop in chunks:
                assert start % ALIGNMENT == stop % ALIGNMENT == 0
                covered += range(start, stop)
    assert covered == list(range(plan.elements))


@given(PLANS, st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_plan_every_part_is_summed_once_and_nothing_waits_for_ever(
    plan: PartsPlan, dice: random.Random
) -> None:
    """Runs all members in any order of events, with bitmaps instead of numbers."""
    everybody = (1 << plan.members) - 1
    streams = {
        (rank, peer): list(plan.stream(rank, peer))
        for rank in range(plan.members)
        for peer in plan.peers(rank)
    }
    final: list[set[int]] = [set() for _ in range(plan.members)]
    held: list[dict[int, tuple[int, int]]] = [{} for _ in range(plan.members)]
    sums: list[dict[int, int]] = [{} for _ in range(plan.members)]
    while any(streams.values()):
        able = [
            key
            for key, steps in streams.items()
            if steps and (steps[0].needs is None or steps[0].needs in final[key[0]])
        ]
        rank, peer = dice.choice(able)
        step = streams[rank, peer].pop(0)
        number = step.number
        if step.gather:
            assert sums[rank][plan.slot(number)] == number, "the sum is still there to be sent"
            final[peer].add(number)
            continue
        slot, before = plan.slot(number), plan.before(number)
        assert slot < WINDOW * plan.owned_chunks
        assert before is None or before in final[peer]
        name, parts = held[peer].pop(slot, (number, 1 << peer))
        assert (name, parts & 1 << rank) == (number, 0), "nothing else is held there"
        if parts | 1 << rank == everybody:
            final[peer].add(number)
            sums[peer][slot] = number
        else:
            held[peer][slot] = number, parts | 1 << rank
    buckets = range(-(-plan.elements // plan.bucket_elements))
    chunks = sum(len(list(plan.chunks(b, rank))) for b in buckets for rank in range(plan.members))
    assert [len(numbers) for numbers in final] == [chunks] * plan.members
    assert not any(held)


@given(st.lists(st.integers(0, 100), min_size=2, max_size=40).filter(any).map(tuple))
def test_plan_no_owner_holds_more_than_a_window_of_buckets(shares: tuple[int, ...]) -> None:
    plan = PartsPlan.usual(10 * BUCKET_BYTES, shares)
    largest = sum(stop - start for _, start, stop in plan.chunks(0, shares.index(max(shares))))
    least = 4 * ALIGNMENT * len(shares) ** 2
    assert 4 * largest * len(shares) <= max(BUCKET_BYTES, least) + 4 * ALIGNMENT * len(shares)


def reduced(swarm: Swarm, parts: list[Tensor]) -> list[Tensor]:
    work = swarm.start(lambda rank: swarm.member(rank, parts[rank], ELEMENTS))
    return [future.result(SOON) for future in work]


def test_parts_are_added_in_a_fixed_order(swarm_of: Callable[..., Swarm]) -> None:
    """Own numbers first, then those of the ranks after it: the same bits in every run."""
    swarm, parts = swarm_of(3, (0, 1, 0)), sources(3, ELEMENTS)
    mean = (parts[1] + parts[2] + parts[0]) / 64
    assert torch.equal(reduced(swarm, parts)[0], mean)


def test_parts_nobody_dials_a_member_without_one(swarm_of: Callable[..., Swarm]) -> None:
    swarm, parts = swarm_of(4, (1, 0, 2, 0)), sources(4, ELEMENTS)
    for transport in swarm.transports:
        for hidden in (1, 3):
            transport.set_addresses(swarm.order[hidden], [])
    results = reduced(swarm, parts)
    assert all(torch.equal(result, results[0]) for result in results)


def test_parts_a_contribution_before_its_time_waits(swarm_of: Callable[..., Swarm]) -> None:
    """Taken at once, it would be added in the place of one that is still under way."""
    swarm, parts = swarm_of(3, (1, 1, 1)), sources(3, ELEMENTS)
    plan = swarm.plan(ELEMENTS)
    assert isinstance(plan, PartsPlan)
    over = threading.Event()

    def work(rank: int) -> Tensor:
        if rank != 1:
            return swarm.member(rank, parts[rank], ELEMENTS, silence_s=SOON)
        channels, tag = swarm.open_all(rank), swarm.terms(rank).tag
        for peer, channel in zip(plan.peers(rank), channels.right, strict=True):
            for step in plan.stream(rank, peer):
                header, zeros = chunk_header(tag, step), bytes(4 * (step.stop - step.start))
                channel.send_frame(Kind.CHUNK, header, zeros, patience=Patience(SOON))
        assert over.wait(SOON)
        channels.close()
        return parts[rank]

    futures = swarm.start(work)
    result = futures[0].result(SOON)
    over.set()
    for bucket in range(-(-ELEMENTS // (48 * 1024))):
        for owner in (0, 2):
            for _, start, stop in plan.chunks(bucket, owner):
                honest = (parts[0] + parts[2])[start:stop] / 64
                torch.testing.assert_close(result[start:stop], honest)


@pytest.mark.parametrize("shares", [(1, 1, 1), (1, 0, 1)])
def test_parts_who_does_not_come_is_named(
    swarm_of: Callable[..., Swarm], shares: tuple[int, ...]
) -> None:
    swarm = swarm_of(3, shares)
    swarm.transports[1].close()
    with pytest.raises(ExchangeBroken) as failure:
        swarm.open_all(0, 0.2)
    assert failure.value.suspect in swarm.order[1:]
    assert shares[1] == 0 or failure.value.suspect == swarm.order[1]
