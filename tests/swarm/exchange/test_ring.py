"""The plan alone: simulated with sets, it must put every part into every sum exactly once."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atom.config.run_file import CODECS
from atom.swarm.chain.commit import Ballot
from atom.swarm.exchange.codec import Codec, codec_named
from atom.swarm.exchange.plans import (
    ALIGNMENT,
    BUCKET_BYTES,
    RingPlan,
    Step,
    ring_tag,
)
from atom.swarm.identity import peer_id_of

PLANS = st.builds(
    RingPlan,
    elements=st.integers(0, 40).map(lambda n: n * ALIGNMENT),
    members=st.integers(1, 7),
    bucket_elements=st.integers(1, 12).map(lambda n: n * ALIGNMENT),
    chunk_elements=st.integers(1, 3).map(lambda n: n * ALIGNMENT),
)


@given(PLANS)
@settings(max_examples=200, deadline=None)
def test_the_left_sends_exactly_what_the_right_expects(plan: RingPlan) -> None:
    for rank in range(plan.members):
        sends = list(plan.sends(rank))
        expected = list(plan.receives((rank + 1) % plan.members))
        assert len(sends) == len(expected)
        for sent, awaited in zip(sends, expected, strict=True):
            sent = replace(sent, number=awaited.number, needs=None)
            assert sent == replace(awaited, needs=None)


@given(PLANS)
@settings(max_examples=100, deadline=None)
def test_every_member_ends_with_every_part_of_every_element(plan: RingPlan) -> None:
    """Runs all members in lock-step on bitmaps instead of numbers."""
    units = plan.elements // ALIGNMENT
    results = [[0] * units for _ in range(plan.members)]
    received = [0] * plan.members
    sends = [list(plan.sends(rank)) for rank in range(plan.members)]
    receives = [list(plan.receives(rank)) for rank in range(plan.members)]
    for steps in receives:
        assert [step.number for step in steps] == list(range(len(steps)))
    at = [0] * plan.members
    progress = True
    while progress:
        progress = False
        for rank in range(plan.members):
            right = (rank + 1) % plan.members
            while at[rank] < len(sends[rank]) and ready(sends[rank][at[rank]], received[rank]):
                step = sends[rank][at[rank]]
                awaited = receives[right][at[rank]]
                for unit in range(step.start // ALIGNMENT, step.stop // ALIGNMENT):
                    first = not step.gather and step.hop == 0
                    travelling = 1 << rank if first else results[rank][unit]
                    results[right][unit] = travelling | (0 if step.gather else 1 << right)
                    complete = results[right][unit] == (1 << plan.members) - 1
                    assert complete == (step.gather or awaited.last_sum)
                at[rank] += 1
                received[right] += 1
                progress = True
    assert at == [len(steps) for steps in sends]
    if plan.members > 1:
        assert all(bitmap == (1 << plan.members) - 1 for part in results for bitmap in part)


@given(PLANS)
@settings(max_examples=100, deadline=None)
def test_pieces_are_aligned_and_cover_the_arena_once(plan: RingPlan) -> None:
    covered = []
    for bucket in range(0, plan.elements, plan.bucket_elements):
        for index in range(plan.members):
            for start, stop in plan.chunks(bucket, index):
                assert start % ALIGNMENT == stop % ALIGNMENT == 0
                covered += range(start, stop)
    assert covered == list(range(plan.elements))


def test_plans_of_a_huge_arena_cost_nothing_to_start() -> None:
    plan = RingPlan.usual(175_000_000_000, 8)
    assert next(plan.sends(3)).needs is None


@pytest.mark.parametrize("codec", list(map(codec_named, CODECS)), ids=CODECS)
def test_a_segment_is_as_many_bytes_on_the_wire_with_each_codec(codec: Codec) -> None:
    members = 4
    plan = RingPlan.usual(10 * BUCKET_BYTES, members, element_bytes=codec.element_bytes)
    chunks, least = plan.chunks(0, 1), BUCKET_BYTES // members
    elements = chunks[-1][1] - chunks[0][0]
    assert least <= codec.wire_bytes(elements) < 1.01 * least  # with int8's scales
    assert len(chunks) >= 4


def test_tags_differ_by_parent_and_ballot() -> None:
    peer = peer_id_of(bytes(32))
    ballots = [Ballot(1, peer, bytes(16)), Ballot(2, peer, bytes(16))]
    tags = {ring_tag(parent, ballot) for parent in (b"a" * 32, b"b" * 32) for ballot in ballots}
    assert len(tags) == 4


def ready(step: Step, received: int) -> bool:
    return step.needs is None or step.needs < received
