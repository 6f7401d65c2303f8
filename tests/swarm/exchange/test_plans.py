"""The plans alone: simulated with sets, they must put every part into every sum exactly once."""

import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atom.config.run_file import CODECS
from atom.swarm.exchange.codec import Codec, codec_named
from atom.swarm.exchange.plans import (
    ALIGNMENT,
    BUCKET_BYTES,
    WINDOW,
    PartsPlan,
    Plan,
    RingPlan,
    Step,
)

SIZES = {
    "elements": st.integers(0, 40).map(lambda n: n * ALIGNMENT),
    "bucket_elements": st.integers(1, 12).map(lambda n: n * ALIGNMENT),
    "chunk_elements": st.integers(1, 3).map(lambda n: n * ALIGNMENT),
}
SHARES = st.lists(st.integers(0, 5), min_size=2, max_size=5).filter(any).map(tuple)
RINGS = st.builds(RingPlan, shares=st.integers(1, 7).map(lambda size: (1,) * size), **SIZES)
PARTS = st.builds(PartsPlan, shares=SHARES, **SIZES)


def chunks(plan: Plan) -> Iterator[tuple[int, int, int, int]]:
    for bucket in range(plan.buckets):
        for owner in range(plan.members):
            for chunk in plan.chunks(bucket, owner):
                yield owner, *chunk


@given(RINGS | PARTS)
@settings(max_examples=100, deadline=None)
def test_pieces_are_aligned_cover_the_arena_once_and_belong_to_owners(plan: Plan) -> None:
    covered, numbers = [], []
    for owner, number, start, stop in chunks(plan):
        assert plan.shares[owner]
        assert start % ALIGNMENT == stop % ALIGNMENT == 0
        covered += range(start, stop)
        numbers.append(number)
    assert covered == list(range(plan.elements))
    assert len(set(numbers)) == len(numbers)


class Everybody:
    """Runs all members in any order of events, with bitmaps instead of numbers."""

    def __init__(self, plan: Plan, ways: list[tuple[int, int]], dice: random.Random) -> None:
        self.all = (1 << plan.members) - 1
        self.streams = {way: list(plan.stream(*way)) for way in ways}
        self.arrived: list[set[int]] = [set() for _ in range(plan.members)]
        self.dice = dice

    def sent(self) -> Iterator[tuple[int, int, Step]]:
        while any(self.streams.values()):
            able = [way for way, steps in self.streams.items() if self._able(way[0], steps)]
            sender, receiver = self.dice.choice(able)  # fails if all wait for each other
            yield sender, receiver, self.streams[sender, receiver].pop(0)

    def _able(self, sender: int, steps: list[Step]) -> bool:
        return bool(steps) and steps[0].needs in {None, *self.arrived[sender]}


@given(RINGS, st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_ring_every_member_ends_with_every_part_of_every_element(
    plan: RingPlan, dice: random.Random
) -> None:
    members = range(plan.members if plan.members > 1 else 0)
    everybody = Everybody(plan, [(rank, (rank + 1) % plan.members) for rank in members], dice)
    results = [[0] * (plan.elements // ALIGNMENT) for _ in members]
    for rank, right, step in everybody.sent():
        for unit in range(step.start // ALIGNMENT, step.stop // ALIGNMENT):
            first = not step.gather and step.hop == 0
            travelling = 1 << rank if first else results[rank][unit]
            assert step.gather or not travelling & 1 << right, "no member is counted twice"
            results[right][unit] = travelling | (0 if step.gather else 1 << right)
            complete = results[right][unit] == everybody.all
            assert complete == (step.gather or step.last_sum)
        assert step.number not in everybody.arrived[right]
        everybody.arrived[right].add(step.number)
    assert all(bitmap == everybody.all for part in results for bitmap in part)


@given(PARTS, st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_parts_every_part_is_summed_once_and_nothing_waits_for_ever(
    plan: PartsPlan, dice: random.Random
) -> None:
    ways = [(rank, peer) for rank in range(plan.members) for peer in plan.peers(rank)]
    everybody = Everybody(plan, ways, dice)
    final = everybody.arrived
    held: list[dict[int, tuple[int, int]]] = [{} for _ in final]
    sums: list[dict[int, int]] = [{} for _ in final]
    for rank, peer, step in everybody.sent():
        number, slot = step.number, plan.slot(step.number)
        assert slot < WINDOW * plan.owned_chunks
        if step.gather:
            assert sums[rank][slot] == number, "the sum is still there to be sent"
            final[peer].add(number)
            continue
        name, parts = held[peer].pop(slot, (number, 1 << peer))
        assert (name, parts & 1 << rank) == (number, 0), "nothing else is held there"
        if parts | 1 << rank == everybody.all:
            final[peer].add(number)
            sums[peer][slot] = number
        else:
            held[peer][slot] = number, parts | 1 << rank
    every = {number for _, number, _, _ in chunks(plan)}
    assert all(numbers == every for numbers in final)
    assert not any(held)


@given(st.lists(st.integers(0, 100), min_size=2, max_size=40).filter(any).map(tuple))
def test_parts_no_owner_holds_more_than_a_window_of_buckets(shares: tuple[int, ...]) -> None:
    plan = PartsPlan.usual(10 * BUCKET_BYTES, shares)
    largest = sum(stop - start for _, start, stop in plan.chunks(0, shares.index(max(shares))))
    least = 4 * ALIGNMENT * len(shares) ** 2
    assert 4 * largest * len(shares) <= max(BUCKET_BYTES, least) + 4 * ALIGNMENT * len(shares)


@pytest.mark.parametrize("codec", list(map(codec_named, CODECS)), ids=CODECS)
def test_a_segment_is_as_many_bytes_on_the_wire_with_each_codec(codec: Codec) -> None:
    plan = RingPlan.usual(100 * BUCKET_BYTES, (1,) * 4, element_bytes=codec.element_bytes)
    segment, least = list(plan.chunks(0, 1)), BUCKET_BYTES // 4
    elements = segment[-1][2] - segment[0][1]
    assert elements == least // codec.element_bytes
    assert codec.wire_bytes(elements) < 1.03 * least  # with scales, levels and counts
    assert len(segment) >= 4
